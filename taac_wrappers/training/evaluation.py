"""Run an agent for some episodes and report how well it does and how much it repeats."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import RecordEpisodeStatistics

from taac_wrappers.repeat_statistics import RepeatStatisticsWrapper
from taac_wrappers.training.envs import holds
from taac_wrappers.training.faults import check_finite, env_faults
from taac_wrappers.training.structure import mapped

LONGEST_EPISODE = 10_000
"""Frames at which an episode of an environment without a time limit is cut: it may never end by itself."""

LONGEST_FILM = 1_000
"""The same where it is filmed: all pictures of a film are kept in memory until its end."""


class Agent(Protocol):
    """What is evaluated: an observation of the environment gives an action of it, both batched."""

    def act(self, observation: Any, deterministic: bool = False) -> Any:
        """Choose actions; ``deterministic``: by the mode of every stage."""


def require_statistics(env: gym.Env) -> None:
    """Raise ``ValueError`` if an environment does not report how much was repeated."""
    if not holds(env, RepeatStatisticsWrapper):
        raise ValueError(f"wrap(env) must hold a RepeatStatisticsWrapper, which reports repetition, got {env}")


def evaluate(
    agent: Agent,
    env: gym.Env,
    episodes: int,
    *,
    seed: int,
    before_step: Callable[[int], object] = lambda episode: None,
) -> dict[str, Any]:
    """Play ``episodes`` episodes in ``env``, the first of them reset with ``seed``, so that equal calls agree.

    Args:
        agent: judged by its mode (TAAC: deterministic in both stages).
        env: an environment of its own, with the agent's wrappers and a `RepeatStatisticsWrapper` on top of them. Where
            these change rewards (sums, of SAC-Nrep, are discounted), a `RecordEpisodeStatistics` below them tells the
            raw return; that of `make_env` does.
        episodes: how many.
        seed: of the first episode's reset; the environment's own randomness goes on from there.
        before_step: is told before every step how many episodes have been begun; what it raises ends the evaluation.

    Returns:
        ``score`` (mean return), ``score_std``, ``length`` (mean frames), ``returns`` (list), ``repeat_fraction``
        (repeated frames of all frames), ``apr`` (frames per new action; all frames if there was none), ``afr`` (mean
        over episodes); and ``success``, the share of episodes with ``info["is_success"]`` at their last frame, if that
        is reported.

    Raises:
        EnvFault: the environment raised, or returned something that is not finite.

    >>> from taac_wrappers import RepeatStatisticsWrapper
    >>> from taac_wrappers.training.envs import make_env
    >>> class Hold:
    ...     def act(self, observation, deterministic=False):
    ...         return np.ones((len(observation), 1), np.float32)
    >>> result = evaluate(Hold(), make_env("Pendulum-v1", RepeatStatisticsWrapper), episodes=2, seed=0)
    >>> result["length"], result["repeat_fraction"], result["afr"]
    (200.0, 0.995, 0.0)
    """
    if not isinstance(episodes, int) or isinstance(episodes, bool) or episodes < 1:
        raise ValueError(f"episodes must be a positive integer, got {episodes!r}")
    played = [
        _play(agent, env, seed if episode == 1 else None, functools.partial(before_step, episode))
        for episode in range(1, episodes + 1)
    ]
    returns, infos = [episode_return for episode_return, _ in played], [info for _, info in played]
    repeats = [info["repeat"] for info in infos]
    frames = sum(repeat["frames"] for repeat in repeats)
    new_frames = sum(round(repeat["frames"] * (1 - repeat["fraction"])) for repeat in repeats)
    result: dict[str, Any] = {
        "score": float(np.mean(returns)),
        "score_std": float(np.std(returns)),
        "length": frames / episodes,
        "returns": returns,
        "repeat_fraction": 1 - new_frames / frames,
        "apr": frames / max(new_frames, 1),  # finite, unlike metrics.apr, because it is logged and plotted
        "afr": float(np.mean([repeat["afr"] for repeat in repeats])),
    }
    if all("is_success" in info for info in infos):
        result["success"] = float(np.mean([info["is_success"] for info in infos]))
    return result


def _play(
    agent: Agent, env: gym.Env, seed: int | None, before_step: Callable[[], object]
) -> tuple[float, dict[str, Any]]:
    """One episode: its return, and the info of its last step."""
    with env_faults():
        observation, _ = env.reset(seed=seed)
        check_finite(observation)
    episode_return, done = 0.0, False
    while not done:
        before_step()
        batch = mapped(lambda part: np.asarray(part)[None], observation)
        action = mapped(lambda part: part[0], agent.act(batch, deterministic=True))
        with env_faults():
            observation, reward, terminated, truncated, info = env.step(action)
            check_finite(observation, reward)
        episode_return += float(reward)
        done = terminated or truncated
    if holds(env, RecordEpisodeStatistics):
        episode_return = float(info["episode"]["r"])
    return episode_return, info
