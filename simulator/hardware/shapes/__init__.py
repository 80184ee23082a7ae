"""Topology families, one file each: `fabric` joins the nodes, `inside` the GPUs of a node; or `wire` and `route` do both."""
