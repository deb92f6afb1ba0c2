"""``vector.ZetaRepeatWrapper``: exploration by random actions held for a random time, in each sub-environment."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import VectorEnv

from taac_wrappers._exploration import STATE_WORDS, ExploratoryHold, UniformStream, space_to_explore
from taac_wrappers._validation import (
    ActionCheck,
    require_bounded,
    require_float,
    require_int,
    require_schedule,
    require_state,
)
from taac_wrappers.vector._autoreset import require_vector_env, reset_mask, reset_seeds
from taac_wrappers.vector._executed import RepeatVectorWrapper


class ZetaRepeatWrapper(RepeatVectorWrapper):
    """`taac_wrappers.ZetaRepeatWrapper` for vector environments.

    Each sub-environment explores on its own: its random stream is that of the wrapper around one environment with the
    same seed (``reset(seed=s)`` seeds sub-environment i with ``s + i``), and its schedule of epsilon counts its own
    frames. A step that only resets draws nothing and is no frame.

    Infos, on every step, with Gymnasium's masks ``_frames`` and so on (False where a step only reset):
        * ``frames`` (int ``[num_envs]``): 1, or what an inner wrapper reports,
        * ``executed_action`` (``[num_envs, ...]``): the actions that the environments received,
        * ``repeated`` (bool ``[num_envs]``): whether a held exploratory action was executed again,
        * ``exploring`` (bool ``[num_envs]``): whether the exploratory action replaced the agent's.

    Example:
        >>> import gymnasium as gym
        >>> from taac_wrappers.vector import ZetaRepeatWrapper
        >>> envs = gym.make_vec("MountainCarContinuous-v0", num_envs=3)
        >>> envs = ZetaRepeatWrapper(envs, epsilon=0.4, mu=1.0, max_repeat=3)
        >>> _ = envs.reset(seed=1)
        >>> for _ in range(4):
        ...     infos = envs.step(np.zeros((3, 1), dtype=np.float32))[-1]
        ...     print(infos["executed_action"].ravel().round(2), infos["exploring"], infos["repeated"])
        [0.   0.17 0.9 ] [False  True  True] [False False False]
        [0.07 0.17 0.9 ] [ True  True  True] [False  True  True]
        [0.   0.17 0.  ] [False  True False] [False  True False]
        [0.   0.21 0.04] [False  True  True] [False False False]

    Change log:
        * v0.1.0 - Added
    """

    def __init__(
        self,
        env: VectorEnv,
        *,
        epsilon: float | tuple[float, float, int] = 0.01,
        mu: float = 2.0,
        max_repeat: int = 5,
    ):
        """Wrap ``env``.

        Args:
            env: the vector environment to wrap, with a Discrete or a bounded floating-point Box action space. Above
                Gymnasium's vector ``ClipAction``, which takes any action, the bounds are those it clips to.
            epsilon: the probability to explore, or its linear schedule ``(start, end, frames)``.
            mu: the exponent of the zeta distribution, above 0; larger means shorter.
            max_repeat: the longest hold, at least 1.
        """
        require_vector_env(env)
        schedule = require_schedule("epsilon", epsilon)
        mu = require_float("mu", mu, above=0)
        max_repeat = require_int("max_repeat", max_repeat, minimum=1)
        space = require_bounded("vector.ZetaRepeatWrapper", space_to_explore(env))
        recorded = schedule if isinstance(epsilon, (tuple, list)) else schedule[0]
        RecordConstructorArgs.__init__(self, epsilon=recorded, mu=mu, max_repeat=max_repeat)
        super().__init__(env)
        self._check_actions = ActionCheck(env.action_space)
        self._schedule = schedule
        self._draw_hold = ExploratoryHold(space, mu=mu, longest=max_repeat)
        self._uniforms = [UniformStream() for _ in range(self.num_envs)]
        self._frames = np.zeros(self.num_envs, np.int64)
        self._remaining = np.zeros(self.num_envs, np.int64)
        self._exploratory = np.zeros(env.action_space.shape, env.action_space.dtype)  # type: ignore[type-var,arg-type]

    @property
    def current_epsilon(self) -> np.ndarray:
        """The probability to explore at the present frame of each sub-environment, ``[num_envs]``."""
        start, end, frames = self._schedule
        if not frames:
            return np.full(self.num_envs, end)
        return np.where(self._frames >= frames, end, start + (end - start) * self._frames / frames)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the sub-environments and end their holds; a seed also restarts a sub-environment's random stream."""
        seeds = reset_seeds(seed, self.num_envs)
        mask = reset_mask(options, self.num_envs)
        result = super().reset(seed=seed, options=options)
        for i in np.flatnonzero(mask):
            if seeds[i] is not None:
                self._uniforms[i] = UniformStream(seeds[i])
        return result

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Execute each sub-environment's action, or the exploratory one in its place."""
        current = self._check_actions(actions)
        exploratory, remaining = self._exploratory.copy(), self._remaining.copy()
        held = remaining > 0
        exploring = held.copy()
        free = np.flatnonzero(~(held | self._ghosts))
        for i in self._hits(free):
            exploratory[i], remaining[i] = self._draw_hold(self._uniforms[i])
            exploring[i] = True
        if np.count_nonzero(exploring):
            current[exploring] = exploratory[exploring]
            remaining -= exploring
        try:
            result, masks, frames = self._execute(current, held, exploring=exploring)
        except Exception:  # a step that is refused, as before the first reset, has explored nothing
            for i in free:
                self._uniforms[i].rewind()
            raise
        self._exploratory, self._remaining = exploratory, remaining
        self._frames += frames
        self._begin_episodes(masks.began)
        return result

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return what outlives an episode, of each sub-environment: its frames so far and its random stream."""
        return {"frames": self._frames.copy(), "stream": np.array([stream.state() for stream in self._uniforms])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what `state_dict` returned; a bad one raises and changes nothing."""
        shapes = {"frames": (self.num_envs,), "stream": (self.num_envs, STATE_WORDS)}
        frames, streams = require_state(state, shapes).values()
        if (frames < 0).any() or (frames != frames.astype(np.int64)).any():
            raise ValueError(f"`state['frames']` must be integers >= 0, got {state['frames']!r}")
        self._uniforms = [UniformStream.at(words) for words in streams]
        self._frames = frames.astype(np.int64)

    def _begin_episodes(self, mask: np.ndarray) -> None:
        super()._begin_episodes(mask)
        self._remaining *= ~mask

    def _hits(self, free: np.ndarray) -> np.ndarray:
        """Test epsilon once in each of the sub-environments ``free`` (indices); return those where it hits."""
        streams = [self._uniforms[i] for i in free.tolist()]
        for stream in streams:
            stream.mark()
        draws = [stream() for stream in streams]
        return free[np.array(draws) < self.current_epsilon[free]]
