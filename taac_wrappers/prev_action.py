"""``PrevActionWrapper``: the observation tells the previous action."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

from taac_wrappers._repeat import (
    action_copier,
    composite_action_space,
    executed_action,
    executed_action_space,
    has_reports,
)
from taac_wrappers._validation import ActionCheck, action_bounds, require_bool, require_env, require_key


class PrevActionWrapper(gym.Wrapper, RecordConstructorArgs):
    """Adds the previous action to the observation.

    An agent that may repeat its action has to know it: with repetition the previous action is part of the state. It is
    the action the environment really received: above a repeat wrapper that is ``info["executed_action"]``.

    The observation becomes:
        * Box and ``flatten``: one flat Box, the observation's entries and then the action's, in the observation's
          floating-point dtype,
        * Dict: the same with one more entry ``key``,
        * anything else: ``Dict(observation=..., key=...)``.

    The action is shown flat with ``flatten`` (Discrete and MultiDiscrete actions one-hot), else as it is. Before the
    first action of an episode it is ``initial_action``; by default zeros, clipped into the action space (all zeros if
    one-hot; without ``flatten`` a discrete one is its lowest value).

    A vector version exists: `taac_wrappers.vector.PrevActionWrapper`.

    Example:
        >>> import gymnasium as gym
        >>> from taac_wrappers import HybridActionWrapper, PrevActionWrapper
        >>> env = PrevActionWrapper(gym.make("MountainCarContinuous-v0"))
        >>> env.observation_space
        Box([-1.2  -0.07 -1.  ], [0.6  0.07 1.  ], (3,), float32)
        >>> float(env.reset(seed=0)[0][-1]), float(env.step([0.25])[0][-1])
        (0.0, 0.25)

        >>> env = PrevActionWrapper(HybridActionWrapper(gym.make("MountainCarContinuous-v0")), flatten=False)
        >>> _ = env.reset(seed=0)
        >>> _ = env.step({"action": [0.5], "switch": 1})
        >>> env.step({"action": [-1.0], "switch": 0})[0]["prev_action"]  # repeated: 0.5 was executed again
        array([0.5], dtype=float32)

    Change log:
        * v0.1.0 - Added
    """

    def __init__(
        self, env: gym.Env, *, key: str = "prev_action", flatten: bool = True, initial_action: Any | None = None
    ):
        """Wrap ``env``.

        Args:
            env: the environment to wrap.
            key: the name of the new entry of a Dict observation.
            flatten: whether to join a Box observation and the action in one flat Box, and to flatten the action.
            initial_action: what is shown before the first action; None means zeros.
        """
        require_env("PrevActionWrapper", env)
        flatten = require_bool("flatten", flatten)
        inner = env.observation_space
        entries = inner.spaces if isinstance(inner, spaces.Dict) else {"observation": inner}
        is_joined = flatten and isinstance(inner, spaces.Box)
        require_key("key", key, () if is_joined else entries)
        action_space = executed_action_space(env)
        copy_initial = ActionCheck(action_space, name="initial_action")
        if initial_action is not None:
            initial_action = copy_initial(initial_action).tolist()
        RecordConstructorArgs.__init__(self, key=key, flatten=flatten, initial_action=initial_action)
        gym.Wrapper.__init__(self, env)
        self._key = key
        self._is_dict = isinstance(inner, spaces.Dict)
        self._is_joined = is_joined
        self._reports = has_reports(env)
        self._composite = composite_action_space(env)
        self._copy_action = action_copier(env)
        self._view = _ActionView(action_space, flatten)
        self._initial = self._view.initial if initial_action is None else self._view(copy_initial(initial_action))
        if is_joined:
            self.observation_space = _joined(inner, self._view)  # type: ignore[arg-type]
            self._dtype = self.observation_space.dtype
            self._is_vector = len(inner.shape) == 1  # type: ignore[arg-type]
        else:
            # Copies: shared spaces would be seeded along with this one.
            self.observation_space = spaces.Dict(deepcopy({**entries, key: self._view.space}))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; the previous action is the initial one."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._with_action(observation, self._initial.copy()), info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment and show the action that was executed."""
        sent = self._copy_action(action)
        observation, reward, terminated, truncated, info = self.env.step(sent)
        report = info if self._reports else {}
        shown = self._view(executed_action(report, self._composite, sent))
        return self._with_action(observation, shown), reward, terminated, truncated, info

    def _with_action(self, observation: Any, shown: Any) -> Any:
        if self._is_joined:
            vector = observation if self._is_vector else np.ravel(observation)
            # "unsafe" for one-hot actions beside integers: NumPy cannot know that zeros and ones fit any dtype.
            return np.concatenate((vector, shown), dtype=self._dtype, casting="unsafe")
        if self._is_dict:
            return {**observation, self._key: shown}
        return {"observation": observation, self._key: shown}


class _ActionView:
    """How an executed action appears in the observation: ``view(action)``, a fresh value of ``view.space``."""

    def __init__(self, space: spaces.Space, flatten: bool):
        """``flatten`` makes a vector of it, one-hot per component if discrete."""
        self.space: Any  # a Box, or without `flatten` the action space
        self._flatten = flatten
        self._is_discrete = isinstance(space, spaces.Discrete)
        self._one_hot_offsets: np.ndarray | None = None
        low, high = action_bounds(space)  # type: ignore[misc]
        zeros = np.asarray(np.clip(np.zeros(low.shape, space.dtype), low, high))
        if not flatten:
            self.space = space
            self.initial = zeros[()] if self._is_discrete else zeros
        elif isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
            counts = (high - low + 1).ravel()
            self.space = spaces.Box(0, 1, (int(counts.sum()),), np.float32)
            self.initial = np.zeros(self.space.shape, np.float32)
            self._one_hot_offsets = np.cumsum(counts) - counts - low.ravel()
        else:
            if isinstance(space, spaces.Box):
                low, high = space.low, space.high  # with the infinite ones
            self.space = spaces.Box(low.ravel(), high.ravel(), dtype=low.dtype.type)
            self.initial = zeros.ravel()

    @property
    def is_one_hot(self) -> bool:
        """Whether the entries are only 0 and 1, which any dtype can hold."""
        return self._one_hot_offsets is not None

    def __call__(self, executed: np.ndarray) -> Any:
        if self._one_hot_offsets is not None:
            vector = np.zeros(self.space.shape, np.float32)
            vector[self._one_hot_offsets + np.ravel(executed)] = 1
            return vector
        if self._flatten:
            return executed.ravel()
        return executed[()] if self._is_discrete else executed


def _joined(observation: spaces.Box, view: _ActionView) -> spaces.Box:
    """Return the flat Box of the observation's entries and then the action's."""
    dtype: Any = observation.dtype
    if not np.issubdtype(dtype, np.floating) and not view.is_one_hot:
        dtype = np.result_type(dtype, view.space.dtype)
    low = np.append(observation.low, view.space.low).astype(dtype)
    high = np.append(observation.high, view.space.high).astype(dtype)
    return spaces.Box(low, high, dtype=dtype)
