"""Copies of a run's metrics for looking at: TensorBoard, and Weights & Biases.

A run can do without them: what TensorBoard misses while the disk is full comes later, and Weights & Biases, which may
hang, is never waited for while training goes on, and not for long at the end.

torch and wandb are imported where they are used, so that importing this module costs nothing.
"""

from __future__ import annotations

import contextlib
import math
import netrc
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

__all__ = ["Sink", "TensorBoard", "require_wandb", "say", "start_wandb"]

TENSORBOARD = "tensorboard"
COMPLAIN_SECONDS = 60.0
WANDB_START_SECONDS = 20.0
WANDB_FINISH_SECONDS = 30.0
WANDB_LEAVE_SECONDS = 1.0
WANDB_QUEUE = 10_000


class Sink(Protocol):
    """A copy of the metrics that a run can do without."""

    name: str

    def log(self, frame: int, metrics: dict[str, float]) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


def say(message: str) -> None:
    """One line on stderr, at once."""
    print(message, file=sys.stderr, flush=True)


class TensorBoard:
    """Keeps what may not be in its file yet, so that a new file takes it where the disk was full for a while.

    A new file replaces whole frames. So a resumed run begins with what was logged at its ``last_frame``: its
    predecessor may have logged more at that frame, such as the final evaluation, before it was killed.
    """

    name = "TensorBoard"

    def __init__(self, run_dir: Path, last_frame: list[tuple[int, dict[str, float]]] | None, config: dict[str, Any]):
        self._folder, self._kept = str(run_dir / TENSORBOARD), last_frame or []
        self._settings = _table(config)
        self._purge_step: int | None = None
        if last_frame is not None:
            self._purge_step = last_frame[-1][0] if last_frame else 0
        self._writer: Any = None
        self._tried_at = -math.inf
        self.flush()

    def log(self, frame: int, metrics: dict[str, float]) -> None:
        self._kept.append((frame, metrics))
        if self._writer is not None:
            self._attempt(lambda: self._add(frame, metrics))

    def flush(self) -> None:
        if self._writer is None and time.monotonic() - self._tried_at >= COMPLAIN_SECONDS:
            self._attempt(self._open)
        if self._writer is not None:
            self._attempt(self._flush)

    def close(self) -> None:
        self._tried_at = -math.inf
        self.flush()
        if self._writer is not None:
            self._attempt(self._writer.close)

    def _open(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(self._folder, purge_step=self._purge_step)
        self._writer.add_text("hyperparameters", self._settings, self._purge_step or 0)
        for frame, metrics in self._kept:
            self._add(frame, metrics)

    def _add(self, frame: int, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, frame)

    def _flush(self) -> None:
        self._writer.flush()
        if self._kept:  # all of the last frame is kept
            self._purge_step = self._kept[-1][0]
            self._kept = [(frame, metrics) for frame, metrics in self._kept if frame == self._purge_step]

    def _attempt(self, action: Callable[[], None]) -> None:
        """A writer that has failed is of no use any more; the next one is tried in a minute."""
        try:
            action()
        except OSError as error:
            self._tried_at = time.monotonic()
            self._purge_step = self._purge_step or 0
            with contextlib.suppress(Exception):
                self._writer.close()
            self._writer = None
            say(f"{self.name} cannot be written ({error}); what it misses is kept in memory until it can")


def _table(config: dict[str, Any]) -> str:
    """The settings as CleanRL shows them, a table in Markdown.

    >>> print(_table({"method": "taac", "args": {"seed": 0, "hidden": [256, 256]}}))
    |param|value|
    |-|-|
    |method|taac|
    |args.seed|0|
    |args.hidden|[256, 256]|
    """
    rows: dict[str, Any] = {}
    for name, value in config.items():
        rows |= {f"{name}.{key}": item for key, item in value.items()} if isinstance(value, dict) else {name: value}
    lines = (f"|{name}|{value}|" for name, value in rows.items())
    return "\n".join(["|param|value|", "|-|-|", *lines])


class _WandB:
    """Hands metrics to a thread of its own: however long a call into the network takes, training does not wait."""

    name = "Weights & Biases"

    def __init__(self, run: Any, wandb: Any):
        self._run, self._wandb = run, wandb
        self._waiting: queue.Queue[dict[str, float] | None] = queue.Queue(WANDB_QUEUE)
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._send, name="wandb", daemon=True)
        # Its own step counter may only grow, but a resumed run goes back to its checkpoint: frames are the x-axis.
        run.define_metric("frame")
        run.define_metric("*", step_metric="frame")
        self._thread.start()

    def log(self, frame: int, metrics: dict[str, float]) -> None:
        self._hand_over({"frame": frame, **metrics})

    def flush(self) -> None:
        """It sends by itself."""

    def close(self) -> None:
        self._hand_over(None)
        self._thread.join(WANDB_FINISH_SECONDS + 5)  # it has its own limit, which should come first
        if self._thread.is_alive():
            self._give_up(TimeoutError("it does not finish"))
        if self._error is not None:
            raise self._error

    def _hand_over(self, metrics: dict[str, float] | None) -> None:
        if self._error is None:
            try:
                self._waiting.put_nowait(metrics)
            except queue.Full:
                self._give_up(TimeoutError(f"{WANDB_QUEUE} records are waiting for it"))
        if self._error is not None:
            raise self._error

    def _send(self) -> None:
        """In the thread: pass on what is handed over, until None or a failure."""
        try:
            while (metrics := self._waiting.get()) is not None:
                self._run.log(metrics)
                if self._error is not None:
                    return
            self._run.finish()
        except Exception as error:
            if self._error is None:  # else it was given up, which is why this call failed
                self._error = error  # raised at the next call, and the sink is left out
                self._tear_down()

    def _give_up(self, error: Exception) -> None:
        """It hangs, and may do so in here too: a thread that nobody waits for long takes leave of it."""
        self._error = error
        leaving = threading.Thread(target=self._tear_down, name="wandb", daemon=True)
        leaving.start()
        leaving.join(WANDB_LEAVE_SECONDS)

    def _tear_down(self) -> None:
        """Removes, before all else, wandb's hook at exit, which waits for its service as long as that takes."""
        with contextlib.suppress(Exception, SystemExit):
            self._wandb.teardown()


def require_wandb() -> Any:
    try:
        import wandb
    except ImportError as error:
        raise ImportError('tracking needs wandb: pip install "taac-wrappers[track]"') from error
    return wandb


def start_wandb(run_dir: Path, config: dict[str, Any], project: str | None, entity: str | None, run_id: str) -> list:
    """The Weights & Biases sink; offline if online fails, none if that fails too."""
    wandb = require_wandb()
    settings = wandb.Settings(init_timeout=WANDB_START_SECONDS, console="off")
    if hasattr(settings, "finish_timeout"):  # older versions wait for the upload as long as it takes
        settings.finish_timeout = WANDB_FINISH_SECONDS
    chosen = os.environ.get("WANDB_MODE") or ("online" if _has_wandb_key(wandb) else "offline")
    if chosen == "offline":
        say("Weights & Biases is offline; upload later with `wandb sync`")
    for mode in dict.fromkeys([chosen, "offline"]):
        try:
            run = wandb.init(
                project=project,
                entity=entity,
                config=config,
                name=run_dir.name,
                dir=str(run_dir),
                id=run_id,
                resume="allow",
                mode=mode,
                settings=settings,
            )
            return [_WandB(run, wandb)]
        except Exception as error:
            going_on = "without it; metrics.csv has everything" if mode == "offline" else "offline"
            say(f"Weights & Biases could not start {mode} ({' '.join(str(error).split())}); going on {going_on}")
            with contextlib.suppress(Exception):
                wandb.teardown()  # the attempt still holds the run id
    return []


def _has_wandb_key(wandb: Any) -> bool:
    """Whether a key is configured, so that a run without one neither waits nor asks."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    hosts = [urlsplit(wandb.setup().settings.base_url).netloc, "api.wandb.ai"]
    named = os.environ.get("NETRC")
    for path in [Path(named)] if named else [Path.home() / ".netrc", Path.home() / "_netrc"]:
        with contextlib.suppress(OSError, netrc.NetrcParseError):
            if any(map(netrc.netrc(str(path)).authenticators, hosts)):
                return True
    return False
