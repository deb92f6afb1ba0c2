"""The picture of a run: ``curve.png``, drawn from ``metrics.csv`` and ``config.json``.

matplotlib is imported where it is used, so that importing this module costs nothing.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from taac_wrappers.training.files import read_config, write_atomically
from taac_wrappers.training.tracking import METRICS, read_metrics

__all__ = ["plot_curve"]

CURVE = "curve.png"


def plot_curve(run_dir: Path) -> Path:
    """Draw ``curve.png``: scores over frames, and below them how much of the time the agent repeated."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    run_dir = Path(run_dir)
    metrics = read_metrics(run_dir / METRICS)
    config = read_config(run_dir)
    figure = Figure(figsize=(7, 6), layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    upper.set_title(" · ".join(str(config[key]) for key in ("env_id", "method") if key in config) or run_dir.name)
    _draw(upper, metrics, {"charts/episodic_return": "training episodes", "eval/score": "evaluation"}, 1)
    _draw(lower, metrics, {"charts/repeat_fraction": "training", "eval/repeat_fraction": "evaluation"}, 100)
    upper.set_ylabel("score")
    lower.set_ylabel("repeated frames (%)")
    lower.set_ylim(-3, 103)
    lower.set_xlabel("frames")
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    write_atomically(run_dir / CURVE, picture.getvalue())
    return run_dir / CURVE


def _draw(axes: Any, metrics: dict[str, tuple[np.ndarray, np.ndarray]], labels: dict[str, str], scale: float) -> None:
    """Draw the metrics named by ``labels``, evaluations in front of faint training."""
    for name, label in labels.items():
        if name in metrics:
            frames, values = metrics[name]
            look = {"marker": "o", "linewidth": 2} if name.startswith("eval/") else {"marker": ".", "alpha": 0.3}
            axes.plot(frames, scale * values, label=label, markersize=4, **look)
    if axes.lines:
        axes.legend()
    else:
        axes.text(0.5, 0.5, "nothing recorded yet", ha="center", va="center", transform=axes.transAxes)
    axes.grid(alpha=0.3)
