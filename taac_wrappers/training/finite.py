"""Whether what is learned is still made of numbers: nan and inf are found soon, named, and never saved."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np

CHECK_INTERVAL = 1000
"""Updates between two looks at everything: often enough to lose little, rare enough to cost nothing."""


class NotFinite(ArithmeticError):
    """A term that is, or holds, nan or inf."""


class LearningFault(RuntimeError):
    """Training that ended because of that: one line for the user, exit code 1."""


def require_finite(terms: Mapping[str, Any]) -> None:
    """Raise NotFinite, which names those of the ``terms`` (numbers, arrays or tensors) that are not finite.

    >>> import torch
    >>> require_finite({"losses/critic": torch.tensor(0.5), "weights": torch.ones(3)})
    >>> require_finite({"losses/critic": 0.5, "losses/actor": float("nan")})
    Traceback (most recent call last):
    taac_wrappers.training.finite.NotFinite: losses/actor is nan
    >>> require_finite({"weights": torch.tensor([1.0, -torch.inf, 2.0])})
    Traceback (most recent call last):
    taac_wrappers.training.finite.NotFinite: weights holds -inf (1 of 3 numbers)
    """
    faults = [f"{name} {fault}" for name, value in terms.items() if (fault := _fault(value))]
    if faults:  # one that is not finite soon spoils all others
        raise NotFinite(", ".join(faults[:3]) + (f" and {len(faults) - 3} more" if len(faults) > 3 else ""))


def all_finite(array: np.ndarray) -> bool:
    """Whether nothing in an array of floats is nan or inf: the sum of squares says so soonest, unless it overflows."""
    return isfinite(np.vdot(array, array)) or bool(np.isfinite(array).all())


def _fault(value: Any) -> str | None:
    if isinstance(value, np.ndarray) and value.dtype.kind == "f" and all_finite(value):
        return None  # at every frame and every batch: a tenth of what torch would take
    import torch  # here, because environments are made without it

    numbers = torch.as_tensor(value)
    wrong = numbers[~torch.isfinite(numbers)]
    if not len(wrong):
        return None
    told = f"holds {wrong[0].item()} ({len(wrong)} of {numbers.numel()} numbers)"
    return told if numbers.ndim else f"is {numbers.item()}"
