"""`moeplan topology choose`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeplan.cli.app import Format, check_format, machine_readable
from moeplan.cli.topology import topology
from moeplan.errors import SpecError

if TYPE_CHECKING:
    from moeplan.topology.units import Unit


@topology.command()
def choose(
    nodes: Annotated[int, typer.Option("--nodes", help="nodes of the job")],
    free: Annotated[str, typer.Option("--free", help="host list of the free nodes, or - to read it from stdin")],
    cluster: Annotated[str, typer.Option("--cluster", help="shipped name or TOML file")] = "",
    topology_file: Annotated[
        Path | None, typer.Option("--topology", help="topology.conf, topology.yaml, ibnetdiscover and the like")
    ] = None,
    together: Annotated[
        int, typer.Option("--together", help="nodes that stay in one rack, such as those of an expert group")
    ] = 1,
    name: Annotated[str, typer.Option("--topology-name", help="which one of a topology.yaml")] = "",
    format_: Format = "table",
) -> None:
    """Choose free nodes in the fewest racks, then in the fewest groups, then with the fewest left over beside them.

    Example: moeplan topology choose --topology topology.conf --nodes 16 --free 'srv[1101-1106,1201-1208,2101-2108]'
    """
    from moeplan import report
    from moeplan.hostlist import compress, expand
    from moeplan.spec.record import STANDARD, read_bytes
    from moeplan.topology import choose as chooser

    check_format(format_)
    if free == "-" == str(topology_file):
        raise SpecError("--free and --topology are both -; one of them can be stdin")
    text = ",".join(read_bytes(STANDARD).decode(errors="replace").split()) if free == "-" else free
    hosts = expand(text, "--free")
    units, switches = _units(cluster, topology_file, name, hosts)
    chosen = chooser.choose(hosts, units, nodes, together)
    listed = compress(chosen.hosts)
    sbatch = f"#SBATCH --nodes={nodes} --nodelist={listed}" + f" --switches={len(chosen.racks)}" * switches
    whole = {
        "hosts": listed,
        "nodes": nodes,
        "racks": list(chosen.racks),
        "groups": list(chosen.groups),
        "left_over": chosen.left_over,
        "free": chosen.free,
        "slurm": sbatch,
    }
    rows = [{"what": report.heading(key), "value": _cell(value)} for key, value in whole.items() if key != "slurm"]
    if format_ == "table":
        report.print_table(rows, sys.stdout)
        print(sbatch)
    else:
        print(machine_readable(format_, rows, whole))


def _cell(value: object) -> str:
    """A list as how many it has and which."""
    if not isinstance(value, list):
        return str(value)
    return f"{len(value)}: {', '.join(map(str, value))}" if value else "none"


def _units(cluster: str, file: Path | None, name: str, hosts: tuple[str, ...]) -> tuple[dict[str, Unit], bool]:
    """The rack and group of each host that may be free, and whether racks are switches, which Slurm can count."""
    from moeplan import importers
    from moeplan.hostlist import compress
    from moeplan.spec.cluster import pick
    from moeplan.spec.shipped import load_cluster
    from moeplan.topology.units import units_in, units_of

    if bool(cluster) == (file is not None):
        raise SpecError("topology choose: --cluster and --topology are two ways to say the machine; one is right")
    if file is not None:
        found = importers.read(file, name)
        return units_in(found), not found.blocks
    job = pick(load_cluster(cluster), compress(dict.fromkeys(hosts)))
    return units_of(job), job.node.domain == 1
