"""What the repeat wrappers share: which action was executed, and how several inner steps add up to one decision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from taac_wrappers._validation import action_bounds, action_check


def executed_action_space(env: gym.Env) -> spaces.Space:
    """Return the space of ``info["executed_action"]`` above ``env``.

    A repeat wrapper names it in its attribute of the same name; without one it is the action space itself, flattened if
    that is composite.
    """
    if env.has_wrapper_attr("executed_action_space"):
        return env.get_wrapper_attr("executed_action_space")
    space = env.action_space
    return space if action_bounds(space) is not None else spaces.flatten_space(space)


def action_copier(env: gym.Env) -> Callable[[Any], Any]:
    """Return a function that gives a checked, private copy of an action for ``env``."""
    if action_bounds(env.action_space) is None and env.has_wrapper_attr("executed_action_space"):
        return _same  # the repeat wrapper that declares a composite action checks and copies it
    return action_check(env.action_space)


def _same(action: Any) -> Any:
    return action


def composite_action_space(env: gym.Env) -> spaces.Space | None:
    """Return the action space of ``env`` if it is none of arrays, so that its actions have to be flattened."""
    return env.action_space if action_bounds(env.action_space) is None else None


def executed_action(info: Mapping[str, Any], composite: spaces.Space | None, action: Any) -> np.ndarray:
    """Return a copy of what the innermost environment received: an inner wrapper's word, else ``action`` itself."""
    if "executed_action" in info:
        return np.array(info["executed_action"])
    return np.array(action if composite is None else spaces.flatten(composite, action))


def was_repeated(asked: bool, info: Mapping[str, Any], previous: np.ndarray | None) -> bool:
    """Return whether a step re-used the previous action above an inner wrapper that reports ``executed_action``.

    The inner wrapper may have executed another action than the one ``asked`` to be repeated: the executed ones tell,
    now and at the ``previous`` step (None before the first).
    """
    is_same = previous is None or np.array_equal(info["executed_action"], previous)
    return bool(info.get("repeated", False)) or (asked and is_same)


def repeat_action(
    env: gym.Env, action: Any, times: int, gamma: float | None, composite: spaces.Space | None = None
) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    """Step ``env`` up to ``times`` times with one action, as one decision that ends when the episode ends.

    Inner frames add up and inner discounts multiply. With ``gamma`` the reward is the sum of the inner rewards, each
    times the discount so far; without it the plain sum. ``info`` is the last inner one, with the keys of this decision.
    ``composite`` is the `composite_action_space` of ``env``.
    """
    step = env.step
    # A copy for every inner step: an environment may write over the action it is given.
    fresh = action.copy if isinstance(action, np.ndarray) else partial(deepcopy, action)
    reward_sum, discount = 0.0, 1.0
    frames = 0
    repeated = False
    for _ in range(times):
        observation, reward, terminated, truncated, info = step(fresh())
        # float() before adding: a NumPy float32 would make the whole sum float32.
        reward_sum += float(reward) if gamma is None else discount * float(reward)
        if "frames" in info:
            if not frames:
                repeated = bool(info.get("repeated", False))
            frames += info["frames"]
        else:
            frames += 1
        if "discount" in info:
            discount *= info["discount"]
        elif gamma is not None:
            discount = gamma**frames
        if terminated or truncated:
            break
    summary = {
        **info,
        "frames": frames,
        "executed_action": executed_action(info, composite, action),
        "repeated": repeated,
    }
    if gamma is not None or "discount" in info:
        summary["discount"] = discount
    return observation, reward_sum, terminated, truncated, summary
