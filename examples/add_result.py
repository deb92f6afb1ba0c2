"""Put the metrics of finished runs among the raw results that `examples/report.py` reads.

python examples/add_result.py runs/MY_RUN --method taac
python examples/add_result.py runs/MY_RUN runs/MY_OTHER_RUN --method my-method --results my_results
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from taac_wrappers.benchmark.results import result_of_run, write_result
from taac_wrappers.training.arguments import bad_input, exit_with, parse


@dataclass
class Args:
    run_dirs: Annotated[list[Path], tyro.conf.Positional]
    """folders of finished runs"""
    method: str
    """its name in the report: the paper's methods as in `taac_wrappers/benchmark/methods.py`, yours as you like"""
    results: Path = Path("results")
    """the folder of results"""


def main(args: Args) -> int:
    with bad_input():
        results = [result_of_run(run_dir, args.method) for run_dir in args.run_dirs]
        for result in results:
            print(write_result(args.results, result))
    return 0


if __name__ == "__main__":
    exit_with(lambda: main(parse(Args)))
