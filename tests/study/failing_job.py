"""A job that fails, simulated event by event with SimPy: what the renewal model is compared with."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import simpy

from simulator.study.renewal import Interruptions

Events = Generator[simpy.Event, Any, None]


@dataclass
class FailingJob:
    """A job with failures of nodes and of itself, spare nodes, and GPUs that are slow for a while."""

    job: Interruptions
    interval_s: float
    rng: np.random.Generator
    of_nodes: float = 0.0
    """Fraction of the failures that take a node out of service."""
    spares: int = 0
    repair_s: float = 0.0
    slow_rate_per_s: float = 0.0
    slow_s: float = 0.0
    slow_speed: float = 1.0
    kept: list[tuple[float, float, float]] = field(default_factory=list)
    """When a checkpoint became complete, the seconds of training and the work that it holds."""

    def run(self, checkpoints: int) -> tuple[float, float]:
        """The effective fraction of the time, and the work per second, from the first complete checkpoint over a number of more.

        The number is given, and not the time: a time ends, more often than not, in a long stretch without a checkpoint.
        """
        self.env = simpy.Environment()
        self.exposed, self.down, self.slow, self.generation = True, 0, 0, 0
        self.done, self.changed_s, self.repaired = 0.0, 0.0, self.env.event()
        self.process = self.env.process(self._train())
        self.env.process(self._fail())
        if self.slow_rate_per_s:
            self.env.process(self._stragglers())
        self.enough = self.env.event()
        self.checkpoints = checkpoints
        self.env.run(self.enough)
        (begin, trained, work), (end, all_trained, all_work) = self.kept[0], self.kept[-1]
        return (all_trained - trained) / (end - begin), (all_work - work) / (end - begin)

    def _progress(self) -> float:
        """Work that a GPU could have done until now, as slow as the slowest."""
        self.done += (self.env.now - self.changed_s) * (self.slow_speed if self.slow else 1.0)
        self.changed_s = self.env.now
        return self.done

    def _train(self) -> Events:
        saved = trained, work = 0.0, 0.0
        restarts = False
        while True:
            try:
                if restarts:
                    yield self.env.timeout(self.job.restart_s)
                    trained, work = (self.kept[-1][1], self.kept[-1][2]) if self.kept else saved
                restarts, before = False, self._progress()
                yield self.env.timeout(self.interval_s)
                trained, work = trained + self.interval_s, work + self._progress() - before
                yield self.env.timeout(self.job.pause_s)
                self.env.process(self._write(trained, work))
            except simpy.Interrupt:
                self.exposed, restarts, self.generation = False, True, self.generation + 1
                yield self.env.timeout(self.job.detection_s)
                if self.rng.random() < self.of_nodes:
                    self.down += 1
                    self.env.process(self._repair())
                    while self.down > self.spares:
                        yield self.repaired
                self.exposed = True

    def _write(self, trained: float, work: float) -> Events:
        generation = self.generation
        yield self.env.timeout(self.job.write_s)
        if generation == self.generation:
            self.kept.append((self.env.now, trained, work))
            if len(self.kept) == self.checkpoints + 1:
                self.enough.succeed()

    def _fail(self) -> Events:
        while True:
            yield self.env.timeout(self.rng.exponential(self.job.mtbf_s))
            if self.exposed:
                self.process.interrupt()

    def _repair(self) -> Events:
        yield self.env.timeout(self.rng.exponential(self.repair_s))
        self.down -= 1
        self.repaired.succeed()
        self.repaired = self.env.event()

    def _stragglers(self) -> Events:
        while True:
            yield self.env.timeout(self.rng.exponential(1 / self.slow_rate_per_s))
            self.env.process(self._slow_spell())

    def _slow_spell(self) -> Events:
        self._progress()
        self.slow += 1
        yield self.env.timeout(self.slow_s)
        self._progress()
        self.slow -= 1
