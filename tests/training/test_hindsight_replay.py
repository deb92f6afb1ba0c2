"""Hindsight: windows with another goal, against what the environment's rules say of every one of their transitions."""

from __future__ import annotations

import gymnasium as gym
import gymnasium_robotics  # noqa: F401 (registers Fetch)
import numpy as np
import pytest
from gymnasium import spaces

from taac_wrappers import NRepeatWrapper, RewardNormalizerWrapper
from taac_wrappers.training.envs import make_env
from taac_wrappers.training.hindsight import GoalRules, HindsightReplay
from taac_wrappers.training.replay import SequenceReplay, Windows

SPACE = spaces.Dict({name: spaces.Box(-1e6, 1e6, (1,)) for name in ("observation", "achieved_goal", "desired_goal")})
ACTIONS = spaces.Box(-1, 1, (1,))
GAMMA = 0.9


def near(achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
    return np.abs(achieved - desired)[:, 0] < 1.5


GOES_ON = GoalRules(lambda achieved, desired: near(achieved, desired) - 1.0, lambda a, d: np.zeros(len(a), bool))
STOPS = GoalRules(GOES_ON.reward, near)
SILENT = GoalRules(GOES_ON.reward, None)


class Recorded:
    """Envs whose observation and achieved goal is a number that is never seen twice; goals are never achieved.

    ``episode_of`` tells of every such number which numbers its episode had; ``ends`` how the step to it ended.
    """

    def __init__(self, replays: list[SequenceReplay], num_envs: int, frames: int, seed: int = 0):
        self.replays, self.num_envs, self.frame = replays, num_envs, 0
        self.rng = np.random.default_rng(seed)
        self.number = 10_000.0 * np.arange(1, num_envs + 1)
        self.episode = [[number] for number in self.number]
        self.episode_of: dict[float, list[float]] = dict(zip(self.number, self.episode, strict=True))
        self.ends: dict[float, tuple[bool, bool]] = {}
        self.reward: dict[float, float] = {}
        for replay in replays:
            replay.start(self.observe())
        self.go_on(frames)

    def observe(self) -> dict[str, np.ndarray]:
        here = self.number[:, None]
        return {"observation": here.copy(), "achieved_goal": here.copy(), "desired_goal": np.full_like(here, -5.0)}

    def go_on(self, frames: int) -> None:
        for _ in range(frames):
            terminated, truncated = self.rng.random((2, self.num_envs)) < 0.1
            repeated, reward = self.rng.random(self.num_envs) < 0.6, self.rng.normal(size=self.num_envs)
            self.number = self.number + 1
            for env, number in enumerate(self.number):
                self.episode[env].append(number)
                self.episode_of[number] = self.episode[env]
                self.ends[number] = bool(terminated[env]), bool(truncated[env])
                self.reward[number] = np.float32(reward[env])
            for replay in self.replays:
                action, discount = np.zeros((self.num_envs, 1)), np.full(self.num_envs, GAMMA)
                replay.add(action, reward, terminated, truncated, self.observe(), repeated=repeated, discount=discount)
            self.begin(terminated | truncated)

    def begin(self, done: np.ndarray) -> None:
        for env in np.flatnonzero(done):
            self.number[env] += 1
            self.episode[env] = [self.number[env]]
            self.episode_of[self.number[env]] = self.episode[env]
        if done.any():
            for replay in self.replays:
                replay.start(self.observe(), done)


def hindsight_replay(
    share: float, rules: GoalRules = GOES_ON, num_envs: int = 1, capacity: int = 90
) -> HindsightReplay:
    return HindsightReplay(SPACE, ACTIONS, share=share, rules=rules, capacity=capacity, num_envs=num_envs, seed=3)


def check(windows: Windows, recorded: Recorded, rules: GoalRules) -> tuple[int, int, list[tuple[float, float, float]]]:
    """Look at every transition; returns how many windows kept their goal and how many did not, and their choices."""
    length, batch = windows.valid.shape
    kept, relabelled, choices = 0, 0, []
    for b in range(batch):
        start, goal = windows.observation["observation"][b, 0], windows.observation["desired_goal"][b, 0]
        is_new = goal != -5.0
        kept, relabelled = kept + (not is_new), relabelled + is_new
        episode = recorded.episode_of[start]
        if is_new:  # achieved later in the episode
            assert goal in episode
            assert goal > start
            choices.append((start, goal, episode[-1]))
        for k in range(length):
            number = start + k + 1
            if not windows.valid[k, b]:
                assert windows.reward[k, b] == 0
                assert not any((windows.terminated[k, b], windows.truncated[k, b], windows.repeated[k, b]))
                continue
            next_state = windows.next_of[k, b]
            assert windows.next_observation["observation"][next_state, 0] == number
            assert windows.next_observation["desired_goal"][next_state, 0] == goal
            terminated, truncated = recorded.ends[number]
            reward = recorded.reward[number]
            if is_new:
                here, there = np.array([[number]]), np.array([[goal]])
                reward = rules.reward(here, there)[0]
                if rules.terminated is not None:
                    stops = bool(rules.terminated(here, there)[0])
                    terminated, truncated = stops, (terminated or truncated) and not stops
            assert windows.reward[k, b] == np.float32(reward)
            assert (windows.terminated[k, b], windows.truncated[k, b]) == (terminated, truncated)
            if terminated and k + 1 < length:
                assert not windows.valid[k + 1, b]
    return kept, relabelled, choices


@pytest.mark.parametrize("rules", [GOES_ON, STOPS, SILENT], ids=["goes on", "stops", "silent"])
@pytest.mark.parametrize(("num_envs", "follow"), [(1, "episode"), (3, "repeats"), (3, "episode")])
def test_every_window_is_what_the_rules_say_of_one_goal(rules, num_envs, follow):
    """The replay wraps around, so that the beginnings of old episodes are gone."""
    replay = hindsight_replay(0.5, rules, num_envs)
    recorded = Recorded([replay], num_envs, frames=70)
    kept = relabelled = 0
    for _ in range(20):
        recorded.go_on(3)
        counts = check(replay.sample(30, 4, follow=follow), recorded, rules)
        kept, relabelled = kept + counts[0], relabelled + counts[1]
    assert abs(relabelled / (kept + relabelled) - 0.5) < 0.1


def test_a_window_goes_on_past_its_goal_where_the_environment_would_and_ends_where_it_would_not():
    for rules, goes_past in ((GOES_ON, True), (STOPS, False)):
        replay = hindsight_replay(1.0, rules)
        Recorded([replay], 1, frames=80)
        windows = replay.sample(200, 4, follow="episode")
        reached = windows.reward == 0
        reached &= windows.valid
        assert reached[:-1].any()
        assert (windows.valid[1:] & reached[:-1]).any() == goes_past


def test_goals_are_uniform_over_what_follows_in_the_episode():
    replay = hindsight_replay(1.0, capacity=400)
    recorded = Recorded([replay], 1, frames=300)
    places = []
    for _ in range(60):
        _, relabelled, choices = check(replay.sample(50), recorded, GOES_ON)
        assert relabelled == 50
        places += [(goal - start - 0.5) / (last - start) for start, goal, last in choices if last - start >= 5]
    counts, _ = np.histogram(places, bins=4, range=(0, 1))
    assert len(places) > 1000
    assert counts.min() > 0.85 * counts.mean()


@pytest.mark.parametrize("look_at", ["all", "ends"])
def test_without_a_share_it_is_the_plain_replay_bit_for_bit(look_at):
    plain = SequenceReplay(SPACE, ACTIONS, capacity=90, num_envs=2, seed=3)
    hindsight = hindsight_replay(0.0, num_envs=2)
    Recorded([plain, hindsight], 2, frames=100)
    for train_on in ("first", "all"):
        how = {"follow": "episode", "train_on": train_on, "look_at": look_at}
        assert_same(plain.sample(20, 3, **how), hindsight.sample(20, 3, **how))


@pytest.mark.parametrize("train_on", ["first", "all"])
def test_the_end_of_a_window_has_its_goal_too(train_on):
    """N-step targets look at nothing but the last next state."""
    replays = [hindsight_replay(0.7, STOPS) for _ in range(2)]
    Recorded(replays, 1, frames=100)
    every, ends = (
        replay.sample(40, 4, follow="episode", train_on=train_on, look_at=look_at)
        for replay, look_at in zip(replays, ("all", "ends"), strict=True)
    )
    assert every.terminated.any()
    for k, b in np.argwhere(every.valid):
        last = every.valid[:, b].sum() - 1
        for name in SPACE:
            mine = ends.next_observation[name][ends.next_of[k, b]]
            np.testing.assert_array_equal(mine, every.next_observation[name][every.next_of[last, b]])
    np.testing.assert_array_equal(every.observation["desired_goal"], ends.observation["desired_goal"])
    goal_of = every.observation["desired_goal"][:40]
    of_trained = every.trained % 40
    np.testing.assert_array_equal(every.observation["desired_goal"], goal_of[of_trained])


def test_what_was_saved_is_sampled_as_before():
    replay, loaded = hindsight_replay(0.8, STOPS, 2), hindsight_replay(0.8, STOPS, 2)
    recorded = Recorded([replay], 2, frames=40)
    replay.sample(10)  # has looked for the episodes' ends
    first, cursor = replay.chunk(None)
    recorded.go_on(30)
    second, last = replay.chunk(cursor)
    Recorded([loaded], 2, frames=20, seed=8)
    loaded.sample(10)
    loaded.load_chunks([(first, cursor), (second, last)])
    loaded.rng.bit_generator.state = replay.rng.bit_generator.state
    for _ in range(5):
        assert_same(replay.sample(20, 3), loaded.sample(20, 3))


@pytest.mark.parametrize("change", ["interrupt", "forget"])
def test_episodes_that_were_cut_or_forgotten(change):
    replay = hindsight_replay(1.0, num_envs=2)
    recorded = Recorded([replay], 2, frames=60)
    for _ in range(10):
        recorded.go_on(4)
        replay.sample(10)
        mask = np.array([True, False])
        if change == "interrupt" and len(recorded.episode[0]) > 1:
            replay.interrupt(mask)
            recorded.ends[recorded.number[0]] = False, True
            recorded.begin(mask)
        if change == "forget":
            replay.forget(mask)
            recorded.begin(mask)
        check(replay.sample(40, 3, follow="episode"), recorded, GOES_ON)


def assert_same(one: Windows, other: Windows) -> None:
    for name, value in vars(one).items():
        if isinstance(value, dict):
            for key in value:
                np.testing.assert_array_equal(value[key], getattr(other, name)[key], err_msg=f"{name}.{key}")
        else:
            np.testing.assert_array_equal(value, getattr(other, name), err_msg=name)


# --- The rules of real environments ----------------------------------------------------------------------------------


def test_the_rules_of_fetch_are_its_own():
    env = make_env("FetchReach-v4")
    rules = GoalRules.of(env)
    achieved = np.zeros((2, 3), np.float32)
    desired = np.array([[0.04, 0, 0], [0.06, 0, 0]], np.float32)  # within five centimetres it is reached
    np.testing.assert_array_equal(rules.reward(achieved, desired), [0.0, -1.0])
    np.testing.assert_array_equal(rules.terminated(achieved, desired), [False, False])  # and the episode goes on


class Reach(gym.Env):
    """Ends where its goal is reached, and says so for one goal at a time, as Gymnasium-Robotics' mazes do."""

    observation_space = SPACE
    action_space = ACTIONS

    def compute_reward(self, achieved, desired, info):
        return -np.linalg.norm(achieved - desired, axis=-1)

    def compute_terminated(self, achieved, desired, info):
        assert achieved.shape == (1,)
        return np.linalg.norm(achieved - desired) < 0.5


def test_rules_for_one_goal_at_a_time():
    rules = GoalRules.of(Reach())
    achieved, desired = np.array([[0.0], [2.0], [3.0]]), np.array([[0.1], [0.0], [3.2]])
    np.testing.assert_allclose(rules.reward(achieved, desired), [-0.1, -2.0, -0.2], rtol=1e-6)
    assert rules.terminated(achieved, desired).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (lambda: gym.make("Pendulum-v1"), "--her needs a goal environment, whose observation has achieved_goal and"),
        (lambda: NRepeatWrapper(make_env("FetchReach-v4"), 2), "compute_reward.*NRepeatWrapper"),
        (lambda: RewardNormalizerWrapper(make_env("FetchReach-v4")), "compute_reward.*RewardNormalizerWrapper"),
    ],
    ids=["no goals", "sums", "normalized"],
)
def test_where_hindsight_cannot_be(env, message):
    with pytest.raises(ValueError, match=message):
        GoalRules.of(env())


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_is_a_share(share):
    with pytest.raises(ValueError, match=f"share must be in .0, 1., got {share}"):
        hindsight_replay(share)
