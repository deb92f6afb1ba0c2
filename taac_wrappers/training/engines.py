"""What steps the training environments: this process, or a worker process for each (:mod:`.pool`: envpool's threads).

An engine is told which environments to step or reset and answers with rows of arrays. Nothing resets by itself. An
environment that raises, dies or gives no answer does not raise here: ``failed`` says why, and its row is zero, so that
the others' results are not lost. :class:`taac_wrappers.training.faults.WatchedEnvs` decides what follows.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import CloudpickleWrapper, batch_space, create_empty_array, iterate

from taac_wrappers.training.structure import Structure, mapped

START_SECONDS = 120.0
"""What a worker may need beyond its timeout until its first answer: it has to import and to build its environment."""

CLOSE_SECONDS = 5.0
"""What a worker may need to close its environment."""

EpisodeState = dict[str, Any]
"""What :meth:`taac_wrappers.training.resumable.ReplayableEnv.episode_state` gives."""


class EnvFailure(Exception):
    """An environment that raised, died or gave no answer; the message says which."""


class BadObservation(ValueError):
    """An observation that is not what the environment's space promises."""


class Engine(Protocol):
    """What :class:`~taac_wrappers.training.faults.WatchedEnvs` asks of an engine."""

    num_envs: int
    single_observation_space: spaces.Space
    single_action_space: spaces.Space
    failed: dict[int, str]
    """Environments that failed in the last call, and why."""

    def step(self, action: Structure) -> tuple[Structure, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One step of every environment; infos are stacked as Gymnasium's vector environments do it."""
        ...

    def reset(self, envs: Sequence[int], seeds: Sequence[int | None]) -> Structure:
        """Begin new episodes in ``envs``; returns their first observations ``[len(envs), ...]``."""
        ...

    def restart(self, env: int, seed: int) -> Structure:
        """Put a new environment in the place of ``env`` and begin an episode; returns its first observation."""
        ...

    def episode_states(self, envs: Sequence[int]) -> list[EpisodeState | None]:
        """What it takes to go on in the middle of the episodes of ``envs``; None where that is impossible."""
        ...

    def restore(self, states: Sequence[EpisodeState | None], seeds: Sequence[int]) -> tuple[Structure, list[bool]]:
        """Go on where :meth:`episode_states` was taken, or with a new episode from the seed where that is impossible.

        Returns:
            The observations ``[num_envs, ...]``, and which of them are exactly those of the state.
        """
        ...

    def close(self) -> None:
        """Free everything."""
        ...


# --- One environment at a time ---------------------------------------------------------------------------------------


class LocalEnv:
    """An environment in this process: a request is carried out when its answer is asked for, and may take for ever."""

    def __init__(self, make: Callable[[], gym.Env]):
        self._make = make
        self._env: gym.Env | None = None

    def send(self, method: str, *arguments: Any, patience: int = 1) -> None:
        """Take a request: a function of this module's ``_answer``."""
        self._request = method, arguments

    def receive(self) -> Any:
        """Carry the request out; raises EnvFailure."""
        try:
            if self._env is None:
                self._env = self._make()
            return _answer(self._env, *self._request)
        except Exception as error:
            raise EnvFailure(told(error)) from error

    def close(self) -> None:
        """Close the environment, if it has been built."""
        if self._env is not None:
            self._env.close()


class WorkerEnv:
    """An environment in a process of its own, which may die alone, and is killed if it hangs.

    Args:
        make: builds the environment, over there.
        timeout: seconds that an answer may take.
    """

    def __init__(self, make: Callable[[], gym.Env], timeout: float):
        # Forked from a server without threads: a copy of the learner's process would have its locks in any state.
        methods = multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, CloudpickleWrapper(make)), daemon=True)
        self._process.start()
        theirs.close()
        self._timeout = timeout
        self._starting = True
        atexit.register(self.close)  # runs before multiprocessing's own, which would wait for the worker for ever

    def send(self, method: str, *arguments: Any, patience: int = 1) -> None:
        """Pass a request on, whose answer may take ``patience`` times as long as others."""
        self._deadline = time.monotonic() + self._timeout * patience + START_SECONDS * self._starting
        with contextlib.suppress(OSError):  # it is dead: receive() says so
            self._pipe.send((method, arguments))

    def receive(self) -> Any:
        """Wait for the answer; raises EnvFailure."""
        try:
            if not self._pipe.poll(max(self._deadline - time.monotonic(), 0.0)):
                self._process.kill()
                raise EnvFailure(f"gave no answer within {self._timeout:g} s")
            good, answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            self._process.join(CLOSE_SECONDS)
            raise EnvFailure(f"died: its process ended with exit code {self._process.exitcode}") from error
        self._starting = False
        if not good:
            raise EnvFailure(answer)
        return answer

    def close(self) -> None:
        """Let the worker close its environment and end; kill it if it does not."""
        atexit.unregister(self.close)
        self._pipe.close()
        self._process.join(CLOSE_SECONDS)
        self._process.kill()
        self._process.join()


def _serve(pipe: Connection, make: Callable[[], gym.Env]) -> None:
    """A worker's life: it answers until the other end of the pipe is closed."""
    # They are sent to all processes of a terminal or a job, but it is the learner who decides when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    env = LocalEnv(make)
    with contextlib.suppress(EOFError, OSError):
        while True:
            method, arguments = pipe.recv()
            env.send(method, *arguments)
            try:
                answer = True, env.receive()
            except EnvFailure as failure:
                answer = False, str(failure)
            try:
                pipe.send(answer)
            except OSError:
                raise
            except Exception as error:  # it is pickled before anything is sent
                pipe.send((False, f"gave an info that cannot be sent to the learner: {error}"))
    env.close()


def _answer(env: Any, method: str, arguments: tuple[Any, ...]) -> Any:
    """Call one environment, and keep of its answer what a learner needs."""
    if method == "step":
        observation, reward, terminated, truncated, info = env.step(*arguments)
        return observation, float(reward), bool(terminated), bool(truncated), info
    if method == "reset":
        return env.reset(seed=arguments[0])[0]
    if method == "restore":
        observation, _, exact = env.restore(*arguments)
        return observation, exact
    return env.episode_state()


def told(error: Exception) -> str:
    """What went wrong and where, in one line, such as ``raised ValueError: bad angle (walker.py, line 7)``."""
    if isinstance(error, BadObservation):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    message = " ".join(str(error).split())
    return f"raised {type(error).__name__}: {message} ({os.path.basename(place.filename)}, line {place.lineno})"


class EnvByEnv:
    """Environments that are called one by one, in this process or in workers.

    Args:
        host: makes the :class:`LocalEnv` or :class:`WorkerEnv` that one environment lives in.
        num_envs: how many.
        observation_space: of each.
        action_space: of each.
    """

    def __init__(
        self,
        host: Callable[[], LocalEnv | WorkerEnv],
        num_envs: int,
        observation_space: spaces.Space,
        action_space: spaces.Space,
    ):
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = observation_space, action_space
        self.failed: dict[int, str] = {}
        self._action_space = batch_space(action_space, num_envs)
        self._host = host
        self._hosts: list[LocalEnv | WorkerEnv] = []  # built at the first reset, when somebody is there to close them
        self._stacker: VectorEnv = VectorEnv()
        self._stacker.num_envs = num_envs

    def step(self, action: Structure) -> tuple[Structure, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One step of every environment."""
        count = self.num_envs
        observation, reward, infos = self._no_observations(), np.zeros(count), dict[str, Any]()
        terminated, truncated = np.zeros(count, bool), np.zeros(count, bool)
        for host, row in zip(self._hosts, iterate(self._action_space, action), strict=True):
            host.send("step", row)
        for env, answer in self._answers(range(count)):
            row, reward[env], terminated[env], truncated[env], info = answer
            self._write(observation, env, row)
            self._stack(infos, env, info)
        return observation, reward, terminated, truncated, infos

    def reset(self, envs: Sequence[int], seeds: Sequence[int | None]) -> Structure:
        """Begin new episodes in ``envs``."""
        self._build()
        for env, seed in zip(envs, seeds, strict=True):
            self._hosts[env].send("reset", seed)
        observation = self._no_observations()
        for env, answer in self._answers(envs):
            self._write(observation, env, answer)
        return mapped(lambda part: part[list(envs)], observation)

    def restart(self, env: int, seed: int) -> Structure:
        """Put a new environment in the place of ``env``."""
        with contextlib.suppress(Exception):  # it is broken: perhaps it cannot even be closed
            self._hosts[env].close()
        self._hosts[env] = self._host()
        return mapped(lambda part: part[0], self.reset([env], [seed]))

    def episode_states(self, envs: Sequence[int]) -> list[EpisodeState | None]:
        """What it takes to go on; None where an environment does not even answer that."""
        for env in envs:
            self._hosts[env].send("episode_state")
        states = dict(self._answers(envs))
        return [states.get(env) for env in envs]

    def restore(self, states: Sequence[EpisodeState | None], seeds: Sequence[int]) -> tuple[Structure, list[bool]]:
        """Replay the recorded episodes."""
        self._build()
        for host, state, seed in zip(self._hosts, states, seeds, strict=True):
            if state is None:
                host.send("reset", seed)
            else:
                host.send("restore", state, patience=1 + len(state["actions"]))
        observation, exact = self._no_observations(), [False] * self.num_envs
        for env, answer in self._answers(range(self.num_envs)):
            row, exact[env] = (answer, False) if states[env] is None else answer
            self._write(observation, env, row)
        return observation, exact

    def close(self) -> None:
        """Close every environment."""
        for host in self._hosts:
            with contextlib.suppress(Exception):  # all others have to be closed too
                host.close()

    def _build(self) -> None:
        if not self._hosts:
            self._hosts = [self._host() for _ in range(self.num_envs)]

    def _answers(self, envs: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """The answers of those that answer; the others are in ``failed``."""
        self.failed = {}
        for env in envs:
            try:
                answer = self._hosts[env].receive()
            except EnvFailure as failure:
                self.failed[env] = str(failure)
            else:
                yield env, answer

    def _no_observations(self) -> Structure:
        return create_empty_array(self.single_observation_space, self.num_envs)

    def _write(self, observation: Structure, env: int, row: Structure) -> None:
        mapped(lambda rows, new: rows.__setitem__(env, new), observation, row)

    def _stack(self, infos: dict[str, Any], env: int, info: dict[str, Any]) -> None:
        try:
            self._stacker._add_info(infos, info, env)
        except Exception as error:  # of whatever kind: an info may hold anything
            self.failed[env] = f"gave an info that cannot be stacked with the others': {error}"
