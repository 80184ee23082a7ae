"""How fast kernels are predicted: one at a time, and in columns.

python benchmarks/kernels.py [--quick]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from simulator.config import shipped_fits
from simulator.costs.kernels.attention import Heads, attention_s
from simulator.costs.kernels.estimator import Estimator
from simulator.costs.kernels.fit_choice import best_fit_for
from simulator.costs.kernels.gemm import GemmConstants, gemm_s
from simulator.kernels import Attention, Gemm, Kernel, Rowwise


def best_s(call: Callable[[], Any], runs: int = 3) -> float:
    """Seconds of the fastest of several runs."""
    times = []
    for _ in range(runs):
        began = perf_counter()
        call()
        times.append(perf_counter() - began)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a tenth of the columns")
    many = 10**5 if parser.parse_args().quick else 10**6
    rng = np.random.default_rng(0)
    h100, shelf = shipped_fits.gpu("h100"), shipped_fits.shipped()
    estimator = Estimator(h100, "bf16", shelf)
    m, n, k = (np.exp2(rng.uniform(5, 15, many)).round() for _ in range(3))
    gemm = best_fit_for(h100, shelf, "gemm", "bf16")
    constants = gemm.fit.constants if gemm and isinstance(gemm.fit.constants, GemmConstants) else GemmConstants()
    took_s = best_s(lambda: gemm_s(constants, estimator.machine, m, n, k))
    print(f"products in columns       {many / took_s:12,.0f} a second, {took_s:.3f} s for {many:,}")
    attention = best_fit_for(h100, shelf, "attention", "bf16")
    if attention:
        fit: Any = attention.fit.constants
        took_s = best_s(lambda: attention_s(fit, estimator.machine, Heads(2, np.minimum(m, 32768), 32, 8, 128)))
        print(f"attention in columns      {many / took_s:12,.0f} a second, {took_s:.3f} s for {many:,}")
    singles: dict[str, list[Kernel]] = {
        "products": [Gemm(int(a), int(b), int(c), 2) for a, b, c in zip(m[:1000], n[:1000], k[:1000], strict=True)],
        "attention": [Attention(2, int(a), 32, 8, 128, True, 2) for a in m[:1000]],
        "memory-bound operators": [Rowwise("rmsnorm", int(a), 8192, 2, 4) for a in m[:1000]],
    }
    for name, found in singles.items():
        took_s = best_s(lambda found=found: [estimator.estimate(kernel) for kernel in found])  # type: ignore[misc]
        print(f"{name + ', one by one':26}{len(found) / took_s:12,.0f} a second")


if __name__ == "__main__":
    main()
