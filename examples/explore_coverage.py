"""How much of the state space untrained policies visit: the paper's figure on exploration, with two more methods.

python examples/explore_coverage.py -o coverage

For each method, its untrained agent plays 50,000 frames of MountainCarContinuous (position and velocity) and of
BipedalWalker (the hull's four numbers, projected onto their two principal components). The picture shows the density
of the visited states, the table the share of the cells of a grid that were visited.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import torch
import tyro

from taac_wrappers.benchmark.methods import METHODS
from taac_wrappers.training.arguments import bad_input, exit_with, parse
from taac_wrappers.training.envs import make_env
from taac_wrappers.training.structure import mapped

SCRIPTS = Path(__file__).parents[1] / "agents"
SHOWN = ("taac", "sac", "sac-ez", "sac-nrep")
SEEN = {"MountainCarContinuous-v0": ("position", "velocity"), "BipedalWalker-v3": ("component 1", "component 2")}
HULL = 4  # the first entries of the walker's observation: angle, angular velocity, velocities along x and y
CELLS = 50
"""Along each of the two axes."""


@dataclass
class Args:
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """folder for the picture and the table"""
    frames: int = 50_000
    """frames that each policy plays"""
    seed: int = 0
    """of networks, policies and environments"""


class RecordStates(gym.Wrapper):
    """Keeps what the environment shows after every frame, below wrappers that make several frames one step."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.states: list[np.ndarray] = []

    def step(self, action: Any):
        observation, *rest = self.env.step(action)
        self.states.append(np.array(observation))
        return (observation, *rest)


def visited(method: str, env_id: str, frames: int, seed: int) -> np.ndarray:
    """The states ``[frames, size]`` that an untrained agent comes by in its training environment."""
    script = importlib.import_module(METHODS[method].script.removesuffix(".py"))
    args = script.Args.for_task(env_id, "paper")
    recorded: list[RecordStates] = []

    def wrap(env: gym.Env) -> gym.Env:
        recorded.append(RecordStates(env))
        return script.wrap(recorded[-1], args, explore=True)

    env = make_env(env_id, wrap)
    torch.manual_seed(seed)
    agent = script.make_agent(args, env.observation_space, env.action_space)
    observation, _ = env.reset(seed=seed)
    while len(recorded[-1].states) < frames:
        action = agent.act(mapped(lambda part: np.asarray(part)[None], observation))
        observation, _, terminated, truncated, _ = env.step(mapped(lambda part: part[0], action))
        if terminated or truncated:
            observation, _ = env.reset()
    env.close()
    return np.array(recorded[-1].states[:frames])


def principal_components(states: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every method's states projected onto the two directions along which those of all together vary most.

    >>> line = np.array([[0.0, 0.0, 5.0], [3.0, 4.0, 5.0]])
    >>> np.abs(principal_components({"a": line})["a"]).round(6)
    array([[2.5, 0. ],
           [2.5, 0. ]])
    """
    together = np.concatenate(list(states.values()))
    center = together.mean(axis=0)
    _, _, directions = np.linalg.svd(together - center, full_matrices=False)
    return {method: (own - center) @ directions[:2].T for method, own in states.items()}


def coverage(points: np.ndarray, low: np.ndarray, high: np.ndarray, cells: int = CELLS) -> float:
    """Share of the ``cells`` x ``cells`` between two corners that hold at least one of the points ``[n, 2]``.

    >>> coverage(np.array([[0.1, 0.1], [0.2, 0.3], [0.9, 0.9]]), np.zeros(2), np.ones(2), cells=2)
    0.5
    """
    counts, _, _ = np.histogram2d(points[:, 0], points[:, 1], bins=cells, range=np.stack([low, high], axis=-1))
    return float((counts > 0).mean())


def shown_states(env_id: str, frames: int, seed: int) -> dict[str, np.ndarray]:
    """Of every method, the two numbers of each state that are looked at."""
    states = {method: visited(method, env_id, frames, seed) for method in SHOWN}
    if env_id == "BipedalWalker-v3":
        return principal_components({method: own[:, :HULL] for method, own in states.items()})
    return states


def corners(states: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Of the box around what any of the methods has visited."""
    together = np.concatenate(list(states.values()))
    return together.min(axis=0), together.max(axis=0)


def draw(path: Path, points: dict[str, dict[str, np.ndarray]]) -> None:
    """A row for each environment: densities of the states, with those of their two numbers on the sides."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(SHOWN), 3.2 * len(points)), layout="constrained")
    panels = figure.subfigures(len(points), len(SHOWN), squeeze=False)
    for row, (env_id, states) in zip(panels, points.items(), strict=True):
        grid = np.linspace(*corners(states), 60)
        for panel, (method, own) in zip(row, states.items(), strict=True):
            panel.suptitle(f"{METHODS[method].title}, {env_id}", fontsize=8)
            draw_densities(panel, own, grid, SEEN[env_id])
    figure.savefig(path, dpi=110)


def draw_densities(panel: Any, points: np.ndarray, grid: np.ndarray, names: tuple[str, str]) -> None:
    from scipy.stats import gaussian_kde

    axes = panel.subplot_mosaic(
        [["top", "."], ["both", "right"]], width_ratios=[4, 1], height_ratios=[1, 4], gridspec_kw={"hspace": 0}
    )
    x, y = np.meshgrid(*grid.T)
    together = gaussian_kde(points.T)(np.stack([x.ravel(), y.ravel()])).reshape(x.shape)
    axes["both"].contourf(x, y, np.log1p(together / together.mean()), levels=12, cmap="Greys")
    axes["both"].set(xlabel=names[0], ylabel=names[1])
    axes["top"].plot(grid[:, 0], gaussian_kde(points[:, 0])(grid[:, 0]), color="black")
    axes["right"].plot(gaussian_kde(points[:, 1])(grid[:, 1]), grid[:, 1], color="black")
    for side in (axes["top"], axes["right"]):
        side.axis("off")


def table(points: dict[str, dict[str, np.ndarray]]) -> str:
    lines = [f"| cells visited, of {CELLS}² | " + " | ".join(METHODS[method].title for method in SHOWN) + " |"]
    lines.append("|---" * (1 + len(SHOWN)) + "|")
    for env_id, states in points.items():
        shares = (coverage(own, *corners(states)) for own in states.values())
        lines.append(f"| {env_id} | " + " | ".join(f"{share:.1%}" for share in shares) + " |")
    return "\n".join(lines) + "\n"


def main(args: Args) -> int:
    with bad_input():
        if args.frames < 100:
            raise ValueError(f"--frames must be at least 100, got {args.frames}")
        args.output.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(SCRIPTS))
    points = {env_id: shown_states(env_id, args.frames, args.seed) for env_id in SEEN}
    (args.output / "coverage.md").write_text(table(points))
    draw(args.output / "coverage.png", points)
    print(table(points) + f"picture: {args.output / 'coverage.png'}")
    return 0


if __name__ == "__main__":
    exit_with(lambda: main(parse(Args)))
