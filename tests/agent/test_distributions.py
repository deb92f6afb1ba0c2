"""The squashed Gaussian against torch's own transformed distribution, and where tanh saturates."""

from __future__ import annotations

import math

import pytest
import torch
from torch import distributions as td

from taac_wrappers.agent.distributions import SquashedGaussian

CENTER, SCALE = torch.tensor([0.5, -1.0], dtype=torch.float64), torch.tensor([1.5, 0.25], dtype=torch.float64)


def gaussian(batch: int = 64, seed: int = 0) -> SquashedGaussian:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(batch, 2, generator=generator, dtype=torch.float64)
    log_std = torch.randn(batch, 2, generator=generator, dtype=torch.float64).clamp(max=0.5)
    return SquashedGaussian(mean, log_std, CENTER, SCALE)


@pytest.fixture
def force_noise(monkeypatch):
    """Decide the noise that samples are made of."""
    return lambda noise: monkeypatch.setattr(torch, "randn_like", lambda like: noise.to(like))


def torchs_log_prob(ours: SquashedGaussian, action: torch.Tensor) -> torch.Tensor:
    transforms = [td.TanhTransform(), td.AffineTransform(ours.center, ours.scale)]
    return td.TransformedDistribution(td.Normal(ours.mean, ours.log_std.exp()), transforms).log_prob(action).sum(-1)


def test_log_prob_equals_torchs_change_of_variables():
    ours = gaussian()
    torch.manual_seed(1)
    action, log_prob = ours.sample_with_log_prob()
    assert action.shape == (64, 2)
    assert log_prob.shape == (64,)
    torch.testing.assert_close(log_prob, torchs_log_prob(ours, action), rtol=0, atol=1e-6)


def test_samples_are_squashed_normal_noise(force_noise):
    ours = gaussian()
    noise = torch.randn(64, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    force_noise(noise)
    by_hand = CENTER + SCALE * torch.tanh(ours.mean + ours.log_std.exp() * noise)
    torch.testing.assert_close(ours.sample(), by_hand, rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.sample_with_log_prob()[0], by_hand, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("mean", "std", "center", "scale"), [(0.0, 1.0, 0.0, 1.0), (0.7, 0.4, 2.0, 3.0)])
def test_the_density_integrates_to_one_over_the_bounds(force_noise, mean, std, center, scale):
    noise = torch.linspace(-9, 9, 20_001, dtype=torch.float64).unsqueeze(-1)
    force_noise(noise)
    ours = SquashedGaussian(
        torch.full_like(noise, mean),
        torch.full_like(noise, math.log(std)),
        torch.tensor([center], dtype=torch.float64),
        torch.tensor([scale], dtype=torch.float64),
    )
    action, log_prob = ours.sample_with_log_prob()
    assert action.min() >= center - scale
    assert action.max() <= center + scale
    assert torch.trapezoid(log_prob.exp(), action.squeeze(-1)).item() == pytest.approx(1.0, abs=1e-5)


def test_the_mode_is_the_squashed_mean():
    ours = gaussian()
    torch.testing.assert_close(ours.mode(), CENTER + SCALE * torch.tanh(ours.mean), rtol=0, atol=1e-12)


@pytest.mark.parametrize("mean", [-1e4, -30.0, 30.0, 1e4])
@pytest.mark.parametrize("log_std", [-20.0, 2.0])
def test_saturated_actions_have_finite_densities_and_gradients(mean, log_std):
    means = torch.full((8, 2), mean, requires_grad=True)
    log_stds = torch.full((8, 2), log_std, requires_grad=True)
    torch.manual_seed(0)
    action, log_prob = SquashedGaussian(means, log_stds, CENTER.float(), SCALE.float()).sample_with_log_prob()
    assert torch.isfinite(log_prob).all()
    (log_prob.sum() + action.sum()).backward()
    assert torch.isfinite(means.grad).all()
    assert torch.isfinite(log_stds.grad).all()


def test_gradients_reach_mean_and_log_std_and_are_right():
    ours = gaussian(batch=3)
    mean, log_std = ours.mean.requires_grad_(), ours.log_std.requires_grad_()

    def sample(mean, log_std):
        torch.manual_seed(3)
        return SquashedGaussian(mean, log_std, CENTER, SCALE).sample_with_log_prob()

    assert torch.autograd.gradcheck(sample, (mean, log_std))
    action, log_prob = sample(mean, log_std)
    for output in (action, log_prob):
        for gradient in torch.autograd.grad(output.sum(), (mean, log_std), retain_graph=True):
            assert (gradient != 0).all()


def test_samples_have_the_moments_they_should():
    wide = SquashedGaussian(torch.full((100_000, 1), 0.3), torch.zeros(100_000, 1), torch.zeros(1), torch.ones(1))
    torch.manual_seed(4)
    raw = torch.atanh(wide.sample().double().clamp(-1 + 1e-12, 1 - 1e-12))
    assert raw.mean().item() == pytest.approx(0.3, abs=0.02)
    assert raw.std().item() == pytest.approx(1.0, abs=0.02)


# --- The density of given actions ------------------------------------------------------------------------------------


def test_a_given_sample_has_the_density_it_was_drawn_with():
    ours = gaussian()
    torch.manual_seed(1)
    action, log_prob = ours.sample_with_log_prob()
    given = ours.log_prob(action)
    assert given.shape == (64,)
    torch.testing.assert_close(given, log_prob, rtol=0, atol=1e-6)


def test_any_given_action_has_torchs_density():
    ours = gaussian()
    fraction = torch.rand(64, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    action = CENTER + SCALE * (2 * fraction - 1)
    torch.testing.assert_close(ours.log_prob(action), torchs_log_prob(ours, action), rtol=0, atol=1e-8)


@pytest.mark.parametrize(("mean", "std", "center", "scale"), [(0.0, 1.0, 0.0, 1.0), (0.7, 0.4, 2.0, 3.0)])
def test_the_density_of_all_actions_integrates_to_one(mean, std, center, scale):
    parts = 100_000
    middles = center + scale * (2 * (torch.arange(parts, dtype=torch.float64) + 0.5) / parts - 1)
    bounds = torch.tensor([[center], [scale]], dtype=torch.float64)
    ours = SquashedGaussian(
        torch.full((parts, 1), mean, dtype=torch.float64), torch.full((parts, 1), math.log(std)).double(), *bounds
    )
    density = ours.log_prob(middles.unsqueeze(-1)).exp()
    assert (density * 2 * scale / parts).sum().item() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("mean", [-1e4, -3.0, 0.0, 30.0])
@pytest.mark.parametrize("log_std", [-20.0, 2.0])
@pytest.mark.parametrize("side", [-1, 1])
def test_the_bounds_have_finite_densities_and_gradients(mean, log_std, side):
    means = torch.full((8, 2), mean, requires_grad=True)
    log_stds = torch.full((8, 2), log_std, requires_grad=True)
    log_prob = SquashedGaussian(means, log_stds, CENTER.float(), SCALE.float()).log_prob(
        (CENTER + side * SCALE).float().expand(8, 2)
    )
    assert torch.isfinite(log_prob).all()
    log_prob.sum().backward()
    assert torch.isfinite(means.grad).all()
    assert torch.isfinite(log_stds.grad).all()


@pytest.mark.parametrize("side", [-1, 1])
def test_the_ratio_of_two_densities_of_a_saturated_action_is_that_of_the_gaussians(side):
    """The slope of tanh, which is lost there, is the same for both."""
    mean = torch.tensor([[2.0, 1.0], [3.0, 4.0]]) * side
    log_std = torch.tensor([[0.0, -0.5], [0.3, 0.2]])
    action = torch.full((2, 2), float(side))
    policies = [SquashedGaussian(mean + shift, log_std, torch.zeros(2), torch.ones(2)) for shift in (0.0, 0.5)]
    log_ratio = policies[1].log_prob(action) - policies[0].log_prob(action)
    raw = torch.atanh(action.double() * (1 - 2**-24))  # of the float32 nearest to the bound
    normals = [td.Normal(policy.mean.double(), policy.log_std.double().exp()).log_prob(raw) for policy in policies]
    torch.testing.assert_close(log_ratio.double(), (normals[1] - normals[0]).sum(-1), rtol=1e-5, atol=1e-4)
    assert (policies[0].log_prob(action) - policies[0].log_prob(action.clone()) == 0).all()


def test_ratios_of_densities_have_a_mean_of_one_although_actions_saturate():
    """As importance weights must: what one policy does not do is done by the other."""
    shape = (200_000, 1)
    behaviour = SquashedGaussian(torch.full(shape, 3.0), torch.zeros(shape), torch.zeros(1), torch.ones(1))
    policy = SquashedGaussian(torch.full(shape, 3.4), torch.zeros(shape), torch.zeros(1), torch.ones(1))
    torch.manual_seed(6)
    action = behaviour.sample()
    assert (action > 0.9999).float().mean() > 0.01
    ratio = (policy.log_prob(action) - behaviour.log_prob(action)).exp()
    assert ratio.mean().item() == pytest.approx(1.0, abs=0.005)
    assert ratio.std().item() > 0.3
