"""One cell: it begins, goes on, is run by one runner at a time, and leaves its result."""

from __future__ import annotations

import os
import subprocess
import sys

from places import HERE, LIGHT, has_saved, place, wait_until

from taac_wrappers.benchmark.results import read_result
from taac_wrappers.benchmark.running import begin, is_at_work, run_cell


def beginnings(workplace) -> list[str]:
    """What the script has said of where it begins, attempt by attempt."""
    return [line for line in workplace.log(LIGHT).read_text().splitlines() if line.startswith("begins")]


def test_a_cell_leaves_its_result(tmp_path):
    workplace = place(tmp_path)
    assert run_cell(workplace, LIGHT).problem is None
    result = read_result(workplace.result(LIGHT))
    assert (result.exp_name, result.env_name, result.seed) == ("sac-ez", "Pendulum-v1", 0)
    assert result.last("final/score") == 30
    assert result.made_by["command"].startswith("python agents/sac_ez_continuous.py --env-id Pendulum-v1 --seed 0")


def test_a_cell_is_run_by_one_at_a_time(tmp_path):
    workplace = place(tmp_path, "--goes-on-with", str(tmp_path / "go"))
    assert not is_at_work(workplace, LIGHT)
    first = begin(workplace, LIGHT)
    assert is_at_work(workplace, LIGHT)
    assert begin(workplace, LIGHT) is None
    wait_until(lambda: has_saved(workplace, LIGHT))
    assert first.poll() is None
    (tmp_path / "go").touch()
    wait_until(first.has_stopped)
    assert not is_at_work(workplace, LIGHT)
    late = begin(workplace, LIGHT)  # it could not know that the cell is done
    assert late.poll().problem is None
    assert len(beginnings(workplace)) == 1


def test_a_cell_that_is_stopped_saves_and_goes_on(tmp_path):
    workplace = place(tmp_path, "--goes-on-with", str(tmp_path / "go"))
    attempt = begin(workplace, LIGHT)
    wait_until(lambda: has_saved(workplace, LIGHT))
    attempt.stop()
    wait_until(attempt.has_stopped)
    assert attempt.poll().problem == "exit code 143"
    assert not workplace.is_done(LIGHT)
    (tmp_path / "go").touch()
    assert run_cell(workplace, LIGHT).problem is None
    assert beginnings(workplace) == ["begins at frame 0", "begins at frame 10"]


def test_a_run_without_a_checkpoint_begins_anew(tmp_path):
    """Whatever it was told before: nothing was learned yet."""
    workplace = place(tmp_path)
    folder = workplace.run_dir(LIGHT)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "metrics.csv").write_text("frame,metric,value\n10,eval/score,99.0\n")
    assert run_cell(workplace, LIGHT).problem is None
    assert "99.0" not in (folder / "metrics.csv").read_text()
    assert [path.name for path in workplace.runs.rglob(".tmp-*")] == []


def test_a_folder_that_is_no_run_is_left_alone(tmp_path):
    workplace = place(tmp_path)
    workplace.run_dir(LIGHT).mkdir(parents=True)
    (workplace.run_dir(LIGHT) / "thesis.tex").touch()
    assert run_cell(workplace, LIGHT).problem == "exit code 1"
    assert (workplace.run_dir(LIGHT) / "thesis.tex").exists()


def test_a_script_that_leaves_no_result(tmp_path):
    workplace = place(tmp_path)
    run_cell(workplace, LIGHT)
    workplace.result(LIGHT).unlink()
    metrics = workplace.run_dir(LIGHT) / "metrics.csv"
    metrics.write_text(metrics.read_text().replace("30,final/score,30\n", "30,final/score,thirty\n"))
    assert "must be 'frame,metric,value'" in run_cell(workplace, LIGHT).problem
    assert not workplace.is_done(LIGHT)


RUNNER = """
import sys
from pathlib import Path
from places import HERE, LIGHT, place
from taac_wrappers.benchmark.running import run_cell
run_cell(place(Path(sys.argv[1]), "--goes-on-with", sys.argv[2]), LIGHT)
"""


def test_a_runner_that_is_killed_leaves_nothing_running(tmp_path):
    """On Linux its cell saves and ends; elsewhere it goes on, and is still the only one that does."""
    workplace, go = place(tmp_path), tmp_path / "go"
    environment = os.environ | {"PYTHONPATH": str(HERE)}
    runner = subprocess.Popen([sys.executable, "-c", RUNNER, tmp_path, go], env=environment)
    wait_until(lambda: has_saved(workplace, LIGHT))
    runner.kill()
    runner.wait()
    if sys.platform != "linux":
        assert begin(workplace, LIGHT) is None
        go.touch()
    wait_until(lambda: not is_at_work(workplace, LIGHT))
    assert sys.platform != "linux" or "saved after signal 2" in workplace.log(LIGHT).read_text()
