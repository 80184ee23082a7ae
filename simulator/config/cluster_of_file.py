"""From a validated schema to a cluster, with the modules of its shapes. Nothing is refused here any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..hardware.cluster import Cluster
from ..hardware.gpu import AT_PEAK, Gpu
from ..hardware.options import Drawn, LinkSpec, Options, Routing, Wan
from ..units import GB
from . import catalog
from .gpu_files import hashed
from .grammar import Inside, Nics
from .shipped_fits import complete

if TYPE_CHECKING:
    from .cluster_file import ClusterFile

PCIE_BYTES_PER_S = 63.0 * GB
"""GPU to NIC where a cluster does not say, PCIe 5.0 x16, unless a GPU's NICs are faster: what leads to them is built for them."""


def cluster(schema: ClusterFile) -> Cluster:
    """A cluster, the modules of its shape and of its nodes' inside found."""
    nics, latency = schema.inter_node or Nics(0, 0.0), schema.latency
    inside = schema.intra_node or Inside("explicit", None, 0.0)
    to_nics = max(PCIE_BYTES_PER_S, nics.per_node * nics.bytes_per_s / schema.gpus_per_node)
    usual = inside.bytes_per_s if schema.inside_name == "pcie" else to_nics
    return Cluster(
        name=schema.name,
        gpu=_gpu(schema.gpu),
        gpus_per_node=schema.gpus_per_node,
        nodes=schema.nodes,
        shape_name=schema.shape_name,
        shape=catalog.module("shapes", schema.shape or schema.shape_name),
        inside_name=schema.inside_name,
        inside=catalog.module("shapes", schema.inside_name),
        nvlink=LinkSpec(inside.bytes_per_s, latency.nvlink_s),
        nvlinks=inside.links,
        pcie=LinkSpec(schema.pcie_bytes_per_s or usual, latency.pcie_s),
        nic=LinkSpec(nics.bytes_per_s, latency.nic_s),
        switch_latency_s=latency.switch_s,
        nics_per_node=nics.per_node,
        nodes_per_pod=schema.nodes_per_pod,
        oversubscription=schema.oversubscription,
        options=_options(schema),
        fabric=schema.fabric,
    )


def _gpu(described: Gpu) -> Gpu:
    """The fits of what was measured are only read for a GPU that borrows from them."""
    if described.kernels is not AT_PEAK:
        return hashed(described)

    return complete(described)


def _options(schema: ClusterFile) -> Options:
    return Options(
        routing=Routing(schema.routing, schema.routing_seed),
        dims=schema.dims or (),
        node_dims=schema.node_dims or (),
        radix=schema.radix,
        spines=schema.spines,
        dragonfly=schema.dragonfly,
        box=schema.box,
        wan=_wan(schema),
        drawn=_drawn(schema),
    )


def _wan(schema: ClusterFile) -> Wan | None:
    wan = schema.wan
    if wan is None:
        return None
    shapes = tuple(catalog.module("shapes", name) for name in wan.sites)
    return Wan(tuple(map(catalog.plain, wan.sites)), shapes, LinkSpec(wan.bytes_per_s, wan.latency_s))


def _drawn(schema: ClusterFile) -> Drawn | None:
    if schema.vertices is None or schema.links is None:
        return None
    number = {vertex.name: i for i, vertex in enumerate(schema.vertices)}
    links = []
    for link in schema.links:
        a, b, spec = number[link.source], number[link.target], LinkSpec(link.bytes_per_s, link.latency_s)
        links += [(a, b, spec)] if link.one_way else [(a, b, spec), (b, a, spec)]
    return Drawn(tuple((vertex.name, vertex.kind) for vertex in schema.vertices), tuple(links))
