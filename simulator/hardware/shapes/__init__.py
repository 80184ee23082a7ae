"""Topology families, one file each: `wire` lays out vertices and links, `route` finds the way between GPUs."""
