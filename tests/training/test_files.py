"""Files: a failed write leaves the old one, and JSON that is damaged, too large or no JSON is named."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from taac_wrappers.training import files
from taac_wrappers.training.files import read_config, read_json, write_atomically, write_config


def test_config_round_trip(tmp_path):
    config = {"seed": 3, "env_id": "Ant-v5", "hidden": (256, 256), "gamma": 0.99, "none": None, "nested": {"a": [1]}}
    write_config(tmp_path, config)
    assert read_config(tmp_path) == config | {"hidden": [256, 256]}
    text = (tmp_path / "config.json").read_text()
    assert list(json.loads(text)) == sorted(config)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"path": Path("x")}, "config.path must be JSON"),
        ({"a": {"b": np.int64(3)}}, "config.a.b must be JSON .* of type int64"),
        ({3: 4}, "config must have string keys, got 3 of type int"),
    ],
)
def test_a_config_that_is_not_json_is_named_and_changes_nothing(tmp_path, config, message):
    write_config(tmp_path, {"old": 1})
    with pytest.raises(TypeError, match=message):
        write_config(tmp_path, config)
    assert read_config(tmp_path) == {"old": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\x80\x04K\x01.", b"PK\x03\x04", b"[" * 100_000])
def test_a_damaged_config_is_named(tmp_path, data):
    (tmp_path / "config.json").write_bytes(data)
    with pytest.raises(ValueError, match=r"config\.json: "):
        read_config(tmp_path)


def test_oversized_json_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "JSON_LIMIT", 10)
    (tmp_path / "a.json").write_text('{"a": "123456789"}')
    with pytest.raises(ValueError, match="18 bytes of JSON is above the limit of 10"):
        read_json(tmp_path / "a.json")


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path, monkeypatch):
    write_atomically(tmp_path / "file", b"old")

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "file", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"old")]
