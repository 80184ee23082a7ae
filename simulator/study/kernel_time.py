"""The time of one kernel by itself, as users ask for it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, TypedDict, Unpack

from ..escape import Summarised
from .kernel_request import Asked, Software, time_kernel


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


class Options(TypedDict, total=False):
    """The sizes of a kernel, and whose kernels on which machine."""

    m: int | None
    n: int | None
    k: int | None
    batch: int
    seq: int | None
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    causal: bool | None
    top_k: int | None
    library: str
    eager: bool
    profile: str
    site_scalar: float | None


def kernel(op: str, gpu: str, dtype: str = "bf16", **options: Unpack[Options]) -> KernelTime:
    """Times a kernel on a GPU: a GEMM by `m`, `n` and `k`, attention by `seq` and `heads`, a memory-bound operator by `m`, `n`.

    `library` names whose kernels, `eager` splits operators as an eager framework does, `profile` is the file of a calibration.
    """
    given: dict[str, Any] = {"batch": 1, "library": "", "eager": False, "profile": "", **options}
    m, n, k = map(given.get, ("m", "n", "k"))
    seq, heads, kv_heads, head_dim = map(given.get, ("seq", "heads", "kv_heads", "head_dim"))
    asked = Asked(
        op, gpu, dtype, (m, n, k), given["batch"], (seq, heads, kv_heads, head_dim), given.get("causal"), given.get("top_k")
    )
    software = Software(given["library"], given["eager"], given["profile"], given.get("site_scalar"))
    return KernelTime(**time_kernel(asked, software))
