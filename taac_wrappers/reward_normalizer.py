"""``AdaptiveNormalizer`` and ``RewardNormalizerWrapper``: normalization that follows a changing distribution."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils import RecordConstructorArgs

from taac_wrappers._hindsight import RewardChangingWrapper
from taac_wrappers._validation import (
    real_numbers,
    require_bool,
    require_count,
    require_env,
    require_float,
    require_int,
    require_state,
)


class AdaptiveNormalizer:
    """Running mean and standard deviation that weigh recent data more, at a horizon that grows with the data.

    The L-th update moves the first two moments toward those of its batch with the rate
    ``eta = speed / (L - 1 + speed)``. After L updates the l-th one weighs about ``(l / L) ** (speed - 1)``: about
    ``1 / speed`` of the past counts, however long it is. ``speed=1`` is the plain average of all batches.

    The statistics are float64; what is normalized keeps its floating-point dtype. Before the first update both moments
    are zero, so everything but zero normalizes to a large value, that is to plus or minus ``clip``.

    Example:
        >>> normalizer = AdaptiveNormalizer(shape=(2,))
        >>> normalizer.update([[0.0, 10.0], [2.0, 30.0]])
        >>> normalizer.mean, normalizer.std, normalizer.count
        (array([ 1., 20.]), array([ 1., 10.]), 1)
        >>> normalizer.normalize(np.array([2.0, 15.0], dtype=np.float32))
        array([ 1. , -0.5], dtype=float32)

        >>> scalar = AdaptiveNormalizer(speed=1)
        >>> for reward in (1.0, 2.0, 6.0):
        ...     scalar.update(reward)
        >>> scalar.mean
        3.0
    """

    def __init__(self, shape: Sequence[int] = (), *, speed: float = 8.0, clip: float | None = 5.0, eps: float = 1e-10):
        """Begin without data.

        Args:
            shape: the shape of one item; ``()`` for scalars.
            speed: how much recent data weighs, above 0.
            clip: normalized values are clipped to [-clip, clip], above 0; None does not clip.
            eps: added to the variance, above 0.
        """
        self._shape = tuple(require_int("shape", size, minimum=1) for size in shape)
        self._speed = require_float("speed", speed, above=0)
        self._clip = None if clip is None else require_float("clip", clip, above=0)
        self._eps = require_float("eps", eps, above=0)
        # Plain floats for scalars: an update per frame then costs no array call.
        self._first_moment: Any = np.zeros(self._shape) if self._shape else 0.0
        self._second_moment: Any = np.zeros(self._shape) if self._shape else 0.0
        self._count = 0

    @property
    def mean(self) -> Any:
        """The weighted mean: a float for scalars, else an array."""
        return self._first_moment.copy() if self._shape else self._first_moment

    @property
    def std(self) -> Any:
        """The weighted standard deviation: a float for scalars, else an array."""
        return np.sqrt(self._variance()) if self._shape else math.sqrt(self._variance())

    @property
    def count(self) -> int:
        """The number of updates so far."""
        return self._count

    def update(self, x: Any) -> None:
        """Take in one batch ``x`` of shape ``(..., *shape)`` as one update; leading dimensions are averaged over."""
        first, second = self._moments(x)
        eta = self._speed / (self._count + self._speed)
        self._first_moment = (1 - eta) * self._first_moment + eta * first
        self._second_moment = (1 - eta) * self._second_moment + eta * second
        self._count += 1

    def normalize(self, x: Any) -> Any:
        """Return ``(x - mean) / sqrt(std**2 + eps)``, clipped. ``x`` has shape ``(..., *shape)``; its dtype is kept."""
        if type(x) is float and not self._shape:
            value = (x - self._first_moment) / math.sqrt(self._variance() + self._eps)
            return value if self._clip is None else min(max(value, -self._clip), self._clip)
        values, dtype = self._items(x)
        values = (values - self._first_moment) / np.sqrt(self._variance() + self._eps)
        if self._clip is not None:
            values = np.clip(values, -self._clip, self._clip)
        return values.astype(dtype)

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics as plain numbers and arrays."""
        second_moment = self._second_moment.copy() if self._shape else self._second_moment
        return {"count": self._count, "first_moment": self.mean, "second_moment": second_moment}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the statistics of a `state_dict`; a bad one raises and changes nothing."""
        arrays = require_state(state, {"count": (), "first_moment": self._shape, "second_moment": self._shape})
        count = require_count("state['count']", arrays["count"])
        if (arrays["second_moment"] < 0).any():
            raise ValueError(f"`state['second_moment']` must not be negative, got {state['second_moment']!r}")
        self._count = count
        self._first_moment = arrays["first_moment"] if self._shape else arrays["first_moment"].item()
        self._second_moment = arrays["second_moment"] if self._shape else arrays["second_moment"].item()

    def _variance(self) -> Any:
        difference = self._second_moment - self._first_moment * self._first_moment
        return np.maximum(difference, 0.0) if self._shape else max(difference, 0.0)  # rounding can make it negative

    def _moments(self, x: Any) -> tuple[Any, Any]:
        """Return the mean of a batch and of its squares."""
        if type(x) is float and not self._shape:
            first, second = x, x * x
            is_finite = math.isfinite(second)
        else:
            items, _ = self._items(x)
            leading = tuple(range(items.ndim - len(self._shape)))
            if not items.size:
                raise ValueError(f"`x` must hold at least one item of shape {self._shape}, got {x!r}")
            with np.errstate(over="ignore"):
                first, second = items.mean(axis=leading), np.square(items).mean(axis=leading)
            is_finite = np.isfinite(second).all()
        if not is_finite:
            raise ValueError(f"`x` must be finite, and its squares too, got {x!r}")
        return (first, second) if self._shape else (float(first), float(second))

    def _items(self, x: Any) -> tuple[np.ndarray, np.dtype]:
        """Return ``x`` in float64, and the floating-point dtype it came with (float64 for integers)."""
        try:
            items = real_numbers(x)
        except (TypeError, ValueError) as error:
            raise ValueError(f"`x` must be numbers of shape (..., *{self._shape}), got {x!r}") from error
        if items.shape[items.ndim - len(self._shape) :] != self._shape:
            raise ValueError(f"`x` must have shape (..., *{self._shape}), got {x!r} of shape {items.shape}")
        dtype = np.asarray(x).dtype
        return items, dtype if dtype.kind == "f" else items.dtype


class RewardNormalizerWrapper(RewardChangingWrapper, RecordConstructorArgs):
    """Normalizes rewards by their own running mean and standard deviation, and clips them.

    Each reward first updates an `AdaptiveNormalizer` and is then normalized by it. This is the online version, for
    agents that learn from what the environment returns; an agent with a replay buffer stores ``info["raw_reward"]`` and
    normalizes when it samples, so that old rewards follow the present statistics.

    The mean is subtracted: where episodes may terminate, this changes what a longer episode is worth.

    The attribute ``update`` switches the statistics on and off; set it to False for evaluation. They outlive episodes:
    ``state_dict()`` and ``load_state_dict()`` keep them.

    Info, on every step:
        * ``raw_reward`` (float): the reward as it was.

    A vector version exists: `taac_wrappers.vector.RewardNormalizerWrapper`.

    Example:
        >>> import gymnasium as gym
        >>> from taac_wrappers import RewardNormalizerWrapper
        >>> env = RewardNormalizerWrapper(gym.make("MountainCarContinuous-v0"))
        >>> _ = env.reset(seed=0)
        >>> for force in (1.0, 0.0, 0.5):
        ...     _, reward, _, _, info = env.step([force])
        ...     print(round(info["raw_reward"], 6), round(reward, 3))
        -0.1 0.0
        0.0 0.354
        -0.025 -0.184
        >>> saved = env.state_dict()
        >>> saved["count"]
        3

    Change log:
        * v0.1.0 - Added
    """

    def __init__(self, env: gym.Env, *, clip: float | None = 5.0, speed: float = 8.0, update: bool = True):
        """Wrap ``env``.

        Args:
            env: the environment to wrap.
            clip: normalized rewards are clipped to [-clip, clip], above 0; None does not clip.
            speed: how much recent rewards weigh, above 0.
            update: whether rewards update the statistics.
        """
        require_env("RewardNormalizerWrapper", env)
        normalizer = AdaptiveNormalizer(speed=speed, clip=clip)
        update = require_bool("update", update)
        RecordConstructorArgs.__init__(self, clip=clip, speed=speed, update=update)
        gym.Wrapper.__init__(self, env)
        self.normalizer = normalizer
        self.update = update

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the environment and normalize its reward."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        raw_reward = float(reward)
        if self.update:
            self.normalizer.update(raw_reward)
        info = {**info, "raw_reward": raw_reward}
        return observation, self.normalizer.normalize(raw_reward), terminated, truncated, info

    def _hindsight(self, compute_reward: Callable[..., Any]) -> Callable[..., Any]:
        if self.update:
            raise AttributeError(
                "RewardNormalizerWrapper refuses `compute_reward`: its statistics move, so that rewards in a replay "
                "were normalized by other ones than those of now. Normalize what is sampled, or set `update` to False"
            )
        return lambda *args, **kwargs: self.normalizer.normalize(compute_reward(*args, **kwargs))

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics as plain numbers."""
        return self.normalizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the statistics of a `state_dict`; a bad one raises and changes nothing."""
        self.normalizer.load_state_dict(state)
