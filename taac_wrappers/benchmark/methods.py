"""The paper's ten methods: the script that trains each, and with which flags."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    """One column of the paper's comparison."""

    title: str
    script: str
    """Of ``agents/``."""
    flags: tuple[str, ...] = ()

    def command(self, env_id: str, seed: int) -> list[str]:
        """The arguments of Python that train it.

        >>> " ".join(METHODS["taac-1td"].command("Pendulum-v1", seed=0))
        'agents/taac_continuous.py --env-id Pendulum-v1 --seed 0 --td-operator one-step'
        """
        return [f"agents/{self.script}", "--env-id", env_id, "--seed", str(seed), *self.flags]


METHODS: dict[str, Method] = {
    "taac": Method("TAAC", "taac_continuous.py"),
    "taac-1td": Method("TAAC-1td", "taac_continuous.py", ("--td-operator", "one-step")),
    "taac-ntd": Method("TAAC-Ntd", "taac_continuous.py", ("--td-operator", "n-step", "--window", "10")),
    "sac": Method("SAC", "sac_continuous.py"),
    "sac-ntd": Method("SAC-Ntd", "sac_ntd_continuous.py"),
    "sac-nrep": Method("SAC-Nrep", "sac_nrep_continuous.py"),
    "sac-krep": Method("SAC-Krep", "sac_krep_continuous.py"),
    "sac-ez": Method("SAC-EZ", "sac_ez_continuous.py"),
    "sac-hybrid": Method("SAC-Hybrid", "sac_hybrid_continuous.py"),
    "sac-hybrid-compthr": Method(
        "SAC-Hybrid-CompThr", "sac_hybrid_continuous.py", ("--td-operator", "compare-through")
    ),
}
"""By their names on the command line."""
