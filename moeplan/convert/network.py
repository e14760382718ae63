"""The network between nodes: a tree of switches where files tell one, else that of a cluster that is like it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from moeplan.convert.fabric import Merged, merge
from moeplan.convert.gathered import Gathered
from moeplan.convert.likeness import Like, plain_of, rate
from moeplan.convert.racks import leaves, racks
from moeplan.hostlist import compress
from moeplan.toml_text import Noted


class Placed(NamedTuple):
    """The machine's nodes in their order, and NVLink domains among them."""

    hosts: tuple[str, ...]
    domain: Noted
    notes: tuple[str, ...]

    def entries(self, given: Gathered, like: Like) -> dict[str, Any]:
        """`nodes`, `hosts` and `use` of the cluster's file."""
        if not self.hosts:
            return {"nodes": like.noted(like.cluster.nodes)} | _hosts_like(like)
        nodes = {"nodes": Noted(len(given.job or self.hosts), given.job_from or given.hosts_from)}
        hosts = {"hosts": Noted(compress(self.hosts), f"{given.hosts_from}: in the order of the machine")}
        use = {"use": Noted(compress(given.job), f"{given.job_from}: in the order of the machine")} if given.job else {}
        return {**nodes, **hosts, **use}


def _hosts_like(like: Like) -> dict[str, Noted]:
    named = {"hosts": like.cluster.hosts, "use": like.cluster.use}
    return {key: like.noted(text) for key, text in named.items() if text}


def placed(given: Gathered, asked: int, like: int) -> Placed:
    """Nodes in NVLink domains: by the blocks, `asked` nodes each where it is not 0, else as `like` has them."""
    if given.blocks:
        found = racks(given.blocks, given.hosts, asked, like)
        told = "--domain" if asked else f"{given.blocks_from}: nodes of a block"
        return Placed(found.hosts, Noted(found.domain, told), found.notes)
    if asked:
        return Placed(given.hosts, Noted(asked, "--domain: neighbouring nodes"), ())
    notes = (f"assumed: every {like} neighbouring nodes are one NVLink domain",) if like > 1 else ()
    return Placed(given.hosts, Noted(like, "assumed: NVLink beyond a node as in the machine that is like it"), notes)


class Between(NamedTuple):
    """Entries of [network], and what was guessed."""

    entries: dict[str, Any]
    notes: tuple[str, ...]


def network(given: Gathered, place: Placed, like: Like, sent: Callable[[str], float]) -> Between:
    """[network]: switches of the files, or each block as a leaf, or what `like` has.

    Uplinks that no file tells are not oversubscribed: the sum over the nodes below of what each has `sent` with all its
    NICs.
    """
    if given.switches:
        tree = merge(given.switches)
        return Between(_switches(tree.merged, given.switches_from, like, sent), tree.notes)
    if given.blocks:
        blocks = leaves(given.blocks, place.hosts)
        return Between(_switches(blocks, f"{given.blocks_from}: blocks", like, sent), ())
    plain = plain_of(like.cluster.network)
    return Between({key: like.noted(value) if key != "kind" else value for key, value in plain.items()}, ())


def _switches(merged: Sequence[Merged], told: str, like: Like, sent: Callable[[str], float]) -> dict[str, Any]:
    below = _sent_below(merged, sent)
    guessed = [one for one in merged if one.up and not one.uplink_bytes_per_s]
    how = "uplinks assumed: not oversubscribed, nodes below x NICs x NIC"
    if guessed and len(guessed) < sum(bool(one.up) for one in merged):
        how = f"{len(guessed)} {how}"
    return {
        "kind": "switches",
        "hop_latency": like.noted(like.cluster.network.hop_latency_s.short()),
        "switches": Noted([_switch(one, below[one.name]) for one in merged], f"{told}; {how}" if guessed else told),
    }


def _sent_below(merged: Sequence[Merged], sent: Callable[[str], float]) -> Counter[str]:
    """What the nodes on and below each switch send together."""
    up = {one.name: one.up for one in merged}
    found: Counter[str] = Counter()
    for one in merged:
        at, own = one.name, sum(map(sent, one.hosts))
        while at:
            found.update({at: own})
            at = up[at]
    return found


def _switch(one: Merged, below_bytes_per_s: float) -> dict[str, str]:
    found = {"name": one.name}
    if one.hosts:
        found["nodes"] = compress(one.hosts)
    if one.up:
        found |= {"up": one.up, "uplink": rate(one.uplink_bytes_per_s or below_bytes_per_s)}
    return found
