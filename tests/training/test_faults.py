"""Environments that fail: what is noticed, what is said, what is replaced, and what the replay forgets."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from hypothesis import given, settings
from hypothesis import strategies as st
from test_replay import STEP, Recorder, assert_same_windows, check_windows, shown

from taac_wrappers import HybridActionWrapper, PrevActionWrapper, RepeatStatisticsWrapper
from taac_wrappers.training import engines as engines_module
from taac_wrappers.training.engines import BadObservation
from taac_wrappers.training.envs import FlatObservation, make_env, make_vector_env
from taac_wrappers.training.evaluation import evaluate
from taac_wrappers.training.faults import MOST_IN_A_ROW, EnvFault, WatchedEnvs

# --- The replay forgets ----------------------------------------------------------------------------------------------


class ForgetfulRecorder(Recorder):
    """A slow record that can forget: what the forgotten episode had overwritten is lost as well."""

    def __init__(self, num_envs: int, frames: int, seed: int = 0):
        self.lost = [0] * num_envs
        super().__init__(num_envs, frames, seed)

    def forget(self, mask: np.ndarray) -> None:
        self.replay.forget(mask)
        for env in np.flatnonzero(mask):
            stream = self.streams[env]
            if stream.observation is not None:
                overwritten = max(self.lost[env], len(stream.history) - self.frames)
                while stream.history and stream.history[-1] and stream.history[-1].episode == stream.episode:
                    stream.history.pop()
                self.lost[env] = min(overwritten, len(stream.history))
                stream.observation = None

    def all_kept(self):
        lost = {id(stream): lost for stream, lost in zip(self.streams, self.lost, strict=True)}
        return {
            number: (stream, index)
            for number, (stream, index) in super().all_kept().items()
            if index >= lost[id(stream)]
        }


@settings(max_examples=60)
@given(
    num_envs=st.integers(1, 3),
    frames=st.integers(3, 9),
    steps=st.lists(
        st.tuples(
            st.lists(STEP, min_size=3, max_size=3),
            st.one_of(st.just((False,) * 3), st.tuples(*[st.booleans()] * 3)),  # which envs fail afterwards
            st.sampled_from(["go on", "save", "save in vain"]),
        ),
        min_size=1,
        max_size=40,
    ),
    length=st.integers(1, 5),
    follow=st.sampled_from(["repeats", "episode"]),
    seed=st.integers(0, 100),
)
def test_forgotten_episodes_cannot_be_sampled_before_or_after_saving(num_envs, frames, steps, length, follow, seed):
    recorder = ForgetfulRecorder(num_envs, frames, seed)
    chunks: list[Any] = []
    for kinds, fails, saving in steps:
        recorder.step(kinds)
        recorder.forget(np.array(fails[:num_envs]))
        recorder.start_ended()
        chunk = recorder.replay.chunk(chunks[-1][1] if chunks else None)
        saved = [*(old for old in chunks if not recorder.replay.is_stale(old[1])), chunk]
        if saving == "save":
            chunks = saved
        kept = recorder.all_kept()
        assert len(recorder.replay) == len(kept)
        assert recorder.replay.empty == (not kept)
        if kept:
            twin = recorder.empty_replay()
            twin.load_chunks(saved)
            twin.rng.bit_generator.state = recorder.replay.rng.bit_generator.state
            batch = 5 * num_envs + 1
            windows = recorder.replay.sample(batch, length, follow=follow)
            check_windows(recorder, windows, batch, length, follow, "first")
            assert_same_windows(twin.sample(batch, length, follow=follow), windows)


def test_earlier_episodes_and_other_envs_stay():
    recorder = ForgetfulRecorder(num_envs=2, frames=30)
    for kinds in ([(True, "go"), (True, "go")], [(True, "truncate"), (True, "go")], [(True, "go"), (True, "go")]):
        recorder.step(kinds)
    recorder.forget(np.array([True, False]))
    recorder.start_ended()
    recorder.step([(True, "go"), (True, "go")])
    seen = {float(number) for number in shown(recorder.replay.sample(400))}
    # Env 0 showed 1, 3, 5 (final), then 7, 9 (forgotten), then 11; env 1 showed 2, 4, 6, 10, and then 13.
    assert seen == recorder.all_kept().keys()
    assert len(seen) == len(recorder.replay) == 3 + 4


def test_an_env_without_transitions_leaves_its_share_to_the_others():
    recorder = ForgetfulRecorder(num_envs=3, frames=30)
    recorder.play(9, ends=0)
    recorder.forget(np.array([False, True, False]))
    recorder.start_ended()
    assert not recorder.replay.empty
    numbers = shown(recorder.replay.sample(100))
    owners = {number: stream for number, (stream, _) in recorder.all_kept().items()}
    per_env = [sum(owners[float(number)] is stream for number in numbers) for stream in recorder.streams]
    assert per_env == [50, 0, 50]


def test_nothing_is_left_when_the_only_episode_is_forgotten():
    recorder = ForgetfulRecorder(num_envs=1, frames=6)
    recorder.play(50, ends=0)
    recorder.forget(np.array([True]))
    recorder.start_ended()
    assert recorder.replay.empty
    with pytest.raises(ValueError, match="sample: no env has a transition yet"):
        recorder.replay.sample(1)


# --- Environments that fail ------------------------------------------------------------------------------------------


class Faulty(gym.Env):
    """A walk whose place is its frame plus what the seed drew; fails as told at a frame, in the envs with that chance.

    ``fault`` is the name of a method below, called in step ``at`` of an episode (0: in reset); only environments whose
    first seed was ``seeds`` or that have any seed at all, if it is None, fail.
    """

    observation_space, action_space = spaces.Box(-np.inf, np.inf, (2,)), spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, fault: str, at: int = 3, seed: int | None = None):
        self.fault, self.at, self.bad_seed = getattr(self, fault), at, seed
        self.own_seed: int | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.own_seed = seed if seed is not None else self.own_seed
        self.frame, self.start = 0, self.np_random.uniform()
        if self.at == 0 and self._fails():
            return self.fault()[0], {}
        return self._observe(), {}

    def step(self, action: np.ndarray):
        self.frame += 1
        observation, reward = self.fault() if self.frame == self.at and self._fails() else (self._observe(), 1.0)
        return observation, reward, False, self.frame == 5, {}

    def _fails(self) -> bool:
        return self.bad_seed in (None, self.own_seed)

    def _observe(self) -> np.ndarray:
        return np.array([self.frame, self.start], np.float32)

    def none(self):
        return self._observe(), 1.0

    def raises(self):
        raise FloatingPointError("the leg\nis off")

    def observes_nan(self):
        return np.array([0.0, np.nan], np.float32), 1.0

    def observes_inf(self):
        return np.array([-np.inf, 0.0], np.float32), 1.0

    def observes_too_much(self):
        return np.array([1e39, 0.0]), 1.0

    def earns_nan(self):
        return self._observe(), float("nan")

    def earns_inf(self):
        return self._observe(), -float("inf")

    def earns_too_much(self):
        return self._observe(), 1e39

    def is_large(self):
        return np.array([-3e38, 3e38], np.float32), 3e38

    def earns_words(self):
        return self._observe(), "much"

    def wrong_shape(self):
        return np.zeros(3, np.float32), 1.0

    def shape_that_would_be_stretched(self):
        return np.zeros(1, np.float32), 1.0

    def wrong_dtype(self):
        return np.array([1j, 0]), 1.0

    def objects(self):
        return np.array([None, 0.0]), 1.0

    def hangs(self):
        time.sleep(1000)

    def dies(self):
        os.kill(os.getpid(), signal.SIGKILL)


class Telling(Faulty):
    """Tells the first of two infos in every step, in the second step of the environment with seed 11 the second."""

    def __init__(self, infos: list[Any]):
        super().__init__("none")
        self.infos = infos

    def step(self, action: np.ndarray):
        *result, _ = super().step(action)
        told = self.infos[self.frame == 2 and self.own_seed == 11]
        return (*result, {"told": told() if callable(told) else told})


def _unsendable() -> Any:
    return (number for number in range(3))


def watched(monkeypatch: pytest.MonkeyPatch, num_envs: int = 1, on_error: Any = "stop", **options: Any) -> WatchedEnvs:
    """Watched environments; options of :class:`Faulty` and of ``make_vector_env``."""
    vector = {key: options.pop(key) for key in ("engine", "timeout", "seed_of_run", "wrap") if key in options}
    spec = EnvSpec("test_faults/Faulty-v0", Faulty, kwargs=options, disable_env_checker=True)
    monkeypatch.setitem(gym.registry, spec.id, spec)
    vector["seed"] = vector.pop("seed_of_run", 0)
    return make_vector_env(spec.id, num_envs, on_error=on_error, **vector)


def ended_in(infos: dict[str, Any], envs: WatchedEnvs) -> np.ndarray:
    """Where an episode has ended; if nowhere, Gymnasium says nothing."""
    return infos.get("_episode", np.zeros(envs.num_envs, bool))


def play(envs: WatchedEnvs, frames: int) -> list[tuple[np.ndarray, ...]]:
    """Step and reset what is done or faulty, as the scripts do."""
    seen = []
    for _ in range(frames):
        observation, reward, terminated, truncated, infos = envs.step(np.zeros(envs.action_space.shape, np.float32))
        envs.counters.frames += envs.num_envs
        done = terminated | truncated | envs.faulty
        seen.append((observation, reward, done, envs.faulty.copy(), ended_in(infos, envs)))
        if done.any():
            seen.append((envs.reset(options={"reset_mask": done})[0],))
    return seen


FAULTS = {
    "raises": r"raised FloatingPointError: the leg is off \(test_faults.py, line \d+\)",
    "observes_nan": "observed nan in entry 1",
    "observes_inf": "observed -inf in entry 0",
    "observes_too_much": "observed inf in entry 0",
    "earns_nan": "gave the reward nan",
    "earns_inf": "gave the reward -inf",
    "earns_too_much": r"gave the reward 1e\+39",
    "earns_words": "raised .*Error: .*",
    "wrong_shape": r"observed float32 of shape \(3,\) instead of float32 of shape \(2,\)",
    "shape_that_would_be_stretched": r"observed float32 of shape \(1,\) instead of float32 of shape \(2,\)",
    "wrong_dtype": r"observed complex128 of shape \(2,\) instead of float32 of shape \(2,\)",
    "objects": r"observed object of shape \(2,\) instead of float32 of shape \(2,\)",
}


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_and_nothing_of_it_is_passed_on(fault, monkeypatch):
    envs = watched(monkeypatch, 3, fault=fault, seed=11)
    envs.reset(seed=10)  # so that env 1 fails
    play(envs, 2)
    assert envs.stop_reason is None
    observation, reward, terminated, truncated, infos = envs.step(np.zeros((3, 1), np.float32))
    assert envs.faulty.tolist() == [False, True, False]
    assert observation[1].tolist() == [0, 0]
    assert observation[[0, 2], 0].tolist() == [3, 3]  # the others went on
    assert reward.tolist() == [1, 0, 1]
    assert not (terminated | truncated | ended_in(infos, envs)).any()
    assert infos["frames"].tolist() == [1, 1, 1]
    assert not infos["executed_action"].any()
    assert envs.stop_reason is not None
    assert re.fullmatch(rf"env 1 \(test_faults/Faulty-v0\) failed at frame 9: it {FAULTS[fault]}", envs.stop_reason)
    assert "\n" not in envs.stop_reason
    states = envs.episode_states()
    assert [state is None for state in states] == [False, True, False]
    envs.close()


def test_a_part_of_the_wrong_size_is_noticed():
    class Parts(gym.Env):
        observation_space = spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Box(-1, 1, (1,)))
        action_space = spaces.Box(-1.0, 1.0, (1,))

    env = FlatObservation(Parts())
    good = {"a": np.zeros(2, np.float32), "b": np.ones(1, np.float32)}
    assert {key: part.tolist() for key, part in env.observation(good).items()} == {"a": [0, 0], "b": [1]}
    with pytest.raises(BadObservation, match=r"observed float32 of shape \(3,\) instead of float32 of shape \(2,\)"):
        env.observation(good | {"a": np.zeros(3, np.float32)})


def wrap(env: gym.Env) -> gym.Env:
    """TAAC's environment side."""
    return RepeatStatisticsWrapper(PrevActionWrapper(HybridActionWrapper(env), flatten=False))


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_under_wrappers_leaves_one_frame_of_zeros(fault, monkeypatch):
    envs = watched(monkeypatch, 3, fault=fault, seed=11, wrap=wrap)
    envs.reset(seed=10)  # so that env 1 fails
    action = {"action": np.full((3, 1), 0.5, np.float32), "switch": np.array([1, 1, 0])}
    for _ in range(2):
        envs.step(action)
    assert envs.stop_reason is None
    action["switch"][1] = 0
    observation, reward, terminated, truncated, infos = envs.step(action)
    assert envs.faulty.tolist() == [False, True, False]
    assert observation["observation"][:, 0].tolist() == [3, 0, 3]
    assert observation["prev_action"].tolist() == infos["executed_action"].tolist() == [[0.5], [0], [0]]
    assert infos["frames"].tolist() == [1, 1, 1]
    assert infos["repeated"].tolist() == [False, False, True]
    assert reward.tolist() == [1, 0, 1]
    assert not (terminated | truncated | ended_in(infos, envs)).any()
    assert envs.stop_reason is not None
    in_observation = " of observation" if "entry" in FAULTS[fault] else ""
    wanted = rf"env 1 \(test_faults/Faulty-v0\) failed at frame 3: it {FAULTS[fault]}{in_observation}"
    assert re.fullmatch(wanted, envs.stop_reason)
    envs.close()


def test_if_all_fail_the_rows_are_of_the_right_kind_too(monkeypatch):
    envs = watched(monkeypatch, 2, "restart", fault="raises", at=1, wrap=wrap)
    envs.reset(seed=0)
    observation, *_, infos = envs.step({"action": np.ones((2, 1), np.float32), "switch": np.ones(2, np.int64)})
    assert envs.faulty.all()
    assert observation in envs.observation_space
    assert infos["frames"].tolist() == [1, 1]
    assert infos["repeated"].tolist() == [False, False]
    np.testing.assert_array_equal(infos["executed_action"], np.zeros((2, 1), np.float32), strict=True)


def test_wrappers_of_a_new_environment_begin_anew(monkeypatch):
    """Nothing of the broken one's: neither the action that it would have repeated, nor its statistics."""
    envs = watched(monkeypatch, 1, "restart", fault="raises", at=3, seed=0, wrap=wrap)
    envs.reset(seed=0)
    act = {"action": np.ones((1, 1), np.float32), "switch": np.ones(1, np.int64)}
    again = {"action": np.ones((1, 1), np.float32), "switch": np.zeros(1, np.int64)}
    for _ in range(3):
        envs.step(act)
    observation, _ = envs.reset(options={"reset_mask": envs.faulty.copy()})
    assert observation["prev_action"].tolist() == [[0]]
    steps = [envs.step(again) for _ in range(5)]
    assert all(infos["executed_action"].tolist() == [[0]] for *_, infos in steps)
    statistics = steps[-1][-1]["repeat"]
    assert (statistics["frames"].tolist(), statistics["fraction"].tolist()) == ([5], [1.0])


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (np.zeros(2), np.zeros(3), "could not broadcast"),
        (1.0, "much", "could not convert string to float"),
        (1, 10**30, "too large"),
        (np.zeros(2), {"a": 1}, ""),
        (1.0, [1.0, 2.0], "setting an array element with a sequence"),
    ],
    ids=["shapes", "text", "overflow", "dict", "list"],
)
@pytest.mark.parametrize("engine", ["sync", "async"])
def test_infos_that_cannot_be_stacked_are_a_fault_of_that_environment(engine, first, second, message, monkeypatch):
    """In the second step, of the environment whose info does not fit to the one before it."""
    spec = EnvSpec("test_faults/Telling-v0", Telling, kwargs={"infos": [first, second]}, disable_env_checker=True)
    monkeypatch.setitem(gym.registry, spec.id, spec)
    envs = make_vector_env(spec.id, 3, engine=engine)
    envs.reset(seed=10)  # so that env 1 tells something else
    play(envs, 1)
    assert envs.stop_reason is None
    observation, reward, *_ = envs.step(np.zeros((3, 1), np.float32))
    assert envs.faulty.tolist() == [False, True, False]
    assert observation[:, 0].tolist() == [2, 0, 2]
    assert reward.tolist() == [1, 0, 1]
    assert envs.stop_reason is not None
    told = (
        r"env 1 \(test_faults/Telling-v0\) failed at frame 6: it gave an info that cannot be stacked with the others': "
    )
    assert re.match(f"{told}.*{message}", envs.stop_reason)
    assert "\n" not in envs.stop_reason
    envs.close()


def test_an_info_that_cannot_be_sent_is_a_fault_of_that_environment(monkeypatch):
    """A worker has to pickle it; in this process it is taken as it is."""
    spec = EnvSpec("test_faults/Telling-v0", Telling, kwargs={"infos": [None, _unsendable]}, disable_env_checker=True)
    monkeypatch.setitem(gym.registry, spec.id, spec)
    here = make_vector_env(spec.id, 2)
    here.reset(seed=10)
    play(here, 2)
    assert here.stop_reason is None
    envs = make_vector_env(spec.id, 2, engine="async")
    envs.reset(seed=10)
    play(envs, 2)
    assert envs.stop_reason is not None
    told = r"env 1 \(.*\) failed at frame 4: it gave an info that cannot be sent to the learner: .*pickle"
    assert re.match(told, envs.stop_reason)
    assert [state is None for state in envs.episode_states()] == [False, True]
    envs.close()


@pytest.mark.parametrize("fault", ["none", "is_large"])  # the squares of what is large overflow
def test_an_environment_that_works_is_left_alone(fault, monkeypatch):
    envs = watched(monkeypatch, 2, fault=fault)
    envs.reset(seed=0)
    assert all(not step[3].any() for step in play(envs, 20) if len(step) > 1)
    assert envs.stop_reason is None
    assert envs.counters.env_restarts == 0


@pytest.mark.parametrize("fault", ["raises", "observes_nan", "hangs", "dies"])
def test_a_broken_environment_is_replaced_and_the_others_do_not_notice(fault, monkeypatch, capsys):
    monkeypatch.setattr(engines_module, "START_SECONDS", 60.0)
    options: dict[str, Any] = {"engine": "async", "timeout": 1.0} if fault in ("hangs", "dies") else {}
    whole = watched(monkeypatch, 3, fault="none")
    whole.reset(seed=10)
    expected = play(whole, 12)
    runs = []
    for _ in range(1 if options else 2):  # workers take long to start
        envs = watched(monkeypatch, 3, "restart", fault=fault, seed=11, **options)
        envs.reset(seed=10)
        runs.append(play(envs, 12))
        assert envs.stop_reason is None
        assert envs.counters.env_restarts == 1  # the new one has another seed
        envs.close()
    flat = [[array.tobytes() for step in run for array in step] for run in runs]
    assert flat[0] == flat[-1]  # the same fault gives the same run
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("env 1 (test_faults/Faulty-v0) failed at frame 9: it ")
    assert said[0].endswith("; a new one takes its place")
    assert said == said[:1] * len(runs)
    steps = [[step for step in run if len(step) > 1] for run in (runs[0], expected)]
    for ours, theirs in zip(*steps, strict=True):
        np.testing.assert_array_equal(ours[0][[0, 2]], theirs[0][[0, 2]])
    assert [step[0][1, 0] for step in steps[0]] == [1, 2, 0, 1, 2, 3, 4, 5, 1, 2, 3, 4]
    assert [step[2][1] for step in steps[0]] == [frame in (2, 7) for frame in range(12)]
    assert steps[0][3][0][1, 1] != steps[0][1][0][1, 1]  # another episode


def test_seeds_of_new_environments_depend_on_the_run_and_on_how_many_there_were(monkeypatch):
    starts = []
    for seed_of_run, already in ((0, 0), (0, 0), (1, 0), (0, 5)):
        envs = watched(monkeypatch, 1, "restart", fault="raises", at=1, seed=3, seed_of_run=seed_of_run)
        envs.counters.env_restarts = already
        envs.reset(seed=3)
        starts.append(play(envs, 1)[-1][0][0, 1])
        assert envs.counters.env_restarts == already + 1
    assert starts[0] == starts[1]
    assert len(set(starts)) == 3


def test_ten_faults_in_a_row_are_enough(monkeypatch, capsys):
    envs = watched(monkeypatch, 2, "restart", fault="raises", at=1)
    envs.reset(seed=0)
    play(envs, MOST_IN_A_ROW - 1)
    assert envs.stop_reason is None
    assert envs.counters.env_restarts == 2 * (MOST_IN_A_ROW - 1)
    play(envs, 1)
    assert envs.stop_reason is not None
    assert envs.stop_reason.startswith("env 0 (test_faults/Faulty-v0) failed at frame 20: it raised ")
    assert envs.stop_reason.endswith(", and so did 9 others in its place")
    assert len(capsys.readouterr().err.splitlines()) == 2 * (MOST_IN_A_ROW - 1)


def test_a_good_step_in_between_counts(monkeypatch):
    envs = watched(monkeypatch, 1, "restart", fault="raises", at=2)
    envs.reset(seed=0)
    play(envs, 60)
    assert envs.stop_reason is None
    assert envs.counters.env_restarts == 30


def test_a_reset_that_fails_is_a_fault(monkeypatch):
    envs = watched(monkeypatch, 3, fault="observes_nan", at=0, seed=11)
    assert envs.reset(seed=10)[0][1].tolist() == [0, 0]
    assert envs.stop_reason == "env 1 (test_faults/Faulty-v0) failed at frame 0: it observed nan in entry 1"

    envs = watched(monkeypatch, 3, "restart", fault="raises", at=0, seed=11)
    observation, _ = envs.reset(seed=10)
    assert envs.stop_reason is None
    assert envs.counters.env_restarts == 1
    assert (observation[:, 1] > 0).all()

    envs = watched(monkeypatch, 1, "restart", fault="raises", at=0)
    envs.reset(seed=10)
    assert envs.stop_reason is not None
    assert envs.counters.env_restarts == MOST_IN_A_ROW - 1


def test_a_hung_worker_is_killed_and_named(monkeypatch):
    envs = watched(monkeypatch, 2, engine="async", timeout=0.5, fault="hangs", seed=1)
    envs.reset(seed=0)
    worker = envs._engine._hosts[1]._process
    started = time.monotonic()
    play(envs, 3)
    assert 0.5 <= time.monotonic() - started < 30
    assert envs.stop_reason == "env 1 (test_faults/Faulty-v0) failed at frame 6: it gave no answer within 0.5 s"
    worker.join(10)
    assert worker.exitcode == -signal.SIGKILL
    assert [state is None for state in envs.episode_states()] == [False, True]
    envs.close()


def test_a_dead_worker_is_named(monkeypatch):
    envs = watched(monkeypatch, 2, engine="async", fault="dies", seed=1)
    envs.reset(seed=0)
    play(envs, 3)
    assert envs.stop_reason == (
        "env 1 (test_faults/Faulty-v0) failed at frame 6: it died: its process ended with exit code -9"
    )
    envs.close()


def test_a_worker_that_died_unnoticed_has_no_state_to_save(monkeypatch):
    envs = watched(monkeypatch, 2, engine="async", fault="none")
    envs.reset(seed=0)
    envs._engine._hosts[0]._process.kill()
    assert [state is None for state in envs.episode_states()] == [True, False]
    envs.close()


def test_what_broke_begins_anew_when_resumed_and_the_rest_goes_on(monkeypatch):
    envs = watched(monkeypatch, 3, fault="raises", seed=11)
    envs.reset(seed=10)
    play(envs, 3)
    states = envs.episode_states()
    began = []
    for _ in range(2):
        others = watched(monkeypatch, 3, fault="raises", seed=11)
        others.counters.frames = 9
        observation, exact = others.restore(states)
        assert exact.tolist() == [True, False, True]
        assert observation[:, 0].tolist() == [3, 0, 3]
        began.append(observation.tobytes())
    assert began[0] == began[1]  # not by chance


def test_a_fault_while_resuming(monkeypatch):
    envs = watched(monkeypatch, 2, fault="none")
    envs.reset(seed=0)
    play(envs, 4)
    states = envs.episode_states()
    stopping = watched(monkeypatch, 2, fault="raises", seed=1)
    _, exact = stopping.restore(states)
    assert exact.tolist() == [True, False]
    assert stopping.stop_reason is not None
    going_on = watched(monkeypatch, 2, "restart", fault="raises", seed=1)
    observation, exact = going_on.restore(states)
    assert exact.tolist() == [True, False]
    assert going_on.stop_reason is None
    assert observation[:, 0].tolist() == [4, 0]


# --- Evaluation ------------------------------------------------------------------------------------------------------


class Still:
    def act(self, observation, deterministic=False):
        assert np.isfinite(observation).all()
        return np.zeros((1, 1), np.float32)


@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("fault", ["raises", "observes_nan", "wrong_shape"])
def test_a_fault_in_evaluation_is_told_apart_from_other_errors(fault, at, monkeypatch):
    spec = EnvSpec("test_faults/Faulty-v0", Faulty, kwargs={"fault": fault, "at": at}, disable_env_checker=True)
    monkeypatch.setitem(gym.registry, spec.id, spec)
    with pytest.raises(EnvFault, match=FAULTS[fault]):
        evaluate(Still(), make_env(spec.id, RepeatStatisticsWrapper), 2, seed=0)


def test_a_reward_that_is_not_finite_fails_an_evaluation(monkeypatch):
    spec = EnvSpec("test_faults/Faulty-v0", Faulty, kwargs={"fault": "earns_nan"}, disable_env_checker=True)
    monkeypatch.setitem(gym.registry, spec.id, spec)
    with pytest.raises(EnvFault, match="gave the reward nan"):
        evaluate(Still(), make_env(spec.id, RepeatStatisticsWrapper), 2, seed=0)


@pytest.mark.parametrize("engine", ["sync", "async"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (2, 2), (2,)], ids=str)
def test_an_action_of_the_wrong_shape_is_the_callers_fault_and_changes_nothing(shape, engine):
    with contextlib.closing(make_vector_env("Pendulum-v1", 2, engine=engine)) as envs:
        envs.reset(seed=0)
        with pytest.raises(ValueError, match=re.escape(f"action must have shape (2, 1), got {shape}")):
            envs.step(np.zeros(shape, np.float32))
        observation = envs.step(np.full((2, 1), 0.5, np.float32))[0]
        assert envs.stop_reason is None
    with contextlib.closing(make_vector_env("Pendulum-v1", 2)) as untouched:
        untouched.reset(seed=0)
        np.testing.assert_array_equal(observation, untouched.step(np.full((2, 1), 0.5, np.float32))[0])


def test_an_error_of_the_agent_is_not_the_environments():
    class Broken(Still):
        def act(self, observation, deterministic=False):
            return 1 / 0

    with pytest.raises(ZeroDivisionError):
        evaluate(Broken(), make_env("Pendulum-v1", RepeatStatisticsWrapper), 1, seed=0)
