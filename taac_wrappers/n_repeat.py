"""``NRepeatWrapper``: every action is repeated a fixed number of times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium.utils import RecordConstructorArgs

from taac_wrappers._hindsight import RewardChangingWrapper, require_one_frame
from taac_wrappers._repeat import (
    action_copier,
    composite_action_space,
    executed_action_space,
    has_reports,
    repeat_action,
)
from taac_wrappers._validation import require_env, require_float, require_int


class NRepeatWrapper(RewardChangingWrapper, RecordConstructorArgs):
    """Repeats each action ``n`` times, or until the episode ends, and returns the last observation.

    The agent decides every ``n`` frames, which shortens the horizon and makes exploration more persistent (SAC-Nrep).

    With ``gamma=None`` the reward is the plain sum of the inner rewards. With ``gamma`` it is their discounted sum, and
    ``info["discount"]`` is the factor to bootstrap the next value with, right also when the episode's end cut the
    repeat short: ``target = reward + info["discount"] * (not terminated) * value``.

    Info, on every step:
        * ``frames`` (int): inner steps taken,
        * ``executed_action`` (ndarray): a copy of the action the environment received,
        * ``repeated`` (bool): False, unless an inner wrapper says that the first inner step re-used the action before,
        * ``discount`` (float): ``gamma ** frames``, if ``gamma`` is given. Above a wrapper that reports a discount of
          its own it is the product of those, also with ``gamma=None``.

    There is no vector version: sub-environments would need different numbers of inner steps when an episode ends. Wrap
    each one: ``gym.make_vec(id, wrappers=[lambda env: NRepeatWrapper(env, 4)])``.

    Example:
        >>> import gymnasium as gym
        >>> from taac_wrappers import NRepeatWrapper
        >>> env = NRepeatWrapper(gym.make("MountainCarContinuous-v0"), 4, gamma=0.5)
        >>> _ = env.reset(seed=0)
        >>> observation, reward, terminated, truncated, info = env.step([1.0])
        >>> info["frames"], info["discount"], info["executed_action"]
        (4, 0.0625, array([1.], dtype=float32))
        >>> round(reward, 6)  # -0.1 * (1 + 0.5 + 0.25 + 0.125)
        -0.1875

    Change log:
        * v0.1.0 - Added
    """

    def __init__(self, env: gym.Env, n: int, *, gamma: float | None = None):
        """Wrap ``env``.

        Args:
            env: the environment to wrap, with an action space of arrays, or a Dict or Tuple of such.
            n: how often each action is executed, at least 1.
            gamma: the discount per frame, in [0, 1], or None for plain sums.
        """
        require_env("NRepeatWrapper", env)
        n = require_int("n", n, minimum=1)
        if gamma is not None:
            gamma = require_float("gamma", gamma, at_least=0, at_most=1)
        RecordConstructorArgs.__init__(self, n=n, gamma=gamma)
        gym.Wrapper.__init__(self, env)
        self.n = n
        self.gamma = gamma
        self.executed_action_space = executed_action_space(env)
        self._reports = has_reports(env)
        self._composite = composite_action_space(env)
        self._copy_action = action_copier(env)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Execute ``action`` up to ``n`` times."""
        fresh = self._copy_action(action)
        return repeat_action(self.env, fresh, self.n, self.gamma, reports=self._reports, composite=self._composite)

    def _hindsight(self, compute_reward: Callable[..., Any]) -> Callable[..., Any]:
        return require_one_frame(f"NRepeatWrapper(n={self.n})", self.n, compute_reward)
