"""Small agents with opinions, and their networks written out for one state at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from taac_wrappers.agent import SACAgent, TAACAgent

OBSERVATIONS = spaces.Box(-1, 1, (3,))
ACTIONS = spaces.Box(np.array([-1.0, 0.5], np.float32), np.array([1.0, 2.5], np.float32))
ACTION_TEMPERATURE, SWITCH_TEMPERATURE = 0.3, 0.5

Agent = TAACAgent | SACAgent


def spaces_of(kind: type[Agent], observations: spaces.Box = OBSERVATIONS, actions: spaces.Box = ACTIONS) -> tuple:
    """Observation and action space of an environment in the agent's own wrappers; SAC has none."""
    if kind is SACAgent:
        return observations, actions
    observation_space = spaces.Dict({"observation": observations, "prev_action": actions})
    return observation_space, spaces.Dict({"action": actions, "switch": spaces.Discrete(2)})


def observed(kind: type[Agent], observation: Any, prev_action: Any) -> Any:
    """What the agent's wrappers show: SAC's show no previous action."""
    return observation if kind is SACAgent else {"observation": observation, "prev_action": prev_action}


def make_agent(kind: type[Agent], seed: int = 13, **kwargs: Any) -> Any:
    """A small agent with biases, whose critics have opinions: freshly made ones value everything near zero."""
    torch.manual_seed(seed)
    agent = kind(*spaces_of(kind), **{"hidden": (8, 8), **kwargs})
    with torch.no_grad():
        for name, parameter in agent.named_parameters():
            if "bias" in name:
                parameter.normal_(std=0.1)
        for critic in agent.critics.twins:
            critic.head.weight.mul_(500)
        agent.log_action_temperature.fill_(math.log(ACTION_TEMPERATURE))
        if isinstance(agent, TAACAgent):
            agent.log_switch_temperature.fill_(math.log(SWITCH_TEMPERATURE))
    return agent


def inputs(batch: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Observations ``[batch, 3]`` and actions ``[batch, 2]``."""
    rng = np.random.default_rng(seed)
    observation = rng.uniform(-1, 1, (batch, 3)).astype(np.float32)
    return observation, rng.uniform(ACTIONS.low, ACTIONS.high, (batch, 2)).astype(np.float32)


def slow_actor(agent: Agent, observation: np.ndarray, prev_action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of one state, layer by layer; SAC's actor does not see the previous action."""
    weights = {name: tensor.double().numpy() for name, tensor in agent.actor.state_dict().items()}
    x = np.asarray(observation, np.float64)
    if isinstance(agent, TAACAgent):
        x = np.concatenate([x, weights["embed.weight"] @ prev_action + weights["embed.bias"]])
    head = weights["head.weight"] @ _slow_hidden(agent, weights, x) + weights["head.bias"]
    return head[:2], np.exp(np.clip(head[2:], agent.actor.log_std_min, agent.actor.log_std_max))


def _slow_hidden(agent: Agent, weights: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    for layer in range(len(agent.hidden)):  # a ReLU stands between two of them
        x = np.maximum(weights[f"hidden.{2 * layer}.weight"] @ x + weights[f"hidden.{2 * layer}.bias"], 0)
    return x


def slow_critic(agent: Agent, which: int, observation: np.ndarray, action: np.ndarray) -> float:
    """The value of one critic."""
    weights = {name: tensor.double().numpy() for name, tensor in agent.critics.twins[which].state_dict().items()}
    x = _slow_hidden(agent, weights, np.concatenate([observation, action]))
    return (weights["head.weight"] @ x + weights["head.bias"]).item()


def slow_minimum(agent: Agent, observation: np.ndarray, action: np.ndarray) -> float:
    """The smaller value of both critics."""
    return min(slow_critic(agent, which, observation, action) for which in (0, 1))


def slow_squash(raw: np.ndarray) -> np.ndarray:
    """What the actor's Gaussian becomes between the bounds of the actions."""
    return (ACTIONS.high + ACTIONS.low) / 2.0 + (ACTIONS.high - ACTIONS.low) / 2.0 * np.tanh(raw)
