"""What no file says, by the names of its fields, where no cluster is named that is like it."""

from __future__ import annotations

from collections.abc import Sequence

from moeplan.convert.gathered import Gathered
from moeplan.errors import SpecError
from moeplan.importers.found import FoundNode, some
from moeplan.spec.shipped import shipped


def check_like(given: Gathered, found: Sequence[tuple[str, FoundNode]], like: str) -> None:
    """SpecError with all that is missing, unless `like` names where it is from."""
    if like:
        return
    lost = ["gpu.name", "gpu.hbm", "gpu.hbm_bandwidth", "gpu.peak", "node.link_latency", "node.nic_latency"]
    lost += ["network.hop_latency"] if given.switches or given.blocks else ["network"]
    told = {
        "nodes": bool(given.hosts),
        "node.gpus": any(one.gpus for _, one in found),
        "node.nics": any(one.nics for _, one in found),
        "node.nic": any(nic.bytes_per_s for _, one in found for nic in one.nics),
        "node.link": any(one.links for _, one in found),
    }
    lost += [field for field, said in told.items() if not said]
    names = some([one.name for one in given.every])
    raise SpecError(
        f"{names}: no file says {', '.join(lost)}; --like NAME takes them from a cluster that is like it, one of"
        f" {', '.join(shipped('cluster'))} or a TOML file"
    )
