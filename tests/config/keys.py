"""For every key that a scenario or a file of a fabric may have: a scenario in which another value must show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from simulator import fields
from simulator.fields import Declared

GPU = {
    "name": "mine", "memory": "80 GiB", "memory_bandwidth": "3 TB/s", "peak": {"bf16": "900 TFLOP/s", "fp32": "60 TFLOP/s"},
    "sms": 120, "architecture": "sm_90", "clock": "1800 MHz", "cache": "50 MB",
    "kernels": {"compute_fraction": 0.7, "memory_fraction": 0.8, "provenance": "transferred"},
}  # fmt: skip
CLUSTER = {
    "name": "small", "gpu": GPU, "gpus_per_node": 4, "nodes": 4, "intra_node": "NVSwitch 400 GB/s",
    "inter_node": "4x400 Gbit/s", "shape": "rail-optimized", "nodes_per_pod": 2, "fabric": "ideal",
}  # fmt: skip
MODEL = {"layers": 8, "hidden": 1024, "heads": 16, "vocab": 32000}
BASE: dict[str, Any] = {
    "model": MODEL, "cluster": CLUSTER, "plan": {"tp": 2, "pp": 2}, "job": {"sequence_length": 1024, "global_batch": 32},
}  # fmt: skip
LLAMA = {"model": {**MODEL, "gated_mlp": True, "ffn_hidden": 2816}}
GPT = {"model.bias": True, "model.activation": "gelu"}
MOE = {"model.experts": 8, "model.experts_per_token": 2, "model.expert_ffn_hidden": 512}
DEEPEP = {**MOE, "plan": {"tp": 1, "ep": 8, "etp": 1, "moe": {"dispatcher": "deepep"}}}
DRAWN_ROUTING = {**MOE, "model.experts": 16, "plan": {"tp": 1, "ep": 8, "etp": 1, "moe": {"routing": "drawn"}}}
BESIDE = {**MOE, "plan": {"tp": 1, "pp": 2, "ep": 8, "schedule": "interleaved", "chunks": 2}}
MLA = {"model.kv_lora_rank": 64, "model.rope_head_dim": 32}
HOST = {"framework.host": {"kernel": "20 us", "compiled_kernel": "10 us", "collective": "40 us", "graph": "30 us"}}
FP8 = {"cluster.gpu": "h100", "job.dtype": "fp8"}
SLOW_RANK = {"perturb": [{"rank": 3, "speed": 0.5, "from": "1 ms", "until": "4 ms"}]}
SLOW_LINK = {"perturb": [{"link": "node0/nic0>leaf0", "capacity": 0.1}]}
SLOWED = {"fidelity.overlap": "slowed"}
SUMS_BESIDE = {"plan": {"tp": 8, "pp": 1, "sequence_parallel": False, "overlap": {"tp": True}}}
FSDP = {"plan": {"tp": 2, "pp": 1, "sharding": {"kind": "fsdp"}}}
INTERLEAVED = {"plan.schedule": "interleaved", "plan.chunks": 2}
WIDE = {"plan": {"tp": 2, "pp": 1}}
"""Replicas on all nodes, whose gradients cross the network."""
SHARED = {"plan": {"tp": 2, "cp": 2}}
"""Sequences shared by two ranks."""
ALL_APART = {"plan": {"tp": 1, "pp": 1}, "job.global_batch": 128}
"""Replicas on all GPUs."""
HASHED = {**ALL_APART, "cluster.shape": "leaf-spine", "cluster.routing": "ecmp", "cluster.nodes": 8}
DRAGONFLY = {**ALL_APART, "cluster.shape": "dragonfly", "cluster.nodes_per_pod": None, "cluster.nodes": 16}
ONE_NODE = {
    "cluster.nodes": 1,
    "cluster.nodes_per_pod": None,
    "cluster.shape": None,
    "cluster.inter_node": None,
    "cluster.gpus_per_node": 8,
}
PCIE = {**ONE_NODE, "cluster.intra_node": "pcie 25 GB/s", "plan": {"tp": 8, "pp": 1}}
WAN = {
    "cluster.shape": "wan",
    "cluster.nodes_per_pod": None,
    "cluster.wan": {"sites": 2, "bandwidth": "100 Gbit/s", "latency": "1 ms"},
    **WIDE,
}
DRAWN = {
    "cluster": {
        "gpu": GPU, "gpus_per_node": 2, "nodes": 1, "shape": "explicit", "fabric": "ideal",
        "vertices": [{"name": name, "kind": "gpu" if name in "ab" else "switch"} for name in ("a", "b", "s")],
        "links": [{"from": end, "to": "s", "capacity": "50 GB/s", "latency": "1 us"} for end in "ab"],
    },
    "plan": {"tp": 2},
}  # fmt: skip

WITH_HOST = {"cluster.host": {"bandwidth": "50 GB/s", "memory": "1 TB", "memory_bandwidth": "400 GB/s"}}
ON_HOST = {**WITH_HOST, "plan.offload": {"optimizer": True}}
FULL = {"plan.recompute": {"scope": "full"}}


class Case(NamedTuple):
    """What to change of BASE, and the value of the key that must show beside that."""

    value: Any
    of: Mapping[str, Any] = {}


def changed(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Plain data with values at dotted places; None takes a key out."""
    result = _copied(data)
    for path, value in changes.items():
        *outer, last = path.split(".")
        at = result
        for part in outer:
            at = at[int(part)] if isinstance(at, list) else at.setdefault(part, {})
        if value is None and isinstance(at, dict):
            at.pop(last, None)
        else:
            at[int(last) if isinstance(at, list) else last] = _copied(value)
    return result


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value


def keys(schema: type[Declared], prefix: str = "") -> Iterator[str]:
    """Every key of a file that is read as a dataclass and of those inside it, dotted; of lists that of the first entry."""
    yield from (prefix + key for key in schema.comments)
    for key, spec in fields.keys(schema).items():
        inner = spec.form.record
        if inner is None:
            yield prefix + key
            # a word or a mapping: the keys of the mapping too
            yield from (one for of in spec.form.members if of.record for one in keys(of.record, f"{prefix}{key}."))
        else:
            yield from keys(inner, f"{prefix}{key}." if inner is spec.form.kind else f"{prefix}{key}.0.")


COMMENTS = {
    "model.published_parameters", "model.source", "framework.sources", "cluster.sources", "cluster.gpu.sources",
    "cluster.gpu.kernels.source", "cluster.gpu.kernels.provenance",
}  # fmt: skip
"""Where numbers come from: read by people."""
FABRIC_COMMENTS = {"about", "provenance", "source", "curves.0.source"}
REFUSED = {
    "plan.dp", "fidelity.granularity", "framework.name",
    "framework.low_precision.formats", "cluster.vertices.0.name", "cluster.vertices.0.kind", "cluster.links.0.from",
    "cluster.links.0.to", "cluster.links.0.one_way",
}  # fmt: skip
"""Refused in the value that stands here: what is not modelled yet, what is no name, what does not go with the rest."""
WITHOUT_EFFECT = {"cluster.gpu.tdp"}
"""Said to have no effect."""
CASES: dict[str, Case] = {
    "plan.tp": Case(4),
    "plan.pp": Case(4),
    "plan.dp": Case(2),
    "plan.cp": Case(2),
    "plan.cp_kind": Case("ulysses", SHARED),
    "plan.cp_balance": Case(False, SHARED),
    "plan.cp_ulysses": Case(4, {**SHARED, "plan.cp": 8, "plan.cp_kind": "mixed", "plan.cp_ulysses": 2}),
    "plan.ep": Case(2, MOE),
    "plan.etp": Case(1, MOE),
    "plan.moe.routing": Case("drawn", {**MOE, "plan": {"ep": 8, "etp": 1}}),
    "plan.moe.seed": Case(1, DRAWN_ROUTING),
    "plan.moe.concentration": Case(1.0, DRAWN_ROUTING),
    "plan.moe.capacity": Case(1.25, MOE),
    "plan.moe.dispatcher": Case("deepep", {**MOE, "plan": {"ep": 4, "etp": 1}}),
    "plan.moe.node": Case(2, DEEPEP),
    "plan.moe.nodes_per_token": Case(1, DEEPEP),
    "plan.moe.ranks": Case("hottest", DRAWN_ROUTING),
    "plan.moe.placement": Case("cyclic", DRAWN_ROUTING),
    "plan.sequence_parallel": Case(False),
    "plan.chunks": Case(4, INTERLEAVED),
    "plan.layout": Case([3, 5]),
    "plan.vocabulary": Case("redis"),
    "plan.schedule": Case("gpipe"),
    "plan.group": Case(4, INTERLEAVED),
    "plan.splits": Case(2, {"plan.schedule": "seq-1f1b"}),
    "plan.memory_limit": Case(2.0, {"plan.schedule": "zb-auto", "plan.pp": 4}),
    "plan.optimizer": Case("post-validated"),
    "plan.sharding": Case("zero1"),
    "plan.sharding.kind": Case("zero3", FSDP),
    "plan.sharding.group": Case(4, FSDP),
    "plan.sharding.reshard": Case(False, FSDP),
    "plan.sharding.prefetch": Case(0, FSDP),
    "plan.sharding.in_flight": Case(1, FSDP),
    "plan.sharding.reduce": Case("last", FSDP),
    "plan.sharding.reduce_dtype": Case("bf16", FSDP),
    "plan.sharding.unit": Case("half-layer", FSDP),
    "plan.recompute": Case("full"),
    "plan.recompute.scope": Case("selective", {"plan.recompute": {}}),
    "plan.recompute.ops": Case(["mlp_norm"], {"plan.recompute": {}}),
    "plan.recompute.first": Case(2, FULL),
    "plan.recompute.every": Case(2, FULL),
    "plan.recompute.together": Case(2, FULL),
    "plan.recompute.early_stop": Case(True, FULL),
    "plan.offload": Case("optimizer", WITH_HOST),
    "plan.offload.activations": Case(0.25, {**WITH_HOST, "plan.offload": {}}),
    "plan.offload.optimizer": Case(True, {**WITH_HOST, "plan.offload": {}}),
    "plan.offload.optimizer_fraction": Case(0.5, ON_HOST),
    "plan.offload.parameters": Case(True, {**FSDP, **ON_HOST, "plan.sharding": "zero3"}),
    "plan.rank_order": Case("pp-dp-tp"),
    "plan.placement": Case([0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15]),
    "plan.overlap.dp": Case(False),
    "plan.overlap.tp": Case("decomposed"),
    "plan.overlap.pp": Case(False),
    "plan.overlap.ep": Case(True, BESIDE),
    "plan.overlap.weight_gradients": Case(True, BESIDE),
    "plan.overlap.cp": Case(False, SHARED),
    "job.sequence_length": Case(2048),
    "job.global_batch": Case(64),
    "job.microbatch_size": Case(2),
    "job.dtype": Case("fp32"),
    "job.optimizer": Case("adam-8bit"),
    "job.optimizer.kind": Case("muon", {"job.optimizer": {"kind": "adam"}}),
    "job.optimizer.moments": Case("bf16", {"job.optimizer": {"kind": "adam"}}),
    "job.optimizer.master": Case("none", {"job.optimizer": {"kind": "adam"}}),
    "job.optimizer.block": Case(2048, {"job.optimizer": {"kind": "adam-8bit"}}),
    "job.optimizer.newton_schulz_steps": Case(3, {"job.optimizer": {"kind": "muon"}}),
    "job.optimizer.tensor_parallel": Case("duplicated", {"job.optimizer": {"kind": "muon"}}),
    "job.gradient_clipping": Case(True),
    "job.frozen_layers": Case(2),
    "job.lora.rank": Case(32, {"job.lora": {"rank": 16}}),
    "job.lora.targets": Case(["qkv"], {"job.lora": {"rank": 16}}),
    "job.packing.lengths": Case([256, 768], {"job.packing": {"lengths": [512, 512]}}),
    "job.packing.mean": Case(256, {"job.packing": {"mean": 128}}),
    "job.packing.distribution": Case("uniform", {"job.packing": {"mean": 128}}),
    "job.packing.sigma": Case(0.5, {"job.packing": {"mean": 128, "distribution": "lognormal"}}),
    "job.total_tokens": Case(2**40),
    "job.price_per_gpu_hour": Case(2.5, {"job.total_tokens": 2**40}),
    "job.price_per_kwh": Case(0.1, {"job.total_tokens": 2**40, "cluster.gpu": "h100"}),
    "job.pue": Case(1.3, {"job.total_tokens": 2**40, "cluster.gpu": "h100"}),
    "framework.name": Case("ours"),
    "framework.attention": Case("unfused"),
    "framework.dropout": Case(True),
    "framework.compile": Case(True, LLAMA),
    "framework.cuda_graphs": Case(True, HOST),
    "framework.p2p_sync": Case(True, {**HOST, "plan.overlap.pp": False}),
    "framework.host_waits": Case(["forward", "loss"], HOST),
    "framework.input_launches": Case(12, HOST),
    "framework.launch_blocking": Case(True, {**HOST, "plan.overlap": {"dp": False, "tp": False, "pp": False}}),
    "framework.gathered_inputs": Case(True),
    "framework.repeated_keys": Case(True, {"model.kv_heads": 4}),
    "framework.separate_projections": Case(["attention"]),
    "framework.fp32_rings": Case(True, SHARED),
    "framework.p2p_scatter_gather": Case(True, {"plan.sequence_parallel": False}),
    "framework.gradients": Case("bf16"),
    "framework.gathered_gradients": Case("bf16", FSDP),
    "framework.all_reduced_gradients": Case(["zero1"], {"plan": {"tp": 2, "pp": 2, "sharding": "zero1"}}),
    "framework.whole_tensors": Case(True, {"framework.overlap.parameter_gather": False, "plan": {"sharding": "zero1"}}),
    "framework.single_tensors": Case(True, {"framework.fusion.optimizer": False}),
    "framework.fp32_norms": Case(True),
    "framework.fp32_logits": Case(True),
    "framework.metrics": Case(["loss"]),
    "framework.weights_beside_master": Case(True, FSDP),
    "framework.in_place_gathers": Case(True, FSDP),
    "framework.fusion.norm": Case(False),
    "framework.fusion.residual_norm": Case(True),
    "framework.fusion.rope": Case(False),
    "framework.fusion.activation": Case(False, LLAMA),
    "framework.fusion.bias": Case(False, GPT),
    "framework.fusion.bias_activation": Case(True, {**GPT, "framework.fusion.bias": False}),
    "framework.fusion.bias_dropout_add": Case(True, {**GPT, "framework.fusion.bias": False}),
    "framework.fusion.softmax": Case(False, {"framework.attention": "unfused"}),
    "framework.fusion.cross_entropy": Case(False),
    "framework.fusion.linear_cross_entropy": Case(True, {"plan": {"tp": 1}}),
    "framework.fusion.permutation": Case(False, MOE),
    "framework.fusion.accumulation": Case(False),
    "framework.fusion.embedding_gradient": Case(False),
    "framework.fusion.optimizer": Case(False),
    "framework.host.kernel": Case("40 us", HOST),
    "framework.host.compiled_kernel": Case("40 us", {**HOST, "framework.compile": True}),
    "framework.host.collective": Case("80 us", HOST),
    "framework.host.graph": Case("300 us", {**HOST, "framework.cuda_graphs": True}),
    "framework.offload.pinned": Case(False, ON_HOST),
    "framework.offload.scales": Case(True, ON_HOST),
    "framework.offload.keeps_gradients": Case(True, {**FSDP, **ON_HOST, "plan.sharding": "zero3"}),
    "framework.low_precision.formats": Case(["mxfp8"], FP8),
    "framework.low_precision.scaling": Case("current", FP8),
    "framework.low_precision.shared_scales": Case("replicas", FP8),
    "framework.low_precision.norm_casts": Case(False, FP8),
    "framework.low_precision.activation_casts": Case(True, {**FP8, **LLAMA}),
    "framework.low_precision.cached_weights": Case(False, FP8),
    "framework.low_precision.narrow_parameters": Case(["fp8"], FP8),
    "framework.low_precision.fp8_gathers": Case(True, {**FP8, **FSDP}),
    "framework.low_precision.whole_gemms": Case(["fp8"], {**FP8, "framework.overlap.tp": "decomposed"}),
    "framework.low_precision.late_gathers": Case(["fp8"], {**FP8, "plan": {"tp": 2, "pp": 2, "sharding": "zero1"}}),
    "framework.low_precision.weight_gradients": Case(False, FP8),
    "framework.low_precision.keeps_narrow": Case(False, FP8),
    "framework.low_precision.narrow_gathers": Case(False, FP8),
    "framework.low_precision.narrow_dispatch": Case(True, {**FP8, **DEEPEP}),
    "framework.low_precision.any_layout": Case(True, {**FP8, "cluster.gpu": "b200"}),
    "framework.low_precision.keeps_original": Case(True, {**FP8, "framework.low_precision.scaling": "current"}),
    "framework.overlap.dp": Case(False),
    "framework.overlap.tp": Case(True),
    "framework.overlap.pp": Case(False),
    "framework.overlap.ep": Case(True, BESIDE),
    "framework.plan.sharding": Case("zero1"),
    "framework.plan.group": Case(2, {"plan": {"tp": 2, "pp": 2, "sharding": "zero1"}}),
    "framework.plan.recompute": Case("full"),
    "framework.plan.recompute_every": Case(2, {"framework.plan": {"recompute": "full"}}),
    "framework.plan.selective": Case(["mlp_norm"], {"plan.recompute": "selective"}),
    "framework.plan.always": Case(["mlp_norm"]),
    "framework.plan.early_stop": Case(True, {"framework.plan": {"recompute": "full"}}),
    "framework.overlap.parameter_gather": Case(False, {"plan.sharding": "zero1"}),
    "framework.memory.context": Case("2 GiB"),
    "framework.memory.nccl_buffer": Case("16 MiB"),
    "framework.memory.nccl_channels": Case(8),
    "framework.memory.fragmentation": Case(0.1),
    "framework.memory.logit_bytes": Case(20),
    "framework.memory.tp_logit_bytes": Case(20),
    "framework.memory.stage_results": Case(True),
    "framework.memory.whole_gradients": Case(True),
    "framework.memory.gradient_buckets": Case(True),
    "fidelity.collectives": Case("closed"),
    "fidelity.overlap": Case("free"),
    "fidelity.granularity": Case("layer"),
    "framework.sms.rings": Case(4, {**SLOWED, "plan": {"tp": 4, "pp": 2}}),
    "framework.sms.switches": Case(4, {**SLOWED, **ONE_NODE, **SUMS_BESIDE}),
    "framework.sms.transfers": Case(30, SLOWED),
    "framework.sms.exchanges": Case(4, {**BESIDE, **SLOWED, "plan.overlap.ep": True}),
    "fidelity.power": Case("burst"),
    "fidelity.calibration": Case("kernels"),
    "fidelity.boards": Case("alike"),
    "perturb.0.rank": Case(8, SLOW_RANK),
    "perturb.0.speed": Case(0.25, SLOW_RANK),
    "perturb.0.from": Case("3 ms", SLOW_RANK),
    "perturb.0.until": Case("3 ms", SLOW_RANK),
    "perturb.0.link": Case("node0/gpu0>node0/nvswitch", {**SLOW_LINK, **WIDE}),
    "perturb.0.capacity": Case(0.5, {**SLOW_LINK, **WIDE}),
    "model.name": Case("ours"),
    "model.layers": Case(10),
    "model.hidden": Case(2048),
    "model.heads": Case(32),
    "model.kv_heads": Case(4),
    "model.head_dim": Case(128),
    "model.ffn_hidden": Case(2048),
    "model.gated_mlp": Case(True, {"model.ffn_hidden": 4096}),
    "model.vocab": Case(64000),
    "model.tied_embeddings": Case(True),
    "model.mtp_layers": Case(1),
    "model.norm": Case("rmsnorm"),
    "model.activation": Case("relu"),
    "model.positions": Case("none"),
    "model.bias": Case(True),
    "model.experts": Case(16, MOE),
    "model.experts_per_token": Case(4, MOE),
    "model.expert_ffn_hidden": Case(1024, MOE),
    "model.shared_experts": Case(1, MOE),
    "model.dense_layers": Case(1, MOE),
    "model.expert_interval": Case(2, MOE),
    "model.kv_lora_rank": Case(128, MLA),
    "model.q_lora_rank": Case(128, MLA),
    "model.rope_head_dim": Case(16, MLA),
    "model.value_head_dim": Case(32, MLA),
    "model.norm_parameters": Case("none"),
    "model.norms": Case("both"),
    "model.qk_norm": Case("head"),
    "model.embedding_norm": Case(True),
    "model.parallel_mlp": Case("one_norm"),
    "model.window": Case(64),
    "model.window_kind": Case("chunked", {"model.window": 64}),
    "model.full_attention_every": Case(4, {"model.window": 64}),
    "model.max_sequence_length": Case(4096, {"model.positions": "learned", "model.max_sequence_length": 2048}),
    "cluster.name": Case("ours"),
    "cluster.gpu.name": Case("ours"),
    "cluster.gpu.memory": Case("96 GiB"),
    "cluster.gpu.reserved": Case("1 GiB"),
    "cluster.gpu.memory_bandwidth": Case("2 TB/s"),
    "cluster.gpu.peak": Case({"bf16": "500 TFLOP/s", "fp32": "60 TFLOP/s"}),
    "cluster.gpu.sms": Case(80),
    "cluster.gpu.tdp": Case("350 W"),
    "cluster.gpu.architecture": Case("sm_80"),
    "cluster.gpu.clock": Case("1200 MHz"),
    "cluster.gpu.cache": Case("5 MB"),
    "cluster.gpu.kernels.compute_fraction": Case(0.5),
    "cluster.gpu.kernels.memory_fraction": Case(0.5),
    "cluster.gpu.site_scalar": Case(1.5),
    "cluster.gpus_per_node": Case(8),
    "cluster.nodes": Case(8),
    "cluster.intra_node": Case("NVSwitch 200 GB/s"),
    "cluster.inter_node": Case("4x100 Gbit/s"),
    "cluster.shape": Case("leaf-spine", {**WIDE, "cluster.oversubscription": 4}),
    "cluster.nodes_per_pod": Case(4, {**WIDE, "cluster.oversubscription": 8}),
    "cluster.oversubscription": Case(8, WIDE),
    "cluster.pcie": Case("10 GB/s", WIDE),
    "cluster.latency.nvlink": Case("20 us"),
    "cluster.latency.pcie": Case("20 us", WIDE),
    "cluster.latency.nic": Case("20 us", WIDE),
    "cluster.latency.switch": Case("20 us"),
    "cluster.fabric": Case("roce", WIDE),
    "cluster.host.link": Case("c2c", {**WIDE, **ON_HOST}),
    "cluster.host.bandwidth": Case("10 GB/s", ON_HOST),
    "cluster.host.memory": Case("4 TB", ON_HOST),
    "cluster.host.memory_bandwidth": Case("50 GB/s", ON_HOST),
    "cluster.host.core_bandwidth": Case("5 GB/s", {**ON_HOST, "framework.offload": {"pinned": False}}),
    "cluster.routing": Case("ecmp", {**WIDE, "cluster.shape": "leaf-spine", "cluster.oversubscription": 2}),
    "cluster.routing_seed": Case(7, HASHED),
    "cluster.dims": Case([8, 2], {"cluster.shape": "torus", "cluster.nodes_per_pod": None, "cluster.nodes": 16, **WIDE}),
    "cluster.node_dims": Case([8, 1], {**ONE_NODE, "cluster.intra_node": "torus 4x50 GB/s", "plan": {"tp": 8}}),
    "cluster.radix": Case(8, {**WIDE, "cluster.shape": "fat-tree", "cluster.nodes_per_pod": None}),
    "cluster.spines": Case(1, HASHED),
    "cluster.dragonfly.nics_per_router": Case(4, DRAGONFLY),
    "cluster.dragonfly.routers_per_group": Case(2, DRAGONFLY),
    "cluster.dragonfly.global_links": Case(
        8, {**DRAGONFLY, "cluster.dragonfly": {"nics_per_router": 2, "routers_per_group": 2, "global_links": 16}}
    ),
    "cluster.box.sockets": Case(1, PCIE),
    "cluster.box.gpus_per_switch": Case(2, PCIE),
    "cluster.box.socket": Case("5 GB/s", PCIE),
    "cluster.box.bridge": Case("100 GB/s", PCIE),
    "cluster.wan.sites": Case(4, WAN),
    "cluster.wan.bandwidth": Case("10 Gbit/s", WAN),
    "cluster.wan.latency": Case("10 ms", WAN),
    "cluster.vertices.0.name": Case("c", DRAWN),
    "cluster.vertices.0.kind": Case("switch", DRAWN),
    "cluster.links.0.from": Case("b", DRAWN),
    "cluster.links.0.to": Case("a", DRAWN),
    "cluster.links.0.capacity": Case("10 GB/s", DRAWN),
    "cluster.links.0.latency": Case("10 us", DRAWN),
    "cluster.links.0.one_way": Case(True, DRAWN),
}  # fmt: skip

FABRIC: dict[str, Any] = {
    "about": "ours", "provenance": "measured", "source": "ours",
    "inside": {"rate": "400 GB/s", "launch": "5 us", "step": "1 us", "efficiency": 0.8, "fill": "15 us"},
    "across": {
        "nic": "50 GB/s", "nics": 4, "crossing": "7 us", "efficiency": 0.9, "rendezvous": 2, "rendezvous_size": "64 KiB",
    },
}  # fmt: skip
ISLANDS = {"inside.island": 2, "inside.beyond": "20 GB/s"}
CURVE = {
    "curves": [
        {"kind": "all_reduce", "ranks": 8, "nodes": 2, "error": 0.1,
         "sizes": ["1 KiB", "1 MiB", "1 GiB"], "times": ["50 us", "150 us", "20 ms"]},
    ],
}  # fmt: skip
TREE = {"choices": [{"kind": "all_reduce", "algorithm": "tree", "size_up_to": "1 TiB"}]}
CHOICE = {"choices": [{"kind": "all_reduce", "algorithm": "ring", "size_up_to": "1 MiB", "nodes_up_to": 4}]}
FABRIC_CASES: dict[str, Case] = {
    "inside.rate": Case("100 GB/s"),
    "inside.launch": Case("10 us"),
    "inside.step": Case("2 us"),
    "inside.efficiency": Case(0.5),
    "inside.fill": Case("30 us"),
    "inside.pair_efficiency": Case(0.5),
    "inside.nvls_efficiency": Case(0.7),
    "inside.island": Case(2, {"inside.beyond": "20 GB/s"}),
    "inside.beyond": Case("10 GB/s", ISLANDS),
    "inside.beyond_efficiency": Case(0.5, ISLANDS),
    "inside.mesh": Case(5),
    "inside.flags": Case(3),
    "inside.flags_size": Case("1 MiB", {"inside.flags": 3}),
    "inside.pair": Case("25 GB/s", {"inside.mesh": 5}),
    "inside.to_nics": Case(True),
    "across.nic": Case("25 GB/s"),
    "across.nics": Case(2),
    "across.crossing": Case("14 us"),
    "across.efficiency": Case(0.5),
    "across.rendezvous": Case(4),
    "across.rendezvous_size": Case("1 MiB"),
    "across.sharp": Case(True),
    "across.plugin": Case("5 us"),
    "across.reported": Case("75 us", {"inside.nvls_efficiency": 0.7, "across.nvls": True}),
    "across.alltoall": Case(0.5),
    "across.crowd": Case(0.1),
    "across.tree_efficiency": Case(0.3, TREE),
    "across.nvls_tree_efficiency": Case(0.3, {"inside.nvls_efficiency": 0.7, "across.nvls": True}),
    "across.sharp_efficiency": Case(0.3, {"across.sharp": True}),
    "across.uncertainty": Case(0.3, TREE),
    "across.adaptive": Case(True, {"across.crowd": 0.1}),
    "across.nvls": Case(False, {"inside.nvls_efficiency": 0.7}),
    "choices.0.kind": Case("broadcast", {"choices": [{"kind": "all_reduce", "algorithm": "tree", "size_up_to": "1 TiB"}]}),
    "choices.0.algorithm": Case("tree", CHOICE),
    "choices.0.size_up_to": Case("1 GiB", CHOICE),
    "choices.0.nodes_up_to": Case(1, CHOICE),
    "curves.0.kind": Case("all_gather", CURVE),
    "curves.0.algorithm": Case("tree", CURVE),
    "curves.0.ranks": Case(16, CURVE),
    "curves.0.nodes": Case(4, CURVE),
    "curves.0.inside": Case("nvlink4-nvswitch", CURVE),
    "curves.0.sizes": Case(["1 KiB", "2 MiB", "1 GiB"], CURVE),
    "curves.0.times": Case(["50 us", "250 us", "20 ms"], CURVE),
    "curves.0.error": Case(0.2, CURVE),
}
WITHOUT_TOPOLOGY = {"across.leaf_nodes": 1, "across.collisions": 0.2, "across.most_collisions": 1.1}
"""Values of what counts where no topology is given, as for the rows of a table: clusters route their flows."""
