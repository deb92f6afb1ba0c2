"""What the tests of the scripts share."""

from __future__ import annotations

import pytest

from taac_wrappers.training import run as run_module

plot_curve = run_module.plot_curve


@pytest.fixture(autouse=True)
def no_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes a quarter of a small run's time; those who look at the picture ask for ``curve``."""
    monkeypatch.setattr(run_module, "plot_curve", lambda folder: folder / "curve.png")


@pytest.fixture
def curve(no_curve: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "plot_curve", plot_curve)
