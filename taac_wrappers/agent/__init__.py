"""What you deploy: the agents, their distributions and temporal-difference operators (needs torch)."""

from taac_wrappers.agent.base import load_agent
from taac_wrappers.agent.networks import TwinCritics
from taac_wrappers.agent.policy import AgentPolicy
from taac_wrappers.agent.sac import SACAgent
from taac_wrappers.agent.sac_hybrid import HybridAgent
from taac_wrappers.agent.sac_krep import KRepAgent
from taac_wrappers.agent.sac_nrep import NRepAgent
from taac_wrappers.agent.taac import TAACAgent

__all__ = ["AgentPolicy", "HybridAgent", "KRepAgent", "NRepAgent", "SACAgent", "TAACAgent", "TwinCritics", "load_agent"]
