"""``--compile``: the same learning, in graphs that are compiled once; repeatable, resumable, and refused in time."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sac_continuous
import sac_hybrid_continuous
import sac_krep_continuous
import taac_continuous
import torch
from gymnasium.spaces import Box, Dict, Discrete
from safetensors.torch import load_file

from taac_wrappers.agent import load_agent
from taac_wrappers.agent.operators import TD_MODES
from taac_wrappers.training.arguments import BadInput
from taac_wrappers.training.config import from_config
from taac_wrappers.training.counters import Counters
from taac_wrappers.training.replay import SequenceReplay

AGENTS = Path(__file__).parents[2] / "agents"
ACTIONS = Box(-1.0, 1.0, (2,))
REPEATING = Dict(observation=Box(-1.0, 1.0, (3,)), prev_action=ACTIONS), Dict(action=ACTIONS, switch=Discrete(2))
SPACES = {
    "taac": REPEATING,
    "sac": (Box(-1.0, 1.0, (3,)), ACTIONS),
    "sac_krep": (Box(-1.0, 1.0, (3,)), Dict(action=ACTIONS, repeat=Discrete(3, start=1))),
    "sac_hybrid": REPEATING,
}
SMALL = {"batch_size": 16, "hidden": (8,), "learning_rate": 1e-3, "window": 3}


def filled_replay(script, repetition: float) -> SequenceReplay:
    """Episodes of seven frames; what follows a transition is recorded for more or fewer frames as they repeat."""
    rng = np.random.default_rng(0)
    spaces = SPACES[script.METHOD]
    agent = script.make_agent(script.Args(hidden=(8, 8)), *spaces)
    replay = SequenceReplay(spaces[0], script.recorded_space(agent), capacity=300, num_envs=1, seed=0)

    def observe(action):
        observation = rng.normal(size=(1, 3))
        return {"observation": observation, "prev_action": action} if spaces is REPEATING else observation

    def recorded(action, repeated):
        chosen = {"action": action, "switch": (~repeated).astype(int), "repeat": np.array([1 + len(replay) % 3])}
        answer = {key: chosen[key] for key in spaces[1]} if isinstance(spaces[1], Dict) else action
        return script.recorded_action(agent, None, answer, {"executed_action": action}, is_random=True)

    replay.start(observe(np.zeros((1, 2))))
    for frame in range(200):
        action = rng.uniform(-1, 1, (1, 2))
        ended, no = np.array([frame % 7 == 6]), np.array([False])
        repeated, discount = rng.random(1) < repetition, np.full(1, 0.99)
        results = rng.normal(size=1), ended, no, observe(action)
        replay.add(recorded(action, repeated), *results, repeated=repeated, discount=discount)
        if ended.any():
            replay.start(observe(np.zeros((1, 2))))
    return replay


def trained(script, updates: int, replays: list[SequenceReplay], **changes):
    """A learner after some updates with each of the replays in turn."""
    settings = {**SMALL, **changes} | ({"window": 1} if script.METHOD == "sac" else {})
    args = replace(script.Args(), **settings)
    torch.manual_seed(0)
    learner, counters = script.Learner(args, script.make_agent(args, *SPACES[script.METHOD])), Counters()
    for number in range(updates):
        learner.update(learner.sample(replays[number % len(replays)]), counters)
    return learner


OPERATORS = [{"td_operator": "one-step"}, {"td_operator": "n-step", "train_on": "all"}]
MODES = [{"td_mode": mode} for mode in TD_MODES]
CASES = [(taac_continuous, [*MODES, *OPERATORS])]
CASES += [(script, [{}]) for script in (sac_continuous, sac_krep_continuous, sac_hybrid_continuous)]


@pytest.mark.parametrize(("script", "variants"), CASES, ids=lambda case: getattr(case, "METHOD", ""))
def test_learns_the_same_to_rounding_and_compiles_once(script, variants, monkeypatch, capfd):
    """Up to the graphs, without what is made of them, which is most of the time: `make soak` goes to the end.

    Variants follow each other in one test, because the policy's gradients, which they share, are compiled once for all.
    """
    backend = "inductor" if os.environ.get("TAAC_SOAK") == "1" else "eager"
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    updates = 12
    torch._dynamo.reset()
    for number, changes in enumerate(variants):
        torch._dynamo.utils.counters.clear()
        agents = []
        for compile in (False, True):
            # The number of states that a target looks at differs from batch to batch, and much from replay to replay.
            replays = [filled_replay(script, repetition) for repetition in (0.0, 0.5, 1.0)]
            agents.append(trained(script, updates, replays, compile=compile, **changes).agent.state_dict())
        new_graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        assert new_graphs == (2 if number == 0 else 1), changes  # the critics' gradients, and at first the policy's
        said = capfd.readouterr().err
        assert [line.split(" in ")[0] for line in said.splitlines()] == [
            "compiled critic_gradients",
            "compiled policy_gradients",
        ]
        assert_went_the_same_way(*agents, trained(script, 0, [], **changes).agent.state_dict())


def assert_went_the_same_way(plain, compiled, start):
    """To within one percent of how far a weight went."""
    for name in plain:
        moved = (plain[name] - start[name]).abs().max()
        assert moved > 0
        torch.testing.assert_close(compiled[name], plain[name], rtol=0, atol=0.01 * moved.item())


def test_the_same_seed_gives_the_same_run_and_an_interrupted_one_goes_on_exactly(tmp_path, monkeypatch):
    """One run is compiled once, the other twice: after a dozen updates. (SAC shares all of this.)

    A third is not compiled, and has stayed near them until then.
    """
    monkeypatch.chdir(tmp_path)
    script = taac_continuous
    settings = {**SMALL, "total_frames": 300, "learning_starts": 100, "buffer_size": 250, "checkpoint_interval": 1000}
    settings |= {"eval_interval": 1000, "final_episodes": 1, "compile": True}
    args = replace(script.Args.for_task("Pendulum-v1"), **settings)
    assert script.main(replace(args, run_dir=Path("whole"))) == 0
    runs = {"start": {"total_frames": 100}, "plain": {"total_frames": 112}, "parts": {"total_frames": 112}}
    for name, changes in runs.items():
        assert script.main(replace(args, run_dir=Path(name), compile=name == "parts", **changes)) == 0
    agents = [load_agent(Path(name) / "agent.safetensors") for name in ("plain", "parts", "start")]
    assert_went_the_same_way(*(agent.state_dict() for agent in agents))
    assert script.main(replace(from_config(script.Args, Path("parts")), total_frames=300)) == 0
    whole, parts = (load_file(Path(name) / "agent.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_without_a_compiler_it_is_one_line_and_nothing_is_written(tmp_path, monkeypatch):
    """In a process of its own: torch remembers the compiler that it found."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    run = tmp_path / "run"
    words = [sys.executable, AGENTS / "taac_continuous.py", "--compile", "--run-dir", run]
    process = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert process.returncode == 2
    assert process.stderr.splitlines() == [
        "error: --compile needs a C++ compiler (g++ or clang++) on the PATH, and there is none"
    ]
    assert not run.exists()


def test_bad_input_is_found_before_anything_is_compiled():
    with pytest.raises(BadInput, match="--batch-size"):
        taac_continuous.main(replace(taac_continuous.Args.for_task("Pendulum-v1"), compile=True, batch_size=0))


def test_without_the_flag_nothing_of_it_is_imported(tmp_path):
    code = (
        "import sys; sys.argv = ['x', '--env-id', 'Pendulum-v1', '--total-frames', '120', '--learning-starts', '100',"
        "'--batch-size', '4', '--hidden', '8', '--final-episodes', '1', '--run-dir', 'run'];"
        f"sys.path.insert(0, {str(AGENTS)!r}); import taac_continuous as script;"
        "from taac_wrappers.training.arguments import command_line\n"
        "try: command_line(script.Args, script.main)\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert not {'torch._inductor.compile_fx', 'taac_wrappers.training.compilation'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
