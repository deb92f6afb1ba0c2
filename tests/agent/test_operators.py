"""TD operators and entropy targets, by hand, by enumeration, and by their fixed points on a tabular MDP."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from taac_wrappers.agent.operators import (
    TD_MODES,
    binary_entropy,
    compare_through,
    continuous_entropy_target,
    discrete_entropy_target,
    n_step,
    retrace,
    switch_probability,
)

GAMMA = 0.5  # small powers of two: the targets below are exact


def column(*values) -> torch.Tensor:
    """One window, ``[N, 1]``."""
    return torch.tensor(values, dtype=torch.bool if isinstance(values[0], bool) else torch.float64).reshape(-1, 1)


def window(rewards, *, terminated=(), truncated=(), repeated=()) -> dict[str, torch.Tensor]:
    """One window; the flags are given by the rows in which they are set."""
    rows = range(len(rewards))
    flags = {"terminated": terminated, "truncated": truncated, "repeated": repeated}
    return {"reward": column(*rewards)} | {name: column(*(k in set_in for k in rows)) for name, set_in in flags.items()}


def targets(recorded: dict, beta, q_repeat, q_new, mode="expected", generator=None) -> list[float]:
    values = {"beta": column(*beta), "q_repeat": column(*q_repeat), "q_new": column(*q_new)}
    return compare_through(**recorded, **values, gamma=GAMMA, mode=mode, generator=generator).flatten().tolist()


def random_windows(rng: np.random.Generator, rows: int, columns: int) -> dict[str, torch.Tensor]:
    """Inputs of compare_through with ends of both kinds anywhere."""
    shape = (rows, columns)
    arrays = {
        "reward": rng.normal(size=shape),
        "terminated": rng.random(shape) < 0.15,
        "truncated": rng.random(shape) < 0.15,
        "repeated": rng.random(shape) < 0.7,
        "beta": rng.random(shape),
        "q_repeat": rng.normal(size=shape),
        "q_new": rng.normal(size=shape),
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


@pytest.fixture
def force_coins(monkeypatch):
    """Decide every b~ that the sampling modes draw."""
    return lambda coins: monkeypatch.setattr(torch, "bernoulli", lambda beta, *, generator=None: coins.to(beta))


# --- compare_through, by hand ----------------------------------------------------------------------------------------


def test_expected_follows_the_record_where_the_behaviour_repeated():
    recorded = window([1.0, 2.0, 3.0], repeated=[0, 1])
    # y2 = 3 + (4/4 + 3/4 * 8) / 2, y1 = 2 + (4/2 + y2/2) / 2, y0 = 1 + (4/4 + 3/4 * y1) / 2
    assert targets(recorded, [0.25, 0.5, 0.25], [9.0, 9.0, 8.0], [4.0, 4.0, 4.0]) == [3.234375, 4.625, 6.5]


def test_expected_values_repeating_where_the_behaviour_switched():
    recorded = window([1.0, 2.0], repeated=[])
    # y1 = 2 + (1/4 * 4 + 3/4 * 8) / 2, y0 = 1 + (1/4 * 4 + 3/4 * 12) / 2: the second row plays no part in the first
    assert targets(recorded, [0.25, 0.25], [12.0, 8.0], [4.0, 4.0]) == [6.0, 5.5]


def test_a_terminal_state_is_worth_nothing_even_if_a_repeat_was_recorded():
    recorded = window([1.0, 2.0], terminated=[0], repeated=[0])
    assert targets(recorded, [0.25, 0.25], [12.0, 8.0], [4.0, 4.0]) == [1.0, 5.5]


def test_a_truncated_row_bootstraps_and_does_not_go_on():
    recorded = window([1.0, 2.0], truncated=[0], repeated=[0])
    assert targets(recorded, [0.25, 0.25], [12.0, 8.0], [4.0, 4.0]) == [6.0, 5.5]


def test_an_end_of_both_kinds_is_terminal():
    recorded = window([1.0, 2.0], terminated=[0], truncated=[0])
    assert targets(recorded, [0.25, 0.25], [12.0, 8.0], [4.0, 4.0])[0] == 1.0


def test_the_last_row_ignores_repeated():
    values = ([0.25, 0.25], [12.0, 8.0], [4.0, 4.0])
    assert targets(window([1.0, 2.0], repeated=[1]), *values) == targets(window([1.0, 2.0]), *values)


@pytest.mark.parametrize("mode", ["expected", "alf"])
def test_one_transition_is_the_one_step_target(mode):
    recorded = window([1.0], repeated=[0])
    assert targets(recorded, [0.25], [8.0], [4.0], mode) == [1.0 + 0.5 * (0.25 * 4.0 + 0.75 * 8.0)]


@pytest.mark.parametrize(("coin", "value"), [(1.0, 4.0), (0.0, 8.0)])
def test_one_sampled_transition_takes_the_value_of_what_was_drawn(coin, value):
    assert targets(window([1.0]), [coin], [8.0], [4.0], "sampled") == [1.0 + 0.5 * value]


@pytest.mark.parametrize(
    ("coins", "sampled", "alf"),
    # beta = 1/4 everywhere: the mixture is (4 + 3 * 12) / 4 = 10 in the first row and (4 + 3 * 8) / 4 = 7 in the last
    [
        ((0, 0), [1 + 0.5 * (2 + 0.5 * 8), 2 + 0.5 * 8], [1 + 0.5 * (2 + 0.5 * 7), 2 + 0.5 * 7]),
        ((0, 1), [1 + 0.5 * (2 + 0.5 * 4), 2 + 0.5 * 4], [1 + 0.5 * (2 + 0.5 * 7), 2 + 0.5 * 7]),
        ((1, 0), [1 + 0.5 * 4, 2 + 0.5 * 8], [1 + 0.5 * 10, 2 + 0.5 * 7]),
        ((1, 1), [1 + 0.5 * 4, 2 + 0.5 * 4], [1 + 0.5 * 10, 2 + 0.5 * 7]),
    ],
)
def test_sampled_and_alf_by_hand_for_every_coin(force_coins, coins, sampled, alf):
    force_coins(column(*map(float, coins)))
    recorded, values = window([1.0, 2.0], repeated=[0]), ([0.25, 0.25], [12.0, 8.0], [4.0, 4.0])
    assert targets(recorded, *values, "sampled") == sampled
    assert targets(recorded, *values, "alf") == alf


def test_sampled_stops_at_a_recorded_switch_with_the_value_of_repeating(force_coins):
    force_coins(column(0.0, 0.0))
    assert targets(window([1.0, 2.0]), [0.25, 0.25], [12.0, 8.0], [4.0, 4.0], "sampled") == [7.0, 6.0]


@pytest.mark.parametrize("mode", ["sampled", "alf"])
def test_coins_fall_with_probability_beta_and_come_from_the_generator(mode):
    columns = 20_000
    inputs = random_windows(np.random.default_rng(0), 1, 1)
    inputs = {name: tensor[:, :1].expand(2, columns) for name, tensor in inputs.items()}
    inputs |= {"repeated": inputs["repeated"] | True, "beta": torch.full((2, columns), 0.3, dtype=torch.float64)}
    inputs |= {name: torch.zeros(2, columns, dtype=torch.bool) for name in ("terminated", "truncated")}
    inputs |= {"q_new": torch.full((2, columns), 9.0, dtype=torch.float64)}

    def draw(seed):
        return compare_through(**inputs, gamma=GAMMA, mode=mode, generator=torch.Generator().manual_seed(seed))[0]

    first = draw(1)
    left = (first == first.max()).double().mean().item()  # only b~ = 1 in row 0 reaches the largest value there
    assert left == pytest.approx(0.3, abs=0.02)
    assert torch.equal(first, draw(1))
    assert not torch.equal(first, draw(2))


# --- compare_through, by slow references -----------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_the_mean_over_every_coin_of_the_sampled_form_is_the_expected_form(force_coins, rows):
    inputs = random_windows(np.random.default_rng(rows), rows, 200)
    mean = torch.zeros(rows, 200, dtype=torch.float64)
    for outcome in itertools.product([0.0, 1.0], repeat=rows):
        coins = torch.tensor(outcome, dtype=torch.float64).reshape(-1, 1).expand(rows, 200)
        probability = torch.where(coins == 1, inputs["beta"], 1 - inputs["beta"]).prod(0)
        force_coins(coins)
        mean += probability * compare_through(**inputs, gamma=0.97, mode="sampled")
    expected = compare_through(**inputs, gamma=0.97, mode="expected")
    torch.testing.assert_close(mean, expected, rtol=0, atol=1e-12)


def paper_estimate(w: dict, coins, b: int, k: int, gamma: float) -> float:
    """Eq. 4 for the transition in row ``k`` of window ``b``: walk on while both policies repeat, then bootstrap."""
    total, discount, last = 0.0, 1.0, len(coins) - 1
    while True:
        total += discount * float(w["reward"][k, b])
        discount *= gamma
        if w["terminated"][k, b]:
            return total
        if coins[k, b] == 1:
            return total + discount * float(w["q_new"][k, b])
        if k == last or w["truncated"][k, b] or not w["repeated"][k, b]:
            return total + discount * float(w["q_repeat"][k, b])
        k += 1


def authors_targets(w: dict, coins, b: int, gamma: float) -> list[float]:
    """The authors' recursion, over time steps 0..N that carry what happened on arriving there."""
    last = len(coins)
    is_last = [False] + [bool(w["terminated"][k, b] or w["truncated"][k, b]) for k in range(last)]
    discount = [1.0] + [0.0 if w["terminated"][k, b] else 1.0 for k in range(last)]
    reward = [0.0] + [float(w["reward"][k, b]) for k in range(last)]
    switched = [True] + [not w["repeated"][k, b] for k in range(last)]
    drawn = [True] + [bool(coins[k, b]) for k in range(last)]
    beta1 = [0.0] + [float(w["beta"][k, b]) for k in range(last)]
    value = [0.0] + [
        (1 - beta1[k + 1]) * float(w["q_repeat"][k, b]) + beta1[k + 1] * float(w["q_new"][k, b]) for k in range(last)
    ]
    accumulated = value[last]
    result = []
    for t in range(last - 1, -1, -1):
        y = reward[t + 1] + gamma * discount[t + 1] * accumulated
        result.append(y)
        accumulated = value[t] if is_last[t] or switched[t] or drawn[t] else y
    return result[::-1]


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_sampled_and_alf_equal_slow_loops_over_the_same_coins(rows):
    columns = 60
    inputs = random_windows(np.random.default_rng(10 + rows), rows, columns)
    coins = torch.bernoulli(inputs["beta"], generator=torch.Generator().manual_seed(5))
    assert 0 < coins.mean() < 1

    def library(mode):
        generator = torch.Generator().manual_seed(5)
        return compare_through(**inputs, gamma=0.97, mode=mode, generator=generator).numpy()

    paper = [[paper_estimate(inputs, coins, b, k, 0.97) for b in range(columns)] for k in range(rows)]
    np.testing.assert_allclose(library("sampled"), paper, rtol=0, atol=1e-12)
    authors = np.array([authors_targets(inputs, coins, b, 0.97) for b in range(columns)]).T
    np.testing.assert_allclose(library("alf"), authors, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", TD_MODES)
def test_a_discount_of_every_transition(mode, force_coins):
    """Equal ones are that number, to the bit; others by a loop, here with the coins 0 and 1 in turns."""
    inputs = random_windows(np.random.default_rng(9), 4, 50)
    gamma = torch.from_numpy(np.random.default_rng(1).uniform(0.5, 1, (4, 50)))
    coins = (torch.arange(200).reshape(4, 50) % 2).double()
    force_coins(coins)
    same = [compare_through(**inputs, gamma=each, mode=mode) for each in (0.9, torch.full_like(gamma, 0.9))]
    assert torch.equal(*same)
    following = torch.full((50,), torch.nan, dtype=torch.float64)
    fast = compare_through(**inputs, gamma=gamma, mode=mode)
    for k in (3, 2, 1, 0):
        w = {name: rows[k] for name, rows in inputs.items()}
        mixture = w["beta"] * w["q_new"] + (1 - w["beta"]) * w["q_repeat"]
        goes_on = w["repeated"] & ~w["truncated"] & (k < 3)
        if mode == "expected":
            future = w["beta"] * w["q_new"] + (1 - w["beta"]) * torch.where(goes_on, following, w["q_repeat"])
        else:
            leave, stop = (mixture, mixture) if mode == "alf" else (w["q_new"], w["q_repeat"])
            future = torch.where(coins[k] == 1, leave, torch.where(goes_on, following, stop))
        following = w["reward"] + torch.where(w["terminated"], 0.0, gamma[k] * future)
        torch.testing.assert_close(fast[k], following, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", TD_MODES)
def test_always_acting_anew_is_the_plain_bellman_target(mode):
    inputs = random_windows(np.random.default_rng(3), 4, 100)
    inputs["beta"] = torch.ones_like(inputs["beta"])
    bellman = inputs["reward"] + 0.9 * (~inputs["terminated"]).double() * inputs["q_new"]
    torch.testing.assert_close(compare_through(**inputs, gamma=0.9, mode=mode), bellman, rtol=0, atol=1e-12)


def test_one_step_targets_are_those_of_windows_of_one_transition():
    inputs = random_windows(np.random.default_rng(4), 4, 50)
    inputs["repeated"] = torch.zeros_like(inputs["repeated"])  # nothing to go on with
    rows = [compare_through(**{k: v[i : i + 1] for k, v in inputs.items()}, gamma=0.9) for i in range(4)]
    torch.testing.assert_close(compare_through(**inputs, gamma=0.9), torch.cat(rows), rtol=0, atol=0)


def test_inputs_are_left_alone():
    inputs = random_windows(np.random.default_rng(5), 3, 10)
    before = {name: tensor.clone() for name, tensor in inputs.items()}
    for mode in TD_MODES:
        compare_through(**inputs, gamma=0.9, mode=mode)
    assert all(torch.equal(inputs[name], before[name]) for name in inputs)


# --- Theorem 1 on a tabular MDP: the state of TAAC's policy is (s, a_prev) -------------------------------------------


@dataclass
class TabularTask:
    """A random MDP, the policy (pi, beta) to evaluate, and another random policy that recorded the data.

    Arrays are indexed ``[s, a_prev, ...]``. Arriving in state 0 is terminal; arriving in state 1 meets a time limit.
    """

    gamma: float
    transition: np.ndarray  # [S, A, S']
    reward: np.ndarray  # [S, A, S']
    pi: np.ndarray  # [S, A_prev, A_hat]
    beta: np.ndarray  # [S, A_prev, A_hat] probability of executing a_hat
    behaviour: np.ndarray  # [S, A_prev, 1 + A] the recorded choice: 0 repeats, 1 + a switches to a

    @classmethod
    def random(cls, seed: int, states: int = 4, actions: int = 3, gamma: float = 0.9) -> TabularTask:
        rng = np.random.default_rng(seed)
        repeat = rng.uniform(0.3, 0.9, (states, actions, 1))
        new = rng.dirichlet(np.ones(actions), (states, actions))
        return cls(
            gamma,
            transition=rng.dirichlet(np.ones(states), (states, actions)),
            reward=rng.normal(size=(states, actions, states)) + 2 * rng.normal(size=(states, actions, 1)),
            pi=rng.dirichlet(np.ones(actions), (states, actions)),
            beta=rng.uniform(0.2, 0.8, (states, actions, actions)),
            behaviour=np.concatenate([repeat, (1 - repeat) * new], axis=-1),
        )

    @property
    def shape(self) -> tuple[int, int]:
        return self.reward.shape[:2]

    def true_values(self) -> np.ndarray:
        """Q of the policy, ``[S, A]``, by solving its Bellman equation."""
        states, actions = self.shape
        flow = np.zeros((states, actions, states, actions))
        for s, a, after, candidate in itertools.product(
            range(states), range(actions), range(1, states), range(actions)
        ):
            arrive = self.gamma * self.transition[s, a, after] * self.pi[after, a, candidate]
            flow[s, a, after, candidate] += arrive * self.beta[after, a, candidate]
            flow[s, a, after, a] += arrive * (1 - self.beta[after, a, candidate])
        mean_reward = (self.transition * self.reward).sum(-1)
        matrix = np.eye(states * actions) - flow.reshape(states * actions, -1)
        return np.linalg.solve(matrix, mean_reward.reshape(-1)).reshape(states, actions)

    def executed(self) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities of what is executed, ``[S, A_prev, A]``, under the policy and under the behaviour."""
        repeats = np.eye(self.shape[1])[None]
        keep = (self.pi * (1 - self.beta)).sum(-1, keepdims=True)
        return self.pi * self.beta + keep * repeats, self.behaviour[..., 1:] + self.behaviour[..., :1] * repeats


class EveryWindow:
    """All windows of ``steps`` transitions that the behaviour can record, and all candidates of the policy, at once.

    The columns run over the start ``(s_0, a_0)`` first, so that a mean per start is a sum over the rest.
    """

    def __init__(self, task: TabularTask, steps: int):
        states, actions = task.shape
        per_step = (states, actions, 1 + actions)  # next state, candidate there, recorded choice there
        grid = np.indices((states, actions) + per_step * steps).reshape(2 + 3 * steps, -1)
        self.task, self.probability = task, np.ones(grid.shape[1])
        state, action = grid[0], grid[1]
        rows = []
        for k in range(steps):
            after, candidate, choice = grid[2 + 3 * k : 5 + 3 * k]
            self.probability = self.probability * task.transition[state, action, after]
            self.probability *= task.pi[after, action, candidate] * task.behaviour[after, action, choice]
            rows.append(
                {
                    "reward": task.reward[state, action, after],
                    "terminated": after == 0,
                    "truncated": after == 1,
                    "repeated": choice == 0,
                    "beta": task.beta[after, action, candidate],
                    "after": after,
                    "action": action,
                    "candidate": candidate,
                }
            )
            state, action = after, np.where(choice == 0, action, choice - 1)
        self.rows = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        names = ("reward", "terminated", "truncated", "repeated", "beta")
        self.recorded = {name: torch.from_numpy(self.rows[name]) for name in names}

    def values(self, q: np.ndarray) -> dict[str, torch.Tensor]:
        rows = self.rows
        q_repeat, q_new = q[rows["after"], rows["action"]], q[rows["after"], rows["candidate"]]
        return {"q_repeat": torch.from_numpy(q_repeat), "q_new": torch.from_numpy(q_new)}

    def mean_target(self, target: torch.Tensor) -> np.ndarray:
        """The mean target of every start, ``[S, A]``."""
        weighted = (self.probability * target[0].numpy()).reshape(*self.task.shape, -1)
        return weighted.sum(-1)


def expected_operator(windows: EveryWindow, q: np.ndarray) -> np.ndarray:
    target = compare_through(**windows.recorded, **windows.values(q), gamma=windows.task.gamma)
    return windows.mean_target(target)


def n_step_operator(windows: EveryWindow, q: np.ndarray) -> np.ndarray:
    values, beta = windows.values(q), windows.recorded["beta"]
    mixture = beta * values["q_new"] + (1 - beta) * values["q_repeat"]
    ends = {name: windows.recorded[name] for name in ("reward", "terminated", "truncated")}
    return windows.mean_target(n_step(**ends, next_value=mixture, gamma=windows.task.gamma))


def retrace_operator(windows: EveryWindow, q: np.ndarray, lambda_: float = 1.0) -> np.ndarray:
    policy, behaviour = windows.task.executed()
    after, action = windows.rows["after"], windows.rows["action"]
    unknown = np.full_like(after[:1], np.nan, dtype=float)  # what must not matter
    trace = (lambda_ * np.minimum(1, policy / behaviour))[after[:-1], action[:-1], action[1:]]
    inputs = {
        "q": np.concatenate([unknown, q[after[:-1], action[1:]]]),
        "next_value": (policy * q[:, None]).sum(-1)[after, action],
        "next_trace": np.concatenate([trace, unknown]),
    }
    ends = {name: windows.recorded[name] for name in ("reward", "terminated", "truncated")}
    values = {name: torch.from_numpy(array) for name, array in inputs.items()}
    return windows.mean_target(retrace(**ends, **values, gamma=windows.task.gamma))


def drawn_operator(windows: EveryWindow, q: np.ndarray, mode, force_coins) -> np.ndarray:
    """The exact mean of a sampling mode, over every coin."""
    beta, values = windows.recorded["beta"], windows.values(q)
    mean = np.zeros(windows.task.shape)
    for outcome in itertools.product([0.0, 1.0], repeat=len(beta)):
        coins = torch.tensor(outcome, dtype=torch.float64).reshape(-1, 1).expand_as(beta)
        force_coins(coins)
        target = compare_through(**windows.recorded, **values, gamma=windows.task.gamma, mode=mode)
        mean += windows.mean_target(target * torch.where(coins == 1, beta, 1 - beta).prod(0))
    return mean


def fixed_point(operator, shape: tuple[int, int]) -> np.ndarray:
    """The operators are affine in Q while beta is given: find ``c + M q = q`` exactly."""
    size = math.prod(shape)
    constant = operator(np.zeros(shape)).reshape(-1)
    matrix = np.stack([operator(unit.reshape(shape)).reshape(-1) - constant for unit in np.eye(size)], axis=1)
    return np.linalg.solve(np.eye(size) - matrix, constant).reshape(shape)


def distance_to_truth(task: TabularTask, operator) -> float:
    return float(np.abs(fixed_point(operator, task.shape) - task.true_values()).max())


def test_the_enumeration_is_a_probability_distribution_for_every_start():
    task = TabularTask.random(0)
    one = torch.ones_like(EveryWindow(task, 2).recorded["reward"])
    np.testing.assert_allclose(EveryWindow(task, 2).mean_target(one), np.ones(task.shape), rtol=0, atol=1e-12)


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_fixed_point_of_compare_through_is_the_value_of_the_policy(seed, steps, force_coins):
    task = TabularTask.random(seed)
    windows = EveryWindow(task, steps)
    assert np.ptp(task.true_values()) > 1
    assert distance_to_truth(task, lambda q: expected_operator(windows, q)) < 1e-8
    assert distance_to_truth(task, lambda q: drawn_operator(windows, q, "sampled", force_coins)) < 1e-8


def test_the_fixed_point_does_not_move_with_longer_windows():
    task = TabularTask.random(2, states=4, actions=2)
    windows = EveryWindow(task, 3)
    assert distance_to_truth(task, lambda q: expected_operator(windows, q)) < 1e-8
    assert distance_to_truth(task, lambda q: n_step_operator(windows, q)) > 0.05


@pytest.mark.parametrize("seed", [0, 1])
def test_the_fixed_points_of_the_authors_form_and_of_n_step_are_elsewhere(seed, force_coins):
    task = TabularTask.random(seed)
    windows = EveryWindow(task, 2)
    assert distance_to_truth(task, lambda q: drawn_operator(windows, q, "alf", force_coins)) > 0.05
    assert distance_to_truth(task, lambda q: n_step_operator(windows, q)) > 0.05
    single = EveryWindow(task, 1)  # one transition leaves nothing to correct
    assert distance_to_truth(task, lambda q: drawn_operator(single, q, "alf", force_coins)) < 1e-8
    assert distance_to_truth(task, lambda q: n_step_operator(single, q)) < 1e-8


def test_the_authors_form_is_off_by_beta0_beta1_times_the_gap_wherever_the_behaviour_repeated(force_coins):
    task = TabularTask.random(3)
    windows, q = EveryWindow(task, 2), task.true_values()
    record, values = windows.recorded, windows.values(q)
    went_on = (record["repeated"] & ~record["terminated"] & ~record["truncated"]).double()
    gap = record["beta"] * (1 - record["beta"]) * (values["q_repeat"] - values["q_new"])
    bias = windows.mean_target(task.gamma * went_on * gap)
    assert np.abs(bias).max() > 0.01
    np.testing.assert_allclose(drawn_operator(windows, q, "alf", force_coins) - q, bias, rtol=0, atol=1e-12)


def test_the_executed_actions_have_probabilities():
    task = TabularTask.random(0)
    for executed in task.executed():
        assert (executed > 0).all()
        np.testing.assert_allclose(executed.sum(-1), np.ones(task.shape), rtol=0, atol=1e-12)
    assert np.abs(np.subtract(*task.executed())).max() > 0.3  # so that there is something to correct


@pytest.mark.parametrize("lambda_", [1.0, 0.6])
@pytest.mark.parametrize(("seed", "steps", "actions"), [(0, 1, 3), (0, 2, 3), (1, 2, 3), (2, 3, 2)])
def test_the_fixed_point_of_retrace_is_the_value_of_the_policy(seed, steps, actions, lambda_):
    """Although the behaviour is another one."""
    task = TabularTask.random(seed, actions=actions)
    windows, truth = EveryWindow(task, steps), task.true_values()
    assert distance_to_truth(task, lambda q: retrace_operator(windows, q, lambda_)) < 1e-8
    # And repeated use leads there from anywhere: the traces make it a contraction.
    for q in np.random.default_rng(0).normal(size=(3, *task.shape)):
        nearer = np.abs(retrace_operator(windows, truth + q, lambda_) - truth).max()
        assert nearer <= task.gamma * np.abs(q).max() + 1e-9


def test_with_the_policys_own_data_n_step_has_the_fixed_point_of_retrace():
    """So what moves n_step's elsewhere is the behaviour."""
    task = TabularTask.random(0)
    policy, _ = task.executed()
    on_policy = EveryWindow(replace(task, behaviour=np.pad(policy, [(0, 0), (0, 0), (1, 0)])), 2)
    assert distance_to_truth(task, lambda q: n_step_operator(on_policy, q)) < 1e-8
    assert distance_to_truth(task, lambda q: n_step_operator(EveryWindow(task, 2), q)) > 0.05


# --- retrace ---------------------------------------------------------------------------------------------------------


def retrace_of(recorded: dict, q, next_value, next_trace, gamma=GAMMA) -> list[float]:
    inputs = {name: recorded[name] for name in ("reward", "terminated", "truncated")}
    values = {"q": column(*q), "next_value": column(*next_value), "next_trace": column(*next_trace)}
    return retrace(**inputs, **values, gamma=gamma).flatten().tolist()


def random_traces(seed: int, rows: int, columns: int) -> dict[str, torch.Tensor]:
    """Inputs of retrace, with ends of both kinds anywhere."""
    rng = np.random.default_rng(seed)
    ends = {name: w for name, w in random_windows(rng, rows, columns).items() if name in ("terminated", "truncated")}
    values = {name: torch.from_numpy(rng.normal(size=(rows, columns))) for name in ("reward", "q", "next_value")}
    return ends | values | {"next_trace": torch.from_numpy(rng.random((rows, columns)))}


def test_retrace_corrects_by_what_the_next_recorded_action_brought():
    # y2 = 4 + 16/2, y1 = 2 + (8 + (y2 - 4)/4) / 2, y0 = 1 + (4 + (y1 - 3)/2) / 2
    recorded, q, next_value = window([1.0, 2.0, 4.0]), [99.0, 3.0, 4.0], [4.0, 8.0, 16.0]
    assert retrace_of(recorded, q, next_value, [0.5, 0.25, 99.0]) == [4.0, 7.0, 12.0]


def test_retrace_without_traces_is_the_one_step_target():
    assert retrace_of(window([1.0, 2.0]), [9.0, 9.0], [4.0, 8.0], [0.0, 0.0]) == [3.0, 6.0]


def test_retrace_bootstraps_at_a_truncation_and_does_not_go_on():
    recorded = window([1.0, 2.0, 4.0], truncated=[1])
    # y1 = 2 + 8/2, y0 = 1 + (4 + (y1 - 3)) / 2
    assert retrace_of(recorded, [9.0, 3.0, 9.0], [4.0, 8.0, 16.0], [1.0, 1.0, 1.0]) == [4.5, 6.0, 12.0]


@pytest.mark.parametrize("truncated", [[], [1]], ids=["terminated", "terminated and truncated"])
def test_retrace_stops_at_a_terminal_state(truncated):
    recorded = window([1.0, 2.0, 4.0], terminated=[1], truncated=truncated)
    # y1 = 2, y0 = 1 + (4 + (y1 - 3)) / 2
    assert retrace_of(recorded, [9.0, 3.0, 9.0], [4.0, 8.0, 16.0], [1.0, 1.0, 1.0]) == [2.5, 2.0, 12.0]


def test_retrace_takes_a_discount_of_every_transition():
    # y2 = 4 + 16/4, y1 = 2 + (4 + (y2 - 4)) / 2, y0 = 1 + (4 + (y1 - 2) / 2) * 1
    values = [9.0, 2.0, 4.0], [4.0, 4.0, 16.0], [0.5, 1.0, 1.0]
    assert retrace_of(window([1.0, 2.0, 4.0]), *values, gamma=column(1.0, 0.5, 0.25)) == [7.0, 6.0, 8.0]


def munos_target(w: dict, b: int, k: int, gamma: torch.Tensor) -> float:
    """Eq. 3 of Munos et al. for row ``k`` of window ``b``: all later TD errors, as far as traces go."""
    target, weight = float(w["q"][k, b]), 1.0
    for j in range(k, len(gamma)):
        future = 0.0 if w["terminated"][j, b] else float(gamma[j, b] * w["next_value"][j, b])
        target += weight * (float(w["reward"][j, b]) + future - float(w["q"][j, b]))
        if w["terminated"][j, b] or w["truncated"][j, b]:
            break
        weight *= float(gamma[j, b] * w["next_trace"][j, b])
    return target


@pytest.mark.parametrize("rows", [1, 2, 3, 6])
def test_retrace_equals_a_slow_sum_of_td_errors(rows):
    columns = 40
    inputs = random_traces(rows, rows, columns)
    per_transition = torch.from_numpy(np.random.default_rng(7).uniform(0.3, 1, (rows, columns)))
    for gamma in (0.97, per_transition):
        every = gamma + torch.zeros(rows, columns, dtype=torch.float64)
        slow = [[munos_target(inputs, b, k, every) for b in range(columns)] for k in range(rows)]
        np.testing.assert_allclose(retrace(**inputs, gamma=gamma), slow, rtol=0, atol=1e-12)


def lambda_return(w: dict, b: int, k: int, gamma: float, lambda_: float) -> float:
    """The forward view of TD(lambda): the mean of all n-step returns, each longer one counting less by ``lambda_``."""
    returns, total, discount = [], 0.0, 1.0
    for j in range(k, len(w["reward"])):
        total += discount * float(w["reward"][j, b])
        discount *= gamma
        returns.append(total + (0.0 if w["terminated"][j, b] else discount * float(w["next_value"][j, b])))
        if w["terminated"][j, b] or w["truncated"][j, b]:
            break
    last = len(returns) - 1  # takes all the weight that is left
    weights = [(1 - lambda_) * lambda_**n if n < last else lambda_**n for n in range(last + 1)]
    assert sum(weights) == pytest.approx(1)
    return float(np.dot(weights, returns))


def on_policy(inputs: dict[str, torch.Tensor], trace: float) -> dict[str, torch.Tensor]:
    """``Q(s_{k+1}, a_{k+1}) = V(s_{k+1})``, as for the states' own values, and the same trace everywhere."""
    q = torch.cat([inputs["q"][:1], inputs["next_value"][:-1]])
    return inputs | {"q": q, "next_trace": torch.full_like(q, trace)}


@pytest.mark.parametrize("lambda_", [0.0, 0.3, 0.9])
def test_retrace_with_traces_lambda_is_td_lambda(lambda_):
    inputs = on_policy(random_traces(0, 5, 40), lambda_)
    slow = [[lambda_return(inputs, b, k, 0.9, lambda_) for b in range(40)] for k in range(5)]
    np.testing.assert_allclose(retrace(**inputs, gamma=0.9), slow, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_retrace_with_whole_traces_is_n_step(rows):
    inputs = on_policy(random_traces(rows, rows, 100), 1.0)
    same = {name: inputs[name] for name in ("reward", "terminated", "truncated", "next_value")}
    gamma = torch.from_numpy(np.random.default_rng(3).uniform(0.5, 1, (rows, 100)))
    for each in (0.9, gamma):
        torch.testing.assert_close(retrace(**inputs, gamma=each), n_step(**same, gamma=each), rtol=0, atol=1e-12)


@pytest.mark.parametrize("nonsense", [torch.nan, torch.inf, 1e300, 7.0])
def test_what_retrace_need_not_know_does_not_matter(nonsense):
    """The value of the first row, the trace of the last one, and both sides of an episode's end."""
    inputs = random_traces(4, 5, 200)
    before = {name: tensor.clone() for name, tensor in inputs.items()}
    target = retrace(**inputs, gamma=0.9)
    assert all(torch.equal(inputs[name], before[name]) for name in inputs)  # and its inputs are left alone
    ended = inputs["terminated"] | inputs["truncated"]
    assert 100 < ended.sum() < 500
    trace, q = inputs["next_trace"].masked_fill(ended, nonsense), inputs["q"].clone()
    trace[-1] = q[0] = nonsense
    q[1:][ended[:-1]] = nonsense
    assert torch.equal(retrace(**inputs | {"next_trace": trace, "q": q}, gamma=0.9), target)


def test_retrace_keeps_the_dtype():
    inputs = {name: t.float() if t.is_floating_point() else t for name, t in random_traces(0, 3, 4).items()}
    assert retrace(**inputs, gamma=0.9).dtype == torch.float32


# --- n_step ----------------------------------------------------------------------------------------------------------


def n_step_of(recorded: dict, next_value) -> list[float]:
    inputs = {name: recorded[name] for name in ("reward", "terminated", "truncated")}
    return n_step(**inputs, next_value=column(*next_value), gamma=GAMMA).flatten().tolist()


def test_n_step_runs_to_the_end_of_the_window():
    # y2 = 4 + 16/2, y1 = 2 + y2/2, y0 = 1 + y1/2: the values in between play no part
    assert n_step_of(window([1.0, 2.0, 4.0]), [99.0, 99.0, 16.0]) == [5.0, 8.0, 12.0]


def test_n_step_bootstraps_at_a_truncation():
    assert n_step_of(window([1.0, 2.0, 4.0], truncated=[1]), [99.0, 8.0, 16.0]) == [4.0, 6.0, 12.0]


def test_n_step_stops_at_a_terminal_state():
    assert n_step_of(window([1.0, 2.0, 4.0], terminated=[1]), [99.0, 99.0, 16.0]) == [2.0, 2.0, 12.0]


def test_n_step_takes_a_discount_of_every_transition():
    recorded = window([1.0, 2.0, 4.0])
    inputs = {name: recorded[name] for name in ("reward", "terminated", "truncated")}
    # y2 = 4 + 16/4, y1 = 2 + y2/2, y0 = 1 + y1 * 1
    target = n_step(**inputs, next_value=column(99.0, 99.0, 16.0), gamma=column(1.0, 0.5, 0.25))
    assert target.flatten().tolist() == [7.0, 6.0, 8.0]


# --- bad rows --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["terminated", "truncated", "repeated", "beta", "q_repeat", "q_new"])
def test_compare_through_names_the_input_of_another_shape(name):
    inputs = random_windows(np.random.default_rng(0), 2, 3)
    inputs[name] = inputs[name][:1]
    with pytest.raises(ValueError, match=rf"^{name} must have reward's shape \(2, 3\), got \(1, 3\)"):
        compare_through(**inputs, gamma=0.9)


@pytest.mark.parametrize("name", ["terminated", "truncated", "repeated"])
def test_compare_through_names_the_flag_that_is_no_bool(name):
    inputs = random_windows(np.random.default_rng(0), 2, 3)
    inputs[name] = inputs[name].to(torch.uint8)
    with pytest.raises(TypeError, match=rf"^{name} must be a bool tensor, got torch.uint8"):
        compare_through(**inputs, gamma=0.9)


@pytest.mark.parametrize("shape", [(3,), (0, 3), (1, 2, 3)])
def test_rewards_must_be_rows_of_windows(shape):
    zeros, no = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"reward must have shape \[N, B\]"):
        compare_through(zeros, no, no, no, zeros, zeros, zeros, 0.9)
    with pytest.raises(ValueError, match=r"reward must have shape \[N, B\]"):
        n_step(zeros, no, no, zeros, 0.9)
    with pytest.raises(ValueError, match=r"reward must have shape \[N, B\]"):
        retrace(zeros, no, no, zeros, zeros, zeros, 0.9)


@pytest.mark.parametrize("name", ["terminated", "truncated", "q", "next_value", "next_trace"])
def test_retrace_names_the_input_of_another_shape(name):
    inputs = random_traces(0, 2, 3)
    inputs[name] = inputs[name][:1]
    with pytest.raises(ValueError, match=rf"^{name} must have reward's shape \(2, 3\), got \(1, 3\)"):
        retrace(**inputs, gamma=0.9)


@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_retrace_names_the_flag_that_is_no_bool(name):
    inputs = random_traces(0, 2, 3)
    inputs[name] = inputs[name].float()
    with pytest.raises(TypeError, match=rf"^{name} must be a bool tensor, got torch.float32"):
        retrace(**inputs, gamma=0.9)


def test_an_unknown_mode_is_named_with_the_known_ones():
    inputs = random_windows(np.random.default_rng(0), 2, 3)
    with pytest.raises(ValueError, match="mode must be one of expected, sampled, alf, got 'exact'"):
        compare_through(**inputs, gamma=0.9, mode="exact")


def test_n_step_names_the_input_of_another_shape():
    ones, no = torch.ones(2, 3), torch.zeros(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"next_value must have reward's shape \(2, 3\), got \(3, 2\)"):
        n_step(ones, no, no, ones.T, 0.9)


# --- the switch and the entropies ------------------------------------------------------------------------------------


def test_switch_probability_is_the_softmax_of_both_values():
    q = torch.tensor([[0.0, 1.0, -2.0, 7.0], [3.0, 1.0, 0.5, -7.0]], dtype=torch.float64)
    for temperature in (0.3, torch.tensor(2.0)):
        softmax = torch.softmax(q / temperature, dim=0)
        torch.testing.assert_close(switch_probability(q[0], q[1], temperature), softmax[1], rtol=0, atol=1e-12)
        torch.testing.assert_close(switch_probability(q[1], q[0], temperature), softmax[0], rtol=0, atol=1e-12)


def test_switch_probability_with_clipped_advantage_never_favours_repeating():
    q_repeat, q_new = torch.tensor([0.0, 0.0, 0.0]), torch.tensor([-5.0, 0.0, 1.0])
    clipped = switch_probability(q_repeat, q_new, 0.5, min_advantage=0.0)
    assert clipped[:2].tolist() == [0.5, 0.5]
    assert clipped[2] == switch_probability(q_repeat, q_new, 0.5)[2] > 0.5
    below = switch_probability(q_repeat, q_new, 0.5, min_advantage=-1.0)
    assert below[0].item() == pytest.approx(1 / (1 + math.exp(2)))


@pytest.mark.parametrize("temperature", [1e-10, 1e-4, 1e4, 1e10])
def test_switch_probability_survives_extreme_temperatures_and_values(temperature):
    q_new = torch.tensor([-1e6, -1.0, 0.0, 1.0, 1e6])
    beta = switch_probability(torch.zeros(5), q_new, temperature)
    assert torch.isfinite(beta).all()
    assert beta[2] == 0.5
    assert (beta.diff() >= 0).all()
    assert torch.isfinite(binary_entropy(beta)).all()


def test_switch_probability_names_bad_arguments():
    with pytest.raises(ValueError, match="temperature must be positive, got 0"):
        switch_probability(torch.zeros(2), torch.zeros(2), 0.0)
    with pytest.raises(ValueError, match=r"q_new must have q_repeat's shape \(2,\), got \(2, 1\)"):
        switch_probability(torch.zeros(2), torch.zeros(2, 1), 1.0)


def test_binary_entropy_is_exact_at_the_ends_and_in_the_middle():
    entropy = binary_entropy(torch.tensor([0.0, 1.0, 0.5, 0.05], dtype=torch.float64))
    assert entropy[:2].tolist() == [0.0, 0.0]
    assert entropy[2].item() == pytest.approx(math.log(2), abs=1e-15)
    assert entropy[3].item() == pytest.approx(-0.05 * math.log(0.05) - 0.95 * math.log(0.95), abs=1e-15)


def test_entropy_targets_are_those_of_the_paper():
    assert continuous_entropy_target([-1.0] * 3, [1.0] * 3, 0.184) == pytest.approx(-3.0, abs=3e-3)
    assert continuous_entropy_target([-1.0], [1.0], 0.1) == pytest.approx(-1.609, abs=1e-3)
    assert continuous_entropy_target([-1.0, 0.0], [1.0, 1.0], 0.1) == pytest.approx(math.log(0.2) + math.log(0.1))
    assert discrete_entropy_target(2, 0.05) == pytest.approx(0.1985, abs=1e-4)


def test_entropy_targets_are_the_entropies_of_what_they_describe():
    uniform = torch.distributions.Uniform(torch.tensor([0.0, -3.0]), torch.tensor([0.3 * 2.0, -3.0 + 0.3 * 5.0]))
    target = continuous_entropy_target([-1.0, -3.0], [1.0, 2.0], 0.3)
    assert target == pytest.approx(uniform.entropy().sum().item(), abs=1e-6)
    choice = torch.distributions.Categorical(torch.tensor([0.7, 0.1, 0.1, 0.1], dtype=torch.float64))
    assert discrete_entropy_target(4, 0.3) == pytest.approx(choice.entropy().item(), abs=1e-6)


@pytest.mark.parametrize("delta", [0.0, -0.1, 1.5, math.nan])
def test_entropy_targets_refuse_a_bad_delta(delta):
    with pytest.raises(ValueError, match=f"delta must be in .*got {delta}"):
        continuous_entropy_target([-1.0], [1.0], delta)
    with pytest.raises(ValueError, match=f"delta must be in .*got {delta}"):
        discrete_entropy_target(2, delta)


@pytest.mark.parametrize(("low", "high"), [([1.0], [1.0]), ([-math.inf], [1.0]), ([2.0], [1.0]), ([math.nan], [1.0])])
def test_continuous_entropy_target_refuses_bounds_without_a_width(low, high):
    with pytest.raises(ValueError, match=r"finite bounds with high > low, got low=\["):
        continuous_entropy_target(low, high, 0.1)


def test_continuous_entropy_target_refuses_bounds_of_different_lengths():
    with pytest.raises(ValueError, match="shorter"):
        continuous_entropy_target([0.0, 0.0], [1.0], 0.1)


def test_discrete_entropy_target_needs_a_choice():
    with pytest.raises(ValueError, match="n must be at least 2, got 1"):
        discrete_entropy_target(1, 0.05)
