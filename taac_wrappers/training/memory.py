"""How much memory there is to be had."""

from __future__ import annotations

import contextlib
import math
import os
import re
from pathlib import Path, PurePosixPath

_LIMITS = {"": ("sys/fs/cgroup", "memory.max"), "memory": ("sys/fs/cgroup/memory", "memory.limit_in_bytes")}
"""Where control groups, of version 2 and of version 1, keep their limits."""


def available_memory(root: Path = Path("/")) -> float:
    """Bytes that this process can hope for: what the machine has left, or a container's limit; inf if nobody tells.

    Args:
        root: where ``proc`` and ``sys`` are.
    """
    return min(_left_in_the_machine(root), _limit_of_the_container(root))


def _left_in_the_machine(root: Path) -> float:
    with contextlib.suppress(OSError):
        found = re.search(r"^MemAvailable: *(\d+) kB$", (root / "proc/meminfo").read_text(), re.MULTILINE)
        if found is not None:
            return int(found[1]) * 1024
    with contextlib.suppress(AttributeError, ValueError, OSError):  # not every system tells more than what it has
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return math.inf


def _limit_of_the_container(root: Path) -> float:
    """The lowest limit of the control groups that this process is in: lines of ``number:controller:/path``."""
    limits = [math.inf]
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controller, path = line.split(":", 2)
            if controller in _LIMITS:
                top, name = _LIMITS[controller]
                group = PurePosixPath(path)
                for each in (group, *group.parents):  # inside a container its own group may be at the top
                    with contextlib.suppress(OSError, ValueError):  # "max": no limit
                        limits.append(int((root / top / each.relative_to("/") / name).read_text()))
    return min(limits)
