"""What the repeat wrappers share: which action was executed, and how several inner steps add up to one decision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from taac_wrappers._validation import action_bounds, action_check, array_space


def has_reports(env: gym.Env) -> bool:
    """Return whether a repeat wrapper in ``env`` reports what it executes: one that names its `executed_action_space`.

    Without one, infos named ``frames`` or ``discount`` are the environment's own and mean something else.
    """
    return env.has_wrapper_attr("executed_action_space")


def executed_action_space(env: gym.Env) -> spaces.Space:
    """Return the space of ``info["executed_action"]`` above ``env``.

    A repeat wrapper names it in its attribute of the same name; without one it is the action space itself, flattened if
    that is composite.
    """
    return env.get_wrapper_attr("executed_action_space") if has_reports(env) else array_space(env.action_space)


def action_copier(env: gym.Env) -> Callable[[Any], Any]:
    """Return a function that gives a checked, private copy of an action for ``env``."""
    if action_bounds(env.action_space) is None and has_reports(env):
        return _same  # the repeat wrapper that declares a composite action checks and copies it
    return action_check(env.action_space)


def _same(action: Any) -> Any:
    return action


def composite_action_space(env: gym.Env) -> spaces.Space | None:
    """Return the action space of ``env`` if it is none of arrays, so that its actions have to be flattened."""
    return env.action_space if action_bounds(env.action_space) is None else None


def executed_action(report: Mapping[str, Any], composite: spaces.Space | None, action: Any) -> np.ndarray:
    """Return a copy of what the innermost environment received: an inner wrapper's word, else ``action`` itself."""
    if "executed_action" in report:
        return np.array(report["executed_action"])
    return np.array(action if composite is None else spaces.flatten(composite, action))


def one_frame_info(info: dict[str, Any], own: dict[str, Any], reports: bool) -> dict[str, Any]:
    """Return ``info`` with a wrapper's ``own`` report of a single inner step.

    If an inner wrapper ``reports``, its word counts more.
    """
    if reports:
        return {**own, **info}
    info = {**info, **own}
    info.pop("discount", None)  # the environment's own: whoever reads it above would bootstrap with it
    return info


def was_repeated(asked: bool, info: Mapping[str, Any], previous: np.ndarray | None) -> bool:
    """Return whether a step re-used the previous action above an inner wrapper that reports ``executed_action``.

    The inner wrapper may have executed another action than the one ``asked`` to be repeated: the executed ones tell,
    now and at the ``previous`` step (None before the first).
    """
    is_same = previous is None or np.array_equal(info["executed_action"], previous)
    return bool(info.get("repeated", False)) or (asked and is_same)


def repeat_action(
    env: gym.Env,
    action: Any,
    times: int,
    gamma: float | None,
    *,
    reports: bool,
    composite: spaces.Space | None = None,
) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    """Step ``env`` up to ``times`` times with one action, as one decision that ends when the episode ends.

    Inner frames add up and inner discounts multiply. With ``gamma`` the reward is the sum of the inner rewards, each
    times the discount so far; without it the plain sum. ``info`` is the last inner one, with the keys of this decision.
    ``reports`` and ``composite`` are what `has_reports` and `composite_action_space` say of ``env``.
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
        report = info if reports else {}
        if "frames" in report:
            if not frames:
                repeated = bool(report.get("repeated", False))
            frames += report["frames"]
        else:
            frames += 1
        if "discount" in report:
            discount *= report["discount"]
        elif gamma is not None:
            discount = gamma**frames
        if terminated or truncated:
            break
    summary = {
        **info,
        "frames": frames,
        "executed_action": executed_action(report, composite, action),
        "repeated": repeated,
    }
    if gamma is not None or "discount" in report:
        summary["discount"] = discount
    else:
        summary.pop("discount", None)  # the environment's own
    return observation, reward_sum, terminated, truncated, summary
