"""Regenerates the picture of the README: Llama-3 70B on 64 H100s."""

from pathlib import Path

import simulator as sim
from simulator.figures.drawing import save

save(sim.gantt(sim.load("llama3-70b-64xh100").simulate()), Path(__file__).with_name("timeline.png"))
