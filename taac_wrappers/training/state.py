"""Everything that decides how a run goes on, and how far it has come."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from taac_wrappers.reward_normalizer import AdaptiveNormalizer
from taac_wrappers.training.checkpoint import CheckpointStore, Loaded
from taac_wrappers.training.config import plain, typed
from taac_wrappers.training.counters import Counters
from taac_wrappers.training.faults import WatchedEnvs
from taac_wrappers.training.finite import require_finite
from taac_wrappers.training.replay import SequenceReplay
from taac_wrappers.training.snapshots import flatten_optimizer, restore_optimizer, restore_rng, rng_state
from taac_wrappers.training.structure import Structure


@dataclass
class TrainingState:
    """Everything that decides how a run goes on: saved completely, restored bit for bit on the same machine."""

    modules: dict[str, nn.Module]
    optimizer: torch.optim.Optimizer
    normalizer: AdaptiveNormalizer | None
    replay: SequenceReplay
    envs: WatchedEnvs
    rng: np.random.Generator
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Of the last update: numbers, or tensors whose averages they are."""

    def __post_init__(self) -> None:
        self.counters = self.envs.counters = Counters()

    def check_finite(self) -> None:
        """Raise NotFinite if the last update's metrics, a weight or the optimizer is nan or inf."""
        require_finite(self.averages())
        require_finite(self._weights())
        require_finite(flatten_optimizer(self.optimizer)[0])

    def averages(self) -> dict[str, float]:
        """The metrics of the last update as numbers: only now, because most updates are looked at by nobody."""
        return {name: torch.as_tensor(value).mean().item() for name, value in self.metrics.items()}

    def _weights(self) -> dict[str, torch.Tensor]:
        return {
            f"{name}.{key}": value.detach()
            for name, module in self.modules.items()
            for key, value in module.state_dict().items()
        }

    def save(self, store: CheckpointStore, extra: dict[str, Any]) -> None:
        """Write a checkpoint; ``extra`` is anything JSON-able that belongs to the run rather than to the learner.

        Raises NotFinite instead if that would replace a good checkpoint by a spoilt one.
        """
        self.check_finite()
        tensors = {key: value.cpu().contiguous() for key, value in self._weights().items()}
        optimizer_tensors, optimizer_meta = flatten_optimizer(self.optimizer)
        rng_tensors, rng_meta = rng_state(replay=self.replay.rng, act=self.rng)
        episodes = self.envs.episode_states()
        arrays = {
            f"env.{index}.{key}": episode.pop(key)
            for index, episode in enumerate(episodes)
            if episode is not None
            for key in ("actions", "observation")
        }
        meta = {
            "counters": dataclasses.asdict(self.counters),
            "metrics": [[name, value] for name, value in self.averages().items()],  # pairs keep their order
            "optimizer": optimizer_meta,
            "rng": rng_meta,
            "normalizer": None if self.normalizer is None else plain(self.normalizer.state_dict()),
            "episodes": episodes,
            "extra": extra,
        }
        store.save(self.counters.frames, tensors | optimizer_tensors | rng_tensors, arrays, meta, self.replay)

    def restore(self, loaded: Loaded) -> Structure:
        """Bring everything back; returns the current observations."""
        for name, module in self.modules.items():
            prefix = f"{name}."
            tensors = {
                key.removeprefix(prefix): value for key, value in loaded.tensors.items() if key.startswith(prefix)
            }
            try:
                module.load_state_dict(tensors)
            except RuntimeError as error:
                raise ValueError(f"{loaded.path} does not fit this run: {error}") from error
            for key, value in module.state_dict().items():
                if tensors[key].dtype != value.dtype:
                    raise ValueError(f"{loaded.path} does not fit this run: {prefix}{key} is {tensors[key].dtype}")
        restore_optimizer(self.optimizer, loaded.tensors, loaded.meta["optimizer"])
        if self.normalizer is not None:
            self.normalizer.load_state_dict(loaded.meta["normalizer"])
        self.replay.load_chunks(loaded.chunks)
        self.counters = self.envs.counters = typed(Counters, loaded.meta["counters"], str(loaded.path))
        self.metrics = {str(name): float(value) for name, value in loaded.meta["metrics"]}
        episodes = [
            episode and episode | {key: loaded.arrays[f"env.{index}.{key}"] for key in ("actions", "observation")}
            for index, episode in enumerate(loaded.meta["episodes"])
        ]
        observation, exact = self.envs.restore(episodes)
        if (broken := ~exact).any():  # a new episode has begun there
            self.replay.interrupt(broken)
            self.replay.start(observation, broken)
        restore_rng(loaded.tensors, loaded.meta["rng"], replay=self.replay.rng, act=self.rng)
        return observation
