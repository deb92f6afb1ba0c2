"""Which actions the sub-environments of a vector environment really received, and whether those were repetitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.vector.utils import iterate

from taac_wrappers._validation import array_space
from taac_wrappers.vector._autoreset import EpisodicVectorWrapper, StepMasks, add_report, step_report, without_info


def reported_action_space(env: VectorEnv) -> spaces.Space | None:
    """The space of one sub-environment's ``executed_action`` if a repeat wrapper reports it, else None.

    The wrapper names it in its attribute `executed_action_space`: vector wrappers are asked first, then the vector
    environment, then the wrappers around each sub-environment. Without one, infos named ``frames`` or ``discount`` are
    the environments' own and mean something else.
    """
    layer: Any = env
    while isinstance(layer, VectorWrapper) and not hasattr(layer, "executed_action_space"):
        layer = layer.env
    if hasattr(layer, "executed_action_space"):
        return layer.executed_action_space
    # Whether the attribute exists is asked before its value: a failed question would end an asynchronous worker.
    if hasattr(layer, "call") and all(layer.call("has_wrapper_attr", "executed_action_space")):
        return layer.get_attr("executed_action_space")[0]
    return None


def executed_action_space(env: VectorEnv) -> spaces.Space:
    """The space of one sub-environment's executed action: as reported, else that of its actions, as arrays."""
    reported = reported_action_space(env)
    return array_space(env.single_action_space) if reported is None else reported


def executed_actions(report: Mapping[str, Any], env: VectorEnv, actions: Any) -> np.ndarray:
    """What the innermost environments received, ``[num_envs, ...]``: an inner wrapper's word, else ``actions``."""
    reported = step_report(report, "executed_action")
    if reported is not None:
        return reported
    if not isinstance(env.action_space, (spaces.Dict, spaces.Tuple)):
        return np.asarray(actions)
    rows = iterate(env.action_space, actions)
    return np.array([spaces.flatten(env.single_action_space, row) for row in rows])


def same_rows(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Whether each row of two arrays ``[num_envs, ...]`` is the same; bool ``[num_envs]``.

    >>> same_rows(np.array([[1, 2], [3, 4]]), np.array([[1, 2], [3, 5]]))
    array([ True, False])
    """
    return (first == second).reshape(len(first), -1).all(axis=1)


class RepeatVectorWrapper(EpisodicVectorWrapper):
    """Base of the vector wrappers that decide which action is executed and report it on every step."""

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        self.executed_action_space = executed_action_space(env)
        self._reports = reported_action_space(env) is not None
        space = self.executed_action_space
        self._nothing_executed = np.zeros((self.num_envs, *space.shape), space.dtype)  # type: ignore[misc]
        self._previous_executed = self._nothing_executed
        self._has_previous = np.zeros(self.num_envs, dtype=np.bool_)

    def _begin_episodes(self, mask: np.ndarray) -> None:
        self._has_previous[mask] = False

    def _execute(
        self, actions: np.ndarray, asked: np.ndarray, **report: np.ndarray
    ) -> tuple[tuple[Any, Any, Any, Any, dict[str, Any]], StepMasks, np.ndarray]:
        """Step the inner environment with ``actions`` (``[num_envs, ...]``, not kept) and add this wrapper's infos.

        ``asked`` (bool ``[num_envs]``) says where this wrapper repeats; ``report`` holds further infos. Returns what
        ``step`` returns, the masks, and the frames (int ``[num_envs]``, 0 for a ghost). The caller begins episodes.
        """
        observations, rewards, terminated, truncated, infos = self.env.step(actions.copy())
        masks = self._masks(terminated, truncated)
        inner = infos if self._reports else {}
        frames = step_report(inner, "frames")
        frames = masks.stepped.astype(np.int64) if frames is None else np.where(masks.stepped, frames, 0)
        executed = step_report(inner, "executed_action")
        repeated = asked
        if masks.ghosts == self.num_envs:  # nobody inside reports, but what they execute may have another shape
            executed = np.zeros_like(self._nothing_executed)
        elif executed is None:
            executed = actions.copy()
        else:
            repeated = self._really_repeated(asked, inner, executed)
        if not self._reports:  # an environment's own discount: whoever reads it above would bootstrap with it
            infos = without_info(infos, "discount")
        report = {"frames": frames, "executed_action": executed, "repeated": repeated, **report}
        infos = add_report(infos, report, masks)
        return (observations, rewards, terminated, truncated, infos), masks, frames

    def _really_repeated(self, asked: np.ndarray, infos: Mapping[str, Any], executed: np.ndarray) -> np.ndarray:
        """Where the previous action was re-used, when an inner wrapper may execute another one than it was given."""
        repeated = asked & (~self._has_previous | same_rows(executed, self._previous_executed))
        inner = step_report(infos, "repeated")
        self._previous_executed = executed.copy()
        self._has_previous[:] = True
        return repeated if inner is None else repeated | inner
