"""Advice on the parallelism of inference: bytes to be held, number of GPUs that hold them, and a bound of the time of a token.

This is arithmetic on the model, with the times of collectives and of GEMMs; no server is simulated: no requests, no batching, no
prefill.

A decoder keeps keys and values of every token in every layer (the KV cache): 2 kv_heads head_dim numbers in grouped-query
attention; in latent attention the latent and the rotated channels, which every tensor-parallel rank needs whole (DeepSeek-V2,
arXiv 2405.04434, section 2.1). A layer with a window keeps the tokens of its window. To decode a token, a GPU reads all weights
that the batch uses and the KV cache once; their bytes over the memory bandwidth bound the time from below. In addition, tensor
parallelism adds up the partial results of attention and MLP in every layer, and a pipeline passes activations between stages.

"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Any

from ..config.shipped_fits import fits_for
from ..costs.kernels.estimator import measured_cost
from ..hardware.cluster import Cluster
from ..kernels import NARROW_BYTES, Gemm, Split
from ..study.collective import collective
from ..units import show_bytes, show_s
from ..workload.blocks import dense
from ..workload.job import BESIDE_NARROW, ELEMENT_BYTES
from ..workload.model import Model

USABLE_FRACTION = 0.9
"""Fraction of a GPU's memory for weights and KV cache, the default of vLLM (--gpu-memory-utilization) and of SGLang."""
WIDE_BYTES = 2
"""Bytes of an activation, of a number of the KV cache, and of a weight that is not in a linear layer of eight or four bits."""
LIBRARY = "vllm"
"""The libraries whose all-reduces are timed; they reduce small payloads within a node by a kernel of their own."""


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a server: a model, the sequences that a replica decodes together, their tokens, the format of weights."""

    model: Model
    batch: int
    context: int
    dtype: str

    @property
    def wide_bytes(self) -> int:
        """Bytes of an activation and of a number of the KV cache."""
        return ELEMENT_BYTES.get(self.dtype, WIDE_BYTES)

    @property
    def weights_bytes(self) -> float:
        """Bytes of all weights; a narrow format applies to those of the linear layers, without the head."""
        return self._bytes_of(1.0)

    def _bytes_of(self, expert_share: float, *, with_table: bool = True) -> float:
        """Bytes of the weights with a share of the experts; untied embeddings, of which few rows are read, `with_table` only."""
        total = 0.0
        for times, op in self.model.operators:
            if op.name == "embedding" and not with_table and not self.model.tied_embeddings:
                continue
            each = NARROW_BYTES.get(self.dtype, self.wide_bytes) if is_narrow(op) else self.wide_bytes
            total += times * op.parameters * each * (expert_share if op.expert else 1.0)
        return total

    @property
    def read_bytes(self) -> float:
        """Bytes of weights that one step of the batch reads, including only the experts that its tokens are sent to."""
        share = self.used_experts / self.model.experts if self.model.experts else 1.0
        return self._bytes_of(share, with_table=False)

    @property
    def used_experts(self) -> float:
        """Mean number of experts of a layer that any token of the batch is sent to, where all are equally popular."""
        model = self.model
        return model.experts * (1 - (1 - model.experts_per_token / model.experts) ** self.batch)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of the KV cache of one token in all layers."""
        return self.model.layers * kv_numbers_per_layer(self.model) * self.wide_bytes

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV cache of the whole batch; a layer with a window keeps no more tokens than the window has."""
        windows = (dense.window_of(self.model, number) or self.context for number in range(self.model.layers))
        tokens = sum(min(self.context, window) for window in windows)
        return self.batch * tokens * kv_numbers_per_layer(self.model) * self.wide_bytes


def is_narrow(op: dense.BlockOp) -> bool:
    """Whether an operator's weights are in the narrow format, if any: those of linear layers are, without the head."""
    return op.matmul_parameters > 0 and op.name != "logits"


def kv_numbers_per_layer(model: Model) -> int:
    """Numbers that a layer keeps for one token: keys and values of all key heads, or their latent."""
    if model.kv_lora_rank:
        return model.kv_lora_rank + model.rope_head_dim
    return 2 * model.kv_heads * model.head_dim


@dataclass(frozen=True)
class Placement:
    """A replica of a load on `tp` x `pp` GPUs of a cluster, with whole experts on different GPUs where `ep` > 1."""

    load: Load
    cluster: Cluster
    tp: int = 1
    pp: int = 1
    ep: int = 1

    @property
    def gpus(self) -> int:
        return self.tp * self.pp

    @property
    def kv_ways(self) -> int:
        """Number of GPUs of a stage among which the KV cache is divided: at most the number of key heads; 1 for a latent."""
        return 1 if self.load.model.kv_lora_rank else min(self.tp, self.load.model.kv_heads)

    @property
    def stage_share(self) -> float:
        """Share of the layers in the largest stage."""
        return -(-self.load.model.layers // self.pp) / self.load.model.layers

    @property
    def bytes_per_gpu(self) -> float:
        """Bytes of weights and KV cache on a GPU of the largest stage."""
        return self.stage_share * (self.load.weights_bytes / self.tp + self.load.kv_bytes / self.kv_ways)

    @property
    def fits(self) -> bool:
        return self.bytes_per_gpu <= usable_bytes(self.cluster)

    @property
    def weights_s(self) -> float:
        """Seconds to read the weights that a batch uses at the peak bandwidth of the memory, all stages one after the other."""
        return self.load.read_bytes / self.tp / self.cluster.gpu.memory_bytes_per_s

    @property
    def cache_s(self) -> float:
        """Seconds to read the KV cache at the peak bandwidth of the memory, all stages one after the other."""
        return self.load.kv_bytes / self.kv_ways / self.cluster.gpu.memory_bytes_per_s

    @cached_property
    def gemms_s(self) -> float:
        """Seconds of the GEMMs of one token of every sequence by the kernel models, all stages one after the other."""
        dtype = self.load.dtype if self.load.dtype in ELEMENT_BYTES else BESIDE_NARROW
        prices = measured_cost(self.cluster.gpu, dtype, fits_for(self.cluster.gpu))
        return sum(times * prices.estimate(gemm).seconds for times, gemm in self._gemms())

    def _gemms(self) -> Iterator[tuple[int, Gemm]]:
        """The GEMMs of a tensor-parallel rank, with the number of layers that have them."""
        load, model = self.load, self.load.model
        sizes = {"batch": load.batch, "seq": 1, "element_bytes": load.wide_bytes}
        counts = Counter(model.block.kind(model, number) for number in range(model.layers))
        operators = [
            (counts[kind], op) for kind, at in model.kinds.items() for op in model.block.layer(model, **sizes, number=at)
        ]
        for times, op in [*operators, *((1, op) for op in model.block.head(model, **sizes))]:
            gemm = op.forward
            if not isinstance(gemm, Gemm):
                continue
            if op.expert:
                used = ceil(load.used_experts)
                gemm = replace(gemm, m=ceil(load.batch * model.experts_per_token / used), batch=-(-used // self.ep))
            parts = 1 if op.expert and self.ep > 1 else self.tp
            if op.split is Split.COLUMN:
                gemm = replace(gemm, n=-(-gemm.n // parts))
            elif op.split is Split.ROW:
                gemm = replace(gemm, k=-(-gemm.k // parts))
            yield times, replace(gemm, dtype=load.dtype) if load.dtype in NARROW_BYTES and is_narrow(op) else gemm

    @property
    def message_bytes(self) -> int:
        """Bytes of the hidden states of one token of every sequence."""
        return self.load.batch * self.load.model.hidden * self.load.wide_bytes

    @cached_property
    def reduce_s(self) -> float:
        """Seconds of the all-reduces of one token: after attention and after the MLP of every layer."""
        if self.tp == 1:
            return 0.0
        model = self.load.model
        each = 1 if model.parallel_mlp != "none" else 2
        table = collective("all_reduce", self.cluster, [self.message_bytes], gpus=self.tp, library=LIBRARY)
        return each * model.layers * table.rows[0].time_s

    @cached_property
    def transfer_s(self) -> float:
        """Seconds of the transfers of one token between stages, across nodes where there are several."""
        if self.pp == 1:
            return 0.0
        nodes = 2 if self.cluster.nodes > 1 else 1
        return (self.pp - 1) * collective("sendrecv", self.cluster, [self.message_bytes], gpus=2, nodes=nodes).rows[0].time_s

    @property
    def least_token_s(self) -> float:
        """Bound of the time of one decoded token of every sequence, in seconds: memory is read at its peak bandwidth."""
        return self.weights_s + self.cache_s + self.reduce_s + self.transfer_s

    @property
    def token_s(self) -> float:
        """Time of one decoded token of every sequence, in seconds, with GEMMs by the kernel models."""
        return max(self.gemms_s, self.weights_s) + self.cache_s + self.reduce_s + self.transfer_s

    @property
    def words(self) -> str:
        named = (("tp", self.tp), ("pp", self.pp))
        product = " x ".join(f"{axis} {degree}" for axis, degree in named if degree > 1) or "one GPU"
        return f"{product}, ep {self.ep}" if self.ep > 1 else product

    def text(self, gpus: int) -> str:
        """The replica with its memory and its bound, and as many of it as some GPUs hold."""
        count = gpus // self.gpus
        parts = [f"{show_s(self.weights_s + self.cache_s)} reading"]
        parts += [f"{show_s(self.reduce_s)} all-reduces"] if self.tp > 1 else []
        parts += [f"{show_s(self.transfer_s)} transfers"] if self.pp > 1 else []
        rate = count * self.load.batch / self.token_s
        return (
            f"{self.words}: {show_bytes(self.bytes_per_gpu)} per GPU; a token takes {show_s(self.least_token_s)} at least "
            f"({', '.join(parts)}), {show_s(self.token_s)} with GEMMs as modelled; {count:,} replica{'s' * (count > 1)}, "
            f"{rate:,.0f} tokens/s with one batch each"
        )

    def as_dict(self, gpus: int) -> dict[str, Any]:
        """The replica as plain data."""
        count = gpus // self.gpus
        return {
            "tp": self.tp,
            "pp": self.pp,
            "ep": self.ep,
            "replicas": count,
            "bytes_per_gpu": self.bytes_per_gpu,
            "weights_s": self.weights_s,
            "cache_s": self.cache_s,
            "gemms_s": self.gemms_s,
            "all_reduce_s": self.reduce_s,
            "transfer_s": self.transfer_s,
            "least_token_s": self.least_token_s,
            "token_s": self.token_s,
            "tokens_per_s": count * self.load.batch / self.token_s,
        }


def usable_bytes(cluster: Cluster) -> float:
    """Bytes of a GPU that weights and KV cache may fill."""
    return USABLE_FRACTION * cluster.gpu.memory_bytes
