"""The squashed Gaussian: a diagonal normal, through tanh, stretched to the action bounds."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

_LOG_2 = math.log(2.0)
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class SquashedGaussian:
    """``a = center + scale * tanh(z)`` with ``z ~ Normal(mean, exp(log_std))``, every dimension on its own.

    Args:
        mean, log_std: of the Gaussian before squashing, ``[B, A]``.
        center, scale: middle and half width of the action bounds, ``[A]``.

    >>> still = torch.zeros(1, 2)
    >>> SquashedGaussian(still, still, center=torch.tensor([0.0, 1.0]), scale=torch.tensor([1.0, 0.5])).mode()
    tensor([[0., 1.]])
    """

    def __init__(self, mean: Tensor, log_std: Tensor, center: Tensor, scale: Tensor):
        self.mean, self.log_std, self.center, self.scale = mean, log_std, center, scale

    def mode(self) -> Tensor:
        """The squashed mean, which the paper takes for the mode (its Appendix C), ``[B, A]``."""
        return self._squash(self.mean)

    def sample(self) -> Tensor:
        """A reparameterized sample, ``[B, A]``."""
        return self._squash(self._raw_sample()[0])

    def sample_with_log_prob(self) -> tuple[Tensor, Tensor]:
        """A reparameterized sample ``[B, A]`` and its log density ``[B]``, both differentiable.

        The density is computed from the raw sample: inverting a saturated tanh would lose it.
        """
        raw, noise = self._raw_sample()
        return self._squash(raw), log_density(raw, noise, self.log_std, density_constant(self.scale))

    def log_prob(self, action: Tensor) -> Tensor:
        """Log density ``[B]`` of given actions ``[B, A]``, such as recorded ones.

        tanh is inverted for it, which is inexact where it saturates, but in the same way for every distribution: a
        ratio of two densities of one action stays right.
        """
        nearest_to_one = 1 - 6e-8  # in float32
        raw = torch.atanh(((action - self.center) / self.scale).clamp(-nearest_to_one, nearest_to_one))
        noise = (raw - self.mean) * (-self.log_std).exp()
        return log_density(raw, noise, self.log_std, density_constant(self.scale))

    def _raw_sample(self) -> tuple[Tensor, Tensor]:
        noise = torch.randn_like(self.mean)
        return torch.addcmul(self.mean, self.log_std.exp(), noise), noise

    def _squash(self, raw: Tensor) -> Tensor:
        return torch.addcmul(self.center, self.scale, torch.tanh(raw))


def log_density(raw: Tensor, noise: Tensor, log_std: Tensor, constant: Tensor | float) -> Tensor:
    """Of the action that ``raw = mean + exp(log_std) * noise`` becomes, ``[B]``: the noise's over all slopes.

    ``constant`` is what :func:`density_constant` knows before anything is sampled.
    """
    # The slope of tanh, 1 - tanh(raw)^2, is 4 exp(-2 fall): exact also where tanh saturates.
    fall = raw + softplus(-2.0 * raw)
    spread = torch.addcmul(log_std, noise, noise, value=0.5)
    return -constant - torch.sub(spread, fall, alpha=2).sum(-1)


def density_constant(scale: Tensor) -> Tensor:
    """The part of :func:`log_density` that is the same for all actions, ``[]``."""
    return (scale.log() + (_HALF_LOG_2PI + 2.0 * _LOG_2)).sum()
