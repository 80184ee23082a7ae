"""1F1B (PipeDream-Flush): after a warm-up of forward passes, every rank alternates one forward and one backward pass.

The makespan is that of GPipe, (M + P - 1)(F + B), and at most P microbatches have activations in memory. It is the interleaved
schedule with one chunk per rank, in the order of Megatron-LM, which accepts any M. Reference: Narayanan et al., arXiv
2104.04473.
"""

from __future__ import annotations

from . import interleaved

CHUNKS = 1
ALTERNATES = True
VOCABULARY = ("vocab-1", "vocab-2", "interlaced")

order = interleaved.order
exchanges = interleaved.exchanges
in_flight = interleaved.in_flight
