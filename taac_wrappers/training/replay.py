"""Sequence replay: per-env streams of time slots from which windows of transitions are drawn.

A stream is a ring of slots. Slot ``t`` holds the observation ``s_t`` and, once the env has been stepped, the action
executed there, whether it repeated the one before, the reward that followed, the factor to bootstrap with, and whether
that step ended the episode. The next observation of slot ``t`` is simply the observation of slot ``t + 1``, so each one
is stored once. An episode's final observation has
a slot of its own, where no transition starts; the next episode begins in the slot after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from taac_wrappers.training.finite import all_finite
from taac_wrappers.training.memory import available_memory
from taac_wrappers.training.structure import Structure, mapped, named

FIRST, FINAL, TERMINATED, TRUNCATED, REPEATED = (np.uint8(1 << bit) for bit in range(5))


@dataclass
class Windows:
    """``B`` windows of up to ``N`` transitions; matrices are time-major ``[N, B]``, zero where ``valid`` is false.

    ``next_observation`` holds the next states ``s_{k+1}`` of all valid transitions in row-major order, so that the
    first ``B`` are those of row 0; or, with ``look_at="ends"``, those of every window's last transition alone.
    ``observation`` and ``action`` describe the transitions to be trained on: row 0 (``train_on="first"``), or all valid
    ones in the same order (``"all"``).
    """

    observation: Structure  # [M, ...] s_k
    action: Structure  # [M, ...] what was recorded of a_k
    trained: np.ndarray  # [M] flat position of each of these transitions in [N, B]
    next_observation: Structure  # [K, ...] s_{k+1}
    next_action: Structure  # [K, ...] what was recorded of a_{k+1}; anything where row k + 1 is not valid
    reward: np.ndarray  # [N, B] raw
    discount: np.ndarray  # [N, B] the factor to bootstrap with
    terminated: np.ndarray  # [N, B]
    truncated: np.ndarray  # [N, B]
    repeated: np.ndarray  # [N, B] the behaviour repeated a_k at s_{k+1}, and row k + 1 records it
    valid: np.ndarray  # [N, B]
    next_of: np.ndarray  # [N, B] number, among the next states, of the transition's own, or of its window's last
    index: np.ndarray  # flat position of each valid transition in [N, B]


class SequenceReplay:
    """Ring buffers of the last ``capacity`` frames, one per env, sampled as windows.

    Args:
        observation_space: Box, or Dict of Boxes; floating observations are kept as float32, integers as they are.
        action_space: Box, or Dict of Boxes: what is to be recorded of an action.
        capacity: frames to keep, over all envs together.
        num_envs: number of streams.
        seed: of the sampling.

    >>> replay = SequenceReplay(spaces.Box(-1, 1, (1,)), spaces.Box(-1, 1, (1,)), capacity=10, num_envs=1, seed=0)
    >>> replay.start(np.array([[0.1]]))
    >>> no = np.array([False])
    >>> for step in range(3):
    ...     replay.add(np.array([[0.5]]), np.array([1.0]), no, no, np.array([[0.2 + 0.1 * step]]),
    ...                repeated=np.array([step > 0]), discount=np.array([0.99]))
    >>> len(replay)
    3
    >>> windows = replay.sample(batch_size=1, window=3)
    >>> int(windows.valid.sum()) == 3 - int(round(10 * windows.observation.item()) - 1)  # held to the end
    True
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
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
        self.length = capacity // num_envs + 1  # and the current observation
        slots = num_envs * self.length
        self._allocate(observation_space, action_space, 1)
        _require_memory(slots * self.nbytes, capacity)
        self._allocate(observation_space, action_space, slots)
        self._head = np.zeros(num_envs, np.int64)  # slots completed: where the current observation stands
        self._all_envs = np.arange(num_envs)
        self._base = self._all_envs * self.length  # where each env's ring starts in the flat arrays
        self._started = np.zeros(num_envs, bool)
        self._intact_from = np.zeros(num_envs, np.int64)  # absolute time; what was before it has been lost
        self._even_shares = np.empty(0, np.int64)
        self.rng = np.random.default_rng(seed)

    def _allocate(self, observation_space: spaces.Space, action_space: spaces.Space, slots: int) -> None:
        self._observation = _arrays("observation_space", observation_space, slots)
        self._action = _arrays("action_space", action_space, slots)
        self._reward = np.zeros(slots, np.float32)
        self._discount = np.zeros(slots, np.float32)
        self._flags = np.zeros(slots, np.uint8)

    def start(self, observation: Structure, mask: np.ndarray | None = None) -> None:
        """Begin an episode in every env, or in those of ``mask``, with its first observation ``[num_envs, ...]``."""
        envs = np.arange(self.num_envs) if mask is None else np.flatnonzero(_flags("mask", mask, self.num_envs))
        ended = (self._flags[self._current(envs)] & FINAL) != 0
        if np.any(self._started[envs] & ~ended):
            raise ValueError(f"start: the episode of env {envs[self._started[envs] & ~ended]} has not ended")
        rows = _fitting_structure("observation", observation, self._observation, self.num_envs, envs)
        self._head[envs] += ended
        self._started[envs] = True
        current = self._current(envs)
        self._flags[current] = FIRST
        _write(self._observation, current, rows)

    def add(
        self,
        action: Structure,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        next_observation: Structure,
        *,
        repeated: np.ndarray,
        discount: np.ndarray,
    ) -> None:
        """Record one step of every env.

        Args:
            action: what was executed, ``[num_envs, A]``, and whatever else is to be recorded of it.
            reward, terminated, truncated: of the step, ``[num_envs]``.
            next_observation: what it led to; at an episode's end its true final observation.
            repeated: whether the action was the previous one once more, ``[num_envs]``.
            discount: the factor to bootstrap with: gamma, or less for a decision of several frames, ``[num_envs]``.
        """
        current = self._base + self._head % self.length
        flags = self._flags[current]
        if not self._started.all() or np.count_nonzero(flags & FINAL):
            raise ValueError("add: every env must have been started and not ended")
        action = _fitting_structure("action", action, self._action, self.num_envs)
        reward = _fitting("reward", reward, self._reward, self.num_envs)
        repeated = _flags("repeated", repeated, self.num_envs)
        discount = _fitting("discount", discount, self._discount, self.num_envs)
        terminated = _flags("terminated", terminated, self.num_envs)
        truncated = _flags("truncated", truncated, self.num_envs)
        observation = _fitting_structure("next_observation", next_observation, self._observation, self.num_envs)
        _write(self._action, current, action)
        self._reward[current], self._discount[current] = reward, discount
        self._flags[current] = flags | terminated * TERMINATED | truncated * TRUNCATED | repeated * REPEATED
        self._head += 1
        current = self._base + self._head % self.length
        self._flags[current] = (terminated | truncated) * FINAL
        _write(self._observation, current, observation)

    def interrupt(self, mask: np.ndarray) -> None:
        """End the unfinished episodes of the envs in ``mask`` here, as a time limit would: they cannot go on."""
        envs = np.flatnonzero(_flags("mask", mask, self.num_envs) & self._started)
        flags = self._flags[self._current(envs)]
        stepped = envs[flags & (FIRST | FINAL) == 0]  # in an episode of at least one frame
        current = self._current(stepped)
        self._flags[self._previous_slot(current)] |= TRUNCATED
        self._flags[current] |= FINAL
        self._started[envs[flags & FIRST != 0]] = False  # nothing was recorded: the next start takes the same slot

    def forget(self, mask: np.ndarray) -> None:
        """Drop the unfinished episodes of the envs in ``mask`` as if they had never begun; earlier ones stay."""
        envs = np.flatnonzero(_flags("mask", mask, self.num_envs) & self._started)
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
        earlier = np.arange(oldest, first)
        source, target = self._flat(env, earlier), self._flat(env, earlier + shift)
        for storage in self._storages().values():
            storage[target] = storage[source]
        self._head[env], self._intact_from[env] = head + self.length, oldest + shift
        self._started[env] = False  # the next start takes the current slot
        self._flags[self._flat(env, self._head[env])] = FIRST  # as interrupt() leaves an episode without a frame

    @property
    def empty(self) -> bool:
        """Whether there is nothing to sample: nothing has been recorded, or all of it forgotten."""
        return not np.count_nonzero(self._head > self._intact_from)  # a ring always holds its newest transition

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
        look_at: Literal["all", "ends"] = "all",
    ) -> Windows:
        """Draw windows whose starts are uniform over each env's transitions.

        Args:
            batch_size: number of windows ``B``, spread evenly over the envs.
            window: the most transitions ``N`` in one of them.
            follow: continue a window only while the recorded behaviour repeated its action (all that compare-through
                needs), or through the whole episode. No window crosses an episode's end or the newest frame.
            train_on: which transitions' own states to return: the starts, or all of the window.
            look_at: which next states to return: all, or only the last one of each window (all that N-step targets
                bootstrap from).
        """
        _check_sample(batch_size, window, follow, train_on, look_at)
        env, slot = self._draw_starts(batch_size)
        position = np.full((window, batch_size), -1, np.int64)  # flat slot of each transition, -1 beyond the window
        position[0] = slot
        column = np.arange(batch_size)  # windows that go on
        for k in range(1, window):
            slot = self._next_slot(slot)
            flags = self._flags[slot]
            if follow == "repeats":  # nothing was repeated at a final observation, nor at the newest one yet
                goes_on = flags & REPEATED != 0
            else:
                goes_on = (flags & FINAL == 0) & (slot != self._current(env[column]))
            column, slot = column[goes_on], slot[goes_on]
            if not len(column):
                break
            position[k, column] = slot
        return self._read_windows(position, train_on, look_at)

    def _read_windows(
        self, position: np.ndarray, train_on: Literal["first", "all"], look_at: Literal["all", "ends"]
    ) -> Windows:
        """The windows whose transitions stand in the slots ``position`` ``[N, B]``."""
        valid = position >= 0
        index = valid.reshape(-1).nonzero()[0]
        transition = position.reshape(-1)[index]
        length, batch_size = position.shape
        trained = transition if train_on == "all" else transition[:batch_size]
        if look_at == "all":
            following, next_of = self._next_slot(transition), (valid.cumsum() - 1).reshape(valid.shape)
        else:
            ends = position[valid.sum(0) - 1, np.arange(batch_size)]
            following, next_of = self._next_slot(ends), np.tile(np.arange(batch_size), (length, 1))

        def rows(storage: np.ndarray) -> np.ndarray:
            """``[N, B]``: of every valid transition what is stored in its slot."""
            values = np.zeros(valid.shape, storage.dtype)
            values.reshape(-1)[index] = storage[transition]
            return values

        flags = rows(self._flags)
        repeated = np.zeros(valid.shape, bool)
        repeated[:-1] = flags[1:] & REPEATED != 0
        return Windows(
            observation=_read(self._observation, trained),
            action=_read(self._action, trained),
            trained=index[: len(trained)],
            next_observation=_read(self._observation, following),
            next_action=_read(self._action, following),
            reward=rows(self._reward),
            discount=rows(self._discount),
            terminated=flags & TERMINATED != 0,
            truncated=flags & TRUNCATED != 0,
            repeated=repeated,
            valid=valid,
            next_of=next_of,
            index=index,
        )

    def _draw_starts(self, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
        """Env and flat slot of the starts: equal shares per env, uniform over each env's transitions."""
        oldest = self._oldest()
        env = self._shares(batch_size, self._filled(oldest))
        begin, span = oldest[env], (self._head - oldest)[env]
        slot = self._flat(env, begin + (self.rng.random(batch_size) * span).astype(np.int64))
        # No transition starts at a final observation: draw those again.
        wrong = (self._flags[slot] & FINAL).nonzero()[0]
        while len(wrong):
            slot[wrong] = self._flat(env[wrong], begin[wrong] + self.rng.integers(span[wrong]))
            wrong = wrong[self._flags[slot[wrong]] & FINAL != 0]
        return env, slot

    def _filled(self, oldest: np.ndarray) -> np.ndarray:
        """The envs that have a transition: as a rule all of them, but some may have lost theirs."""
        span = self._head - oldest
        if span.min() > 1:  # two final observations are never neighbours
            return self._all_envs
        only_final = self._flags[self._flat(self._all_envs, oldest)] & FINAL != 0
        filled = np.flatnonzero((span > 1) | ((span == 1) & ~only_final))
        if not len(filled):
            raise ValueError("sample: no env has a transition yet")
        return filled

    def _shares(self, batch_size: int, envs: np.ndarray) -> np.ndarray:
        """Env of each start: all ``envs`` equally often, but for a rest that goes to some of them at random."""
        share, rest = divmod(batch_size, len(envs))
        same_for_all = not rest and len(envs) == self.num_envs
        if same_for_all and len(self._even_shares) == batch_size:
            return self._even_shares
        shares = np.full(len(envs), share)
        if rest:
            shares[self.rng.choice(len(envs), rest, replace=False)] += 1
        env = np.repeat(envs, shares)
        if same_for_all:
            self._even_shares = env  # the next batch is likely to have this size too
        return env

    def _oldest(self) -> np.ndarray:
        """Absolute time of each env's oldest slot."""
        return np.maximum(self._head - (self.length - 1), self._intact_from)

    def _flat(self, env: np.ndarray | int, time: np.ndarray) -> np.ndarray:
        return self._base[env] + time % self.length

    def _current(self, envs: np.ndarray) -> np.ndarray:
        return self._flat(envs, self._head[envs])

    def _next_slot(self, slot: np.ndarray) -> np.ndarray:
        following = slot + 1
        following[following % self.length == 0] -= self.length
        return following

    def _previous_slot(self, slot: np.ndarray) -> np.ndarray:
        previous = slot - 1
        previous[slot % self.length == 0] += self.length
        return previous

    # Saving: a chunk holds the slots written since an earlier one, so that a save costs what is new.

    def chunk(self, since: dict | None) -> tuple[dict[str, np.ndarray], dict]:
        """What was recorded after the cursor ``since`` (None: all that is kept), and the cursor after it."""
        # The newest transition is saved again: interrupt() may have marked it since.
        after = self._head - self.length + 1 if since is None else self._cursor_head(since) - 1
        after = np.maximum(after, self._oldest())
        slots = np.concatenate(
            [self._flat(np.array([env]), np.arange(after[env], self._head[env] + 1)) for env in range(self.num_envs)]
        )
        arrays = {"from": after, "head": self._head.copy(), "started": self._started.copy()}
        arrays |= {name: storage[slots] for name, storage in self._storages().items()}
        return arrays, {"head": self._head.tolist()}

    def load_chunks(self, chunks: Iterable[tuple[dict[str, np.ndarray], dict]]) -> None:
        """Put what :meth:`chunk` gave, oldest first, in the place of all that is kept.

        The replay must have been made with the same arguments. If chunks are missing, what was recorded before them is
        lost too: only what follows can be sampled. Chunks that are damaged raise ``ValueError`` and change nothing.
        """
        loaded = None  # takes this one's place once all chunks have been read and found sound
        for entry in _pairs(chunks):
            loaded = loaded or self._emptied()
            loaded._put(loaded._checked_chunk(entry))
        if loaded is None:
            return
        for env in range(self.num_envs):
            loaded._require_sound(env)
        vars(self).update(vars(loaded))

    def _emptied(self) -> SequenceReplay:
        """The same replay with nothing in it and memory of its own, which the system provides as it is written."""
        empty = copy(self)
        empty._observation = mapped(_zeros, self._observation)
        empty._action = mapped(_zeros, self._action)
        empty._reward, empty._discount = _zeros(self._reward), _zeros(self._discount)
        empty._flags = _zeros(self._flags)
        empty._head, empty._started = _zeros(self._head), _zeros(self._started)
        empty._intact_from = _zeros(self._intact_from)
        return empty

    def _checked_chunk(self, chunk: Any) -> dict[str, Any]:
        """The arrays of a chunk, of the shapes and dtypes that they must have."""
        storages = self._storages()
        names = {"from", "head", "started"} | storages.keys()
        if not isinstance(chunk, Mapping) or chunk.keys() != names:
            got = sorted(map(str, chunk)) if isinstance(chunk, Mapping) else chunk
            raise ValueError(f"chunk must hold {sorted(names)}, got {got!r}")
        if not all(getattr(chunk[name], "dtype", None) == np.int64 for name in ("from", "head")):
            raise ValueError(f"chunk['from'] and chunk['head'] must be int64, got {chunk['from']!r}, {chunk['head']!r}")
        if np.ndim(chunk["head"]) == 1 and len(chunk["head"]) != self.num_envs:
            raise ValueError(f"chunk holds {len(chunk['head'])} streams, this replay has {self.num_envs}")
        after, head = (
            _fitting(f"chunk[{name!r}]", chunk[name], self._head, self.num_envs) for name in ("from", "head")
        )
        size = head - after + 1
        if np.any((after < 0) | (size < 1) | (size > self.length) | (head < self._head)):
            raise ValueError(f"chunk['from'] and chunk['head'] must be slots in order, got {after} and {head}")
        checked = {"from": after, "head": head, "started": _flags("chunk['started']", chunk["started"], self.num_envs)}
        for name, storage in storages.items():
            if getattr(chunk[name], "dtype", None) != storage.dtype:
                raise ValueError(f"chunk[{name!r}] must have dtype {storage.dtype}, got {chunk[name]!r}")
            checked[name] = _fitting(f"chunk[{name!r}]", chunk[name], storage, int(size.sum()))
        return checked

    def _put(self, chunk: dict[str, Any]) -> None:
        """Write the arrays of a checked chunk into their slots."""
        slots = np.concatenate(
            [
                self._flat(np.array([env]), np.arange(chunk["from"][env], chunk["head"][env] + 1))
                for env in range(self.num_envs)
            ]
        )
        for name, storage in self._storages().items():
            storage[slots] = chunk[name]
        self._mark_interrupted(chunk)
        self._intact_from = np.where(chunk["from"] > self._head, chunk["from"], self._intact_from)
        self._head, self._started = chunk["head"].copy(), chunk["started"].copy()

    def _mark_interrupted(self, chunk: dict[str, Any]) -> None:
        """Where a chunk begins with a final observation, what is kept before it has ended.

        It says so itself, unless :meth:`interrupt` ended it later and the chunk that told is missing.
        """
        follows = (chunk["from"] == self._head) & (self._head > 0) & (chunk["head"] - chunk["from"] + 1 < self.length)
        current = self._current(np.flatnonzero(follows))
        previous = self._previous_slot(current)
        ended = self._flags[previous] & (TERMINATED | TRUNCATED) != 0
        self._flags[previous[(self._flags[current] & FINAL != 0) & ~ended]] |= TRUNCATED

    def _require_sound(self, env: int) -> None:
        """Raise unless the flags of one stream tell of episodes: windows and draws rely on it."""
        head = self._head[env]
        kept = np.arange(self._oldest()[env], head + 1)
        flags = self._flags[self._flat(np.array([env]), kept)]
        first, final = flags & FIRST != 0, flags & FINAL != 0
        ended = flags & (TERMINATED | TRUNCATED) != 0
        has_begun = self._started[env] or head > 0
        sound = (
            not np.any(flags & ~(FIRST | FINAL | TERMINATED | TRUNCATED | REPEATED))
            and np.array_equal(ended[:-1], final[1:])  # an end is followed by a final observation
            and np.array_equal(final[:-1], first[1:])  # and that by a new episode
            and not ended[-1]
            and not np.any(flags[final] & REPEATED)  # nobody acts at a final observation
            and not flags[-1] & REPEATED
            and (kept[0] > 0 or first[0] or not has_begun)
            and (self._started[env] or first[-1] or not has_begun)  # what interrupt() leaves of an empty episode
            and np.array_equal(self._head == 0, np.full(self.num_envs, head == 0))  # all envs step together
        )
        if not sound:
            raise ValueError(f"chunk['flags'] must tell the episodes of env {env}, got {flags}")

    def _cursor_head(self, since: Any) -> np.ndarray:
        head = np.asarray(since["head"] if isinstance(since, Mapping) and "head" in since else None)
        if head.dtype.kind not in "iu" or head.shape != (self.num_envs,) or np.any((head < 0) | (head > self._head)):
            raise ValueError(f"since must be a cursor that chunk() of this replay gave, got {since!r}")
        return head

    def is_stale(self, cursor: dict) -> bool:
        """Whether everything recorded before ``cursor`` has been overwritten since."""
        return bool(np.all(np.asarray(cursor["head"]) < self._head - self.length + 1))

    @property
    def nbytes(self) -> int:
        """Memory of all arrays."""
        return sum(array.nbytes for array in self._storages().values())

    def _storages(self) -> dict[str, np.ndarray]:
        """All that is kept of every slot, under the names of a chunk."""
        others = {"reward": self._reward, "discount": self._discount, "flags": self._flags}
        return {**named("observation", self._observation), **named("action", self._action), **others}


def _check_sample(batch_size: int, window: int, follow: str, train_on: str, look_at: str) -> None:
    for name, value in (("batch_size", batch_size), ("window", window)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise TypeError(f"{name} must be an integer, got {value!r}")
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value!r}")
    if follow not in ("repeats", "episode"):
        raise ValueError(f"follow must be 'repeats' or 'episode', got {follow!r}")
    if train_on not in ("first", "all"):
        raise ValueError(f"train_on must be 'first' or 'all', got {train_on!r}")
    if look_at not in ("all", "ends"):
        raise ValueError(f"look_at must be 'all' or 'ends', got {look_at!r}")


def _require_memory(needed: int, capacity: int) -> None:
    """Memory may be granted that is not there: then the process is ended when the replay has filled it, hours later."""
    if needed > (available := available_memory()):
        raise MemoryError(
            f"a replay of {capacity} frames (--buffer-size) needs {needed / 2**30:.1f} GiB of memory, "
            f"but {available / 2**30:.1f} GiB are available"
        )


def _arrays(name: str, space: spaces.Space, slots: int) -> Structure:
    def storage(part: spaces.Space) -> np.ndarray:
        if not isinstance(part, spaces.Box):
            raise TypeError(f"{name} must be a Box or a Dict of Boxes, got {space}")
        dtype = np.float32 if np.issubdtype(part.dtype, np.floating) else part.dtype
        return np.zeros((slots, *part.shape), dtype)

    return mapped(storage, space)


def _read(storage: Structure, slots: np.ndarray) -> Structure:
    """Copies of these rows; ``take`` copies whole rows in a quarter of the time of indexing."""
    return mapped(lambda part: part.take(slots, axis=0), storage)


def _write(storage: Structure, slots: np.ndarray, values: Structure) -> None:
    def write(part: np.ndarray, rows: np.ndarray) -> None:
        part[slots] = rows

    mapped(write, storage, values)


def _zeros(like: np.ndarray) -> np.ndarray:
    return np.zeros(like.shape, like.dtype)  # not zeros_like, which writes all of it


def _pairs(chunks: Any) -> Iterable[Any]:
    """The arrays of each pair (arrays, cursor)."""
    if not isinstance(chunks, Iterable):
        raise TypeError(f"chunks must be pairs (arrays, cursor), got {chunks!r}")
    for pair in chunks:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"chunks must be pairs (arrays, cursor), got {pair!r}")
        yield pair[0]


# What `add` is given is checked at every frame, so this is written for speed: good arrays pass a few comparisons.


def _flags(name: str, value: Any, count: int) -> np.ndarray:
    flags = np.asarray(value)
    if flags.dtype.kind != "b" or flags.shape != (count,):
        raise ValueError(f"{name} must be {count} booleans, got {value!r}")
    return flags


def _fitting(name: str, value: Any, storage: np.ndarray, count: int, rows: np.ndarray | None = None) -> np.ndarray:
    """``value`` in the dtype of ``storage``; raise unless it is ``count`` rows of finite numbers.

    ``rows`` are the indices of those that matter: the others are neither checked nor returned.
    """
    array = value if type(value) is np.ndarray else _as_array(name, value)
    if array.shape != (count, *storage.shape[1:]) or array.dtype.kind not in "fiub":
        raise ValueError(f"{name} must be numbers of shape {(count, *storage.shape[1:])}, got {value!r}")
    if rows is not None:
        array = array[rows]
    if array.dtype is not storage.dtype:
        array = _cast(name, array, storage.dtype)
    if storage.dtype.kind == "f" and not all_finite(array):
        raise ValueError(f"{name} must be finite numbers, as {storage.dtype} too, got {value!r}")
    return array


def _fitting_structure(
    name: str, value: Any, storage: Structure, count: int, rows: np.ndarray | None = None
) -> Structure:
    if not isinstance(storage, dict):
        return _fitting(name, value, storage, count, rows)
    if not isinstance(value, dict) or value.keys() != storage.keys():
        raise ValueError(f"{name} must be a dict of {list(storage)}, got {value!r}")
    try:
        return {key: _fitting(key, value[key], part, count, rows) for key, part in storage.items()}
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _as_array(name: str, value: Any) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} must be numbers, got {value!r}") from error


def _cast(name: str, array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "f":
        return array.astype(dtype)
    with np.errstate(invalid="ignore"):
        cast = array.astype(dtype)
    if np.any(cast != array):  # a fraction, nan, or too large: it would be stored as something else
        raise ValueError(f"{name} must be integers that {dtype} can hold, got {array!r}")
    return cast
