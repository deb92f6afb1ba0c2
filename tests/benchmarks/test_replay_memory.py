"""The replay takes at most 60 % of the bytes of Stable-Baselines3's buffer; bytes per transition by hand."""

from __future__ import annotations

import replay_memory


def test_a_million_transitions_take_at_most_60_percent_of_sb3s_bytes():
    bytes_of = replay_memory.half_cheetah()
    ours, float32, optimized, float64, _ = bytes_of.values()
    # One observation of 17, an action of 6, a reward, and one byte of flags, in a slot per transition, one per
    # final observation of 1000 episodes, and two that a ring cannot use.
    assert ours == (17 * 4 + 6 * 4 + 4 + 1) * (1_000_000 + 1000 + 2)
    # Two observations, an action, and three floats: the reward, done, and whether that was a time limit.
    assert float32 == (2 * 17 * 4 + 6 * 4 + 3 * 4) * 1_000_000
    assert optimized == (17 * 4 + 6 * 4 + 3 * 4) * 1_000_000
    assert float64 == (2 * 17 * 8 + 6 * 4 + 3 * 4) * 1_000_000
    assert ours <= 0.6 * float32


def test_prints_every_task_that_is_not_driving(capsys):
    replay_memory.main()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    names = [row.split("|")[1].strip() for row in rows]
    assert len(replay_memory.tasks()) == 13
    assert {"HalfCheetah-v5", "BipedalWalker-v3", "FetchPush-v4"} < set(names)
    assert "Town01-v0" not in names
