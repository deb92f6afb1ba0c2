"""The training scripts: every flag, exact resuming, signals, and what they say about bad input.

What the scripts share to the letter (see test_shared_blocks.py) is tried one flag at a time with TAAC, and all at once
with the others; what a script reads in code of its own is tried one flag at a time with that script. What they only
pass on, to the run or to the example, is tried with TAAC and SAC.
"""

from __future__ import annotations

import itertools
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import sac_continuous
import sac_ez_continuous
import sac_hybrid_continuous
import sac_krep_continuous
import sac_nrep_continuous
import sac_ntd_continuous
import taac_continuous
import torch
from gymnasium.spaces import Box
from safetensors.torch import load_file

from taac_wrappers.agent import load_agent
from taac_wrappers.training import hindsight, simulators
from taac_wrappers.training import run as run_module
from taac_wrappers.training.arguments import BadInput, command_line, exit_with, parse
from taac_wrappers.training.config import from_config
from taac_wrappers.training.envs import make_env
from taac_wrappers.training.files import read_config
from taac_wrappers.training.replay import SequenceReplay
from taac_wrappers.training.tracking import read_metrics

AGENTS = Path(__file__).parents[2] / "agents"
plot_curve = run_module.plot_curve


@pytest.fixture(autouse=True)
def no_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes a quarter of a small run's time; those who look at the picture ask for ``curve``."""
    monkeypatch.setattr(run_module, "plot_curve", lambda folder: folder / "curve.png")


@pytest.fixture
def curve(no_curve: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "plot_curve", plot_curve)


class Follow(gym.Env):
    """Follow a target that jumps now and then. Episodes end when a jump is large, or are cut off after ``length``."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None, length: int = 15):
        self.observation_space, self.action_space = Box(-2.0, 2.0, (2,)), Box(0.0, 3.0, (2,))
        self.render_mode, self.length = render_mode, length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.target, self.frame = self.np_random.uniform(-1, 1, 2), 0
        return self.target.astype(np.float32), {}

    def step(self, action: np.ndarray):
        reward = -float(np.abs(self.target - action).sum())
        jump = self.np_random.random() < 0.3
        if jump:
            self.target = self.np_random.uniform(-1, 1, 2)
        self.frame += 1
        lost = bool(jump and self.target[0] > 0.8)
        return self.target.astype(np.float32), reward, lost, self.frame == self.length, {"is_success": not lost}

    def render(self) -> np.ndarray:
        return np.full((32, 32, 3), 10 * self.frame, np.uint8)


gym.register("test_script/Follow-v0", Follow)
FOLLOW = "test_script/Follow-v0"

SMALL = {
    "total_frames": 220,
    "buffer_size": 150,  # less than the frames, so that it wraps
    "batch_size": 16,
    "hidden": (8, 8),
    "learning_starts": 40,
    "frames_per_iteration": 8,
    "eval_interval": 80,
    "eval_episodes": 1,
    "final_episodes": 2,
    "checkpoint_interval": 90,
}

SLOW = {"total_frames": 340, "buffer_size": 120}
"""Changes for environments whose frames take long."""

PROMISED = {
    *("charts/episodic_return", "charts/episodic_length", "charts/SPS"),
    *("charts/frames", "charts/decisions", "charts/updates", "charts/repeat_fraction"),
    *("losses/critic", "losses/actor", "losses/temperature", "losses/q_values"),
    *("losses/action_entropy", "losses/action_temperature"),
    *(f"{when}/{what}" for when in ("eval", "final") for what in ("score", "success", "repeat_fraction", "apr", "afr")),
}
"""Metrics of every script."""

Changes = dict[str, Any]


@dataclass(frozen=True)
class Script:
    """What is tried with a script."""

    module: ModuleType
    promised: set[str]  # its own metrics
    learning: list[Changes]  # changes after which the agent is another one
    looking: list[Changes]  # changes after which it is the same, bit for bit
    not_resumable: list[list[str]]
    bad_input: dict[str, tuple[list[str], str]]
    said: Changes  # flags of its own on the command line
    resumed: Sequence[tuple[str, Changes]] = ()
    signals: Sequence[tuple[int, int]] = ()

    @property
    def path(self) -> Path:
        assert self.module.__file__ is not None
        return Path(self.module.__file__)

    def smoke_args(self, run_dir: Path, env_id: str = FOLLOW, **changes: Any) -> Any:
        return replace(self.module.Args.for_task(env_id), run_dir=run_dir, **SMALL | changes)


TAAC = Script(
    taac_continuous,
    promised={"losses/switch_probability", "losses/switch_entropy", "losses/switch_temperature"},
    learning=[
        {"seed": 7},
        {"env_kwargs": {"length": 9}},
        {"target_range": (-0.1, 0.1)},
        {"num_envs": 3},
        {"batch_size": 24},
        {"buffer_size": 100},
        {"window": 1},
        {"window": 5},
        {"gamma": 0.5},
        {"tau": 0.5},
        {"target_interval": 3},
        {"learning_rate": 3e-3},
        {"learning_starts": 90},
        {"updates_per_iteration": 2},
        {"frames_per_iteration": 3},
        {"frames_per_iteration": 24, "updates_per_iteration": 6, "target_interval": 6, "num_envs": 3},
        {"hidden": (8, 8, 8)},
        {"log_std_min": 0.0},
        {"reward_clip": None},
        {"reward_clip": 0.5},
        {"action_delta": 0.4},
        {"switch_delta": 0.3},
        {"clip_advantage": True},
        {"td_operator": "one-step"},
        {"td_operator": "n-step"},
        {"td_mode": "sampled"},
        {"td_mode": "alf"},
        {"train_on": "all"},
        {"train_on": "all", "td_operator": "one-step"},
        {"train_on": "all", "td_operator": "n-step"},
        {"train_on": "all", "td_mode": "alf", "num_envs": 3},
        {"stop_at_score": -1e9},
        {"total_frames": 150},
    ],
    looking=[
        {"eval_interval": 45, "eval_episodes": 3, "final_episodes": 1},
        {"checkpoint_interval": 17},
        {"capture_video": True},
        {"track": True, "wandb_project": "tests", "wandb_entity": "nobody"},
        {"device": "cpu", "threads": 2},
    ],
    resumed=[
        ("MountainCarContinuous-v0", {"num_envs": 1}),
        # Updates are rare, so that losses are logged that were computed before the interruption.
        ("MountainCarContinuous-v0", {"num_envs": 2, "frames_per_iteration": 200, "updates_per_iteration": 20}),
        ("InvertedDoublePendulum-v5", {"num_envs": 1, "td_mode": "sampled"}),
        ("InvertedDoublePendulum-v5", {"num_envs": 2, "train_on": "all"}),
        # Observations are a Dict beside the previous action.
        ("FetchPush-v4", {"num_envs": 2, "frames_per_iteration": 20, "updates_per_iteration": 1, "her": 0.8} | SLOW),
    ],
    signals=[(signal.SIGINT, 130)],
    not_resumable=[["--env-id", "Pendulum-v1"], ["--hidden", "9"], ["--window", "4"], ["--reward-clip", "None"]],
    bad_input={
        "operator": (["--td-operator", "n-step", "--td-mode", "alf"], "--td-mode alf belongs to --td-operator compare"),
        "switch delta": (["--switch-delta", "1"], "delta must be in (0, 1), got 1.0"),
    },
    said={"clip_advantage": True, "td_operator": "n-step"},
)

SAC = Script(
    sac_continuous,
    promised=set(),
    learning=[
        {"seed": 7},
        {"batch_size": 24},
        {"gamma": 0.5},
        {"tau": 0.5},
        {"target_interval": 3},
        {"hidden": (8, 8, 8)},
        {"log_std_min": 0.0},
        {"action_delta": 0.4},
        {
            **{
                "env_kwargs": {"length": 9},
                "num_envs": 3,
                "total_frames": 180,
                "buffer_size": 120,
                "learning_starts": 90,
                "stop_at_score": -1e9,
            },
            **{"learning_rate": 3e-3, "updates_per_iteration": 2, "frames_per_iteration": 3, "reward_clip": None},
        },
    ],
    looking=[
        {
            **{"eval_interval": 45, "eval_episodes": 3, "final_episodes": 1, "checkpoint_interval": 17},
            **{"track": True, "wandb_project": "tests", "wandb_entity": "nobody"},
            **{"capture_video": True, "device": "cpu", "threads": 2},
        },
    ],
    resumed=[
        ("MountainCarContinuous-v0", {"num_envs": 2, "frames_per_iteration": 200, "updates_per_iteration": 20}),
        ("InvertedDoublePendulum-v5", {"num_envs": 1}),
        ("FetchPush-v4", {"num_envs": 1, "frames_per_iteration": 20, "updates_per_iteration": 1, "her": 0.8} | SLOW),
    ],
    signals=[(signal.SIGTERM, 143)],
    not_resumable=[["--env-id", "Pendulum-v1"], ["--hidden", "9"], ["--reward-clip", "None"]],
    bad_input={
        "longer window": (["--window", "2"], "--window must be 1, because a target of SAC spans one transition, got 2"),
    },
    said={},
)

LEARNING_AT_ONCE = {
    **{"seed": 7, "batch_size": 24, "gamma": 0.5, "tau": 0.5, "target_interval": 3, "hidden": (8, 8, 8)},
    **{"log_std_min": 0.0, "action_delta": 0.4, "env_kwargs": {"length": 9}, "num_envs": 3, "total_frames": 180},
    **{"buffer_size": 120, "learning_starts": 90, "stop_at_score": -1e9, "learning_rate": 3e-3, "reward_clip": None},
    **{"updates_per_iteration": 2, "frames_per_iteration": 3},
}
"""What every script reads."""

LOOKING_AT_ONCE = {
    **{"eval_interval": 70, "eval_episodes": 2, "final_episodes": 1, "checkpoint_interval": 60},
    **{"device": "cpu", "threads": 2},
}

WITHOUT_DISCOUNT = (["--gamma", "1"], "--gamma must be below 1 where sums of rewards are normalized (--reward-clip)")
NO_LAMBDA = (["--retrace-lambda", "1.5"], "--retrace-lambda must be in [0, 1], got 1.5")
NO_RETRACE = "--retrace-lambda and --trace-of belong to --td-operator retrace, got compare-through"

NTD = Script(
    sac_ntd_continuous,
    promised=set(),
    learning=[{"window": 5}, {"retrace_lambda": 0.5}, LEARNING_AT_ONCE],
    looking=[LOOKING_AT_ONCE],
    not_resumable=[["--retrace-lambda", "0.5"]],
    bad_input={"lambda": NO_LAMBDA, "negative lambda": (["--retrace-lambda", "-0.1"], "must be in [0, 1], got -0.1")},
    said={"retrace_lambda": 0.25},
)

NREP = Script(
    sac_nrep_continuous,
    promised=set(),
    learning=[{"window": 2}, LEARNING_AT_ONCE],
    looking=[LOOKING_AT_ONCE],
    not_resumable=[["--window", "4"]],
    bad_input={"gamma": WITHOUT_DISCOUNT},
    said={"window": 4},
)

KREP = Script(
    sac_krep_continuous,
    promised={"losses/mean_duration", "losses/repeat_entropy", "losses/repeat_temperature"},
    learning=[{"window": 2}, {"repeat_delta": 0.5}, LEARNING_AT_ONCE],
    looking=[LOOKING_AT_ONCE],
    not_resumable=[["--window", "4"], ["--repeat-delta", "0.3"]],
    bad_input={
        "gamma": WITHOUT_DISCOUNT,
        "window": (["--window", "1"], "--window must be at least 2, or there is no duration to choose, got 1"),
        "repeat delta": (["--repeat-delta", "1"], "delta must be in (0, 1), got 1.0"),
    },
    said={"window": 4, "repeat_delta": 0.3},
)

EZ = Script(
    sac_ez_continuous,
    promised=set(),
    learning=[{"window": 5}, LEARNING_AT_ONCE],
    looking=[LOOKING_AT_ONCE],
    not_resumable=[["--window", "4"]],
    bad_input={},
    said={"window": 4},
)

HYBRID = Script(
    sac_hybrid_continuous,
    promised={"losses/switch_probability", "losses/switch_entropy", "losses/switch_temperature"},
    learning=[
        {"window": 5},
        {"switch_delta": 0.3},
        {"td_operator": "compare-through"},
        {"retrace_lambda": 0.5},
        {"trace_of": "joint"},
        LEARNING_AT_ONCE,
    ],
    looking=[LOOKING_AT_ONCE],
    not_resumable=[["--trace-of", "joint"], ["--td-operator", "compare-through"]],
    bad_input={
        "lambda": NO_LAMBDA,
        "switch delta": (["--switch-delta", "1"], "delta must be in (0, 1), got 1.0"),
        "operator": (["--td-operator", "compare-through", "--trace-of", "joint"], NO_RETRACE),
        "operator and lambda": (["--td-operator", "compare-through", "--retrace-lambda", "0"], NO_RETRACE),
    },
    said={"trace_of": "joint", "retrace_lambda": 0.5},
)

SCRIPTS = [TAAC, SAC, NTD, NREP, KREP, EZ, HYBRID]


def name_of(value: Any) -> str:
    return value.module.METHOD if isinstance(value, Script) else str(value)


def cases(attribute: str) -> list[tuple]:
    """Every script with each of its own cases."""
    found = []
    for script in SCRIPTS:
        each = getattr(script, attribute)
        for case in each.values() if isinstance(each, dict) else each:
            found.append((script, *(case if isinstance(case, tuple) else (case,))))
    return found


every_script = pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
taac_and_sac = pytest.mark.parametrize("script", [TAAC, SAC], ids=name_of)


def agent_of(run_dir: Path) -> dict[str, torch.Tensor]:
    return load_file(run_dir / "agent.safetensors")


def same_agent(one: Path, other: Path) -> bool:
    agents = agent_of(one), agent_of(other)
    return agents[0].keys() == agents[1].keys() and all(
        torch.equal(agents[0][name], agents[1][name]) for name in agents[0]
    )


def lines_but_speed(run_dir: Path) -> list[str]:
    return [line for line in (run_dir / "metrics.csv").read_text().splitlines() if "charts/SPS" not in line]


def assert_same_run(one: Path, other: Path) -> None:
    assert lines_but_speed(one) == lines_but_speed(other)
    assert same_agent(one, other)


def assert_complete(script: Script, args: Any) -> None:
    """The run trained every parameter, recorded every promised metric, all finite, and left every promised file."""
    run_dir = args.run_dir
    trained = load_agent(run_dir / "agent.safetensors")
    torch.manual_seed(args.seed)
    fresh = script.module.make_agent(args, trained.observation_space, trained.action_space)
    assert type(fresh) is type(trained)
    for (name, before), after in zip(fresh.named_parameters(), trained.parameters(), strict=True):
        assert torch.isfinite(after).all(), name
        assert not torch.equal(before, after), name
    metrics = read_metrics(run_dir / "metrics.csv")
    assert metrics.keys() >= PROMISED | script.promised
    for name, (_, values) in metrics.items():
        assert np.isfinite(values).all(), name
    assert metrics["charts/updates"][1][-1] > 0
    config = read_config(run_dir)
    assert (config["env_id"], config["resolved_env_id"]) == (args.env_id, args.env_id)
    assert config["method"] == script.module.METHOD
    assert config["versions"].keys() >= {"python", "gymnasium", "numpy", "torch"}
    started_with = {name: tuple(value) if isinstance(value, list) else value for name, value in config["args"].items()}
    assert started_with == vars(args) | {"run_dir": str(run_dir)}
    assert list((run_dir / "checkpoint").glob("0*/MANIFEST.json"))
    assert list((run_dir / "tensorboard").glob("events.out.tfevents.*"))


@pytest.fixture(autouse=True)
def small_and_tidy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for script in SCRIPTS:
        monkeypatch.setattr(script.module, "LOG_INTERVAL", 50)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


@pytest.fixture(scope="module")
def base_of(tmp_path_factory: pytest.TempPathFactory):
    """Gives the folder of a script's run without any change, to compare others with."""
    run_dirs = {}

    def base(script: Script) -> Path:
        method = script.module.METHOD
        if method not in run_dirs:
            run_dirs[method] = tmp_path_factory.mktemp(method) / "run"
            assert script.module.main(script.smoke_args(run_dirs[method])) == 0
        return run_dirs[method]

    return base


# --- Every flag ------------------------------------------------------------------------------------------------------


@taac_and_sac
@pytest.mark.usefixtures("curve")
def test_a_run_leaves_its_curve(script, tmp_path):
    args = script.smoke_args(tmp_path / "run", total_frames=60)
    assert script.module.main(args) == 0
    picture = (args.run_dir / "curve.png").read_bytes()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    assert min(struct.unpack(">II", picture[16:24])) > 100


@every_script
def test_the_base_run_is_complete_and_repeatable(script, base_of, tmp_path):
    assert_complete(script, script.smoke_args(base_of(script)))
    assert script.module.main(script.smoke_args(tmp_path / "again")) == 0
    assert_same_run(tmp_path / "again", base_of(script))


@pytest.mark.parametrize(("script", "changes"), cases("learning"), ids=name_of)
def test_flags_that_change_what_is_learned(script, changes, base_of, tmp_path):
    args = script.smoke_args(tmp_path / "run", **changes)
    assert script.module.main(args) == 0
    assert_complete(script, args)
    assert not same_agent(tmp_path / "run", base_of(script))


@pytest.mark.parametrize(("script", "changes"), cases("looking"), ids=name_of)
def test_flags_that_only_look(script, changes, base_of, tmp_path):
    args = script.smoke_args(tmp_path / "run", **changes)
    assert script.module.main(args) == 0
    assert_complete(script, args)
    assert same_agent(tmp_path / "run", base_of(script))
    if args.capture_video:
        assert len(list((tmp_path / "run").rglob("*.mp4"))) == args.total_frames // args.eval_interval
    if args.track:
        assert list((tmp_path / "run").glob("wandb/offline-run-*/*.wandb"))


@every_script
def test_every_argument_is_exercised(script):
    cases = [*script.learning, *script.looking]
    changed = {name for changes in cases for name in changes}
    elsewhere = {"env_id", "run_dir", "resume"}  # in every test, in every test, and below
    elsewhere |= {"env_engine", "env_timeout", "on_env_error"}  # in test_env_faults.py
    elsewhere |= {"compile", "her", "settings"}  # in test_compile.py and test_hindsight_scripts.py
    if script is SAC:
        elsewhere.add("window")  # only one is allowed: among the bad input below
    if script not in (TAAC, SAC):
        elsewhere |= {"track", "wandb_project", "wandb_entity", "capture_video"}  # only the run reads them
    assert changed | elsewhere == {field.name for field in fields(script.module.Args)}
    defaults = script.smoke_args(Path("run"))
    for changes in cases:
        for name, value in changes.items():
            assert getattr(defaults, name) != value, name


@taac_and_sac
def test_stop_at_score_stops_after_two_evaluations(script, tmp_path, capsys):
    script.module.main(script.smoke_args(tmp_path / "run", stop_at_score=-1e9))
    metrics = read_metrics(tmp_path / "run" / "metrics.csv")
    assert metrics["eval/score"][0].tolist() == [80, 160]
    assert metrics["final/score"][0].tolist() == [160]
    assert "stopped at frame 160" in capsys.readouterr().out


@taac_and_sac
def test_decisions_are_the_actions_asked_for(script, base_of, tmp_path):
    """One for every frame here, because no wrapper makes one last longer."""
    for run_dir, changes in [(base_of(script), {}), (tmp_path / "run", {"num_envs": 3})]:
        if changes:
            script.module.main(script.smoke_args(run_dir, **changes))
        frames, decisions = read_metrics(run_dir / "metrics.csv")["charts/decisions"]
        logged = [51, 102, 150, 201] if changes else [50, 100, 150, 200]
        assert frames.tolist() == decisions.tolist() == logged


@every_script
def test_updates_follow_frames_however_long_a_decision_is(script, base_of):
    metrics = read_metrics(base_of(script) / "metrics.csv")
    last = {name: metrics[f"charts/{name}"][1][-1] for name in ("frames", "decisions", "updates")}
    assert 200 <= last["frames"] <= 202
    assert last["updates"] == 200 // 8 - 40 // 8 + 1
    if script in (NREP, KREP):
        assert 200 / 3 < last["decisions"] < 170  # more than that, because episodes end in between
    else:
        assert last["decisions"] == last["frames"]


@pytest.mark.parametrize(
    ("script", "fraction"),
    [(TAAC, 150 / 200), (HYBRID, 150 / 200), (SAC, 199 / 200), (NREP, 133 / 200), (KREP, 100 / 200)],
    ids=name_of,
)
def test_repetition_is_told_of_every_finished_episode(script, fraction, tmp_path, monkeypatch):
    """TAAC and SAC-Hybrid switch at every fourth frame; SAC has no switch, and asks for the same action at every frame.

    SAC-Nrep asks for another action at every third one, the last time for two frames, and SAC-Krep at every second.
    """
    steps = itertools.count()

    def scripted(rng, space):
        step = next(steps)
        action = np.full((2, 1), -0.5 if script in (NREP, KREP) and step % 2 else 0.5, np.float32)
        if script is KREP:
            return {"action": action, "repeat": np.full(2, 2)}
        if script in (TAAC, HYBRID):
            return {"action": action, "switch": np.full(2, step % 4 == 0, np.int64)}
        return action

    monkeypatch.setattr(script.module, "random_action", scripted)
    changes = {"num_envs": 2, "total_frames": 450, "learning_starts": 420, "eval_interval": 450}
    assert script.module.main(script.smoke_args(tmp_path / "run", "Pendulum-v1", **changes)) == 0
    metrics = read_metrics(tmp_path / "run" / "metrics.csv")
    assert [values.tolist() for values in metrics["charts/repeat_fraction"]] == [[400, 400], [fraction] * 2]
    assert [values.tolist() for values in metrics["charts/episodic_length"]] == [[400, 400], [200, 200]]


@every_script
def test_fetch_push_v2_trains_with_one_warning(script, tmp_path):
    args = script.smoke_args(tmp_path / "run", "FetchPush-v2", num_envs=2, total_frames=60, learning_starts=40)
    args = replace(args, frames_per_iteration=4, updates_per_iteration=1, target_interval=1, eval_interval=50)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert script.module.main(args) == 0
    ours = [warning for warning in caught if "FetchPush" in str(warning.message)]
    assert [(str(warning.message), warning.category) for warning in ours] == [
        ("FetchPush-v2 is not available: using FetchPush-v4", UserWarning)
    ]
    config = read_config(tmp_path / "run")
    assert (config["env_id"], config["resolved_env_id"]) == ("FetchPush-v2", "FetchPush-v4")
    assert {"mujoco", "gymnasium-robotics"} <= config["versions"].keys()
    metrics = read_metrics(tmp_path / "run" / "metrics.csv")
    assert 0 <= metrics["eval/success"][1][0] <= 1
    torch.manual_seed(args.seed)
    trained = load_agent(tmp_path / "run" / "agent.safetensors")
    fresh = script.module.make_agent(args, trained.observation_space, trained.action_space)
    sizes = {"observation": 25, "achieved_goal": 3, "desired_goal": 3}
    sizes |= {"prev_action": 4} if script in (TAAC, HYBRID) else {}
    assert {key: space.shape for key, space in trained.observation_space.items()} == {
        key: (size,) for key, size in sizes.items()
    }
    assert trained.keys == ["desired_goal", "observation"]
    assert trained.observation_size == 28
    assert not torch.equal(fresh.actor.head.weight, trained.actor.head.weight)


@every_script
def test_the_score_is_what_the_deployed_agent_earns_without_discount(script, base_of):
    """In the bare environment, where the agent's own policy holds and repeats its actions."""
    env = make_env(FOLLOW)
    policy = load_agent(base_of(script) / "agent.safetensors").policy()
    returns = []
    for seed in (1, None):  # as the last evaluation, of two episodes
        (observation, _), done = env.reset(seed=seed), False
        policy.reset()
        returns.append(0.0)
        while not done:
            observation, reward, terminated, truncated, _ = env.step(policy(observation))
            returns[-1] += float(reward)
            done = terminated or truncated
    assert read_metrics(base_of(script) / "metrics.csv")["final/score"][1][-1] == pytest.approx(np.mean(returns))


@pytest.mark.parametrize("script", [NTD, HYBRID], ids=name_of)
def test_a_run_records_how_likely_its_actions_were(script, tmp_path, monkeypatch):
    """Uniform at first, then by the policy, which here learns too slowly to change."""
    replays = []

    def make_replay(*args: Any, **kwargs: Any) -> SequenceReplay:
        replays.append(SequenceReplay(*args, **kwargs))
        return replays[-1]

    monkeypatch.setattr(hindsight, "SequenceReplay", make_replay)
    changes = {"total_frames": 120, "learning_rate": 1e-30, "eval_interval": 10**6, "num_envs": 2}
    assert script.module.main(script.smoke_args(tmp_path / "run", **changes)) == 0
    windows = replays[0].sample(400)
    agent = load_agent(tmp_path / "run" / "agent.safetensors")
    if script is NTD:
        recorded = windows.action["log_prob"][:, None]
        uniform = [-2 * np.log(2)]
        likely = agent.log_prob(windows.observation, windows.action["action"])[:, None]
    else:
        recorded, uniform = windows.action["log_probs"], [-2 * np.log(2), -np.log(2)]
        likely = agent.log_probs(windows.observation, windows.action)
    at_random = np.isclose(recorded, uniform).all(1)
    by_policy = np.isclose(recorded, likely, atol=1e-4).all(1)
    assert (at_random | by_policy).all()
    assert (at_random & ~by_policy).mean() == pytest.approx(40 / 120, abs=0.1)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(AGENTS.parent / "examples")
    import evaluate

    return evaluate


@every_script
def test_the_example_evaluates_a_run_of_any_script(script, base_of, example, tmp_path, capsys):
    run_dir = base_of(script)
    capsys.readouterr()  # what training said, if it is the first to ask for it
    assert example.main(example.Args(run_dir, episodes=2, seed=1)) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{FOLLOW}: mean length ")
    final = {name: values[-1] for name, (_, values) in read_metrics(base_of(script) / "metrics.csv").items()}
    assert f"score {final['final/score']:.2f} +- {final['final/score_std']:.2f} over 2 episodes" in said  # also seed 1
    assert f"repeats {final['final/repeat_fraction']:.1%} of its actions" in said

    (tmp_path / "alone").mkdir()
    shutil.copy(base_of(script) / "agent.safetensors", tmp_path / "alone")  # its own kind tells what it needs
    assert example.main(example.Args(tmp_path / "alone" / "agent.safetensors", 2, env_id=FOLLOW)) == 0
    assert capsys.readouterr().out == said


@taac_and_sac
def test_the_example_refuses_an_agent_that_does_not_fit(script, base_of, example, tmp_path):
    other = SAC if script is TAAC else TAAC
    shutil.copytree(base_of(script), tmp_path / "run")
    shutil.copy(base_of(other) / "config.json", tmp_path / "run")  # of another method, on the same environment
    with pytest.raises(BadInput, match=f"does not fit {FOLLOW}: it was trained on other spaces"):
        example.main(example.Args(tmp_path / "run", episodes=1))
    with pytest.raises(BadInput, match=r"does not fit Pendulum-v1: it was trained on other spaces"):
        example.main(example.Args(base_of(script), episodes=1, env_id="Pendulum-v1"))
    (tmp_path / "run" / "config.json").unlink()
    with pytest.raises(BadInput, match="name it with --env-id"):
        example.main(example.Args(tmp_path / "run", episodes=1))
    with pytest.raises(BadInput, match="--episodes must be at least 1, got 0"):
        example.main(example.Args(base_of(script), episodes=0))


def test_the_example_evaluates_the_pretrained_agent():
    command = [sys.executable, "examples/evaluate.py", "examples/pretrained/MountainCarContinuous-v0", "--episodes=3"]
    done = subprocess.run(command, cwd=AGENTS.parent, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    score = re.search(r"^score (\d+\.\d\d) ", done.stdout, re.MULTILINE)
    assert score is not None
    assert float(score[1]) > 90


def test_the_example_cuts_episodes_without_a_time_limit(base_of, example, monkeypatch, capsys):
    monkeypatch.setattr(example, "LONGEST_EPISODE", 1)
    assert example.main(example.Args(base_of(TAAC), episodes=5)) == 0
    assert "mean length 1.0 frames" in capsys.readouterr().out


def test_the_example_films(base_of, example, tmp_path):
    shutil.copytree(base_of(TAAC), tmp_path / "run")
    assert example.main(example.Args(tmp_path / "run", episodes=1, video=True)) == 0
    assert len(list((tmp_path / "run" / "videos").glob("*.mp4"))) == 1


def test_the_example_refuses_to_film_what_cannot_be_filmed(base_of, example, tmp_path, monkeypatch, capsys):
    shutil.copytree(base_of(TAAC), tmp_path / "run")
    monkeypatch.setattr(Follow, "render", lambda env: 1 / 0)
    monkeypatch.setattr(sys, "argv", ["evaluate.py", str(tmp_path / "run"), "--episodes", "1e2", "--video"])
    with pytest.raises(SystemExit) as exit_:
        exit_with(lambda: example.main(parse(example.Args)))
    assert exit_.value.code == 2
    assert capsys.readouterr() == ("", f"error: --video: {FOLLOW} cannot be filmed: division by zero\n")
    assert not (tmp_path / "run" / "videos").exists()


OWN_MODULE = """
import gymnasium
import test_scripts

gymnasium.register("Own-v0", test_scripts.Follow, max_episode_steps=100)
"""


@taac_and_sac
def test_an_environment_of_ones_own(script, example, command, tmp_path, monkeypatch, capsys):
    """In a module in the current folder: it is trained in, resumed, evaluated."""
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (tmp_path / "own_module.py").write_text(OWN_MODULE)
    own = ["--env-id", "own_module:Own-v0"]
    args = replace(script.smoke_args(tmp_path, total_frames=60), env_id=own[1], run_dir=None)
    try:
        code, _, said = command(script, *flags(args), "--env-kwargs", '{"length": 9}')
        assert code == 0, said
        (run_dir,) = (tmp_path / "runs").iterdir()
        assert run_dir.name.startswith(f"own_module_Own-v0__{script.module.METHOD}__0__")
        assert "to allow it, add --env-id own_module:Own-v0" in command(script, "--resume", str(run_dir))[2]
        assert command(script, "--resume", str(run_dir), *own, "--total-frames", "90")[0] == 0
        lengths = read_metrics(run_dir / "metrics.csv")["charts/episodic_length"][1]
        assert max(lengths) == 9

        with pytest.raises(BadInput, match="to allow it, add --env-id own_module:Own-v0"):
            example.main(example.Args(run_dir, episodes=1))
        for given, expected in ((None, 9), ({"length": 1}, 1)):
            capsys.readouterr()
            assert example.main(example.Args(run_dir, episodes=30, env_id=own[1], env_kwargs=given)) == 0
            mean_length = re.match(r"own_module:Own-v0: mean length (\d+\.\d) frames", capsys.readouterr().out)
            assert mean_length is not None
            assert expected / 3 < float(mean_length[1]) <= expected
    finally:
        gym.registry.pop("Own-v0", None)
        sys.modules.pop("own_module", None)


# --- Going on --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("script", "env_id", "changes"), cases("resumed"), ids=name_of)
def test_resumed_equals_uninterrupted(script, env_id, changes, tmp_path, monkeypatch):
    """Interrupted half-way, when the buffer has wrapped, in the middle of episodes."""
    monkeypatch.setattr(gym.spec("MountainCarContinuous-v0"), "max_episode_steps", 110)
    length = {"total_frames": 400, "eval_interval": 170, "final_episodes": 1}
    args = script.smoke_args(tmp_path / "whole", env_id, **length | changes)
    main, half = script.module.main, args.total_frames // 2
    main(args)
    main(replace(args, run_dir=tmp_path / "parts", total_frames=half))
    assert not same_agent(tmp_path / "parts", tmp_path / "whole")
    main(replace(from_config(script.module.Args, tmp_path / "parts"), total_frames=args.total_frames))
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.parametrize("script", [NTD, NREP, KREP, EZ, HYBRID], ids=name_of)
def test_interrupted_twice_equals_uninterrupted(script, base_of, tmp_path, monkeypatch):
    """While actions are random, in the middle of an episode and of SAC-EZ's schedule; and while there is learning."""
    goes_on = run_module.Run.goes_on
    for frame in (20, 170):
        args = script.smoke_args(tmp_path / "run")
        if (tmp_path / "run").exists():
            args = from_config(script.module.Args, tmp_path / "run")

        def until(run: Any, counters: Any, frame: int = frame) -> bool:
            if counters.frames >= frame:
                signal.raise_signal(signal.SIGTERM)
            return goes_on(run, counters)

        monkeypatch.setattr(run_module.Run, "goes_on", until)
        assert script.module.main(args) == 143
    monkeypatch.setattr(run_module.Run, "goes_on", goes_on)
    assert script.module.main(from_config(script.module.Args, tmp_path / "run")) == 0
    assert_same_run(tmp_path / "run", base_of(script))


def flags(args: Any) -> list[str]:
    """A command line that means ``args``."""
    words = []
    for field in fields(args):
        value, flag = getattr(args, field.name), field.name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None or field.name == "reward_clip":
            words += [f"--{flag}", *(map(str, value) if isinstance(value, tuple) else [str(value)])]
    return words


@pytest.mark.parametrize(("script", "number", "code"), cases("signals"), ids=name_of)
def test_an_interrupted_process_can_be_resumed(script, number, code, tmp_path, monkeypatch):
    monkeypatch.setattr(script.module, "LOG_INTERVAL", 500)  # as in the process
    changes = {"total_frames": 10**6, "eval_interval": 10**5, "final_episodes": 1}
    args = script.smoke_args(tmp_path / "run", "Pendulum-v1", **changes)
    process = subprocess.Popen(
        [sys.executable, script.path, *flags(args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 300
        while not list((tmp_path / "run").glob("checkpoint/0*")) and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == code, err
    resume = re.search(r"interrupted and saved; continue with: python (\S+) --resume (\S+)", out)
    assert resume is not None
    assert (tmp_path / resume[1]).samefile(script.path)
    assert Path(resume[2]).samefile(tmp_path / "run")
    assert "Traceback" not in err

    stopped = max(int(path.name) for path in (tmp_path / "run" / "checkpoint").glob("0*"))
    total = stopped + 100
    script.module.main(replace(from_config(script.module.Args, tmp_path / "run"), total_frames=total))
    script.module.main(replace(args, run_dir=tmp_path / "whole", total_frames=total))
    assert_same_run(tmp_path / "run", tmp_path / "whole")


# --- The command line ------------------------------------------------------------------------------------------------


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Calls a script as the shell would: exit code, standard output, standard error."""

    def call(script: Script, *words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [str(script.path), *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            command_line(script.module.Args, script.module.main)
        output = capsys.readouterr()
        return exit_.value.code, output.out, output.err

    return call


@every_script
def test_help_shows_the_defaults_of_the_task(script, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = command(script, "--env-id", "FetchPush-v2", "--settings", "paper", "--help")
    assert code == 0
    shown = {"settings": "paper", "num-envs": 38, "batch-size": 4864, "learning-rate": 0.001, "hidden": "256 256 256"}
    shown |= {"window": 1 if script is SAC else 3}
    shown |= {f"{flag}, --no-{flag}": False for flag in ("track", "capture-video", "compile")}
    for flag, default in shown.items():
        assert re.search(rf"--{flag} (?:(?!--).)*\(default: {default}\)", out, re.DOTALL), flag
    for field in fields(script.module.Args):
        assert f"--{field.name.replace('_', '-')}" in out


@every_script
def test_the_command_line_means_what_it_says(script, monkeypatch):
    args = script.smoke_args(Path("run"), reward_clip=None, stop_at_score=1.5, **script.said)
    received = []
    monkeypatch.setattr(sys, "argv", [str(script.path), *flags(args)])
    with pytest.raises(SystemExit):
        command_line(script.module.Args, lambda parsed: received.append(parsed) or 0)
    assert received == [args]


BAD_INPUT = {
    "unknown env": (["--env-id", "MountainCarContinuos-v0"], "close matches: MountainCarContinuous-v0"),
    "discrete actions": (["--env-id", "CartPole-v1"], "env must have a Box of float actions, got Discrete(2)"),
    "window": (["--window", "0"], "--window must be at least 1, got 0"),
    "batch": (["--batch-size", "300", "--buffer-size", "200"], "--batch-size 300 is larger than the replay"),
    "device": (["--device", "toaster"], "--device 'toaster' cannot be used"),
    "no run": (["--resume", "nowhere"], "--resume: 'nowhere' is not a run folder"),
    "folder exists": (["--run-dir", "."], "--run-dir: '.' exists already"),
    "hidden": (["--hidden", "0"], "hidden must be a non-empty sequence of positive integers, got (0,)"),
    "action delta": (["--action-delta", "2"], "delta must be in (0, 1], got 2.0"),
    "reward clip": (["--reward-clip", "-1"], "`clip` must be a finite number > 0, got -1.0"),
}


@pytest.mark.parametrize(
    ("script", "words", "message"),
    [*((script, *case) for script in SCRIPTS for case in BAD_INPUT.values()), *cases("bad_input")],
    ids=name_of,
)
def test_bad_input_is_one_line_and_leaves_nothing(script, words, message, command, tmp_path):
    code, out, said = command(script, *words)
    lines = said.splitlines()
    assert (code, out) == (2, "")
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert message in lines[0]
    assert list(tmp_path.iterdir()) == []


def test_a_mujoco_that_breaks_fetch(command, monkeypatch, tmp_path):
    installed = simulators.simulator_versions() | {"mujoco": "4.0.0"}
    monkeypatch.setattr(simulators, "simulator_versions", lambda: installed)
    code, _, said = command(TAAC, "--env-id", "FetchPush-v4")
    assert code == 2
    assert said.splitlines()[-1].startswith("error: FetchPush-v4 needs mujoco>=3.5,<3.12, got mujoco 4.0.0")
    assert list(tmp_path.iterdir()) == []


def test_wandb_is_missing(command, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    code, _, said = command(TAAC, "--track", "--run-dir", "run")
    assert (code, said) == (2, 'error: tracking needs wandb: pip install "taac-wrappers[track]"\n')
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("script", "words"), cases("not_resumable"), ids=name_of)
def test_a_run_of_another_task_or_shape_is_not_resumed(script, words, command, base_of):
    base = base_of(script)
    before = {path: path.read_bytes() for path in base.rglob("*") if path.is_file()}
    code, _, said = command(script, "--resume", str(base), *words)
    assert code == 2
    assert f"error: --resume: this run has {words[0]} " in said
    assert f"got {'[9]' if words[1] == '9' else words[1]}; start a new run to change it\n" in said
    assert {path: path.read_bytes() for path in base.rglob("*") if path.is_file()} == before


def test_a_run_of_another_method_with_the_same_flags_is_not_resumed(command, base_of):
    code, _, said = command(NREP, "--resume", str(base_of(EZ)))
    assert (code, said) == (2, f"error: --resume: '{base_of(EZ)}' is a run of sac_ez, not of sac_nrep\n")


@pytest.mark.parametrize("script", [NREP, KREP], ids=name_of)
def test_without_a_discount_sums_of_rewards_can_be_learned_from_as_they_are(script, tmp_path):
    args = script.smoke_args(tmp_path / "run", gamma=1.0, reward_clip=None, total_frames=60)
    assert script.module.main(args) == 0


@pytest.mark.parametrize(("script", "other"), [(TAAC, SAC), (SAC, TAAC), (NTD, SAC), (HYBRID, TAAC)], ids=name_of)
def test_a_run_of_another_script_is_not_resumed(script, other, command, base_of):
    base = base_of(other)
    before = {path: path.read_bytes() for path in base.rglob("*") if path.is_file()}
    code, _, said = command(script, "--resume", str(base))
    assert code == 2
    assert said.startswith(f"error: --resume: '{base}' is a run of another script or version")
    assert {path: path.read_bytes() for path in base.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("script", "words"),
    [
        *((script, words) for script in SCRIPTS for words in (["--no-such-flag"], ["--window", "many"])),
        (TAAC, ["--td-mode", "guess"]),
        (SAC, ["--td-mode", "expected"]),
        (HYBRID, ["--trace-of", "guess"]),
        (HYBRID, ["--td-operator", "n-step"]),
    ],
    ids=name_of,
)
def test_flags_that_do_not_exist(script, words, command):
    code, _, said = command(script, *words)
    assert code == 2
    assert words[0] in said


def test_importing_the_scripts_loads_neither_wandb_nor_mujoco():
    """wandb is optional; MuJoCo, once imported, no longer asks how to render."""
    code = (
        "import sys; sys.modules['wandb'] = None\n"
        f"sys.path.insert(0, {str(AGENTS)!r}); import {', '.join(script.path.stem for script in SCRIPTS)}\n"
        "taac_continuous.Args.for_task('FetchPush-v2')\n"
        "assert 'mujoco' not in sys.modules, 'mujoco'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_no_script_is_left_out():
    assert {script.path for script in SCRIPTS} == set(AGENTS.glob("*.py"))
