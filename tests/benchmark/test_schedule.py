"""Many cells: so many at a time, failures beside successes, other runners, and Slurm's queue."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
from places import LIGHT, Diary, has_saved, place, wait_until

from taac_wrappers.benchmark.cells import cells_of
from taac_wrappers.benchmark.engines import LocalEngine, SlurmEngine
from taac_wrappers.benchmark.running import begin, is_at_work
from taac_wrappers.benchmark.schedule import Schedule
from taac_wrappers.training.signals import Interrupted

CELLS = cells_of(["sac-ez"], ["Pendulum-v1"], seeds=3)


@pytest.fixture
def diary() -> Diary:
    return Diary()


@pytest.mark.parametrize("workers", [1, 2])
def test_no_more_at_a_time_than_there_are_workers(workers, tmp_path, diary):
    workplace = place(tmp_path)
    outcomes = Schedule(CELLS, LocalEngine(workplace), diary, workers).run()
    assert {outcome.cell: outcome.problem for outcome in outcomes} == dict.fromkeys(CELLS)
    assert diary.at_a_time == workers
    assert all(workplace.is_done(cell) for cell in CELLS)


def test_a_cell_that_fails_does_not_stop_the_others(tmp_path, diary):
    workplace = place(tmp_path)
    workplace.log(CELLS[0]).mkdir(parents=True)  # no file can be opened there
    workplace.run_dir(CELLS[1]).mkdir(parents=True)  # is no run
    problems = {outcome.cell.seed: outcome.problem for outcome in Schedule(CELLS, LocalEngine(workplace), diary).run()}
    assert "Is a directory" in problems[0]
    assert problems[1] == "exit code 1"
    assert problems[2] is None


def test_what_another_runner_is_at_is_waited_for_while_the_others_are_run(tmp_path, diary):
    workplace = place(tmp_path)
    other = begin(place(tmp_path, "--goes-on-with", str(tmp_path / "go")), CELLS[0])

    def let_the_other_go_on():
        if "2 done" in diary.lines:
            (tmp_path / "go").touch()
            other.poll()

    diary.when_time_passes = let_the_other_go_on
    Schedule(CELLS, LocalEngine(workplace), diary, workers=1).run()
    assert diary.lines == ["1 started", "1 done", "2 started", "2 done", "0 started", "0 done"]
    assert workplace.log(CELLS[0]).read_text().count("begins at") == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_schedule_waits_until_all_have_saved(number, code, tmp_path, diary):
    workplace = place(tmp_path, "--goes-on-with", str(tmp_path / "go"))

    def interrupt():
        if all(has_saved(workplace, cell) for cell in CELLS[:2]):
            os.kill(os.getpid(), number)

    diary.when_time_passes = interrupt
    with pytest.raises(Interrupted) as raised:
        Schedule(CELLS, LocalEngine(workplace), diary, workers=2).run()
    assert raised.value.exit_code == code
    assert diary.lines == ["0 started", "1 started", "2 saving"]
    for cell in CELLS[:2]:
        assert workplace.log(cell).read_text().endswith("saved after signal 15\n")
        assert not is_at_work(workplace, cell)
    assert not workplace.log(CELLS[2]).exists()


def test_slurm(tmp_path, diary, monkeypatch):
    """In submitit's local mode: two jobs, of which one fails."""
    workplace = place(tmp_path)
    workplace.run_dir(CELLS[1]).mkdir(parents=True)  # is no run
    monkeypatch.chdir("/")  # a job may be started anywhere
    outcomes = Schedule(CELLS[:2], SlurmEngine(workplace, "local", ["timeout_min=5"]), diary).run()
    assert {outcome.cell.seed: outcome.problem for outcome in outcomes} == {0: None, 1: "exit code 1"}
    assert workplace.is_done(LIGHT)
    assert diary.at_a_time == 2


def test_a_job_of_slurm_that_is_preempted_saves_and_is_queued_again(tmp_path):
    workplace = place(tmp_path, "--goes-on-with", str(tmp_path / "go"))
    job = SlurmEngine(workplace, "local", []).start(LIGHT)
    wait_until(lambda: has_saved(workplace, LIGHT))
    (submitted,) = (workplace.runs / "slurm").glob("*_submitted.pkl")
    controller = submitted.name.partition("_")[0]
    process = int(subprocess.check_output(["ps", "-o", "pid=", "--ppid", controller]))
    os.kill(process, signal.SIGUSR2)
    wait_until(lambda: "saved after signal 15" in workplace.log(LIGHT).read_text())
    (tmp_path / "go").touch()
    wait_until(lambda: job.poll() is not None)
    assert job.poll().problem is None
    assert "begins at frame 10" in workplace.log(LIGHT).read_text()


@pytest.mark.parametrize(
    ("cluster", "options", "message"),
    [
        ("slurm", [], "--engine slurm: .*slurm cluster"),
        ("local", ["partition"], "--slurm takes name=value such as slurm_partition=cpu, got 'partition'"),
        ("local", ["slurm_partitoin=x"], "--engine slurm: Unknown argument 'partitoin'"),
        ("local", ["mem_gb=much"], "--engine slurm: .*mem_gb"),
    ],
)
def test_what_slurm_would_refuse(cluster, options, message, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match=message):
        SlurmEngine(place(tmp_path), cluster, options)
    assert not place(tmp_path).runs.exists()
