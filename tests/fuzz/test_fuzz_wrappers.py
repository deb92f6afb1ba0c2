"""Random stacks of wrappers under random legal and illegal calls: what is legal equals a slow model of the stack, what
is illegal raises and changes nothing.
"""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from random import Random
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from fuzz_tools import HOW, RANDOMS, WRONG, array_like, bad_actions, member, refused, some
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from plain_wrappers import PLAIN, PlainEnv, stream_words
from test_bad_input import BAD_ARGUMENTS, BAD_STATES, BAD_ZETA_STATES
from toy_envs import ACTION_SPACES, ToyEnv, same
from vector_toys import MODES, REPORTED, Drift, NativeDrift, assert_same, assert_same_infos

import taac_wrappers
from taac_wrappers import vector
from taac_wrappers._repeat import executed_action_space
from taac_wrappers._validation import action_check

Layer = tuple[str, dict[str, Any]]
# Those that pass the action on untouched; the environment below has to refuse a bad one.
UNCHECKED = {"RewardNormalizerWrapper", "RepeatStatisticsWrapper"}
SEEDS = st.integers(0, 5)
BAD_SEEDS: list[Any] = [-1, 1.5, "1", [[1]], b"1", {1}]
BAD_BATCHES: list[Any] = [np.nan, [1.0, np.inf], 1e200, [], None, "3", 1j, [[1.0], [1.0, 2.0]], {"x": 1}]
SPACES: dict[str, spaces.Space] = {
    **ACTION_SPACES,
    "int8 box": spaces.Box(0, 10, (2,), np.int8),
    "nested": spaces.Dict(pair=spaces.Tuple([spaces.MultiBinary(2), spaces.Box(-1, 1, (1,))]), gear=spaces.Discrete(2)),
}


# --- What a layer may be, and where it fits --------------------------------------------------------------------------


def fits(name: str, space: spaces.Space) -> bool:
    """Whether the wrapper of this name can stand on the action space below it."""
    is_float_box = isinstance(space, spaces.Box) and space.dtype.kind == "f"
    if name in ("HybridActionWrapper", "KRepWrapper"):
        return is_float_box
    if name == "ZetaRepeatWrapper":
        return isinstance(space, spaces.Discrete) or (is_float_box and space.is_bounded("both"))
    return True


def draw_layer(rng: Random, names: list[str], depth: int, executed: spaces.Space) -> Layer:
    """A wrapper's name and arguments; ``depth`` makes its keys unique."""
    name = rng.choice(names)
    pick = lambda *values: rng.choice(values)  # noqa: E731
    if name == "HybridActionWrapper":
        return name, {"encoding": pick("dict", "box")}
    if name == "KRepWrapper":
        return name, {"max_repeat": pick(1, 3), "gamma": pick(None, 0.5), "encoding": pick("dict", "box")}
    if name == "NRepeatWrapper":
        return name, {"n": pick(1, 2, 3), "gamma": pick(None, 0.9)}
    if name == "PrevActionWrapper":
        initial = pick(None, np.asarray(member(executed, "high", 0)).tolist())
        return name, {"key": f"last{depth}", "flatten": pick(True, False), "initial_action": initial}
    if name == "RepeatStatisticsWrapper":
        return name, {"key": "repeat"}
    if name == "RewardNormalizerWrapper":
        return name, {"clip": pick(5.0, 1.0, None), "speed": pick(8.0, 1.0), "update": pick(True, True, False)}
    return name, {"epsilon": pick(0.3, 1.0, (1.0, 0.0, 9)), "mu": pick(0.5, 2.0), "max_repeat": pick(1, 4)}


def with_method(env: Any, method: str) -> list[Any]:
    """The layers of a stack that have the method themselves, outermost first."""
    layers = []
    while hasattr(env, "env"):
        layers += [env] if method in vars(type(env)) else []
        env = env.env
    return layers


class Refusing(ToyEnv):
    """Refuses a step out of turn, before anything changes, and with ``checks`` an action outside of its space."""

    def __init__(self, space: spaces.Space, checks: bool, **kwargs: Any):
        super().__init__(**kwargs)
        self.action_space = deepcopy(space)
        self.checks, self.goes_on = checks, False

    def reset(self, **kwargs: Any) -> Any:
        result = super().reset(**kwargs)
        self.goes_on = True
        return result

    def step(self, action: Any) -> Any:
        if not self.goes_on:
            raise gym.error.ResetNeeded("out of turn")
        if self.checks:
            action_check(self.action_space)(action)
        result = super().step(action)
        self.goes_on = not (result[2] or result[3])
        return result


BAD_WRAPS = [
    (wrapper, kwargs)
    for wrapper, kwargs, _, _ in BAD_ARGUMENTS
    if "initial_action" not in kwargs and kwargs.get("key") != "observation"  # whose fault depends on the spaces
]


# --- One environment -------------------------------------------------------------------------------------------------


class StackMachine(RuleBasedStateMachine):
    """A stack, its twin that never gets an illegal call, and its model. All three must go on alike."""

    @initialize(
        rng=RANDOMS,
        space=st.sampled_from(sorted(SPACES)),
        observation=st.sampled_from(["box", "box64", "matrix box", "image", "dict", "tuple", "discrete"]),
        length=st.integers(1, 9),
        end=st.sampled_from(["terminated", "truncated", "both"]),
        depth=st.sampled_from([2, 3, 4, 1]),
        begins=st.integers(0, 3),
    )
    def build(self, rng, space, observation, length, end, depth, begins):
        kwargs = {"space": SPACES[space], "observation": observation, "length": length, "end": end}
        self.model = PlainEnv(Refusing(checks=False, **kwargs))
        layers: list[Layer] = []
        for level in range(depth):
            names = [name for name in PLAIN if fits(name, self.model.action_space)]
            layers.append(draw_layer(rng, names, level, self.model.executed_space))
            self.model = PLAIN[layers[-1][0]](self.model, **layers[-1][1])
        note(f"layers: {layers}")
        checks = {name for name, _ in layers} <= UNCHECKED
        self.env, self.twin = (Refusing(checks=checks, **kwargs) for _ in range(2))
        for name, arguments in layers:
            self.env = getattr(taac_wrappers, name)(self.env, **arguments)
            self.twin = getattr(taac_wrappers, name)(self.twin, **arguments)
        assert self.env.action_space == self.model.action_space
        self.space = deepcopy(self.env.action_space)  # its samples must not touch the stack's own generators
        self.bad_actions = bad_actions(self.space)
        self.action = member(self.space, "random", 0)
        self.under_way, self.was_seeded = False, False
        if begins:  # else what comes first is up to the rules
            self.reset_with(0)
            self.step(["random", "high", "again"][:begins], seed=1, goes_on=True)

    @rule(seed=SEEDS, keep=st.booleans())
    def reset(self, seed, keep):
        self.reset_with(None if keep and self.was_seeded else seed)

    def reset_with(self, seed: int | None) -> None:
        result = self.env.reset(seed=seed)
        assert same(result, self.twin.reset(seed=seed))
        assert same(result[0], self.model.reset(seed))
        assert result[0] in self.env.observation_space
        self.under_way = self.was_seeded = True

    @precondition(lambda self: self.was_seeded)
    @rule(hows=st.lists(HOW, min_size=1, max_size=6), seed=st.integers(0, 99), goes_on=st.booleans())
    def step(self, hows, seed, goes_on):
        """Some steps, into the next episode too."""
        for number, how in enumerate(hows):
            if not self.under_way:
                if not goes_on:
                    break
                self.reset_with(None)
            if how != "again":
                self.action = member(self.space, how, seed + 7 * number)
            self.step_with(self.action)

    def step_with(self, action: Any) -> None:
        result = self.env.step(deepcopy(action))
        assert same(result, self.twin.step(deepcopy(action)))
        assert_close(result, self.model.step(deepcopy(action)))
        assert result[0] in self.env.observation_space
        assert same(self.env.unwrapped.received, bare(self.model).received)
        self.under_way = not (result[2] or result[3])

    @rule(data=st.data())
    def bad_action(self, data):
        error = WRONG if self.under_way else (*WRONG, gym.error.ResetNeeded)
        for bad in some(data, self.bad_actions):
            with refused(self.env, error=error, says="got|out of turn"):
                self.env.step(bad)

    @rule(
        data=st.data(), how=st.sampled_from(["bad_turn", "bad_turn", "bad_seed", "bad_wrap", "bad_state", "bad_batch"])
    )
    def misuse(self, data, how):
        getattr(self, how)(data)

    def bad_turn(self, data):
        if not self.under_way:
            with refused(self.env, error=gym.error.ResetNeeded, says="out of turn"):
                self.env.step(member(self.space, data.draw(HOW), data.draw(SEEDS)))

    def bad_seed(self, data):
        with refused(self.env, error=(*WRONG, gym.error.Error), says="[sS]eed"):
            self.env.reset(seed=data.draw(st.sampled_from(BAD_SEEDS), label="seed"))

    def bad_wrap(self, data):
        wrapper, arguments = data.draw(st.sampled_from(BAD_WRAPS), label="wrapper")
        with refused(self.env):
            wrapper(self.env, **arguments)

    def bad_state(self, data):
        """And a good one, which all three take over."""
        count, first = data.draw(st.integers(0, 20), label="count"), data.draw(st.floats(-5, 5), label="mean")
        for layer, twin, model in self.with_states():
            moments = {"count": count, "first_moment": first, "second_moment": first**2 + count / 4}
            place = {"frames": count, "stream": stream_words(np.random.default_rng(count))}
            is_normalizer = hasattr(layer, "normalizer")
            bad, state = (BAD_STATES, moments) if is_normalizer else (BAD_ZETA_STATES, place)
            if not is_normalizer and self.was_seeded:
                assert layer.state_dict() == {"frames": model.frames, "stream": stream_words(model.rng)}
            with refused(self.env, says="`state"):
                layer.load_state_dict(data.draw(st.sampled_from(bad), label="state"))
            for each in (layer, twin):
                each.load_state_dict(state)
            model.load(state)
            assert layer.state_dict() == state

    def bad_batch(self, data):
        bad = data.draw(st.sampled_from(BAD_BATCHES), label="x")
        for layer, _, _ in self.with_states():
            if hasattr(layer, "normalizer"):
                with refused(self.env, says="`x`"):
                    layer.normalizer.update(bad)

    def with_states(self):
        model, models = self.model, []
        while hasattr(model, "inner"):
            models += [model] if hasattr(model, "load") else []
            model = model.inner
        layers, twins = (with_method(env, "load_state_dict") for env in (self.env, self.twin))
        return zip(layers, twins, models, strict=True)


def bare(model: Any) -> Any:
    while hasattr(model, "inner"):
        model = model.inner
    return model.env


def assert_close(real: Any, plain: Any) -> None:
    """Equal types, dtypes and shapes however nested; equal values, floats up to rounding."""
    if isinstance(plain, dict):
        assert real.keys() == plain.keys()
        for key in plain:
            assert_close(real[key], plain[key])
    elif isinstance(plain, tuple):
        assert len(real) == len(plain)
        for each, other in zip(real, plain, strict=True):
            assert_close(each, other)
    elif type(plain) is float:
        assert isinstance(real, float)
        assert real == pytest.approx(plain, rel=1e-9, abs=1e-6)
    else:
        assert same(real, plain), (real, plain)


TestStacks = StackMachine.TestCase


def test_every_wrapper_is_driven():
    wrappers = {name for name in taac_wrappers.__all__ if issubclass(getattr(taac_wrappers, name), gym.Wrapper)}
    assert set(PLAIN) == wrappers
    assert set(vector.__all__) <= wrappers


# --- Vector environments ---------------------------------------------------------------------------------------------


class Gate(VectorWrapper):
    """Refuses a step out of turn before any sub-environment has moved, and with ``checks`` bad actions."""

    def __init__(self, env: VectorEnv, checks: bool):
        super().__init__(env)
        self.checks, self.waits = checks, np.ones(env.num_envs, np.bool_)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        mask = np.ones(self.num_envs, np.bool_) if options is None else options["reset_mask"].copy()
        result = self.env.reset(seed=seed, options=options)
        self.waits &= ~mask
        return result

    def step(self, actions: Any) -> Any:
        if self.waits.any():
            raise gym.error.ResetNeeded("out of turn")
        if self.checks:
            action_check(self.action_space)(actions)
        result = self.env.step(actions)
        if self.metadata["autoreset_mode"] is AutoresetMode.DISABLED:
            self.waits = result[2] | result[3]
        return result


def make_one(layers: list[Layer], kwargs: dict[str, Any]) -> gym.Env:
    env: gym.Env = Drift(**deepcopy(kwargs))
    for name, arguments in layers:
        env = getattr(taac_wrappers, name)(env, **arguments)
    return env


class VectorMachine(RuleBasedStateMachine):
    """Vector wrappers against the wrappers around each sub-environment, which get no illegal call.

    All sub-environments share one reward normalizer, so there the expected rewards come from the model of that.
    """

    @initialize(
        rng=RANDOMS,
        mode=st.sampled_from(MODES),
        num_envs=st.integers(1, 3),
        native=st.booleans(),
        space=st.sampled_from(sorted(set(SPACES) - {"half open box", "int8 box"})),
        observation=st.sampled_from(["box", "dict", "discrete"]),
        depth=st.integers(1, 3),
        begins=st.integers(0, 3),
    )
    def build(self, rng, mode, num_envs, native, space, observation, depth, begins):
        native = native and array_like(SPACES[space])
        kwargs = {"action_space": SPACES[space], "observation": "box" if native else observation}
        layers = self.draw_layers(rng, depth, kwargs)
        note(f"layers: {layers}")
        alone = [layer for layer in layers if layer[0] != "RewardNormalizerWrapper"]
        self.wanted = SyncVectorEnv([partial(make_one, alone, kwargs)] * num_envs, autoreset_mode=mode)
        inside = (
            NativeDrift(num_envs, mode, deepcopy(SPACES[space]))
            if native
            else SyncVectorEnv([partial(make_one, [], kwargs)] * num_envs, autoreset_mode=mode)
        )
        self.envs: VectorEnv = Gate(inside, checks={name for name, _ in layers} <= UNCHECKED)
        for name, arguments in layers:
            self.envs = getattr(vector, name)(self.envs, **arguments)
        self.normalizers = [PlainBatchNormalizer(**kwargs) for name, kwargs in layers if name not in dict(alone)]
        self.mode, self.num_envs = mode, num_envs
        self.space = deepcopy(self.envs.action_space)
        self.bad_actions = bad_actions(self.space)
        self.waits, self.was_reset = np.ones(num_envs, np.bool_), False
        self.ghosts = np.zeros(num_envs, np.bool_)
        self.actions = member(self.space, "random", 0)
        if begins:  # else what comes first is up to the rules
            self.reset_with(0)
            self.step(["random", "high", "again"][:begins], seed=1, goes_on=True)

    def draw_layers(self, rng, depth, kwargs):
        """One of each kind at most: what two of them report under one key could not be told apart."""
        layers: list[Layer] = []
        for level in range(depth):
            env = make_one(layers, kwargs)
            taken = {name for name, _ in layers} - {"PrevActionWrapper"}
            names = [name for name in vector.__all__ if fits(name, env.action_space) and name not in taken]
            executed = executed_action_space(env)
            layers.append(draw_layer(rng, names, level, executed))
        return layers

    @rule(data=st.data(), seed=SEEDS, keep=st.booleans(), some=st.booleans())
    def reset(self, data, seed, keep, some):
        seeds: Any = seed
        if keep:
            seeds = None if self.was_reset else [seed + 2 * i for i in range(self.num_envs)]
        mask = None
        if some and self.was_reset:
            masks = st.lists(st.booleans(), min_size=self.num_envs, max_size=self.num_envs).filter(any)
            mask = np.array(data.draw(masks, label="mask"))
        self.reset_with(seeds, mask)

    def reset_with(self, seed: Any, mask: np.ndarray | None = None) -> None:
        options = [None if mask is None else {"reset_mask": mask.copy()} for _ in range(2)]
        wanted = self.wanted.reset(seed=seed, options=options[0])
        got = self.envs.reset(seed=seed, options=options[1])
        assert_same(wanted[0], got[0])
        self.waits = np.zeros_like(self.waits) if mask is None else self.waits & ~mask
        self.ghosts = np.zeros_like(self.ghosts) if mask is None else self.ghosts & ~mask
        self.was_reset = True

    @precondition(lambda self: self.was_reset)
    @rule(hows=st.lists(HOW, min_size=1, max_size=5), seed=st.integers(0, 99), goes_on=st.booleans())
    def step(self, hows, seed, goes_on):
        for number, how in enumerate(hows):
            if self.waits.any():
                if not goes_on:
                    break
                self.reset_with(None, self.waits)
            if how != "again":
                self.actions = member(self.space, how, seed + 7 * number)
            self.step_once(self.actions)

    def step_once(self, actions):
        observations, rewards, *ends, infos = self.wanted.step(deepcopy(actions))
        got_observations, got_rewards, *got_ends, got_infos = self.envs.step(deepcopy(actions))
        assert_same((observations, tuple(ends)), (got_observations, tuple(got_ends)))
        for model in self.normalizers:
            raw = got_infos["raw_reward"]
            assert_same(raw, rewards)
            rewards = model.normalized(rewards, ~self.ghosts)
            got_infos = without(got_infos, "raw_reward")
        np.testing.assert_allclose(got_rewards, rewards, rtol=1e-9, atol=1e-6)
        assert_same_infos(infos, got_infos, self.num_envs, (*REPORTED, "repeat"))
        done = ends[0] | ends[1]
        self.ghosts = done if self.mode is AutoresetMode.NEXT_STEP else self.ghosts
        self.waits = done if self.mode is AutoresetMode.DISABLED else self.waits

    @rule(data=st.data())
    def bad_action(self, data):
        error = (*WRONG, gym.error.ResetNeeded) if self.waits.any() else WRONG
        for bad in some(data, self.bad_actions, 2):
            with refused(self.envs, error=error, says="got|out of turn"):
                self.envs.step(bad)

    @rule(
        data=st.data(),
        how=st.sampled_from(["bad_turn", "bad_turn", "bad_seed", "bad_options", "bad_wrap", "bad_state"]),
    )
    def misuse(self, data, how):
        getattr(self, how)(data)

    def bad_turn(self, data):
        if self.waits.any():
            with refused(self.envs, error=gym.error.ResetNeeded, says="out of turn"):
                self.envs.step(member(self.space, data.draw(HOW), data.draw(SEEDS)))

    def bad_seed(self, data):
        bad = data.draw(st.sampled_from(BAD_SEEDS), label="seed")
        seeds: Any = [5] * self.num_envs
        seeds[data.draw(st.integers(0, self.num_envs - 1), label="where")] = bad
        seeds = data.draw(st.sampled_from([bad, seeds, [1] * (self.num_envs + 1), []]), label="seeds")
        options = {"reset_mask": np.ones(self.num_envs, np.bool_)}
        with refused(self.envs, says="`seed.*got"):
            self.envs.reset(seed=seeds, options=data.draw(st.sampled_from([None, options])))

    def bad_options(self, data):
        ones = np.ones(self.num_envs, np.bool_)
        masks = [ones.tolist(), ones.astype(int), ones[1:], np.append(ones, True), ~ones, ones[:, None], None, "all"]
        bad = data.draw(st.sampled_from([*({"reset_mask": mask} for mask in masks), "reset_mask", 5]), label="options")
        with refused(self.envs, says="`options.*got"):
            self.envs.reset(seed=data.draw(st.none() | SEEDS), options=bad)

    def bad_wrap(self, data):
        wrapper, arguments = data.draw(st.sampled_from(BAD_WRAPS), label="wrapper")
        name = wrapper.__name__
        if name in vector.__all__:
            with refused(self.envs):
                getattr(vector, name)(self.envs, **arguments)
            with refused(self.envs, error=TypeError):
                getattr(vector, name)(self.wanted.envs[0])

    def bad_state(self, data):
        """And a good one, which both take over."""
        count = data.draw(st.integers(0, 20), label="count")
        for layer in with_method(self.envs, "load_state_dict"):
            is_normalizer = hasattr(layer, "normalizer")
            bad = BAD_STATES if is_normalizer else [*BAD_ZETA_STATES, {"frames": np.ones(self.num_envs + 1)}]
            with refused(self.envs, says="`state"):
                layer.load_state_dict(data.draw(st.sampled_from(bad), label="state"))
            if is_normalizer:
                state: Any = {"count": count, "first_moment": 0.5, "second_moment": 1.0}
                self.normalizers[0].load(state)
            else:
                words = [stream_words(np.random.default_rng(count + i)) for i in range(self.num_envs)]
                state = {"frames": count + np.arange(self.num_envs), "stream": np.array(words)}
                for i, env in enumerate(self.wanted.envs):
                    one = {"frames": count + i, "stream": words[i]}
                    with_method(env, "load_state_dict")[0].load_state_dict(one)
            layer.load_state_dict(state)
            assert_same(state, layer.state_dict())


class PlainBatchNormalizer:
    """The rewards of one vector step are one update of a shared normalizer; a step that only reset gives none."""

    def __init__(self, clip: float | None, speed: float, update: bool):
        self.clip, self.speed, self.update = clip, speed, update
        self.load({"count": 0, "first_moment": 0.0, "second_moment": 0.0})

    def load(self, state: dict[str, Any]) -> None:
        self.begin, self.batches = state, []

    def normalized(self, rewards: np.ndarray, stepped: np.ndarray) -> np.ndarray:
        if self.update and stepped.any():
            self.batches.append(rewards[stepped])
        first, second = self.begin["first_moment"], self.begin["second_moment"]
        for count, batch in enumerate(self.batches, start=self.begin["count"]):
            eta = self.speed / (count + self.speed)
            first, second = (1 - eta) * first + eta * batch.mean(), (1 - eta) * second + eta * (batch**2).mean()
        values = (rewards - first) / np.sqrt(max(second - first**2, 0.0) + 1e-10)
        return np.where(stepped, values if self.clip is None else np.clip(values, -self.clip, self.clip), 0.0)


def without(infos: dict[str, Any], name: str) -> dict[str, Any]:
    """``infos`` without one report, also in those of the last steps."""
    kept = {key: value for key, value in infos.items() if key not in (name, f"_{name}")}
    if "final_info" in kept:
        kept["final_info"] = without(kept["final_info"], name)
    return kept


TestVectorStacks = VectorMachine.TestCase
