"""What the tests that run ``number_script.py`` share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from number_script import Args, main

from taac_wrappers.training import run as run_module
from taac_wrappers.training.arguments import command_line


@pytest.fixture
def inside_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_module, "plot_curve", lambda folder: folder / "curve.png")  # takes longer than a run


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Calls the script as the shell would: exit code, standard output, standard error."""

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["script.py", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            command_line(Args, main)
        output = capsys.readouterr()
        return exit_.value.code, output.out, output.err

    return call
