"""Blocks: the operators that a layer, an embedding or a head is made of, with flop, traffic, parameters and what they keep.

A block is written for one GPU, unsplit. `split` says how an operator is divided in a tensor-parallel group; the passes of
`lowering/` do the dividing.
"""
