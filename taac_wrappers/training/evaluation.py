"""Run a policy for some episodes and report how well it does and how much it repeats."""

from __future__ import annotations

from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from taac_wrappers.training.faults import check_finite, env_faults
from taac_wrappers.training.metrics import afr


class Policy(Protocol):
    """What is evaluated: maps one observation ``[size]`` to one action ``[size]`` and may remember its last action.

    A policy that decides between acting and repeating also has ``switch``, an array whose single entry says what the
    last call decided (0: it repeated). Without it, an action that equals the previous one bit by bit is a repetition.
    """

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        """Choose an action."""

    def reset(self) -> None:
        """Forget the previous episode."""


def evaluate(policy: Policy, env: gym.Env, episodes: int, *, seed: int) -> dict[str, Any]:
    """Play ``episodes`` episodes in ``env``, the first of them reset with ``seed``, so that equal calls agree.

    Args:
        policy: the policy, in the mode it is to be judged in (TAAC: deterministic in both stages).
        env: an environment of its own, from :func:`taac_wrappers.training.envs.make_env`: its rewards are the raw ones.
        episodes: how many.
        seed: of the first episode's reset; the environment's own randomness goes on from there.

    Returns:
        ``score`` (mean return), ``score_std``, ``length`` (mean frames), ``returns`` (list), ``repeat_fraction``
        (repeated frames of all frames), ``apr`` (frames per new action; all frames if there was none), ``afr`` (mean
        over episodes); and ``success``, the share of episodes with ``info["is_success"]`` at their last frame, if that
        is reported.

    Raises:
        EnvFault: the environment raised, or returned something that is not finite.

    >>> from taac_wrappers.training.envs import make_env
    >>> class Hold:
    ...     def __call__(self, observation):
    ...         return np.ones(1, np.float32)
    ...     def reset(self):
    ...         pass
    >>> result = evaluate(Hold(), make_env("Pendulum-v1"), episodes=2, seed=0)
    >>> result["length"], result["repeat_fraction"], result["afr"]
    (200.0, 0.995, 0.0)
    """
    if not isinstance(episodes, int) or isinstance(episodes, bool) or episodes < 1:
        raise ValueError(f"episodes must be a positive integer, got {episodes!r}")
    played = [_play(policy, env, seed if episode == 0 else None) for episode in range(episodes)]
    returns = [episode["return"] for episode in played]
    lengths = [len(episode["actions"]) for episode in played]
    frames, repeated = sum(lengths), sum(episode["repeated"] for episode in played)
    result: dict[str, Any] = {
        "score": float(np.mean(returns)),
        "score_std": float(np.std(returns)),
        "length": float(np.mean(lengths)),
        "returns": returns,
        "repeat_fraction": repeated / frames,
        "apr": frames / max(frames - repeated, 1),  # finite, unlike metrics.apr, because it is logged and plotted
        "afr": float(np.mean([afr(episode["actions"]) for episode in played])),
    }
    successes = [episode["success"] for episode in played if episode["success"] is not None]
    if successes:
        result["success"] = float(np.mean(successes))
    return result


def _play(policy: Policy, env: gym.Env, seed: int | None) -> dict[str, Any]:
    """One episode: its return, actions ``[frames, size]``, repeated frames, and success (None: not reported)."""
    with env_faults():
        observation, _ = env.reset(seed=seed)
        check_finite(observation)
    policy.reset()
    actions: list[np.ndarray] = []
    episode_return, repeated, done = 0.0, 0, False
    while not done:
        action = np.array(policy(observation))  # a copy: a policy may write the next action into the same array
        repeated += _repeats(policy, action, actions)
        actions.append(action)
        with env_faults():
            observation, reward, terminated, truncated, info = env.step(action)
            check_finite(observation, reward)
        episode_return += float(reward)
        done = terminated or truncated
    success = info.get("is_success")
    return {
        "return": episode_return,
        "actions": np.stack(actions),
        "repeated": repeated,
        "success": None if success is None else float(success),
    }


def _repeats(policy: Policy, action: np.ndarray, earlier: list[np.ndarray]) -> bool:
    switch = getattr(policy, "switch", None)
    if switch is not None:
        return not np.asarray(switch).item()
    return bool(earlier) and action.tobytes() == earlier[-1].tobytes()
