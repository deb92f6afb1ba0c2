"""The same seed on the same machine gives the same run, bit for bit; another seed gives another.

These processes have the same parent; that others give the same too is a part of the tests of the real command line.
"""

from __future__ import annotations

import pytest
from harness import THOROUGHLY, Case, assert_same_run, metric_lines


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("method", THOROUGHLY)
def test_the_same_seed_gives_the_same_run(runner, whole, tmp_path, method, num_envs):
    case = Case(method, num_envs=num_envs)
    outcome = runner.run(case, tmp_path / "run")
    assert outcome.code == 0, outcome.said
    assert_same_run(tmp_path / "run", whole(case))


@pytest.mark.parametrize("method", THOROUGHLY)
def test_another_seed_gives_another_run(whole, method):
    one, other = whole(Case(method)), whole(Case(method, seed=1))
    assert metric_lines(one) != metric_lines(other)
    assert (one / "agent.safetensors").read_bytes() != (other / "agent.safetensors").read_bytes()
