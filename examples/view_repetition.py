"""A page that plays episodes of a trained agent frame by frame, and shows when it acts, when it repeats, and why.

python examples/view_repetition.py examples/pretrained/MountainCarContinuous-v0 -o view
python examples/view_repetition.py runs/MY_RUN -o view --episodes 5 --film mp4
python examples/view_repetition.py agent.safetensors -o view --env-id MountainCarContinuous-v0
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from PIL import Image, ImageDraw, ImageFont
from recording import Episode, filmed_env, record
from trained_agent import TrainedAgent, find_agent

from taac_wrappers.training.arguments import bad_input, exit_with, parse
from taac_wrappers.training.run import render_without_display

TEMPLATE = Path(__file__).with_suffix(".html")
PLACE_OF_DATA = "__DATA__"

PANELS: dict[str, dict[str, str]] = {
    "Value": {"q_repeat": "repeat: Q(s, a_prev)", "q_new": "act: Q(s, â)", "q": "Q(s, a)"},
    "Probability of acting anew": {"beta": "β"},
    "Frames to hold the action": {"duration": "K"},
}
"""What is plotted of an agent's opinions, as far as it has them; beside the action itself."""
BOUNDS = {"Probability of acting anew": (0.0, 1.0)}

ACT, REPEAT, AHEAD = "#1b3a6b", "#f0a830", "#d9d9d9"
"""Colours of a film's frames: dark, light, and not played yet; those of the page are in its style sheet."""
STRIP = 40
"""Height in pixels of the timeline below a film's pictures."""
SHORTEST = 20
"""Milliseconds: a frame of a GIF that is to be shown for less is slowed down by browsers."""


@dataclass
class Args:
    path: Annotated[Path, tyro.conf.Positional]
    """a run's folder, or an agent file"""
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """the folder for the page, index.html"""
    episodes: int = 3
    """how many"""
    seed: int = 1
    """of the first episode's start"""
    env_id: str | None = None
    """the environment, if no config.json beside the agent names it, or if it has to be imported from a module"""
    env_kwargs: dict[str, Any] | None = None
    """its arguments as JSON, if they are not those that the config.json names"""
    film: Literal["gif", "mp4"] | None = None
    """write a film of every episode, too"""


def main(args: Args) -> int:
    render_without_display()  # before anything imports MuJoCo
    with bad_input():
        if args.episodes < 1:
            raise ValueError(f"--episodes must be at least 1, got {args.episodes}")
        if args.seed < 0:
            raise ValueError(f"--seed must not be negative, got {args.seed}")
        if args.output.exists() and not args.output.is_dir():
            raise ValueError(f"--output {str(args.output)!r} is not a folder")
        trained = find_agent(args.path, args.env_id, args.env_kwargs)
        trained.check_fit(trained.make_env())
        if args.film == "mp4":
            require_moviepy()
        env, camera = filmed_env(trained)
        args.output.mkdir(parents=True, exist_ok=True)
    fps = float(env.metadata.get("render_fps") or 30)
    episodes = []
    with contextlib.closing(env):
        for number in range(1, args.episodes + 1):
            episodes.append(record(trained.agent, env, camera, args.seed if number == 1 else None))
            print(f"episode {summary(number, episodes[-1])}")
    page = args.output / "index.html"
    page.write_text(html(trained, episodes, fps), encoding="utf-8")
    print(f"page: {page} ({page.stat().st_size / 1e6:.1f} MB)")
    if args.film is not None:
        for number, episode in enumerate(episodes, 1):
            film = args.output / f"episode_{number}.{args.film}"
            write_film(film, episode, fps)
            print(f"film: {film} ({film.stat().st_size / 1e6:.1f} MB)")
    return 0


def summary(number: int, episode: Episode) -> str:
    frames, repeated = len(episode.repeated), np.mean(episode.repeated)
    return f"{number}: {frames} frames, return {sum(episode.rewards):.2f}, {repeated:.0%} repeated"


def html(trained: TrainedAgent, episodes: list[Episode], fps: float) -> str:
    """The page, with all that it shows inside it."""
    data = {
        "title": f"{type(trained.agent).__name__} in {trained.env_id}",
        "fps": fps,
        "episodes": [{"name": summary(number, episode)} | shown(episode) for number, episode in enumerate(episodes, 1)],
    }
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    no_tag = text.replace("<", "\\u003c")  # an environment's name must not end the script that holds it
    return TEMPLATE.read_text(encoding="utf-8").replace(PLACE_OF_DATA, no_tag)


def shown(episode: Episode) -> dict[str, Any]:
    """What the page shows of an episode, as JSON knows it."""
    return {
        "pictures": [base64.b64encode(picture).decode() for picture in episode.pictures],
        "repeated": [int(repeated) for repeated in episode.repeated],
        "rewards": compact(episode.rewards),
        "panels": opinion_panels(episode) + action_panels(episode),
    }


def opinion_panels(episode: Episode) -> list[dict[str, Any]]:
    panels = []
    for title, names in PANELS.items():
        lines = [
            {"name": shown_name, "values": compact(opinions[name] for opinions in episode.opinions)}
            for name, shown_name in names.items()
            if name in episode.opinions[0]
        ]
        if lines:
            panels.append({"title": title, "bounds": BOUNDS.get(title), "lines": lines})
    return panels


def action_panels(episode: Episode) -> list[dict[str, Any]]:
    """One for each component: lines of many would hide each other."""
    return [
        {"title": "Action", "bounds": (-1.0, 1.0), "lines": [{"name": f"a[{index}]", "values": compact(component)}]}
        for index, component in enumerate(np.transpose(episode.actions))
    ]


def compact(values: Iterable[float]) -> list[float | None]:
    """Five digits are more than a plot shows; what is not finite is left out of it."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]


def require_moviepy() -> None:
    try:
        import moviepy  # noqa: F401
    except ImportError as error:
        raise ImportError('--film mp4 needs moviepy: pip install "taac-wrappers[video]"') from error


def write_film(path: Path, episode: Episode, fps: float) -> None:
    """A GIF or, by the path's ending, an MP4: the pictures above a timeline that fills as the episode goes on."""
    count = len(episode.pictures)
    if path.suffix == ".mp4":
        from moviepy import VideoClip

        clip = VideoClip(lambda t: np.asarray(film_frame(episode, round(t * fps))), duration=count / fps)
        clip.write_videofile(str(path), fps, audio=False, logger=None)
        return
    frames = (film_frame(episode, frame) for frame in range(count))
    first, *others = (frame.quantize(64, dither=Image.Dither.NONE) for frame in frames)
    duration = max(SHORTEST, 10 * round(100 / fps))  # a GIF counts hundredths of a second
    first.save(path, save_all=True, append_images=others, duration=duration, loop=0)


def film_frame(episode: Episode, frame: int) -> Image.Image:
    picture = Image.open(io.BytesIO(episode.pictures[frame]))
    even = picture.width + picture.width % 2, picture.height + STRIP + picture.height % 2  # as an MP4 has to be
    image = Image.new("RGB", even, "white")
    image.paste(picture)
    draw = ImageDraw.Draw(image)
    bar_width = picture.width / len(episode.repeated)
    for index, repeated in enumerate(episode.repeated):
        top = image.height - STRIP // (4 if repeated else 2)  # heights tell them apart without colours
        colour = AHEAD if index > frame else REPEAT if repeated else ACT
        left, right = int(index * bar_width), int((index + 1) * bar_width) - 1
        draw.rectangle((left, top, max(left, right), image.height), fill=colour)  # there may be more frames than pixels
    draw.text((4, picture.height + 2), what_happens(episode, frame), fill="black", font=ImageFont.load_default(14))
    return image


def what_happens(episode: Episode, frame: int) -> str:
    if frame == len(episode.repeated):
        return "end"
    return "repeats" if episode.repeated[frame] else "acts anew"


if __name__ == "__main__":
    exit_with(lambda: main(parse(Args)))
