"""A run that is asked to end: it saves first, and can go on."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import number_script
import pytest
from number_script import Args, main, record

from taac_wrappers.training import run as run_module
from taac_wrappers.training.state import Counters
from taac_wrappers.training.tracking import read_metrics

pytestmark = pytest.mark.usefixtures("inside_an_empty_folder")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_and_it_can_go_on(number, code, capsys):
    main(Args(run_dir=Path("whole")))
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert main(Args(run_dir=Path("run 1")), lambda c: c.frames == 22 and os.kill(os.getpid(), number)) == code
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    said = capsys.readouterr().out
    script = number_script.__file__
    assert f"continue with: python {os.path.relpath(script)} --resume 'run 1'" in said.replace(
        script, os.path.relpath(script)
    )
    metrics = read_metrics(Path("run 1/metrics.csv"))
    assert metrics["charts/frames"][0][-1] == 20
    assert "final/score" not in metrics
    assert main(Args(resume=Path("run 1"))) == 0
    assert record(Path("run 1")) == record(Path("whole"))


def test_the_last_evaluation_does_not_wait(monkeypatch, capsys):
    main(Args(run_dir=Path("whole")))
    evaluate, calls = run_module.evaluate, []

    def interrupted(agent, env, episodes, seed):
        calls.append(episodes)
        if episodes == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(agent, env, episodes, seed=seed)

    monkeypatch.setattr(run_module, "evaluate", interrupted)
    assert main(Args(run_dir=Path("run"))) == 143
    assert calls == [1, 1, 1, 1, 2]
    assert "interrupted and saved" in capsys.readouterr().out
    assert "final/score" not in read_metrics(Path("run/metrics.csv"))
    monkeypatch.setattr(run_module, "evaluate", evaluate)
    assert main(Args(resume=Path("run"))) == 0
    assert record(Path("run")) == record(Path("whole"))


def test_a_second_ctrl_c_does_not_wait():
    def impatient(counters: Counters) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job may ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            main(Args(run_dir=Path("run")), impatient)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_runs_in_a_thread_without_touching_signals():
    before, codes = signal.getsignal(signal.SIGINT), []
    during = []
    watch = lambda c: during.append(signal.getsignal(signal.SIGINT))  # noqa: E731
    thread = threading.Thread(target=lambda: codes.append(main(Args(run_dir=Path("run")), watch)))
    thread.start()
    thread.join()
    assert codes == [0]
    assert set(during) == {before}
