"""``HybridActionWrapper``: at every frame the agent acts anew or repeats its previous action."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

from taac_wrappers._encoding import ENCODINGS, PairDecoder, is_positive
from taac_wrappers._repeat import executed_action_space, has_reports, one_frame_info, was_repeated
from taac_wrappers._validation import require_box, require_choice, require_env


class HybridActionWrapper(gym.Wrapper, RecordConstructorArgs):
    """Lets the agent choose (a, b): execute ``a`` if the switch ``b`` is 1, repeat the previous action if it is 0.

    The agent looks at every observation before it goes on repeating: closed-loop temporal abstraction (SAC-Hybrid,
    TAAC). `KRepWrapper` is the open-loop counterpart. Before the first action of an episode the previous one is zero,
    clipped into the action space.

    Encodings of the action:
        * ``"dict"``: ``Dict(action=Box, switch=Discrete(2))``.
        * ``"box"``: one flat Box for agents that know nothing else. Its last entry in [-1, 1] means act if it is above
          0; the entries before it are ``a`` with its own bounds and dtype.

    Info, on every step:
        * ``frames`` (int): 1, or what an inner wrapper reports,
        * ``executed_action`` (ndarray): a copy of the action the environment received,
        * ``repeated`` (bool): whether the previous action was executed again. A switch of 0 at the first step of an
          episode counts: it repeats the initial zero action.

    A vector version exists: `taac_wrappers.vector.HybridActionWrapper`.

    Example:
        >>> import gymnasium as gym
        >>> from taac_wrappers import HybridActionWrapper
        >>> env = HybridActionWrapper(gym.make("MountainCarContinuous-v0"))
        >>> env.action_space
        Dict('action': Box(-1.0, 1.0, (1,), float32), 'switch': Discrete(2))
        >>> _ = env.reset(seed=0)
        >>> for a, b in [(0.5, 0), (0.7, 1), (-0.2, 0)]:
        ...     info = env.step({"action": [a], "switch": b})[-1]
        ...     print(info["executed_action"], info["repeated"])
        [0.] True
        [0.7] False
        [0.7] True

    Change log:
        * v0.1.0 - Added
    """

    _previous_action: np.ndarray
    _previous_executed: np.ndarray | None  # kept only if an inner wrapper reports it

    def __init__(self, env: gym.Env, *, encoding: str = "dict"):
        """Wrap ``env``.

        Args:
            env: the environment to wrap, with a floating-point Box action space.
            encoding: ``"dict"`` or ``"box"``.
        """
        require_env("HybridActionWrapper", env)
        require_choice("encoding", encoding, ENCODINGS)
        box = require_box("HybridActionWrapper", env.action_space)
        RecordConstructorArgs.__init__(self, encoding=encoding)
        gym.Wrapper.__init__(self, env)
        self.executed_action_space = executed_action_space(env)
        self._reports = has_reports(env)
        self._decode = PairDecoder(box, "switch", spaces.Discrete(2), is_positive, encoding)
        self.action_space = self._decode.space
        self._initial_action = np.asarray(np.clip(np.zeros(box.shape, box.dtype), box.low, box.high))
        self._begin_episode()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; the action to repeat becomes the initial one."""
        result = self.env.reset(seed=seed, options=options)
        self._begin_episode()
        return result

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Execute the action of the pair ``action``, or the previous one."""
        new_action, switch = self._decode(action)
        current = new_action if switch else self._previous_action
        observation, reward, terminated, truncated, inner = self.env.step(current.copy())
        self._previous_action = current
        own = {"frames": 1, "executed_action": current.copy(), "repeated": not switch}
        info = one_frame_info(inner, own, self._reports)
        if self._reports and "executed_action" in inner:
            info["repeated"] = was_repeated(not switch, inner, self._previous_executed)
            self._previous_executed = inner["executed_action"].copy()
        return observation, reward, terminated, truncated, info

    def _begin_episode(self) -> None:
        self._previous_action = self._initial_action
        self._previous_executed = None
