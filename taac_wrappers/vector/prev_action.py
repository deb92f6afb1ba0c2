"""``vector.PrevActionWrapper``: each sub-environment's observation tells its previous action."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from taac_wrappers._validation import ActionCheck, action_bounds, action_check, require_bool, require_key
from taac_wrappers.prev_action import _ActionView, _joined
from taac_wrappers.vector._autoreset import EpisodicVectorWrapper, StepMasks, require_vector_env
from taac_wrappers.vector._executed import executed_action_space, executed_actions, reported_action_space


class PrevActionWrapper(EpisodicVectorWrapper):
    """`taac_wrappers.PrevActionWrapper` for vector environments.

    The previous action of a sub-environment is the one it really received (``infos["executed_action"]`` where an inner
    wrapper reports it); the first observation of an episode shows ``initial_action``. With ``SAME_STEP`` autoreset the
    returned observation is already such a first one, and ``infos["final_obs"]`` shows the last action.

    Observations: Box and ``flatten``: ``[num_envs, observation entries + action entries]``; Dict: one more entry
    ``key``; anything else: ``{"observation": ..., key: ...}``.

    Example:
        >>> import gymnasium as gym
        >>> from taac_wrappers.vector import PrevActionWrapper
        >>> envs = PrevActionWrapper(gym.make_vec("MountainCarContinuous-v0", num_envs=2))
        >>> envs.single_observation_space
        Box([-1.2  -0.07 -1.  ], [0.6  0.07 1.  ], (3,), float32)
        >>> observations, _ = envs.reset(seed=0)
        >>> observations[:, -1]
        array([0., 0.], dtype=float32)
        >>> envs.step(np.array([[0.25], [-1.0]], dtype=np.float32))[0][:, -1]
        array([ 0.25, -1.  ], dtype=float32)

    Change log:
        * v0.1.0 - Added
    """

    def __init__(
        self, env: VectorEnv, *, key: str = "prev_action", flatten: bool = True, initial_action: Any | None = None
    ):
        """Wrap ``env``.

        Args:
            env: the vector environment to wrap.
            key: the name of the new entry of a Dict observation.
            flatten: whether to join a Box observation and the action in one flat Box, and to flatten the action.
            initial_action: what is shown before the first action, for every sub-environment; None means zeros.
        """
        require_vector_env(env)
        flatten = require_bool("flatten", flatten)
        inner = env.single_observation_space
        self._is_dict = isinstance(inner, spaces.Dict)
        self._is_joined = flatten and isinstance(inner, spaces.Box)
        entries = inner.spaces if isinstance(inner, spaces.Dict) else {"observation": inner}
        require_key("key", key, () if self._is_joined else entries)
        action_space = executed_action_space(env)
        check_initial = ActionCheck(action_space, name="initial_action")
        if initial_action is not None:
            initial_action = check_initial(initial_action).tolist()
        RecordConstructorArgs.__init__(self, key=key, flatten=flatten, initial_action=initial_action)
        super().__init__(env)
        self._key = key
        self._reports = reported_action_space(env) is not None
        # A vector wrapper below that declares a composite action checks and copies it.
        is_checked_below = action_bounds(env.action_space) is None and hasattr(env, "executed_action_space")
        self._copy_actions = None if is_checked_below else action_check(env.action_space)
        self._view = _RowsView(action_space, flatten)
        self._initial = np.asarray(self._view.initial)
        if initial_action is not None:
            self._initial = self._view(np.asarray(check_initial(initial_action))[np.newaxis])[0]
        self._shown = np.stack([self._initial] * self.num_envs)
        if self._is_joined:
            self.single_observation_space = _joined(inner, self._view)  # type: ignore[arg-type]
            self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        else:
            batched = env.observation_space
            self.single_observation_space = spaces.Dict({**entries, key: self._view.space})
            self.observation_space = spaces.Dict(
                {
                    **(batched.spaces if isinstance(batched, spaces.Dict) else {"observation": batched}),
                    key: batch_space(self._view.space, self.num_envs),
                }
            )

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the sub-environments; the previous action of those that were reset is the initial one."""
        observations, infos = super().reset(seed=seed, options=options)
        return self._with_action(observations, self._shown), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the environments and show the actions that were executed."""
        sent = self._copy_actions(actions) if self._copy_actions else actions
        observations, rewards, terminated, truncated, infos = self.env.step(sent)
        masks = self._masks(terminated, truncated)
        self._show(executed_actions(infos if self._reports else {}, self.env, sent), masks)
        if "final_obs" in infos:
            infos = {**infos, "final_obs": self._final(infos["final_obs"], masks.done)}
        self._begin_episodes(masks.began)
        return self._with_action(observations, self._shown), rewards, terminated, truncated, infos

    def _show(self, executed: np.ndarray, masks: StepMasks) -> None:
        if masks.ghosts:  # whose rows may be no action at all
            self._shown[masks.stepped] = self._view(executed[masks.stepped])
        else:
            self._shown = self._view(executed).copy()

    def _begin_episodes(self, mask: np.ndarray) -> None:
        if np.count_nonzero(mask):
            self._shown[mask] = self._initial

    def _final(self, observations: Any, done: np.ndarray) -> Any:
        """The true last observations with the last actions: an array of one object per sub-environment, or a batch."""
        if getattr(observations, "dtype", None) != np.dtype(object):
            return self._with_action(observations, self._shown)
        final = np.full(self.num_envs, None, dtype=object)
        for i in np.flatnonzero(done):
            final[i] = self._with_action(observations[i], self._shown[i])
        return final

    def _with_action(self, observation: Any, shown: np.ndarray) -> Any:
        """The observation with the action; both of one sub-environment, or both batched."""
        if self._is_joined:
            flat = observation.reshape(*shown.shape[:-1], -1)
            return np.concatenate((flat, shown), axis=-1, dtype=self.observation_space.dtype)
        if self._is_dict:
            return {**observation, self._key: shown.copy()}
        return {"observation": observation, self._key: shown.copy()}


class _RowsView(_ActionView):
    """How executed actions ``[rows, ...]`` appear in the observations."""

    def __call__(self, executed: np.ndarray) -> np.ndarray:
        rows = len(executed)
        if self._one_hot_offsets is not None:
            vectors = np.zeros((rows, *self.space.shape), np.float32)
            hot = self._one_hot_offsets + executed.reshape(rows, self._one_hot_offsets.size)
            np.put_along_axis(vectors, hot, 1, axis=1)
            return vectors
        return executed.reshape(rows, *self.space.shape)
