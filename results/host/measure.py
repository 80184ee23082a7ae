"""Measures how long a host takes to launch a transformer layer, on a CPU, with tensors of a few elements.

    python results/host/measure.py decoder
    python results/host/measure.py all-reduce
    python results/host/measure.py megatron DIR --commit v2.5
    python results/host/measure.py megatron-deepspeed DIR --commit 131bd43

runs one implementation in this interpreter, which needs PyTorch, and writes its row of layers.csv. DIR is a checkout of
NVIDIA/Megatron-LM or bigscience-workshop/Megatron-DeepSpeed; the latter also needs the package deepspeed. Their layers run
as they are. A fused CUDA extension is replaced by the one operator of PyTorch that computes the same, and the state of
the GPU's random numbers, which they save and restore, by a tensor of its size. With so few elements a kernel takes almost no
time, so that the time is that of Python, PyTorch and autograd. What a driver takes to launch a kernel is not in it, nor what NCCL
does: an all-reduce goes to PyTorch's group of ranks that do not exist, which returns at once.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
TABLE = HERE / "layers.csv"
WIDTH, HEADS, TOKENS, LAYERS = 16, 4, 20, 8
RUNS, WARM_UPS = 200, 30
COLUMNS = ("layer", "commit", "torch", "python", "cpu", "kept_ms", "repeated_ms")


def least_ms(run: Callable[[], object]) -> float:
    """The shortest of many runs, in ms."""
    for _ in range(WARM_UPS):
        run()
    times = []
    for _ in range(RUNS):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times) * 1000


def decoder() -> dict[str, float]:
    """The step of `trainsim calibrate power` that its host limits: forward, backward and update of 12 layers."""
    from simulator.calibrate.bench.training_step import Builder, Decoder

    builder: Any = Builder(torch, "cpu")
    builder.library = lambda sizes: contextlib.nullcontext()
    builder.weight = lambda *sizes: torch.randn(sizes).requires_grad_(True)
    torch.bfloat16 = torch.float32
    return {"kept_ms": least_ms(builder.step(Decoder(12, WIDTH, HEADS, HEADS, WIDTH, 64, TOKENS, 1)))}


def all_reduce() -> dict[str, float]:
    """A thousandth of a thousand calls of `torch.distributed.all_reduce`, as from Megatron's and other layers."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    group, x = torch.distributed.new_group([0, 1]), torch.randn(TOKENS, 1, WIDTH)

    def thousand() -> None:
        for _ in range(1000):
            torch.distributed.all_reduce(x, group=group)

    return {"kept_ms": least_ms(thousand) / 1000}


def module(name: str, **functions: Any) -> None:
    """Makes a module of some functions, in place of one that needs a GPU or is not needed."""
    sys.modules[name] = made = ModuleType(name)
    vars(made).update(functions)


def stand_ins() -> None:
    """The fused CUDA extensions, as single operators of PyTorch, and the random state of a GPU."""
    module(
        "fused_mix_prec_layer_norm_cuda",
        forward_affine=torch.native_layer_norm,
        backward_affine=lambda gradient, mean, deviation, x, shape, weight, bias, eps: torch.ops.aten.native_layer_norm_backward(
            gradient, x, shape, mean, deviation, weight, bias, [True] * 3
        ),
    )
    softmax = {
        "forward": lambda x, scale: torch._softmax(x, -1, half_to_float=False),
        "backward": lambda gradient, y, scale: torch._softmax_backward_data(gradient, y, -1, gradient.dtype),
    }
    module("scaled_upper_triang_masked_softmax_cuda", **softmax)
    module("scaled_masked_softmax_cuda", get_batch_per_block=lambda *sizes: 1)
    module(
        "fused_weight_gradient_mlp_cuda",
        wgrad_gemm_accum_fp32=lambda x, gradient, total: torch.addmm(total, gradient.t(), x, out=total),
    )
    for name in ("apex", "apex.multi_tensor_apply", "apex.optimizers", "amp_C"):
        module(name, multi_tensor_applier=None, FusedAdam=None, FusedSGD=None)
    for name in ("transformers", "datasets"):
        module(name, AutoTokenizer=None)
    state: Any = torch.zeros(16, dtype=torch.uint8)
    cuda: Any = torch.cuda
    cuda.get_rng_state = lambda device="cuda": state.clone()
    cuda.current_device = lambda: "cpu"
    cuda.Stream = lambda **options: None


def settings() -> SimpleNamespace:
    """What the layers ask of Megatron's command line: its defaults, except for the sizes."""
    sizes = {"hidden_size": WIDTH, "ffn_hidden_size": WIDTH, "num_attention_heads": HEADS, "kv_channels": WIDTH // HEADS}
    sizes |= {"num_layers": 1, "seq_length": TOKENS, "micro_batch_size": 1, "rank": 0, "world_size": 1}
    on = ("bias_gelu_fusion", "masked_softmax_fusion", "bias_dropout_fusion", "use_cpu_initialization", "perform_initialization")
    on += ("gradient_accumulation_fusion", "async_tensor_model_parallel_allreduce", "no_persist_layer_norm")
    off = ("openai_gelu", "onnx_safe", "fp16", "bf16", "apply_query_key_layer_scaling", "attention_softmax_in_fp32")
    off += ("apply_residual_connection_post_layernorm", "fp32_residual_connection", "sequence_parallel", "embed_layernorm")
    off += ("glu_activation", "position_embedding_type", "sync_tp_duplicated_parameters", "curriculum_learning", "num_experts")
    off += ("distribute_checkpointed_activations", "distribute_saved_activations", "recompute_granularity", "attn_mask")
    rates = {"attention_dropout": 0.1, "hidden_dropout": 0.1, "layernorm_epsilon": 1e-5, "params_dtype": torch.float32}
    return SimpleNamespace(**sizes, **rates, **dict.fromkeys(on, True), **dict.fromkeys(off))


def megatron(folder: Path, *, deepspeed: bool) -> dict[str, float]:
    """Forward and backward pass of a layer, once with its activations kept and once with its forward pass repeated."""
    stand_ins()
    sys.path.insert(0, str(folder))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29577")
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    import megatron

    args = settings()
    megatron.get_args = lambda: args
    megatron.global_vars._GLOBAL_ARGS = args
    layers, repeated = _deepspeed_layers(args) if deepspeed else _megatron_layers()
    for layer in layers:
        layer.train()
        masked = getattr(layer, "self_attention", None) or layer.attention
        masked = getattr(masked, "core_attention", masked).scale_mask_softmax
        masked.input_in_float16 = masked.input_in_fp16 = True
    x = torch.randn(TOKENS, 1, WIDTH, requires_grad=True)
    mask, gradient = torch.zeros(1, 1, TOKENS, TOKENS, dtype=torch.bool), torch.randn(TOKENS, 1, WIDTH)
    args.attn_mask = mask

    def passes(call: Callable[..., Any]) -> float:
        def run() -> None:
            y = x
            for layer in layers:
                y = call(layer, y, mask)
            torch.autograd.backward(y, gradient)

        return least_ms(run) / LAYERS

    kept = passes(lambda layer, y, mask: layer(y) if deepspeed else layer(y, mask))
    return {"kept_ms": kept, "repeated_ms": passes(repeated)}


def _megatron_layers() -> tuple[list[Any], Callable[..., Any]]:
    """Layers of Megatron-LM, whose gradients are added to `main_grad`, and a call that repeats their forward pass."""
    try:
        from megatron.core import parallel_state as groups
        from megatron.core import tensor_parallel as parallel

        random, checkpoint = parallel.random, lambda call, *inputs: parallel.checkpoint(call, False, *inputs)
    except ImportError:
        from megatron import mpu as groups

        random, checkpoint = groups.random, groups.checkpoint
    from megatron.model.enums import AttnMaskType
    from megatron.model.transformer import ParallelTransformerLayer

    with contextlib.redirect_stdout(None):
        groups.initialize_model_parallel(1, 1)
    _track(random)
    layers = [_layer(ParallelTransformerLayer, AttnMaskType, n) for n in range(LAYERS)]
    for parameter in (p for layer in layers for p in layer.parameters()):
        parameter.main_grad = torch.zeros_like(parameter)
        _add_to_main_gradient(parameter)
    return layers, checkpoint


HOOKED: list[Any] = []
"""Nodes of the graph with hooks, which only references keep."""


def _add_to_main_gradient(parameter: Any) -> None:
    """The hook of Megatron's DistributedDataParallel."""
    node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]

    def hook(*unused: Any) -> None:
        if parameter.grad is not None:
            parameter.main_grad.add_(parameter.grad.data)
            parameter.grad = None

    node.register_hook(hook)
    HOOKED.append(node)


def _deepspeed_layers(args: SimpleNamespace) -> tuple[list[Any], Callable[..., Any]]:
    """Layers of Megatron-DeepSpeed with the checkpoints of DeepSpeed. Gradients are added up by autograd."""
    import deepspeed
    from megatron import mpu
    from megatron.enums import AttnMaskType
    from megatron.model.transformer import ParallelTransformerLayerPipe

    with contextlib.redirect_stdout(None):
        mpu.initialize_model_parallel(1, 1)
    deepspeed.comm.get_rank = lambda *unused: 0
    checkpoints = deepspeed.checkpointing
    _track(mpu.random)
    _track(sys.modules[checkpoints.configure.__module__])
    checkpoints.configure(mpu)
    layers = [_layer(ParallelTransformerLayerPipe, AttnMaskType, n) for n in range(LAYERS)]
    for parameter in (p for layer in layers for p in layer.parameters()):
        parameter.grad = torch.zeros_like(parameter)
    return layers, lambda layer, x, mask: checkpoints.checkpoint(lambda *inputs: layer(inputs[0]), x)


def _layer(kind: Any, masks: Any, number: int) -> Any:
    init = torch.nn.init.xavier_normal_
    return kind(init, init, number + 1, self_attn_mask_type=masks.causal)


def _track(random: Any) -> None:
    """Gives a tracker of random states the one state that layers ask for."""
    random._set_cuda_rng_state = lambda state, device=-1: state.clone()
    random._CUDA_RNG_STATE_TRACKER.states_["model-parallel-rng"] = torch.zeros(16, dtype=torch.uint8)


def write(row: dict[str, str], found_ms: dict[str, float]) -> None:
    """Writes a row of the table. Where it stands already, the shorter times stay."""
    rows = list(csv.DictReader(TABLE.open())) if TABLE.exists() else []
    for old in [old for old in rows if row.items() <= old.items()]:
        rows.remove(old)
        found_ms = {name: min(value, float(old[name])) for name, value in found_ms.items()}
    with TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows([*rows, row | {name: f"{value:.{3 if value > 0.1 else 5}f}" for name, value in found_ms.items()}])


def main() -> None:
    """Measures the implementation that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("layer", choices=("decoder", "all-reduce", "megatron", "megatron-deepspeed"))
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--commit", default="")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    alone = {"decoder": decoder, "all-reduce": all_reduce}.get(asked.layer)
    found = alone() if alone else megatron(asked.folder, deepspeed=asked.layer == "megatron-deepspeed")
    cpu = next(line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").open() if line.startswith("model name"))
    versions = {"torch": str(torch.__version__), "python": platform.python_version()}
    write({"layer": asked.layer, "commit": asked.commit, **versions, "cpu": cpu}, found)
    print(asked.layer, found)


if __name__ == "__main__":
    main()
