"""A cluster that is like the one whose files are read: what no file says comes from it, and is marked as assumed."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from moeplan.errors import SpecError
from moeplan.spec.cluster import ClusterSpec, Node
from moeplan.spec.node import first_of
from moeplan.spec.shipped import load_cluster
from moeplan.toml_text import Noted
from moeplan.units import BytesPerS, Quantity


class Like(NamedTuple):
    """The cluster and how it is called beside a number."""

    cluster: ClusterSpec
    note: str

    def noted(self, value: Any) -> Noted:
        """`value`, assumed."""
        return Noted(value, self.note)


def load_like(name: str) -> Like:
    """The cluster called `name`, shipped or a TOML file; SpecError as `load_cluster`."""
    cluster = load_cluster(name)
    return Like(cluster, f"assumed: as {cluster.name}")


def plain_of(record: object) -> Any:
    """`record` as a file would hold it, quantities as short text; what is empty is left out."""
    return _filled(msgspec.to_builtins(record, enc_hook=_short, builtin_types=()))


def _short(value: object) -> str:
    if isinstance(value, Quantity):
        return value.short()
    raise NotImplementedError(type(value))


def _filled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _filled(one) for key, one in value.items() if one not in (None, [], {}, "", False)}
    return [_filled(one) for one in value] if isinstance(value, list) else value


def rate(bytes_per_s: float) -> str:
    """A bandwidth as text."""
    return BytesPerS(bytes_per_s).short()


def node_like(like: Like, gpus: int) -> Node:
    """The node of `like` with `gpus` GPUs: its first ones, or more on the same switch with NICs in proportion.

    SpecError where its GPUs have links of their own or PCIe switches, which do not tell what joins more.
    """
    node = like.cluster.node
    try:
        if gpus < node.gpus:
            return msgspec.structs.replace(first_of(_without_bridge(node, gpus), gpus), domain=1)
    except SpecError as error:
        raise SpecError(f"{like.note}: {error}") from None
    if gpus == node.gpus:
        return node
    if node.links or node.bridge:
        raise SpecError(
            f"{like.note}: its node has {node.gpus} GPUs with links of their own, the files {gpus}; name another"
        )
    return msgspec.structs.replace(node, gpus=gpus, nics=node.nics * gpus // node.gpus, nic_of_gpu=())


def _without_bridge(node: Node, gpus: int) -> Node:
    fits = node.bridge is None or gpus % node.bridge.gpus == 0
    return node if fits else msgspec.structs.replace(node, bridge=None)


MOST_IN_A_NODE = 16
"""GPUs of the largest node so far (NVIDIA DGX-2); a cluster file whose nodes have more takes a rack for one."""


def domain_like(like: Like, gpus: int) -> int:
    """Nodes of `gpus` GPUs in one NVLink domain of `like`, whose own node may stand for a rack; else 1."""
    node = like.cluster.node
    rack = node.domain > 1 or node.gpus > MOST_IN_A_NODE
    return max(1, node.gpus * node.domain // gpus) if rack and not (node.links or node.bridge) else 1
