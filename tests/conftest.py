"""Settings of the whole test suite."""

import sys

import toy_envs  # noqa: F401, registers the toy environment
from hypothesis import settings

# The same examples on every run, and no time limit for one: a slow machine is not a failure.
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")

# envpool has no builds for Python 3.10.
collect_ignore_glob = ["*/test_envpool*.py"] if sys.version_info < (3, 11) else []
