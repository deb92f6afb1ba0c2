"""The command that repeats a run, from the arguments that its ``config.json`` keeps."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from taac_wrappers.benchmark.methods import METHODS, Method
from taac_wrappers.training.tasks import settings_for

NOT_LEARNED_FROM = {
    *("run_dir", "resume", "track", "wandb_project", "wandb_entity", "capture_video", "device", "threads", "compile"),
    *("checkpoint_interval", "on_env_error", "env_timeout"),
}
"""Arguments about the computer and the record of a run, which another run does without."""

_DEFAULTS = {
    "env_kwargs": {},
    "env_engine": "sync",
    "final_episodes": 100,
    "stop_at_score": None,
    "td_mode": "expected",
    "train_on": "first",
    "retrace_lambda": 1.0,
    "trace_of": "executed",
    "repeat_delta": 0.2,
}
"""Of arguments that the settings of a task do not name."""

_DEFAULTS_OF_SCRIPT: dict[str, dict[str, Any]] = {
    "taac_continuous.py": {"td_operator": "compare-through"},
    "sac_hybrid_continuous.py": {"td_operator": "retrace"},
    "sac_continuous.py": {"window": 1},
    "sac_nrep_continuous.py": {"her": 0.0},
    "sac_krep_continuous.py": {"her": 0.0},
}
"""Where a script has its own instead of the task's settings."""


def command_of(exp_name: str, args: Mapping[str, Any]) -> str:
    """What to type to make such a run again: the method's own command, and whatever its task's settings do not say.

    >>> args = {"env_id": "Pendulum-v1", "seed": 3, "settings": "paper", "total_frames": 5000, "hidden": [64, 64]}
    >>> command_of("sac-ez", args)
    'python agents/sac_ez_continuous.py --env-id Pendulum-v1 --seed 3 --total-frames 5000 --hidden 64 64'
    """
    method = METHODS[exp_name]
    env_id, settings = args["env_id"], args.get("settings", "paper")  # before 0.2 there were only the paper's
    values = vars(settings_for(env_id, settings))
    defaults = _DEFAULTS | values | _DEFAULTS_OF_SCRIPT.get(method.script, {})
    said = {"env_id", "seed", "settings", *_values_of(method)}
    changed = [
        word
        for name, value in args.items()
        if name not in said | NOT_LEARNED_FROM and (name not in defaults or _plain(defaults[name]) != _plain(value))
        for word in _words(name, value)
    ]
    has_a_choice = settings_for(env_id, "laptop") != settings_for(env_id, "paper")
    choice = ["--settings", settings] if has_a_choice else []  # else it is the computer's kind that decides
    return shlex.join(["python", *method.command(env_id, args["seed"]), *choice, *changed])


def method_of(config: Mapping[str, Any]) -> str | None:
    """The name in ``METHODS`` of what a ``config.json`` was written by; None if it is none of them.

    >>> method_of({"method": "taac", "args": {"td_operator": "one-step"}})
    'taac-1td'
    >>> method_of({"method": "sac_hybrid", "args": {"td_operator": "retrace"}})
    'sac-hybrid'
    """
    args = config["args"]
    # Variants of a method come after it and have more flags: the last one that fits is the one.
    fitting = [
        name
        for name, method in METHODS.items()
        if method.script == f"{config['method']}_continuous.py"
        and all(str(args.get(flag)) == value for flag, value in _values_of(method).items())
    ]
    return fitting[-1] if fitting else None


def _values_of(method: Method) -> dict[str, str]:
    """The method's flags by the names of their arguments."""
    return {
        flag.removeprefix("--").replace("-", "_"): value
        for flag, value in zip(method.flags[::2], method.flags[1::2], strict=True)
    }


def _words(name: str, value: Any) -> Iterator[str]:
    """An argument as it is typed."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        yield f"--{flag}" if value else f"--no-{flag}"
        return
    yield f"--{flag}"
    if isinstance(value, (list, tuple)):
        yield from map(str, value)
    else:
        yield json.dumps(value) if isinstance(value, dict) else str(value)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
