"""The long test itself: it counts what was run, notices what fails, and leaves nothing running."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import soak
from memory import Sample

SAYS = """
import json, sys
open(sys.argv[1] + "/results.jsonl", "a").write(json.dumps({"part": sys.argv[2], **json.loads(sys.argv[3])}) + "\\n")
"""
STARTS_ANOTHER = """
import pathlib, subprocess, sys, time
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
pathlib.Path("pid").write_text(str(other.pid))
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def inside_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def replace_parts(monkeypatch, **results: dict | None) -> None:
    """Every part reports this result; one without a result aborts."""

    def command_of(part, sizes, folder):
        result = results[part.replace("-", "_")]
        program = "import os; os.abort()" if result is None else SAYS
        return [sys.executable, "-c", program, str(folder), part, json.dumps(result)]

    monkeypatch.setattr(soak, "command_of", command_of)


def lines_of_results() -> list[dict]:
    (file,) = Path("runs").glob("soak-*/results.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_part_counts_what_it_ran(capsys):
    assert soak.main(["fuzz-replay", "--examples=15"]) == 0
    assert "| 15 examples |" in capsys.readouterr().out
    assert lines_of_results() == [
        {"part": "fuzz-replay", "examples": 15},
        {"part": "fuzz-replay", "passed": True, "found": "15 examples"},
    ]


@pytest.mark.parametrize("at_once", ["1", "2"])
def test_one_part_that_fails_is_enough(monkeypatch, capsys, at_once):
    failed = {"passed": False, "found": "exit code 2:\nno such thing"}
    replace_parts(monkeypatch, fuzz_replay={"passed": True, "found": "5 examples"}, faults=failed, kills_sac=None)
    assert soak.main(["fuzz-replay", "--at-once", at_once]) == 0
    capsys.readouterr()
    time.sleep(1)  # the next folder is named by the next second
    assert soak.main(["fuzz-replay", "faults", "kills-sac", "--at-once", at_once]) == 1
    *_, first, second, third, _, _ = capsys.readouterr().out.splitlines()
    assert first.startswith("| fuzz-replay | passed | ")
    assert second.startswith("| faults | FAILED | ")
    assert second.endswith(" | exit code 2: no such thing |")
    assert "| kills-sac | FAILED | " in third
    assert "ended with -6 before it was done" in third


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_all_that_was_started(monkeypatch, capsys, number):
    monkeypatch.setattr(soak, "command_of", lambda *_: [sys.executable, "-c", STARTS_ANOTHER])

    def interrupt() -> None:
        while not Path("pid").exists() or not Path("pid").read_text():
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt).start()
    assert soak.main(["faults", "fuzz-replay", "--at-once=1"]) == 1
    said = capsys.readouterr().out
    assert "| faults | FAILED | " in said
    assert "fuzz-replay ..." not in said, "the next part was started all the same"
    deadline = time.monotonic() + 10
    while is_running(int(Path("pid").read_text())):
        assert time.monotonic() < deadline, "what the part had started goes on"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # nobody may be there to take note of its end


FLAT = [Sample(second, 30_000 + 100 * second, 1000, 4) for second in range(10)]


@pytest.mark.parametrize(
    ("last", "passed"),
    [(Sample(10, 39_000, 1049, 5), True), (Sample(10, 39_000, 1051, 4), False), (None, False)],
)
def test_memory_and_open_files_that_grow_are_a_failure(monkeypatch, last, passed):
    samples = [*FLAT, last] if last else [*FLAT, *(Sample(10, 39_000, 1000, 5) for _ in range(20))]
    monkeypatch.setattr(soak, "train_and_sample", lambda *_: samples)
    Path("runs/soak-now").mkdir(parents=True)
    soak.soak("memory-sac", soak.Sizes(frames=40_000), soak.Results(Path("runs/soak-now"), "memory-sac"))
    *measured, _, result = lines_of_results()
    assert result["passed"] == passed
    assert [line["rss"] for line in measured] == [sample.rss for sample in samples]


def test_too_few_frames_to_judge_are_a_failure(monkeypatch):
    monkeypatch.setattr(soak, "train_and_sample", lambda *_: [Sample(0, 900, 1000, 4)])
    Path("runs/soak-now").mkdir(parents=True)
    soak.soak("memory-sac", soak.Sizes(frames=1_000), soak.Results(Path("runs/soak-now"), "memory-sac"))
    result = lines_of_results()[-1]
    assert not result["passed"]
    assert result["found"] == "ValueError: needs samples between frame 30000 and the last, 1000; got 0"


def test_a_test_that_fails_is_named():
    Path("test_wrong.py").write_text("def test_right():\n    pass\n\ndef test_wrong():\n    assert 1 == 2\n")
    with pytest.raises(
        soak.Broken, match=r"pytest ended with 1, see log: FAILED .*test_wrong\.py::test_wrong - assert 1 == 2"
    ):
        soak.pytest_output(Path("log"), [str(Path("test_wrong.py").resolve())], {})


def test_all_files_of_the_fault_tests_exist():
    assert [name for name in soak.FAULT_TESTS if not (soak.ROOT / name).is_file()] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [(["memory"], "no such part: ['memory']"), (["--kills=0"], "--kills must be at least 1, got 0")],
)
def test_bad_arguments_are_named(capsys, words, message):
    with pytest.raises(SystemExit) as exit_:
        soak.main(words)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err
    assert not Path("runs").exists()
