"""``--her`` and ``--settings``: which scripts take them, what they say, and what comes of it."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest
import sac_continuous
import sac_ez_continuous
import sac_hybrid_continuous
import sac_krep_continuous
import sac_nrep_continuous
import sac_ntd_continuous
import taac_continuous
import torch

from taac_wrappers.agent import load_agent
from taac_wrappers.training import run as run_module
from taac_wrappers.training.arguments import BadInput
from taac_wrappers.training.tracking import read_metrics

PER_FRAME = [taac_continuous, sac_continuous, sac_ez_continuous, sac_ntd_continuous, sac_hybrid_continuous]
SUMS = [sac_nrep_continuous, sac_krep_continuous]
SMALL = {"total_frames": 120, "learning_starts": 60, "batch_size": 16, "buffer_size": 400, "hidden": (8, 8)}
SMALL |= {"num_envs": 2, "frames_per_iteration": 4, "updates_per_iteration": 1, "eval_episodes": 1, "final_episodes": 1}


def name_of(script: ModuleType) -> str:
    return script.METHOD


def arguments(script: ModuleType, tmp_path, **changes):
    args = script.Args.for_task("FetchReach-v4", "laptop")
    return replace(args, **SMALL, **{"run_dir": tmp_path / "run", **changes})


@pytest.fixture(autouse=True)
def no_curve(monkeypatch):
    monkeypatch.setattr(run_module, "plot_curve", lambda folder: folder)


@pytest.mark.parametrize("script", PER_FRAME, ids=name_of)
def test_hindsight_changes_what_is_learned(script, tmp_path):
    weights = []
    for share in (0.0, 1.0):
        args = arguments(script, tmp_path, her=share, run_dir=tmp_path / str(share))
        assert script.main(args) == 0
        weights.append(load_agent(args.run_dir / "agent.safetensors").state_dict())
        losses = read_metrics(args.run_dir / "metrics.csv")
        assert losses
    assert not all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.parametrize("script", SUMS, ids=name_of)
def test_sums_of_rewards_are_not_relabelled(script, tmp_path):
    assert script.Args.for_task("FetchReach-v4", "laptop").her == 0
    with pytest.raises(BadInput, match=r"--her needs the environment's compute_reward: .*Wrapper"):
        script.main(arguments(script, tmp_path, her=0.8))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("script", [*PER_FRAME, *SUMS], ids=name_of)
def test_an_environment_without_goals_is_refused(script, tmp_path):
    args = replace(script.Args.for_task("Pendulum-v1"), her=0.5, run_dir=tmp_path / "run")
    with pytest.raises(BadInput, match="--her needs a goal environment"):
        script.main(args)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"her": 1.5}, r"--her must be a share, in \[0, 1\], got 1.5"),
        ({"target_range": (1.0, 1.0)}, r"--target-range must be a lower and a higher number, got \(1.0, 1.0\)"),
    ],
    ids=str,
)
def test_bad_input(changes, message, tmp_path):
    with pytest.raises(BadInput, match=message):
        taac_continuous.main(arguments(taac_continuous, tmp_path, **changes))


def test_targets_stay_in_their_range(tmp_path, monkeypatch):
    monkeypatch.setattr(taac_continuous, "LOG_INTERVAL", 20)
    args = arguments(taac_continuous, tmp_path, target_range=(-0.5, -0.25))
    assert taac_continuous.main(args) == 0
    _, targets = read_metrics(tmp_path / "run" / "metrics.csv")["losses/q_values"]
    assert len(targets) > 1
    assert all(-0.5 <= target <= -0.25 for target in targets)


@pytest.mark.parametrize("script", PER_FRAME[1:], ids=name_of)
def test_entropy_lifts_targets_above_every_return(script, tmp_path, monkeypatch):
    """Rewards are -1 and 0, but SAC's targets hold entropies too: with TAAC's bounds it would learn 0 everywhere."""
    monkeypatch.setattr(script, "LOG_INTERVAL", 20)
    assert script.main(arguments(script, tmp_path)) == 0
    _, targets = read_metrics(tmp_path / "run" / "metrics.csv")["losses/q_values"]
    assert min(targets) > 0


@pytest.mark.parametrize(("settings", "said"), [("laptop", True), ("paper", False)])
def test_a_run_says_which_settings_are_in_force(settings, said, tmp_path, capsys):
    args = arguments(taac_continuous, tmp_path, settings=settings)
    assert taac_continuous.main(args) == 0
    line = "settings for a computer without an accelerator: 2 environments, batches of 16, hindsight 0.8; the paper's"
    assert (line in capsys.readouterr().err) == said


def test_the_default_follows_the_computer(monkeypatch):
    for has_accelerator, settings in ((False, "laptop"), (True, "paper")):
        monkeypatch.setattr(taac_continuous, "has_accelerator", lambda found=has_accelerator: found)
        args = taac_continuous.Args.for_task("FetchPush-v4")
        assert args.settings == settings
        assert (args.her > 0) == (settings == "laptop")
        assert taac_continuous.Args.for_task("FetchPush-v4", "paper").batch_size == 4864
