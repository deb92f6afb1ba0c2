"""Evaluation against episodes whose every number is known."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from taac_wrappers import HybridActionWrapper, NRepeatWrapper, PrevActionWrapper, RepeatStatisticsWrapper
from taac_wrappers.training.envs import EpisodeCut, holds, make_env
from taac_wrappers.training.evaluation import evaluate
from taac_wrappers.training.metrics import apr


class Scripted(gym.Env):
    """Episode e lasts ``lengths[e]`` frames and pays ``e + 1`` each; the last frame succeeds in odd episodes."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, lengths=(3, 1), *, reports_success=True):
        self.lengths, self.reports_success = lengths, reports_success
        self.episode, self.seeds = -1, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.episode += 1
        self.frame = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.frame += 1
        end = self.frame == self.lengths[self.episode]
        # Success in the middle of an episode must not count.
        success = bool(self.episode % 2) if end else True
        info = {"is_success": success} if self.reports_success else {}
        ended_by_limit = self.episode == 0
        return np.zeros(1, np.float32), self.episode + 1.0, end and not ended_by_limit, end and ended_by_limit, info


class Listed:
    """Plays a list of actions through one buffer; of TAAC's kind if ``switches`` are given too."""

    def __init__(self, actions, switches=None):
        self.actions, self.switches = iter(actions), switches and iter(switches)
        self.buffer, self.modes = np.zeros((1, 2), np.float32), []

    def act(self, observation, deterministic=False):
        self.modes.append(deterministic)
        self.buffer[:] = next(self.actions)
        if self.switches is None:
            assert observation.shape == (1, 1)
            return self.buffer
        assert (observation["observation"].shape, observation["prev_action"].shape) == ((1, 1), (1, 2))
        return {"action": self.buffer, "switch": np.array([next(self.switches)])}


def taac(env):
    """TAAC's environment side."""
    return RepeatStatisticsWrapper(PrevActionWrapper(HybridActionWrapper(env), flatten=False))


ACTIONS = [(0.0, 0.5), (0.0, 0.5), (1.0, 0.0), (1.0, 0.0)]  # three frames, then one


def test_every_number_of_two_short_episodes():
    env, agent = Scripted(), Listed(ACTIONS)
    result = evaluate(agent, RepeatStatisticsWrapper(env), 2, seed=9)
    assert result == {
        "returns": [3.0, 2.0],
        "score": 2.5,
        "score_std": 0.5,
        "length": 2.0,
        "success": 0.5,
        "repeat_fraction": 0.25,  # the second frame alone: the last one repeats an action of another episode
        "apr": pytest.approx(4 / 3),
        "afr": pytest.approx((0 + 1.5 / 2) / 2 / 2),  # (1 + 0.5) / 2 over two steps in one episode, none in the other
    }
    assert all(type(value) is float for key, value in result.items() if key != "returns")
    assert all(type(value) is float for value in result["returns"])
    assert env.seeds == [9, None]
    assert agent.modes == [True] * 4


def test_the_agents_own_switch_decides_where_there_is_one():
    # The first frame counts as a repetition if the agent says so, a new action that equals the old one does not.
    env = Scripted()
    result = evaluate(Listed(ACTIONS, switches=[0, 1, 0, 1]), taac(env), 2, seed=0)
    assert result["repeat_fraction"] == 0.5
    assert result["apr"] == 2.0


def test_what_was_executed_is_played_and_shown():
    """The third action is not executed: its switch is 0."""

    class Seen(Listed):
        shown: list = []  # noqa: RUF012

        def act(self, observation, deterministic=False):
            self.shown.append(observation["prev_action"][0].tolist())
            return super().act(observation, deterministic)

    result = evaluate(Seen(ACTIONS, switches=[1, 1, 0, 1]), taac(Scripted()), 2, seed=0)
    assert Seen.shown == [[0, 0], [0, 0.5], [0, 0.5], [0, 0]]
    assert result["afr"] == 0.0
    assert result["repeat_fraction"] == 0.25


def test_an_agent_that_only_repeats_persists_for_all_frames():
    result = evaluate(Listed(ACTIONS, switches=[0, 0, 0]), taac(Scripted()), 1, seed=0)
    assert result["repeat_fraction"] == 1.0
    assert result["apr"] == 3.0


def test_frames_of_longer_decisions_are_all_counted():
    """By hand: decisions of two frames. An episode of five takes three of them, each a new action and a repetition."""
    env = RepeatStatisticsWrapper(NRepeatWrapper(Scripted((5,)), 2))
    result = evaluate(Listed([(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)]), env, 1, seed=0)
    assert (result["length"], result["returns"]) == (5.0, [5.0])
    assert result["repeat_fraction"] == pytest.approx(2 / 5)
    assert result["apr"] == pytest.approx(5 / 3)


def test_many_episodes_agree_with_the_repeat_statistics_wrapper():
    """Fractions are those of all frames, not the mean of the episodes'; the change of actions is that mean."""
    rng = np.random.default_rng(0)
    actions = np.repeat(rng.uniform(-1, 1, (60, 2)).astype(np.float32), rng.integers(1, 6, 60), axis=0)
    lengths = (40, 7, 1, len(actions) - 48)
    result = evaluate(Listed(actions), RepeatStatisticsWrapper(Scripted(lengths)), 4, seed=0)
    env, statistics, rest = RepeatStatisticsWrapper(Scripted(lengths)), [], iter(actions)
    for length in lengths:
        env.reset(seed=0)
        infos = [env.step(next(rest))[-1] for _ in range(length)]
        statistics.append(infos[-1]["repeat"])
    frames = np.array([each["frames"] for each in statistics])
    fractions = np.array([each["fraction"] for each in statistics])
    assert frames.tolist() == list(lengths)
    assert result["length"] == frames.mean()
    assert result["repeat_fraction"] == pytest.approx((fractions * frames).sum() / frames.sum(), rel=1e-12)
    assert result["afr"] == pytest.approx(np.mean([each["afr"] for each in statistics]), rel=1e-12)
    assert result["apr"] == pytest.approx(apr(result["repeat_fraction"]))


def test_an_episode_agrees_with_the_repeat_statistics_wrapper():
    rng = np.random.default_rng(0)
    actions = np.repeat(rng.uniform(-1, 1, (20, 2)).astype(np.float32), rng.integers(1, 6, 20), axis=0)
    result = evaluate(Listed(actions), RepeatStatisticsWrapper(Scripted((len(actions),))), 1, seed=0)
    env = RepeatStatisticsWrapper(Scripted((len(actions),)))
    env.reset(seed=0)
    for action in actions:
        statistics = env.step(action)[-1].get("repeat")
    for ours, theirs in (("repeat_fraction", "fraction"), ("apr", "apr"), ("afr", "afr"), ("length", "frames")):
        assert result[ours] == pytest.approx(statistics[theirs], rel=1e-12)
    assert result["apr"] == pytest.approx(apr(result["repeat_fraction"]))


def test_success_is_left_out_where_it_is_not_reported():
    assert "success" not in evaluate(
        Listed(ACTIONS), RepeatStatisticsWrapper(Scripted(reports_success=False)), 2, seed=0
    )


class RandomActions:
    """Random actions, the same in every evaluation."""

    def __init__(self, size):
        self.rng, self.size = np.random.default_rng(0), size

    def act(self, observation, deterministic=False):
        return self.rng.uniform(-1, 1, (1, self.size)).astype(np.float32)


def test_the_seed_decides_the_result():
    env = make_env("Pendulum-v1", RepeatStatisticsWrapper)
    first = evaluate(RandomActions(1), env, 2, seed=1)
    assert evaluate(RandomActions(1), env, 2, seed=1) == first  # although the environment was used in between
    assert evaluate(RandomActions(1), env, 2, seed=2)["returns"] != first["returns"]
    assert first["returns"][0] != first["returns"][1]
    assert first["repeat_fraction"] == 0.0
    assert first["length"] == 200.0


def test_a_robotics_task_reports_success():
    result = evaluate(RandomActions(4), make_env("FetchReach-v4", RepeatStatisticsWrapper), 1, seed=0)
    assert result["length"] == 50.0
    assert -50.0 <= result["score"] <= 0.0
    assert result["success"] in (0.0, 1.0)


def test_episodes_without_a_time_limit_are_cut_at_a_frame():
    """By hand: decisions of two frames, the last of them cut in half; the second episode ends before that."""
    gym.register("test_evaluation/Endless-v0", lambda: Scripted((10**9, 4)))
    wrap = lambda env: RepeatStatisticsWrapper(NRepeatWrapper(env, 2))  # noqa: E731
    env = make_env("test_evaluation/Endless-v0", wrap, longest_episode=5)
    result = evaluate(Listed([(0.0, 0.0)] * 5), env, 2, seed=0)
    assert holds(env, EpisodeCut)
    assert result["length"] == (5 + 4) / 2
    assert result["returns"] == [5.0, 8.0]
    assert result["repeat_fraction"] == pytest.approx(4 / 9)


def test_a_time_limit_of_its_own_is_left_alone():
    env = make_env("Pendulum-v1", RepeatStatisticsWrapper, longest_episode=5)
    assert evaluate(RandomActions(1), env, 1, seed=0)["length"] == 200.0
    assert not holds(env, EpisodeCut)


def test_whoever_watches_an_evaluation_may_end_it():
    begun = []

    def watch(episode):
        begun.append(episode)
        if len(begun) == 5:
            raise ZeroDivisionError

    env = Scripted((2, 1, 9))
    with pytest.raises(ZeroDivisionError):
        evaluate(Listed([(0.0, 0.0)] * 9), RepeatStatisticsWrapper(env), 3, seed=0, before_step=watch)
    assert begun == [1, 1, 2, 3, 3]
    assert env.frame == 1


@pytest.mark.parametrize("episodes", [0, -3, 1.5, True])
def test_episodes_must_be_a_positive_integer(episodes):
    env = Scripted()
    with pytest.raises(ValueError, match=f"episodes must be a positive integer, got {episodes}"):
        evaluate(Listed(ACTIONS), RepeatStatisticsWrapper(env), episodes, seed=0)
    assert env.seeds == []
