"""``AdaptiveNormalizer`` and ``RewardNormalizerWrapper`` against explicit weights and through save and load."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_envs import ToyEnv

from taac_wrappers import AdaptiveNormalizer, RewardNormalizerWrapper

ACTION = np.zeros(2, np.float32)
finite = st.floats(-1e6, 1e6)


def explicit_weights(updates: int, speed: float) -> np.ndarray:
    """Weight of the l-th of L updates: eta_l * prod_{j>l} (1 - eta_j), eta_l = speed / (l - 1 + speed)."""
    eta = [speed / (index + speed) for index in range(updates)]
    return np.array([eta[i] * math.prod(1 - later for later in eta[i + 1 :]) for i in range(updates)])


@given(
    batches=st.lists(st.lists(finite, min_size=1, max_size=4), min_size=1, max_size=12),
    speed=st.sampled_from([0.5, 1.0, 2.0, 8.0]),
)
def test_moments_are_the_explicitly_weighted_ones(batches, speed):
    normalizer = AdaptiveNormalizer(speed=speed)
    for batch in batches:
        normalizer.update(batch)
    weights = explicit_weights(len(batches), speed)
    assert weights.sum() == pytest.approx(1)
    first = float(weights @ [np.mean(batch) for batch in batches])
    second = float(weights @ [np.mean(np.square(batch)) for batch in batches])
    assert normalizer.count == len(batches)
    assert normalizer.mean == pytest.approx(first, rel=1e-9, abs=1e-6)
    assert normalizer.std**2 == pytest.approx(max(second - first**2, 0), rel=1e-6, abs=1e-12 + 1e-9 * second)


def test_weights_follow_the_power_law():
    """The l-th of L updates weighs Gamma(l+s-1)/Gamma(l) up to a constant: about (l / L) ** (speed - 1)."""
    updates, speed = 400, 8.0
    normalizer = AdaptiveNormalizer((updates,), speed=speed)
    for row in np.eye(updates):  # the mean of unit vectors is the vector of weights
        normalizer.update(row)
    index = np.arange(1, updates + 1)
    exact = np.array([math.lgamma(i + speed - 1) - math.lgamma(i) for i in index])
    exact = np.exp(exact - exact[-1])
    assert normalizer.mean == pytest.approx(exact / exact.sum(), rel=1e-9)
    recent = index > updates / 2
    law = (index / updates) ** (speed - 1)
    assert (normalizer.mean / normalizer.mean[-1])[recent] == pytest.approx(law[recent], rel=0.07)


def test_by_hand():
    normalizer = AdaptiveNormalizer(speed=8, clip=1.5)
    normalizer.update([1.0, 3.0])
    assert (normalizer.mean, normalizer.std, normalizer.count) == (2.0, 1.0, 1)
    assert [normalizer.normalize(value) for value in (2.5, 0.0, 100.0)] == pytest.approx([0.5, -1.5, 1.5])
    normalizer.update(11.0)  # eta = 8 / 9
    assert normalizer.mean == pytest.approx((2 + 8 * 11) / 9)
    assert normalizer.std == pytest.approx(math.sqrt((5 + 8 * 121) / 9 - 10**2))


def test_without_data_everything_is_clipped_but_zero():
    normalizer = AdaptiveNormalizer(clip=3)
    assert [normalizer.normalize(value) for value in (-0.1, 0.0, 0.1)] == [-3.0, 0.0, 3.0]
    assert (normalizer.mean, normalizer.std, normalizer.count) == (0.0, 0.0, 0)


def test_constant_data_normalizes_to_zero():
    normalizer = AdaptiveNormalizer()
    for _ in range(50):
        normalizer.update(-0.1)
        assert abs(normalizer.normalize(-0.1)) < 1e-3
        assert normalizer.std < 1e-6


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_variance_that_rounding_made_negative_is_zero(shape):
    normalizer = AdaptiveNormalizer(shape)
    normalizer.load_state_dict({"count": 1, "first_moment": np.full(shape, 2.0), "second_moment": np.full(shape, 3.9)})
    assert normalizer.std == 0


def test_eps_is_added_to_the_variance():
    normalizer = AdaptiveNormalizer(eps=4.0, clip=None)
    normalizer.update(0.0)
    assert normalizer.normalize(6.0) == 3.0


def test_no_clip():
    normalizer = AdaptiveNormalizer(clip=None)
    normalizer.update([-1.0, 1.0])
    assert normalizer.normalize(1e6) == pytest.approx(1e6)


@given(st.lists(st.lists(finite, min_size=3, max_size=3), min_size=1, max_size=8))
def test_arrays_equal_scalars_entry_by_entry(rows):
    together = AdaptiveNormalizer((3,))
    apart = [AdaptiveNormalizer() for _ in range(3)]
    for row in rows:
        together.update(row)
        for normalizer, value in zip(apart, row, strict=True):
            normalizer.update(value)
    assert together.mean.tolist() == [normalizer.mean for normalizer in apart]
    assert together.std.tolist() == [normalizer.std for normalizer in apart]
    expected = [normalizer.normalize(value) for normalizer, value in zip(apart, rows[0], strict=True)]
    assert together.normalize(rows[0]).tolist() == expected


def test_leading_dimensions_are_averaged():
    batch = np.random.default_rng(0).normal(size=(4, 5, 2))
    nested, flat = AdaptiveNormalizer((2,)), AdaptiveNormalizer((2,))
    nested.update(batch)
    flat.update(batch.reshape(20, 2))
    assert nested.mean == pytest.approx(flat.mean)
    assert nested.mean == pytest.approx(batch.mean(axis=(0, 1)))
    assert nested.std == pytest.approx(batch.std(axis=(0, 1)))
    assert nested.count == 1
    assert nested.normalize(batch).shape == (4, 5, 2)


@pytest.mark.parametrize("shape", [(), (2,)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_normalize_keeps_the_dtype_and_computes_in_float64(shape, dtype):
    normalizer = AdaptiveNormalizer(shape)
    normalizer.update(np.full((3, *shape), 1e4) + np.arange(3.0).reshape(3, *[1] * len(shape)))
    values = np.full((5, *shape), 10001, dtype)
    assert normalizer.normalize(values).dtype == dtype
    assert normalizer.normalize(np.ones((5, *shape), np.int64)).dtype == np.float64
    expected = (float(values.flat[0]) - 10001) / math.sqrt(2 / 3)
    assert float(normalizer.normalize(values).ravel()[0]) == pytest.approx(
        expected, rel=float(np.finfo(dtype).eps), abs=1e-9
    )
    assert np.asarray(normalizer.mean).dtype == np.float64
    assert type(AdaptiveNormalizer().normalize(0.5)) is float


def test_mean_and_state_are_copies():
    normalizer = AdaptiveNormalizer((2,))
    normalizer.update([1.0, 2.0])
    state = normalizer.state_dict()
    normalizer.mean[:] = 99
    normalizer.std[:] = 99
    for entry in ("first_moment", "second_moment"):
        state[entry][:] = 99
    assert normalizer.mean.tolist() == [1, 2]
    loaded = {"count": 1, "first_moment": np.ones(2), "second_moment": np.ones(2)}
    normalizer.load_state_dict(loaded)
    loaded["first_moment"][:] = 99
    assert normalizer.mean.tolist() == [1, 1]


@pytest.mark.parametrize("shape", [(), (3,)])
def test_save_and_load_goes_on_alike(shape):
    rng = np.random.default_rng(0)
    original, copy = AdaptiveNormalizer(shape), AdaptiveNormalizer(shape)
    for _ in range(5):
        original.update(rng.normal(size=shape))
    copy.load_state_dict(original.state_dict())
    for _ in range(5):
        value = rng.normal(size=shape)
        original.update(value)
        copy.update(value)
        assert np.array_equal(copy.normalize(value), original.normalize(value))
    assert copy.count == original.count == 10


@pytest.mark.parametrize("shape", [(), (2,)])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200, "text", None])
def test_bad_data_raises_and_changes_nothing(shape, bad):
    normalizer = AdaptiveNormalizer(shape)
    normalizer.update(np.ones(shape))
    with pytest.raises(ValueError, match="`x` must"):
        normalizer.update(np.full(shape, bad).tolist())
    assert (normalizer.count, np.max(normalizer.mean)) == (1, 1)


@pytest.mark.parametrize("bad", [np.ones(3), np.ones((2, 3)), 1.0, np.ones((0, 2))])
def test_a_wrong_shape_or_no_data_raises(bad):
    normalizer = AdaptiveNormalizer((2,))
    with pytest.raises(ValueError, match="`x` must"):
        normalizer.update(bad)
    assert normalizer.count == 0


def test_wrapper_normalizes_by_the_rewards_so_far():
    env, reference = (
        RewardNormalizerWrapper(ToyEnv(length=5), clip=1.0, speed=2.0),
        AdaptiveNormalizer(speed=2.0, clip=1.0),
    )
    env.reset(seed=0)
    for frame in list(range(1, 6)) + list(range(1, 6)):  # the statistics outlive the episode
        _, reward, terminated, _, info = env.step(ACTION)
        reference.update(float(frame))
        assert info["raw_reward"] == frame
        assert reward == reference.normalize(float(frame))
        if terminated:
            env.reset()
    assert env.normalizer.count == 10


def test_update_can_be_frozen():
    env = RewardNormalizerWrapper(ToyEnv())
    env.reset(seed=0)
    env.step(ACTION)
    env.step(ACTION)
    before = env.state_dict()
    env.update = False
    expected = env.normalizer.normalize(3.0)
    assert env.step(ACTION)[1] == expected
    assert env.state_dict() == before
    env.update = True
    env.step(ACTION)
    assert env.state_dict()["count"] == 3


def test_wrapper_saves_and_loads():
    env, other = RewardNormalizerWrapper(ToyEnv()), RewardNormalizerWrapper(ToyEnv())
    for wrapper in (env, other):
        wrapper.reset(seed=0)
    for _ in range(3):
        env.step(ACTION)
    other.load_state_dict(env.state_dict())
    env.reset(seed=0)
    assert env.step(ACTION)[1] == other.step(ACTION)[1]
    assert all(type(value) in (int, float) for value in env.state_dict().values())
