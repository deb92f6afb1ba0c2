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
from slow_agents import KINDS as EVERY_KIND
from slow_agents import MAX_REPEAT, N, make_choosy, own_arguments
from toy_envs import ToyEnv

from taac_wrappers import HybridActionWrapper, KRepWrapper, NRepeatWrapper, PrevActionWrapper
from taac_wrappers.agent import HybridAgent, KRepAgent, NRepAgent, SACAgent, TAACAgent
from taac_wrappers.agent.repeating import RepeatingAgent
from taac_wrappers.training.structure import mapped

STAGES = pytest.mark.parametrize("deterministic", [True, False], ids=["modes", "samples"])
KINDS = pytest.mark.parametrize("kind", EVERY_KIND)
REPEATING = pytest.mark.parametrize("kind", [TAACAgent, HybridAgent])
HOLDING = pytest.mark.parametrize("kind", [NRepAgent, KRepAgent])


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
    if kind is NRepAgent:
        return NRepeatWrapper(env, N, gamma=0.9)
    if kind is KRepAgent:
        return KRepWrapper(env, MAX_REPEAT, gamma=0.9)
    return PrevActionWrapper(HybridActionWrapper(env), flatten=False) if issubclass(kind, RepeatingAgent) else env


def made_for(kind: type, env: gym.Env, seed: int = 2) -> Any:
    """An agent with opinions about the toy, whose observations grow to a dozen."""
    torch.manual_seed(seed)
    agent = kind(env.observation_space, env.action_space, hidden=(16, 16), **own_arguments(kind))
    with torch.no_grad():
        for critic in agent.critics.twins:
            critic.head.weight.mul_(300)
        agent.actor.head.weight.mul_(3)
    if kind in (KRepAgent, HybridAgent):
        make_choosy(agent, *visited(env))
    return agent


def visited(env: gym.Env) -> tuple[Any, torch.Tensor]:
    """What a random policy sees and does in some episodes."""
    observations, actions = [], []
    env.action_space.seed(0)
    for episode in range(10):
        observation, _ = env.reset(seed=episode)
        for _ in range(12):
            observations.append(observation)
            action = env.action_space.sample()
            actions.append(action["action"])
            observation, _, done, _, _ = env.step(action)
            if done:
                break
    return mapped(lambda *parts: torch.from_numpy(np.stack(parts)), *observations), torch.from_numpy(np.stack(actions))


def vector_of(kind: type, make: Callable[..., gym.Env], lengths: tuple[int, ...]) -> SyncVectorEnv:
    makers = [lambda length=length: wrapped(kind, make(length=length)) for length in lengths]
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.DISABLED)


@pytest.mark.parametrize("kind", [TAACAgent, HybridAgent, SACAgent])
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


@HOLDING
@ENVS
@STAGES
def test_act_decides_on_several_frames_of_a_vector_env(kind, make, deterministic):
    envs = vector_of(kind, make, (30, 30, 30))
    agent = made_for(kind, wrapped(kind, make()))
    observation, _ = envs.reset(seed=0)
    done, durations = np.zeros(3, bool), set()
    while not done.any():
        torch.manual_seed(len(durations))
        action = agent.act(observation, deterministic)
        assert envs.action_space.contains(action)
        observation, _, done, _, infos = envs.step(action)
        chosen, repeat = (action["action"], action["repeat"]) if kind is KRepAgent else (action, np.full(3, N))
        np.testing.assert_array_equal(infos["frames"][~done], repeat[~done])
        for env, one, frames in zip(envs.envs, chosen, infos["frames"], strict=True):
            np.testing.assert_array_equal(env.unwrapped.received[-frames:], np.tile(one, (frames, 1)))
        durations |= set(repeat.tolist())
    assert durations == {N} if kind is NRepAgent else len(durations) > 1


@KINDS
@ENVS
@STAGES
def test_the_policy_in_a_bare_env_executes_what_the_agent_does_in_the_wrapped_one(kind, make, deterministic):
    """To the bit, over two episodes."""
    bare, env = make(), wrapped(kind, make())
    agent = made_for(kind, env)
    policy = agent.policy(deterministic=deterministic)

    def decide(observation):
        action = agent.act(mapped(lambda part: np.asarray(part)[None], observation), deterministic)
        return mapped(lambda part: part[0], action)

    for episode in range(2):
        policy.reset()
        executed = [actions_of_an_episode(env, decide, episode), actions_of_an_episode(bare, policy, episode)]
        assert len(executed[0]) == 12
        assert executed[0][0].dtype == executed[1][0].dtype == np.float32
        np.testing.assert_array_equal(*executed)
        anew = {tuple(action) for action in executed[0]}
        assert len(anew) == 12 if kind is SACAgent else 1 < len(anew) < 12


def actions_of_an_episode(env: gym.Env, decide: Callable[[Any], Any], seed: int) -> list[np.ndarray]:
    """What the environment executed; the randomness of every decision belongs to its frame."""
    observation, _ = env.reset(seed=seed)
    done = False
    while not done:
        torch.manual_seed(env.unwrapped.frame)
        observation, _, done, _, _ = env.step(decide(observation))
    return env.unwrapped.received


@HOLDING
@ENVS
def test_the_policy_of_many_bare_envs_holds_as_the_wrapper_of_each_does(kind, make):
    """An action may still be held in one of them when another one's episode ends."""
    lengths = (5, 8, 13)
    envs, bare = vector_of(kind, make, lengths), vector_of(SACAgent, make, lengths)
    agent = made_for(kind, wrapped(kind, make()))
    policy, in_wrappers, by_policy = agent.policy(num_envs=3), ([], [], []), ([], [], [])
    observation, _ = envs.reset(seed=0)
    for _ in range(30):
        observation, _, done, _, infos = envs.step(agent.act(observation, deterministic=True))
        for env, executed, frames in zip(envs.envs, in_wrappers, infos["frames"], strict=True):
            executed += env.unwrapped.received[-frames:]
        if done.any():
            observation, _ = envs.reset(options={"reset_mask": done})
    observation, _ = bare.reset(seed=0)
    held_beyond_another_end = False
    for _ in range(30):
        action = policy(observation)
        for one, executed in zip(action, by_policy, strict=True):
            executed.append(one)
        observation, _, done, *_ = bare.step(action)
        if done.any():
            observation, _ = bare.reset(options={"reset_mask": done})
            policy.reset(done)
            assert (policy.remaining[done] == 0).all()
            held_beyond_another_end |= policy.remaining.any()
    assert held_beyond_another_end
    for ours, theirs in zip(by_policy, in_wrappers, strict=True):
        np.testing.assert_array_equal(ours, theirs[:30])


@REPEATING
@ENVS
def test_the_policy_of_many_bare_envs_forgets_where_episodes_end(kind, make):
    lengths = (5, 8, 12)
    envs, bare = vector_of(kind, make, lengths), vector_of(SACAgent, make, lengths)
    agent = made_for(kind, wrapped(kind, make()))
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


@KINDS
def test_an_agent_of_a_real_env_is_saved_and_loaded(kind, tmp_path):
    """Whatever its spaces share with each other."""
    env = wrapped(kind, gym.make("MountainCarContinuous-v0"))
    agent = made_for(kind, env)
    agent.save(tmp_path / "agent.safetensors")
    loaded = kind.load(tmp_path / "agent.safetensors")
    assert (loaded.observation_space, loaded.action_space) == (env.observation_space, env.action_space)
