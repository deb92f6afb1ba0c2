"""A replay sample as tensors: transitions to be trained on, and the windows that their targets look into."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from taac_wrappers.training.replay import Windows
from taac_wrappers.training.structure import Structure, mapped


class Batch:
    """What one update looks at.

    ``observation`` and ``action`` ``[M]`` are those of the transitions that are trained on. ``reward``, ``discount``,
    ``terminated``, ``truncated``, ``repeated`` and ``valid`` ``[N, B]`` describe the windows they were drawn with, and
    ``next_observation`` ``[K]`` the next states of all transitions that these hold, those of the first row first (or
    of the last transition of each alone). ``next_action`` ``[K]`` is what was recorded there, if anything was. With
    windows of one transition, ``M``, ``K`` and ``B`` are the same.

    Args:
        windows: a sample of the replay.
        reward: its rewards as they are to be learned from, ``[N, B]``.
        device: where the tensors go.
    """

    def __init__(self, windows: Windows, reward: np.ndarray, device: torch.device):
        def tensor(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array).to(device)

        def observation(structure: Structure) -> Structure:
            return mapped(lambda array: tensor(array).float(), structure)

        self.observation, self.action = observation(windows.observation), mapped(tensor, windows.action)
        self.next_observation = observation(windows.next_observation)
        self.next_action = mapped(tensor, windows.next_action)
        self.reward, self.discount = tensor(reward), tensor(windows.discount)
        self.terminated, self.truncated = tensor(windows.terminated), tensor(windows.truncated)
        self.repeated, self.valid = tensor(windows.repeated), tensor(windows.valid)
        self._next_of = tensor(windows.next_of).view(-1)
        self._trained = tensor(windows.trained)

    def to_rows(self, values: Tensor) -> Tensor:
        """``[N, B]``: of every transition the value at its next state (or its window's last), of ``values`` ``[K]``.

        A row beyond a window's end gets a value of another one: no operator looks at it.
        """
        return values.index_select(0, self._next_of).view_as(self.reward)

    def of_trained(self, rows: Tensor) -> Tensor:
        """The entries of ``rows`` ``[N, B]`` that belong to the trained transitions, ``[M]``."""
        return rows.view(-1).index_select(0, self._trained)

    @property
    def window_ends(self) -> Tensor:
        """``[N, B]`` Whether nothing is recorded after a transition: the last row, or the window ends before it."""
        ends = torch.ones_like(self.valid)
        ends[:-1] = ~self.valid[1:]
        return ends
