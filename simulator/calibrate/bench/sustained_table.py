"""The folder of a survey of sustained loads: `sustained.csv` with a row for every window, and the description of the machine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from ...files import make_folder
from ...measurements.kernel_table import line
from .. import survey_folder
from . import sustained_run
from .sustained_loads import Load, loads, small
from .sustained_run import Sustained
from .torch_bench import TorchBench, first_line
from .torch_kernels import Refused
from .training_step import Builder

TABLE, ABOUT = "sustained.csv", "sustained.json"
NAMES = ("idle", "spinning", "gemm", "attention_fwd", "attention_bwd", "copy", "rmsnorm", "swiglu", "adam", "layer", "step")
"""Names of loads."""
PERIOD_MS = 20
"""Milliseconds between readings of clock and power."""


def measure(
    bench: TorchBench, seconds: float, only: Collection[str] = (), refused: Callable[[str], None] = lambda why: None
) -> Iterator[Sustained]:
    """Measures all loads of a device, or the named ones, each for some seconds. `refused` is called with each load that cannot
    run here, and the reason."""
    chosen = loads if bench.device == "cuda" else small
    with bench.monitor:
        for load in chosen(bench.kernels, Builder(bench.torch, bench.device)):
            if only and load.name not in only:
                continue
            try:
                yield _one(bench, load, seconds)
            except (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError, Refused) as error:
                refused(f"{load.name} {load.detail}: {first_line(error)}")


def _one(bench: TorchBench, load: Load, seconds: float) -> Sustained:
    """A load, in memory that nothing else holds."""
    if bench.device != "cuda":
        return sustained_run.run(bench.watch, bench.monitor, load, seconds)
    cuda = bench.torch.cuda
    cuda.empty_cache()
    cuda.reset_peak_memory_stats()
    return sustained_run.run(bench.watch, bench.monitor, load, seconds, cuda.max_memory_allocated)


def write(where: Path, found: Iterable[Sustained], about: dict[str, object]) -> None:
    """Writes the table of a survey and the description of its machine."""
    rows = "".join(line(cells) for one in found for cells in one.cells())
    survey_folder.write(make_folder(where) / TABLE, line(sustained_run.COLUMNS) + rows)
    survey_folder.write_facts(where, about, ABOUT)
