"""Agents in real environments: in their own wrappers without any glue, and by their policies in bare ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from toy_envs import ToyEnv

from taac_wrappers import HybridActionWrapper, PrevActionWrapper
from taac_wrappers.agent import SACAgent, TAACAgent
from taac_wrappers.training.structure import mapped

STAGES = pytest.mark.parametrize("deterministic", [True, False], ids=["modes", "samples"])
KINDS = pytest.mark.parametrize("kind", [TAACAgent, SACAgent])


class GoalToy(gym.ObservationWrapper):
    """The toy as a goal environment: its first observation is the goal, and where it stands has been achieved."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        box = env.observation_space
        self.observation_space = spaces.Dict({"observation": box, "desired_goal": box, "achieved_goal": box})

    def observation(self, observation: np.ndarray) -> dict[str, np.ndarray]:
        self.goal = observation if self.unwrapped.frame == 0 else self.goal
        return {"observation": observation, "desired_goal": self.goal, "achieved_goal": observation}


MAKERS: dict[str, Callable[..., gym.Env]] = {
    "vector": lambda **how: ToyEnv("uneven box", **how),
    "goal": lambda **how: GoalToy(ToyEnv("uneven box", **how)),
}
ENVS = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def wrapped(kind: type, env: gym.Env) -> gym.Env:
    return env if kind is SACAgent else PrevActionWrapper(HybridActionWrapper(env), flatten=False)


def made_for(kind: type, env: gym.Env, seed: int = 2) -> Any:
    """An agent with opinions about the toy, whose observations grow to a dozen."""
    torch.manual_seed(seed)
    agent = kind(env.observation_space, env.action_space, hidden=(16, 16))
    with torch.no_grad():
        for critic in agent.critics.twins:
            critic.head.weight.mul_(300)
        agent.actor.head.weight.mul_(3)
    return agent


def vector_of(kind: type, make: Callable[..., gym.Env], lengths: tuple[int, ...]) -> SyncVectorEnv:
    makers = [lambda length=length: wrapped(kind, make(length=length)) for length in lengths]
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.DISABLED)


@KINDS
@ENVS
@STAGES
def test_act_goes_from_observations_to_actions_of_a_vector_env(kind, make, deterministic):
    envs = vector_of(kind, make, (30, 30, 30))
    agent = made_for(kind, wrapped(kind, make()))
    observation, _ = envs.reset(seed=0)
    prev_action, executed_anew = np.tile([0.0, 0.5], (3, 1)).astype(np.float32), []
    for step in range(30):
        torch.manual_seed(step)
        action = agent.act(observation, deterministic)
        assert envs.action_space.contains(action)
        observation, *_, infos = envs.step(action)
        received = np.array([env.unwrapped.received[-1] for env in envs.envs])
        if kind is SACAgent:
            np.testing.assert_array_equal(received, action)
            continue
        switch = action["switch"] == 1
        np.testing.assert_array_equal(received, np.where(switch[:, None], action["action"], prev_action))
        np.testing.assert_array_equal(observation["prev_action"], received)
        np.testing.assert_array_equal(infos["repeated"], ~switch)
        prev_action = received
        executed_anew.append(switch)
    assert kind is SACAgent or 0.02 < np.mean(executed_anew) < 0.98


@KINDS
@ENVS
@STAGES
def test_the_policy_in_a_bare_env_executes_what_the_agent_does_in_the_wrapped_one(kind, make, deterministic):
    """To the bit, over two episodes."""
    bare, env = make(), wrapped(kind, make())
    agent = made_for(kind, env)
    policy = agent.policy(deterministic=deterministic)
    for episode in range(2):
        observation, _ = env.reset(seed=episode)
        bare_observation, _ = bare.reset(seed=episode)
        policy.reset()
        done = False
        while not done:
            torch.manual_seed(bare.unwrapped.frame)
            action = agent.act(mapped(lambda part: np.asarray(part)[None], observation), deterministic)
            torch.manual_seed(bare.unwrapped.frame)
            bare_action = policy(bare_observation)
            observation, _, done, _, _ = env.step(mapped(lambda part: part[0], action))
            bare_observation, _, bare_done, _, _ = bare.step(bare_action)
            assert done == bare_done
        executed = [e.unwrapped.received for e in (env, bare)]
        assert len(executed[0]) == 12
        assert executed[0][0].dtype == executed[1][0].dtype == np.float32
        np.testing.assert_array_equal(*executed)
        anew = {tuple(action) for action in executed[0]}
        assert len(anew) == 12 if kind is SACAgent else 1 < len(anew) < 12


@ENVS
def test_the_policy_of_many_bare_envs_forgets_where_episodes_end(make):
    lengths = (5, 8, 12)
    envs, bare = vector_of(TAACAgent, make, lengths), vector_of(SACAgent, make, lengths)
    agent = made_for(TAACAgent, wrapped(TAACAgent, make()))
    policy = agent.policy(num_envs=3)
    observation, _ = envs.reset(seed=0)
    bare_observation, _ = bare.reset(seed=0)
    for _ in range(25):
        observation, _, done, _, infos = envs.step(agent.act(observation, deterministic=True))
        action = policy(bare_observation)
        bare_observation, *_ = bare.step(action)
        np.testing.assert_array_equal(infos["executed_action"], action)
        if done.any():
            observation, _ = envs.reset(options={"reset_mask": done})
            bare_observation, _ = bare.reset(options={"reset_mask": done})
            policy.reset(done)
            np.testing.assert_array_equal(policy.prev_action, observation["prev_action"])


def test_an_agent_of_a_real_env_is_saved_and_loaded(tmp_path):
    """Whatever its spaces share with each other."""
    env = wrapped(TAACAgent, gym.make("MountainCarContinuous-v0"))
    agent = made_for(TAACAgent, env)
    agent.save(tmp_path / "agent.safetensors")
    loaded = TAACAgent.load(tmp_path / "agent.safetensors")
    assert (loaded.observation_space, loaded.action_space) == (env.observation_space, env.action_space)
