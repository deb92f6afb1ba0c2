"""Several environments: the engines that call them one by one are equal to Gymnasium's, bit for bit; what they make is
a vector environment of Gymnasium; the vector wrappers of envpool's engine are equal to those around each environment.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import vector as their_wrappers
from test_envs import as_bytes
from toy_envs import ToyEnv
from vector_toys import Drift, lockstep

import taac_wrappers
from taac_wrappers import (
    HybridActionWrapper,
    KRepWrapper,
    NRepeatWrapper,
    PrevActionWrapper,
    RepeatStatisticsWrapper,
    RewardNormalizerWrapper,
    ZetaRepeatWrapper,
    vector,
)
from taac_wrappers.training import envs as envs_module
from taac_wrappers.training import pool as pool_module
from taac_wrappers.training.envs import make_env, make_vector_env, no_wrappers, random_action
from taac_wrappers.training.faults import WatchedEnvs
from taac_wrappers.training.pool import with_vector_wrappers

DISABLED = AutoresetMode.DISABLED


def wrap(env: gym.Env) -> gym.Env:
    """TAAC's environment side."""
    return RepeatStatisticsWrapper(PrevActionWrapper(HybridActionWrapper(env), flatten=False))


def wrap_with_state(env: gym.Env) -> gym.Env:
    return wrap(RewardNormalizerWrapper(ZetaRepeatWrapper(env, epsilon=(0.9, 0.2, 100), mu=1.0)))


def wrap_n_repeat(env: gym.Env) -> gym.Env:
    return RepeatStatisticsWrapper(NRepeatWrapper(env, 3, gamma=0.9))


WRAPS = [no_wrappers, wrap, wrap_with_state, wrap_n_repeat]


def actions_for(envs: VectorEnv, frames: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1.5, 1.5, (frames, *envs.action_space.shape)).astype(np.float32)


def random_actions(envs: VectorEnv, steps: int, seed: int) -> list[Any]:
    """Of any space, also of Dicts."""
    rng = np.random.default_rng(seed)
    return [random_action(rng, envs.action_space) for _ in range(steps)]


def play(envs: Any, actions: Any) -> list[bytes]:
    """Everything that a learner sees who resets what is done."""
    seen = []
    for action in actions:
        observation, reward, terminated, truncated, infos = envs.step(action)
        seen += [as_bytes(array) for array in (observation, reward, terminated, truncated)]
        if (done := terminated | truncated).any():
            assert infos["_episode"].tolist() == done.tolist()
            seen += [infos["episode"][key][done].tobytes() for key in ("r", "l")]
            seen.append(as_bytes(envs.reset(options={"reset_mask": done})[0]))
    return seen


# --- In this process and in workers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", ["Hopper-v5", "Pendulum-v1"])
def test_sync_and_async_do_what_gymnasium_does(env_id):
    theirs = SyncVectorEnv([lambda: make_env(env_id)] * 3, autoreset_mode=DISABLED)
    ours = [make_vector_env(env_id, 3, engine=engine) for engine in ("sync", "async")]
    actions = actions_for(ours[0], 230, 0)
    expected = as_bytes(theirs.reset(seed=5)[0]), play(theirs, actions)
    for envs in ours:
        assert (as_bytes(envs.reset(seed=5)[0]), play(envs, actions)) == expected
        envs.close()
    theirs.close()


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("env_id", ["Hopper-v5", "FetchReach-v4"])
def test_with_a_methods_wrappers_too(env_id, wrap):
    theirs = SyncVectorEnv([lambda: make_env(env_id, wrap)] * 2, autoreset_mode=DISABLED)
    ours = [make_vector_env(env_id, 2, wrap, engine=engine) for engine in ("sync", "async")]
    actions = random_actions(theirs, 120, 0)
    expected = as_bytes(theirs.reset(seed=5)[0]), play(theirs, actions)
    for envs in ours:
        assert envs.single_observation_space == theirs.single_observation_space
        assert envs.single_action_space == theirs.single_action_space
        assert (as_bytes(envs.reset(seed=5)[0]), play(envs, actions)) == expected
        envs.close()
    theirs.close()


OWN_MODULE = """
import gymnasium as gym
from gymnasium.envs.classic_control import PendulumEnv

class Own(PendulumEnv):
    def __init__(self, render_mode=None, mass=1.0):
        super().__init__(render_mode)
        self.m = mass

gym.register("Own-v0", f"{__name__}:Own", max_episode_steps=100)
"""


def test_an_environment_of_ones_own_with_its_arguments(tmp_path, monkeypatch):
    """In the current folder, which no path leads to; a worker has to find it too, and register it only once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    Path("own_engine_module.py").write_text(OWN_MODULE)
    starts = []
    try:
        for engine, mass in (("sync", 2.0), ("async", 2.0), ("async", 1.0)):
            envs = make_vector_env("own_engine_module:Own-v0", 1, engine=engine, env_kwargs={"mass": mass})
            envs.reset(seed=0)
            starts.append(envs.step(np.ones((1, 1), np.float32))[0].tolist())
            assert envs.stop_reason is None
            envs.close()
        spec = gym.registry.pop("Own-v0")  # as in a worker
        del sys.modules["own_engine_module"]
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # registering it twice is one
            envs_module._make_replayable_env("own_engine_module:Own-v0", spec, no_wrappers, {}).close()
    finally:
        gym.registry.pop("Own-v0", None)
        sys.modules.pop("own_engine_module", None)
    assert starts[0] == starts[1] != starts[2]


SCRIPT = """
import numpy as np
from taac_wrappers import HybridActionWrapper, PrevActionWrapper, RepeatStatisticsWrapper
from taac_wrappers.training.envs import make_vector_env

def wrap(env):
    env = PrevActionWrapper(HybridActionWrapper(env), flatten=False)
    return RepeatStatisticsWrapper(env)

if __name__ == "__main__":
    seen = []
    for engine in ("sync", "async"):
        envs = make_vector_env("Pendulum-v1", 2, wrap, engine=engine)
        envs.reset(seed=0)
        for switch in (1, 0):
            action = {"action": np.full((2, 1), 0.5 - switch, np.float32), "switch": np.full(2, switch)}
            observation, *_, infos = envs.step(action)
        seen.append([observation["observation"].tolist(), observation["prev_action"].tolist(), envs.stop_reason])
        envs.close()
    assert seen[0] == seen[1], seen
    print(seen[0][1:])
"""


def test_workers_take_the_wrappers_of_a_script(tmp_path: Path):
    """Where the function is part of no module that a worker could import."""
    script = tmp_path / "method.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout.strip()) == (0, "[[[-0.5], [-0.5]], None]"), done.stderr


def test_workers_take_wrappers_without_a_name():
    longest = 2
    envs = make_vector_env("Pendulum-v1", 1, lambda env: NRepeatWrapper(env, longest), engine="async")
    envs.reset(seed=0)
    assert envs.step(np.zeros((1, 1), np.float32))[-1]["frames"].tolist() == [2]
    assert envs.stop_reason is None
    envs.close()


@pytest.mark.parametrize("wrap", [no_wrappers, wrap_with_state])
@pytest.mark.parametrize("engine", ["sync", "async"])
def test_episodes_go_on_bit_for_bit(engine, wrap):
    envs, others = (make_vector_env("Hopper-v5", 2, wrap, engine=engine) for _ in range(2))
    envs.reset(seed=1)
    play(envs, random_actions(envs, 105, 0))
    states = envs.episode_states()
    observation, exact = others.restore(states)
    assert exact.all()
    flat = spaces.flatten(batch_space(envs.single_observation_space, 2), observation)
    rows = [state["observation"] for state in states]
    assert sorted(flat.tolist()) == sorted(np.concatenate(rows).tolist())
    assert play(others, random_actions(envs, 60, 1)) == play(envs, random_actions(envs, 60, 1))
    envs.close()
    others.close()


def test_states_of_workers_are_plain_data():
    envs = make_vector_env("Pendulum-v1", 1, engine="async")
    envs.reset(seed=1)
    (state,) = envs.episode_states()
    del state["actions"], state["observation"]
    assert json.loads(json.dumps(state)) == state
    envs.close()


def test_workers_know_what_this_program_registered(monkeypatch):
    spec = EnvSpec("test_engines/Local-v0", lambda: gym.make("Pendulum-v1").unwrapped)
    monkeypatch.setitem(gym.registry, spec.id, spec)
    envs = make_vector_env(spec.id, 2, engine="async")
    assert envs.reset(seed=0)[0].shape == (2, 3)
    assert envs.stop_reason is None
    envs.close()


def test_workers_leave_signals_to_the_learner_and_end_with_it():
    envs = make_vector_env("Pendulum-v1", 1, engine="async")
    envs.reset(seed=0)
    process = envs._engine._hosts[0]._process
    os.kill(process.pid, signal.SIGINT)
    os.kill(process.pid, signal.SIGTERM)
    for _ in range(3):
        envs.step(np.zeros((1, 1), np.float32))
    assert envs.stop_reason is None
    envs.close()
    assert process.exitcode == 0  # it was not killed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": "threads"}, "engine must be 'sync', 'async' or 'envpool', got 'threads'"),
        ({"on_error": "ignore"}, "on_error must be 'stop' or 'restart', got 'ignore'"),
        ({"timeout": 0}, "timeout of envs must be a positive number of seconds, got 0"),
        ({"timeout": float("nan")}, "timeout of envs must be a positive number of seconds, got nan"),
    ],
)
def test_bad_arguments_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        make_vector_env("Pendulum-v1", 1, **changes)


def test_envpool_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ImportError, match=r'needs envpool: pip install "taac-wrappers\[envpool\]"'):
        make_vector_env("Pendulum-v1", 1, engine="envpool")


def test_the_other_engines_need_no_envpool(monkeypatch):
    monkeypatch.setattr(pool_module, "_import_envpool", lambda: pytest.fail("imported"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_vector_env("Pendulum-v1", 1).close()


# --- A vector environment of Gymnasium -------------------------------------------------------------------------------


class Talkative(Drift):
    """Short episodes of random length, and infos of all kinds, some of them under the names of the repeat wrappers'."""

    def __init__(self) -> None:
        super().__init__(spaces.Box(-1.0, 1.0, (2,)))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *result, _ = super().step(action)
        info: dict[str, Any] = {"level": float(action[0]), "place": action.copy(), "count": self._time, "odd": True}
        info |= {"text": f"frame {self._time}", "nothing": None, "parts": {"a": np.arange(3.0), "deeper": {"b": 1}}}
        if self._time % 2:
            info["sometimes"] = np.float32(self._time)
        return (*result, info)


class Liar(Talkative):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *result, info = super().step(action)
        own = {"frames": 7, "discount": 0.125, "executed_action": np.full(2, 9.0), "repeated": True}
        return (*result, {**info, **own})


@pytest.fixture
def talkative(monkeypatch) -> str:
    for env_id, kind in (("test_engines/Talkative-v0", Talkative), ("test_engines/Liar-v0", Liar)):
        monkeypatch.setitem(gym.registry, env_id, EnvSpec(env_id, kind, disable_env_checker=True))
    return "test_engines/Talkative-v0"


def sync_envs(env_id: str, count: int, wrap: Any = no_wrappers) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: make_env(env_id, wrap)] * count, autoreset_mode=DISABLED)


def untimed(infos: dict[str, Any]) -> dict[str, Any]:
    """Without the seconds that an episode took."""
    if "episode" in infos:
        infos["episode"] = {key: value for key, value in infos["episode"].items() if key not in ("t", "_t")}
    return infos


@pytest.mark.parametrize("wrap", WRAPS)
def test_they_are_a_vector_environment(talkative, wrap):
    envs, theirs = make_vector_env(talkative, 3, wrap), sync_envs(talkative, 3, wrap)
    assert isinstance(envs, WatchedEnvs)
    assert isinstance(envs, VectorEnv)
    assert envs.num_envs == 3
    assert envs.metadata["autoreset_mode"] is DISABLED
    for name in ("single_observation_space", "observation_space", "single_action_space", "action_space"):
        assert getattr(envs, name) == getattr(theirs, name)
    assert envs.unwrapped is envs
    observation, infos = envs.reset(seed=0)
    assert observation in envs.observation_space
    assert infos == {}
    envs.action_space.seed(0)
    assert envs.step(envs.action_space.sample())[0] in envs.observation_space
    envs.close()
    assert envs.closed


@pytest.mark.parametrize("engine", ["sync", "async"])
@pytest.mark.parametrize("wrap", WRAPS)
def test_infos_are_stacked_as_gymnasium_does(talkative, wrap, engine):
    envs, theirs = make_vector_env(talkative, 3, wrap, engine=engine), sync_envs(talkative, 3, wrap)
    assert as_bytes(envs.reset(seed=2)[0]) == as_bytes(theirs.reset(seed=2)[0])
    episodes = 0
    for action in random_actions(envs, 40, 1):
        *ours, infos = envs.step(action)
        *expected, their_infos = theirs.step(action)
        assert [as_bytes(part) for part in ours] == [as_bytes(part) for part in expected]
        if wrap is no_wrappers:
            report = {"frames": np.ones(3, np.int64), "executed_action": action, "repeated": np.zeros(3, bool)}
            masks = {f"_{name}": np.ones(3, bool) for name in report}
            their_infos = {**their_infos, **report, **masks}
        assert as_bytes(untimed(infos)) == as_bytes(untimed(their_infos))
        if (done := ours[2] | ours[3]).any():
            episodes += int(done.sum())
            observations = [each.reset(options={"reset_mask": done.copy()})[0] for each in (envs, theirs)]
            assert as_bytes(observations[0]) == as_bytes(observations[1])
    assert episodes > 9
    envs.close()


def test_what_an_environment_itself_says_of_frames_and_discounts_is_not_believed(talkative):
    envs = make_vector_env("test_engines/Liar-v0", 2, PrevActionWrapper)  # which reports nothing
    envs.reset(seed=0)
    action = np.array([[0.5, 0.25], [-1.0, 0.0]], np.float32)
    infos = envs.step(action)[-1]
    assert infos["frames"].tolist() == [1, 1]
    assert infos["repeated"].tolist() == [False, False]
    np.testing.assert_array_equal(infos["executed_action"], action, strict=True)
    assert not np.shares_memory(infos["executed_action"], action)
    assert "discount" not in infos
    assert "_discount" not in infos
    assert infos["count"].tolist() == [1, 1]  # all else is as it was


def test_what_stands_in_infos_belongs_to_the_caller(talkative):
    envs = make_vector_env(talkative, 2, wrap)
    envs.reset(seed=0)
    kept = []
    for action in random_actions(envs, 12, 0):
        *_, terminated, truncated, infos = envs.step(action)
        kept.append((infos, as_bytes(infos)))
        if (done := terminated | truncated).any():
            envs.reset(options={"reset_mask": done})
    assert all(as_bytes(infos) == before for infos, before in kept)


THEIR_STACK: list[Any] = [
    lambda envs: their_wrappers.RecordEpisodeStatistics(envs, stats_key="outer"),
    lambda envs: their_wrappers.NormalizeReward(envs),
    lambda envs: their_wrappers.ClipReward(envs, -0.5, 0.5),
    lambda envs: their_wrappers.DtypeObservation(envs, np.float64),
    lambda envs: their_wrappers.RescaleAction(envs, np.float32(-2), np.float32(2)),
]


def test_gymnasiums_wrappers_go_around_them(talkative):
    envs, theirs = make_vector_env(talkative, 3), sync_envs(talkative, 3)
    for put_around in THEIR_STACK:
        envs, theirs = put_around(envs), put_around(theirs)
    observation, _ = envs.reset(seed=1)
    assert observation.dtype == np.float64
    assert as_bytes(observation) == as_bytes(theirs.reset(seed=1)[0])
    episodes = 0
    for action in random_actions(envs, 60, 0):
        *ours, infos = envs.step(action)
        *expected, _ = theirs.step(action)
        assert [as_bytes(part) for part in ours] == [as_bytes(part) for part in expected]
        if (done := ours[2] | ours[3]).any():
            episodes += int(done.sum())
            assert infos["_outer"].tolist() == infos["_episode"].tolist() == done.tolist()
            for name in ("r", "l"):  # what the wrapper counted, and what was counted inside of each environment
                np.testing.assert_allclose(infos["outer"][name], infos["episode"][name], rtol=1e-12)
            observations = [each.reset(options={"reset_mask": done.copy()})[0] for each in (envs, theirs)]
            assert as_bytes(observations[0]) == as_bytes(observations[1])
    assert episodes > 9
    envs.close()
    assert envs.unwrapped.closed


def test_gymnasiums_infos_in_a_list(talkative):
    envs = their_wrappers.DictInfoToList(make_vector_env(talkative, 2, wrap))
    envs.reset(seed=1)
    infos = envs.step(random_actions(envs, 1, 0)[0])[-1]
    assert [(info["frames"], info["count"], info["parts"]["deeper"]) for info in infos] == [(1, 1, {"b": 1})] * 2


OUR_LAYERS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "TAAC": [
        ("HybridActionWrapper", {}),
        ("PrevActionWrapper", {"flatten": False}),
        ("RepeatStatisticsWrapper", {}),
    ],
    "exploration": [("ZetaRepeatWrapper", {"epsilon": 0.4, "mu": 1.0}), ("PrevActionWrapper", {})],
}


def with_layers(module: Any, layers: list[tuple[str, dict[str, Any]]]) -> Any:
    def put_around(env: Any) -> Any:
        for name, arguments in layers:
            env = getattr(module, name)(env, **arguments)
        return env

    return put_around


@pytest.mark.parametrize("stack", OUR_LAYERS)
@pytest.mark.parametrize("inside", [no_wrappers, wrap_n_repeat])
def test_our_vector_wrappers_go_around_them(talkative, inside, stack):
    """And do the same as the wrappers around each environment."""
    layers = OUR_LAYERS[stack]
    around_each = with_layers(taac_wrappers, layers)
    expected = make_vector_env(talkative, 3, lambda env: around_each(inside(env)))
    actual = with_layers(vector, layers)(make_vector_env(talkative, 3, inside))
    # The infos of wrappers inside of each environment stand where Gymnasium puts them.
    assert lockstep(expected, actual, DISABLED, steps=60, at_top=()) > 9


def test_previous_actions_above_wrappers_inside(talkative):
    """What was executed below is of another space than the action."""
    envs = vector.PrevActionWrapper(make_vector_env(talkative, 2, HybridActionWrapper), flatten=False)
    assert envs.single_observation_space["prev_action"] == spaces.Box(-1.0, 1.0, (2,))
    envs.reset(seed=0)
    action = {"action": np.full((2, 2), 0.5, np.float32), "switch": np.array([1, 0])}
    assert envs.step(action)[0]["prev_action"].tolist() == [[0.5, 0.5], [0, 0]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"options": {"reset_mask": [True, False]}}, "must be a numpy array of bool"),
        ({"options": {"reset_mask": np.array([True])}}, r"must have shape \(2,\)"),
        ({"options": {"reset_mask": np.zeros(2, bool)}}, "at least one True"),
        ({"seed": [1]}, "one seed per sub-environment"),
        ({"seed": -1}, "`seed` must be an integer >= 0"),
    ],
)
def test_bad_resets_are_named(arguments, message):
    envs = make_vector_env("Pendulum-v1", 2)
    envs.reset(seed=0)
    with pytest.raises((ValueError, TypeError), match=message):
        envs.reset(**arguments)


# --- The vector versions of a method's wrappers ----------------------------------------------------------------------


class SpecToy(ToyEnv):
    """Episodes of a random length."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed)
        self.length = int(self.np_random.integers(1, 9))
        return observation, info


@pytest.fixture
def toy(monkeypatch) -> str:
    monkeypatch.setitem(gym.registry, "test_engines/Toy-v0", EnvSpec("test_engines/Toy-v0", SpecToy))
    return "test_engines/Toy-v0"


def unstacked(infos: dict[str, Any], env: int) -> dict[str, Any]:
    """One environment's own info. Masks are of the outermost level: what is inside of a report is all there."""
    info = {}
    for key, value in infos.items():
        if not key.startswith("_") and infos.get(f"_{key}", np.ones(env + 1, bool))[env]:
            info[key] = unstacked(value, env) if isinstance(value, dict) else value[env]
    return info


def wrap_with_arguments(env: gym.Env) -> gym.Env:
    env = ZetaRepeatWrapper(env, epsilon=(0.9, 0.1, 30), mu=0.5, max_repeat=3)
    env = PrevActionWrapper(HybridActionWrapper(env), flatten=False, key="before", initial_action=[0.25, -0.5])
    return RepeatStatisticsWrapper(env, key="repetition")


@pytest.mark.parametrize("wrap", [no_wrappers, RepeatStatisticsWrapper, wrap, wrap_with_arguments])
def test_vector_wrappers_do_what_a_methods_wrappers_do(toy, wrap):
    """Observations, rewards, flags and infos, over many episodes."""
    each = sync_envs(toy, 4, wrap)
    together = with_vector_wrappers(sync_envs(toy, 4), make_env(toy), wrap)
    for name in ("single_observation_space", "observation_space", "single_action_space", "action_space"):
        assert getattr(together, name) == getattr(each, name)
    assert as_bytes(together.reset(seed=3)[0]) == as_bytes(each.reset(seed=3)[0])
    episodes = 0
    for action in random_actions(each, 80, 5):
        *expected, infos = each.step(action)
        *got, their_infos = together.step(action)
        assert [as_bytes(part) for part in got] == [as_bytes(part) for part in expected]
        for env in range(4):
            wanted = unstacked(untimed(infos), env)
            assert as_bytes(unstacked(untimed(their_infos), env)) == as_bytes(wanted)
            if wrap not in (no_wrappers, RepeatStatisticsWrapper):
                assert {"frames", "executed_action", "repeated"} <= wanted.keys()
        if (done := got[2] | got[3]).any():
            assert wrap is no_wrappers or infos.keys() & {"repeat", "repetition"}
            episodes += int(done.sum())
            observations = [envs.reset(options={"reset_mask": done.copy()})[0] for envs in (each, together)]
            assert as_bytes(observations[0]) == as_bytes(observations[1])
    assert episodes > 40


class OwnWrapper(gym.Wrapper):
    """Somebody's own."""


class Namesake(HybridActionWrapper):
    """Of the same kind as one that has a vector version, but not the same."""


@pytest.mark.parametrize(
    ("wrap", "name"),
    [
        (lambda env: RepeatStatisticsWrapper(NRepeatWrapper(env, 3)), "NRepeatWrapper"),
        (lambda env: KRepWrapper(env, 3), "KRepWrapper"),
        (OwnWrapper, "OwnWrapper"),
        (lambda env: HybridActionWrapper(OwnWrapper(env)), "OwnWrapper"),
        (Namesake, "Namesake"),
        (lambda env: gym.wrappers.TimeLimit(env, 5), "TimeLimit"),
    ],
    ids=["NRepeat", "KRep", "own", "own inside", "subclass", "Gymnasium's"],
)
def test_a_wrapper_without_a_vector_version_is_refused_by_its_name(toy, wrap, name):
    message = f"--env-engine envpool cannot be used with {name}, which has no vector version"
    with pytest.raises(ValueError, match=message):
        with_vector_wrappers(sync_envs(toy, 2), make_env(toy), wrap)
