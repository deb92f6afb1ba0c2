"""How far a run has come."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Counters:
    """How far a run has come. A frame is one inner step of one environment; every schedule counts frames."""

    frames: int = 0
    frames_before: int = 0
    """Before the last step."""
    decisions: int = 0
    """Actions that were asked for: one for every environment and step."""
    updates: int = 0
    env_restarts: int = 0
    """Environments that failed and were replaced."""
    last_scores: list[float] = field(default_factory=list)
    """Of the last two evaluations: scores, not whether they were good, because a resumed run may have another goal."""

    def count(self, frames: np.ndarray) -> None:
        """Take in one step of every environment, which took ``frames`` ``[num_envs]``."""
        self.frames_before = self.frames
        self.frames += int(frames.sum())
        self.decisions += len(frames)

    def due(self, interval: int) -> int:
        """How many multiples of ``interval`` frames the last step has reached.

        >>> counters = Counters(frames=8)
        >>> counters.count(np.array([1, 1, 1, 1]))
        >>> counters.due(5), counters.due(7), counters.due(1)
        (1, 0, 4)
        """
        return self.frames // interval - self.frames_before // interval
