"""Temporal-difference operators and entropy targets of the TAAC paper, as plain functions of tensors.

Everything is time-major, ``[N, B]``: row ``k`` is transition ``k`` of a window, ``s_k, a_k, r_k, s_{k+1}``; column
``b`` is one window. Values named ``q_repeat``, ``q_new``, ``beta`` or ``next_value`` in row ``k`` belong to the
*next* state ``s_{k+1}`` of that transition.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

TDMode = Literal["expected", "sampled", "alf"]
TD_MODES: tuple[TDMode, ...] = ("expected", "sampled", "alf")


def switch_probability(
    q_repeat: Tensor, q_new: Tensor, temperature: Tensor | float, min_advantage: float | None = None
) -> Tensor:
    """Probability of acting anew, beta*_1 of the paper: ``sigmoid((Q(s, a_hat) - Q(s, a_prev)) / temperature)``.

    Args:
        q_repeat: ``Q(s, a_prev)``, the value of repeating the previous action, any shape.
        q_new: ``Q(s, a_hat)``, the value of the newly sampled action, same shape.
        temperature: the switch temperature alpha', positive.
        min_advantage: clip ``q_new - q_repeat`` from below (the paper uses 0 in Locomotion, so that beta_1 >= 1/2).

    >>> switch_probability(torch.tensor([0.0, 2.0]), torch.tensor([0.0, 0.0]), 1.0)
    tensor([0.5000, 0.1192])
    >>> switch_probability(torch.tensor([0.0, 2.0]), torch.tensor([0.0, 0.0]), 1.0, min_advantage=0.0)
    tensor([0.5000, 0.5000])
    """
    if q_new.shape != q_repeat.shape:
        raise ValueError(f"q_new must have q_repeat's shape {tuple(q_repeat.shape)}, got {tuple(q_new.shape)}")
    if not isinstance(temperature, Tensor) and not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature!r}")
    advantage = q_new - q_repeat
    if min_advantage is not None:
        advantage = advantage.clamp(min=min_advantage)
    return torch.sigmoid(advantage / temperature)


def binary_entropy(probability: Tensor) -> Tensor:
    """Entropy of a coin in nats, exact also at 0 and 1: H(beta) of the temperature loss (Eq. 8)."""
    return torch.special.entr(probability) + torch.special.entr(1 - probability)


def compare_through(
    reward: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    repeated: Tensor,
    beta: Tensor,
    q_repeat: Tensor,
    q_new: Tensor,
    gamma: float | Tensor,
    mode: TDMode = "expected",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Multi-step targets that follow the recorded actions for as long as both policies repeat (paper, Section 4.2).

    At ``s_{k+1}`` the current policy acts anew with probability ``beta`` and is worth ``q_new`` there; otherwise it
    repeats ``a_k``. If the recorded behaviour repeated ``a_k`` too, the recorded future *is* the policy's own future
    and the target goes on to the next row; if not, repeating is worth ``q_repeat``.

    Args:
        reward, terminated, truncated: of each transition, ``[N, B]``.
        repeated: whether the recorded behaviour repeated at ``s_{k+1}``; ignored in the last row and where the
            episode ended.
        beta: probability of acting anew at ``s_{k+1}`` under the current policy (:func:`switch_probability`).
        q_repeat: ``Q(s_{k+1}, a_k)``.
        q_new: ``Q(s_{k+1}, a_hat)``.
        gamma: discount per frame, or of each transition, ``[N, B]``.
        mode: ``"expected"`` takes the exact mean over the policy's own coin b~: unbiased, with the lowest variance.
            ``"sampled"`` draws b~ (the paper's point estimate, Eq. 4): unbiased. ``"alf"`` draws b~ and bootstraps
            with the mixture of both values at every stop, as the authors' code does: biased by
            ``beta_0 beta_1 (q_repeat - q_new)`` wherever the behaviour repeated.
        generator: source of b~; the global one if not given.

    Returns:
        Targets ``y`` of every transition, ``[N, B]``; row 0 is the target of the window's start.

    Two transitions of reward 1; the behaviour repeated between them, and the policy repeats with probability 3/4. The
    last target is ``1 + (0.25 * 4 + 0.75 * 8) / 2 = 4.5``, the first one ``1 + (0.25 * 4 + 0.75 * 4.5) / 2 = 3.1875``:

    >>> def column(*values): return torch.tensor(values).reshape(-1, 1)
    >>> ended = column(False, False)
    >>> values = dict(beta=column(0.25, 0.25), q_repeat=column(8.0, 8.0), q_new=column(4.0, 4.0))
    >>> compare_through(column(1.0, 1.0), ended, ended, column(True, False), **values, gamma=0.5).flatten()
    tensor([3.1875, 4.5000])
    """
    flags = {"terminated": terminated, "truncated": truncated, "repeated": repeated}
    _check_rows(reward, flags, beta=beta, q_repeat=q_repeat, q_new=q_new)
    if mode not in TD_MODES:
        raise ValueError(f"mode must be one of {', '.join(TD_MODES)}, got {mode!r}")
    discount = gamma * (~terminated).to(reward.dtype)
    weight_new = beta  # probability, or the drawn coin itself, of leaving the recorded future
    value_new, value_stop = q_new, q_repeat
    if mode != "expected":
        weight_new = torch.bernoulli(beta, generator=generator)
    if mode == "alf":
        value_new = value_stop = beta * q_new + (1 - beta) * q_repeat

    weight_new = discount * weight_new
    leave, weight_keep = torch.addcmul(reward, weight_new, value_new), discount - weight_new
    go_on = repeated & ~(terminated | truncated)
    rows = zip(*(values.unbind() for values in (leave, weight_keep, value_stop, go_on)), strict=True)
    targets: list[Tensor] = []
    for leave_k, weight_keep_k, keep, go_on_k in reversed(list(rows)):
        if targets:
            keep = torch.where(go_on_k, targets[-1], keep)
        targets.append(torch.addcmul(leave_k, weight_keep_k, keep))
    return torch.stack(targets[::-1])


def n_step(reward: Tensor, terminated: Tensor, truncated: Tensor, next_value: Tensor, gamma: float | Tensor) -> Tensor:
    """Uncorrected N-step targets: follow the recorded rewards to the window's or the episode's end, then bootstrap.

    Args:
        reward, terminated, truncated: of each transition, ``[N, B]``.
        next_value: ``V(s_{k+1})``; used in the last row and where the episode was truncated.
        gamma: discount per frame, or of each transition, ``[N, B]``.

    >>> one, no = torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.bool)
    >>> n_step(one, no, no, 4 * one, gamma=0.5).flatten()
    tensor([2.5000, 3.0000])
    """
    _check_rows(reward, {"terminated": terminated, "truncated": truncated}, next_value=next_value)
    ended = terminated | truncated
    discount = gamma * (~terminated).to(reward.dtype)
    target = torch.empty_like(reward)
    last = len(reward) - 1
    for k in range(last, -1, -1):
        future = next_value[k] if k == last else torch.where(ended[k], next_value[k], target[k + 1])
        target[k] = reward[k] + discount[k] * future
    return target


def retrace(
    reward: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    q: Tensor,
    next_value: Tensor,
    next_trace: Tensor,
    gamma: float | Tensor,
) -> Tensor:
    """Multi-step targets that follow the recorded actions as far as the current policy would take them too.

    Retrace (Munos et al., 2016): the target of a transition is corrected by the surprise ``y_{k+1} - Q(s_{k+1},
    a_{k+1})`` of the next recorded one, weighted by a trace ``c_{k+1}`` in [0, 1] that says how likely the policy
    chooses that action, compared with the behaviour: ``lambda * min(1, pi(a_{k+1} | s_{k+1}) / mu(a_{k+1} |
    s_{k+1}))``.

    Args:
        reward, terminated, truncated: of each transition, ``[N, B]``.
        q: ``Q(s_k, a_k)`` of the recorded action. That of the first row does not matter: it cancels.
        next_value: ``V(s_{k+1})`` under the current policy.
        next_trace: ``c_{k+1}``; ignored in the last row and where the episode ended.
        gamma: discount per frame, or of each transition, ``[N, B]``.

    Two transitions of reward 1, and half a trace between them: the last target is ``1 + 4 / 2 = 3``, the first one
    ``1 + (4 + (3 - 2) / 2) / 2 = 3.25``.

    >>> one, no = torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.bool)
    >>> retrace(one, no, no, q=2 * one, next_value=4 * one, next_trace=0.5 * one, gamma=0.5).flatten()
    tensor([3.2500, 3.0000])
    """
    flags = {"terminated": terminated, "truncated": truncated}
    _check_rows(reward, flags, q=q, next_value=next_value, next_trace=next_trace)
    ended = terminated | truncated
    discount = gamma * (~terminated).to(reward.dtype)
    target = [reward[-1] + discount[-1] * next_value[-1]]
    for k in range(len(reward) - 2, -1, -1):
        surprise = torch.where(ended[k], 0.0, next_trace[k] * (target[0] - q[k + 1]))
        target.insert(0, reward[k] + discount[k] * (next_value[k] + surprise))
    return torch.stack(target)


def _check_rows(reward: Tensor, flags: dict[str, Tensor], **values: Tensor) -> None:
    if reward.ndim != 2 or len(reward) < 1:
        raise ValueError(f"reward must have shape [N, B] with N >= 1, got {tuple(reward.shape)}")
    shape = reward.shape
    for name, tensor in (flags | values).items():
        if tensor.shape != shape:
            raise ValueError(f"{name} must have reward's shape {tuple(shape)}, got {tuple(tensor.shape)}")
    for name, flag in flags.items():
        if flag.dtype != torch.bool:  # ~ of an integer is another integer, and no error
            raise TypeError(f"{name} must be a bool tensor, got {flag.dtype}")


def continuous_entropy_target(low, high, delta: float) -> float:
    """Entropy of a uniform density on the fraction ``delta`` of each dimension's range (paper, Eq. 14).

    >>> round(continuous_entropy_target([-1.0, -1.0], [1.0, 1.0], 0.184), 3)  # the usual -1 per dimension
    -1.999
    """
    if not 0 < delta <= 1:
        raise ValueError(f"delta must be in (0, 1], got {delta!r}")
    widths = [float(h) - float(lo) for lo, h in zip(low, high, strict=True)]
    if not all(0 < width < math.inf for width in widths):
        raise ValueError(f"every dimension must have finite bounds with high > low, got low={low!r}, high={high!r}")
    return sum(math.log(delta) + math.log(width) for width in widths)


def discrete_entropy_target(n: int, delta: float) -> float:
    """Entropy of a choice among ``n`` that leaves ``delta`` to all but its favourite (paper, Eq. 15).

    >>> round(discrete_entropy_target(2, 0.05), 4)
    0.1985
    """
    if n < 2:
        raise ValueError(f"n must be at least 2, got {n!r}")
    if not 0 < delta < 1:
        raise ValueError(f"delta must be in (0, 1), got {delta!r}")
    return -delta * math.log(delta / (n - 1)) - (1 - delta) * math.log(1 - delta)
