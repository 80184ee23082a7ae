"""From a validated schema to a cluster, with the modules of its shapes. Nothing is refused here any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...hardware.cluster import Cluster
from ...hardware.gpu import Gpu
from ...hardware.options import Box, Dragonfly, Drawn, LinkSpec, Options, Routing, Wan
from ...units import GB
from .. import catalog
from ..gpus.gpu_files import described
from .grammar import Inside, Nics

if TYPE_CHECKING:
    from ..gpus.schema import GpuSchema
    from .clusters import ClusterSchema

PCIE_BYTES_PER_S = 63.0 * GB
"""GPU to NIC where a cluster does not say, PCIe 5.0 x16, unless a GPU's NICs are faster: what leads to them is built for them."""


def cluster(schema: ClusterSchema) -> Cluster:
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
        nvlink=LinkSpec(inside.bytes_per_s, latency.nvlink),
        nvlinks=inside.links,
        pcie=LinkSpec(schema.pcie or usual, latency.pcie),
        nic=LinkSpec(nics.bytes_per_s, latency.nic),
        switch_latency_s=latency.switch,
        nics_per_node=nics.per_node,
        nodes_per_pod=schema.nodes_per_pod,
        oversubscription=schema.oversubscription,
        options=_options(schema),
        fabric=schema.fabric,
    )


def _gpu(schema: GpuSchema) -> Gpu:
    """The fits of what was measured are only read for a GPU that borrows from them."""
    if schema.kernels is not None:
        return described(schema)
    from ..gpus.kernel_fits import complete

    return complete(schema)


def _options(schema: ClusterSchema) -> Options:
    box, dragonfly = schema.box, schema.dragonfly
    return Options(
        routing=Routing(schema.routing, schema.routing_seed),
        dims=tuple(schema.dims or ()),
        node_dims=tuple(schema.node_dims or ()),
        radix=schema.radix,
        spines=schema.spines,
        dragonfly=Dragonfly(dragonfly.nics_per_router, dragonfly.routers_per_group, dragonfly.global_links),
        box=Box(box.sockets, box.gpus_per_switch, box.socket, box.bridge),
        wan=_wan(schema),
        drawn=_drawn(schema),
    )


def _wan(schema: ClusterSchema) -> Wan | None:
    wan = schema.wan
    if wan is None:
        return None
    shapes = tuple(catalog.module("shapes", name) for name in wan.sites)
    return Wan(tuple(map(catalog.plain, wan.sites)), shapes, LinkSpec(wan.bandwidth, wan.latency))


def _drawn(schema: ClusterSchema) -> Drawn | None:
    if schema.vertices is None or schema.links is None:
        return None
    number = {vertex.name: i for i, vertex in enumerate(schema.vertices)}
    links = []
    for link in schema.links:
        a, b, spec = number[link.from_], number[link.to], LinkSpec(link.capacity, link.latency)
        links += [(a, b, spec)] if link.one_way else [(a, b, spec), (b, a, spec)]
    return Drawn(tuple((vertex.name, vertex.kind) for vertex in schema.vertices), tuple(links))
