"""``vector.HybridActionWrapper``: at every frame each sub-environment acts anew or repeats its previous action."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from taac_wrappers._encoding import ENCODINGS, PairDecoder, is_positive
from taac_wrappers._validation import ActionCheck, require_box, require_choice
from taac_wrappers.vector._autoreset import require_vector_env
from taac_wrappers.vector._executed import RepeatVectorWrapper


class HybridActionWrapper(RepeatVectorWrapper):
    """`taac_wrappers.HybridActionWrapper` for vector environments: (a, b) for each sub-environment.

    Where the switch ``b`` is 1 the action ``a`` is executed, where it is 0 the sub-environment's previous one. The
    first of an episode is zero, clipped into the action space. All actions are checked, also those that are not
    executed.

    Encodings of the actions, for sub-environments with a Box of shape ``(d,)``:
        * ``"dict"``: ``{"action": [num_envs, d], "switch": int [num_envs]}``.
        * ``"box"``: one array ``[num_envs, d + 1]``; a last entry above 0 means act.

    Infos, on every step, with Gymnasium's masks ``_frames`` and so on (False where a step only reset):
        * ``frames`` (int ``[num_envs]``): 1, or what an inner wrapper reports,
        * ``executed_action`` (``[num_envs, d]``): the actions that the environments received,
        * ``repeated`` (bool ``[num_envs]``): whether the previous action was executed again.

    Example:
        >>> import gymnasium as gym
        >>> from taac_wrappers.vector import HybridActionWrapper
        >>> envs = HybridActionWrapper(gym.make_vec("MountainCarContinuous-v0", num_envs=2))
        >>> envs.single_action_space
        Dict('action': Box(-1.0, 1.0, (1,), float32), 'switch': Discrete(2))
        >>> _ = envs.reset(seed=0)
        >>> _ = envs.step({"action": np.array([[0.5], [0.25]]), "switch": np.array([1, 1])})
        >>> infos = envs.step({"action": np.array([[-1.0], [1.0]]), "switch": np.array([0, 1])})[-1]
        >>> infos["executed_action"]
        array([[0.5],
               [1. ]], dtype=float32)
        >>> infos["repeated"]
        array([ True, False])

    Change log:
        * v0.1.0 - Added
    """

    def __init__(self, env: VectorEnv, *, encoding: str = "dict"):
        """Wrap ``env``.

        Args:
            env: the vector environment to wrap, with a floating-point Box action space.
            encoding: ``"dict"`` or ``"box"``.
        """
        require_vector_env(env)
        require_choice("encoding", encoding, ENCODINGS)
        box = require_box("vector.HybridActionWrapper", env.single_action_space)
        RecordConstructorArgs.__init__(self, encoding=encoding)
        super().__init__(env)
        self.single_action_space = PairDecoder(box, "switch", spaces.Discrete(2), is_positive, encoding).space
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._shape = box.shape
        if isinstance(self.action_space, spaces.Dict):
            self._check_action = ActionCheck(self.action_space["action"])
            self._check_switch = ActionCheck(self.action_space["switch"], name="switch")
        else:
            self._check_action = ActionCheck(self.action_space)
        self._initial_action = np.clip(np.zeros(box.shape, box.dtype), box.low, box.high)
        self._previous = np.tile(self._initial_action, (self.num_envs,) + (1,) * len(box.shape))

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Execute each sub-environment's action, or its previous one."""
        new_actions, acts = self._decode(actions)
        current = np.where(acts.reshape(-1, *[1] * len(self._shape)), new_actions, self._previous)
        result, masks, _ = self._execute(current, ~acts)
        self._previous = current
        self._begin_episodes(masks.began)
        return result

    def _begin_episodes(self, mask: np.ndarray) -> None:
        super()._begin_episodes(mask)
        self._previous[mask] = self._initial_action

    def _decode(self, actions: Any) -> tuple[np.ndarray, np.ndarray]:
        """The actions ``[num_envs, *shape]`` and where they are to be executed, bool ``[num_envs]``."""
        if not isinstance(self.action_space, spaces.Dict):
            flat = self._check_action(actions)
            return flat[:, :-1].reshape(-1, *self._shape), flat[:, -1] > 0
        if not isinstance(actions, Mapping) or actions.keys() != {"action", "switch"}:
            raise ValueError(f"`actions` must be a dict with the keys 'action' and 'switch', got {actions!r}")
        return self._check_action(actions["action"]), self._check_switch(actions["switch"]) == 1
