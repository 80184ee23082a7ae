"""The timeline of a run as a table: a row per rank and task, with labels, made only when somebody asks for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UserError
from ..units import seconds, show_s
from .result import Result

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 5_000_000


@dataclass(frozen=True)
class TimelineTable:
    """The measured training steps with their labels, from when they begin."""

    result: Result

    def __len__(self) -> int:
        """Rows of the whole cluster: each rank's own and every turn that it takes in a communicator."""
        timeline = self.result.engine_timeline
        rows = np.array([int(self.result.observation.counts(labels.iteration).sum()) for labels in self.result.labels])
        return int((rows[timeline.expansion.skeleton.program] * timeline.multiplicity).sum())

    def columns_of(self, rank: int) -> dict[str, Any]:
        """The columns of one rank, in the order of its program."""
        timeline, labels = self.result.engine_timeline, self.result.labels[self.result.coordinate(rank)]
        tasks, from_ns = timeline.tasks_of(rank), self.result.observation.from_ns
        columns = {
            "task": tasks,
            "rank": np.full(len(tasks), rank),
            "stream": labels.stream,
            "kind": labels.kind,
            "phase": labels.phase,
            "stage": labels.stage,
            "chunk": labels.chunk,
            "microbatch": labels.microbatch,
            "block": np.array(labels.blocks, dtype=object),
            "start_ns": timeline.times.start_ns[tasks] - from_ns,
            "end_ns": timeline.times.end_ns[tasks] - from_ns,
            "arrival_ns": timeline.times.arrival_ns[tasks] - from_ns,
            "flop": labels.flop,
            "payload_bytes": labels.payload_bytes,
            "wire_bytes": timeline.expansion.graph.work[tasks] >> 24,
        }
        measured = self.result.observation.counts(labels.iteration)
        return columns if measured.all() else {name: column[measured] for name, column in columns.items()}

    def to_pandas(self, ranks: Iterable[int] | None = None) -> pd.DataFrame:
        """A row per rank and task, for all ranks or for those given, in the order of time; of one instant, by rank."""
        import pandas as pd

        if ranks is None and len(self) > MOST_ROWS:
            raise UserError(f"{len(self):,} rows are more than a frame should hold", hint="to_pandas(ranks=[0, 1])")
        wanted = range(self.result.gpus) if ranks is None else self.result.existing(ranks)
        rows = pd.concat([pd.DataFrame(self.columns_of(rank)) for rank in wanted], ignore_index=True)
        return rows.sort_values(["start_ns", "end_ns"], kind="stable", ignore_index=True)

    def __repr__(self) -> str:
        timeline = self.result.engine_timeline
        ranks, ends_s = timeline.ranks, seconds(int(timeline.times.end_ns.max(initial=0)))
        return f"Timeline({len(self):,} rows of {ranks:,} ranks, {show_s(ends_s)}; to_pandas(ranks=[0]) makes a table)"
