"""The life of a run from its beginning to its end."""

from __future__ import annotations

import itertools
import os
import re
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

import number_script
import numpy as np
import pytest
from number_script import Args, main, plot_curve, record, wrap

from taac_wrappers import NRepeatWrapper
from taac_wrappers.training import run as run_module
from taac_wrappers.training.counters import Counters
from taac_wrappers.training.run import Run, report
from taac_wrappers.training.tracking import read_metrics

pytestmark = pytest.mark.usefixtures("inside_an_empty_folder")


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


def test_decisions_are_the_actions_asked_for():
    """Every action lasts two frames, but the last of an episode of seven: steps of 2, 2, 2 and 1 frames."""
    args = Args(run_dir=Path("run"), num_envs=3, buffer_size=99, total_frames=48)
    main(args, wrap=lambda env: wrap(NRepeatWrapper(env, 2)))
    metrics = read_metrics(Path("run/metrics.csv"))
    frames, decisions = metrics["charts/decisions"]
    # Of three envs: 6, 12, 18, 21 frames, and again 27, 33, 39, 42, 48; 18 is at no new multiple of five.
    assert frames.tolist() == [6, 12, 18, 21, 27, 33, 39, 42, 48]
    assert decisions.tolist() == [3, 6, 9, 12, 15, 18, 21, 24, 27]
    assert metrics["charts/frames"][1].tolist() == frames.tolist()
    assert metrics["charts/episodic_length"][0].tolist() == [21] * 3 + [42] * 3
    assert set(metrics["charts/episodic_length"][1]) == {7}


def test_repeats_are_told_of_every_finished_episode(monkeypatch):
    switches = {0: [1, 0, 0, 1, 0, 1, 1], 1: [0, 1, 1, 1, 1, 1, 1]}  # the first also repeats: the zero before
    step = itertools.count()

    def scripted(rng, space):
        at = next(step) % 7
        return {"action": np.full((2, 1), 0.1, np.float32), "switch": np.array([switches[0][at], switches[1][at]])}

    monkeypatch.setattr(number_script, "random_action", scripted)
    main(Args(run_dir=Path("run"), num_envs=2, total_frames=30))
    frames, fractions = read_metrics(Path("run/metrics.csv"))["charts/repeat_fraction"]
    assert frames.tolist() == [14, 14, 28, 28]
    assert fractions.tolist() == [3 / 7, 1 / 7] * 2


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


def test_an_environment_without_a_time_limit_is_warned_of_and_its_evaluations_end(capsys):
    args = Args(run_dir=Path("run"), env_kwargs={"length": 30_000}, total_frames=10, final_episodes=1)
    assert main(args) == 0
    metrics = read_metrics(Path("run/metrics.csv"))
    assert metrics["eval/length"][1].tolist() == metrics["final/length"][1].tolist() == [10_000]
    warnings = [line for line in capsys.readouterr().err.splitlines() if "max_episode_steps" in line]
    assert len(warnings) == 1
    assert "cut at 10000 frames in evaluation" in warnings[0]

    main(Args(run_dir=Path("limited"), env_kwargs={"length": 0, "max_episode_steps": 4}, total_frames=10))
    assert read_metrics(Path("limited/metrics.csv"))["eval/length"][1].tolist() == [4]
    assert "max_episode_steps" not in capsys.readouterr().err


def test_a_film_of_an_environment_without_a_time_limit_ends_sooner(monkeypatch):
    monkeypatch.setattr(run_module, "LONGEST_FILM", 20)
    filmed = []
    monkeypatch.setattr(
        number_script.Drift, "render", lambda env: filmed.append(env.frame) or np.zeros((32, 32, 3), "u1")
    )
    main(Args(run_dir=Path("run"), env_kwargs={"length": 30}, total_frames=10, capture_video=True))
    assert max(filmed) == 20


@pytest.mark.parametrize(
    ("fraction", "apr", "words"), [(1.0, 150.0, "never acts anew"), (0.5, 2.0, "acts anew every 2.0 frames")]
)
def test_the_report_says_how_often_the_agent_acts(fraction, apr, words):
    result = {"score": 0.0, "score_std": 0.0, "returns": [0.0], "repeat_fraction": fraction, "apr": apr}
    assert report(result).endswith(f" of its actions: {words}")


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
    Run(Args(), "number", wrap)
    assert os.environ.get("MUJOCO_GL") == environment.get("MUJOCO_GL")
    Run(Args(capture_video=True), "number", wrap)
    assert os.environ.get("MUJOCO_GL") == (environment.get("MUJOCO_GL") if environment else "egl")


def test_different_seeds_differ():
    for seed in (0, 1):
        main(Args(run_dir=Path(f"{seed}"), seed=seed))
    assert record(Path("0"))[0] != record(Path("1"))[0]


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
