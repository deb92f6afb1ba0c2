"""Agent files of version 0.1: their matrices lie ``[in, out]``, their observation is one Box, and they act as then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from taac_wrappers.agent import SACAgent, TAACAgent, load_agent

KINDS = pytest.mark.parametrize("kind", [TAACAgent, SACAgent])

# All matrices but the heads' and the first ones are square: one that lies the wrong way fits all the same.
SIZE, HIDDEN = 2, (8, 8)
LOW, HIGH = np.array([-1.0, 0.5], np.float32), np.array([1.0, 2.5], np.float32)
CONFIG = {"hidden": HIDDEN, "log_std_min": -5.0, "log_std_max": 1.0}


def old_tensors(kind: type, seed: int = 0) -> dict[str, torch.Tensor]:
    """Weights under the names and in the layout of 0.1, at random."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"log_action_temperature": ()}
    width = SIZE
    if kind is TAACAgent:
        shapes |= {"log_switch_temperature": (), "actor.embed.weight": (SIZE, SIZE), "actor.embed.bias": (SIZE,)}
        width = 2 * SIZE
    for network, first in (("actor", width), ("critics.twins.0", 2 * SIZE), ("critics.twins.1", 2 * SIZE)):
        for layer, (n_in, n_out) in enumerate([(first, HIDDEN[0]), HIDDEN]):
            shapes |= {f"{network}.hidden.{layer}.weight": (n_in, n_out), f"{network}.hidden.{layer}.bias": (n_out,)}
    shapes |= {"actor.head.weight": (HIDDEN[-1], 2 * SIZE), "actor.head.bias": (2 * SIZE,)}
    for twin in (0, 1):
        shapes |= {f"critics.twins.{twin}.head_weight": (HIDDEN[-1],), f"critics.twins.{twin}.head_bias": ()}
    tensors = {
        name: torch.from_numpy(np.asarray(rng.normal(0, 0.5, shape), np.float32)) for name, shape in shapes.items()
    }
    tensors |= {"space.observation.low": torch.full((SIZE,), -torch.inf), "space.action.low": torch.from_numpy(LOW)}
    return tensors | {
        "space.observation.high": torch.full((SIZE,), torch.inf),
        "space.action.high": torch.from_numpy(HIGH),
    }


def write_old(path: Path, kind: type, tensors: dict[str, torch.Tensor], **config: Any) -> None:
    settings = CONFIG | ({"min_advantage": None} if kind is TAACAgent else {}) | config
    header = json.dumps({"format": f"{kind.FORMAT}/2", "config": settings}, sort_keys=True)
    save_file(tensors, path, metadata={"agent": header})


class OldAgent:
    """What 0.1 computed, for one state, from the arrays of its file."""

    def __init__(self, tensors: dict[str, torch.Tensor]):
        self.arrays = {name: tensor.double().numpy() for name, tensor in tensors.items()}

    def layers(self, network: str, x: np.ndarray) -> np.ndarray:
        number = 0
        while f"{network}.hidden.{number}.weight" in self.arrays:
            layer = f"{network}.hidden.{number}"
            x = np.maximum(x @ self.arrays[f"{layer}.weight"] + self.arrays[f"{layer}.bias"], 0)
            number += 1
        return x

    def mode(self, observation: np.ndarray, prev_action: np.ndarray) -> np.ndarray:
        arrays, x = self.arrays, observation.astype(float)
        if "actor.embed.weight" in arrays:
            x = np.concatenate([x, prev_action @ arrays["actor.embed.weight"] + arrays["actor.embed.bias"]])
        head = self.layers("actor", x) @ arrays["actor.head.weight"] + arrays["actor.head.bias"]
        low, high = arrays["space.action.low"], arrays["space.action.high"]
        return (high + low) / 2 + (high - low) / 2 * np.tanh(head[: len(low)])

    def q(self, observation: np.ndarray, action: np.ndarray) -> float:
        values = []
        for twin in ("critics.twins.0", "critics.twins.1"):
            x = self.layers(twin, np.concatenate([observation, action]))
            values.append(x @ self.arrays[f"{twin}.head_weight"] + self.arrays[f"{twin}.head_bias"])
        return float(min(values))


def assert_acts_as_the_old_one(agent: Any, old: OldAgent, observation: np.ndarray, prev_action: np.ndarray) -> None:
    is_taac = isinstance(agent, TAACAgent)
    seen = {"observation": observation, "prev_action": prev_action} if is_taac else observation
    chosen = agent.act(seen, deterministic=True)
    action = chosen["action"] if is_taac else chosen
    q = agent.critics.minimum(torch.from_numpy(observation), torch.from_numpy(prev_action)).detach()
    for b in range(len(observation)):
        mode = old.mode(observation[b], prev_action[b])
        np.testing.assert_allclose(action[b], mode, atol=1e-5)
        assert q[b].item() == pytest.approx(old.q(observation[b], prev_action[b]), rel=1e-5, abs=1e-5)
        if is_taac:
            assert chosen["switch"][b] == (old.q(observation[b], mode) > old.q(observation[b], prev_action[b]))
    assert not is_taac or 0 < chosen["switch"].sum() < len(observation)


@KINDS
def test_a_file_of_0_1_acts_as_it_did(tmp_path, kind):
    tensors = old_tensors(kind)
    write_old(tmp_path / "agent.safetensors", kind, tensors)
    rng = np.random.default_rng(1)
    observation = rng.normal(size=(60, SIZE)).astype(np.float32)
    prev_action = rng.uniform(LOW, HIGH, (60, SIZE)).astype(np.float32)
    for load in (kind.load, load_agent):
        agent = load(tmp_path / "agent.safetensors")
        assert type(agent) is kind
        assert_acts_as_the_old_one(agent, OldAgent(tensors), observation, prev_action)
        assert agent.log_action_temperature.item() == tensors["log_action_temperature"].item()
        if kind is TAACAgent:
            assert agent.log_switch_temperature.item() == tensors["log_switch_temperature"].item()


@KINDS
def test_its_spaces_and_arguments_are_those_of_today(tmp_path, kind):
    changes = {"min_advantage": 0.0} if kind is TAACAgent else {}
    write_old(tmp_path / "agent.safetensors", kind, old_tensors(kind), **changes)
    agent = kind.load(tmp_path / "agent.safetensors")
    observations, actions = spaces.Box(-np.inf, np.inf, (SIZE,)), spaces.Box(LOW, HIGH)
    if kind is TAACAgent:
        assert agent.observation_space == spaces.Dict({"observation": observations, "prev_action": actions})
        assert agent.action_space == spaces.Dict({"action": actions, "switch": spaces.Discrete(2)})
    else:
        assert (agent.observation_space, agent.action_space) == (observations, actions)
    assert agent.action_box == actions
    assert agent.config() == CONFIG | changes


@KINDS
def test_saved_again_it_is_a_file_of_today_and_the_same_agent(tmp_path, kind):
    write_old(tmp_path / "old.safetensors", kind, old_tensors(kind))
    agent = load_agent(tmp_path / "old.safetensors")
    agent.save(tmp_path / "new.safetensors")
    with safe_open(tmp_path / "new.safetensors", framework="pt") as file:
        assert json.loads(file.metadata()["agent"])["format"] == f"{kind.FORMAT}/3"
    again = load_agent(tmp_path / "new.safetensors")
    assert (again.observation_space, again.config()) == (agent.observation_space, agent.config())
    weights = again.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in agent.state_dict().items())


@KINDS
@pytest.mark.parametrize(
    "damage",
    [
        lambda tensors: tensors.pop("space.action.low"),
        lambda tensors: tensors.pop("space.observation.high"),
        lambda tensors: tensors.pop("actor.head.weight"),
        lambda tensors: tensors.pop("critics.twins.1.head_bias"),
        lambda tensors: tensors.update(extra=torch.zeros(1)),
        lambda tensors: tensors.update({"actor.hidden.x.weight": torch.zeros(2, 2)}),
        lambda tensors: tensors.update({"actor.hidden.0.weight": torch.zeros(3, 3)}),
        lambda tensors: tensors.update({"actor.head.weight": tensors["actor.head.weight"].t().contiguous()}),
        lambda tensors: tensors.update({"actor.head.weight": tensors["actor.head.weight"].double()}),
        lambda tensors: tensors.update({"critics.twins.0.head_weight": torch.zeros(2, 4)}),
    ],
)
def test_what_only_looks_like_a_file_of_0_1_is_refused(tmp_path, kind, damage):
    path, tensors = tmp_path / "agent.safetensors", old_tensors(kind)
    damage(tensors)
    write_old(path, kind, tensors)
    for load in (kind.load, load_agent):
        with pytest.raises(ValueError, match=r"agent\.safetensors' does not hold a complete agent"):
            load(path)


@KINDS
def test_todays_weights_under_the_name_of_0_1_are_refused(tmp_path, kind):
    path = tmp_path / "agent.safetensors"
    write_old(path, kind, old_tensors(kind))
    load_agent(path).save(path)
    write_old(path, kind, load_file(path))
    with pytest.raises(ValueError, match=r"agent\.safetensors' does not hold a complete agent"):
        load_agent(path)


@pytest.mark.parametrize(
    ("name", "expected", "switch"),
    [
        ("taac", [[0.0203867, 1.5533997], [0.5, 1.0], [-0.5, 2.0], [1.0, 2.5]], [True, False, False, False]),
        ("sac", [[0.1089133, 1.5282652], [0.0978848, 1.4978110], [0.1190189, 1.5429287], [0.1113026, 1.5400965]], None),
    ],
)
def test_files_that_0_1_wrote_act_as_they_did(name, expected, switch):
    """The files and the answers were made by version 0.1."""
    policy = load_agent(Path(__file__).parent / "files_of_0_1" / f"{name}.safetensors").policy(num_envs=4)
    if switch is not None:
        policy.prev_action = np.array([[0.0, 0.5], [0.5, 1.0], [-0.5, 2.0], [1.0, 2.5]], np.float32)
    action = policy(np.array([[-0.5, 0.0], [-0.9, 0.3], [0.2, -0.2], [-0.4, -0.5]], np.float32))
    np.testing.assert_allclose(action, expected, atol=1e-6)
    if switch is not None:
        assert policy.switch.tolist() == switch
