"""Small agents with opinions, and their networks written out for one state at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from taac_wrappers.agent import HybridAgent, KRepAgent, NRepAgent, SACAgent, TAACAgent
from taac_wrappers.agent.repeating import RepeatingAgent

OBSERVATIONS = spaces.Box(-1, 1, (3,))
ACTIONS = spaces.Box(np.array([-1.0, 0.5], np.float32), np.array([1.0, 2.5], np.float32))
ACTION_TEMPERATURE, SWITCH_TEMPERATURE = 0.3, 0.5
MAX_REPEAT, N = 4, 3

Agent = TAACAgent | SACAgent | NRepAgent | KRepAgent | HybridAgent
KINDS = (TAACAgent, SACAgent, NRepAgent, KRepAgent, HybridAgent)


def spaces_of(kind: type[Agent], observations: spaces.Box = OBSERVATIONS, actions: spaces.Box = ACTIONS) -> tuple:
    """Observation and action space of an environment in the agent's own wrappers; SAC's are those without any."""
    if kind is KRepAgent:
        return observations, spaces.Dict({"action": actions, "repeat": spaces.Discrete(MAX_REPEAT, start=1)})
    if not issubclass(kind, RepeatingAgent):
        return observations, actions
    observation_space = spaces.Dict({"observation": observations, "prev_action": actions})
    return observation_space, spaces.Dict({"action": actions, "switch": spaces.Discrete(2)})


def observed(kind: type[Agent], observation: Any, prev_action: Any) -> Any:
    """What the agent's wrappers show: only TAAC's and SAC-Hybrid's show the previous action."""
    return {"observation": observation, "prev_action": prev_action} if issubclass(kind, RepeatingAgent) else observation


def own_arguments(kind: type[Agent]) -> dict[str, Any]:
    """What an agent cannot be made without, beside its spaces."""
    return {"n": N} if kind is NRepAgent else {}


def make_agent(kind: type[Agent], seed: int = 13, **kwargs: Any) -> Any:
    """A small agent with biases, whose critics have opinions: freshly made ones value everything near zero."""
    torch.manual_seed(seed)
    agent = kind(*spaces_of(kind), **{"hidden": (8, 8), **own_arguments(kind), **kwargs})
    with torch.no_grad():
        for name, parameter in agent.named_parameters():
            if "bias" in name:
                parameter.normal_(std=0.1)
        for critic in agent.critics.twins:
            critic.head.weight.mul_(500)
        agent.log_action_temperature.fill_(math.log(ACTION_TEMPERATURE))
        if isinstance(agent, RepeatingAgent):
            agent.log_switch_temperature.fill_(math.log(SWITCH_TEMPERATURE))
        if isinstance(agent, KRepAgent):
            agent.log_repeat_temperature.fill_(math.log(SWITCH_TEMPERATURE))
        if isinstance(agent, (KRepAgent, HybridAgent)):
            observation, action = (torch.from_numpy(part) for part in inputs(200))
            make_choosy(agent, observed(kind, observation, action), action)
    return agent


@torch.no_grad()
def make_choosy(agent: KRepAgent | HybridAgent, seen: Any, action: torch.Tensor) -> None:
    """No choice is better than another in the mean over these states, so that each is the best somewhere."""
    for critic, q in zip(agent.critics.twins, agent.critics(seen, action), strict=True):
        critic.head.bias -= q.mean(0)
    if isinstance(agent, HybridAgent):
        agent.actor.switch_head.weight.mul_(20)
        agent.actor.switch_head.bias -= agent.actor(seen)[-1].mean()


def inputs(batch: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Observations ``[batch, 3]`` and actions ``[batch, 2]``."""
    rng = np.random.default_rng(seed)
    observation = rng.uniform(-1, 1, (batch, 3)).astype(np.float32)
    return observation, rng.uniform(ACTIONS.low, ACTIONS.high, (batch, 2)).astype(np.float32)


def slow_actor(agent: Agent, observation: np.ndarray, prev_action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of one state, layer by layer; SAC's actor does not see the previous action."""
    weights = {name: tensor.double().numpy() for name, tensor in agent.actor.state_dict().items()}
    head = weights["head.weight"] @ _slow_features(agent, weights, observation, prev_action) + weights["head.bias"]
    return head[:2], np.exp(np.clip(head[2:], agent.actor.log_std_min, agent.actor.log_std_max))


def slow_switch_probability(agent: HybridAgent, observation: np.ndarray, prev_action: np.ndarray) -> float:
    """SAC-Hybrid's probability of acting anew in one state."""
    weights = {name: tensor.double().numpy() for name, tensor in agent.actor.state_dict().items()}
    features = _slow_features(agent, weights, observation, prev_action)
    return 1 / (1 + math.exp(-(weights["switch_head.weight"] @ features + weights["switch_head.bias"]).item()))


def _slow_features(agent: Agent, weights: dict, observation: np.ndarray, prev_action: np.ndarray) -> np.ndarray:
    x = np.asarray(observation, np.float64)
    if isinstance(agent, RepeatingAgent):
        x = np.concatenate([x, weights["embed.weight"] @ prev_action + weights["embed.bias"]])
    return _slow_hidden(agent, weights, x)


def _slow_hidden(agent: Agent, weights: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    for layer in range(len(agent.hidden)):  # a ReLU stands between two of them
        x = np.maximum(weights[f"hidden.{2 * layer}.weight"] @ x + weights[f"hidden.{2 * layer}.bias"], 0)
    return x


def slow_critics(agent: Agent, which: int, *seen: np.ndarray) -> np.ndarray:
    """The values of one critic, one for each choice; SAC-Hybrid's sees ``(s, a_prev, a)``, others ``(s, a)``."""
    weights = {name: tensor.double().numpy() for name, tensor in agent.critics.twins[which].state_dict().items()}
    return weights["head.weight"] @ _slow_hidden(agent, weights, np.concatenate(seen)) + weights["head.bias"]


def slow_critic(agent: Agent, which: int, observation: np.ndarray, action: np.ndarray) -> float:
    """The value of one critic that has no choices."""
    return slow_critics(agent, which, observation, action).item()


def slow_minimum(agent: Agent, observation: np.ndarray, action: np.ndarray) -> float:
    """The smaller value of both critics."""
    return min(slow_critic(agent, which, observation, action) for which in (0, 1))


def slow_squash(raw: np.ndarray) -> np.ndarray:
    """What the actor's Gaussian becomes between the bounds of the actions."""
    return (ACTIONS.high + ACTIONS.low) / 2.0 + (ACTIONS.high - ACTIONS.low) / 2.0 * np.tanh(raw)
