"""Sharding: what of a model's state the replicas of a stage share, by the word that a plan says."""

from __future__ import annotations

from .plan import Plan

SHARDED_OPTIMIZERS = ("zero1",)


def shards_optimizer(plan: Plan) -> bool:
    """Whether every replica updates its share of the parameters only, and all gather them afterwards."""
    return plan.sharding in SHARDED_OPTIMIZERS


def optimizer_shards(plan: Plan, replicas: int) -> int:
    """Among how many ranks the state of the optimizer is divided."""
    return replicas if shards_optimizer(plan) else 1
