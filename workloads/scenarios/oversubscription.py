"""How thin may the network above the leaves be? Mixtral 8x7B on 512 H100s, with fewer and fewer uplinks.

A scenario script: plain Python on the public API. Nodes of a pod reach each other over their leaves; what leaves a pod shares its
uplinks, of which there are half as many at an oversubscription of 2.
"""

from __future__ import annotations

import simulator as sim

model, job = sim.model("mixtral-8x7b"), sim.Job(sequence_length=4096, global_batch=1024)
plan, framework = sim.Plan(tp=2, pp=4, ep=8, sharding="zero1"), sim.framework("megatron-core-2025")

print(f"{'uplinks':>7} {'step':>8} {'MFU':>6} {'exposed dp':>11} {'exposed ep':>11}")
for oversubscription in (1.0, 2.0, 4.0, 8.0):
    cluster = sim.cluster("dgx-h100", nodes=64, nodes_per_pod=8, oversubscription=oversubscription)
    run = sim.simulate(model, cluster, plan, job, framework=framework, allow_oom=True)
    m = run.metrics
    dp, ep = (f"{m.exposed_s[axis]:.3f}s" for axis in ("dp", "ep"))
    print(f"{1 / oversubscription:>7.0%} {m.step_time_s:7.3f}s {m.mfu:6.1%} {dp:>11} {ep:>11}")
