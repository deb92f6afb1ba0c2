"""An episode that is left in its middle goes on bit for bit in another environment, its wrappers included."""

from copy import deepcopy

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from test_envs import Toy, Walk, as_bytes, through_json

from taac_wrappers import (
    HybridActionWrapper,
    PrevActionWrapper,
    RepeatStatisticsWrapper,
    RewardNormalizerWrapper,
    ZetaRepeatWrapper,
)
from taac_wrappers.training.envs import make_env
from taac_wrappers.training.resumable import ReplayableEnv


def actions_for(env, frames, seed):
    """Random actions of any space; half of the switches are 0."""
    space = deepcopy(env.action_space)
    space.seed(seed)
    return [space.sample() for _ in range(frames)]


def play(env, actions, reset_at=()):
    """Everything that a learner sees: observations, rewards, ends, and all infos but the time that it took."""
    seen = []
    for frame, action in enumerate(actions):
        observation, reward, terminated, truncated, info = env.step(action)
        info.get("episode", {}).pop("t", None)
        seen += [as_bytes(observation), float(reward), terminated, truncated, as_bytes(info)]
        if terminated or truncated or frame in reset_at:
            seen.append(as_bytes(env.reset()[0]))
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
    assert as_bytes(observation) != as_bytes(first_start)
    assert spaces.flatten(env.observation_space, observation).tobytes() == state["observation"].tobytes()
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
    assert info == {"walked": frames}
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
    with pytest.warns(UserWarning, match="did not repeat its episode of 5 steps exactly: starting a new one"):
        observation, info, exact = other.restore(state)
    assert not exact
    assert info == {"walked": 0}
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
    np.testing.assert_array_equal(state["actions"], np.stack(actions_for(env, 10, 0)), strict=True)
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


def test_actions_without_a_fixed_size_are_not_recorded():
    with pytest.raises(ValueError, match=r"actions of a fixed size, got Sequence"):
        ReplayableEnv(Toy(spaces.Sequence(spaces.Discrete(2))))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=-1),
        spaces.MultiDiscrete([2, 3]),
        spaces.Box(-1, 1, (2, 3), np.float64),
        spaces.Dict(action=spaces.Box(-1, 1, (2,)), switch=spaces.Discrete(2)),
    ],
    ids=str,
)
def test_actions_of_any_kind_are_executed_as_they_were(space):
    env, other = ReplayableEnv(Toy(space)), ReplayableEnv(Toy(space))
    env.reset(seed=0)
    for action in actions_for(env, 5, 0):
        env.step(deepcopy(action))
        assert as_bytes(env.unwrapped.received) == as_bytes(action)
    assert other.restore(through_json(env.episode_state()))[2]
    assert as_bytes(other.unwrapped.received) == as_bytes(action)


@pytest.mark.parametrize("bad", [{"action": np.zeros(1), "switch": 0.5}, {"action": np.zeros(1), "switch": 2}])
def test_a_bad_action_is_neither_bent_nor_recorded(bad):
    env = ReplayableEnv(HybridActionWrapper(Toy()))
    env.reset(seed=0)
    with pytest.raises((TypeError, ValueError, IndexError)):
        env.step(bad)
    assert len(env.episode_state()["actions"]) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"actions": None}, r"state\['actions'\] must have shape \('steps', 2\), got \(\)"),
        ({"actions": np.zeros((4, 3))}, r"state\['actions'\] must have shape \('steps', 2\), got \(4, 3\)"),
        ({"observation": np.zeros(5)}, r"state\['observation'\] must have shape \(2,\), got \(5,\)"),
        ({"rng_now": None}, r"state\['rng_now'\] must be a state of PCG64, got None"),
        ({"rng_now": {"bit_generator": "PCG64"}}, r"state\['rng_now'\] must be a state of PCG64"),
        ({"rng": {"bit_generator": "MT19937"}, "seed": None}, r"state\['rng'\] must be a state of PCG64"),
        ({"seed": None}, "either rng or seed, got None and None"),
        ({"wrappers": None}, r"state\['wrappers'\] must hold 0 wrappers' states, got None"),
        ({"wrappers": [{}]}, r"state\['wrappers'\] must hold 0 wrappers' states, got \[{}\]"),
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


# What the wrappers keep -----------------------------------------------------------------------------------------------


def wrap(env):
    """TAAC's environment side."""
    env = PrevActionWrapper(HybridActionWrapper(env), flatten=False)
    return RepeatStatisticsWrapper(env)


def wrap_with_state(env):
    """With wrappers that keep something from episode to episode: statistics of rewards, a schedule, a random stream."""
    return wrap(RewardNormalizerWrapper(ZetaRepeatWrapper(env, epsilon=(0.9, 0.2, 400), mu=1.0, max_repeat=4)))


def states_of(env):
    """The states of all wrappers that have one."""
    return [wrapper.state_dict() for wrapper in env._wrappers_with_state()]


@pytest.mark.parametrize("wrap", [wrap, wrap_with_state])
@pytest.mark.parametrize(
    ("env_id", "frames_before"),
    [("Pendulum-v1", 330), ("Hopper-v5", 150), ("BipedalWalker-v3", 400), ("FetchReach-v4", 130)],
)
def test_wrappers_go_on_too(wrap, env_id, frames_before):
    env, other = ReplayableEnv(make_env(env_id, wrap)), ReplayableEnv(make_env(env_id, wrap))
    env.reset(seed=5)
    play(env, actions_for(env, frames_before, 1), reset_at=(40,))
    other.reset(seed=11)  # with a past of its own
    play(other, actions_for(env, 90, 3))
    state = env.episode_state()
    assert state["seed"] is None  # a later episode
    assert len(state["actions"]) > 0  # in its middle
    observation, _, exact = other.restore(through_json(state))
    assert exact
    assert "prev_action" in observation
    assert states_of(other) == states_of(env)
    further = actions_for(env, 420, 2)
    seen = play(env, further, reset_at=(350,))
    assert play(other, further, reset_at=(350,)) == seen
    assert sum(b"fraction" in part for part in seen if isinstance(part, bytes)) >= 1  # an episode has ended
    assert states_of(other) == states_of(env)
    assert same_state(other.episode_state(), env.episode_state())


def test_the_first_episode_and_the_last_step_of_one():
    for frames in (0, 3, 5):
        env, other = (ReplayableEnv(wrap_with_state(Walk(length=5))) for _ in range(2))
        env.reset(seed=2)
        play(env, actions_for(env, 12, 0))
        env.reset(seed=3)
        for action in actions_for(env, frames, 1):
            env.step(action)
        assert other.restore(through_json(env.episode_state()))[2]
        assert as_bytes(other.reset()[0]) == as_bytes(env.reset()[0])
        further = actions_for(env, 30, 2)
        assert play(other, further) == play(env, further)


def test_without_the_wrappers_states_the_run_would_be_another():
    """What the tests above would miss if nothing were restored."""
    env, other = (ReplayableEnv(make_env("Pendulum-v1", wrap_with_state)) for _ in range(2))
    env.reset(seed=0)
    play(env, actions_for(env, 230, 0))
    state, fresh = env.episode_state(), states_of(other)
    with pytest.warns(UserWarning, match="did not repeat its episode of 30 steps exactly"):
        assert not other.restore({**state, "wrappers": fresh})[2]


@pytest.mark.parametrize(
    "damage",
    [
        lambda states: states[:1],
        lambda states: [*states, {}],
        lambda states: {"0": states[0]},
        lambda states: [states[0], None],
        lambda states: [states[0], {**states[1], "frames": -1}],
        lambda states: [states[0], {"frames": 7}],
        lambda states: [{**states[0], "count": "many"}, states[1]],
        lambda states: states[::-1],
    ],
)
def test_bad_states_of_wrappers_are_refused_and_change_nothing(damage):
    env, other = (ReplayableEnv(wrap_with_state(Walk())) for _ in range(2))
    for each, seed in ((env, 1), (other, 2)):
        each.reset(seed=seed)
        play(each, actions_for(env, 7, 0))
    bad = {**env.episode_state(), "wrappers": damage(env.episode_state()["wrappers"])}
    before, states = other.episode_state(), states_of(other)
    with pytest.raises((ValueError, TypeError), match=r"`?state"):
        other.restore(bad)
    assert states_of(other) == states
    assert same_state(other.episode_state(), before)
