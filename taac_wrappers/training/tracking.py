"""Where a run's numbers go: settings (``config.json``), metrics (``metrics.csv``) and their picture (``curve.png``).

``metrics.csv`` is the record. TensorBoard and Weights & Biases are copies of it for looking at: if one of them fails,
it is left out with one line on stderr and the run goes on; what TensorBoard misses while the disk is full comes later.
A run that is resumed at the offset its checkpoint stored writes the same bytes as one that was never interrupted
(apart from metrics that measure time).

torch, wandb and matplotlib are imported where they are used, so that importing this module costs nothing.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import netrc
import operator
import os
import queue
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import numpy as np

__all__ = ["Tracker", "plot_curve", "read_config", "read_metrics", "write_config"]

CONFIG = "config.json"
METRICS = "metrics.csv"
CURVE = "curve.png"
TENSORBOARD = "tensorboard"
TEMPORARY = ".tmp-"
"""Prefix of everything that is being written; whatever bears it after a crash is rubbish."""

JSON_LIMIT = 64 * 2**20
CONFIG_LIMIT = 2**20
HEADER = b"frame,metric,value\n"
FLUSH_SECONDS = 5.0
COMPLAIN_SECONDS = 60.0
WANDB_START_SECONDS = 20.0
WANDB_FINISH_SECONDS = 30.0
WANDB_LEAVE_SECONDS = 1.0
WANDB_QUEUE = 10_000


# Files ---------------------------------------------------------------------------------------------------------------


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file that, after a crash at any moment, is the old one or the new one in full."""
    temporary = path.with_name(TEMPORARY + path.name)
    try:
        temporary.unlink(missing_ok=True)  # left by a crash; and a link must not lead the write elsewhere
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames inside ``folder`` survive a power cut."""
    if os.name != "posix":  # elsewhere a folder cannot be opened, and renames are durable without it
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def encode_json(name: str, value: Any) -> bytes:
    """Encode ``value`` with sorted keys; ``name`` is what an error calls it.

    >>> encode_json("meta", {"b": (1, 2), "a": 0.1})
    b'{"a":0.1,"b":[1,2]}'
    >>> encode_json("meta", {"a": [{1, 2}]})
    Traceback (most recent call last):
    TypeError: meta.a[0] must be JSON (None, bool, int, float, str, list, dict), got {1, 2} of type set
    """
    _check_json(name, value)
    data = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    if len(data) > JSON_LIMIT:
        raise ValueError(f"{name} must encode to at most {JSON_LIMIT} bytes of JSON, got {len(data)}")
    return data


def _check_json(name: str, value: Any) -> None:
    """json.dumps alone would turn integer keys into strings without a word."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{name} must have string keys, got {key!r} of type {type(key).__name__}")
            _check_json(f"{name}.{key}", item)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _check_json(f"{name}[{index}]", item)
    elif not isinstance(value, (str, int, float, type(None))):
        kinds = "None, bool, int, float, str, list, dict"
        raise TypeError(f"{name} must be JSON ({kinds}), got {value!r} of type {type(value).__name__}")


def read_json(path: Path, limit: int | None = None) -> dict[str, Any]:
    """Read a JSON object of at most ``limit`` bytes (None: JSON_LIMIT), or raise a ValueError that names the file."""
    limit = JSON_LIMIT if limit is None else limit
    if (size := path.stat().st_size) > limit:
        raise ValueError(f"{path}: {size} bytes of JSON is above the limit of {limit}")
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not valid JSON ({str(error)[:300]})") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def write_config(run_dir: Path, config: dict[str, Any]) -> None:
    """Write ``config.json``, atomically and with sorted keys, into an existing run folder."""
    data = json.dumps(json.loads(encode_json("config", config)), sort_keys=True, indent=2) + "\n"
    write_atomically(Path(run_dir) / CONFIG, data.encode())


def read_config(run_dir: Path) -> dict[str, Any]:
    """Read ``config.json``; tuples that were written come back as lists."""
    return read_json(Path(run_dir) / CONFIG, min(CONFIG_LIMIT, JSON_LIMIT))


# Metrics -------------------------------------------------------------------------------------------------------------


class _Sink(Protocol):
    """A copy of the metrics that a run can do without."""

    name: str

    def log(self, frame: int, metrics: dict[str, float]) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class Tracker:
    """The one place a run's metrics go: ``metrics.csv`` and TensorBoard always, Weights & Biases with ``track``.

    Args:
        run_dir: an existing run folder.
        config: the run's settings, shown by Weights & Biases (``write_config`` is what stores them).
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
            _require_wandb()
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
        self._sinks: list[_Sink] = [_TensorBoard(run_dir, last_frame)]
        if track:
            self.run_id = run_id or secrets.token_hex(4)
            self._sinks += _start_wandb(run_dir, config, project, entity, self.run_id)

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
                _say(f"{self._file.name} cannot be written ({error.strerror}); metrics are kept in memory until it can")

    def _for_each_sink(self, action: Any) -> None:
        for sink in list(self._sinks):
            try:
                action(sink)
            except Exception as error:
                self._sinks.remove(sink)
                _say(f"{sink.name} failed and is left out from here on ({error}); {METRICS} goes on")


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


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


# Copies of the metrics -----------------------------------------------------------------------------------------------


class _TensorBoard:
    """Keeps what may not be in its file yet, so that a new file takes it where the disk was full for a while.

    A new file replaces whole frames. So a resumed run begins with what was logged at its ``last_frame``: its
    predecessor may have logged more at that frame, such as the final evaluation, before it was killed.
    """

    name = "TensorBoard"

    def __init__(self, run_dir: Path, last_frame: list[tuple[int, dict[str, float]]] | None):
        self._folder, self._kept = str(run_dir / TENSORBOARD), last_frame or []
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
            _say(f"{self.name} cannot be written ({error}); what it misses is kept in memory until it can")


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


def _require_wandb() -> Any:
    try:
        import wandb
    except ImportError as error:
        raise ImportError('tracking needs wandb: pip install "taac-wrappers[track]"') from error
    return wandb


def _start_wandb(run_dir: Path, config: dict[str, Any], project: str | None, entity: str | None, run_id: str) -> list:
    """The Weights & Biases sink; offline if online fails, none if that fails too."""
    wandb = _require_wandb()
    settings = wandb.Settings(init_timeout=WANDB_START_SECONDS, console="off")
    if hasattr(settings, "finish_timeout"):  # older versions wait for the upload as long as it takes
        settings.finish_timeout = WANDB_FINISH_SECONDS
    chosen = os.environ.get("WANDB_MODE") or ("online" if _has_wandb_key(wandb) else "offline")
    if chosen == "offline":
        _say("Weights & Biases is offline; upload later with `wandb sync`")
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
            going_on = f"without it; {METRICS} has everything" if mode == "offline" else "offline"
            _say(f"Weights & Biases could not start {mode} ({' '.join(str(error).split())}); going on {going_on}")
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


# The curve -----------------------------------------------------------------------------------------------------------


def plot_curve(run_dir: Path) -> Path:
    """Draw ``curve.png``: scores over frames, and below them how much of the time the agent repeated."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    run_dir = Path(run_dir)
    metrics = read_metrics(run_dir / METRICS)
    config = read_config(run_dir)
    figure = Figure(figsize=(7, 6), layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    upper.set_title(" · ".join(str(config[key]) for key in ("env_id", "method") if key in config) or run_dir.name)
    _draw(upper, metrics, {"charts/episodic_return": "training episodes", "eval/score": "evaluation"}, 1)
    _draw(lower, metrics, {"charts/repeat_fraction": "training", "eval/repeat_fraction": "evaluation"}, 100)
    upper.set_ylabel("score")
    lower.set_ylabel("repeated frames (%)")
    lower.set_ylim(-3, 103)
    lower.set_xlabel("frames")
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    write_atomically(run_dir / CURVE, picture.getvalue())
    return run_dir / CURVE


def _draw(axes: Any, metrics: dict[str, tuple[np.ndarray, np.ndarray]], labels: dict[str, str], scale: float) -> None:
    """Draw the metrics named by ``labels``, evaluations in front of faint training."""
    for name, label in labels.items():
        if name in metrics:
            frames, values = metrics[name]
            look = {"marker": "o", "linewidth": 2} if name.startswith("eval/") else {"marker": ".", "alpha": 0.3}
            axes.plot(frames, scale * values, label=label, markersize=4, **look)
    if axes.lines:
        axes.legend()
    else:
        axes.text(0.5, 0.5, "nothing recorded yet", ha="center", va="center", transform=axes.transAxes)
    axes.grid(alpha=0.3)
