"""The long test: `make soak`. Memory, kills, fuzzing and every other fault, again and again; a goal task is learned;
all that `--compile` makes is compared with what it was made of.

    python tests/soak/soak.py [--frames N] [--kills N] [--examples N] [--rounds N] [--at-once N] [part ...]

Every part is a process of its own, with one thread; so many run at once as there are cores. What a part measures is
appended to ``runs/soak-<time>/results.jsonl`` as it happens, and what it says is in ``runs/soak-<time>/<part>``. The
table at the end counts what was really run. The exit code is 1 if a promise of docs/reliability.md was broken.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

from harness import (
    ROOT,
    SCRIPTS,
    THOROUGHLY,
    Case,
    DoesNotResume,
    Runner,
    assert_same_run,
    environment,
    kill_at_every_step,
    kill_at_random_times,
)
from memory import FRAMES, summarize, train_and_sample

from taac_wrappers.training.tracking import read_metrics

KILLS_PER_RUN = 5
EXAMPLES_PER_PROCESS = 1_000  # Hypothesis remembers every example, and gets slower
RSS_LIMIT = 0.05
MACHINES = {
    "vector": "tests/fuzz/test_fuzz_wrappers.py::TestVectorStacks",
    "stacks": "tests/fuzz/test_fuzz_wrappers.py::TestStacks",
    "replay": "tests/fuzz/test_fuzz_replay.py::TestReplay",
}
FAULT_TESTS = (
    *("tests/agents/test_env_faults.py", "tests/faults/test_same_seed.py", "tests/test_hostile_files.py"),
    *(f"tests/training/test_{name}faults.py" for name in ("", "learning_", "disk_", "wandb_")),
    *(f"tests/training/test_{name}.py" for name in ("engines", "checkpoint", "damaged_replay")),
)


class Broken(AssertionError):
    """A promise was not kept."""


@dataclass(frozen=True)
class Sizes:
    """How much of everything; of kills and examples for each script and each state machine."""

    frames: int = FRAMES
    kills: int = 200  # at random times, besides one at every kind of step
    examples: int = 10_000
    rounds: int = 3  # of the tests of all other faults


class Results:
    """A folder for one part, and the file with one JSON object per line that all parts share."""

    def __init__(self, folder: Path, part: str):
        self._file, self._part, self.folder = folder / "results.jsonl", part, folder / part

    def add(self, **values: Any) -> None:
        # One write per line: lines of parts that run at the same time do not mix.
        with open(self._file, "ab", buffering=0) as file:
            file.write(json.dumps({"part": self._part, **values}).encode() + b"\n")

    def last(self) -> dict[str, Any]:
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        return next((line for line in map(json.loads, reversed(lines)) if line["part"] == self._part), {})


# --- The parts: each returns a sentence for the table, or raises ------------------------------------------------------


def soak_memory(method: str, sizes: Sizes, results: Results) -> str:
    samples = []
    for sample in train_and_sample(SCRIPTS[method], results.folder / "run", sizes.frames):
        samples.append(sample)
        results.add(**asdict(sample))
    summary = summarize(samples, sizes.frames)
    results.add(**summary)
    first, last = summary["first"], summary["last"]
    found = (
        f"frames {first['frame']:,} to {last['frame']:,}: memory {last['rss'] / 1e6:.0f} MB, within "
        f"{summary['rss_spread']:.2%}; {last['handles']} open files, {summary['handles_growth']:+d}"
    )
    if summary["rss_spread"] > RSS_LIMIT or summary["handles_growth"] > 0:
        raise Broken(found)
    return found


def soak_kills(method: str, sizes: Sizes, results: Results) -> str:
    """Every kind of step in every stage of a run, then random times in runs of all cases, until there are enough."""
    folder, rng = results.folder, random.Random(time.time_ns())
    kills, runs = 0, 1
    with Runner() as runner:
        wholes = {case: folder / f"whole-{index}" for index, case in enumerate(cases_of(method))}
        for case, whole in wholes.items():
            if (outcome := runner.run(case, whole)).code != 0:
                raise Broken(f"{case} fails by itself, with exit code {outcome.code}: {outcome.said}")
        first = next(iter(wholes))
        at_steps = kill_at_every_step(runner, first, folder / "steps", in_every_stage=True)
        results.add(case=asdict(first), at_steps=at_steps.kills, steps=at_steps.steps)
        assert_same_run(folder / "steps", wholes[first])
        while kills < sizes.kills:
            case = list(wholes)[runs % len(wholes)]
            run_dir = folder / f"times-{runs}"
            killed = kill_at_random_times(runner, case, run_dir, min(KILLS_PER_RUN, sizes.kills - kills), rng)
            results.add(case=asdict(case), at_random_times=killed.kills)
            assert_same_run(run_dir, wholes[case])
            kills, runs = kills + killed.kills, runs + 1
    return f"{at_steps.kills} kills at a step, {kills} at a random time; {runs} runs, all equal to one never killed"


def cases_of(method: str) -> list[Case]:
    env_ids = "InvertedDoublePendulum-v5", "ShortMountainCar-v0"
    return [Case(method, env_id, num_envs) for env_id in env_ids for num_envs in (1, 2)]


def soak_fuzz(machine: str, sizes: Sizes, results: Results) -> str:
    passed = 0
    while passed < sizes.examples:
        examples = min(EXAMPLES_PER_PROCESS, sizes.examples - passed)
        output = pytest_output(
            results.folder / f"from-{passed}.log",
            [MACHINES[machine], "--hypothesis-show-statistics"],
            {"TAAC_SOAK": "1", "TAAC_SOAK_EXAMPLES": str(examples)},
        )
        counted = sum(int(count) for count in re.findall(r"- (\d+) passing", output))
        if counted == 0:
            raise Broken(f"no example was run: {output}")
        results.add(examples=counted)
        passed += counted
    return f"{passed:,} examples"


def soak_faults(_: str, sizes: Sizes, results: Results) -> str:
    tests = 0
    for number in range(sizes.rounds):
        output = pytest_output(results.folder / f"round-{number}.log", [*FAULT_TESTS], {})
        (counted,) = re.findall(r"(\d+) passed", output)
        results.add(round=number, tests=int(counted))
        tests += int(counted)
    return f"{tests} tests in {sizes.rounds} rounds"


def soak_compile(_: str, __: Sizes, results: Results) -> str:
    """Every target of every script through C++, not only to the graphs that become it."""
    output = pytest_output(results.folder / "tests.log", ["tests/agents/test_compile.py"], {"TAAC_SOAK": "1"})
    (counted,) = re.findall(r"(\d+) passed", output)
    results.add(tests=int(counted))
    return f"{counted} tests, every target of every script compiled to C++"


def soak_learning(env_id: str, _: Sizes, results: Results) -> str:
    """A goal task is learned with hindsight, as well as can be, in so many frames."""
    run_dir, frames = results.folder / "run", 20_000
    words = ["--env-id", env_id, "--settings", "laptop", "--total-frames", frames, "--eval-interval", 5_000]
    words += ["--final-episodes", 20, "--run-dir", run_dir]
    subprocess.run([sys.executable, SCRIPTS["taac"], *map(str, words)], check=True, env=environment())
    success = float(read_metrics(run_dir / "metrics.csv")["final/success"][1][-1])
    results.add(frames=frames, success=success)
    found = f"success {success:.2f} over 20 episodes after {frames:,} frames of {env_id}"
    if success < 1:
        raise Broken(found)
    return found


def pytest_output(log: Path, words: list[str], variables: dict[str, str]) -> str:
    """What pytest said; every failure is named in the error, with all the rest in ``log``."""
    command = [sys.executable, "-m", "pytest", "-q", *words]
    with open(log, "w") as file:
        wide = os.environ | {"COLUMNS": "500"}  # room for the reasons
        code = subprocess.call(command, stdout=file, stderr=file, cwd=ROOT, env=wide | variables)
    output = log.read_text(errors="replace")
    if code != 0:
        failures = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
        raise Broken(f"pytest ended with {code}, see {log}: {'; '.join(failures) or output[-1000:]}")
    return output


Part = tuple[Callable[[str, Sizes, Results], str], str]
PARTS: dict[str, Part] = {  # the longest first, so that none is left alone at the end
    **{f"fuzz-{machine}": (soak_fuzz, machine) for machine in MACHINES},
    **{f"kills-{method}": (soak_kills, method) for method in THOROUGHLY},
    "faults": (soak_faults, ""),
    "compile": (soak_compile, ""),
    "learning-FetchReach": (soak_learning, "FetchReach-v4"),
    **{f"memory-{method}": (soak_memory, method) for method in THOROUGHLY},
}


def soak(part: str, sizes: Sizes, results: Results) -> None:
    """One part, in this process; whatever goes wrong in it is its result."""
    function, subject = PARTS[part]
    try:
        results.add(passed=True, found=function(subject, sizes, results))
    except Exception as error:
        traceback.print_exc()
        kind = "" if isinstance(error, (Broken, DoesNotResume)) else f"{type(error).__name__}: "
        results.add(passed=False, found=kind + str(error), traceback=traceback.format_exc())


# --- All of them -----------------------------------------------------------------------------------------------------


def command_of(part: str, sizes: Sizes, folder: Path) -> list[str]:
    options = [f"--{name}={value}" for name, value in asdict(sizes).items()]
    return [sys.executable, __file__, part, *options, f"--inside={folder}"]


class Child:
    """A part that runs in a session of its own, so that all it starts can be ended with it."""

    def __init__(self, part: str, sizes: Sizes, folder: Path):
        self.part, self.results, self._started = part, Results(folder, part), time.monotonic()
        self.results.folder.mkdir()
        with open(self.results.folder / "output.log", "wb") as log:
            self._process = subprocess.Popen(
                command_of(part, sizes, folder), stdout=log, stderr=log, env=environment(), start_new_session=True
            )

    def is_done(self) -> bool:
        return self._process.poll() is not None

    def end(self) -> None:
        """With everything it started, whether it is done or not."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def row(self) -> tuple[bool, str]:
        """Whether it passed, and its line of the table."""
        last = self.results.last()
        passed = last.get("passed", False) and self._process.returncode == 0
        found = last.get(
            "found", f"ended with {self._process.returncode} before it was done, see {self.results.folder}"
        )
        minutes = (time.monotonic() - self._started) / 60
        one_line = " ".join(found.split())[:500]
        return passed, f"| {self.part} | {'passed' if passed else 'FAILED'} | {minutes:.1f} | {one_line} |"


def soak_all(parts: list[str], sizes: Sizes, folder: Path, at_once: int) -> dict[str, tuple[bool, str]]:
    """The rows of all parts that were started, in order; an interruption ends those that still run."""
    waiting, running, rows = list(parts), [], {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                print(f"{waiting[0]} ...", flush=True)
                running.append(Child(waiting.pop(0), sizes, folder))
            time.sleep(0.2)
            for child in [child for child in running if child.is_done()]:
                running.remove(child)
                child.end()
                rows[child.part] = child.row()
                print(rows[child.part][1], flush=True)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    finally:
        for child in running:
            child.end()
            rows[child.part] = child.row()
    return {part: rows[part] for part in parts if part in rows}


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; all if there is none")
    for field in fields(Sizes):
        parser.add_argument(f"--{field.name}", type=int, default=field.default)
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--inside", type=Path, help="run one part in this process and write to this folder")
    args = parser.parse_args(words)
    if unknown := set(args.parts) - PARTS.keys():
        parser.error(f"no such part: {sorted(unknown)}; there are {list(PARTS)}")
    for name in [*(field.name for field in fields(Sizes)), "at_once"]:
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, got {getattr(args, name)}")
    return args


def main(words: list[str]) -> int:
    args = parse(words)
    sizes = Sizes(**{field.name: getattr(args, field.name) for field in fields(Sizes)})
    if args.inside is not None:
        for part in args.parts:
            soak(part, sizes, Results(args.inside, part))
        return 0
    folder = (Path("runs") / time.strftime("soak-%Y%m%d-%H%M%S")).resolve()
    folder.mkdir(parents=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C, and so do the children
    parts = list(dict.fromkeys(args.parts)) or list(PARTS)
    started = time.monotonic()
    rows = soak_all(parts, sizes, folder, args.at_once)
    print("\n| part | result | minutes | measured |\n|---|---|---|---|")
    print("\n".join(row for _, row in rows.values()))
    print(f"\n{(time.monotonic() - started) / 60:.1f} minutes; everything is in {folder}")
    return 0 if len(rows) == len(parts) and all(passed for passed, _ in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
