"""The life of a training run: its folder, its progress bar, its checkpoints, and how it ends.

Everything here would be the same in any off-policy script. What is learned, and how, stays in the scripts under
``agents/``.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import inspect
import os
import re
import reprlib
import shlex
import shutil
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from taac_wrappers.reward_normalizer import AdaptiveNormalizer
from taac_wrappers.training.checkpoint import (
    CheckpointStore,
    Loaded,
    flatten_optimizer,
    restore_optimizer,
    restore_rng,
    rng_state,
)
from taac_wrappers.training.envs import make_env
from taac_wrappers.training.evaluation import Policy, evaluate
from taac_wrappers.training.faults import EnvFault, WatchedEnvs
from taac_wrappers.training.finite import LearningFault, NotFinite, require_finite
from taac_wrappers.training.replay import SequenceReplay
from taac_wrappers.training.tasks import resolve_env_id, simulator_versions
from taac_wrappers.training.tracking import (
    METRICS,
    TEMPORARY,
    TENSORBOARD,
    Tracker,
    plot_curve,
    read_config,
    sync_folder,
    write_config,
)

A = TypeVar("A")

CHANGEABLE_ON_RESUME = {
    *("total_frames", "stop_at_score", "eval_interval", "eval_episodes", "final_episodes", "checkpoint_interval"),
    *("run_dir", "resume", "track", "wandb_project", "wandb_entity", "capture_video", "device", "threads"),
    *("on_env_error", "env_timeout"),
}
"""Arguments that may differ from those of the run that is resumed: none of them changes what is learned."""

SHOWN = {
    "charts/episodic_return": "return {:.1f}",
    "eval/score": "score {:.1f}",
    "charts/repeat_fraction": "repeats {:.0%}",
}
"""What the progress bar shows beside frames, speed and time."""

MOST_THREADS = 1024
"""Asked for more than it can have, torch does not raise but ends the process."""

METRICS_LOST = "the last lines of metrics.csv are lost"

RETRY_SECONDS = 60.0
"""After a save that failed: how long until the next try, and between two lines that say so."""


class BadInput(ValueError):
    """An argument, a file or an environment that cannot be used: one line for the user, exit code 2."""


@contextlib.contextmanager
def bad_input() -> Iterator[None]:
    """Whatever is wrong while a run is being set up is the input's fault, and nothing has been written yet."""
    try:
        yield
    except (ValueError, TypeError, OSError, ImportError, MemoryError, gym.error.Error) as error:
        raise BadInput(" ".join(str(error).split())) from error


def command_line(args_type: type[A], main: Callable[[A], int]) -> None:
    """Parse the command line, run ``main(args)``, and exit with the code that says how it ended."""
    import tyro

    exit_with(lambda: main(tyro.cli(args_type, default=_defaults(args_type))))


def exit_with(program: Callable[[], int]) -> None:
    """Exit with the program's own code, or after one line with 2 for bad input and 1 for a fault in learning."""
    sys.stdout, sys.stderr = _Unbreakable(sys.stdout), _Unbreakable(sys.stderr)
    try:
        sys.exit(program())
    except (BadInput, LearningFault) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, BadInput) else 1)


class _Unbreakable:
    """A standard stream that may lead to a full disk or a closed pipe: what it does not take does not end a run."""

    def __init__(self, stream: Any):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


def _defaults(args_type: Any) -> Any:
    """The task's own settings, or those of the run to resume, so that ``--help`` shows what would really be used."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--env-id", "--env_id", default=None)
    parser.add_argument("--resume", default=None)
    known, _ = parser.parse_known_args()
    with bad_input():
        if known.resume is None:
            return args_type.for_task(known.env_id or args_type.env_id)
        args = from_config(args_type, Path(known.resume))
        if known.env_id != args.env_id:
            refuse_module(args.env_id)
        return args


def refuse_module(env_id: str) -> None:
    """Refuse an id such as ``module:name`` if a file says it: importing a module is for the user to ask."""
    if ":" in env_id:
        raise ValueError(f"config.json names an environment in a module to import; to allow it, add --env-id {env_id}")


def from_config(args_type: type[A], run_dir: Path) -> A:
    """The arguments a run was started with, read back from its ``config.json``."""
    saved = _read_run(run_dir)["args"]
    fields = {field.name for field in dataclasses.fields(args_type)}  # type: ignore[arg-type]
    if saved.keys() != fields:
        raise ValueError(
            f"--resume: {str(run_dir)!r} is a run of another script or version ({sorted(saved.keys() ^ fields)})"
        )
    saved |= {"run_dir": None, "resume": run_dir}
    return _typed(args_type, saved, f"--resume: {str(run_dir)!r}")


def _typed(kind: type[A], values: Mapping[str, Any], source: str) -> A:
    """A dataclass from what JSON knows of it; values of another type are refused: the ``source`` may be anybody's."""
    hints = get_type_hints(kind)
    for name, hint in hints.items():
        if name in values and not _fits(values[name], hint):
            raise ValueError(f"{source}: {name} must be {hint}, got {reprlib.repr(values[name])}")
    tuples = {name: tuple(value) for name, value in values.items() if get_origin(hints.get(name)) is tuple}
    return kind(**{**values, **tuples})


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the type that a field is annotated with.

    >>> _fits(3, float), _fits(True, int), _fits((1, 2), tuple[int, ...]), _fits(None, int | None), _fits("3", int)
    (True, False, True, True, False)
    """
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, option) for option in get_args(hint))
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) in (tuple, list):
        return isinstance(value, (tuple, list)) and all(_fits(item, get_args(hint)[0]) for item in value)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


def _read_run(run_dir: Path) -> dict[str, Any]:
    """The ``config.json`` of a run."""
    if not (run_dir / "config.json").is_file():
        raise ValueError(f"--resume: {str(run_dir)!r} is not a run folder (no config.json)")
    config = read_config(run_dir)
    texts = config.get("method"), config.get("resolved_env_id")
    if not all(isinstance(text, str) for text in texts) or not isinstance(config.get("args"), dict):
        raise ValueError(f"--resume: {str(run_dir)!r} is not a run folder (its config.json is of something else)")
    return config


def check_common(args: Any) -> None:
    """Refuse arguments that no off-policy script could use, by name and value."""
    positive = "total_frames num_envs batch_size window updates_per_iteration frames_per_iteration eval_interval "
    for name in (positive + "eval_episodes final_episodes checkpoint_interval target_interval threads").split():
        if getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(args, name)}")
    if args.threads > MOST_THREADS:
        raise ValueError(f"--threads must be at most {MOST_THREADS}, got {args.threads}")
    if args.seed < 0:
        raise ValueError(f"--seed must not be negative, got {args.seed}")
    for name in ("learning_rate", "gamma", "tau"):
        if not 0 < getattr(args, name) <= 1:
            raise ValueError(f"--{name.replace('_', '-')} must be in (0, 1], got {getattr(args, name)}")
    if args.learning_starts < args.num_envs:
        raise ValueError(f"--learning-starts must be at least one frame per env, got {args.learning_starts}")
    if args.batch_size > args.buffer_size:
        raise ValueError(f"--batch-size {args.batch_size} is larger than the replay, --buffer-size {args.buffer_size}")
    if args.buffer_size < (args.window + 2) * args.num_envs:
        raise ValueError(
            f"--buffer-size {args.buffer_size} cannot hold a window of {args.window} for {args.num_envs} envs"
        )
    if args.total_frames < args.learning_starts:
        warnings.warn(
            f"--total-frames {args.total_frames} ends before --learning-starts {args.learning_starts}: "
            "nothing will be learned",
            stacklevel=2,
        )


def pick_device(name: str) -> torch.device:
    """``auto`` is a GPU where there is one; anything else is torch's name for a device."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # torch knows names of devices that are not there, or hold no numbers
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {name!r} cannot be used: {str(error).splitlines()[0]}") from error
    return device


@dataclass
class Counters:
    """How far a run has come. A frame is one step of one environment; every schedule counts frames."""

    num_envs: int
    frames: int = 0
    updates: int = 0
    repeats: int = 0
    repeats_logged: int = 0
    frames_logged: int = 0
    env_restarts: int = 0
    """Environments that failed and were replaced."""
    last_scores: list[float] = field(default_factory=list)
    """Of the last two evaluations: scores, not whether they were good, because a resumed run may have another goal."""

    def count(self, switch: np.ndarray) -> None:
        """Take in one step of every environment; ``switch`` ``[num_envs]`` is false where the action was repeated."""
        self.frames += self.num_envs
        self.repeats += self.num_envs - int(np.count_nonzero(switch))

    def due(self, interval: int) -> int:
        """How many multiples of ``interval`` frames the last step has reached.

        >>> Counters(num_envs=4, frames=12).due(5), Counters(num_envs=4, frames=12).due(7), Counters(4, 12).due(1)
        (1, 0, 4)
        """
        return self.frames // interval - (self.frames - self.num_envs) // interval


@dataclass
class TrainingState:
    """Everything that decides how a run goes on: saved completely, restored bit for bit on the same machine."""

    modules: dict[str, nn.Module]
    optimizer: torch.optim.Optimizer
    normalizer: AdaptiveNormalizer | None
    replay: SequenceReplay
    envs: WatchedEnvs
    rng: np.random.Generator
    prev_action: np.ndarray
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Of the last update: numbers, or tensors whose averages they are."""

    def __post_init__(self) -> None:
        self.counters = self.envs.counters = Counters(self.envs.num_envs)

    def check_finite(self) -> None:
        """Raise NotFinite if the last update's metrics, a weight or the optimizer is nan or inf."""
        require_finite(self.averages())
        require_finite(self._weights())
        require_finite(flatten_optimizer(self.optimizer)[0])

    def averages(self) -> dict[str, float]:
        """The metrics of the last update as numbers: only now, because most updates are looked at by nobody."""
        return {name: torch.as_tensor(value).mean().item() for name, value in self.metrics.items()}

    def _weights(self) -> dict[str, torch.Tensor]:
        return {
            f"{name}.{key}": value.detach()
            for name, module in self.modules.items()
            for key, value in module.state_dict().items()
        }

    def save(self, store: CheckpointStore, extra: dict[str, Any]) -> None:
        """Write a checkpoint; ``extra`` is anything JSON-able that belongs to the run rather than to the learner.

        Raises NotFinite instead if that would replace a good checkpoint by a spoilt one.
        """
        self.check_finite()
        tensors = {key: value.cpu().contiguous() for key, value in self._weights().items()}
        optimizer_tensors, optimizer_meta = flatten_optimizer(self.optimizer)
        rng_tensors, rng_meta = rng_state(replay=self.replay.rng, act=self.rng)
        episodes = self.envs.episode_states()
        arrays = {
            f"env.{index}.{key}": episode.pop(key)
            for index, episode in enumerate(episodes)
            if episode is not None
            for key in ("actions", "observation")
        }
        meta = {
            "counters": dataclasses.asdict(self.counters),
            "metrics": [[name, value] for name, value in self.averages().items()],  # pairs keep their order
            "optimizer": optimizer_meta,
            "rng": rng_meta,
            "normalizer": None if self.normalizer is None else _plain(self.normalizer.state_dict()),
            "episodes": episodes,
            "extra": extra,
        }
        arrays["prev_action"] = self.prev_action
        store.save(self.counters.frames, tensors | optimizer_tensors | rng_tensors, arrays, meta, self.replay)

    def restore(self, loaded: Loaded) -> np.ndarray:
        """Bring everything back; returns the current observations."""
        for name, module in self.modules.items():
            prefix = f"{name}."
            tensors = {
                key.removeprefix(prefix): value for key, value in loaded.tensors.items() if key.startswith(prefix)
            }
            try:
                module.load_state_dict(tensors)
            except RuntimeError as error:
                raise ValueError(f"{loaded.path} does not fit this run: {error}") from error
            for key, value in module.state_dict().items():
                if tensors[key].dtype != value.dtype:
                    raise ValueError(f"{loaded.path} does not fit this run: {prefix}{key} is {tensors[key].dtype}")
        restore_optimizer(self.optimizer, loaded.tensors, loaded.meta["optimizer"])
        if self.normalizer is not None:
            self.normalizer.load_state_dict(loaded.meta["normalizer"])
        self.replay.load_chunks(loaded.chunks)
        self.counters = self.envs.counters = _typed(Counters, loaded.meta["counters"], str(loaded.path))
        self.metrics = {str(name): float(value) for name, value in loaded.meta["metrics"]}
        prev_action = loaded.arrays["prev_action"]
        if (prev_action.shape, prev_action.dtype) != (self.prev_action.shape, self.prev_action.dtype):
            raise ValueError(f"{loaded.path} does not fit this run: previous actions of {prev_action.shape}")
        self.prev_action = prev_action
        episodes = [
            episode and episode | {key: loaded.arrays[f"env.{index}.{key}"] for key in ("actions", "observation")}
            for index, episode in enumerate(loaded.meta["episodes"])
        ]
        observation, exact = self.envs.restore(episodes)
        if (broken := ~exact).any():  # a new episode has begun there
            self.replay.interrupt(broken)
            self.replay.start(observation, broken)
            self.prev_action[broken] = 0
        restore_rng(loaded.tensors, loaded.meta["rng"], replay=self.replay.rng, act=self.rng)
        return observation


class Run:
    """A run's folder and everything that is written to it or shown while it goes on.

    Made first, to refuse what cannot work before anything is built; then ``start(state)``; then, inside ``with run:``,
    which closes whatever has been opened, training while it ``goes_on``, and ``finish``.

    Args:
        args: the script's arguments (a dataclass with the common fields).
        method: names the run, e.g. ``"taac"``.
    """

    def __init__(self, args: Any, method: str):
        if args.capture_video:
            _render_without_display()  # before anything imports MuJoCo
        self.args, self.method = args, method
        self.env_id = resolve_env_id(args.env_id)
        self.resuming = args.resume is not None
        self.folder = self._folder()
        self.store = CheckpointStore(self.folder)
        self.signal: int | None = None
        self._signal_raises = False
        self._saved_frame: int | None = None  # of the last checkpoint of this process
        self._unsaved: tuple[TrainingState, Any] | None = None  # what a full disk did not take, to be tried again
        self._tried_at = self._complained_at = -RETRY_SECONDS
        self._shown: dict[str, str] = {}
        if self.resuming:
            self._check_resumable()
        elif self.folder.exists():
            raise FileExistsError(
                f"--run-dir: {str(self.folder)!r} exists already; continue it with --resume {self.folder}"
            )

    def _folder(self) -> Path:
        if self.resuming:
            return Path(self.args.resume)
        env = re.sub(r"[/:]", "_", self.env_id)  # of ids such as namespace/name or module:name
        stamp = time.strftime("%Y%m%d-%H%M%S")
        return Path(self.args.run_dir or f"runs/{env}__{self.method}__{self.args.seed}__{stamp}")

    def _check_resumable(self) -> None:
        config = _read_run(self.folder)
        if config["method"] != self.method:
            raise ValueError(f"--resume: {str(self.folder)!r} is a run of {config['method']}, not of {self.method}")
        if self.args.run_dir not in (None, self.folder):
            raise ValueError(f"--run-dir {self.args.run_dir} is for a new run, but --resume continues {self.folder}")
        asked = _plain(dataclasses.asdict(self.args))
        for name, value in config["args"].items():
            if name not in CHANGEABLE_ON_RESUME and asked[name] != value:
                flag = f"--{name.replace('_', '-')}"
                raise ValueError(
                    f"--resume: this run has {flag} {value}, got {asked[name]}; start a new run to change it"
                )
        if config["resolved_env_id"] != self.env_id:
            raise ValueError(f"--resume: this run was of {config['resolved_env_id']}, which is now {self.env_id}")
        if self.store.exists():
            self._loaded = self.store.load()
            self._check_size(self._loaded)

    def _check_size(self, loaded: Loaded) -> None:
        """Before anything of that size is built: a config.json must not claim more than its checkpoint holds."""
        episodes = loaded.meta.get("episodes")
        if not isinstance(episodes, list) or len(episodes) != self.args.num_envs:
            raise ValueError(f"--resume: {loaded.path} does not hold --num-envs {self.args.num_envs} episodes")
        weights = sum(before * after for before, after in pairwise((1, *self.args.hidden, 1)))
        if weights > sum(tensor.numel() for tensor in loaded.tensors.values()):
            raise ValueError(f"--resume: {loaded.path} does not hold networks of --hidden {self.args.hidden}")

    def start(self, state: TrainingState) -> np.ndarray:
        """Begin, or go on where the run to resume was saved; returns the current observations.

        The folder is created here, after everything else has worked: from now on things are written.
        """
        with contextlib.ExitStack() as opened:
            opened.callback(state.envs.close)
            observation, extra = self._restore(state) if self.store.exists() else self._begin(state)
            self._envs = state.envs
            if self._envs.stop_reason is not None:
                raise ValueError(self._envs.stop_reason)
            self.eval_env = make_env(self.env_id)
            opened.callback(lambda: self.eval_env.close())  # whichever it is by then
            with self._written_folder() as config:
                if self.resuming and not extra:
                    self._forget_metrics()
                if self.args.capture_video:
                    self._check_rendering()
                self.tracker = Tracker(
                    self.folder,
                    config,
                    track=self.args.track,
                    project=self.args.wandb_project,
                    entity=self.args.wandb_entity,
                    run_id=extra.get("wandb_run_id"),
                    resume_at=extra.get("metrics_position"),
                )
            opened.callback(self._close_tracker)
            self._catch_signals(opened)
            self._start_bar(state.counters.frames)
            opened.callback(self.bar.close)
            self._opened = opened.pop_all()
        self._state = state
        return observation

    def __enter__(self) -> Run:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._opened.close()
        if isinstance(error, Exception):
            self._blame_learning(error)

    def _blame_learning(self, error: Exception) -> None:
        """Name what is nan or inf, if anything is: environments, and then their rewards, only suffer from it."""
        try:
            self._state.check_finite()
            if isinstance(error, NotFinite):
                raise error
        except NotFinite as fault:
            counters, saved = self._state.counters, self.store.newest_frame()
            way_back = (
                "nothing was saved before"
                if saved is None
                else f"the last finite checkpoint is at frame {saved}; resume with: {self._resume_command()}"
            )
            reason = f"{fault} at update {counters.updates} (frame {counters.frames}); {way_back}"
            raise LearningFault(reason) from error

    def _begin(self, state: TrainingState) -> tuple[np.ndarray, dict[str, Any]]:
        observation, _ = state.envs.reset(seed=self.args.seed)
        state.replay.start(observation)
        return observation, {}

    def _restore(self, state: TrainingState) -> tuple[np.ndarray, dict[str, Any]]:
        loaded = self._loaded
        del self._loaded
        try:
            extra = loaded.meta["extra"]
            if extra["env_id"] != self.env_id:
                raise ValueError(f"--resume: {loaded.path} is a checkpoint of {extra['env_id']}, not of {self.env_id}")
            return state.restore(loaded), extra
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError) as error:
            # Files that verify but hold something else: whatever trips over it.
            raise ValueError(f"--resume: {loaded.path} does not fit this run: {repr(error)[:300]}") from error

    def _forget_metrics(self) -> None:
        """The run was killed before its first checkpoint, and begins anew."""
        print(f"{self.folder} holds no checkpoint yet: starting from the beginning")
        (self.folder / METRICS).unlink(missing_ok=True)
        shutil.rmtree(self.folder / TENSORBOARD, ignore_errors=True)

    @contextlib.contextmanager
    def _written_folder(self) -> Iterator[dict[str, Any]]:
        """The folder, with what its ``config.json`` says once the rest has worked; if it fails, all is as before."""
        args = _plain(dataclasses.asdict(self.args)) | {"run_dir": str(self.folder), "resume": None}
        if self.resuming:  # its other entries tell how the run began
            config = _read_run(self.folder) | {"args": args}
            yield config
            write_config(self.folder, config)
            return
        ids = {"env_id": self.args.env_id, "resolved_env_id": self.env_id}
        config = {"method": self.method, **ids, "versions": simulator_versions(), "args": args}
        try:
            self._make_folder(config)
        except OSError as error:
            raise OSError(f"--run-dir: cannot create {str(self.folder)!r}: {error.strerror}") from error
        try:
            yield config
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _make_folder(self, config: dict[str, Any]) -> None:
        """All at once with its ``config.json``: whatever is killed after this can be resumed."""
        staging = self.folder.with_name(TEMPORARY + self.folder.name)
        shutil.rmtree(staging, ignore_errors=True)  # somebody was killed just here
        staging.mkdir(parents=True)
        try:
            write_config(staging, config)
            os.rename(staging, self.folder)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        sync_folder(self.folder.parent)

    def _catch_signals(self, opened: contextlib.ExitStack) -> None:
        """Ctrl-C and SIGTERM end the run after the current frame; Python lets only the main thread catch them."""
        self._handlers: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._on_signal)
                opened.callback(signal.signal, number, self._handlers[number])

    def _on_signal(self, number: int, _: Any) -> None:
        self.signal = number
        signal.signal(number, self._handlers[number])  # who asks a second time does not want to wait
        if self._signal_raises:
            raise KeyboardInterrupt

    def _start_bar(self, frame: int) -> None:
        interactive = sys.stderr.isatty()
        self.bar = tqdm(
            total=self.args.total_frames,
            initial=frame,
            unit="frame",
            desc=self.env_id,
            mininterval=0.5 if interactive else 30.0,
            miniters=1,  # else it waits for as many frames as used to pass, and learning is far slower than before
            dynamic_ncols=interactive,
            smoothing=0.3,  # the first, random frames are much faster: the estimate has to forget them soon
        )
        self._started_at, self._started_frame = time.monotonic(), frame

    def goes_on(self, counters: Counters) -> bool:
        """Whether there are frames left to train on, and nobody has asked to stop; moves the progress bar."""
        self.bar.update(counters.frames - self.bar.n)
        if self._unsaved is not None and time.monotonic() - self._tried_at >= RETRY_SECONDS:
            self.save(*self._unsaved)
        return counters.frames < self.args.total_frames and not self._solved(counters) and not self._cut_short()

    def _cut_short(self) -> bool:
        return self.signal is not None or self._envs.stop_reason is not None

    def _solved(self, counters: Counters) -> bool:
        goal = self.args.stop_at_score
        return goal is not None and len(counters.last_scores) == 2 and min(counters.last_scores) >= goal

    def log(self, frame: int, metrics: Mapping[str, Any]) -> None:
        """Record metrics, and show those that the progress bar has room for."""
        self.tracker.log(frame, metrics)
        for metric, text in SHOWN.items():
            if metric in metrics:
                self._shown[metric] = text.format(float(metrics[metric]))
        self.bar.set_postfix_str(", ".join(self._shown.values()), refresh=False)

    def log_episodes(self, frame: int, infos: dict[str, Any]) -> None:
        """Record the return and length of every episode that this vector step has ended."""
        for env in np.flatnonzero(infos["_episode"]):
            episode = infos["episode"]
            self.log(frame, {"charts/episodic_return": episode["r"][env], "charts/episodic_length": episode["l"][env]})

    def log_progress(self, counters: Counters, metrics: Mapping[str, Any]) -> None:
        """Record how far the run is, how fast it goes, how much it repeats, and the last update's ``metrics``."""
        frames, seconds = counters.frames - self._started_frame, time.monotonic() - self._started_at
        repeats = (counters.repeats - counters.repeats_logged) / (counters.frames - counters.frames_logged)
        counters.repeats_logged, counters.frames_logged = counters.repeats, counters.frames
        charts = {
            "charts/frames": counters.frames,
            "charts/decisions": counters.frames - counters.repeats,
            "charts/updates": counters.updates,
            "charts/repeat_fraction": repeats,
            "charts/SPS": frames / max(seconds, 1e-9),
            "charts/env_restarts": counters.env_restarts,
        }
        self.log(counters.frames, {**charts, **metrics})

    def evaluate(self, counters: Counters, policy: Policy) -> None:
        """Judge the policy by its mode in an environment of its own; every evaluation has the same starts."""
        self._state.check_finite()
        with self._env_faults_survived(counters.frames):
            result = evaluate(policy, self.eval_env, self.args.eval_episodes, seed=self.args.seed)
            self.log(counters.frames, _evaluation_metrics(result))
            self.tracker.flush()
            counters.last_scores = [*counters.last_scores[-1:], result["score"]]
            if self.args.capture_video:
                self._film(counters, policy)

    @contextlib.contextmanager
    def _env_faults_survived(self, frame: int) -> Iterator[None]:
        """An environment that fails costs this evaluation, not the training; the next one has a new environment."""
        try:
            yield
        except EnvFault as fault:
            tqdm.write(f"evaluation at frame {frame} failed: {self.env_id} {fault}", file=sys.stderr)
            self.eval_env.close()
            self.eval_env = make_env(self.env_id)

    def _film(self, counters: Counters, policy: Policy) -> None:
        try:
            folder = self.folder / "videos" / f"frame-{counters.frames}"
            with contextlib.closing(make_env(self.env_id, video_folder=folder)) as env:  # closing writes the video
                evaluate(policy, env, 1, seed=self.args.seed)
        except OSError as error:
            self._complain(f"no video of frame {counters.frames}: {error}; training goes on")

    def _check_rendering(self) -> None:
        """Fail now rather than at the first evaluation."""
        try:
            env = make_env(self.env_id, video_folder=self.folder / "videos")
            try:
                env.unwrapped.reset()
                env.unwrapped.render()
            finally:
                env.close()
        except Exception as error:
            raise ValueError(f"--capture-video: {self.env_id} cannot be filmed: {error}") from error

    def save(self, state: TrainingState, agent: Any) -> None:
        """Write a checkpoint, and the agent as it is now; if the disk fails, training goes on and this is retried."""
        self._tried_at = time.monotonic()
        try:
            self._save(state, agent)
        except OSError as error:
            self._unsaved = state, agent
            self._complain(f"{error}; training goes on, and saving is tried again")
            return
        if self._unsaved is not None:
            self._unsaved = None
            tqdm.write(f"saved again, at frame {state.counters.frames}", file=sys.stderr)

    def _save(self, state: TrainingState, agent: Any) -> None:
        self.tracker.flush()  # so that the copies of the metrics, too, have all up to here if the run is killed
        extra = {
            "env_id": self.env_id,
            "metrics_position": self.tracker.position(),
            "wandb_run_id": self.tracker.run_id,
        }
        state.save(self.store, extra)
        agent.save(self.folder / "agent.safetensors")
        self._saved_frame = state.counters.frames

    def _complain(self, message: str) -> None:
        """Say that the disk fails, but not more often than somebody would read it."""
        if time.monotonic() - self._complained_at >= RETRY_SECONDS:
            self._complained_at = time.monotonic()
            tqdm.write(message, file=sys.stderr)

    def _close_tracker(self) -> None:
        """Where finish() did not get that far."""
        try:
            self.tracker.close()
        except OSError as error:
            print(f"error: {error}: {METRICS_LOST}", file=sys.stderr)

    def finish(self, state: TrainingState, agent: Any) -> int:
        """Save, evaluate for the last time, draw the curve and say how it went; returns the exit code."""
        counters = state.counters
        unwritten: list[str] = []
        if self._saved_frame != counters.frames:
            with _noting(unwritten, lambda: self._what_is_lost(counters.frames)):
                self._save(state, agent)
        self.bar.close()
        if not self._cut_short():
            with contextlib.suppress(KeyboardInterrupt), self._env_faults_survived(counters.frames):
                self._last_evaluation(counters, agent.policy())
        with _noting(unwritten, lambda: METRICS_LOST):
            self.tracker.close()
        with _noting(unwritten, lambda: "there is no new curve.png"):
            print(f"curve: {plot_curve(self.folder)}")
        if unwritten:
            print(f"error: {'; '.join(unwritten)}", file=sys.stderr)
            return 1
        print(f"agent: {self.folder / 'agent.safetensors'}")
        if not self._cut_short():
            return 0
        if self._envs.stop_reason is not None:
            print(f"error: {self._envs.stop_reason}", file=sys.stderr)
        print(f"interrupted and saved; continue with: {self._resume_command()}")
        return 1 if self.signal is None else 128 + self.signal

    def _what_is_lost(self, frame: int) -> str:
        saved = self.store.newest_frame()
        if saved is None:
            return "nothing of this run is saved"
        if saved == frame:
            return "the checkpoint is saved, but agent.safetensors is not of the last frame"
        return f"what was learned after frame {saved} is lost, continue from there with {self._resume_command()}"

    def _last_evaluation(self, counters: Counters, policy: Policy) -> None:
        """Everything is saved already, so this may be interrupted at any moment."""
        if counters.frames < self.args.total_frames:
            print(f"stopped at frame {counters.frames}: two evaluations reached a score of {self.args.stop_at_score}")
        self._signal_raises = True
        result = evaluate(policy, self.eval_env, self.args.final_episodes, seed=self.args.seed + 1)
        self._signal_raises = False
        self.tracker.log(counters.frames, _evaluation_metrics(result, "final"))
        print(report(result))

    def _resume_command(self) -> str:
        script = inspect.getfile(type(self.args))  # not sys.argv: somebody else's program may have called main()
        nearer = os.path.relpath(script)
        return shlex.join(["python", min(script, nearer, key=len), "--resume", str(self.folder)])


@contextlib.contextmanager
def _noting(unwritten: list[str], consequence: Callable[[], str]) -> Iterator[None]:
    """At the end of a run, a file that cannot be written is noted with its consequence, and the rest goes on."""
    try:
        yield
    except OSError as error:
        unwritten.append(f"{error}: {consequence()}")


def _render_without_display() -> None:
    """MuJoCo chooses how to render when it is imported, and without a display what it chooses fails."""
    if sys.platform == "linux" and not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")


def _evaluation_metrics(result: Mapping[str, Any], prefix: str = "eval") -> dict[str, float]:
    return {f"{prefix}/{name}": value for name, value in result.items() if name != "returns"}


def report(result: Mapping[str, Any]) -> str:
    """What :func:`~taac_wrappers.training.evaluation.evaluate` found, in words."""
    success = f", success {result['success']:.0%}" if "success" in result else ""
    return (
        f"\nscore {result['score']:.2f} +- {result['score_std']:.2f} over {len(result['returns'])} episodes{success}\n"
        f"repeats {result['repeat_fraction']:.1%} of its actions: acts anew every {result['apr']:.1f} frames"
    )


def _plain(value: Any) -> Any:
    """Paths, arrays and tuples as JSON knows them."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    return value
