"""SAC-Nrep, ready to act: SAC in an environment where every action is held for N frames.

Trained by ``agents/sac_nrep_continuous.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from taac_wrappers.agent.policy import HoldingPolicy
from taac_wrappers.agent.sac import SACAgent


class NRepAgent(SACAgent):
    """As :class:`SACAgent`, in an environment wrapped in `NRepeatWrapper`; :meth:`policy` does the wrapper's job.

    Args:
        observation_space: a one-dimensional Box, or a Dict of such.
        action_space: a one-dimensional, bounded Box.
        n: frames for which every action is held.
        hidden: sizes of the hidden layers of the actor and of each critic.
        log_std_min, log_std_max: clamp of the actor's log standard deviation.

    >>> agent = NRepAgent(spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,)), n=2)
    >>> policy = agent.policy(deterministic=False)
    >>> first, second, third = (policy(np.zeros(3, np.float32)) for _ in range(3))
    >>> bool((first == second).all()), bool((second == third).all())
    (True, False)
    """

    FORMAT = "taac_wrappers.NRepAgent"

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Box,
        *,
        n: int,
        hidden: Sequence[int] = (256, 256),
        log_std_min: float = -20.0,
        log_std_max: float = 2.0,
    ):
        if not isinstance(n, int) or n < 1:
            raise ValueError(f"n must be a positive integer, got {n!r}")
        super().__init__(
            observation_space, action_space, hidden=hidden, log_std_min=log_std_min, log_std_max=log_std_max
        )
        self.n = n

    def config(self) -> dict[str, Any]:
        """The constructor's arguments beside the spaces, as JSON knows them."""
        return super().config() | {"n": self.n}

    def policy(self, num_envs: int = 1, *, deterministic: bool = True) -> HoldingPolicy:
        """For an environment without the wrapper; it holds every action for ``n`` frames."""
        return HoldingPolicy(
            self,
            num_envs,
            deterministic=deterministic,
            frames_of=lambda action: (action, np.full(len(action), self.n)),
        )
