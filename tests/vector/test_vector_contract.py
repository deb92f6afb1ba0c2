"""What holds for every vector wrapper: arguments, errors, arrays that nobody else changes, masks of resets."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, Sequence
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.wrappers.vector import DictInfoToList
from vector_toys import BOX_ACTION, MODES, ActionSource, NativeDrift, assert_same, lockstep, sync

import taac_wrappers
from taac_wrappers import vector

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
NAMES = vector.__all__


def full_stack(envs: VectorEnv) -> VectorEnv:
    envs = vector.HybridActionWrapper(vector.ZetaRepeatWrapper(envs, epsilon=0.4))
    envs = vector.PrevActionWrapper(vector.RewardNormalizerWrapper(envs), flatten=False)
    return vector.RepeatStatisticsWrapper(envs)


@pytest.mark.parametrize("name", NAMES)
def test_arguments_are_those_of_the_wrapper_for_one_env(name: str) -> None:
    own, other = (inspect.signature(getattr(module, name).__init__) for module in (vector, taac_wrappers))
    for argument in list(own.parameters)[2:]:
        assert own.parameters[argument] == other.parameters[argument]
    assert list(own.parameters) == list(other.parameters)


@pytest.mark.parametrize("name", NAMES)
def test_every_argument_is_recorded(name: str) -> None:
    wrapper = getattr(vector, name)(sync(2, NEXT_STEP))
    defaults = {
        argument.name: argument.default
        for argument in list(inspect.signature(type(wrapper).__init__).parameters.values())[2:]
    }
    assert wrapper._saved_kwargs == defaults


@pytest.mark.parametrize("name", NAMES)
def test_the_env_must_be_a_vector_env(name: str) -> None:
    with pytest.raises(TypeError, match=r"for vector environments, got .*MountainCar.*: use taac_wrappers for one"):
        getattr(vector, name)(gym.make("MountainCarContinuous-v0"))
    with pytest.raises(TypeError, match=r"`env` must be a gymnasium.vector.VectorEnv, got 3 of type int"):
        getattr(vector, name)(3)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("between", [lambda envs: envs, VectorWrapper])
def test_infos_in_a_list_are_refused_at_once(name: str, between: type) -> None:
    with pytest.raises(TypeError, match=r"DictInfoToList goes outermost, around .* got .*DictInfoToList"):
        getattr(vector, name)(between(DictInfoToList(sync(2, NEXT_STEP))))
    envs = DictInfoToList(getattr(vector, name)(sync(2, NEXT_STEP)))
    assert envs.reset(seed=0)[1] == [{}, {}]


@pytest.mark.parametrize("space", [Graph(Discrete(2), None), Sequence(Discrete(2))], ids=["graph", "sequence"])
@pytest.mark.parametrize("name", NAMES)
def test_an_action_space_that_is_not_supported_is_named(name: str, space: gym.Space) -> None:
    envs = sync(2, NEXT_STEP, action_space=space)
    if name == "RewardNormalizerWrapper":  # it has nothing to do with actions
        assert getattr(vector, name)(envs).single_action_space is space
        return
    with pytest.raises(ValueError, match=r"(must be|needs) a .*Box.*, got (Graph|Sequence)\("):
        getattr(vector, name)(envs)


class Talkative(gym.Wrapper):
    """Uses the names of the repeat wrappers' infos for something else, on reset too."""

    words: ClassVar[dict[str, Any]] = {"frames": 28, "discount": 0.5, "repeated": True}

    def reset(self, **kwargs: Any) -> Any:
        observation, info = self.env.reset(**kwargs)
        return observation, {**info, **self.words}

    def step(self, action: Any) -> Any:
        *result, info = self.env.step(action)
        return *result, {**info, **self.words, "executed_action": "jump"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("below", [(), ((taac_wrappers.HybridActionWrapper, {"encoding": "box"}),)], ids=["", "hybrid"])
def test_what_the_envs_say_under_the_names_of_reports_is_not_believed(
    name: str, mode: AutoresetMode, below: tuple
) -> None:
    arguments = {"epsilon": (0.9, 0.1, 20)} if name == "ZetaRepeatWrapper" else {}
    quiet, loud = (
        getattr(vector, name)(sync(2, mode, (*talk, *below)), **arguments) for talk in ((), ((Talkative, {}),))
    )
    source = ActionSource(quiet.action_space, 5)
    assert_same(quiet.reset(seed=5)[0], loud.reset(seed=5)[0])
    is_repeat_wrapper = hasattr(quiet, "executed_action_space")
    for _ in range(40):
        actions = source()
        (*wanted, wanted_infos), (*got, infos) = quiet.step(actions), loud.step(actions)
        assert_same(tuple(wanted), tuple(got))
        assert_same(wanted_infos.get("repeat", {}), infos.get("repeat", {}))
        if is_repeat_wrapper:
            for key in ("frames", "executed_action", "repeated", "exploring"):
                assert_same(wanted_infos.get(key, ()), infos.get(key, ()))
            ends = [infos, infos.get("final_info", {})]
            assert below or not any("discount" in part or "_discount" in part for part in ends)
        done = got[2] | got[3]
        if mode is DISABLED and done.any():
            for envs in (quiet, loud):
                envs.reset(options={"reset_mask": done.copy()})
    if name == "ZetaRepeatWrapper":
        assert_same(quiet.state_dict(), loud.state_dict())


UNBOUNDED = Box(-np.inf, np.inf, (2,))


@pytest.mark.parametrize(
    ("name", "arguments", "space", "named"),
    [
        ("PrevActionWrapper", {"key": ""}, BOX_ACTION, "key"),
        ("PrevActionWrapper", {"key": "observation", "flatten": False}, BOX_ACTION, "'observation'"),
        ("PrevActionWrapper", {"flatten": 1}, BOX_ACTION, "flatten"),
        ("PrevActionWrapper", {"initial_action": [0.0, 9.0]}, BOX_ACTION, "initial_action.*9"),
        ("PrevActionWrapper", {"initial_action": [0.0]}, BOX_ACTION, "initial_action.*shape"),
        ("HybridActionWrapper", {"encoding": "tuple"}, BOX_ACTION, "encoding.*'tuple'"),
        ("HybridActionWrapper", {}, Discrete(3), "action_space.*Discrete"),
        ("ZetaRepeatWrapper", {"epsilon": 1.5}, BOX_ACTION, "epsilon.*1.5"),
        ("ZetaRepeatWrapper", {"epsilon": (1.0, 0.0, -5)}, BOX_ACTION, "epsilon.*-5"),
        ("ZetaRepeatWrapper", {"mu": float("nan")}, BOX_ACTION, "mu.*nan"),
        ("ZetaRepeatWrapper", {"max_repeat": 0}, BOX_ACTION, "max_repeat.*0"),
        ("ZetaRepeatWrapper", {}, UNBOUNDED, "bounded"),
        ("RewardNormalizerWrapper", {"clip": 0.0}, BOX_ACTION, "clip.*0"),
        ("RewardNormalizerWrapper", {"speed": -1.0}, BOX_ACTION, "speed.*-1"),
        ("RewardNormalizerWrapper", {"update": None}, BOX_ACTION, "update.*None"),
        ("RepeatStatisticsWrapper", {"key": 3}, BOX_ACTION, "key.*3"),
    ],
)
def test_bad_arguments(name: str, arguments: dict[str, Any], space: gym.Space, named: str) -> None:
    with pytest.raises((ValueError, TypeError), match=named):
        getattr(vector, name)(sync(2, NEXT_STEP, action_space=space), **arguments)


ACTIONS = np.array([[0.0, 1.0], [0.5, 2.0]], np.float32)


@pytest.mark.parametrize(
    ("wrapper", "bad", "named"),
    [
        (vector.HybridActionWrapper, ACTIONS, "'switch'"),
        (vector.HybridActionWrapper, {"action": ACTIONS}, "'switch'"),
        (vector.HybridActionWrapper, {"action": ACTIONS[:1], "switch": [1, 1]}, "action.*shape"),
        (vector.HybridActionWrapper, {"action": ACTIONS * np.nan, "switch": [1, 1]}, "action.*nan"),
        (vector.HybridActionWrapper, {"action": ACTIONS * 3, "switch": [1, 1]}, "action.*6"),
        (vector.HybridActionWrapper, {"action": ACTIONS, "switch": [1, 2]}, "switch.*2"),
        (vector.HybridActionWrapper, {"action": ACTIONS, "switch": [0.5, 1.0]}, "switch.*0.5"),
        (vector.ZetaRepeatWrapper, ACTIONS[0], "action.*shape"),
        (vector.ZetaRepeatWrapper, ACTIONS * np.nan, "action.*nan"),
        (vector.PrevActionWrapper, ACTIONS * 3, "action.*6"),
    ],
)
def test_bad_actions_change_nothing(wrapper: type, bad: Any, named: str) -> None:
    disturbed, calm = (wrapper(sync(2, NEXT_STEP)) for _ in range(2))
    source = ActionSource(calm.action_space, 1)
    for envs in (disturbed, calm):
        envs.reset(seed=1)
    for _ in range(12):
        with pytest.raises(ValueError, match=f"(?s){named}"):
            disturbed.step(bad)
        actions = source()
        assert_same(calm.step(actions), disturbed.step(actions))


@pytest.mark.parametrize("mode", MODES)
def test_what_was_returned_does_not_change_later(mode: AutoresetMode) -> None:
    envs = full_stack(NativeDrift(3, mode))
    source = ActionSource(envs.action_space, 2)
    kept = [envs.reset(seed=2)]
    copies = [copy.deepcopy(kept[0])]
    for _ in range(30):
        kept.append(envs.step(source()))
        copies.append(copy.deepcopy(kept[-1]))
        done = kept[-1][2] | kept[-1][3]
        if mode is DISABLED and done.any():
            kept.append(envs.reset(options={"reset_mask": done}))
            copies.append(copy.deepcopy(kept[-1]))
    for was, now in zip(copies, kept, strict=True):
        assert_same(was, now)


class Careless(NativeDrift):
    """Writes over the actions it was given, once it has used them."""

    def step(self, actions: np.ndarray) -> Any:
        result = super().step(actions)
        actions[...] = 1.0
        return result


@pytest.mark.parametrize("mode", MODES)
def test_nobody_holds_the_callers_actions_or_results(mode: AutoresetMode) -> None:
    """A caller that reuses its buffers and writes over results, above an environment that does the same."""
    calm, disturbed = full_stack(NativeDrift(3, mode)), full_stack(Careless(3, mode))
    source = ActionSource(calm.action_space, 4)
    calm.reset(seed=4)
    disturbed.reset(seed=4)
    buffers = {"action": np.zeros((3, 2), np.float32), "switch": np.zeros(3, np.int64)}
    for _ in range(40):
        actions = source()
        for name, values in actions.items():
            buffers[name][...] = values
        wanted, got = calm.step(actions), disturbed.step(buffers)
        assert_same(wanted, got)
        done = wanted[2] | wanted[3]
        scribble(got)
        scribble(buffers)
        if mode is DISABLED and done.any():
            for envs in (calm, disturbed):
                envs.reset(options={"reset_mask": done})


def scribble(value: Any) -> None:
    if isinstance(value, np.ndarray) and value.dtype != object:
        value[...] = 1
    elif isinstance(value, (dict, tuple)):
        for entry in value.values() if isinstance(value, dict) else value:
            scribble(entry)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_envs", [1, 3])
def test_infos_are_typed_on_every_step(num_envs: int, mode: AutoresetMode) -> None:
    envs = full_stack(NativeDrift(num_envs, mode))
    source = ActionSource(envs.action_space, 6)
    envs.reset(seed=6)
    for _ in range(40):
        _, _, terminated, truncated, infos = envs.step(source())
        for key, dtype, shape in [
            ("frames", np.int64, ()),
            ("executed_action", np.float32, (2,)),
            ("repeated", np.bool_, ()),
            ("exploring", np.bool_, ()),
            ("raw_reward", np.float64, ()),
        ]:
            assert (infos[key].dtype, infos[key].shape) == (dtype, (num_envs, *shape))
            assert infos[f"_{key}"].dtype == np.bool_
            assert not infos[key][~infos[f"_{key}"]].any()
        done = terminated | truncated
        assert ("repeat" in infos) == done.any()
        if mode is DISABLED and done.any():
            envs.reset(options={"reset_mask": done})


def test_nothing_is_executed_where_all_only_reset() -> None:
    envs = sync(1, NEXT_STEP, ((taac_wrappers.KRepWrapper, {"max_repeat": 2, "encoding": "box"}),))
    envs = vector.HybridActionWrapper(envs)
    source = ActionSource(envs.action_space, 0)
    envs.reset(seed=0)
    done = np.zeros(1, np.bool_)
    while not done:
        _, _, terminated, truncated, _ = envs.step(source())
        done = terminated | truncated
    infos = envs.step(source())[-1]
    assert_same(infos["executed_action"], np.zeros((1, 2), np.float32))
    assert_same(infos["_executed_action"], np.zeros(1, np.bool_))


@pytest.mark.parametrize("name", NAMES)
def test_the_infos_of_the_inner_env_stay_as_they_are(name: str) -> None:
    class SameInfos(NativeDrift):
        infos: ClassVar[dict[str, Any]] = {"inner": np.arange(2)}

        def step(self, actions: np.ndarray) -> Any:
            return *super().step(actions)[:-1], self.infos

    inside = SameInfos(2, NEXT_STEP)
    envs = getattr(vector, name)(inside)
    source = ActionSource(envs.action_space, 0)
    envs.reset(seed=0)
    for _ in range(8):
        assert "inner" in envs.step(source())[-1]
    assert list(inside.infos) == ["inner"]


def test_a_masked_reset_clears_the_masked_envs_alone() -> None:
    envs = vector.PrevActionWrapper(vector.HybridActionWrapper(sync(2, DISABLED)))
    envs.reset(seed=0)
    envs.step({"action": ACTIONS, "switch": [1, 1]})
    options = {"reset_mask": np.array([True, False]), "other": 1}
    observations, _ = envs.reset(options=options)
    assert list(options) == ["reset_mask", "other"]
    np.testing.assert_array_equal(observations[:, -2:], [[0.0, 0.5], [0.5, 2.0]])
    infos = envs.step({"action": ACTIONS, "switch": [0, 0]})[-1]
    np.testing.assert_array_equal(infos["executed_action"], [[0.0, 0.5], [0.5, 2.0]])


def test_a_masked_reset_reseeds_the_masked_envs_alone() -> None:
    def explored(seeds: Any, mask: list[bool] | None) -> np.ndarray:
        envs = vector.ZetaRepeatWrapper(NativeDrift(2, DISABLED), epsilon=1.0, max_repeat=1)
        envs.reset(seed=[10, 20])
        envs.reset(seed=seeds, options=None if mask is None else {"reset_mask": np.array(mask)})
        return envs.step(ACTIONS)[-1]["executed_action"]

    both, first, untouched = explored([10, 99], None), explored([77, 99], [False, True]), explored([None, None], None)
    assert_same(both, first)
    assert_same(both[0], untouched[0])
    assert (both[1] != untouched[1]).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("mask", "error"),
    [
        ([True, False], TypeError),
        (np.array([1, 0]), TypeError),
        (np.array([True]), ValueError),
        (np.array([False, False]), ValueError),
    ],
)
def test_bad_masks_change_nothing(name: str, mask: Any, error: type[Exception]) -> None:
    disturbed, calm = (getattr(vector, name)(NativeDrift(2, DISABLED)) for _ in range(2))
    for envs in (disturbed, calm):
        envs.reset(seed=1)
    with pytest.raises(error, match="reset_mask"):
        disturbed.reset(seed=5, options={"reset_mask": mask})
    source = ActionSource(calm.action_space, 1)
    actions = source()
    assert_same(calm.step(actions), disturbed.step(actions))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [-1, "1", [1, -1], [1, "2"], [1], [1, 2, 3]], ids=repr)
def test_bad_seeds_change_nothing(name: str, seed: Any) -> None:
    """Not even the sub-environments before the one whose seed is bad."""
    disturbed, calm = (getattr(vector, name)(sync(2, NEXT_STEP)) for _ in range(2))
    for envs in (disturbed, calm):
        envs.reset(seed=1)
    with pytest.raises((ValueError, TypeError), match=r"`seed.* must"):
        disturbed.reset(seed=seed)
    actions = ActionSource(calm.action_space, 1)()
    assert_same(calm.step(actions), disturbed.step(actions))


def test_one_seed_per_env() -> None:
    envs = vector.ZetaRepeatWrapper(NativeDrift(2, DISABLED))
    with pytest.raises(ValueError, match=r"seed.*\[1\]"):
        envs.reset(seed=[1])


def test_an_unnamed_mode_is_taken_for_next_step() -> None:
    envs = NativeDrift(2, NEXT_STEP)
    envs.metadata = {}
    with pytest.warns(UserWarning, match="autoreset_mode"):
        wrapped = vector.PrevActionWrapper(envs)
    envs.metadata = {"autoreset_mode": NEXT_STEP}
    named = vector.PrevActionWrapper(NativeDrift(2, NEXT_STEP))
    source = ActionSource(named.action_space, 0)
    assert_same(named.reset(seed=0), wrapped.reset(seed=0))
    for _ in range(12):
        actions = source()
        assert_same(named.step(actions), wrapped.step(actions))


def test_a_mode_of_another_type_is_refused() -> None:
    envs = NativeDrift(2, NEXT_STEP)
    envs.metadata = {"autoreset_mode": "NextStep"}
    with pytest.raises(TypeError, match=r"autoreset_mode.*'NextStep'"):
        vector.PrevActionWrapper(envs)


def test_final_observations_may_come_as_a_batch() -> None:
    class Batched(NativeDrift):
        def step(self, actions: np.ndarray) -> Any:
            *result, infos = super().step(actions)
            if "final_obs" in infos:
                rows = [np.zeros(3, np.float32) if row is None else row for row in infos["final_obs"]]
                infos["final_obs"] = np.stack(rows)
            return *result, infos

    single, batched = (vector.PrevActionWrapper(make(3, SAME_STEP)) for make in (NativeDrift, Batched))
    source = ActionSource(single.action_space, 0)
    single.reset(seed=0)
    batched.reset(seed=0)
    compared = 0
    for _ in range(20):
        actions = source()
        wanted, got = single.step(actions)[-1], batched.step(actions)[-1]
        for i in np.flatnonzero(wanted.get("_final_obs", [])):
            assert_same(wanted["final_obs"][i], got["final_obs"][i])
            compared += 1
    assert compared > 5


def test_natively_vectorised_cartpole() -> None:
    envs = gym.make_vec("CartPole-v1", 4, vectorization_mode="vector_entry_point")
    envs = vector.RepeatStatisticsWrapper(vector.PrevActionWrapper(envs))
    assert envs.metadata["autoreset_mode"] is NEXT_STEP
    assert envs.single_observation_space.shape == (6,)
    observations, _ = envs.reset(seed=0)
    assert observations.dtype == np.float32
    was_done = np.zeros(4, np.bool_)
    length, ended = np.zeros(4, np.int64), 0
    for _ in range(60):
        actions = np.array([1, 0, 1, 0])
        observations, _, terminated, truncated, infos = envs.step(actions)
        np.testing.assert_array_equal(observations[:, 4:], np.where(was_done[:, None], 0, np.eye(2)[actions]))
        length = np.where(was_done, 0, length + 1)
        was_done = terminated | truncated
        for i in np.flatnonzero(was_done):
            assert infos["_repeat"][i]
            assert infos["repeat"]["frames"][i] == infos["repeat"]["mean_run"][i] == length[i]
            assert infos["repeat"]["fraction"][i] == (length[i] - 1) / length[i]
            assert infos["repeat"]["afr"][i] == 0
            ended += 1
    assert ended > 10


def test_zeta_state_survives_saving() -> None:
    envs = vector.ZetaRepeatWrapper(NativeDrift(2, NEXT_STEP), epsilon=(1.0, 0.0, 10))
    envs.reset(seed=0)
    for _ in range(6):
        envs.step(ACTIONS)
    saved = envs.state_dict()
    assert (saved["frames"] < 6).any()  # a step that only resets is no frame
    np.testing.assert_array_equal(envs.current_epsilon, 1.0 - saved["frames"] / 10)
    before = saved["frames"].copy()
    envs.step(ACTIONS)
    envs.step(ACTIONS)
    assert (envs.state_dict()["frames"] > before).all()
    np.testing.assert_array_equal(saved["frames"], before)
    envs.load_state_dict(saved)
    fresh = vector.ZetaRepeatWrapper(NativeDrift(2, NEXT_STEP), epsilon=(1.0, 0.0, 10))
    fresh.load_state_dict(saved)
    np.testing.assert_array_equal(fresh.current_epsilon, envs.current_epsilon)
    assert saved["stream"].shape == (2, 8)
    plain = json.loads(json.dumps({key: value.tolist() for key, value in saved.items()}))
    again = vector.ZetaRepeatWrapper(NativeDrift(2, NEXT_STEP), epsilon=(1.0, 0.0, 10))
    again.load_state_dict(plain)
    assert_same(again.state_dict(), saved)
    for bad in ([1], [1, -1], [1.5, 1], [1, np.nan], None):
        with pytest.raises(ValueError, match="frames"):
            fresh.load_state_dict({**saved, "frames": bad})
    stream = saved["stream"]
    bad_word, even = stream.copy(), stream.copy()
    bad_word[1, 2] = 2**32
    even[1, 4] = 2
    for bad in (stream[:1], stream[:, :7], stream[0], stream + 0.5, -stream, bad_word, even, None):
        with pytest.raises(ValueError, match="stream"):
            fresh.load_state_dict({"frames": saved["frames"] + 1, "stream": bad})
    for bad in ({}, {"frames": saved["frames"]}, {"stream": stream}):
        with pytest.raises(ValueError, match="must have the entries"):
            fresh.load_state_dict(bad)
    assert_same(fresh.state_dict(), saved)


@pytest.mark.parametrize("mode", MODES)
def test_zeta_states_are_those_of_the_wrappers_around_each_environment(mode: AutoresetMode) -> None:
    """And they go on alike from there, in a wrapper of another past."""
    settings: dict[str, Any] = {"epsilon": (0.9, 0.2, 60), "mu": 1.0, "max_repeat": 4}
    each = sync(3, mode, ((taac_wrappers.ZetaRepeatWrapper, settings),))
    together = vector.ZetaRepeatWrapper(sync(3, mode), **settings)
    assert lockstep(each, together, mode, steps=40) > 5
    states = [env.state_dict() for env in each.envs]
    saved = together.state_dict()
    assert_same(saved, {key: np.array([state[key] for state in states]) for key in ("frames", "stream")})
    other = vector.ZetaRepeatWrapper(copy.deepcopy(together.env), **settings)
    other.load_state_dict(saved)
    assert_same(together.reset()[0], other.reset()[0])
    source = ActionSource(together.action_space, 1)
    for _ in range(40):
        actions = source()
        wanted, got = together.step(actions), other.step(actions)
        assert_same(wanted, got)
        done = wanted[2] | wanted[3]
        if mode is DISABLED and done.any():
            assert_same(*(envs.reset(options={"reset_mask": done.copy()})[0] for envs in (together, other)))


@pytest.mark.parametrize("mode", MODES)
def test_pickling_in_the_middle_of_an_episode(mode: AutoresetMode) -> None:
    envs = full_stack(NativeDrift(2, mode))
    source = ActionSource(envs.action_space, 0)
    envs.reset(seed=0)
    if mode is not DISABLED:
        for _ in range(5):
            envs.step(source())
    twin = pickle.loads(pickle.dumps(envs))
    for _ in range(1 if mode is DISABLED else 10):
        actions = source()
        assert_same(envs.step(actions), twin.step(actions))


def test_inner_spaces_stay_as_they_are() -> None:
    inside = sync(2, NEXT_STEP, observation="dict")
    before = copy.deepcopy((inside.observation_space, inside.single_observation_space, inside.action_space))
    envs = vector.PrevActionWrapper(vector.HybridActionWrapper(inside))
    assert isinstance(envs.single_observation_space, Dict)
    assert "prev_action" in envs.single_observation_space.spaces
    assert (inside.observation_space, inside.single_observation_space, inside.action_space) == before
