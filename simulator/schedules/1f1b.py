"""1F1B: after a short warm-up every rank alternates one forward and one backward pass.

The makespan of GPipe, (M + P - 1)(F + B), with the activations of at most P microbatches alive. It is the interleaved schedule
with one chunk per rank. Reference: Narayanan et al., arXiv 2104.04473, "PipeDream-Flush"; Megatron's order, which takes any M.
"""

from __future__ import annotations

from . import interleaved

CHUNKS = 1

order = interleaved.order
exchanges = interleaved.exchanges
in_flight = interleaved.in_flight
