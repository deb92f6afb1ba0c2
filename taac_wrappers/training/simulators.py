"""Which simulators are installed, and whether they can run an environment."""

from __future__ import annotations

import functools
import platform
import re
from collections.abc import Mapping
from importlib import metadata

import gymnasium as gym

from taac_wrappers.training.env_ids import parse, registered_ids

_ROBOTICS_MUJOCO = "mujoco>=3.5,<3.12"
_FIRST_BROKEN_MUJOCO = (3, 12)


def check_simulators(env_id: str, versions: Mapping[str, str] | None = None) -> None:
    """Raise ValueError, saying what to install, if the simulator behind ``env_id`` is missing or known not to work.

    Args:
        env_id: the environment asked for.
        versions: installed versions as :func:`simulator_versions` gives them (the default).

    >>> check_simulators("FetchPush-v4", {"gymnasium-robotics": "1.4.2", "mujoco": "4.0.0"})
    Traceback (most recent call last):
      ...
    ValueError: FetchPush-v4 needs mujoco>=3.5,<3.12, got mujoco 4.0.0: pip install "taac-wrappers[robotics]"
    """
    versions = simulator_versions() if versions is None else versions
    needed, extra = _simulators_of(env_id)
    for package in needed:
        if package not in versions:
            raise ValueError(f'{env_id} needs {package}, which is not installed: pip install "taac-wrappers[{extra}]"')
    if extra == "robotics" and _major_minor(versions["mujoco"]) >= _FIRST_BROKEN_MUJOCO:
        raise ValueError(
            f'{env_id} needs {_ROBOTICS_MUJOCO}, got mujoco {versions["mujoco"]}: pip install "taac-wrappers[robotics]"'
        )


def simulator_versions() -> dict[str, str]:
    """Versions of Python and of the installed packages that decide how an environment and a training run behave.

    >>> simulator_versions()["gymnasium"] == gym.__version__
    True
    """
    packages = ("taac-wrappers", "gymnasium", "gymnasium-robotics", "mujoco", "box2d", "envpool", "numpy", "torch")
    installed = {package: _installed_version(package) for package in packages}
    return {"python": platform.python_version()} | {name: version for name, version in installed.items() if version}


@functools.cache
def _installed_version(package: str) -> str | None:
    """Looked up once: every environment that is made asks for them, and each lookup reads files."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _simulators_of(env_id: str) -> tuple[tuple[str, ...], str]:
    """The packages that run ``env_id``, and the extra that installs them."""
    parsed = parse(env_id)
    # By name: without the extra these are not registered at all.
    if parsed.module is None and parsed.namespace is None and parsed.name.startswith(("Fetch", "Hand")):
        return ("gymnasium-robotics", "mujoco"), "robotics"
    entry_points = [str(gym.registry[working].entry_point) for working in registered_ids(parsed)]
    for prefix, package in (("gymnasium.envs.mujoco.", "mujoco"), ("gymnasium.envs.box2d.", "box2d")):
        if any(entry_point.startswith(prefix) for entry_point in entry_points):
            return (package,), package
    return (), ""


def _major_minor(version: str) -> tuple[int, int]:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None:
        raise ValueError(f"version must start with two numbers, got {version!r}")
    return int(numbers[1]), int(numbers[2])
