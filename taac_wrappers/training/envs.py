"""Environments as the agents see them: flat float32 observations, actions in [-1, 1], raw rewards, a method's wrappers.

>>> env = make_env("Pendulum-v1")
>>> env.observation_space, env.action_space
(Box([-1. -1. -8.], [1. 1. 8.], (3,), float32), Box(-1.0, 1.0, (1,), float32))
>>> env.close()
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import RecordConstructorArgs
from gymnasium.wrappers import RecordEpisodeStatistics, RecordVideo, TimeLimit

from taac_wrappers._repeat import executed_action_space
from taac_wrappers.training.engines import BadObservation, Engine, EnvByEnv, LocalEnv, WorkerEnv
from taac_wrappers.training.faults import WatchedEnvs
from taac_wrappers.training.resumable import ReplayableEnv
from taac_wrappers.training.simulators import check_simulators
from taac_wrappers.training.structure import Structure, mapped, named
from taac_wrappers.training.tasks import make_kwargs_for, resolve_env_id

GOAL_CLIP = 200.0
"""Observations of goal environments are clipped to +-this, as in the paper's Manipulation tasks."""

_BIPEDAL_WALKER = "gymnasium.envs.box2d.bipedal_walker:BipedalWalker"

Wrap = Callable[[gym.Env], gym.Env]
"""A method's environment side: puts its wrappers around an environment."""


def no_wrappers(env: gym.Env) -> gym.Env:
    """The environment side of a method that has none."""
    return env


def make_env(
    env_id: str,
    wrap: Wrap = no_wrappers,
    *,
    render_mode: str | None = None,
    video_folder: str | os.PathLike[str] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    longest_episode: int | None = None,
) -> gym.Env:
    """Build one environment for training or evaluation.

    From the inside out: the environment with the paper's arguments, an end to its episodes and a video of each (if
    asked for), statistics of raw returns (``info["episode"]`` at an episode's end), flat float32 observations, actions
    in [-1, 1], and the method's own wrappers. What the environment reports in ``info``, such as ``is_success``, passes
    through.

    Args:
        env_id: any Gymnasium id with bounded Box actions; an outdated version is replaced with a warning.
            ``"module:Name-v0"`` imports ``module`` first, which registers it.
        wrap: puts the method's wrappers around it.
        render_mode: as in ``gym.make``.
        video_folder: where a video of every episode is written; ``render_mode`` is then ``"rgb_array"``.
        env_kwargs: arguments of the environment, or of ``gym.make``; they go before the task's own.
        longest_episode: frames at which episodes are cut if the environment has no time limit.
    """
    env_id = resolve_env_id(env_id)
    check_simulators(env_id)
    make_kwargs = {**make_kwargs_for(env_id), **(env_kwargs or {})}
    if video_folder is not None and render_mode is None:
        render_mode = "rgb_array"
    if render_mode is not None:  # not every environment knows the argument
        make_kwargs["render_mode"] = render_mode
    try:
        env = gym.make(env_id, **make_kwargs)
    except Exception as error:  # whatever an argument that it does not know, or cannot use, makes of it
        if not env_kwargs or render_mode is not None:  # which may not be known either
            raise
        raise ValueError(f"--env-kwargs {dict(env_kwargs)} cannot be used: {error}") from error
    if env.unwrapped.spec is not None and env.unwrapped.spec.entry_point == _BIPEDAL_WALKER:
        env = FreshBox2DWorld(env)
    if longest_episode is not None and not holds(env, TimeLimit):
        env = EpisodeCut(env, longest_episode)
    if video_folder is not None:
        env = RecordVideo(env, os.fspath(video_folder), episode_trigger=_every_episode, disable_logger=True)
    env = RecordEpisodeStatistics(env)
    env = FlatObservation(env, clip=GOAL_CLIP if has_goal(env.observation_space) else None)
    return wrap(UnitAction(env))


def check_filming(flag: str, env_id: str, wrap: Wrap, env_kwargs: Mapping[str, Any] | None = None) -> None:
    """Raise ValueError, which names the ``flag`` that asks for it, if the environment cannot be filmed."""
    try:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Gymnasium warns of is raised below
            env = make_env(env_id, wrap, video_folder=folder, env_kwargs=env_kwargs)
            with contextlib.closing(env):
                env.unwrapped.reset()
                env.unwrapped.render()
    except Exception as error:
        raise ValueError(f"{flag}: {env_id} cannot be filmed: {error}") from error


def make_vector_env(
    env_id: str,
    num_envs: int,
    wrap: Wrap = no_wrappers,
    *,
    engine: Literal["sync", "async", "envpool"] = "sync",
    on_error: Literal["stop", "restart"] = "stop",
    timeout: float = 60.0,
    seed: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
) -> WatchedEnvs:
    """Build ``num_envs`` training environments that are stepped together.

    Nothing resets by itself: after a step, call ``reset(options={"reset_mask": done})``. Returned arrays belong to the
    caller.

    Args:
        env_id: as in :func:`make_env`.
        num_envs: how many.
        wrap: puts the method's wrappers around each of them; around envpool's go their vector versions.
        engine: ``"sync"``: one after the other in this process; ``"async"``: each in a worker process, which can be
            given up if it hangs; both can be resumed exactly. ``"envpool"``: fast, in its own physics, not resumable
            within an episode.
        on_error: whether to stop for an environment that fails, or to put a new one in its place.
        timeout: seconds that a worker may take for one step or reset.
        seed: of the run, from which environments that are put in the place of others get theirs.
        env_kwargs: as in :func:`make_env`.

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
    probe = make_env(env_id, wrap, env_kwargs=env_kwargs)
    probe.close()
    return WatchedEnvs(
        _make_engine(engine, env_id, num_envs, wrap, env_kwargs or {}, probe, timeout),
        env_id,
        executed_action_space(probe),
        reports=probe.has_wrapper_attr("executed_action_space"),
        on_error=on_error,
        seed=seed,
    )


def _make_engine(
    engine: str,
    env_id: str,
    num_envs: int,
    wrap: Wrap,
    env_kwargs: Mapping[str, Any],
    probe: gym.Env,
    timeout: float,
) -> Engine:
    if engine == "envpool":
        from taac_wrappers.training.pool import PooledEnvs

        one = make_env(env_id, env_kwargs=env_kwargs)
        clip = GOAL_CLIP if has_goal(one.observation_space) else None
        make_kwargs = {**make_kwargs_for(env_id), **env_kwargs}
        return PooledEnvs(env_id, num_envs, one, wrap, clip=clip, make_kwargs=make_kwargs)
    registered_id = env_id.rpartition(":")[2]  # gym.spec does not know of modules
    make_one = functools.partial(_make_replayable_env, env_id, gym.spec(registered_id), wrap, env_kwargs)
    host: Callable[[], LocalEnv | WorkerEnv]
    if engine == "sync":
        host = functools.partial(LocalEnv, make_one)
    elif engine == "async":
        host = functools.partial(WorkerEnv, make_one, timeout)
    else:
        raise ValueError(f"engine must be 'sync', 'async' or 'envpool', got {engine!r}")
    return EnvByEnv(host, num_envs, probe.observation_space, probe.action_space)


def random_action(rng: np.random.Generator, space: spaces.Space) -> Structure:
    """A uniform action of a space: of a bounded Box, of discrete choices, or of a Dict of such.

    >>> space = spaces.Dict(action=spaces.Box(-1, 1, (3, 2)), switch=spaces.MultiDiscrete([2, 2, 2]))
    >>> action = random_action(np.random.default_rng(0), space)
    >>> space.contains(action), action["switch"]
    (True, array([1, 1, 1]))
    """

    def uniform(part: Any) -> np.ndarray:
        if isinstance(part, spaces.Box):
            return rng.uniform(part.low, part.high).astype(part.dtype)
        return rng.integers(part.start, part.start + part.nvec, dtype=part.dtype)

    return mapped(uniform, space)


class FlatObservation(gym.ObservationWrapper, RecordConstructorArgs):
    """Observations that Gymnasium can flatten as float32 vectors, always copies: one, or one per entry of a Dict."""

    def __init__(self, env: gym.Env, *, clip: float | None = None):
        """Wrap ``env``; with ``clip`` all numbers are clipped to +-that."""
        RecordConstructorArgs.__init__(self, clip=clip)
        gym.ObservationWrapper.__init__(self, env)
        inner = env.observation_space
        self._clip = clip
        # Kept: asking for a space at every step asks all wrappers.
        self._inner = dict(inner.spaces) if isinstance(inner, spaces.Dict) else inner
        self._flat = _by_entry(self._flat_space, self._inner)
        self.observation_space = spaces.Dict(self._flat) if isinstance(self._flat, dict) else self._flat

    def _flat_space(self, space: spaces.Space) -> spaces.Box:
        for part in named("observation", space).values():
            if isinstance(part, spaces.Box) and part.dtype == np.uint8 and len(part.shape) >= 3:
                raise ValueError(
                    f"env observes images, {part}, for which the agents have no encoder yet (the wrappers take them)"
                )
        flat = spaces.flatten_space(space)
        if not isinstance(flat, spaces.Box):
            raise ValueError(f"env must have observations of a fixed size, got {space}")
        with np.errstate(over="ignore"):  # bounds such as the largest float64 become infinite
            low, high = flat.low.astype(np.float32), flat.high.astype(np.float32)
        if self._clip is not None:
            low, high = low.clip(-self._clip, self._clip), high.clip(-self._clip, self._clip)
        return spaces.Box(low, high, dtype=np.float32)

    def observation(self, observation: Any) -> Structure:
        """Flatten and convert."""
        if isinstance(self._inner, dict) and not isinstance(observation, dict):
            raise BadObservation(f"observed a {type(observation).__name__} instead of a dict of {list(self._inner)}")
        return _by_entry(self._flattened, self._inner, self._flat, observation)

    def _flattened(self, space: spaces.Space, flat: spaces.Box, observation: Any) -> np.ndarray:
        if isinstance(space, spaces.Box):
            vector = _fitting(space, observation).astype(np.float32).ravel()
        else:
            vector = _fitting(flat, np.asarray(spaces.flatten(space, observation), dtype=np.float32))
        return vector if self._clip is None else vector.clip(-self._clip, self._clip)


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


class EpisodeCut(TimeLimit):
    """The time limit of an environment that has none of its own."""


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


def _make_replayable_env(env_id: str, spec: EnvSpec, wrap: Wrap, env_kwargs: Mapping[str, Any]) -> gym.Env:
    """Build it, perhaps in a worker, where what a program has registered is not known."""
    registered_by_import = ":" in env_id or str(spec.entry_point).startswith("gymnasium")
    if not registered_by_import:
        gym.registry.setdefault(spec.id, spec)
    return ReplayableEnv(make_env(env_id, wrap, env_kwargs=env_kwargs))


def _by_entry(function: Callable[..., Any], *structures: Structure) -> Structure:
    """``function`` of each entry, or of the structures themselves; unlike `mapped` not of what is deeper inside."""
    first = structures[0]
    if not isinstance(first, dict):
        return function(*structures)
    return {key: function(*(structure[key] for structure in structures)) for key in first}


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


def holds(env: gym.Env, kind: type[gym.Wrapper]) -> bool:
    """Whether there is a wrapper of some kind around the environment."""
    while not isinstance(env, kind):
        if not isinstance(env, gym.Wrapper):
            return False
        env = env.env
    return True


def has_goal(space: spaces.Space) -> bool:
    """Whether observations are those of a goal environment."""
    goal_keys = ("observation", "desired_goal")
    return isinstance(space, spaces.Dict) and all(isinstance(space.get(key), spaces.Box) for key in goal_keys)
