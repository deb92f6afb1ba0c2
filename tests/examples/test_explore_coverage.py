"""States are recorded at every frame, whatever a decision is; the picture and the table are there."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.syspath_prepend(str(ROOT / "agents"))
    import explore_coverage

    return explore_coverage


def test_every_frame_of_a_repeated_action_is_recorded(example):
    states = example.visited("sac-nrep", "MountainCarContinuous-v0", frames=300, seed=0)
    assert states.shape == (300, 2)
    # The car moves by its velocity at every frame: none was left out between two of them.
    np.testing.assert_allclose(states[1:, 0] - states[:-1, 0], states[1:, 1], atol=1e-6)


def test_the_same_seed_visits_the_same_states(example):
    once, again, other = (example.visited("taac", "MountainCarContinuous-v0", 50, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(once, again)
    assert not np.array_equal(once, other)


def test_the_components_are_those_of_all_methods_together(example):
    rng = np.random.default_rng(0)
    wide = rng.normal(size=(500, 4)) * [0.1, 5.0, 0.1, 0.1]
    narrow = rng.normal(size=(500, 4)) * [0.1, 0.1, 2.0, 0.1]
    projected = example.principal_components({"wide": wide, "narrow": narrow})
    together = np.concatenate([wide, narrow])
    values, vectors = np.linalg.eigh(np.cov(together.T))
    expected = np.abs((together - together.mean(0)) @ vectors[:, np.argsort(values)[::-1][:2]])
    np.testing.assert_allclose(np.abs(np.concatenate([projected["wide"], projected["narrow"]])), expected, atol=1e-9)


def test_the_table_and_the_picture(example, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert example.main(example.Args(output=tmp_path / "out", frames=120)) == 0
    table = (tmp_path / "out" / "coverage.md").read_text()
    assert table in capsys.readouterr().out
    assert (tmp_path / "out" / "coverage.png").read_bytes().startswith(b"\x89PNG")
    states = example.shown_states("MountainCarContinuous-v0", 120, seed=0)
    low = np.min([own.min(axis=0) for own in states.values()], axis=0)
    high = np.max([own.max(axis=0) for own in states.values()], axis=0)
    for own in states.values():
        cells = np.minimum((own - low) / (high - low) * 50, 49).astype(int)
        assert f"{len(set(map(tuple, cells))) / 2500:.1%}" in table.splitlines()[2]


def test_too_few_frames_are_refused_before_anything_is_written(example, tmp_path):
    with pytest.raises(Exception, match="--frames must be at least 100, got 5"):
        example.main(example.Args(output=tmp_path / "out", frames=5))
    assert not (tmp_path / "out").exists()
