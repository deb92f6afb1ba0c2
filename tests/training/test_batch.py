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

OBSERVATIONS, ACTIONS = spaces.Box(-np.inf, np.inf, (2,)), spaces.Box(-1e6, 1e6, (1,))


def random_windows(seed: int, num_envs: int, batch_size: int, window: int, **how) -> Windows:
    """Of episodes that begin, repeat and end at random; every observation and every new action is one of its kind."""
    rng = np.random.default_rng(seed)
    replay = SequenceReplay(OBSERVATIONS, ACTIONS, capacity=25 * num_envs, num_envs=num_envs, seed=seed)
    number, action = 0, np.zeros((num_envs, 1))

    def fresh(width: int) -> np.ndarray:
        nonlocal number
        number += num_envs * width
        return np.arange(number - num_envs * width, number).reshape(num_envs, width)

    replay.start(fresh(2))
    for _ in range(40):
        switch, terminated, truncated = rng.random((3, num_envs)) < [[0.4], [0.15], [0.15]]
        action = np.where(switch[:, None], fresh(1), action)
        replay.add(action, switch, fresh(1)[:, 0], terminated, truncated, fresh(2))
        if (ended := terminated | truncated).any():
            replay.start(fresh(2), ended)
    return replay.sample(batch_size, window, **how)


def slow_states(windows: Windows, train_on: str) -> dict[str, list[tuple]]:
    """Deeper, next and first states as ``(observation, prev_action, flat position, repeated, ended)``."""
    states: dict[str, list[tuple]] = {"deeper": [], "next": [], "first": []}
    length, batch_size = windows.reward.shape
    node = 0
    for k in range(length):
        for b in range(batch_size):
            if windows.valid[k, b]:
                ended = windows.terminated[k, b] or windows.truncated[k, b]
                state = (windows.node_observation[node], windows.node_action[node], k * batch_size + b)
                kind = "next" if k == 0 or train_on == "all" else "deeper"
                states[kind].append((*state, windows.repeated[k, b], ended))
                node += 1
    for index in range(len(windows.action)):
        if windows.first[index]:
            states["first"].append((windows.observation[index], windows.prev_action[index], None, None, False))
    return states


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    num_envs=st.integers(1, 3),
    batch_size=st.integers(1, 30),
    window=st.integers(1, 5),
    follow=st.sampled_from(["repeats", "episode"]),
    train_on=st.sampled_from(["first", "all"]),
)
def test_a_batch_equals_a_loop_over_its_windows(seed, num_envs, batch_size, window, follow, train_on):
    windows = random_windows(seed, num_envs, batch_size, window, follow=follow, train_on=train_on)
    batch = Batch(windows, windows.reward * 2, torch.device("cpu"))
    states = slow_states(windows, train_on)
    first, trained, deeper = (len(states[kind]) for kind in ("first", "next", "deeper"))
    assert (batch.first, batch.acting, batch.trained, batch.nodes) == (
        first,
        first + trained,
        trained,
        trained + deeper,
    )

    everything = [*states["first"], *states["next"], *states["deeper"]]
    np.testing.assert_array_equal(batch.state_observation, [state[0] for state in everything])
    np.testing.assert_array_equal(batch.state_prev_action, [state[1] for state in everything])
    assert batch.state_observation.dtype == batch.state_prev_action.dtype == torch.float32
    weights = [0.0 if state[4] else 1.0 for state in everything[: batch.acting]]
    assert batch.acting_weight.tolist() == weights
    np.testing.assert_allclose(batch.acting_share, np.array(weights) / len(weights), rtol=1e-6)
    nodes = everything[batch.first :]
    assert batch.stops.tolist() == [number for number, state in enumerate(nodes) if not state[3]]

    np.testing.assert_array_equal(batch.observation, windows.observation)
    np.testing.assert_array_equal(batch.action, windows.action)
    np.testing.assert_array_equal(batch.reward, windows.reward * 2)
    for name in ("terminated", "truncated", "repeated", "valid"):
        np.testing.assert_array_equal(getattr(batch, name), getattr(windows, name))
    for k in range(window - 1):  # n-step targets go on where the window does; the operators never look beyond its end
        np.testing.assert_array_equal(batch.goes_on[k], windows.valid[k + 1])


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    batch_size=st.integers(1, 30),
    window=st.integers(1, 5),
    follow=st.sampled_from(["repeats", "episode"]),
    train_on=st.sampled_from(["first", "all"]),
)
def test_values_of_nodes_find_their_transitions_and_back(seed, batch_size, window, follow, train_on):
    windows = random_windows(seed, 2, batch_size, window, follow=follow, train_on=train_on)
    batch = Batch(windows, windows.reward, torch.device("cpu"))
    of_nodes, of_stops = torch.arange(batch.nodes) + 1.0, torch.arange(len(batch.stops)) + 1000.0
    values = torch.cat([of_nodes, of_stops])
    node_rows, stop_rows = batch.to_rows(values, batch.node_of), batch.to_rows(values, batch.stop_of)
    assert node_rows.shape == stop_rows.shape == (window, batch_size)
    states = slow_states(windows, train_on)
    stop = 0
    for node, (_, _, flat, repeated, _) in enumerate([*states["next"], *states["deeper"]]):
        assert node_rows.flatten()[flat] == of_nodes[node]
        if not repeated:
            assert stop_rows.flatten()[flat] == of_stops[stop]
            stop += 1
    assert stop == len(of_stops)
    assert batch.of_trained(node_rows).tolist() == of_nodes[: batch.trained].tolist()
    # What was trained on stands in the order of the transitions themselves.
    np.testing.assert_array_equal(
        batch.of_trained(batch.reward), windows.reward[windows.valid] if train_on == "all" else windows.reward[0]
    )


@pytest.mark.parametrize("follow", ["repeats", "episode"])
def test_random_windows_hold_every_case(follow):
    """What the loops above compare is there to be seen."""
    windows = random_windows(0, 2, 30, 4, follow=follow, train_on="first")
    batch = Batch(windows, windows.reward, torch.device("cpu"))
    assert batch.nodes > batch.trained + 10
    assert len(batch.acting_weight) > 30
    assert 0 < batch.acting_weight[-30:].sum() < 30
    assert 10 < len(batch.stops) < batch.nodes
    assert not windows.valid.all()
