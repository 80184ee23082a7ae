"""A decoder layer and a whole training step in plain PyTorch, as eager operators or as one CUDA graph.

The model is a decoder like Llama: RMSNorm and cross-entropy by PyTorch's own kernels, rotary positions and the gated
activation written out in operators, one GEMM for queries, keys and values and one for gate and up, attention by the library that
is named. Weights and gradients are in bf16, and AdamW keeps two bf16 moments and no master copy, in one fused kernel. A step is
forward, backward and update of one microbatch; gradients are overwritten, not added up or clipped. Operands are random.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...measurements.attention_libraries import PYTORCH_ATTENTION
from .timers import Job

WARM_UPS = 3
RATE = 2**-16
"""Learning rate; its value does not change the time."""
ROPE_BASE = 500_000.0  # TOLERANCE: the base does not change the time


@dataclass(frozen=True, slots=True)
class Decoder:
    """Sizes of a decoder and of its microbatch."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn_hidden: int
    vocab: int
    seq: int
    batch: int
    attention: str = "flash_attention"

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    def __str__(self) -> str:
        sizes = f"layers={self.layers} hidden={self.hidden} heads={self.heads} kv_heads={self.kv_heads} ffn={self.ffn_hidden}"
        return f"{sizes} vocab={self.vocab} seq={self.seq} batch={self.batch} {self.attention}"


HOST_STEP = Decoder(layers=12, hidden=256, heads=4, kv_heads=4, ffn_hidden=512, vocab=1024, seq=128, batch=1)
"""A step whose kernels take a GPU less time than the host takes to launch them."""
KERNELS_OF_HOST_STEP = 511
"""The number of kernels that are simulated for it, with the profile pytorch-bf16-2026."""


class Builder:
    """Builds layers and steps of a decoder on a device."""

    def __init__(self, torch: Any, device: str) -> None:
        self.torch, self.device, self.functional = torch, device, torch.nn.functional

    def weight(self, *sizes: int) -> Any:
        """A random weight, small enough for its products to stay finite."""
        values = self.torch.randn(sizes, device=self.device, dtype=self.torch.bfloat16)
        return (values * sizes[-1] ** -0.5).requires_grad_(True)

    def layer_weights(self, sizes: Decoder) -> list[Any]:
        """Weights of a layer: norm, QKV, output, norm, gate and up, down."""
        ones = [self.torch.ones(sizes.hidden, device=self.device, dtype=self.torch.bfloat16) for _ in range(2)]
        qkv = (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim
        wide = [
            self.weight(qkv, sizes.hidden), self.weight(sizes.hidden, sizes.hidden),
            self.weight(2 * sizes.ffn_hidden, sizes.hidden), self.weight(sizes.hidden, sizes.ffn_hidden),
        ]  # fmt: skip
        return [ones[0].requires_grad_(True), wide[0], wide[1], ones[1].requires_grad_(True), wide[2], wide[3]]

    def layer(self, sizes: Decoder, waves: tuple[Any, Any], x: Any, weights: list[Any]) -> Any:
        """The output of a layer for hidden states (batch, seq, hidden)."""
        f, h, kv, d = self.functional, sizes.heads, sizes.kv_heads, sizes.head_dim
        before, qkv, out, middle, up, down = weights
        split = f.linear(f.rms_norm(x, (sizes.hidden,), before), qkv).split([h * d, kv * d, kv * d], dim=-1)
        q, k, v = (part.view(sizes.batch, sizes.seq, -1, d).transpose(1, 2) for part in split)
        q, k = self.rotated(q, waves), self.rotated(k, waves)
        attended = f.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=h != kv)
        x = x + f.linear(attended.transpose(1, 2).reshape(sizes.batch, sizes.seq, sizes.hidden), out)
        gate, value = f.linear(f.rms_norm(x, (sizes.hidden,), middle), up).chunk(2, dim=-1)
        return x + f.linear(f.silu(gate) * value, down)

    def rotated(self, x: Any, waves: tuple[Any, Any]) -> Any:
        """Rotary positions, in operators."""
        cos, sin = waves
        low, high = x.chunk(2, dim=-1)
        return x * cos + self.torch.cat((-high, low), dim=-1) * sin

    def waves(self, sizes: Decoder) -> tuple[Any, Any]:
        """Cosines and sines of the rotary positions."""
        steps = self.torch.arange(0, sizes.head_dim, 2, device=self.device) / sizes.head_dim
        angles = self.torch.outer(self.torch.arange(sizes.seq, device=self.device), ROPE_BASE**-steps).repeat(1, 2)
        return angles.cos().bfloat16(), angles.sin().bfloat16()

    def library(self, sizes: Decoder) -> Any:
        """A context in which attention takes the library that is named."""
        attend = self.torch.nn.attention
        return attend.sdpa_kernel(getattr(attend.SDPBackend, PYTORCH_ATTENTION[sizes.attention]))

    def passes(self, sizes: Decoder) -> Callable[[], object]:
        """Forward and backward pass of a layer, with the gradient of its input."""
        waves, weights = self.waves(sizes), self.layer_weights(sizes)
        shape = (sizes.batch, sizes.seq, sizes.hidden)
        x, gradient = (self.torch.randn(shape, device=self.device, dtype=self.torch.bfloat16) for _ in range(2))
        x.requires_grad_(True)

        def both() -> object:
            with self.library(sizes):
                return self.torch.autograd.grad(self.layer(sizes, waves, x, weights), [x, *weights], gradient)

        return both

    def step(self, sizes: Decoder) -> Callable[[], object]:
        """A training step of the whole decoder."""
        f, waves = self.functional, self.waves(sizes)
        layers = [self.layer_weights(sizes) for _ in range(sizes.layers)]
        table, head = self.weight(sizes.vocab, sizes.hidden), self.weight(sizes.vocab, sizes.hidden)
        last = self.torch.ones(sizes.hidden, device=self.device, dtype=self.torch.bfloat16).requires_grad_(True)
        parameters = [table, head, last, *(weight for layer in layers for weight in layer)]
        optimizer = self.torch.optim.AdamW(parameters, lr=RATE, fused=True, capturable=self.device == "cuda")
        words, wanted = (self.torch.randint(sizes.vocab, (sizes.batch, sizes.seq), device=self.device) for _ in range(2))

        def step() -> object:
            optimizer.zero_grad(set_to_none=True)
            with self.library(sizes):
                x = f.embedding(words, table)
                for weights in layers:
                    x = self.layer(sizes, waves, x, weights)
                logits = f.linear(f.rms_norm(x, (sizes.hidden,), last), head)
                f.cross_entropy(logits.float().view(-1, sizes.vocab), wanted.view(-1)).backward()
            return optimizer.step()

        return step

    def job(self, call: Callable[[], object], *, graph: bool) -> Job:
        """A job of eager operators, or of one CUDA graph of them."""
        if not graph:
            return Job(call)
        cuda, side = self.torch.cuda, self.torch.cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(WARM_UPS):
                call()
        cuda.current_stream().wait_stream(side)
        captured = cuda.CUDAGraph()
        with cuda.graph(captured):
            call()
        return Job(captured.replay)
