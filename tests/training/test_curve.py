"""The curve: what it shows of a run, of next to nothing too."""

from __future__ import annotations

import math

import matplotlib.image
import pytest
from matplotlib.figure import Figure

from taac_wrappers.training.curve import plot_curve
from taac_wrappers.training.files import write_config

HEADER = "frame,metric,value\n"


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved."""
    figures = []

    def savefig(self, *args, savefig=Figure.savefig, **kwargs):
        figures.append(self)
        return savefig(self, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return figures


def lines(axes) -> dict[str, list[list[float]]]:
    return {line.get_label(): line.get_xydata().tolist() for line in axes.lines}


def test_curve(tmp_path, drawn):
    write_config(tmp_path, {"env_id": "Hopper-v5", "method": "taac"})
    rows = ["10,charts/episodic_return,1.0", "10,charts/repeat_fraction,0.25", "20,eval/score,3.0"]
    rows += ["20,eval/repeat_fraction,0.5", "30,charts/episodic_return,inf", "40,eval/score,4.0", "40,losses/q,9.0"]
    (tmp_path / "metrics.csv").write_text(HEADER + "\n".join(rows) + "\n")
    path = plot_curve(tmp_path)
    assert path == tmp_path / "curve.png"
    height, width, _ = matplotlib.image.imread(path).shape
    assert (width, height) == (840, 720)
    ((upper, lower),) = [figure.axes for figure in drawn]
    assert upper.get_title() == "Hopper-v5 · taac"
    assert lines(upper) == {"training episodes": [[10, 1], [30, math.inf]], "evaluation": [[20, 3], [40, 4]]}
    assert lines(lower) == {"training": [[10, 25]], "evaluation": [[20, 50]]}
    assert (upper.get_ylabel(), lower.get_ylabel()) == ("score", "repeated frames (%)")
    assert lower.get_xlabel() == "frames"
    faint, bold = upper.lines
    assert faint.get_alpha() < 1
    assert bold.get_alpha() is None
    assert not list(tmp_path.glob(".tmp*"))


@pytest.mark.parametrize(
    "rows", ["", "1,eval/score,2.0\n", "1,charts/episodic_return,nan\n", "1,losses/q,1.0\n", "5,ev"]
)
def test_curve_of_next_to_nothing(tmp_path, drawn, rows):
    write_config(tmp_path, {})
    (tmp_path / "metrics.csv").write_text(HEADER + rows)
    matplotlib.image.imread(plot_curve(tmp_path))
    upper, lower = drawn[0].axes
    assert upper.get_title() == tmp_path.name
    assert [text.get_text() for text in lower.texts] == ["nothing recorded yet"]
