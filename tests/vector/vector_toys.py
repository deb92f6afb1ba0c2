"""Small environments whose episodes end at seeded random times, one by one and natively vectorised."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Tuple, flatten
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

MODES = list(AutoresetMode)
BOX_ACTION = Box(np.array([-1.0, 0.5], np.float32), np.array([1.0, 2.0], np.float32))


class Drift(gym.Env):
    """Observation [noise, mean of the action, time]; an episode of 1 to 6 steps that ends either way."""

    def __init__(self, action_space: gym.Space = BOX_ACTION, observation: str = "box", dtype: type = np.float32):
        self.action_space = action_space
        self._dtype = dtype
        self._kind = observation
        vector = Box(-np.inf, np.inf, (3,), dtype)
        self.observation_space = {
            "box": vector,
            "dict": Dict(position=vector, goal=Box(-1.0, 1.0, (2, 2), np.float32)),
            "discrete": Discrete(10),
        }[observation]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._time = 0
        self._length = int(self.np_random.integers(1, 7))
        self._terminates = bool(self.np_random.integers(2))
        return self._observation(0.0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._time += 1
        if isinstance(self.action_space, (Dict, Tuple)):
            action = flatten(self.action_space, action)
        level = float(np.asarray(action, np.float64).mean())
        over = self._time >= self._length
        reward = level + float(self.np_random.normal())
        return self._observation(level), reward, over and self._terminates, over and not self._terminates, {}

    def _observation(self, level: float) -> Any:
        if self._kind == "discrete":
            return int(self.np_random.integers(10))
        vector = np.array([self.np_random.normal(), level, self._time], self._dtype)
        if self._kind == "box":
            return vector
        return {"position": vector, "goal": self.np_random.uniform(-1, 1, (2, 2)).astype(np.float32)}


class NativeDrift(VectorEnv):
    """`Drift` as a natively vectorised environment writes it: arrays of its own, no per-env infos, any mode."""

    def __init__(self, num_envs: int, mode: AutoresetMode, action_space: gym.Space = BOX_ACTION):
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": mode}
        self._mode = mode
        self.single_action_space = action_space
        self.single_observation_space = Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self._rngs = [np.random.default_rng()] * num_envs
        self._time = np.zeros(num_envs, np.int64)
        self._length = np.zeros(num_envs, np.int64)
        self._terminates = np.zeros(num_envs, np.bool_)
        self._over = np.zeros(num_envs, np.bool_)
        self._observations = np.zeros((num_envs, 3), np.float32)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        mask = np.ones(self.num_envs, np.bool_) if not options else options.pop("reset_mask")
        if isinstance(seed, int):
            seed = [seed + i for i in range(self.num_envs)]
        for i in np.flatnonzero(mask):
            if seed is not None and seed[i] is not None:
                self._rngs[i] = np.random.default_rng(seed[i])
        self._begin(mask)
        return self._observations.copy(), {}

    def _begin(self, mask: np.ndarray) -> None:
        for i in np.flatnonzero(mask):
            self._length[i] = self._rngs[i].integers(1, 7)
            self._terminates[i] = bool(self._rngs[i].integers(2))
            self._observations[i] = self._rngs[i].normal(), 0.0, 0
        self._time[mask] = 0
        self._over[mask] = False

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        ghosts = self._over.copy()
        assert self._mode is AutoresetMode.NEXT_STEP or not ghosts.any()
        live = ~ghosts
        self._time[live] += 1
        levels = actions.reshape(self.num_envs, -1).astype(np.float64).mean(axis=1)
        rewards = np.zeros(self.num_envs)
        for i in np.flatnonzero(live):
            rewards[i] = levels[i] + self._rngs[i].normal()
            self._observations[i] = self._rngs[i].normal(), levels[i], self._time[i]
        over = live & (self._time >= self._length)
        terminated, truncated = over & self._terminates, over & ~self._terminates
        self._over = over
        infos: dict[str, Any] = {}
        if self._mode is AutoresetMode.NEXT_STEP:
            self._begin(ghosts)
            self._over = over
        elif self._mode is AutoresetMode.SAME_STEP and over.any():
            final = np.full(self.num_envs, None, dtype=object)
            for i in np.flatnonzero(over):
                final[i] = self._observations[i].copy()
            infos = {"final_obs": final, "_final_obs": over.copy()}
            self._begin(over.copy())
        return self._observations.copy(), rewards, terminated, truncated, infos


def sync(num_envs: int, mode: AutoresetMode, wrappers: tuple = (), **kwargs: Any) -> SyncVectorEnv:
    """Drift environments side by side, each wrapped on its own by the (class, kwargs) pairs, innermost first."""

    def make() -> gym.Env:
        env: gym.Env = Drift(**kwargs)
        for wrapper, arguments in wrappers:
            env = wrapper(env, **arguments)
        return env

    return SyncVectorEnv([make] * num_envs, autoreset_mode=mode)


class ActionSource:
    """Random actions; each sub-environment's is the one before with probability one half, so that some repeat."""

    def __init__(self, space: gym.Space, seed: int):
        self._space = space
        self._space.seed(seed)
        self._rng = np.random.default_rng(seed)
        self._actions = space.sample()

    def __call__(self) -> Any:
        self._actions = self._mixed(self._actions, self._space.sample())
        return self._actions

    def _mixed(self, old: Any, new: Any) -> Any:
        if isinstance(new, dict):
            return {name: self._mixed(old[name], new[name]) for name in new}
        if isinstance(new, tuple):
            return tuple(map(self._mixed, old, new))
        keep = self._rng.random(len(new)) < 0.5
        return np.where(keep.reshape(-1, *[1] * (new.ndim - 1)), old, new)


def assert_same(expected: Any, actual: Any) -> None:
    """Equal values, types and dtypes, however nested."""
    if isinstance(expected, (dict, tuple)):
        assert type(expected) is type(actual)
        keys = expected if isinstance(expected, dict) else range(len(expected))
        assert len(expected) == len(actual)
        for key in keys:
            assert_same(expected[key], actual[key])
        return
    expected, actual = np.asarray(expected), np.asarray(actual)
    assert (expected.dtype, expected.shape) == (actual.dtype, actual.shape)
    if expected.dtype == object and expected.shape:
        assert_same(tuple(expected), tuple(actual))
    elif expected.tobytes() != actual.tobytes():  # the quick answer first, the one that tells more where it is needed
        np.testing.assert_array_equal(expected, actual)


REPORTED = ("frames", "executed_action", "repeated", "exploring", "raw_reward", "discount")
STATISTICS = ("fraction", "mean_run", "decisions", "frames", "apr", "afr")


def _own(infos: dict[str, Any], key: str, i: int) -> Any:
    """What sub-environment i's own step reported under key, or None."""
    ended = "final_info" in infos and infos["_final_info"][i]
    scope = infos["final_info"] if ended else infos
    if key not in scope or not scope[f"_{key}"][i]:
        return None
    value = scope[key]
    return {name: value[name][i] for name in STATISTICS} if isinstance(value, dict) else value[i]


def assert_same_infos(expected: dict[str, Any], actual: dict[str, Any], num_envs: int, at_top: tuple) -> None:
    """Per-env infos, as Gymnasium stacks them, against those of vector wrappers.

    The keys ``at_top`` are a vector wrapper's: its report of a last step stands at the top like that of every other.
    """
    for key in (*REPORTED, "repeat"):
        for i in range(num_envs):
            wanted = _own(expected, key, i)
            if "final_info" in actual or key not in at_top:
                assert_same(wanted, _own(actual, key, i))
            if key in at_top:
                assert_same(wanted, _own({**actual, "_final_info": np.zeros(num_envs, np.bool_)}, key, i))
    assert ("final_obs" in expected) == ("final_obs" in actual)
    for i in range(num_envs if "final_obs" in expected else 0):
        if expected["_final_obs"][i]:
            assert_same(expected["final_obs"][i], actual["final_obs"][i])
        else:
            assert actual["final_obs"][i] is None


def lockstep(
    expected: VectorEnv,
    actual: VectorEnv,
    mode: AutoresetMode,
    *,
    steps: int = 80,
    seed: int = 3,
    at_top: tuple[str, ...] = (*REPORTED, "repeat"),
    reset_anyway: float = 0.0,
) -> int:
    """Drive both with the same actions and compare all that they return; the number of episodes that ended.

    ``reset_anyway`` is the probability to reset a sub-environment that need not be reset.
    """
    assert expected.metadata["autoreset_mode"] is mode
    assert actual.metadata["autoreset_mode"] is mode
    assert expected.single_action_space == actual.single_action_space
    assert expected.action_space == actual.action_space
    assert expected.single_observation_space == actual.single_observation_space
    assert expected.observation_space == actual.observation_space
    source = ActionSource(actual.action_space, seed)
    assert_same(expected.reset(seed=seed)[0], actual.reset(seed=seed)[0])
    episodes = 0
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        actions = source()
        *wanted, wanted_infos = expected.step(actions)
        *got, infos = actual.step(actions)
        assert_same(tuple(wanted), tuple(got))
        assert_same_infos(wanted_infos, infos, actual.num_envs, at_top)
        assert got[0] in actual.observation_space
        done = got[2] | got[3]
        episodes += int(done.sum())
        mask = rng.random(len(done)) < reset_anyway
        if mode is AutoresetMode.DISABLED:
            mask |= done
        if mask.any():
            observations = [envs.reset(options={"reset_mask": mask.copy()})[0] for envs in (expected, actual)]
            assert_same(*observations)
    return episodes
