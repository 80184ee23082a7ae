"""What killed programs ask their workers: outcomes that take a moment, each of which leaves a line in a file when it begins."""

from __future__ import annotations

import os
import time
from typing import Any

from simulator.search.plan_checks import Measured, measured
from simulator.study.sweep import SIMULATED, Outcome

LOG, TASK_S = "TRAINSIM_COUNTED_LOG", "TRAINSIM_COUNTED_TASK_S"
FIELDS = (("job", "global_batch"), ("job", "sequence_length"))


def began(key: str) -> None:
    """Adds a line to the file that the environment names: whole, since it is one short write."""
    file = os.open(os.environ[LOG], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{key}\n".encode())
    os.close(file)


def outcome(document: Any, effort: Any) -> Outcome:
    """Stands for the simulation of a point of a sweep: its step time is the product of its fields."""
    batch, length = (int(document.at(field)) for field in FIELDS)
    began(f"{batch} {length}")
    time.sleep(float(os.environ[TASK_S]))
    step_time_s = float(batch * length)
    return Outcome(SIMULATED, None, None, step_time_s, step_time_s, step_time_s, 1.0, 1.0, 0.5, 0.5, 1, 16)


def of_plan(base: Any, choice: Any, engine: str = "auto", long: bool = False) -> Measured:
    """The simulation of a plan of a search."""
    began(choice.text)
    return measured(base, choice, engine, long)
