"""A replay chunk that every checkpoint shares is damaged: the run goes on without what it held, and nothing else."""

from __future__ import annotations

import copy
import os
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

from taac_wrappers.training.checkpoint import CheckpointError, CheckpointStore
from taac_wrappers.training.replay import SequenceReplay

ENVS = 2
BOX = spaces.Box(-np.inf, np.inf, (1,))
ACTIONS = spaces.Box(-1e9, 1e9, (1,))
DICT = spaces.Dict(observation=BOX, prev_action=ACTIONS)


def empty_replay(frames: int, space: spaces.Space = DICT) -> SequenceReplay:
    return SequenceReplay(space, ACTIONS, capacity=frames, num_envs=ENVS, seed=0)


@dataclass
class History:
    """Random episodes of two envs: the replay, and what really happened at every observation (a number of its own)."""

    replay: SequenceReplay
    seed: int = 0
    frame: int = 0
    truth: dict[float, tuple] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.number = 0
        self.prev_action = np.zeros((ENVS, 1))
        self.observation = self._fresh()
        self.replay.start(self._shown())

    def _shown(self) -> dict[str, np.ndarray]:
        return {"observation": self.observation, "prev_action": self.prev_action}

    def _fresh(self) -> np.ndarray:
        self.number += ENVS
        return np.array([[float(self.number + env)] for env in range(ENVS)])

    def play(self, steps: int) -> None:
        for _ in range(steps):
            action, reward, discount = self._fresh(), self._fresh()[:, 0], 1 / self._fresh()[:, 0].astype(np.float32)
            terminated, repeated = self.rng.random(ENVS) < 0.2, self.rng.random(ENVS) < 0.5
            following, no = {"observation": self._fresh(), "prev_action": action}, np.zeros(ENVS, bool)
            self.replay.add(action, reward, terminated, no, following, repeated=repeated, discount=discount)
            self.frame += ENVS
            for env in range(ENVS):
                told = self.prev_action[env, 0], action[env, 0], reward[env], discount[env]
                told = *told, following["observation"][env, 0], terminated[env]
                self.truth[self.observation[env, 0]] = (*told, self.frame)
            self.prev_action = np.where(terminated[:, None], 0, action)
            self.observation = following["observation"]
            if terminated.any():
                self.observation = np.where(terminated[:, None], self._fresh(), self.observation)
                self.replay.start(self._shown(), terminated)

    def kept(self, after: int) -> dict[float, int]:
        """The frames that are left without the chunks up to ``after``.

        A chunk begins with the newest transition of the one before. Where that ended an episode, it begins with the
        final observation, because the next episode had been started.
        """
        return {
            observation: frame
            for observation, (*_, terminated, frame) in self.truth.items()
            if frame > after or (frame == after and not terminated)
        }

    def check_samples(self, replay: SequenceReplay, after: int) -> None:
        """Everything drawn is what happened, and what is drawn are the frames after ``after``, each of them."""
        drawn = {}
        windows = replay.sample(1500, 3, follow="episode", train_on="all")
        reward, discount, ended = (
            rows.reshape(-1)[windows.index] for rows in (windows.reward, windows.discount, windows.terminated)
        )
        for row, observation in enumerate(windows.observation["observation"][:, 0].tolist()):
            *told, frame = self.truth[observation]
            assert told == [
                windows.observation["prev_action"][row, 0],
                windows.action[row, 0],
                reward[row],
                discount[row],
                windows.next_observation["observation"][row, 0],
                ended[row],
            ]
            assert windows.next_observation["prev_action"][row, 0] == windows.action[row, 0]
            drawn[observation] = frame
        assert drawn == self.kept(after)
        assert len(replay) == len(drawn)


def save(store: CheckpointStore, history: History) -> Path:
    return store.save(history.frame, {"w": torch.zeros(1)}, {}, {"frame": history.frame}, history.replay)


def saved_history(run_dir: Path, *steps: int, frames: int = 1000) -> History:
    """A run that saved after each of ``steps``."""
    history, store = History(empty_replay(frames)), CheckpointStore(run_dir)
    for count in steps:
        history.play(count)
        save(store, history)
    return history


def chunks_of(run_dir: Path) -> list[Path]:
    return sorted((run_dir / "checkpoint" / "replay").iterdir())


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


DAMAGES = {
    "flipped": flip_a_bit,
    "truncated": lambda path: os.truncate(path, path.stat().st_size - 1),
    "empty": lambda path: os.truncate(path, 0),
    "missing": Path.unlink,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(("which", "lost"), [(0, 20), (1, 50)])
def test_the_newest_checkpoint_goes_on_with_the_frames_after_the_damage(tmp_path, which, lost, damage):
    history = saved_history(tmp_path, 10, 15, 8, 9)  # frames 20, 50, 66 and 84
    victim = chunks_of(tmp_path)[which]
    DAMAGES[damage](victim)
    with pytest.warns(UserWarning, match="without all of its replay") as caught:
        loaded = CheckpointStore(tmp_path).load()
    (warning,) = caught
    said = str(warning.message)
    assert loaded.frame == 84
    assert f"going on from checkpoint {loaded.path} " in said
    assert f"the replay's frames up to {lost} are lost, {84 - lost} remain" in said
    assert "will differ from one without this damage" in said
    assert said.count(victim.name) == 2  # of both generations
    replay = empty_replay(1000)
    replay.load_chunks(loaded.chunks)
    history.check_samples(replay, after=lost)


def test_several_damaged_chunks_are_all_named_and_the_last_one_decides(tmp_path):
    history = saved_history(tmp_path, 10, 15, 8, 9)
    first, second = chunks_of(tmp_path)[:2]
    flip_a_bit(first)
    second.unlink()
    with pytest.warns(UserWarning, match=f"{first.name} is damaged: .*{second.name} is missing.* up to 50 are lost"):
        loaded = CheckpointStore(tmp_path).load()
    replay = empty_replay(1000)
    replay.load_chunks(loaded.chunks)
    history.check_samples(replay, after=50)


def test_a_whole_older_checkpoint_is_preferred(tmp_path):
    saved_history(tmp_path, 10, 15, 8, 9)
    flip_a_bit(chunks_of(tmp_path)[3])  # only the newest has it
    with pytest.warns(UserWarning, match="going back to checkpoint .*066, because"):
        assert CheckpointStore(tmp_path).load().frame == 66


@pytest.mark.parametrize(
    ("newest", "older", "expected"), [([1, 3], [1], 66), ([1, "state"], [1], 66), ([1], [1, "state"], 84)]
)
def test_the_newest_that_can_be_used_is(tmp_path, newest, older, expected):
    """Numbers are chunks; the newest chunk and the state are what a checkpoint cannot do without."""
    saved_history(tmp_path, 10, 15, 8, 9)
    chunks = chunks_of(tmp_path)
    for frame, damaged in ((84, newest), (66, older)):
        for part in damaged:
            path = chunks[part] if isinstance(part, int) else tmp_path / f"checkpoint/{frame:012d}/state.safetensors"
            os.truncate(path, 3)
    with pytest.warns(UserWarning, match=f"going on from checkpoint .*{expected:03d} without all"):
        assert CheckpointStore(tmp_path).load().frame == expected


def test_without_any_newest_chunk_no_checkpoint_is_usable(tmp_path):
    saved_history(tmp_path, 10, 15, 8, 9)
    third, fourth = chunks_of(tmp_path)[2:]
    third.unlink()
    fourth.unlink()
    with pytest.raises(CheckpointError, match=f"no checkpoint is usable: .*{fourth.name} is missing.*{third.name}"):
        CheckpointStore(tmp_path).load()


def test_the_run_then_saves_and_loads_without_what_was_lost(tmp_path):
    history = saved_history(tmp_path, 10, 15, 8, 9)
    flip_a_bit(chunks_of(tmp_path)[1])
    store = CheckpointStore(tmp_path)
    with pytest.warns(UserWarning, match="up to 50 are lost"):
        loaded = store.load()
    history.replay = empty_replay(1000)
    history.replay.load_chunks(loaded.chunks)
    for _ in range(2):
        history.play(6)
        save(store, history)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = CheckpointStore(tmp_path).load()
    replay = empty_replay(1000)
    replay.load_chunks(again.chunks)
    history.check_samples(replay, after=50)
    # A store that has to write everything anew does not write what was never loaded.
    everything, _ = replay.chunk(None)
    assert everything["from"].tolist() == replay._intact_from.tolist()
    replay = empty_replay(1000)
    replay.load_chunks([(everything, {})])
    history.check_samples(replay, after=50)


def test_once_the_ring_has_gone_round_the_loss_is_forgotten(tmp_path):
    history = saved_history(tmp_path, 10, 15, frames=60)
    flip_a_bit(chunks_of(tmp_path)[0])
    with pytest.warns(UserWarning, match="up to 20 are lost, 30 remain"):
        loaded = CheckpointStore(tmp_path).load()
    damaged = empty_replay(60)
    damaged.load_chunks(loaded.chunks)
    assert 30 <= len(damaged) == len(history.kept(20)) <= 30 + ENVS < len(history.replay)
    twin = copy.deepcopy(history)
    history.replay, whole = damaged, twin.replay
    history.play(60)
    twin.play(60)
    damaged.rng.bit_generator.state = whole.rng.bit_generator.state
    one, other = damaged.sample(500, 3), whole.sample(500, 3)
    assert np.array_equal(one.observation["observation"], other.observation["observation"])
    assert np.array_equal(one.reward, other.reward)


def test_a_lone_final_observation_is_no_transition():
    """What is left after the loss may be nothing but an episode's last observation: drawing must not go on for ever."""
    replay = SequenceReplay(BOX, ACTIONS, capacity=100, num_envs=1, seed=0)
    no, yes = np.zeros(1, bool), np.ones(1, bool)
    replay.start(np.zeros((1, 1)))
    for ended in (no, no, yes):
        replay.add(np.ones((1, 1)), np.ones(1), ended, no, np.ones((1, 1)), repeated=no, discount=np.ones(1))
    replay.start(np.zeros((1, 1)))
    _, cursor = replay.chunk(None)
    second = replay.chunk(cursor)
    rest = SequenceReplay(BOX, ACTIONS, capacity=100, num_envs=1, seed=0)
    rest.load_chunks([second])
    assert len(rest) == 0
    with pytest.raises(ValueError, match="no env has a transition yet"):
        rest.sample(1)
    rest.add(np.full((1, 1), 7.0), np.ones(1), no, no, np.ones((1, 1)), repeated=no, discount=np.ones(1))
    assert len(rest) == 1
    assert set(rest.sample(20).action[:, 0].tolist()) == {7.0}


def test_an_interruption_that_only_the_missing_chunk_told_of_is_seen_by_the_next_one():
    replay = SequenceReplay(BOX, ACTIONS, capacity=100, num_envs=1, seed=0)
    no, yes = np.zeros(1, bool), np.ones(1, bool)
    replay.start(np.zeros((1, 1)))

    def add(number: float) -> None:
        told = np.full((1, 1), number), np.full(1, number), no, no, np.full((1, 1), number)
        replay.add(*told, repeated=no, discount=np.ones(1))

    add(1.0)
    add(2.0)
    first, cursor = replay.chunk(None)
    replay.interrupt(yes)
    replay.start(np.full((1, 1), 5.0))
    _, cursor = replay.chunk(cursor)  # lost
    add(6.0)
    rest = SequenceReplay(BOX, ACTIONS, capacity=100, num_envs=1, seed=0)
    rest.load_chunks([(first, {}), replay.chunk(cursor)])
    assert len(rest) == len(replay) == 3
    windows = rest.sample(60, 3, follow="episode")
    cut = dict(zip(windows.reward[0], windows.truncated[0], strict=True))
    assert cut == {1.0: False, 2.0: True, 6.0: False}


def chunk_of(replay: SequenceReplay) -> dict[str, np.ndarray]:
    return replay.chunk(None)[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head": np.array([2**62 + 1, 2**62 + 1])}, "must be slots in order"),
        ({"head": np.array([2**40, 2**40])}, "must be slots in order"),
        ({"from": np.array([-1, 0])}, "must be slots in order"),
        ({"from": np.array([7, 0])}, "must be slots in order"),
        ({"from": np.array([-(2**63), 0])}, "must be slots in order"),
        ({"from": np.array([0])}, r"'from'.* must be numbers of shape \(2,\)"),
        ({"started": np.array([True])}, "'started'.* must be 2 booleans"),
        ({"head": np.array([5])}, "chunk holds 1 streams, this replay has 2"),
        ({"head": np.array(5)}, r"'head'.* must be numbers of shape \(2,\)"),
        ({"head": np.array([5.0, 5.0])}, "'head'.* must be int64"),
        ({"reward": np.zeros(12)}, "'reward'.* must have dtype float32"),
        ({"reward": np.full(12, np.nan, np.float32)}, "'reward'.* must be finite"),
        ({"reward": np.zeros(11, np.float32)}, r"'reward'.* must be numbers of shape \(12,\)"),
        ({"discount": np.zeros(12)}, "'discount'.* must have dtype float32"),
        ({"discount": np.full(12, np.inf, np.float32)}, "'discount'.* must be finite"),
        ({"discount": None}, "chunk must hold"),
        ({"observation": np.zeros((12, 2), np.float32)}, r"'observation'.* must be numbers of shape \(12, 1\)"),
        ({"action": np.zeros((12, 10**6), np.float32)}, r"'action'.* must be numbers of shape \(12, 1\)"),
        ({"extra": np.zeros(1)}, "chunk must hold"),
        ({"reward": None}, "chunk must hold"),
        ({"flags": np.full(12, 2, np.uint8)}, "must tell the episodes of env 0"),
        ({"flags": np.array([1, 0, 0, 0, 0, 16] * 2, np.uint8)}, "must tell the episodes of env 0"),
        ({"flags": np.array([1, 4, 2 + 16, 1, 0, 0] * 2, np.uint8)}, "must tell the episodes of env 0"),
    ],
)
def test_chunks_that_do_not_fit_are_refused_and_change_nothing(change, message):
    recorded = empty_replay(50, BOX)
    recorded.start(np.zeros((2, 1)))
    no = np.zeros(2, bool)
    for _ in range(5):
        recorded.add(np.ones((2, 1)), np.ones(2), no, no, np.ones((2, 1)), repeated=no, discount=np.ones(2))
    chunk = {key: value for key, value in (chunk_of(recorded) | change).items() if value is not None}
    replay = empty_replay(50, BOX)
    before = chunk_of(replay)
    with pytest.raises(ValueError, match=message):
        replay.load_chunks([(chunk, {})])
    after = chunk_of(replay)
    assert all(np.array_equal(after[key], before[key]) for key in ("head", "from", "started"))
    replay.start(np.zeros((2, 1)))  # still a new replay


def test_a_chunk_may_not_go_back_in_time():
    history = History(empty_replay(50))
    history.play(4)
    early = history.replay.chunk(None)
    history.play(4)
    late = history.replay.chunk(None)
    with pytest.raises(ValueError, match="must be slots in order"):
        empty_replay(50).load_chunks([late, early])
