"""The paper's 14 tasks in 5 categories with every setting, and the environment that stands for each of them today.

Where a number comes from: the paper's table of hyperparameters, and for what that table leaves out (frames collected
before learning, clamps of the policy's log standard deviation, evaluation intervals) the configuration files that its
authors released.

>>> settings_for("MountainCarContinuous-v0").learning_rate
0.0001
>>> TASKS["BipedalWalker-v2"].env_id
'BipedalWalker-v3'
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gymnasium.envs.registration import get_env_id

from taac_wrappers.training.env_ids import import_module, parse, unknown_environment, working_ids
from taac_wrappers.training.simulators import check_simulators


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How one category of tasks is trained; the defaults are SimpleControl's.

    Every count is in frames over all environments together.
    """

    category: str
    total_frames: int = 100_000
    num_envs: int = 1
    learning_rate: float = 1e-4
    gamma: float = 0.99
    buffer_size: int = 100_000
    """Frames kept (the paper's size per actor times the number of actors)."""
    batch_size: int = 256
    """Windows per update."""
    window: int = 3
    """N: transitions per window, the longest backup."""
    tau: float = 0.005
    """Share of the online critic that enters the target critic at a target update."""
    target_interval: int = 1
    """Gradient updates between two target updates."""
    frames_per_iteration: int = 1
    """Frames collected between two rounds of updates (the paper's unroll length times the number of actors)."""
    updates_per_iteration: int = 1
    learning_starts: int = 10_000
    """Frames collected with random actions before the first update."""
    reward_clip: float | None = 5.0
    """Rewards are normalized and clipped to +-this; None: used as they are."""
    action_delta: float = 0.1
    """Share of each action's range that the entropy target lets the policy spread over."""
    switch_delta: float = 0.05
    """Probability that the entropy target leaves to the less likely of acting and repeating."""
    hidden: tuple[int, ...] = (256, 256)
    log_std_min: float = -20.0
    log_std_max: float = 2.0
    clip_advantage: bool = False
    """Clip Q(new) - Q(repeat) to at least 0, which biases the switch towards acting."""
    eval_interval: int = 2_500
    eval_episodes: int = 10
    her: float = 0.0
    """Share of the sampled windows that get a goal in hindsight."""
    target_range: tuple[float, float] | None = None
    """TAAC's targets are clamped to these possible returns; those with entropies in them, as SAC's, are none."""


SETTINGS: dict[str, Settings] = {
    "SimpleControl": Settings(category="SimpleControl"),
    # The paper trains for 1e6 frames; its released configuration says 3e6. Scores at the two are not comparable.
    "Locomotion": Settings(
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
    "Terrain": Settings(
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
    "Manipulation": Settings(
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
    "Driving": Settings(
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
    "Other": Settings(
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


@dataclass(frozen=True)
class Task:
    """One task of the paper, and the environment that is closest to it today."""

    category: str
    paper_id: str
    env_id: str
    observation_size: int | None
    """Entries of the flattened observation today; None where it is not a vector."""
    action_size: int
    time_limit: int | None
    """Frames per episode; None where the environment decides for each episode."""
    make_kwargs: Mapping[str, Any] = field(default_factory=dict)


# Under the paper's MuJoCo 2.0 the 84 contact entries of Ant were always zero, and so was their cost.
_NO_CONTACTS = {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0}

_TASKS = [
    Task("SimpleControl", "MountainCarContinuous-v0", "MountainCarContinuous-v0", 2, 1, 999),
    Task("SimpleControl", "LunarLanderContinuous-v2", "LunarLanderContinuous-v3", 8, 2, 1000),
    Task("SimpleControl", "InvertedDoublePendulum-v2", "InvertedDoublePendulum-v5", 9, 1, 1000),
    Task("Locomotion", "Hopper-v2", "Hopper-v5", 11, 3, 1000),
    Task("Locomotion", "Ant-v2", "Ant-v5", 27, 8, 1000, _NO_CONTACTS),
    Task("Locomotion", "Walker2d-v2", "Walker2d-v4", 17, 6, 1000),  # v5 changed a foot's friction
    Task("Locomotion", "HalfCheetah-v2", "HalfCheetah-v5", 17, 6, 1000),
    Task("Terrain", "BipedalWalker-v2", "BipedalWalker-v3", 24, 4, 1600),
    Task("Terrain", "BipedalWalkerHardcore-v2", "BipedalWalkerHardcore-v3", 24, 4, 2000),
    Task("Manipulation", "FetchReach-v1", "FetchReach-v4", 13, 4, 50),
    Task("Manipulation", "FetchPush-v1", "FetchPush-v4", 28, 4, 50),
    Task("Manipulation", "FetchSlide-v1", "FetchSlide-v4", 28, 4, 50),
    Task("Manipulation", "FetchPickAndPlace-v1", "FetchPickAndPlace-v4", 28, 4, 50),
    Task("Driving", "Town01", "Town01-v0", None, 4, None),
]

TASKS: dict[str, Task] = {task.paper_id: task for task in _TASKS}
_TASK_BY_NAME = {parse(task.paper_id).name: task for task in _TASKS}


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
    if resolved != env_id and parse(env_id).version is not None:
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


def _task_of(env_id: str) -> Task | None:
    """The paper's task of that name, whatever the version."""
    parsed = parse(env_id)
    return _TASK_BY_NAME.get(parsed.name) if parsed.module is None and parsed.namespace is None else None


def _resolve(env_id: str) -> str:
    """:func:`resolve_env_id` without its warning."""
    parsed = parse(env_id)
    if parsed.module is not None:
        import_module(parsed.module, env_id)
    working = working_ids(parsed)
    if not working:
        check_simulators(env_id)  # a name that only an extra registers is no typing error
        raise ValueError(unknown_environment(env_id, parsed))
    if env_id in TASKS and TASKS[env_id].env_id in working:
        return TASKS[env_id].env_id
    asked = get_env_id(parsed.namespace, parsed.name, parsed.version)
    chosen = asked if asked in working else working[-1]
    return chosen if parsed.module is None else f"{parsed.module}:{chosen}"
