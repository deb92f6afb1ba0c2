"""Checks of arguments, actions and saved states, shared by all wrappers.

Every check either returns the value in its canonical type or raises a ``TypeError`` or ``ValueError`` that names the
argument and the value received.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from numpy import ndarray

# Up to this many entries, comparing Python floats is quicker than comparing arrays.
_SMALL = 24
# A rescaling wrapper above may overshoot a bound by this many units in the last place; that is rounding, not an error.
_ROUNDING_UNITS = 4


def require_int(name: str, value: Any, *, minimum: int) -> int:
    """Return ``value`` as an ``int`` not below ``minimum``.

    >>> require_int("n", np.int64(3), minimum=1)
    3
    >>> require_int("n", 0, minimum=1)
    Traceback (most recent call last):
        ...
    ValueError: `n` must be an integer >= 1, got 0
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"`{name}` must be an integer >= {minimum}, got {value!r} of type {type(value).__name__}")
    if value < minimum:
        raise ValueError(f"`{name}` must be an integer >= {minimum}, got {value!r}")
    return int(value)


def require_float(
    name: str, value: Any, *, above: float = -math.inf, at_least: float = -math.inf, at_most: float = math.inf
) -> float:
    """Return ``value`` as a finite ``float`` with ``above < value`` and ``at_least <= value <= at_most``.

    >>> require_float("clip", 5, above=0)
    5.0
    >>> require_float("clip", 0, above=0)
    Traceback (most recent call last):
        ...
    ValueError: `clip` must be a finite number > 0, got 0
    """
    limits = [f"> {above}"] * math.isfinite(above) + [f">= {at_least}"] * math.isfinite(at_least)
    limits += [f"<= {at_most}"] * math.isfinite(at_most)
    wanted = " ".join(["a finite number", " and ".join(limits)]).strip()
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"`{name}` must be {wanted}, got {value!r} of type {type(value).__name__}")
    if not (math.isfinite(value) and above < value and at_least <= value <= at_most):
        raise ValueError(f"`{name}` must be {wanted}, got {value!r}")
    return float(value)


def require_bool(name: str, value: Any) -> bool:
    """Return ``value`` as a ``bool``; nothing else is taken for one."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"`{name}` must be True or False, got {value!r} of type {type(value).__name__}")
    return bool(value)


def require_choice(name: str, value: Any, choices: Sequence[str]) -> str:
    """Return ``value`` if it is one of ``choices``."""
    if not isinstance(value, str):
        raise TypeError(f"`{name}` must be one of {list(choices)}, got {value!r} of type {type(value).__name__}")
    if value not in choices:
        raise ValueError(f"`{name}` must be one of {list(choices)}, got {value!r}")
    return value


def require_key(name: str, value: Any, taken: Collection[str] = ()) -> str:
    """Return ``value`` if it is a non-empty string that is not among the keys already ``taken``."""
    if not isinstance(value, str):
        raise TypeError(f"`{name}` must be a non-empty string, got {value!r} of type {type(value).__name__}")
    if not value:
        raise ValueError(f"`{name}` must be a non-empty string, got {value!r}")
    if value in taken:
        raise ValueError(f"`{name}` must be new to the observation, got {value!r}, which it has: {list(taken)}")
    return value


def require_schedule(name: str, value: Any) -> tuple[float, float, int]:
    """Return a probability, or a linear ``(start, end, frames)`` schedule of it, as ``(start, end, frames)``.

    >>> require_schedule("epsilon", 0.1)
    (0.1, 0.1, 0)
    >>> require_schedule("epsilon", [1.0, 0.01, 500])
    (1.0, 0.01, 500)
    """
    if not isinstance(value, (tuple, list)):
        constant = require_float(name, value, at_least=0, at_most=1)
        return constant, constant, 0
    if len(value) != 3:
        raise ValueError(f"`{name}` must be a number or (start, end, frames), got {value!r}")
    start = require_float(f"{name}[0]", value[0], at_least=0, at_most=1)
    end = require_float(f"{name}[1]", value[1], at_least=0, at_most=1)
    return start, end, require_int(f"{name}[2]", value[2], minimum=0)


def require_seed(name: str, value: Any) -> int | None:
    """Return a seed as an ``int`` not below 0, or None."""
    return None if value is None else require_int(name, value, minimum=0)


def require_env(wrapper: str, env: Any) -> None:
    """Raise ``TypeError`` for anything but an environment; one for vector environments is pointed to their wrappers."""
    if isinstance(env, VectorEnv):
        from taac_wrappers import vector  # not at the top: it imports this module

        advice = "it has no vector version, wrap each sub-environment: gym.make_vec(..., wrappers=[...])"
        if wrapper in vector.__all__:
            advice = f"use taac_wrappers.vector.{wrapper}"
        raise TypeError(f"{wrapper} is for one environment, got the vector environment {env}: {advice}")
    if not isinstance(env, gym.Env):
        raise TypeError(f"`env` must be a gymnasium.Env, got {env!r} of type {type(env).__name__}")


def require_box(wrapper: str, space: spaces.Space) -> spaces.Box:
    """Return ``space`` if it is a ``Box`` of floating-point actions."""
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        raise ValueError(f"{wrapper} needs a floating-point Box `action_space`, got {space}")
    return space


def require_bounded(wrapper: str, space: spaces.Space) -> spaces.Box | spaces.Discrete:
    """Return ``space`` if a uniform action can be drawn from it: a ``Discrete`` or a ``Box`` bounded on all sides."""
    if isinstance(space, spaces.Discrete):
        return space
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating) and space.is_bounded("both"):
        return space
    wanted = "a Discrete or a bounded floating-point Box `action_space`"
    raise ValueError(f"{wrapper} draws uniform actions and needs {wanted}, got {space}")


def array_space(space: spaces.Space) -> spaces.Space:
    """Return an action ``space`` of arrays: itself, or a composite one flattened.

    >>> array_space(spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1)]))
    Box(-1.0, 1.0, (3,), float32)
    """
    if action_bounds(space) is not None:
        return space
    with suppress(NotImplementedError):  # of a space that Gymnasium does not know
        flat = spaces.flatten_space(space)
        if isinstance(flat, spaces.Box):
            return flat
    wanted = "a Box, Discrete, MultiDiscrete or MultiBinary, or a Dict or Tuple of these"
    raise ValueError(f"`env.action_space` must be {wanted}, got {space}")


def require_state(state: Any, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Return fresh float64 arrays of the wanted entries of a saved ``state``; extra, missing or bad entries raise.

    >>> require_state({"mean": 1.5}, {"mean": ()})
    {'mean': array(1.5)}
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"`state` must be a mapping, got {state!r} of type {type(state).__name__}")
    if set(state) != set(shapes):
        raise ValueError(f"`state` must have the entries {sorted(shapes)}, got {sorted(map(str, state))}")
    arrays = {}
    for name, shape in shapes.items():
        try:
            array = real_numbers(state[name], kinds="iuf")
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"`state[{name!r}]` must be numbers, got {reprlib.repr(state[name])}") from error
        if array.shape != shape or not np.isfinite(array).all():
            raise ValueError(f"`state[{name!r}]` must be finite numbers of shape {shape}, got {state[name]!r}")
        arrays[name] = array
    return arrays


def real_numbers(value: Any, kinds: str = "biuf") -> np.ndarray:
    """Return a fresh float64 array of ``value``; raise for what NumPy would make numbers of: text, complex, None."""
    array = np.asarray(value)
    if array.dtype.kind not in kinds:
        raise TypeError(f"numbers are needed, got {value!r}")
    return array.astype(np.float64)


def require_count(name: str, value: np.ndarray) -> int:
    """Return a saved number as an ``int`` not below 0."""
    if value < 0 or value != np.floor(value):
        raise ValueError(f"`{name}` must be an integer >= 0, got {value.item()!r}")
    return int(value)


def action_bounds(space: spaces.Space) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the lowest and highest finite actions of an array-like ``space``, or None for a composite one."""
    if isinstance(space, spaces.Box):
        largest = np.finfo(space.dtype) if np.issubdtype(space.dtype, np.floating) else np.iinfo(space.dtype)
        return np.maximum(space.low, largest.min), np.minimum(space.high, largest.max)
    if isinstance(space, spaces.MultiDiscrete):
        return space.start.copy(), space.start + space.nvec - 1
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape, space.dtype), np.ones(space.shape, space.dtype)
    if isinstance(space, spaces.Discrete):
        return np.asarray(space.start), np.asarray(space.start + space.n - 1)
    return None


def _rounding_error(space: spaces.Box) -> Any:
    """Return how far rounding may lead beyond the bounds of each entry."""
    if not np.issubdtype(space.dtype, np.floating):
        return 0.0
    ends = np.abs([space.low, space.high])
    return _ROUNDING_UNITS * np.spacing(np.where(np.isfinite(ends), ends, 0).max(axis=0))


class ActionCheck:
    """Turns an action of an array-like space into a fresh value that nobody else holds, or says what is wrong with it.

    The result has the space's dtype and shape: an array, or for ``Discrete`` a NumPy integer. Finite values only: an
    unbounded ``Box`` does not let inf through. Batched spaces of vector environments are array-like too.

    >>> check = ActionCheck(spaces.Box(-1, 1, (2,)))
    >>> check([0.5, 1])
    array([0.5, 1. ], dtype=float32)
    >>> check([0.5, 1.5])
    Traceback (most recent call last):
        ...
    ValueError: `action` must lie in Box(-1.0, 1.0, (2,), float32), got [0.5, 1.5]
    """

    def __init__(self, space: spaces.Space, *, name: str = "action"):
        """``name`` is what the error messages call the value."""
        bounds = action_bounds(space)
        if bounds is None:
            raise ValueError(f"`{name}` must belong to a Box, Discrete, MultiDiscrete or MultiBinary, got {space}")
        self._space = space
        self._name = name
        self._dtype = np.dtype(space.dtype)
        self._shape = bounds[0].shape
        self._low, self._high = bounds
        self._tolerance = _rounding_error(space) if isinstance(space, spaces.Box) else 0.0
        self._is_discrete = isinstance(space, spaces.Discrete)
        lows, highs = set(self._low.ravel().tolist()), set(self._high.ravel().tolist())
        self._is_uniform = len(self._shape) == 1 and self._low.size <= _SMALL and len(lows) == len(highs) == 1
        self._range = (min(lows, default=0), max(highs, default=0))

    def __call__(self, action: Any) -> Any:
        """Return a fresh copy of ``action``; raise ``ValueError`` if it does not belong to the space."""
        if self._is_discrete:
            return self._checked_integer(action)
        # "is": comparing dtypes by value takes longer, and one that is merely equal is converted all the same.
        if type(action) is ndarray and action.dtype is self._dtype and action.shape == self._shape:
            fresh = action.copy()
        else:
            fresh = self._converted(action)
        if self._is_uniform:
            low, high = self._range
            for value in fresh.tolist():
                if not low <= value <= high:  # also for nan
                    return self._without_rounding(fresh, action)
        elif not ((self._low <= fresh) & (fresh <= self._high)).all():
            return self._without_rounding(fresh, action)
        return fresh

    def _checked_integer(self, action: Any) -> np.integer:
        if not isinstance(action, (int, np.integer)):
            action = self._converted(action)[()]
        low, high = self._range
        if not low <= action <= high:
            raise ValueError(f"`{self._name}` must lie in {self._space}, got {action!r}")
        return self._dtype.type(action)

    def _converted(self, action: Any) -> np.ndarray:
        try:
            array = np.asarray(action)
            kind_fits = np.can_cast(array.dtype, self._dtype, casting="same_kind") or array.dtype.kind in "iu"
        except (TypeError, ValueError):
            kind_fits = False
        if not kind_fits:
            raise ValueError(f"`{self._name}` must be numbers of {self._space}, got {action!r}")
        if array.shape != self._shape:
            raise ValueError(f"`{self._name}` must have shape {self._shape}, got {action!r} of shape {array.shape}")
        with np.errstate(over="ignore"):  # too large for the dtype becomes inf, which the bounds refuse
            fresh = array.astype(self._dtype)
        if fresh.dtype.kind in "iu" and (fresh != array).any():  # an integer that wrapped around
            raise ValueError(f"`{self._name}` must lie in {self._space}, got {action!r}")
        return fresh

    def _without_rounding(self, fresh: np.ndarray, action: Any) -> np.ndarray:
        """Clip what lies outside by no more than rounding; raise for the rest, and for all integers."""
        inside = np.asarray(np.clip(fresh, self._low, self._high))
        with np.errstate(invalid="ignore", over="ignore"):
            # Not for integers: the lowest one has no absolute value, and would pass for a tiny difference.
            if fresh.dtype.kind == "f" and (abs(fresh - inside) <= self._tolerance).all():
                return inside
        raise ValueError(f"`{self._name}` must lie in {self._space}, got {action!r}")


class CompositeCheck:
    """`ActionCheck` for ``Dict``, ``Tuple`` and whatever else is no array: a good action is copied as it is.

    >>> check = CompositeCheck(spaces.Dict(gear=spaces.Discrete(2), force=spaces.Box(-1, 1, (1,))))
    >>> check({"gear": 1, "force": [0.5]})
    {'gear': 1, 'force': [0.5]}
    >>> check({"gear": 2, "force": [0.5]})
    Traceback (most recent call last):
        ...
    ValueError: `action['gear']` must lie in Discrete(2), got 2
    """

    def __init__(self, space: spaces.Space, *, name: str = "action"):
        """``name`` is what the error messages call the value."""
        self._space = space
        self._name = name
        parts: Any = {}
        if isinstance(space, spaces.Dict):
            parts = space.spaces.items()
        elif isinstance(space, spaces.Tuple):
            parts = enumerate(space.spaces)
        self._parts = {key: action_check(part, name=f"{name}[{key!r}]") for key, part in parts}

    def __call__(self, action: Any) -> Any:
        """Return a copy of ``action``; raise ``ValueError`` if it does not belong to the space."""
        if not self._has_right_form(action):
            raise ValueError(f"`{self._name}` must lie in {self._space}, got {action!r}")
        for key, check in self._parts.items():
            check(action[key])
        return deepcopy(action)

    def _has_right_form(self, action: Any) -> bool:
        if isinstance(self._space, spaces.Dict):
            return isinstance(action, Mapping) and action.keys() == self._parts.keys()
        if isinstance(self._space, spaces.Tuple):
            return isinstance(action, (tuple, list)) and len(action) == len(self._parts)
        return self._space.contains(action)


def action_check(space: spaces.Space, *, name: str = "action") -> Callable[[Any], Any]:
    """Return the check of any action space, which gives a copy of a good action and raises for a bad one."""
    return CompositeCheck(space, name=name) if action_bounds(space) is None else ActionCheck(space, name=name)
