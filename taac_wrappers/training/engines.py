"""What steps the training environments: this process, a worker process for each of them, or envpool's threads.

An engine is told which environments to step or reset and answers with rows of arrays. Nothing resets by itself. An
environment that raises, dies or gives no answer does not raise here: ``failed`` says why, and its row is zero, so that
the others' results are not lost. :class:`taac_wrappers.training.faults.WatchedEnvs` decides what follows.
"""

from __future__ import annotations

import atexit
import contextlib
import difflib
import multiprocessing
import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import CloudpickleWrapper, create_empty_array

START_SECONDS = 120.0
"""What a worker may need beyond its timeout until its first answer: it has to import and to build its environment."""

CLOSE_SECONDS = 5.0
"""What a worker may need to close its environment."""

EpisodeState = dict[str, Any]
"""What :meth:`taac_wrappers.training.envs.ReplayableEnv.episode_state` gives."""


class EnvFailure(Exception):
    """An environment that raised, died or gave no answer; the message says which."""


class BadObservation(ValueError):
    """An observation that is not what the environment's space promises."""


class Engine(Protocol):
    """What :class:`~taac_wrappers.training.faults.WatchedEnvs` asks of an engine."""

    num_envs: int
    single_observation_space: spaces.Box
    single_action_space: spaces.Box
    failed: dict[int, str]
    """Environments that failed in the last call, and why."""

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One frame of every environment; ``infos["episode"]`` holds ``r`` and ``l`` where ``infos["_episode"]``."""
        ...

    def reset(self, envs: Sequence[int], seeds: Sequence[int | None]) -> np.ndarray:
        """Begin new episodes in ``envs``; returns their first observations ``[len(envs), size]``."""
        ...

    def restart(self, env: int, seed: int) -> np.ndarray:
        """Put a new environment in the place of ``env`` and begin an episode; returns its first observation."""
        ...

    def episode_states(self, envs: Sequence[int]) -> list[EpisodeState | None]:
        """What it takes to go on in the middle of the episodes of ``envs``; None where that is impossible."""
        ...

    def restore(self, states: Sequence[EpisodeState | None], seeds: Sequence[int]) -> tuple[np.ndarray, list[bool]]:
        """Go on where :meth:`episode_states` was taken, or with a new episode from the seed where that is impossible.

        Returns:
            The observations ``[num_envs, size]``, and which of them are exactly those of the state.
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
            pipe.send(answer)
    env.close()


def _answer(env: Any, method: str, arguments: tuple[Any, ...]) -> Any:
    """Call one environment, and keep of its answer what a learner needs."""
    if method == "step":
        observation, reward, terminated, truncated, info = env.step(*arguments)
        episode = info.get("episode")
        ended = None if episode is None else (float(episode["r"]), int(episode["l"]))
        return observation, float(reward), bool(terminated), bool(truncated), ended
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
        observation_space: spaces.Box,
        action_space: spaces.Box,
    ):
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = observation_space, action_space
        self.failed: dict[int, str] = {}
        self._host = host
        self._hosts: list[LocalEnv | WorkerEnv] = []  # built at the first reset, when somebody is there to close them

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One frame of every environment."""
        count = self.num_envs
        observation, reward = self._no_observations(), np.zeros(count)
        terminated, truncated, ended = np.zeros(count, bool), np.zeros(count, bool), np.zeros(count, bool)
        returns, lengths = np.zeros(count), np.zeros(count, np.int64)
        for host, row in zip(self._hosts, action, strict=True):
            host.send("step", row)
        for env, answer in self._answers(range(count)):
            observation[env], reward[env], terminated[env], truncated[env], episode = answer
            if episode is not None:
                ended[env], (returns[env], lengths[env]) = True, episode
        return observation, reward, terminated, truncated, {"episode": {"r": returns, "l": lengths}, "_episode": ended}

    def reset(self, envs: Sequence[int], seeds: Sequence[int | None]) -> np.ndarray:
        """Begin new episodes in ``envs``."""
        self._build()
        for env, seed in zip(envs, seeds, strict=True):
            self._hosts[env].send("reset", seed)
        observation = self._no_observations()
        for env, answer in self._answers(envs):
            observation[env] = answer
        return observation[list(envs)]

    def restart(self, env: int, seed: int) -> np.ndarray:
        """Put a new environment in the place of ``env``."""
        with contextlib.suppress(Exception):  # it is broken: perhaps it cannot even be closed
            self._hosts[env].close()
        self._hosts[env] = self._host()
        return self.reset([env], [seed])[0]

    def episode_states(self, envs: Sequence[int]) -> list[EpisodeState | None]:
        """What it takes to go on; None where an environment does not even answer that."""
        for env in envs:
            self._hosts[env].send("episode_state")
        states = dict(self._answers(envs))
        return [states.get(env) for env in envs]

    def restore(self, states: Sequence[EpisodeState | None], seeds: Sequence[int]) -> tuple[np.ndarray, list[bool]]:
        """Replay the recorded episodes."""
        self._build()
        for host, state, seed in zip(self._hosts, states, seeds, strict=True):
            if state is None:
                host.send("reset", seed)
            else:
                host.send("restore", state, patience=1 + len(state["actions"]))
        observation, exact = self._no_observations(), [False] * self.num_envs
        for env, answer in self._answers(range(self.num_envs)):
            observation[env], exact[env] = (answer, False) if states[env] is None else answer
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

    def _no_observations(self) -> np.ndarray:
        return np.zeros((self.num_envs, *self.single_observation_space.shape), np.float32)


# --- envpool ---------------------------------------------------------------------------------------------------------


class PooledEnvs:
    """The environments of envpool, stepped by its threads: faster, but with its own build of the physics.

    An episode's last step returns its true final observation. The step after it would return the next episode's first
    one, with a reward of zero that nobody earned, so ended environments are reset by their number first. An episode
    that terminates in the very frame of its time limit is reported as truncated.

    Its state cannot be read, so episodes cannot be resumed, and a broken environment is reset but not replaced.

    Args:
        env_id: an id that envpool knows.
        num_envs: how many.
        observation_space: flat, as :func:`taac_wrappers.training.envs.make_env` has it. (envpool's own has bounds that
            are not those of its observations.)
        action_space: in [-1, 1], likewise.
        flatten: makes ``[envs, size]`` of envpool's observations.
        make_kwargs: arguments of the task.
    """

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        observation_space: spaces.Box,
        action_space: spaces.Box,
        *,
        flatten: Callable[[Any], np.ndarray],
        make_kwargs: Mapping[str, Any],
    ):
        self._envpool = _import_envpool()
        spec = self._checked_spec(env_id, make_kwargs)
        with _spaces_read():
            inner, inner_observation = spec.gymnasium_action_space, spec.gymnasium_observation_space
        if not isinstance(inner, spaces.Box) or inner.shape != action_space.shape:
            raise ValueError(f"{env_id} has actions {inner} in envpool, expected a Box of shape {action_space.shape}")
        if flatten(create_empty_array(inner_observation, n=1)).shape[1:] != observation_space.shape:
            raise ValueError(f"{env_id} observes {inner_observation} in envpool, expected {observation_space}")
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = observation_space, action_space
        self.failed: dict[int, str] = {}
        self._env_id, self._make_kwargs, self._flatten = env_id, dict(make_kwargs), flatten
        self._low, self._high = inner.low, inner.high
        self._center, self._half_range = self._high / 2 + self._low / 2, self._high / 2 - self._low / 2
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs, np.int64)
        self._pool: Any = None
        warnings.warn(
            f"envpool has its own build of {env_id}'s physics: agents learn there and are evaluated in Gymnasium's",
            stacklevel=2,
        )

    def _checked_spec(self, env_id: str, make_kwargs: Mapping[str, Any]) -> Any:
        known = self._envpool.list_all_envs()
        if env_id not in known:
            close = difflib.get_close_matches(env_id, known, n=5)
            hint = f"close matches: {', '.join(close)}" if close else "no name comes close"
            raise ValueError(f"--env-engine envpool has no environment {env_id!r}; {hint}")
        spec = self._envpool.make_spec(env_id)
        unknown = sorted(make_kwargs.keys() - set(spec.config._fields))
        if unknown:
            raise ValueError(f"--env-engine envpool cannot make {env_id} as the task needs it: no {', '.join(unknown)}")
        return self._envpool.make_spec(env_id, **make_kwargs)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One frame of every environment."""
        scaled = np.clip(self._center + self._half_range * action, self._low, self._high)
        observation, reward, terminated, truncated, info = self._pool.step(scaled)
        assert np.array_equal(info["env_id"], np.arange(self.num_envs))
        self._returns += reward
        self._lengths += 1
        episode = {"r": self._returns.copy(), "l": self._lengths.copy()}
        infos = {"episode": episode, "_episode": terminated | truncated}
        return self._flatten(observation), reward.astype(np.float64), terminated, truncated, infos

    def reset(self, envs: Sequence[int], seeds: Sequence[int | None]) -> np.ndarray:
        """Begin new episodes in ``envs``; seeds, which envpool takes only for a whole pool, are of all or of none."""
        if seeds[0] is not None:
            self._build([seed for seed in seeds if seed is not None])
        self._returns[list(envs)], self._lengths[list(envs)] = 0, 0
        observation, info = self._pool.reset(np.asarray(envs, np.int32))
        assert np.array_equal(info["env_id"], envs)
        return self._flatten(observation)

    def restart(self, env: int, seed: int) -> np.ndarray:
        """Reset ``env``: envpool can neither replace nor seed one of its environments."""
        return self.reset([env], [None])[0]

    def episode_states(self, envs: Sequence[int]) -> list[EpisodeState | None]:
        """Envpool does not tell."""
        return [None for _ in envs]

    def restore(self, states: Sequence[EpisodeState | None], seeds: Sequence[int]) -> tuple[np.ndarray, list[bool]]:
        """Begin new episodes everywhere."""
        warnings.warn(
            "envpool cannot go on in the middle of an episode: unfinished ones end here, as at a time limit, and new "
            "ones begin; this run is no longer the one that would have gone on without a break",
            stacklevel=2,
        )
        return self.reset(range(self.num_envs), seeds), [False] * self.num_envs

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _build(self, seeds: Sequence[int]) -> None:
        if len(seeds) != self.num_envs or max(seeds) >= 2**31:
            raise ValueError(f"envpool takes one seed below 2**31 for each of {self.num_envs} envs, got {list(seeds)}")
        self.close()
        self._pool = self._envpool.make_gymnasium(
            self._env_id, num_envs=self.num_envs, env_seed=list(seeds), **self._make_kwargs
        )
        with _spaces_read():
            self._pool.observation_space  # noqa: B018  computed once, at the first look


@contextlib.contextmanager
def _spaces_read() -> Iterator[None]:
    """Where envpool computes its spaces: it warns about bounds whose precision it lowers itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _import_envpool() -> Any:
    try:
        import envpool
    except ImportError as error:
        raise ImportError(
            '--env-engine envpool needs envpool: pip install "taac-wrappers[envpool]" (Python 3.11 or later)'
        ) from error
    return envpool
