"""Files that a crash leaves whole: written atomically, synced, and JSON that is checked and of limited size.

``config.json``, the settings of a run, is one of them.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

__all__ = ["encode_json", "read_config", "read_json", "sync_folder", "write_atomically", "write_config"]

CONFIG = "config.json"
TEMPORARY = ".tmp-"
"""Prefix of everything that is being written; whatever bears it after a crash is rubbish."""

JSON_LIMIT = 64 * 2**20
CONFIG_LIMIT = 2**20


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file that, after a crash at any moment, is the old one or the new one in full."""
    temporary = path.with_name(TEMPORARY + path.name)
    try:
        temporary.unlink(missing_ok=True)  # left by a crash; and a link must not lead the write elsewhere
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames inside ``folder`` survive a power cut."""
    if os.name != "posix":  # elsewhere a folder cannot be opened, and renames are durable without it
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def encode_json(name: str, value: Any) -> bytes:
    """Encode ``value`` with sorted keys; ``name`` is what an error calls it.

    >>> encode_json("meta", {"b": (1, 2), "a": 0.1})
    b'{"a":0.1,"b":[1,2]}'
    >>> encode_json("meta", {"a": [{1, 2}]})
    Traceback (most recent call last):
    TypeError: meta.a[0] must be JSON (None, bool, int, float, str, list, dict), got {1, 2} of type set
    """
    _check_json(name, value)
    data = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    if len(data) > JSON_LIMIT:
        raise ValueError(f"{name} must encode to at most {JSON_LIMIT} bytes of JSON, got {len(data)}")
    return data


def _check_json(name: str, value: Any) -> None:
    """json.dumps alone would turn integer keys into strings without a word."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{name} must have string keys, got {key!r} of type {type(key).__name__}")
            _check_json(f"{name}.{key}", item)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _check_json(f"{name}[{index}]", item)
    elif not isinstance(value, (str, int, float, type(None))):
        kinds = "None, bool, int, float, str, list, dict"
        raise TypeError(f"{name} must be JSON ({kinds}), got {value!r} of type {type(value).__name__}")


def read_json(path: Path, limit: int | None = None) -> dict[str, Any]:
    """Read a JSON object of at most ``limit`` bytes (None: JSON_LIMIT), or raise a ValueError that names the file."""
    limit = JSON_LIMIT if limit is None else limit
    if (size := path.stat().st_size) > limit:
        raise ValueError(f"{path}: {size} bytes of JSON is above the limit of {limit}")
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not valid JSON ({str(error)[:300]})") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def write_config(run_dir: Path, config: dict[str, Any]) -> None:
    """Write ``config.json``, atomically and with sorted keys, into an existing run folder."""
    data = json.dumps(json.loads(encode_json("config", config)), sort_keys=True, indent=2) + "\n"
    write_atomically(Path(run_dir) / CONFIG, data.encode())


def read_config(run_dir: Path) -> dict[str, Any]:
    """Read ``config.json``; tuples that were written come back as lists."""
    return read_json(Path(run_dir) / CONFIG, min(CONFIG_LIMIT, JSON_LIMIT))
