"""examples/benchmark.py: from its command line to results that the report shows."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from untrained_runs import ROOT

from taac_wrappers.benchmark.comparison import Comparison
from taac_wrappers.benchmark.methods import METHODS, Method
from taac_wrappers.benchmark.tables import markdown_report

LIGHT_SCRIPT = ROOT / "tests" / "benchmark" / "light_script.py"


@pytest.fixture
def example(examples_on_path: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tmp_path_factory) -> ModuleType:
    """With a script that learns nothing, in an empty folder."""
    import benchmark

    scripts = tmp_path_factory.mktemp("scripts")
    for method in ("sac_ez", "my_own"):
        (scripts / f"{method}_continuous.py").symlink_to(LIGHT_SCRIPT)
    monkeypatch.setattr(benchmark, "SCRIPTS", scripts)
    monkeypatch.chdir(tmp_path)
    return benchmark


def call(example: ModuleType, monkeypatch: pytest.MonkeyPatch, line: str) -> int:
    """Its exit code."""
    monkeypatch.setattr(sys, "argv", ["benchmark.py", *line.split()])
    with pytest.raises(SystemExit) as raised:
        example.exit_with(lambda: example.main(example.parse(example.Args)))
    return raised.value.code


CELLS = "--methods sac-ez --tasks Pendulum-v1 --seeds 2 --workers 2"


def test_results_are_there_and_what_is_done_is_not_run_again(example, monkeypatch, tmp_path, capsys):
    assert call(example, monkeypatch, CELLS) == 0
    results = sorted((tmp_path / "results").rglob("*.csv"))
    assert [path.name for path in results] == ["sac-ez_s0.csv", "sac-ez_s1.csv"]
    assert call(example, monkeypatch, f"{CELLS} --seeds 3") == 0
    assert "3 cells, 2 of them done before" in capsys.readouterr().out
    assert (tmp_path / "runs" / "Pendulum-v1" / "sac-ez_s0.log").read_text().count("begins at") == 1
    assert len(list((tmp_path / "results").rglob("*.csv"))) == 3


def test_a_method_of_one_s_own_is_run_and_reported(example, monkeypatch, tmp_path):
    monkeypatch.setitem(METHODS, "my-own", Method("My own", "my_own_continuous.py"))
    assert call(example, monkeypatch, "--methods my-own sac-ez --tasks Pendulum-v1 --seeds 1") == 0
    (tmp_path / "results" / "random.json").write_text('{"scores": {"Pendulum-v1": {"score": 0}}}')
    text = markdown_report(Comparison.read(tmp_path / "results"))
    (row,) = [line for line in text.splitlines() if line.startswith("| Pendulum-v1 |")]
    assert row.count("[1.00 [0.00], 1]") == 2
    assert "| My own |" in text


def test_a_failure_is_reported_with_the_end_of_its_log(example, monkeypatch, tmp_path, capsys):
    log = tmp_path / "runs" / "Pendulum-v1" / "sac-ez_s0.log"
    assert call(example, monkeypatch, f"{CELLS} -- --fails") == 1
    out = capsys.readouterr().out
    ends = [*(f"    line {number}" for number in range(89, 100)), "    bar 20%"]
    assert "\n".join([f"sac-ez on Pendulum-v1, seed 0 failed: exit code 1; the end of {log}:", *ends, ""]) in out
    assert "2 of 2 cells failed" in out
    assert call(example, monkeypatch, CELLS) == 0


def test_a_dry_run_writes_nothing(example, monkeypatch, tmp_path, capsys):
    assert call(example, monkeypatch, f"{CELLS} --dry-run") == 0
    out = capsys.readouterr().out
    assert "sac-ez on Pendulum-v1" in out
    assert "1,000,000" in out
    assert "core-hours; " in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--methods tac --tasks Pendulum-v1", "--methods must be among .* got 'tac'"),
        ("--methods sac --tasks Pendulumm-v1", "--tasks: no environment is named 'Pendulumm-v1'"),
        ("--methods sac --tasks Pendulum-v1 --seeds 0", "--seeds must be at least 1, got 0"),
        ("--methods sac --tasks Pendulum-v1 --workers 0", "--workers must be at least 1, got 0"),
        ("--methods sac --tasks Pendulum-v1 -- --seed 1", "--seed is no flag to pass on"),
        ("--methods sac --tasks Pendulum-v1 --engine slurm --slurm x", "--slurm takes name=value"),
        ("--methods sac --tasks Pendulum-v1 --engine ray --address 127.0.0.1:1", "--address .* cannot connect to Ray"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(words, message, example, monkeypatch, tmp_path, capsys):
    assert call(example, monkeypatch, words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(f"error: {message}", line)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("engine", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_a_missing_extra_is_named(engine, package, example, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, package, None)
    assert call(example, monkeypatch, f"{CELLS} --engine {engine}") == 2
    assert f'pip install "taac-wrappers[{engine}]"' in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
