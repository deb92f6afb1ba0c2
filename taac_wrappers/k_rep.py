"""``KRepWrapper``: the agent chooses an action and how long it is held."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

from taac_wrappers._encoding import ENCODINGS, PairDecoder, even_bin
from taac_wrappers._hindsight import RewardChangingWrapper, require_one_frame
from taac_wrappers._repeat import executed_action_space, has_reports, repeat_action
from taac_wrappers._validation import require_box, require_choice, require_env, require_float, require_int


class KRepWrapper(RewardChangingWrapper, RecordConstructorArgs):
    """Lets the agent choose (a, K): the action ``a`` is executed ``K`` times, or until the episode ends.

    The duration is chosen open-loop: once started, the repeat does not look at the observations in between (SAC-Krep).
    `HybridActionWrapper` is the closed-loop counterpart.

    Rewards, ``gamma`` and discounts are those of `NRepeatWrapper`, with ``K`` in place of ``n``.

    Encodings of the action:
        * ``"dict"``: ``Dict(action=Box, repeat=Discrete(max_repeat, start=1))``.
        * ``"box"``: one flat Box for agents that know nothing else. Its last entry in [-1, 1] is cut into
          ``max_repeat`` equal bins for K = 1, 2, ...; the entries before it are ``a`` with its own bounds and dtype.

    Info, on every step:
        * ``frames`` (int): inner steps taken, ``K`` unless the episode ended before,
        * ``executed_action`` (ndarray): a copy of the action the environment received,
        * ``repeated`` (bool): False, unless an inner wrapper says that the first inner step re-used the action before,
        * ``discount`` (float): ``gamma ** frames``, if ``gamma`` is given. Above a wrapper that reports a discount of
          its own it is the product of those, also with ``gamma=None``.

    There is no vector version: sub-environments would need different numbers of inner steps per decision. Wrap each
    one: ``gym.make_vec(id, wrappers=[lambda env: KRepWrapper(env, 4)])``.

    Example:
        >>> import gymnasium as gym
        >>> from taac_wrappers import KRepWrapper
        >>> env = KRepWrapper(gym.make("MountainCarContinuous-v0"), 4, gamma=0.5)
        >>> env.action_space
        Dict('action': Box(-1.0, 1.0, (1,), float32), 'repeat': Discrete(4, start=1))
        >>> _ = env.reset(seed=0)
        >>> observation, reward, terminated, truncated, info = env.step({"action": [1.0], "repeat": 3})
        >>> info["frames"], info["discount"], round(reward, 6)
        (3, 0.125, -0.175)

        >>> env = KRepWrapper(gym.make("MountainCarContinuous-v0"), 4, encoding="box")
        >>> env.action_space
        Box(-1.0, 1.0, (2,), float32)
        >>> _ = env.reset(seed=0)
        >>> [env.step([1.0, entry])[-1]["frames"] for entry in (-1, -0.6, -0.4, 0, 0.6, 1)]
        [1, 1, 2, 3, 4, 4]

    Change log:
        * v0.1.0 - Added
    """

    def __init__(self, env: gym.Env, max_repeat: int, *, gamma: float | None = None, encoding: str = "dict"):
        """Wrap ``env``.

        Args:
            env: the environment to wrap, with a floating-point Box action space.
            max_repeat: the longest duration K, at least 1.
            gamma: the discount per frame, in [0, 1], or None for plain sums.
            encoding: ``"dict"`` or ``"box"``.
        """
        require_env("KRepWrapper", env)
        max_repeat = require_int("max_repeat", max_repeat, minimum=1)
        if gamma is not None:
            gamma = require_float("gamma", gamma, at_least=0, at_most=1)
        require_choice("encoding", encoding, ENCODINGS)
        box = require_box("KRepWrapper", env.action_space)
        RecordConstructorArgs.__init__(self, max_repeat=max_repeat, gamma=gamma, encoding=encoding)
        gym.Wrapper.__init__(self, env)
        self.max_repeat = max_repeat
        self.gamma = gamma
        self.executed_action_space = executed_action_space(env)
        self._reports = has_reports(env)
        choose = partial(even_bin, bins=max_repeat)
        self._decode = PairDecoder(box, "repeat", spaces.Discrete(max_repeat, start=1), choose, encoding)
        self.action_space = self._decode.space

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Execute the action of the pair ``action`` for its duration."""
        inner_action, times = self._decode(action)
        return repeat_action(self.env, inner_action, times, self.gamma, reports=self._reports)

    def _hindsight(self, compute_reward: Callable[..., Any]) -> Callable[..., Any]:
        return require_one_frame(f"KRepWrapper(max_repeat={self.max_repeat})", self.max_repeat, compute_reward)
