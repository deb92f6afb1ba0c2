"""One process that has imported everything, for all tests here; and the runs that others are compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import Case, Runner


@pytest.fixture(scope="session")
def runner() -> Iterator[Runner]:
    with Runner() as running:
        yield running


@pytest.fixture(scope="session")
def whole(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Path]:
    """The folder of a run that nobody interrupted; every case is trained once."""
    folder, trained = tmp_path_factory.mktemp("whole"), {}

    def train(case: Case) -> Path:
        if case not in trained:
            trained[case] = folder / f"{len(trained)}"
            outcome = runner.run(case, trained[case])
            assert outcome.code == 0, outcome.said
        return trained[case]

    return train
