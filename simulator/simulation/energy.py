"""Energy of a step: what its GPUs draw, idle and at work, where the power of their architecture is known.

A GPU draws its idle power throughout. A kernel adds energy for each flop and for each byte (`costs/kernels/power.py`), and never
draws more than the limit of the board. Collectives count as idle time. Hosts, switches and cooling are not counted; `job.pue`
adds them to the energy of a whole run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..config.power_rules import without_effect
from ..costs.kernels.attention import FOR_AMPERE
from ..costs.kernels.gpu_model import architecture
from ..costs.kernels.power import added_j, no_energy, pj_per_flop
from ..hardware.gpu import Gpu
from ..kernels import Attention
from ..units import show_digits
from .kernels_of_ranks import kernels_of_ranks
from .result import Result

ATTENTION_FACTOR, FOR_AMPERE_FACTOR = 1.4, 2.3
"""Energy of a flop of attention over that of a GEMM (results/calibration): of kernels for the GPU's own generation (cuDNN on
Hopper: 1.3 forward, 1.5 backward), and of FlashAttention 2, whose instructions are Ampere's, on later ones (2.2 and 2.5)."""


@dataclass(frozen=True, slots=True)
class Energy:
    """Energy of all GPUs of a run in a training step."""

    joules_per_step: float
    joules_per_token: float
    mean_w: float
    """Mean power of a GPU over the step, in watts."""

    @property
    def line(self) -> str:
        """The energy in words."""
        step, token = show_digits(self.joules_per_step), f"{self.joules_per_token:.3g}"
        return f"{step} J per step, {token} J per token, {self.mean_w:,.0f} W per GPU"


def energy_of(result: Result) -> Energy | str:
    """The energy of the measured step, or the reason why it is not known."""
    gpu, job, prices = result.scenario.cluster.gpu, result.scenario.job, result.prices
    if why := no_energy(gpu, job.dtype):
        return why
    if gpu.tdp_w != gpu.reference_tdp_w and without_effect(result.scenario):
        # kernels run as on the measured board, so that its power is the power they take
        gpu = replace(gpu, tdp_w=gpu.reference_tdp_w or gpu.tdp_w)
    step_s, idle_w, busy_j = result.metrics.step_time_s, architecture(gpu).idle_w, 0.0
    for kernel, calls, stretched in kernels_of_ranks(result):
        flop_pj = kernel.flop * pj_per_flop(gpu, getattr(kernel, "dtype", "") or job.activation_dtype)
        if isinstance(kernel, Attention):
            flop_pj *= attention_factor(gpu, prices.estimator.options.library)
        busy_j += calls * added_j(gpu, flop_pj, kernel.traffic_bytes, prices.estimate(kernel).seconds * stretched)
    joules = result.gpus * (idle_w * step_s + busy_j)
    return Energy(joules, joules / job.tokens, joules / step_s / result.gpus)


def attention_factor(gpu: Gpu, library: str) -> float:
    """Energy of a flop of attention by a library over that of a GEMM."""
    later = architecture(gpu).kernels != "ampere"
    return FOR_AMPERE_FACTOR if later and library in FOR_AMPERE else ATTENTION_FACTOR
