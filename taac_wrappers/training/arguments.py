"""A script's command line: what it takes, what it refuses, and the exit code that says how it ended."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import gymnasium as gym
import torch

from taac_wrappers.training.config import from_config, refuse_unasked
from taac_wrappers.training.finite import LearningFault
from taac_wrappers.training.signals import Interrupted, Interruption
from taac_wrappers.training.tasks import SETTINGS_NAMES

A = TypeVar("A")

MOST_THREADS = 1024
"""Asked for more than it can have, torch does not raise but ends the process."""


FOREIGN_FLAGS = {
    **dict.fromkeys(("total-timesteps", "n-timesteps", "num-timesteps", "total-steps"), "--total-frames"),
    **dict.fromkeys(("env", "env-name"), "--env-id"),
    **dict.fromkeys(("lr", "q-lr", "policy-lr"), "--learning-rate"),
    **dict.fromkeys(("n-envs", "num-env"), "--num-envs"),
    "vec-env": "--env-engine",
    "train-freq": "--frames-per-iteration",
    "gradient-steps": "--updates-per-iteration",
    **dict.fromkeys(("target-network-frequency", "target-update-interval"), "--target-interval"),
    "net-arch": "--hidden",
    **dict.fromkeys(("eval-freq", "eval-frequency"), "--eval-interval"),
    "n-eval-episodes": "--eval-episodes",
    "save-freq": "--checkpoint-interval",
    **dict.fromkeys(("exp-name", "log-folder", "tensorboard-log"), "--run-dir"),
    "trained-agent": "--resume",
    "wandb-project-name": "--wandb-project",
    "cuda": "--device cuda",
    "no-cuda": "--device cpu",
    "num-threads": "--threads",
}
"""What CleanRL and Stable-Baselines3, or its zoo, call flags that have other names here."""


class BadInput(Exception):  # no ValueError: tyro would put it into a frame of many lines
    """An argument, a file or an environment that cannot be used: one line for the user, exit code 2."""


@contextlib.contextmanager
def bad_input() -> Iterator[None]:
    """Whatever is wrong while a run is being set up is the input's fault, and nothing has been written yet."""
    try:
        yield
    except (ValueError, TypeError, OSError, ImportError, MemoryError, RecursionError, gym.error.Error) as error:
        raise BadInput(" ".join(str(error).split())) from error


def command_line(args_type: type[A], main: Callable[[A], int]) -> None:
    """Parse the command line, run ``main(args)``, and exit with the code that says how it ended."""

    def program() -> int:
        _translate_foreign_flags()
        return main(parse(args_type, _defaults(args_type)))

    exit_with(program)


def parse(args_type: type[A], default: A | None = None) -> A:
    """The command line as a dataclass; counts may be written as ``1e5``, and a dict is a JSON object."""
    import tyro
    from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec

    registry = ConstructorRegistry()

    @registry.primitive_rule
    def own_types(info: Any) -> PrimitiveConstructorSpec | None:
        if info.type is int:
            return PrimitiveConstructorSpec(
                1, "INT", lambda words: whole_number(words[0]), lambda value: isinstance(value, int), lambda n: [str(n)]
            )
        if info.type in (dict[str, Any], dict[str, Any] | None):
            return PrimitiveConstructorSpec(
                1, "JSON", lambda words: json_object(words[0]), lambda _: True, lambda value: [json.dumps(value)]
            )
        return None

    with registry:
        return tyro.cli(args_type) if default is None else tyro.cli(args_type, default=default)


def whole_number(text: str) -> int:
    """An integer, in any way of writing one.

    >>> whole_number("1e5"), whole_number("1_000")
    (100000, 1000)
    """
    try:
        return int(text)
    except ValueError:
        with contextlib.suppress(ValueError):
            if (number := float(text)).is_integer():
                return int(number)
    raise ValueError(f"must be a whole number, got {text!r}")


def json_object(text: str) -> dict[str, Any]:
    """The value of ``--env-kwargs``, the one flag that takes such."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise BadInput(f"""--env-kwargs must be a JSON object such as '{{"frame_skip": 2}}', got {text!r}""")
    return value


def exit_with(program: Callable[[], int]) -> None:
    """Exit with the program's own code, or after one line: 2 for bad input, 1 for a fault in learning, 130 or 143."""
    sys.stdout, sys.stderr = _Unbreakable(sys.stdout), _Unbreakable(sys.stderr)
    try:
        with Interruption():
            sys.exit(program())
    except Interrupted as interrupted:
        sys.exit(interrupted.exit_code)
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


def _translate_foreign_flags() -> None:
    """Who comes from another library is told what its flags are called here."""
    for word in sys.argv[1:]:
        flag = word.partition("=")[0].replace("_", "-")
        if word.startswith("--") and flag[2:] in FOREIGN_FLAGS:
            raise BadInput(f"there is no {flag}; did you mean {FOREIGN_FLAGS[flag[2:]]}?")


def _defaults(args_type: Any) -> Any:
    """The task's own settings, or those of the run to resume, so that ``--help`` shows what would really be used."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--env-id", "--env_id", default=None)
    parser.add_argument("--env-kwargs", "--env_kwargs", default=None)
    parser.add_argument("--settings", choices=SETTINGS_NAMES, default=None)
    parser.add_argument("--resume", default=None)
    known, _ = parser.parse_known_args()
    with bad_input():
        if known.resume is None:
            return args_type.for_task(known.env_id or args_type.env_id, known.settings)
        args = from_config(args_type, Path(known.resume))
        refuse_unasked("" if known.env_id else args.env_id, {} if known.env_kwargs else args.env_kwargs)
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
    if not 0 <= args.her <= 1:
        raise ValueError(f"--her must be a share, in [0, 1], got {args.her}")
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


def has_accelerator() -> bool:
    """Whether ``--device auto`` would find a GPU."""
    return torch.cuda.is_available()


def pick_device(name: str) -> torch.device:
    """``auto`` is a GPU where there is one; anything else is torch's name for a device."""
    if name == "auto":
        return torch.device("cuda" if has_accelerator() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # torch knows names of devices that are not there, or hold no numbers
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {name!r} cannot be used: {str(error).splitlines()[0]}") from error
    return device
