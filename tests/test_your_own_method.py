"""docs/your_own_method.md: its lines, applied to SAC's script, make a method that trains, resumes and loads."""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn

from taac_wrappers.agent import load_agent
from taac_wrappers.training.config import from_config
from taac_wrappers.training.envs import make_env

ROOT = Path(__file__).parent.parent


def changes() -> list[tuple[str, str]]:
    """Every run of lines of the page's diff that ends with added ones, as it was and as it becomes."""
    page = (ROOT / "docs" / "your_own_method.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```diff\n(.*?)```", page, re.DOTALL)
    hunks = re.findall(r"((?:^ .*\n)*(?:^-.*\n)+(?:^\+.*\n)+)", block, re.MULTILINE)
    assert "".join(hunks) == block
    return [
        tuple("".join(line[1:] + "\n" for line in hunk.splitlines() if line[0] in (" ", sign)) for sign in "-+")
        for hunk in hunks
    ]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    source = (ROOT / "agents" / "sac_continuous.py").read_text(encoding="utf-8")
    for before, after in changes():
        assert source.count(before) == 1, before
        source = source.replace(before, after)
    (tmp_path / "my_method.py").write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("my_method", tmp_path / "my_method.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "my_method", module)  # dataclasses look there
    spec.loader.exec_module(module)
    monkeypatch.chdir(tmp_path)
    return module


def test_it_is_about_twenty_lines():
    added = sum(len([line for line in after.splitlines() if line.strip()]) for _, after in changes())
    assert 20 <= added <= 30


def test_it_trains_resumes_and_loads(script):
    settings = {"total_frames": 300, "learning_starts": 100, "buffer_size": 250, "batch_size": 16, "hidden": (8, 8)}
    settings |= {"eval_interval": 150, "eval_episodes": 1, "final_episodes": 1, "checkpoint_interval": 1000}
    args = replace(script.Args.for_task("Pendulum-v1"), **settings)
    assert script.main(replace(args, run_dir=Path("whole"))) == 0
    assert script.main(replace(args, run_dir=Path("parts"), total_frames=200)) == 0
    assert script.main(replace(from_config(script.Args, Path("parts")), total_frames=300)) == 0
    whole, parts = (load_agent(Path(name) / "agent.safetensors") for name in ("whole", "parts"))
    for agent in (whole, parts):
        assert type(agent) is script.LayerNormSACAgent
        assert sum(isinstance(layer, nn.LayerNorm) for layer in agent.critics.modules()) == 4
    assert all(torch.equal(value, parts.state_dict()[name]) for name, value in whole.state_dict().items())
    assert whole.observation_space.shape == (4,)  # Pendulum's three, and the previous action

    env = script.wrap(make_env("Pendulum-v1"))
    observation, _ = env.reset(seed=0)
    action = whole.act(observation[None], deterministic=True)[0]
    observation, *_ = env.step(action)
    np.testing.assert_array_equal(observation[-1:], action)
    assert env.get_wrapper_attr("executed").item() == pytest.approx(action.item() / 2)
