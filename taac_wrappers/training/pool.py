"""The environments of envpool, with the vector versions of a method's wrappers around them."""

from __future__ import annotations

import contextlib
import difflib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, create_empty_array

import taac_wrappers.vector
from taac_wrappers.training.engines import EpisodeState
from taac_wrappers.training.structure import Structure, mapped, named


class PooledEnvs:
    """An engine of envpool's environments: faster, but with its own build of the physics.

    Its state cannot be read, so episodes cannot be resumed, and a broken environment is reset but not replaced.

    Args:
        env_id: an id that envpool knows.
        num_envs: how many.
        one: one environment as :func:`taac_wrappers.training.envs.make_env` builds it without a method's wrappers.
        wrap: puts the method's wrappers around it.
        clip: observations are clipped to +-this.
        make_kwargs: arguments of the environment.
    """

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        one: gym.Env,
        wrap: Callable[[gym.Env], gym.Env],
        *,
        clip: float | None,
        make_kwargs: Mapping[str, Any],
    ):
        self._pool = EnvpoolVectorEnv(env_id, num_envs, one, clip, make_kwargs)
        self._envs = with_vector_wrappers(self._pool, one, wrap)
        self.num_envs = num_envs
        self.single_observation_space = self._envs.single_observation_space
        self.single_action_space = self._envs.single_action_space
        self.failed: dict[int, str] = {}
        warnings.warn(
            f"envpool has its own build of {env_id}'s physics: agents learn there and are evaluated in Gymnasium's",
            stacklevel=2,
        )

    def step(self, action: Structure) -> tuple[Structure, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One step of every environment."""
        return self._envs.step(action)

    def reset(self, envs: Sequence[int], seeds: Sequence[int | None]) -> Structure:
        """Begin new episodes in ``envs``; seeds, which envpool takes only for a whole pool, are of all or of none."""
        mask = np.isin(np.arange(self.num_envs), envs)
        seed = None if seeds[0] is None else list(seeds)
        observation, _ = self._envs.reset(seed=seed, options={"reset_mask": mask})  # type: ignore[arg-type]
        return mapped(lambda part: part[list(envs)], observation)

    def restart(self, env: int, seed: int) -> Structure:
        """Reset ``env``: envpool can neither replace nor seed one of its environments."""
        return mapped(lambda part: part[0], self.reset([env], [None]))

    def episode_states(self, envs: Sequence[int]) -> list[EpisodeState | None]:
        """Envpool does not tell."""
        return [None for _ in envs]

    def restore(self, states: Sequence[EpisodeState | None], seeds: Sequence[int]) -> tuple[Structure, list[bool]]:
        """Begin new episodes everywhere."""
        warnings.warn(
            "envpool cannot go on in the middle of an episode: unfinished ones end here, as at a time limit, and new "
            "ones begin; this run is no longer the one that would have gone on without a break",
            stacklevel=2,
        )
        return self.reset(range(self.num_envs), seeds), [False] * self.num_envs

    def close(self) -> None:
        """End the threads."""
        self._pool.end_threads()


def with_vector_wrappers(envs: VectorEnv, one: gym.Env, wrap: Callable[[gym.Env], gym.Env]) -> VectorEnv:
    """Around ``envs`` the vector version of every wrapper that ``wrap`` puts around ``one`` environment."""
    layers = []
    layer = wrap(one)
    while layer is not one:
        assert isinstance(layer, gym.Wrapper)
        layers.append(layer)
        layer = layer.env
    for layer in reversed(layers):
        name = type(layer).__name__
        if name not in taac_wrappers.vector.__all__ or type(layer) is not getattr(taac_wrappers, name):
            raise ValueError(f"--env-engine envpool cannot be used with {name}, which has no vector version")
        assert layer.spec is not None
        arguments = layer.spec.additional_wrappers[-1].kwargs
        envs = getattr(taac_wrappers.vector, name)(envs, **(arguments or {}))
    return envs


class EnvpoolVectorEnv(VectorEnv):
    """Envpool's environments with the spaces of ours; nothing resets by itself.

    An episode's last step returns its true final observation. The step after it would return the next episode's first
    one, with a reward of zero that nobody earned, so ended environments are reset by their number first. An episode
    that terminates in the very frame of its time limit is reported as truncated.

    Args:
        env_id: an id that envpool knows.
        num_envs: how many.
        one: an environment whose spaces these are to have. (envpool's own have bounds that are not those of its
            observations.)
        clip: observations are clipped to +-this.
        make_kwargs: arguments of the environment.
    """

    def __init__(self, env_id: str, num_envs: int, one: gym.Env, clip: float | None, make_kwargs: Mapping[str, Any]):
        self._envpool = _import_envpool()
        spec = self._checked_spec(env_id, make_kwargs)
        with _spaces_read():
            inner, inner_observation = spec.gymnasium_action_space, spec.gymnasium_observation_space
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = one.observation_space, one.action_space
        self.observation_space = batch_space(one.observation_space, num_envs)
        self.action_space = batch_space(one.action_space, num_envs)
        self._env_id, self._clip, self._make_kwargs = env_id, clip, dict(make_kwargs)
        if not isinstance(inner, spaces.Box) or inner.shape != one.action_space.shape:
            raise ValueError(
                f"{env_id} has actions {inner} in envpool, expected a Box of shape {one.action_space.shape}"
            )
        if not self._fits(create_empty_array(inner_observation, n=1)):
            raise ValueError(f"{env_id} observes {inner_observation} in envpool, expected {one.observation_space}")
        self._low, self._high = inner.low, inner.high
        self._center, self._half_range = self._high / 2 + self._low / 2, self._high / 2 - self._low / 2
        self._observation: Structure = None
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs, np.int64)
        self._pool: Any = None

    def _checked_spec(self, env_id: str, make_kwargs: Mapping[str, Any]) -> Any:
        known = self._envpool.list_all_envs()
        if env_id not in known:
            close = difflib.get_close_matches(env_id, known, n=5)
            hint = f"close matches: {', '.join(close)}" if close else "no name comes close"
            raise ValueError(f"--env-engine envpool has no environment {env_id!r}; {hint}")
        spec = self._envpool.make_spec(env_id)
        unknown = sorted(make_kwargs.keys() - set(spec.config._fields))
        if unknown:
            raise ValueError(f"--env-engine envpool makes {env_id} without the arguments {', '.join(unknown)}")
        return self._envpool.make_spec(env_id, **make_kwargs)

    def step(self, actions: np.ndarray) -> tuple[Structure, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One frame of every environment."""
        scaled = np.clip(self._center + self._half_range * actions, self._low, self._high)
        observation, reward, terminated, truncated, info = self._pool.step(scaled)
        assert np.array_equal(info["env_id"], np.arange(self.num_envs))
        self._returns += reward
        self._lengths += 1
        episode = {"r": self._returns.copy(), "l": self._lengths.copy()}
        infos = {"episode": episode, "_episode": terminated | truncated}
        self._observation = self._flat(observation)
        return mapped(np.copy, self._observation), reward.astype(np.float64), terminated, truncated, infos

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Structure, dict[str, Any]]:
        """Begin new episodes, everywhere or where ``options["reset_mask"]``; a list of seeds is for all of them."""
        mask = np.ones(self.num_envs, bool) if options is None else options["reset_mask"]
        if seed is not None:
            self._build(seed if isinstance(seed, list) else [seed + env for env in range(self.num_envs)])
        envs = np.flatnonzero(mask)
        self._returns[envs], self._lengths[envs] = 0, 0
        observation, info = self._pool.reset(envs.astype(np.int32))
        assert np.array_equal(info["env_id"], envs)
        rows = self._flat(observation)
        if mask.all():
            self._observation = rows
        else:
            mapped(lambda kept, new: kept.__setitem__(envs, new), self._observation, rows)
        return mapped(np.copy, self._observation), {}

    def end_threads(self) -> None:
        """Until the next reset with seeds."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def close_extras(self, **kwargs: Any) -> None:
        """Gymnasium's name for it."""
        self.end_threads()

    def _flat(self, observation: Any) -> Structure:
        """``[envs, size]`` of the observations, or of every entry."""

        def flat(_: spaces.Space, rows: np.ndarray) -> np.ndarray:
            vectors = np.reshape(rows, (len(rows), -1)).astype(np.float32)
            return vectors if self._clip is None else vectors.clip(-self._clip, self._clip)

        return mapped(flat, self.single_observation_space, observation)

    def _fits(self, observation: Any) -> bool:
        theirs = {name: rows[0].size for name, rows in named("observation", observation).items()}
        ours = {name: space.shape[0] for name, space in named("observation", self.single_observation_space).items()}
        return ours == theirs

    def _build(self, seeds: Sequence[int | None]) -> None:
        numbers = [seed for seed in seeds if seed is not None]
        if len(numbers) != self.num_envs or max(numbers) >= 2**31:
            raise ValueError(f"envpool takes one seed below 2**31 for each of {self.num_envs} envs, got {list(seeds)}")
        self.end_threads()
        self._pool = self._envpool.make_gymnasium(
            self._env_id, num_envs=self.num_envs, env_seed=numbers, **self._make_kwargs
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
