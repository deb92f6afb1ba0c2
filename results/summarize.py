"""Tables and figures of the docs, from the raw metrics in this folder: python results/summarize.py"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np

from taac_wrappers.training.tracking import read_metrics

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
SOLVED = 90.0
RUNS = {
    "TAAC (expected), seed 0": "taac_s0",
    "TAAC (expected), seed 1": "taac_s1",
    "TAAC (expected), seed 2": "taac_s2",
    "`--td-mode sampled`": "taac_sampled_s0",
    "`--td-mode alf`": "taac_alf_s0",
    "TAAC-1td: `--td-operator one-step`": "taac_1td_s0",
    "`--train-on all`": "taac_all_s0",
    "SAC, seed 0": "sac_s0",
}
"""What each file of mountaincar/ is; the commands are in README.md."""

HALFCHEETAH = {
    "SAC": [f"sac_s{seed}" for seed in range(12)],
    "SB3's SAC, our start and density": [f"sb3_sac_our_density_s{seed}" for seed in range(8)],
    "SB3's SAC, our start": [f"sb3_sac_our_start_s{seed}" for seed in range(4)],
    "SB3's SAC": [f"sb3_sac_s{seed}" for seed in range(2)],
}
"""What files of halfcheetah/ are; README.md names the others, too."""

HALFCHEETAH_STYLES: dict[str, dict] = {
    "SAC": {"color": "tab:blue"},
    "SB3's SAC, our start and density": {"color": "tab:orange"},
    "SB3's SAC, our start": {"color": "tab:red", "linestyle": "--"},
    "SB3's SAC": {"color": "tab:gray", "linestyle": ":"},
}

Metrics = dict[str, tuple[np.ndarray, np.ndarray]]


def solved_at(metrics: Metrics) -> str:
    """The frame of the second of two evaluations in a row that reach the score."""
    frames, scores = metrics["eval/score"]
    twice = np.flatnonzero((scores[1:] >= SOLVED) & (scores[:-1] >= SOLVED))
    return f"{frames[twice[0] + 1]:,.0f}" if len(twice) else "never"


def row(name: str, metrics: Metrics) -> str:
    def last(metric: str) -> float:
        return float(metrics[metric][1][-1])

    score = f"{last('final/score'):.1f} ± {last('final/score_std'):.1f}"
    repeats = f"{last('final/repeat_fraction'):.0%}"
    cells = name, f"{last('charts/frames'):,.0f}", score, f"{last('final/length'):.0f}", repeats, solved_at(metrics)
    return f"| {' | '.join(cells)} |"


def draw(runs: dict[str, Metrics], path: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(11, 3.8), constrained_layout=True)
    panels = (
        ("eval/score", 1.0, "score (mean of 10 episodes, mode)"),
        ("eval/repeat_fraction", 100.0, "repeated actions, %"),
    )
    for axis, (metric, scale, label) in zip(axes, panels, strict=True):
        axis.set_prop_cycle(color=["tab:orange", "tab:green", "tab:red", "tab:purple"])
        for name, metrics in runs.items():
            frames, values = metrics[metric]
            style = {"linewidth": 1.1, "linestyle": "--"}
            if name.startswith("TAAC (expected)"):
                style = {"color": "tab:blue", "linewidth": 1.8}
            elif name.startswith("SAC"):
                style = {"color": "black", "linewidth": 1.1}
            axis.plot(frames / 1000, scale * values, label=name.replace("`", ""), **style)
        axis.set_xlabel("thousand frames")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    axes[0].axhline(SOLVED, color="black", linewidth=0.8, linestyle=":")
    axes[1].legend(fontsize=7)
    figure.suptitle("TAAC and SAC on MountainCarContinuous-v0, the paper's settings")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def halfcheetah_row(name: str, runs: list[Metrics]) -> str:
    """Means over the runs, and the range of their last scores."""
    at = [dict(zip(*run["eval/score"], strict=True)) for run in runs]
    means = (f"{np.mean([scores[frame] for scores in at]):,.0f}" for frame in (20_000, 50_000, 80_000))
    final = [run["final/score"][1][-1] for run in runs]
    cells = name, f"{len(runs)}", *means, f"{np.mean(final):,.0f}", f"{min(final):,.0f} to {max(final):,.0f}"
    return f"| {' | '.join(cells)} |"


def draw_halfcheetah(groups: dict[str, list[Metrics]], path: Path) -> None:
    figure, axis = plt.subplots(figsize=(6.5, 3.8), constrained_layout=True)
    for name, runs in groups.items():
        for number, metrics in enumerate(runs):
            frames, scores = metrics["eval/score"]
            axis.plot(frames / 1000, scores, label=None if number else name, **HALFCHEETAH_STYLES[name])
    axis.set_xlabel("thousand frames")
    axis.set_ylabel("score (mean of 10 episodes, mode)")
    axis.set_title("SAC on HalfCheetah-v5")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7, loc="lower right")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def read(folder: str, file: str) -> Metrics:
    return read_metrics(HERE / folder / f"{file}.csv")


def main() -> None:
    figures = HERE.parent / "docs" / "figures"
    runs = {name: read("mountaincar", file) for name, file in RUNS.items()}
    print("| run | frames | score, 100 episodes | frames per episode | repeats | solved at frame |")
    print("|---|---|---|---|---|---|")
    for name, metrics in runs.items():
        print(row(name, metrics))
    draw(runs, figures / "mountaincar.png")

    groups = {name: [read("halfcheetah", file) for file in files] for name, files in HALFCHEETAH.items()}
    print("\n| | runs | 20,000 frames | 50,000 | 80,000 | 100,000, 20 episodes | from lowest to highest |")
    print("|---|---|---|---|---|---|---|")
    for name, cheetahs in groups.items():
        print(halfcheetah_row(name, cheetahs))
    draw_halfcheetah(groups, figures / "halfcheetah.png")


if __name__ == "__main__":
    main()
