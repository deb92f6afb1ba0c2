"""Frames per second of our TAAC, our SAC and Stable-Baselines3's SAC, where the time goes, and how much is needless.

    python benchmarks/training.py
    python benchmarks/training.py --shapes locomotion --threads 2

All have the same task, networks, batch, updates per frame and threads, ours once as it is and once with ``--compile``.
They take turns in short rounds, so that whatever else the machine does hits them alike. A ratio is the median over
rounds of each round's own ratio.

Our scripts run the loop of their ``main`` without what is shown, recorded, evaluated and saved; Stable-Baselines3 runs
its ``learn`` without a callback. Before anything is timed, each replay is filled with random actions, which TAAC's
behaviour repeats with the probability ``--repetition``, and one update compiles what is to be compiled; then everybody
acts by its own policy.

Updates alone, and the second ratio of the frames per second, are by processor time, which a busy machine changes least.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers import FilterObservation, FlattenObservation
from stable_baselines3.common.vec_env import DummyVecEnv

sys.path.insert(0, str(Path(__file__).parents[1] / "agents"))

import sac_continuous
import taac_continuous
from floor import Products, update_flops
from sb3_sac import make_model
from synthetic import filled_replay, wrapped_spaces

from taac_wrappers.training.counters import Counters
from taac_wrappers.training.envs import Wrap, has_goal, make_env, make_vector_env, random_action
from taac_wrappers.training.finite import CHECK_INTERVAL
from taac_wrappers.training.replay import SequenceReplay
from taac_wrappers.training.simulators import simulator_versions
from taac_wrappers.training.state import TrainingState
from taac_wrappers.training.structure import Structure
from taac_wrappers.training.tasks import Settings, settings_for


@dataclass(frozen=True)
class Shape:
    """A task with the paper's settings for it; ``fill``: frames in every replay before the first round."""

    env_id: str
    fill: int


SHAPES = {
    "locomotion": Shape("HalfCheetah-v5", 100_000),
    "terrain": Shape("BipedalWalker-v3", 20_000),
    "manipulation": Shape("FetchPush-v4", 10_000),
}
SCRIPTS = {"TAAC": taac_continuous, "SAC": sac_continuous}
SB3 = "SB3 SAC"
BURN_IN = 3  # rounds that do not count
UPDATES = 4  # per method and round, where updates are timed alone
PARTS = ("act", "env", "sample", "update")
VARIANTS: dict[str, dict[str, Any]] = {
    "window 1": {"window": 1},
    "window 3": {"window": 3},
    "window 10": {"window": 10},
    "window 3, `--train-on all`": {"window": 3, "train_on": "all"},
}
VARIANT_REPETITION, VARIANT_FILL = 0.3, 20_000

Times = dict[str, np.ndarray]
"""Seconds of everything that is measured, one number per round."""


class Stopwatch:
    """Seconds spent in methods; what is timed inside another method is not its own."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inner = [0.0]  # of every call that is going on, and of none

    def attach(self, owner: Any, method: str, part: str) -> None:
        call = getattr(owner, method)

        @functools.wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            start = time.perf_counter()
            result = call(*args, **kwargs)
            spent = time.perf_counter() - start
            self.seconds[part] += spent - self._inner.pop()
            self._inner[-1] += spent
            return result

        setattr(owner, method, timed)


class WrapperCost:
    """The same environments with a method's wrappers and without, which do the same."""

    def __init__(self, env_id: str, num_envs: int, wrap: Wrap):
        self.wrapped, self.bare = make_vector_env(env_id, num_envs, wrap), make_vector_env(env_id, num_envs)
        self.rng = np.random.default_rng(0)
        for envs in (self.wrapped, self.bare):
            envs.reset(seed=0)

    def seconds(self, steps: int) -> float:
        """That ``steps`` steps by random actions take longer with the wrappers, if each did by their median."""
        longer = []
        for _ in range(steps):
            action = random_action(self.rng, self.wrapped.action_space)
            start = time.perf_counter()
            _, _, terminated, truncated, infos = self.wrapped.step(action)
            between = time.perf_counter()
            self.bare.step(infos["executed_action"])
            longer.append((between - start) - (time.perf_counter() - between))
            if (done := terminated | truncated).any():
                for envs in (self.wrapped, self.bare):
                    envs.reset(options={"reset_mask": done})
        return steps * float(np.median(longer))  # a sum would be that of the few steps that were interrupted

    def close(self) -> None:
        self.wrapped.close()
        self.bare.close()


class Contestant(Protocol):
    watch: Stopwatch

    def train(self, frames: int) -> None: ...

    def wrapper_seconds(self, frames: int) -> float: ...

    def close(self) -> None: ...


class Ours:
    """One of our scripts, with all that its ``main`` would build."""

    def __init__(self, script: ModuleType, shape: Shape, settings: Settings, repetition: float, compile: bool):
        args = replace(
            script.Args.for_task(shape.env_id, "paper"),
            frames_per_iteration=settings.frames_per_iteration,
            updates_per_iteration=settings.updates_per_iteration,
            learning_starts=shape.fill,
            compile=compile,
        )
        torch.manual_seed(args.seed)
        self.envs = make_vector_env(args.env_id, args.num_envs, script.wrap)
        observation_space = self.envs.single_observation_space
        self.agent = script.make_agent(args, observation_space, self.envs.single_action_space)
        self.learner = script.Learner(args, self.agent)
        self.state = TrainingState(
            modules={"agent": self.agent, "target_critics": self.learner.target_critics},
            optimizer=self.learner.optimizer,
            normalizer=self.learner.normalizer,
            replay=SequenceReplay(
                observation_space,
                script.recorded_space(self.agent),
                capacity=args.buffer_size,
                num_envs=args.num_envs,
                seed=args.seed,
            ),
            envs=self.envs,
            rng=np.random.default_rng([args.seed, 1]),
        )
        self.observation, _ = self.envs.reset(seed=args.seed)
        self.state.replay.start(self.observation)
        self.args, self.random_action = args, functools.partial(repeating_action, repetition)
        self.recorded_action = script.recorded_action
        self.wrapper_cost = WrapperCost(args.env_id, args.num_envs, script.wrap)
        self.watch = Stopwatch()
        self.watch.attach(self.agent, "act", "act")
        self.watch.attach(self.envs, "step", "env")
        self.watch.attach(self.envs, "reset", "env")
        self.watch.attach(self.learner, "sample", "sample")
        self.watch.attach(self.learner, "update", "update")

    def train(self, frames: int) -> None:
        """The loop of ``main``, to the letter: a test compares them."""
        args, agent, learner, envs, state = self.args, self.agent, self.learner, self.envs, self.state
        observation, random_action, recorded_action = self.observation, self.random_action, self.recorded_action
        replay, counters = state.replay, state.counters
        discount = np.full(args.num_envs, args.gamma)
        last = counters.frames + frames
        while counters.frames < last:
            # Act once in every environment: at random at first, then by the policy.
            is_random = counters.frames < args.learning_starts
            action = random_action(state.rng, envs.action_space) if is_random else agent.act(observation)
            next_observation, reward, terminated, truncated, infos = envs.step(action)
            replay.add(
                recorded_action(agent, observation, action, infos, is_random),
                reward,
                terminated,
                truncated,
                next_observation,
                repeated=infos["repeated"],
                discount=infos.get("discount", discount),
            )
            observation = next_observation
            counters.count(infos["frames"])
            if (done := terminated | truncated | envs.faulty).any():
                replay.forget(envs.faulty)  # failed in the middle of an episode
                observation, _ = envs.reset(options={"reset_mask": done})
                replay.start(observation, done)

            # Learn: as many updates as these frames call for.
            if counters.frames >= args.learning_starts and not replay.empty:
                for _ in range(counters.due(args.frames_per_iteration) * args.updates_per_iteration):
                    state.metrics = learner.update(learner.sample(replay), counters)
                    if counters.updates % CHECK_INTERVAL == 0:
                        state.check_finite()
        self.observation = observation

    def wrapper_seconds(self, frames: int) -> float:
        return self.wrapper_cost.seconds(frames // self.args.num_envs)

    def close(self) -> None:
        self.envs.close()
        self.wrapper_cost.close()


def repeating_action(repetition: float, rng: np.random.Generator, space: gym.Space) -> Structure:
    """Uniform, as in our scripts, except that a share ``repetition`` repeats, if there is a switch."""
    action = random_action(rng, space)
    if isinstance(action, dict):
        action["switch"] = (rng.random(action["switch"].shape) >= repetition).astype(np.int64)
    return action


class StableBaselines:
    """Stable-Baselines3's SAC with the same settings; its ``learn`` goes on where it stopped."""

    def __init__(self, shape: Shape, settings: Settings):
        self.envs = DummyVecEnv([functools.partial(make_env, shape.env_id, one_vector)] * settings.num_envs)
        steps = settings.frames_per_iteration // settings.num_envs  # it counts steps of all environments as one
        self.model = make_model(self.envs, settings, learning_starts=shape.fill, train_freq=steps, seed=0)
        self.watch = Stopwatch()
        self.watch.attach(self.model, "_sample_action", "act")
        self.watch.attach(self.model.env, "step", "env")
        self.watch.attach(self.model.replay_buffer, "sample", "sample")
        self.watch.attach(self.model, "train", "update")

    def train(self, frames: int) -> None:
        self.model.learn(frames, reset_num_timesteps=False)

    def wrapper_seconds(self, frames: int) -> float:
        return 0.0  # none of a method

    def close(self) -> None:
        self.envs.close()


def one_vector(env: gym.Env) -> gym.Env:
    """What our networks look at in a goal environment, as the only kind of observation that its MlpPolicy takes."""
    if not has_goal(env.observation_space):
        return env
    return FlattenObservation(FilterObservation(env, ["desired_goal", "observation"]))


def shortest_iteration(settings: Settings) -> Settings:
    """The same updates per frame in the fewest frames that allow it, so that rounds can be short."""
    steps = settings.frames_per_iteration // settings.num_envs
    share = math.gcd(steps, settings.updates_per_iteration)
    return replace(
        settings,
        frames_per_iteration=settings.frames_per_iteration // share,
        updates_per_iteration=settings.updates_per_iteration // share,
    )


def turn(contestant: Contestant, frames: int) -> dict[str, float]:
    """Train ``frames`` frames: seconds of everything, of the processor, and of each part."""
    contestant.watch.seconds.clear()
    start, processor_start = time.perf_counter(), time.process_time()
    contestant.train(frames)
    seconds, processor = time.perf_counter() - start, time.process_time() - processor_start
    parts = {part: contestant.watch.seconds[part] for part in PARTS}
    rest = seconds - sum(parts.values())
    wrappers = contestant.wrapper_seconds(frames)
    parts["env"] -= wrappers
    return {"seconds": seconds, "processor": processor, **parts, "wrappers": wrappers, "rest": rest}


def take_turns(contestants: Mapping[str, Contestant], rounds: int, frames: int) -> dict[str, Times]:
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in contestants}
    for _ in range(BURN_IN + rounds):
        for name, contestant in contestants.items():
            turns[name].append(turn(contestant, frames))
    return {
        name: {column: np.array([one[column] for one in measured[BURN_IN:]]) for column in measured[0]}
        for name, measured in turns.items()
    }


def time_updates(learner: Any, replay: SequenceReplay) -> tuple[float, list[Any]]:
    """Milliseconds of processor time per update, without the sampling, and the batches of :data:`UPDATES` updates."""
    batches = [learner.sample(replay) for _ in range(UPDATES)]
    counters = Counters()
    start = time.process_time()
    for batch in batches:
        learner.update(batch, counters)
    return 1e3 * (time.process_time() - start) / UPDATES, batches


def next_states(batches: Iterable[Any]) -> float:
    """Per window, on average."""
    return float(np.mean([batch.valid.sum() / batch.valid.shape[1] for batch in batches]))


def spread(values: np.ndarray, digits: int = 2) -> str:
    """The median and, in brackets, the quartiles."""
    low, middle, high = np.percentile(values, [25, 50, 75])
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def table(title: str, header: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    header = list(header)
    print(f"\n{title}\n\n| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for row in rows:
        print(f"| {' | '.join(str(cell) for cell in row)} |")
    sys.stdout.flush()


def print_speed(times: Mapping[str, Times], frames: int) -> None:
    columns = ["act", "env", "wrappers", "sample", "update", "rest"]
    rows, split = [], []
    for name, one in times.items():
        ratios = (spread(times[SB3][clock] / one[clock]) for clock in ("seconds", "processor"))
        rows.append([name, spread(frames / one["seconds"], 1), *ratios])
        shares = ((np.median(one[part]), np.median(one[part] / one["seconds"])) for part in columns)
        split.append([name, *(f"{1e3 * seconds / frames:.3f} ({share:.1%})" for seconds, share in shares)])
    header = ["", "frames/s", f"ratio to {SB3}", "the same by processor time"]
    table("Frames per second: median [quartiles] over rounds.", header, rows)
    table("Milliseconds per frame, and share of the time.", ["", *columns], split)


def print_floor(ours: Mapping[str, Ours], rounds: int) -> None:
    """Updates beside their matrix products at the rate of the same round."""
    first = next(iter(ours.values()))
    products = Products(first.args.batch_size, first.args.hidden[0])
    times, flops = np.zeros((2, BURN_IN + rounds, len(ours)))
    rates = np.zeros(BURN_IN + rounds)
    for number in range(BURN_IN + rounds):
        rates[number] = products.rate()
        for index, one in enumerate(ours.values()):
            times[number, index], batches = time_updates(one.learner, one.state.replay)
            flops[number, index] = np.mean([update_flops(one.agent, batch) for batch in batches])
    times, flops, rates = times[BURN_IN:].T, flops[BURN_IN:].T, rates[BURN_IN:]
    floors = 1e3 * flops / rates
    rows = [
        [name, f"{1e-9 * np.median(flops[i]):.3f}", spread(times[i]), spread(floors[i]), spread(times[i] / floors[i])]
        for i, name in enumerate(ours)
    ]
    title = "The update alone beside the time of its matrix products at the rate of this run, "
    title += f"{spread(1e-9 * rates, 1)} Gflop/s."
    table(title, ["", "Gflop per update", "update, ms", "floor, ms", "ratio"], rows)


def print_variants(rounds: int) -> None:
    """Updates of TAAC by window and by what is trained on, with HalfCheetah's sizes."""
    spaces = wrapped_spaces(taac_continuous, 17, 6)
    replay = filled_replay(spaces[0], 6, repetition=VARIANT_REPETITION, frames=VARIANT_FILL, episode=1000)
    learners = []
    for changes in VARIANTS.values():
        args = replace(taac_continuous.Args.for_task(SHAPES["locomotion"].env_id), **changes)
        learners.append(taac_continuous.Learner(args, taac_continuous.make_agent(args, *spaces)))
    times, states = np.zeros((2, BURN_IN + rounds, len(learners)))
    for number in range(BURN_IN + rounds):
        for index, learner in enumerate(learners):
            times[number, index], batches = time_updates(learner, replay)
            states[number, index] = next_states(batches)
    times, states = times[BURN_IN:].T, states[BURN_IN:].T
    rows = [
        [name, f"{states[i].mean():.2f}", spread(times[i]), spread(times[i] / times[0])]
        for i, name in enumerate(VARIANTS)
    ]
    print("\n## Windows (locomotion)")
    title = f"TAAC's update at {VARIANT_REPETITION:.0%} repetition."
    table(title, ["", "next states per window", "update, ms", f"ratio to {next(iter(VARIANTS))}"], rows)


def measure_shape(title: str, args: argparse.Namespace) -> None:
    torch.compiler.reset()  # what was compiled for another shape is no use here, and their number is limited
    shape = SHAPES[title]
    settings = shortest_iteration(settings_for(shape.env_id))
    frames = math.ceil(args.frames / settings.frames_per_iteration) * settings.frames_per_iteration
    print(
        f"\n## {title}: {shape.env_id}\n\nEnvironments: {settings.num_envs}. Batch: {settings.batch_size}. "
        f"Window: {settings.window} (SAC: 1). Hidden layers: {settings.hidden}. Updates per frame: "
        f"{settings.updates_per_iteration}/{settings.frames_per_iteration}. Rounds: {args.rounds} of {frames} frames."
    )
    ours = {
        name + " --compile" * compile: Ours(script, shape, settings, args.repetition, compile)
        for name, script in SCRIPTS.items()
        for compile in ([False] if args.no_compile else [False, True])
    }
    contestants: dict[str, Contestant] = {**ours, SB3: StableBaselines(shape, settings)}
    for contestant in contestants.values():
        contestant.train(math.ceil(shape.fill / settings.num_envs) * settings.num_envs)
    for name, one in ours.items():
        one.learner.update(one.learner.sample(one.state.replay), one.state.counters)  # filling may not have come to one
        if one.args.compile:
            print(f"{name}: {one.watch.seconds['update']:.1f} s for the first update, which compiles.")
    times = take_turns(contestants, args.rounds, frames)

    taac = ours["TAAC"]
    repeated = taac.state.replay.sample(10_000, window=2).repeated[0].mean()
    states = next_states(taac.learner.sample(taac.state.replay) for _ in range(20))
    print(f"TAAC's replay: {repeated:.1%} repeated, {states:.2f} next states per window.")
    print_speed(times, frames)
    print_floor(ours, args.rounds)
    for contestant in contestants.values():
        contestant.close()


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=40, help="that count, after a burn-in")
    parser.add_argument("--frames", type=int, default=40, help="per round; rounded up to whole rounds of updates")
    parser.add_argument("--repetition", type=float, default=0.1, help="of the behaviour that fills TAAC's replay")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-compile", action="store_true", help="leave out what is compiled")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    args = parser.parse_args(argv)
    for name in ("rounds", "frames", "threads"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(args, name)}")
    if not 0 <= args.repetition < 1:
        parser.error(f"--repetition must be in [0, 1), got {args.repetition}")
    return args


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    torch.set_num_threads(args.threads)
    versions = simulator_versions() | {"stable-baselines3": metadata.version("stable-baselines3")}
    print(f"{', '.join(f'{name} {version}' for name, version in versions.items())}; threads: {args.threads}")
    for shape in args.shapes:
        measure_shape(shape, args)
    if "locomotion" in args.shapes:
        print_variants(args.rounds)


if __name__ == "__main__":
    main()
