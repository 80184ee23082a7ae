# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A first run
#
# Llama-3 70B on 64 H100s: how long is a training step, where does the time go, and what would make it shorter? Everything
# below runs on a laptop in a few seconds.
#
# The framework is the software that trains: which kernels it fuses, what a launch costs, which communication it runs beside
# compute. Without one launches are free, and tensor-parallel communication runs beside nothing.

# %%
import simulator as sim

model = sim.model("llama3-70b")
cluster = sim.cluster("dgx-h100", nodes=8)
job = sim.Job(sequence_length=8192, global_batch=32)
megatron = sim.framework("megatron-core-2025")

run = sim.simulate(model, cluster, sim.Plan(tp=8, pp=8), job, framework=megatron)
run

# %% [markdown]
# ## The timeline
#
# One row per pipeline rank; the other seven ranks of each tensor-parallel group do the same at the same time. Light boxes are
# forward passes of a microbatch, dark ones backward passes, blank is idle. The staircase at both ends is the bubble.

# %%
sim.gantt(run)

# %% [markdown]
# The same as a table, an operation per row, for one rank. The eight slowest kinds of work of rank 0:

# %%
rows = run.timeline.to_pandas(ranks=[0])
rows["ms"] = (rows.end_ns - rows.start_ns) / 1e6
rows[rows.stream.isin(["compute", "tp"])].groupby(["stream", "kind"]).ms.sum().sort_values(ascending=False).head(8).round(1)

# %% [markdown]
# ## Where the time goes
#
# Every idle instant has one cause, so the shares add up to the step.

# %%
m = run.metrics
shares = {
    "computing": m.busy_s,
    "bubble": m.bubble_fraction * m.step_time_s,
    "tensor parallel": m.exposed_s["tp"],
    "pipeline transfers": m.exposed_s["pp"],
    "imbalance": sum(m.imbalance_s.values()),
    "launches": m.launch_s,
    "optimizer": m.optimizer_s,
}
for name, seconds in shares.items():
    print(f"{name:<20}{seconds:7.3f} s {seconds / m.step_time_s:7.1%}")
assert abs(sum(shares.values()) - m.step_time_s) < 1e-9

# %% [markdown]
# ## The bubble, by formula and by experiment
#
# For equal stages 1F1B idles (P - 1)/(M + P - 1) of the time. The bare schedule in unit times gives exactly that; the real
# step differs a little, because its first and last stages also do the embedding and the loss.

# %%
for microbatches in (8, 16, 32, 64):
    ratio = sim.schedule("1f1b", ranks=8, microbatches=microbatches).bubble_ratio
    formula = 7 / (microbatches + 7)
    assert abs(ratio - formula) < 1e-9
    print(f"M = {microbatches:2}: simulated {ratio:.4f}, formula {formula:.4f}")

# %% [markdown]
# ## What would be faster?
#
# Two ideas: two chunks of the model per rank, and a shallower pipeline with two replicas. Beside them what this framework
# gains already, as it runs tensor-parallel communication behind the weight gradients.

# %%
ideas = {
    "1f1b": sim.Plan(tp=8, pp=8),
    "  tp not overlapped": sim.Plan(tp=8, pp=8, overlap=sim.Overlap(tp=False)),
    "interleaved, 2 chunks": sim.Plan(tp=8, pp=8, schedule="interleaved", chunks=2),
    "pp 4, dp 2": sim.Plan(tp=8, pp=4, dp=2, sharding="zero1"),
}
times = {}
for name, plan in ideas.items():
    result = sim.simulate(model, cluster, plan, job, framework=megatron)
    times[name] = result.metrics.step_time_s
    print(f"{name:<24}{times[name]:6.2f} s  MFU {result.metrics.mfu:.1%}  {result.peak_memory_bytes / 2**30:5.1f} GiB")
assert times["interleaved, 2 chunks"] < times["1f1b"] < times["  tp not overlapped"]

# %% [markdown]
# ## One slow GPU
#
# A single GPU at 80% of its speed, somewhere in the middle: everybody waits for it.

# %%
slow = sim.simulate(model, cluster, ideas["1f1b"], job, framework=megatron, perturb=[sim.Perturb(rank=27, speed=0.8)])
print(f"{slow.metrics.step_time_s:.2f} s, {slow.metrics.step_time_s / run.metrics.step_time_s - 1:+.1%} on the step")
assert slow.metrics.step_time_s > run.metrics.step_time_s
sim.gantt(slow)
