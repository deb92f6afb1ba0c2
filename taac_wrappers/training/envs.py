"""Environments as the agents see them: one flat float32 observation, actions in [-1, 1], raw rewards, exact resume.

>>> env = make_env("Pendulum-v1")
>>> env.observation_space, env.action_space
(Box([-1. -1. -8.], [1. 1. 8.], (3,), float32), Box(-1.0, 1.0, (1,), float32))
>>> env.close()
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeGuard

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import RecordConstructorArgs
from gymnasium.wrappers import RecordEpisodeStatistics, RecordVideo

from taac_wrappers.training.engines import BadObservation, Engine, EnvByEnv, LocalEnv, PooledEnvs, WorkerEnv
from taac_wrappers.training.faults import WatchedEnvs
from taac_wrappers.training.tasks import check_simulators, make_kwargs_for, resolve_env_id

GOAL_CLIP = 200.0
"""Goal observations are clipped to +-this, as in the paper's Manipulation tasks."""

_GOAL_KEYS = ("observation", "desired_goal")
_BIPEDAL_WALKER = "gymnasium.envs.box2d.bipedal_walker:BipedalWalker"


def make_env(
    env_id: str,
    *,
    render_mode: str | None = None,
    video_folder: str | os.PathLike[str] | None = None,
    **make_kwargs: Any,
) -> gym.Env:
    """Build one environment for training or evaluation.

    From the inside out: the environment with the paper's arguments, a video of every episode (if asked for), statistics
    of raw returns (``info["episode"]`` at an episode's end), flat float32 observations, actions in [-1, 1]. What the
    environment reports in ``info``, such as ``is_success``, passes through.

    Args:
        env_id: any Gymnasium id with bounded Box actions; an outdated version is replaced with a warning.
        render_mode: as in ``gym.make``.
        video_folder: where a video of every episode is written; ``render_mode`` is then ``"rgb_array"``.
        **make_kwargs: passed to ``gym.make``, above the task's own.
    """
    env_id = resolve_env_id(env_id)
    check_simulators(env_id)
    make_kwargs = {**make_kwargs_for(env_id), **make_kwargs}
    if video_folder is not None and render_mode is None:
        render_mode = "rgb_array"
    if render_mode is not None:  # not every environment knows the argument
        make_kwargs["render_mode"] = render_mode
    env = gym.make(env_id, **make_kwargs)
    if env.unwrapped.spec is not None and env.unwrapped.spec.entry_point == _BIPEDAL_WALKER:
        env = FreshBox2DWorld(env)
    if video_folder is not None:
        env = RecordVideo(env, os.fspath(video_folder), episode_trigger=_every_episode, disable_logger=True)
    env = RecordEpisodeStatistics(env)
    env = GoalObservation(env) if _has_goal(env.observation_space) else FlatObservation(env)
    return UnitAction(env)


def make_vector_env(
    env_id: str,
    num_envs: int,
    *,
    engine: Literal["sync", "async", "envpool"] = "sync",
    on_error: Literal["stop", "restart"] = "stop",
    timeout: float = 60.0,
    seed: int = 0,
) -> WatchedEnvs:
    """Build ``num_envs`` training environments that are stepped together.

    Nothing resets by itself: after a step, call ``reset(options={"reset_mask": done})``. Returned arrays belong to the
    caller.

    Args:
        env_id: as in :func:`make_env`.
        num_envs: how many.
        engine: ``"sync"``: one after the other in this process; ``"async"``: each in a worker process, which can be
            given up if it hangs; both can be resumed exactly. ``"envpool"``: fast, in its own physics, not resumable
            within an episode.
        on_error: whether to stop for an environment that fails, or to put a new one in its place.
        timeout: seconds that a worker may take for one step or reset.
        seed: of the run, from which environments that are put in the place of others get theirs.

    >>> envs = make_vector_env("Pendulum-v1", 2)
    >>> observations, _ = envs.reset(seed=0)
    >>> observations.shape
    (2, 3)
    >>> states = envs.episode_states()  # for a checkpoint; envs.restore takes them back
    >>> envs.close()
    """
    if not isinstance(num_envs, int) or isinstance(num_envs, bool) or num_envs < 1:
        raise ValueError(f"num_envs must be a positive integer, got {num_envs!r}")
    if not timeout > 0:
        raise ValueError(f"the timeout of envs must be a positive number of seconds, got {timeout!r}")
    if on_error not in ("stop", "restart"):
        raise ValueError(f"on_error must be 'stop' or 'restart', got {on_error!r}")
    env_id = resolve_env_id(env_id)  # here: one warning, not many
    return WatchedEnvs(_make_engine(engine, env_id, num_envs, timeout), env_id, on_error=on_error, seed=seed)


def _make_engine(engine: str, env_id: str, num_envs: int, timeout: float) -> Engine:
    probe = make_env(env_id)
    probe.close()
    observation_space, action_space = probe.observation_space, probe.action_space
    assert isinstance(observation_space, spaces.Box)
    assert isinstance(action_space, spaces.Box)
    if engine == "envpool":
        return PooledEnvs(
            env_id,
            num_envs,
            observation_space,
            action_space,
            flatten=_flat_rows,
            make_kwargs=make_kwargs_for(env_id),
        )
    make_one = functools.partial(_make_replayable_env, env_id, gym.spec(env_id))
    host: Callable[[], LocalEnv | WorkerEnv]
    if engine == "sync":
        host = functools.partial(LocalEnv, make_one)
    elif engine == "async":
        host = functools.partial(WorkerEnv, make_one, timeout)
    else:
        raise ValueError(f"engine must be 'sync', 'async' or 'envpool', got {engine!r}")
    return EnvByEnv(host, num_envs, observation_space, action_space)


class GoalObservation(gym.ObservationWrapper, RecordConstructorArgs):
    """``observation`` and ``desired_goal`` of a goal environment as one float32 vector, clipped to +-:data:`GOAL_CLIP`.

    ``achieved_goal`` is left out: it is part of the observation already.
    """

    def __init__(self, env: gym.Env):
        RecordConstructorArgs.__init__(self)
        gym.ObservationWrapper.__init__(self, env)
        if not _has_goal(env.observation_space):
            raise ValueError(
                f"env must observe a Dict with Box observation and desired_goal, got {env.observation_space}"
            )
        self._parts: dict[str, Any] = {key: env.observation_space[key] for key in _GOAL_KEYS}
        size = sum(spaces.flatdim(part) for part in self._parts.values())
        self.observation_space = spaces.Box(-GOAL_CLIP, GOAL_CLIP, (size,), np.float32)

    def observation(self, observation: dict[str, np.ndarray]) -> np.ndarray:
        """Join the two vectors."""
        joined = np.concatenate([np.ravel(_fitting(part, observation[key])) for key, part in self._parts.items()])
        return joined.clip(-GOAL_CLIP, GOAL_CLIP).astype(np.float32)


class FlatObservation(gym.ObservationWrapper, RecordConstructorArgs):
    """Any observation that Gymnasium can flatten as one float32 vector, always a copy."""

    def __init__(self, env: gym.Env):
        RecordConstructorArgs.__init__(self)
        gym.ObservationWrapper.__init__(self, env)
        flat = spaces.flatten_space(env.observation_space)
        if not isinstance(flat, spaces.Box):
            raise ValueError(f"env must have observations of a fixed size, got {env.observation_space}")
        with np.errstate(over="ignore"):  # bounds such as the largest float64 become infinite
            low, high = flat.low.astype(np.float32), flat.high.astype(np.float32)
        self.observation_space = self._flat_space = spaces.Box(low, high, dtype=np.float32)
        self._inner_space = env.observation_space  # at every step it would be asked of all wrappers inside

    def observation(self, observation: Any) -> np.ndarray:
        """Flatten and convert."""
        space = self._inner_space
        if isinstance(space, spaces.Box):
            return _fitting(space, observation).astype(np.float32).ravel()
        return _fitting(self._flat_space, np.asarray(spaces.flatten(space, observation), dtype=np.float32))


class UnitAction(gym.ActionWrapper, RecordConstructorArgs):
    """Actions are one float32 vector in [-1, 1], clipped to that and scaled linearly to the environment's own bounds.

    Gymnasium's ``RescaleAction`` neither clips nor flattens, and its ``ClipAction`` declares an unbounded space.
    """

    def __init__(self, env: gym.Env):
        RecordConstructorArgs.__init__(self)
        gym.ActionWrapper.__init__(self, env)
        space = env.action_space
        if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
            raise ValueError(f"env must have a Box of float actions, got {space}")
        if not space.is_bounded():
            raise ValueError(f"env must have bounded actions, got {space}")
        self.action_space = spaces.Box(-1.0, 1.0, (int(np.prod(space.shape)),), np.float32)
        self._inner_shape, self._inner_dtype = space.shape, space.dtype
        self._low, self._high = space.low.ravel(), space.high.ravel()
        # Halved before they are combined, so that wide bounds do not overflow; exact where the bounds are -1 and 1.
        self._center, self._half_range = self._high / 2 + self._low / 2, self._high / 2 - self._low / 2

    def action(self, action: np.ndarray) -> np.ndarray:
        """Scale to the environment's bounds; the clip comes last, where it also catches rounding."""
        scaled = self._center + self._half_range * action
        inside = np.minimum(np.maximum(scaled, self._low), self._high)
        return inside.astype(self._inner_dtype, copy=False).reshape(self._inner_shape)


class FreshBox2DWorld(gym.Wrapper, RecordConstructorArgs):
    """Begins every episode of BipedalWalker in a new Box2D world.

    Gymnasium clears the old world and fills it again, but the order in which Box2D solves contacts still depends on the
    episodes before, so that the same seed and actions do not always give the same episode.
    """

    def __init__(self, env: gym.Env):
        RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Replace the world, then reset."""
        walker: Any = self.unwrapped
        walker._destroy()  # bodies have to leave the world that made them
        walker.world = type(walker.world)()
        return self.env.reset(seed=seed, options=options)


class ReplayableEnv(gym.Wrapper, RecordConstructorArgs):
    """Makes a deterministic environment exactly resumable in the middle of an episode, with plain data and no pickle.

    It keeps the random generator's state from just before the last reset and every action since. Restoring puts the
    state back, resets, and replays the actions, which also rebuilds the state of every wrapper inside. It needs an
    environment whose randomness is all in ``unwrapped.np_random`` and whose reset leaves nothing behind of earlier
    episodes. The observation after the replay is compared with the recorded one bit by bit: a difference that is not
    visible there goes unnoticed. The record grows by one action per frame until the episode ends.

    >>> env = ReplayableEnv(make_env("Pendulum-v1"))
    >>> _ = env.reset(seed=1)
    >>> action = np.array([0.5], np.float32)
    >>> _ = env.step(action)
    >>> state = env.episode_state()
    >>> other = ReplayableEnv(make_env("Pendulum-v1"))
    >>> observation, info, exact = other.restore(state)
    >>> exact, bool((env.step(action)[0] == other.step(action)[0]).all())
    (True, True)
    """

    def __init__(self, env: gym.Env):
        RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)
        if not isinstance(env.action_space, spaces.Box):
            raise ValueError(f"env must have Box actions, got {env.action_space}")
        self._actions = np.empty((64, *env.action_space.shape), env.action_space.dtype)
        self._frames = 0
        self._start: dict[str, Any] | None = None
        self._last_observation: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, and begin a new record."""
        start = {
            "rng": None if seed is not None else self._rng_state(),  # a seed replaces the generator
            "seed": seed,
            "options": dict(options) if options else None,
        }
        observation, info = self.env.reset(seed=seed, options=options)
        self._start, self._frames, self._last_observation = start, 0, observation
        return observation, info

    def step(self, action: np.ndarray) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step with a copy of ``action``, and record it."""
        if self._frames == len(self._actions):
            self._actions = np.concatenate([self._actions, np.empty_like(self._actions)])
        self._actions[self._frames] = action
        result = self.env.step(self._actions[self._frames].copy())
        self._frames += 1  # only now: a step that raised is not part of the episode
        self._last_observation = result[0]
        return result

    def episode_state(self) -> dict[str, Any]:
        """Everything :meth:`restore` needs: values that JSON knows, and two arrays.

        Returns:
            ``rng`` and ``seed`` (one of the two is None) and ``options`` of the last reset, ``rng_now``, ``actions``
            ``[frames, *action shape]``, and ``observation``, the last one, flattened.
        """
        if self._start is None:
            raise RuntimeError("episode_state() needs an episode: call reset() first")
        return {
            **self._start,
            "rng_now": self._rng_state(),
            "actions": self._actions[: self._frames].copy(),
            "observation": self._flat(self._last_observation),
        }

    def restore(self, state: Mapping[str, Any]) -> tuple[Any, dict[str, Any], bool]:
        """Go to where :meth:`episode_state` was taken, perhaps in another process.

        Returns:
            The observation, the info that came with it, and whether this is exactly that place. If the replay ends
            elsewhere, there is a warning, and a new episode begins.
        """
        self._check(state)
        observation, info = self._replay(state)
        # Compared as bytes: -0.0 is not 0.0, and nan is itself.
        same_observation = self._flat(observation).tobytes() == np.asarray(state["observation"]).tobytes()
        exact = same_observation and self._frames == len(state["actions"])
        self._set_rng_state(state["rng_now"])
        if not exact:
            warnings.warn(
                f"{self} did not repeat its episode of {len(state['actions'])} frames exactly: starting a new one",
                stacklevel=2,
            )
            observation, info = self.reset()
        return observation, info, exact

    def _replay(self, state: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        if state["rng"] is not None:
            self._set_rng_state(state["rng"])
        observation, info = self.reset(seed=state["seed"], options=state["options"])
        for action in state["actions"]:
            observation, _, terminated, truncated, info = self.step(action)
            if terminated or truncated:  # either the recorded end, or the replay has gone astray
                break
        return observation, info

    def _check(self, state: Mapping[str, Any]) -> None:
        """Refuse a damaged state, or one of another environment, before anything changes."""
        missing = [key for key in ("rng", "seed", "options", "rng_now", "actions", "observation") if key not in state]
        if missing:
            raise ValueError(f"state must hold {', '.join(missing)}, got only {sorted(state)}")
        if (state["rng"] is None) == (state["seed"] is None):
            raise ValueError(f"state must hold either rng or seed, got {state['rng']!r} and {state['seed']!r}")
        shape = np.shape(state["actions"])
        if shape != (*shape[:1], *self._actions.shape[1:]):
            raise ValueError(f"state['actions'] must have shape {('frames', *self._actions.shape[1:])}, got {shape}")
        size = spaces.flatdim(self.observation_space)
        if np.shape(state["observation"]) != (size,):
            raise ValueError(f"state['observation'] must have shape {(size,)}, got {np.shape(state['observation'])}")
        for key in ("rng", "rng_now"):
            if key == "rng_now" or state[key] is not None:
                _check_rng_state(key, state[key], self.unwrapped.np_random.bit_generator)

    def _flat(self, observation: Any) -> np.ndarray:
        return np.asarray(spaces.flatten(self.observation_space, observation))

    def _rng_state(self) -> dict[str, Any]:
        return dict(self.unwrapped.np_random.bit_generator.state)

    def _set_rng_state(self, state: Mapping[str, Any]) -> None:
        self.unwrapped.np_random.bit_generator.state = state


def _make_replayable_env(env_id: str, spec: EnvSpec) -> gym.Env:
    """Build it, perhaps in a worker, where what a program has registered is not known."""
    if not str(spec.entry_point).startswith("gymnasium"):  # those are registered when they are imported
        gym.registry.setdefault(spec.id, spec)
    return ReplayableEnv(make_env(env_id))


def _fitting(space: spaces.Box, observation: Any) -> np.ndarray:
    """The observation as an array; raises where flattening would hide that it is not what ``space`` promises."""
    array = np.asarray(observation)
    fits = array.dtype == space.dtype or np.can_cast(array.dtype, space.dtype, "same_kind")
    if array.shape != space.shape or not fits:
        raise BadObservation(
            f"observed {array.dtype} of shape {array.shape} instead of {space.dtype} of shape {space.shape}"
        )
    return array


def _every_episode(episode: int) -> bool:
    return True


def _flat_rows(observation: Any) -> np.ndarray:
    """``[envs, size]`` of envpool's observations, as :class:`GoalObservation` or :class:`FlatObservation` has them."""
    if not isinstance(observation, dict):
        return np.reshape(observation, (len(observation), -1)).astype(np.float32)
    rows = [np.reshape(observation[key], (len(observation[key]), -1)) for key in _GOAL_KEYS]
    return np.concatenate(rows, axis=1).clip(-GOAL_CLIP, GOAL_CLIP).astype(np.float32)


def _has_goal(space: spaces.Space) -> TypeGuard[spaces.Dict]:
    return isinstance(space, spaces.Dict) and all(isinstance(space.get(key), spaces.Box) for key in _GOAL_KEYS)


def _check_rng_state(key: str, state: Any, bit_generator: np.random.BitGenerator) -> None:
    try:
        type(bit_generator)().state = state  # on a generator that nobody uses
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise ValueError(f"state[{key!r}] must be a state of {type(bit_generator).__name__}, got {state!r}") from error
