"""The command line, with simulations that are counted: run as a program of its own, which is killed."""

from __future__ import annotations

from simulator.cli import main
from simulator.search import best_first
from simulator.simulation import choose_engine
from simulator.study import sweep

from . import counted

if __name__ == "__main__":
    sweep.outcome = counted.outcome
    best_first.measured = counted.of_plan
    choose_engine.load = lambda: None  # nothing is simulated that would need machine code
    main()
