"""Episodes of a trained agent, frame by frame: what it saw, what it did, and what it thought of repeating."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from PIL import Image
from torch import Tensor
from trained_agent import TrainedAgent

from taac_wrappers.agent import HybridAgent, KRepAgent, TAACAgent
from taac_wrappers.agent.base import ActorCriticAgent
from taac_wrappers.training.evaluation import LONGEST_FILM
from taac_wrappers.training.faults import check_finite, env_faults
from taac_wrappers.training.structure import mapped

PICTURE_SIZE = 360
"""Pixels of a picture's longer side: a thousand frames of HalfCheetah are then 9 megabytes of a page."""


@dataclass
class Episode:
    """One episode; every list but ``pictures`` has an entry for each frame."""

    pictures: list[bytes]
    """WebP files: what each frame's action was executed in, and at last what the episode ended in."""
    actions: list[np.ndarray]
    """What was executed, in [-1, 1]."""
    rewards: list[float]
    repeated: list[bool]
    """Whether the frame re-used the action of the frame before."""
    opinions: list[dict[str, float]] = field(default_factory=list)
    """What :func:`opinions_of` says of the decision that the frame belongs to."""


class Camera(gym.Wrapper):
    """Keeps what happens at every frame. It belongs below a method's wrappers, which may hold an action for several."""

    episode: Episode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment and begin a new episode."""
        result = self.env.reset(seed=seed, options=options)
        self.episode = Episode(pictures=[self._picture()], actions=[], rewards=[], repeated=[])
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment and keep the frame; what decided on it knows whether the action is a repeated one."""
        result = self.env.step(action)
        self.episode.actions.append(np.array(action))
        self.episode.rewards.append(float(result[1]))
        self.episode.pictures.append(self._picture())
        return result

    def _picture(self) -> bytes:
        pixels: Any = self.env.render()
        picture = Image.fromarray(np.asarray(pixels, dtype=np.uint8)).convert("RGB")
        picture.thumbnail((PICTURE_SIZE, PICTURE_SIZE))
        file = io.BytesIO()
        picture.save(file, "webp", quality=70)
        return file.getvalue()


def filmed_env(trained: TrainedAgent) -> tuple[gym.Env, Camera]:
    """The environment that the agent acts in, and the camera in it. Raises ``ValueError`` if it cannot be filmed."""
    cameras: list[Camera] = []

    def wrap(env: gym.Env) -> gym.Env:
        cameras.append(Camera(env))
        return trained.wrap(cameras[-1])

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Gymnasium warns of is raised below
            env = replace(trained, wrap=wrap).make_env(render_mode="rgb_array", longest_episode=LONGEST_FILM)
            env.reset()
    except Exception as error:  # whatever an environment raises that was not made to be looked at
        raise ValueError(f"{trained.env_id} cannot be filmed: {error}") from error
    return env, cameras[-1]


def record(agent: ActorCriticAgent, env: gym.Env, camera: Camera, seed: int | None) -> Episode:
    """Play one episode as `evaluate` does: by the agent's mode. ``seed`` is that of the reset."""
    with env_faults():
        observation, _ = env.reset(seed=seed)
        check_finite(observation)
    reports = env.has_wrapper_attr("executed_action_space")  # else an info of that name is the environment's own
    episode, done = camera.episode, False
    while not done:
        batch = mapped(lambda part: np.asarray(part)[None], observation)
        answer = agent.act(batch, deterministic=True)
        opinions = opinions_of(agent, mapped(torch.as_tensor, batch), mapped(torch.as_tensor, answer))
        first_frame = len(episode.actions)
        with env_faults():
            observation, reward, terminated, truncated, info = env.step(mapped(lambda part: part[0], answer))
            check_finite(observation, reward)
        held = len(episode.actions) - first_frame
        repeated = bool(info["repeated"]) if reports else acted_alike(episode.actions, first_frame)
        episode.repeated += [repeated] + [True] * (held - 1)
        episode.opinions += [opinions] * held
        done = terminated or truncated
    return episode


def acted_alike(actions: list[np.ndarray], frame: int) -> bool:
    """Whether a frame's action is that of the frame before: what `RepeatStatisticsWrapper` counts without a report."""
    return frame > 0 and np.array_equal(actions[frame], actions[frame - 1])


@torch.no_grad()
def opinions_of(agent: ActorCriticAgent, observation: Any, answer: Any) -> dict[str, float]:
    """What the agent's choice rests on: values of the critics, and how likely it would act anew, or for how long.

    Args:
        agent: of any kind.
        observation: a batch of one, as tensors.
        answer: what the agent answered to it, as tensors.
    """
    action = answer["action"] if isinstance(answer, dict) else answer
    q = agent.critics.minimum(observation, action)[0]
    opinions: dict[str, Tensor]
    if isinstance(agent, TAACAgent):
        q_repeat = agent.critics.minimum(observation, observation["prev_action"])[0]
        opinions = {"q_repeat": q_repeat, "q_new": q, "beta": agent.switch_probability(q_repeat, q)}
    elif isinstance(agent, HybridAgent):
        _, switch = agent.policies(observation)
        opinions = {"q_repeat": q[0], "q_new": q[1], "beta": switch.probs[0]}
    elif isinstance(agent, KRepAgent):
        duration = answer["repeat"][0]
        opinions = {"q": q[duration - 1], "duration": duration}
    else:
        opinions = {"q": q}
    return {name: float(value) for name, value in opinions.items()}
