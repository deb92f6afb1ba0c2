"""The life of a run, shown with a script that learns next to nothing: a number that random rewards push around."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import threading
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import nn

from taac_wrappers import AdaptiveNormalizer
from taac_wrappers.training import run as run_module
from taac_wrappers.training.checkpoint import Loaded
from taac_wrappers.training.envs import make_vector_env
from taac_wrappers.training.replay import SequenceReplay
from taac_wrappers.training.run import (
    CHANGEABLE_ON_RESUME,
    BadInput,
    Counters,
    Run,
    TrainingState,
    bad_input,
    check_common,
    command_line,
    from_config,
    pick_device,
)
from taac_wrappers.training.tracking import read_config, read_metrics

# --- The environment and the script ----------------------------------------------------------------------------------


class Drift(gym.Env):
    """A point that drifts by the action and by chance; episodes of seven frames. ``luck`` is chance no seed reaches."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012
    luck = 0.0

    def __init__(self, render_mode: str | None = None, broken_camera: bool = False):
        self.observation_space, self.action_space = Box(-np.inf, np.inf, (1,)), Box(-1.0, 1.0, (1,))
        self.render_mode, self.broken_camera = render_mode, broken_camera

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.place, self.frame = self.np_random.normal(), 0
        return self._observe(), {}

    def step(self, action: np.ndarray):
        self.place += action.item() + self.np_random.normal() + self.luck
        self.frame += 1
        return self._observe(), -abs(self.place), False, self.frame == 7, {}

    def _observe(self) -> np.ndarray:
        return np.array([self.place], np.float32)

    def render(self) -> np.ndarray:
        if self.broken_camera:
            raise RuntimeError("no light")
        return np.zeros((32, 32, 3), np.uint8)


gym.register("test_run/Drift-v0", Drift)
gym.register("test_run/DarkDrift-v0", Drift, kwargs={"broken_camera": True})


@dataclass
class Args:
    env_id: str = "test_run/Drift-v0"
    seed: int = 0
    total_frames: int = 40
    num_envs: int = 1
    batch_size: int = 4
    buffer_size: int = 30
    window: int = 2
    gamma: float = 0.9
    tau: float = 0.1
    target_interval: int = 1
    learning_rate: float = 0.1
    learning_starts: int = 3
    updates_per_iteration: int = 1
    frames_per_iteration: int = 1
    hidden: tuple[int, ...] = (4, 4)
    eval_interval: int = 10
    eval_episodes: int = 1
    final_episodes: int = 2
    stop_at_score: float | None = None
    checkpoint_interval: int = 15
    run_dir: Path | None = None
    resume: Path | None = None
    track: bool = False
    wandb_project: str = "tests"
    wandb_entity: str | None = None
    capture_video: bool = False
    device: str = "cpu"
    threads: int = 1

    @classmethod
    def for_task(cls, env_id: str) -> Args:
        return cls(env_id=env_id)


class Number(nn.Module):
    """The agent: one number, and a policy that always answers with zero."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.rand(()))

    def policy(self) -> Number:
        return self

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        return np.zeros(1, np.float32)

    def reset(self) -> None:
        pass

    def save(self, path: Path) -> None:
        path.write_text(repr(self.value.item()))


def main(args: Args, at_frame: Any = lambda counters: None) -> int:
    """Train a number; ``at_frame`` is called after every frame."""
    with bad_input():
        check_common(args)
        run = Run(args, "number")
        torch.manual_seed(args.seed)
        envs = make_vector_env(run.env_id, args.num_envs)
        agent = Number()
        state = TrainingState(
            modules={"agent": agent},
            optimizer=torch.optim.Adam(agent.parameters(), lr=args.learning_rate),
            normalizer=AdaptiveNormalizer(),
            replay=SequenceReplay(
                envs.single_observation_space,
                envs.single_action_space,
                capacity=args.buffer_size,
                num_envs=args.num_envs,
                seed=args.seed,
            ),
            envs=envs,
            rng=np.random.default_rng(args.seed),
            prev_action=np.zeros((args.num_envs, 1), np.float32),
        )
        observation = run.start(state)
    counters = state.counters
    with run:
        while run.goes_on(counters):
            switch = state.rng.random(args.num_envs) < 0.5
            fresh = state.rng.uniform(-1, 1, state.prev_action.shape).astype(np.float32)
            action = np.where(switch[:, None], fresh, state.prev_action) + 0 * observation
            observation, reward, terminated, truncated, infos = envs.step(action)
            state.replay.add(action, switch, reward, terminated, truncated, observation)
            counters.count(switch)
            state.prev_action = action
            if (done := terminated | truncated).any():
                run.log_episodes(counters.frames, infos)
                observation, _ = envs.reset(options={"reset_mask": done})
                state.replay.start(observation, done)
                state.prev_action = np.where(done[:, None], 0, action).astype(np.float32)
            for _ in range(counters.due(args.frames_per_iteration)):
                reward = state.replay.sample(args.batch_size).reward[0]
                state.normalizer.update(reward)
                loss = agent.value * (float(state.normalizer.normalize(reward).mean()) + torch.rand(()))
                state.optimizer.zero_grad()
                loss.backward()
                state.optimizer.step()
                counters.updates += 1
                state.metrics = {"losses/number": loss.detach()}
            if counters.due(5):
                run.log_progress(counters, state.averages())
            if counters.due(args.eval_interval):
                run.evaluate(counters, agent)
            if counters.due(args.checkpoint_interval):
                run.save(state, agent)
            at_frame(counters)
        return run.finish(state, agent)


def record(run_dir: Path) -> tuple[str, list[str]]:
    """What a run leaves behind that must not depend on interruptions: its agent, and its metrics but for the speed."""
    return (run_dir / "agent.safetensors").read_text(), metric_lines(run_dir)


def metric_lines(run_dir: Path) -> list[str]:
    return [line for line in (run_dir / "metrics.csv").read_text().splitlines() if "charts/SPS" not in line]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


plot_curve = run_module.plot_curve


@pytest.fixture(autouse=True)
def inside_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_module, "plot_curve", lambda folder: folder / "curve.png")  # takes longer than a run


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Calls the script as the shell would: exit code, standard output, standard error."""

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["script.py", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            command_line(Args, main)
        output = capsys.readouterr()
        return exit_.value.code, output.out, output.err

    return call


# --- A run from its beginning to its end -----------------------------------------------------------------------------


def test_a_run_leaves_what_was_promised(capsys, monkeypatch):
    monkeypatch.setattr(run_module, "plot_curve", plot_curve)
    assert main(Args(run_dir=Path("run"))) == 0
    names = {path.name for path in Path("run").iterdir()}
    assert names == {"config.json", "metrics.csv", "checkpoint", "agent.safetensors", "curve.png", "tensorboard"}
    metrics = read_metrics(Path("run/metrics.csv"))
    assert metrics["charts/frames"][1].tolist() == metrics["charts/frames"][0].tolist() == list(range(5, 41, 5))
    assert metrics["charts/episodic_length"][0].tolist() == [7, 14, 21, 28, 35]
    assert set(metrics["charts/episodic_length"][1]) == {7}
    assert metrics["eval/score"][0].tolist() == [10, 20, 30, 40]
    assert len(set(metrics["eval/score"][1])) == 1  # the same policy from the same starts
    assert metrics["final/score"][0].tolist() == [40]
    said = capsys.readouterr().out
    assert re.search(r"score -\d+\.\d\d \+- \d+\.\d\d over 2 episodes", said)
    assert "curve: run/curve.png" in said
    assert "interrupted" not in said
    assert "stopped" not in said


def test_decisions_and_repeats_add_up():
    counts = []
    main(Args(run_dir=Path("run"), num_envs=3, buffer_size=99), at_frame=lambda c: counts.append((c.frames, c.repeats)))
    metrics = read_metrics(Path("run/metrics.csv"))
    repeats = dict(counts)
    frames, decisions = metrics["charts/decisions"]
    assert frames.tolist() == [6, 12, 15, 21, 27, 30, 36, 42]  # the first frame at or after every multiple of five
    assert decisions.tolist() == [frame - repeats[frame] for frame in frames]
    bounds = [0, *frames]
    fractions = [
        (repeats[end] - repeats.get(begin, 0)) / (end - begin) for begin, end in zip(bounds, frames, strict=False)
    ]
    assert metrics["charts/repeat_fraction"][1].tolist() == fractions


def test_the_folder_is_named_after_what_runs(monkeypatch):
    monkeypatch.setattr(run_module.time, "strftime", lambda layout: "now")
    assert Run(Args(seed=3), "number").folder == Path("runs/test_run_Drift-v0__number__3__now")


def test_config_tells_both_ids_versions_and_arguments():
    with pytest.warns(UserWarning, match="using test_run/Drift-v0"):
        main(Args(env_id="test_run/Drift-v7", run_dir=Path("run")))
    config = read_config(Path("run"))
    assert config["method"] == "number"
    assert (config["env_id"], config["resolved_env_id"]) == ("test_run/Drift-v7", "test_run/Drift-v0")
    assert config["versions"]["gymnasium"] == gym.__version__
    assert config["versions"].keys() >= {"python", "numpy", "torch", "taac-wrappers"}
    assert config["args"] | {"run_dir": "run"} == json.loads(json.dumps(vars(Args("test_run/Drift-v7", run_dir="run"))))


def test_stops_after_two_good_evaluations_and_says_so(capsys, monkeypatch):
    scores = iter([5.0, 9.0, 8.0, 9.0, 9.5, 0.0])
    result = {"score_std": 0.0, "returns": [0.0], "repeat_fraction": 0.0, "apr": 1.0}
    monkeypatch.setattr(run_module, "evaluate", lambda *_, **__: result | {"score": next(scores)})
    frames = []
    assert main(Args(run_dir=Path("run"), total_frames=90, stop_at_score=9.0), lambda c: frames.append(c.frames)) == 0
    assert frames[-1] == 50  # evaluated at 10, 20, ...: 9 and 9.5 are the first two in a row
    assert "stopped at frame 50: two evaluations reached a score of 9.0" in capsys.readouterr().out

    scores = iter([0.0])
    main(replace(Args(), resume=Path("run"), total_frames=90, stop_at_score=9.0))  # it has been reached
    assert read_metrics(Path("run/metrics.csv"))["final/score"][0].tolist() == [50]
    scores = iter([9.5, 9.9, 0.0])
    frames.clear()
    main(replace(Args(), resume=Path("run"), total_frames=90, stop_at_score=9.4), lambda c: frames.append(c.frames))
    assert frames == list(range(51, 61))  # with a higher goal one of the old evaluations still counts


def test_films_an_episode_at_every_evaluation():
    main(Args(run_dir=Path("run"), total_frames=20, capture_video=True))
    videos = sorted(path.relative_to("run/videos") for path in Path("run/videos").rglob("*.mp4"))
    assert videos == [Path(f"frame-{frame}/rl-video-episode-0.mp4") for frame in (10, 20)]
    main(Args(run_dir=Path("blind"), total_frames=20))
    assert record(Path("run")) == record(Path("blind"))


@pytest.mark.parametrize("environment", [{}, {"DISPLAY": ":0"}, {"WAYLAND_DISPLAY": "w"}, {"MUJOCO_GL": "osmesa"}])
def test_mujoco_renders_without_a_display_only_for_video(monkeypatch, environment):
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    Run(Args(), "number")
    assert os.environ.get("MUJOCO_GL") == environment.get("MUJOCO_GL")
    Run(Args(capture_video=True), "number")
    assert os.environ.get("MUJOCO_GL") == (environment.get("MUJOCO_GL") if environment else "egl")


# --- Going on --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"num_envs": 2, "frames_per_iteration": 13}], ids=["1 env", "2 envs"])
@pytest.mark.parametrize("stop", [3, 15, 28])
def test_resumed_equals_uninterrupted(changes, stop):
    args = Args(**changes)
    main(replace(args, run_dir=Path("whole")))
    main(replace(args, run_dir=Path("parts"), total_frames=stop))
    main(replace(args, resume=Path("parts")))
    assert record(Path("parts")) == record(Path("whole"))


def test_nothing_that_may_change_on_resume_changes_what_is_learned(capsys):
    main(Args(run_dir=Path("plain")))
    other = Args(run_dir=Path("other"), eval_interval=7, eval_episodes=2, final_episodes=1, checkpoint_interval=4)
    main(replace(other, stop_at_score=1e9, threads=2, capture_video=True, device="auto", wandb_project="p"))
    assert record(Path("plain"))[0] == record(Path("other"))[0]


def test_different_seeds_differ():
    for seed in (0, 1):
        main(Args(run_dir=Path(f"{seed}"), seed=seed))
    assert record(Path("0"))[0] != record(Path("1"))[0]


def test_an_extended_run_remembers_that_it_was_extended(command):
    main(Args(run_dir=Path("run"), total_frames=20))
    versions = read_config(Path("run"))["versions"]
    stops = iter([25])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "goes_on", lambda run, counters: counters.frames < next(stops))
        stops = iter(range(22, 26))
        with pytest.raises(StopIteration):  # the run dies after the checkpoint that resuming wrote
            main(replace(from_config(Args, Path("run")), total_frames=40))
    assert from_config(Args, Path("run")) == Args(resume=Path("run"), total_frames=40)
    assert read_config(Path("run"))["versions"] == versions
    assert command("--resume", "run")[0] == 0
    main(Args(run_dir=Path("whole")))
    assert record(Path("run")) == record(Path("whole"))


def test_resume_from_the_older_checkpoint_if_the_newest_is_damaged():
    main(Args(run_dir=Path("whole")))
    main(Args(run_dir=Path("run")))
    (Path("run/checkpoint") / f"{40:012d}" / "meta.json").write_text("{}")
    Path("run/agent.safetensors").unlink()
    with pytest.warns(UserWarning, match="going back to checkpoint"):
        main(Args(resume=Path("run")))
    assert record(Path("run")) == record(Path("whole"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        main(Args(resume=Path("run")))  # the last checkpoint is good again


def test_an_episode_that_cannot_be_repeated_is_cut_off(monkeypatch):
    main(Args(run_dir=Path("run"), total_frames=10))
    monkeypatch.setattr(Drift, "luck", 0.5)
    restore, frames = TrainingState.restore, []

    def restored(state: TrainingState, loaded: Loaded) -> np.ndarray:
        assert loaded.arrays["prev_action"] != 0
        observation = restore(state, loaded)
        assert state.prev_action == 0
        return observation

    monkeypatch.setattr(TrainingState, "restore", restored)
    with pytest.warns(UserWarning, match="did not repeat its episode of 3 frames"):
        main(Args(resume=Path("run")), lambda c: frames.append(c.frames))
    lengths = read_metrics(Path("run/metrics.csv"))["charts/episodic_length"]
    assert frames == list(range(11, 41))
    assert lengths[0].tolist() == [7, 17, 24, 31, 38]  # a new episode began at frame 10


def test_only_arguments_that_do_not_matter_may_change(command):
    main(Args(run_dir=Path("run"), total_frames=10))
    before = contents(Path("run"))
    fixed = {name for name in vars(Args()) if name not in CHANGEABLE_ON_RESUME} - {"env_id", "hidden"}
    for name in sorted(fixed):
        value = getattr(Args(), name)
        other = value / 2 if isinstance(value, float) else value + 1
        code, _, said = command("--resume", "run", f"--{name.replace('_', '-')}", str(other))
        assert code == 2
        expected = f"this run has --{name.replace('_', '-')} {value}, got {other}"
        assert expected in said, said
    assert contents(Path("run")) == before


# --- Stopping --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_and_it_can_go_on(number, code, capsys):
    main(Args(run_dir=Path("whole")))
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert main(Args(run_dir=Path("run 1")), lambda c: c.frames == 22 and os.kill(os.getpid(), number)) == code
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    said = capsys.readouterr().out
    assert f"continue with: python {os.path.relpath(__file__)} --resume 'run 1'" in said.replace(
        __file__, os.path.relpath(__file__)
    )
    metrics = read_metrics(Path("run 1/metrics.csv"))
    assert metrics["charts/frames"][0][-1] == 20
    assert "final/score" not in metrics
    assert main(Args(resume=Path("run 1"))) == 0
    assert record(Path("run 1")) == record(Path("whole"))


def test_the_last_evaluation_does_not_wait(monkeypatch, capsys):
    main(Args(run_dir=Path("whole")))
    evaluate, calls = run_module.evaluate, []

    def interrupted(policy, env, episodes, seed):
        calls.append(episodes)
        if episodes == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(policy, env, episodes, seed=seed)

    monkeypatch.setattr(run_module, "evaluate", interrupted)
    assert main(Args(run_dir=Path("run"))) == 143
    assert calls == [1, 1, 1, 1, 2]
    assert "interrupted and saved" in capsys.readouterr().out
    assert "final/score" not in read_metrics(Path("run/metrics.csv"))
    monkeypatch.setattr(run_module, "evaluate", evaluate)
    assert main(Args(resume=Path("run"))) == 0
    assert record(Path("run")) == record(Path("whole"))


def test_a_second_ctrl_c_does_not_wait():
    def impatient(counters: Counters) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job may ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            main(Args(run_dir=Path("run")), impatient)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_runs_in_a_thread_without_touching_signals():
    before, codes = signal.getsignal(signal.SIGINT), []
    during = []
    watch = lambda c: during.append(signal.getsignal(signal.SIGINT))  # noqa: E731
    thread = threading.Thread(target=lambda: codes.append(main(Args(run_dir=Path("run")), watch)))
    thread.start()
    thread.join()
    assert codes == [0]
    assert set(during) == {before}


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_stays_open(fails):
    main(Args(run_dir=Path("first")))  # what libraries open once and for all
    before = len(os.listdir("/dev/fd")), signal.getsignal(signal.SIGINT), threading.active_count()

    def fail(counters: Counters) -> None:
        raise ZeroDivisionError

    if fails:
        with pytest.raises(ZeroDivisionError):
            main(Args(run_dir=Path("run")), fail)
        assert Path("run/metrics.csv").read_text() == "frame,metric,value\n"
    else:
        main(Args(run_dir=Path("run")))
    assert (len(os.listdir("/dev/fd")), signal.getsignal(signal.SIGINT), threading.active_count()) == before


# --- What cannot work ------------------------------------------------------------------------------------------------

AT_LEAST_ONE = (
    *("total_frames", "num_envs", "batch_size", "window", "updates_per_iteration", "frames_per_iteration"),
    *("eval_interval", "eval_episodes", "final_episodes", "checkpoint_interval", "target_interval", "threads"),
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(({name: 0}, f"--{name.replace('_', '-')} must be at least 1, got 0") for name in AT_LEAST_ONE),
        *(
            ({name: value}, rf"--{name.replace('_', '-')} must be in \(0, 1\], got {value}")
            for name in ("learning_rate", "gamma", "tau")
            for value in (0.0, 1.5, float("nan"))
        ),
        ({"seed": -1}, "--seed must not be negative, got -1"),
        ({"learning_starts": 2, "num_envs": 3}, "--learning-starts must be at least one frame per env, got 2"),
        ({"batch_size": 31}, "--batch-size 31 is larger than the replay, --buffer-size 30"),
        ({"window": 30}, "--buffer-size 30 cannot hold a window of 30 for 1 envs"),
        ({"window": 9, "num_envs": 3, "learning_starts": 9}, "--buffer-size 30 cannot hold a window of 9 for 3 envs"),
    ],
)
def test_refuses_numbers_by_name_and_value(changes, message):
    with pytest.raises(ValueError, match=message):
        check_common(Args(**changes))


def test_accepts_the_numbers_next_to_those():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_common(
            Args(**dict.fromkeys(AT_LEAST_ONE, 1), learning_starts=1, learning_rate=1.0, gamma=1.0, tau=1.0, seed=0)
        )
        check_common(Args(batch_size=30, window=28))
        check_common(Args(learning_starts=40, num_envs=40, buffer_size=160))
    with pytest.warns(UserWarning, match="--total-frames 40 ends before --learning-starts 41: nothing will be learned"):
        check_common(Args(learning_starts=41))


@pytest.mark.parametrize("name", ["nonsense", "cuda:99", "meta"])
def test_refuses_devices_that_are_not_there(name):
    with pytest.raises(ValueError, match=f"--device '{name}' cannot be used: "):
        pick_device(name)


def test_picks_a_device():
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--env-id", "test_run/Drft-v0"], "no environment is named 'test_run/Drft-v0'; close matches: test_run/Drift"),
        (["--run-dir", "taken"], "--run-dir: 'taken' exists already; continue it with --resume taken"),
        (["--run-dir", "file/run"], "--run-dir: cannot create 'file/run': Not a directory"),
        (["--resume", "taken"], "--resume: 'taken' is not a run folder (no config.json)"),
        (["--resume", "nowhere"], "--resume: 'nowhere' is not a run folder (no config.json)"),
        (["--resume", "file"], "--resume: 'file' is not a run folder (no config.json)"),
        (["--resume", "foreign"], "--resume: 'foreign' is not a run folder (its config.json is of something else)"),
        (["--resume", "torn"], "torn/config.json: not valid JSON"),
        (["--env-id", "test_run/DarkDrift-v0", "--capture-video"], "DarkDrift-v0 cannot be filmed: no light"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(command, tmp_path, words, message):
    for name, config in {"taken": None, "foreign": "{}", "torn": "{"}.items():
        Path(name).mkdir()
        if config is not None:
            (Path(name) / "config.json").write_text(config)
    Path("file").touch()
    before = sorted(tmp_path.rglob("*"))
    code, out, said = command(*words)
    assert code == 2
    assert out == ""
    lines = said.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert message in lines[0]
    assert [path for path in sorted(tmp_path.rglob("*")) if path.name != "runs"] == before


def test_no_permission_to_write(command, monkeypatch, tmp_path):
    def forbidden(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", forbidden)
    code, _, said = command("--run-dir", "run")
    assert (code, said) == (2, "error: --run-dir: cannot create 'run': Permission denied\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [ImportError("no wandb"), OSError("disk"), KeyboardInterrupt()])
def test_a_new_folder_vanishes_if_tracking_cannot_start(monkeypatch, tmp_path, error):
    def fail(*_: Any, **__: Any) -> None:
        assert Path("run").is_dir()
        raise error

    monkeypatch.setattr(run_module, "Tracker", fail)
    with pytest.raises((BadInput, KeyboardInterrupt)):
        main(Args(run_dir=Path("run")))
    assert list(tmp_path.iterdir()) == []


def test_a_run_to_resume_survives_that_tracking_cannot_start(monkeypatch):
    main(Args(run_dir=Path("run"), total_frames=10))
    before = contents(Path("run"))
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(BadInput, match="tracking needs wandb"):
        main(replace(from_config(Args, Path("run")), track=True))
    assert contents(Path("run")) == before


def test_a_run_without_a_checkpoint_begins_anew(command, capsys):
    main(Args(run_dir=Path("whole")))
    main(Args(run_dir=Path("run"), total_frames=10))
    shutil.rmtree("run/checkpoint")
    code, out, _ = command("--resume", "run", "--total-frames", "40")
    assert code == 0
    assert "run holds no checkpoint yet: starting from the beginning\n" in out
    assert record(Path("run")) == record(Path("whole"))
    assert len(list(Path("run/tensorboard").iterdir())) == 1  # of this beginning, not of the one before

    (Path("run/metrics.csv")).unlink()
    shutil.rmtree("run/checkpoint")  # as if killed just after the folder was made
    assert command("--resume", "run")[0] == 0
    assert record(Path("run")) == record(Path("whole"))


def test_a_folder_that_was_never_finished_is_not_in_the_way(tmp_path):
    Path(".tmp-run").mkdir()
    Path(".tmp-run/.tmp-config.json").write_text("{")
    main(Args(run_dir=Path("run"), total_frames=10))
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("call", ["write_config", "os.rename"])
def test_a_folder_that_cannot_be_finished_leaves_nothing(command, monkeypatch, tmp_path, call):
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"taac_wrappers.training.run.{call}", full)
    code, _, said = command("--run-dir", "run")
    assert (code, said) == (2, "error: --run-dir: cannot create 'run': No space left on device\n")
    assert list(tmp_path.iterdir()) == []


def test_resume_refuses_what_belongs_to_something_else(command):
    main(Args(run_dir=Path("run"), total_frames=10))
    main(Args(run_dir=Path("dark"), env_id="test_run/DarkDrift-v0", total_frames=10))
    code, _, said = command("--resume", "run", "--env-id", "test_run/DarkDrift-v0")
    expected = "error: --resume: this run has --env-id test_run/Drift-v0, got test_run/DarkDrift-v0; start a new run"
    assert (code, said.startswith(expected)) == (2, True)
    code, _, said = command("--resume", "run", "--run-dir", "elsewhere")
    assert (code, said) == (2, "error: --run-dir elsewhere is for a new run, but --resume continues run\n")

    shutil.rmtree("run/checkpoint")
    Path("dark/checkpoint").rename("run/checkpoint")
    code, _, said = command("--resume", "run")
    assert code == 2
    assert said.endswith("is a checkpoint of test_run/DarkDrift-v0, not of test_run/Drift-v0\n")

    config = read_config(Path("run"))
    for changes, message in [
        ({"method": "other"}, "'run' is a run of other, not of number"),
        ({"resolved_env_id": "Drift-v9"}, "this run was of Drift-v9, which is now test_run/Drift-v0"),
        ({"args": {"seed": 0}}, "'run' is a run of another script or version (['batch_size', "),
    ]:
        Path("run/config.json").write_text(json.dumps(config | changes))
        code, _, said = command("--resume", "run")
        assert code == 2
        assert said.startswith(f"error: --resume: {message}")


def test_resume_refuses_a_checkpoint_that_is_damaged_throughout(command):
    main(Args(run_dir=Path("run")))
    generations = sorted(Path("run/checkpoint").glob("0*"))
    assert len(generations) == 2
    for generation in generations:
        os.truncate(generation / "state.safetensors", 10)
    before = contents(Path("run"))
    code, _, said = command("--resume", "run", "--total-frames", "99")
    assert code == 2
    assert said.startswith("error: no checkpoint is usable: ")
    assert all(str(generation) in said for generation in generations)
    assert said.count("\n") == 1
    assert contents(Path("run")) == before


def test_resume_refuses_networks_of_another_shape(command, monkeypatch):
    main(Args(run_dir=Path("run"), total_frames=10))
    monkeypatch.setattr(Number, "__init__", lambda self: (nn.Module.__init__(self), setattr(self, "value", WIDE))[0])
    code, _, said = command("--resume", "run")
    assert code == 2
    assert "does not fit this run" in said
    assert said.count("\n") == 1


WIDE = nn.Parameter(torch.zeros(2))


def test_flags_read_as_people_write_them(command):
    assert command("--no-track", "--no-capture-video", "--hidden", "3", "3", "3", "--run-dir", "run")[0] == 0
    assert read_config(Path("run"))["args"]["hidden"] == [3, 3, 3]
    assert command("--widnow", "3")[0] == 2
    assert command("--window", "three")[0] == 2
    code, out, _ = command("--resume", "run", "--help")
    assert code == 0
    assert re.search(r"--hidden.*\(default: 3 3 3\)", out, re.DOTALL)


# --- Counting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_envs", [1, 2, 3, 7])
def test_due_counts_every_multiple_once(num_envs):
    for interval in range(1, 12):
        counters, multiples = Counters(num_envs), []
        while counters.frames < 60:
            counters.count(np.ones(num_envs, bool))
            stepped = range(counters.frames - num_envs + 1, counters.frames + 1)
            assert counters.due(interval) == sum(frame % interval == 0 for frame in stepped)
            multiples.append(counters.due(interval))
        assert sum(multiples) == counters.frames // interval
