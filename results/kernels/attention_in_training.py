"""Attention as training runs it: what frameworks time with it, and what ships beside published kernels, for model_errors.py."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from simulator.costs.kernels.attention import CACHE_PASSES, CACHE_US, PAGED
from simulator.costs.kernels.fit_choice import FitLibrary

FRAMEWORKS = "ai-dynamo/aiconfigurator"
HEAD_CACHES = ["GPU", "library", "cache, us", "passes over its bytes", "kernel longer by"]
HEAD_BARE = ["GPU", "operator", "kernel", "role", "rows", "median", "bias", "512", "1k", "2k", "4k", "8k", "16k"]
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)


def caches(fit_library: FitLibrary) -> Iterator[list[str]]:
    """What writing keys and values took beside attention, for each fit."""
    for gpu, fits in fit_library.fits.items():
        for fit in fits:
            if CACHE_PASSES in fit.beside:
                longer = f"{100 * (fit.beside[PAGED] - 1):.0f}%" if PAGED in fit.beside else ""
                yield [gpu, fit.library, f"{fit.beside[CACHE_US]:.1f}", f"{fit.beside[CACHE_PASSES]:.2f}", longer]


def published(table: pd.DataFrame, predicted_us: pd.Series) -> Iterator[list[str]]:
    """Errors of what ships on rows of bare kernels, by the length of the sequence."""
    bare = table.op.str.startswith("attention") & ~table.source.str.startswith(FRAMEWORKS)
    rows = table[bare].assign(error=100 * (predicted_us[table.index[bare]] / table.time_us[bare] - 1))
    rows["kernel"] = rows.variant.str.split().str[0].where(~rows.variant.str.startswith("Triton"), rows.variant)
    for (gpu, op, kernel, role), found in rows.groupby(["gpu", "op", "kernel", "role"]):
        by_length = (found.error[found.seq == length] for length in LENGTHS)
        cells = [f"{np.mean(some):+.0f}" if len(some) else "" for some in by_length]
        median, bias = found.error.abs().median(), found.error.median()
        yield [str(gpu), str(op), str(kernel), str(role), str(len(found)), f"{median:.1f}", f"{bias:+.1f}", *cells]
