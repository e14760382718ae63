"""`moeplan topology`: what clusters are, whether a file is one, and files of other tools turned into one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from moeplan.cli.app import Format, app, check_apart, check_format, check_output, machine_readable, say, say_wrote

HELP = "Clusters: list, show, check, convert, choose, place."
topology = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=HELP)
app.add_typer(topology, name="topology")

Name = Annotated[str, typer.Argument(help="shipped name or TOML file", metavar="CLUSTER")]


@topology.command("list")
def list_clusters(format_: Format = "table") -> None:
    """List the clusters that ship: nodes, GPUs, network, injection of a node, bisection.

    Example: moeplan topology list --format csv
    """
    from moeplan import report
    from moeplan.machine.summary import cluster_rows

    check_format(format_)
    rows = cluster_rows()
    if format_ == "table":
        report.print_table(rows, sys.stdout)
    else:
        print(machine_readable(format_, rows, {"clusters": rows}))


@topology.command()
def show(
    cluster: Name,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="write a picture: .png, .svg or .pdf")] = None,
    format_: Format = "table",
) -> None:
    """Show a cluster: its GPUs and what joins them, the levels of its network, bandwidths, where numbers are from.

    Example: moeplan topology show frontier -o frontier.svg
    """
    from moeplan import report
    from moeplan.machine.summary import LEVELS_TITLE, LINKS_TITLE, SOURCES_TITLE, cluster_summary
    from moeplan.plots.cluster import check_picture, draw

    check_format(format_)
    if output is not None:
        check_picture(output)
        check_output(str(output))
        check_apart({"-o": output}, [cluster])
    found = cluster_summary(cluster)
    if output is not None:
        draw(found.cluster, output)
    if format_ == "table":
        facts = [{"what": report.heading(k), "value": report.cell(v, k)} for k, v in found.facts.items()]
        report.print_table(facts, sys.stdout)
        tables = {LEVELS_TITLE: found.levels, LINKS_TITLE: found.links, SOURCES_TITLE: found.sources}
        for title, rows in tables.items():
            if rows:
                report.print_table(rows, sys.stdout, title=title)
        for line in found.warnings:
            print(f"warning: {line}")
    else:
        print(machine_readable(format_, found.to_rows(), found.to_dict()))
    if output is not None:
        sys.stdout.flush()
        say(f"wrote {output}")


@topology.command()
def check(cluster: Name) -> None:
    """Check that a file is a cluster: one line with its counts, then warnings; or what is wrong in one line.

    Example: moeplan topology check mine.toml
    """
    from moeplan.machine.summary import counts
    from moeplan.machine.warned import warnings_of
    from moeplan.spec.shipped import load_cluster
    from moeplan.topology.core import core

    found = load_cluster(cluster)
    print(f"ok: {counts(found)}")
    for line in warnings_of(found, core(found)):
        say(f"warning: {line}")


@topology.command()
def convert(  # noqa: PLR0913
    files: Annotated[
        list[Path] | None, typer.Argument(help="files about one machine; - is stdin", metavar="FILE...")
    ] = None,
    like: Annotated[str, typer.Option("--like", help="cluster that says what no file says")] = "",
    nodes: Annotated[str, typer.Option("--nodes", help="a job's nodes: host list, or a file of one")] = "",
    topology_name: Annotated[str, typer.Option("--topology-name", help="which one of a topology.yaml")] = "",
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", metavar="HOSTS=FILE", help="nodes of another kind and a file about one of them; repeat"),
    ] = None,
    nccl_topo: Annotated[Path | None, typer.Option("--nccl-topo", help="file that knows NICs near GPUs")] = None,
    name: Annotated[str, typer.Option("--name", help="name of the cluster")] = "",
    domain: Annotated[int, typer.Option("--domain", min=0, help="nodes in one NVLink domain")] = 0,
    gpus_per_node: Annotated[int, typer.Option("--gpus-per-node", min=0, help="where no file says it")] = 0,
    output: Annotated[str, typer.Option("-o", "--output", help="cluster file; - is stdout")] = "-",
) -> None:
    """Make a cluster file of what people have: Slurm, nvidia-smi, rocm-smi, NCCL, hwloc, ibnetdiscover, host lists.

    Example: moeplan topology convert topology.conf smi.txt --like dgx-h100 --nodes "$SLURM_JOB_NODELIST" -o mine.toml
    """
    from moeplan.convert import convert_topology
    from moeplan.convert.kinds import parse_kinds
    from moeplan.spec.record import write_whole

    check_output(output)
    kinds = parse_kinds(kind or [])
    inputs = [*(files or []), *(file for of_kind in kinds.values() for file in of_kind), like, nodes, nccl_topo]
    check_apart({"-o": output}, inputs)
    found = convert_topology(
        files or [],
        like,
        nodes=nodes,
        topology_name=topology_name,
        kinds=kinds,
        nccl_topo=nccl_topo,
        name=name,
        domain=domain,
        gpus_per_node=gpus_per_node,
    )
    for line in found.notes:
        say(f"note: {line}")
    for line in found.warnings:
        say(f"warning: {line}")
    write_whole(Path(output), found.toml.encode())
    say_wrote(output)
