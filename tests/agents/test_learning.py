"""Scripts learn what to do, TAAC when to hold, SAC-Krep for how long. Tasks take seconds, and best scores are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import sac_continuous as sac
import sac_ez_continuous as sac_ez
import sac_hybrid_continuous as sac_hybrid
import sac_krep_continuous as sac_krep
import sac_nrep_continuous as sac_nrep
import sac_ntd_continuous as sac_ntd
import taac_continuous as taac
from gymnasium.spaces import Box

from taac_wrappers.training import run as run_module
from taac_wrappers.training.tracking import read_metrics

LENGTH = 20


@pytest.fixture(autouse=True)
def no_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at the picture here."""
    monkeypatch.setattr(run_module, "plot_curve", lambda folder: folder / "curve.png")


class Match(gym.Env):
    """Match a target in [-1, 1] with the action: every frame pays 1 - |target - action|, at most 1.

    Args:
        redraw: a new target at every frame, rather than one per episode.
        change_cost: what every change of the action costs, from an episode's second frame on.
    """

    def __init__(self, redraw: bool = False, change_cost: float = 0.0):
        self.redraw, self.change_cost = redraw, change_cost
        self.observation_space = Box(-1.0, 1.0, (2,))  # the target and the previous action
        self.action_space = Box(-1.0, 1.0, (1,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.target, self.previous, self.frame = self.np_random.uniform(-1, 1), 0.0, 0
        return self._observe(), {}

    def step(self, action: np.ndarray):
        action = action.item()
        changed = self.frame > 0 and action != self.previous
        reward = 1 - abs(self.target - action) - self.change_cost * changed
        self.previous = action
        self.frame += 1
        if self.redraw:
            self.target = self.np_random.uniform(-1, 1)
        return self._observe(), reward, False, self.frame == LENGTH, {}

    def _observe(self) -> np.ndarray:
        return np.array([self.target, self.previous], np.float32)


gym.register("test_learning/Identity-v0", Match)
gym.register("test_learning/Hold-v0", Match, kwargs={"change_cost": 1.0})
gym.register("test_learning/Redraw-v0", Match, kwargs={"redraw": True})


def train(script: ModuleType, env_id: str, run_dir: Path, **changes: Any) -> dict[str, float]:
    """Train for a few thousand frames; the last evaluation, of 20 episodes."""
    args = replace(
        script.Args.for_task(env_id),
        num_envs=4,  # acting costs less that way
        learning_starts=500,
        buffer_size=10_000,
        batch_size=64,
        hidden=(64, 64),
        learning_rate=5e-3,
        frames_per_iteration=2,
        gamma=0.8,
        eval_interval=10**6,
        final_episodes=20,
        run_dir=run_dir,
    )
    assert script.main(replace(args, **changes)) == 0
    metrics = read_metrics(run_dir / "metrics.csv")
    return {name.removeprefix("final/"): values[-1] for name, (_, values) in metrics.items() if "final/" in name}


# The best return is 20 in all three tasks. Zero forever earns 10 on average, because the mean of |target| is 1/2.


@pytest.mark.parametrize(("script", "tasks"), [(taac, "Identity Hold Redraw"), (sac, "Identity Redraw")])
@pytest.mark.filterwarnings("ignore:.*nothing will be learned")
def test_no_task_is_solved_without_learning(script, tasks, tmp_path):
    for task in tasks.split():
        assert train(script, f"test_learning/{task}-v0", tmp_path / task, total_frames=20)["score"] < 14


@pytest.mark.parametrize("script", [taac, sac])
def test_matches_a_target(script, tmp_path):
    assert train(script, "test_learning/Identity-v0", tmp_path / "run", total_frames=1400)["score"] > 19


@pytest.mark.parametrize("script", [sac_ntd, sac_nrep, sac_krep, sac_ez, sac_hybrid])
def test_a_second_of_training_is_almost_enough(script, tmp_path):
    changes = {"total_frames": 1200, "learning_starts": 300}
    assert train(script, "test_learning/Identity-v0", tmp_path / "run", **changes)["score"] > 18


@pytest.mark.parametrize(
    ("task", "fewest", "most", "score"),
    [
        (
            "Hold",
            0.7,
            0.75,
            14,
        ),  # every decision costs 1, and the best score is that of the longest durations: about 16
        ("Redraw", 0.0, 0.2, 18),  # holding the best action earns 10
    ],
)
def test_krep_learns_how_long_to_hold(task, fewest, most, score, tmp_path):
    changes = {"total_frames": 1500, "window": 4}
    result = train(sac_krep, f"test_learning/{task}-v0", tmp_path / "run", **changes)
    assert fewest <= result["repeat_fraction"] <= most
    assert result["score"] > score


def test_holds_where_changing_costs(tmp_path):
    """Matching perfectly but with another action at every frame would earn 1."""
    result = train(taac, "test_learning/Hold-v0", tmp_path / "run", total_frames=2500, seed=2)
    assert result["repeat_fraction"] > 0.8
    assert result["score"] > 18


@pytest.mark.parametrize(("script", "most_repeats"), [(taac, 0.2), (sac, 0.0)])
def test_acts_anew_where_every_frame_needs_it(script, most_repeats, tmp_path):
    """Holding the best action earns 10."""
    result = train(script, "test_learning/Redraw-v0", tmp_path / "run", total_frames=1600)
    assert result["repeat_fraction"] <= most_repeats
    assert result["score"] > 19
