"""An optimizer's state and random generators' as named tensors and JSON, and back: what a checkpoint can hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from taac_wrappers.training.files import encode_json


def flatten_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """An optimizer's state as named tensors, and as JSON what is not a tensor (its parameter groups).

    >>> adam = torch.optim.Adam([torch.ones(2, requires_grad=True)], lr=0.1)
    >>> adam.param_groups[0]["params"][0].sum().backward()
    >>> adam.step()
    >>> tensors, meta = flatten_optimizer(adam)
    >>> sorted(tensors)
    ['optimizer.0.exp_avg', 'optimizer.0.exp_avg_sq', 'optimizer.0.step']
    >>> meta["param_groups"][0]["lr"], meta["state"]
    (0.1, {'0': ['exp_avg', 'exp_avg_sq', 'step']})
    """
    saved = optimizer.state_dict()
    tensors = {}
    for index, state in saved["state"].items():
        for key, value in state.items():
            if not isinstance(value, torch.Tensor):
                raise TypeError(f"optimizer state {key!r} must be a tensor, got {value!r}")
            tensors[f"optimizer.{index}.{key}"] = value.detach().clone()
    meta = {
        "param_groups": saved["param_groups"],
        "state": {str(index): sorted(state) for index, state in saved["state"].items()},
    }
    return tensors, json.loads(encode_json("optimizer", meta))


def restore_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor], meta: dict[str, Any]
) -> None:
    """Bring back what ``flatten_optimizer`` returned; ``tensors`` may hold others beside them.

    The optimizer then continues bit for bit. If anything does not fit it, a ValueError says what, and it is unchanged.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, torch.Tensor]] = {}
    for index, keys in meta["state"].items():
        if int(index) >= len(parameters):
            raise ValueError(f"optimizer has {len(parameters)} parameters, got a state for parameter {index}")
        state[int(index)] = {}
        for key in keys:
            full_name = f"optimizer.{index}.{key}"
            if full_name not in tensors:
                raise ValueError(f"tensors lacks {full_name!r}")
            value, expected = tensors[full_name], parameters[int(index)].shape
            if value.ndim > 0 and value.shape != expected:
                raise ValueError(f"{full_name} must have shape {tuple(expected)}, got {tuple(value.shape)}")
            state[int(index)][key] = value.clone()  # the optimizer changes it in place
    groups = [
        {key: tuple(value) if key == "betas" else value for key, value in group.items()}
        for group in meta["param_groups"]
    ]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def rng_state(**generators: np.random.Generator) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The state of torch's own random numbers (also of the GPUs in use) and of the ``generators`` given by name.

    >>> generator = np.random.default_rng(0)
    >>> tensors, meta = rng_state(replay=generator)
    >>> first = generator.random(), torch.rand(())
    >>> restore_rng(tensors, meta, replay=generator)
    >>> first == (generator.random(), torch.rand(()))
    True
    """
    tensors = {"rng.torch": torch.get_rng_state()}
    if torch.cuda.is_initialized():  # asking an unused GPU would start it
        tensors |= {f"rng.cuda.{index}": state for index, state in enumerate(torch.cuda.get_rng_state_all())}
    states = {name: generator.bit_generator.state for name, generator in generators.items()}
    return tensors, json.loads(encode_json("rng", {"numpy": states}))


def restore_rng(tensors: Mapping[str, torch.Tensor], meta: dict[str, Any], **generators: np.random.Generator) -> None:
    """Bring back what ``rng_state`` returned for the same ``generators``; ``tensors`` may hold others beside them."""
    for name in generators:
        if name not in meta["numpy"]:
            raise ValueError(f"no state was saved for the generator {name!r}")
    torch.set_rng_state(tensors["rng.torch"])
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            if (state := tensors.get(f"rng.cuda.{index}")) is not None:
                torch.cuda.set_rng_state(state, index)
    for name, generator in generators.items():
        generator.bit_generator.state = meta["numpy"][name]
