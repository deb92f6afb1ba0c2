"""Hindsight experience replay (Andrychowicz et al., arXiv:1707.01495): what was reached is taken for what was wanted.

A share of the sampled windows gets another goal: one that the same episode achieved later on (the strategy ``future``).
Rewards, and where the episode would have ended, follow from the environment's own rules under that goal. A window has
one goal from its first transition to its last, so targets that follow several frames stay right; what the behaviour
repeated is a fact and stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from taac_wrappers.training.replay import FINAL, SequenceReplay, Windows

GOALS = "achieved_goal", "desired_goal"


@dataclass(frozen=True)
class GoalRules:
    """What a goal means in an environment, for batches of achieved and desired goals ``[n, d]``."""

    reward: Callable[[np.ndarray, np.ndarray], np.ndarray]
    """Of arriving there, ``[n]``."""
    terminated: Callable[[np.ndarray, np.ndarray], np.ndarray] | None
    """Whether the episode ends with it, ``[n]``; None if the environment does not say: then as it was recorded."""

    @classmethod
    def of(cls, env: gym.Env) -> GoalRules:
        """Those of a goal environment, wrapped or not.

        Raises:
            ValueError: it is none, or a wrapper changes its rewards in a way that goals cannot follow.
        """
        space = env.observation_space
        if not isinstance(space, spaces.Dict) or not all(goal in space.spaces for goal in GOALS):
            raise ValueError(
                f"--her needs a goal environment, whose observation has {' and '.join(GOALS)}, got {space}"
            )
        if space["achieved_goal"].shape != space["desired_goal"].shape:
            raise ValueError(f"--her needs achieved and desired goals of one shape, got {space}")
        try:
            compute_reward = env.get_wrapper_attr("compute_reward")
        except AttributeError as error:
            raise ValueError(f"--her needs the environment's compute_reward: {error.__cause__ or error}") from error

        def reward(achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
            return np.asarray(compute_reward(achieved, desired, [{}] * len(achieved)), np.float32)

        if not env.has_wrapper_attr("compute_terminated"):
            return cls(reward, None)
        compute_terminated = env.get_wrapper_attr("compute_terminated")

        def terminated(achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
            # One by one: Gymnasium-Robotics promises batches of compute_reward only.
            return np.array(
                [bool(compute_terminated(*goals, {})) for goals in zip(achieved, desired, strict=True)], bool
            )

        return cls(reward, terminated)


def make_replay(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    *,
    hindsight: float,
    goal_env: Callable[[], gym.Env],
    **replay: Any,
) -> SequenceReplay:
    """A replay, with ``hindsight`` for this share of its windows by the rules of ``goal_env()``, or without (0)."""
    if hindsight == 0:
        return SequenceReplay(observation_space, action_space, **replay)
    rules = GoalRules.of(goal_env())
    assert isinstance(observation_space, spaces.Dict)
    return HindsightReplay(observation_space, action_space, share=hindsight, rules=rules, **replay)


class HindsightReplay(SequenceReplay):
    """A replay of goal environments that gives some of its windows a goal which was achieved later in their episode.

    Args:
        observation_space: a Dict of Boxes with ``achieved_goal`` and ``desired_goal``.
        action_space: what is to be recorded of an action.
        share: of the windows, in [0, 1], that get another goal; each is drawn on its own.
        rules: what a goal means.
        replay: the other arguments of :class:`SequenceReplay`.
    """

    def __init__(
        self,
        observation_space: spaces.Dict,
        action_space: spaces.Space,
        *,
        share: float,
        rules: GoalRules,
        **replay: Any,
    ):
        if not 0 <= share <= 1:
            raise ValueError(f"share must be in [0, 1], got {share!r}")
        super().__init__(observation_space, action_space, **replay)
        self._share, self._rules = share, rules
        self._forget_ends()

    def _read_windows(
        self, position: np.ndarray, train_on: Literal["first", "all"], look_at: Literal["all", "ends"]
    ) -> Windows:
        if self._share == 0:
            return super()._read_windows(position, train_on, look_at)
        is_new, goal = self._draw_goals(position[0])
        reward, stops = self._judged(position, is_new, goal)
        windows = super()._read_windows(_cut_after(position, stops), train_on, look_at)
        windows.reward = np.where(is_new & windows.valid, reward, windows.reward)
        if self._rules.terminated is not None:
            ended = windows.terminated | windows.truncated
            windows.terminated = np.where(is_new, stops & windows.valid, windows.terminated)
            # Where another goal ended the recorded episode, nothing ends with this one: it is cut there, as by a limit.
            windows.truncated = np.where(is_new, ended & ~stops, windows.truncated)
        _show_goals(windows, is_new, goal)
        return windows

    def _draw_goals(self, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which windows get a new goal, ``[B]``, and these goals, ``[B, d]``: of a later observation of the episode."""
        is_new = self.rng.random(len(start)) < self._share
        slot = start[is_new]
        env = slot // self.length
        head = self._head[env]
        time = head - (head - (slot - self._base[env])) % self.length
        last = self._last_observation(env, time)
        chosen = time + 1 + (self.rng.random(len(slot)) * (last - time)).astype(np.int64)
        achieved = self._observation["achieved_goal"]
        goal = np.zeros((len(start), *achieved.shape[1:]), achieved.dtype)
        goal[is_new] = achieved[self._flat(env, chosen)]
        return is_new, goal

    def _judged(self, position: np.ndarray, is_new: np.ndarray, goal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of every transition of the windows with a new goal, ``[N, B]``: its reward, and whether the episode stops."""
        reward, stops = np.zeros(position.shape, np.float32), np.zeros(position.shape, bool)
        place = np.nonzero((position >= 0) & is_new)
        achieved, wanted = self._observation["achieved_goal"][self._next_slot(position[place])], goal[place[1]]
        reward[place] = self._rules.reward(achieved, wanted)
        if self._rules.terminated is not None:
            stops[place] = self._rules.terminated(achieved, wanted)
        return reward, stops

    def _last_observation(self, env: np.ndarray, time: np.ndarray) -> np.ndarray:
        """The absolute time of the last observation of the episode that stands at ``time``."""
        last = self._head[env]  # of an episode that goes on
        for each in np.unique(env):
            of_env = np.flatnonzero(env == each)
            ends = self._ends_of(int(each))
            next_end = np.searchsorted(ends, time[of_env])
            has_ended = next_end < len(ends)
            last[of_env[has_ended]] = ends[next_end[has_ended]]
        return last

    def _ends_of(self, env: int) -> np.ndarray:
        """Absolute times of an env's final observations, in order; what has been looked through is remembered."""
        oldest, head = self._oldest()[env], self._head[env]
        times = np.arange(max(self._looked_until[env], oldest), head + 1)
        new = times[self._flags[self._flat(env, times)] & FINAL != 0]
        if len(new):
            kept = self._ends[env]
            self._ends[env] = np.concatenate([kept[kept >= oldest], new])
        self._looked_until[env] = new[-1] + 1 if len(new) else head  # the newest one may still become final
        return self._ends[env]

    def _forget_ends(self) -> None:
        self._ends = [np.empty(0, np.int64) for _ in range(self.num_envs)]
        self._looked_until = np.zeros(self.num_envs, np.int64)

    def _emptied(self) -> SequenceReplay:
        empty = super()._emptied()
        assert isinstance(empty, HindsightReplay)
        empty._forget_ends()
        return empty


def _cut_after(position: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """``position`` without what follows the first stop of a window."""
    is_after = np.zeros(position.shape, bool)
    is_after[1:] = np.logical_or.accumulate(stops[:-1], axis=0)
    return np.where(is_after, -1, position)


def _show_goals(windows: Windows, is_new: np.ndarray, goal: np.ndarray) -> None:
    """Put the new goals ``[B, d]`` into all observations of their windows."""
    column = np.broadcast_to(np.arange(len(is_new)), windows.valid.shape)
    of_next = np.zeros(len(windows.next_observation["desired_goal"]), np.int64)
    of_next[windows.next_of[windows.valid]] = column[windows.valid]
    of_trained = column.reshape(-1)[windows.trained]
    for observation, window in ((windows.observation, of_trained), (windows.next_observation, of_next)):
        observation["desired_goal"][is_new[window]] = goal[window][is_new[window]]
