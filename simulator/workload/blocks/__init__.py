"""Blocks: the operators of a layer, an embedding or a head, with flop, traffic, parameters and bytes kept for backward.

A block is written for one GPU, unsplit. `split` names the way in which a tensor-parallel group divides an operator; the passes
of `lowering/` perform the division.
"""
