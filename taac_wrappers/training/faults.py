"""Environments that fail: noticed before anything wrong reaches the replay or the policy, then stopped for or replaced.

A fault is an exception, a nan or inf in an observation or a reward, a wrong shape or dtype, a worker that gives no
answer in time or dies.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, create_empty_array
from tqdm import tqdm

from taac_wrappers.training.counters import Counters
from taac_wrappers.training.engines import Engine, EpisodeState, told
from taac_wrappers.training.finite import all_finite, require_finite
from taac_wrappers.training.structure import Structure, mapped, named
from taac_wrappers.vector._autoreset import reset_mask, reset_seeds
from taac_wrappers.vector._executed import executed_actions

MOST_IN_A_ROW = 10
"""Faults of one environment without a good step in between after which it is not replaced any more."""

REPORTED = ("frames", "executed_action", "repeated", "discount")
"""Infos of the repeat wrappers."""

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


def check_finite(observation: Structure, reward: Any = 0.0) -> None:
    """Raise :class:`EnvFault` if one environment's observation or reward cannot be used."""
    batch = mapped(lambda part: np.asarray(part)[None], observation)
    for reason in _not_finite(batch, np.array([reward], float)).values():
        raise EnvFault(reason)


class WatchedEnvs(VectorEnv):
    """Training environments that are stepped together, and what is done about those that fail.

    Nothing resets by itself: after a step, reset what is done or ``faulty``. Returned arrays belong to the caller.

    On every step infos hold, for every environment, ``frames`` (inner steps that it took), ``executed_action`` and
    ``repeated``, as the wrappers report them; where there is no such wrapper, a step is a frame with its own action.

    Args:
        engine: steps the environments.
        env_id: what messages call them.
        executed_action_space: of one environment's ``executed_action``.
        reports: whether there is a wrapper that reports these infos.
        on_error: ``"stop"``: a fault leaves its message in ``stop_reason``, and training is over. ``"restart"``: the
            next reset puts a new environment in that place, seeded with ``seed`` and the number of restarts so far.
        seed: of the run.
    """

    def __init__(
        self,
        engine: Engine,
        env_id: str,
        executed_action_space: spaces.Space,
        *,
        reports: bool,
        on_error: Literal["stop", "restart"],
        seed: int,
    ):
        self.num_envs = engine.num_envs
        self.single_observation_space = engine.single_observation_space
        self.single_action_space = engine.single_action_space
        self.observation_space = batch_space(engine.single_observation_space, engine.num_envs)
        self.action_space = batch_space(engine.single_action_space, engine.num_envs)
        self.executed_action_space = executed_action_space
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        self.counters = Counters()
        """Whoever counts frames puts its own here: messages name the frame, and restarts are counted."""
        self.faulty = np.zeros(engine.num_envs, bool)
        """[num_envs] Which environments failed in the last step: their rows are zero, their episodes worthless."""
        self.stop_reason: str | None = None
        """The fault for which training is over."""
        self._engine, self._env_id, self._on_error, self._run_seed = engine, env_id, on_error, seed
        self._reports = reports
        self._lost = np.zeros(engine.num_envs, bool)  # failed, and no new episode has begun since
        self._in_a_row: dict[int, int] = {}  # faults without a good step since, of those that have any
        self._observation = create_empty_array(engine.single_observation_space, engine.num_envs)

    def step(self, actions: Structure) -> tuple[Structure, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One step of every environment.

        Returns:
            Observations ``[num_envs, ...]`` (the true final ones at an episode's end), rewards, terminated, truncated
            ``[num_envs]``, and infos as Gymnasium's vector environments have them: where ``infos["_episode"]``, an
            episode has ended with the raw return ``infos["episode"]["r"]`` after ``infos["episode"]["l"]`` frames.
        """
        self._check(actions)  # else environments would be blamed for what the learner did
        observation, reward, terminated, truncated, infos = self._engine.step(actions)
        reasons = self._engine.failed | _not_finite(observation, reward)
        if reasons or self._in_a_row:
            self.faulty = np.isin(np.arange(self.num_envs), list(reasons))
            for part in named("observation", observation).values():
                part[self.faulty] = 0
            reward[self.faulty], terminated[self.faulty], truncated[self.faulty] = 0, False, False
            if "_episode" in infos:
                infos["_episode"][self.faulty] = False
            self._in_a_row = {env: faults for env, faults in self._in_a_row.items() if env in reasons}
            self._take_note(reasons, self.counters.frames + self.num_envs)
        self._observation = mapped(np.copy, observation)
        return observation, reward, terminated, truncated, self._completed(infos, actions)

    def _check(self, actions: Structure) -> None:
        arrays = named("action", actions)
        for name, space in named("action", self.action_space).items():
            shape = np.shape(arrays.get(name, ()))
            if shape != space.shape:
                raise ValueError(f"{name} must have shape {space.shape}, got {shape}")
        require_finite({f"the {name}": array for name, array in arrays.items()})

    def _completed(self, infos: dict[str, Any], actions: Structure) -> dict[str, Any]:
        """With what is reported of every step; rows of environments that failed are one frame of zeros."""
        space, count = self.executed_action_space, self.num_envs
        report = {"frames": np.ones(count, np.int64), "repeated": np.zeros(count, bool)}
        if self._reports:
            report["executed_action"] = np.zeros((count, *space.shape), space.dtype)  # type: ignore[misc]
            report |= {name: infos[name] for name in report if name in infos}
        else:  # what an environment itself says under these names is something else
            report["executed_action"] = np.array(executed_actions({}, self, actions))
            infos = {key: value for key, value in infos.items() if key.removeprefix("_") not in REPORTED}
        for name, nothing in (("frames", 1), ("repeated", False), ("executed_action", 0)):
            report[name][self.faulty] = nothing
        masks = {f"_{name}": np.ones(count, bool) for name in report}
        return {**infos, **report, **masks}

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Structure, dict[str, Any]]:
        """Begin new episodes everywhere, or where ``options["reset_mask"]``; also returns the others' observations."""
        mask, seeds = reset_mask(options, self.num_envs), reset_seeds(seed, self.num_envs)
        observation = mapped(np.copy, self._observation)
        if whole := np.flatnonzero(mask & ~self._lost).tolist():
            _write(observation, whole, self._engine.reset(whole, [seeds[env] for env in whole]))
            self._take_note(self._engine.failed | _not_finite(observation), self.counters.frames)
        for env in np.flatnonzero(mask & self._lost).tolist():
            _write(observation, env, self._recover(env))
        self._observation = mapped(np.copy, observation)
        return observation, {}

    def episode_states(self) -> list[EpisodeState | None]:
        """What :meth:`restore` takes to go on in the middle of every episode; None where there is no way."""
        envs = np.flatnonzero(~self._lost).tolist()
        states = dict(zip(envs, self._engine.episode_states(envs), strict=True))
        return [states.get(env) for env in range(self.num_envs)]

    def restore(self, states: Sequence[EpisodeState | None]) -> tuple[Structure, np.ndarray]:
        """Go on where :meth:`episode_states` was taken, perhaps in another process. No episode should be over.

        Returns:
            The observations ``[num_envs, ...]``, and ``[num_envs]`` which environments stand exactly where they stood.
            In the others a new episode has begun.
        """
        if len(states) != self.num_envs:
            raise ValueError(f"states must hold one entry for each of {self.num_envs} environments, got {len(states)}")
        seeds = [self._fresh_seed(_RESUME, self.counters.frames, env) for env in range(self.num_envs)]
        observation, exact = self._engine.restore(states, seeds)
        self._take_note(self._engine.failed | _not_finite(observation), self.counters.frames)
        for env in np.flatnonzero(self._lost).tolist():
            _write(observation, env, self._recover(env))
            exact[env] = False
        self._observation = mapped(np.copy, observation)
        return observation, np.array(exact)

    def close_extras(self, **kwargs: Any) -> None:
        """Close all environments."""
        self._engine.close()

    def _recover(self, env: int) -> Structure:
        """The first observation of a new environment in the place of a broken one; zeros if training is to stop."""
        while self._may_restart(env):
            self.counters.env_restarts += 1
            observation = self._engine.restart(env, self._fresh_seed(_RESTART, self.counters.env_restarts))
            reason = self._engine.failed.get(env) or _not_finite(mapped(lambda part: part[None], observation)).get(0)
            if reason is None:
                self._lost[env] = False
                return observation
            self._take_note({env: reason}, self.counters.frames)
        return mapped(lambda part: np.zeros_like(part[env]), self._observation)

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
        return int(np.random.SeedSequence([self._run_seed, *purpose]).generate_state(1)[0] >> 1)


def _write(observation: Structure, envs: Any, rows: Structure) -> None:
    mapped(lambda part, new: part.__setitem__(envs, new), observation, rows)


def _not_finite(observation: Structure, reward: np.ndarray | None = None) -> dict[int, str]:
    """What is nan, infinite or too large in the rows of ``observation`` and ``reward``; nan compares as false."""
    # As a rule all is well, which sums of squares tell soonest: if they are too large, look at every row.
    parts = named("observation", observation)
    if all(map(all_finite, parts.values())) and (reward is None or np.vdot(reward, reward) <= LARGEST):
        return {}
    reasons: dict[int, str] = {}
    for env in range(len(next(iter(parts.values())))):
        for name, rows in parts.items():
            bad = np.flatnonzero(~np.isfinite(rows[env]))
            if len(bad):
                place = f"entry {bad[0]}" + (f" of {name.removeprefix('observation.')}" if len(parts) > 1 else "")
                reasons.setdefault(env, f"observed {rows[env].flat[bad[0]]} in {place}")
        if env not in reasons and reward is not None and not abs(reward[env]) <= LARGEST:
            reasons[env] = f"gave the reward {reward[env]}"
    return reasons
