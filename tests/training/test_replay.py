"""Sequence replay against a plain list of transitions, under ends of all kinds, wrap-around and several envs."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from taac_wrappers.training import replay as replay_module
from taac_wrappers.training.replay import SequenceReplay, Windows
from taac_wrappers.training.structure import mapped

ACTIONS = spaces.Box(np.array([-1e6, 0.5], np.float32), np.full(2, 1e6, np.float32))
INITIAL_ACTION = (0.0, 0.5)  # zeros, clipped into the space
# As TAAC's wrappers have it: the previous action is an entry like any other.
OBSERVATIONS = spaces.Dict(observation=spaces.Box(-np.inf, np.inf, (2,)), prev_action=ACTIONS)
# As SAC-Hybrid has it: of an action more is recorded than itself.
RECORDED = spaces.Dict(
    action=ACTIONS, switch=spaces.Box(0, 1, (), np.int64), log_probs=spaces.Box(-np.inf, np.inf, (2,))
)
GO, TERMINATE, TRUNCATE, BOTH = "go", "terminate", "truncate", "both"


@dataclass
class Transition:
    """What really happened in one frame; every observation carries a number that no other one has."""

    env: int
    observation: float
    prev_action: tuple[float, float]
    action: tuple[float, float]
    repeated: bool
    reward: float
    discount: float
    terminated: bool
    truncated: bool
    next_observation: float
    episode: int


def recorded_of(transitions: list[Transition], dicts: bool) -> Any:
    """What is recorded of their actions: these, or with ``dicts`` a dict as of ``RECORDED``."""
    action = np.array([t.action for t in transitions], np.float32).reshape(-1, 2)
    if not dicts:
        return action
    switch = np.array([not t.repeated for t in transitions], np.int64)
    return {"action": action, "log_probs": -action, "switch": switch}


@dataclass
class Stream:
    """One env's history. Once another episode has begun, the last one's final observation takes a place too (None)."""

    observation: float | None = None  # None: no episode is under way
    prev_action: tuple[float, float] = INITIAL_ACTION
    first: bool = True
    episode: int = 0
    history: list[Transition | None] = field(default_factory=list)


class Recorder:
    """Feeds a replay with random episodes and keeps the slow record beside it."""

    def __init__(self, num_envs: int, frames: int, seed: int = 0, *, start: bool = True, dicts: bool = False):
        self.num_envs, self.frames, self.dicts = num_envs, frames, dicts
        self.replay = self.empty_replay(seed)
        self.streams = [Stream() for _ in range(num_envs)]
        self.number = 0
        if start:
            self.start_ended()

    def empty_replay(self, seed: int = 0) -> SequenceReplay:
        capacity = self.frames * self.num_envs
        action_space = RECORDED if self.dicts else ACTIONS
        return SequenceReplay(OBSERVATIONS, action_space, capacity=capacity, num_envs=self.num_envs, seed=seed)

    def fresh(self) -> float:
        self.number += 1
        return float(self.number)

    def start_ended(self) -> None:
        """Begin an episode wherever none is under way."""
        mask = np.array([stream.observation is None for stream in self.streams])
        observation = np.full((self.num_envs, 2), np.nan)  # what a masked env shows must not be stored
        for env, stream in enumerate(self.streams):
            if mask[env]:
                if stream.history and stream.history[-1] is not None:
                    stream.history.append(None)
                stream.observation, stream.prev_action, stream.first = self.fresh(), INITIAL_ACTION, True
                stream.episode += 1
                observation[env] = stream.observation, -stream.observation
        self.replay.start({"observation": observation, "prev_action": np.full((self.num_envs, 2), (0, 0.5))}, mask)

    def step(self, kinds: list[tuple[bool, str]]) -> None:
        """One decision in every env: whether it acts anew, and how the episode ends; starts ended envs first."""
        if any(stream.observation is None for stream in self.streams):
            self.start_ended()
        frame = []
        for env, (stream, (acts, ending)) in enumerate(zip(self.streams, kinds, strict=False)):
            number = self.fresh()
            action = (number, number + 0.5) if acts else stream.prev_action
            terminated, truncated = ending in (TERMINATE, BOTH), ending in (TRUNCATE, BOTH)
            frame.append(
                Transition(
                    env,
                    stream.observation,
                    stream.prev_action,
                    action,
                    not acts,
                    0.25 * number,
                    0.5 ** (number % 3),
                    terminated,
                    truncated,
                    number,
                    stream.episode,
                )
            )
            stream.history.append(frame[-1])
            stream.observation = None if terminated or truncated else number
            stream.prev_action, stream.first = action, False

        def array(name):
            return np.array([getattr(transition, name) for transition in frame])

        number = array("next_observation")
        self.replay.add(
            recorded_of(frame, self.dicts),
            array("reward"),
            array("terminated"),
            array("truncated"),
            {"observation": np.stack([number, -number], axis=-1), "prev_action": array("action")},
            repeated=array("repeated"),
            discount=array("discount"),
        )

    def play(self, count: int, seed: int = 0, ends: float = 0.2) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(count):
            acts, endings = rng.random(self.num_envs) < 0.4, rng.random(self.num_envs)
            kinds = (TERMINATE, TRUNCATE, BOTH)
            self.step(
                [
                    (bool(each), kinds[rng.integers(3)] if end < ends else GO)
                    for each, end in zip(acts, endings, strict=True)
                ]
            )

    def interrupt(self, mask: np.ndarray) -> None:
        self.replay.interrupt(mask)
        for env in np.flatnonzero(mask):
            stream = self.streams[env]
            if stream.observation is not None and not stream.first:
                stream.history[-1].truncated = True
            stream.observation = None

    def kept(self, env: int) -> list[Transition]:
        return [place for place in self.streams[env].history[-self.frames :] if place is not None]

    def all_kept(self) -> dict[float, tuple[Stream, int]]:
        """Where every transition that may be sampled stands, by its observation's number."""
        return {
            place.observation: (stream, index)
            for stream in self.streams
            for index, place in enumerate(stream.history)
            if place is not None and index >= len(stream.history) - self.frames
        }

    def window(self, start: float, length: int, follow: str) -> list[Transition]:
        """The window that begins with this observation, by walking through the record."""
        stream, index = self.all_kept()[start]
        window = [stream.history[index]]
        while len(window) < length:
            index += 1
            last = window[-1]
            if last.terminated or last.truncated or index == len(stream.history):
                break
            following = stream.history[index]
            assert following.episode == last.episode
            if follow == "repeats" and not following.repeated:
                break
            window.append(following)
        return window


def shown(windows: Windows) -> np.ndarray:
    """The numbers of the observations of a sample."""
    return windows.observation["observation"][:, 0]


def check_windows(recorder: Recorder, windows: Windows, batch: int, length: int, follow: str, train_on: str) -> None:
    """Every field of a sample, against the record."""
    assert windows.valid.shape == (length, batch)
    expected = [recorder.window(float(number), length, follow) for number in shown(windows)[:batch]]
    valid = np.array([[k < len(window) for window in expected] for k in range(length)])
    np.testing.assert_array_equal(windows.valid, valid)
    np.testing.assert_array_equal(windows.index, np.flatnonzero(valid))

    def matrix(value, dtype):
        result = np.zeros((length, batch), dtype)
        for b, window in enumerate(expected):
            for k, transition in enumerate(window):
                result[k, b] = value(window, k, transition)
        return result

    np.testing.assert_array_equal(windows.reward, matrix(lambda w, k, t: t.reward, np.float32))
    np.testing.assert_array_equal(windows.discount, matrix(lambda w, k, t: t.discount, np.float32))
    np.testing.assert_array_equal(windows.terminated, matrix(lambda w, k, t: t.terminated, bool))
    np.testing.assert_array_equal(windows.truncated, matrix(lambda w, k, t: t.truncated, bool))
    repeated = matrix(lambda w, k, t: k + 1 < len(w) and w[k + 1].repeated, bool)
    np.testing.assert_array_equal(windows.repeated, repeated)

    def observed(numbers, actions):
        number = np.array(numbers, np.float32)
        return {"observation": np.stack([number, -number], axis=-1), "prev_action": np.array(actions, np.float32)}

    # An action is the previous one at the state that it led to, at an episode's end too.
    inside = [expected[b][k] for k in range(length) for b in range(batch) if valid[k, b]]
    following = observed([t.next_observation for t in inside], [t.action for t in inside])
    assert_same(windows.next_observation, following)

    trained = inside if train_on == "all" else inside[:batch]
    assert_same(windows.observation, observed([t.observation for t in trained], [t.prev_action for t in trained]))
    assert_same(windows.action, recorded_of(trained, recorder.dicts))
    np.testing.assert_array_equal(windows.trained, np.flatnonzero(valid)[: len(trained)])
    # Of the next action, where the window goes on; elsewhere it is anything.
    cells = [(k, b) for k in range(length) for b in range(batch) if valid[k, b]]
    numbers = [number for number, (k, b) in enumerate(cells) if k + 1 < len(expected[b])]
    following = [expected[b][k + 1] for k, b in (cells[number] for number in numbers)]
    assert_same(mapped(lambda part: part[numbers], windows.next_action), recorded_of(following, recorder.dicts))
    assert {array.dtype for array in (windows.reward, windows.discount)} == {np.dtype(np.float32)}


def assert_same(left, right) -> None:
    """Equal to the bit, dicts and dtypes included."""
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_same(left[key], right[key])
    else:
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


def assert_same_windows(left: Windows, right: Windows) -> None:
    for each in fields(Windows):
        assert_same(getattr(left, each.name), getattr(right, each.name))


# --- Against the record ----------------------------------------------------------------------------------------------

STEP = st.tuples(st.booleans(), st.sampled_from([GO, GO, GO, TERMINATE, TRUNCATE, BOTH]))


@settings(max_examples=60)
@given(
    num_envs=st.integers(1, 3),
    frames=st.integers(3, 9),
    steps=st.lists(st.lists(STEP, min_size=3, max_size=3), min_size=1, max_size=40),
    length=st.integers(1, 5),
    follow=st.sampled_from(["repeats", "episode"]),
    train_on=st.sampled_from(["first", "all"]),
    restart=st.booleans(),
    seed=st.integers(0, 100),
    dicts=st.booleans(),
)
def test_samples_equal_a_plain_list_of_transitions(
    num_envs, frames, steps, length, follow, train_on, restart, seed, dicts
):
    recorder = Recorder(num_envs, frames, seed, dicts=dicts)
    for count, kinds in enumerate(steps, start=1):
        recorder.step(kinds)
        if count % 7 and count != len(steps):
            continue
        if restart and any(stream.observation is None for stream in recorder.streams):
            recorder.start_ended()  # otherwise the sample is taken between an end and the next start
        assert len(recorder.replay) == len(recorder.all_kept())
        batch = 5 * num_envs + 1
        windows = recorder.replay.sample(batch, length, follow=follow, train_on=train_on)
        check_windows(recorder, windows, batch, length, follow, train_on)


def test_every_kept_transition_is_sampled_and_no_other():
    recorder = Recorder(num_envs=3, frames=20)
    recorder.play(100)
    seen = {float(n) for _ in range(30) for n in shown(recorder.replay.sample(60))}
    assert seen == recorder.all_kept().keys()
    assert len(seen) == len(recorder.replay)
    assert any(len(recorder.kept(env)) < 20 for env in range(3))  # final observations take up some places


def test_a_full_ring_keeps_the_last_frames_of_a_long_episode():
    recorder = Recorder(num_envs=1, frames=7)
    recorder.play(50, ends=0)
    numbers = np.unique(shown(recorder.replay.sample(100))).tolist()
    assert numbers == list(range(44, 51))  # s_43 to s_49, and s_50 to follow


def test_the_true_final_observation_follows_the_last_transition():
    recorder = Recorder(num_envs=1, frames=20)
    for ending in (GO, TRUNCATE, GO, TERMINATE):
        recorder.step([(True, ending)])
    recorder.start_ended()
    windows = recorder.replay.sample(40)
    next_shown = windows.next_observation["observation"][:, 0]
    follows = dict(zip(shown(windows).tolist(), next_shown.tolist(), strict=True))
    # Observation 1 starts, 2 goes on, 3 is final; 4 starts, 5 goes on, 6 is final; 7 starts
    assert follows == {1: 2, 2: 3, 4: 5, 5: 6}


def test_the_discount_is_that_of_each_decision():
    """By hand: decisions of one, three and two frames, the last of them cut short, with gamma = 0.5."""
    replay = SequenceReplay(spaces.Box(-9, 9, (1,)), ACTIONS, capacity=10, num_envs=1, seed=0)
    replay.start(np.zeros((1, 1)))
    for number, (discount, ended) in enumerate([(0.5, False), (0.125, False), (0.25, True)], start=1):
        ends = np.array([ended])
        replay.add(
            *(np.ones((1, 2)), np.full(1, number), ends, ~ends & False, np.full((1, 1), number)),
            repeated=np.array([False]),
            discount=np.array([discount]),
        )
    windows = replay.sample(60, 3, follow="episode")
    found = dict(zip(windows.observation[:, 0].tolist(), windows.discount.T.tolist(), strict=True))
    assert found == {0: [0.5, 0.125, 0.25], 1: [0.125, 0.25, 0], 2: [0.25, 0, 0]}


def test_following_repeats_keeps_only_the_states_that_compare_through_needs():
    recorder = Recorder(num_envs=2, frames=60)
    recorder.play(60, ends=0.05)
    repeats = recorder.replay.sample(40, 4, follow="repeats")
    np.testing.assert_array_equal(repeats.valid[1:], repeats.repeated[:-1])
    assert 40 < repeats.valid.sum() < 4 * 40
    episode = recorder.replay.sample(40, 4, follow="episode")
    assert (episode.valid[1:] & ~episode.repeated[:-1]).any()


def test_dict_observations_keep_images_as_bytes():
    space = spaces.Dict({"image": spaces.Box(0, 255, (2, 2), np.uint8), "state": spaces.Box(-1, 1, (3,), np.float64)})
    replay = SequenceReplay(space, ACTIONS, capacity=12, num_envs=2, seed=0)

    def observe(number: int) -> dict[str, np.ndarray]:
        """Env 0 shows ``number``, env 1 shows ``100 + number``."""
        shown = np.array([number, 100 + number])
        image = np.broadcast_to(shown[:, None, None], (2, 2, 2)).astype(np.uint8)
        return {"image": image, "state": np.broadcast_to(shown[:, None] / 256, (2, 3))}

    replay.start(observe(0))
    no = np.zeros(2, bool)
    for number in range(1, 20):
        step = np.ones((2, 2)), np.full(2, number), no, no, observe(number)
        replay.add(*step, repeated=no, discount=np.ones(2))
    replay.start(observe(99), no)  # nobody
    windows = replay.sample(200, 2, follow="episode")
    for observation in (windows.observation, windows.next_observation):
        assert (observation["image"].dtype, observation["image"].shape[1:]) == (np.uint8, (2, 2))
        assert (observation["state"].dtype, observation["state"].shape[1:]) == (np.float32, (3,))
        number = observation["image"][:, 0, 0]
        np.testing.assert_array_equal(observation["image"], np.broadcast_to(number[:, None, None], (len(number), 2, 2)))
        np.testing.assert_array_equal(observation["state"], np.repeat(number[:, None] / np.float32(256), 3, axis=1))
    assert set(windows.observation["image"].flat) == {*range(13, 19), *range(113, 119)}
    np.testing.assert_array_equal(
        windows.next_observation["image"][:200].astype(int), windows.observation["image"].astype(int) + 1
    )
    assert replay.nbytes == 2 * 7 * (4 + 3 * 4 + 2 * 4 + 4 + 4 + 1)  # 7 slots per env


# --- How starts are drawn --------------------------------------------------------------------------------------------


def test_starts_are_uniform_over_transitions():
    recorder = Recorder(num_envs=1, frames=50)
    recorder.play(200, ends=0.25)  # many final observations, whose draws must be spread evenly
    transitions = len(recorder.replay)
    assert transitions < 45
    draws = 400
    numbers, counts = np.unique(
        np.concatenate([shown(recorder.replay.sample(25)) for _ in range(draws)]), return_counts=True
    )
    assert len(numbers) == transitions
    expected = draws * 25 / transitions
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 1.5 * transitions


def test_starts_are_drawn_independently():
    """Of 60 transitions, 60 draws leave out each one with a probability of almost 1 / e."""
    recorder = Recorder(num_envs=1, frames=60)
    recorder.play(100, ends=0)
    assert len(recorder.replay) == 60
    different = [len(np.unique(shown(recorder.replay.sample(60)))) for _ in range(50)]
    assert np.mean(different) == pytest.approx(60 * (1 - (59 / 60) ** 60), abs=1.5)


def test_every_env_gives_an_equal_share_and_the_rest_goes_around():
    recorder = Recorder(num_envs=3, frames=30)
    recorder.play(40)
    env_of = {number: stream.history[index].env for number, (stream, index) in recorder.all_kept().items()}
    extra = np.zeros(3)
    for _ in range(60):
        numbers = shown(recorder.replay.sample(7))
        shares = np.bincount([env_of[float(number)] for number in numbers], minlength=3)
        assert sorted(shares) == [2, 2, 3]
        extra += shares == 3
    assert extra.min() > 10


def test_small_batches_reach_every_env():
    recorder = Recorder(num_envs=3, frames=30)
    recorder.play(20)
    env_of = {number: stream.history[index].env for number, (stream, index) in recorder.all_kept().items()}
    assert {env_of[float(shown(recorder.replay.sample(1))[0])] for _ in range(50)} == {0, 1, 2}


def test_the_same_seed_draws_the_same_windows():
    one, same, other = (Recorder(num_envs=2, frames=30, seed=seed) for seed in (1, 1, 2))
    for recorder in (one, same, other):
        recorder.play(40)
    windows = one.replay.sample(20, 3)
    assert_same_windows(windows, same.replay.sample(20, 3))
    assert not np.array_equal(shown(windows), shown(other.replay.sample(20, 3)))


# --- Interruptions ---------------------------------------------------------------------------------------------------


def test_an_interrupted_episode_ends_like_at_a_time_limit():
    recorder = Recorder(num_envs=3, frames=20)
    recorder.step([(True, GO), (True, TERMINATE), (True, GO)])
    recorder.interrupt(np.array([True, True, False]))  # env 1 had ended by itself and is left as it is
    recorder.start_ended()
    recorder.interrupt(np.array([True, False, False]))  # nothing has been recorded since: nothing to end
    recorder.start_ended()
    recorder.play(4, ends=0)
    assert len(recorder.replay) == len(recorder.all_kept()) == 15
    for follow in ("repeats", "episode"):
        check_windows(recorder, recorder.replay.sample(60, 4, follow=follow), 60, 4, follow, "first")
    first = recorder.streams[0].history[0]
    assert first.truncated
    assert not first.terminated
    assert not recorder.streams[1].history[0].truncated


def test_interrupting_before_the_first_frame_leaves_nothing_to_sample():
    recorder = Recorder(num_envs=1, frames=20)
    recorder.interrupt(np.array([True]))
    recorder.start_ended()
    assert len(recorder.replay) == 0
    with pytest.raises(ValueError, match="sample: no env has a transition yet"):
        recorder.replay.sample(1)


def test_interrupting_before_the_first_start_does_nothing():
    recorder = Recorder(num_envs=1, frames=20, start=False)
    before = recorder.replay.chunk(None)[0]
    recorder.interrupt(np.array([True]))
    assert_same(recorder.replay.chunk(None)[0], before)


# --- Saving ----------------------------------------------------------------------------------------------------------


def restored(recorder: Recorder, chunks) -> Recorder:
    """The same record around a replay that was loaded, with the same state of its random numbers."""
    twin = copy.copy(recorder)
    twin.replay, twin.streams = recorder.empty_replay(seed=99), copy.deepcopy(recorder.streams)
    twin.replay.load_chunks(iter(chunks))
    twin.replay.rng.bit_generator.state = recorder.replay.rng.bit_generator.state
    return twin


@settings(max_examples=40)
@given(
    num_envs=st.integers(1, 3),
    frames=st.integers(3, 9),
    pauses=st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=1, max_size=8),
    ends=st.sampled_from([0.0, 0.3]),
    dicts=st.booleans(),
)
def test_chunks_bring_back_a_replay_that_samples_and_goes_on_bit_for_bit(num_envs, frames, pauses, ends, dicts):
    recorder = Recorder(num_envs, frames, dicts=dicts)
    chunks, cursor = [], None
    for save, (steps, interrupted) in enumerate(pauses):
        recorder.play(steps, seed=save, ends=ends)
        arrays, cursor = recorder.replay.chunk(cursor)
        chunks = [chunk for chunk in chunks if not recorder.replay.is_stale(chunk[1])] + [(arrays, cursor)]
        if interrupted:  # as after a resume that could not bring the env's own state back: the save is older
            recorder.interrupt(np.arange(num_envs) % 2 == 0)
            recorder.start_ended()
    arrays, cursor = recorder.replay.chunk(cursor)
    twin = restored(recorder, [*chunks, (arrays, cursor)])
    for round_ in range(2):
        recorder.play(3, seed=50 + round_)
        twin.play(3, seed=50 + round_)
        sample = recorder.replay.sample(12, 4, follow="episode", train_on="all")
        assert_same_windows(sample, twin.replay.sample(12, 4, follow="episode", train_on="all"))
        check_windows(twin, sample, 12, 4, "episode", "all")


def test_a_chunk_holds_what_is_new():
    recorder = Recorder(num_envs=2, frames=100)
    recorder.play(60, ends=0)
    first, cursor = recorder.replay.chunk(None)
    recorder.play(5, ends=0)
    second, _ = recorder.replay.chunk(cursor)
    assert len(first["reward"]) == 2 * 61  # with the current observation
    assert len(second["reward"]) == 2 * 7  # and, again, the transition that was the newest
    assert second["head"].tolist() == [65, 65]


def test_chunks_do_not_share_memory_with_the_replay():
    recorder = Recorder(num_envs=1, frames=5)
    recorder.play(4)
    arrays, _ = recorder.replay.chunk(None)
    before = copy.deepcopy(arrays)
    recorder.play(20)
    assert_same(arrays, before)


def test_dict_observations_survive_saving():
    space = spaces.Dict({"image": spaces.Box(0, 255, (2,), np.uint8), "state": spaces.Box(-1, 1, (1,))})
    replay, loaded = (SequenceReplay(space, ACTIONS, capacity=10, num_envs=1, seed=0) for _ in range(2))
    no = np.zeros(1, bool)
    replay.start({"image": np.zeros((1, 2)), "state": np.zeros((1, 1))})
    for number in range(1, 30):
        observation = {"image": np.full((1, 2), number), "state": np.full((1, 1), number / 64)}
        replay.add(np.ones((1, 2)), np.ones(1), no, no, observation, repeated=~no, discount=np.full(1, 0.5))
    arrays, cursor = replay.chunk(None)
    assert arrays["observation.image"].dtype == np.uint8
    loaded.load_chunks([(arrays, cursor)])
    assert_same_windows(replay.sample(20, 3), loaded.sample(20, 3))


def test_chunks_name_every_part_of_an_action():
    recorder = Recorder(num_envs=2, frames=6, dicts=True)
    recorder.play(5)
    arrays, _ = recorder.replay.chunk(None)
    parts = {name: arrays[name].dtype for name in arrays if name.startswith("action")}
    assert parts == {"action.action": np.float32, "action.log_probs": np.float32, "action.switch": np.int64}


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("action.switch", lambda array: None, r"chunk\['action.switch'\] must have dtype int64, got None"),
        ("action.switch", lambda array: array + 0.5, r"chunk\['action.switch'\] must have dtype int64, got"),
        ("action.switch", lambda array: array[:-1], r"chunk\['action.switch'\] must be numbers of shape"),
        ("action.log_probs", lambda array: array[:, :1], r"chunk\['action.log_probs'\] must be numbers of shape"),
        ("action.log_probs", lambda array: array * np.float32(np.nan), r"chunk\['action.log_probs'\] must be finite"),
        (
            "action.more",
            lambda array: np.zeros(1),
            r"chunk must hold \['action.action', 'action.log_probs', 'action.sw",
        ),
    ],
)
def test_a_damaged_part_of_an_action_is_named_and_changes_nothing(name, damage, message):
    recorder = Recorder(num_envs=2, frames=6, dicts=True)
    recorder.play(5)
    arrays, cursor = recorder.replay.chunk(None)
    damaged = {**arrays, name: damage(arrays.get(name))}
    assert_refused(recorder, lambda: recorder.replay.load_chunks([(damaged, cursor)]), message)


@pytest.mark.parametrize("dicts", [True, False])
def test_chunks_of_other_actions_are_refused(dicts):
    recorder, other = (Recorder(num_envs=1, frames=6, dicts=each) for each in (dicts, not dicts))
    other.play(3)
    assert_refused(recorder, lambda: recorder.replay.load_chunks([other.replay.chunk(None)]), "chunk must hold .*, got")


def test_a_cursor_is_stale_once_every_stream_has_overwritten_what_came_before_it():
    recorder = Recorder(num_envs=2, frames=6)
    recorder.play(3, ends=0)
    _, cursor = recorder.replay.chunk(None)
    stale = []
    for _ in range(9):
        recorder.play(1, ends=0)
        stale.append(recorder.replay.is_stale(cursor))
    # The slot under the cursor is the last one saved; a ring of 6 frames has 7 slots.
    assert stale == [False] * 6 + [True] * 3


def test_a_cursor_is_not_stale_while_one_stream_still_holds_it():
    recorder = Recorder(num_envs=2, frames=6)
    recorder.play(1, ends=0)
    _, cursor = recorder.replay.chunk(None)
    for _ in range(6):
        recorder.step([(True, TERMINATE), (True, GO)])  # env 0 takes two slots per episode
    assert not recorder.replay.is_stale(cursor)
    recorder.step([(True, GO), (True, GO)])
    assert recorder.replay.is_stale(cursor)


def test_chunks_of_another_number_of_streams_are_refused():
    recorder = Recorder(num_envs=2, frames=6)
    chunk = recorder.replay.chunk(None)
    with pytest.raises(ValueError, match="chunk holds 2 streams, this replay has 3"):
        Recorder(num_envs=3, frames=6).empty_replay().load_chunks([chunk])


# --- Misuse ----------------------------------------------------------------------------------------------------------


def observed_of(num_envs: int, number: float = 7.0) -> dict[str, np.ndarray]:
    return {"observation": np.full((num_envs, 2), number), "prev_action": np.full((num_envs, 2), number)}


def frame_of(num_envs: int) -> dict[str, Any]:
    no, one = np.zeros(num_envs, bool), np.ones(num_envs)
    told = {"action": np.ones((num_envs, 2)), "reward": one, "terminated": no, "truncated": no}
    return {**told, "next_observation": observed_of(num_envs), "repeated": no, "discount": one}


def assert_refused(recorder: Recorder, call, message: str) -> None:
    before = recorder.replay.chunk(None)[0]
    with pytest.raises(ValueError, match=message):
        call()
    assert_same(recorder.replay.chunk(None)[0], before)


def test_add_needs_every_env_to_have_started():
    recorder = Recorder(num_envs=2, frames=5, start=False)
    assert_refused(recorder, lambda: recorder.replay.add(**frame_of(2)), "add: every env must have been started")
    recorder.replay.start(observed_of(2), np.array([True, False]))
    assert_refused(recorder, lambda: recorder.replay.add(**frame_of(2)), "add: every env must have been started")


@pytest.mark.parametrize("ending", [TERMINATE, TRUNCATE])
def test_add_refuses_an_episode_that_has_ended(ending):
    recorder = Recorder(num_envs=2, frames=5)
    recorder.step([(True, GO), (True, ending)])
    assert_refused(recorder, lambda: recorder.replay.add(**frame_of(2)), "started and not ended")


@pytest.mark.parametrize(
    ("name", "bad", "message"),
    [
        ("action", np.ones((1, 2)), r"action must be numbers of shape \(2, 2\), got"),  # NumPy would fill every env
        ("action", np.full((2, 2), np.nan), "action must be finite numbers, as float32 too, got"),
        ("repeated", np.array([0, 1]), "repeated must be 2 booleans, got"),
        ("reward", np.array([0.0, np.inf]), "reward must be finite numbers, as float32 too, got"),
        ("reward", 1.0, r"reward must be numbers of shape \(2,\), got 1.0"),
        ("discount", np.array([0.0, np.nan]), "discount must be finite numbers, as float32 too, got"),
        ("discount", 0.99, r"discount must be numbers of shape \(2,\), got 0.99"),
        ("terminated", np.zeros((2, 1), bool), "terminated must be 2 booleans, got"),
        ("truncated", None, "truncated must be 2 booleans, got None"),
        (
            "next_observation",
            observed_of(2, np.nan),
            "next_observation: observation must be finite numbers, as float32 too, got",
        ),
        ("next_observation", np.ones((2, 2)), "next_observation must be a dict of .*, got"),
        ("next_observation", {"observation": np.ones((2, 2))}, "next_observation must be a dict of .*, got"),
    ],
)
def test_add_names_what_it_cannot_store(name, bad, message):
    recorder = Recorder(num_envs=2, frames=5)
    recorder.play(3, ends=0)
    frame = {**frame_of(2), name: bad}
    assert_refused(recorder, lambda: recorder.replay.add(**frame), message)


GOOD_ACTION = {"action": np.ones((2, 2)), "switch": np.ones(2, int), "log_probs": np.zeros((2, 2))}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.ones((2, 2)), "action must be a dict of .*, got"),
        ({"action": np.ones((2, 2))}, "action must be a dict of .*, got"),
        ({**GOOD_ACTION, "more": np.ones(2)}, "action must be a dict of .*, got"),
        ({**GOOD_ACTION, "action": np.ones((2, 3))}, r"action: action must be numbers of shape \(2, 2\), got"),
        ({**GOOD_ACTION, "switch": np.ones((2, 1), int)}, r"action: switch must be numbers of shape \(2,\), got"),
        ({**GOOD_ACTION, "switch": np.full(2, 0.5)}, "action: switch must be integers that int64 can hold, got"),
        ({**GOOD_ACTION, "log_probs": np.zeros(2)}, r"action: log_probs must be numbers of shape \(2, 2\), got"),
        (
            {**GOOD_ACTION, "log_probs": np.full((2, 2), -np.inf)},
            "action: log_probs must be finite numbers, as float32",
        ),
    ],
)
def test_add_names_the_part_of_an_action_that_it_cannot_store(bad, message):
    recorder = Recorder(num_envs=2, frames=5, dicts=True)
    recorder.play(3, ends=0)
    assert_refused(recorder, lambda: recorder.replay.add(**{**frame_of(2), "action": bad}), message)
    recorder.replay.add(**{**frame_of(2), "action": GOOD_ACTION})


def test_a_box_takes_no_dict():
    replay = SequenceReplay(spaces.Box(-9, 9, (2,)), ACTIONS, capacity=10, num_envs=1, seed=0)
    with pytest.raises(ValueError, match="observation must be numbers of shape"):
        replay.start({"state": np.ones((1, 2))})
    with pytest.raises(ValueError, match="observation must be finite numbers, as float32 too, got"):
        replay.start(np.full((1, 2), np.nan))
    replay.start(np.ones((1, 2)))


def test_an_image_that_bytes_cannot_hold_is_refused():
    space = spaces.Dict({"image": spaces.Box(0, 255, (2,), np.uint8)})
    replay = SequenceReplay(space, ACTIONS, capacity=10, num_envs=1, seed=0)
    for value in (256, -1, 0.5, np.nan):
        with pytest.raises(ValueError, match="observation: image must be integers that uint8 can hold, got"):
            replay.start({"image": np.full((1, 2), value)})
    replay.start({"image": np.full((1, 2), 255.0)})


def test_large_numbers_are_no_error():
    recorder = Recorder(num_envs=1, frames=5)
    frame = {**frame_of(1), "next_observation": observed_of(1, 1e30)}  # whose square is more than float32 can hold
    recorder.replay.add(**frame)


def test_start_refuses_an_episode_that_is_under_way():
    recorder = Recorder(num_envs=3, frames=5)
    again = lambda mask: lambda: recorder.replay.start(observed_of(3), mask)  # noqa: E731
    assert_refused(recorder, again(None), r"start: the episode of env \[0 1 2\] has not ended")
    recorder.step([(True, GO), (True, TERMINATE), (True, GO)])
    assert_refused(recorder, again(np.array([False, True, True])), r"start: the episode of env \[2\] has not ended")
    again(np.array([False, True, False]))()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"follow": "everything"}, "follow must be 'repeats' or 'episode', got 'everything'"),
        ({"train_on": "last"}, "train_on must be 'first' or 'all', got 'last'"),
    ],
)
def test_sample_names_bad_arguments(arguments, message):
    recorder = Recorder(num_envs=1, frames=5)
    recorder.play(3)
    with pytest.raises(ValueError, match=message):
        recorder.replay.sample(**{"batch_size": 4, **arguments})


def test_sampling_needs_a_transition():
    recorder = Recorder(num_envs=2, frames=5)
    assert_refused(recorder, lambda: recorder.replay.sample(4), "sample: no env has a transition yet")


@pytest.mark.parametrize(
    ("error", "arguments", "message"),
    [
        (ValueError, {"num_envs": 0}, "num_envs must be at least 1, got 0"),
        (ValueError, {"capacity": 5}, "capacity must be at least 3 frames per env, got 5 for 2 envs"),
        (TypeError, {"observation_space": spaces.Discrete(3)}, "must be a Box or a Dict of Boxes, got Discrete"),
        (
            TypeError,
            {"action_space": spaces.Discrete(3)},
            "action_space must be a Box or a Dict of Boxes, got Discrete",
        ),
        (
            TypeError,
            {"action_space": spaces.Dict(action=ACTIONS, switch=spaces.Discrete(2))},
            r"action_space must be a Box or a Dict of Boxes, got Dict\(",
        ),
        (
            TypeError,
            {"observation_space": spaces.Dict(a=spaces.Discrete(3))},
            r"Dict of Boxes, got Dict\(.a.: Discrete",
        ),
    ],
)
def test_bad_constructor_arguments_are_named(error, arguments, message):
    good = {"observation_space": OBSERVATIONS, "action_space": ACTIONS, "capacity": 20, "num_envs": 2, "seed": 0}
    with pytest.raises(error, match=message):
        SequenceReplay(**(good | arguments))


def test_a_replay_that_memory_cannot_hold_is_refused_before_it_is_built(monkeypatch):
    images = spaces.Dict(image=spaces.Box(0, 255, (96, 96, 3), np.uint8), speed=spaces.Box(0, 9, (2,)))
    arguments = {"observation_space": images, "action_space": ACTIONS, "capacity": 20, "num_envs": 2, "seed": 0}
    needed = SequenceReplay(**arguments).nbytes
    monkeypatch.setattr(replay_module, "available_memory", lambda: needed)
    SequenceReplay(**arguments)
    monkeypatch.setattr(replay_module, "available_memory", lambda: needed - 1)
    with pytest.raises(
        MemoryError, match=r"a replay of 20 frames \(--buffer-size\) needs 0\.0 GiB of memory, but 0\.0 GiB"
    ):
        SequenceReplay(**arguments)
    monkeypatch.setattr(replay_module, "available_memory", lambda: 16 * 2**30)
    with pytest.raises(MemoryError, match=r"a replay of 4000000 frames .* needs 103\.1 GiB of memory, but 16\.0 GiB"):
        SequenceReplay(**arguments | {"capacity": 4_000_000})


@pytest.mark.parametrize("train_on", ["first", "all"])
def test_the_ends_of_windows_are_the_next_states_of_their_last_transitions(train_on):
    """With short episodes, so that windows of the same length end in different rows."""
    replays = [short_episodes() for _ in range(2)]
    how = {"follow": "episode", "train_on": train_on}
    every, ends = (
        replay.sample(40, 4, look_at=look_at, **how) for replay, look_at in zip(replays, ("all", "ends"), strict=True)
    )
    assert len(set(every.valid.sum(0))) == 4
    assert ends.next_observation.shape == (40, 1)
    for k, b in np.argwhere(every.valid):
        last = every.valid[:, b].sum() - 1
        end = ends.next_observation[ends.next_of[k, b]]
        np.testing.assert_array_equal(end, every.next_observation[every.next_of[last, b]])
    for name in ("observation", "action", "trained", "reward", "discount", "valid", "index"):
        np.testing.assert_array_equal(getattr(every, name), getattr(ends, name))


def short_episodes() -> SequenceReplay:
    replay = SequenceReplay(spaces.Box(-1, 1, (1,)), spaces.Box(-1, 1, (1,)), capacity=60, num_envs=1, seed=0)
    replay.start(np.array([[0.0]]))
    for frame in range(1, 50):
        ended, no = np.array([frame % 5 == 0]), np.array([False])
        observation = np.array([[frame / 50]])
        replay.add(observation, no * 1.0, ended, no, observation, repeated=no, discount=np.array([0.9]))
        if ended:
            replay.start(observation + 0.001)
    return replay
