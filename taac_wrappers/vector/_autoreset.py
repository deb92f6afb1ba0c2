"""What every vector wrapper shares: which sub-environments really took a step, and which began a new episode.

Gymnasium's vector environments reset a finished sub-environment in one of three ways, named by
``metadata["autoreset_mode"]``:

* ``NEXT_STEP``: the step after the last one only resets. Its action is ignored and its reward is no reward: a ghost.
* ``SAME_STEP``: the last step resets as well. The observation returned is already the next episode's first; the true
  last one is in ``infos["final_obs"]`` and the last step's info in ``infos["final_info"]``.
* ``DISABLED``: the caller resets with ``reset(options={"reset_mask": done})``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.wrappers.vector import DictInfoToList

from taac_wrappers._validation import require_seed


class StepMasks(NamedTuple):
    """Who did what in one vector step; each is bool ``[num_envs]`` and belongs to that step alone."""

    stepped: np.ndarray
    """The action was executed (all but the ghosts of ``NEXT_STEP``)."""
    done: np.ndarray
    """The episode ended in this step."""
    began: np.ndarray
    """The observation returned is the first one of a new episode."""

    @property
    def ghosts(self) -> int:
        """How many sub-environments only reset."""
        return self.stepped.size - np.count_nonzero(self.stepped)


class EpisodicVectorWrapper(VectorWrapper, RecordConstructorArgs):
    """Base of the vector wrappers that keep something per episode.

    A subclass defines :meth:`_begin_episodes` and calls :meth:`_masks` once after each inner step.
    """

    def __init__(self, env: VectorEnv) -> None:
        VectorWrapper.__init__(self, env)
        self._autoreset_mode = _autoreset_mode(env)
        self._ghosts = np.zeros(self.num_envs, dtype=np.bool_)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all sub-environments, or those of ``options["reset_mask"]`` alone, and what is kept per episode."""
        # A bad seed is refused here: halfway, some sub-environments would have been reset.
        seed = require_seeds(seed, self.num_envs)
        mask = reset_mask(options, self.num_envs)
        # Inner environments pop the mask from the dict they receive: theirs is a copy, so that whoever is outside of
        # this wrapper still finds the mask in their own.
        observations, infos = self.env.reset(seed=seed, options=None if options is None else dict(options))  # type: ignore[arg-type]
        self._ghosts = self._ghosts & ~mask
        self._begin_episodes(mask)
        return observations, infos

    def _begin_episodes(self, mask: np.ndarray) -> None:
        """Forget what belongs to the episodes before; ``mask`` is bool ``[num_envs]``."""
        raise NotImplementedError

    def _masks(self, terminated: np.ndarray, truncated: np.ndarray) -> StepMasks:
        """Account for one inner step that returned these flags, each bool ``[num_envs]``."""
        ghosts = self._ghosts
        done = terminated | truncated
        if self._autoreset_mode is AutoresetMode.NEXT_STEP:
            self._ghosts = done.copy()  # the other one may leave in infos
            began = ghosts
        elif self._autoreset_mode is AutoresetMode.SAME_STEP:
            began = done
        else:
            began = np.zeros_like(done)
        return StepMasks(~ghosts, done, began)


def require_vector_env(env: Any) -> None:
    """Raise ``TypeError`` for anything but a vector environment whose infos are a dict of arrays."""
    if isinstance(env, gym.Env):
        raise TypeError(f"taac_wrappers.vector is for vector environments, got {env}: use taac_wrappers for one")
    if not isinstance(env, VectorEnv):
        raise TypeError(f"`env` must be a gymnasium.vector.VectorEnv, got {env!r} of type {type(env).__name__}")
    layer = env
    while isinstance(layer, VectorWrapper):
        if isinstance(layer, DictInfoToList):
            raise TypeError(f"DictInfoToList goes outermost, around the wrappers of taac_wrappers.vector, got {env}")
        layer = layer.env


def _autoreset_mode(env: VectorEnv) -> AutoresetMode:
    mode = env.metadata.get("autoreset_mode")
    if mode is None:
        gym.logger.warn(f"{env} has no metadata['autoreset_mode']: assuming AutoresetMode.NEXT_STEP.")
        return AutoresetMode.NEXT_STEP
    if not isinstance(mode, AutoresetMode):
        raise TypeError(f"`env.metadata['autoreset_mode']` must be an AutoresetMode, got {mode!r}")
    return mode


def reset_mask(options: Mapping[str, Any] | None, num_envs: int) -> np.ndarray:
    """The sub-environments that a reset with these options resets, bool ``[num_envs]``."""
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"`options` must be a dict or None, got {options!r} of type {type(options).__name__}")
    if options is None or "reset_mask" not in options:
        return np.ones(num_envs, dtype=np.bool_)
    mask = options["reset_mask"]
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
        raise TypeError(f"`options['reset_mask']` must be a numpy array of bool, got {mask!r}")
    if mask.shape != (num_envs,) or not mask.any():
        raise ValueError(f"`options['reset_mask']` must have shape ({num_envs},) and at least one True, got {mask!r}")
    return mask


def require_seeds(seed: Any, num_envs: int) -> int | list[int | None] | None:
    """Return the ``seed`` of a vector reset in plain integers: None, one, or a list of one per sub-environment."""
    if not isinstance(seed, (list, tuple)) and np.ndim(seed) != 1:
        return require_seed("seed", seed)
    if len(seed) != num_envs:
        raise ValueError(f"`seed` must hold one seed per sub-environment ({num_envs}), got {seed!r}")
    return [require_seed(f"seed[{i}]", each) for i, each in enumerate(seed)]


def reset_seeds(seed: int | list[int | None] | None, num_envs: int) -> list[int | None]:
    """The seed of each sub-environment, as Gymnasium's vector environments derive them.

    >>> reset_seeds(7, 3)
    [7, 8, 9]
    >>> reset_seeds([3, None], 2)
    [3, None]
    """
    seed = require_seeds(seed, num_envs)
    if isinstance(seed, list):
        return seed
    return [None if seed is None else seed + i for i in range(num_envs)]


def step_report(infos: Mapping[str, Any], key: str) -> np.ndarray | None:
    """What each sub-environment's own step reported under ``key``, ``[num_envs, ...]``, or None where nobody did.

    With ``SAME_STEP`` the rows of ended episodes are in ``infos["final_info"]``.

    >>> infos = {"x": np.array([1, 0]), "final_info": {"x": np.array([0, 5]), "_x": np.array([False, True])}}
    >>> step_report(infos, "x"), infos["x"]
    (array([1, 5]), array([1, 0]))
    """
    values = infos.get(key)
    final = infos.get("final_info")
    if final is None or key not in final:
        return values
    if values is None:
        return final[key]
    ended = final[f"_{key}"]
    values = values.copy()
    values[ended] = final[key][ended]
    return values


def without_info(infos: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A copy of ``infos`` without ``key`` and its mask, in ``final_info`` too."""
    kept = {name: value for name, value in infos.items() if name not in (key, f"_{key}")}
    if "final_info" in kept:
        kept["final_info"] = without_info(kept["final_info"], key)
    return kept


def add_report(infos: Mapping[str, Any], report: dict[str, np.ndarray], masks: StepMasks) -> dict[str, Any]:
    """A copy of ``infos`` that holds ``report`` (values ``[num_envs, ...]``) with Gymnasium's ``_key`` masks.

    Ghost rows are zero and masked out, as if no such info had been given. The last step of an episode is reported at
    the top like every other, and, with ``SAME_STEP``, also in ``final_info``, where Gymnasium keeps it.
    """
    infos = dict(infos)
    if masks.ghosts:
        report = {key: _keep_rows(values, masks.stepped) for key, values in report.items()}
    for key, values in report.items():
        infos[key] = values
        infos[f"_{key}"] = masks.stepped
    if "final_info" in infos:
        final = dict(infos["final_info"])
        for key, values in report.items():
            final[key] = _keep_rows(values, masks.done)
            final[f"_{key}"] = masks.done
        infos["final_info"] = final
    return infos


def _keep_rows(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    kept = np.zeros_like(values)
    kept[mask] = values[mask]
    return kept
