"""The bar: what it says while no frames pass."""

from __future__ import annotations

import io
import sys
import types

import pytest

from taac_wrappers.training import progress as progress_module
from taac_wrappers.training.progress import Progress


class Watcher(io.StringIO):
    """A terminal or a log, and a clock."""

    now = 0.0

    def __init__(self, interactive: bool):
        super().__init__()
        self.isatty = lambda: interactive  # type: ignore[method-assign]

    def fresh(self) -> str:
        """What has been written since the last look."""
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        return text


@pytest.fixture
def watch(monkeypatch):
    def begin(interactive: bool) -> tuple[Watcher, Progress]:
        watcher = Watcher(interactive)
        monkeypatch.setattr(sys, "stderr", watcher)
        monkeypatch.setattr(progress_module, "time", types.SimpleNamespace(monotonic=lambda: watcher.now))
        progress = Progress("toy", 100, 0)
        watcher.fresh()
        return watcher, progress

    return begin


def test_a_terminal_shows_at_once_what_goes_on(watch):
    watcher, progress = watch(interactive=True)
    with progress.during("evaluating"):
        assert "\rtoy, evaluating:" in watcher.fresh()
        progress.say("evaluating 1/2")
        assert "evaluating 1/2" in watcher.fresh()
        progress.say("evaluating 1/2")
        assert watcher.fresh() == ""
        watcher.now += 0.5
        progress.say("evaluating 1/2")
        assert "evaluating 1/2" in watcher.fresh()  # so that its clock goes on
    watcher.now += 0.5
    progress.say("")
    assert "\rtoy:" in watcher.fresh()
    progress.close()


def test_a_log_is_not_flooded(watch):
    watcher, progress = watch(interactive=False)
    for second in range(1, 100):
        watcher.now = second
        progress.say(f"evaluating {second}/100")
    shown = [line.partition(":")[0] for line in watcher.fresh().split("\r") if line]
    assert shown == [f"toy, evaluating {second}/100" for second in (30, 60, 90)]
    progress.close()


def test_what_goes_on_is_over_even_if_it_fails(watch):
    watcher, progress = watch(interactive=True)
    with pytest.raises(ZeroDivisionError), progress.during("saving"):
        raise ZeroDivisionError
    watcher.now += 1
    watcher.fresh()
    progress.say("")
    assert "saving" not in watcher.fresh()
    progress.close()
