"""What all agents share: arrays and tensors, bounds, the stateful policy, bad arguments, and the file."""

from __future__ import annotations

import io
import itertools
import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from slow_agents import ACTIONS, inputs, make_agent, observed, own_arguments, slow_actor, spaces_of
from slow_agents import KINDS as EVERY_KIND

from taac_wrappers.agent import HybridAgent, KRepAgent, NRepAgent, SACAgent, TAACAgent, files, load_agent
from taac_wrappers.agent.repeating import RepeatingAgent

KINDS = pytest.mark.parametrize("kind", EVERY_KIND)
REPEATING = pytest.mark.parametrize("kind", [TAACAgent, HybridAgent])
HOLDING = pytest.mark.parametrize("kind", [NRepAgent, KRepAgent])
LOADERS = pytest.mark.parametrize("load", [TAACAgent.load, load_agent], ids=["of one kind", "of any kind"])


def parts(action) -> list:
    """The arrays of an action: what to do, and of some agents a choice beside it."""
    return list(action.values()) if isinstance(action, dict) else [action]


@KINDS
def test_arrays_give_arrays_and_tensors_give_tensors(kind):
    agent = make_agent(kind)
    observation, prev_action = inputs(4)
    chosen = agent.act(observed(kind, observation.astype(np.float64), prev_action), deterministic=True)
    action, *choice = parts(chosen)
    assert isinstance(action, np.ndarray)
    assert (action.shape, action.dtype) == ((4, 2), np.float32)
    if isinstance(agent.action_space, spaces.Dict):
        assert list(chosen) == ["action", "repeat" if kind is KRepAgent else "switch"]
        assert (choice[0].shape, choice[0].dtype) == ((4,), np.int64)
    same = parts(agent.act(observed(kind, *map(torch.from_numpy, (observation, prev_action))), deterministic=True))
    assert all(isinstance(output, torch.Tensor) and not output.requires_grad for output in same)
    assert not any(output.is_inference() for output in same)  # they may be used in any mode
    for output, array in zip(same, parts(chosen), strict=True):
        np.testing.assert_array_equal(output.numpy(), array)


@KINDS
def test_actions_never_leave_the_space_however_the_bounds_round(kind):
    rng = np.random.default_rng(0)
    low = rng.uniform(-3, 0, 200).astype(np.float32)
    space = spaces.Box(low, low + rng.uniform(0.1, 3, 200).astype(np.float32))
    agent = kind(*spaces_of(kind, actions=space), hidden=(4,), **own_arguments(kind))
    for saturated in (-50.0, 50.0):
        torch.nn.init.constant_(agent.actor.head.bias, saturated)
        torch.manual_seed(0)
        action, *_ = parts(agent.act(observed(kind, np.zeros((8, 3), np.float32), np.tile(low, (8, 1)))))
        assert all(space.contains(one) for one in action)


@KINDS
@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy])
def test_an_observation_that_is_no_batch_is_refused_with_the_shape_wanted(kind, convert):
    agent, (observation, prev_action) = make_agent(kind), map(convert, inputs(4))
    for wrong in (observation[0], observation[:, :2], observation[None]):
        message = rf"observation must be a batch of shape \[n, 3\], got shape {re.escape(str(list(wrong.shape)))}"
        with pytest.raises(ValueError, match=message):
            agent.act(observed(kind, wrong, prev_action))
    if issubclass(kind, RepeatingAgent):
        with pytest.raises(ValueError, match=r"prev_action must be a batch of shape \[n, 2\], got shape \[2\]"):
            agent.act(observed(kind, observation, prev_action[0]))
        for wrong, got in (
            (observation, type(observation).__name__),
            ({"observation": observation}, r"\['observation'\]"),
        ):
            with pytest.raises(ValueError, match=rf"must be a dict of \['observation', 'prev_action'\], got {got}"):
                agent.act(wrong)


@KINDS
@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy])
def test_log_prob_is_the_density_of_the_squashed_gaussian(kind, convert):
    agent = make_agent(kind)
    observation, prev_action = inputs(20)
    _, action = inputs(20, seed=1)
    log_prob = agent.log_prob(observed(kind, convert(observation), convert(prev_action)), convert(action))
    assert type(log_prob) is type(convert(action))
    assert log_prob.shape == (20,)
    center, scale = (ACTIONS.high + ACTIONS.low) / 2.0, (ACTIONS.high - ACTIONS.low) / 2.0
    for b in range(20):
        mean, std = slow_actor(agent, observation[b], prev_action[b])
        squashed = (action[b] - center) / scale
        normal = -0.5 * ((np.arctanh(squashed) - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
        assert float(log_prob[b]) == pytest.approx((normal - np.log(scale * (1 - squashed**2))).sum(), abs=1e-4)
    with pytest.raises(ValueError, match=r"action must be a batch of shape \[n, 2\], got shape \[2\]"):
        agent.log_prob(observed(kind, observation, prev_action), action[0])


# --- The stateful policy ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [TAACAgent, HybridAgent, SACAgent])
def test_policy_feeds_back_what_it_executed(kind):
    agent = make_agent(kind)
    policy, prev_action = agent.policy(num_envs=3), np.clip(np.zeros((3, 2)), ACTIONS.low, ACTIONS.high)
    switches = []
    for step in range(6):
        observation, _ = inputs(3, seed=step)
        expected, *switch = parts(agent.act(observed(kind, observation, prev_action), deterministic=True))
        if kind is not SACAgent:
            expected = np.where(switch[0][:, None] == 1, expected, prev_action)
            switches.append(switch[0])
        action = policy(observation)
        np.testing.assert_array_equal(action, expected)
        if kind is not SACAgent:
            assert policy.switch.dtype == bool
            np.testing.assert_array_equal(policy.switch, switch[0])
        prev_action = expected
        action[:] = 99.0  # what the caller does with it must not reach the memory
    assert kind is SACAgent or 0 < np.mean(switches) < 1


@HOLDING
def test_policy_holds_what_it_decided(kind):
    """In every environment for its own time, or until its episode is over."""
    agent = make_agent(kind)
    policy, held = agent.policy(num_envs=3), np.zeros((3, 2), np.float32)
    remaining, durations = np.zeros(3, int), set()
    for step in range(40):
        observation, _ = inputs(3, seed=step)
        chosen, *duration = parts(agent.act(observation, deterministic=True))
        for env in np.flatnonzero(remaining == 0):
            held[env], remaining[env] = chosen[env], duration[0][env] if duration else agent.n
            durations.add(remaining[env].item())
        action = policy(observation)
        np.testing.assert_array_equal(action, held)
        remaining -= 1
        np.testing.assert_array_equal(policy.remaining, remaining)
        action[:] = 99.0  # what the caller does with it must not reach the memory
        done = np.random.default_rng(step).random(3) < 0.1
        policy.reset(done)
        remaining[done] = 0
    assert durations == {3} if kind is NRepAgent else len(durations) > 1
    policy.reset()
    np.testing.assert_array_equal(policy.remaining, [0, 0, 0])


def test_a_holding_policy_asks_the_agent_only_where_something_is_to_be_decided(monkeypatch):
    agent, asked = make_agent(NRepAgent), []
    act = agent.act
    monkeypatch.setattr(agent, "act", lambda *args, **how: asked.append(step) or act(*args, **how))
    policy = agent.policy(num_envs=2)
    for step in range(7):
        policy(inputs(2, seed=step)[0])
    assert asked == [0, 3, 6]


@REPEATING
def test_policy_reset_forgets_the_masked_envs_only(kind):
    agent = make_agent(kind)
    policy = agent.policy(num_envs=3)
    remembered = inputs(3)[1]
    policy.prev_action = remembered.copy()
    policy.reset(np.array([False, True, False]))
    np.testing.assert_array_equal(policy.prev_action[[0, 2]], remembered[[0, 2]])
    np.testing.assert_array_equal(policy.prev_action[1], [0.0, 0.5])  # zero, clipped into the space
    policy.reset()
    np.testing.assert_array_equal(policy.prev_action, [[0.0, 0.5]] * 3)


@KINDS
def test_policy_reset_names_a_bad_mask(kind):
    policy = make_agent(kind).policy(num_envs=3)
    for mask in (np.array([True]), np.array(True)):
        with pytest.raises(ValueError, match=r"mask must have shape \(3,\), got array"):
            policy.reset(mask)


@KINDS
def test_a_single_env_needs_no_batch_dimension(kind):
    agent = make_agent(kind)
    policy, batched = agent.policy(), agent.policy(num_envs=1)
    for step in range(3):
        observation, _ = inputs(1, seed=step)
        action = policy(observation[0])
        assert action.shape == (2,)
        np.testing.assert_array_equal(action, batched(observation)[0])


@KINDS
def test_a_policy_can_be_stochastic(kind):
    policy = make_agent(kind).policy(deterministic=False)
    torch.manual_seed(0)
    actions = set()
    for _ in range(10):
        policy.reset()  # or it might repeat, or hold
        actions.add(tuple(policy(np.zeros(3, np.float32)).tolist()))
    assert len(actions) > 1


@KINDS
def test_policy_names_bad_input(kind):
    agent = make_agent(kind)
    for num_envs in (0, 1.5):
        with pytest.raises(ValueError, match=f"num_envs must be a positive integer, got {num_envs}"):
            agent.policy(num_envs)
    policy = agent.policy(num_envs=2)
    for shape in ((3,), (3, 3), (2, 4)):
        with pytest.raises(ValueError, match=r"observation must have shape \(2, 3\), got"):
            policy(np.zeros(shape, np.float32))


@REPEATING
def test_the_initial_action_is_float32_whatever_the_space(kind):
    agent = kind(*spaces_of(kind, actions=spaces.Box(0.5, 1.0, (2,), np.float64)), hidden=(4,))
    policy = agent.policy(num_envs=3)
    assert policy.prev_action.dtype == np.float32
    np.testing.assert_array_equal(policy.prev_action, np.full((3, 2), 0.5))


# --- Construction ----------------------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (TypeError, r"observation_space.* must be a one-dimensional Box, got Discrete", {"observations": 1}),
        (TypeError, r"observation_space.* must be a one-dimensional Box, got Box", {"observations": (2, 2)}),
        (TypeError, r"action_space.* must be a one-dimensional Box, got Discrete", {"actions": 1}),
        (ValueError, "action_space must be bounded, got Box", {"actions": None}),
        (ValueError, r"hidden must be .*positive integers, got \(\)", {"hidden": ()}),
        (ValueError, r"hidden must be .*positive integers, got \(8, 0\)", {"hidden": (8, 0)}),
        (ValueError, r"hidden must be .*positive integers, got \(2.5,\)", {"hidden": (2.5,)}),
        (ValueError, "log_std_min must be below log_std_max, got 2.0 and 2.0", {"log_std_min": 2.0}),
    ],
)
def test_bad_constructor_arguments_are_named(error, message, arguments, kind):
    arguments = dict(arguments)
    made = {1: spaces.Discrete(3), (2, 2): spaces.Box(-1, 1, (2, 2)), None: spaces.Box(-np.inf, np.inf, (2,))}
    boxes = {name: made[arguments.pop(name)] for name in ("observations", "actions") if name in arguments}
    with pytest.raises(error, match=message):
        kind(*spaces_of(kind, **boxes), **own_arguments(kind), **arguments)


# --- The file --------------------------------------------------------------------------------------------------------

OPTIONS = {"hidden": (5, 7), "log_std_min": -10.0, "log_std_max": 1.5}


@KINDS
def test_save_and_load_bring_everything_back(tmp_path, kind):
    options = OPTIONS | own_arguments(kind) | ({"min_advantage": 0.0} if kind is TAACAgent else {})
    infinite = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    torch.manual_seed(0)
    agent = kind(*spaces_of(kind, infinite), **options)
    with torch.no_grad():
        for number, parameter in enumerate(agent.parameters()):
            parameter.add_(0.1 * number)
    agent.save(tmp_path / "agent.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["agent.safetensors"]
    for load in (kind.load, load_agent):
        loaded = load(str(tmp_path / "agent.safetensors"))
        assert type(loaded) is kind
        before, after = agent.state_dict(), loaded.state_dict()
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert (loaded.observation_space, loaded.action_space) == spaces_of(kind, infinite)
        assert loaded.config() == options
        outputs = []
        for each in (agent, loaded):
            torch.manual_seed(1)
            outputs.append(parts(each.act(observed(kind, *inputs(20)))))
        for before, after in zip(*outputs, strict=True):
            np.testing.assert_array_equal(before, after)


@KINDS
def test_equal_agents_give_equal_bytes(tmp_path, kind):
    """Saved many times, because a file whose header has several entries would differ only now and then."""
    for number in range(20):
        make_agent(kind).save(tmp_path / f"{number}.safetensors")
    make_agent(kind, seed=2).save(tmp_path / "other.safetensors")
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    other = files.pop("other.safetensors")
    assert len(set(files.values())) == 1
    assert other not in files.values()


def test_the_file_of_another_kind_is_named(tmp_path):
    for wrong, right in itertools.permutations(EVERY_KIND, 2):
        path = tmp_path / f"{right.__name__}.safetensors"
        make_agent(right).save(path)
        expected = (
            rf"{path.name}' has format 'taac_wrappers\.{right.__name__}/3', expected taac_wrappers\.{wrong.__name__}/3"
        )
        with pytest.raises(ValueError, match=expected):
            wrong.load(path)


@pytest.mark.parametrize("step", ["write", "replace"])
def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, step):
    path = tmp_path / "agent.safetensors"
    make_agent(SACAgent, seed=1).save(path)
    before = path.read_bytes()

    def fail(target, _):
        if step == "write":
            with open(target, "wb") as file:
                file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(*((Path, "write_bytes") if step == "write" else (files.os, "replace")), fail)
    with pytest.raises(OSError, match="disk full"):
        make_agent(SACAgent, seed=2).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


class Payload:
    """What a hostile pickle looks like: reading it creates a file."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


@LOADERS
@pytest.mark.parametrize("dump", ["pickle", "torch.save"])
def test_load_never_runs_code(tmp_path, dump, load):
    marker, path = tmp_path / "ran", tmp_path / "agent.safetensors"
    if dump == "pickle":
        path.write_bytes(pickle.dumps(Payload(marker)))
        pickle.loads(path.read_bytes())
    else:
        file = io.BytesIO()
        torch.save(Payload(marker), file)
        path.write_bytes(file.getvalue())
        torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    assert marker.exists()  # the payload works where pickle is trusted
    marker.unlink()
    with pytest.raises(ValueError, match=r"agent\.safetensors' is not a readable agent file"):
        load(path)
    assert not marker.exists()


@LOADERS
def test_load_names_a_missing_file(tmp_path, load):
    for path in (tmp_path / "nowhere.safetensors", tmp_path):
        with pytest.raises(FileNotFoundError, match=str(path)):
            load(path)


@LOADERS
@pytest.mark.parametrize("kept", [0, 7, 100, -1])
def test_load_refuses_a_truncated_file(tmp_path, kept, load):
    path = tmp_path / "agent.safetensors"
    make_agent(TAACAgent).save(path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"agent\.safetensors' is not a readable agent file"):
        load(path)


@LOADERS
@pytest.mark.parametrize("header", ["{", "[]", "null", "[" * 100_000], ids=["torn", "list", "null", "deep"])
def test_load_refuses_a_header_that_is_none(tmp_path, header, load):
    path = tmp_path / "agent.safetensors"
    save_file({"weight": torch.zeros(2)}, path, metadata={"agent": header})
    with pytest.raises(ValueError, match=r"agent\.safetensors' is not a readable agent file"):
        load(path)


@LOADERS
@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {"format": "pt"},
        {"agent": "{}"},
        {"agent": '{"format": "taac_wrappers.TAACAgent/9"}'},
        {"agent": '{"format": "taac_wrappers.TAACAgent"}'},
        {"agent": '{"format": ["taac_wrappers.TAACAgent/3"]}'},
        {"agent": '{"format": ["taac_wrappers.TAACAgent/2"]}'},
    ],
    ids=str,
)
def test_load_refuses_another_format(tmp_path, metadata, load):
    path = tmp_path / "agent.safetensors"
    save_file({"weight": torch.zeros(2)}, path, metadata=metadata)
    with pytest.raises(ValueError, match=r"agent\.safetensors' has format .*, expected .*taac_wrappers\.TAACAgent/3"):
        load(path)


def test_load_agent_says_what_it_would_read(tmp_path):
    save_file({"weight": torch.zeros(2)}, tmp_path / "agent.safetensors")
    with pytest.raises(ValueError, match="expected taac_wrappers") as refused:
        load_agent(tmp_path / "agent.safetensors")
    expected = str(refused.value).partition("expected ")[2].split(" or ")
    assert sorted(expected) == sorted(f"taac_wrappers.{kind.__name__}/3" for kind in EVERY_KIND)


@LOADERS
@pytest.mark.parametrize(
    "damage",
    [
        lambda tensors, header: tensors.pop("space.action.low"),
        lambda tensors, header: tensors.pop("space.observation.prev_action.low"),
        lambda tensors, header: tensors.pop("space.observation.prev_action.high"),
        lambda tensors, header: tensors.update({"space.observation.prev_action.high": torch.ones(3)}),
        lambda tensors, header: tensors.update({"space.observation.more.low": torch.zeros(0)}),
        lambda tensors, header: tensors.update({f"space.more.{end}": torch.zeros(1) for end in ("low", "high")}),
        lambda tensors, header: tensors.pop("actor.head.weight"),
        lambda tensors, header: tensors.update(extra=torch.zeros(1)),
        lambda tensors, header: tensors.update({"actor.head.weight": torch.zeros(3, 3)}),
        lambda tensors, header: tensors.update({"space.action.high": torch.full((2,), torch.inf)}),
        lambda tensors, header: tensors.update({"space.action.high": torch.zeros(3)}),
        lambda tensors, header: header.pop("config"),
        lambda tensors, header: header.update(config="{"),
        lambda tensors, header: header.update(config=[]),
        lambda tensors, header: header["config"].update(hidden=[8]),
        lambda tensors, header: header["config"].update(hidden="wide"),
        lambda tensors, header: header["config"].update(unknown=1),
    ],
)
def test_load_refuses_what_only_looks_like_an_agent(tmp_path, damage, load):
    assert_refused(tmp_path / "agent.safetensors", TAACAgent, damage, load)


def assert_refused(path: Path, kind: type, damage, load) -> None:
    make_agent(kind).save(path)
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["agent"])
    tensors = load_file(path)
    save_file(tensors, path, metadata={"agent": json.dumps(header)})
    load(path)  # rewriting it alone does no harm
    damage(tensors, header)
    save_file(tensors, path, metadata={"agent": json.dumps(header)})
    with pytest.raises(ValueError, match=r"agent\.safetensors' does not hold a complete agent"):
        load(path)


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        (NRepAgent, lambda tensors, header: header["config"].pop("n")),
        *(
            (NRepAgent, lambda tensors, header, n=n: header["config"].update(n=n))
            for n in (0, -1, 2.5, "3", None, [3], 1e400)
        ),
        (SACAgent, lambda tensors, header: header["config"].update(n=3)),
        (KRepAgent, lambda tensors, header: header["config"].update(max_repeat=4)),
        (KRepAgent, lambda tensors, header: tensors.pop("critics.twins.0.head.bias")),
        *(
            (KRepAgent, lambda tensors, header, bias=bias: tensors.update({"critics.twins.0.head.bias": bias}))
            for bias in (torch.zeros(()), torch.zeros(0), torch.zeros(1), torch.zeros(5), torch.zeros(4, 1))
        ),
        (KRepAgent, lambda tensors, header: tensors.update({"critics.twins.1.head.weight": torch.zeros(5, 8)})),
        (KRepAgent, lambda tensors, header: tensors.pop("log_repeat_temperature")),
        (HybridAgent, lambda tensors, header: tensors.pop("actor.switch_head.weight")),
        (HybridAgent, lambda tensors, header: tensors.pop("space.observation.prev_action.low")),
        (HybridAgent, lambda tensors, header: tensors.update({"critics.twins.0.head.bias": torch.zeros(1)})),
        (HybridAgent, lambda tensors, header: header["config"].update(min_advantage=0.0)),
    ],
)
def test_load_refuses_what_only_looks_like_an_agent_of_this_kind(tmp_path, kind, damage):
    assert_refused(tmp_path / "agent.safetensors", kind, damage, load_agent)


def test_more_durations_than_the_file_has_room_for_are_refused_before_memory_is_spent_on_them(tmp_path, monkeypatch):
    """How many there are is told by a vector, and the matrix that belongs to it may be missing."""
    path = tmp_path / "agent.safetensors"
    make_agent(KRepAgent, hidden=(1000,)).save(path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    save_file(load_file(path) | {"critics.twins.0.head.bias": torch.zeros(10**6)}, path, metadata=metadata)
    monkeypatch.setattr(torch, "empty", lambda *size, **_: pytest.fail(f"memory for {size}"))  # as nn.Linear would
    with pytest.raises(ValueError, match=r"does not hold a complete agent: .*smaller than hidden layers of \[1000\]"):
        load_agent(path)


@KINDS
def test_layers_larger_than_the_file_are_refused_before_memory_is_spent_on_them(tmp_path, kind, monkeypatch):
    """A million numbers to look at and as many hidden units are two short lines of a header."""
    path = tmp_path / "agent.safetensors"
    make_agent(kind, hidden=(1000,)).save(path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    name = "space.observation.observation" if issubclass(kind, RepeatingAgent) else "space.observation"
    tensors |= {f"{name}.{end}": torch.full((10**6,), value) for end, value in (("low", -1.0), ("high", 1.0))}
    save_file(tensors, path, metadata=metadata)
    monkeypatch.setattr(torch, "empty", lambda *size, **_: pytest.fail(f"memory for {size}"))  # as nn.Linear would
    with pytest.raises(ValueError, match=r"does not hold a complete agent: .*smaller than hidden layers of \[1000\]"):
        kind.load(path)


def test_a_file_under_the_name_of_another_kind_is_refused(tmp_path):
    """But for SAC and SAC-Nrep, which differ in nothing but the time for which an action is held."""
    path = tmp_path / "agent.safetensors"
    for kind, other in itertools.permutations(EVERY_KIND, 2):
        make_agent(kind).save(path)
        renamed = json.dumps({"format": f"{other.FORMAT}/3", "config": make_agent(other).config()})
        save_file(load_file(path), path, metadata={"agent": renamed})
        if {kind, other} == {SACAgent, NRepAgent}:
            assert type(load_agent(path)) is other
            continue
        with pytest.raises(ValueError, match=r"agent\.safetensors' does not hold a complete agent"):
            load_agent(path)
