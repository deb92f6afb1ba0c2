"""How much memory there is, as the files of a system tell it."""

from __future__ import annotations

import math

import pytest

from taac_wrappers.training import memory
from taac_wrappers.training.memory import available_memory

MEMINFO = "MemTotal:       16000 kB\nMemFree:         1000 kB\nMemAvailable:    8000 kB\n"
LEFT = 8000 * 1024


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, LEFT),
        ({"proc/self/cgroup": "0::/\n"}, LEFT),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "5000\n"}, 5000),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, LEFT),
        ({"proc/self/cgroup": "0::/job/step\n", "sys/fs/cgroup/job/memory.max": "6000\n"}, 6000),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{10**12}\n"}, LEFT),
        (
            {
                "proc/self/cgroup": "5:cpu:/other\n4:memory:/job\n0::/\n",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "7000\n",
                "sys/fs/cgroup/memory/other/memory.limit_in_bytes": "1\n",  # of a group that it is not in
            },
            7000,
        ),
    ],
)
def test_the_machine_and_the_container_tell(files, expected, tmp_path):
    for name, text in ({"proc/meminfo": MEMINFO} | files).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_memory(tmp_path) == expected


def test_systems_that_tell_less(tmp_path, monkeypatch):
    monkeypatch.setattr(memory.os, "sysconf", {"SC_PHYS_PAGES": 100, "SC_PAGE_SIZE": 4096}.__getitem__, raising=False)
    assert available_memory(tmp_path) == 409600
    monkeypatch.delattr(memory.os, "sysconf")
    assert available_memory(tmp_path) == math.inf


def test_this_system_has_some():
    assert available_memory() > 2**20
