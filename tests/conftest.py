"""Settings of the whole test suite."""

import os

# Before torch is imported: threads that wait by spinning starve each other on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import toy_envs  # noqa: F401, registers the toy environment
from hypothesis import settings

# The same examples on every run, and no time limit for one: a slow machine is not a failure.
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")
