"""Real cells that are interrupted: by a signal, and on a real Ray cluster by the death of a worker."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from places import LIGHT, REAL, TINY, Diary, has_saved, lines_of, place
from ray.cluster_utils import Cluster

from taac_wrappers.benchmark.engines import LocalEngine, RayEngine
from taac_wrappers.benchmark.running import run_cell
from taac_wrappers.benchmark.schedule import Schedule
from taac_wrappers.training.signals import Interrupted


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """That can run two cells at a time."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    yield cluster
    cluster.shutdown()


@pytest.fixture
def address(cluster: Cluster) -> Iterator[str]:
    yield cluster.address
    ray.shutdown()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result of a cell that nobody interrupted."""
    workplace = place(tmp_path_factory.mktemp("whole"), *TINY)
    assert run_cell(workplace, REAL).problem is None
    return workplace.result(REAL)


def test_an_interrupted_cell_goes_on_to_the_same_result(tmp_path, whole):
    """With a real script."""
    diary = Diary()
    workplace = place(tmp_path, *TINY)

    def interrupt():
        if has_saved(workplace, REAL):
            os.kill(os.getpid(), signal.SIGTERM)

    diary.when_time_passes = interrupt
    with pytest.raises(Interrupted):
        Schedule([REAL], LocalEngine(workplace), diary).run()
    assert not workplace.is_done(REAL)
    assert "interrupted and saved" in workplace.log(REAL).read_text()
    (outcome,) = Schedule([REAL], LocalEngine(workplace), Diary()).run()
    assert outcome.problem is None
    assert lines_of(workplace.result(REAL)) == lines_of(whole)


def kill_with_worker(run_dir: str) -> None:
    """Kill Ray's worker that runs a cell, and the process that trains it, as when a machine dies."""
    lines = subprocess.check_output(["ps", "-ewwo", "pid=,ppid=,args="], text=True).splitlines()
    (found,) = [line.split()[:2] for line in lines if run_dir in line]
    pid, worker = map(int, found)
    os.kill(worker, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)


def test_a_cell_whose_worker_is_killed_goes_on_to_the_same_result(address, tmp_path, whole):
    """While the other worker goes on with its own."""
    workplace = place(tmp_path, *TINY)
    diary, killed = Diary(), []

    def kill_once():
        if not killed and has_saved(workplace, REAL):
            killed.append(workplace.progress(REAL).frame)
            kill_with_worker(str(workplace.run_dir(REAL)))

    diary.when_time_passes = kill_once
    outcomes = Schedule([REAL, LIGHT], RayEngine(workplace, address), diary).run()
    assert killed
    assert {outcome.cell: outcome.problem for outcome in outcomes} == {REAL: None, LIGHT: None}
    assert diary.at_a_time == 2
    log = workplace.log(REAL).read_text()
    assert log.count("--run-dir") == log.count("$ python") - 1 == 1
    assert lines_of(workplace.result(REAL)) == lines_of(whole)


def test_what_ray_runs_is_interrupted_at_once(address, tmp_path):
    workplace = place(tmp_path, "--goes-on-with", str(tmp_path / "never"))
    diary = Diary()

    def interrupt():
        if has_saved(workplace, LIGHT):
            os.kill(os.getpid(), signal.SIGTERM)

    diary.when_time_passes = interrupt
    with pytest.raises(Interrupted) as raised:
        Schedule([LIGHT], RayEngine(workplace, address), diary).run()
    assert raised.value.exit_code == 143
    assert workplace.log(LIGHT).read_text().endswith("saved after signal 15\n")


def test_no_cluster(tmp_path):
    with pytest.raises(ValueError, match=r"--address 127\.0\.0\.1:1: cannot connect to Ray"):
        RayEngine(place(tmp_path), "127.0.0.1:1")
