"""How deep should the pipeline be? Llama-3 70B on 64 H100s, from two stages to sixteen, the same batch.

A scenario script: plain Python on the public API. Deeper pipelines need less memory and lose more time to the bubble.
"""

from __future__ import annotations

import simulator as sim

model, cluster = sim.model("llama3-70b"), sim.cluster("dgx-h100", nodes=8)
job, framework = sim.Job(sequence_length=8192, global_batch=64), sim.framework("megatron-core-2025")

print(f"{'pp':>3} {'tp':>3} {'dp':>3} {'step':>8} {'MFU':>6} {'bubble':>7} {'memory':>9}")
for pp, tp in ((2, 8), (4, 8), (8, 8), (8, 4), (16, 4)):
    plan = sim.Plan(tp=tp, pp=pp, sharding="zero1")
    run = sim.simulate(model, cluster, plan, job, framework=framework, allow_oom=True)
    m = run.metrics
    memory = f"{run.peak_memory_bytes / 2**30:.0f} GiB" + ("" if run.fits else " (!)")
    print(f"{pp:>3} {tp:>3} {64 // (pp * tp):>3} {m.step_time_s:7.2f}s {m.mfu:6.1%} {m.bubble_fraction:7.1%} {memory:>9}")
