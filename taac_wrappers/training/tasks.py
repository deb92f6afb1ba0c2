"""The paper's 14 tasks in 5 categories with every setting, and the environment id that stands for each of them today.

Where a number comes from: the paper's table of hyperparameters, and for what that table leaves out (frames collected
before learning, clamps of the policy's log standard deviation, evaluation intervals) the configuration files that its
authors released.

>>> settings_for("MountainCarContinuous-v0").learning_rate
0.0001
>>> TASKS["BipedalWalker-v2"].env_id
'BipedalWalker-v3'
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import io
import os
import platform
import re
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import Any, Literal

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, get_env_id, parse_env_id


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How one category of tasks is trained. Every count is in frames over all environments together."""

    category: str
    total_frames: int
    num_envs: int
    learning_rate: float
    gamma: float
    buffer_size: int
    """Frames kept (the paper's size per actor times the number of actors)."""
    batch_size: int
    """Windows per update."""
    window: int
    """N: transitions per window, the longest backup."""
    tau: float
    """Share of the online critic that enters the target critic at a target update."""
    target_interval: int
    """Gradient updates between two target updates."""
    frames_per_iteration: int
    """Frames collected between two rounds of updates (the paper's unroll length times the number of actors)."""
    updates_per_iteration: int
    learning_starts: int
    """Frames collected with random actions before the first update."""
    reward_clip: float | None
    """Rewards are normalized and clipped to +-this; None: used as they are."""
    action_delta: float
    """Share of each action's range that the entropy target lets the policy spread over."""
    switch_delta: float
    """Probability that the entropy target leaves to the less likely of acting and repeating."""
    hidden: tuple[int, ...]
    log_std_min: float
    log_std_max: float = 2.0
    clip_advantage: bool
    """Clip Q(new) - Q(repeat) to at least 0, which biases the switch towards acting."""
    eval_interval: int
    eval_episodes: int
    her: float = 0.0
    """Share of the sampled windows that get a goal in hindsight."""
    target_range: tuple[float, float] | None = None
    """Targets are clamped to these possible returns."""


_SIMPLE_CONTROL = Settings(
    category="SimpleControl",
    total_frames=100_000,
    num_envs=1,
    learning_rate=1e-4,
    gamma=0.99,
    buffer_size=100_000,
    batch_size=256,
    window=3,
    tau=0.005,
    target_interval=1,
    frames_per_iteration=1,
    updates_per_iteration=1,
    learning_starts=10_000,
    reward_clip=5.0,
    action_delta=0.1,
    switch_delta=0.05,
    hidden=(256, 256),
    log_std_min=-20.0,
    clip_advantage=False,
    eval_interval=2_500,
    eval_episodes=10,
)

SETTINGS: dict[str, Settings] = {
    "SimpleControl": _SIMPLE_CONTROL,
    # The paper trains for 1e6 frames; its released configuration says 3e6. Scores at the two are not comparable.
    "Locomotion": replace(
        _SIMPLE_CONTROL,
        category="Locomotion",
        total_frames=1_000_000,
        learning_rate=3e-4,
        buffer_size=1_000_000,
        learning_starts=50_000,
        reward_clip=None,
        action_delta=0.184,
        log_std_min=-10.0,
        clip_advantage=True,
        eval_interval=20_000,
        eval_episodes=20,
    ),
    "Terrain": replace(
        _SIMPLE_CONTROL,
        category="Terrain",
        total_frames=5_000_000,
        num_envs=32,
        learning_rate=5e-4,
        buffer_size=32 * 100_000,
        batch_size=4096,
        window=5,
        frames_per_iteration=32 * 5,
        learning_starts=20_000,
        reward_clip=1.0,
        eval_interval=32_000,
    ),
    "Manipulation": replace(
        _SIMPLE_CONTROL,
        category="Manipulation",
        total_frames=10_000_000,
        num_envs=38,
        learning_rate=1e-3,
        gamma=0.98,
        buffer_size=38 * 20_000,
        batch_size=4864,
        tau=0.05,
        target_interval=40,
        frames_per_iteration=38 * 50,
        updates_per_iteration=40,
        reward_clip=1.0,
        action_delta=0.2,
        hidden=(256, 256, 256),
        eval_interval=114_000,
    ),
    # Evaluation is off in the released configuration, which carries these values unused (5000 iterations, 20 episodes).
    "Driving": replace(
        _SIMPLE_CONTROL,
        category="Driving",
        total_frames=10_000_000,
        num_envs=4,
        buffer_size=4 * 100_000,
        batch_size=64,
        window=5,
        frames_per_iteration=4 * 10,
        hidden=(256,),
        log_std_min=-10.0,
        eval_interval=200_000,
        eval_episodes=20,
    ),
    # Any other environment. Its reward scale is unknown and repeating may pay, so rewards are normalized and advantages
    # not clipped, as in SimpleControl; learning rate, frames, buffer and evaluation interval are Locomotion's, because
    # a hundred thousand frames would be too few for most tasks.
    "Other": replace(
        _SIMPLE_CONTROL,
        category="Other",
        total_frames=1_000_000,
        learning_rate=3e-4,
        buffer_size=1_000_000,
        eval_interval=20_000,
    ),
}

LAPTOP: dict[str, Settings] = {
    # One update for every four frames instead of 48, but of a twentieth of the transitions, and hindsight. Without
    # normalization rewards are -1 and 0, so that a return is between -1 / (1 - gamma) and 0.
    "Manipulation": replace(
        SETTINGS["Manipulation"],
        total_frames=1_000_000,
        num_envs=8,
        buffer_size=1_000_000,
        batch_size=256,
        tau=0.005,
        target_interval=1,
        frames_per_iteration=4,
        updates_per_iteration=1,
        learning_starts=2_000,
        reward_clip=None,
        eval_interval=20_000,
        her=0.8,
        target_range=(-50.0, 0.0),
    ),
    "Terrain": replace(
        SETTINGS["Terrain"],
        total_frames=1_000_000,
        num_envs=4,
        learning_rate=3e-4,
        buffer_size=1_000_000,
        batch_size=256,
        frames_per_iteration=2,
        learning_starts=10_000,
        eval_interval=20_000,
    ),
}
"""Of the categories whose settings in the paper keep a CPU busy for days: what learns there within an evening."""

SettingsName = Literal["paper", "laptop"]
SETTINGS_NAMES: tuple[SettingsName, ...] = ("paper", "laptop")


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task of the paper, and the environment that is closest to it today."""

    paper_id: str
    env_id: str
    category: str
    action_size: int
    observation_size: int | None
    """Entries of the flattened observation today; None where it is not a vector."""
    time_limit: int | None
    """Frames per episode; None where the environment decides for each episode."""
    make_kwargs: Mapping[str, Any] = field(default_factory=dict)


def _tasks() -> dict[str, Task]:
    def task(
        category: str, paper_id: str, env_id: str, sizes: tuple[int, int], time_limit: int, **make_kwargs: Any
    ) -> Task:
        observation_size, action_size = sizes
        return Task(
            paper_id=paper_id,
            env_id=env_id,
            category=category,
            observation_size=observation_size,
            action_size=action_size,
            time_limit=time_limit,
            make_kwargs=make_kwargs,
        )

    # Under the paper's MuJoCo 2.0 the 84 contact entries of Ant were always zero, and so was their cost.
    no_contacts = {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0}
    tasks = [
        task("SimpleControl", "MountainCarContinuous-v0", "MountainCarContinuous-v0", (2, 1), 999),
        task("SimpleControl", "LunarLanderContinuous-v2", "LunarLanderContinuous-v3", (8, 2), 1000),
        task("SimpleControl", "InvertedDoublePendulum-v2", "InvertedDoublePendulum-v5", (9, 1), 1000),
        task("Locomotion", "Hopper-v2", "Hopper-v5", (11, 3), 1000),
        task("Locomotion", "Ant-v2", "Ant-v5", (27, 8), 1000, **no_contacts),
        task("Locomotion", "Walker2d-v2", "Walker2d-v4", (17, 6), 1000),  # v5 changed a foot's friction
        task("Locomotion", "HalfCheetah-v2", "HalfCheetah-v5", (17, 6), 1000),
        task("Terrain", "BipedalWalker-v2", "BipedalWalker-v3", (24, 4), 1600),
        task("Terrain", "BipedalWalkerHardcore-v2", "BipedalWalkerHardcore-v3", (24, 4), 2000),
        task("Manipulation", "FetchReach-v1", "FetchReach-v4", (13, 4), 50),
        task("Manipulation", "FetchPush-v1", "FetchPush-v4", (28, 4), 50),
        task("Manipulation", "FetchSlide-v1", "FetchSlide-v4", (28, 4), 50),
        task("Manipulation", "FetchPickAndPlace-v1", "FetchPickAndPlace-v4", (28, 4), 50),
        Task(
            paper_id="Town01",
            env_id="Town01-v0",
            category="Driving",
            observation_size=None,
            action_size=4,
            time_limit=None,
        ),
    ]
    return {task.paper_id: task for task in tasks}


TASKS: dict[str, Task] = _tasks()
_TASK_BY_NAME = {parse_env_id(task.paper_id)[1]: task for task in TASKS.values()}


def resolve_env_id(env_id: str) -> str:
    """The registered environment to use where ``env_id`` was asked for, with a warning where the two differ.

    An id that is registered and works is kept. A paper id stands for its task's environment of today. Any other version
    that is gone, or that needs the abandoned ``mujoco_py``, becomes the highest working version of the same name. So
    does a name without a version, without a warning. ``"module:Name-v0"`` imports ``module`` first, which is to
    register the environment.

    >>> resolve_env_id("HalfCheetah-v4")
    'HalfCheetah-v4'
    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     resolve_env_id("LunarLanderContinuous-v2")
    'LunarLanderContinuous-v3'
    >>> print(caught[0].message)
    LunarLanderContinuous-v2 is not available: using LunarLanderContinuous-v3
    >>> resolve_env_id("BipedalWalkr-v3")
    Traceback (most recent call last):
      ...
    ValueError: no environment is named 'BipedalWalkr-v3'; close matches: BipedalWalker-v3, BipedalWalkerHardcore-v3
    """
    resolved = _resolve(env_id)
    if resolved != env_id and _parse(env_id).version is not None:
        warnings.warn(f"{env_id} is not available: using {resolved}", UserWarning, stacklevel=2)
    return resolved


def settings_for(env_id: str, settings: SettingsName = "paper") -> Settings:
    """The settings of the task's category; those of ``"Other"`` for an environment the paper did not use.

    A task is known by its name, so every version of it has the same settings, installed or not. With ``"laptop"``,
    those that suit a computer without an accelerator, where the paper's do not.

    >>> settings_for("FetchPush-v2").category, settings_for("Pendulum-v1").category
    ('Manipulation', 'Other')
    >>> settings_for("FetchPush-v2").batch_size, settings_for("FetchPush-v2", "laptop").batch_size
    (4864, 256)
    """
    task = _task_of(env_id)
    if task is not None:
        of_paper = SETTINGS[task.category]
        return LAPTOP.get(task.category, of_paper) if settings == "laptop" else of_paper
    _resolve(env_id)  # an environment that does not exist has no settings
    return SETTINGS["Other"]


def settings_by_default(env_id: str, has_accelerator: bool) -> SettingsName:
    """The paper's, unless there are others for a computer like this one.

    >>> settings_by_default("FetchPush-v2", has_accelerator=False), settings_by_default("Hopper-v5", False)
    ('laptop', 'paper')
    """
    has_others = settings_for(env_id, "laptop") is not settings_for(env_id)
    return "laptop" if has_others and not has_accelerator else "paper"


def make_kwargs_for(env_id: str) -> dict[str, Any]:
    """Arguments of ``gym.make`` that bring today's environment closest to the paper's task.

    >>> make_kwargs_for("Ant-v2")
    {'include_cfrc_ext_in_observation': False, 'contact_cost_weight': 0}
    """
    task = _task_of(env_id)
    if task is None or not task.make_kwargs or _resolve(env_id) != task.env_id:  # other versions take other arguments
        return {}
    return dict(task.make_kwargs)


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


@dataclass(frozen=True)
class _ParsedId:
    """The parts of ``[module:][namespace/]name[-v<version>]``."""

    module: str | None
    namespace: str | None
    name: str
    version: int | None


def _parse(env_id: str) -> _ParsedId:
    if not isinstance(env_id, str):
        raise TypeError(f"env_id must be a string, got {env_id!r}")
    module, _, registered_id = env_id.rpartition(":")
    try:
        return _ParsedId(module or None, *parse_env_id(registered_id))
    except gym.error.Error as error:
        raise ValueError(f"env_id must look like [module:][namespace/]name-v0, got {env_id!r}") from error


def _task_of(env_id: str) -> Task | None:
    """The paper's task of that name, whatever the version."""
    parsed = _parse(env_id)
    return _TASK_BY_NAME.get(parsed.name) if parsed.module is None and parsed.namespace is None else None


def _resolve(env_id: str) -> str:
    """:func:`resolve_env_id` without its warning."""
    parsed = _parse(env_id)
    if parsed.module is not None:
        _import_module(parsed.module, env_id)
    working = _working_ids(parsed) or _working_ids_with_robotics(parsed)
    if not working:
        check_simulators(env_id)  # a name that only an extra registers is no typing error
        raise ValueError(_unknown_environment(env_id, parsed))
    if env_id in TASKS and TASKS[env_id].env_id in working:
        return TASKS[env_id].env_id
    asked = get_env_id(parsed.namespace, parsed.name, parsed.version)
    chosen = asked if asked in working else working[-1]
    return chosen if parsed.module is None else f"{parsed.module}:{chosen}"


def _import_module(module: str, env_id: str) -> None:
    # `python agents/script.py` looks for modules beside the script, but one's own are where one works. Last, so that
    # they hide nothing that is installed. Workers of `--env-engine async` are given this list, too.
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    try:
        importlib.import_module(module)
    except Exception as error:  # whatever it raises
        problem = f"{type(error).__name__}: {error}"
        raise ValueError(f"env_id {env_id!r} names a module that cannot be imported: {problem}") from error


def _working_ids(parsed: _ParsedId) -> list[str]:
    """Registered ids of that name that do not need mujoco_py, lowest version first."""
    return [spec.id for spec in _working_specs() if (spec.namespace, spec.name) == (parsed.namespace, parsed.name)]


def _working_ids_with_robotics(parsed: _ParsedId) -> list[str]:
    """The same once the robotics package, an optional extra that is slow to import, has registered its own."""
    # Its import prints a notice about environments that nobody asked for.
    with contextlib.suppress(ImportError), contextlib.redirect_stderr(io.StringIO()):
        importlib.import_module("gymnasium_robotics")
    return _working_ids(parsed)


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


def _unknown_environment(env_id: str, parsed: _ParsedId) -> str:
    """The error for a name that nobody registered, with the ids that look like it."""
    newest = {get_env_id(spec.namespace, spec.name, None): spec.id for spec in _working_specs()}
    close = difflib.get_close_matches(get_env_id(parsed.namespace, parsed.name, None), newest, n=5)
    prefix = "" if parsed.module is None else f"{parsed.module}:"
    hint = f"close matches: {', '.join(prefix + newest[name] for name in close)}" if close else "no name comes close"
    unregistered = "" if parsed.module is None else f" (importing {parsed.module} does not register it)"
    return f"no environment is named {env_id!r}{unregistered}; {hint}"


def _simulators_of(env_id: str) -> tuple[tuple[str, ...], str]:
    """The packages that run ``env_id``, and the extra that installs them."""
    parsed = _parse(env_id)
    # By name: without the extra these are not registered at all.
    if parsed.module is None and parsed.namespace is None and parsed.name.startswith(("Fetch", "Hand")):
        return ("gymnasium-robotics", "mujoco"), "robotics"
    entry_points = [str(gym.registry[working].entry_point) for working in _working_ids(parsed)]
    for prefix, package in (("gymnasium.envs.mujoco.", "mujoco"), ("gymnasium.envs.box2d.", "box2d")):
        if any(entry_point.startswith(prefix) for entry_point in entry_points):
            return (package,), package
    return (), ""


def _major_minor(version: str) -> tuple[int, int]:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None:
        raise ValueError(f"version must start with two numbers, got {version!r}")
    return int(numbers[1]), int(numbers[2])
