"""Environments that can be left in the middle of an episode and gone on with in another process."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

from taac_wrappers.training.config import plain
from taac_wrappers.training.structure import mapped


class ReplayableEnv(gym.Wrapper, RecordConstructorArgs):
    """Makes a deterministic environment exactly resumable in the middle of an episode, with plain data and no pickle.

    It goes outermost. It keeps the random generator's state from just before the last reset, what the wrappers inside
    keep from episode to episode (their ``state_dict()``), and every action since. Restoring puts that back, resets, and
    replays the actions, which also rebuilds what wrappers keep within an episode. It needs an environment whose
    randomness is all in ``unwrapped.np_random`` and whose reset leaves nothing behind of earlier episodes. The
    observation after the replay is compared with the recorded one bit by bit: a difference that is not visible there
    goes unnoticed. The record grows by one action per step until the episode ends.

    >>> from taac_wrappers.training.envs import make_env
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
        flat = spaces.flatten_space(env.action_space)
        if not isinstance(flat, spaces.Box):
            raise ValueError(f"env must have actions of a fixed size, got {env.action_space}")
        self._space = env.action_space  # at every step it would be asked of all wrappers inside
        self._actions = np.empty((64, *flat.shape), flat.dtype)
        self._steps = 0
        self._start: dict[str, Any] | None = None
        self._last_observation: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, and begin a new record."""
        start = {
            "rng": None if seed is not None else self._rng_state(),  # a seed replaces the generator
            "seed": seed,
            "options": dict(options) if options else None,
            "wrappers": [plain(wrapper.state_dict()) for wrapper in self._wrappers_with_state()],
        }
        observation, info = self.env.reset(seed=seed, options=options)
        self._start, self._steps, self._last_observation = start, 0, observation
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step with a copy of ``action``, and record it."""
        if self._steps == len(self._actions):
            self._actions = np.concatenate([self._actions, np.empty_like(self._actions)])
        self._actions[self._steps] = spaces.flatten(self._space, action)  # type: ignore[assignment]
        result = self.env.step(mapped(_as_recorded, self._space, action))
        self._steps += 1  # only now: a step that raised is not part of the episode
        self._last_observation = result[0]
        return result

    def episode_state(self) -> dict[str, Any]:
        """Everything :meth:`restore` needs: values that JSON knows, and two arrays.

        Returns:
            ``rng`` and ``seed`` (one of the two is None), ``options`` and ``wrappers`` of the last reset, ``rng_now``,
            ``actions`` ``[steps, size]``, and ``observation``, the last one; both flattened.
        """
        if self._start is None:
            raise RuntimeError("episode_state() needs an episode: call reset() first")
        return {
            **self._start,
            "rng_now": self._rng_state(),
            "actions": self._actions[: self._steps].copy(),
            "observation": self._flat(self._last_observation),
        }

    def restore(self, state: Mapping[str, Any]) -> tuple[Any, dict[str, Any], bool]:
        """Go to where :meth:`episode_state` was taken, perhaps in another process.

        Returns:
            The observation, the info that came with it, and whether this is exactly that place. If the replay ends
            elsewhere, there is a warning, and a new episode begins.
        """
        self._check(state)
        self._load_wrappers(state["wrappers"])
        observation, info = self._replay(state)
        # Compared as bytes: -0.0 is not 0.0, and nan is itself.
        same_observation = self._flat(observation).tobytes() == np.asarray(state["observation"]).tobytes()
        exact = same_observation and self._steps == len(state["actions"])
        self._set_rng_state(state["rng_now"])
        if not exact:
            warnings.warn(
                f"{self} did not repeat its episode of {len(state['actions'])} steps exactly: starting a new one",
                stacklevel=2,
            )
            observation, info = self.reset()
        return observation, info, exact

    def _replay(self, state: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        if state["rng"] is not None:
            self._set_rng_state(state["rng"])
        observation, info = self.reset(seed=state["seed"], options=state["options"])
        for action in state["actions"]:
            observation, _, terminated, truncated, info = self.step(spaces.unflatten(self._space, action))
            if terminated or truncated:  # either the recorded end, or the replay has gone astray
                break
        return observation, info

    def _load_wrappers(self, states: list[Any]) -> None:
        before = [wrapper.state_dict() for wrapper in self._wrappers_with_state()]
        try:
            for wrapper, state in zip(self._wrappers_with_state(), states, strict=True):
                wrapper.load_state_dict(state)
        except Exception:  # one of them is bad: nothing changes
            for wrapper, state in zip(self._wrappers_with_state(), before, strict=True):
                wrapper.load_state_dict(state)
            raise

    def _check(self, state: Mapping[str, Any]) -> None:
        """Refuse a damaged state, or one of another environment, before anything changes."""
        names = ("rng", "seed", "options", "wrappers", "rng_now", "actions", "observation")
        missing = [key for key in names if key not in state]
        if missing:
            raise ValueError(f"state must hold {', '.join(missing)}, got only {sorted(state)}")
        if (state["rng"] is None) == (state["seed"] is None):
            raise ValueError(f"state must hold either rng or seed, got {state['rng']!r} and {state['seed']!r}")
        expected = len(list(self._wrappers_with_state()))
        if not isinstance(state["wrappers"], list) or len(state["wrappers"]) != expected:
            raise ValueError(f"state['wrappers'] must hold {expected} wrappers' states, got {state['wrappers']!r}")
        shape = np.shape(state["actions"])
        if shape != (*shape[:1], *self._actions.shape[1:]):
            raise ValueError(f"state['actions'] must have shape {('steps', *self._actions.shape[1:])}, got {shape}")
        size = spaces.flatdim(self.observation_space)
        if np.shape(state["observation"]) != (size,):
            raise ValueError(f"state['observation'] must have shape {(size,)}, got {np.shape(state['observation'])}")
        for key in ("rng", "rng_now"):
            if key == "rng_now" or state[key] is not None:
                _check_rng_state(key, state[key], self.unwrapped.np_random.bit_generator)

    def _wrappers_with_state(self) -> Iterator[Any]:
        """The wrappers that keep something from episode to episode, from the outside in."""
        layer = self.env
        while isinstance(layer, gym.Wrapper):
            if hasattr(type(layer), "state_dict"):
                yield layer
            layer = layer.env

    def _flat(self, observation: Any) -> np.ndarray:
        return np.asarray(spaces.flatten(self.observation_space, observation))

    def _rng_state(self) -> dict[str, Any]:
        return dict(self.unwrapped.np_random.bit_generator.state)

    def _set_rng_state(self, state: Mapping[str, Any]) -> None:
        self.unwrapped.np_random.bit_generator.state = state


def _as_recorded(space: spaces.Space, action: Any) -> np.ndarray:
    """A copy in the precision in which it is recorded, so that replaying it is the same."""
    return np.asarray(action).astype(space.dtype, casting="same_kind")


def _check_rng_state(key: str, state: Any, bit_generator: np.random.BitGenerator) -> None:
    try:
        type(bit_generator)().state = state  # on a generator that nobody uses
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise ValueError(f"state[{key!r}] must be a state of {type(bit_generator).__name__}, got {state!r}") from error
