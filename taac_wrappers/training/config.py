"""The arguments of a run in its ``config.json``: written as JSON, and read back as the types they were."""

from __future__ import annotations

import dataclasses
import json
import reprlib
import shlex
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from taac_wrappers.training.files import read_config

A = TypeVar("A")

CHANGEABLE_ON_RESUME = {
    *("total_frames", "stop_at_score", "eval_interval", "eval_episodes", "final_episodes", "checkpoint_interval"),
    *("run_dir", "resume", "track", "wandb_project", "wandb_entity", "capture_video", "device", "threads", "compile"),
    *("on_env_error", "env_timeout"),
}
"""Arguments that may differ from those of the run that is resumed: none of them changes what is learned."""


def from_config(args_type: type[A], run_dir: Path) -> A:
    """The arguments a run was started with, read back from its ``config.json``."""
    saved = read_run(run_dir)["args"]
    fields = {field.name for field in dataclasses.fields(args_type)}  # type: ignore[arg-type]
    if saved.keys() != fields:
        raise ValueError(
            f"--resume: {str(run_dir)!r} is a run of another script or version ({sorted(saved.keys() ^ fields)})"
        )
    saved |= {"run_dir": None, "resume": run_dir}
    return typed(args_type, saved, f"--resume: {str(run_dir)!r}")


def typed(kind: type[A], values: Mapping[str, Any], source: str) -> A:
    """A dataclass from what JSON knows of it: all its fields, and of their types, for anybody may be the ``source``."""
    hints = get_type_hints(kind)
    for name, hint in hints.items():
        if name not in values:
            raise ValueError(f"{source}: {name} is missing")
        if not _fits(values[name], hint):
            raise ValueError(f"{source}: {name} must be {hint}, got {reprlib.repr(values[name])}")
    tuples = {name: tuple(values[name]) for name in hints if _is_tuple(values[name], hints[name])}
    return kind(**{**values, **tuples})


def _is_tuple(value: Any, hint: Any) -> bool:
    """Whether what JSON knows as a list is to be a tuple."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return isinstance(value, (tuple, list)) and any(get_origin(option) is tuple for option in options)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the type that a field is annotated with.

    >>> _fits(3, float), _fits(True, int), _fits((1, 2), tuple[int, ...]), _fits(None, int | None), _fits("3", int)
    (True, False, True, True, False)
    >>> _fits([1, 2], tuple[float, float]), _fits([1], tuple[float, float])
    (True, False)
    """
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, option) for option in get_args(hint))
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) in (tuple, list):
        kinds = get_args(hint)
        if kinds[-1] is not ... and get_origin(hint) is tuple:
            return isinstance(value, (tuple, list)) and len(value) == len(kinds) and all(map(_fits, value, kinds))
        return isinstance(value, (tuple, list)) and all(_fits(item, kinds[0]) for item in value)
    if get_origin(hint) is dict:
        return isinstance(value, dict)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


def to_be_repeated(env_id: str, env_kwargs: Mapping[str, Any]) -> list[str]:
    """Flags that a file may not set, only the user: they name a module to import, or may name a file to open.

    >>> to_be_repeated("mymodule:MyEnv-v0", {"frame_skip": 2}), to_be_repeated("Ant-v5", {"xml_file": "ant.xml"})
    (['--env-id', 'mymodule:MyEnv-v0'], ['--env-kwargs', '{"xml_file": "ant.xml"}'])
    """
    module = ["--env-id", env_id] if ":" in env_id else []
    return module + (["--env-kwargs", json.dumps(env_kwargs)] if _holds_text(env_kwargs) else [])


def refuse_unasked(env_id: str, env_kwargs: Mapping[str, Any]) -> None:
    """Refuse an environment's id and arguments that a file says, if the user has to say them."""
    if flags := to_be_repeated(env_id, env_kwargs):
        what = "a module to import" if ":" in env_id else "texts, perhaps of files, among the environment's arguments"
        raise ValueError(f"config.json names {what}; to allow it, add {shlex.join(flags)}")


def _holds_text(value: Any) -> bool:
    if isinstance(value, (dict, list, tuple)):
        return any(_holds_text(item) for item in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, str)


def read_run(run_dir: Path) -> dict[str, Any]:
    """The ``config.json`` of a run."""
    if not (run_dir / "config.json").is_file():
        raise ValueError(f"--resume: {str(run_dir)!r} is not a run folder (no config.json)")
    config = read_config(run_dir)
    texts = config.get("method"), config.get("resolved_env_id")
    if not all(isinstance(text, str) for text in texts) or not isinstance(config.get("args"), dict):
        raise ValueError(f"--resume: {str(run_dir)!r} is not a run folder (its config.json is of something else)")
    return config


def plain(value: Any) -> Any:
    """Paths, arrays and tuples as JSON knows them.

    >>> plain({"run_dir": Path("runs"), "hidden": (256, 256), "gamma": np.float32(0.5)})
    {'run_dir': 'runs', 'hidden': [256, 256], 'gamma': 0.5}
    """
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    return value
