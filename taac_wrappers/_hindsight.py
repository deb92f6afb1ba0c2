"""Hindsight replay asks an environment for ``compute_reward``: where a wrapper changes the reward, it has to match."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym


class RewardChangingWrapper(gym.Wrapper):
    """Base of the wrappers that change the reward: nobody gets at the environment's ``compute_reward`` past them.

    A subclass defines :meth:`_hindsight`.
    """

    @property
    def compute_reward(self) -> Callable[..., Any]:
        """What gives the rewards of this wrapper for other goals.

        AttributeError where the environment has none, or where none could match what `step` returns.
        """
        return self._hindsight(self.env.get_wrapper_attr("compute_reward"))

    def has_wrapper_attr(self, name: str) -> bool:
        """Whether this wrapper or the environment has the attribute."""
        return hasattr(self, name) if name == "compute_reward" else super().has_wrapper_attr(name)

    def get_wrapper_attr(self, name: str) -> Any:
        """The attribute of this wrapper or of the environment."""
        return self.compute_reward if name == "compute_reward" else super().get_wrapper_attr(name)

    def _hindsight(self, compute_reward: Callable[..., Any]) -> Callable[..., Any]:
        """``compute_reward`` of the environment as it is to be here; AttributeError says why there can be none."""
        raise NotImplementedError


def require_one_frame(wrapper: str, frames: int, compute_reward: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``compute_reward`` for a wrapper whose decisions last one frame at most; refuse it for any other."""
    if frames > 1:
        raise AttributeError(
            f"{wrapper} refuses `compute_reward`: its rewards are sums over frames, and hindsight only knows what was "
            "achieved after the last one. HybridActionWrapper repeats frame by frame and allows it"
        )
    return compute_reward
