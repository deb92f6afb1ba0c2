"""What the agents see of an environment, one or several; test_resumable.py is about leaving it in an episode."""

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
from gymnasium.vector.utils import batch_space, iterate
from gymnasium.wrappers import RescaleAction

from taac_wrappers import HybridActionWrapper, NRepeatWrapper, PrevActionWrapper, RepeatStatisticsWrapper
from taac_wrappers.training import envs as envs_module
from taac_wrappers.training.engines import BadObservation
from taac_wrappers.training.envs import (
    FlatObservation,
    FreshBox2DWorld,
    UnitAction,
    check_filming,
    make_env,
    make_vector_env,
    random_action,
)
from taac_wrappers.training.replay import SequenceReplay
from taac_wrappers.training.structure import named
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
        return self.position, {"walked": 0}

    def step(self, action):
        if np.isnan(action).any():
            raise FloatingPointError("nan")
        self.position += action + self.np_random.normal(size=2) + self.hidden * self.private.normal(size=2)
        action *= 0  # an ill-behaved environment: it writes into what it was given and returns its own state
        self.frames += 1
        return self.position, float(self.position[0]), False, self.frames >= self.length, {"walked": self.frames}


def register(monkeypatch, env_id, entry_point):
    monkeypatch.setitem(gym.registry, env_id, EnvSpec(env_id, entry_point))


def wrap(env):
    """TAAC's environment side."""
    return RepeatStatisticsWrapper(PrevActionWrapper(HybridActionWrapper(env), flatten=False))


def as_bytes(value):
    """All that is nested in a value, to the bit: names, types, shapes and numbers."""
    if isinstance(value, dict):
        return b"{" + b",".join(key.encode() + b":" + as_bytes(value[key]) for key in sorted(value)) + b"}"
    array = np.asarray(value)
    return f"{array.dtype}{array.shape}".encode() + (repr(value).encode() if array.dtype == object else array.tobytes())


def actions_for(env, frames, seed):
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, (frames, *env.action_space.shape)).astype(np.float32)


# Spaces ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", SIMULATED, ids=lambda task: task.paper_id)
def test_every_task_has_the_documented_sizes_and_limit(task):
    env = make_env(task.env_id)
    parts = named("observation", env.observation_space)
    parts.pop("observation.achieved_goal", None)  # no agent looks at it: the observation holds it already
    assert sum(part.shape[0] for part in parts.values()) == task.observation_size
    assert {(part.dtype, len(part.shape)) for part in parts.values()} == {(np.dtype(np.float32), 1)}
    assert env.action_space == spaces.Box(-1.0, 1.0, (task.action_size,), np.float32)
    assert env.spec.max_episode_steps == task.time_limit
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    observation, *_ = env.step(actions_for(env, 1, 0)[0])
    assert env.observation_space.contains(observation)
    env.close()


@pytest.mark.parametrize("wrappers", [envs_module.no_wrappers, wrap])
@pytest.mark.parametrize("env_id", ["Pendulum-v1", "FetchReach-v4", "BipedalWalker-v3"])
def test_the_stack_passes_gymnasiums_checks_and_can_be_rebuilt_and_pickled(env_id, wrappers):
    env = make_env(env_id, wrappers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the infinite bounds of the tasks' observations
        check_env(env, skip_render_check=True)
    assert str(gym.make(env.spec)) == str(env)
    assert pickle.loads(pickle.dumps(make_env("Pendulum-v1"))).action_space == make_env("Pendulum-v1").action_space


GOAL_BOX = spaces.Box(-np.inf, np.inf, (2,), np.float64)
GOAL_SPACE = spaces.Dict(achieved_goal=GOAL_BOX, desired_goal=GOAL_BOX, observation=GOAL_BOX)
GOAL = {
    "achieved_goal": np.array([7.0, 8.0]),
    "desired_goal": np.array([3.0, -201.0]),
    "observation": np.array([0.1, 1e9]),
}


def test_goal_observations_stay_apart_and_are_clipped(monkeypatch):
    register(monkeypatch, "Goal-v0", lambda: Toy(observation_space=GOAL_SPACE, observation=GOAL))
    env = make_env("Goal-v0")
    assert env.observation_space == spaces.Dict(dict.fromkeys(GOAL_SPACE, spaces.Box(-200.0, 200.0, (2,), np.float32)))
    expected = {"achieved_goal": [7, 8], "desired_goal": [3, -200], "observation": [0.1, 200]}
    for observation in (env.reset()[0], env.step(np.zeros(1, np.float32))[0]):
        assert observation.keys() == expected.keys()
        for key, numbers in expected.items():
            np.testing.assert_array_equal(observation[key], np.array(numbers, np.float32), strict=True)
    wrapped = make_env("Goal-v0", wrap)
    assert set(wrapped.observation_space) == {*GOAL_SPACE, "prev_action"}
    assert wrapped.observation_space["prev_action"] == spaces.Box(-1.0, 1.0, (1,), np.float32)  # not clipped


def test_other_dicts_keep_their_entries_which_are_not_clipped():
    box = spaces.Box(-np.inf, np.inf, (2, 2), np.float64)
    space = spaces.Dict(a=box, b=spaces.Discrete(3), c=spaces.Dict(x=spaces.Box(-1, 1, (1,)), y=spaces.Discrete(2)))
    given = {"a": np.array([[1, 2], [3, 1e9]]), "b": 2, "c": {"x": np.array([0.5], np.float32), "y": 0}}
    env = FlatObservation(Toy(observation_space=space, observation=given))
    sizes = {"a": 4, "b": 3, "c": 3}
    assert {key: part.shape for key, part in env.observation_space.items()} == {key: (n,) for key, n in sizes.items()}
    observation, _ = env.reset()
    assert observation in env.observation_space
    for key, numbers in {"a": [1, 2, 3, 1e9], "b": [0, 0, 1], "c": [0.5, 1, 0]}.items():
        np.testing.assert_array_equal(observation[key], np.array(numbers, np.float32), strict=True)
    given["a"][:] = 7
    assert observation["a"].tolist() == [1, 2, 3, 1e9]  # a copy


@pytest.mark.parametrize("observation", [np.zeros(2), None, [1, 2]])
def test_something_else_instead_of_a_dict_is_a_bad_observation(observation):
    env = FlatObservation(Toy(observation_space=GOAL_SPACE, observation=GOAL))
    with pytest.raises(BadObservation, match=r"instead of a dict of .*'achieved_goal', 'desired_goal', 'observation'"):
        env.observation(observation)


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
        make_env("Toy-v0", env_kwargs={"action_space": space})


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 255, (96, 96, 3), np.uint8),
        spaces.Dict(speed=spaces.Box(0, 9, (2,)), camera=spaces.Box(0, 255, (96, 96, 3), np.uint8)),
        spaces.Dict(sensors=spaces.Dict(camera=spaces.Box(0, 255, (96, 96, 3), np.uint8))),
        spaces.Box(0, 255, (4, 96, 96, 3), np.uint8),
    ],
)
def test_images_are_refused(monkeypatch, space):
    register(monkeypatch, "Toy-v0", Toy)
    with pytest.raises(
        ValueError, match=r"env observes images, Box\(0, 255, .*96, 96, 3\), uint8\), .* no encoder yet"
    ):
        make_env("Toy-v0", env_kwargs={"observation_space": space})


# Building -------------------------------------------------------------------------------------------------------------


def test_raw_returns_and_success_are_reported(monkeypatch):
    register(monkeypatch, "Toy-v0", Toy)
    env = make_env("Toy-v0", env_kwargs={"max_episode_steps": 3})
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
    env = make_env("Ant-v5", env_kwargs={"include_cfrc_ext_in_observation": True})
    assert env.observation_space.shape == (105,)


@pytest.mark.parametrize(
    ("env_kwargs", "problem"),
    [({"lenght": 3}, "unexpected keyword argument 'lenght'"), ({"length": "three"}, "could not be walked")],
)
def test_arguments_that_an_environment_cannot_use_are_named(monkeypatch, env_kwargs, problem):
    class Picky(Walk):
        def __init__(self, length=3):
            assert isinstance(length, int), "could not be walked"

    register(monkeypatch, "Picky-v0", Picky)
    for make in (make_env, lambda *args, **kwargs: make_vector_env(*args, 1, **kwargs)):
        with pytest.raises(ValueError, match=rf"^--env-kwargs \{{.*\}} cannot be used: .*{problem}"):
            make("Picky-v0", env_kwargs=env_kwargs)


@pytest.mark.parametrize("problem", ["no light", "no camera"])
def test_an_environment_that_cannot_be_filmed(monkeypatch, problem):
    class Dark(Walk):
        metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
        render_mode = "rgb_array" if problem == "no light" else None

        def __init__(self, render_mode=None):
            super().__init__()

        def render(self):
            raise RuntimeError("no light")

    register(monkeypatch, "Dark-v0", Dark)
    expected = "no light" if problem == "no light" else "Render mode is None"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=f"^--film: Dark-v0 cannot be filmed: {expected}"):
            check_filming("--film", "Dark-v0", wrap)


def test_broken_simulators_are_named_before_anything_is_built(monkeypatch):
    monkeypatch.setattr(envs_module, "check_simulators", lambda env_id: (_ for _ in ()).throw(ValueError(env_id)))
    with pytest.raises(ValueError, match="FetchPush-v4"), pytest.warns(UserWarning, match="FetchPush-v2"):
        make_env("FetchPush-v2")


def test_a_video_of_every_episode_is_written(tmp_path):
    env = make_env("MountainCarContinuous-v0", video_folder=tmp_path / "videos", env_kwargs={"max_episode_steps": 2})
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


def test_the_methods_wrappers_go_around_everything():
    env = make_env("Pendulum-v1", wrap)
    names = [type(layer).__name__ for layer in stack(env)][:5]
    own = ["RepeatStatisticsWrapper", "PrevActionWrapper", "HybridActionWrapper"]
    assert names == [*own, "UnitAction", "FlatObservation"]
    assert env.action_space == spaces.Dict(action=spaces.Box(-1, 1, (1,)), switch=spaces.Discrete(2))
    observation, _ = env.reset(seed=0)
    np.testing.assert_array_equal(observation["observation"], make_env("Pendulum-v1").reset(seed=0)[0], strict=True)
    assert observation["prev_action"].tolist() == [0]
    observation, *_, info = env.step({"action": np.array([0.25], np.float32), "switch": 1})
    assert observation["prev_action"].tolist() == info["executed_action"].tolist() == [0.25]
    for _ in range(199):
        info = env.step({"action": np.zeros(1, np.float32), "switch": 0})[-1]
    assert (info["repeat"]["fraction"], info["repeat"]["frames"], info["episode"]["l"]) == (199 / 200, 200, 200)


def through_json(state):
    """What a checkpoint does to a state: arrays are kept apart, the rest is text."""
    arrays = {key: value for key, value in state.items() if isinstance(value, np.ndarray)}
    plain = json.loads(json.dumps({key: value for key, value in state.items() if key not in arrays}))
    return {**plain, **{key: value.copy() for key, value in arrays.items()}}


def stack(env):
    while isinstance(env, gym.Wrapper):
        yield env
        env = env.env


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
    """Everything seen by a learner that resets what is done, but for the time that episodes took."""
    rng, seen = np.random.default_rng(seed), []
    for _ in range(frames):
        observations, rewards, terminations, truncations, infos = envs.step(random_action(rng, envs.action_space))
        done = terminations | truncations
        infos.get("episode", {}).pop("t", None)
        seen += [as_bytes(observations), rewards.tobytes(), done.tobytes(), as_bytes(infos)]
        if done.any():
            seen.append(as_bytes(envs.reset(options={"reset_mask": done})[0]))
    return seen


@pytest.mark.parametrize("wrappers", [envs_module.no_wrappers, wrap])
@pytest.mark.parametrize(
    ("env_id", "num_envs"), [("Hopper-v5", 3), ("MountainCarContinuous-v0", 1), ("FetchPush-v4", 2)]
)
def test_all_environments_go_on_bit_for_bit(env_id, num_envs, wrappers):
    envs, others = (make_vector_env(env_id, num_envs, wrappers) for _ in range(2))
    envs.reset(seed=4)
    play_together(envs, 105, 0)
    states = envs.episode_states()
    observations, exact = others.restore([through_json(state) for state in states])
    assert exact.all()
    rows = [spaces.flatten(envs.single_observation_space, row) for row in iterate(envs.observation_space, observations)]
    np.testing.assert_array_equal(rows, np.stack([state["observation"] for state in states]), strict=True)
    assert play_together(others, 100, 1) == play_together(envs, 100, 1)


@pytest.mark.parametrize("engine", ["sync", "async"])
def test_goal_observations_reach_the_replay_apart(engine):
    """Through one environment, several of them with TAAC's wrappers, and the replay."""
    envs = make_vector_env("FetchReach-v4", 2, wrap, engine=engine)
    sizes = {"achieved_goal": 3, "desired_goal": 3, "observation": 10, "prev_action": 4}
    assert {key: part.shape for key, part in envs.single_observation_space.items()} == {
        key: (size,) for key, size in sizes.items()
    }
    replay = SequenceReplay(envs.single_observation_space, envs.executed_action_space, capacity=200, num_envs=2, seed=0)
    observation, _ = envs.reset(seed=3)
    alone = make_env("FetchReach-v4", wrap)
    first = alone.reset(seed=4)[0]
    assert as_bytes({key: rows[1] for key, rows in observation.items()}) == as_bytes(first)
    replay.start(observation)
    rng, observed = np.random.default_rng(0), [observation]
    for _ in range(20):
        observation, reward, terminated, truncated, infos = envs.step(random_action(rng, envs.action_space))
        told = infos["executed_action"], reward, terminated, truncated, observation
        replay.add(*told, repeated=infos["repeated"], discount=np.full(2, 0.98))
        observed.append(observation)
    windows = replay.sample(200)

    def name_of(rows, env):
        return rows["observation"][env].tobytes() + rows["desired_goal"][env].tobytes()

    times = {name_of(rows, env): (time, env) for time, rows in enumerate(observed) for env in range(2)}
    assert len(times) == 42
    for row in range(200):
        time, env = times[name_of(windows.observation, row)]
        for key in sizes:
            np.testing.assert_array_equal(windows.observation[key][row], observed[time][key][env])
            np.testing.assert_array_equal(windows.next_observation[key][row], observed[time + 1][key][env])
    envs.close()


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(np.array([-3.0, 0.0], np.float32), np.array([1.0, 0.5], np.float32)),
        spaces.Box(-1, 1, (2,), np.float64),
        spaces.Dict(action=spaces.Box(-1, 1, (2,)), switch=spaces.Discrete(2)),
        spaces.Dict(action=spaces.Box(-1, 1, (1,)), repeat=spaces.Discrete(4, start=1)),
    ],
    ids=str,
)
def test_random_actions_are_uniform_over_the_space(space):
    batched = batch_space(space, 3000)
    action, again, other = (random_action(np.random.default_rng(seed), batched) for seed in (0, 0, 1))
    assert batched.contains(action)
    assert as_bytes(action) == as_bytes(again) != as_bytes(other)
    for name, part in named("action", batched).items():
        drawn = named("action", action)[name]
        assert drawn.dtype == part.dtype
        if isinstance(part, spaces.Box):
            unit = np.sort((drawn - part.low) / (part.high - part.low), axis=0)
            assert np.abs(unit - np.arange(1, 3001)[:, None] / 3000).max() < 1.95 / np.sqrt(3000)  # Kolmogorov-Smirnov
        else:
            shares = np.bincount(drawn - part.start[0]) / 3000
            assert shares == pytest.approx([1 / part.nvec[0]] * part.nvec[0], abs=0.035)


def test_decisions_of_several_frames_are_reported(monkeypatch):
    register(monkeypatch, "Walk-v0", lambda: Walk(length=5))
    envs = make_vector_env("Walk-v0", 2, lambda env: NRepeatWrapper(env, 3, gamma=0.5))
    envs.reset(seed=0)
    actions = np.array([[0.5, 0.25], [-1.0, 1.0]], np.float32)
    for frames, discount, truncated in ((3, 0.125, False), (2, 0.25, True)):
        *_, truncations, infos = envs.step(actions)
        assert infos["frames"].tolist() == [frames] * 2
        assert infos["discount"].tolist() == [discount] * 2
        assert infos["repeated"].tolist() == [False] * 2
        np.testing.assert_array_equal(infos["executed_action"], actions, strict=True)
        assert truncations.tolist() == [truncated] * 2
    assert infos["episode"]["l"].tolist() == [5, 5]  # in frames
    envs.close()


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
