"""Stands in for a script under agents/: does what a runner may expect of one, quickly, and learns nothing.

It saves every 10 frames, and its score is its frame. After the first save it waits for the file that it goes on with,
if it is told of one. If it is to fail, it prints some lines, and ends with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path


def main(args: argparse.Namespace) -> None:
    if args.fails:
        print("\n".join(f"line {number}" for number in range(100)))
        print("bar 10%\rbar 20%")
        sys.exit(1)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    if args.run_dir:
        make_run(args.run_dir, args)
    train(args.run_dir or args.resume, args)


def on_signal(number: int, _: object) -> None:
    print(f"saved after signal {number}")
    sys.exit(128 + number)


def make_run(folder: Path, args: argparse.Namespace) -> None:
    folder.mkdir(parents=True)
    (folder / "metrics.csv").write_text("frame,metric,value\n")
    values = {"env_id": args.env_id, "seed": args.seed, "settings": args.settings}
    method = Path(sys.argv[0]).stem.removesuffix("_continuous")
    config = {"method": method, "resolved_env_id": args.env_id, "args": values}
    (folder / "config.json").write_text(json.dumps(config))


def train(folder: Path, args: argparse.Namespace) -> None:
    assert (folder / "config.json").is_file()
    frame = max([int(path.name) for path in (folder / "checkpoint").glob("0*")], default=0)
    print(f"begins at frame {frame}")
    with open(folder / "metrics.csv", "a", buffering=1) as metrics:
        while frame < args.total_frames:
            frame += 10
            metrics.write(f"{frame},charts/SPS,1000.0\n{frame},eval/score,{frame}\n{frame},eval/length,200\n")
            (folder / "checkpoint" / f"{frame:012d}").mkdir(parents=True)
            while args.goes_on_with and not args.goes_on_with.exists():
                time.sleep(0.01)
        metrics.write(f"{frame},final/score,{frame}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--env-id", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--settings", default="paper")
    parser.add_argument("--total-frames", type=int, default=30)
    parser.add_argument("--run-dir", type=Path)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--goes-on-with", type=Path)
    parser.add_argument("--fails", action="store_true")
    main(parser.parse_known_args()[0])
