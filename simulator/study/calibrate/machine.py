"""The machine that kernels are timed on: what it is, and how its clock and power stand meanwhile.

`nvidia-smi` tells of clock and power; it runs beside the measurements and is read from time to time. Where there is none,
nothing is said about them.
"""

from __future__ import annotations

import os
import platform
import subprocess
import threading
import warnings
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...units import show_bytes
from .table import COLD, Probe
from .timers import CpuWatch, CudaWatch, Sample, timed
from .torch_kernels import Kernels
from .torch_operands import Refused

INSTALL = "pip install 'cluster-training-simulator[gpu]', or pip install torch"
PERIOD_MS = 100
ASKED = ("clocks.sm", "power.draw")
FACTS = ("driver_version", "clocks.max.sm", "clocks.max.mem", "power.limit", "temperature.gpu", "persistence_mode")
PATIENCE_S = 10
BROKEN = "CUDA error"
"""After one of those nothing runs any more."""


class Gauge:
    """The clock in MHz and the power in watts that nvidia-smi told last; None until it did."""

    def __init__(self, which: str) -> None:
        self.last: tuple[float | None, float | None] = (None, None)
        query = [f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader,nounits", f"--loop-ms={PERIOD_MS}"]
        command = ["nvidia-smi", "-i", which, *query]
        try:
            self.process: subprocess.Popen[str] | None = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
            )
        except OSError:
            self.process = None
            return
        threading.Thread(target=self._follow, args=(self.process,), daemon=True).start()

    def _follow(self, process: subprocess.Popen[str]) -> None:
        for told in process.stdout or ():
            self.last = reading(told)

    def close(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait()


def reading(told: str) -> tuple[float | None, float | None]:
    """Clock and power of a line; None for what a GPU does not tell, which stands there as [N/A]."""
    cells = [cell.strip() for cell in told.split(",")]
    values = [float(cell) if cell.replace(".", "", 1).isdecimal() else None for cell in cells[: len(ASKED)]]
    return (values[0], values[1]) if len(values) == len(ASKED) else (None, None)


class Bench:
    """A device that measures kernels with PyTorch."""

    def __init__(self, device: str) -> None:
        torch = torch_or_hint()
        self.device = _device(torch, device)
        self.torch = torch
        self.name = torch.cuda.get_device_name(0) if self.device == "cuda" else "cpu"
        self.source = f"{COLD}, torch {torch.__version__}"
        self.kernels = Kernels(torch, self.device)
        self.watch: Any = CudaWatch(torch) if self.device == "cuda" else CpuWatch(torch)
        self.gauge = Gauge(_identity(torch)) if self.device == "cuda" else None

    def measure(self, probe: Probe, effort_s: float) -> Sample:
        """The times of a kernel. Raises `Refused` for what this machine cannot run."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PyTorch says at length which attention it cannot run
                times_s = timed(self.watch, self.kernels.job(probe), effort_s)
        except (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError) as error:
            if BROKEN in str(error) and "out of memory" not in str(error):
                raise UserError(f"{probe}: {_words(error)}", hint="the rows so far are kept; --ops can leave this out") from None
            raise Refused(_words(error)) from None
        finally:
            if self.device == "cuda":
                self.torch.cuda.empty_cache()
        return Sample(times_s, *(self.gauge.last if self.gauge else (None, None)))

    def facts(self) -> dict[str, Any]:
        """What the machine is."""
        torch, host = self.torch, {"cpu": _cpu(), "cores": os.cpu_count(), "system": platform.platform()}
        found = {"gpu": self.name, "python": platform.python_version(), "torch": str(torch.__version__), "host": host}
        if self.device != "cuda":
            return {**found, "threads": torch.get_num_threads()}
        about = torch.cuda.get_device_properties(0)
        size = show_bytes(about.total_memory)
        versions = {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
        return {**found, **versions, "sms": about.multi_processor_count, "memory": size, **_told(_identity(torch))}

    def close(self) -> None:
        if self.gauge:
            self.gauge.close()


def torch_or_hint() -> Any:
    """PyTorch, or how to get it."""
    try:
        import torch
    except ImportError:
        raise UserError("PyTorch is not installed: kernels are timed with it", hint=INSTALL) from None
    return torch


def _device(torch: Any, asked: str) -> str:
    """Where to measure: on a CPU only if that was asked for."""
    if asked == "cpu":
        return "cpu"
    if not torch.cuda.is_available():
        raise UserError("PyTorch finds no CUDA device here", hint="--device cpu times the same kernels on the CPU, to try it out")
    return "cuda"


def _identity(torch: Any) -> str:
    """How nvidia-smi knows the device that PyTorch calls its first."""
    uuid = getattr(torch.cuda.get_device_properties(0), "uuid", None)
    return f"GPU-{uuid}" if uuid else "0"


def _words(error: Exception) -> str:
    """The first line of what PyTorch says."""
    if "out of memory" in str(error):
        return "out of memory"
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return first if len(first) <= 120 else f"{first[:117]}..."


def _told(which: str) -> dict[str, str]:
    """What nvidia-smi tells once."""
    command = ["nvidia-smi", f"--query-gpu={','.join(FACTS)}", "--format=csv,noheader", "-i", which]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(FACTS, (cell.strip() for cell in done.stdout.split(",")), strict=False))


def _cpu() -> str:
    """The name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor()
