"""The machine on which PyTorch's kernels are timed: its description, the times, and clock and power during the runs.

nvidia-smi runs beside the measurements and reports clock, power and the reasons for a reduced clock every 50 ms. A measurement
has the readings of its own interval, if there are any. Drivers differ in the fields that they know: the newest are asked for
first. Without nvidia-smi there are no readings.
"""

from __future__ import annotations

import os
import platform
import subprocess
import threading
import warnings
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter
from typing import Any

from ...errors import UserError
from ...files import read_bounded
from ...kernels import Rowwise
from ...measurements.csv_tables import MOST_BYTES
from ...measurements.kernel_table import Measured, spread
from ...measurements.kernel_words import Probe, kernel_of
from ...units import show_bytes
from .timers import CpuWatch, CudaWatch, timed
from .torch_kernels import Kernels, Refused, count_operators

INSTALL = "pip install 'cluster-training-simulator[gpu]', or pip install torch"
FACTS = ("driver_version", "clocks.max.sm", "clocks.max.mem", "power.limit", "temperature.gpu", "persistence_mode")
BROKEN = "CUDA error"
"""Message of an error after which no kernel runs any more."""
PERIOD_MS = 50
PATIENCE_S = 10
MOST_KEPT = 2**14
"""Most readings that are kept."""
ASKED = (
    ("clocks.sm", "power.draw.instant", "clocks_event_reasons.active"),
    ("clocks.sm", "power.draw.instant", "clocks_throttle_reasons.active"),
    ("clocks.sm", "power.draw", "clocks_throttle_reasons.active"),
    ("clocks.sm", "power.draw"),
)
"""Fields asked of nvidia-smi. `power.draw` is an average over a second on newer GPUs; older drivers name the reasons
otherwise."""
REASONS = {0x04: "power cap", 0x08: "hardware slowdown", 0x20: "hot", 0x40: "hot", 0x80: "power brake"}
"""Bits of NVML's reasons for a reduced clock. An idle GPU, or a clock set by a user, is not in this list."""


class TorchBench:
    """A device that times kernels with PyTorch. Inside `with` of its monitor, the times have readings of nvidia-smi."""

    def __init__(self, device: str, period_ms: int = PERIOD_MS) -> None:
        try:
            import torch
        except ImportError:
            raise UserError("PyTorch is not installed: kernels are timed with it", hint=INSTALL) from None
        if device != "cpu" and not torch.cuda.is_available():
            hint = "--device cpu times the same kernels on the CPU, to try it out"
            raise UserError("PyTorch finds no CUDA device here", hint=hint)
        self.torch: Any = torch
        self.device = "cpu" if device == "cpu" else "cuda"
        self.name = torch.cuda.get_device_name(0) if self.device == "cuda" else "cpu"
        self.watch: Any = CudaWatch(torch) if self.device == "cuda" else CpuWatch(torch)
        self.kernels = Kernels(torch, self.device, self.watch)
        self.monitor = SmiMonitor(_identity(torch) if self.device == "cuda" else "", period_ms)

    def measure(self, probe: Probe, effort_s: float) -> Measured:
        """The row of a kernel, timed with a cold cache. Raises `Refused` for a kernel that this machine cannot run."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PyTorch prints long warnings about the attention that it cannot run
                job, began = self.kernels.job(probe), perf_counter()
                times_s = timed(self.watch, job, effort_s)
                seen: dict[str, Any] = asdict(self.monitor.during(began, perf_counter()))
                operators = count_operators(self.torch, job.call) if isinstance(kernel_of(probe), Rowwise) else None
                seen |= {"operators": operators, "alone_s": job.alone_s, "cold": True}
                source = f"trainsim calibrate gpu, torch {self.torch.__version__}"
                return Measured(self.name, probe, *spread(times_s), len(times_s), source, **seen)
        except (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError) as error:
            if BROKEN in str(error) and "out of memory" not in str(error):
                hint = "the rows so far are kept; --ops can leave this out"
                raise UserError(f"{probe}: {first_line(error)}", hint=hint) from None
            raise Refused(first_line(error)) from None
        finally:
            if self.device == "cuda":
                self.torch.cuda.empty_cache()

    def facts(self) -> dict[str, Any]:
        """A description of the machine."""
        torch, host = self.torch, {"cpu": _cpu(), "cores": os.cpu_count(), "system": platform.platform()}
        found = {"gpu": self.name, "python": platform.python_version(), "torch": str(torch.__version__), "host": host}
        if self.device != "cuda":
            return {**found, "threads": torch.get_num_threads()}
        about = torch.cuda.get_device_properties(0)
        found |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(), "sms": about.multi_processor_count}
        found |= {"memory": show_bytes(about.total_memory)}
        said = answer(smi_query(_identity(torch), FACTS)) or ""
        return found | dict(zip(FACTS, (cell.strip() for cell in said.split(",") if said), strict=False))


def _identity(torch: Any) -> str:
    """The identifier of PyTorch's first device for nvidia-smi."""
    uuid = getattr(torch.cuda.get_device_properties(0), "uuid", None)
    return f"GPU-{uuid}" if uuid else "0"


def first_line(error: Exception) -> str:
    """The first line of an error of PyTorch."""
    if "out of memory" in str(error):
        return "out of memory"
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return first if len(first) <= 120 else f"{first[:117]}..."


def _cpu() -> str:
    """The name of the processor."""
    with suppress(UserError):
        content = read_bounded("/proc/cpuinfo", MOST_BYTES, "a description of processors").decode("utf-8", "replace")
        for line in content.splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


# Readings of nvidia-smi -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reading:
    """Clock in MHz, power in watts, and the reasons for a reduced clock; None or empty where a GPU does not report a value."""

    clock_mhz: float | None = None
    power_w: float | None = None
    throttle: str = ""


class SmiMonitor:
    """Collects readings of nvidia-smi about a GPU inside `with`; no readings if the GPU has no name."""

    def __init__(self, which: str, period_ms: int = PERIOD_MS) -> None:
        self.which, self.period_ms = which, period_ms
        self.readings = deque[tuple[float, Reading]](maxlen=MOST_KEPT)
        """Readings with the host's time of their arrival."""
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> SmiMonitor:
        query = accepted_query(self.which) if self.which else None
        if query:
            command = [*query, f"--loop-ms={self.period_ms}"]
            with suppress(OSError):
                self.process = subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
                )
                threading.Thread(target=self._follow, args=(self.process,), daemon=True).start()
        return self

    def _follow(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            self.readings.append((perf_counter(), parse_reading(line)))

    def during(self, start_s: float, end_s: float) -> Reading:
        """The median clock and power between two host times, and all reasons for a reduced clock in that interval."""
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
    """The nvidia-smi command line with the fields that the driver knows; None if the driver knows none, or without nvidia-smi."""
    queries = (smi_query(which, fields, ",nounits") for fields in ASKED)
    return next((query for query in queries if answer(query) is not None), None)


def smi_query(which: str, fields: Sequence[str], form: str = "") -> list[str]:
    """The command line that asks nvidia-smi about a GPU."""
    return ["nvidia-smi", "-i", which, f"--query-gpu={','.join(fields)}", f"--format=csv,noheader{form}"]


def answer(command: Sequence[str]) -> str | None:
    """The output of a command; None if the command fails or does not exist."""
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout
    return None


def parse_reading(line: str) -> Reading:
    """The reading in a line of nvidia-smi, where [N/A] marks an unreported value. Reasons are a bit mask such as 0x04."""
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) < 2:
        return Reading()
    clock, power = (float(cell) if cell.replace(".", "", 1).isdecimal() else None for cell in cells[:2])
    bits = 0
    with suppress(ValueError, IndexError):
        bits = int(cells[2], 16)
    return Reading(clock, power, ", ".join(dict.fromkeys(reason for bit, reason in REASONS.items() if bits & bit)))
