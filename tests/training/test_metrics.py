"""Metrics against values computed by hand and slow references."""

import math
from statistics import fmean

import numpy as np
import pytest

from taac_wrappers.training.metrics import afr, apr, bootstrap_ci, iqm, n_auc, n_score, repetition_percentage


def test_n_score_puts_random_at_zero_and_best_at_one():
    assert n_score(-200.0, random=-200.0, best=100.0) == 0.0
    assert n_score(100.0, random=-200.0, best=100.0) == 1.0
    np.testing.assert_allclose(n_score([[-50.0], [250.0]], random=-200.0, best=100.0), [[0.5], [1.5]])


@pytest.mark.parametrize(("random", "best"), [(1.0, 1.0), (math.nan, 1.0), (0.0, math.inf)])
def test_n_score_refuses_a_scale_without_length(random, best):
    with pytest.raises(ValueError, match=f"got random={random}, best={best}"):
        n_score(0.5, random, best)


def test_n_auc_is_the_mean_over_the_curve():
    assert n_auc([0.0, 0.2, 1.0]) == pytest.approx(0.4)
    np.testing.assert_allclose(n_auc([[0.0, 1.0], [1.0, 3.0]]), [0.5, 2.0])


@pytest.mark.parametrize("size", range(1, 14))
def test_iqm_is_the_mean_without_the_outer_quarters(size):
    scores = np.random.default_rng(size).normal(size=size).tolist()
    kept = sorted(scores)
    for _ in range(int(0.25 * size)):
        kept = kept[1:-1]
    assert iqm(scores) == pytest.approx(fmean(kept))


def test_iqm_pools_runs_and_tasks():
    assert iqm([[9.0, 1.0], [2.0, -50.0]]) == 1.5
    # scipy.stats.trim_mean(range(1, 11), 0.25) is the mean of 3 .. 8
    assert iqm(range(1, 11)) == 5.5


def test_bootstrap_percentiles_of_two_runs():
    # Two draws of {0, 1}: the mean is 0, 1/2, 1 with probability 1/4, 1/2, 1/4.
    scores = [[0.0], [1.0]]
    assert bootstrap_ci(scores, np.mean, confidence=0.4) == (0.5, 0.5)
    assert bootstrap_ci(scores, np.mean, confidence=0.6) == (0.0, 1.0)


def test_bootstrap_is_stratified_over_tasks():
    # Runs agree within each task, so that drawing within tasks changes nothing; drawing over the pool would.
    assert bootstrap_ci([[0.0, 1.0, 5.0]] * 3, np.mean) == (2.0, 2.0)


def test_bootstrap_draws_each_task_on_its_own():
    # With whole runs drawn, both columns would always move together and the difference of the tasks would stay 0.
    low, high = bootstrap_ci([[0.0, 0.0], [1.0, 1.0]], lambda scores: float(np.ptp(scores.mean(axis=0))))
    assert (low, high) == (0.0, 1.0)


def test_bootstrap_repeats_with_its_seed():
    scores = np.random.default_rng(0).normal(size=(5, 4))
    first = bootstrap_ci(scores, resamples=200, seed=3)
    assert first == bootstrap_ci(scores, resamples=200, seed=3)
    assert first != bootstrap_ci(scores, resamples=200, seed=4)
    assert first[0] < iqm(scores) < first[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": [1.0, 2.0]}, r"scores must have shape \[runs, tasks\], got \(2,\)"),
        ({"confidence": 1.0}, "confidence must be between 0 and 1, got 1.0"),
        ({"resamples": 0}, "resamples must be at least 1, got 0"),
    ],
)
def test_bootstrap_refuses_bad_input(change, message):
    with pytest.raises(ValueError, match=message):
        bootstrap_ci(**{"scores": [[1.0], [2.0]], **change})


def test_repetition_counts_zeros_of_the_switch():
    assert repetition_percentage(np.array([[True, False], [False, False]])) == 75.0


def test_apr_is_frames_per_action():
    assert apr(0.0) == 1.0
    assert apr(0.9) == pytest.approx(10.0)
    assert apr(1.0) == math.inf
    with pytest.raises(ValueError, match=r"repeat_fraction must be between 0 and 1, got 1\.1"):
        apr(1.1)


def test_afr_is_the_mean_absolute_change():
    # Changes |1 - -1| = 2 and 0, then 0 and 1: four entries.
    assert afr([[-1.0, 0.5], [1.0, 0.5], [1.0, -0.5]]) == 0.75
    assert afr([[0.3, 0.4]]) == 0.0
    with pytest.raises(ValueError, match=r"actions must have shape \[frames, dimensions\], got \(3,\)"):
        afr([1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda values: n_score(values, 0.0, 1.0), "score"),
        (n_auc, "curve"),
        (iqm, "scores"),
        (bootstrap_ci, "scores"),
        (repetition_percentage, "switch"),
        (afr, "actions"),
    ],
)
def test_empty_and_not_finite_input_is_refused(function, name):
    with pytest.raises(ValueError, match=rf"{name} must not be empty, got shape \(0, 2\)"):
        function(np.empty((0, 2)))
    with pytest.raises(ValueError, match=rf"{name} must be finite, got .*nan"):
        function([[1.0, math.nan]])
