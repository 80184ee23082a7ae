"""The colours of the classes of memory: greens for parameters and optimizer, earth colours for memory besides tensors, and
others.

None resembles a colour of time on the same pages. Neighbours in a stack are distinguishable for colour-blind readers too.
"""

from __future__ import annotations

from ..program.holdings import Holding

COLOURS = {
    Holding.CONTEXT: "#94805f",
    Holding.NCCL: "#bda67f",
    Holding.FRAGMENTATION: "#e6d9bd",
    Holding.WORKSPACE: "#6cc7d4",
    Holding.PARAMETERS: "#33691e",
    Holding.MASTER: "#6a9a3c",
    Holding.MOMENTS: "#aed581",
    Holding.GRADIENTS: "#eba3bd",
    Holding.GATHERED: "#b4a0e5",
    Holding.COMMUNICATION: "#74405c",
    Holding.LOGITS: "#ffe680",
    Holding.ACTIVATIONS: "#f08a4b",
}
"""Colours of the classes, from the bottom of a stack to its top."""
