"""``RepeatStatisticsWrapper``: how much of an episode was repetition."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

from taac_wrappers._repeat import composite_action_space, executed_action, executed_action_space, has_reports
from taac_wrappers._validation import require_env, require_key


class RepeatStatisticsWrapper(gym.Wrapper, RecordConstructorArgs):
    """Measures repetition and reports it in ``info[key]`` at the end of each episode.

    It works above any of the repeat wrappers and above none. Above one, a decision of ``frames`` frames holds
    ``frames - 1`` repeated ones, and one more if the decision itself was ``repeated``. Above none, a frame is repeated
    if its action equals the one before in every bit. The first frame of an episode repeats nothing, except by a
    ``switch=0`` of `HybridActionWrapper`, which repeats the initial zero action.

    Info, on the last step of an episode, under ``key``:
        * ``fraction`` (float): p = repeated frames / frames,
        * ``mean_run`` (float): frames / runs. A run is a stretch of one action: each frame that is not repeated begins
          one, and so does the first frame,
        * ``decisions`` (int): steps of this wrapper,
        * ``frames`` (int): steps of the innermost environment,
        * ``apr`` (float): action persistence rate, 1 / (1 - p); ``frames`` if every frame was repeated,
        * ``afr`` (float): action fluctuation rate, the mean of ``|a_t - a_{t-1}|`` over the ``frames - 1`` pairs of
          neighbouring frames and the entries of the executed action; 0 for a single frame. Discrete entries count 1
          if they differ.

    A vector version exists: `taac_wrappers.vector.RepeatStatisticsWrapper`.

    Example:
        >>> import gymnasium as gym
        >>> from taac_wrappers import HybridActionWrapper, RepeatStatisticsWrapper
        >>> env = HybridActionWrapper(gym.make("MountainCarContinuous-v0", max_episode_steps=4))
        >>> env = RepeatStatisticsWrapper(env)
        >>> _ = env.reset(seed=0)
        >>> for a, b in [(0.5, 1), (0.0, 0), (0.0, 0), (-0.25, 1)]:
        ...     info = env.step({"action": [a], "switch": b})[-1]
        >>> info["repeat"]
        {'fraction': 0.5, 'mean_run': 2.0, 'decisions': 4, 'frames': 4, 'apr': 2.0, 'afr': 0.25}

    Change log:
        * v0.1.0 - Added
    """

    def __init__(self, env: gym.Env, *, key: str = "repeat"):
        """Wrap ``env``.

        Args:
            env: the environment to wrap.
            key: the info key of the statistics.
        """
        require_env("RepeatStatisticsWrapper", env)
        require_key("key", key)
        RecordConstructorArgs.__init__(self, key=key)
        gym.Wrapper.__init__(self, env)
        self._key = key
        self._reports = has_reports(env)
        self._composite = composite_action_space(env)
        self._is_numeric = isinstance(executed_action_space(env), spaces.Box)
        self._begin_episode()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment and the counts."""
        result = self.env.reset(seed=seed, options=options)
        self._begin_episode()
        return result

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment and count."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        report = info if self._reports else {}
        self._count(executed_action(report, self._composite, action), report)
        if terminated or truncated:
            info = {**info, self._key: self._summary()}
        return observation, reward, terminated, truncated, info

    def _begin_episode(self) -> None:
        self._decisions = self._frames = self._repeated_frames = self._runs = 0
        self._change = 0.0  # sum over frames of the mean absolute change of the action's entries
        self._previous: np.ndarray | None = None

    def _count(self, executed: np.ndarray, report: dict[str, Any]) -> None:
        is_same = self._previous is not None and executed.tobytes() == self._previous.tobytes()
        repeated = bool(report.get("repeated", is_same))
        frames = int(report.get("frames", 1))
        self._runs += self._previous is None or not repeated
        self._decisions += 1
        self._frames += frames
        self._repeated_frames += frames - 1 + repeated
        if self._previous is not None and not is_same:
            self._change += self._difference(executed, self._previous)
        self._previous = executed

    def _difference(self, now: np.ndarray, before: np.ndarray) -> float:
        if not self._is_numeric:
            return float((now != before).mean())
        return float(np.abs(np.subtract(now, before, dtype=np.float64)).mean())

    def _summary(self) -> dict[str, float | int]:
        new_frames = self._frames - self._repeated_frames
        return {
            "fraction": self._repeated_frames / self._frames,
            "mean_run": self._frames / self._runs,
            "decisions": self._decisions,
            "frames": self._frames,
            "apr": self._frames / max(new_frames, 1),
            "afr": self._change / max(self._frames - 1, 1),
        }
