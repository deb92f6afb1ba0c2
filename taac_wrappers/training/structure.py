"""Observations and actions are arrays, or dicts of arrays: what is done to one array, done to all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Structure = Any
"""An array or a tensor, or a dict of such; or a space, of which a Dict is a dict of spaces."""


def mapped(function: Callable[..., Any], *structures: Structure) -> Structure:
    """``function`` of the arrays of every entry, or of the structures themselves if they are arrays.

    >>> mapped(lambda x, y: x + y, {"a": 1, "b": 2}, {"a": 10, "b": 20})
    {'a': 11, 'b': 22}
    >>> mapped(abs, -3)
    3
    """
    first = structures[0]
    if isinstance(first, Mapping):
        return {key: mapped(function, *(structure[key] for structure in structures)) for key in first}
    return function(*structures)


def named(name: str, structure: Structure) -> dict[str, Any]:
    """Every array under a name of its own.

    >>> named("action", {"action": 1, "switch": 2}), named("action", 3)
    ({'action.action': 1, 'action.switch': 2}, {'action': 3})
    """
    if not isinstance(structure, Mapping):
        return {name: structure}
    return {full: part for key, value in structure.items() for full, part in named(f"{name}.{key}", value).items()}
