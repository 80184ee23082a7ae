"""Advice on the parallelism of inference: the steps of reasoning, the resulting replica, and the server flags that select it.

The order is that of vLLM's guide (vllm-project/vllm, docs/serving/parallelism_scaling.md): a model that fits on one GPU needs no
parallelism but replicas; else tensor parallelism within a node; else tensor parallelism as wide as a node times as many pipeline
stages as hold the rest. Experts go to different GPUs, whole (docs/serving/expert_parallel_deployment.md).

Flags, read in November 2026: those two pages and docs/serving/data_parallel_deployment.md of vLLM; docs/advanced_features/
server_arguments.md of sgl-project/sglang; tensorrt_llm/commands/serve.py of NVIDIA/TensorRT-LLM, whose replicas are servers of
their own. vLLM divides experts among replicas too (its EP size is TP x DP), so replicas of a mixture are servers of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..errors import Infeasible, UserError, did_you_mean, must_be
from ..escape import Summarised
from ..hardware.cluster import Cluster
from ..kernels import NARROW_BYTES
from ..study import legal_values
from ..study.legal_values import MOST_SIZE, count
from ..units import GIB, counted, show_bytes, show_rate
from ..workload.job import ELEMENT_BYTES
from ..workload.model import Model
from .serving import USABLE_FRACTION, Load, Placement, usable_bytes
from .training_steps import degrees

DTYPES = (*ELEMENT_BYTES, *NARROW_BYTES)
"""Formats of weights."""


@dataclass(frozen=True, slots=True)
class ServingStep:
    """A step of the reasoning for inference, with the replicas that it proposes."""

    name: str
    text: str
    placements: tuple[Placement, ...] = ()


@dataclass(frozen=True, repr=False)
class ServingAdvice(Summarised):
    """The steps of reasoning for inference, and the smallest replica that holds the load."""

    load: Load
    cluster: Cluster
    steps: tuple[ServingStep, ...]
    best: Placement

    @property
    def replicas(self) -> int:
        return self.cluster.gpus // self.best.gpus

    @property
    def flags(self) -> dict[str, str]:
        """Server -> the command that starts a replica, or all of them."""
        best, several = self.best, self.replicas > 1 and self.best.ep == 1
        vllm = [f"--tensor-parallel-size {best.tp}"] * (best.tp > 1) + [f"--pipeline-parallel-size {best.pp}"] * (best.pp > 1)
        vllm += ["--enable-expert-parallel"] * (best.ep > 1) + [f"--data-parallel-size {self.replicas}"] * several
        sglang = [f"--tp {best.tp}"] * (best.tp > 1) + [f"--pp-size {best.pp}"] * (best.pp > 1)
        sglang += [f"--ep {best.ep}"] * (best.ep > 1) + [f"--dp-size {self.replicas}"] * several
        trtllm = [f"--{axis}_size {degree}" for axis, degree in (("tp", best.tp), ("pp", best.pp), ("ep", best.ep)) if degree > 1]
        return {
            "vllm": " ".join(["vllm serve MODEL", *vllm]),
            "sglang": " ".join(["python -m sglang.launch_server --model-path MODEL", *sglang]),
            "tensorrt-llm": " ".join(["trtllm-serve MODEL", *trtllm]),
        }

    @property
    def summary(self) -> list[tuple[str, str]]:
        lines = []
        for step in self.steps:
            lines.append((step.name, step.text))
            lines += [("", one.text(self.cluster.gpus)) for one in step.placements]
        idle = self.cluster.gpus % self.best.gpus
        spare = f", {counted(idle, 'GPU')} {'is' if idle == 1 else 'are'} left over" if idle else ""
        count = f"{self.replicas:,} replica{'s' * (self.replicas > 1)} of {self.best.words}"
        return [*lines, ("recommended", f"{count}{spare}"), *self.flags.items()]

    def as_dict(self) -> dict[str, Any]:
        """The content of `trainsim advise --inference --json`."""
        load, gpus = self.load, self.cluster.gpus
        proposals = [[one.as_dict(gpus) for one in step.placements] for step in self.steps]
        return {
            "for": "inference",
            "model": load.model.name,
            "cluster": self.cluster.name,
            "gpus": gpus,
            "batch": load.batch,
            "context": load.context,
            "weights_bytes": load.weights_bytes,
            "kv_bytes_per_token": load.kv_bytes_per_token,
            "kv_bytes": load.kv_bytes,
            "usable_bytes": usable_bytes(self.cluster),
            "steps": [
                {"step": step.name, "text": step.text, "proposals": made}
                for step, made in zip(self.steps, proposals, strict=True)
            ],
            "recommended": self.best.as_dict(gpus),
            "flags": self.flags,
        }


def advise_serving(model: Model, cluster: Cluster, *, batch: int = 16, context: int = 8192, dtype: str = "bf16") -> ServingAdvice:
    """Reasons about the parallelism of inference on all GPUs of a cluster: `batch` sequences of up to `context` tokens in every
    replica, with weights in a number format. Raises `Infeasible` if no replica fits.
    """
    must_be(model, Model, "model", "a model", 'sim.model("llama3-70b")')
    must_be(cluster, Cluster, "cluster", "a cluster", 'sim.cluster("dgx-h100")')
    legal_values.check("inference", {"batch": batch, "context": context}, dict.fromkeys(("batch", "context"), count(MOST_SIZE)))
    if dtype not in DTYPES:
        raise UserError(f"no weights in {dtype!r}", hint=did_you_mean(str(dtype), DTYPES))
    if not cluster.gpu.runs(dtype):
        legal = [one for one in DTYPES if cluster.gpu.runs(one)]
        raise UserError(f"{cluster.gpu.name} has no {dtype} GEMMs", hint=f"it has {', '.join(legal)}")
    load = Load(model, batch, context, dtype)
    steps: list[ServingStep] = []
    for think in (_one_gpu, _node, _nodes, _experts):
        best = next((one for step in reversed(steps) for one in step.placements), None)
        steps += think(load, cluster, best)
    best = next((one for step in reversed(steps) for one in step.placements), None)
    if best is None:
        raise _nothing_fits(load, cluster)
    return ServingAdvice(load, cluster, (*steps, *_faster(best)), best)


def _one_gpu(load: Load, cluster: Cluster, best: Placement | None) -> Iterator[ServingStep]:
    """Do weights and KV cache fit on one GPU?"""
    alone, usable = Placement(load, cluster), usable_bytes(cluster)
    text = (
        f"weights take {show_bytes(load.weights_bytes)}, the KV cache {show_bytes(load.kv_bytes_per_token)} per token and "
        f"{show_bytes(load.kv_bytes)} for {load.batch:,} x {load.context:,} tokens; "
        f"{USABLE_FRACTION:.0%} of one {cluster.gpu.name} are {show_bytes(usable)}: "
    )
    yield ServingStep("one GPU", text + ("fits, one replica per GPU" if alone.fits else "does not fit"), (alone,) * alone.fits)


def tensor_degrees(model: Model, cluster: Cluster) -> list[int]:
    """Tensor-parallel degrees within a node that divide the model, from two on."""
    shared = [model.heads, model.ffn_hidden]
    tps = degrees(cluster.gpus_per_node, cluster.gpus_per_node)
    return [tp for tp in tps if not any(size % tp for size in shared) and not (model.kv_heads % tp and tp % model.kv_heads)]


def _node(load: Load, cluster: Cluster, best: Placement | None) -> Iterator[ServingStep]:
    """Does the load fit in a node, where NVLink carries two all-reduces per layer?"""
    if best or cluster.gpus == 1:
        return
    tried = [Placement(load, cluster, tp) for tp in tensor_degrees(load.model, cluster)]
    fits = next((one for one in tried if one.fits), None)
    if fits:
        yield ServingStep("tensor", f"tp {fits.tp} is the least that fits, within a node", (fits,))
    elif tried:
        yield ServingStep("tensor", f"with tp {tried[-1].tp} each GPU still needs {show_bytes(tried[-1].bytes_per_gpu)}")
    else:
        yield ServingStep("tensor", f"no number of GPUs in a node divides the {load.model.heads} heads")


def _nodes(load: Load, cluster: Cluster, best: Placement | None) -> Iterator[ServingStep]:
    """Across nodes only hidden states between stages should travel: as many stages as hold the rest."""
    tp = max(tensor_degrees(load.model, cluster), default=1)
    most = min(cluster.gpus // tp, load.model.layers)
    if best or most < 2:
        return
    tried = (Placement(load, cluster, tp, pp) for pp in range(2, most + 1))
    fits = next((one for one in tried if one.fits), None)
    if fits:
        yield ServingStep("pipeline", f"{fits.pp} stages of {tp} GPUs are the fewest that fit, across nodes", (fits,))
    else:
        least = Placement(load, cluster, tp, most)
        yield ServingStep("pipeline", f"with tp {tp} x pp {most} each GPU still needs {show_bytes(least.bytes_per_gpu)}")


def _experts(load: Load, cluster: Cluster, best: Placement | None) -> Iterator[ServingStep]:
    """Experts of a mixture: whole ones on different GPUs, whose GEMMs are larger than those of slices."""
    model = load.model
    if not model.experts or best is None:
        return
    text = f"a token uses {model.experts_per_token} of {model.experts} experts, {load.batch:,} tokens read "
    text += f"{load.read_bytes / load.weights_bytes:.0%} of all weights"
    if best.tp == 1 or model.experts % best.tp:
        yield ServingStep("experts", text)
    else:
        yield ServingStep("experts", f"{text}: whole experts on {best.tp} GPUs instead of slices", (replace(best, ep=best.tp),))


def _faster(best: Placement) -> Iterator[ServingStep]:
    """Effect of more tensor parallelism than needed: each GPU reads less, and there are fewer replicas."""
    tps = tensor_degrees(best.load.model, best.cluster)
    bandwidth = show_rate(best.cluster.gpu.memory_bytes_per_s)
    text = f"a token reads {show_bytes(best.load.read_bytes + best.load.kv_bytes)} at {bandwidth} per GPU"
    if not tps or tps[-1] <= best.tp or best.pp > 1:
        yield ServingStep("latency", text)
        return
    wide = replace(best, tp=tps[-1], ep=tps[-1] if best.ep > 1 and best.load.model.experts % tps[-1] == 0 else 1)
    gain = best.token_s / wide.token_s
    yield ServingStep("latency", f"{text}: tp {wide.tp} would be {gain:.1f} times as fast, with fewer replicas", (wide,))


def _nothing_fits(load: Load, cluster: Cluster) -> Infeasible:
    """The error where no replica fits on all GPUs together."""
    tp = max(tensor_degrees(load.model, cluster), default=1)
    least = Placement(load, cluster, tp, max(1, min(cluster.gpus // tp, load.model.layers)))
    over = least.bytes_per_gpu - usable_bytes(cluster)
    message = (
        f"{load.model.name} with {load.batch:,} x {load.context:,} tokens does not fit on {counted(cluster.gpus, 'GPU')}: "
        f"{least.words} needs {show_bytes(least.bytes_per_gpu)} per GPU, {over / GIB:.1f} GiB too much"
    )
    return Infeasible(message, hint="more GPUs, a smaller --batch or --context, or --dtype fp8", over_bytes=over)
