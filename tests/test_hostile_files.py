"""No code from files: whatever a file holds, loading it runs nothing, changes nothing, and fails soon and cheaply."""

from __future__ import annotations

import ast
import gzip
import hashlib
import importlib.util
import io
import json
import os
import pickle
import reprlib
import resource
import shutil
import struct
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import sac_continuous as sac
import taac_continuous as taac
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import taac_wrappers.vector
from taac_wrappers import AdaptiveNormalizer
from taac_wrappers.agent import SACAgent, TAACAgent, load_agent
from taac_wrappers.training import run as run_module
from taac_wrappers.training.arguments import command_line, exit_with
from taac_wrappers.training.checkpoint import CheckpointStore
from taac_wrappers.training.config import from_config
from taac_wrappers.training.counters import Counters
from taac_wrappers.training.files import read_config
from taac_wrappers.training.tracking import read_metrics

ROOT = Path(__file__).parents[1]
SCRIPTS = {"taac": taac, "sac": sac}
MEGABYTE = 2**20

# --- What a stranger might send --------------------------------------------------------------------------------------


class Evil:
    """Unpickling this creates a folder."""

    def __reduce__(self):
        return os.mkdir, ("executed",)


@cache
def payload_bytes(name: str) -> bytes:
    return PAYLOADS[name]()


def torch_archive() -> bytes:
    file = io.BytesIO()
    torch.save({"agent": Evil()}, file)
    return file.getvalue()


def pickled_array() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([Evil()], object), allow_pickle=True)
    return file.getvalue()


def zip_bomb() -> bytes:
    """A hundred megabytes of zeros in a tenth of one."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.pkl", bytes(100 * MEGABYTE))
    return file.getvalue()


def tensors_file(header: object, data: bytes = b"", claimed: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if claimed is None else claimed) + text + data


def entry(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict:
    return {"x": {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}}


PAYLOADS: dict[str, Callable[[], bytes]] = {
    "pickle": lambda: pickle.dumps(Evil()),
    "old pickle": lambda: pickle.dumps(Evil(), protocol=0),
    "torch archive": torch_archive,
    "pickled array": pickled_array,
    "zip bomb": zip_bomb,
    "gzip bomb": lambda: gzip.compress(bytes(100 * MEGABYTE)),
    "header of 2**63": lambda: tensors_file({}, claimed=2**63),
    "header of 2**64 - 1": lambda: tensors_file({}, claimed=2**64 - 1),
    "header of 99 MB": lambda: tensors_file({}, claimed=99_000_000),
    "shape of 2**40": lambda: tensors_file(entry([2**40], 0, 2**42)),
    "shape that overflows": lambda: tensors_file(entry([2**32, 2**32, 4], 0, 4), b"1234"),
    "shape and bytes differ": lambda: tensors_file(entry([10**9], 0, 4), b"1234"),
    "offsets beyond the end": lambda: tensors_file(entry([1], 2**40, 2**40 + 4), b"1234"),
    "offsets backwards": lambda: tensors_file(entry([1], 4, 0), b"1234"),
    "unknown dtype": lambda: tensors_file(entry([1], 0, 8, "O8"), b"12345678"),
    "nested header": lambda: tensors_file(b'{"x":' * 100_000),
    "deep JSON": lambda: b"[" * 200_000,
    "deep JSON objects": lambda: b'{"args":' * 200_000,
    "JSON list": lambda: b"[1, 2]",
    "JSON with a huge integer": lambda: b'{"args": ' + b"9" * 100_000 + b"}",
    "JSON nan": lambda: b"NaN",
    "JSON of a megabyte of lists": lambda: b'{"args": [' + b"[]," * 333_000 + b"[]]}",
    "one endless line": lambda: b"frame,metric,value\n" + b"1" * MEGABYTE + b"\n",
    "not UTF-8": lambda: b"\xff\xfe" * 100,
    "zeros": lambda: bytes(1000),
    "empty": lambda: b"",
    "one byte": lambda: b"\x80",
}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where the evil pickle would leave its mark."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_module, "plot_curve", lambda folder: folder / "curve.png")
    yield
    assert not Path("executed").exists()


@contextmanager
def cheap(size: int) -> Iterator[None]:
    """What happens inside takes a few seconds at most, and memory in proportion to a file of ``size`` bytes."""
    with suppress(OSError):  # Linux can forget the highest value so far; elsewhere it only ever grows
        Path("/proc/self/clear_refs").write_text("5")
    before, start = most_memory(), time.monotonic()
    yield
    assert time.monotonic() - start < 20
    assert most_memory() - before < 64 * MEGABYTE + 40 * size  # JSON's empty lists take 30 times their text


def most_memory() -> int:
    """The most bytes this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def contents(folder: Path) -> dict[str, bytes | str]:
    return {
        str(path): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def test_the_pickle_does_bite():
    pickle.loads(PAYLOADS["pickle"]())
    assert Path("executed").is_dir()
    Path("executed").rmdir()
    torch.load(io.BytesIO(PAYLOADS["torch archive"]()), weights_only=False)
    assert Path("executed").is_dir()
    Path("executed").rmdir()


# --- Agent files -----------------------------------------------------------------------------------------------------

AGENT = Path("agent.safetensors")
LOADERS = {"load_agent": load_agent, "SACAgent": SACAgent.load, "TAACAgent": TAACAgent.load}
each_loader = pytest.mark.parametrize("loader", LOADERS)


def write_agent(loader: str, **config: object) -> None:
    """An agent file whose header makes other claims than its tensors."""
    observation, action = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Box(-1, 1, (2,))
    if loader == "SACAgent":
        SACAgent(observation, action, hidden=(8, 8)).save(AGENT)
    else:
        TAACAgent(
            gym.spaces.Dict(observation=observation, prev_action=action),
            gym.spaces.Dict(action=action, switch=gym.spaces.Discrete(2)),
            hidden=(8, 8),
        ).save(AGENT)
    with safe_open(AGENT, "pt") as file:
        header = json.loads(file.metadata()["agent"])
    header["config"] |= config
    save_file(load_file(AGENT), AGENT, metadata={"agent": json.dumps(header)})


def assert_no_agent(loader: str) -> None:
    before = contents(Path())
    with cheap(AGENT.stat().st_size), pytest.raises(ValueError, match=r"agent\.safetensors") as caught:
        LOADERS[loader](AGENT)
    assert len(str(caught.value)) < 1000
    assert contents(Path()) == before


@each_loader
@pytest.mark.parametrize("payload", PAYLOADS)
def test_agent_files(loader, payload):
    AGENT.write_bytes(payload_bytes(payload))
    assert_no_agent(loader)


@each_loader
def test_truncated_agent_files(loader):
    write_agent(loader)
    LOADERS[loader](AGENT)
    whole = AGENT.read_bytes()
    for length in (4, 8, 100, len(whole) // 2, len(whole) - 1):
        AGENT.write_bytes(whole[:length])
        assert_no_agent(loader)


@each_loader
@pytest.mark.parametrize(
    "config",
    [
        {"hidden": [10**9]},
        {"hidden": [10**9, 10**9]},
        {"hidden": [8, 10**9]},
        {"hidden": [40_000, 40_000]},
        {"hidden": [10**30, 8]},
        {"hidden": [1] * 100_000},
        {"hidden": [8, 8.0]},
        {"hidden": [8, -8]},
        {"hidden": "88"},
        {"hidden": None},
        {"hidden": {"8": 8}},
        {"log_std_min": "low"},
        {"log_std_min": float("nan")},
        {"log_std_max": 10**400},
        {"log_std_max": float("inf")},
        {"observation_space": 1},
        {"device": "cuda"},
    ],
    ids=reprlib.repr,
)
def test_headers_that_claim_other_networks(loader, config):
    write_agent(loader, **config)
    assert_no_agent(loader)


@each_loader
@pytest.mark.parametrize(
    "change",
    [
        {"critics.twins.0.head.bias": torch.zeros((), dtype=torch.float64)},
        {"critics.twins.0.head.bias": torch.zeros((), dtype=torch.int32)},
        {"critics.twins.0.head.bias": torch.zeros(2)},
        {"critics.twins.0.head.bias": None},
        {"critics.tail_bias": torch.zeros(1)},
        {"space.action.low": torch.zeros(2, dtype=torch.bfloat16)},
        {"space.action.low": torch.full((2,), torch.nan)},
        {"space.action.low": torch.zeros(2, dtype=torch.bool)},
        {"space.action.low": torch.zeros(0)},
        {"space.OBSERVATION.high": torch.zeros(3, 0)},
        {"space.OBSERVATION.high": torch.zeros(10**6)},
        {"space.OBSERVATION.high": None},
        {"space.OBSERVATION.low": None, "space.OBSERVATION.high": None},
        {"space.observation.prev_action.low": torch.zeros(3), "space.observation.prev_action.high": torch.ones(3)},
        {"space.observation.more.low": torch.zeros(2), "space.observation.more.high": torch.ones(2)},
        {"space.more.high": torch.zeros(2)},
        {"space.action.middle": torch.zeros(2)},
    ],
    ids=lambda change: str({name: value is not None and (value.shape, value.dtype) for name, value in change.items()}),
)
def test_tensors_that_do_not_fit(loader, change):
    write_agent(loader)
    with safe_open(AGENT, "pt") as file:
        metadata = file.metadata()
    observation = "observation" if loader == "SACAgent" else "observation.observation"
    change = {name.replace("OBSERVATION", observation): tensor for name, tensor in change.items()}
    tensors = {name: tensor for name, tensor in (load_file(AGENT) | change).items() if tensor is not None}
    save_file(tensors, AGENT, metadata=metadata)
    assert_no_agent(loader)


@each_loader
@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, "9" * 10_000, "null", "[]", '"text"', '{"format": []}', '{"format": {}}', '{"config": 1}'],
    ids=reprlib.repr,
)
def test_headers_that_are_no_header(loader, text):
    save_file({"x": torch.zeros(1)}, AGENT, metadata={"agent": text})
    assert_no_agent(loader)


def test_saving_an_agent_does_not_follow_a_link():
    Path("precious").write_text("mine")
    Path("agent.safetensors.tmp").symlink_to("precious")
    write_agent("TAACAgent")
    assert Path("precious").read_text() == "mine"
    assert not AGENT.is_symlink()


# --- Run folders -----------------------------------------------------------------------------------------------------

SMALL = {
    "total_frames": 60,
    "hidden": (8, 8),
    "learning_starts": 10,
    "batch_size": 8,
    "eval_interval": 60,
    "eval_episodes": 1,
    "final_episodes": 1,
    "checkpoint_interval": 1000,
    "buffer_size": 100,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each script, with one checkpoint."""
    folder, runs = tmp_path_factory.mktemp("trained"), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "plot_curve", lambda folder: folder / "curve.png")
        for name, script in SCRIPTS.items():
            runs[name] = folder / name
            assert script.main(replace(script.Args.for_task("Pendulum-v1"), run_dir=runs[name], **SMALL)) == 0
    return runs


@pytest.fixture(params=SCRIPTS)
def script(request, trained):
    """A script, and a copy of its run in the folder ``run``."""
    shutil.copytree(trained[request.param], "run")
    return SCRIPTS[request.param]


RUN = Path("run")
VICTIMS = {
    "config": lambda: RUN / "config.json",
    "metrics": lambda: RUN / "metrics.csv",
    "manifest": lambda: next(RUN.glob("checkpoint/0*/MANIFEST.json")),
    "meta": lambda: next(RUN.glob("checkpoint/0*/meta.json")),
    "state": lambda: next(RUN.glob("checkpoint/0*/state.safetensors")),
    "chunk": lambda: next(RUN.glob("checkpoint/replay/*.safetensors")),
}


def sign() -> None:
    """Let the manifest vouch for whatever its files now are: only the parsers are left to refuse them."""
    path = VICTIMS["manifest"]()
    body = json.loads(path.read_text())
    del body["sha256"]
    for file, victim in zip([*body["files"], *body["chunks"]], ("state", "meta", "chunk"), strict=True):
        data = VICTIMS[victim]().read_bytes()
        file |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({**body, "sha256": hashlib.sha256(text.encode()).hexdigest()}))


def plant(victim: str, data: bytes) -> None:
    VICTIMS[victim]().write_bytes(data)
    if victim in ("meta", "state", "chunk"):
        sign()


def assert_not_resumed(script, monkeypatch, capsys, words: tuple[str, ...] = ()) -> str:
    """One line, exit code 2, and nothing has changed."""
    before = contents(Path())
    monkeypatch.setattr(sys, "argv", ["script.py", "--resume", "run", "--total-frames", "70", *words])
    capsys.readouterr()
    with cheap(sum(path.stat().st_size for path in RUN.rglob("*"))), pytest.raises(SystemExit) as exit_:
        command_line(script.Args, script.main)
    said = capsys.readouterr().err
    assert exit_.value.code == 2, said
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert contents(Path()) == before
    return said


def test_the_untouched_run_is_resumed(script, monkeypatch):
    """What the tests below refuse is what they changed."""
    sign()
    monkeypatch.setattr(sys, "argv", ["script.py", "--resume", "run", "--total-frames", "70"])
    with pytest.raises(SystemExit) as exit_:
        command_line(script.Args, script.main)
    assert exit_.value.code == 0


FEW = ["pickle", "torch archive", "zip bomb", "header of 2**63", "shape and bytes differ", "deep JSON", "JSON list"]
"""Where another test feeds all of them to the loader underneath."""


@pytest.mark.parametrize("payload", FEW)
@pytest.mark.parametrize("victim", VICTIMS)
def test_resume(script, victim, payload, monkeypatch, capsys):
    plant(victim, payload_bytes(payload))
    assert_not_resumed(script, monkeypatch, capsys)


@pytest.mark.parametrize("victim", VICTIMS)
def test_resume_truncated(script, victim, monkeypatch, capsys):
    whole = VICTIMS[victim]().read_bytes()
    for length in (len(whole) // 3, 20, 3):  # the second half of the metrics is of after the checkpoint
        plant(victim, whole[:length])
        assert_not_resumed(script, monkeypatch, capsys)


@pytest.mark.parametrize("victim", ["config", "manifest"])
def test_resume_oversized_json(script, victim, monkeypatch, capsys):
    os.truncate(VICTIMS[victim](), 100_000_000)
    monkeypatch.setattr(sys, "argv", ["script.py", "--resume", "run"])
    with cheap(0), pytest.raises(SystemExit) as exit_:  # it is not even read
        command_line(script.Args, script.main)
    assert exit_.value.code == 2
    assert "above the limit" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change",
    [
        {"total_frames": "60"},
        {"total_frames": 1e300},
        {"total_frames": float("nan")},
        {"total_frames": float("inf")},
        {"total_frames": True},
        {"total_frames": [60]},
        {"hidden": [10**9]},
        {"hidden": [40_000, 40_000]},
        {"hidden": [1] * 100_000},
        {"hidden": "8"},
        {"hidden": [8, "8"]},
        {"hidden": [8, -8]},
        {"hidden": []},
        {"num_envs": 10**9},
        {"num_envs": 2},
        {"buffer_size": 10**15},
        {"buffer_size": 10**30},
        {"batch_size": 10**12, "buffer_size": 10**12},
        {"gamma": float("nan")},
        {"tau": float("inf")},
        {"learning_rate": "0.1"},
        {"reward_clip": float("nan")},
        {"action_delta": float("nan")},
        {"log_std_min": float("nan")},
        {"seed": -1},
        {"env_id": "../../etc/passwd"},
        {"env_id": "antigravity:Nothing-v0"},
        {"env_id": 7},
        {"env_kwargs": 7},
        {"env_kwargs": {"unknown": 1}},
        {"env_kwargs": {"render_mode": ["human"]}},  # texts are the user's to say
        {"env_kwargs": {"deep": json.loads("[" * 400 + "]" * 400)}},
        {"device": "cuda:99"},
        {"device": {"a": 1}},
        {"threads": 10**9},
        {"track": "yes"},
        {"run_dir": 5},
        {"extra": 1},
    ],
    ids=reprlib.repr,
)
def test_resume_configs_that_lie(script, change, monkeypatch, capsys):
    config = json.loads((RUN / "config.json").read_text())
    config["args"] |= change
    (RUN / "config.json").write_text(json.dumps(config))
    assert "antigravity" not in sys.modules
    changed_back = change == {"run_dir": 5}  # where the run was is not looked at: it may have been moved
    if changed_back:
        assert from_config(script.Args, RUN).run_dir is None
    else:
        assert_not_resumed(script, monkeypatch, capsys)
    assert "antigravity" not in sys.modules


COUNTERS = asdict(Counters(frames=60, frames_before=59, decisions=60, updates=51))


@pytest.mark.parametrize(
    "change",
    [
        {"counters": {}},
        {"counters": 7},
        {"counters": COUNTERS | {"frames": "60"}},
        {"counters": COUNTERS | {"last_scores": ["high"]}},
        {"counters": COUNTERS | {"num_envs": 1}},
        {"counters": {name: value for name, value in COUNTERS.items() if name != "updates"}},
        {"metrics": 7},
        {"metrics": [["losses/critic", "high"]]},
        {"metrics": [["losses/critic", []]]},
        {"metrics": [[1]]},
        {"optimizer": {}},
        {"optimizer": {"state": {"0": ["exp_avg"]}, "param_groups": []}},
        {"optimizer": {"state": {"x": []}, "param_groups": []}},
        {"optimizer": {"state": {"-1": ["step"]}, "param_groups": []}},
        {"rng": {"numpy": {}}},
        {"rng": {"numpy": {"replay": 1, "act": 1}}},
        {"rng": 3},
        {"normalizer": None},
        {"normalizer": {"count": 10**400, "first_moment": 0.0, "second_moment": 0.0}},
        {"normalizer": {"count": "1", "first_moment": 0.0, "second_moment": 0.0}},
        {"normalizer": {"count": 1, "first_moment": float("nan"), "second_moment": 0.0}},
        {"episodes": []},
        {"episodes": [7]},
        {"episodes": [{}]},
        {"episodes": [{}] * 1000},
        {"extra": None},
        {"extra": {"env_id": "Pendulum-v1"}},
        {"extra": {"env_id": "Pendulum-v1", "metrics_position": 10**18, "wandb_run_id": None}},
        {"extra": {"env_id": "Pendulum-v1", "metrics_position": "0", "wandb_run_id": None}},
        {"extra": {"env_id": ["x"], "metrics_position": 0, "wandb_run_id": None}},
    ],
    ids=reprlib.repr,
)
def test_resume_meta_that_lies(script, change, monkeypatch, capsys):
    meta = json.loads(VICTIMS["meta"]().read_text())
    plant("meta", json.dumps(meta | change).encode())
    assert_not_resumed(script, monkeypatch, capsys)


@pytest.mark.parametrize(
    "change",
    [
        {"wrappers": None},
        {"wrappers": 7},
        {"wrappers": {}},
        {"wrappers": [7]},
        {"wrappers": [{"count": 10**400}]},
        {"seed": "0"},
        {"seed": -1},
        {"seed": None},
        {"rng": 7},
        {"rng_now": None},
        {"rng_now": {"bit_generator": "MT19937"}},
        {"options": 7},
    ],
    ids=reprlib.repr,
)
def test_resume_episodes_that_lie(script, change, monkeypatch, capsys):
    meta = json.loads(VICTIMS["meta"]().read_text())
    assert meta["episodes"][0].keys() >= change.keys()
    meta["episodes"][0] |= change
    plant("meta", json.dumps(meta).encode())
    assert_not_resumed(script, monkeypatch, capsys)


@pytest.mark.parametrize(
    "change",
    [
        {"tensor/agent.critics.twins.0.head.bias": torch.zeros((), dtype=torch.float64)},
        {"tensor/agent.critics.twins.0.head.bias": torch.zeros(3)},
        {"tensor/agent.critics.twins.0.head.bias": None},
        {"tensor/target_critics.twins.0.head.bias": None},
        {"tensor/agent.unknown": torch.zeros(1)},
        {"tensor/optimizer.0.exp_avg": torch.zeros(1, 2, 3)},
        {"tensor/optimizer.0.exp_avg": None},
        {"tensor/rng.torch": torch.zeros(3, dtype=torch.uint8)},
        {"tensor/rng.torch": None},
        {"array/env.0.actions": torch.zeros(7, 9)},
        {"array/env.0.actions": torch.zeros(7)},
        {"array/env.0.actions": None},
        {"array/env.0.observation": torch.zeros(1000)},
        {"array/env.0.observation": torch.zeros(4, 1)},
        {"array/env.0.observation": None},
        {"other": torch.zeros(1)},
    ],
    ids=lambda change: str({name: value is not None and (value.shape, value.dtype) for name, value in change.items()}),
)
def test_resume_states_that_do_not_fit(script, change, monkeypatch, capsys):
    path = VICTIMS["state"]()
    save_file({key: value for key, value in (load_file(path) | change).items() if value is not None}, path)
    sign()
    assert_not_resumed(script, monkeypatch, capsys)


@pytest.mark.parametrize(
    "change",
    [
        {"head": torch.tensor([2**62])},
        {"head": torch.tensor([2**40])},
        {"from": torch.tensor([-5])},
        {"head": torch.tensor([60.0])},
        {"action": torch.zeros(61, 1, dtype=torch.float64)},
        {"reward": torch.zeros(10**6)},
        {"flags": torch.full((61,), 2, dtype=torch.uint8)},
        {"discount": torch.zeros(61, dtype=torch.float64)},
        {"discount": torch.full((61,), torch.nan)},
        {"discount": None},
        {"OBSERVATION": None},
        {"OBSERVATION": torch.zeros(61, 4)},
        {"secret": torch.zeros(1)},
    ],
    ids=lambda change: str({name: value is not None and (value.shape, value.dtype) for name, value in change.items()}),
)
def test_resume_replays_that_do_not_fit(script, change, monkeypatch, capsys):
    path = VICTIMS["chunk"]()
    observation = "observation.observation" if script is taac else "observation"
    change = {name.replace("OBSERVATION", observation): tensor for name, tensor in change.items()}
    assert change.keys() & load_file(path).keys() or "secret" in change
    save_file({key: value for key, value in (load_file(path) | change).items() if value is not None}, path)
    sign()
    assert_not_resumed(script, monkeypatch, capsys)


@pytest.mark.parametrize("victim", [*VICTIMS, "generation", "replay"])
def test_resume_links_that_lead_elsewhere(script, victim, monkeypatch, capsys):
    """A file that is intact, but somewhere else. config.json may be a link: it is only read, and never through it."""
    path = {"generation": next(RUN.glob("checkpoint/0*")), "replay": RUN / "checkpoint" / "replay"}.get(victim)
    path = path or VICTIMS[victim]()
    shutil.move(path, "elsewhere")
    path.symlink_to(Path("elsewhere").resolve())
    if victim == "config":
        assert from_config(script.Args, RUN).hidden == (8, 8)
    else:
        assert "symbolic link" in assert_not_resumed(script, monkeypatch, capsys)


@pytest.mark.parametrize("name", [".tmp-config.json", "agent.safetensors.tmp", ".tmp-curve.png"])
def test_nothing_is_written_through_a_link(script, name, monkeypatch):
    Path("precious").write_text("mine")
    (RUN / name).symlink_to(Path("precious").resolve())
    monkeypatch.setattr(sys, "argv", ["script.py", "--resume", "run", "--total-frames", "70"])
    with pytest.raises(SystemExit) as exit_:
        command_line(script.Args, script.main)
    assert exit_.value.code == 0
    assert Path("precious").read_text() == "mine"


@pytest.mark.parametrize("folder", ["checkpoint/replay", "checkpoint"])
def test_nothing_that_is_not_ours_is_removed(script, folder, monkeypatch):
    for name in ("notes.txt", "data.safetensors", "2024"):
        (RUN / folder / name).write_text("mine")
    monkeypatch.setattr(sys, "argv", ["script.py", "--resume", "run", "--total-frames", "70"])
    with pytest.raises(SystemExit) as exit_:
        command_line(script.Args, script.main)
    assert exit_.value.code == 0
    assert {path.name for path in (RUN / folder).iterdir()} >= {"notes.txt", "data.safetensors", "2024"}


def test_a_module_is_imported_only_if_the_user_names_it(script, monkeypatch, capsys):
    Path("my_envs.py").write_text("import os; os.mkdir('imported')")
    monkeypatch.syspath_prepend(str(Path().resolve()))
    monkeypatch.delitem(sys.modules, "my_envs", raising=False)
    config = json.loads((RUN / "config.json").read_text())
    config["args"]["env_id"] = config["resolved_env_id"] = "my_envs:Mine-v0"
    (RUN / "config.json").write_text(json.dumps(config))
    assert "to allow it, add --env-id my_envs:Mine-v0" in assert_not_resumed(script, monkeypatch, capsys)
    assert not Path("imported").exists()
    monkeypatch.setattr(sys, "argv", ["script.py", "--resume", "run", "--env-id", "my_envs:Mine-v0"])
    with pytest.raises(SystemExit) as exit_:
        command_line(script.Args, script.main)
    assert exit_.value.code == 2  # it holds no such environment
    assert Path("imported").exists()


# --- The loaders underneath ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("victim", ["manifest", "meta", "state", "chunk"])
def test_checkpoint_store(trained, victim, payload):
    shutil.copytree(trained["sac"], "run")
    plant(victim, payload_bytes(payload))
    before = contents(Path())
    with cheap(VICTIMS[victim]().stat().st_size + MEGABYTE):
        if (victim, payload) == ("meta", "JSON of a megabyte of lists"):  # what an object says is the run's business
            assert len(CheckpointStore(RUN).load().meta["args"]) == 333_001
        else:
            with pytest.raises(ValueError, match=r"no checkpoint is usable") as caught:
                CheckpointStore(RUN).load()
            assert len(str(caught.value)) < 2000
    assert contents(Path()) == before


@pytest.mark.parametrize("payload", PAYLOADS)
def test_config_and_metrics(payload):
    data = payload_bytes(payload)
    for name in ("config.json", "metrics.csv"):
        Path(name).write_bytes(data)
    with cheap(len(data)):
        if not payload.startswith("JSON of"):  # which is an object, if not a config
            with pytest.raises(ValueError, match=r"config\.json") as caught:
                read_config(Path())
            assert len(str(caught.value)) < 1000
        with pytest.raises(ValueError, match=r"config"):
            from_config(taac.Args, Path())
        if payload in ("empty", "one byte") or b"\n" not in data:  # no line is complete: nothing has been recorded
            assert read_metrics(Path("metrics.csv")) == {}
        else:
            with pytest.raises(ValueError, match=r"metrics\.csv: line") as caught:
                read_metrics(Path("metrics.csv"))
            assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "row", [f"{2**63},a,1", f"{10**30},a,1", f"{'9' * 5000},a,1", "1,a,0x10", "1e3,a,1", "nan,a,1"]
)
def test_metrics_that_no_array_holds(row):
    Path("metrics.csv").write_text(f"frame,metric,value\n{row}\n")
    with pytest.raises(ValueError, match=r"line 2 must be 'frame,metric,value'"):
        read_metrics(Path("metrics.csv"))


def deep_list(levels: int = 100_000) -> list:
    value: list = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [10**400, 2**70, "1", "1e5", b"1", None, {}, [], [[1, 2], [3]], float("nan"), float("inf"), True, 1j, Evil(), -1.5],
    ids=lambda value: "Evil" if isinstance(value, Evil) else reprlib.repr(value),  # not its address, which differs
)
def test_states_of_wrappers(value):
    plain = gym.make("Pendulum-v1")
    normalizers = [
        AdaptiveNormalizer(),
        taac_wrappers.RewardNormalizerWrapper(plain),
        taac_wrappers.ZetaRepeatWrapper(plain),
        taac_wrappers.vector.RewardNormalizerWrapper(gym.make_vec("Pendulum-v1", 2)),
        taac_wrappers.vector.ZetaRepeatWrapper(gym.make_vec("Pendulum-v1", 2)),
    ]
    for each in normalizers:
        before = each.state_dict()
        for key in before:
            if key == "first_moment" and value == -1.5:
                continue  # a mean may well be
            with pytest.raises(ValueError, match=key):
                each.load_state_dict(before | {key: value})
            np.testing.assert_equal(each.state_dict(), before)


def test_states_of_wrappers_that_are_deep():
    normalizer = AdaptiveNormalizer()
    with cheap(MEGABYTE), pytest.raises(ValueError, match="count"):
        normalizer.load_state_dict(normalizer.state_dict() | {"count": deep_list()})


# --- examples/evaluate.py --------------------------------------------------------------------------------------------


def load_example(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look their annotations up
    spec.loader.exec_module(module)
    return module


def assert_not_evaluated(capsys) -> str:
    with pytest.MonkeyPatch.context() as paths:
        paths.syspath_prepend(ROOT / "examples")  # as for whoever runs it
        example = load_example("evaluate")
    before = contents(Path())
    capsys.readouterr()
    with cheap(sum(path.stat().st_size for path in RUN.rglob("*"))), pytest.raises(SystemExit) as exit_:
        exit_with(lambda: example.main(example.Args(path=RUN, episodes=1)))
    said = capsys.readouterr().err
    assert exit_.value.code == 2, said
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert contents(Path()) == before
    return said


@pytest.mark.parametrize("payload", FEW)
@pytest.mark.parametrize("victim", ["agent.safetensors", "config.json"])
def test_evaluate(trained, victim, payload, capsys):
    shutil.copytree(trained["taac"], "run")
    (RUN / victim).write_bytes(payload_bytes(payload))
    assert_not_evaluated(capsys)


@pytest.mark.parametrize("env_id", [None, 7, [], "", "Nowhere-v0", "antigravity:Nothing-v0", "CartPole-v1"])
def test_evaluate_environments_that_do_not_fit(trained, env_id, capsys):
    shutil.copytree(trained["taac"], "run")
    (RUN / "config.json").write_text(json.dumps({"resolved_env_id": env_id}))
    assert_not_evaluated(capsys)
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    "args", [7, {"env_kwargs": 7}, {"env_kwargs": {"a": 1}}, {"env_kwargs": {"a": {"b": ["text"]}}}]
)
def test_evaluate_arguments_that_do_not_fit(trained, args, capsys):
    shutil.copytree(trained["taac"], "run")
    config = json.loads((RUN / "config.json").read_text())
    (RUN / "config.json").write_text(json.dumps(config | {"args": args}))
    assert_not_evaluated(capsys)


@pytest.mark.parametrize(
    "method",
    [
        *(
            "antigravity",
            "evil",
            "evil_continuous",
            "taac_continuous",
            "",
            "../evil",
            "agents.taac",
            "os",
            "TAAC",
            "x" * 10**6,
        ),
        *(None, 7, [], {}, ["taac"]),
    ],
    ids=reprlib.repr,
)
def test_evaluate_methods_that_are_none(trained, method, monkeypatch, capsys):
    """The script of a method is imported: of those in the folder of the scripts, and none else."""
    for name in ("evil.py", "evil_continuous.py"):
        Path(name).write_text("import os; os.mkdir('executed')")
    monkeypatch.syspath_prepend(str(Path().resolve()))
    shutil.copytree(trained["taac"], "run")
    config = json.loads((RUN / "config.json").read_text())
    (RUN / "config.json").write_text(json.dumps(config | {"method": method}))
    said = assert_not_evaluated(capsys)
    every = sorted(path.stem.removesuffix("_continuous") for path in (ROOT / "agents").glob("*_continuous.py"))
    assert len(every) == 7
    assert f"config.json names a method that is none of {every}: " in said
    assert len(said) < 1000
    assert "antigravity" not in sys.modules


# --- The source itself -----------------------------------------------------------------------------------------------

UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "yaml"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__"}


def unsafe(source: str) -> list[str]:
    """What in ``source`` could run code out of a file."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names]
            roots = [node.module or ""] if isinstance(node, ast.ImportFrom) else names
            found += [root for root in roots if root.split(".")[0] in UNSAFE_MODULES]
            if isinstance(node, ast.ImportFrom) and node.module in ("torch", "numpy") and "load" in names:
                found.append(f"{node.module}.load")
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in UNSAFE_CALLS:
                found.append(node.func.id)
            if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
                name = f"{node.func.value.id}.{node.func.attr}"
                if name in ("torch.load", "torch.jit.load", "np.load", "numpy.load", "pd.read_pickle"):
                    found.append(name)
            found += [f"{word.arg}=" for word in node.keywords if word.arg in ("allow_pickle", "weights_only")]
    return found


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "import os, marshal",
        "import joblib.memory",
        "from yaml import load",
        "import shelve as s",
        "torch.load(path)",
        "from torch import load",
        "np.load(path, allow_pickle=True)",
        "np.load(path)",
        "eval('1')",
        "exec(text)",
        "x = [__import__('os')]",
        "def f():\n    import dill",
    ],
)
def test_the_search_finds(line):
    assert unsafe(line)


@pytest.mark.parametrize(
    "line", ["model.eval()", "safetensors.torch.load(data)", "agent.load(path)", "evaluate(policy)"]
)
def test_the_search_lets_pass(line):
    assert not unsafe(line)


def test_nothing_in_the_project_could_run_code_out_of_a_file():
    folders = ("taac_wrappers", "agents", "examples", "benchmarks", "results")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 40
    assert {str(path): found for path in files if (found := unsafe(path.read_text()))} == {}
