"""What does one slow GPU cost? Llama-3 70B on 64 H100s, with one GPU at lower and lower speeds.

A scenario script: plain Python on the public API. The group of the slow GPU waits for it in every layer, the other stages of its
pipeline wait for that group, and the other replicas for that pipeline.
"""

from __future__ import annotations

import simulator as sim

model, cluster = sim.model("llama3-70b"), sim.cluster("dgx-h100", nodes=8)
plan, job = sim.Plan(tp=8, pp=4, sharding="zero1"), sim.Job(sequence_length=8192, global_batch=64)
framework = sim.framework("megatron-core-2025")

print(f"{'speed':>5} {'step':>8} {'slower':>7} {'bubble':>7} {'imbalance of tp':>16} {'of dp':>8}")
usual_s = 0.0
for speed in (1.0, 0.95, 0.9, 0.8, 0.5):
    perturb = (sim.Perturb(rank=13, speed=speed),) if speed < 1 else ()
    run = sim.simulate(model, cluster, plan, job, framework=framework, perturb=perturb)
    m = run.metrics
    usual_s = usual_s or m.step_time_s
    slower = f"{m.step_time_s / usual_s - 1:7.1%}"
    tp, dp = (f"{m.imbalance_s[axis]:.2f}s" for axis in ("tp", "dp"))
    print(f"{speed:>5.0%} {m.step_time_s:7.2f}s {slower} {m.bubble_fraction:7.1%} {tp:>16} {dp:>8}")
