"""What the agents see of an environment, and that an interrupted episode goes on bit for bit."""

import json
import pickle
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import RescaleAction

from taac_wrappers.training import envs as envs_module
from taac_wrappers.training.envs import (
    FlatObservation,
    FreshBox2DWorld,
    GoalObservation,
    ReplayableEnv,
    UnitAction,
    make_env,
    make_vector_env,
)
from taac_wrappers.training.tasks import TASKS

SIMULATED = [task for task in TASKS.values() if task.paper_id != "Town01"]


class Toy(gym.Env):
    """Remembers the last action it got; observes and rewards what it is told to."""

    def __init__(self, action_space=None, observation_space=None, observation=None):
        self.action_space = action_space or spaces.Box(-1, 1, (1,), np.float32)
        self.observation_space = observation_space or spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.given = np.zeros(1) if observation is None else observation
        self.received = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.given, {}

    def step(self, action):
        self.received = action
        return self.given, 2.5, False, False, {"is_success": 1.0}


class Walk(gym.Env):
    """A random walk that ends after ``length`` frames; ``hidden`` scales randomness that is not in ``np_random``."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, hidden=0.0, length=1000):
        self.hidden, self.length, self.private = hidden, length, np.random.default_rng()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = self.np_random.normal(size=2) + (options or {}).get("offset", 0.0)
        self.frames = 0
        return self.position, {"frames": 0}

    def step(self, action):
        if np.isnan(action).any():
            raise FloatingPointError("nan")
        self.position += action + self.np_random.normal(size=2) + self.hidden * self.private.normal(size=2)
        action *= 0  # an ill-behaved environment: it writes into what it was given and returns its own state
        self.frames += 1
        return self.position, float(self.position[0]), False, self.frames >= self.length, {"frames": self.frames}


def register(monkeypatch, env_id, entry_point):
    monkeypatch.setitem(gym.registry, env_id, EnvSpec(env_id, entry_point))


def actions_for(env, frames, seed):
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, (frames, *env.action_space.shape)).astype(np.float32)


# Spaces ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", SIMULATED, ids=lambda task: task.paper_id)
def test_every_task_has_the_documented_sizes_and_limit(task):
    env = make_env(task.env_id)
    assert env.observation_space.shape == (task.observation_size,)
    assert env.observation_space.dtype == np.float32
    assert env.action_space == spaces.Box(-1.0, 1.0, (task.action_size,), np.float32)
    assert env.spec.max_episode_steps == task.time_limit
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    observation, *_ = env.step(actions_for(env, 1, 0)[0])
    assert env.observation_space.contains(observation)
    env.close()


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "FetchReach-v4", "BipedalWalker-v3"])
def test_the_stack_passes_gymnasiums_checks_and_can_be_rebuilt_and_pickled(env_id):
    env = make_env(env_id)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the infinite bounds of the tasks' observations
        check_env(env, skip_render_check=True)
    assert str(gym.make(env.spec)) == str(env)
    assert pickle.loads(pickle.dumps(make_env("Pendulum-v1"))).action_space == make_env("Pendulum-v1").action_space


def test_goal_observations_join_observation_and_desired_goal_clipped():
    box = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    space = spaces.Dict(achieved_goal=box, desired_goal=box, observation=box)
    given = {
        "achieved_goal": np.array([7.0, 8.0]),
        "desired_goal": np.array([3.0, -201.0]),
        "observation": np.array([0.1, 1e9]),
    }
    env = GoalObservation(Toy(observation_space=space, observation=given))
    observation, _ = env.reset()
    np.testing.assert_array_equal(observation, np.array([0.1, 200.0, 3.0, -200.0], np.float32), strict=True)
    assert env.observation_space == spaces.Box(-200.0, 200.0, (4,), np.float32)


def test_goal_observation_refuses_other_spaces():
    with pytest.raises(ValueError, match="desired_goal, got Box"):
        GoalObservation(Toy())


def test_other_observations_become_one_float32_vector_that_is_a_copy():
    given = np.arange(6.0).reshape(2, 3)
    largest = np.finfo(np.float64).max
    env = FlatObservation(Toy(observation_space=spaces.Box(-largest, largest, (2, 3), np.float64), observation=given))
    observation, _ = env.reset()
    np.testing.assert_array_equal(observation, np.arange(6, dtype=np.float32), strict=True)
    assert env.observation_space == spaces.Box(-np.inf, np.inf, (6,), np.float32)

    given = np.zeros(2, np.float32)
    env = FlatObservation(Toy(observation_space=spaces.Box(-1, 1, (2,), np.float32), observation=given))
    observation, _ = env.reset()
    given += 1
    assert not observation.any()


def test_observations_without_a_fixed_size_are_refused():
    with pytest.raises(ValueError, match="observations of a fixed size, got Sequence"):
        FlatObservation(Toy(observation_space=spaces.Sequence(spaces.Discrete(2))))


def test_actions_are_clipped_and_scaled_to_the_inner_bounds():
    low, high = np.array([[-3.0, 0.0], [-1.0, 10.0]], np.float32), np.array([[1.0, 0.5], [1.0, 30.0]], np.float32)
    toy = Toy(spaces.Box(low, high))
    env = UnitAction(toy)
    assert env.action_space == spaces.Box(-1.0, 1.0, (4,), np.float32)
    for action, received in [
        ([-1, -1, -1, -1], low),
        ([1, 1, 1, 1], high),
        ([0, 0, 0, 0], [[-1.0, 0.25], [0.0, 20.0]]),
        ([0.5, -0.5, 0.25, 0.5], [[0.0, 0.125], [0.25, 25.0]]),
        ([-9, 9, -9, 9], [[-3.0, 0.5], [-1.0, 30.0]]),
    ]:
        env.step(np.array(action, np.float32))
        np.testing.assert_array_equal(toy.received, np.array(received, np.float32), strict=True)


def test_actions_of_another_type_become_the_inner_one():
    toy = Toy(spaces.Box(-2, 2, (1,), np.float32))
    UnitAction(toy).step(np.array([0.1]))
    np.testing.assert_array_equal(toy.received, np.array([0.2], np.float32), strict=True)


def test_scaling_agrees_with_gymnasium_and_leaves_unit_bounds_alone():
    space = spaces.Box(np.array([-0.4, 2.0], np.float32), np.array([0.7, 9.0], np.float32))
    ours, theirs = Toy(space), Toy(space)
    actions = actions_for(UnitAction(ours), 50, 0)
    for action in actions:
        UnitAction(ours).step(action)
        RescaleAction(theirs, np.float32(-1), np.float32(1)).step(action)
        np.testing.assert_allclose(ours.received, theirs.received, rtol=1e-6, atol=1e-6)
        assert space.contains(ours.received)
    unit = Toy(spaces.Box(-1, 1, (2,), np.float64))
    for action in actions:
        UnitAction(unit).step(action)
        assert unit.received.dtype == np.float64
        np.testing.assert_array_equal(unit.received, action)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Discrete(3), r"Box of float actions, got Discrete\(3\)"),
        (spaces.Box(0, 9, (1,), np.int32), r"Box of float actions, got Box\(0, 9, \(1,\), int32\)"),
        (spaces.Box(-np.inf, 1, (1,), np.float32), r"bounded actions, got Box\(-inf, 1.0, \(1,\), float32\)"),
    ],
)
def test_other_action_spaces_are_refused(monkeypatch, space, message):
    register(monkeypatch, "Toy-v0", Toy)
    with pytest.raises(ValueError, match=message):
        make_env("Toy-v0", action_space=space)


# Building -------------------------------------------------------------------------------------------------------------


def test_raw_returns_and_success_are_reported(monkeypatch):
    register(monkeypatch, "Toy-v0", Toy)
    env = make_env("Toy-v0", max_episode_steps=3)
    env.reset(seed=0)
    for _ in range(3):
        *_, truncated, info = env.step(np.zeros(1, np.float32))
    assert truncated
    assert info["is_success"] == 1.0
    assert (info["episode"]["r"], info["episode"]["l"]) == (7.5, 3)


def test_fetch_reports_success():
    env = make_env("FetchReach-v4")
    env.reset(seed=0)
    *_, info = env.step(np.zeros(4, np.float32))
    assert info["is_success"] in (0.0, 1.0)
    assert set(env.unwrapped.observation_space) == {"observation", "achieved_goal", "desired_goal"}
    env.close()


def test_arguments_of_the_caller_come_before_those_of_the_task():
    assert make_env("Ant-v5", include_cfrc_ext_in_observation=True).observation_space.shape == (105,)


def test_broken_simulators_are_named_before_anything_is_built(monkeypatch):
    monkeypatch.setattr(envs_module, "check_simulators", lambda env_id: (_ for _ in ()).throw(ValueError(env_id)))
    with pytest.raises(ValueError, match="FetchPush-v4"), pytest.warns(UserWarning, match="FetchPush-v2"):
        make_env("FetchPush-v2")


def test_a_video_of_every_episode_is_written(tmp_path):
    env = make_env("MountainCarContinuous-v0", video_folder=tmp_path / "videos", max_episode_steps=2)
    assert env.render_mode == "rgb_array"
    for _ in range(2):
        env.reset(seed=0)
        for action in actions_for(env, 2, 0):
            env.step(action)
    env.close()
    assert sorted(path.name for path in (tmp_path / "videos").glob("*.mp4")) == [
        "rl-video-episode-0.mp4",
        "rl-video-episode-1.mp4",
    ]


def test_a_bipedal_walker_begins_each_episode_in_a_new_world():
    def episode(env):
        env.reset(seed=3)
        return np.stack([env.step(action)[0] for action in actions_for(env, 150, 3)])

    used, fresh = make_env("BipedalWalker-v3"), make_env("BipedalWalker-v3")
    used.reset(seed=1)
    for action in actions_for(used, 60, 1):
        used.step(action)
    assert episode(used).tobytes() == episode(fresh).tobytes()
    world = used.unwrapped.world
    used.reset()
    assert used.unwrapped.world is not world
    assert used.unwrapped.world.gravity == world.gravity
    assert used.unwrapped.world.bodyCount == fresh.unwrapped.world.bodyCount
    assert not any(isinstance(env, FreshBox2DWorld) for env in stack(make_env("LunarLanderContinuous-v3")))


def stack(env):
    while isinstance(env, gym.Wrapper):
        yield env
        env = env.env


# Resuming one environment ---------------------------------------------------------------------------------------------


def through_json(state):
    """What a checkpoint does to a state: arrays are kept apart, the rest is text."""
    arrays = {key: value for key, value in state.items() if isinstance(value, np.ndarray)}
    plain = json.loads(json.dumps({key: value for key, value in state.items() if key not in arrays}))
    return {**plain, **{key: value.copy() for key, value in arrays.items()}}


def play(env, actions, reset_at=()):
    """Everything that a learner sees: observations, rewards, ends, and what episodes summed up to."""
    seen = []
    for frame, action in enumerate(actions):
        observation, reward, terminated, truncated, info = env.step(action)
        episode = info.get("episode", {})
        seen += [observation.tobytes(), float(reward), terminated, truncated, episode.get("r"), episode.get("l")]
        if terminated or truncated or frame in reset_at:
            seen.append(env.reset()[0].tobytes())
    return seen


@pytest.mark.parametrize(
    ("env_id", "frames_before"),
    [
        ("MountainCarContinuous-v0", 1300),
        ("LunarLanderContinuous-v3", 350),
        ("HalfCheetah-v5", 1300),
        ("Hopper-v5", 150),
        ("Walker2d-v4", 150),
        ("Ant-v5", 150),
        ("InvertedDoublePendulum-v5", 60),
        ("BipedalWalker-v3", 400),
        ("BipedalWalkerHardcore-v3", 300),
        ("FetchPush-v4", 130),
        ("FetchReach-v4", 130),
        ("FetchSlide-v4", 130),
        ("FetchPickAndPlace-v4", 130),
    ],
)
def test_a_later_episode_goes_on_bit_for_bit_in_another_environment(env_id, frames_before):
    env, other = ReplayableEnv(make_env(env_id)), ReplayableEnv(make_env(env_id))
    first_start = env.reset(seed=5)[0]
    play(env, actions_for(env, frames_before, 1), reset_at=(40,))
    state = env.episode_state()
    assert state["seed"] is None  # a later episode
    assert len(state["actions"]) > 0  # in its middle
    observation, _, exact = other.restore(through_json(state))
    assert exact
    assert observation.tobytes() == state["observation"].tobytes() != first_start.tobytes()
    further = actions_for(env, 150, 2)
    assert play(other, further, reset_at=(80,)) == play(env, further, reset_at=(80,))
    assert same_state(other.episode_state(), env.episode_state())


def same_state(first, second):
    plain = [
        {key: value for key, value in state.items() if not isinstance(value, np.ndarray)} for state in (first, second)
    ]
    arrays = [(state["actions"].tobytes(), state["observation"].tobytes()) for state in (first, second)]
    return plain[0] == plain[1] and arrays[0] == arrays[1]


@pytest.mark.parametrize("frames", [0, 1, 64, 65, 200])
@pytest.mark.parametrize("seed", [None, 7])
def test_any_number_of_frames_after_any_reset(frames, seed):
    env, other = ReplayableEnv(Walk()), ReplayableEnv(Walk())
    env.reset(seed=3)
    env.reset(seed=seed, options={"offset": 2.0})
    other.reset(seed=11)  # an environment that was used before
    play(env, actions_for(env, frames, 0))
    state = env.episode_state()
    assert (state["rng"] is None, state["seed"]) == (seed is not None, seed)
    observation, info, exact = other.restore(through_json(state))
    assert exact
    assert info == {"frames": frames}
    assert observation.tobytes() == env.unwrapped.position.tobytes()
    further = actions_for(env, 20, 1)
    assert play(other, further, reset_at=(10,)) == play(env, further, reset_at=(10,))


def test_an_episode_that_is_over_is_restored_at_its_end():
    env, other = ReplayableEnv(Walk(length=5)), ReplayableEnv(Walk(length=5))
    env.reset(seed=0)
    for action in actions_for(env, 5, 0):
        *_, truncated, _ = env.step(action)
    assert truncated
    assert other.restore(env.episode_state())[2]
    assert env.reset()[0].tobytes() == other.reset()[0].tobytes()


def test_randomness_drawn_outside_of_the_episode_is_put_back():
    env, other = ReplayableEnv(Walk()), ReplayableEnv(Walk())
    env.reset(seed=0)
    play(env, actions_for(env, 5, 0))
    env.unwrapped.np_random.normal()
    assert other.restore(env.episode_state())[2]
    further = actions_for(env, 5, 1)
    assert play(other, further) == play(env, further)


def test_an_environment_that_is_not_deterministic_begins_a_new_episode():
    env, other = ReplayableEnv(Walk(hidden=1.0)), ReplayableEnv(Walk(hidden=1.0))
    env.reset(seed=0)
    play(env, actions_for(env, 5, 0))
    state = env.episode_state()
    with pytest.warns(UserWarning, match="did not repeat its episode of 5 frames exactly: starting a new one"):
        observation, info, exact = other.restore(state)
    assert not exact
    assert info == {"frames": 0}
    assert len(other.episode_state()["actions"]) == 0
    assert observation.tobytes() == env.reset()[0].tobytes()  # the stream goes on where it was


def test_an_episode_that_ends_too_early_is_not_exact():
    env, other = ReplayableEnv(Walk()), ReplayableEnv(Walk(length=3))
    env.reset(seed=0)
    play(env, actions_for(env, 5, 0))
    with pytest.warns(UserWarning, match="exactly"):
        assert not other.restore(env.episode_state())[2]

    same, shorter = ReplayableEnv(Toy()), ReplayableEnv(gym.wrappers.TimeLimit(Toy(), 3))
    same.reset(seed=0)
    play(same, actions_for(same, 5, 0))
    with pytest.warns(UserWarning, match="exactly"):
        assert not shorter.restore(same.episode_state())[2]  # although every observation is the same


def test_recorded_actions_are_copies():
    env, other = ReplayableEnv(Walk()), ReplayableEnv(Walk())
    env.reset(seed=0)
    buffer = np.empty(2, np.float32)
    for action in actions_for(env, 10, 0):
        buffer[:] = action
        env.step(buffer)
        np.testing.assert_array_equal(buffer, action)  # although the environment writes into its argument
    state = env.episode_state()
    np.testing.assert_array_equal(state["actions"], actions_for(env, 10, 0), strict=True)
    kept = state["actions"].copy(), state["observation"].copy()
    env.reset()
    env.step(buffer)
    np.testing.assert_array_equal(state["actions"], kept[0])
    np.testing.assert_array_equal(state["observation"], kept[1])
    assert other.restore(state)[2]


def test_a_float64_action_is_executed_as_it_is_recorded():
    env, other = ReplayableEnv(Walk()), ReplayableEnv(Walk())
    env.reset(seed=0)
    env.step(np.array([0.1, 0.2]))
    assert other.restore(env.episode_state())[2]


def test_a_step_that_raises_is_not_recorded():
    env = ReplayableEnv(Walk())
    env.reset(seed=0)
    env.step(np.zeros(2, np.float32))
    before = env.episode_state()
    with pytest.raises(FloatingPointError):
        env.step(np.full(2, np.nan, np.float32))
    assert same_state(before, env.episode_state())


def test_there_is_no_state_before_the_first_reset():
    with pytest.raises(RuntimeError, match=r"call reset\(\) first"):
        ReplayableEnv(Walk()).episode_state()


def test_discrete_actions_are_not_recorded():
    with pytest.raises(ValueError, match=r"Box actions, got Discrete\(2\)"):
        ReplayableEnv(Toy(spaces.Discrete(2)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"actions": None}, r"state\['actions'\] must have shape \('frames', 2\), got \(\)"),
        ({"actions": np.zeros((4, 3))}, r"state\['actions'\] must have shape \('frames', 2\), got \(4, 3\)"),
        ({"observation": np.zeros(5)}, r"state\['observation'\] must have shape \(2,\), got \(5,\)"),
        ({"rng_now": None}, r"state\['rng_now'\] must be a state of PCG64, got None"),
        ({"rng_now": {"bit_generator": "PCG64"}}, r"state\['rng_now'\] must be a state of PCG64"),
        ({"rng": {"bit_generator": "MT19937"}, "seed": None}, r"state\['rng'\] must be a state of PCG64"),
        ({"seed": None}, "either rng or seed, got None and None"),
    ],
)
def test_a_bad_state_is_refused_and_changes_nothing(change, message):
    env = ReplayableEnv(Walk())
    env.reset(seed=1)
    env.step(np.ones(2, np.float32))
    before = env.episode_state()
    with pytest.raises(ValueError, match=message):
        env.restore({**before, **change})
    assert same_state(before, env.episode_state())


def test_an_incomplete_state_is_refused():
    env = ReplayableEnv(Walk())
    env.reset(seed=1)
    state = env.episode_state()
    del state["actions"], state["seed"]
    with pytest.raises(ValueError, match="state must hold seed, actions"):
        env.restore(state)


# Several environments -------------------------------------------------------------------------------------------------


def test_nothing_resets_by_itself_and_returned_arrays_are_the_callers(monkeypatch):
    register(monkeypatch, "Walk-v0", lambda: Walk(length=4))
    envs = make_vector_env("Walk-v0", 2)
    assert envs.metadata["autoreset_mode"] == AutoresetMode.DISABLED
    observations = [envs.reset(seed=0)[0]]
    kept = [observations[0].copy()]
    for _ in range(4):
        observation, _, _, truncations, infos = envs.step(np.ones((2, 2), np.float32))
        observations.append(observation)
        kept.append(observation.copy())
    np.testing.assert_array_equal(observations, kept)
    assert truncations.all()
    assert infos["episode"]["l"].tolist() == [4, 4]
    after, _ = envs.reset(options={"reset_mask": np.array([True, False])})
    assert (after[0] != observation[0]).any()
    np.testing.assert_array_equal(after[1], observation[1])
    envs.close()


def test_an_outdated_id_warns_once_for_all_environments():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        envs = make_vector_env("LunarLanderContinuous-v2", 3)
    ours = [str(warning.message) for warning in caught if "not available" in str(warning.message)]
    assert ours == ["LunarLanderContinuous-v2 is not available: using LunarLanderContinuous-v3"]
    envs.close()


@pytest.mark.parametrize("num_envs", [0, -1, 1.0, True, "2"])
def test_num_envs_must_be_a_positive_integer(num_envs):
    with pytest.raises(ValueError, match=f"num_envs must be a positive integer, got {num_envs!r}"):
        make_vector_env("Pendulum-v1", num_envs)


def play_together(envs, frames, seed):
    """Everything seen by a learner that resets what is done."""
    actions = np.random.default_rng(seed).uniform(-1, 1, (frames, *envs.action_space.shape)).astype(np.float32)
    seen = []
    for action in actions:
        observations, rewards, terminations, truncations, _ = envs.step(action)
        done = terminations | truncations
        seen += [observations.tobytes(), rewards.tobytes(), done.tobytes()]
        if done.any():
            seen.append(envs.reset(options={"reset_mask": done})[0].tobytes())
    return seen


@pytest.mark.parametrize(
    ("env_id", "num_envs"), [("Hopper-v5", 3), ("MountainCarContinuous-v0", 1), ("FetchPush-v4", 2)]
)
def test_all_environments_go_on_bit_for_bit(env_id, num_envs):
    envs, others = make_vector_env(env_id, num_envs), make_vector_env(env_id, num_envs)
    envs.reset(seed=4)
    play_together(envs, 105, 0)
    states = envs.episode_states()
    observations, exact = others.restore([through_json(state) for state in states])
    assert exact.all()
    np.testing.assert_array_equal(observations, np.stack([state["observation"] for state in states]), strict=True)
    assert play_together(others, 100, 1) == play_together(envs, 100, 1)


def test_environments_whose_episodes_are_over_can_be_put_back(monkeypatch):
    register(monkeypatch, "Walk-v0", lambda: Walk(length=4))
    envs = make_vector_env("Walk-v0", 2)
    envs.reset(seed=0)
    envs.step(np.zeros((2, 2), np.float32))
    states = envs.episode_states()
    first = [envs.step(np.ones((2, 2), np.float32))[0] for _ in range(3)]
    envs.restore(states)
    np.testing.assert_array_equal([envs.step(np.ones((2, 2), np.float32))[0] for _ in range(3)], first)


def test_states_of_another_number_of_environments_are_refused():
    envs = make_vector_env("Pendulum-v1", 2)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match="one entry for each of 2 environments, got 1"):
        envs.restore(envs.episode_states()[:1])
