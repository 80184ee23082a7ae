"""Advice on the parallelism of inference: what must be kept, how many GPUs hold it, and the bound of a decoded token.

This is arithmetic on the model, with the times of collectives; no server is simulated: no requests, no batching, no prefill.

A decoder keeps keys and values of every token in every layer (the KV cache): of grouped-query attention 2 kv_heads head_dim
numbers, of latent attention the latent and the rotated channels, which every tensor-parallel rank needs whole (DeepSeek-V2, arXiv
2405.04434, section 2.1). A layer with a window keeps the tokens of its window. To decode a token, a GPU reads all weights that
the batch uses and the KV cache once; their bytes over the memory bandwidth bound the time from below. Beside that, tensor
parallelism adds up the partial results of attention and MLP in every layer, and a pipeline passes activations on between stages.

"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..hardware.cluster import Cluster
from ..kernels import NARROW_BYTES
from ..study.collective import collective
from ..units import show_bytes, show_s
from ..workload.blocks import dense
from ..workload.job import ELEMENT_BYTES
from ..workload.model import Model

USABLE_FRACTION = 0.9
"""Fraction of a GPU's memory for weights and KV cache, the default of vLLM (--gpu-memory-utilization) and of SGLang."""
WIDE_BYTES = 2
"""Bytes of an activation, of a number of the KV cache, and of a weight outside linear layers of eight or four bits."""
LIBRARY = "vllm"
"""Whose all-reduces are timed: those that reduce small payloads within a node by a kernel of their own."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is served: a model, the sequences that a replica decodes at the same time, their tokens, and the format of weights."""

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
        """Bytes of all weights; in a narrow format those of the linear layers, without the head."""
        return self._bytes_of(1.0)

    def _bytes_of(self, expert_share: float, *, with_table: bool = True) -> float:
        """Bytes of the weights with a share of the experts; without the table of an embedding that only looks rows up."""
        total = 0.0
        for times, op in self.model.operators:
            if op.name == "embedding" and not with_table and not self.model.tied_embeddings:
                continue
            narrow = op.matmul_parameters and op.name != "logits"
            each = NARROW_BYTES.get(self.dtype, self.wide_bytes) if narrow else self.wide_bytes
            total += times * op.parameters * each * (expert_share if op.expert else 1.0)
        return total

    @property
    def read_bytes(self) -> float:
        """Bytes of weights that one step of the batch reads: of the experts, those that any of its tokens is sent to."""
        model = self.model
        missed = (1 - model.experts_per_token / model.experts) ** self.batch if model.experts else 0.0
        return self._bytes_of(1 - missed, with_table=False)

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


def kv_numbers_per_layer(model: Model) -> int:
    """Numbers that a layer keeps of one token: keys and values of all key heads, or their latent."""
    if model.kv_lora_rank:
        return model.kv_lora_rank + model.rope_head_dim
    return 2 * model.kv_heads * model.head_dim


@dataclass(frozen=True, slots=True)
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
        """Number of GPUs of a stage that divide the KV cache: no more than there are key heads; a latent is not divided."""
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
    def read_s(self) -> float:
        """Seconds to read weights and KV cache once at the peak bandwidth of the memory, all stages one after the other."""
        load = self.load
        return (load.read_bytes / self.tp + load.kv_bytes / self.kv_ways) / self.cluster.gpu.memory_bytes_per_s

    @property
    def message_bytes(self) -> int:
        """Bytes of the hidden states of one token of every sequence."""
        return self.load.batch * self.load.model.hidden * self.load.wide_bytes

    @property
    def reduce_s(self) -> float:
        """Seconds of the all-reduces of one token: behind attention and behind the MLP of every layer."""
        if self.tp == 1:
            return 0.0
        model = self.load.model
        each = 1 if model.parallel_mlp != "none" else 2
        table = collective("all_reduce", self.cluster, [self.message_bytes], gpus=self.tp, library=LIBRARY)
        return each * model.layers * table.rows[0].time_s

    @property
    def transfer_s(self) -> float:
        """Seconds of the transfers of one token between stages, across nodes where there are several."""
        if self.pp == 1:
            return 0.0
        nodes = 2 if self.cluster.nodes > 1 else 1
        return (self.pp - 1) * collective("sendrecv", self.cluster, [self.message_bytes], gpus=2, nodes=nodes).rows[0].time_s

    @property
    def token_s(self) -> float:
        """Bound of the time of one decoded token of every sequence, in seconds."""
        return self.read_s + self.reduce_s + self.transfer_s

    @property
    def words(self) -> str:
        named = (("tp", self.tp), ("pp", self.pp))
        product = " x ".join(f"{axis} {degree}" for axis, degree in named if degree > 1) or "one GPU"
        return f"{product}, ep {self.ep}" if self.ep > 1 else product

    def text(self, gpus: int) -> str:
        """The replica with its memory and its bound, and as many of it as some GPUs hold."""
        count = gpus // self.gpus
        parts = [f"{show_s(self.read_s)} reading"]
        parts += [f"{show_s(self.reduce_s)} all-reduce"] if self.tp > 1 else []
        parts += [f"{show_s(self.transfer_s)} transfers"] if self.pp > 1 else []
        rate = self.load.batch / self.token_s
        return (
            f"{self.words}: {show_bytes(self.bytes_per_gpu)} per GPU; a token takes at least {show_s(self.token_s)} "
            f"({', '.join(parts)}); {count:,} replica{'s' * (count > 1)}, {count * rate:,.0f} tokens/s with one batch each"
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
            "read_s": self.read_s,
            "all_reduce_s": self.reduce_s,
            "transfer_s": self.transfer_s,
            "token_s": self.token_s,
            "tokens_per_s": count * self.load.batch / self.token_s,
        }


def usable_bytes(cluster: Cluster) -> float:
    """Bytes of a GPU that weights and KV cache may fill."""
    return USABLE_FRACTION * cluster.gpu.memory_bytes
