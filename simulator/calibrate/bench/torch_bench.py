"""The machine that kernels are timed on: its description, and the times of PyTorch's kernels on it."""

from __future__ import annotations

import os
import platform
import subprocess
import warnings
from contextlib import suppress
from time import perf_counter
from typing import Any

from ...errors import UserError
from ...files import read_bounded
from ...kernels import Rowwise
from ...measurements.csv_tables import MOST_BYTES
from ...measurements.kernel_words import Probe, kernel_of
from ...units import show_bytes
from .nvidia_smi import PATIENCE_S, SmiMonitor
from .timers import CpuWatch, CudaWatch, Job, Sample, timed
from .torch_kernels import Kernels, Refused, count_operators

INSTALL = "pip install 'cluster-training-simulator[gpu]', or pip install torch"
FACTS = ("driver_version", "clocks.max.sm", "clocks.max.mem", "power.limit", "temperature.gpu", "persistence_mode")
BROKEN = "CUDA error"
"""After such an error nothing runs any more."""


class TorchBench:
    """A device that times kernels with PyTorch. Within `with`, readings of nvidia-smi are recorded beside them."""

    def __init__(self, device: str) -> None:
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
        self.source = f"trainsim calibrate gpu, torch {torch.__version__}"
        self.watch: Any = CudaWatch(torch) if self.device == "cuda" else CpuWatch(torch)
        self.kernels = Kernels(torch, self.device, self.watch)
        self.monitor = SmiMonitor(_identity(torch) if self.device == "cuda" else "")

    def __enter__(self) -> TorchBench:
        self.monitor.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.monitor.__exit__(*exception)

    def measure(self, probe: Probe, effort_s: float) -> Sample:
        """The times of a kernel. Raises `Refused` for what this machine cannot run."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PyTorch says at length which attention it cannot run
                job, began = self.kernels.job(probe), perf_counter()
                times_s = timed(self.watch, job, effort_s)
                return Sample(times_s, self.monitor.during(began, perf_counter()), self._operators(probe, job), job.alone_s)
        except (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError) as error:
            if BROKEN in str(error) and "out of memory" not in str(error):
                hint = "the rows so far are kept; --ops can leave this out"
                raise UserError(f"{probe}: {_first_line(error)}", hint=hint) from None
            raise Refused(_first_line(error)) from None
        finally:
            if self.device == "cuda":
                self.torch.cuda.empty_cache()

    def _operators(self, probe: Probe, job: Job) -> int | None:
        """How many operators of PyTorch a memory-bound kernel is made of; None where this version cannot count them."""
        with suppress(ImportError, AttributeError, RuntimeError, TypeError):
            return count_operators(self.torch, job.call) if isinstance(kernel_of(probe), Rowwise) else None
        return None

    def facts(self) -> dict[str, Any]:
        """A description of the machine."""
        torch, host = self.torch, {"cpu": _cpu(), "cores": os.cpu_count(), "system": platform.platform()}
        found = {"gpu": self.name, "python": platform.python_version(), "torch": str(torch.__version__), "host": host}
        if self.device != "cuda":
            return {**found, "threads": torch.get_num_threads()}
        about = torch.cuda.get_device_properties(0)
        found |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(), "sms": about.multi_processor_count}
        return {**found, "memory": show_bytes(about.total_memory), **_smi_facts(_identity(torch))}


def _identity(torch: Any) -> str:
    """The name in nvidia-smi of PyTorch's first device."""
    uuid = getattr(torch.cuda.get_device_properties(0), "uuid", None)
    return f"GPU-{uuid}" if uuid else "0"


def _first_line(error: Exception) -> str:
    """The first line of an error of PyTorch."""
    if "out of memory" in str(error):
        return "out of memory"
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return first if len(first) <= 120 else f"{first[:117]}..."


def _smi_facts(which: str) -> dict[str, str]:
    """The facts that nvidia-smi reports about a device."""
    command = ["nvidia-smi", f"--query-gpu={','.join(FACTS)}", "--format=csv,noheader", "-i", which]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(FACTS, (cell.strip() for cell in done.stdout.split(",")), strict=False))


def _cpu() -> str:
    """The name of the processor."""
    try:
        lines = read_bounded("/proc/cpuinfo", MOST_BYTES, "a description of processors").decode("utf-8", "replace").splitlines()
    except UserError:
        return platform.processor()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor()
