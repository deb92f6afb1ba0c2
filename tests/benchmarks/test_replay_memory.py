"""The replay beside Stable-Baselines3's buffer: SAC's takes at most 60 % of its bytes, TAAC's 75 %; bytes by hand."""

from __future__ import annotations

import replay_memory


def test_a_million_transitions_take_fewer_bytes_than_sb3s():
    sac, taac, float32, optimized, float64, _ = replay_memory.half_cheetah().values()
    # One observation of 17, an action of 6, a reward, a discount and one byte of flags, in a slot per transition, one
    # per final observation of 1000 episodes, and one for the current observation. TAAC also observes an action of 6.
    assert sac == (17 * 4 + 6 * 4 + 4 + 4 + 1) * (1_000_000 + 1000 + 1)
    assert taac == (17 * 4 + 6 * 4 + 6 * 4 + 4 + 4 + 1) * (1_000_000 + 1000 + 1)
    # Two observations, an action, and three floats: the reward, done, and whether that was a time limit.
    assert float32 == (2 * 17 * 4 + 6 * 4 + 3 * 4) * 1_000_000
    assert optimized == (17 * 4 + 6 * 4 + 3 * 4) * 1_000_000
    assert float64 == (2 * 17 * 8 + 6 * 4 + 3 * 4) * 1_000_000
    assert sac <= 0.6 * float32
    assert taac <= 0.75 * float32


def test_every_task_that_is_not_driving_and_its_goals_by_hand(monkeypatch, capsys):
    rows = replay_memory.tasks()
    assert len(rows) == 13
    assert {"HalfCheetah-v5", "BipedalWalker-v3", "FetchPush-v4"} < rows.keys()
    assert "Town01-v0" not in rows
    # An observation of 25 and two goals of 3, an action of 4; 38 environments that keep 20,000 frames each.
    observations, actions, frames, sac, taac, sb3 = rows["FetchPush-v4"]
    assert (observations, actions, frames) == (25 + 3 + 3, 4, 760_000)
    assert sac == ((31 + 4 + 1 + 1) * 4 + 1) * 38 * 20_001
    assert taac == ((31 + 4 + 4 + 1 + 1) * 4 + 1) * 38 * 20_001
    assert sb3 == (2 * 31 + 4 + 3) * 4 * 760_000
    monkeypatch.setattr(replay_memory, "tasks", lambda: rows)
    replay_memory.main()
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert {line.split("|")[1].strip() for line in printed} > rows.keys()
