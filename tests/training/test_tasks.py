"""The paper's table of tasks and settings, and which installed environment stands for an id."""

import dataclasses
import subprocess
import sys
import warnings
from collections import Counter
from importlib import metadata

import gymnasium as gym
import pytest

from taac_wrappers.training import simulators
from taac_wrappers.training.simulators import check_simulators, simulator_versions
from taac_wrappers.training.tasks import (
    LAPTOP,
    SETTINGS,
    TASKS,
    make_kwargs_for,
    resolve_env_id,
    settings_by_default,
    settings_for,
)

# One column per category, in the units of the paper's table (buffer, unroll and frames between evaluations per actor).
PAPER = {
    "category": ("SimpleControl", "Terrain", "Driving", "Manipulation", "Locomotion"),
    "learning_rate": (1e-4, 5e-4, 1e-4, 1e-3, 3e-4),
    "gamma": (0.99, 0.99, 0.99, 0.98, 0.99),
    "num_envs": (1, 32, 4, 38, 1),
    "buffer_size per actor": (1e5, 1e5, 1e5, 2e4, 1e6),
    "batch_size": (256, 4096, 64, 4864, 256),
    "window": (3, 5, 5, 3, 3),
    "action_delta": (0.1, 0.1, 0.1, 0.2, 0.184),
    "switch_delta": (0.05, 0.05, 0.05, 0.05, 0.05),
    "tau": (0.005, 0.005, 0.005, 0.05, 0.005),
    "target_interval": (1, 1, 1, 40, 1),
    "frames_per_iteration per actor": (1, 5, 10, 50, 1),
    "updates_per_iteration": (1, 1, 1, 40, 1),
    "total_frames": (1e5, 5e6, 1e7, 1e7, 1e6),
    "learning_starts": (10_000, 20_000, 10_000, 10_000, 50_000),
    "reward_clip": (5, 1, 5, 1, None),
    "hidden": ((256, 256), (256, 256), (256,), (256, 256, 256), (256, 256)),
    "log_std_min": (-20, -20, -10, -20, -10),
    "log_std_max": (2, 2, 2, 2, 2),
    "clip_advantage": (False, False, False, False, True),
    "eval_interval per actor": (2_500, 1_000, 50_000, 3_000, 20_000),
    "eval_episodes": (10, 10, 20, 10, 20),
    "her": (0, 0, 0, 0, 0),
    "target_range": (None, None, None, None, None),
}


@pytest.mark.parametrize("column", range(5))
def test_settings_are_those_of_the_paper(column):
    settings = SETTINGS[PAPER["category"][column]]
    for row, values in PAPER.items():
        name, _, per_actor = row.partition(" ")
        scale = settings.num_envs if per_actor else 1
        assert getattr(settings, name) == (values[column] * scale if per_actor else values[column]), row
    assert {row.partition(" ")[0] for row in PAPER} == {field.name for field in dataclasses.fields(settings)}


def test_settings_for_a_laptop_are_of_the_same_task_but_lighter():
    """Networks, windows and discount are the paper's; an update costs less, and frames are fewer."""
    for category, laptop in LAPTOP.items():
        paper = SETTINGS[category]
        for name in ("category", "gamma", "window", "hidden", "action_delta", "switch_delta", "log_std_min"):
            assert getattr(laptop, name) == getattr(paper, name), name
        for name in ("total_frames", "batch_size", "num_envs"):
            assert getattr(laptop, name) < getattr(paper, name), name
    low, high = LAPTOP["Manipulation"].target_range
    assert (low, high) == (pytest.approx(-1 / (1 - LAPTOP["Manipulation"].gamma)), 0)  # rewards are -1 and 0


@pytest.mark.parametrize(
    ("env_id", "without", "with_accelerator"),
    [
        ("FetchPush-v2", "laptop", "paper"),
        ("BipedalWalker-v3", "laptop", "paper"),
        ("HalfCheetah-v5", "paper", "paper"),
        ("Pendulum-v1", "paper", "paper"),
    ],
)
def test_which_settings_are_the_default(env_id, without, with_accelerator):
    assert settings_by_default(env_id, has_accelerator=False) == without
    assert settings_by_default(env_id, has_accelerator=True) == with_accelerator


def test_counts_are_integers():
    for settings in [*SETTINGS.values(), *LAPTOP.values()]:
        for field in dataclasses.fields(settings):
            assert field.type != "int" or type(getattr(settings, field.name)) is int


def test_other_environments_differ_from_simple_control_only_in_what_is_documented():
    simple, other = dataclasses.asdict(SETTINGS["SimpleControl"]), dataclasses.asdict(SETTINGS["Other"])
    changed = {name for name in simple if simple[name] != other[name]}
    assert changed == {"category", "total_frames", "learning_rate", "buffer_size", "eval_interval"}
    locomotion = dataclasses.asdict(SETTINGS["Locomotion"])
    assert all(other[name] == locomotion[name] for name in changed - {"category"})


def test_there_are_fourteen_tasks_in_five_categories():
    assert Counter(task.category for task in TASKS.values()) == {
        "SimpleControl": 3,
        "Locomotion": 4,
        "Terrain": 2,
        "Manipulation": 4,
        "Driving": 1,
    }
    assert all(task.paper_id == paper_id for paper_id, task in TASKS.items())


@pytest.mark.parametrize(
    ("asked", "resolved"),
    [
        ("FetchPush-v2", "FetchPush-v4"),  # not registered
        ("FetchPush-v1", "FetchPush-v4"),  # registered, needs mujoco_py
        ("FetchPushDense-v3", "FetchPushDense-v4"),
        ("Hopper-v2", "Hopper-v5"),
        ("Hopper-v3", "Hopper-v5"),
        ("Walker2d-v2", "Walker2d-v4"),  # the paper's: not the highest
        ("Walker2d-v3", "Walker2d-v5"),
        ("HandReach-v0", "HandReach-v3"),
        ("BipedalWalker-v2", "BipedalWalker-v3"),
        ("Pendulum-v7", "Pendulum-v1"),
    ],
)
def test_outdated_ids_resolve_with_one_warning(asked, resolved):
    with pytest.warns(UserWarning, match="not available") as caught:
        assert resolve_env_id(asked) == resolved
    assert [str(warning.message) for warning in caught] == [f"{asked} is not available: using {resolved}"]


@pytest.mark.parametrize(
    ("asked", "resolved"),
    [
        ("Walker2d-v4", "Walker2d-v4"),
        ("Walker2d-v5", "Walker2d-v5"),
        ("MountainCarContinuous-v0", "MountainCarContinuous-v0"),
        ("FetchReach-v4", "FetchReach-v4"),
        ("FetchPush", "FetchPush-v4"),
        ("Walker2d", "Walker2d-v5"),
        ("gymnasium_robotics:FetchSlide-v4", "gymnasium_robotics:FetchSlide-v4"),
    ],
)
def test_other_ids_resolve_without_a_warning(asked, resolved):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve_env_id(asked) == resolved


def test_every_task_of_a_simulator_resolves_to_its_environment_of_today():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        resolved = {paper_id: resolve_env_id(paper_id) for paper_id in TASKS if paper_id != "Town01"}
    assert resolved == {paper_id: TASKS[paper_id].env_id for paper_id in resolved}


def test_placeholders_of_gymnasium_without_robotics_are_not_usable(monkeypatch):
    def _raise_mujoco_py_error():
        raise ImportError

    monkeypatch.setitem(gym.registry, "Hopper-v3", gym.envs.registration.EnvSpec("Hopper-v3", _raise_mujoco_py_error))
    with pytest.warns(UserWarning, match="using Hopper-v5"):
        assert resolve_env_id("Hopper-v3") == "Hopper-v5"


def test_town01_resolves_once_it_is_registered(monkeypatch):
    monkeypatch.setitem(gym.registry, "Town01-v0", gym.envs.registration.EnvSpec("Town01-v0", "nowhere:Town01"))
    assert resolve_env_id("Town01") == "Town01-v0"


def test_a_module_prefix_is_imported(tmp_path, monkeypatch):
    (tmp_path / "registering_module.py").write_text(
        "import gymnasium\ngymnasium.register('made/Thing-v2', entry_point='nowhere:Thing')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert resolve_env_id("registering_module:made/Thing-v2") == "registering_module:made/Thing-v2"
        with pytest.warns(UserWarning, match="using registering_module:made/Thing-v2"):
            assert resolve_env_id("registering_module:made/Thing-v1") == "registering_module:made/Thing-v2"
    finally:
        gym.registry.pop("made/Thing-v2", None)
        sys.modules.pop("registering_module", None)


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """The current folder holds a module, which nothing that is imported here can find yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    yield tmp_path / "own_module.py"
    gym.registry.pop("Own-v0", None)
    sys.modules.pop("own_module", None)


def test_a_module_is_found_in_the_current_folder(own_module):
    own_module.write_text("import gymnasium\ngymnasium.register('Own-v0', 'nowhere:Own')\n")
    assert resolve_env_id("own_module:Own-v0") == "own_module:Own-v0"
    assert sys.path[-1] == str(own_module.parent)  # last: it hides nothing
    length = len(sys.path)
    assert settings_for("own_module:Own").category == "Other"
    assert len(sys.path) == length
    with pytest.raises(
        ValueError,
        match=r"no environment is named 'own_module:Onw-v0' \(importing own_module does not register it\); "
        "close matches: own_module:Own-v0",
    ):
        resolve_env_id("own_module:Onw-v0")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def", "SyntaxError: "),
        ("import nowhere", "ModuleNotFoundErr"),
    ],
)
def test_a_module_that_cannot_be_imported(own_module, text, problem):
    own_module.write_text(text)
    with pytest.raises(ValueError, match=f"'own_module:Own-v0' names a module that cannot be imported: {problem}"):
        resolve_env_id("own_module:Own-v0")


@pytest.mark.parametrize(
    ("env_id", "error", "message"),
    [
        ("FetchPsh-v4", ValueError, "no environment is named 'FetchPsh-v4'; close matches: FetchPush-v4"),
        ("HalfCheeta-v5", ValueError, "close matches: HalfCheetah-v5"),
        ("Zzzzzz-v0", ValueError, "no environment is named 'Zzzzzz-v0'; no name comes close"),
        ("wrong/Pendulum-v1", ValueError, "no environment is named 'wrong/Pendulum-v1'"),
        (
            "no_such_module:Pendulum-v1",
            ValueError,
            "'no_such_module:Pendulum-v1' names a module that cannot be imported",
        ),
        ("half cheetah!", ValueError, "env_id must look like .* got 'half cheetah!'"),
        ("", ValueError, "got ''"),
        (5, TypeError, "env_id must be a string, got 5"),
    ],
)
def test_unknown_environments_are_refused(env_id, error, message):
    for function in (resolve_env_id, settings_for):
        with pytest.raises(error, match=message):
            function(env_id)


def test_settings_go_by_name_whatever_the_version():
    assert settings_for("FetchPush-v2") is settings_for("FetchPush-v4") is SETTINGS["Manipulation"]
    assert settings_for("Ant") is SETTINGS["Locomotion"]
    assert settings_for("BipedalWalkerHardcore-v3") is SETTINGS["Terrain"]
    assert settings_for("Town01") is SETTINGS["Driving"]
    assert settings_for("FetchPushDense-v4") is SETTINGS["Other"]


def test_make_kwargs_belong_to_the_environment_of_today():
    expected = {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0}
    kwargs = make_kwargs_for("Ant-v5")
    assert kwargs == expected
    kwargs.clear()
    assert make_kwargs_for("Ant-v2") == expected  # the table was not changed with it
    assert make_kwargs_for("Ant-v4") == {}  # has no such arguments
    assert make_kwargs_for("Hopper-v5") == make_kwargs_for("Pendulum-v1") == {}


ROBOTICS = {"gymnasium-robotics": "1.4.2", "mujoco": "3.11.0"}


@pytest.mark.parametrize("version", ["3.5.0", "3.11.0", "3.11.9rc1"])
def test_working_simulators_pass(version):
    check_simulators("FetchPush-v4", {**ROBOTICS, "mujoco": version})
    check_simulators("HalfCheetah-v5", {"mujoco": "4.0.0"})  # only the robotics environments break
    check_simulators("MountainCarContinuous-v0", {})


@pytest.mark.parametrize(
    ("env_id", "versions", "message"),
    [
        ("FetchPush-v2", {**ROBOTICS, "mujoco": "3.12.0"}, "FetchPush-v2 needs mujoco>=3.5,<3.12, got mujoco 3.12.0"),
        ("HandReach-v3", {**ROBOTICS, "mujoco": "4.0.0"}, "HandReach-v3 needs mujoco>=3.5,<3.12, got mujoco 4.0.0"),
        ("FetchReach", {"mujoco": "3.11.0"}, 'needs gymnasium-robotics, .* pip install "taac-wrappers.robotics."'),
        ("FetchReach-v4", {"gymnasium-robotics": "1"}, 'needs mujoco, .* pip install "taac-wrappers.robotics."'),
        ("Hopper-v2", {}, 'Hopper-v2 needs mujoco, .* pip install "taac-wrappers.mujoco."'),
        ("BipedalWalker-v3", {}, 'BipedalWalker-v3 needs box2d, .* pip install "taac-wrappers.box2d."'),
        ("FetchPush-v4", {**ROBOTICS, "mujoco": "unknown"}, "got 'unknown'"),
    ],
)
def test_missing_and_broken_simulators_are_named(env_id, versions, message):
    with pytest.raises(ValueError, match=message):
        check_simulators(env_id, versions)


def test_a_task_whose_extra_is_missing_is_not_called_a_typing_error(monkeypatch):
    without = {env_id: spec for env_id, spec in gym.registry.items() if not env_id.startswith("Fetch")}
    monkeypatch.setattr(gym, "registry", without)
    monkeypatch.setattr(simulators, "simulator_versions", dict)
    with pytest.raises(ValueError, match="FetchPush-v2 needs gymnasium-robotics"):
        resolve_env_id("FetchPush-v2")


def test_versions_are_those_installed(monkeypatch):
    versions = simulator_versions()
    packages = {"taac-wrappers", "gymnasium", "gymnasium-robotics", "mujoco", "box2d", "numpy", "torch"}
    packages |= {"envpool"} if sys.version_info >= (3, 11) else set()
    assert set(versions) == {"python", *packages}
    assert versions["mujoco"] == metadata.version("mujoco")
    assert versions["python"] == ".".join(map(str, sys.version_info[:3]))

    def not_installed(package):
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", not_installed)
    monkeypatch.setattr(simulators, "_installed_version", simulators._installed_version.__wrapped__)  # it remembers
    assert set(simulator_versions()) == {"python"}


def test_core_tasks_need_neither_torch_nor_the_robotics_package():
    program = (
        "import sys; from taac_wrappers.training import tasks, envs, evaluation, metrics;"
        "tasks.resolve_env_id('MountainCarContinuous-v0'); tasks.settings_for('FetchPush-v2');"
        "print([name for name in ('torch', 'gymnasium_robotics', 'mujoco') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
