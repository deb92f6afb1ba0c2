"""A script's command line: what it takes, what it refuses, and the exit code that says how it ended."""

from __future__ import annotations

import argparse
import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import gymnasium as gym
import torch

from taac_wrappers.training.config import from_config, refuse_module
from taac_wrappers.training.finite import LearningFault

A = TypeVar("A")

MOST_THREADS = 1024
"""Asked for more than it can have, torch does not raise but ends the process."""


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
