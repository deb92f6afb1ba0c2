"""Both training scripts on envpool: they train, repeat bit for bit, and say what a resumed run cannot be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sac_continuous
import taac_continuous
import torch
from safetensors.torch import load_file

from taac_wrappers.training.config import from_config
from taac_wrappers.training.files import read_config
from taac_wrappers.training.tracking import read_metrics

SCRIPTS = pytest.mark.parametrize("script", [taac_continuous, sac_continuous], ids=["taac", "sac"])
pytestmark = pytest.mark.filterwarnings("ignore:envpool has its own build")


def args_for(script: Any, run_dir: Path, **changes: Any) -> Any:
    small = {"total_frames": 900, "buffer_size": 600, "batch_size": 16, "hidden": (8, 8), "learning_starts": 90}
    small |= {"eval_interval": 450, "eval_episodes": 1, "final_episodes": 1, "checkpoint_interval": 450, "num_envs": 3}
    small |= {"frames_per_iteration": 9, "updates_per_iteration": 1, "env_engine": "envpool"}
    return replace(script.Args.for_task("Pendulum-v1"), run_dir=run_dir, **small | changes)


def agent_and_metrics(run_dir: Path) -> tuple[dict[str, torch.Tensor], list[str]]:
    lines = (run_dir / "metrics.csv").read_text().splitlines()
    return load_file(run_dir / "agent.safetensors"), [line for line in lines if "charts/SPS" not in line]


@SCRIPTS
def test_training_on_envpool(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "LOG_INTERVAL", 90)
    args = args_for(script, tmp_path / "one")
    for name in ("one", "same"):
        assert script.main(replace(args, run_dir=tmp_path / name)) == 0
    one, same = agent_and_metrics(tmp_path / "one"), agent_and_metrics(tmp_path / "same")
    assert one[1] == same[1]
    assert all(torch.equal(one[0][name], same[0][name]) for name in one[0])

    torch.manual_seed(args.seed)
    spaces = script.make_vector_env("Pendulum-v1", 1, script.wrap)
    fresh = script.make_agent(args, spaces.single_observation_space, spaces.single_action_space)
    for name, before in fresh.named_parameters():
        assert not torch.equal(before, one[0][name]), name
    metrics = read_metrics(tmp_path / "one" / "metrics.csv")
    assert all(np.isfinite(values).all() for _, values in metrics.values())
    assert metrics["charts/episodic_length"][1].tolist() == [200] * 3
    assert metrics["charts/episodic_length"][0].tolist() == [600] * 3
    assert "envpool" in read_config(tmp_path / "one")["versions"]


@SCRIPTS
def test_a_resumed_run_begins_new_episodes_and_says_so(script, tmp_path):
    args = args_for(script, tmp_path / "run")
    script.main(replace(args, total_frames=450))
    with pytest.warns(UserWarning, match="cannot go on in the middle of an episode"):
        assert script.main(replace(from_config(script.Args, tmp_path / "run"), total_frames=1200)) == 0
    episodes = read_metrics(tmp_path / "run" / "metrics.csv")["charts/episodic_length"]
    assert episodes[1].tolist() == [200] * 3
    assert episodes[0].tolist() == [450 + 600] * 3  # 150 frames of each first episode were cut off
