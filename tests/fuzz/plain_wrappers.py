"""The wrappers once more, slow and obvious: histories in lists, one random number at a time, everything recounted.

They take actions as their space samples them and check nothing.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
from fuzz_tools import array_like, bounds, zeros_inside
from gymnasium import spaces
from toy_envs import ToyEnv

Result = tuple[Any, float, bool, bool, dict[str, Any]]


class PlainEnv:
    """The environment itself, at the bottom."""

    def __init__(self, env: ToyEnv):
        self.env = env
        self.action_space = env.action_space
        is_array = array_like(self.action_space)
        self.executed_space = self.action_space if is_array else spaces.flatten_space(self.action_space)
        is_box = isinstance(env.observation_space, spaces.Box)
        self.observation_dtype = env.observation_space.dtype if is_box else None  # that of a Box, else None

    def reset(self, seed: int | None) -> Any:
        return self.env.reset(seed=seed)[0]

    def step(self, action: Any) -> Result:
        return self.env.step(action)


class Plain:
    """A layer that passes everything on."""

    def __init__(self, inner: Any):
        self.inner = inner
        self.action_space, self.executed_space = inner.action_space, inner.executed_space
        self.observation_dtype = inner.observation_dtype

    def reset(self, seed: int | None) -> Any:
        return self.inner.reset(seed)

    def step(self, action: Any) -> Result:
        return self.inner.step(action)

    def executed(self, info: dict[str, Any], action: Any) -> np.ndarray:
        space = self.inner.action_space
        return np.array(info.get("executed_action", action if array_like(space) else spaces.flatten(space, action)))


class PlainNRepeat(Plain):
    def __init__(self, inner: Any, n: int, gamma: float | None = None):
        super().__init__(inner)
        self.n, self.gamma = n, gamma

    def step(self, action: Any) -> Result:
        return self.repeat(action, self.n)

    def repeat(self, action: Any, times: int) -> Result:
        results: list[Result] = []
        while len(results) < times and not (results and (results[-1][2] or results[-1][3])):
            results.append(self.inner.step(deepcopy(action)))
        total, frames, discount = 0.0, 0, 1.0
        for _, reward, _, _, info in results:
            total += reward if self.gamma is None else discount * reward
            frames += info.get("frames", 1)
            if "discount" in info:
                discount *= info["discount"]
            elif self.gamma is not None:
                discount = self.gamma**frames
        observation, _, terminated, truncated, last = results[-1]
        info = {**last, "frames": frames, "executed_action": self.executed(last, action)}
        info["repeated"] = results[0][-1].get("repeated", False)
        if self.gamma is not None or "discount" in last:
            info["discount"] = discount
        return observation, total, terminated, truncated, info


class PlainKRep(PlainNRepeat):
    def __init__(self, inner: Any, max_repeat: int, gamma: float | None = None, encoding: str = "dict"):
        super().__init__(inner, max_repeat, gamma)
        choice = spaces.Discrete(max_repeat, start=1)
        self.action_space = pair_space(inner.action_space, "repeat", choice, encoding)

    def step(self, action: Any) -> Result:
        if isinstance(action, dict):
            return self.repeat(action["action"], int(action["repeat"]))
        upper_ends = [-1 + 2 * k / self.n for k in range(1, self.n)]
        times = 1 + sum(float(action[-1]) >= end for end in upper_ends)
        return self.repeat(action[:-1].reshape(self.inner.action_space.shape), times)


class PlainHybrid(Plain):
    def __init__(self, inner: Any, encoding: str = "dict"):
        super().__init__(inner)
        self.action_space = pair_space(inner.action_space, "switch", spaces.Discrete(2), encoding)

    def reset(self, seed: int | None) -> Any:
        self.previous, self.previous_executed = zeros_inside(self.inner.action_space), None
        return super().reset(seed)

    def step(self, action: Any) -> Result:
        if isinstance(action, dict):
            new, acts = action["action"], action["switch"] == 1
        else:
            new, acts = action[:-1].reshape(self.previous.shape), action[-1] > 0
        self.previous = np.array(new) if acts else self.previous
        *result, info = self.inner.step(self.previous.copy())
        return (*result, report(self, info, self.previous, not acts))


def stream_words(rng: np.random.Generator) -> list[int]:
    """The place of a generator as `ZetaRepeatWrapper.state_dict` tells it: 128 bits, and 128 of the increment."""
    place: Any = rng.bit_generator.state["state"]
    data = place["state"].to_bytes(16, "little") + place["inc"].to_bytes(16, "little")
    return np.frombuffer(data, "<u4").tolist()


def generator_at(words: list[int]) -> np.random.Generator:
    data = np.array(words, "<u4").tobytes()
    place = {"state": int.from_bytes(data[:16], "little"), "inc": int.from_bytes(data[16:], "little")}
    rng = np.random.default_rng(0)
    rng.bit_generator.state = {"bit_generator": "PCG64", "state": place, "has_uint32": 0, "uinteger": 0}
    return rng


class PlainZeta(Plain):
    def __init__(self, inner: Any, epsilon: Any = 0.01, mu: float = 2.0, max_repeat: int = 5):
        super().__init__(inner)
        self.schedule = epsilon if isinstance(epsilon, tuple) else (epsilon, epsilon, 0)
        weights = np.arange(1, max_repeat + 1, dtype=np.float64) ** -mu
        self.sums = np.cumsum(weights / weights.sum())
        self.frames = 0

    def reset(self, seed: int | None) -> Any:
        if seed is not None:
            self.rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0x7A657461,)))
        self.held, self.previous_executed = [], None  # the frames to come of an exploratory action
        return super().reset(seed)

    def epsilon(self) -> float:
        start, end, frames = self.schedule
        return end if self.frames >= frames else start + (end - start) * self.frames / frames

    def draw(self) -> list[Any]:
        low, high = bounds(self.inner.action_space)
        dtype = self.inner.action_space.dtype
        if isinstance(self.inner.action_space, spaces.Discrete):
            action = dtype.type(low + int(self.rng.random() * self.inner.action_space.n))
        else:
            low, high = low.astype(np.float64), high.astype(np.float64)
            share = np.array([self.rng.random() for _ in range(low.size)]).reshape(low.shape)
            action = np.asarray(np.clip(share * high + (1 - share) * low, low, high), dtype)
        drawn = self.rng.random()
        return [action] * min(1 + sum(drawn >= end for end in self.sums), len(self.sums))

    def step(self, action: Any) -> Result:
        holds = bool(self.held)
        if not holds and self.rng.random() < self.epsilon():
            self.held = self.draw()
        exploring = bool(self.held)
        current = self.held.pop() if exploring else action
        *result, info = self.inner.step(current.copy())
        info = report(self, info, current, holds)
        self.frames += info["frames"]
        return (*result, {**info, "exploring": exploring})

    def load(self, state: dict[str, Any]) -> None:
        self.frames = state["frames"]
        self.rng = generator_at(state["stream"])


class PlainPrev(Plain):
    def __init__(self, inner: Any, key: str, flatten: bool = True, initial_action: Any = None):
        super().__init__(inner)
        self.key, self.flatten = key, flatten
        space, dtype = self.executed_space, inner.observation_dtype
        self.one_hot = flatten and isinstance(space, (spaces.Discrete, spaces.MultiDiscrete))
        self.joined = flatten and dtype is not None
        if initial_action is not None:
            self.initial = self.shown(np.array(initial_action, space.dtype))
        else:
            self.initial = np.zeros(spaces.flatdim(space), np.float32)
            self.initial = self.initial if self.one_hot else self.shown(zeros_inside(space))
        if self.joined and not (dtype.kind == "f" or self.one_hot):
            dtype = np.result_type(dtype, self.initial.dtype)
        self.observation_dtype = dtype if self.joined else None

    def shown(self, executed: np.ndarray) -> Any:
        if self.one_hot:
            low, high = (end.ravel() for end in bounds(self.executed_space))
            columns = [np.arange(a, b + 1) == entry for a, b, entry in zip(low, high, executed.ravel(), strict=True)]
            return np.concatenate(columns).astype(np.float32)
        if self.flatten:
            return executed.ravel()
        return executed[()] if isinstance(self.executed_space, spaces.Discrete) else executed

    def observe(self, observation: Any, shown: Any) -> Any:
        if self.joined:
            return np.append(observation, shown).astype(self.observation_dtype)
        entries = observation if isinstance(observation, dict) else {"observation": observation}
        return {**entries, self.key: shown}

    def reset(self, seed: int | None) -> Any:
        return self.observe(super().reset(seed), self.initial)

    def step(self, action: Any) -> Result:
        observation, *result, info = self.inner.step(action)
        return (self.observe(observation, self.shown(self.executed(info, action))), *result, info)


class PlainNormalizer(Plain):
    def __init__(self, inner: Any, clip: float | None = 5.0, speed: float = 8.0, update: bool = True):
        super().__init__(inner)
        self.clip, self.speed, self.update = clip, speed, update
        self.load({"count": 0, "first_moment": 0.0, "second_moment": 0.0})

    def load(self, state: dict[str, Any]) -> None:
        self.begin, self.rewards = state, []

    def moments(self) -> tuple[float, float]:
        first, second = self.begin["first_moment"], self.begin["second_moment"]
        for count, reward in enumerate(self.rewards, start=self.begin["count"]):
            eta = self.speed / (count + self.speed)
            first, second = (1 - eta) * first + eta * reward, (1 - eta) * second + eta * reward**2
        return first, second

    def step(self, action: Any) -> Result:
        observation, reward, terminated, truncated, info = self.inner.step(action)
        if self.update:
            self.rewards.append(reward)
        first, second = self.moments()
        normalized = (reward - first) / (max(second - first**2, 0.0) + 1e-10) ** 0.5
        if self.clip is not None:
            normalized = min(max(normalized, -self.clip), self.clip)
        return observation, normalized, terminated, truncated, {**info, "raw_reward": reward}


class PlainStatistics(Plain):
    def __init__(self, inner: Any, key: str = "repeat"):
        super().__init__(inner)
        self.key = key

    def reset(self, seed: int | None) -> Any:
        self.frames: list[tuple[np.ndarray, bool]] = []  # the action of every frame, and whether it was repeated
        self.decisions = 0
        return super().reset(seed)

    def step(self, action: Any) -> Result:
        *result, info = self.inner.step(action)
        executed = self.executed(info, action)
        is_same = bool(self.frames) and executed.tobytes() == self.frames[-1][0].tobytes()
        self.frames.append((executed, info.get("repeated", is_same)))
        self.frames += [(executed, True)] * (info.get("frames", 1) - 1)
        self.decisions += 1
        ended = result[-1] or result[-2]
        return (*result, {**info, self.key: self.summary()} if ended else info)

    def summary(self) -> dict[str, Any]:
        repeated = [flag for _, flag in self.frames]
        pairs = list(zip(self.frames, self.frames[1:], strict=False))
        numeric = isinstance(self.executed_space, spaces.Box)
        changes = [
            np.abs(now.astype(np.float64) - before).mean() if numeric else (now != before).mean()
            for (before, _), (now, _) in pairs
        ]
        return {
            "fraction": sum(repeated) / len(repeated),
            "mean_run": len(repeated) / (1 + sum(not flag for flag in repeated[1:])),
            "decisions": self.decisions,
            "frames": len(repeated),
            "apr": len(repeated) / max(len(repeated) - sum(repeated), 1),
            "afr": float(sum(changes)) / max(len(pairs), 1),
        }


def pair_space(box: spaces.Box, name: str, choice: spaces.Discrete, encoding: str) -> spaces.Space:
    if encoding == "dict":
        return spaces.Dict({"action": box, name: choice})
    low, high = np.append(box.low, -1).astype(box.dtype), np.append(box.high, 1).astype(box.dtype)
    return spaces.Box(low, high, dtype=box.dtype)


def report(layer: Any, inner: dict[str, Any], sent: Any, asked: bool) -> dict[str, Any]:
    """The infos of a layer that executes ``sent``; an inner one may have executed something else."""
    if "executed_action" not in inner:
        return {"frames": 1, "executed_action": np.array(sent), "repeated": bool(asked), **inner}
    executed = inner["executed_action"]
    before, layer.previous_executed = layer.previous_executed, executed
    is_same = before is None or np.array_equal(before, executed)
    return {**inner, "repeated": bool(inner["repeated"] or (asked and is_same))}


PLAIN: dict[str, Any] = {
    "HybridActionWrapper": PlainHybrid,
    "KRepWrapper": PlainKRep,
    "NRepeatWrapper": PlainNRepeat,
    "PrevActionWrapper": PlainPrev,
    "RepeatStatisticsWrapper": PlainStatistics,
    "RewardNormalizerWrapper": PlainNormalizer,
    "ZetaRepeatWrapper": PlainZeta,
}
