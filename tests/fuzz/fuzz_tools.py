"""What the state machines share: snapshots of everything an object holds, calls that must be refused, bad actions."""

from __future__ import annotations

import copyreg
import io
import math
import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import note
from hypothesis import strategies as st

from taac_wrappers._exploration import UniformStream

WRONG = (ValueError, TypeError)
# One large number, not many small draws: Hypothesis likes to draw the same few again, which hardly varies a stack.
RANDOMS = st.integers(0, 2**32 - 1).map(random.Random)


def some(data: st.DataObject, choices: list[Any], count: int = 4) -> Iterator[Any]:
    """A few of the choices; the last one that is shown is the one that failed."""
    for choice in data.draw(RANDOMS, label="random").sample(choices, min(count, len(choices))):
        note(f"chosen: {choice!r}")
        yield choice


def _coming_draws(stream: UniformStream) -> tuple[type, tuple[list[float]]]:
    """A stream is the numbers it will give; in which block it keeps them is its own affair."""
    twin = deepcopy(stream)
    return list, ([twin() for _ in range(260)],)


def _without_texts(box: spaces.Box) -> tuple[type, tuple[dict[str, Any]]]:
    """A Box keeps its bounds as text from the first time it is printed, as in an error message."""
    return dict, ({name: value for name, value in vars(box).items() if not name.endswith("_repr")},)


class _StatePickler(pickle.Pickler):
    dispatch_table = copyreg.dispatch_table.copy()
    dispatch_table[UniformStream] = _coming_draws
    dispatch_table[spaces.Box] = _without_texts


def snapshot(value: Any) -> bytes:
    """All state of ``value``, however deep: its attributes, arrays, spaces and random generators, as bytes."""
    buffer = io.BytesIO()
    _StatePickler(buffer).dump(value)
    return buffer.getvalue()


@contextmanager
def refused(*watched: Any, error: Any = WRONG, says: str = "got") -> Iterator[None]:
    """The call inside must raise ``error`` with a message that matches ``says``, and leave ``watched`` as it was."""
    before = [snapshot(each) for each in watched]
    with pytest.raises(error, match=f"(?s){says}"):
        yield
    assert [snapshot(each) for each in watched] == before, "the refused call changed something"


def array_like(space: spaces.Space) -> bool:
    return isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary))


def bounds(space: Any) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and the highest value of an array-like space; a Box may have infinite ones."""
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape, space.dtype), np.ones(space.shape, space.dtype)
    count = space.n if isinstance(space, spaces.Discrete) else space.nvec
    return np.asarray(space.start), np.asarray(space.start + count - 1)


def zeros_inside(space: Any) -> np.ndarray:
    """Zeros, clipped into an array-like space."""
    low, high = bounds(space)
    return np.asarray(np.clip(np.zeros(low.shape, space.dtype), low, high))


def member(space: spaces.Space, how: str, seed: int) -> Any:
    """An action of ``space``: with all entries at the "low" or "high" end, else at random."""
    if isinstance(space, spaces.Dict):
        return {key: member(part, how, seed + i) for i, (key, part) in enumerate(space.spaces.items())}
    if isinstance(space, spaces.Tuple):
        return tuple(member(part, how, seed + i) for i, part in enumerate(space.spaces))
    end = bounds(space)[how == "high"]
    if how not in ("low", "high") or not np.isfinite(end).all():
        space.seed(seed)
        return space.sample()
    return space.dtype.type(end) if isinstance(space, spaces.Discrete) else end.astype(space.dtype)


HOW = st.sampled_from(["random", "random", "low", "high", "again"])


def bad_actions(space: spaces.Space) -> list[Any]:
    """Values that do not belong to ``space``, of as many kinds as one can think of."""
    if isinstance(space, spaces.Dict):
        good = member(space, "random", 0)
        keys = list(good)
        one_bad = [{**good, key: bad} for key in keys for bad in bad_actions(space[key])]
        return [*one_bad, {keys[0]: good[keys[0]]}, {**good, "more": 0}, list(good.values()), None, {}]
    if isinstance(space, spaces.Tuple):
        good = member(space, "random", 0)
        one_bad = [(*good[:i], bad, *good[i + 1 :]) for i in range(len(good)) for bad in bad_actions(space[i])]
        return [*one_bad, good[:1], (*good, 0), None, {}]
    return [None, "left", {"action": 0}, math.nan, 1j, *_bad_arrays(space)]


def _bad_arrays(space: Any) -> list[Any]:
    good = zeros_inside(space)
    low, high = bounds(space)
    bad: list[Any] = [good[np.newaxis], np.append(good, good), good.astype(complex), good.astype(str)]
    unlikely = [math.nan, math.inf, -math.inf] if good.dtype.kind == "f" else [np.iinfo(good.dtype).min]
    for index in {(0,) * good.ndim, tuple(size - 1 for size in good.shape)}:
        bad += [_with_entry(good, index, entry, good.dtype) for entry in unlikely if not low[index] <= entry]
        bad += [_with_entry(good, index, entry, np.float64) for entry in unlikely if not low[index] <= entry]
        beyond = [float(low[index]) - 1, float(high[index]) + 1, 0.5 if good.dtype.kind in "iu" else math.nan]
        bad += [_with_entry(good, index, entry, np.float64) for entry in beyond if not math.isinf(entry)]
        integers = [int(entry) for entry in beyond[:2] if math.isfinite(entry)]
        bad += [_with_entry(good, index, entry, np.int64).tolist() for entry in integers if good.dtype.kind in "iu"]
    return bad


def _with_entry(good: np.ndarray, index: tuple[int, ...], entry: float, dtype: Any) -> np.ndarray:
    changed = good.astype(dtype)
    changed[index] = entry
    return changed
