"""The long test: `make soak`. Memory over 200,000 frames, and hundreds of kills, for every script under agents/.

    python tests/soak/soak.py [memory-taac memory-sac kills-taac kills-sac]

Everything that is measured is appended to ``runs/soak-<time>/results.jsonl`` as it happens; the table at the end sums
it up. The exit code is 1 if a promise of docs/reliability.md was broken.
"""

from __future__ import annotations

import json
import random
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

from harness import SCRIPTS, Case, Runner, assert_same_run, kill_at_every_step, kill_at_random_times
from memory import summarize, train_and_sample

KILLS = 200  # at random times, besides one at every kind of step
KILLS_PER_RUN = 5
RSS_LIMIT = 0.05


class Results:
    """A file with one JSON object per line."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True)

    def add(self, part: str, **values: Any) -> dict[str, Any]:
        line = {"part": part, **values}
        with open(self.folder / "results.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")
        return line


def soak_memory(method: str, part: str, results: Results) -> dict[str, Any]:
    samples = []
    for sample in train_and_sample(SCRIPTS[method], results.folder / part):
        samples.append(sample)
        results.add(part, **asdict(sample))
    summary = summarize(samples)
    flat = summary["rss_spread"] <= RSS_LIMIT and summary["handles_growth"] <= 0
    return results.add(part, passed=flat, **summary)


def soak_kills(method: str, part: str, results: Results) -> dict[str, Any]:
    """Every kind of step in every stage of a run, then random times in runs of all cases, until there are enough."""
    folder, rng = results.folder / part, random.Random(time.time_ns())
    folder.mkdir()
    counts = {"at_steps": 0, "at_random_times": 0, "runs": 1}
    with Runner() as runner:
        wholes = {case: folder / f"whole-{index}" for index, case in enumerate(cases_of(method))}
        for case, whole in wholes.items():
            runner.run(case, whole)
        first = next(iter(wholes))
        killed = kill_at_every_step(runner, first, folder / "steps", in_every_stage=True)
        assert_same_run(folder / "steps", wholes[first])
        results.add(part, case=asdict(first), steps=killed.steps)
        counts["at_steps"] = killed.kills
        while counts["at_random_times"] < KILLS:
            for case, whole in wholes.items():
                run_dir = folder / f"times-{counts['runs']}"
                killed = kill_at_random_times(runner, case, run_dir, KILLS_PER_RUN, rng)
                assert_same_run(run_dir, whole)
                results.add(part, case=asdict(case), at_random_times=killed.kills)
                counts["at_random_times"] += killed.kills
                counts["runs"] += 1
    return results.add(part, passed=True, **counts)


def cases_of(method: str) -> list[Case]:
    env_ids = "InvertedDoublePendulum-v5", "MountainCarContinuous-v0"
    return [Case(method, env_id, num_envs) for env_id in env_ids for num_envs in (1, 2)]


PARTS = {f"memory-{method}": (soak_memory, method) for method in SCRIPTS}
PARTS |= {f"kills-{method}": (soak_kills, method) for method in SCRIPTS}


def soak(part: str, results: Results) -> dict[str, Any]:
    """One part; whatever goes wrong in it is its result, and the other parts go on."""
    function, method = PARTS[part]
    print(f"{part} ...", flush=True)
    started = time.monotonic()
    try:
        summary = function(method, part, results)
    except Exception:
        summary = results.add(part, passed=False, error=traceback.format_exc())
    return {**summary, "minutes": (time.monotonic() - started) / 60}


def as_row(summary: dict[str, Any]) -> str:
    if "error" in summary:
        found = summary["error"].strip().splitlines()[-1]
    elif "runs" in summary:
        found = (
            f"{summary['at_steps']} kills at a step, {summary['at_random_times']} at a random time, "
            f"{summary['runs']} runs equal to one never killed"
        )
    else:
        frames = summary["first"]["frame"], summary["last"]["frame"]
        found = (
            f"frames {frames[0]:,} to {frames[1]:,}: memory {summary['last']['rss'] / 1e6:.0f} MB, spread "
            f"{summary['rss_spread']:.2%}; {summary['last']['handles']} open files, {summary['handles_growth']:+d}"
        )
    return f"| {summary['part']} | {'passed' if summary['passed'] else 'FAILED'} | {summary['minutes']:.0f} | {found} |"


def main(parts: list[str]) -> int:
    if unknown := set(parts) - PARTS.keys():
        print(f"error: no such part: {sorted(unknown)}; there are {list(PARTS)}", file=sys.stderr)
        return 2
    results = Results(Path("runs") / time.strftime("soak-%Y%m%d-%H%M%S"))
    summaries = [soak(part, results) for part in parts or PARTS]
    print("\n| part | result | minutes | measured |\n|---|---|---|---|")
    print("\n".join(map(as_row, summaries)))
    return 0 if all(summary["passed"] for summary in summaries) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
