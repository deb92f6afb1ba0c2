"""Ids of environments: their parts, and which of the registered ones work."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import io
import os
import sys
from dataclasses import dataclass

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, get_env_id, parse_env_id


@dataclass(frozen=True)
class EnvId:
    """The parts of ``[module:][namespace/]name[-v<version>]``."""

    module: str | None
    namespace: str | None
    name: str
    version: int | None


def parse(env_id: str) -> EnvId:
    """The parts of an id; raises TypeError or ValueError if it does not look like one."""
    if not isinstance(env_id, str):
        raise TypeError(f"env_id must be a string, got {env_id!r}")
    module, _, registered_id = env_id.rpartition(":")
    try:
        return EnvId(module or None, *parse_env_id(registered_id))
    except gym.error.Error as error:
        raise ValueError(f"env_id must look like [module:][namespace/]name-v0, got {env_id!r}") from error


def import_module(module: str, env_id: str) -> None:
    """Import the module that ``env_id`` names, which is to register the environment."""
    # `python agents/script.py` looks for modules beside the script, but one's own are where one works. Last, so that
    # they hide nothing that is installed. Workers of `--env-engine async` are given this list, too.
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    try:
        importlib.import_module(module)
    except Exception as error:  # whatever it raises
        problem = f"{type(error).__name__}: {error}"
        raise ValueError(f"env_id {env_id!r} names a module that cannot be imported: {problem}") from error


def working_ids(parsed: EnvId) -> list[str]:
    """Ids of that name that do not need mujoco_py, lowest version first; asks the robotics package if need be.

    That one is an optional extra that is slow to import, and registers its environments when it is.
    """
    if found := registered_ids(parsed):
        return found
    # Its import prints a notice about environments that nobody asked for.
    with contextlib.suppress(ImportError), contextlib.redirect_stderr(io.StringIO()):
        importlib.import_module("gymnasium_robotics")
    return registered_ids(parsed)


def registered_ids(parsed: EnvId) -> list[str]:
    """The same of what is registered by now."""
    return [spec.id for spec in _working_specs() if (spec.namespace, spec.name) == (parsed.namespace, parsed.name)]


def _working_specs() -> list[EnvSpec]:
    """Every registered environment that does not need mujoco_py, lowest version first."""
    specs = [spec for spec in gym.registry.values() if not _needs_mujoco_py(spec)]
    return sorted(specs, key=lambda spec: -1 if spec.version is None else spec.version)


def _needs_mujoco_py(spec: EnvSpec) -> bool:
    """Old MuJoCo environments stay registered and fail only when they are made."""
    if not isinstance(spec.entry_point, str):
        return getattr(spec.entry_point, "__name__", "") == "_raise_mujoco_py_error"  # Gymnasium's own placeholder
    module, _, class_name = spec.entry_point.partition(":")
    return module.startswith("gymnasium_robotics.envs.mujoco.") or class_name.startswith("MujocoPy")


def unknown_environment(env_id: str, parsed: EnvId) -> str:
    """The error for a name that nobody registered, with the ids that look like it."""
    newest = {get_env_id(spec.namespace, spec.name, None): spec.id for spec in _working_specs()}
    close = difflib.get_close_matches(get_env_id(parsed.namespace, parsed.name, None), newest, n=5)
    prefix = "" if parsed.module is None else f"{parsed.module}:"
    hint = f"close matches: {', '.join(prefix + newest[name] for name in close)}" if close else "no name comes close"
    unregistered = "" if parsed.module is None else f" (importing {parsed.module} does not register it)"
    return f"no environment is named {env_id!r}{unregistered}; {hint}"
