"""The life of a training run: how it starts, what is recorded of it, its checkpoints, and how it ends.

Everything here would be the same in any off-policy script. What is learned, and how, stays in the scripts under
``agents/``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from tqdm import tqdm

from taac_wrappers.training.counters import Counters
from taac_wrappers.training.curve import plot_curve
from taac_wrappers.training.envs import EpisodeCut, Wrap, check_filming, holds, make_env
from taac_wrappers.training.evaluation import (
    LONGEST_EPISODE,
    LONGEST_FILM,
    Agent,
    evaluate,
    require_statistics,
)
from taac_wrappers.training.faults import EnvFault
from taac_wrappers.training.finite import LearningFault, NotFinite
from taac_wrappers.training.folder import RunFolder
from taac_wrappers.training.progress import Progress
from taac_wrappers.training.signals import Interrupted, Interruption
from taac_wrappers.training.state import TrainingState
from taac_wrappers.training.structure import Structure
from taac_wrappers.training.tasks import resolve_env_id
from taac_wrappers.training.tracking import Tracker

METRICS_LOST = "the last lines of metrics.csv are lost"

RETRY_SECONDS = 60.0
"""After a save that failed: how long until the next try, and between two lines that say so."""


class _Stopped(Exception):
    """An evaluation that ends because somebody has asked the process to end."""


class Run:
    """A run: everything that is written to its folder or shown while it goes on.

    Made first, to refuse what cannot work before anything is built; then ``start(state)``; then, inside ``with run:``,
    which closes whatever has been opened, training while it ``goes_on``, and ``finish``.

    Args:
        args: the script's arguments (a dataclass with the common fields).
        method: names the run, e.g. ``"taac"``.
        wrap: puts the method's wrappers around an environment, among them a `RepeatStatisticsWrapper`.
    """

    def __init__(self, args: Any, method: str, wrap: Wrap):
        if args.capture_video:
            render_without_display()  # before anything imports MuJoCo
        self.args, self._wrap = args, wrap
        self.env_id = resolve_env_id(args.env_id)
        self.folder = RunFolder(args, method, self.env_id)
        self._evaluation_missing = False  # the one of this frame was interrupted
        self._saved_frame: int | None = None  # of the last checkpoint of this process
        self._unsaved: tuple[TrainingState, Any] | None = None  # what a full disk did not take, to be tried again
        self._tried_at = self._complained_at = -RETRY_SECONDS

    # --- From the start to the end

    def start(self, state: TrainingState) -> Structure:
        """Begin, or go on where the run to resume was saved; returns the current observations.

        The folder is created here, after everything else has worked: from now on things are written.
        """
        with contextlib.ExitStack() as opened:
            self.interruption = opened.enter_context(Interruption())
            opened.callback(state.envs.close)
            observation, extra = self._begin(state) if self.folder.loaded is None else self._restore(state)
            if state.envs.stop_reason is not None:
                raise ValueError(state.envs.stop_reason)
            self.eval_env = self.make_env()
            opened.callback(lambda: self.eval_env.close())  # whichever it is by then
            require_statistics(self.eval_env)
            if self.args.capture_video:  # fail now rather than at the first evaluation
                check_filming("--capture-video", self.env_id, self._wrap, self.args.env_kwargs)
            with self.folder.written() as config:
                if self.folder.resuming and not extra:
                    self.folder.forget_metrics()
                self.tracker = Tracker(
                    self.folder.path,
                    config,
                    track=self.args.track,
                    project=self.args.wandb_project,
                    entity=self.args.wandb_entity,
                    run_id=extra.get("wandb_run_id"),
                    resume_at=extra.get("metrics_position"),
                )
            opened.callback(self._close_tracker)
            self._warn_of_long_episodes()
            self._tell_settings()
            self.progress = Progress(self.env_id, self.args.total_frames, state.counters.frames)
            opened.callback(self.progress.close)
            self._state = state
            self._evaluation_missing = extra.get("evaluation_missing") is True
            self.interruption.saves = True
            self._opened = opened.pop_all()
        return observation

    def _warn_of_long_episodes(self) -> None:
        if holds(self.eval_env, EpisodeCut):
            print(
                f"warning: {self.env_id} has no time limit (max_episode_steps): episodes that do not end by themselves "
                f"never end in training, and are cut at {LONGEST_EPISODE} frames in evaluation",
                file=sys.stderr,
            )

    def _tell_settings(self) -> None:
        if self.args.settings == "laptop" and not self.folder.resuming:
            hindsight = f", hindsight {self.args.her:g}" if self.args.her else ""
            print(
                f"settings for a computer without an accelerator: {self.args.num_envs} environments, batches of "
                f"{self.args.batch_size}{hindsight}; the paper's with --settings paper",
                file=sys.stderr,
            )

    def _begin(self, state: TrainingState) -> tuple[Structure, dict[str, Any]]:
        observation, _ = state.envs.reset(seed=self.args.seed)
        state.replay.start(observation)
        return observation, {}

    def _restore(self, state: TrainingState) -> tuple[Structure, dict[str, Any]]:
        loaded, self.folder.loaded = self.folder.loaded, None
        assert loaded is not None
        try:
            extra = loaded.meta["extra"]
            if extra["env_id"] != self.env_id:
                raise ValueError(f"--resume: {loaded.path} is a checkpoint of {extra['env_id']}, not of {self.env_id}")
            return state.restore(loaded), extra
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError) as error:
            # Files that verify but hold something else: whatever trips over it.
            raise ValueError(f"--resume: {loaded.path} does not fit this run: {repr(error)[:300]}") from error

    def __enter__(self) -> Run:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, Interrupted):
            self.progress.close()
            lost = self._what_is_lost(self._state.counters.frames)
            print(f"stopped at once: {lost}", file=sys.stderr)  # before anything is closed, which may take long
        self._opened.close()
        if isinstance(error, Exception):
            self._blame_learning(error)

    def _blame_learning(self, error: Exception) -> None:
        """Name what is nan or inf, if anything is: environments, and then their rewards, only suffer from it."""
        try:
            self._state.check_finite()
            if isinstance(error, NotFinite):
                raise error
        except NotFinite as fault:
            counters, saved = self._state.counters, self.folder.store.newest_frame()
            way_back = (
                "nothing was saved before"
                if saved is None
                else f"the last finite checkpoint is at frame {saved}; resume with: {self.folder.resume_command()}"
            )
            reason = f"{fault} at update {counters.updates} (frame {counters.frames}); {way_back}"
            raise LearningFault(reason) from error

    def goes_on(self, counters: Counters) -> bool:
        """Whether there are frames left to train on, and nobody has asked to stop; moves the progress bar."""
        self.progress.move_to(counters.frames)
        if self._unsaved is not None and time.monotonic() - self._tried_at >= RETRY_SECONDS:
            self.save(*self._unsaved)
        return counters.frames < self.args.total_frames and not self._solved(counters) and not self._cut_short()

    def _cut_short(self) -> bool:
        return self.interruption.signal is not None or self._state.envs.stop_reason is not None

    def _solved(self, counters: Counters) -> bool:
        goal = self.args.stop_at_score
        return goal is not None and len(counters.last_scores) == 2 and min(counters.last_scores) >= goal

    def finish(self, state: TrainingState, agent: Any) -> int:
        """Save, evaluate for the last time, draw the curve and say how it went; returns the exit code."""
        counters = state.counters
        unwritten: list[str] = []
        if self._saved_frame != counters.frames:
            with _noting(unwritten, lambda: self._what_is_lost(counters.frames)):
                self._save(state, agent)
        if not self._cut_short():
            with contextlib.suppress(_Stopped), self._env_faults_survived(counters.frames):
                self._last_evaluation(counters, agent)
        self.progress.close()
        with _noting(unwritten, lambda: METRICS_LOST):
            self.tracker.close()
        with _noting(unwritten, lambda: "there is no new curve.png"):
            print(f"curve: {plot_curve(self.folder.path)}")
        if unwritten:
            print(f"error: {'; '.join(unwritten)}", file=sys.stderr)
            return 1
        print(f"agent: {self.folder.path / 'agent.safetensors'}")
        if not self._cut_short():
            return 0
        if self._state.envs.stop_reason is not None:
            print(f"error: {self._state.envs.stop_reason}", file=sys.stderr)
        print(f"interrupted and saved; continue with: {self.folder.resume_command()}")
        signal = self.interruption.signal
        return 1 if signal is None else 128 + signal

    # --- What is recorded

    def log(self, frame: int, metrics: Mapping[str, Any]) -> None:
        """Record metrics, and show those that the progress bar has room for."""
        self.tracker.log(frame, metrics)
        self.progress.show(metrics)

    def log_episodes(self, frame: int, infos: Mapping[str, Any]) -> None:
        """Record the return, the length and the repetition of every episode that this vector step has ended."""
        for env in np.flatnonzero(infos.get("_episode", ())):
            metrics = {
                "charts/episodic_return": infos["episode"]["r"][env],
                "charts/episodic_length": infos["episode"]["l"][env],
                "charts/repeat_fraction": infos["repeat"]["fraction"][env],
            }
            self.log(frame, metrics)

    def log_progress(self, counters: Counters, metrics: Mapping[str, Any]) -> None:
        """Record how far the run is, how fast it goes, and the last update's ``metrics``."""
        charts = {
            "charts/frames": counters.frames,
            "charts/decisions": counters.decisions,
            "charts/updates": counters.updates,
            "charts/SPS": self.progress.frames_per_second(counters.frames),
            "charts/env_restarts": counters.env_restarts,
        }
        self.log(counters.frames, {**charts, **metrics})

    # --- Evaluation

    def make_env(self, longest: int = LONGEST_EPISODE, **options: Any) -> gym.Env:
        """One more environment like those of training, but with an end to its episodes."""
        return make_env(self.env_id, self._wrap, env_kwargs=self.args.env_kwargs, longest_episode=longest, **options)

    def evaluate(self, counters: Counters, agent: Agent) -> None:
        """Judge the agent by its mode in an environment of its own; every evaluation has the same starts.

        If it is interrupted, nothing of it is recorded: the resumed run does it again, by :meth:`catch_up`.
        """
        self._state.check_finite()
        self._evaluation_missing = True
        with contextlib.suppress(_Stopped):
            if self.args.capture_video:
                with self._env_faults_survived(counters.frames):
                    self._film(counters.frames, agent)
            with self._env_faults_survived(counters.frames):
                result = self._watched(agent, self.eval_env, self.args.eval_episodes, self.args.seed, "evaluating")
                self.log(counters.frames, _evaluation_metrics(result))
                self.tracker.flush()
                counters.last_scores = [*counters.last_scores[-1:], result["score"]]
            self._evaluation_missing = False

    def catch_up(self, counters: Counters, agent: Agent) -> None:
        """Evaluate if this run was interrupted in the middle of an evaluation; to be called before training."""
        if self._evaluation_missing:
            self.evaluate(counters, agent)

    def _watched(self, agent: Agent, env: gym.Env, episodes: int, seed: int, doing: str) -> dict[str, Any]:
        """Evaluate while the bar says so; raises _Stopped at the first frame after a signal."""

        def before_step(episode: int) -> None:
            if self.interruption.signal is not None:
                raise _Stopped
            self.progress.say(f"{doing} {episode}/{episodes}" if episodes > 1 else doing)

        with self.progress.during(doing):
            return evaluate(agent, env, episodes, seed=seed, before_step=before_step)

    @contextlib.contextmanager
    def _env_faults_survived(self, frame: int) -> Iterator[None]:
        """An environment that fails costs this evaluation, not the training; the next one has a new environment."""
        try:
            yield
        except EnvFault as fault:
            tqdm.write(f"evaluation at frame {frame} failed: {self.env_id} {fault}", file=sys.stderr)
            self.eval_env.close()
            self.eval_env = self.make_env()

    def _film(self, frame: int, agent: Agent) -> None:
        folder = self.folder.path / "videos" / f"frame-{frame}"
        try:
            env = self.make_env(LONGEST_FILM, video_folder=folder)
            with self.progress.during("filming"), contextlib.closing(env):  # which writes the video
                try:
                    self._watched(agent, env, 1, self.args.seed, "filming")
                except (_Stopped, Interrupted):
                    env.set_wrapper_attr("recording", False)  # else it would take its time to write what there is
                    env.get_wrapper_attr("recorded_frames").clear()
                    shutil.rmtree(folder, ignore_errors=True)
                    raise
                self.progress.say("writing the film")
        except OSError as error:
            self._complain(f"no video of frame {frame}: {error}; training goes on")

    def _last_evaluation(self, counters: Counters, agent: Agent) -> None:
        """Everything is saved already: if it is interrupted, a resumed run comes here again."""
        if counters.frames < self.args.total_frames:
            reached = f"two evaluations reached a score of {self.args.stop_at_score}"
            tqdm.write(f"stopped at frame {counters.frames}: {reached}")
        seed = self.args.seed + 1
        result = self._watched(agent, self.eval_env, self.args.final_episodes, seed, "last evaluation")
        self.tracker.log(counters.frames, _evaluation_metrics(result, "final"))
        self.progress.close()
        print(report(result))

    # --- Checkpoints

    def save(self, state: TrainingState, agent: Any) -> None:
        """Write a checkpoint, and the agent as it is now; if the disk fails, training goes on and this is retried."""
        self._tried_at = time.monotonic()
        try:
            self._save(state, agent)
        except OSError as error:
            self._unsaved = state, agent
            self._complain(f"{error}; training goes on, and saving is tried again")
            return
        if self._unsaved is not None:
            self._unsaved = None
            tqdm.write(f"saved again, at frame {state.counters.frames}", file=sys.stderr)

    def _save(self, state: TrainingState, agent: Any) -> None:
        self.tracker.flush()  # so that the copies of the metrics, too, have all up to here if the run is killed
        extra = {
            "env_id": self.env_id,
            "metrics_position": self.tracker.position(),
            "wandb_run_id": self.tracker.run_id,
            "evaluation_missing": self._evaluation_missing,
        }
        with self.progress.during("saving"):
            state.save(self.folder.store, extra)
            agent.save(self.folder.path / "agent.safetensors")
        self._saved_frame = state.counters.frames

    def _complain(self, message: str) -> None:
        """Say that the disk fails, but not more often than somebody would read it."""
        if time.monotonic() - self._complained_at >= RETRY_SECONDS:
            self._complained_at = time.monotonic()
            tqdm.write(message, file=sys.stderr)

    def _what_is_lost(self, frame: int) -> str:
        if self._saved_frame == frame:
            return f"nothing is lost, continue with {self.folder.resume_command()}"
        saved = self.folder.store.newest_frame()
        if saved is None:
            return "nothing of this run is saved"
        if saved == frame:
            return "the checkpoint is saved, but agent.safetensors is not of the last frame"
        return f"what was learned after frame {saved} is lost, continue from there with {self.folder.resume_command()}"

    def _close_tracker(self) -> None:
        """Where finish() did not get that far."""
        try:
            self.tracker.close()
        except OSError as error:
            print(f"error: {error}: {METRICS_LOST}", file=sys.stderr)


@contextlib.contextmanager
def _noting(unwritten: list[str], consequence: Callable[[], str]) -> Iterator[None]:
    """At the end of a run, a file that cannot be written is noted with its consequence, and the rest goes on."""
    try:
        yield
    except OSError as error:
        unwritten.append(f"{error}: {consequence()}")


def render_without_display() -> None:
    """MuJoCo chooses how to render when it is imported, and without a display what it chooses fails."""
    if sys.platform == "linux" and not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")


def _evaluation_metrics(result: Mapping[str, Any], prefix: str = "eval") -> dict[str, float]:
    return {f"{prefix}/{name}": value for name, value in result.items() if name != "returns"}


def report(result: Mapping[str, Any]) -> str:
    """What :func:`~taac_wrappers.training.evaluation.evaluate` found, in words."""
    success = f", success {result['success']:.0%}" if "success" in result else ""
    never = result["repeat_fraction"] == 1  # then "apr" is the number of all frames
    rhythm = "never acts anew" if never else f"acts anew every {result['apr']:.1f} frames"
    return (
        f"\nscore {result['score']:.2f} +- {result['score_std']:.2f} over {len(result['returns'])} episodes{success}\n"
        f"repeats {result['repeat_fraction']:.1%} of its actions: {rhythm}"
    )
