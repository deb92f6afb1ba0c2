"""One safetensors file holds an agent whole: its weights, its spaces, and the arguments it was made with.

Files of version 0.1 load too. Their observation is one Box, and their matrices lie the other way round.
"""

from __future__ import annotations

import json
import math
import os
import reprlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from gymnasium import spaces
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

if TYPE_CHECKING:
    from taac_wrappers.agent.base import ActorCriticAgent

A = TypeVar("A", bound="ActorCriticAgent")

VERSION = "3"
VERSION_OF_0_1 = "2"


def write_agent(agent: ActorCriticAgent, path: str | os.PathLike) -> None:
    """Write an agent, all or nothing; equal agents give equal bytes."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in agent.state_dict().items()}
    for name, box in {**_boxes("observation", agent.observation_space), "action": agent.action_box}.items():
        # Copies: actions and previous actions may have the same Box, and the format refuses to write an array twice.
        tensors[f"space.{name}.low"], tensors[f"space.{name}.high"] = torch.tensor(box.low), torch.tensor(box.high)
    # A single entry: the format writes several in no particular order.
    header = json.dumps({"format": f"{agent.FORMAT}/{VERSION}", "config": agent.config()}, sort_keys=True)
    path = Path(path)
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.unlink(missing_ok=True)  # a link of this name must not lead the write elsewhere
        temporary.write_bytes(save(tensors, metadata={"agent": header}))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_agent(path: str | os.PathLike, kinds: Sequence[type[A]]) -> A:
    """Read an agent of one of these kinds; whatever else a file holds is a ``ValueError``, and no code is run."""
    header, tensors = _read(path)
    by_format = {f"{kind.FORMAT}/{version}": kind for kind in kinds for version in (VERSION, VERSION_OF_0_1)}
    found = header.get("format")
    if not isinstance(found, str) or found not in by_format:
        expected = " or ".join(f"{kind.FORMAT}/{VERSION}" for kind in kinds)
        raise ValueError(f"{str(path)!r} has format {reprlib.repr(found)}, expected {expected}")
    try:
        return _built(by_format[found], header["config"], tensors, is_old=found.endswith(f"/{VERSION_OF_0_1}"))
    except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
        # The right name, but not ours; the message may quote what the file claims, however long.
        raise ValueError(f"{str(path)!r} does not hold a complete agent: {repr(error)[:300]}") from error


def _built(kind: type[A], config: Any, tensors: dict[str, Tensor], *, is_old: bool) -> A:
    action_box, observation_space = _spaces(kind, tensors)
    weights = {name: tensor for name, tensor in tensors.items() if not name.startswith("space.")}
    if is_old:
        weights = _converted(weights)
    action_space = kind.action_space_of(action_box, weights)
    _check_config(config, observation_space, action_space, weights)
    agent = kind(observation_space, action_space, **config)
    for name, tensor in agent.state_dict().items():
        if weights[name].dtype != tensor.dtype:
            raise TypeError(f"{name} is {weights[name].dtype}, not {tensor.dtype}")
    agent.load_state_dict(weights)
    return agent


def _boxes(name: str, space: spaces.Space) -> dict[str, Any]:
    """The Boxes of an observation space by their names in the file."""
    if isinstance(space, spaces.Dict):
        return {f"{name}.{key}": part for key, part in space.spaces.items()}
    return {name: space}


def _spaces(kind: type[A], tensors: Mapping[str, Tensor]) -> tuple[spaces.Box, spaces.Space]:
    """The actions' Box and the observation space, as the file tells them."""
    bounds = [name for name in tensors if name.startswith("space.")]
    names = {name.removeprefix("space.").rpartition(".")[0] for name in bounds}
    boxes = {name: _box(tensors[f"space.{name}.low"], tensors[f"space.{name}.high"]) for name in names}
    if len(bounds) != 2 * len(names):
        raise ValueError(f"spaces are told by more than low and high: {reprlib.repr(sorted(bounds))}")
    action_box = boxes.pop("action")
    if set(boxes) == {"observation"}:  # one Box, as all observations were in 0.1
        return action_box, kind.observation_space_of(boxes["observation"], action_box)
    parts = {name.removeprefix("observation."): box for name, box in boxes.items()}
    return action_box, spaces.Dict(parts)  # type: ignore[arg-type]


def _box(low: Tensor, high: Tensor) -> spaces.Box:
    return spaces.Box(low.numpy(), high.numpy(), dtype=low.numpy().dtype.type)


def _converted(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of 0.1 under today's names: matrices lay ``[in, out]``, and a critic's last layer was a vector."""
    converted = {}
    for name, tensor in weights.items():
        if tensor.ndim == 2:
            tensor = tensor.t().contiguous()
        if name.endswith(("head_weight", "head_bias")):
            name, tensor = name.replace("head_", "head."), tensor[None]
        before, found, after = name.partition("hidden.")
        if found:  # a ReLU stands between two layers
            number, _, kind = after.partition(".")
            name = f"{before}hidden.{2 * int(number)}.{kind}"
        converted[name] = tensor
    return converted


def _check_config(
    config: Any, observation_space: spaces.Space, action_space: spaces.Space, weights: Mapping[str, Tensor]
) -> None:
    """Refuse numbers that no network can have, and layers larger than the file, before memory is spent on them."""
    if not isinstance(config, dict):
        raise TypeError(f"config is {reprlib.repr(config)}")
    for name, value in config.items():
        if isinstance(value, (int, float)) and not math.isfinite(value):
            raise ValueError(f"{name} is {value}")
    sizes = spaces.flatdim(observation_space), *config["hidden"], spaces.flatdim(action_space)
    if sum(before * after for before, after in pairwise(sizes)) > sum(tensor.numel() for tensor in weights.values()):
        raise ValueError(f"its tensors are smaller than hidden layers of {reprlib.repr(config['hidden'])}")


def _read(path: str | os.PathLike) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not Path(path).is_file():
        raise FileNotFoundError(f"no agent file at {str(path)!r}")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            header = json.loads((file.metadata() or {}).get("agent", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, ValueError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} is not a readable agent file: {str(error)[:300]}") from error
    if not isinstance(header, dict):
        raise ValueError(f"{str(path)!r} is not a readable agent file: its header is a {type(header).__name__}")
    return header, tensors
