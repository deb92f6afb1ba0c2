"""A replay sample as tensors, laid out so that each network runs once over everything that needs it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from taac_wrappers.training.replay import Windows


class Batch:
    """What one update looks at.

    ``observation`` and ``action`` ``[M]`` are the transitions that the critics are trained on. ``reward``,
    ``terminated``, ``truncated``, ``repeated`` and ``goes_on`` ``[N, B]`` describe the windows they were drawn with.

    ``state_observation`` and ``state_prev_action`` ``[D + M + F]`` are all states at which the policy has to decide:
    ``D`` states deeper in a window, where only the target looks; the ``M`` next states of the trained transitions,
    where the target looks and the actor is trained; and ``F`` first states of episodes, which are nobody's next state,
    where only the actor is trained. So ``nodes = states[:D + M]`` and ``acting = states[D:]`` are slices.

    ``acting_weight`` is 0 at next states where the episode was over and nobody acted, else 1: every state at which
    somebody acted counts once.

    Args:
        windows: a sample of the replay.
        reward: its rewards as they are to be learned from, ``[N, B]``.
        device: where the tensors go.
    """

    def __init__(self, windows: Windows, reward: np.ndarray, device: torch.device):
        def tensor(array: np.ndarray) -> Tensor:
            on_cpu = torch.from_numpy(array)
            return on_cpu if device.type == "cpu" else on_cpu.to(device)

        trained, first = len(windows.action), np.flatnonzero(windows.first)

        def deeper_first(nodes: np.ndarray, *more: np.ndarray) -> np.ndarray:
            return np.concatenate([nodes[trained:], nodes[:trained], *more])

        node_index = deeper_first(windows.node_index)
        self.trained, self.deeper, self.nodes = trained, len(node_index) - trained, len(node_index)
        self.observation, self.action = tensor(windows.observation).float(), tensor(windows.action)
        self.reward = tensor(reward)
        self.terminated, self.truncated = tensor(windows.terminated), tensor(windows.truncated)
        self.repeated = tensor(windows.repeated)
        self.goes_on = tensor(np.concatenate([windows.valid[1:], windows.valid[:1]]))  # row k + 1 belongs to the window
        self.node_index, self.trained_index = tensor(node_index), tensor(node_index[self.deeper :])
        self.stop_nodes = tensor(np.flatnonzero(~windows.repeated.reshape(-1)[node_index]))
        self.state_observation = tensor(deeper_first(windows.node_observation, windows.observation[first])).float()
        self.state_prev_action = tensor(deeper_first(windows.node_action, windows.prev_action[first]))
        weight = np.concatenate([~windows.node_ended[:trained], np.ones(len(first), bool)])
        self.acting_weight = tensor(weight.astype(np.float32))

    @property
    def acting_observation(self) -> Tensor:
        """``[M + F, d]``"""
        return self.state_observation[self.deeper :]

    def to_rows(self, values: Tensor) -> Tensor:
        """Spread values per node, ``[k, D + M]``, over ``[k, N, B]``; zero where a window has no transition."""
        rows = values.new_zeros(len(values), self.reward.numel())
        return rows.index_copy_(1, self.node_index, values).view(len(values), *self.reward.shape)

    def of_trained(self, rows: Tensor) -> Tensor:
        """The entries of ``rows`` ``[N, B]`` that belong to the trained transitions, ``[M]``."""
        return rows.view(-1).index_select(0, self.trained_index)
