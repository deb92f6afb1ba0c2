"""Saving a replay of a million frames again writes what is new, not everything."""

from __future__ import annotations

import io
import os

import numpy as np
import pytest
import torch
from gymnasium import spaces

from taac_wrappers.training import files
from taac_wrappers.training.checkpoint import CheckpointStore
from taac_wrappers.training.replay import FIRST, SequenceReplay

FRAMES, NEW = 1_000_000, 10_000
OBSERVATION, ACTION = 17, 6  # HalfCheetah's
BYTES_PER_FRAME = 4 * (OBSERVATION + ACTION + 2) + 1  # with the reward, the discount and the flags


@pytest.fixture
def written(monkeypatch) -> list[int]:
    """The bytes of every write to a file of a checkpoint."""
    counts: list[int] = []

    class CountingFile(io.FileIO):
        def write(self, data):
            counts.append(len(data))
            return super().write(data)

    monkeypatch.setattr(files, "open", CountingFile, raising=False)
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # only a power cut could tell
    return counts


def full_replay() -> SequenceReplay:
    """A million frames of one endless episode, put there in one go."""
    replay = SequenceReplay(
        spaces.Box(-np.inf, np.inf, (OBSERVATION,)), spaces.Box(-1, 1, (ACTION,)), capacity=FRAMES, num_envs=1, seed=0
    )
    slots = FRAMES + 1
    arrays = {
        "from": np.array([0]),
        "head": np.array([FRAMES]),
        "started": np.array([True]),
        "action": np.zeros((slots, ACTION), np.float32),
        "reward": np.zeros(slots, np.float32),
        "discount": np.zeros(slots, np.float32),
        "flags": np.r_[FIRST, np.zeros(FRAMES, np.uint8)],
        "observation": np.zeros((slots, OBSERVATION), np.float32),
    }
    replay.load_chunks([(arrays, {})])
    assert len(replay) == FRAMES
    return replay


def test_a_save_into_a_million_frames_writes_what_is_new(tmp_path, written):
    replay, store = full_replay(), CheckpointStore(tmp_path)
    weights = {"weights": torch.zeros(300, 300)}
    store.save(FRAMES, weights, {}, {}, replay)
    assert sum(written) > FRAMES * BYTES_PER_FRAME  # the first time, everything
    written.clear()

    action, reward, no = np.ones((1, ACTION)), np.ones(1), np.zeros(1, bool)
    for frame in range(NEW):
        replay.add(action, reward, no, no, np.full((1, OBSERVATION), frame), repeated=no, discount=reward)
    path = store.save(FRAMES + NEW, weights, {}, {}, replay)
    state = (path / "state.safetensors").stat().st_size
    new_frames = NEW * BYTES_PER_FRAME
    assert new_frames + state < sum(written) < 1.2 * new_frames + state

    again = SequenceReplay(
        spaces.Box(-np.inf, np.inf, (OBSERVATION,)), spaces.Box(-1, 1, (ACTION,)), capacity=FRAMES, num_envs=1, seed=0
    )
    again.load_chunks(CheckpointStore(tmp_path).load().chunks)
    assert len(again) == FRAMES
    assert again.sample(20 * FRAMES // NEW).observation[:, 0].max() > 0  # about 20 of these are new frames
