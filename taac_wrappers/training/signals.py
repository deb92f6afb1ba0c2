"""Ctrl-C and SIGTERM: a run that is asked to end saves first."""

from __future__ import annotations

import signal
import threading
from typing import Any


class Interruption:
    """Remembers that somebody asked the process to end.

    A second signal acts as it did before: who asks twice does not want to wait. Python lets only the main thread catch
    signals; elsewhere nothing is caught.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        """The one that asked."""
        self.raises = False
        """Whether it raises KeyboardInterrupt at once: where nothing would be lost."""
        self._handlers: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: Any) -> None:
        self.signal = number
        signal.signal(number, self._handlers[number])
        if self.raises:
            raise KeyboardInterrupt

    def close(self) -> None:
        """Put everything back."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
