"""Explanation of a step: its losses in words with numbers, the largest first, and at most three changes that make it shorter.

Every number is a simulation: a loss is a bar of the waterfall, and a change is a simulated plan that fits in memory. The place of
a loss comes from the same run: the operators that are far from the peak, the collectives and links that ranks wait for, the stage
or rank that is slower than the others.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from ..errors import must_be
from ..escape import Summarised
from ..simulation import choose_engine
from ..simulation.run import Run
from ..study.critical_path import CriticalPath, critical_path
from ..study.idle_causes import IdleTime, idle_time
from ..study.waterfall import Bar, Waterfall, waterfall
from ..units import show_s
from .neighbours import Neighbour, expected_work, neighbours
from .places import place_of
from .splits import Splits

MOST_CHANGES = 3
LEAST_LOSS = 0.001
"""The smallest fraction of a step that counts as a loss."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A cause that makes the step longer, with its place."""

    cause: str
    seconds: float
    fraction: float
    """The fraction of the step."""
    text: str
    remedy: str
    """The best simulated change that addresses this cause; "" if no tried change helps."""

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("cause", "seconds", "fraction", "text", "remedy")}


@dataclass(frozen=True, repr=False)
class Explanation(Summarised):
    """Why a step takes as long as it does, and what would make it shorter."""

    run: Run
    waterfall: Waterfall
    path: CriticalPath
    changes: tuple[Neighbour, ...]
    """The changes that help most, at most one for each field."""
    splits: Splits | None = None
    """For a pipeline, the splits of the layers that were tried."""

    @cached_property
    def idle(self) -> IdleTime:
        """The time without kernels, by cause and place."""
        return idle_time(self.run)

    @cached_property
    def losses(self) -> tuple[Loss, ...]:
        """The losses of the step, the largest first."""
        found = []
        for bar in self.waterfall.largest_first:
            fraction = self.waterfall.fraction(bar)
            if fraction >= LEAST_LOSS:
                remedy = next((one.text for one in self.changes if one.addresses == bar.cause), "")
                found.append(Loss(bar.cause, bar.seconds, fraction, _text(self.run, bar), remedy))
        return tuple(found)

    @property
    def best(self) -> tuple[Neighbour, ...]:
        """The changes that are shown."""
        return self.changes[:MOST_CHANGES]

    @property
    def summary(self) -> list[tuple[str, str]]:
        """The step, its largest losses, and the changes that help most."""
        metrics = self.run.metrics
        tops = [(f"loss {i}", one.text) for i, one in enumerate(self.losses[:3], 1)]
        changes = [(f"change {i}", one.text) for i, one in enumerate(self.best, 1)]
        nothing = [("change", "no tried change makes the step shorter")]
        return [("step time", f"{show_s(metrics.step_time_s)}, MFU {metrics.mfu:.1%}"), *tops, *(changes or nothing)]

    def as_dict(self) -> dict[str, Any]:
        """Everything that `trainsim explain --json` prints."""
        return {
            "step_time_s": self.run.metrics.step_time_s,
            "mfu": self.run.metrics.mfu,
            "losses": [loss.as_dict() for loss in self.losses],
            "waterfall": self.waterfall.as_list(),
            "critical_path": self.path.as_list(),
            "idle": self.idle.as_dict(),
            "splits": self.splits and asdict(self.splits),
            "changes": [change.as_dict() for change in self.best],
        }


def explain(run: Run, *, long: bool = False) -> Explanation:
    """The explanation of a run: some forty more simulations. Raises `UserError` where all of them together are estimated to take
    more than 30 s, unless `long` allows it."""
    must_be(run, Run, "run", "a run", "sim.explain(sim.simulate(model, cluster, plan, job))")
    if expected_work(run, long=long).is_long:  # first, because it raises the error
        choose_engine.load()  # so that simulations of moderate size use it too, which would not load it themselves
    found, splits = neighbours(run, long=long)
    return Explanation(run, waterfall(run), critical_path(run), found, splits)


def _text(run: Run, bar: Bar) -> str:
    """A loss in words."""
    return f"{show_s(bar.seconds)}, {bar.seconds / run.metrics.step_time_s:.1%} of the step: {place_of(run, bar.cause)}"
