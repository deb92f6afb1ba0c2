"""Ctrl-C and SIGTERM: each is answered with a line at once; a run that is asked to end saves first."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import Any

NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
STDERR = 2


class Interrupted(KeyboardInterrupt):
    """The process ends now, wherever it is: nothing needs saving, or somebody has asked twice."""

    def __init__(self, number: int):
        super().__init__(NAMES[signal.Signals(number)])
        self.exit_code = 128 + number


class Interruption:
    """Inside ``with``, takes the signals that ask the process to end.

    Each is answered with a line and raises :class:`Interrupted`. While the process ``saves``, the first of its kind is
    only remembered, and the second raises: who asks twice does not want to wait.

    Python lets only the main thread catch signals; elsewhere nothing is caught.
    """

    def __init__(self) -> None:
        self.saves = False
        """Whether there is somebody who looks at ``signal`` and saves."""
        self.signal: int | None = None
        """The last one that was remembered."""
        self._remembered: set[int] = set()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on_signal) for number in NAMES}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _: Any) -> None:
        name = NAMES[signal.Signals(number)]
        if not self.saves:
            _say(f"interrupted by {name}")
            raise Interrupted(number)
        if number in self._remembered:  # whoever is stopped by it says what is lost
            raise Interrupted(number)
        self.signal = number
        self._remembered.add(number)
        _say(f"{name}: saving after this frame; once more stops without saving", below_a_bar=True)


def _say(line: str, *, below_a_bar: bool = False) -> None:
    """Write to the terminal itself: what was interrupted may be in the middle of writing to ``sys.stderr``."""
    with contextlib.suppress(OSError):
        # On a terminal it takes the place of a bar, which is drawn again below it.
        beginning = "\r\x1b[K" if os.isatty(STDERR) else "\n" * below_a_bar
        os.write(STDERR, f"{beginning}{line}\n".encode())
