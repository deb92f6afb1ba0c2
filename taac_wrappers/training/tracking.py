"""The record of a run's metrics: ``metrics.csv``, how it is written and how it is read.

Copies of it for looking at (``sinks``) are fed from here: if one of them fails, it is left out with one line on stderr
and the run goes on. A run that is resumed at the offset its checkpoint stored writes the same bytes as one that was
never interrupted (apart from metrics that measure time).
"""

from __future__ import annotations

import operator
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from taac_wrappers.training.files import encode_json
from taac_wrappers.training.sinks import COMPLAIN_SECONDS, Sink, TensorBoard, require_wandb, say, start_wandb

__all__ = ["Tracker", "read_metrics"]

METRICS = "metrics.csv"
HEADER = b"frame,metric,value\n"
FLUSH_SECONDS = 5.0


class Tracker:
    """The one place a run's metrics go: ``metrics.csv`` and TensorBoard always, Weights & Biases with ``track``.

    Args:
        run_dir: an existing run folder.
        config: the run's settings, shown by TensorBoard and Weights & Biases (``write_config`` is what stores them).
        track: also log to Weights & Biases; offline when there is no key or no network, or as ``WANDB_MODE`` says.
        project, entity: where Weights & Biases files the run.
        run_id: the ``run_id`` of the tracker whose Weights & Biases run goes on.
        resume_at: the ``position()`` at which ``metrics.csv`` goes on; what follows it is cut off.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> tracker = Tracker(folder, {"env_id": "Pendulum-v1"})
    >>> tracker.log(100, {"charts/episodic_return": -1.5, "charts/SPS": 50})
    >>> tracker.close()
    >>> print((folder / "metrics.csv").read_text())
    frame,metric,value
    100,charts/episodic_return,-1.5
    100,charts/SPS,50.0
    """

    def __init__(
        self,
        run_dir: Path,
        config: dict[str, Any],
        *,
        track: bool = False,
        project: str | None = None,
        entity: str | None = None,
        run_id: str | None = None,
        resume_at: int | None = None,
    ):
        run_dir = Path(run_dir)
        encode_json("config", config)
        if track:
            require_wandb()
        path = run_dir / METRICS
        if path.is_symlink():
            raise ValueError(f"{path} is a symbolic link: it would lead what is written elsewhere")
        last_frame = None if resume_at is None else _last_frame(path, resume_at)
        if resume_at is None and path.exists():
            raise ValueError(f"run_dir {run_dir} already holds {METRICS}; pass resume_at to continue it")

        self.run_id: str | None = None
        self._pending = bytearray()
        self._flushed_at = time.monotonic()
        self._complained_at = -COMPLAIN_SECONDS
        # Unbuffered: the lines that could not be written stay in _pending and are tried again.
        self._file = open(path, "xb" if resume_at is None else "r+b", buffering=0)  # noqa: SIM115
        if resume_at is None:
            self._pending += HEADER
            self._write_pending()
        else:
            self._file.truncate(resume_at)
            self._file.seek(resume_at)
        self._sinks: list[Sink] = [TensorBoard(run_dir, last_frame, config)]
        if track:
            self.run_id = run_id or secrets.token_hex(4)
            self._sinks += start_wandb(run_dir, config, project, entity, self.run_id)

    def log(self, frame: int, metrics: Mapping[str, Any]) -> None:
        """Record metrics at ``frame``: Python numbers, numpy scalars or 0-d tensors, which are converted here."""
        frame = _checked_frame(frame)
        numbers = {_checked_name(name): _to_float(name, value) for name, value in metrics.items()}
        self._pending += "".join(f"{frame},{name},{value!r}\n" for name, value in numbers.items()).encode()
        self._for_each_sink(lambda sink: sink.log(frame, numbers))
        if time.monotonic() - self._flushed_at > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Hand everything to the operating system. A full disk delays the metrics but loses nothing."""
        self._flush_file()
        if not self._pending:  # else there is no room for copies either
            self._for_each_sink(lambda sink: sink.flush())

    def position(self) -> int:
        """Length in bytes of ``metrics.csv``, all of it safe on the disk: what a checkpoint stores.

        Raises OSError where the metrics so far cannot be written.
        """
        self._write_pending()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Flush and close everything; raises OSError if metrics had to be left unwritten."""
        if self._file.closed:
            return
        self._for_each_sink(lambda sink: sink.close())
        self._sinks = []
        with self._file:
            self._write_pending()

    def _write_pending(self) -> None:
        try:
            while self._pending:
                written = self._file.write(self._pending)
                del self._pending[:written]
        except OSError as error:
            error.filename = self._file.name  # a failed write does not say which file
            raise

    def _flush_file(self) -> None:
        self._flushed_at = time.monotonic()
        try:
            self._write_pending()
        except OSError as error:
            if self._flushed_at - self._complained_at >= COMPLAIN_SECONDS:
                self._complained_at = self._flushed_at
                say(f"{self._file.name} cannot be written ({error.strerror}); metrics are kept in memory until it can")

    def _for_each_sink(self, action: Any) -> None:
        for sink in list(self._sinks):
            try:
                action(sink)
            except Exception as error:
                self._sinks.remove(sink)
                say(f"{sink.name} failed and is left out from here on ({error}); {METRICS} goes on")


def _checked_frame(frame: int) -> int:
    try:
        frame = operator.index(frame)
    except TypeError:
        raise TypeError(f"frame must be an integer, got {frame!r}") from None
    if frame < 0:
        raise ValueError(f"frame must not be negative, got {frame}")
    return frame


def _checked_name(name: str) -> str:
    if not isinstance(name, str) or not name or any(character in name for character in ',"\r\n'):
        raise ValueError(f"metric names must be strings without commas, quotes and line breaks, got {name!r}")
    return name


def _to_float(name: str, value: Any) -> float:
    if isinstance(value, (str, bytes)) or getattr(value, "ndim", 0) != 0:
        raise TypeError(f"metric {name!r} must be a single number, got {value!r}")
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError):
        raise TypeError(f"metric {name!r} must be a single number, got {value!r}") from None


def _last_frame(path: Path, resume_at: int) -> list[tuple[int, dict[str, float]]]:
    """What was logged at the frame of the line that ends at ``resume_at``, line by line; nothing after the header."""
    size = path.stat().st_size
    if isinstance(resume_at, bool) or not isinstance(resume_at, int) or not len(HEADER) <= resume_at <= size:
        raise ValueError(f"resume_at must be an offset into {path} ({size} bytes), got {resume_at!r}")
    with open(path, "rb") as file:
        content = file.read(resume_at)
    if not content.startswith(HEADER):
        raise ValueError(f"{path}: line 1 must be {HEADER.decode().strip()!r}")
    if not content.endswith(b"\n"):
        raise ValueError(f"resume_at must be the end of a line of {path}, got {resume_at}")
    lines = content.split(b"\n")[1:-1]
    of_last = lines[-1].split(b",")[0] + b"," if lines else b""
    rows = [line.decode().split(",") for line in lines if line.startswith(of_last)]
    return [(int(frame), {metric: float(value)}) for frame, metric, value in rows]


def read_metrics(path: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Read ``metrics.csv`` as ``{metric: (frames int64 [n], values float64 [n])}``.

    A last line without its line break was torn by a crash and is left out; anything else malformed is an error.
    """
    lines = Path(path).read_bytes().split(b"\n")[:-1]
    if lines and lines[0] + b"\n" != HEADER:
        raise ValueError(f"{path}: line 1 must be {HEADER.decode().strip()!r}, got {lines[0][:100]!r}")
    columns: dict[str, tuple[list[np.int64], list[float]]] = {}
    for number, line in enumerate(lines[1:], start=2):
        try:
            frame, metric, value = line.decode().split(",")
            row = np.int64(int(frame)), float(value)
        except (ValueError, OverflowError):
            raise ValueError(f"{path}: line {number} must be 'frame,metric,value', got {line[:100]!r}") from None
        frames, values = columns.setdefault(metric, ([], []))
        frames.append(row[0])
        values.append(row[1])
    return {name: (np.array(f, dtype=np.int64), np.array(v, dtype=np.float64)) for name, (f, v) in columns.items()}
