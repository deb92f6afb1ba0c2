"""Frames per second of our TAAC, our SAC and Stable-Baselines3's SAC, where the time goes, and how much is needless.

    python benchmarks/training.py
    python benchmarks/training.py --shapes locomotion --rounds 20

All three have the same task, networks, batch, updates per frame and threads, and take turns in short rounds, so that
whatever else the machine does hits them alike. A ratio is the median over rounds of each round's own ratio.

Our scripts run the loop of their ``main`` without what is shown, recorded, evaluated and saved; Stable-Baselines3 runs
its ``learn`` without a callback. Before anything is timed, each replay is filled with random actions, which TAAC's
behaviour repeats with the probability ``--repetition``; then everybody acts by its own policy.

Updates alone, and the second ratio of the frames per second, are by processor time, which a busy machine changes least.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium.spaces import Box
from stable_baselines3.common.vec_env import DummyVecEnv

sys.path.insert(0, str(Path(__file__).parents[1] / "agents"))

import sac_continuous
import taac_continuous
from floor import Products, update_flops
from sb3_sac import make_model
from synthetic import filled_replay, unit_box

from taac_wrappers.training.envs import make_env, make_vector_env
from taac_wrappers.training.finite import CHECK_INTERVAL
from taac_wrappers.training.replay import SequenceReplay
from taac_wrappers.training.run import Counters, TrainingState
from taac_wrappers.training.tasks import Settings, settings_for, simulator_versions


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
BURN_IN = 3  # rounds that do not count
UPDATES = 4  # per method and round, where updates are timed alone
WINDOWS, WINDOW_REPETITION, WINDOW_FILL = (1, 10), 0.3, 20_000
PARTS = ("act", "env", "sample", "update")
SB3 = "SB3 SAC"


class Stopwatch:
    """Seconds spent in methods and how often they were called; what is timed inside another method is not its own."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
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
            self.calls[part] += 1
            self._inner[-1] += spent
            return result

        setattr(owner, method, timed)

    def reset(self) -> None:
        self.seconds.clear()
        self.calls.clear()


class Contestant(Protocol):
    watch: Stopwatch

    def train(self, frames: int) -> None: ...

    def close(self) -> None: ...


class Ours:
    """One of our scripts, with all that its ``main`` would build."""

    def __init__(self, script: ModuleType, shape: Shape, settings: Settings, threads: int, repetition: float):
        args = replace(
            script.Args.for_task(shape.env_id),
            frames_per_iteration=settings.frames_per_iteration,
            updates_per_iteration=settings.updates_per_iteration,
            learning_starts=shape.fill,
            threads=threads,
        )
        torch.manual_seed(args.seed)
        torch.set_num_threads(args.threads)
        self.envs = make_vector_env(args.env_id, args.num_envs)
        observation_space, action_space = self.envs.single_observation_space, self.envs.single_action_space
        assert isinstance(action_space, Box)
        self.agent = script.make_agent(args, observation_space, action_space)
        self.learner = script.Learner(args, self.agent)
        self.state = TrainingState(
            modules={"agent": self.agent, "target_critics": self.learner.target_critics},
            optimizer=self.learner.optimizer,
            normalizer=self.learner.normalizer,
            replay=SequenceReplay(
                observation_space, action_space, capacity=args.buffer_size, num_envs=args.num_envs, seed=args.seed
            ),
            envs=self.envs,
            rng=np.random.default_rng([args.seed, 1]),
            prev_action=self.agent.initial_action(args.num_envs),
        )
        self.observation, _ = self.envs.reset(seed=args.seed)
        self.state.replay.start(self.observation)
        self.args, self.act_randomly = args, functools.partial(act_randomly, repetition)
        self.watch = Stopwatch()
        self.watch.attach(self.agent, "act", "act")
        self.watch.attach(self.envs, "step", "env")
        self.watch.attach(self.envs, "reset", "env")
        self.watch.attach(self.learner, "sample", "sample")
        self.watch.attach(self.learner, "update", "update")

    def train(self, frames: int) -> None:
        """The loop of ``main``, to the letter: a test compares them."""
        args, agent, learner, envs, state = self.args, self.agent, self.learner, self.envs, self.state
        observation, action_space, act_randomly = self.observation, self.agent.action_space, self.act_randomly
        replay, counters = state.replay, state.counters
        last = counters.frames + frames
        while counters.frames < last:
            # Act for one frame in every environment: at random at first, then by the policy.
            if counters.frames < args.learning_starts:
                action, switch = act_randomly(state.rng, action_space, state.prev_action)
            else:
                action, switch = agent.act(observation, state.prev_action)
            observation, reward, terminated, truncated, infos = envs.step(action)  # noqa: RUF059
            replay.add(action, switch, reward, terminated, truncated, observation)
            counters.count(switch)
            state.prev_action = action
            if (done := terminated | truncated | envs.faulty).any():
                replay.forget(envs.faulty)  # failed in the middle of an episode
                observation, _ = envs.reset(options={"reset_mask": done})
                replay.start(observation, done)
                state.prev_action = np.where(done[:, None], agent.initial_action(args.num_envs), action)

            # Learn: as many updates as these frames call for.
            if counters.frames >= args.learning_starts and not replay.empty:
                for _ in range(counters.due(args.frames_per_iteration) * args.updates_per_iteration):
                    state.metrics = learner.update(learner.sample(replay), counters)
                    if counters.updates % CHECK_INTERVAL == 0:
                        state.check_finite()
        self.observation = observation

    def close(self) -> None:
        self.envs.close()


def act_randomly(
    repetition: float, rng: np.random.Generator, space: Box, prev_action: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Uniform actions, of which a share ``repetition`` gives way to the action before."""
    switch = rng.random(len(prev_action)) >= repetition
    candidate = rng.uniform(space.low, space.high, prev_action.shape)
    return np.where(switch[:, None], candidate, prev_action).astype(np.float32), switch


class StableBaselines:
    """Stable-Baselines3's SAC with the same settings; its ``learn`` goes on where it stopped."""

    def __init__(self, shape: Shape, settings: Settings):
        self.envs = DummyVecEnv([functools.partial(make_env, shape.env_id)] * settings.num_envs)
        steps = settings.frames_per_iteration // settings.num_envs  # it counts steps of all environments as one
        self.model = make_model(self.envs, settings, learning_starts=shape.fill, train_freq=steps, seed=0)
        self.watch = Stopwatch()
        self.watch.attach(self.model, "_sample_action", "act")
        self.watch.attach(self.model.env, "step", "env")
        self.watch.attach(self.model.replay_buffer, "sample", "sample")
        self.watch.attach(self.model, "train", "update")

    def train(self, frames: int) -> None:
        self.model.learn(frames, reset_num_timesteps=False)

    def close(self) -> None:
        self.envs.close()


def shortest_iteration(settings: Settings) -> Settings:
    """The same updates per frame in the fewest frames that allow it, so that rounds can be short."""
    steps = settings.frames_per_iteration // settings.num_envs
    share = math.gcd(steps, settings.updates_per_iteration)
    return replace(
        settings,
        frames_per_iteration=settings.frames_per_iteration // share,
        updates_per_iteration=settings.updates_per_iteration // share,
    )


@dataclass
class Times:
    """One number per round."""

    seconds: np.ndarray
    processor: np.ndarray  # seconds of processor time
    parts: dict[str, np.ndarray]  # seconds in each part
    calls: dict[str, np.ndarray]


def take_turns(contestants: Mapping[str, Contestant], rounds: int, frames: int) -> dict[str, Times]:
    """Train ``frames`` frames each, in turns."""
    seconds, processor = np.zeros((2, len(contestants), rounds))
    parts, calls = np.zeros((2, len(contestants), len(PARTS), rounds))
    for number in range(-BURN_IN, rounds):
        for index, contestant in enumerate(contestants.values()):
            contestant.watch.reset()
            start, processor_start = time.perf_counter(), time.process_time()
            contestant.train(frames)
            if number >= 0:
                seconds[index, number] = time.perf_counter() - start
                processor[index, number] = time.process_time() - processor_start
                parts[index, :, number] = [contestant.watch.seconds[part] for part in PARTS]
                calls[index, :, number] = [contestant.watch.calls[part] for part in PARTS]
    return {
        name: Times(
            seconds[index],
            processor[index],
            dict(zip(PARTS, parts[index], strict=True)),
            dict(zip(PARTS, calls[index], strict=True)),
        )
        for index, name in enumerate(contestants)
    }


def time_updates(learner: Any, replay: SequenceReplay) -> tuple[float, list[Any]]:
    """Seconds of processor time of :data:`UPDATES` updates, without the sampling, and the batches they were for."""
    batches = [learner.sample(replay) for _ in range(UPDATES)]
    counters = Counters(num_envs=1)
    start = time.process_time()
    for batch in batches:
        learner.update(batch, counters)
    return time.process_time() - start, batches


@dataclass
class Floor:
    """An update beside its matrix products at the rate of the same round; one number per round."""

    milliseconds: np.ndarray
    floor: np.ndarray
    gigaflops: np.ndarray


def against_floor(ours: Mapping[str, Ours], rounds: int) -> tuple[dict[str, Floor], np.ndarray]:
    """The updates of our scripts, and the rates of the single and the twin product, Gflop/s ``[2, rounds]``."""
    first = next(iter(ours.values()))
    products = Products(first.args.batch_size, first.args.hidden[0])
    times, floors, flops = np.zeros((3, len(ours), rounds))
    rates = np.zeros((2, rounds))
    for number in range(-BURN_IN, rounds):
        single, twin = products.rates()
        for index, one in enumerate(ours.values()):
            seconds, batches = time_updates(one.learner, one.state.replay)
            needed = [update_flops(one.agent, batch) for batch in batches]
            if number >= 0:
                times[index, number] = 1e3 * seconds / UPDATES
                floors[index, number] = 1e3 * np.mean([part.actor / single + part.critics / twin for part in needed])
                flops[index, number] = 1e-9 * np.mean([part.total for part in needed])
                rates[:, number] = 1e-9 * single, 1e-9 * twin
    return {name: Floor(times[i], floors[i], flops[i]) for i, name in enumerate(ours)}, rates


def window_cost(rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Milliseconds per update of TAAC ``[windows, rounds]`` and next states per window, with HalfCheetah's sizes."""
    args = taac_continuous.Args.for_task(SHAPES["locomotion"].env_id)
    replay = filled_replay(17, 6, repetition=WINDOW_REPETITION, frames=WINDOW_FILL, episode=1000)
    spaces = unit_box(17), unit_box(6)
    learners = []
    for window in WINDOWS:
        changed = replace(args, window=window)
        learners.append(taac_continuous.Learner(changed, taac_continuous.make_agent(changed, *spaces)))
    times, nodes = np.zeros((2, len(WINDOWS), rounds))
    for number in range(-BURN_IN, rounds):
        for index, learner in enumerate(learners):
            seconds, batches = time_updates(learner, replay)
            if number >= 0:
                times[index, number] = 1e3 * seconds / UPDATES
                nodes[index, number] = np.mean([batch.nodes / batch.trained for batch in batches])
    return times, nodes.mean(1)


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
    rows, split = [], []
    for name, one in times.items():
        rate = frames / one.seconds
        ratios = times[SB3].seconds / one.seconds, times[SB3].processor / one.processor
        rows.append([name, spread(rate, 1), *map(spread, ratios)])
        parts = [*one.parts.values(), one.seconds - sum(one.parts.values())]
        cells = [f"{1e3 * np.median(part) / frames:.3f} ({np.median(part / one.seconds):.1%})" for part in parts]
        split.append([name, *cells])
    header = ["", "frames/s", f"ratio to {SB3}", "the same by processor time"]
    table("Frames per second: median [quartiles] over rounds.", header, rows)
    table("Milliseconds per frame, and share of the time.", ["", *PARTS, "rest"], split)


def print_calls(times: Mapping[str, Times]) -> None:
    rows = []
    for name, one in times.items():
        updates, steps = one.calls["sample"], one.calls["act"]  # one of each per update, and per vector step
        per_call = [("update", updates), ("sample", updates), ("act", steps), ("env", steps)]
        rows.append([name, *(spread(1e3 * one.parts[part] / calls) for part, calls in per_call)])
    header = ["", "update", "sampling for an update", "acting in all environments", "a step of all environments"]
    table("Milliseconds per call: median [quartiles] over rounds.", header, rows)


def print_floor(floors: Mapping[str, Floor], rates: np.ndarray) -> None:
    rows = [
        [
            name,
            f"{np.median(one.gigaflops):.3f}",
            spread(one.milliseconds),
            spread(one.floor),
            spread(one.milliseconds / one.floor),
        ]
        for name, one in floors.items()
    ]
    title = (
        "The update alone beside the time of its matrix products at the rate of this run: "
        f"{spread(rates[0], 1)} Gflop/s for one matrix, {spread(rates[1], 1)} for two at once."
    )
    table(title, ["", "Gflop per update", "update, ms", "floor, ms", "ratio"], rows)


def print_windows(times: np.ndarray, nodes: np.ndarray) -> None:
    rows = [
        [window, f"{nodes[index]:.2f}", spread(times[index]), spread(times[index] / times[0])]
        for index, window in enumerate(WINDOWS)
    ]
    title = f"TAAC's update by window, at {WINDOW_REPETITION:.0%} repetition."
    table(title, ["window", "next states per window", "update, ms", f"ratio to window {WINDOWS[0]}"], rows)


def print_goals(times: Mapping[str, Times], floors: Mapping[str, Floor], windows: np.ndarray) -> None:
    def ratio(name: str) -> float:
        return float(np.median(times[SB3].seconds / times[name].seconds))

    def share(part: str) -> float:
        return float(np.median(times["TAAC"].parts[part] / times["TAAC"].seconds))

    above, below = (lambda value, goal: value >= goal), (lambda value, goal: value <= goal)
    goals: list[tuple[str, str, float, float, Callable[[float, float], bool]]] = [
        (f"TAAC's frames/s over {SB3}'s", "at least", 1.25, ratio("TAAC"), above),
        (f"SAC's frames/s over {SB3}'s", "at least", 1.5, ratio("SAC"), above),
        (
            "TAAC's update over its floor",
            "at most",
            1.7,
            float(np.median(floors["TAAC"].milliseconds / floors["TAAC"].floor)),
            below,
        ),
        ("window 10 over window 1", "at most", 1.2, float(np.median(windows[1] / windows[0])), below),
        ("TAAC's share of sampling", "at most", 0.05, share("sample"), below),
        ("TAAC's share of acting", "at most", 0.08, share("act"), below),
    ]
    rows = [
        [what, f"{words} {goal}", f"{value:.3f}", "yes" if reached(value, goal) else "no"]
        for what, words, goal, value, reached in goals
    ]
    table("Goals.", ["ratio", "goal", "measured", "reached"], rows)


def measure_shape(name: str, args: argparse.Namespace) -> tuple[dict[str, Times], dict[str, Floor]]:
    shape = SHAPES[name]
    settings = shortest_iteration(settings_for(shape.env_id))
    taac = Ours(taac_continuous, shape, settings, args.threads, args.repetition)
    sac = Ours(sac_continuous, shape, settings, args.threads, repetition=0.0)
    ours = {"TAAC": taac, "SAC": sac}
    contestants: dict[str, Contestant] = {**ours, SB3: StableBaselines(shape, settings)}
    for contestant in contestants.values():
        contestant.train(math.ceil(shape.fill / settings.num_envs) * settings.num_envs)
    frames = math.ceil(args.frames / settings.frames_per_iteration) * settings.frames_per_iteration
    times = take_turns(contestants, args.rounds, frames)
    floors, rates = against_floor(ours, args.rounds)

    batches = [taac.learner.sample(taac.state.replay) for _ in range(20)]
    nodes = np.mean([batch.nodes / batch.trained for batch in batches])
    counters = taac.state.counters
    print(
        f"\n## {name}: {shape.env_id}\n\nEnvironments: {settings.num_envs}. Batch: {settings.batch_size}. "
        f"Window: {taac.args.window} (SAC: 1). Hidden layers: {settings.hidden}. Updates per frame: "
        f"{settings.updates_per_iteration}/{settings.frames_per_iteration}. Rounds: {args.rounds} of {frames} frames.\n"
        f"TAAC's replay: {counters.repeats / counters.frames:.1%} repeated, {nodes:.2f} next states per window."
    )
    print_speed(times, frames)
    print_calls(times)
    print_floor(floors, rates)
    for contestant in contestants.values():
        contestant.close()
    return times, floors


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=40, help="that count, after a burn-in")
    parser.add_argument("--frames", type=int, default=40, help="per round; rounded up to whole rounds of updates")
    parser.add_argument("--repetition", type=float, default=0.1, help="of the behaviour that fills TAAC's replay")
    parser.add_argument("--threads", type=int, default=1)
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
    results = {shape: measure_shape(shape, args) for shape in args.shapes}
    if "locomotion" in results:
        windows, nodes = window_cost(args.rounds)
        print("\n## Windows and goals (locomotion)")
        print_windows(windows, nodes)
        print_goals(*results["locomotion"], windows)


if __name__ == "__main__":
    main()
