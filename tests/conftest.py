"""Settings of the whole test suite."""

import multiprocessing
import os
import sys

# Before torch is imported: threads that wait by spinning starve each other on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run on all cores already
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # the many processes that are started need not all compile the package

import toy_envs  # noqa: F401, registers the toy environment
from browser import (  # noqa: F401, here so that they are known to all tests, and to the process that has only workers
    browser,
    open_page,
    pytest_collection_modifyitems,
    pytest_terminal_summary,
)
from hypothesis import settings

# Workers of environments import torch and the rest once, as those of a script do, which is their main module.
multiprocessing.set_forkserver_preload(["taac_wrappers.training.engines", "taac_wrappers.training.run"])

# State machines: long enough to fill a ring and to end several episodes, short enough for many examples.
STEPS = 20

# The same examples on every run, and no time limit for one: a slow machine is not a failure.
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None, stateful_step_count=STEPS)
# `make soak`: new examples on every run. A failure prints the line that brings it back.
settings.register_profile(
    "soak",
    max_examples=int(os.environ.get("TAAC_SOAK_EXAMPLES", "10000")),
    deadline=None,
    print_blob=True,
    stateful_step_count=STEPS,
)
settings.load_profile("soak" if os.environ.get("TAAC_SOAK") == "1" else "repeatable")

# envpool has no builds for Python 3.10.
collect_ignore_glob = ["*/test_envpool*.py"] if sys.version_info < (3, 11) else []
