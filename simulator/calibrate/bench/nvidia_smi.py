"""Clock and power of a GPU, and what holds its clock down, as nvidia-smi reports them while kernels run.

nvidia-smi runs beside the measurements and reports every 50 ms. A measurement has the readings of its own time, if there are
any. Drivers differ in the fields that they know: the newest are asked for first. Without nvidia-smi there are no readings.
"""

from __future__ import annotations

import subprocess
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter

PERIOD_MS = 50
PATIENCE_S = 10
MOST_KEPT = 2**14
"""Readings that are kept."""
ASKED = (
    ("clocks.sm", "power.draw.instant", "clocks_event_reasons.active"),
    ("clocks.sm", "power.draw.instant", "clocks_throttle_reasons.active"),
    ("clocks.sm", "power.draw", "clocks_throttle_reasons.active"),
    ("clocks.sm", "power.draw"),
)
"""`power.draw` is an average over a second on newer GPUs; the reasons had another name before."""
REASONS = {0x04: "power cap", 0x08: "hardware slowdown", 0x20: "hot", 0x40: "hot", 0x80: "power brake"}
"""Bits of NVML's reasons for a low clock. An idle GPU, or a clock that somebody set, is none of these."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Clock in MHz, power in watts, and what held the clock down; None or empty where a GPU does not report it."""

    clock_mhz: float | None = None
    power_w: float | None = None
    throttle: str = ""


NO_READING = Reading()


class SmiMonitor:
    """Readings of nvidia-smi about a GPU from entering to leaving `with`; none if the GPU has no name."""

    def __init__(self, which: str, clock: Callable[[], float] = perf_counter) -> None:
        self.which, self.clock = which, clock
        self.readings = deque[tuple[float, Reading]](maxlen=MOST_KEPT)
        """Each with the time of the clock when it came."""
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> SmiMonitor:
        command = accepted_query(self.which) if self.which else None
        if command is None:
            return self
        command = [*command, f"--loop-ms={PERIOD_MS}"]
        try:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
            )
        except OSError:
            return self
        threading.Thread(target=self._follow, args=(self.process,), daemon=True).start()
        return self

    def _follow(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            self.readings.append((self.clock(), parse_reading(line)))

    def during(self, start_s: float, end_s: float) -> Reading:
        """The readings between two times of the clock as one: the medians, and every reason."""
        found = [reading for at_s, reading in self.readings.copy() if start_s <= at_s <= end_s]
        clocks = [one.clock_mhz for one in found if one.clock_mhz is not None]
        powers = [one.power_w for one in found if one.power_w is not None]
        reasons = dict.fromkeys(reason for one in found for reason in one.throttle.split(", ") if reason)
        return Reading(median(clocks) if clocks else None, median(powers) if powers else None, ", ".join(reasons))

    def __exit__(self, *exception: object) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait()


def accepted_query(which: str) -> list[str] | None:
    """The command line of nvidia-smi with the fields that it knows; None if it knows none, or is not there."""
    for fields in ASKED:
        command = ["nvidia-smi", "-i", which, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        except (OSError, subprocess.SubprocessError):
            return None
        if done.returncode == 0:
            return command
    return None


def parse_reading(line: str) -> Reading:
    """The reading in a line of nvidia-smi, where [N/A] stands for what a GPU does not report. Reasons are a mask such as 0x04."""
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) < 2:
        return NO_READING
    clock, power = (float(cell) if cell.replace(".", "", 1).isdecimal() else None for cell in cells[:2])
    try:
        bits = int(cells[2], 16) if len(cells) > 2 else 0
    except ValueError:
        bits = 0
    return Reading(clock, power, ", ".join(dict.fromkeys(reason for bit, reason in REASONS.items() if bits & bit)))
