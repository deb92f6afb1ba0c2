"""What both agents share: arrays and tensors, bounds, the stateful policy, bad arguments, and the file."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from slow_agents import ACTIONS, inputs, make_agent, observed, spaces_of

from taac_wrappers.agent import SACAgent, TAACAgent, files, load_agent

KINDS = pytest.mark.parametrize("kind", [TAACAgent, SACAgent])
LOADERS = pytest.mark.parametrize("load", [TAACAgent.load, load_agent], ids=["of one kind", "of any kind"])


def parts(action) -> list:
    """The arrays of an action: of TAAC two, of SAC one."""
    return list(action.values()) if isinstance(action, dict) else [action]


@KINDS
def test_arrays_give_arrays_and_tensors_give_tensors(kind):
    agent = make_agent(kind)
    observation, prev_action = inputs(4)
    chosen = agent.act(observed(kind, observation.astype(np.float64), prev_action), deterministic=True)
    action, *switch = parts(chosen)
    assert isinstance(action, np.ndarray)
    assert (action.shape, action.dtype) == ((4, 2), np.float32)
    assert [(each.shape, each.dtype) for each in switch] == ([((4,), np.int64)] if kind is TAACAgent else [])
    if kind is TAACAgent:
        assert list(chosen) == ["action", "switch"]
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
    agent = kind(*spaces_of(kind, actions=space), hidden=(4,))
    for saturated in (-50.0, 50.0):
        torch.nn.init.constant_(agent.actor.head.bias, saturated)
        torch.manual_seed(0)
        action, *_ = parts(agent.act(observed(kind, np.zeros((8, 3), np.float32), np.tile(low, (8, 1)))))
        assert all(space.contains(one) for one in action)


# --- The stateful policy ---------------------------------------------------------------------------------------------


@KINDS
def test_policy_feeds_back_what_it_executed(kind):
    agent = make_agent(kind)
    policy, prev_action = agent.policy(num_envs=3), np.clip(np.zeros((3, 2)), ACTIONS.low, ACTIONS.high)
    switches = []
    for step in range(6):
        observation, _ = inputs(3, seed=step)
        expected, *switch = parts(agent.act(observed(kind, observation, prev_action), deterministic=True))
        if kind is TAACAgent:
            expected = np.where(switch[0][:, None] == 1, expected, prev_action)
            switches.append(switch[0])
        action = policy(observation)
        np.testing.assert_array_equal(action, expected)
        if kind is TAACAgent:
            assert policy.switch.dtype == bool
            np.testing.assert_array_equal(policy.switch, switch[0])
        prev_action = expected
        action[:] = 99.0  # what the caller does with it must not reach the memory
    assert kind is SACAgent or 0 < np.mean(switches) < 1


def test_policy_reset_forgets_the_masked_envs_only():
    agent = make_agent(TAACAgent)
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
        policy.reset()
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


def test_the_initial_action_is_float32_whatever_the_space():
    agent = TAACAgent(*spaces_of(TAACAgent, actions=spaces.Box(0.5, 1.0, (2,), np.float64)), hidden=(4,))
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
        kind(*spaces_of(kind, **boxes), **arguments)


# --- The file --------------------------------------------------------------------------------------------------------

OPTIONS = {"hidden": (5, 7), "log_std_min": -10.0, "log_std_max": 1.5}


@pytest.mark.parametrize(("kind", "options"), [(TAACAgent, OPTIONS | {"min_advantage": 0.0}), (SACAgent, OPTIONS)])
def test_save_and_load_bring_everything_back(tmp_path, kind, options):
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
    for wrong, right in ((TAACAgent, SACAgent), (SACAgent, TAACAgent)):
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
    with pytest.raises(ValueError, match=r"expected taac_wrappers\.SACAgent/3 or taac_wrappers\.TAACAgent/3"):
        load_agent(tmp_path / "agent.safetensors")


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
    path = tmp_path / "agent.safetensors"
    make_agent(TAACAgent).save(path)
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["agent"])
    tensors = load_file(path)
    save_file(tensors, path, metadata={"agent": json.dumps(header)})
    load(path)  # rewriting it alone does no harm
    damage(tensors, header)
    save_file(tensors, path, metadata={"agent": json.dumps(header)})
    with pytest.raises(ValueError, match=r"agent\.safetensors' does not hold a complete agent"):
        load(path)


@KINDS
def test_layers_larger_than_the_file_are_refused_before_memory_is_spent_on_them(tmp_path, kind, monkeypatch):
    """A million numbers to look at and as many hidden units are two short lines of a header."""
    path = tmp_path / "agent.safetensors"
    make_agent(kind, hidden=(1000,)).save(path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    name = "space.observation" if kind is SACAgent else "space.observation.observation"
    tensors |= {f"{name}.{end}": torch.full((10**6,), value) for end, value in (("low", -1.0), ("high", 1.0))}
    save_file(tensors, path, metadata=metadata)
    monkeypatch.setattr(torch, "empty", lambda *size, **_: pytest.fail(f"memory for {size}"))  # as nn.Linear would
    with pytest.raises(ValueError, match=r"does not hold a complete agent: .*smaller than hidden layers of \[1000\]"):
        kind.load(path)


def test_a_file_under_the_name_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "agent.safetensors"
    make_agent(TAACAgent).save(path)
    renamed = json.dumps({"format": f"{SACAgent.FORMAT}/3", "config": make_agent(SACAgent).config()})
    save_file(load_file(path), path, metadata={"agent": renamed})
    with pytest.raises(ValueError, match=r"agent\.safetensors' does not hold a complete agent"):
        load_agent(path)
