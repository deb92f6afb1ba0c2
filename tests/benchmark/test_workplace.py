"""What scripts are told, how far they are, and which words are not passed on."""

from __future__ import annotations

import pytest
from places import LIGHT, REAL, place

from taac_wrappers.benchmark.cells import Cell
from taac_wrappers.benchmark.workplace import Plan, Progress


def test_the_command_of_a_new_run_and_of_one_that_goes_on(tmp_path):
    workplace, cell = place(tmp_path, "--hidden", "8"), Cell("taac-1td", "FetchReach-v4", 2)
    script, *words = workplace.command(cell)
    run_dir = str(workplace.runs / "FetchReach-v4" / "taac-1td_s2")
    assert script == str(workplace.scripts / "taac_continuous.py")
    own = ["--env-id", "FetchReach-v4", "--seed", "2", "--td-operator", "one-step", "--threads", "1"]
    assert words == [*own, "--settings", "laptop", "--run-dir", run_dir, "--hidden", "8"]
    workplace.run_dir(cell).mkdir(parents=True)
    assert workplace.command(cell)[1:] == [*own, "--resume", run_dir, "--hidden", "8"]


def test_the_plan_is_that_of_the_task_but_for_what_is_said(tmp_path):
    assert place(tmp_path).plan(LIGHT) == Plan(1_000_000, 10_000, 20_000, 10, 100)
    told = place(tmp_path, "--total-frames", "2e3", "--learning_starts=50", "--final-episodes", "7", "--gamma", "0.9")
    assert told.plan(LIGHT) == Plan(2_000, 50, 20_000, 10, 7)
    walker = Cell("taac", "BipedalWalker-v3", 0)
    assert place(tmp_path).plan(walker).total_frames == 1_000_000
    assert place(tmp_path, "--settings", "paper").plan(walker).total_frames == 5_000_000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seed", "3"], "--seed is no flag to pass on: sac-ez on Pendulum-v1, seed 0 decides it"),
        (["--run_dir=runs"], "--run-dir is no flag"),
        (["--total-frames", "many"], "--total-frames.*'many'"),
        (["--settings", "mine"], "--settings.*'mine'"),
    ],
)
def test_words_that_are_refused(words, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        place(tmp_path, *words).check_script_args([LIGHT])


def test_what_makes_a_method_is_not_passed_on(tmp_path):
    workplace = place(tmp_path, "--td-operator", "n-step")
    workplace.check_script_args([Cell("taac", "Pendulum-v1", 0), REAL])
    with pytest.raises(ValueError, match="--td-operator is no flag to pass on: taac-1td on Pendulum-v1"):
        workplace.check_script_args([Cell("taac-1td", "Pendulum-v1", 0)])


def test_progress_is_the_end_of_the_metrics(tmp_path):
    workplace = place(tmp_path)
    assert workplace.progress(LIGHT) == Progress(0, None)
    folder = workplace.run_dir(LIGHT)
    folder.mkdir(parents=True)
    lines = ["frame,metric,value", *(f"{frame},losses/critic,{frame}" for frame in range(20_000))]
    (folder / "metrics.csv").write_text(
        "\n".join([*lines, "20000,eval/score,-7.5", "20500,charts/SPS,90.0", "99999,ev"])
    )
    assert workplace.progress(LIGHT) == Progress(20_500, -7.5)


def test_the_end_of_a_log_has_the_last_state_of_a_bar(tmp_path):
    workplace = place(tmp_path)
    assert workplace.end_of_log(LIGHT, 2) == ""
    workplace.log(LIGHT).parent.mkdir(parents=True)
    workplace.log(LIGHT).write_text("begin\nbar 1%\rbar 2%\rbar 3%\n\nerror: it fell over\n")
    assert workplace.end_of_log(LIGHT, 2) == "bar 3%\nerror: it fell over"
