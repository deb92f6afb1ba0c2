"""What the tests of the examples share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from untrained_runs import ROOT, write_run


@pytest.fixture
def examples_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for whoever runs one of them."""
    monkeypatch.syspath_prepend(ROOT / "examples")


@pytest.fixture(scope="session")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Gives the folder that a run of a method leaves, with an agent that is not trained."""
    folder = tmp_path_factory.mktemp("runs")

    def run(method: str) -> Path:
        if not (folder / method).exists():
            write_run(folder / method, method)
        return folder / method

    return run
