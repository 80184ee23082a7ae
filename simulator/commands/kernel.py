"""`trainsim kernel`: the time of one kernel on a GPU, and its provenance."""

from __future__ import annotations

from typing import Any

import click

from ..fields import LEAST_FACTOR
from ..study.legal_values import MOST_SCALAR, MOST_SIZE
from ._show import Count, Positive, json_option, not_empty, print_json, print_pairs

POWERS = ("burst", "sustained")
LIBRARY_HELP = "Library of kernels: fa1, fa2, fa3, cudnn, unfused, trtllm ...  [default: the usual]"
POWER_HELP = "burst: in a short loop of launches, as tables time kernels; sustained: at the clock that a step sustains."


@click.command("kernel", short_help="Time one kernel on a GPU: a GEMM, attention, a norm.")
@click.argument("op")
@click.option("--gpu", required=True, help="A GPU that `trainsim catalog gpus` lists, by any of its names, or a YAML file.")
@click.option("--dtype", default="bf16", show_default=True, help="A dtype that the GPU supports; fp32 means fp32, not tf32.")
@click.option("-m", "m", type=Count(1, MOST_SIZE), help="Rows of the GEMM, or of a row-wise operator.")
@click.option("-n", "n", type=Count(1, MOST_SIZE), help="Columns.")
@click.option("-k", "k", type=Count(1, MOST_SIZE), help="The inner dimension of a GEMM.")
@click.option("--batch", type=Count(1, MOST_SIZE), default=1, show_default=True, help="GEMMs, groups, experts or sequences.")
@click.option("--seq", type=Count(1, MOST_SIZE), help="Tokens of a sequence.")
@click.option("--heads", type=Count(1, MOST_SIZE), help="Query heads.")
@click.option("--kv-heads", type=Count(1, MOST_SIZE), help="Key heads.  [default: as many as query heads]")
@click.option("--head-dim", type=Count(1, MOST_SIZE), help="Width of a head.  [default: 128]")
@click.option("--causal/--full", default=None, help="Whether a token sees only those before it.  [default: causal]")
@click.option("--top-k", type=Count(1, MOST_SIZE), help="Number of experts of moe_ffn that a token is sent to.")
@click.option("--library", default="", callback=not_empty, help=LIBRARY_HELP)
@click.option("--eager", is_flag=True, help="Split memory-bound operators as an eager framework does.")
@click.option("--power", type=click.Choice(POWERS, case_sensitive=False), default="burst", show_default=True, help=POWER_HELP)
@click.option("--profile", default="", callback=not_empty, help="What `trainsim calibrate fit` wrote for this GPU.")
@click.option(
    "--site-scalar", type=Positive(MOST_SCALAR, LEAST_FACTOR), help="How much longer every kernel takes on this machine."
)
@json_option
def command(op: str, gpu: str, dtype: str, as_json: bool, **options: Any) -> None:
    """Time kernel OP: gemm, gemm_wgrad, attention, attention_backward, or a memory-bound operator such as rmsnorm or add.
    Names from tables of measurements, such as gemm_bwd and elementwise, are understood too.

    A GEMM takes -m -n -k (and --batch), attention --batch --seq --heads. moe_ffn takes -m tokens of -k channels, and sends
    each to --top-k of --batch experts of -n channels. Any other operator takes -m rows of -n columns.

    A backward pass has the name of its operator and _backward. With --eager it is that of PyTorch's autograd: add_backward
    launches no kernel and takes no time, because each term gets the gradient of the sum, while residual_backward adds the
    gradients of two branches. A cast reads 16 bits and writes DTYPE, once. The state of Adam is in fp32, whatever DTYPE is.

    The answer names the measurements behind it and its relative standard error, and says whether the size is beyond the
    measured ones.
    """
    from ..study.kernel_time import kernel

    found = kernel(op, gpu, dtype, **options)
    print_json(found.as_dict()) if as_json else print_pairs(found.summary)
