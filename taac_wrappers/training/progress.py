"""What somebody who watches a run sees: a bar with its frames, speed, latest figures, and what goes on."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tqdm import tqdm

SHOWN = {
    "charts/episodic_return": "return {:.1f}",
    "eval/score": "score {:.1f}",
    "charts/repeat_fraction": "repeats {:.0%}",
}
"""What the bar shows beside frames, speed and time."""


class Progress:
    """A bar on stderr.

    Args:
        name: what it calls the run.
        total: frames at which it is full.
        frame: where it begins.
    """

    def __init__(self, name: str, total: int, frame: int):
        interactive = self._interactive = sys.stderr.isatty()
        self._bar = tqdm(
            total=total,
            initial=frame,
            unit="frame",
            desc=name,
            mininterval=0.5 if interactive else 30.0,
            miniters=1,  # else it waits for as many frames as used to pass, and learning is far slower than before
            dynamic_ncols=interactive,
            smoothing=0.3,  # the first, random frames are much faster: the estimate has to forget them soon
        )
        self._started_at, self._started_frame = time.monotonic(), frame
        self._shown: dict[str, str] = {}
        self._name, self._doing = name, ""
        self._drawn_at = self._started_at

    def move_to(self, frame: int) -> None:
        """Say how far the run is."""
        if self._bar.update(frame - self._bar.n):
            self._drawn_at = time.monotonic()

    @contextlib.contextmanager
    def during(self, doing: str) -> Iterator[None]:
        """Show what goes on while no frames pass."""
        self.say(doing)
        try:
            yield
        finally:
            self.say("")

    def say(self, doing: str) -> None:
        """The same from here on: shown at once on a terminal, but in a log no more often than frames are."""
        is_new, self._doing = doing != self._doing, doing
        if is_new:  # before the bar: what is behind it is cut off where a terminal is narrow
            self._bar.set_description(f"{self._name}, {doing}" if doing else self._name, refresh=False)
        at_once = is_new and doing and self._interactive
        if at_once or time.monotonic() - self._drawn_at >= self._bar.mininterval:
            self._drawn_at = time.monotonic()
            self._bar.refresh()

    def show(self, metrics: Mapping[str, Any]) -> None:
        """Show those of the metrics that there is room for."""
        for metric, text in SHOWN.items():
            if metric in metrics:
                self._shown[metric] = text.format(float(metrics[metric]))
        self._bar.set_postfix_str(", ".join(self._shown.values()), refresh=False)

    def frames_per_second(self, frame: int) -> float:
        """Since the process started."""
        return (frame - self._started_frame) / max(time.monotonic() - self._started_at, 1e-9)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()
