"""[node] of a cluster's file, from the files about one node; the usual one's, or that of nodes of another kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import structs

from moeplan.convert.inside import joined
from moeplan.convert.likeness import Like, node_like
from moeplan.convert.ports import ports
from moeplan.errors import SpecError
from moeplan.importers.found import FoundNode
from moeplan.spec.cluster import Node
from moeplan.toml_text import Noted
from moeplan.units import BytesPerS

Files = Sequence[tuple[str, FoundNode]]
"""Names of files, and the node that each describes."""


class Made(NamedTuple):
    """A node of files."""

    entries: dict[str, Noted]
    """Of [node], without its domain."""
    node: Node
    """That of the machine that is like it, with these GPUs and NICs."""
    alone: str
    """Why NVLink cannot go beyond the node; empty where it can."""
    notes: tuple[str, ...]

    @property
    def nic_bytes_per_s(self) -> float:
        """What its NICs send together."""
        return self.node.nics * self.node.nic_bytes_per_s


def made(found: Files, like: Like, override: tuple[str, FoundNode] | None, asked_gpus: int) -> Made:
    """The node that the files `found` describe; what none says is as in `like`.

    `override` knows how near NICs are to GPUs; `asked_gpus`, not 0, is for files that know no GPUs. SpecError where
    files contradict each other.
    """
    gpus = _gpus(found, like, asked_gpus)
    node = node_like(like, gpus.value)
    nics = ports(found, like, node, override)
    node = _with_nics(node, nics.entries)
    inside = joined([(name, one) for name, one in found if one.gpus], like, node)
    latencies = {
        "link_latency": like.noted(node.link_latency_s.short()),
        "nic_latency": like.noted(node.nic_latency_s.short()),
    }
    entries = {"gpus": gpus, **nics.entries, **inside.entries, **latencies}
    alone = "" if inside.beyond else inside.entries["link"].note
    return Made(entries, node, alone, (*nics.notes, *inside.notes))


def _gpus(found: Files, like: Like, asked: int) -> Noted:
    told = [(name, one.gpus) for name, one in found if one.gpus]
    if len({count for _, count in told}) > 1:
        counts = ", ".join(f"{name} {count}" for name, count in told)
        raise SpecError(
            f"files of nodes with different numbers of GPUs: {counts}; those of one kind of node are right, others as"
            " --kind HOSTS=FILE"
        )
    if told and asked not in (0, told[0][1]):
        raise SpecError(f"--gpus-per-node {asked}: {told[0][0]} has {told[0][1]}")
    if told:
        return Noted(told[0][1], told[0][0])
    return Noted(asked, "--gpus-per-node") if asked else like.noted(like.cluster.node.gpus)


def _with_nics(node: Node, entries: Mapping[str, Noted]) -> Node:
    """`node` with the numbers of NICs and their bandwidth, for what is assumed of other parts."""
    speed = BytesPerS.parse(entries["nic"].value)
    return structs.replace(node, nics=entries["nics"].value, nic_bytes_per_s=speed, nic_of_gpu=())
