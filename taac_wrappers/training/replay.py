"""Sequence replay: per-env streams of time slots from which windows of transitions are drawn.

A stream is a ring of slots. Slot ``t`` holds the observation ``s_t`` and, once the env has been stepped, the action
taken there, the switch, the reward that followed and whether that step ended the episode. The next observation of
slot ``t`` is simply the observation of slot ``t + 1``, so each one is stored once. An episode's final observation has
a slot of its own, where no transition starts; the next episode begins in the slot after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

Observation = Any  # an array, or a dict of arrays for Dict spaces

FIRST, FINAL, TERMINATED, TRUNCATED, REPEATED = (np.uint8(1 << bit) for bit in range(5))


@dataclass
class Windows:
    """``B`` windows of up to ``N`` transitions; matrices are time-major ``[N, B]``, zero where ``valid`` is false.

    ``node_*`` describe the next states ``s_{k+1}`` of all valid transitions in row-major order: the first ``B`` nodes
    are those of row 0. ``observation``, ``action``, ``prev_action`` and ``first`` describe the transitions to be
    trained on: row 0 (``train_on="first"``), or all valid ones in the order of the nodes (``"all"``).
    """

    observation: Observation  # [M, ...] s_k
    action: np.ndarray  # [M, A] a_k, as executed
    prev_action: np.ndarray  # [M, A] a_{k-1}, at the start of an episode zeros (clipped into the space)
    first: np.ndarray  # [M] whether s_k starts an episode
    reward: np.ndarray  # [N, B] raw
    terminated: np.ndarray  # [N, B]
    truncated: np.ndarray  # [N, B]
    repeated: np.ndarray  # [N, B] the behaviour repeated a_k at s_{k+1}, and row k + 1 records it
    valid: np.ndarray  # [N, B]
    node_index: np.ndarray  # [nodes] flat position in [N, B]
    node_observation: Observation  # [nodes, ...] s_{k+1}
    node_action: np.ndarray  # [nodes, A] a_k, the previous action at s_{k+1}
    node_ended: np.ndarray  # [nodes] nobody acts at s_{k+1}: the episode was over


class SequenceReplay:
    """Ring buffers of the last ``capacity`` frames, one per env, sampled as windows.

    Args:
        observation_space: Box, or Dict of Boxes; floating observations are kept as float32, integers as they are.
        action_space: one-dimensional Box.
        capacity: frames to keep, over all envs together.
        num_envs: number of streams.
        seed: of the sampling.

    >>> replay = SequenceReplay(spaces.Box(-1, 1, (1,)), spaces.Box(-1, 1, (1,)), capacity=10, num_envs=1, seed=0)
    >>> replay.start(np.array([[0.1]]))
    >>> for step in range(3):
    ...     replay.add(np.array([[0.5]]), np.array([step == 0]), np.array([1.0]), np.array([False]), np.array([False]),
    ...                np.array([[0.2 + 0.1 * step]]))
    >>> len(replay)
    3
    >>> windows = replay.sample(batch_size=1, window=3)
    >>> int(windows.valid.sum()) == 3 - int(round(10 * windows.observation.item()) - 1)  # held to the end
    True
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Box,
        *,
        capacity: int,
        num_envs: int,
        seed: int | np.random.SeedSequence,
    ):
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs!r}")
        if capacity < 3 * num_envs:
            raise ValueError(f"capacity must be at least 3 frames per env, got {capacity!r} for {num_envs} envs")
        self.num_envs = num_envs
        self.length = capacity // num_envs + 2  # the current observation, and the slot that a wrapped ring gives up
        slots = num_envs * self.length
        self._observation = _allocate(observation_space, slots)
        self._action = np.zeros((slots, *action_space.shape), np.float32)
        self._initial_action = np.clip(0, action_space.low, action_space.high).astype(np.float32)
        self._reward = np.zeros(slots, np.float32)
        self._flags = np.zeros(slots, np.uint8)
        self._head = np.zeros(num_envs, np.int64)  # slots completed: where the current observation stands
        self._base = np.arange(num_envs) * self.length  # where each env's ring starts in the flat arrays
        self._started = np.zeros(num_envs, bool)
        self._intact_from = np.zeros(num_envs, np.int64)  # absolute time; what was before it has been lost
        self.rng = np.random.default_rng(seed)

    def start(self, observation: Observation, mask: np.ndarray | None = None) -> None:
        """Begin an episode in every env, or in those of ``mask``, with its first observation ``[num_envs, ...]``."""
        envs = np.arange(self.num_envs) if mask is None else np.flatnonzero(mask)
        ended = (self._flags[self._current(envs)] & FINAL) != 0
        if np.any(self._started[envs] & ~ended):
            raise ValueError(f"start: the episode of env {envs[self._started[envs] & ~ended]} has not ended")
        self._head[envs] += ended
        self._started[envs] = True
        current = self._current(envs)
        self._flags[current] = FIRST
        _write(self._observation, current, _rows(observation, envs))

    def add(
        self,
        action: np.ndarray,
        switch: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        next_observation: Observation,
    ) -> None:
        """Record one step of every env; at an episode's end ``next_observation`` is its true final one."""
        envs = np.arange(self.num_envs)
        current = self._current(envs)
        if not self._started.all() or np.any(self._flags[current] & FINAL):
            raise ValueError("add: every env must have been started and not ended")
        self._action[current] = action
        self._reward[current] = reward
        self._flags[current] |= terminated * TERMINATED | truncated * TRUNCATED | ~switch * REPEATED
        self._head += 1
        current = self._current(envs)
        self._flags[current] = (terminated | truncated) * FINAL
        _write(self._observation, current, next_observation)

    def interrupt(self, mask: np.ndarray) -> None:
        """End the unfinished episodes of the envs in ``mask`` here, as a time limit would: they cannot go on."""
        envs = np.flatnonzero(mask & self._started)
        flags = self._flags[self._current(envs)]
        stepped = envs[flags & (FIRST | FINAL) == 0]  # in an episode of at least one frame
        current = self._current(stepped)
        self._flags[self._previous_slot(current)] |= TRUNCATED
        self._flags[current] |= FINAL
        self._started[envs[flags & FIRST != 0]] = False  # nothing was recorded: the next start takes the same slot

    def forget(self, mask: np.ndarray) -> None:
        """Drop the unfinished episodes of the envs in ``mask`` as if they had never begun; earlier ones stay."""
        envs = np.flatnonzero(mask & self._started)
        for env in envs[self._flags[self._current(envs)] & FINAL == 0].tolist():
            self._forget_episode(env)

    def _forget_episode(self, env: int) -> None:
        """Move the earlier episodes up to where the unfinished one ends, so that what is kept stays in one piece."""
        head, oldest = self._head[env], self._oldest()[env]
        begins = np.flatnonzero(self._flags[self._flat(env, np.arange(oldest, head + 1))] & FIRST)
        first = oldest + begins[-1] if len(begins) else oldest  # without its beginning, nothing else is left
        if oldest < first and self._flags[self._flat(env, oldest)] & FINAL:
            oldest += 1  # no transition starts there, and there would be no end to drawing if it were alone
        # One round further than the slots require: these times are new, and so saving sees that the slots are too.
        shift = head - first + self.length
        earlier = np.arange(max(oldest - 1, 0), first)  # the slot before a transition holds its previous action
        source, target = self._flat(env, earlier), self._flat(env, earlier + shift)
        for storage in self._storages():
            storage[target] = storage[source]
        self._head[env], self._intact_from[env] = head + self.length, oldest + shift
        self._started[env] = False  # the next start takes the current slot

    @property
    def empty(self) -> bool:
        """Whether there is nothing to sample: nothing has been recorded, or all of it forgotten."""
        return not np.any(self._head > self._oldest())

    def __len__(self) -> int:
        """Number of transitions that can be sampled."""
        oldest = self._oldest()
        finals = sum(
            np.count_nonzero(
                self._flags[self._base[env] + np.arange(oldest[env], self._head[env]) % self.length] & FINAL
            )
            for env in range(self.num_envs)
        )
        return int((self._head - oldest).sum()) - int(finals)

    def sample(
        self,
        batch_size: int,
        window: int = 1,
        *,
        follow: Literal["repeats", "episode"] = "repeats",
        train_on: Literal["first", "all"] = "first",
    ) -> Windows:
        """Draw windows whose starts are uniform over each env's transitions, stratified in time.

        Args:
            batch_size: number of windows ``B``, spread evenly over the envs.
            window: the most transitions ``N`` in one of them.
            follow: continue a window only while the recorded behaviour repeated its action (all that compare-through
                needs), or through the whole episode. No window crosses an episode's end or the newest frame.
            train_on: which transitions' own states to return: the starts, or all of the window.
        """
        _check_sample(batch_size, window, follow, train_on)
        env, start = self._draw_starts(batch_size)
        position = np.full((window, batch_size), -1, np.int64)  # flat slot of each transition, -1 beyond the window
        position[0] = self._flat(env, start)
        column = np.arange(batch_size)  # windows that go on
        for k in range(1, window):
            previous = self._flags[position[k - 1, column]]
            column = column[(previous & (TERMINATED | TRUNCATED) == 0) & (start[column] + k < self._head[env[column]])]
            slot = self._flat(env[column], start[column] + k)
            if follow == "repeats":
                goes_on = self._flags[slot] & REPEATED != 0
                column, slot = column[goes_on], slot[goes_on]
            if not len(column):
                break
            position[k, column] = slot

        valid = position >= 0
        node_index = np.flatnonzero(valid)
        transition = position.reshape(-1)[node_index]
        flags = np.zeros((window, batch_size), np.uint8)
        reward = np.zeros((window, batch_size), np.float32)
        flags.reshape(-1)[node_index] = self._flags[transition]
        reward.reshape(-1)[node_index] = self._reward[transition]
        repeated = np.zeros((window, batch_size), bool)
        repeated[:-1] = valid[1:] & (flags[1:] & REPEATED != 0)

        trained = transition if train_on == "all" else transition[:batch_size]
        first = self._flags[trained] & FIRST != 0
        action = self._action[transition]
        return Windows(
            observation=_read(self._observation, trained),
            action=action[: len(trained)],
            prev_action=np.where(first[:, None], self._initial_action, self._action[self._previous_slot(trained)]),
            first=first,
            reward=reward,
            terminated=flags & TERMINATED != 0,
            truncated=flags & TRUNCATED != 0,
            repeated=repeated,
            valid=valid,
            node_index=node_index,
            node_observation=_read(self._observation, self._next_slot(transition)),
            node_action=action,
            node_ended=self._flags[transition] & (TERMINATED | TRUNCATED) != 0,
        )

    def _draw_starts(self, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
        """Env and absolute time of the starts: equal shares per env, one draw per equal slice of time."""
        oldest = self._oldest()
        span = self._head - oldest
        filled = np.flatnonzero(span > 0)  # all of them, but for those that have been forgotten
        if not len(filled):
            raise ValueError("sample: no env has a transition yet")
        share, rest = divmod(batch_size, len(filled))
        shares = np.zeros(self.num_envs, np.int64)
        shares[filled] = share
        if rest:
            shares[filled[self.rng.choice(len(filled), rest, replace=False)]] += 1
        env = np.repeat(np.arange(self.num_envs), shares)
        stratum = np.arange(batch_size) - np.repeat(np.cumsum(shares) - shares, shares)
        offset = ((stratum + self.rng.random(batch_size)) / shares[env] * span[env]).astype(np.int64)
        start = oldest[env] + np.minimum(offset, span[env] - 1)  # rounding may reach the slice's open end
        # No transition starts at a final observation: draw those again, uniformly.
        wrong = np.flatnonzero(self._flags[self._flat(env, start)] & FINAL)
        while len(wrong):
            start[wrong] = oldest[env[wrong]] + self.rng.integers(span[env[wrong]])
            wrong = wrong[self._flags[self._flat(env[wrong], start[wrong])] & FINAL != 0]
        return env, start

    def _oldest(self) -> np.ndarray:
        """Absolute time of each env's oldest transition whose previous slot is still there."""
        return np.maximum(self._head - self.length + 2, self._intact_from)

    def _flat(self, env: np.ndarray | int, time: np.ndarray) -> np.ndarray:
        return self._base[env] + time % self.length

    def _current(self, envs: np.ndarray) -> np.ndarray:
        return self._flat(envs, self._head[envs])

    def _next_slot(self, slot: np.ndarray) -> np.ndarray:
        following = slot + 1
        return np.where(following % self.length == 0, following - self.length, following)

    def _previous_slot(self, slot: np.ndarray) -> np.ndarray:
        return np.where(slot % self.length == 0, slot + self.length, slot) - 1

    # Saving: a chunk holds the slots written since an earlier one, so that a save costs what is new.

    def chunk(self, since: dict | None) -> tuple[dict[str, np.ndarray], dict]:
        """What was recorded after the cursor ``since`` (None: all that is kept), and the cursor after it."""
        # The newest transition is saved again: interrupt() may have marked it since.
        after = self._head - self.length + 1 if since is None else np.asarray(since["head"]) - 1
        after = np.maximum(np.maximum(after, self._head - self.length + 1), np.maximum(self._intact_from - 1, 0))
        slots = np.concatenate(
            [self._flat(np.array([env]), np.arange(after[env], self._head[env] + 1)) for env in range(self.num_envs)]
        )
        arrays = {"from": after, "head": self._head.copy(), "started": self._started.copy()}
        arrays |= {"action": self._action[slots], "reward": self._reward[slots], "flags": self._flags[slots]}
        observation = _read(self._observation, slots)
        arrays |= (
            {f"observation.{key}": value for key, value in observation.items()}
            if isinstance(observation, dict)
            else {"observation": observation}
        )
        return arrays, {"head": self._head.tolist()}

    def load_chunks(self, chunks: Iterable[tuple[dict[str, np.ndarray], dict]]) -> None:
        """Put back what :meth:`chunk` gave, oldest first. The replay must have been made with the same arguments."""
        for chunk, _ in chunks:
            if chunk["head"].shape != self._head.shape:
                raise ValueError(f"chunk holds {len(chunk['head'])} streams, this replay has {self.num_envs}")
            # What lies between two chunks is lost; the slot before a transition holds its previous action.
            self._intact_from = np.where(chunk["from"] > self._head, chunk["from"] + 1, self._intact_from)
            slots = np.concatenate(
                [
                    self._flat(np.array([env]), np.arange(chunk["from"][env], chunk["head"][env] + 1))
                    for env in range(self.num_envs)
                ]
            )
            self._action[slots], self._reward[slots], self._flags[slots] = (
                chunk["action"],
                chunk["reward"],
                chunk["flags"],
            )
            if isinstance(self._observation, dict):
                _write(self._observation, slots, {key: chunk[f"observation.{key}"] for key in self._observation})
            else:
                _write(self._observation, slots, chunk["observation"])
            self._head, self._started = chunk["head"].copy(), chunk["started"].copy()

    def is_stale(self, cursor: dict) -> bool:
        """Whether everything recorded before ``cursor`` has been overwritten since."""
        return bool(np.all(np.asarray(cursor["head"]) < self._head - self.length + 1))

    @property
    def nbytes(self) -> int:
        """Memory of all arrays."""
        return sum(array.nbytes for array in self._storages())

    def _storages(self) -> list[np.ndarray]:
        observations = self._observation.values() if isinstance(self._observation, dict) else [self._observation]
        return [*observations, self._action, self._reward, self._flags]


def _check_sample(batch_size: int, window: int, follow: str, train_on: str) -> None:
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size!r}")
    if window < 1:
        raise ValueError(f"window must be at least 1, got {window!r}")
    if follow not in ("repeats", "episode"):
        raise ValueError(f"follow must be 'repeats' or 'episode', got {follow!r}")
    if train_on not in ("first", "all"):
        raise ValueError(f"train_on must be 'first' or 'all', got {train_on!r}")


def _allocate(space: spaces.Space, slots: int) -> Observation:
    if isinstance(space, spaces.Dict):
        return {key: _allocate(part, slots) for key, part in space.spaces.items()}
    if not isinstance(space, spaces.Box):
        raise TypeError(f"observation_space must be a Box or a Dict of Boxes, got {space}")
    dtype = np.float32 if np.issubdtype(space.dtype, np.floating) else space.dtype
    return np.zeros((slots, *space.shape), dtype)


def _read(storage: Observation, slots: np.ndarray) -> Observation:
    if isinstance(storage, dict):
        return {key: value[slots] for key, value in storage.items()}
    return storage[slots]


def _write(storage: Observation, slots: np.ndarray, values: Observation) -> None:
    if isinstance(storage, dict):
        for key, value in storage.items():
            value[slots] = values[key]
    else:
        storage[slots] = values


def _rows(observation: Observation, envs: np.ndarray) -> Observation:
    pick: Callable[[np.ndarray], np.ndarray] = lambda array: np.asarray(array)[envs]  # noqa: E731
    return (
        {key: pick(value) for key, value in observation.items()} if isinstance(observation, dict) else pick(observation)
    )
