"""nan and inf in what is learned: found soon, named, never saved over what is good, and told in one line."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import sac_continuous as sac
import taac_continuous as taac
import torch

from taac_wrappers.training import run as run_module
from taac_wrappers.training.arguments import command_line
from taac_wrappers.training.checkpoint import CheckpointStore
from taac_wrappers.training.finite import CHECK_INTERVAL, LearningFault, NotFinite, require_finite
from taac_wrappers.training.tracking import read_metrics

RUN = Path("run")
both_scripts = pytest.mark.parametrize("script", [taac, sac], ids=["taac", "sac"])

SMALL = {
    "total_frames": 400,
    "hidden": (8, 8),
    "learning_starts": 20,
    "batch_size": 8,
    "buffer_size": 1000,
    "eval_interval": 10_000,
    "eval_episodes": 1,
    "final_episodes": 1,
    "checkpoint_interval": 10_000,
    "updates_per_iteration": 1,
    "frames_per_iteration": 1,
}


@pytest.fixture(autouse=True)
def inside_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_module, "plot_curve", lambda folder: folder / "curve.png")  # takes longer than a run


def small_args(script, **changes):
    return replace(script.Args.for_task("Pendulum-v1"), run_dir=RUN, **SMALL | changes)


def at_update(monkeypatch: pytest.MonkeyPatch, script, number: int, spoil) -> None:
    """After update ``number`` of the script's learner, call ``spoil(learner)``."""
    update = script.Learner.update

    def spoilt(self, batch, counters):
        metrics = update(self, batch, counters)
        if counters.updates == number:
            spoil(self)
        return metrics

    monkeypatch.setattr(script.Learner, "update", spoilt)


SPOILT_ACTOR = r"agent\.actor\.head\.weight holds nan \(1 of \d+ numbers\)"
"""The next action shows it, even where TAAC would have repeated the one before."""
SILENT_UNIT = r"agent\.actor\.hidden\.0\.bias holds -inf \(1 of 8 numbers\)"


@torch.no_grad()
def spoil_actor(learner) -> None:
    learner.agent.actor.head.weight[0, 0] = torch.nan


@torch.no_grad()
def spoil_a_silent_unit(learner) -> None:
    """A unit that never fires: every loss stays finite, and only the weight itself can tell."""
    learner.agent.actor.hidden[0].bias[0] = -torch.inf


@torch.no_grad()
def spoil_target(learner) -> None:
    learner.target_critics.twins[0].head.bias.fill_(torch.inf)


def spoil_optimizer(learner) -> None:
    """An infinite second moment stops a weight for good, without a trace in any loss."""
    learner.optimizer.state[learner.agent.critics.twins[0].head.bias]["exp_avg_sq"][0] = torch.inf


@both_scripts
@pytest.mark.parametrize(
    ("spoil", "term"),
    [
        (spoil_actor, SPOILT_ACTOR),
        (spoil_a_silent_unit, SILENT_UNIT),
        (spoil_target, r"losses/critic is nan, .*"),
        (spoil_optimizer, r"optimizer\.\d+\.exp_avg_sq holds inf \(1 of \d+ numbers\)"),
    ],
)
def test_found_at_the_next_look_and_named(script, spoil, term, monkeypatch):
    monkeypatch.setattr(script, "CHECK_INTERVAL", 50)
    at_update(monkeypatch, script, 110, spoil)
    with pytest.raises(LearningFault) as caught:
        script.main(small_args(script))
    found = re.fullmatch(rf"{term} at update (\d+) \(frame \d+\); nothing was saved before", str(caught.value))
    assert found
    assert 110 <= int(found[1]) <= 150  # earlier where a reward, which Pendulum takes from the action, shows it first
    assert not CheckpointStore(RUN).exists()
    assert not (RUN / "agent.safetensors").exists()


ALL_LOSSES = r"losses/critic is nan, losses/q_values is nan, losses/actor is nan and \d more"


@both_scripts
def test_found_within_a_thousand_updates_even_of_one_iteration(script, monkeypatch):
    assert CHECK_INTERVAL == script.CHECK_INTERVAL == 1000
    monkeypatch.setattr(script, "CHECK_INTERVAL", 100)  # the same, in a tenth of the time
    at_update(monkeypatch, script, 3, spoil_actor)
    with pytest.raises(LearningFault, match=rf"{ALL_LOSSES} at update 100 \(frame 20\)"):
        script.main(small_args(script, updates_per_iteration=150))


@both_scripts
def test_the_last_finite_checkpoint_and_agent_stay(script, monkeypatch, capsys):
    args = small_args(script, checkpoint_interval=50, total_frames=150)
    assert script.main(replace(args, run_dir=Path("whole"))) == 0
    with monkeypatch.context() as patch:
        at_update(patch, script, 110, spoil_actor)
        seen = {}
        save = run_module.Run._save

        def noting_save(self, state, agent):
            save(self, state, agent)
            seen[state.counters.frames] = (RUN / "agent.safetensors").read_bytes()

        patch.setattr(run_module.Run, "_save", noting_save)
        patch.setattr(sys, "argv", ["script", *flags(args)])
        with pytest.raises(SystemExit) as exit_:
            command_line(script.Args, script.main)
    assert exit_.value.code == 1
    assert list(seen) == [50, 100]
    assert (RUN / "agent.safetensors").read_bytes() == seen[100]
    said = capsys.readouterr().err
    (line,) = [line for line in said.replace("\r", "\n").splitlines() if "error" in line]
    assert re.match(rf"error: {SPOILT_ACTOR} at update", line)
    assert "; the last finite checkpoint is at frame 100; resume with: python " in line
    assert line.endswith("--resume run")
    assert "Traceback" not in said
    assert sorted(path.name for path in (RUN / "checkpoint").glob("0*")) == [f"{frame:012d}" for frame in (50, 100)]

    assert script.main(replace(args, run_dir=None, resume=RUN)) == 0  # without the fault, it goes on to the same end
    assert (RUN / "agent.safetensors").read_bytes() == (Path("whole") / "agent.safetensors").read_bytes()


def flags(args) -> list[str]:
    words = ["--env-id", "Pendulum-v1", "--run-dir", str(RUN), "--hidden", *map(str, args.hidden)]
    return words + [f"--{name.replace('_', '-')}={getattr(args, name)}" for name in SMALL if name != "hidden"]


@both_scripts
@pytest.mark.parametrize("reward_clip", [5.0, None])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_reward_in_the_replay(script, reward_clip, value, monkeypatch):
    sample, calls = script.Learner.sample, []

    def spoilt(self, replay):
        calls.append(1)
        if len(calls) == 30:
            replay._reward[:5] = value
        return sample(self, replay)

    monkeypatch.setattr(script.Learner, "sample", spoilt)
    with pytest.raises(
        LearningFault, match=rf"^a reward in the replay holds {value} .*update \d+ \(frame \d+\); the last"
    ):
        script.main(small_args(script, reward_clip=reward_clip, checkpoint_interval=25))


@both_scripts
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (spoil_actor, rf"{SPOILT_ACTOR} at update 60 "),
        (spoil_a_silent_unit, rf"{SILENT_UNIT} at update 81 \(frame 100\)"),
    ],
)
def test_looked_for_before_an_evaluation(script, spoil, said, monkeypatch):
    at_update(monkeypatch, script, 60, spoil)
    with pytest.raises(LearningFault, match=said):
        script.main(small_args(script, eval_interval=100))
    assert "eval/score" not in read_metrics(RUN / "metrics.csv")


class Picky(gym.Env):
    """Raises at actions that are no numbers, as a simulator may."""

    def __init__(self):
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (2,))
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        if not np.isfinite(action).all():
            raise RuntimeError("the simulator has exploded")
        return self.observation_space.sample(), 0.0, False, False, {}


gym.register("test_learning_faults/Picky-v0", Picky, max_episode_steps=50)


def test_the_learner_is_named_where_an_environment_only_suffers_from_it(monkeypatch):
    at_update(monkeypatch, sac, 60, spoil_actor)
    with pytest.raises(LearningFault, match=r"agent\.actor\.head\.weight holds nan .* at update 60 ") as caught:
        sac.main(replace(small_args(sac), env_id="test_learning_faults/Picky-v0"))
    assert str(caught.value.__cause__) == "the action holds nan (1 of 1 numbers)"  # the simulator is not even asked


@both_scripts
def test_a_signal_does_not_save_what_is_spoilt(script, monkeypatch):
    """The weight is spoilt after the last update, so that its metrics are still good."""

    def spoil_and_stop(learner) -> None:
        spoil_actor(learner)
        os.kill(os.getpid(), 15)

    at_update(monkeypatch, script, 60, spoil_and_stop)
    with pytest.raises(LearningFault, match=r"actor\.head\.weight holds nan .* last finite checkpoint is at frame 50"):
        script.main(small_args(script, checkpoint_interval=50))
    assert CheckpointStore(RUN).load().frame == 50


def test_require_finite_tells_what_it_found():
    require_finite({"a": 1, "b": np.ones((2, 2)), "c": torch.zeros(0), "d": torch.tensor([1, 2])})
    with pytest.raises(NotFinite, match=r"^b holds nan \(2 of 4 numbers\)$"):
        require_finite({"a": 1.0, "b": np.array([[1, np.nan], [np.inf, 2]])})
    with pytest.raises(NotFinite, match=r"^c is inf$"):
        require_finite({"c": torch.tensor(torch.inf)})


def test_require_finite_lets_pass_what_is_large():
    require_finite({"a": np.full(2, 3e38, np.float32), "b": np.full((2, 2), 1e308), "c": np.array([2**62, 2**62])})
