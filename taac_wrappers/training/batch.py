"""A replay sample as tensors, laid out so that each network runs once over everything that needs it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from taac_wrappers.training.replay import Windows


class Batch:
    """What one update looks at.

    ``observation`` and ``action`` ``[M]`` are the transitions that the critics are trained on. ``reward``,
    ``terminated``, ``truncated``, ``repeated`` and ``valid`` ``[N, B]`` describe the windows they were drawn with.

    ``state_observation`` and ``state_prev_action`` ``[F + M + D]`` are all states at which the policy has to decide:
    ``F`` first states of episodes, which are nobody's next state, where only the actor is trained; the ``M`` next
    states of the trained transitions, where the target looks and the actor is trained; and ``D`` states deeper in a
    window, where only the target looks. So ``acting = states[:F + M]`` and ``nodes = states[F:]`` are slices.

    ``acting_weight`` is 0 at next states where the episode was over and nobody acted, else 1: every state at which
    somebody acted counts once. ``acting_share`` is each one's part in a mean over all of them.

    ``stops`` ``[S]`` are the nodes where the behaviour did not repeat. In values of all nodes and then of all stops,
    ``[M + D + S]``, ``node_of`` and ``stop_of`` ``[N B]`` say which belong to each transition; where there is none,
    they name another one.

    Args:
        windows: a sample of the replay.
        reward: its rewards as they are to be learned from, ``[N, B]``.
        device: where the tensors go.
    """

    def __init__(self, windows: Windows, reward: np.ndarray, device: torch.device):
        def tensor(array: np.ndarray) -> Tensor:
            on_cpu = torch.from_numpy(array)
            return on_cpu if device.type == "cpu" else on_cpu.to(device)

        first, trained, nodes = windows.first.nonzero()[0], len(windows.action), len(windows.node_index)
        self.first, self.acting, self.trained, self.nodes = len(first), len(first) + trained, trained, nodes
        self.observation, self.action = tensor(windows.observation).float(), tensor(windows.action)
        self.reward = tensor(reward)
        self.terminated, self.truncated = tensor(windows.terminated), tensor(windows.truncated)
        self.repeated, self.valid = tensor(windows.repeated), tensor(windows.valid)

        def states(of_first: np.ndarray, of_nodes: np.ndarray) -> Tensor:
            return tensor(np.concatenate([of_first[first], of_nodes]) if len(first) else of_nodes)

        self.state_observation = states(windows.observation, windows.node_observation).float()
        self.state_prev_action = states(windows.prev_action, windows.node_action)
        weight = np.ones(self.acting, np.float32)
        weight[len(first) :] -= windows.node_ended[:trained]
        self.acting_weight, self.acting_share = tensor(weight), tensor(weight / np.float32(self.acting))

        # Nodes stand in the order of their transitions: counting gives their numbers.
        stop = windows.valid > windows.repeated
        self.node_of, self.stop_of = tensor(windows.valid.cumsum() - 1), tensor(stop.cumsum() + (nodes - 1))
        self.stops = tensor(stop.take(windows.node_index).nonzero()[0])
        self.trained_index = tensor(windows.node_index[:trained])

    @property
    def goes_on(self) -> Tensor:
        """``[N, B]`` Whether the next row belongs to the window too; nobody asks this of the last row."""
        return self.valid.roll(-1, 0)

    def to_rows(self, values: Tensor, number: Tensor) -> Tensor:
        """``[N, B]``: of every transition the value of this ``number``."""
        return values.index_select(0, number).view_as(self.reward)

    def of_trained(self, rows: Tensor) -> Tensor:
        """The entries of ``rows`` ``[N, B]`` that belong to the trained transitions, ``[M]``."""
        return rows.view(-1).index_select(0, self.trained_index)
