"""Dict observations: their entries are joined, whatever their order; a goal environment's achieved goal is not seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from slow_agents import ACTIONS, own_arguments, spaces_of
from slow_agents import KINDS as EVERY_KIND

from taac_wrappers.agent import HybridAgent, SACAgent, load_agent
from taac_wrappers.agent.repeating import RepeatingAgent

KINDS = pytest.mark.parametrize("kind", EVERY_KIND)
GOAL_SIZES = {"achieved_goal": 2, "desired_goal": 2, "observation": 3}
BATCH = 20


def boxes(sizes: dict[str, int]) -> dict[str, spaces.Box]:
    return {key: spaces.Box(-1, 1, (size,)) for key, size in sizes.items()}


def dict_agent(kind: type, sizes: dict[str, int], seed: int = 0) -> Any:
    """An agent with opinions; its Dict lists the entries as they are given (one that is given a dict sorts them)."""
    torch.manual_seed(seed)
    prev_action = {"prev_action": ACTIONS} if issubclass(kind, RepeatingAgent) else {}
    agent = kind(spaces.Dict(**boxes(sizes), **prev_action), spaces_of(kind)[1], hidden=(8, 8), **own_arguments(kind))
    with torch.no_grad():
        for critic in agent.critics.twins:
            critic.head.weight.mul_(500)
        if kind is HybridAgent:
            agent.actor.switch_head.bias.fill_(0.15)  # or it would always repeat
    return agent


def seen_by(kind: type, sizes: dict[str, int], seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    observation = {key: rng.uniform(-1, 1, (BATCH, size)).astype(np.float32) for key, size in sorted(sizes.items())}
    if issubclass(kind, RepeatingAgent):
        observation["prev_action"] = rng.uniform(ACTIONS.low, ACTIONS.high, (BATCH, 2)).astype(np.float32)
    return observation


def acted(agent: Any, observation: Any, deterministic: bool = False) -> list[np.ndarray]:
    torch.manual_seed(1)
    action = agent.act(observation, deterministic)
    return list(action.values()) if isinstance(action, dict) else [action]


def assert_same(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


@KINDS
@pytest.mark.parametrize("deterministic", [True, False])
def test_a_goal_env_is_seen_as_its_goal_and_its_observation_side_by_side(kind, deterministic):
    agent = dict_agent(kind, GOAL_SIZES)
    assert agent.keys == ["desired_goal", "observation"]
    assert agent.observation_size == 5
    one_vector = kind(*spaces_of(kind, spaces.Box(-1, 1, (5,))), hidden=(8, 8), **own_arguments(kind))
    one_vector.load_state_dict(agent.state_dict())
    observation = seen_by(kind, GOAL_SIZES)
    joined = np.concatenate([observation["desired_goal"], observation["observation"]], axis=-1)
    if issubclass(kind, RepeatingAgent):
        joined = {"observation": joined, "prev_action": observation["prev_action"]}
    assert_same(acted(agent, observation, deterministic), acted(one_vector, joined, deterministic))
    for choice in acted(agent, observation, deterministic)[1:]:
        assert len(set(choice)) > 1


@KINDS
def test_the_achieved_goal_is_not_looked_at(kind):
    agent, observation = dict_agent(kind, GOAL_SIZES), seen_by(kind, GOAL_SIZES)
    before = acted(agent, observation)
    assert_same(acted(agent, observation | {"achieved_goal": np.full((BATCH, 2), np.nan)}), before)
    del observation["achieved_goal"]
    assert_same(acted(agent, observation), before)
    for key in ("desired_goal", "observation"):
        changed = acted(agent, observation | {key: observation[key] + 0.5})
        assert (changed[0] != before[0]).any()


@KINDS
def test_without_a_desired_goal_it_is_an_entry_like_any_other(kind):
    sizes = {"achieved_goal": 2, "observation": 3}
    agent, observation = dict_agent(kind, sizes), seen_by(kind, sizes)
    assert agent.keys == ["achieved_goal", "observation"]
    changed = acted(agent, observation | {"achieved_goal": observation["achieved_goal"] + 0.5})
    assert (changed[0] != acted(agent, observation)[0]).any()


def test_sac_may_see_the_previous_action_as_an_entry_like_any_other():
    sizes = {"observation": 3, "prev_action": 2}
    agent, observation = dict_agent(SACAgent, sizes), seen_by(SACAgent, sizes)
    assert agent.keys == ["observation", "prev_action"]
    changed = acted(agent, observation | {"prev_action": observation["prev_action"] + 0.5})
    assert (changed[0] != acted(agent, observation)[0]).any()


@KINDS
def test_the_order_of_the_entries_does_not_matter(kind):
    backwards = dict(reversed(GOAL_SIZES.items()))
    agents = dict_agent(kind, GOAL_SIZES), dict_agent(kind, backwards)
    observation = seen_by(kind, GOAL_SIZES)
    assert next(iter(agents[1].observation_space)) == "observation"
    assert_same(acted(agents[0], observation), acted(agents[1], dict(reversed(observation.items()))))


@KINDS
@pytest.mark.parametrize(
    "sizes", [GOAL_SIZES, dict(reversed(GOAL_SIZES.items())), {"b": 3, "a": 2}, {"observation": 3}]
)
def test_save_and_load_bring_every_entry_back(tmp_path, kind, sizes):
    agent, observation = dict_agent(kind, sizes), seen_by(kind, sizes)
    agent.save(tmp_path / "agent.safetensors")
    for load in (kind.load, load_agent):
        loaded = load(tmp_path / "agent.safetensors")
        assert (loaded.observation_space, loaded.action_space) == (agent.observation_space, agent.action_space)
        assert_same(acted(agent, observation), acted(loaded, observation))


@KINDS
def test_entries_that_are_no_vectors_are_named(kind):
    image = {"image": spaces.Box(0, 255, (4, 4), np.uint8), "prev_action": ACTIONS}
    with pytest.raises(TypeError, match=r"observation_space\['image'\] must be a one-dimensional Box, got Box"):
        kind(spaces.Dict(image), spaces_of(kind)[1], **own_arguments(kind))


def test_a_dict_with_nothing_to_look_at_is_named():
    with pytest.raises(TypeError, match="observation_space must hold something to look at, got Dict"):
        SACAgent(spaces.Dict({}), ACTIONS)


# --- The policy ------------------------------------------------------------------------------------------------------


@KINDS
def test_the_policy_takes_dicts_with_and_without_a_batch_dimension(kind):
    agent = dict_agent(kind, GOAL_SIZES)
    single, batched, observation = agent.policy(), agent.policy(num_envs=1), seen_by(SACAgent, GOAL_SIZES)
    for b in range(5):
        action = single({key: part[b] for key, part in observation.items()})
        assert action.shape == (2,)
        np.testing.assert_array_equal(action, batched({key: part[[b]] for key, part in observation.items()})[0])


@KINDS
def test_the_policy_names_a_missing_or_misshapen_entry(kind):
    policy, observation = dict_agent(kind, GOAL_SIZES).policy(num_envs=BATCH), seen_by(SACAgent, GOAL_SIZES)
    with pytest.raises(ValueError, match=r"desired_goal must have shape \(20, 2\), got \(20, 3\)"):
        policy(observation | {"desired_goal": observation["observation"]})
    del observation["desired_goal"]
    with pytest.raises(ValueError, match=r"desired_goal must have shape \(20, 2\), got {'achieved_goal': \(20, 2\), "):
        policy(observation)
