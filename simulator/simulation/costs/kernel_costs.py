"""What the kernels of a run cost: each distinct one with its time, the model that says so, and how far to trust it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ...costs.kernels.family import Estimate
from ...kernels import Kernel
from ...program.op import AnyOp, Compute
from ...units import show_s
from ..result import Result


@dataclass(frozen=True, slots=True)
class OpCost:
    """One kernel or collective of a step: all layers, microbatches and pipeline ranks of one replica that run it alike."""

    name: str
    shape: str
    calls: int
    seconds_each: float
    seconds: float
    """Of all calls, over all pipeline ranks."""
    model: str
    provenance: str
    sigma: float
    """Relative standard error."""
    extrapolated: bool
    axis: str = ""
    """Of a collective; kernels have none."""
    ranks: str = ""
    """The pipeline ranks that run a kernel, such as 0-6."""


class OpCosts(list[OpCost]):
    """The costs of a run, the most expensive first. Shown in one line; each row shows itself in full."""

    def __repr__(self) -> str:
        most = f", most in {self[0].name}: {show_s(self[0].seconds)}" if self else ""
        return f"OpCosts({len(self):,} rows, {show_s(sum(row.seconds for row in self))}{most})"


What = tuple[str, Kernel]
"""An operator of any layer, and its kernel."""


def kernel_costs(result: Result) -> list[OpCost]:
    """Every kernel of the measured step, the most expensive first."""
    used = [result.calls(rank) for rank in range(result.program.ranks)]
    contents = {body: _kernels(result.program.bodies[body].ops) for bodies in used for body in bodies}
    calls: dict[What, float] = {}
    ranks: dict[What, set[int]] = {}
    for rank, bodies in enumerate(used):
        for body, times in bodies.items():
            for what, count in contents[body].items():
                calls[what] = calls.get(what, 0.0) + times * count
                ranks.setdefault(what, set()).add(rank)
    rows = [_cost(*what, round(count), result.prices.estimate(what[1]), spans(ranks[what])) for what, count in calls.items()]
    return OpCosts(sorted(rows, key=lambda row: -row.seconds))


def _kernels(ops: Iterable[AnyOp]) -> Counter[What]:
    """How often a body runs each kernel."""
    return Counter((op.name.partition(".")[2] if op.layer >= 0 else op.name, op.kernel) for op in ops if isinstance(op, Compute))


def spans(numbers: Iterable[int]) -> str:
    """Numbers as people list them: 0-2, 5."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def _cost(name: str, kernel: Kernel, calls: int, estimate: Estimate, ranks: str) -> OpCost:
    return OpCost(
        name,
        kernel.shape,
        calls,
        estimate.seconds,
        estimate.seconds * calls,
        estimate.model,
        estimate.provenance,
        estimate.sigma,
        estimate.extrapolated,
        ranks=ranks,
    )
