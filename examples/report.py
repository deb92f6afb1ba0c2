"""Put raw results beside the paper's: one HTML page that needs no network, and Markdown tables.

python examples/report.py results/ -o report/
python examples/report.py results/ -o report/ --figures docs/figures     # the pictures of the docs, too
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import matplotlib
import tyro

from taac_wrappers.benchmark.comparison import GOALS, Comparison
from taac_wrappers.benchmark.methods import METHODS
from taac_wrappers.benchmark.tables import markdown_report, title_of
from taac_wrappers.training.arguments import bad_input, exit_with, parse

matplotlib.use("Agg")
import matplotlib.pyplot as plt

IN_LEARNING = ("MountainCarContinuous-v0", "LunarLanderContinuous-v3", "InvertedDoublePendulum-v5", "HalfCheetah-v5")
IN_SUCCESS = ("FetchPush-v4", "FetchPickAndPlace-v4", "FetchSlide-v4")
LOOKS: dict[str, dict[str, Any]] = {
    "taac": {"color": "tab:blue", "zorder": 3, "linewidth": 1.8},
    "sac": {"color": "black", "linestyle": "--", "linewidth": 0.9},
    "sb3-sac-our-density": {"color": "tab:orange", "linestyle": "-.", "linewidth": 0.9},
    "sb3-sac": {"color": "tab:gray", "linestyle": ":", "linewidth": 1.2},
}


@dataclass
class Args:
    results: Annotated[Path, tyro.conf.Positional]
    """the folder of raw results"""
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """the folder for index.html and tables.md"""
    figures: Path | None = None
    """where learning.png, methods.png and manipulation.png of the docs go, if they are to be drawn"""


def main(args: Args) -> int:
    with bad_input():
        try:
            from taac_wrappers.benchmark.page import html_page
        except ImportError as error:
            raise ImportError(f"{error}: pip install plotly") from error
        comparison = Comparison.read(args.results)
        texts = {"index.html": html_page(comparison), "tables.md": markdown_report(comparison)}
        args.output.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (args.output / name).write_text(text, encoding="utf-8")
            print(args.output / name)
        if args.figures is not None:
            args.figures.mkdir(parents=True, exist_ok=True)
            draw_learning(comparison, args.figures / "learning.png")
            draw_methods(comparison, args.figures / "methods.png")
            draw_success(comparison, args.figures / "manipulation.png")
    return 0


def draw_learning(comparison: Comparison, path: Path) -> None:
    """Scores of TAAC beside SAC's on four tasks, and how much TAAC repeats."""
    figure, axes = plt.subplots(2, len(IN_LEARNING), figsize=(14, 5.5), sharex="col", layout="constrained")
    for (score, repeats), env_name in zip(axes.T, IN_LEARNING, strict=True):
        for exp_name, look in LOOKS.items():
            for number, run in enumerate(comparison.of(exp_name, env_name)):
                frames, scores = run.curve("eval/score")
                score.plot(frames / 1000, scores, label=None if number else title_of(exp_name), **look)
                if exp_name == "taac":
                    frames, share = run.curve("eval/repeat_fraction")
                    repeats.plot(frames / 1000, 100 * share, **look)
        score.axhline(GOALS[env_name], color="black", linewidth=0.7, linestyle=":")
        score.set_title(env_name, fontsize=10)
        score.legend(fontsize=7)
        repeats.set_ylim(-3, 103)
        repeats.set_xlabel("thousand frames")
        for axis in (score, repeats):
            axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel("score (10 episodes, mode)")
    axes[1, 0].set_ylabel("TAAC: repeated frames, %")
    figure.savefig(path, dpi=100)
    plt.close(figure)


def draw_methods(comparison: Comparison, path: Path) -> None:
    """The seeds 0 and 1 of every method on MountainCarContinuous, a panel each."""
    env_name = "MountainCarContinuous-v0"
    figure, axes = plt.subplots(2, 5, figsize=(14, 5), sharex=True, sharey=True, layout="constrained")
    for axis, exp_name in zip(axes.flat, METHODS, strict=True):
        for run, style in zip(comparison.of(exp_name, env_name)[:2], ("-", "--"), strict=False):
            frames, scores = run.curve("eval/score")
            axis.plot(frames / 1000, scores, style, color="black", linewidth=1.2, label=f"seed {run.seed}")
        axis.axhline(GOALS[env_name], color="black", linewidth=0.7, linestyle=":")
        axis.set_title(title_of(exp_name), fontsize=10)
        axis.grid(alpha=0.3)
    axes[0, 0].legend(fontsize=8)
    for axis in axes[-1]:
        axis.set_xlabel("thousand frames")
    for axis in axes[:, 0]:
        axis.set_ylabel("score (10 episodes, mode)")
    figure.savefig(path, dpi=100)
    plt.close(figure)


def draw_success(comparison: Comparison, path: Path) -> None:
    """Success with hindsight on the tasks that take long, every run of TAAC and of SAC."""
    figure, axes = plt.subplots(1, len(IN_SUCCESS), figsize=(14, 3.5), sharey=True, layout="constrained")
    for axis, env_name in zip(axes, IN_SUCCESS, strict=True):
        for exp_name in ("taac", "sac"):
            for run, width in zip(comparison.of(exp_name, env_name), (1.8, 0.9), strict=False):
                frames, success = run.curve("eval/success")
                label = f"{title_of(exp_name)}, seed {run.seed}"
                axis.plot(frames / 1000, success, label=label, **{**LOOKS[exp_name], "linewidth": width})
        axis.set(xlabel="thousand frames", xlim=(-20, 620), ylim=(-0.03, 1.03), title=env_name)
        axis.legend(fontsize=8)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("success (20 episodes, mode)")
    figure.savefig(path, dpi=100)
    plt.close(figure)


if __name__ == "__main__":
    exit_with(lambda: main(parse(Args)))
