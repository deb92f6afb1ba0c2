"""Two ways to write an action beside a discrete choice: a ``Dict``, or one ``Box`` for agents that know no other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from taac_wrappers._validation import ActionCheck

ENCODINGS = ("dict", "box")


def even_bin(entry: float, bins: int) -> int:
    """Return in which of ``bins`` equal parts of [-1, 1] ``entry`` lies, counted from 1.

    >>> [even_bin(entry, 4) for entry in (-1, -0.51, -0.5, 0, 0.49, 0.5, 1)]
    [1, 1, 2, 3, 3, 4, 4]
    """
    return min(int((entry + 1) / 2 * bins), bins - 1) + 1


def is_positive(entry: float) -> int:
    """Return 1 for an ``entry`` above 0, else 0."""
    return int(entry > 0)


class PairDecoder:
    """Takes a pair (action, choice) apart: ``decoder(pair)`` is a private copy of the action, and the choice as an int.

    ``decoder.space`` is ``Dict(action=box, <name>=choice)`` with encoding ``"dict"``. With ``"box"`` it is one flat
    Box: the action's entries, and then one in [-1, 1] from which ``choose`` makes the choice.

    >>> decoder = PairDecoder(spaces.Box(0, 9, (2,)), "switch", spaces.Discrete(2), is_positive, "box")
    >>> decoder.space
    Box([ 0.  0. -1.], [9. 9. 1.], (3,), float32)
    >>> decoder([5, 7, 0.1])
    (array([5., 7.], dtype=float32), 1)
    """

    def __init__(
        self, box: spaces.Box, name: str, choice: spaces.Discrete, choose: Callable[[float], int], encoding: str
    ):
        """Build the space; ``choice`` is that of the ``"dict"`` encoding, ``choose`` serves the ``"box"`` encoding."""
        self.space: spaces.Space
        self._keys = {"action", name}
        self._name = name
        self._shape = box.shape
        self._choose = choose
        self._is_dict = encoding == "dict"
        if self._is_dict:
            self.space = spaces.Dict({"action": spaces.Box(box.low, box.high, dtype=box.dtype), name: choice})
            self._copy_action = ActionCheck(box)
            self._copy_choice = ActionCheck(choice, name=name)
        else:
            low, high = np.append(box.low.ravel(), -1), np.append(box.high.ravel(), 1)
            self.space = spaces.Box(low.astype(box.dtype), high.astype(box.dtype), dtype=box.dtype)
            self._copy_action = ActionCheck(self.space)

    def __call__(self, pair: Any) -> tuple[np.ndarray, int]:
        """Return the action and the choice; raise ``ValueError`` if ``pair`` does not belong to the space."""
        if not self._is_dict:
            flat = self._copy_action(pair)
            return flat[:-1].reshape(self._shape), self._choose(float(flat[-1]))
        if not isinstance(pair, Mapping) or pair.keys() != self._keys:
            raise ValueError(f"`action` must be a dict with the keys 'action' and {self._name!r}, got {pair!r}")
        return self._copy_action(pair["action"]), int(self._copy_choice(pair[self._name]))
