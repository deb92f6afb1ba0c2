"""Every wrong argument, action or saved state is refused with an error that names it, and nothing changes."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiDiscrete, Sequence, Space
from gymnasium.wrappers import OrderEnforcing
from test_contract import ALL_CASES, CASES, wrap
from toy_envs import ToyEnv, continued, rollout, same, sample_actions

from taac_wrappers import (
    AdaptiveNormalizer,
    HybridActionWrapper,
    KRepWrapper,
    NRepeatWrapper,
    PrevActionWrapper,
    RepeatStatisticsWrapper,
    RewardNormalizerWrapper,
    ZetaRepeatWrapper,
)
from taac_wrappers._exploration import UniformStream
from taac_wrappers._validation import ActionCheck

NAN, INF = float("nan"), float("inf")

BAD_ARGUMENTS = [
    (NRepeatWrapper, {"n": 0}, "n", "0"),
    (NRepeatWrapper, {"n": -2}, "n", "-2"),
    (NRepeatWrapper, {"n": 2.5}, "n", "2.5"),
    (NRepeatWrapper, {"n": 2.0}, "n", "2.0"),
    (NRepeatWrapper, {"n": True}, "n", "True"),
    (NRepeatWrapper, {"n": "3"}, "n", "'3'"),
    (NRepeatWrapper, {"n": None}, "n", "None"),
    *[(NRepeatWrapper, {"n": 2, "gamma": bad}, "gamma", repr(bad)) for bad in (-0.1, 1.1, NAN, INF, "0.9", True)],
    *[(KRepWrapper, {"max_repeat": bad}, "max_repeat", repr(bad)) for bad in (0, -1, 1.5, True, None, "2")],
    *[(KRepWrapper, {"max_repeat": 2, "gamma": bad}, "gamma", repr(bad)) for bad in (-0.1, 1.1, NAN)],
    *[(KRepWrapper, {"max_repeat": 2, "encoding": bad}, "encoding", repr(bad)) for bad in ("Dict", "", None, 1)],
    *[(HybridActionWrapper, {"encoding": bad}, "encoding", repr(bad)) for bad in ("tuple", "", None, 1)],
    *[(ZetaRepeatWrapper, {"mu": bad}, "mu", repr(bad)) for bad in (0, -1.0, NAN, INF, "2", None)],
    *[(ZetaRepeatWrapper, {"max_repeat": bad}, "max_repeat", repr(bad)) for bad in (0, -1, 2.5, None)],
    *[(ZetaRepeatWrapper, {"epsilon": bad}, "epsilon", repr(bad)) for bad in (-0.1, 1.1, NAN, None, "0.1", (1, 0), [])],
    (ZetaRepeatWrapper, {"epsilon": (1.5, 0.1, 10)}, "epsilon[0]", "1.5"),
    (ZetaRepeatWrapper, {"epsilon": (1.0, -0.1, 10)}, "epsilon[1]", "-0.1"),
    (ZetaRepeatWrapper, {"epsilon": (1.0, NAN, 10)}, "epsilon[1]", "nan"),
    (ZetaRepeatWrapper, {"epsilon": (1.0, 0.1, -10)}, "epsilon[2]", "-10"),
    (ZetaRepeatWrapper, {"epsilon": (1.0, 0.1, 2.5)}, "epsilon[2]", "2.5"),
    *[(RewardNormalizerWrapper, {"clip": bad}, "clip", repr(bad)) for bad in (0, -1.0, NAN, INF, "5")],
    *[(RewardNormalizerWrapper, {"speed": bad}, "speed", repr(bad)) for bad in (0, -1.0, NAN, None)],
    *[(RewardNormalizerWrapper, {"update": bad}, "update", repr(bad)) for bad in (1, None, "yes")],
    *[(PrevActionWrapper, {"key": bad}, "key", repr(bad)) for bad in ("", None, 3)],
    (PrevActionWrapper, {"key": "observation", "flatten": False}, "key", "'observation'"),
    *[(PrevActionWrapper, {"flatten": bad}, "flatten", repr(bad)) for bad in (1, None)],
    *[
        (PrevActionWrapper, {"initial_action": bad}, "initial_action", repr(bad))
        for bad in ([2.0, 0.0], [NAN, 0.0], [0.0], 0.0, "zero", [[0.0, 0.0]])
    ],
    *[(RepeatStatisticsWrapper, {"key": bad}, "key", repr(bad)) for bad in ("", None, 3)],
]


@pytest.mark.parametrize(("wrapper", "kwargs", "argument", "value"), BAD_ARGUMENTS)
def test_bad_arguments_are_named_with_their_value(wrapper, kwargs, argument, value):
    with pytest.raises((ValueError, TypeError)) as error:
        wrapper(ToyEnv(), **kwargs)
    assert f"`{argument}`" in str(error.value)
    assert f"got {value}" in str(error.value)


@pytest.mark.parametrize(
    ("kwargs", "argument"),
    [
        *[({"shape": bad}, "shape") for bad in ((0,), (-1,), (1.5,))],
        *[({"speed": bad}, "speed") for bad in (0, -1, NAN)],
        *[({"clip": bad}, "clip") for bad in (0, -1, NAN)],
        *[({"eps": bad}, "eps") for bad in (0, -1e-9, NAN)],
    ],
)
def test_bad_arguments_of_the_normalizer(kwargs, argument):
    with pytest.raises((ValueError, TypeError), match=f"`{argument}` must be"):
        AdaptiveNormalizer(**kwargs)


@pytest.mark.parametrize(("name", "kwargs"), ALL_CASES)
def test_a_vector_environment_is_pointed_to_its_own_wrappers(name, kwargs):
    advice = f"use taac_wrappers.vector.{name}"
    if name in ("NRepeatWrapper", "KRepWrapper"):
        advice = "it has no vector version, wrap each sub-environment: gym.make_vec"
    with pytest.raises(TypeError, match=f"{name} is for one environment, got .*SyncVectorEnv.*: {advice}"):
        wrap(gym.vector.SyncVectorEnv([ToyEnv]), name, kwargs)
    with pytest.raises(TypeError, match=r"`env` must be a gymnasium.Env, got 3 of type int"):
        wrap(3, name, kwargs)


class UnknownSpace(Space):
    """One that Gymnasium has never heard of."""


NO_ARRAYS = [Graph(Discrete(2), None), Sequence(Discrete(2)), Dict(steps=Sequence(Discrete(2))), UnknownSpace()]


@pytest.mark.parametrize("space", [*NO_ARRAYS, MultiDiscrete([2, 3])], ids=lambda space: type(space).__name__)
@pytest.mark.parametrize("name", CASES)
def test_an_action_space_that_is_not_supported_is_named(name, space):
    env = ToyEnv()
    env.action_space = space
    wanted = {
        "HybridActionWrapper": "HybridActionWrapper needs a floating-point Box `action_space`",
        "KRepWrapper": "KRepWrapper needs a floating-point Box `action_space`",
        "ZetaRepeatWrapper": "needs a Discrete or a bounded floating-point Box `action_space`",
    }.get(name, "`env.action_space` must be a Box, Discrete, MultiDiscrete or MultiBinary, or a Dict or Tuple of these")
    takes_any = name == "RewardNormalizerWrapper"
    takes_arrays = name in ("NRepeatWrapper", "PrevActionWrapper", "RepeatStatisticsWrapper")
    if takes_any or (takes_arrays and space not in NO_ARRAYS):
        assert wrap(env, name, CASES[name][0]).action_space is space
        return
    with pytest.raises(ValueError, match="action_space") as error:
        wrap(env, name, CASES[name][0])
    assert f"{wanted}, got {space}" in str(error.value)


@pytest.mark.parametrize("wrapper", [HybridActionWrapper, lambda env: KRepWrapper(env, 2)])
@pytest.mark.parametrize("kind", ["discrete", "multi discrete", "multi binary", "dict", "tuple"])
def test_a_box_is_needed(wrapper, kind):
    with pytest.raises(ValueError, match=r"Wrapper needs a floating-point Box `action_space`, got \w+"):
        wrapper(ToyEnv(action=kind))


def test_an_integer_box_is_no_box_to_clip_zeros_into():
    env = ToyEnv()
    env.action_space = Box(0, 9, (2,), np.int64)
    with pytest.raises(ValueError, match="floating-point Box"):
        HybridActionWrapper(env)


@pytest.mark.parametrize("space", [Box(-np.inf, np.inf, (2,)), Box(0, np.inf, (2,)), Box(-np.inf, 0, (2,))])
def test_a_uniform_action_needs_bounds(space):
    env = ToyEnv()
    env.action_space = space
    with pytest.raises(ValueError, match=r"Discrete or a bounded floating-point Box `action_space`, got Box\("):
        ZetaRepeatWrapper(env)


@pytest.mark.parametrize("kind", ["multi discrete", "dict"])
def test_no_uniform_action_over_other_spaces(kind):
    with pytest.raises(ValueError, match="Box `action_space`, got"):
        ZetaRepeatWrapper(ToyEnv(action=kind))


@pytest.mark.parametrize(
    ("observation", "key"), [("dict", "state"), ("tuple", "observation"), ("discrete", "observation")]
)
def test_a_key_that_the_observation_has(observation, key):
    with pytest.raises(ValueError, match=f"`key` must be new to the observation, got '{key}'"):
        PrevActionWrapper(ToyEnv(observation=observation), key=key)


BAD_VECTORS: list[Any] = [
    [1.5, 0.0],
    [0.0, -1.01],
    [NAN, 0.0],
    [0.0, INF],
    np.array([0.0, NAN], np.float32),
    np.array([0.0, 1.1], np.float32),
    [0.0],
    [0.0, 0.0, 0.0, 0.0],
    np.zeros((1, 2), np.float32),
    np.zeros((2, 1)),
    0.0,
    "left",
    None,
    ["a", "b"],
    [[0.0], [0.0, 0.0]],
    [1j, 0],
    {"action": [0.0, 0.0]},
]


def bad_actions(name: str, kwargs: dict[str, Any]) -> list[Any]:
    if kwargs.get("encoding") == "box":
        joined = [[*bad, 0.5] for bad in BAD_VECTORS if isinstance(bad, list) and len(bad) == 2]
        return [*joined, [0.0, 0.0, 1.5], [0.0, 0.0, NAN], [0.0, 0.0], 0.0, None, {"action": [0.0, 0.0], "switch": 1}]
    if name not in ("HybridActionWrapper", "KRepWrapper"):
        return BAD_VECTORS
    choice = "switch" if name == "HybridActionWrapper" else "repeat"
    choices = [-1, 4, 0.5, 1.0, NAN, None, "1", [1]] + ([2] if choice == "switch" else [0])
    return [
        *[{"action": bad, choice: 1} for bad in BAD_VECTORS],
        *[{"action": [0.0, 0.0], choice: bad} for bad in choices],
        {"action": [0.0, 0.0]},
        {choice: 1},
        {"action": [0.0, 0.0], choice: 1, "more": 0},
        [0.0, 0.0],
        None,
    ]


# Wrappers that pass the action on untouched leave the check to the environment.
CHECKED = [name for name in CASES if name not in ("RewardNormalizerWrapper", "RepeatStatisticsWrapper")]


@pytest.mark.parametrize(("name", "kwargs"), [(name, kwargs) for name in CHECKED for kwargs in CASES[name]])
def test_a_bad_action_raises_and_changes_nothing(name, kwargs):
    env, untouched = wrap(ToyEnv(), name, kwargs), wrap(ToyEnv(), name, kwargs)
    actions = sample_actions(env, 12)
    rollout(env, actions[:2], seed=1)
    rollout(untouched, actions[:2], seed=1)
    for bad in bad_actions(name, kwargs):
        with pytest.raises(ValueError, match=r"`(action|switch|repeat)` must .*, got ") as error:
            env.step(deepcopy(bad))
        parts = [bad, *(bad.values() if isinstance(bad, dict) else [])]
        assert any(f"got {part!r}" in str(error.value) for part in parts)
    assert same(continued(env, actions[2:]), continued(untouched, actions[2:]))


@pytest.mark.parametrize("bad", [3, -1, 1.0, 0.5, "1", None, [1], NAN, np.array([1]), np.float32(1)])
def test_a_bad_discrete_action(bad):
    for env in (NRepeatWrapper(ToyEnv(action="discrete"), 2), ZetaRepeatWrapper(ToyEnv(action="discrete"))):
        env.reset(seed=0)
        with pytest.raises(ValueError, match="`action` must"):
            env.step(bad)
        assert env.unwrapped.frame == 0


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        ("multi discrete", [2, 0]),
        ("multi discrete", [0, -1]),
        ("multi discrete", [0.5, 0]),
        ("multi discrete", [2**32, 0]),
        ("multi discrete", [-(2**63), 0]),  # which has no absolute value
        ("multi binary", [0, 2, 0]),
        ("multi binary", [256, 0, 0]),
        ("multi binary", [-128, 0, 0]),
        ("dict", {"gear": 0}),
        ("dict", {"gear": 2, "force": [0.0, 0.0]}),
        ("dict", {"gear": 0, "force": [0.0, NAN]}),
        ("dict", [0, [0.0, 0.0]]),
        ("tuple", (0,)),
        ("tuple", (0, [0.0, 1.5])),
        ("matrix box", np.full((2, 3), 2.5)),
        ("matrix box", np.full((2, 3), NAN)),
        ("matrix box", np.zeros(6)),
        ("long box", np.full(40, 1.5)),
        ("long box", np.array([0.0] * 39 + [NAN])),
        ("half open box", [0.0, -0.5]),
        ("half open box", [0.0, INF]),
        ("half open box", [0.0, 1e300]),
        ("uneven box", [0.6, 1.0]),
        ("uneven box", [0.0, 0.4]),
    ],
)
def test_bad_actions_of_other_spaces(kind, bad):
    for env in (NRepeatWrapper(ToyEnv(action=kind), 2), PrevActionWrapper(ToyEnv(action=kind))):
        env.reset(seed=0)
        with pytest.raises(ValueError, match=r"`action.*` must .*, got "):
            env.step(bad)
        assert env.unwrapped.frame == 0


def test_a_refused_step_explores_nothing():
    """A step before the first reset, which the environment refuses, must not use up random numbers."""
    env, calm = (ZetaRepeatWrapper(OrderEnforcing(ToyEnv()), epsilon=1.0) for _ in range(2))
    for each in (env, calm):
        each._uniform = UniformStream(3)
    for _ in range(200):  # more numbers than a block holds
        with pytest.raises(ResetNeeded):
            env.step([0.0, 0.0])
    actions = sample_actions(env, 8)
    assert same(
        rollout(env, actions, seed=None)[1][-1]["executed_action"],
        rollout(calm, actions, seed=None)[1][-1]["executed_action"],
    )


@pytest.mark.parametrize("seed", [-1, 1.5, "1"])
def test_a_bad_seed_is_named_before_anything_is_reset(seed):
    env = ZetaRepeatWrapper(ToyEnv())
    with pytest.raises((ValueError, TypeError), match="`seed` must be an integer >= 0, got"):
        env.reset(seed=seed)


@pytest.mark.parametrize("bad", ["3", 1j, None, [1.0, "2"]])
def test_the_normalizer_takes_numbers_alone(bad):
    normalizer = AdaptiveNormalizer()
    with pytest.raises(ValueError, match="`x` must be numbers"):
        normalizer.update(bad)
    assert normalizer.count == 0


def test_rounding_is_no_error_and_is_clipped():
    space = Box(np.array([-0.7, 0.1], np.float32), np.array([0.3, 0.9], np.float32))
    beyond = np.nextafter(space.high, np.float32(9), dtype=np.float32)
    assert beyond not in space
    assert np.array_equal(ActionCheck(space)(beyond), space.high)
    assert np.array_equal(ActionCheck(space)(space.high.astype(np.float64)), space.high)
    with pytest.raises(ValueError, match="must lie in"):
        ActionCheck(space)(space.high + np.float32(1e-5))


def test_no_check_for_composite_spaces():
    with pytest.raises(ValueError, match="must belong to a Box, Discrete"):
        ActionCheck(ToyEnv(action="dict").action_space)


@pytest.mark.parametrize("value", [1, True, np.bool_(True), np.int8(1), np.array(1), np.array(1, np.int16)])
def test_discrete_actions_come_out_as_the_spaces_integer(value):
    checked = ActionCheck(Discrete(3))(value)
    assert (checked, type(checked)) == (1, np.int64)


GOOD_STATE = {"count": 3, "first_moment": 0.5, "second_moment": 1.0}
BAD_STATES: list[Any] = [
    None,
    [1, 2, 3],
    {},
    {"count": 3, "first_moment": 0.5},
    {**GOOD_STATE, "more": 1},
    {**GOOD_STATE, "count": -1},
    {**GOOD_STATE, "count": 2.5},
    {**GOOD_STATE, "count": NAN},
    {**GOOD_STATE, "count": "many"},
    {**GOOD_STATE, "count": "3"},
    {**GOOD_STATE, "first_moment": NAN},
    {**GOOD_STATE, "first_moment": [0.5, 0.5]},
    {**GOOD_STATE, "first_moment": None},
    {**GOOD_STATE, "second_moment": INF},
    {**GOOD_STATE, "second_moment": -1.0},
    {**GOOD_STATE, "second_moment": np.ones((1,))},
]


@pytest.mark.parametrize("bad", BAD_STATES)
def test_a_bad_normalizer_state_raises_and_changes_nothing(bad):
    env = RewardNormalizerWrapper(ToyEnv())
    env.load_state_dict(GOOD_STATE)
    for target in (env, env.normalizer):
        with pytest.raises((ValueError, TypeError), match=r"`state.*got"):
            target.load_state_dict(bad)
    assert env.state_dict() == GOOD_STATE


@pytest.mark.parametrize("bad", [np.ones(3), 1.0, [[1.0, 2.0]], [1.0, NAN]])
def test_a_misshaped_array_state(bad):
    normalizer = AdaptiveNormalizer((2,))
    normalizer.update([1.0, 2.0])
    before = normalizer.state_dict()
    with pytest.raises(ValueError, match=r"`state\['first_moment'\]` must be finite numbers of shape \(2,\), got"):
        normalizer.load_state_dict({**before, "first_moment": bad})
    assert same(normalizer.state_dict(), before)


GOOD_ZETA_STATE = {"frames": 7, "stream": [5, 0, 2**32 - 1, 3, 1, 0, 0, 9]}
BAD_STREAMS: list[Any] = [
    *(None, {}, [], 5, "stream", NAN, [1] * 7, [1] * 9, [[1] * 8], [True] * 8, ["1"] * 8),
    *([bad] + [1] * 7 for bad in (-1, 2**32, 0.5, NAN, INF, 10**400)),
    [1, 2, 3, 4, 6, 7, 8, 9],  # an even increment
]
BAD_ZETA_STATES: list[Any] = [
    *(None, {}, {"frames": 7}, {"stream": GOOD_ZETA_STATE["stream"]}, {**GOOD_ZETA_STATE, "count": 1}),
    *({**GOOD_ZETA_STATE, "frames": bad} for bad in (-1, 2.5, NAN, [1], "3", None)),
    *({"frames": 8, "stream": bad} for bad in BAD_STREAMS),
]


@pytest.mark.parametrize("bad", BAD_ZETA_STATES)
def test_a_bad_zeta_state_raises_and_changes_nothing(bad):
    env = ZetaRepeatWrapper(ToyEnv())
    env.load_state_dict(GOOD_ZETA_STATE)
    with pytest.raises((ValueError, TypeError), match=r"`state.*got"):
        env.load_state_dict(bad)
    assert env.state_dict() == GOOD_ZETA_STATE
