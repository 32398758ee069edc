"""A tier that computes an operator wrongly, for what looks for such: run by tests alone."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import Any

from tilevm.tools import minimise, replay
from tilevm.tools.archive import Call

WRONG = {"tanh": "sin"}  # an operator, and what runs in its place
right = replay.run_tier


def run_tier(call: Call, tier: str) -> tuple[Any, ...]:
    """As it should, but for that operator on other tiers than the reference."""
    if tier == "reference":
        return right(call, tier)
    nodes = tuple(replace(n, op=WRONG.get(n.op, n.op)) for n in call.graph.nodes)
    return right(replace(call, graph=replace(call.graph, nodes=nodes)), tier)


class Differing(minimise.Trial):
    """Tries with it."""

    def failure(self, call: Call, tier: str) -> str:
        """How the call fails."""
        replay.run_tier = run_tier
        return super().failure(call, tier)


class Dying(minimise.Trial):
    """Tries with an operator that takes the process down."""

    def failure(self, call: Call, tier: str) -> str:
        """How the call fails."""
        if any(node.op in WRONG for node in call.graph.nodes):
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().failure(call, tier)
