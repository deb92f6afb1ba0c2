"""A replay under random legal and illegal calls: what it holds equals a plain list of frames, through saving and
loading too; what is illegal raises and changes nothing.
"""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from fuzz_tools import refused, some
from gymnasium import spaces
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from taac_wrappers.training.replay import SequenceReplay, Windows
from taac_wrappers.training.structure import mapped

# A number that float32 cannot hold is among the bad ones.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in cast")

ACTIONS = spaces.Box(np.array([-1e6, 0.5], np.float32), np.full(2, 1e6, np.float32))
INITIAL_ACTION = (0.0, 0.5)  # zeros, clipped into the space
NUMBERS = spaces.Box(-np.inf, np.inf, (2,))
CAMERA = spaces.Dict({"image": spaces.Box(0, 255, (2, 2), np.uint8), "state": spaces.Box(-1e9, 1e9, (1,), np.float64)})
BEFORE = spaces.Dict({"state": spaces.Box(-np.inf, np.inf, (1,)), "prev_action": ACTIONS})  # as TAAC sees it
NO_ACTIONS: Any = ()
LIKELY = spaces.Dict(  # what is recorded of an action may be more than itself
    {"action": ACTIONS, "number": spaces.Box(0, 10**9, (), np.int64), "log_prob": spaces.Box(-np.inf, np.inf, ())}
)


@dataclass
class Frame:
    """What happened in one frame. Observations are numbers, and no two are alike."""

    observation: int
    prev_action: tuple[float, float]
    action: tuple[float, float]
    repeated: bool
    reward: float
    discount: float
    terminated: bool
    truncated: bool
    next_observation: int


@dataclass
class Stream:
    """One env's history: its frames, and a None for each final observation that another episode has followed."""

    history: list[Frame | None] = field(default_factory=list)
    observation: int | None = None  # None: no episode is under way
    prev_action: tuple[float, float] = INITIAL_ACTION
    first: bool = True

    def start(self, number: int) -> None:
        if self.history and self.history[-1] is not None:
            self.history.append(None)
        self.observation, self.prev_action, self.first = number, INITIAL_ACTION, True

    def add(self, number: int, repeated: bool, end: str) -> Frame:
        action = self.prev_action if repeated else (float(number), number + 0.5)
        ends = end in ("terminated", "both"), end in ("truncated", "both")
        assert self.observation is not None
        reward, discount = 0.25 * number, 0.5 ** (number % 4)
        frame = Frame(self.observation, self.prev_action, action, repeated, reward, discount, *ends, number)
        self.history.append(frame)
        self.observation, self.prev_action, self.first = None if any(ends) else number, action, False
        return frame

    def interrupt(self) -> None:
        if self.observation is not None and not self.first:
            self.history[-1].truncated = True  # type: ignore[union-attr]
        self.observation = None

    def window(self, start: int, length: int, follow: str, kept: int) -> list[Frame]:
        """The frames that a window from this observation on must hold."""
        places = self.history[-kept:]
        begin = next(i for i, place in enumerate(places) if place is not None and place.observation == start)
        window: list[Any] = [places[begin]]
        for place in places[begin + 1 : begin + length]:
            ended = window[-1].terminated or window[-1].truncated
            if ended or (follow == "repeats" and not place.repeated):  # type: ignore[union-attr]
                break
            window.append(place)
        return window


def bad_rows(good: np.ndarray) -> list[Any]:
    """Arrays like ``good`` that may not be stored in its place."""
    bad: list[Any] = [None, "rows", good[:, None], good[1:], np.append(good, good, axis=0), good.astype(complex)]
    bad += [good.astype(object), good.astype(str), good.flat[0], {"rows": good}]
    if len(good) > 1:
        bad.append(good[:1])  # NumPy would write it into every env
    unfit = [256, -1, 0.5, math.nan] if good.dtype == np.uint8 else [math.nan, math.inf, -math.inf, 1e300]
    if good.dtype == np.int64:
        unfit.append(0.5)
    for value in unfit:
        wide = good.astype(np.float64)
        wide[..., -1] = value  # in every row: `start` looks at some of them only
        bad.append(wide)
    return bad


def bad_flags(count: int) -> list[Any]:
    good = np.ones(count, bool)
    bad: list[Any] = [None, 1, True, "mask", good.astype(int), good.astype(float), good.astype(object)]
    return [*bad, good[1:], np.append(good, True), good[:, None], np.ones((count, count + 1), bool), [1] * count]


def bad_structures(good: Any) -> list[Any]:
    if not isinstance(good, dict):
        return [*bad_rows(good), {"observation": good}]
    one_bad = [{**good, key: bad} for key in good for bad in bad_rows(good[key])]
    name, first = next(iter(good.items()))
    return [*one_bad, {name: first}, {**good, "more": first}, first, None]


BAD_SAMPLES: list[dict[str, Any]] = [
    *({"batch_size": bad} for bad in (0, -1, 2.5, 4.0, "4", None, True, [4], math.nan)),
    *({"window": bad} for bad in (0, -1, 2.5, 2.0, "2", None, True, [2])),
    *({"follow": bad} for bad in ("everything", None, 1, "")),
    *({"train_on": bad} for bad in ("last", None, 0, "")),
]


class ReplayMachine(RuleBasedStateMachine):
    @initialize(
        data=st.data(),
        num_envs=st.integers(1, 3),
        kept=st.integers(3, 7),
        space=st.sampled_from([NUMBERS, CAMERA, BEFORE]),
        action_space=st.sampled_from([ACTIONS, LIKELY]),
        seed=st.integers(0, 9),
        begins=st.integers(0, 3),
    )
    def build(self, data, num_envs, kept, space, action_space, seed, begins):
        self.space, self.action_space, self.num_envs, self.kept = space, action_space, num_envs, kept
        self.replay = self.empty(seed, spare=data.draw(st.integers(0, num_envs - 1), label="spare"))
        self.streams = [Stream() for _ in range(num_envs)]
        self.number = 0
        self.chunks: list[Any] = []
        for end in ["", "truncated", ""][:begins]:  # if none, what comes first is up to the rules
            self.add([(False, end)] * num_envs, np.float32, goes_on=True)

    def empty(self, seed: int, spare: int = 0) -> SequenceReplay:
        capacity = self.kept * self.num_envs + spare  # what is left over by the division is not used
        return SequenceReplay(self.space, self.action_space, capacity=capacity, num_envs=self.num_envs, seed=seed)

    def fresh(self) -> int:
        self.number += 1
        return self.number

    def shown(self, numbers: Any, dtype: Any = np.float32, prev_actions: Any = NO_ACTIONS) -> Any:
        """The observations of these numbers, after these actions."""
        numbers = np.asarray(numbers, np.float64)
        if self.space is NUMBERS:
            return np.stack([numbers, -numbers], axis=-1).astype(dtype)
        if self.space is BEFORE:
            before = np.array(prev_actions or [INITIAL_ACTION] * len(numbers), dtype)
            return {"state": numbers[:, None].astype(dtype), "prev_action": before}
        image = np.broadcast_to((numbers % 251)[:, None, None], (len(numbers), 2, 2))
        return {"image": image.astype(np.uint8), "state": numbers[:, None].astype(dtype)}

    def recorded(self, frames: list[Frame], dtype: Any = np.float32) -> Any:
        """What is recorded of the actions of these frames."""
        action = np.array([frame.action for frame in frames], dtype).reshape(-1, 2)
        if self.action_space is ACTIONS:
            return action
        number = np.array([frame.next_observation for frame in frames], np.int64)
        return {"action": action, "number": number, "log_prob": (-0.5 * number).astype(dtype)}

    @property
    def waits(self) -> list[bool]:
        """Which envs have no episode under way."""
        return [stream.observation is None for stream in self.streams]

    # Legal calls

    @precondition(lambda self: any(self.waits))
    @rule(all_of_them=st.booleans(), some=st.lists(st.booleans(), min_size=3, max_size=3))
    def start(self, all_of_them, some):
        self.start_those(np.array(self.waits) & (all_of_them | np.array(some[: self.num_envs])))

    def start_those(self, mask: np.ndarray) -> None:
        numbers = np.array([self.fresh() if each else math.nan for each in mask])
        if self.space is CAMERA:
            numbers = np.nan_to_num(numbers)  # uint8 knows no nan
        self.replay.start(self.shown(numbers), None if mask.all() else mask)
        for env in np.flatnonzero(mask):
            self.streams[env].start(int(numbers[env]))

    @rule(
        kinds=st.lists(
            st.tuples(st.booleans(), st.sampled_from(["", "", "", "terminated", "truncated", "both"])),
            min_size=3,
            max_size=15,
        ),
        dtype=st.sampled_from([np.float32, np.float64]),
        goes_on=st.booleans(),
    )
    def add(self, kinds, dtype, goes_on):
        """Some frames, into the next episodes too."""
        for begin in range(0, len(kinds) - self.num_envs + 1, self.num_envs):
            if any(self.waits):
                if begin and not goes_on:
                    break
                self.start_those(np.array(self.waits))
            self.replay.add(**self.frame(kinds[begin : begin + self.num_envs], dtype))

    def frame(self, kinds: Any, dtype: Any) -> dict[str, Any]:
        """The arguments of `add` for one frame in every env, which the record takes in."""
        frames = [stream.add(self.fresh(), *kind) for stream, kind in zip(self.streams, kinds, strict=True)]

        def column(name: str, dtype: Any = None) -> np.ndarray:
            return np.array([getattr(frame, name) for frame in frames], dtype)

        following = self.shown(column("next_observation"), dtype, [frame.action for frame in frames])
        numbers = {name: column(name, dtype) for name in ("reward", "discount")}
        flags = {name: column(name) for name in ("terminated", "truncated", "repeated")}
        return {"action": self.recorded(frames, dtype), **numbers, **flags, "next_observation": following}

    @rule(mask=st.lists(st.booleans(), min_size=3, max_size=3))
    def interrupt(self, mask):
        mask = mask[: self.num_envs]
        self.replay.interrupt(np.array(mask))
        for stream, interrupted in zip(self.streams, mask, strict=True):
            if interrupted:
                stream.interrupt()

    @precondition(lambda self: self.has_frames)
    @rule(
        batch=st.integers(1, 9),
        length=st.integers(1, 5),
        follow=st.sampled_from(["repeats", "episode"]),
        train_on=st.sampled_from(["first", "all"]),
    )
    def sample(self, batch, length, follow, train_on):
        windows = self.replay.sample(batch, length, follow=follow, train_on=train_on)
        self.check(windows, batch, length, follow, train_on)

    @rule()
    def save(self):
        chunk = self.replay.chunk(self.chunks[-1][1] if self.chunks else None)
        self.chunks = [each for each in self.chunks if not self.replay.is_stale(each[1])] + [deepcopy(chunk)]

    @precondition(lambda self: self.chunks)
    @rule()
    def load(self):
        """From here on the loaded replay takes the place of the other one."""
        self.save()
        loaded = self.empty(seed=99)
        loaded.load_chunks(deepcopy(self.chunks))
        loaded.rng.bit_generator.state = self.replay.rng.bit_generator.state
        assert_same_arrays(loaded.chunk(None)[0], self.replay.chunk(None)[0])
        self.replay = loaded

    # Illegal calls

    @rule(data=st.data(), how=st.sampled_from(["bad_add", "bad_start", "bad_mask", "bad_sample", "bad_cursor"]))
    def misuse(self, data, how):
        getattr(self, how)(data)

    @rule(data=st.data(), how=st.sampled_from(["bad_load", "load_with_a_gap"]))
    def misload(self, data, how):
        getattr(self, how)(data)

    def bad_add(self, data):
        arguments = self.some_frame(data.draw(st.sampled_from([np.float32, np.float64])))
        name = data.draw(st.sampled_from(sorted(arguments)), label="argument")
        if any(self.waits):
            with refused(self.replay, says="every env must have been started"):
                self.replay.add(**arguments)
        if name in ("terminated", "truncated", "repeated"):
            choices = bad_flags(self.num_envs)
        else:
            choices = (bad_structures if name in ("action", "next_observation") else bad_rows)(arguments[name])
        says = rf"{name}(: \w+)? must .*got"
        says = "every env must have been started" if any(self.waits) else says
        for bad in some(data, choices):
            with refused(self.replay, says=says):
                self.replay.add(**{**arguments, name: bad})

    def some_frame(self, dtype: Any) -> dict[str, Any]:
        count = self.num_envs
        action = self.recorded([Frame(7, (0, 0), (1, 1), False, 0, 0, False, False, 7)] * count, dtype)
        numbers = {"action": action, "reward": np.ones(count, dtype), "discount": np.ones(count)}
        flags = dict.fromkeys(("terminated", "truncated", "repeated"), np.zeros(count, bool))
        return {**numbers, **flags, "next_observation": self.shown([7] * count, dtype)}

    def bad_start(self, data):
        good = self.shown([7] * self.num_envs)
        if not any(self.waits):
            with refused(self.replay, says="start: the episode of env .* has not ended"):
                self.replay.start(good)
            return
        for bad in some(data, bad_structures(good)):
            with refused(self.replay, says="observation(: image|: state|: prev_action)? must .*got"):
                self.replay.start(bad, np.array(self.waits))

    def bad_mask(self, data):
        bad = data.draw(st.sampled_from(bad_flags(self.num_envs)[1:]), label="mask")
        with refused(self.replay, says="mask must .*got"):
            self.replay.start(self.shown([7] * self.num_envs), bad)
        with refused(self.replay, says="mask must .*got"):
            self.replay.interrupt(bad)
        with refused(self.replay, says="mask must .*got"):
            self.replay.interrupt(None)

    def bad_sample(self, data):
        if not self.has_frames:
            with refused(self.replay, says="sample: no env has a transition yet"):
                self.replay.sample(data.draw(st.integers(1, 9), label="batch"))
        bad = data.draw(st.sampled_from(BAD_SAMPLES), label="arguments")
        with refused(self.replay, says=f"{next(iter(bad))} must .*got"):
            self.replay.sample(**{"batch_size": 4, "window": 2, **bad})

    def bad_cursor(self, data):
        heads = self.replay.chunk(None)[1]["head"]
        newer = [heads[0] + 1, *heads[1:]]
        bad = [[-1] * self.num_envs, newer, [*heads, 0], heads[1:], heads[0], "head", None, [0.5] * self.num_envs]
        since = data.draw(st.sampled_from([*({"head": each} for each in bad), {}, 5, "head", heads]), label="since")
        with refused(self.replay, says="since must .*got"):
            self.replay.chunk(since)

    def bad_load(self, data):
        """A mutilated chunk, alone or after sound ones."""
        self.save()
        target = data.draw(st.sampled_from([self.empty(seed=1), self.replay]), label="into")
        for what in some(data, sorted(MUTILATIONS)):
            chunks = deepcopy(self.chunks)
            arrays = chunks[-1][0]
            name = data.draw(st.sampled_from(sorted(arrays)), label="array")
            if MUTILATIONS[what](arrays, name):
                with refused(target, says="chunk"):
                    target.load_chunks(iter(chunks))

    def load_with_a_gap(self, data):
        """Without one of the chunks, what was recorded before the gap is lost, and nothing else."""
        self.save()
        left_out = data.draw(st.integers(0, len(self.chunks) - 1), label="left out")
        chunks = self.chunks[:left_out] + self.chunks[left_out + 1 :]
        if left_out == len(self.chunks) - 1:
            return  # all of an earlier time
        loaded = self.empty(seed=1)
        loaded.load_chunks(deepcopy(chunks))
        starts = [
            {stream.history[slot].observation for slot in usable(chunks, env, self.kept) if stream.history[slot]}
            for env, stream in enumerate(self.streams)
        ]
        assert len(loaded) == sum(map(len, starts))
        if not len(loaded):
            with refused(loaded, says="sample: no env has a transition yet"):
                loaded.sample(1)
            return
        assert set(self.numbers(loaded.sample(20))) <= set().union(*starts)

    # What holds at all times

    @property
    def has_frames(self) -> bool:
        return all(stream.history for stream in self.streams)

    @invariant()
    def length_is_that_of_the_record(self):
        if hasattr(self, "streams"):
            kept = [place for stream in self.streams for place in stream.history[-self.kept :]]
            assert len(self.replay) == sum(place is not None for place in kept)

    def numbers(self, windows: Windows) -> list[int]:
        """Of the observations of a sample."""
        drawn = windows.observation if self.space is NUMBERS else windows.observation["state"]
        return drawn[:, 0].astype(int).tolist()

    def check(self, windows: Windows, batch: int, length: int, follow: str, train_on: str) -> None:
        """Every field of a sample against the record."""
        owner = {
            place.observation: stream for stream in self.streams for place in stream.history[-self.kept :] if place
        }
        expected = [owner[n].window(n, length, follow, self.kept) for n in self.numbers(windows)[:batch]]
        self.check_shares([owner[window[0].observation] for window in expected])

        def matrix(value: Any, dtype: Any) -> np.ndarray:
            rows = [[value(window, k) if k < len(window) else 0 for window in expected] for k in range(length)]
            return np.array(rows, dtype)

        def column(frames: list[Frame], name: str, dtype: Any) -> np.ndarray:
            return np.array([getattr(frame, name) for frame in frames], dtype)

        valid = matrix(lambda window, k: True, bool)
        inside = [expected[b][k] for k in range(length) for b in range(batch) if valid[k, b]]
        trained = inside if train_on == "all" else inside[:batch]
        before, executed = [frame.prev_action for frame in trained], [frame.action for frame in inside]
        wanted = Windows(
            observation=self.shown(column(trained, "observation", float), prev_actions=before),
            action=self.recorded(trained),
            trained=np.flatnonzero(valid)[: len(trained)],
            next_action=windows.next_action,  # is looked at below
            next_observation=self.shown(column(inside, "next_observation", float), prev_actions=executed),
            reward=matrix(lambda window, k: window[k].reward, np.float32),
            discount=matrix(lambda window, k: window[k].discount, np.float32),
            terminated=matrix(lambda window, k: window[k].terminated, bool),
            truncated=matrix(lambda window, k: window[k].truncated, bool),
            repeated=matrix(lambda window, k: k + 1 < len(window) and window[k + 1].repeated, bool),
            valid=valid,
            next_of=(valid.cumsum() - 1).reshape(valid.shape),
            index=np.flatnonzero(valid),
        )
        assert_same_arrays(vars(windows), vars(wanted))
        cells = [(k, b) for k in range(length) for b in range(batch) if valid[k, b]]
        followed = [number for number, (k, b) in enumerate(cells) if k + 1 < len(expected[b])]
        recorded = mapped(lambda part: part[followed], windows.next_action)
        following = self.recorded([expected[b][k + 1] for k, b in (cells[number] for number in followed)])
        assert_same_arrays({"action": recorded}, {"action": following})

    def check_shares(self, owners: list[Stream]) -> None:
        """Every env gives as many windows as the others, up to one."""
        shares = [sum(owner is stream for owner in owners) for stream in self.streams]
        assert max(shares) - min(shares) <= 1


def assert_same_arrays(left: dict[str, Any], right: dict[str, Any]) -> None:
    """Equal to the bit, in shapes, dtypes and nested dicts too."""
    assert left.keys() == right.keys()
    for key, value in left.items():
        if isinstance(value, dict):
            assert_same_arrays(value, right[key])
        else:
            assert (value.dtype, value.shape) == (right[key].dtype, right[key].shape), key
            assert np.array_equal(value, right[key]), key


def usable(chunks: list[Any], env: int, kept: int) -> range:
    """The slots whose transition is in the chunks without a gap after them, found one by one."""
    saved_at: dict[int, int] = {}  # the head at the time when a slot was last saved
    for arrays, _ in chunks:
        saved_at |= dict.fromkeys(range(arrays["from"][env], arrays["head"][env] + 1), arrays["head"][env])
    head = first = int(chunks[-1][0]["head"][env])
    while saved_at.get(first - 1, -1) > first - 1:  # the slot at a head has an observation, but no transition yet
        first -= 1
    return range(max(first, head - kept), head)


# --- Ways to mutilate a chunk: each changes the arrays, or returns False if it cannot be done to this one -----------


def _missing(arrays, name):
    return arrays.pop(name) is not None


def _surplus(arrays, name):
    arrays["more"] = arrays[name]
    return True


def _short(arrays, name):
    arrays[name] = arrays[name][:-1]
    return True


def _long(arrays, name):
    arrays[name] = np.append(arrays[name], arrays[name][-1:], axis=0)
    return True


def _deep(arrays, name):
    arrays[name] = arrays[name][..., None]
    return True


def _text(arrays, name):
    arrays[name] = arrays[name].astype(str)
    return True


def _none(arrays, name):
    arrays[name] = None
    return True


def _not_finite(arrays, name):
    arrays[name] = arrays[name].astype(np.float64)
    arrays[name].flat[0] = math.nan
    return True


def _later_head(arrays, name):
    arrays["head"] = arrays["head"] + 1
    return True


def _negative_from(arrays, name):
    arrays["from"] = arrays["from"] - arrays["from"].max() - 1
    return True


def _unknown_flag(arrays, name):
    arrays["flags"] = arrays["flags"] | np.uint8(32)
    return True


def _all_final(arrays, name):
    """Sampling would look for a transition forever."""
    arrays["flags"] = np.full_like(arrays["flags"], 2)
    return bool(arrays["head"].any())


def _no_flags(arrays, name):
    """Windows would run from one episode into the next. It shows where the first slot of all is no start."""
    arrays["flags"] = np.zeros_like(arrays["flags"])
    return bool(arrays["from"][0] == 0 and arrays["head"][0] > 0)


def _never_started(arrays, name):
    arrays["started"] = np.zeros_like(arrays["started"])
    return bool(arrays["head"].all() and not (arrays["flags"][-1] & 1) and arrays["head"][-1])


MUTILATIONS = {
    function.__name__: function
    for function in (
        *(_missing, _surplus, _short, _long, _deep, _text, _none, _not_finite),
        *(_later_head, _negative_from, _unknown_flag, _all_final, _no_flags, _never_started),
    )
}

TestReplay = ReplayMachine.TestCase


def test_a_chunk_of_something_else_is_refused():
    replay = SequenceReplay(NUMBERS, ACTIONS, capacity=9, num_envs=1, seed=0)
    for bad in ([5], [(None, {})], [([], {})], 5, [({}, {})]):
        with refused(replay, says="chunk"):
            replay.load_chunks(bad)


def test_chunks_may_come_as_an_iterator_and_may_be_none():
    replay = SequenceReplay(NUMBERS, ACTIONS, capacity=9, num_envs=1, seed=0)
    replay.start(np.zeros((1, 2)))
    before = replay.chunk(None)[0]
    replay.load_chunks(iter([]))
    assert_same_arrays(replay.chunk(None)[0], before)


def test_the_record_itself():
    """By hand: two frames, an end, and one frame of the next episode, of which the last three places are kept."""
    stream = Stream()
    stream.start(1)
    for number, repeated, end in [(2, False, ""), (3, True, "truncated")]:
        stream.add(number, repeated, end)
    stream.start(4)
    stream.add(5, False, "")
    assert [frame.observation for frame in stream.window(1, 4, "repeats", 9)] == [1, 2]
    assert [frame.observation for frame in stream.window(4, 4, "episode", 3)] == [4]
    assert stream.history[2] is None
    with pytest.raises(StopIteration):
        stream.window(1, 4, "episode", 3)
