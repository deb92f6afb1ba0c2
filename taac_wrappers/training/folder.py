"""A run's folder: where it is, whether it may be resumed, and how it comes to be."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import re
import shlex
import shutil
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from taac_wrappers.training.checkpoint import CheckpointStore, Loaded
from taac_wrappers.training.config import CHANGEABLE_ON_RESUME, plain, read_run, to_be_repeated
from taac_wrappers.training.files import TEMPORARY, sync_folder, write_config
from taac_wrappers.training.simulators import simulator_versions
from taac_wrappers.training.sinks import TENSORBOARD
from taac_wrappers.training.tracking import METRICS


class RunFolder:
    """The folder of a new run, or of one that is resumed, whose newest checkpoint is then ``loaded``.

    Nothing is written before :meth:`written`.

    Args:
        args: the script's arguments (a dataclass with the common fields).
        method: names the run, e.g. ``"taac"``.
        env_id: the environment's, as it is today.
    """

    def __init__(self, args: Any, method: str, env_id: str):
        self.args, self.method, self.env_id = args, method, env_id
        self.resuming = args.resume is not None
        self.path = self._path()
        self.store = CheckpointStore(self.path)
        self.loaded: Loaded | None = None
        if self.resuming:
            self._check_resumable()
        elif self.path.exists():
            raise FileExistsError(
                f"--run-dir: {str(self.path)!r} exists already; continue it with --resume {self.path}"
            )

    def _path(self) -> Path:
        if self.resuming:
            return Path(self.args.resume)
        env = re.sub(r"[/:]", "_", self.env_id)  # of ids such as namespace/name or module:name
        stamp = time.strftime("%Y%m%d-%H%M%S")
        return Path(self.args.run_dir or f"runs/{env}__{self.method}__{self.args.seed}__{stamp}")

    def _check_resumable(self) -> None:
        config = read_run(self.path)
        if config["method"] != self.method:
            raise ValueError(f"--resume: {str(self.path)!r} is a run of {config['method']}, not of {self.method}")
        if self.args.run_dir not in (None, self.path):
            raise ValueError(f"--run-dir {self.args.run_dir} is for a new run, but --resume continues {self.path}")
        asked = plain(dataclasses.asdict(self.args))
        for name, value in config["args"].items():
            if name not in CHANGEABLE_ON_RESUME and asked[name] != value:
                flag = f"--{name.replace('_', '-')}"
                raise ValueError(
                    f"--resume: this run has {flag} {value}, got {asked[name]}; start a new run to change it"
                )
        if config["resolved_env_id"] != self.env_id:
            raise ValueError(f"--resume: this run was of {config['resolved_env_id']}, which is now {self.env_id}")
        if self.store.exists():
            self.loaded = self.store.load()
            self._check_size(self.loaded)

    def _check_size(self, loaded: Loaded) -> None:
        """Before anything of that size is built: a config.json must not claim more than its checkpoint holds."""
        episodes = loaded.meta.get("episodes")
        if not isinstance(episodes, list) or len(episodes) != self.args.num_envs:
            raise ValueError(f"--resume: {loaded.path} does not hold --num-envs {self.args.num_envs} episodes")
        weights = sum(before * after for before, after in pairwise((1, *self.args.hidden, 1)))
        if weights > sum(tensor.numel() for tensor in loaded.tensors.values()):
            raise ValueError(f"--resume: {loaded.path} does not hold networks of --hidden {self.args.hidden}")

    @contextlib.contextmanager
    def written(self) -> Iterator[dict[str, Any]]:
        """The folder, with what its ``config.json`` says once the rest has worked; if it fails, all is as before."""
        args = plain(dataclasses.asdict(self.args)) | {"run_dir": str(self.path), "resume": None}
        if self.resuming:  # its other entries tell how the run began
            config = read_run(self.path) | {"args": args}
            yield config
            write_config(self.path, config)
            return
        ids = {"env_id": self.args.env_id, "resolved_env_id": self.env_id}
        config = {"method": self.method, **ids, "versions": simulator_versions(), "args": args}
        try:
            self._make(config)
        except OSError as error:
            raise OSError(f"--run-dir: cannot create {str(self.path)!r}: {error.strerror}") from error
        try:
            yield config
        except BaseException:
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def _make(self, config: dict[str, Any]) -> None:
        """All at once with its ``config.json``: whatever is killed after this can be resumed."""
        staging = self.path.with_name(TEMPORARY + self.path.name)
        shutil.rmtree(staging, ignore_errors=True)  # somebody was killed just here
        staging.mkdir(parents=True)
        try:
            write_config(staging, config)
            os.rename(staging, self.path)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        sync_folder(self.path.parent)

    def forget_metrics(self) -> None:
        """The run was killed before its first checkpoint, and begins anew."""
        print(f"{self.path} holds no checkpoint yet: starting from the beginning")
        (self.path / METRICS).unlink(missing_ok=True)
        shutil.rmtree(self.path / TENSORBOARD, ignore_errors=True)

    def resume_command(self) -> str:
        """What somebody types to go on with this run."""
        script = inspect.getfile(type(self.args))  # not sys.argv: somebody else's program may have called main()
        nearer = os.path.relpath(script)
        repeated = to_be_repeated(self.args.env_id, self.args.env_kwargs)
        return shlex.join(["python", min(script, nearer, key=len), "--resume", str(self.path), *repeated])
