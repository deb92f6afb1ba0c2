"""Checkpoints that survive: complete, atomic, in generations, and without pickle.

A run folder holds ``checkpoint/<frame>/`` (one folder per generation: ``state.safetensors``, ``meta.json`` and a
``MANIFEST.json`` with the size and SHA-256 of every file) and ``checkpoint/replay/`` (chunks of the replay buffer that
generations share, so that saving writes only what is new). A generation is written beside its place, synced, renamed
into it and read back before an older one is removed: at any moment at least one complete generation exists. Reading
checks every byte against the manifest; a damaged generation is named in a warning and the one before it is used. If
a damaged chunk leaves no generation whole, the newest one goes on without the replay up to and including that chunk.

Nothing read here can run code: files are JSON and safetensors, of the size the manifest states, under fixed names.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

from taac_wrappers.training.files import TEMPORARY, encode_json, read_json, sync_folder, write_atomically

__all__ = [
    "CheckpointError",
    "CheckpointStore",
    "CheckpointWriteError",
    "Loaded",
]

FORMAT_VERSION = 1
MANIFEST = "MANIFEST.json"
STATE = "state.safetensors"
META = "meta.json"
REPLAY = "replay"
GENERATION_NAME = re.compile(r"(\d{12,})(?:\.(\d+))?")
STATE_NAME, META_NAME = re.compile(re.escape(STATE)), re.compile(re.escape(META))
CHUNK_NAME = re.compile(r"(\d{12,20})-[0-9a-f]{16}\.safetensors")
SHA256 = re.compile(r"[0-9a-f]{64}")
ARRAY_TYPES = {"bool", "float16", "float32", "float64"} | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}


class CheckpointError(ValueError):
    """A checkpoint that is missing or damaged."""


class CheckpointWriteError(OSError):
    """A checkpoint that could not be written; the one before it is intact, and saving may be tried again."""


class Replay(Protocol):
    """What the store asks of a replay buffer. Slots that a chunk has covered must not change until overwritten."""

    def chunk(self, since: dict[str, Any] | None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The slots written after the cursor ``since`` (None: all there are), and the JSON-able cursor after them."""
        ...

    def is_stale(self, cursor: dict[str, Any]) -> bool:
        """Whether every slot written before ``cursor`` has been overwritten."""
        ...


@dataclass(frozen=True)
class Loaded:
    """A generation as it was saved; ``chunks`` are read one at a time, as ``replay.load_chunks`` walks over them."""

    frame: int
    tensors: dict[str, torch.Tensor]
    arrays: dict[str, np.ndarray]
    meta: dict[str, Any]
    chunks: Sequence[tuple[dict[str, np.ndarray], dict[str, Any]]]
    path: Path


@dataclass(frozen=True)
class _File:
    """What the manifest promises of a file."""

    name: str
    size: int
    sha256: str

    @classmethod
    def of(cls, name: str, data: bytes) -> _File:
        return cls(name, len(data), hashlib.sha256(data).hexdigest())

    def has_size(self, folder: Path) -> bool:
        path = folder / self.name
        return path.is_file() and path.stat().st_size == self.size

    def read(self, folder: Path) -> bytes:
        """The file's bytes, checked."""
        data = b"".join(self._blocks(folder))
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise CheckpointError(f"{self.name} is damaged: its checksum differs from the manifest's")
        return data

    def check(self, folder: Path) -> None:
        """As ``read``, without holding the file in memory."""
        digest = hashlib.sha256()
        for block in self._blocks(folder):
            digest.update(block)
        if digest.hexdigest() != self.sha256:
            raise CheckpointError(f"{self.name} is damaged: its checksum differs from the manifest's")

    def _blocks(self, folder: Path) -> Iterator[bytes]:
        path = folder / self.name
        _refuse_links(folder, path)
        if not path.is_file():
            raise CheckpointError(f"{self.name} is missing")
        if (size := path.stat().st_size) != self.size:
            raise CheckpointError(f"{self.name} has {size} bytes, the manifest says {self.size}")
        with open(path, "rb") as file:
            while block := file.read(2**20):
                yield block


@dataclass(frozen=True)
class _Chunk:
    """A shared replay file, and where the replay stood when it had been taken."""

    file: _File
    cursor: dict[str, Any]

    @property
    def frame(self) -> int:
        """At which it was taken."""
        return int(self.file.name.partition("-")[0])


@dataclass(frozen=True)
class _Generation:
    """What a manifest says."""

    path: Path
    frame: int
    files: tuple[_File, _File]
    chunks: tuple[_Chunk, ...]

    def encode(self) -> bytes:
        body = {
            "version": FORMAT_VERSION,
            "frame": self.frame,
            "files": [asdict(file) for file in self.files],
            "chunks": [{**asdict(chunk.file), "cursor": chunk.cursor} for chunk in self.chunks],
        }
        # The manifest vouches for all other files, and this line for the manifest.
        return encode_json("manifest", {**body, "sha256": _digest(body)})

    @classmethod
    def read(cls, path: Path) -> _Generation:
        _refuse_links(path, path / MANIFEST)
        if not (path / MANIFEST).is_file():
            raise CheckpointError(f"{MANIFEST} is missing")
        try:
            body = read_json(path / MANIFEST)
            intact = body.pop("sha256", None) == _digest(body)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{MANIFEST} is damaged: {error}") from error
        if body.get("version") != FORMAT_VERSION:
            raise CheckpointError(f"{MANIFEST} has version {body.get('version')!r}, expected {FORMAT_VERSION}")
        if not intact:
            raise CheckpointError(f"{MANIFEST} is damaged: its checksum differs")
        try:
            state, meta = body["files"]
            files = _checked_file(state, STATE_NAME), _checked_file(meta, META_NAME)
            chunks = tuple(_Chunk(_checked_file(entry, CHUNK_NAME), dict(entry["cursor"])) for entry in body["chunks"])
            frame = int(body["frame"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{MANIFEST} is malformed: {error!r}") from error
        if path.name.partition(".")[0] != f"{frame:012d}":
            raise CheckpointError(f"{MANIFEST} is of frame {frame}, not of this folder")
        return cls(path, frame, files, chunks)


class _Chunks(Sequence):
    """Replay chunks read on demand: a resumed run holds its replay in memory once, not twice."""

    def __init__(self, chunks: tuple[_Chunk, ...], folder: Path):
        self._chunks = chunks
        self._folder = folder

    def __len__(self) -> int:
        return len(self._chunks)

    def __getitem__(self, index: Any) -> Any:
        chunk = self._chunks[index]
        with _parsing(chunk.file.name):
            return safetensors.numpy.load(chunk.file.read(self._folder)), chunk.cursor


class CheckpointStore:
    """The checkpoints of one run. One process at a time may write them.

    >>> import tempfile
    >>> class NoReplay:
    ...     def chunk(self, since):
    ...         return {}, {"written": 0}
    ...     def is_stale(self, cursor):
    ...         return False
    >>> store = CheckpointStore(tempfile.mkdtemp())
    >>> store.exists()
    False
    >>> path = store.save(1000, {"weight": torch.ones(2)}, {"qpos": np.zeros(3)}, {"episodes": 7}, NoReplay())
    >>> loaded = store.load()
    >>> loaded.frame, loaded.tensors, loaded.arrays, loaded.meta, len(loaded.chunks)
    (1000, {'weight': tensor([1., 1.])}, {'qpos': array([0., 0., 0.])}, {'episodes': 7}, 1)
    """

    def __init__(self, run_dir: Path | str):
        self.folder = Path(run_dir) / "checkpoint"
        self._replay = self.folder / REPLAY
        self._last: _Generation | None = None  # what this store loaded or saved last: the next one builds on it

    def exists(self) -> bool:
        """Whether any generation has been saved, good or damaged."""
        return bool(self._found())

    def newest_frame(self) -> int | None:
        """The frame of the newest generation, good or damaged."""
        return max((frame for frame, *_ in self._found()), default=None)

    def save(
        self,
        frame: int,
        tensors: Mapping[str, torch.Tensor],
        arrays: Mapping[str, np.ndarray],
        meta: dict[str, Any],
        replay: Replay,
    ) -> Path:
        """Write a new generation and return its folder; then remove all but it and the one before.

        Of the replay only what is new since the last generation is written. Raises CheckpointWriteError where the disk
        does not take it: what was saved before is intact then.
        """
        if isinstance(frame, bool) or not isinstance(frame, int) or frame < 0:
            raise ValueError(f"frame must be an integer that is not negative, got {frame!r}")
        contents = {STATE: _encode_state(tensors, arrays), META: encode_json("meta", meta)}
        try:
            previous = self._last or self._newest_good()
            chunks, chunk_data = self._next_chunks(frame, replay)
            files = _File.of(STATE, contents[STATE]), _File.of(META, contents[META])
            generation = _Generation(self._free_path(frame), frame, files, chunks)
            self._write(generation, contents | {MANIFEST: generation.encode()}, chunk_data)
        except OSError as error:
            reason = f"checkpoint at frame {frame} not saved: {error.strerror or error}"
            raise CheckpointWriteError(error.errno, reason, str(self.folder)) from error
        self._last = generation
        self._remove_all_but([generation] if previous is None else [previous, generation])
        return generation.path

    def load(self) -> Loaded:
        """Read the newest generation that verifies, or if none does, the newest that lacks nothing but old replay.

        What is damaged is named in one warning.
        """
        self._sweep()
        loaded, self._last, warning = self._choose()
        if warning:
            warnings.warn(warning, stacklevel=2)
        return loaded

    # Reading

    def _found(self) -> list[tuple[int, int, Path]]:
        """Frame, attempt and folder of every generation."""
        found = []
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for path in self.folder.iterdir():
                if match := GENERATION_NAME.fullmatch(path.name):
                    found.append((int(match[1]), int(match[2] or 0), path))
        return found

    def _newest_first(self) -> list[Path]:
        return [path for *_, path in sorted(self._found(), reverse=True)]

    def _choose(self) -> tuple[Loaded, _Generation, str]:
        """The generation to go on with, and a warning if another one would have been preferable."""
        problems: list[str] = []
        incomplete: tuple[Loaded, _Generation] | None = None
        for path in self._newest_first():
            try:
                loaded, generation, damage = self._read(path)
            except (CheckpointError, OSError) as error:
                problems.append(f"{path}: {error}")
                continue
            if not damage:
                because = f"going back to checkpoint {path}, because {'; '.join(problems)}"
                return loaded, generation, because if problems else ""
            problems.append(f"{path}: {damage}")
            incomplete = incomplete or (loaded, generation)
        if incomplete is not None:
            path = incomplete[0].path
            return *incomplete, f"going on from checkpoint {path} without all of its replay: {'; '.join(problems)}"
        if problems:
            raise CheckpointError(f"no checkpoint is usable: {'; '.join(problems)}")
        raise CheckpointError(f"no checkpoint in {self.folder}")

    def _read(self, path: Path) -> tuple[Loaded, _Generation, str]:
        """A generation, which must be whole but for older chunks, and the damage to these if there is any."""
        generation = _Generation.read(path)
        state_file, meta_file = generation.files
        meta_file.check(path)
        with _parsing(META):
            meta = read_json(path / META)
        chunks, damage = self._intact_chunks(generation)
        with _parsing(STATE):
            tensors, arrays = _decode_state(state_file.read(path))
        loaded = Loaded(generation.frame, tensors, arrays, meta, _Chunks(chunks, self._replay), path)
        return loaded, replace(generation, chunks=chunks), damage

    def _intact_chunks(self, generation: _Generation) -> tuple[tuple[_Chunk, ...], str]:
        """The chunks after the last damaged one, because a replay gives up its oldest frames first; and the damage."""
        kept: tuple[_Chunk, ...] = ()
        damage: list[str] = []
        for chunk in generation.chunks:
            try:
                chunk.file.check(self._replay)
                with _parsing(chunk.file.name), safetensors.safe_open(self._replay / chunk.file.name, framework="np"):
                    kept = (*kept, chunk)  # its header is valid
            except (CheckpointError, OSError) as error:
                kept, lost = (), chunk.frame
                damage.append(str(error))
        if not damage:
            return kept, ""
        if not kept:  # with the newest chunk, the episodes that are under way are lost
            raise CheckpointError("; ".join(damage))
        remain = f"the replay's frames up to {lost} are lost, {generation.frame - lost} remain"
        return kept, f"{'; '.join(damage)}: {remain}, and the run will differ from one without this damage"

    def _newest_good(self) -> _Generation | None:
        with contextlib.suppress(CheckpointError, OSError):
            return self._choose()[1]
        return None

    # Writing

    def _next_chunks(self, frame: int, replay: Replay) -> tuple[tuple[_Chunk, ...], bytes]:
        """The chunks the next generation refers to, and the bytes of the last of them, which is new."""
        kept = self._last.chunks if self._last is not None else ()
        if not all(chunk.file.has_size(self._replay) for chunk in kept):
            kept = ()  # somebody removed what was saved: save all of it again
        arrays, cursor = replay.chunk(kept[-1].cursor if kept else None)
        data = safetensors.numpy.save(_checked_arrays("replay chunk", arrays))
        digest = hashlib.sha256(data).hexdigest()
        file = _File(f"{frame:012d}-{digest[:16]}.safetensors", len(data), digest)
        cursor = json.loads(encode_json("cursor", cursor))  # the same whether or not the run is interrupted
        return (*(chunk for chunk in kept if not replay.is_stale(chunk.cursor)), _Chunk(file, cursor)), data

    def _free_path(self, frame: int) -> Path:
        """A place no generation has, and that sorts after any other of the same frame: that one stays for now."""
        taken = [attempt for other, attempt, _ in self._found() if other == frame]
        return self.folder / (f"{frame:012d}.{max(taken) + 1}" if taken else f"{frame:012d}")

    def _write(self, generation: _Generation, contents: dict[str, bytes], chunk_data: bytes) -> None:
        chunk = self._replay / generation.chunks[-1].file.name
        staging = self.folder / (TEMPORARY + generation.path.name)
        rubbish = [staging, generation.path] + ([] if chunk.exists() else [chunk])
        try:
            self._replay.mkdir(parents=True, exist_ok=True)
            if self._replay.is_symlink():
                raise OSError(errno.ELOOP, "its replay folder is a symbolic link")
            self._sweep()
            write_atomically(chunk, chunk_data)  # first, so that no manifest refers to what is not there
            staging.mkdir()
            for name, data in contents.items():  # the manifest is the last of them
                write_atomically(staging / name, data)
            os.replace(staging, generation.path)
            sync_folder(self.folder)
            self._read_back(generation)
        except OSError:
            for path in rubbish:
                _remove(path)
            raise

    def _read_back(self, generation: _Generation) -> None:
        """Check what has just been written; chunks of earlier generations were checked when they were new."""
        try:
            if _Generation.read(generation.path) != generation:
                raise CheckpointError(f"{MANIFEST} differs from what was written")
            for file in generation.files:
                file.check(generation.path)
            generation.chunks[-1].file.check(self._replay)
        except CheckpointError as error:
            raise OSError(errno.EIO, f"reading it back failed, {error}") from error

    def _remove_all_but(self, kept: Sequence[_Generation]) -> None:
        for path in self._newest_first():
            if path not in [generation.path for generation in kept]:
                _remove(path)
        needed = {chunk.file.name for generation in kept for chunk in generation.chunks}
        with contextlib.suppress(OSError):
            for path in self._replay.iterdir():
                if CHUNK_NAME.fullmatch(path.name) and path.name not in needed:
                    _remove(path)

    def _sweep(self) -> None:
        """Remove what a killed process left half-written."""
        for folder in (self.folder, self._replay):
            with contextlib.suppress(OSError):
                for path in [] if folder.is_symlink() else folder.iterdir():
                    if path.name.startswith(TEMPORARY):
                        _remove(path)


def _refuse_links(*paths: Path) -> None:
    """Nothing of a checkpoint is a link: what one leads to belongs to somebody else."""
    for path in paths:
        if path.is_symlink():
            raise CheckpointError(f"{path.name} is a symbolic link")


def _remove(path: Path) -> None:
    """Remove a file or folder if possible: rubbish that stays is swept up the next time."""
    with contextlib.suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


@contextlib.contextmanager
def _parsing(name: str) -> Iterator[None]:
    """Name the file that a parser, of JSON or safetensors, trips over in whatever way."""
    try:
        yield
    except (CheckpointError, OSError):
        raise
    except Exception as error:
        raise CheckpointError(f"{name} cannot be read: {str(error)[:300]}") from error


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(encode_json("manifest", body)).hexdigest()


def _checked_file(entry: dict[str, Any], pattern: re.Pattern[str]) -> _File:
    """A manifest entry whose name cannot point anywhere but into its own folder."""
    file = _File(entry["name"], entry["size"], entry["sha256"])
    if not isinstance(file.name, str) or not pattern.fullmatch(file.name):
        raise CheckpointError(f"{MANIFEST} lists an unexpected file name {file.name!r}")
    if not isinstance(file.size, int) or not isinstance(file.sha256, str) or not SHA256.fullmatch(file.sha256):
        raise CheckpointError(f"{MANIFEST} has a malformed entry for {file.name}")
    return file


def _checked_arrays(name: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays of a type that can be stored, each contiguous: safetensors copies their memory as it lies there."""
    for key, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.name not in ARRAY_TYPES or not array.dtype.isnative:
            raise TypeError(f"{name} {key!r} must be an array of numbers, got {getattr(array, 'dtype', array)!r}")
    return {key: np.asarray(array, order="C") for key, array in arrays.items()}


def _encode_state(tensors: Mapping[str, torch.Tensor], arrays: Mapping[str, np.ndarray]) -> bytes:
    together = {}
    for key, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"tensors {key!r} must be a torch.Tensor, got {tensor!r}")
        # A copy, because parameters may be views of one storage, which safetensors refuses.
        together[f"tensor/{key}"] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    for key, array in _checked_arrays("arrays", arrays).items():
        together[f"array/{key}"] = torch.from_numpy(array.copy())
    return safetensors.torch.save(together)


def _decode_state(data: bytes) -> tuple[dict[str, torch.Tensor], dict[str, np.ndarray]]:
    kinds: dict[str, dict[str, torch.Tensor]] = {"tensor": {}, "array": {}}
    for name, value in safetensors.torch.load(data).items():
        kind, _, key = name.partition("/")
        if kind not in kinds:
            raise CheckpointError(f"{STATE} has an unexpected entry {name!r}")
        kinds[kind][key] = value
    return kinds["tensor"], {key: value.numpy() for key, value in kinds["array"].items()}
