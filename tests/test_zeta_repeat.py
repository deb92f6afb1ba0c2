"""``ZetaRepeatWrapper``: when it explores, how long it holds, and that the frequencies are those of the definition."""

from __future__ import annotations

import json
from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import ClipAction, TimeLimit
from hypothesis import given
from hypothesis import strategies as st
from toy_envs import ToyEnv

from taac_wrappers import HybridActionWrapper, NRepeatWrapper, ZetaRepeatWrapper, vector

AGENT = np.array([0.25, -0.75], np.float32)
INSIDE = np.array([0.25, 0.75], np.float32)  # of the uneven box


def explore(frames: int, seed: int = 0, length: int = 10**9, **kwargs) -> list[dict]:
    """Return the infos of ``frames`` frames in which the agent always wants the same action."""
    env = ZetaRepeatWrapper(ToyEnv(length=length), **kwargs)
    env.reset(seed=seed)
    infos = []
    for _ in range(frames):
        _, _, terminated, _, info = env.step(AGENT)
        assert np.array_equal(info["executed_action"], env.unwrapped.received[-1])
        infos.append(info)
        if terminated:
            env.reset()
    return infos


def hold_lengths(infos: list[dict]) -> list[int]:
    """Return the lengths of all holds that ended within ``infos``."""
    lengths: list[int] = []
    for info in infos:
        if info["exploring"] and not info["repeated"]:
            lengths.append(0)
        if info["exploring"]:
            lengths[-1] += 1
    return lengths[:-1]


def test_epsilon_zero_is_the_agent_alone():
    for info in explore(50, epsilon=0.0):
        assert np.array_equal(info["executed_action"], AGENT)
        assert (info["exploring"], info["repeated"], info["frames"]) == (False, False, 1)


def test_epsilon_one_never_asks_the_agent():
    infos = explore(200, epsilon=1.0)
    assert all(info["exploring"] for info in infos)
    assert not any(np.array_equal(info["executed_action"], AGENT) for info in infos)


def test_repeated_says_that_the_executed_action_is_that_of_the_frame_before():
    infos = explore(500, epsilon=0.4, mu=1.0, max_repeat=4)
    assert not infos[0]["repeated"]
    for before, info in pairwise(infos):
        same = np.array_equal(before["executed_action"], info["executed_action"])
        assert info["repeated"] is (same and info["exploring"])
        assert info["exploring"] is not np.array_equal(info["executed_action"], AGENT)
    assert 50 < sum(info["repeated"] for info in infos) < 450


@pytest.mark.parametrize(("mu", "max_repeat"), [(2.0, 5), (1.0, 3), (0.5, 4), (30.0, 3), (2.0, 1)])
def test_hold_lengths_follow_the_truncated_zeta_distribution(mu, max_repeat):
    lengths = hold_lengths(explore(20_000, seed=1, epsilon=1.0, mu=mu, max_repeat=max_repeat))
    weights = np.array([n**-mu for n in range(1, max_repeat + 1)])
    expected = len(lengths) * weights / weights.sum()
    observed = np.bincount(lengths, minlength=max_repeat + 1)[1:]
    assert len(observed) == max_repeat
    likely = expected > 5
    chi_square = ((observed - expected)[likely] ** 2 / expected[likely]).sum()
    # The 0.999 quantile of the chi-square distribution with 4 degrees of freedom, the largest number here.
    assert chi_square < 18.47
    assert observed[~likely].sum() <= 5


def test_zeta_probabilities_of_the_paper():
    lengths = hold_lengths(explore(30_000, seed=2, epsilon=1.0, mu=2.0, max_repeat=3))
    shares = np.bincount(lengths)[1:] / len(lengths)
    assert shares == pytest.approx([36 / 49, 9 / 49, 4 / 49], abs=0.006)  # 1, 1/4 and 1/9 of 49/36


def test_epsilon_is_tested_per_decision():
    infos = explore(20_000, seed=3, epsilon=0.2, mu=0.5, max_repeat=5)
    decisions = [info["exploring"] for info in infos if not info["repeated"]]
    deviation = np.sqrt(0.2 * 0.8 / len(decisions))
    assert np.mean(decisions) == pytest.approx(0.2, abs=4 * deviation)
    # Per frame it is far more: each hold is longer than one frame.
    assert np.mean([info["exploring"] for info in infos]) > 0.3


@pytest.mark.parametrize("kind", ["box", "uneven box", "matrix box", "scalar box", "box64"])
def test_exploratory_actions_are_uniform_over_the_box(kind):
    env = ZetaRepeatWrapper(ToyEnv(action=kind, length=10**9), epsilon=1.0, max_repeat=1)
    space = env.action_space
    env.reset(seed=4)
    drawn = np.array([env.step(space.low)[-1]["executed_action"] for _ in range(4000)], np.float64)
    assert all(action in space for action in env.unwrapped.received)
    unit = np.sort((drawn - space.low) / (space.high - space.low), axis=0)
    grid = np.arange(1, 4001).reshape(-1, *[1] * len(space.shape)) / 4000
    assert np.abs(unit - grid).max() < 1.95 / np.sqrt(4000)  # Kolmogorov-Smirnov, 0.999


def test_discrete_exploratory_actions_are_uniform():
    env = ZetaRepeatWrapper(ToyEnv(action="shifted discrete", length=10**9), epsilon=1.0, max_repeat=1)
    env.reset(seed=5)
    for _ in range(3000):
        executed = env.step(2)[-1]["executed_action"]
        assert (executed.shape, executed.dtype) == ((), np.int64)
    shares = np.bincount(env.unwrapped.received)[2:] / 3000
    assert len(shares) == 3
    assert shares == pytest.approx([1 / 3] * 3, abs=0.035)


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_the_end_of_an_episode_ends_the_hold(length):
    infos = explore(400, seed=6, length=length, epsilon=1.0, mu=0.1, max_repeat=50)
    assert not any(info["repeated"] for info in infos[::length])
    assert max(hold_lengths(infos)) == length


def test_schedule_is_linear_in_frames_across_episodes():
    env = ZetaRepeatWrapper(ToyEnv(length=3), epsilon=(1.0, 0.2, 8))
    env.reset(seed=0)
    seen = []
    for _ in range(10):
        seen.append(env.current_epsilon)
        if env.step(AGENT)[2]:
            env.reset()
    assert seen == pytest.approx([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.2])


def test_schedule_counts_the_frames_of_an_inner_repeat():
    env = ZetaRepeatWrapper(NRepeatWrapper(ToyEnv(), 4), epsilon=(1.0, 0.0, 16))
    env.reset(seed=0)
    assert env.step(AGENT)[-1]["frames"] == 4
    assert env.current_epsilon == 0.75


def test_a_schedule_of_no_frames_is_its_end():
    assert ZetaRepeatWrapper(ToyEnv(), epsilon=(1.0, 0.3, 0)).current_epsilon == 0.3


def test_state_dict_keeps_the_schedule():
    env = ZetaRepeatWrapper(ToyEnv(), epsilon=(1.0, 0.0, 10))
    env.reset(seed=0)
    for _ in range(4):
        env.step(AGENT)
    assert env.state_dict()["frames"] == 4
    other = ZetaRepeatWrapper(ToyEnv(), epsilon=(1.0, 0.0, 10))
    other.load_state_dict(env.state_dict())
    assert other.current_epsilon == env.current_epsilon == pytest.approx(0.6)


@pytest.mark.parametrize("frames", [0, 1, 85, 300])  # a block of random numbers lasts for some of them
@pytest.mark.parametrize("seed", [3, None])
def test_state_dict_keeps_the_place_in_the_random_stream(seed, frames):
    """The next episodes explore alike, in a wrapper that had drawn other numbers before."""
    settings = {"epsilon": 0.7, "mu": 1.0, "max_repeat": 3}
    env, other = (ZetaRepeatWrapper(ToyEnv(length=50), **settings) for _ in range(2))
    env.reset(seed=seed)
    for frame in range(frames):
        env.step(AGENT)
        if frame % 50 == 49:
            env.reset()
    other.reset(seed=8)
    other.step(AGENT)
    state = env.state_dict()
    assert type(state["frames"]) is int
    assert [type(word) for word in state["stream"]] == [int] * 8
    other.load_state_dict(json.loads(json.dumps(state)))
    assert other.state_dict() == state
    explored = []
    for each in (env, other):
        each.reset()
        infos = [each.step(AGENT)[-1] for _ in range(50)]
        each.reset()
        infos += [each.step(AGENT)[-1] for _ in range(50)]
        explored.append([(info["executed_action"].tolist(), info["exploring"], info["repeated"]) for info in infos])
    assert explored[0] == explored[1]
    assert len({exploring for _, exploring, _ in explored[0]}) == 2


def test_a_state_is_not_used_up_by_a_step_that_is_refused():
    env = ZetaRepeatWrapper(ToyEnv(), epsilon=1.0)
    env.reset(seed=0)
    env.step(AGENT)
    before = env.state_dict()
    env.reset()
    env.unwrapped.step = lambda action: 1 / 0
    with pytest.raises(ZeroDivisionError):
        env.step(AGENT)
    assert env.state_dict() == before


def test_the_stream_of_a_seed_is_numpys_own():
    """By hand: the words are the state and the increment of PCG64, the lowest 32 bits first."""
    env = ZetaRepeatWrapper(ToyEnv(), epsilon=0.0)
    env.reset(seed=7)
    rng = np.random.default_rng(np.random.SeedSequence(7, spawn_key=(0x7A657461,)))
    for _ in range(3):
        env.step(AGENT)
        rng.random()
    place = rng.bit_generator.state["state"]
    words = env.state_dict()["stream"]
    assert sum(word << 32 * i for i, word in enumerate(words[:4])) == place["state"]
    assert sum(word << 32 * i for i, word in enumerate(words[4:])) == place["inc"]


def test_reset_without_seed_continues_the_stream_and_with_seed_restarts_it():
    env = ZetaRepeatWrapper(ToyEnv(), epsilon=1.0)

    def first_action(seed: int | None) -> list[float]:
        env.reset(seed=seed)
        return env.step(AGENT)[-1]["executed_action"].tolist()

    seeded, unseeded, again = first_action(7), first_action(None), first_action(7)
    assert seeded == again != unseeded
    assert first_action(None) == unseeded


def test_without_any_seed_two_wrappers_differ():
    actions = []
    for _ in range(2):
        env = ZetaRepeatWrapper(ToyEnv(), epsilon=1.0)
        env.reset()
        actions.append(env.step(AGENT)[-1]["executed_action"].tolist())
    assert actions[0] != actions[1]


def test_own_stream_differs_from_the_environments():
    env = ZetaRepeatWrapper(ToyEnv(action="box64"), epsilon=1.0)
    env.reset(seed=8)
    executed = env.step(np.zeros(2))[-1]["executed_action"]
    own = np.random.default_rng(8).random(8) * 2 - 1
    assert not np.isclose(executed[:, None], own).any()


@given(
    epsilon=st.floats(0, 1),
    mu=st.floats(0.1, 5),
    max_repeat=st.integers(1, 6),
    length=st.integers(1, 9),
    seed=st.integers(0, 2**32),
)
def test_no_hold_is_longer_than_it_may_be(epsilon, mu, max_repeat, length, seed):
    infos = explore(40, seed=seed, length=length, epsilon=epsilon, mu=mu, max_repeat=max_repeat)
    run = 0
    for frame, info in enumerate(infos):
        run = run + 1 if info["repeated"] else 1
        assert run <= max_repeat
        assert not (info["repeated"] and frame % length == 0)
        assert not (info["repeated"] and not info["exploring"])


@pytest.mark.parametrize("between", [lambda env: env, lambda env: TimeLimit(env, 99), ClipAction])
def test_above_clip_action_it_draws_within_the_bounds_below(between):
    plain = ZetaRepeatWrapper(ToyEnv(action="uneven box", length=99), epsilon=1.0)
    clipped = ZetaRepeatWrapper(between(ClipAction(ToyEnv(action="uneven box", length=99))), epsilon=1.0)
    for env in (plain, clipped):
        env.reset(seed=5)
        for _ in range(20):
            env.step(INSIDE)
    assert np.array_equal(plain.unwrapped.received, clipped.unwrapped.received)
    clipped.step(np.array([50, -50], np.float32))  # the agent may still say anything


def test_without_bounds_below_clip_action_it_is_refused():
    with pytest.raises(ValueError, match="bounded floating-point Box"):
        ZetaRepeatWrapper(ClipAction(ToyEnv(action="half open box")))
    with pytest.raises(ValueError, match="bounded floating-point Box"):  # the switch of the pair is not clipped
        ZetaRepeatWrapper(HybridActionWrapper(ClipAction(ToyEnv()), encoding="box"))


def test_above_the_vector_clip_action_it_draws_within_the_bounds_below():
    def explored(clip: bool) -> list:
        envs = gym.vector.SyncVectorEnv([lambda: ToyEnv(action="uneven box", length=99)] * 2)
        envs = vector.ZetaRepeatWrapper(gym.wrappers.vector.ClipAction(envs) if clip else envs, epsilon=1.0)
        envs.reset(seed=5)
        return [envs.step(np.stack([INSIDE, INSIDE]))[-1]["executed_action"].tolist() for _ in range(20)]

    assert explored(clip=True) == explored(clip=False)
