"""The time of one kernel by itself, as users ask for it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..escape import Summarised
from .gpus.kernel import Asked, Software, time_kernel


@dataclass(frozen=True, repr=False)
class KernelTime(Summarised):
    """The predicted time of a kernel, with what is known about the prediction."""

    op: str
    gpu: str
    dtype: str
    time_us: float
    model: str
    provenance: str
    sigma: float
    """Relative standard error."""
    extrapolated: bool
    tflop_per_s: float
    gb_per_s: float
    site_scalar: float = 1.0

    @property
    def summary(self) -> list[tuple[str, str]]:
        slow = [("site", f"every kernel takes {self.site_scalar:g} times as long")] if self.site_scalar != 1 else []
        return [
            ("kernel", f"{self.op} on {self.gpu} in {self.dtype}"),
            ("time", f"{self.time_us:,.2f} us, give or take {self.sigma:.0%} (one standard error)"),
            ("model", self.model),
            ("provenance", self.provenance + (", beyond the measured sizes" if self.extrapolated else "")),
            *slow,
            ("rate", f"{self.tflop_per_s:,.1f} TFLOP/s, {self.gb_per_s:,.0f} GB/s"),
        ]

    def as_dict(self) -> dict[str, Any]:
        """What `trainsim kernel --json` prints."""
        record = asdict(self)
        return record if self.site_scalar != 1 else {name: value for name, value in record.items() if name != "site_scalar"}


def kernel(
    op: str, gpu: str, dtype: str = "bf16", *, m: int | None = None, n: int | None = None, k: int | None = None, batch: int = 1,
    seq: int | None = None, heads: int | None = None, kv_heads: int | None = None, head_dim: int | None = None,
    causal: bool | None = None, top_k: int | None = None, library: str = "", eager: bool = False, profile: str = "",
    site_scalar: float | None = None,
) -> KernelTime:  # fmt: skip
    """Times a kernel on a GPU: a GEMM by `m`, `n` and `k`, attention by `seq` and `heads`, a memory-bound operator by `m`, `n`.

    `library` names whose kernels, `eager` splits operators as an eager framework does, `profile` is the file of a calibration.
    """
    asked = Asked(op, gpu, dtype, (m, n, k), batch, (seq, heads, kv_heads, head_dim), causal, top_k)
    return KernelTime(**time_kernel(asked, Software(library, eager, profile, site_scalar)))
