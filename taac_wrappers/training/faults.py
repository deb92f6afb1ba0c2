"""Environments that fail: noticed before anything wrong reaches the replay or the policy, then stopped for or replaced.

A fault is an exception, a nan or inf in an observation or a reward, a wrong shape or dtype, a worker that gives no
answer in time or dies.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from tqdm import tqdm

from taac_wrappers.training.engines import Engine, EpisodeState, told
from taac_wrappers.training.finite import all_finite, require_finite

MOST_IN_A_ROW = 10
"""Faults of one environment without a good step in between after which it is not replaced any more."""

LARGEST = float(np.finfo(np.float32).max)
"""Rewards are kept as float32."""

_RESTART, _RESUME = 1, 2  # keep the two kinds of fresh seeds apart


class EnvFault(RuntimeError):
    """An environment that cannot be used as it is; the message says what it did."""


@contextlib.contextmanager
def env_faults() -> Iterator[None]:
    """Whatever an environment raises inside becomes an :class:`EnvFault`."""
    try:
        yield
    except EnvFault:
        raise
    except Exception as error:
        raise EnvFault(told(error)) from error


def check_finite(observation: np.ndarray, reward: Any = 0.0) -> None:
    """Raise :class:`EnvFault` if one environment's observation or reward cannot be used."""
    for reason in _not_finite(np.asarray(observation)[None], np.array([reward], float)).values():
        raise EnvFault(reason)


class Counting(Protocol):
    """What is needed here of a run's counters."""

    frames: int
    env_restarts: int


@dataclass
class Tally:
    """Stands in where there is no run."""

    frames: int = 0
    env_restarts: int = 0


class WatchedEnvs:
    """Training environments that are stepped together, and what is done about those that fail.

    Nothing resets by itself: after a step, reset what is done or ``faulty``. Returned arrays belong to the caller.

    Args:
        engine: steps the environments.
        env_id: what messages call them.
        on_error: ``"stop"``: a fault leaves its message in ``stop_reason``, and training is over. ``"restart"``: the
            next reset puts a new environment in that place, seeded with ``seed`` and the number of restarts so far.
        seed: of the run.
    """

    def __init__(self, engine: Engine, env_id: str, *, on_error: Literal["stop", "restart"], seed: int):
        self.num_envs = engine.num_envs
        self.single_observation_space = engine.single_observation_space
        self.single_action_space = engine.single_action_space
        self.action_space = batch_space(engine.single_action_space, engine.num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        self.counters: Counting = Tally()
        """Whoever counts frames puts its own here: messages name the frame, and restarts are counted."""
        self.faulty = np.zeros(engine.num_envs, bool)
        """[num_envs] Which environments failed in the last step: their rows are zero, their episodes worthless."""
        self.stop_reason: str | None = None
        """The fault for which training is over."""
        self._engine, self._env_id, self._on_error, self._seed = engine, env_id, on_error, seed
        self._lost = np.zeros(engine.num_envs, bool)  # failed, and no new episode has begun since
        self._in_a_row: dict[int, int] = {}  # faults without a good step since, of those that have any
        self._observation = np.zeros((engine.num_envs, *engine.single_observation_space.shape), np.float32)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One frame of every environment.

        Returns:
            Observations ``[num_envs, size]`` (the true final ones at an episode's end), rewards, terminated, truncated
            ``[num_envs]``, and infos: where ``infos["_episode"]``, an episode has ended with the raw return
            ``infos["episode"]["r"]`` after ``infos["episode"]["l"]`` frames.
        """
        # Else environments would be blamed for what the learner did.
        if action.shape != self.action_space.shape:
            raise ValueError(f"action must have shape {self.action_space.shape}, got {action.shape}")
        require_finite({"the action": action})
        observation, reward, terminated, truncated, infos = self._engine.step(action)
        reasons = self._engine.failed | _not_finite(observation, reward)
        if reasons or self._in_a_row:
            self.faulty = np.isin(np.arange(self.num_envs), list(reasons))
            observation[self.faulty], reward[self.faulty] = 0, 0
            terminated[self.faulty], truncated[self.faulty] = False, False
            infos["_episode"][self.faulty] = False
            self._in_a_row = {env: faults for env, faults in self._in_a_row.items() if env in reasons}
            self._take_note(reasons, self.counters.frames + self.num_envs)
        self._observation = observation.copy()
        return observation, reward, terminated, truncated, infos

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Begin new episodes everywhere, or where ``options["reset_mask"]``; also returns the others' observations."""
        mask = np.ones(self.num_envs, bool) if options is None else options["reset_mask"]
        observation = self._observation.copy()
        if whole := np.flatnonzero(mask & ~self._lost).tolist():
            rows = self._engine.reset(whole, [None if seed is None else seed + env for env in whole])
            observation[whole] = rows
            self._take_note(self._engine.failed | _not_finite(observation), self.counters.frames)
        for env in np.flatnonzero(mask & self._lost).tolist():
            observation[env] = self._recover(env)
        self._observation = observation.copy()
        return observation, {}

    def episode_states(self) -> list[EpisodeState | None]:
        """What :meth:`restore` takes to go on in the middle of every episode; None where there is no way."""
        envs = np.flatnonzero(~self._lost).tolist()
        states = dict(zip(envs, self._engine.episode_states(envs), strict=True))
        return [states.get(env) for env in range(self.num_envs)]

    def restore(self, states: Sequence[EpisodeState | None]) -> tuple[np.ndarray, np.ndarray]:
        """Go on where :meth:`episode_states` was taken, perhaps in another process. No episode should be over.

        Returns:
            The observations ``[num_envs, size]``, and ``[num_envs]`` which environments stand exactly where they stood.
            In the others a new episode has begun.
        """
        if len(states) != self.num_envs:
            raise ValueError(f"states must hold one entry for each of {self.num_envs} environments, got {len(states)}")
        seeds = [self._fresh_seed(_RESUME, self.counters.frames, env) for env in range(self.num_envs)]
        observation, exact = self._engine.restore(states, seeds)
        self._take_note(self._engine.failed | _not_finite(observation), self.counters.frames)
        for env in np.flatnonzero(self._lost).tolist():
            observation[env], exact[env] = self._recover(env), False
        self._observation = observation.copy()
        return observation, np.array(exact)

    def close(self) -> None:
        """Close all environments."""
        self._engine.close()

    def _recover(self, env: int) -> np.ndarray:
        """The first observation of a new environment in the place of a broken one; zeros if training is to stop."""
        while self._may_restart(env):
            self.counters.env_restarts += 1
            observation = self._engine.restart(env, self._fresh_seed(_RESTART, self.counters.env_restarts))
            reason = self._engine.failed.get(env) or _not_finite(observation[None]).get(0)
            if reason is None:
                self._lost[env] = False
                return observation
            self._take_note({env: reason}, self.counters.frames)
        return np.zeros_like(self._observation[env])

    def _may_restart(self, env: int) -> bool:
        return self._on_error == "restart" and self._in_a_row.get(env, 0) < MOST_IN_A_ROW

    def _take_note(self, reasons: dict[int, str], frame: int) -> None:
        """Say it, or remember it as the end."""
        for env, reason in sorted(reasons.items()):
            self._lost[env] = True
            self._in_a_row[env] = self._in_a_row.get(env, 0) + 1
            message = f"env {env} ({self._env_id}) failed at frame {frame}: it {reason}"
            if self._may_restart(env):
                tqdm.write(f"{message}; a new one takes its place", file=sys.stderr)
            elif self.stop_reason is None:
                again = f", and so did {MOST_IN_A_ROW - 1} others in its place" if self._on_error == "restart" else ""
                self.stop_reason = message + again

    def _fresh_seed(self, *purpose: int) -> int:
        """A seed that nothing else has, below 2**31, and the same whenever the same happens in the same run."""
        return int(np.random.SeedSequence([self._seed, *purpose]).generate_state(1)[0] >> 1)


def _not_finite(observation: np.ndarray, reward: np.ndarray | None = None) -> dict[int, str]:
    """What is nan, infinite or too large in the rows of ``observation`` and ``reward``; nan compares as false."""
    # As a rule all is well, which sums of squares tell soonest: if they are too large, look at every row.
    if all_finite(observation) and (reward is None or np.vdot(reward, reward) <= LARGEST):
        return {}
    reasons = {}
    for env, row in enumerate(observation):
        bad = np.flatnonzero(~np.isfinite(row))
        if len(bad):
            reasons[env] = f"observed {row.flat[bad[0]]} in entry {bad[0]}"
        elif reward is not None and not abs(reward[env]) <= LARGEST:
            reasons[env] = f"gave the reward {reward[env]}"
    return reasons
