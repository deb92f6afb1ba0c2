"""A run killed with SIGKILL at any moment goes on as if nothing had happened, to the byte, in every script."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from harness import (
    KILLED,
    SCRIPTS,
    THOROUGHLY,
    Case,
    DoesNotResume,
    Killed,
    Outcome,
    assert_same_run,
    kill_at_every_step,
    kill_at_random_times,
    metric_lines,
    run_command,
)

ALL_CASES = [
    Case(method, env_id, num_envs)
    for method in THOROUGHLY
    for env_id in ("InvertedDoublePendulum-v5", "ShortMountainCar-v0")
    for num_envs in (1, 2)
]
SHORT = (("total-frames", 420), ("eval-interval", 300))
ALL_CASES += [Case(method, num_envs=2, changes=SHORT) for method in SCRIPTS if method not in THOROUGHLY]

STEPS_OF_A_SAVE = {
    *("tear metrics.csv", "fsync metrics.csv"),
    *("mkdir checkpoint/replay", "mkdir checkpoint", "mkdir checkpoint/.tmp-#"),
    *(
        f"{change} checkpoint/{file}"
        for change in ("open", "tear", "fsync", "rename")
        for file in (
            "replay/.tmp-#.safetensors",
            *(f".tmp-#/.tmp-{name}" for name in ("state.safetensors", "meta.json", "MANIFEST.json")),
        )
    ),
    *("fsync checkpoint/replay", "fsync checkpoint/.tmp-#", "rename checkpoint/.tmp-#", "fsync checkpoint"),
    *("remove state.safetensors", "remove meta.json", "remove MANIFEST.json", "rmdir checkpoint/#"),
    *("remove checkpoint/replay/#.safetensors", "rename agent.safetensors.tmp"),
}


@pytest.mark.parametrize("method", THOROUGHLY)
def test_killed_at_every_step_of_a_save(runner, whole, tmp_path, method):
    killed = kill_at_every_step(runner, Case(method), tmp_path / "run")
    assert set(killed.steps) >= STEPS_OF_A_SAVE
    assert len(set(killed.steps)) == killed.kills
    assert_same_run(tmp_path / "run", whole(Case(method)))


@pytest.mark.parametrize("case", ALL_CASES, ids=str)
def test_killed_at_random_times(runner, whole, tmp_path, case):
    expected, rng = whole(case), random.Random(str(case))
    assert kill_at_random_times(runner, case, tmp_path / "run", kills=2, rng=rng).kills == 2
    assert_same_run(tmp_path / "run", expected)


COMMAND = Case("taac", num_envs=2, reports_every=500)


def test_the_real_command_line_is_killed(whole, tmp_path):
    run_dir = tmp_path / "run"
    for death in ("config.json", "checkpoint/0*"):
        assert run_command(COMMAND, run_dir, resume=run_dir.exists(), die_once=death).code == KILLED
    outcome = run_command(COMMAND, run_dir, resume=True)
    assert outcome.code == 0, outcome.said
    assert_same_run(run_dir, whole(COMMAND))


def test_a_tracked_run_is_killed(whole, tmp_path):
    """Weights & Biases works in a process of its own, which is left behind; else this is as above, for SAC."""
    alone, run_dir = replace(COMMAND, method="sac"), tmp_path / "run"
    case = replace(alone, changes=(("track", ""),))
    assert run_command(case, run_dir, die_once="checkpoint/0*").code == KILLED
    outcome = run_command(case, run_dir, resume=True)
    assert outcome.code == 0, outcome.said
    assert len(list(run_dir.glob("wandb/offline-run-*"))) == 2
    assert_same_run(run_dir, whole(alone))


# --- The harness itself ----------------------------------------------------------------------------------------------


def test_a_run_that_does_not_resume_is_a_failure():
    killed = Killed()
    assert not killed.count(Outcome(KILLED, 0.1, "rename config.json", ""))
    assert killed.count(Outcome(0, 0.1, "", ""))
    assert (killed.kills, killed.steps) == (1, ["rename config.json"])
    with pytest.raises(DoesNotResume, match=r"exit code 2 after a kill just before 'rename config\.json':\nno such"):
        killed.count(Outcome(2, 0.1, "", "no such thing"))


def flip_last_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


DIFFERENCES = {
    "weights": lambda run_dir: flip_last_bit(run_dir / "agent.safetensors"),
    "metrics": lambda run_dir: (run_dir / "metrics.csv").write_text("\n".join(metric_lines(run_dir)[:-1])),
    "TensorBoard": lambda run_dir: next((run_dir / "tensorboard").iterdir()).write_bytes(b""),
    "missing file": lambda run_dir: (run_dir / "curve.png").unlink(),
    "rubbish": lambda run_dir: (run_dir / "checkpoint" / ".tmp-state.safetensors").touch(),
    "a checkpoint too many": lambda run_dir: (run_dir / "checkpoint" / "000000000007").mkdir(),
}


@pytest.mark.parametrize("change", DIFFERENCES.values(), ids=DIFFERENCES)
def test_runs_that_differ_are_told_apart(whole, tmp_path, change):
    shutil.copytree(whole(Case("sac")), tmp_path / "copy")
    assert_same_run(tmp_path / "copy", whole(Case("sac")))
    change(tmp_path / "copy")
    with pytest.raises(AssertionError):
        assert_same_run(tmp_path / "copy", whole(Case("sac")))
