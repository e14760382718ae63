"""`moeplan topology place`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moeplan.cli.app import (
    Format,
    PlanFile,
    check_apart,
    check_format,
    check_output,
    machine_readable,
    report_to,
    say_wrote,
)
from moeplan.cli.topology import topology
from moeplan.errors import SpecError

if TYPE_CHECKING:
    from moeplan.optimizer.placement import Busy, Placed
    from moeplan.plan import Plan


ORDERS = {"given_s": "as given", "by_name_s": "by name", "found_s": "here"}


@topology.command()
def place(  # noqa: PLR0913
    plan_file: PlanFile,
    nodes: Annotated[str, typer.Option("--nodes", help="host list of the job's nodes; default: the plan's")] = "",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="write the hosts in rank order, one a line for each node")
    ] = None,
    per_rank: Annotated[
        Path | None, typer.Option("--slurm-hostfile", help="the same with one line for each rank: SLURM_HOSTFILE")
    ] = None,
    rankfile: Annotated[Path | None, typer.Option("--rankfile", help="write a rankfile of Open MPI")] = None,
    exact: Annotated[bool, typer.Option("--exact", help="prove it by an integer program (a dozen nodes)")] = False,
    time_limit_s: Annotated[float, typer.Option("--time-limit", help="seconds that the proof may take")] = 10.0,
    format_: Format = "table",
) -> None:
    """Choose which of the job's nodes each block of ranks runs on, so that the busiest link is least busy.

    Example: moeplan topology place plan.json --nodes 'srv[1101-1108,1201-1208]' -o hosts.txt --slurm-hostfile ranks.txt
    """
    from msgspec import structs

    from moeplan import report
    from moeplan.hostlist import compress
    from moeplan.optimizer.placement import place_plan
    from moeplan.plan_file import read_plan

    check_format(format_)
    out = report_to(output, per_rank, rankfile)
    files = {"-o": output, "--slurm-hostfile": per_rank, "--rankfile": rankfile}
    for path in files.values():
        if path is not None:
            check_output(str(path))
    check_apart(files, [plan_file])
    if not time_limit_s > 0:
        raise SpecError(f"--time-limit {time_limit_s}: is not more than 0 seconds")
    plan = read_plan(plan_file)
    if nodes:
        plan = structs.replace(plan, case=structs.replace(plan.case, cluster=_on(plan, nodes)))
    placed = place_plan(plan, exact=exact, time_limit_s=time_limit_s)
    _write(placed, plan, files)
    told = _told(placed, plan, plan_file, per_rank, rankfile)
    rows = _rows(placed)
    if format_ != "table":
        print(machine_readable(format_, rows, {**told, "busiest": rows}), file=out)
        return
    report.print_table(rows, out)
    seconds = ", ".join(f"{told[key]:.4g} s {when}" for key, when in ORDERS.items())
    print(f"bytes of a step over bandwidth, busiest link: {seconds} ({placed.status})", file=out)
    print(
        f"busiest link {told['gain']:.1%} less busy than given, all links together {told['total_gain']:.1%}", file=out
    )
    print(f"hosts in rank order: {compress(placed.hosts)}", *told["launch"], sep="\n", file=out)


def _on(plan: Plan, nodes: str) -> Any:
    """The plan's cluster with its job on `nodes`; SpecError where these are more or fewer than the plan has."""
    from moeplan.hostlist import expand
    from moeplan.spec.cluster import pick

    cluster = plan.case.cluster
    if (count := len(expand(nodes, "--nodes"))) != cluster.nodes:
        raise SpecError(f"--nodes names {count} nodes; the plan is for {cluster.nodes}")
    return pick(cluster, nodes)


def _host_of_rank(placed: Placed, plan: Plan) -> list[str]:
    from moeplan.plan import world_size

    return [placed.hosts[rank // placed.cluster.node.gpus] for rank in range(world_size(plan))]


def _write(placed: Placed, plan: Plan, files: dict[str, Path | None]) -> None:
    from moeplan.spec.record import write_whole

    gpus, ranks = placed.cluster.node.gpus, _host_of_rank(placed, plan)
    lines = {
        "-o": placed.hosts,
        "--slurm-hostfile": ranks,
        "--rankfile": [f"rank {rank}={host} slot={rank % gpus}" for rank, host in enumerate(ranks)],
    }
    for option, path in files.items():
        if path is not None:
            write_whole(path, "".join(f"{line}\n" for line in lines[option]).encode())
            say_wrote(path)


def _told(placed: Placed, plan: Plan, plan_file: Path, per_rank: Path | None, rankfile: Path | None) -> dict[str, Any]:
    """All that is known, and the lines that start the job in this order.

    Slurm sorts a --nodelist; it keeps an order where the distribution is arbitrary and SLURM_HOSTFILE names a file
    with one line for each task (srun(1), --distribution; _task_layout_hostfile of its step layout).
    """
    from moeplan.hostlist import compress
    from moeplan.optimizer.placement import by_name

    ranks, run = len(_host_of_rank(placed, plan)), f"moeplan run {_named(plan_file, 'PLAN')}"
    nodes = f"--nodes={len(placed.hosts)} --nodelist={compress(by_name(placed.hosts))}"
    master = f"MASTER_ADDR={placed.hosts[0]} MASTER_PORT=29500"
    hostfile = _named(per_rank, "FILE_OF_--slurm-hostfile")
    launch = [
        f"#SBATCH {nodes}",
        f"{master} SLURM_HOSTFILE={hostfile} srun --distribution=arbitrary --ntasks={ranks} {run}",
    ]
    if rankfile is not None:
        launch.append(f"{master} mpirun -np {ranks} --rankfile {_named(rankfile, 'FILE')} {run}")
    return {
        "hosts": list(placed.hosts),
        "rank_hosts": _host_of_rank(placed, plan),
        "given_s": placed.given.busiest_s,
        "by_name_s": placed.by_name.busiest_s,
        "found_s": placed.found.busiest_s,
        "gain": 1 - placed.found.busiest_s / placed.given.busiest_s if placed.given.busiest_s else 0.0,
        "total_gain": 1 - placed.found.total_s / placed.given.total_s if placed.given.total_s else 0.0,
        "status": placed.status,
        "launch": launch,
    }


def _named(path: Path | None, unnamed: str) -> str:
    """`path` as a shell reads it; `unnamed` for none, and for a standard stream."""
    return unnamed if path is None or str(path) == "-" else shlex.quote(str(path))


def _rows(placed: Placed) -> list[dict[str, Any]]:
    def rows(when: str, busy: tuple[Busy, ...]) -> list[dict[str, Any]]:
        return [{"order": when, "link": one.link, "seconds": one.seconds} for one in busy]

    return [*rows("given", placed.given_busy), *rows("here", placed.found_busy)]
