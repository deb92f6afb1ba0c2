"""Runs training scripts in children that die on purpose. Importing torch once serves them all: a child is a fork.

One request per line on standard input, as JSON: ``script`` and ``words`` (its command line), ``reports_every`` (so many
frames), ``log`` (a file for its output), and when the child is to be killed: just before the first step in ``folder``
that is not in ``spare``, or ``die_after`` so many seconds; null is never. One answer per line on standard output: the
exit ``code``, negative for a signal, the ``seconds`` it took, and the ``step`` the child died at, or an empty string.

But for how often it reports, a script runs as it is, from its command line to its exit. A step is a change of the file
system, such as ``rename checkpoint/#/MANIFEST.json``, with ``#`` for every number. They are seen through Python's audit
events and through ``open`` and ``os.fsync``; every file is written in two halves with a step in between, so that files
are torn too. TensorBoard is left out of the steps, because it writes from a thread: its files are torn by the clock
only.
"""

from __future__ import annotations

import builtins
import functools
import gc
import importlib
import io
import json
import os
import re
import signal
import sys
import time
import types
from pathlib import Path
from typing import Any

CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate"}  # os.replace reports itself as os.rename
SCRIPT = Path(__file__).parents[2] / "agents" / "taac_continuous.py"
WRITING = os.O_WRONLY | os.O_RDWR
NUMBER = re.compile(r"\d+(-[0-9a-f]{16}|\.\d+)?")


class Steps:
    """Watches the changes inside ``folder`` and kills this process just before the first that is not to be spared."""

    def __init__(self, folder: str, spare: list[str], report: int):
        # Compared as text: a folder may be made under another name first, and relative paths are inside too.
        self._folder, self._spare, self._report = folder, set(spare), report

    def watch(self) -> None:
        sys.addaudithook(self._on_event)
        real_open, real_fsync = io.open, os.fsync

        def open_to_tear(file: Any, mode: str = "r", buffering: int = -1, *args: Any, **kwargs: Any) -> Any:
            if "b" in mode and set(mode) & set("wxa+") and self._is_inside(file):
                return TornFile(real_open(file, mode, 0), self)
            return real_open(file, mode, buffering, *args, **kwargs)

        def fsync(handle: int) -> None:
            self.step("fsync", os.readlink(f"/proc/self/fd/{handle}"))
            real_fsync(handle)

        io.open = builtins.open = open_to_tear  # type: ignore[assignment]
        os.fsync = fsync

    def step(self, change: str, path: Any) -> None:
        _, found, inside = os.fspath(path).rpartition(self._folder)
        if os.path.isabs(path) and not found:
            inside = ".."  # the folder that the run folder is made in
        name = f"{change} {NUMBER.sub('#', inside).strip('/')}"
        if name not in self._spare:
            os.write(self._report, name.encode())
            os.kill(os.getpid(), signal.SIGKILL)

    def _on_event(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[2], int) and args[2] & WRITING and self._is_inside(args[0]):
            self.step("open", args[0])
        elif event in CHANGES and (self._is_inside(args[0]) or _is_relative_to_a_handle(event, args)):
            self.step(event.removeprefix("os."), args[0])

    def _is_inside(self, path: Any) -> bool:
        return isinstance(path, (str, Path)) and self._folder in str(path) and "tensorboard" not in str(path)


class TornFile:
    """An unbuffered file that writes everything in two halves."""

    def __init__(self, file: Any, steps: Steps):
        self._file, self._steps = file, steps

    def write(self, data: Any) -> int:
        half = len(data) // 2
        self._file.write(data[:half])
        self._steps.step("tear", self._file.name)
        return half + self._file.write(data[half:])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> TornFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _is_relative_to_a_handle(event: str, args: tuple[Any, ...]) -> bool:
    """shutil.rmtree names what it removes relative to an open folder."""
    return event in {"os.remove", "os.rmdir"} and args[1] != -1 and not os.path.isabs(args[0])


def run_script(request: dict[str, Any], report: int) -> int:
    """Become the script; returns its exit code."""
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    if request["spare"] is not None:
        Steps(request["folder"], request["spare"], report).watch()
    sys.argv = [request["script"], *request["words"]]
    try:
        become("__main__", code_of(request["script"], request["reports_every"]))
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else int(bool(exit_.code))
    return 0


@functools.cache
def code_of(script: str, reports_every: int) -> types.CodeType:
    """Short runs report their progress several times too."""
    pattern = re.compile(r"^LOG_INTERVAL = \d+", re.MULTILINE)
    source, replaced = pattern.subn(f"LOG_INTERVAL = {reports_every}", Path(script).read_text())
    assert replaced == 1
    return compile(source, script, "exec")


def become(name: str, script: types.CodeType) -> types.ModuleType:
    """Run a script as the module of that name."""
    module = sys.modules[name] = types.ModuleType(name)
    module.__file__ = script.co_filename
    exec(script, vars(module))
    return module


def attempt(request: dict[str, Any]) -> dict[str, Any]:
    """Fork a child for the request, kill it in time, and tell how it ended."""
    code_of(request["script"], request["reports_every"])  # compiled once, here, for all children
    read, write = os.pipe()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = run_script(request, write)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.close(write)
    code = os.waitstatus_to_exitcode(wait(child, request["die_after"]))
    with open(read, "rb") as pipe:
        return {"code": code, "seconds": time.monotonic() - started, "step": pipe.read().decode()}


def wait(child: int, die_after: float | None) -> int:
    """The status the child ends with, by itself or because its time is up."""
    if die_after is not None:
        deadline = time.monotonic() + die_after
        while time.monotonic() < deadline:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status
            time.sleep(0.005)
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def import_once() -> None:
    """What every child needs. None of it may start a thread: a fork would lose it."""
    for module in ("mujoco", "matplotlib.backends.backend_agg", "matplotlib.figure", "torch.utils.tensorboard"):
        importlib.import_module(module)
    script = become("imported", code_of(str(SCRIPT), 500))  # and with it all of the package that a script needs
    import gymnasium
    import torch
    from matplotlib.figure import Figure

    from taac_wrappers.training.arguments import parse

    gymnasium.register(
        "ShortMountainCar-v0",
        "gymnasium.envs.classic_control:Continuous_MountainCarEnv",
        max_episode_steps=150,
    )
    parse(script.Args, script.Args())  # the first command line and the first environments import more
    for env_id in ("InvertedDoublePendulum-v5", "ShortMountainCar-v0"):
        gymnasium.make(env_id).close()
    Figure().savefig(io.BytesIO())  # the first figure reads the fonts
    torch.set_num_threads(1)
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # the first optimizer imports half of torch
    gc.collect()
    gc.freeze()  # a child's collections would copy all of this


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")  # imports and children may print
    import_once()
    for line in sys.stdin:
        print(json.dumps(attempt(json.loads(line))), file=answers, flush=True)
