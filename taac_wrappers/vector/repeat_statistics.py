"""``vector.RepeatStatisticsWrapper``: how much of each sub-environment's episode was repetition."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import VectorEnv

from taac_wrappers._validation import require_key
from taac_wrappers.vector._autoreset import EpisodicVectorWrapper, require_vector_env, step_report
from taac_wrappers.vector._executed import (
    executed_action_space,
    executed_actions,
    reported_action_space,
    same_rows,
)


class RepeatStatisticsWrapper(EpisodicVectorWrapper):
    """`taac_wrappers.RepeatStatisticsWrapper` for vector environments.

    Infos, on a step in which episodes end, as `gymnasium.wrappers.vector.RecordEpisodeStatistics` has them:
    ``infos[key]`` holds one array ``[num_envs]`` per statistic (``fraction``, ``mean_run``, ``decisions``, ``frames``,
    ``apr``, ``afr``), zero where no episode ended, and ``infos["_" + key]`` (bool ``[num_envs]``) says where one did.

    Example:
        >>> import gymnasium as gym
        >>> from taac_wrappers.vector import HybridActionWrapper, RepeatStatisticsWrapper
        >>> envs = gym.make_vec("MountainCarContinuous-v0", num_envs=2, max_episode_steps=4)
        >>> envs = RepeatStatisticsWrapper(HybridActionWrapper(envs))
        >>> _ = envs.reset(seed=0)
        >>> for a, b in [(0.5, 1), (0.0, 0), (0.0, 0), (-0.25, 1)]:
        ...     actions = {"action": np.full((2, 1), a), "switch": np.array([b, 1])}
        ...     infos = envs.step(actions)[-1]
        >>> infos["_repeat"]
        array([ True,  True])
        >>> infos["repeat"]["fraction"], infos["repeat"]["afr"]
        (array([0.5, 0. ]), array([0.25, 0.25]))

    Change log:
        * v0.1.0 - Added
    """

    def __init__(self, env: VectorEnv, *, key: str = "repeat"):
        """Wrap ``env``.

        Args:
            env: the vector environment to wrap.
            key: the info key of the statistics.
        """
        require_vector_env(env)
        require_key("key", key)
        RecordConstructorArgs.__init__(self, key=key)
        super().__init__(env)
        self._key = key
        self._reports = reported_action_space(env) is not None
        self._is_numeric = isinstance(executed_action_space(env), spaces.Box)
        self._decisions, self._frames, self._repeated_frames, self._runs = np.zeros((4, self.num_envs), np.int64)
        self._change = np.zeros(self.num_envs)  # sum over frames of the mean absolute change of the action's entries
        self._previous = np.zeros(0)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the environments and count."""
        sent = actions.copy() if isinstance(actions, np.ndarray) else actions
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        masks = self._masks(terminated, truncated)
        if masks.ghosts < self.num_envs:
            report = infos if self._reports else {}
            self._count(executed_actions(report, self.env, sent), report)
        if np.count_nonzero(masks.done):
            infos = self._with_summary(infos, masks.done)
        self._begin_episodes(masks.began)
        return observations, rewards, terminated, truncated, infos

    def _begin_episodes(self, mask: np.ndarray) -> None:
        if not np.count_nonzero(mask):
            return
        for counts in (self._decisions, self._frames, self._repeated_frames, self._runs, self._change):
            counts[mask] = 0

    def _count(self, executed: np.ndarray, report: dict[str, Any]) -> None:
        """Take in one step, ``executed`` ``[num_envs, ...]``. What a ghost counts is cleared when the step is over."""
        has_previous = self._decisions > 0
        is_same = has_previous & self._equals_previous(executed)
        repeated, frames = step_report(report, "repeated"), step_report(report, "frames")
        repeated = is_same if repeated is None else repeated
        repeated_inside = 0 if frames is None else frames - 1
        self._runs += ~(has_previous & repeated)
        self._decisions += 1
        self._frames += 1 + repeated_inside
        self._repeated_frames += repeated_inside + repeated
        changed = has_previous & ~is_same
        if np.count_nonzero(changed):
            self._change[changed] += self._difference(executed[changed], self._previous[changed])
        self._previous = executed.copy()

    def _equals_previous(self, executed: np.ndarray) -> np.ndarray:
        """Whether each action equals the one before in every bit."""
        previous = self._previous
        if previous.shape != executed.shape or previous.dtype != executed.dtype:
            return np.zeros(self.num_envs, np.bool_)
        return same_rows(_bits(executed), _bits(previous))

    def _difference(self, now: np.ndarray, before: np.ndarray) -> np.ndarray:
        """The mean change over the entries of each action, ``[rows]``."""
        change = np.abs(np.subtract(now, before, dtype=np.float64)) if self._is_numeric else now != before
        return change.reshape(len(now), -1).mean(axis=1)

    def _with_summary(self, infos: dict[str, Any], done: np.ndarray) -> dict[str, Any]:
        """``infos`` and the statistics of the episodes that are ``done``; also in ``final_info``, if there is one."""
        frames = np.maximum(self._frames, 1)  # those of an episode that has just begun are not reported
        new_frames = self._frames - self._repeated_frames
        statistics = {
            "fraction": self._repeated_frames / frames,
            "mean_run": self._frames / np.maximum(self._runs, 1),
            "decisions": self._decisions,
            "frames": self._frames,
            "apr": self._frames / np.maximum(new_frames, 1),
            "afr": self._change / np.maximum(self._frames - 1, 1),
        }
        summary = {name: np.where(done, values, 0) for name, values in statistics.items()}
        report = {self._key: summary, f"_{self._key}": done}
        if "final_info" in infos:
            report["final_info"] = {**infos["final_info"], **report}
        return {**infos, **report}


def _bits(rows: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8)
