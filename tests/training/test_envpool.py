"""envpool: the same interface as the other engines, exact at the ends of episodes, honest about what it cannot do."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from test_engines import actions_for, play, random_actions, wrap

from taac_wrappers import NRepeatWrapper
from taac_wrappers.training.envs import make_env, make_vector_env, no_wrappers
from taac_wrappers.training.replay import SequenceReplay
from taac_wrappers.training.structure import named

PHYSICS = "ignore:envpool has its own build"


def test_envpool_says_that_its_physics_differ():
    with pytest.warns(UserWarning, match="envpool has its own build of Pendulum-v1's physics"):
        make_vector_env("Pendulum-v1", 1, engine="envpool")


@pytest.mark.filterwarnings(PHYSICS)
def test_envpool_has_the_same_spaces():
    for wrappers in (no_wrappers, wrap):
        for env_id in ("Pendulum-v1", "BipedalWalkerHardcore-v3", "FetchReach-v4"):
            pooled, plain = (make_vector_env(env_id, 2, wrappers, engine=engine) for engine in ("envpool", "sync"))
            assert pooled.single_observation_space == plain.single_observation_space
            assert pooled.single_action_space == plain.single_action_space
            assert pooled.executed_action_space == plain.executed_action_space


@pytest.mark.filterwarnings(PHYSICS)
def test_same_seed_same_run_in_envpool():
    runs = []
    for seed in (3, 3, 4):
        envs = make_vector_env("BipedalWalkerHardcore-v3", 3, engine="envpool")
        first = envs.reset(seed=seed)[0]
        runs.append((first.tobytes(), play(envs, actions_for(envs, 300, 0))))
        assert first.dtype == np.float32
        assert len(set(map(bytes, first))) == 3  # every env has a seed of its own
        envs.close()
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def joined(observation: Any) -> np.ndarray:
    """A copy of observations as rows, those of a Dict side by side."""
    return np.concatenate(list(named("observation", observation).values()), axis=1)


@pytest.mark.filterwarnings(PHYSICS)
@pytest.mark.parametrize(("env_id", "frames"), [("Pendulum-v1", 650), ("FetchReach-v4", 130), ("Hopper-v5", 120)])
def test_no_ghost_transitions_reach_the_replay(env_id, frames):
    """What the replay holds adds up to the statistics of the episodes; every episode begins where its reset began."""
    envs = make_vector_env(env_id, 3, engine="envpool")
    replay = SequenceReplay(
        envs.single_observation_space, envs.single_action_space, capacity=3 * 1000, num_envs=3, seed=0
    )
    observation, _ = envs.reset(seed=0)
    replay.start(observation)
    statistics: list[list[tuple[float, int]]] = [[], [], []]
    finals, firsts = [], [*joined(observation)]
    for action in actions_for(envs, frames, 0):
        observation, reward, terminated, truncated, infos = envs.step(action)
        assert infos["frames"].tolist() == [1, 1, 1]
        assert not infos["repeated"].any()
        told = infos["executed_action"], reward, terminated, truncated, observation
        replay.add(*told, repeated=infos["repeated"], discount=np.full(3, 0.99))
        if (done := terminated | truncated).any():
            for env in np.flatnonzero(done):
                statistics[env].append((infos["episode"]["r"][env], infos["episode"]["l"][env]))
            finals += [*joined(observation)[done]]
            before, (observation, _) = observation, envs.reset(options={"reset_mask": done})
            np.testing.assert_array_equal(joined(observation)[~done], joined(before)[~done])
            firsts += [*joined(observation)[done]]
            replay.start(observation, done)
    assert all(len(episodes) >= 2 for episodes in statistics)
    assert len(replay) == 3 * frames

    kept = joined(replay._observation)
    for env in range(3):  # episode by episode, as they lie in the ring
        start = 0
        for episode_return, length in statistics[env]:
            slots = env * replay.length + np.arange(start, start + length)
            np.testing.assert_allclose(replay._reward[slots].sum(), episode_return, rtol=1e-5)
            assert not (replay._flags[slots[:-1]] & 0b1100).any()  # nothing ends before its end
            assert replay._flags[slots[-1]] & 0b1100
            assert any(np.array_equal(kept[slots[0]], first) for first in firsts)
            assert any(np.array_equal(kept[slots[-1] + 1], final) for final in finals)
            start += length + 1
    for final in finals:
        assert not any(np.array_equal(final, first) for first in firsts)
    envs.close()


@pytest.mark.filterwarnings(PHYSICS)
def test_time_limits_are_truncations_and_those_of_gymnasium():
    envs = make_vector_env("Pendulum-v1", 1, engine="envpool")
    envs.reset(seed=0)
    ends = [envs.step(np.zeros((1, 1), np.float32))[2:4] for _ in range(200)]
    assert [bool(truncated[0]) for _, truncated in ends] == [False] * 199 + [True]
    assert not any(terminated[0] for terminated, _ in ends)
    envs.close()


@pytest.mark.filterwarnings(PHYSICS)
def test_actions_are_clipped_and_scaled_to_the_environments_bounds(monkeypatch):
    envs = make_vector_env("Pendulum-v1", 3, engine="envpool")
    envs.reset(seed=0)
    pool, received = envs._engine._pool._pool, []

    class Spy:
        def step(self, action):
            received.append(action.copy())
            return pool.step(action)

    monkeypatch.setattr(envs._engine._pool, "_pool", Spy())
    envs.step(np.array([[-1.0], [0.25], [7.0]], np.float32))
    assert received[0].tolist() == [[-2.0], [0.5], [2.0]]  # Pendulum's actions are in [-2, 2]


@pytest.mark.filterwarnings(PHYSICS)
def test_goal_observations_stay_apart_as_ours_do():
    envs = make_vector_env("FetchReach-v4", 2, engine="envpool")
    raw = {
        "observation": np.array([[1.0, -300.0]]),
        "achieved_goal": np.array([[9.0]]),
        "desired_goal": np.array([[3.0]]),
    }
    flat = envs._engine._pool._flat(raw)
    assert flat.keys() == raw.keys()
    for key, numbers in {"observation": [1, -200], "achieved_goal": [9], "desired_goal": [3]}.items():
        np.testing.assert_array_equal(flat[key], np.array([numbers], np.float32), strict=True)
    observation, _ = envs.reset(seed=0)
    plain = make_env("FetchReach-v4").reset(seed=0)[0]
    assert observation.keys() == plain.keys()
    assert observation in envs.observation_space
    # The gripper starts at the same place in both; only the goal is drawn.
    for key in ("observation", "achieved_goal"):
        np.testing.assert_allclose(observation[key][0, :3], plain[key][:3], atol=0.01)


@pytest.mark.filterwarnings(PHYSICS)
@pytest.mark.parametrize(("env_id", "steps"), [("Pendulum-v1", 450), ("FetchReach-v4", 120), ("Hopper-v5", 120)])
def test_a_methods_wrappers_go_around_the_pool(env_id, steps):
    """By hand, over several episodes: what is executed, what is seen of it, and the statistics at an episode's end."""
    envs = make_vector_env(env_id, 3, wrap, engine="envpool")
    observation, _ = envs.reset(seed=0)
    before = np.zeros((3, *envs.executed_action_space.shape), np.float32)
    repeated, frames = np.zeros(3, int), np.zeros(3, int)
    np.testing.assert_array_equal(observation["prev_action"], before, strict=True)
    episodes = 0
    for action in random_actions(envs, steps, 0):
        observation, _, terminated, truncated, infos = envs.step(action)
        before = np.where(action["switch"][:, None] == 1, action["action"], before)
        repeated += action["switch"] == 0
        frames += 1
        np.testing.assert_array_equal(infos["executed_action"], before, strict=True)
        np.testing.assert_array_equal(observation["prev_action"], before, strict=True)
        assert infos["repeated"].tolist() == (action["switch"] == 0).tolist()
        assert infos["frames"].tolist() == [1, 1, 1]
        done = terminated | truncated
        assert infos["_episode"].tolist() == done.tolist()
        for env in np.flatnonzero(done):
            episodes += 1
            assert infos["episode"]["l"][env] == infos["repeat"]["frames"][env] == frames[env]
            assert infos["repeat"]["fraction"][env] == repeated[env] / frames[env]
        if done.any():
            observation, _ = envs.reset(options={"reset_mask": done})
            before[done], repeated[done], frames[done] = 0, 0, 0
            np.testing.assert_array_equal(observation["prev_action"], before)
    assert episodes >= 6
    assert envs.stop_reason is None
    envs.close()


def test_a_wrapper_without_a_vector_version_is_refused():
    with pytest.raises(ValueError, match="--env-engine envpool cannot be used with NRepeatWrapper"):
        make_vector_env("Pendulum-v1", 1, lambda env: NRepeatWrapper(env, 2), engine="envpool")


@pytest.mark.filterwarnings(PHYSICS)
def test_goals_reach_the_replay_from_a_pool():
    envs = make_vector_env("FetchReach-v4", 2, wrap, engine="envpool")
    replay = SequenceReplay(envs.single_observation_space, envs.executed_action_space, capacity=60, num_envs=2, seed=0)
    observation, _ = envs.reset(seed=0)
    replay.start(observation)
    goals = observation["desired_goal"].copy()
    for action in random_actions(envs, 20, 0):
        observation, reward, terminated, truncated, infos = envs.step(action)
        told = infos["executed_action"], reward, terminated, truncated, observation
        replay.add(*told, repeated=infos["repeated"], discount=np.ones(2))
    windows = replay.sample(100)
    assert windows.observation.keys() == {"achieved_goal", "desired_goal", "observation", "prev_action"}
    assert {goal.tobytes() for goal in windows.observation["desired_goal"]} == {goal.tobytes() for goal in goals}
    np.testing.assert_array_equal(windows.next_observation["prev_action"], windows.action)
    envs.close()


@pytest.mark.filterwarnings(PHYSICS)
def test_envpool_cannot_resume_within_an_episode_and_says_so():
    envs = make_vector_env("Pendulum-v1", 2, engine="envpool", seed=7)
    first, _ = envs.reset(seed=7)
    envs.step(np.zeros((2, 1), np.float32))
    assert envs.episode_states() == [None, None]
    began = []
    for frames in (2, 2, 4):
        others = make_vector_env("Pendulum-v1", 2, engine="envpool", seed=7)
        others.counters.frames = frames
        with pytest.warns(UserWarning, match="cannot go on in the middle of an episode") as caught:
            observation, exact = others.restore([None, None])
        assert len(caught) == 1
        assert not exact.any()
        began.append(observation.tobytes())
        others.close()
    assert began[0] == began[1] != began[2]
    assert first.tobytes() not in began  # the first episodes are not played again
    envs.close()


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("Ant-v5", "envpool makes Ant-v5 without the arguments include_cfrc_ext_in_observation"),
        ("Hopper-v6", "no environment 'Hopper-v6'; close matches: Hopper-v5"),
        ("test_engines/Own-v0", "no environment 'test_engines/Own-v0'"),
    ],
)
def test_what_envpool_cannot_do_is_said(env_id, message, monkeypatch):
    for own in ("Hopper-v6", "test_engines/Own-v0"):
        spec = gym.envs.registration.EnvSpec(own, lambda: gym.make("Pendulum-v1").unwrapped)
        monkeypatch.setitem(gym.registry, own, spec)
    with pytest.raises(ValueError, match=message):
        make_vector_env(env_id, 1, engine="envpool")


@pytest.mark.filterwarnings(PHYSICS)
def test_arguments_of_the_environment_are_passed_on():
    envs = make_vector_env("Pendulum-v1", 2, engine="envpool", env_kwargs={"max_episode_steps": 3})
    envs.reset(seed=0)
    ended = [envs.step(np.zeros((2, 1), np.float32))[3].all() for _ in range(3)]
    envs.close()
    assert ended == [False, False, True]
    with pytest.raises(ValueError, match="envpool makes Pendulum-v1 without the arguments g"):
        make_vector_env("Pendulum-v1", 1, engine="envpool", env_kwargs={"g": 5.0})


def test_other_spaces_than_gymnasiums_are_refused(monkeypatch):
    wide = gym.envs.registration.EnvSpec("Hopper-v4", lambda: gym.make("Pendulum-v1").unwrapped)
    monkeypatch.setitem(gym.registry, "Hopper-v4", wide)
    with pytest.raises(ValueError, match=r"Hopper-v4 has actions Box.* in envpool, expected a Box of shape \(1,\)"):
        make_vector_env("Hopper-v4", 1, engine="envpool")

    class Narrow(gym.Env):
        observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (3,))

    narrow = gym.envs.registration.EnvSpec("Hopper-v4", Narrow)
    monkeypatch.setitem(gym.registry, "Hopper-v4", narrow)
    with pytest.raises(ValueError, match=r"Hopper-v4 observes Box.* in envpool, expected Box"):
        make_vector_env("Hopper-v4", 1, engine="envpool")


@pytest.mark.filterwarnings(PHYSICS)
def test_seeds_that_envpool_cannot_take():
    envs = make_vector_env("Pendulum-v1", 1, engine="envpool")
    with pytest.raises(ValueError, match=r"one seed below 2\*\*31 for each of 1 envs, got \[2147483648\]"):
        envs.reset(seed=2**31)
