"""Both training scripts with environments that fail: they save and stop, or replace them and go on."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import sac_continuous
import taac_continuous
import torch
from gymnasium.spaces import Box
from safetensors.torch import load_file

from taac_wrappers.training import replay as replay_module
from taac_wrappers.training import run as run_module
from taac_wrappers.training.arguments import BadInput
from taac_wrappers.training.config import from_config
from taac_wrappers.training.structure import named
from taac_wrappers.training.tracking import read_metrics

ROOT = Path(__file__).parents[2]
SCRIPTS = pytest.mark.parametrize("script", [taac_continuous, sac_continuous], ids=["taac", "sac"])


class Brittle(gym.Env):
    """Episodes of ten frames that observe the frame's number. ``breaks`` tells by its seed and frames how one fails."""

    observation_space, action_space = Box(-1e9, 1e9, (2,)), Box(-1.0, 1.0, (1,))
    breaks = staticmethod(lambda seed, frames: None)
    own_seed, frames = None, 0  # of the last reset with a seed, and steps since

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        if seed is not None:
            self.own_seed, self.frames = seed, 0
        self.frame = 0
        return np.array([0, self.np_random.uniform()], np.float32), {}

    def step(self, action: np.ndarray):
        self.frame += 1
        self.frames += 1
        observation = np.array([self.frame, self.np_random.uniform()], np.float32)
        reward = 1.0
        fault = self.breaks(self.own_seed, self.frames)
        if fault == "nan":
            observation[1] = np.nan
        elif fault == "raise":
            raise RuntimeError("a joint is broken")
        elif fault == "hang":
            time.sleep(1000)
        elif fault == "mark":
            observation[0] = reward = 12345.0
        return observation, reward, False, self.frame == 10, {}


gym.register("test_env_faults/Brittle-v0", Brittle)


def args_for(script: Any, run_dir: Path, **changes: Any) -> Any:
    small = {"total_frames": 240, "buffer_size": 150, "batch_size": 16, "hidden": (8, 8), "learning_starts": 30}
    small |= {"eval_interval": 120, "eval_episodes": 1, "final_episodes": 1, "checkpoint_interval": 90, "num_envs": 3}
    small |= {"frames_per_iteration": 9, "updates_per_iteration": 1}
    return replace(script.Args.for_task("test_env_faults/Brittle-v0"), run_dir=run_dir, **small | changes)


def agent_and_metrics(run_dir: Path) -> tuple[dict[str, torch.Tensor], list[str]]:
    lines = (run_dir / "metrics.csv").read_text().splitlines()
    return load_file(run_dir / "agent.safetensors"), [line for line in lines if "charts/SPS" not in line]


def assert_same_run(one: Path, other: Path) -> None:
    (agent, metrics), (other_agent, other_metrics) = agent_and_metrics(one), agent_and_metrics(other)
    assert metrics == other_metrics
    assert all(torch.equal(agent[name], other_agent[name]) for name in agent)


@pytest.fixture(autouse=True)
def tidy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_module, "plot_curve", lambda folder: folder / "curve.png")  # takes longer than a run
    for script in (taac_continuous, sac_continuous):
        monkeypatch.setattr(script, "LOG_INTERVAL", 30)


def breaks(monkeypatch: pytest.MonkeyPatch, rule: Any) -> None:
    monkeypatch.setattr(Brittle, "breaks", staticmethod(rule))


@SCRIPTS
@pytest.mark.parametrize(
    ("fault", "said"), [("nan", "it observed nan in entry 1"), ("raise", "it raised RuntimeError: a joint is broken (")]
)
def test_a_fault_saves_and_stops_and_the_run_can_go_on(script, fault, said, monkeypatch, capsys):
    breaks(monkeypatch, lambda seed, frames: fault if (seed, frames) == (1, 35) else None)
    assert script.main(args_for(script, Path("run"))) == 1
    output = capsys.readouterr()
    errors = [line for line in output.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert errors[0].startswith(f"error: env 1 (test_env_faults/Brittle-v0) failed at frame 105: {said}")
    assert "Traceback" not in output.err
    assert "interrupted and saved; continue with: python " in output.out
    assert Path("run/agent.safetensors").is_file()
    assert list(Path("run/checkpoint").glob("000000000105*"))
    assert "final/score" not in read_metrics(Path("run/metrics.csv"))

    assert script.main(from_config(script.Args, Path("run"))) == 0  # the new environment has another seed
    metrics = read_metrics(Path("run/metrics.csv"))
    frames, lengths = metrics["charts/episodic_length"]
    assert set(lengths) == {10}
    # Env 1 lost the five frames of its fourth episode, and began the next at frame 105.
    assert sorted(frames) == sorted([*[30 * n for n in range(1, 9)] * 2, 30, 60, 90, 135, 165, 195, 225])
    assert all(np.isfinite(values).all() for _, values in metrics.values())
    assert metrics["charts/env_restarts"][1].tolist() == [0] * 8


@SCRIPTS
def test_restart_forgets_the_unfinished_episode_and_counts(script, monkeypatch, capsys):
    """The frames of the broken episode are marked: none of them may ever be sampled."""
    breaks(
        monkeypatch,
        lambda seed, frames: "raise" if (seed, frames) == (1, 39) else "mark" if seed == 1 and frames > 30 else None,
    )
    sampled, draw = [], replay_module.SequenceReplay.sample

    def sample(replay, *arguments, **options):
        windows = draw(replay, *arguments, **options)
        sampled.append(windows)
        return windows

    def run(name: str, **changes: Any) -> None:
        args = args_for(script, Path(name), on_env_error="restart", batch_size=48, **changes)
        assert script.main(args) == 0

    run("whole")
    said = capsys.readouterr().err
    assert said.count("env 1 (test_env_faults/Brittle-v0) failed at frame 117: it raised RuntimeError") == 1
    assert "a new one takes its place" in said
    restarts = read_metrics(Path("whole/metrics.csv"))["charts/env_restarts"]
    assert restarts[1].tolist() == [0, 0, 0, 1, 1, 1, 1, 1]
    assert restarts[0].tolist() == list(range(30, 241, 30))

    monkeypatch.setattr(replay_module.SequenceReplay, "sample", sample)
    run("again")
    assert_same_run(Path("again"), Path("whole"))
    # Env 1's fourth episode could be sampled until its fault at frame 117, before the tenth update, and never again.
    marked = [
        any((array == 12345).any() for array in (windows.reward, *named("observation", windows.observation).values()))
        for windows in sampled
    ]
    assert any(marked[:9])
    assert not any(marked[9:])
    assert len(marked) == 23

    run("parts", total_frames=150)
    script.main(replace(from_config(script.Args, Path("parts")), total_frames=240))
    assert_same_run(Path("parts"), Path("whole"))  # the count is part of what is resumed


@SCRIPTS
def test_an_environment_that_always_fails_stops_even_with_restart(script, monkeypatch, capsys):
    breaks(monkeypatch, lambda seed, frames: "nan")
    assert script.main(args_for(script, Path("run"), on_env_error="restart")) == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    place = "entry 1 of observation" if script is taac_continuous else "entry 1"  # beside the previous action
    assert errors == [
        f"error: env 0 (test_env_faults/Brittle-v0) failed at frame 30: it observed nan in {place}, "
        "and so did 9 others in its place"
    ]


@SCRIPTS
def test_the_only_episode_may_be_forgotten_while_learning(script, monkeypatch):
    breaks(monkeypatch, lambda seed, frames: "nan" if (seed, frames) == (0, 8) else None)
    args = args_for(script, Path("run"), num_envs=1, learning_starts=4, frames_per_iteration=1, total_frames=30)
    assert script.main(replace(args, on_env_error="restart")) == 0
    assert read_metrics(Path("run/metrics.csv"))["charts/updates"][1].tolist() == [26]  # at 4 to 30, but for frame 8


def test_a_fault_at_the_very_beginning_is_bad_input(monkeypatch):
    monkeypatch.setattr(Brittle, "reset", lambda *_, **__: (np.full(2, np.nan, np.float32), {}))
    with pytest.raises(BadInput, match="failed at frame 0: it observed nan"):
        taac_continuous.main(args_for(taac_continuous, Path("run")))
    assert not Path("run").exists()


@SCRIPTS
def test_a_fault_in_evaluation_costs_that_evaluation_only(script, monkeypatch, capsys):
    evaluations = iter(range(100))
    make = script.Run.evaluate.__globals__["make_env"]

    class BreaksInEvaluation(gym.Wrapper):
        def step(self, action):
            if self.evaluation % 2 == 0:
                raise RuntimeError("no light")
            return super().step(action)

        def reset(self, **arguments):
            self.evaluation = next(evaluations)
            return super().reset(**arguments)

    monkeypatch.setitem(script.Run.evaluate.__globals__, "make_env", lambda *a, **k: BreaksInEvaluation(make(*a, **k)))
    assert script.main(args_for(script, Path("run"), eval_interval=60)) == 0
    said = capsys.readouterr()
    lines = [line for line in said.err.splitlines() if line.startswith("evaluation at frame")]
    assert [line.split(" failed: ")[0] for line in lines] == [
        "evaluation at frame 60",
        "evaluation at frame 180",
        "evaluation at frame 240",
    ]
    assert all("test_env_faults/Brittle-v0 raised RuntimeError: no light (test_env_faults.py" in line for line in lines)
    metrics = read_metrics(Path("run/metrics.csv"))
    assert metrics["eval/score"][0].tolist() == [120, 240]
    assert "final/score" not in metrics
    assert metrics["charts/frames"][1][-1] == 240


@SCRIPTS
def test_workers_train_bit_for_bit_as_this_process_does(script):
    args = replace(args_for(script, Path("sync"), num_envs=2, total_frames=120), env_id="Pendulum-v1")
    assert script.main(args) == 0
    in_workers = replace(args, env_engine="async", run_dir=Path("parts"))
    assert script.main(replace(in_workers, total_frames=70)) == 0
    assert script.main(replace(in_workers, resume=Path("parts"))) == 0
    assert_same_run(Path("parts"), Path("sync"))


PROGRAM = """
import sys, time, gymnasium as gym, numpy as np
sys.path[:0] = [{root!r}, {root!r} + "/agents"]
import taac_continuous as script

class Stuck(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1e9, 1e9, (1,)), gym.spaces.Box(-1.0, 1.0, (1,))
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed = seed if seed is not None else self.seed
        return np.zeros(1, np.float32), {{}}
    def step(self, action):
        if self.seed == 1:
            time.sleep(1000)
        return np.zeros(1, np.float32), 1.0, False, False, {{}}

gym.register("Stuck-v0", Stuck)
if __name__ == "__main__":
    script.command_line(script.Args, script.main)
"""


def test_a_hung_worker_ends_the_process_with_one_message(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(root=str(ROOT)))
    words = "--env-id Stuck-v0 --num-envs 2 --total-frames 100 --learning-starts 50 --env-engine async --env-timeout 1"
    process = subprocess.run(
        [sys.executable, program, *words.split(), "--run-dir", "run"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    assert process.returncode == 1, process.stderr
    assert "error: env 1 (Stuck-v0) failed at frame 2: it gave no answer within 1 s\n" in process.stderr
    assert "Traceback" not in process.stderr
    assert list((tmp_path / "run/checkpoint").glob("0*/MANIFEST.json"))
    assert (tmp_path / "run/agent.safetensors").is_file()
    assert (tmp_path / "run/curve.png").is_file()


@SCRIPTS
def test_the_new_flags_are_checked(script):
    with pytest.raises(BadInput, match="timeout of envs must be a positive number of seconds, got -1"):
        script.main(args_for(script, Path("run"), env_timeout=-1))
    assert not Path("run").exists()
