"""Tables and figures of the docs, from the raw metrics in this folder: python results/summarize.py"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np

from taac_wrappers.training.tracking import read_metrics

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
FIGURES = HERE.parent / "docs" / "figures"

Metrics = dict[str, tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Task:
    """A folder of runs; ``goal`` is the score by which they are timed."""

    env_id: str
    goal: float
    runs: dict[str, list[str]]  # files of every method


TASKS = {
    "mountaincar": Task(
        "MountainCarContinuous-v0", 90.0, {"TAAC": [f"taac_s{seed}" for seed in range(3)], "SAC": ["sac_s0", "sac_s1"]}
    ),
    "lunarlander": Task("LunarLanderContinuous-v3", 200.0, {"TAAC": ["taac_s0", "taac_s1"]}),
    "doublependulum": Task("InvertedDoublePendulum-v5", 9000.0, {"TAAC": ["taac_s0", "taac_s1"]}),
    "halfcheetah": Task(
        "HalfCheetah-v5",
        3000.0,
        {
            "TAAC": [f"taac_s{seed}" for seed in range(3)],
            "SAC": [f"sac_s{seed}" for seed in range(12)],
            "SB3's SAC, our start and density": [f"sb3_sac_our_density_s{seed}" for seed in range(8)],
            "SB3's SAC": [f"sb3_sac_s{seed}" for seed in range(2)],
        },
    ),
}
METHODS = {
    "TAAC": "taac",
    "TAAC-1td": "taac-1td",
    "TAAC-Ntd": "taac-ntd",
    "SAC": "sac",
    "SAC-Ntd": "sac_ntd",
    "SAC-Nrep": "sac_nrep",
    "SAC-Krep": "sac_krep",
    "SAC-EZ": "sac_ez",
    "SAC-Hybrid": "sac_hybrid",
    "SAC-Hybrid-CompThr": "sac_hybrid-compthr",
}
"""The paper's ten, and how their files in ``mountaincar`` begin."""


def compared() -> dict[str, list[str]]:
    """Files of every method with the seeds 0 and 1, as far as there are such."""
    names = {method: [f"{file}_s{seed}" for seed in (0, 1)] for method, file in METHODS.items()}
    return {
        method: [name for name in files if (HERE / "mountaincar" / f"{name}.csv").exists()]
        for method, files in names.items()
    }


LOOKS: dict[str, dict] = {
    "TAAC": {"color": "tab:blue", "zorder": 3, "linewidth": 1.8},
    "SAC": {"color": "black", "linestyle": "--", "linewidth": 0.9},
    "SB3's SAC, our start and density": {"color": "tab:orange", "linestyle": "-.", "linewidth": 0.9},
    "SB3's SAC": {"color": "tab:gray", "linestyle": ":", "linewidth": 1.2},
}


def last(metrics: Metrics, metric: str) -> float:
    return float(metrics[metric][1][-1])


def reached(metrics: Metrics, goal: float) -> str:
    """The frame of the second of two evaluations in a row that reach the score."""
    frames, scores = metrics["eval/score"]
    twice = np.flatnonzero((scores[1:] >= goal) & (scores[:-1] >= goal))
    return f"{frames[twice[0] + 1]:,.0f}" if len(twice) else "never"


def run_table(folder: str, task: Task, methods: list[str]) -> None:
    print(f"\n| {task.env_id} | last score | frames per episode | repeats | {task.goal:,.0f} reached at frame |")
    print("|---|---|---|---|---|")
    for method in methods:
        for seed, file in enumerate(task.runs[method]):
            metrics = read_metrics(HERE / folder / f"{file}.csv")
            score = f"{last(metrics, 'final/score'):,.1f} ± {last(metrics, 'final/score_std'):,.1f}"
            numbers = f"{last(metrics, 'final/length'):.0f} | {last(metrics, 'final/repeat_fraction'):.0%}"
            print(f"| {method}, seed {seed} | {score} | {numbers} | {reached(metrics, task.goal)} |")


def group_table(folder: str, task: Task) -> None:
    """Means over the runs of a method, and the range of their last scores."""
    frames = 20_000, 50_000, 80_000
    print(f"\n| {task.env_id} | runs | 20,000 frames | 50,000 | 80,000 | 100,000 | from lowest to highest |")
    print("|---|---|---|---|---|---|---|")
    for method, files in task.runs.items():
        runs = [read_metrics(HERE / folder / f"{file}.csv") for file in files]
        at = [dict(zip(*run["eval/score"], strict=True)) for run in runs]
        means = " | ".join(f"{np.mean([scores[frame] for scores in at]):,.0f}" for frame in frames)
        final = [last(run, "final/score") for run in runs]
        scores = f"{np.mean(final):,.0f} | {min(final):,.0f} to {max(final):,.0f}"
        print(f"| {method} | {len(runs)} | {means} | {scores} |")


def draw_methods(path: Path) -> None:
    """Both seeds of every method on MountainCarContinuous, a panel each."""
    figure, axes = plt.subplots(2, 5, figsize=(14, 5), sharex=True, sharey=True, layout="constrained")
    for axis, (method, files) in zip(axes.flat, compared().items(), strict=True):
        for file, style in zip(files, ("-", "--"), strict=False):
            frames, scores = read_metrics(HERE / "mountaincar" / f"{file}.csv")["eval/score"]
            axis.plot(frames / 1000, scores, style, color="black", linewidth=1.2, label=f"seed {file[-1]}")
        axis.axhline(TASKS["mountaincar"].goal, color="black", linewidth=0.7, linestyle=":")
        axis.set_title(method, fontsize=10)
        axis.grid(alpha=0.3)
    axes[0, 0].legend(fontsize=8)
    for axis in axes[-1]:
        axis.set_xlabel("thousand frames")
    for axis in axes[:, 0]:
        axis.set_ylabel("score (10 episodes, mode)")
    figure.savefig(path, dpi=100)
    plt.close(figure)


def draw(path: Path) -> None:
    figure, axes = plt.subplots(2, len(TASKS), figsize=(14, 5.5), sharex="col", layout="constrained")
    for column, (folder, task) in enumerate(TASKS.items()):
        score, repeats = axes[:, column]
        for method, files in task.runs.items():
            for number, file in enumerate(files):
                metrics = read_metrics(HERE / folder / f"{file}.csv")
                label = None if number else method
                score.plot(metrics["eval/score"][0] / 1000, metrics["eval/score"][1], label=label, **LOOKS[method])
                if method == "TAAC":
                    frames, share = metrics["eval/repeat_fraction"]
                    repeats.plot(frames / 1000, 100 * share, **LOOKS[method])
        score.axhline(task.goal, color="black", linewidth=0.7, linestyle=":")
        score.set_title(task.env_id, fontsize=10)
        score.legend(fontsize=7)
        repeats.set_ylim(-3, 103)
        repeats.set_xlabel("thousand frames")
        for axis in (score, repeats):
            axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel("score (10 episodes, mode)")
    axes[1, 0].set_ylabel("TAAC: repeated frames, %")
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main() -> None:
    for folder in ("mountaincar", "lunarlander", "doublependulum"):
        run_table(folder, TASKS[folder], list(TASKS[folder].runs))
    run_table("halfcheetah", TASKS["halfcheetah"], ["TAAC"])
    group_table("halfcheetah", TASKS["halfcheetah"])
    task = TASKS["mountaincar"]
    run_table("mountaincar", Task(task.env_id, task.goal, compared()), list(METHODS))
    draw(FIGURES / "learning.png")
    draw_methods(FIGURES / "methods.png")


if __name__ == "__main__":
    main()
