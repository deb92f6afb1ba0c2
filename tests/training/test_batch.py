"""A batch against a slow loop over the windows it was made of."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from taac_wrappers.training.batch import Batch
from taac_wrappers.training.replay import SequenceReplay, Windows
from taac_wrappers.training.structure import named

VECTOR, ACTIONS = spaces.Box(-np.inf, np.inf, (2,)), spaces.Box(-1e6, 1e6, (1,))
OBSERVATIONS = {"box": VECTOR, "dict": spaces.Dict({"observation": VECTOR, "counts": spaces.Box(0, 10**6, (3,), int)})}
EVERY_WAY = {
    "seed": st.integers(0, 10**6),
    "kind": st.sampled_from(list(OBSERVATIONS)),
    "num_envs": st.integers(1, 3),
    "batch_size": st.integers(1, 30),
    "window": st.integers(1, 5),
    "follow": st.sampled_from(["repeats", "episode"]),
    "train_on": st.sampled_from(["first", "all"]),
}


def random_windows(seed: int, kind: str, num_envs: int, batch_size: int, window: int, **how) -> Windows:
    """Of episodes that begin, repeat and end at random; every observation and every new action is one of its kind."""
    rng = np.random.default_rng(seed)
    replay = SequenceReplay(OBSERVATIONS[kind], ACTIONS, capacity=25 * num_envs, num_envs=num_envs, seed=seed)
    number, action = 0, np.zeros((num_envs, 1))

    def fresh(width: int) -> np.ndarray:
        nonlocal number
        number += num_envs * width
        return np.arange(number - num_envs * width, number).reshape(num_envs, width)

    def observation():
        return fresh(2) if kind == "box" else {"observation": fresh(2), "counts": fresh(3)}

    replay.start(observation())
    for _ in range(40):
        repeated, terminated, truncated = rng.random((3, num_envs)) < [[0.6], [0.15], [0.15]]
        action = np.where(repeated[:, None], action, fresh(1))
        results = fresh(1)[:, 0], terminated, truncated, observation()
        replay.add(action, *results, repeated=repeated, discount=rng.random(num_envs))
        if (ended := terminated | truncated).any():
            replay.start(observation(), ended)
    return replay.sample(batch_size, window, **how)


def transitions(windows: Windows) -> list[tuple[int, int]]:
    """Row and column of every transition, in the order of the next states: row by row."""
    length, batch_size = windows.reward.shape
    return [(k, b) for k in range(length) for b in range(batch_size) if windows.valid[k, b]]


@settings(max_examples=60)
@given(**EVERY_WAY)
def test_a_batch_holds_what_its_windows_hold(train_on, **how):
    windows = random_windows(**how, train_on=train_on)
    batch = Batch(windows, windows.reward * 2, torch.device("cpu"))
    places = transitions(windows)
    for name, count in (("observation", len(windows.action)), ("next_observation", len(places))):
        found, given = named(name, getattr(batch, name)), named(name, getattr(windows, name))
        assert found.keys() == given.keys()
        for entry in found:
            assert found[entry].dtype == torch.float32  # whatever it was stored as
            assert len(found[entry]) == count
            np.testing.assert_array_equal(found[entry], given[entry])
    np.testing.assert_array_equal(batch.action, windows.action)
    np.testing.assert_array_equal(batch.reward, windows.reward * 2)
    for name in ("discount", "terminated", "truncated", "repeated", "valid"):
        np.testing.assert_array_equal(getattr(batch, name), getattr(windows, name))
    assert len(batch.action) == (len(places) if train_on == "all" else how["batch_size"])


@settings(max_examples=60)
@given(**EVERY_WAY)
def test_values_of_next_states_find_their_transitions_and_back(train_on, **how):
    windows = random_windows(**how, train_on=train_on)
    batch = Batch(windows, windows.reward, torch.device("cpu"))
    places = transitions(windows)
    values = torch.arange(len(places)) + 1.0
    rows = batch.to_rows(values)
    assert rows.shape == batch.reward.shape == (how["window"], how["batch_size"])
    for number, place in enumerate(places):
        assert rows[place] == values[number]
    trained = places if train_on == "all" else places[: how["batch_size"]]
    assert batch.of_trained(rows).tolist() == [rows[place].item() for place in trained]
    # What was trained on stands in the order of the transitions themselves.
    np.testing.assert_array_equal(
        batch.of_trained(batch.reward), windows.reward[windows.valid] if train_on == "all" else windows.reward[0]
    )


@settings(max_examples=60)
@given(**EVERY_WAY)
def test_a_window_ends_where_nothing_more_is_recorded(**how):
    windows = random_windows(**how)
    ends = Batch(windows, windows.reward, torch.device("cpu")).window_ends
    length = how["window"]
    for k, b in transitions(windows):
        assert ends[k, b] == (k + 1 == length or not windows.valid[k + 1, b])


def test_a_batch_by_hand():
    """Two windows of up to three transitions: the first one has two of them, the second one has all."""
    valid = np.array([[True, True], [True, True], [False, True]])
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    windows = Windows(
        observation=np.array([[1.0], [2.0]], np.float32),
        action=np.array([[0.1], [0.2]], np.float32),
        trained=np.array([0, 1]),
        next_observation=np.arange(5, dtype=np.uint8)[:, None],
        next_action={"action": np.zeros((5, 1), np.float32), "repeat": np.arange(5)},
        reward=rows,
        discount=np.full((3, 2), 0.5, np.float32),
        terminated=np.zeros((3, 2), bool),
        truncated=np.zeros((3, 2), bool),
        repeated=np.array([[True, True], [False, True], [False, False]]),
        valid=valid,
        next_of=np.array([[0, 1], [2, 3], [3, 4]]),
        index=np.array([0, 1, 2, 3, 5]),
    )
    batch = Batch(windows, rows, torch.device("cpu"))
    values = batch.to_rows(torch.tensor([10.0, 11.0, 12.0, 13.0, 14.0]))
    assert values[torch.from_numpy(valid)].tolist() == [10.0, 11.0, 12.0, 13.0, 14.0]
    assert batch.of_trained(values).tolist() == [10.0, 11.0]
    assert batch.window_ends.tolist() == [[False, False], [True, False], [True, True]]
    assert batch.next_observation.dtype == torch.float32
    assert batch.next_action["repeat"].tolist() == [0, 1, 2, 3, 4]
    assert batch.next_action["repeat"].dtype == torch.int64


@pytest.mark.parametrize("follow", ["repeats", "episode"])
def test_random_windows_hold_every_case(follow):
    """What the loops above compare is there to be seen."""
    windows = random_windows(0, "dict", 2, 30, 4, follow=follow, train_on="first")
    assert windows.valid.sum() > 30 + 10
    assert not windows.valid.all()
    assert 0 < windows.repeated.sum() < windows.valid.sum()
    ended = windows.terminated | windows.truncated
    assert 0 < ended[0].sum() < 30
    assert len(np.unique(windows.discount[windows.valid])) > 10
