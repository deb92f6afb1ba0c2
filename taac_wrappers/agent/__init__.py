"""What you deploy: the TAAC agent, its distributions and its temporal-difference operators (needs torch)."""

from taac_wrappers.agent.taac import TAACAgent, TAACPolicy, TwinCritics

__all__ = ["TAACAgent", "TAACPolicy", "TwinCritics"]
