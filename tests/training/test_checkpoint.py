"""Checkpoints: what is saved comes back bit for bit, and no crash, full disk, damage or hostile file breaks that."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import pickle
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from taac_wrappers.training import checkpoint, curve, files, sinks, snapshots, tracking
from taac_wrappers.training.checkpoint import CheckpointError, CheckpointStore, CheckpointWriteError
from taac_wrappers.training.snapshots import flatten_optimizer, restore_optimizer, restore_rng, rng_state


@pytest.fixture(autouse=True)
def instant_fsync(monkeypatch):
    """Only a power cut could tell, and on a busy disk these thousands of syncs would take minutes."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


class RingReplay:
    """The slowest replay: one stream, whose slot i held ``values[i]`` and is overwritten ``capacity`` slots later."""

    def __init__(self, capacity: int = 8):
        self.capacity = capacity
        self.values: dict[int, float] = {}
        self.written = 0

    def write(self, count: int) -> None:
        for _ in range(count):
            self.values[self.written] = self.written + 0.5
            self.values.pop(self.written - self.capacity, None)
            self.written += 1

    def chunk(self, since):
        start = max(since["written"] if since else 0, self.written - self.capacity)
        new = [self.values[slot] for slot in range(start, self.written)]
        return {"start": np.array(start), "values": np.array(new)}, {"written": self.written}

    def is_stale(self, cursor):
        return cursor["written"] <= self.written - self.capacity

    def load_chunks(self, chunks):
        for arrays, cursor in chunks:
            for slot, value in enumerate(arrays["values"].tolist(), start=int(arrays["start"])):
                self.values[slot] = value
            self.written = cursor["written"]
        self.values = {slot: v for slot, v in self.values.items() if slot >= self.written - self.capacity}


def restored(loaded, capacity: int = 8) -> RingReplay:
    replay = RingReplay(capacity)
    replay.load_chunks(loaded.chunks)
    return replay


def content(frame: int) -> tuple:
    """Tensors, arrays and meta that all follow from the frame, so that a mixture of two generations shows."""
    return {"weight": torch.full((3, 2), frame / 7)}, {"qpos": np.full(4, frame / 3)}, {"counter": frame}


def assert_complete(loaded) -> None:
    """Everything in ``loaded`` belongs to its frame; by convention ``frame`` slots had been written by then."""
    tensors, arrays, meta = content(loaded.frame)
    assert loaded.tensors.keys() == tensors.keys()
    assert torch.equal(loaded.tensors["weight"], tensors["weight"])
    assert loaded.arrays.keys() == arrays.keys()
    assert np.array_equal(loaded.arrays["qpos"], arrays["qpos"])
    assert loaded.meta == meta
    expected = RingReplay()
    expected.write(loaded.frame)
    assert restored(loaded).values == expected.values


def saved_run(run_dir: Path, *frames: int) -> tuple[CheckpointStore, RingReplay]:
    store, replay = CheckpointStore(run_dir), RingReplay()
    for frame in frames:
        replay.write(frame - replay.written)
        store.save(frame, *content(frame), replay)
    return store, replay


def quiet_load(run_dir: Path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return CheckpointStore(run_dir).load()


def generations(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoint").iterdir() if path.name != "replay")


def chunk_files(run_dir: Path) -> list[Path]:
    return sorted((run_dir / "checkpoint" / "replay").iterdir())


def assert_tidy(run_dir: Path) -> None:
    """No temporary files, and exactly the chunks that the generations refer to."""
    assert not [path for path in run_dir.rglob("*") if path.name.startswith(".tmp")]
    needed = set()
    for name in generations(run_dir):
        manifest = json.loads((run_dir / "checkpoint" / name / "MANIFEST.json").read_text())
        needed |= {chunk["name"] for chunk in manifest["chunks"]}
    assert {path.name for path in chunk_files(run_dir)} == needed


def raw_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


# Round trips


def test_round_trip_is_bit_exact(tmp_path):
    storage = torch.arange(12, dtype=torch.float32)
    tensors = {
        "view of one storage": storage[:6].view(2, 3),
        "overlapping view": storage[3:9],
        "transposed": torch.arange(6.0).view(2, 3).t(),
        "scalar": torch.tensor(0.1, dtype=torch.float64),
        "empty": torch.zeros(0, 4),
        "bfloat16": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "needs grad": torch.ones(2, requires_grad=True),
        "bytes": torch.get_rng_state(),
        "not finite": torch.tensor([float("nan"), float("inf"), -0.0]),
    }
    kinds = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]
    arrays = {kind: np.array([0, 1, 1], dtype=kind) for kind in kinds}
    arrays |= {"array/nested name": np.array(3.25), "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3))}
    arrays |= {"strided": np.arange(10)[::3], "no rows": np.zeros((0, 2), np.float32)}
    arrays["read only"] = np.broadcast_to(np.float32(2), (2, 2))
    rng = np.random.default_rng(5)
    meta = {"rng": rng.bit_generator.state, "float": 0.1 + 0.2, "none": None, "flag": True, "list": [1, "ä"]}

    CheckpointStore(tmp_path).save(12, tensors, arrays, meta, RingReplay())
    loaded = CheckpointStore(tmp_path).load()

    assert loaded.frame == 12
    assert loaded.path == tmp_path / "checkpoint" / "000000000012"
    assert loaded.meta == meta
    assert loaded.tensors.keys() == tensors.keys()
    for key, tensor in tensors.items():
        assert loaded.tensors[key].dtype == tensor.dtype
        assert loaded.tensors[key].shape == tensor.shape
        assert raw_bytes(loaded.tensors[key]) == raw_bytes(tensor)
    assert loaded.arrays.keys() == arrays.keys()
    for key, array in arrays.items():
        assert loaded.arrays[key].dtype == array.dtype
        assert loaded.arrays[key].shape == array.shape
        assert loaded.arrays[key].tobytes() == array.tobytes()


def test_numpy_generator_continues_from_meta(tmp_path):
    rng = np.random.default_rng(1)
    rng.random(3)
    CheckpointStore(tmp_path).save(0, {}, {}, {"rng": rng.bit_generator.state}, RingReplay())
    again = np.random.default_rng()
    again.bit_generator.state = CheckpointStore(tmp_path).load().meta["rng"]
    assert again.random(5).tolist() == rng.random(5).tolist()


def test_replay_is_restored_across_chunks_and_wrap_around(tmp_path):
    for frames in ([3], [3, 5], [3, 8], [3, 9, 10, 15], [5, 30], [20, 21, 22]):
        run_dir = tmp_path / str(frames)
        _, replay = saved_run(run_dir, *frames)
        loaded = CheckpointStore(run_dir).load()
        assert_complete(loaded)
        assert restored(loaded).written == replay.written


def test_a_resumed_store_saves_incrementally(tmp_path):
    saved_run(tmp_path, 4)
    store = CheckpointStore(tmp_path)
    replay = restored(store.load())
    replay.write(3)
    store.save(7, *content(7), replay)
    assert_complete(CheckpointStore(tmp_path).load())
    arrays, cursor = store.load().chunks[-1]
    assert (arrays["values"].tolist(), cursor) == ([4.5, 5.5, 6.5], {"written": 7})


def test_chunks_of_any_memory_layout(tmp_path):
    class Transposed(RingReplay):
        def chunk(self, since):
            return {"t": np.arange(6.0).reshape(2, 3).T, "s": np.arange(9)[::4], "0-d": np.array(5)}, {"written": 1}

    CheckpointStore(tmp_path).save(1, {}, {}, {}, Transposed())
    ((arrays, _),) = CheckpointStore(tmp_path).load().chunks
    assert arrays["t"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert arrays["s"].tolist() == [0, 4, 8]
    assert arrays["0-d"].shape == ()


def test_cursors_are_the_same_whether_or_not_the_run_is_interrupted(tmp_path):
    class Asked(RingReplay):
        def __init__(self):
            super().__init__()
            self.asked = []

        def chunk(self, since):
            self.asked.append(since)
            return {}, {"heads": (1, 2)}

        def is_stale(self, cursor):
            return False

    replay = Asked()
    first, second = CheckpointStore(tmp_path), CheckpointStore(tmp_path)
    first.save(1, {}, {}, {}, replay)
    first.save(2, {}, {}, {}, replay)
    second.load()
    second.save(3, {}, {}, {}, replay)
    assert replay.asked == [None, {"heads": [1, 2]}, {"heads": [1, 2]}]


def test_a_save_writes_about_what_is_new(tmp_path):
    store, replay = CheckpointStore(tmp_path), RingReplay(capacity=100_000)
    replay.write(50_000)
    store.save(50_000, {}, {}, {}, replay)
    (first,) = chunk_files(tmp_path)
    replay.write(500)
    store.save(50_500, {}, {}, {}, replay)
    (second,) = set(chunk_files(tmp_path)) - {first}
    assert first.stat().st_size >= 50_000 * 8
    assert 500 * 8 <= second.stat().st_size < 500 * 8 + 300


def test_stale_chunks_go_when_no_kept_generation_needs_them(tmp_path):
    store, replay = saved_run(tmp_path, 3, 6)  # capacity 8
    replay.write(6)  # 12 written: slots 4.. remain, so the chunk of 0-2 is stale and that of 3-5 is not
    store.save(12, *content(12), replay)
    assert [c.cursor["written"] for c in store._last.chunks] == [6, 12]
    assert len(chunk_files(tmp_path)) == 3  # the generation of frame 6 still needs the stale one
    replay.write(1)
    store.save(13, *content(13), replay)
    assert len(chunk_files(tmp_path)) == 3  # 6, 12, 13
    assert_tidy(tmp_path)
    assert_complete(CheckpointStore(tmp_path).load())


def test_the_last_two_generations_are_kept(tmp_path):
    store, _ = saved_run(tmp_path, 1, 2, 3, 4)
    assert generations(tmp_path) == ["000000000003", "000000000004"]
    shutil.rmtree(tmp_path / "checkpoint" / "000000000004")
    loaded = store.load()
    assert loaded.frame == 3
    assert_complete(loaded)


def test_the_same_frame_can_be_saved_again(tmp_path):
    store, replay = saved_run(tmp_path, 5)
    for counter in (1, 2, 3):
        store.save(5, *content(5)[:2], {"counter": counter}, replay)
        assert CheckpointStore(tmp_path).load().meta == {"counter": counter}
    assert len(generations(tmp_path)) == 2
    assert_tidy(tmp_path)


def test_later_generations_of_an_abandoned_history_are_removed(tmp_path):
    saved_run(tmp_path, 4, 8)
    (tmp_path / "checkpoint" / "000000000008" / "meta.json").write_bytes(b"{}")
    store = CheckpointStore(tmp_path)
    with pytest.warns(UserWarning, match="meta.json"):
        replay = restored(store.load())
    replay.write(2)
    store.save(6, *content(6), replay)
    assert generations(tmp_path) == ["000000000004", "000000000006"]
    assert_tidy(tmp_path)
    assert_complete(CheckpointStore(tmp_path).load())


def test_a_store_that_never_loaded_does_not_build_on_what_it_finds(tmp_path):
    saved_run(tmp_path, 4)
    replay = RingReplay()
    replay.write(6)
    CheckpointStore(tmp_path).save(6, *content(6), replay)
    loaded = CheckpointStore(tmp_path).load()
    assert len(loaded.chunks) == 1
    assert_complete(loaded)
    assert generations(tmp_path) == ["000000000004", "000000000006"]


def test_a_removed_chunk_is_saved_again(tmp_path):
    store, replay = saved_run(tmp_path, 2, 4)
    chunk_files(tmp_path)[0].unlink()
    replay.write(1)
    store.save(5, *content(5), replay)
    assert_complete(CheckpointStore(tmp_path).load())


def test_exists(tmp_path):
    store = CheckpointStore(tmp_path)
    assert not store.exists()
    store.save(0, {}, {}, {}, RingReplay())
    assert store.exists()
    assert CheckpointStore(tmp_path).exists()


def test_newest_frame(tmp_path):
    store = CheckpointStore(tmp_path)
    assert store.newest_frame() is None
    saved_run(tmp_path, 5, 20)
    assert store.newest_frame() == 20


def test_nothing_to_load(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        CheckpointStore(tmp_path).load()
    assert issubclass(CheckpointError, ValueError)


# Bad input


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"frame": -1}, ValueError, "frame must be .* got -1"),
        ({"frame": 1.0}, ValueError, r"frame must be .* got 1\.0"),
        ({"frame": True}, ValueError, "frame must be .* got True"),
        ({"tensors": {"w": np.ones(2)}}, TypeError, "tensors 'w' must be a torch.Tensor"),
        ({"arrays": {"a": [1, 2]}}, TypeError, r"arrays 'a' must be an array of numbers, got \[1, 2\]"),
        ({"arrays": {"a": np.array([object()])}}, TypeError, "arrays 'a' must be an array of numbers, got dtype"),
        ({"arrays": {"a": np.array(["x"])}}, TypeError, "arrays 'a'"),
        ({"arrays": {"a": np.ones(2, ">f8")}}, TypeError, "arrays 'a'"),
        ({"meta": {"a": {1: 2}}}, TypeError, "meta.a must have string keys, got 1 of type int"),
        ({"meta": {"a": [0, np.float32(1)]}}, TypeError, r"meta.a\[1\] must be JSON"),
        ({"meta": {"a": b"bytes"}}, TypeError, "meta.a must be JSON"),
    ],
)
def test_bad_input_changes_nothing(tmp_path, change, error, message):
    tensors, arrays, meta = content(3)
    arguments = {"frame": 3, "tensors": tensors, "arrays": arrays, "meta": meta, "replay": RingReplay()} | change
    with pytest.raises(error, match=message):
        CheckpointStore(tmp_path).save(**arguments)
    assert not list(tmp_path.iterdir())


def test_meta_that_could_not_be_read_again_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "JSON_LIMIT", 100)
    with pytest.raises(ValueError, match="meta must encode to at most 100 bytes of JSON, got 1"):
        CheckpointStore(tmp_path).save(0, {}, {}, {"text": "x" * 100}, RingReplay())
    assert not list(tmp_path.iterdir())


# Crashes and full disks


class Killed(BaseException):
    """Not an Exception: a killed process runs no handler."""


DISK_CALLS = ("replace", "rename", "fsync", "mkdir", "unlink", "rmdir")


class DiskFault:
    """Makes the ``at``-th call that changes the disk fail, and with ``for_good`` every one after it."""

    def __init__(self, monkeypatch, at: int, error: BaseException, for_good: bool):
        self.calls = 0
        self.at, self.error, self.for_good = at, error, for_good
        for name in DISK_CALLS:
            monkeypatch.setattr(os, name, self._faulty(getattr(os, name)))
        monkeypatch.setattr(files, "open", self._open, raising=False)

    def _fails(self) -> bool:
        self.calls += 1
        return self.calls == self.at or (self.for_good and self.calls > self.at)

    def _faulty(self, function):
        def call(*args, **kwargs):
            if self._fails():
                raise self.error
            return function(*args, **kwargs)

        return call

    def _open(self, path, mode):
        fault = self

        class TornFile(io.FileIO):
            def write(self, data):
                if fault._fails():
                    super().write(data[: len(data) // 2])
                    raise fault.error
                return super().write(data)

        return TornFile(path, mode)


def run_with_fault(run_dir: Path, at: int, error: BaseException, for_good: bool) -> tuple[bool, DiskFault]:
    """Save frames 3, 6, 9 and, with the fault, 12; whether that last save got through, and the fault."""
    store, replay = saved_run(run_dir, 3, 6, 9)
    replay.write(3)
    with pytest.MonkeyPatch.context() as monkeypatch:
        fault = DiskFault(monkeypatch, at, error, for_good)
        try:
            store.save(12, *content(12), replay)
        except (Killed, CheckpointWriteError):
            return False, fault
    return True, fault


def test_killed_at_every_step(tmp_path):
    frames = []
    for at in range(1, 1000):
        run_dir = tmp_path / str(at)
        _, fault = run_with_fault(run_dir, at, Killed(), for_good=True)
        if fault.calls < at:
            break
        loaded = quiet_load(run_dir)
        assert_complete(loaded)
        frames.append(loaded.frame)

        store = CheckpointStore(run_dir)
        replay = restored(store.load())
        replay.write(15 - replay.written)
        store.save(15, *content(15), replay)
        assert_complete(CheckpointStore(run_dir).load())
        assert_tidy(run_dir)
    assert len(frames) > 20
    assert frames == sorted(frames)  # once the new one is there, it stays
    assert set(frames) == {9, 12}


def test_first_save_killed_at_every_step(tmp_path):
    outcomes = set()
    for at in range(1, 1000):
        run_dir = tmp_path / str(at)
        with pytest.MonkeyPatch.context() as monkeypatch:
            fault = DiskFault(monkeypatch, at, Killed(), for_good=True)
            try:
                saved_run(run_dir, 5)
            except Killed:
                outcomes.add(CheckpointStore(run_dir).exists())
        if fault.calls < at:
            break
        if CheckpointStore(run_dir).exists():
            assert_complete(CheckpointStore(run_dir).load())
        saved_run(run_dir, 6)
        assert_complete(CheckpointStore(run_dir).load())
    assert outcomes == {True, False}


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
def test_disk_error_at_every_step(tmp_path, for_good):
    failures = 0
    for at in range(1, 1000):
        run_dir = tmp_path / str(at)
        full = OSError(errno.ENOSPC, "No space left on device")
        through, fault = run_with_fault(run_dir, at, full, for_good)
        if fault.calls < at:
            break
        failures += not through
        loaded = quiet_load(run_dir)
        assert_complete(loaded)
        if not for_good:
            assert loaded.frame == (12 if through else 9)
            assert not [path for path in run_dir.rglob("*") if path.name.startswith(".tmp")]
    assert failures > 10


def test_the_same_store_saves_once_the_disk_has_room(tmp_path, monkeypatch):
    store, replay = saved_run(tmp_path, 3, 6)
    before = sorted(tmp_path.rglob("*"))
    replay.write(3)
    with monkeypatch.context() as patch:
        DiskFault(patch, 4, OSError(errno.ENOSPC, "No space left on device"), for_good=False)
        with pytest.raises(CheckpointWriteError, match="frame 9 not saved: No space left") as caught:
            store.save(9, *content(9), replay)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(tmp_path / "checkpoint")
    assert isinstance(caught.value, OSError)
    assert sorted(tmp_path.rglob("*")) == before
    replay.write(1)
    store.save(10, *content(10), replay)
    assert_complete(CheckpointStore(tmp_path).load())
    assert generations(tmp_path) == ["000000000006", "000000000010"]


def test_a_failed_save_leaves_a_chunk_that_another_generation_has_too(tmp_path, monkeypatch):
    saved_run(tmp_path, 3, 6)
    meta = tmp_path / "checkpoint" / "000000000006" / "meta.json"
    meta.rename(tmp_path / "meta.json")
    store = CheckpointStore(tmp_path)
    with pytest.warns(UserWarning, match=r"meta\.json is missing"):
        replay = restored(store.load())
    replay.write(3)
    with monkeypatch.context() as patch:
        DiskFault(patch, 5, OSError(errno.ENOSPC, "No space left on device"), for_good=False)
        with pytest.raises(CheckpointWriteError):
            store.save(6, *content(6), replay)  # the same chunk as the first time
    (tmp_path / "meta.json").rename(meta)
    loaded = CheckpointStore(tmp_path).load()
    assert loaded.frame == 6
    assert_complete(loaded)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "checkpoint").write_text("in the way")
    with pytest.raises(CheckpointWriteError, match="frame 1 not saved"):
        CheckpointStore(tmp_path).save(1, *content(1), RingReplay())
    assert not CheckpointStore(tmp_path).exists()


@pytest.mark.parametrize("victim", ["state.safetensors", "meta.json", "MANIFEST.json", "000000000009-"])
def test_a_disk_that_writes_something_else_is_noticed(tmp_path, monkeypatch, victim):
    store, replay = saved_run(tmp_path, 3, 6)
    replay.write(3)

    def lossy_replace(source, target, replace=os.replace):
        replace(source, target)
        if Path(target).name.startswith(victim):
            data = bytearray(Path(target).read_bytes())
            data[len(data) // 2] ^= 1
            Path(target).write_bytes(data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lossy_replace)
        with pytest.raises(CheckpointWriteError, match=f"reading it back failed, {victim}"):
            store.save(9, *content(9), replay)
    assert_tidy(tmp_path)
    loaded = CheckpointStore(tmp_path).load()
    assert loaded.frame == 6
    assert_complete(loaded)


KILLED_PROCESS = """
import sys
sys.path.insert(0, sys.argv[2])
from test_checkpoint import CheckpointStore, RingReplay, content, restored
store, replay = CheckpointStore(sys.argv[1]), RingReplay()
if store.exists():
    replay = restored(store.load())
while True:
    replay.write(1)
    store.save(replay.written, *content(replay.written), replay)
    print(replay.written, flush=True)
"""


def test_process_killed_in_earnest(tmp_path):
    frame = 0
    for delay in (0.003, 0.05):
        command = [sys.executable, "-c", KILLED_PROCESS, str(tmp_path), str(Path(__file__).parent)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
            announced = [int(line) for line in process.stdout if line.endswith("\n")]
        loaded = CheckpointStore(tmp_path).load()
        assert_complete(loaded)
        assert loaded.frame > frame
        assert loaded.frame >= max(announced, default=0)  # what was reported as saved is saved
        frame = loaded.frame


# Damage


def files_of_newest(run_dir: Path) -> list[Path]:
    """The files that only the newest generation has: damage to one leaves the generation before it whole."""
    newest = run_dir / "checkpoint" / generations(run_dir)[-1]
    return [*(newest / name for name in ("state.safetensors", "meta.json", "MANIFEST.json")), chunk_files(run_dir)[-1]]


def flip(data: bytes, rng: random.Random) -> bytes:
    flipped = bytearray(data)
    flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(flipped)


def assert_falls_back(run_dir: Path, named: str) -> None:
    with pytest.warns(UserWarning, match="going back to checkpoint .*000000000003") as caught:
        loaded = CheckpointStore(run_dir).load()
    assert len(caught) == 1
    assert named in str(caught[0].message)
    assert "000000000006" in str(caught[0].message)
    assert loaded.frame == 3
    assert_complete(loaded)


@pytest.mark.parametrize("which", range(4))
def test_a_flipped_bit_is_noticed(tmp_path, which):
    saved_run(tmp_path, 3, 6)
    path, rng = files_of_newest(tmp_path)[which], random.Random(which)
    intact = path.read_bytes()
    for _ in range(40):
        path.write_bytes(flip(intact, rng))
        assert_falls_back(tmp_path, path.name)
    path.write_bytes(intact)
    assert CheckpointStore(tmp_path).load().frame == 6


@pytest.mark.parametrize("which", range(4))
def test_a_truncated_or_missing_file_is_noticed(tmp_path, which):
    saved_run(tmp_path, 3, 6)
    path = files_of_newest(tmp_path)[which]
    intact = path.read_bytes()
    for length in (len(intact) - 1, len(intact) // 2, 1, 0):
        path.write_bytes(intact[:length])
        assert_falls_back(tmp_path, path.name)
    path.write_bytes(intact + b"\0")
    assert_falls_back(tmp_path, path.name)
    path.unlink()
    assert_falls_back(tmp_path, path.name)
    path.mkdir()
    assert_falls_back(tmp_path, path.name)


def test_all_damaged_names_each(tmp_path):
    saved_run(tmp_path, 3, 6)
    (tmp_path / "checkpoint" / "000000000003" / "meta.json").unlink()
    (tmp_path / "checkpoint" / "000000000006" / "state.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError) as caught:
        CheckpointStore(tmp_path).load()
    assert "000000000003: meta.json is missing" in str(caught.value)
    assert "000000000006: state.safetensors has 0 bytes" in str(caught.value)


def test_a_chunk_damaged_after_loading_is_noticed(tmp_path):
    saved_run(tmp_path, 3)
    loaded = CheckpointStore(tmp_path).load()
    path = chunk_files(tmp_path)[0]
    path.write_bytes(flip(path.read_bytes(), random.Random(0)))
    with pytest.raises(CheckpointError, match=path.name):
        list(loaded.chunks)


@pytest.mark.parametrize("action", ["load", "save"])
def test_what_a_kill_left_half_written_is_removed(tmp_path, action):
    store, replay = saved_run(tmp_path, 3)
    stray = tmp_path / "checkpoint" / ".tmp-000000000006"
    stray.mkdir()
    (stray / "state.safetensors").write_bytes(b"torn")
    (tmp_path / "checkpoint" / "replay" / ".tmp-000000000006-x.safetensors").write_bytes(b"torn")
    if action == "load":
        store.load()
    else:
        replay.write(3)
        store.save(6, *content(6), replay)
    assert_complete(CheckpointStore(tmp_path).load())
    assert_tidy(tmp_path)


# Hostile files: the manifest vouches for them, so only the parsers stand between them and us


def resign(run_dir: Path, change) -> None:
    """Apply ``change`` to the newest manifest's body and make its checksum right again."""
    path = run_dir / "checkpoint" / generations(run_dir)[-1] / "MANIFEST.json"
    body = json.loads(path.read_text())
    del body["sha256"]
    change(body)
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({**body, "sha256": hashlib.sha256(text.encode()).hexdigest()}))


def plant(run_dir: Path, which: str, data: bytes) -> None:
    """Put ``data`` in the place of the newest generation's state, meta or chunk, and let the manifest vouch for it."""

    def vouch(body):
        state, meta = body["files"]
        entry = {"state": state, "meta": meta, "chunk": body["chunks"][-1]}[which]
        folder = run_dir / "checkpoint" / ("replay" if which == "chunk" else generations(run_dir)[-1])
        (folder / entry["name"]).write_bytes(data)
        entry |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    resign(run_dir, vouch)


class Evil:
    def __init__(self, marker: str):
        self.marker = marker

    def __reduce__(self):
        return (os.mkdir, (self.marker,))


@pytest.mark.parametrize("which", ["state", "meta", "chunk"])
def test_a_pickle_is_rejected_and_never_run(tmp_path, which):
    saved_run(tmp_path / "run", 3, 6)
    marker = tmp_path / "executed"
    plant(tmp_path / "run", which, pickle.dumps(Evil(str(marker))))
    assert_falls_back(tmp_path / "run", ".safetensors" if which != "meta" else "meta.json")
    torch.save(Evil(str(marker)), tmp_path / "archive.pt")
    plant(tmp_path / "run", which, (tmp_path / "archive.pt").read_bytes())
    assert_falls_back(tmp_path / "run", ".safetensors" if which != "meta" else "meta.json")
    assert not marker.exists()
    pickle.loads(pickle.dumps(Evil(str(marker))))
    assert marker.exists()  # the pickle does bite


def safetensors_bytes(header: dict, data: bytes = b"", claimed: int | None = None) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text) if claimed is None else claimed) + text + data


@pytest.mark.parametrize("which", ["state", "chunk"])
@pytest.mark.parametrize(
    "data",
    [
        safetensors_bytes({}, claimed=2**60),
        safetensors_bytes({}, claimed=2**63 + 5),
        safetensors_bytes({"tensor/x": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}),
        safetensors_bytes({"tensor/x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"1234"),
        safetensors_bytes({"tensor/x": {"dtype": "O8", "shape": [1], "data_offsets": [0, 8]}}, b"12345678"),
        b"",
        b"\0" * 7,
    ],
    ids=["header 2**60", "header 2**63", "shape 2**40", "shape and bytes differ", "object type", "empty", "short"],
)
def test_hostile_safetensors_are_rejected(tmp_path, which, data):
    saved_run(tmp_path, 3, 6)
    plant(tmp_path, which, data)
    assert_falls_back(tmp_path, ".safetensors cannot be read")


def test_an_unexpected_entry_of_the_state_is_rejected(tmp_path):
    saved_run(tmp_path, 3, 6)
    plant(tmp_path, "state", safetensors_bytes({"x": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}, b"1"))
    assert_falls_back(tmp_path, "unexpected entry 'x'")


@pytest.mark.parametrize("data", [b"[1]", b'{"a":', b"\xff", b"[" * 100_000, b'{"a":' + b"9" * 5000 + b"}"])
def test_hostile_meta_is_rejected(tmp_path, data):
    saved_run(tmp_path, 3, 6)
    plant(tmp_path, "meta", data)
    assert_falls_back(tmp_path, "meta.json")


@pytest.mark.parametrize("name", ["meta.json", "MANIFEST.json"])
def test_oversized_json_is_not_read(tmp_path, monkeypatch, name):
    saved_run(tmp_path, 3, 6)
    limit = 4096
    monkeypatch.setattr(files, "JSON_LIMIT", limit)
    data = b'{"a":"' + b"x" * limit + b'"}'
    if name == "meta.json":
        plant(tmp_path, "meta", data)
    else:
        (tmp_path / "checkpoint" / "000000000006" / name).write_bytes(data)
    assert_falls_back(tmp_path, f"above the limit of {limit}")


@pytest.mark.parametrize(
    "name",
    [
        *("../000000000003/state.safetensors", "/etc/passwd", "..", "", "other.safetensors", 7, None),
        *("state.safetensors/../x", "state.safetensors\n", "x/state.safetensors"),
        *(f"{6:012d}-{'0' * 16}.safetensors/../x", f"../replay/{6:012d}-{'0' * 16}.safetensors"),
    ],
)
@pytest.mark.parametrize("which", ["files", "chunks"])
def test_names_that_lead_elsewhere_are_rejected(tmp_path, which, name):
    saved_run(tmp_path, 3, 6)
    resign(tmp_path, lambda body: body[which][0].update(name=name))
    assert_falls_back(tmp_path, "unexpected file name")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda body: body.update(version=2), "version 2, expected 1"),
        (lambda body: body.pop("version"), "version None, expected 1"),
        (lambda body: body.update(frame=3), "is of frame 3, not of this folder"),
        (lambda body: body.update(frame="x"), "malformed"),
        (lambda body: body.pop("frame"), "malformed"),
        (lambda body: body.pop("chunks"), "malformed"),
        (lambda body: body.update(files={}), "malformed"),
        (lambda body: body["files"].pop(), "malformed"),
        (lambda body: body["files"].reverse(), "unexpected file name"),
        (lambda body: body["chunks"][0].pop("cursor"), "malformed"),
        (lambda body: body["chunks"][0].update(cursor=5), "malformed"),
        (lambda body: body["chunks"].append("text"), "malformed"),
        (lambda body: body["files"][0].update(size="1"), "malformed entry for state.safetensors"),
        (lambda body: body["files"][0].update(sha256="0"), "malformed entry for state.safetensors"),
    ],
)
def test_a_manifest_of_another_shape_is_rejected(tmp_path, change, named):
    saved_run(tmp_path, 3, 6)
    resign(tmp_path, change)
    assert_falls_back(tmp_path, named)


def test_resigning_alone_is_accepted(tmp_path):
    """The helper above makes manifests that only its change invalidates."""
    saved_run(tmp_path, 3, 6)
    resign(tmp_path, lambda body: None)
    assert CheckpointStore(tmp_path).load().frame == 6


# Optimizers and random numbers


def make_network(**adam) -> tuple[torch.nn.Module, torch.optim.Adam]:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    groups = [{"params": network[0].parameters(), "lr": 0.01}, {"params": network[2].parameters(), "lr": 0.003}]
    return network, torch.optim.Adam(groups, betas=(0.8, 0.99), **adam)


def train(network: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        loss = (network(torch.randn(16, 3)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("adam", [{}, {"foreach": True}, {"fused": True}, {"amsgrad": True, "weight_decay": 0.1}])
def test_training_continues_bit_for_bit(tmp_path, adam):
    network, optimizer = make_network(**adam)
    generator = np.random.default_rng(3)
    train(network, optimizer, 5)
    optimizer_tensors, optimizer_meta = flatten_optimizer(optimizer)
    rng_tensors, rng_meta = rng_state(replay=generator)
    tensors = {**network.state_dict(), **optimizer_tensors, **rng_tensors}
    meta = {"optimizer": optimizer_meta, "rng": rng_meta}
    CheckpointStore(tmp_path).save(5, tensors, {}, meta, RingReplay())
    train(network, optimizer, 5)
    drawn = generator.random(), torch.rand(2)

    again, again_optimizer = make_network()
    train(again, again_optimizer, 2)
    loaded = CheckpointStore(tmp_path).load()
    again.load_state_dict({key: loaded.tensors[key] for key in again.state_dict()})
    restore_optimizer(again_optimizer, loaded.tensors, loaded.meta["optimizer"])
    again_generator = np.random.default_rng()
    restore_rng(loaded.tensors, loaded.meta["rng"], replay=again_generator)
    train(again, again_optimizer, 5)

    for key, value in network.state_dict().items():
        assert torch.equal(value, again.state_dict()[key])
    assert again_optimizer.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]
    for index, state in optimizer.state_dict()["state"].items():
        for key, value in state.items():
            other = again_optimizer.state_dict()["state"][index][key]
            assert other.dtype == value.dtype
            assert torch.equal(other, value)
    assert again_generator.random() == drawn[0]
    assert torch.equal(torch.rand(2), drawn[1])


def test_the_restored_optimizer_owns_its_state():
    network, optimizer = make_network()
    train(network, optimizer, 1)
    tensors, meta = flatten_optimizer(optimizer)
    before = {key: value.clone() for key, value in tensors.items()}
    train(network, optimizer, 1)
    restore_optimizer(optimizer, tensors, meta)
    train(network, optimizer, 1)
    assert all(torch.equal(tensors[key], before[key]) for key in before)


def test_an_optimizer_that_has_not_stepped(tmp_path):
    network, optimizer = make_network()
    tensors, meta = flatten_optimizer(optimizer)
    assert tensors == {}
    train(network, optimizer, 1)
    restore_optimizer(optimizer, tensors, meta)
    assert optimizer.state_dict()["state"] == {}


def test_state_that_does_not_fit_changes_nothing():
    network, optimizer = make_network()
    train(network, optimizer, 2)
    tensors, meta = flatten_optimizer(optimizer)
    train(network, optimizer, 1)
    before = {key: value.clone() for key, value in flatten_optimizer(optimizer)[0].items()}

    lacking = {key: value for key, value in tensors.items() if key != "optimizer.1.exp_avg"}
    misshaped = tensors | {"optimizer.2.exp_avg": torch.zeros(5)}
    one_group = meta | {"param_groups": meta["param_groups"][:1]}
    one_more = meta | {"state": meta["state"] | {"4": []}}
    for bad_tensors, bad_meta, message in [
        (lacking, meta, "lacks 'optimizer.1.exp_avg'"),
        (misshaped, meta, r"optimizer.2.exp_avg must have shape \(1, 8\), got \(5,\)"),
        (tensors, one_group, "parameter groups"),
        (tensors, one_more, "4 parameters, got a state for parameter 4"),
    ]:
        with pytest.raises(ValueError, match=message):
            restore_optimizer(optimizer, bad_tensors, bad_meta)
        after = flatten_optimizer(optimizer)[0]
        assert all(torch.equal(after[key], before[key]) for key in before)


def test_an_optimizer_state_that_json_cannot_hold_is_named():
    optimizer = torch.optim.Adam([torch.ones(1, requires_grad=True)], lr=torch.tensor(0.1), foreach=False)
    with pytest.raises(TypeError, match=r"optimizer.param_groups\[0\].lr must be JSON"):
        flatten_optimizer(optimizer)


def test_a_generator_without_saved_state_changes_nothing():
    tensors, meta = rng_state(a=np.random.default_rng(0))
    torch.rand(1)
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="no state was saved for the generator 'b'"):
        restore_rng(tensors, meta, b=np.random.default_rng(1))
    assert torch.equal(torch.get_rng_state(), before)


def test_no_pickle_is_imported():
    modules = checkpoint, curve, files, sinks, snapshots, tracking
    source = "".join(Path(module.__file__).read_text() for module in modules)
    assert "import pickle" not in source
    assert "torch.load" not in source.replace("safetensors.torch.load", "")
