"""Rows of the tables of measured kernels, and the times of rows by constants of the kernel models, for make.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import kernel_sources as sources
import numpy as np
import pandas as pd

from simulator.config import shipped_fits
from simulator.config.catalog import gpu_named
from simulator.costs.kernels.attention import AttentionConstants, Heads, passes_s
from simulator.costs.kernels.deep_gemm import DEEP_TILES, spilled_s
from simulator.costs.kernels.experts import moe_s
from simulator.costs.kernels.gemm import GemmConstants, timed_gemm_s
from simulator.costs.kernels.gpu_model import Machine
from simulator.costs.kernels.gpu_model import machine as machine_of
from simulator.errors import UserError
from simulator.measurements.attention_libraries import cached_s, turns_queries
from simulator.measurements.kernel_words import GROUPED_ACTIVATIONS, GROUPED_WEIGHTS, INNER_SECOND, turns_of
from simulator.measurements.timing_loops import loop_of
from simulator.units import US_PER_S

GRAPHS = ("ai-dynamo/aiconfigurator", "aiconfigurator-core")
"""The source whose kernels are timed in CUDA graphs, one library to a folder, and its package; others are eager."""
TE_VALUES = 128
"""The width of values in rows of Transformer Engine whose heads are wider."""
ADDS = "wgrad|grad_w"
"""In the variant of products that are added to a gradient in fp32."""
WIDTH = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5625}
"""Bytes of an operand's element; nvfp4 has a scale for each 16."""
TILES_OF = {"fp8": "blocks", "fp8_block": DEEP_TILES, "nvfp4": "block"}
"""Which tiles the kernels of a narrow format have."""
DEEP = "fp8_block"
"""The format that DeepGEMM ran."""


# Reading --------------------------------------------------------------------------------------------------------------------


def measured(paths: Iterable[Path]) -> pd.DataFrame:
    """Every row whose GPU is in the catalog, with that GPU's name and the library that was measured."""
    table = pd.concat([pd.read_csv(path) for path in paths], ignore_index=True)
    table["owner"] = table.gpu.map({words: _named(words) for words in table.gpu.unique()})
    table = table[table.owner.notna()].copy()
    table["variant"] = table.variant.fillna("")
    table["library"] = np.where(table.source.str.startswith(GRAPHS), table.source.str.split("/").str[-2], "")
    filled = {key: loop_of(*key).filled for key in set(zip(table.source, table.dtype, strict=True))}
    table.loc[[not filled[key] for key in zip(table.source, table.dtype, strict=True)], "role"] = sources.UNFILLED
    table["seconds"] = table.time_us / US_PER_S
    table["batch"] = table.batch.fillna(1.0)
    second = table.op.isin(["gemm", "bmm"]) & table.variant.str.match(INNER_SECOND)
    table["row_n"] = table.n
    grouped = table.op == "grouped_gemm"
    second |= grouped & table.variant.str.contains(GROUPED_ACTIVATIONS)
    table.loc[second, ["n", "k"]] = table.loc[second, ["k", "n"]].to_numpy()
    weights = grouped & table.variant.str.contains(GROUPED_WEIGHTS)
    table.loc[weights, ["m", "n", "k"]] = table.loc[weights, ["n", "k", "m"]].to_numpy()
    table["top_k"] = pd.to_numeric(table.variant.str.extract(r"topk(\d+)")[0])
    table["launches"] = launches(table)
    te = table.variant.str.contains("v_head_dim=128", regex=False)
    table.loc[te, "head_dim"] = (table.head_dim[te] + TE_VALUES) / 2
    return table


def launches(table: pd.DataFrame) -> Any:
    """Launches in a row of the loop that each row was timed in."""
    found = np.zeros(len(table))
    for (source, dtype, owner), at in table.groupby(["source", "dtype", "owner"]).indices.items():
        rows = table.iloc[at]
        second_bytes = np.where(rows.op == "gemm", rows.n * rows.k * WIDTH[dtype], 0.0)
        found[at] = loop_of(source, dtype).launches_of(second_bytes, shipped_fits.gpu(owner).cache_bytes)
    return found


def _named(words: str) -> str | None:
    try:
        return gpu_named(words)
    except UserError:
        return None


def machine(name: str, dtype: str) -> Machine:
    """A GPU of the catalog in a dtype of the table."""
    return machine_of(shipped_fits.gpu(name), "fp8" if dtype.startswith("fp8") else dtype)


class Rows:
    """Columns of rows as arrays, each made once, however often constants are tried on the rows."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame
        self._made: dict[str, Any] = {}

    @classmethod
    def of(cls, rows: pd.DataFrame | Rows) -> Rows:
        return rows if isinstance(rows, cls) else cls(rows)  # type: ignore[arg-type]

    def sizes(self, *names: str) -> list[Any]:
        return [self._once(name, lambda name=name: self.frame[name].to_numpy(dtype=float)) for name in names]

    @property
    def op(self) -> Any:
        return self._once("op", self.frame.op.to_numpy)

    @property
    def dtype(self) -> str:
        """The format of all rows, which have the same."""
        return str(self._once("dtype", lambda: self.frame.dtype.iloc[0]))

    @property
    def variant(self) -> str:
        """The variant of the first row."""
        return str(self._once("variant", lambda: self.frame.variant.iloc[0]))

    @property
    def adds(self) -> Any:
        """Whether a product is added to a gradient."""
        return self._once("adds", lambda: self.frame.variant.str.contains(ADDS).to_numpy())

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]


# Models of rows -------------------------------------------------------------------------------------------------------------


def gemm(c: GemmConstants, on: Machine, rows: pd.DataFrame | Rows, extra: Any = ()) -> Any:
    """Products, and those that add to a gradient in fp32; with what was timed beside: a cast of the first operand and slow steps
    of DeepGEMM, or what an eager linear layer takes beside its product."""
    of = Rows.of(rows)
    m, n, k, batch = of.sizes("m", "n", "k", "batch")
    cast, beside = (extra[:2], extra[2:]) if of.dtype in TILES_OF else ((), extra)
    (launches,) = of.sizes("launches")
    how = {"adds": of.adds, "cast": cast, "turns": turns_of(of.variant), "launches": launches}
    time = timed_gemm_s(c, on, (m, n, k, batch), WIDTH[of.dtype], **how)
    if not len(beside):
        return time
    if of.dtype == "fp32":
        return time + beside[0] / US_PER_S * (of.op == "gemm")
    return time + spilled_s(beside[0], on, m, n, k)


def attention(c: AttentionConstants, on: Machine, rows: pd.DataFrame | Rows, extra: Any = ()) -> Any:
    """Forward, backward, or both, as the operator says; with the cache of keys that inference frameworks write before what is
    causal."""
    of = Rows.of(rows)
    what = Heads(*of.sizes("batch", "seq", "heads", "kv_heads", "head_dim", "causal"))
    width = WIDTH[of.dtype]
    (launches,) = of.sizes("launches")
    time = passes_s(c, on, what, of.op != "attention_bwd", of.op != "attention_fwd", element_bytes=width, launches=launches)
    if not len(extra):
        return time
    queries, (cache_us, passes, *paged) = turns_queries(of.variant), extra
    written_s = cached_s(cache_us, passes, on, what, width, queries=queries)
    (causal,) = of.sizes("causal")
    return np.where(causal > 0, time * (paged[0] if paged else 1.0) + written_s, time)


def moe(c: GemmConstants, on: Machine, rows: pd.DataFrame | Rows, _: Any = ()) -> Any:
    m, k, n, experts, top_k, launches = Rows.of(rows).sizes("m", "k", "n", "batch", "top_k", "launches")
    return moe_s(c, on, m, k, n, (experts, top_k), launches=launches)
