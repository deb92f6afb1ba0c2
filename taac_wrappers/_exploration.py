"""The random draws of zeta exploration, for one environment and for each sub-environment of many."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.wrappers import ClipAction
from gymnasium.wrappers.vector import ClipAction as VectorClipAction

# Separates these random streams from that of the environment, which is seeded with the same number.
_SPAWN_KEY = (0x7A657461,)
_BLOCK = 256
_WORD = 32  # bits
STATE_WORDS = 8
"""Length of a stream's state: the generator's place and its increment, of 128 bits each."""


class UniformStream:
    """A seeded stream of uniform numbers in [0, 1): ``stream()`` is the next one.

    They are drawn in blocks, because most of what a single draw costs is the call. ``mark()`` remembers a place in the
    stream and ``rewind()`` goes back to it: a step that the environment refuses must not use up any numbers.

    >>> first, second = UniformStream(7), UniformStream(7)
    >>> [first() for _ in range(300)] == [second() for _ in range(300)]
    True
    >>> first.mark()
    >>> numbers = [first() for _ in range(300)]
    >>> first.rewind()
    >>> numbers == [first() for _ in range(300)]
    True
    >>> twin = UniformStream.at(first.state())
    >>> [first() for _ in range(300)] == [twin() for _ in range(300)]
    True
    """

    def __init__(self, seed: int | None = None):
        """Begin the stream of ``seed``; None takes fresh entropy."""
        self._rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=_SPAWN_KEY))
        self._block: list[float] = []
        self._next = self._marked = 0  # places in the block

    def __call__(self) -> float:
        if self._next == len(self._block):
            self._block = self._block[self._marked :] + self._rng.random(_BLOCK).tolist()
            self._next -= self._marked
            self._marked = 0
        number = self._block[self._next]
        self._next += 1
        return number

    def mark(self) -> None:
        """Remember this place; the numbers before it are gone for good."""
        self._marked = self._next

    def rewind(self) -> None:
        """Go back to the place of the last `mark`."""
        self._next = self._marked

    def state(self) -> list[int]:
        """This place in the stream: `STATE_WORDS` integers of 32 bits, which every format keeps exactly."""
        here: Any = np.random.PCG64(0)
        here.state = self._rng.bit_generator.state
        here.advance(self._next - len(self._block))  # backwards: the rest of the block is still to come
        place = here.state["state"]
        shifts = range(0, STATE_WORDS // 2 * _WORD, _WORD)
        return [place[name] >> shift & (1 << _WORD) - 1 for name in ("state", "inc") for shift in shifts]

    @classmethod
    def at(cls, state: Any) -> UniformStream:
        """Go on at the place of a `state`, given as numbers ``[STATE_WORDS]``; what cannot be one raises ValueError."""
        words = np.asarray(state)
        half = STATE_WORDS // 2
        is_words = ((words >= 0) & (words < 1 << _WORD) & (words == np.floor(words))).all()
        if not is_words or words[half] % 2 == 0:  # with an even increment the generator would soon repeat itself
            raise ValueError(f"`state['stream']` must be the place of a random stream, got {words.tolist()}")
        place, increment = (sum(int(word) << _WORD * i for i, word in enumerate(part)) for part in np.split(words, 2))
        stream = cls(0)
        stream._rng.bit_generator.state = {
            "bit_generator": "PCG64",
            "state": {"state": place, "inc": increment},
            "has_uint32": 0,
            "uinteger": 0,
        }
        return stream


def space_to_explore(env: gym.Env | VectorEnv) -> spaces.Space:
    """Return the action space of ``env``, of one environment each; with ``ClipAction`` the one that it clips to.

    ``ClipAction`` takes any action and so declares no bounds. Wrappers above it that keep its space are looked through.
    """
    layer: Any = env
    while isinstance(layer, (gym.Wrapper, VectorWrapper)):
        if isinstance(layer, (ClipAction, VectorClipAction)):
            return space_to_explore(layer.env)
        if _single_action_space(layer) is not _single_action_space(layer.env):
            break
        layer = layer.env
    return _single_action_space(env)


def _single_action_space(env: Any) -> spaces.Space:
    return env.single_action_space if isinstance(env, VectorEnv) else env.action_space


class ExploratoryHold:
    """Draws a uniform action of ``space`` and how long to hold it: P(n) proportional to ``n ** -mu`` up to ``longest``.

    >>> hold = ExploratoryHold(spaces.Box(-1, 1, (2,)), mu=2.0, longest=5)
    >>> action, duration = hold(UniformStream(0))
    >>> action.dtype, action.shape, 1 <= duration <= 5
    (dtype('float32'), (2,), True)
    """

    def __init__(self, space: spaces.Box | spaces.Discrete, *, mu: float, longest: int):
        self._space = space
        if isinstance(space, spaces.Box):
            self._ends = list(zip(space.low.ravel().tolist(), space.high.ravel().tolist(), strict=True))
        weights = np.arange(1, longest + 1, dtype=np.float64) ** -mu
        self._duration_cdf: list[float] = (weights / weights.sum()).cumsum().tolist()

    def __call__(self, uniform: UniformStream) -> tuple[Any, int]:
        action = self._action(uniform)
        # The last sum may round to less than 1, so a draw above it counts for the longest duration.
        longest = len(self._duration_cdf)
        return action, min(bisect_right(self._duration_cdf, uniform()) + 1, longest)

    def _action(self, uniform: UniformStream) -> Any:
        space = self._space
        if isinstance(space, spaces.Discrete):
            return space.start + space.dtype.type(uniform() * int(space.n))
        return np.array([_between(*ends, uniform()) for ends in self._ends], dtype=space.dtype).reshape(space.shape)


def _between(low: float, high: float, share: float) -> float:
    # Weighting the two bounds cannot overflow as their difference can, but it can round to just outside of them.
    return min(max(share * high + (1 - share) * low, low), high)
