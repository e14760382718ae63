"""The straight line: a case in, candidates of every family searched, a ranking and the plan of the winner out."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from types import MappingProxyType

from msgspec import structs

from moeplan.analytic.spread import sure
from moeplan.caveats import ASSUMPTIONS, assumed_rates, calibration_warnings, warnings_of
from moeplan.cost.durations import Machine
from moeplan.errors import InfeasibleError, SolverError, SpecError
from moeplan.layouts import FAMILIES, colocated, disaggregated, piper
from moeplan.optimizer.candidate import has
from moeplan.optimizer.disaggregate import search_disaggregated
from moeplan.optimizer.evaluate import usable_bytes
from moeplan.optimizer.pinned import Fixed as Fixed
from moeplan.optimizer.pinned import check_fixed, chosen, fields_of
from moeplan.optimizer.placement import replaced
from moeplan.optimizer.search import GAP, Found, Search
from moeplan.plan import Plan, Solver, signed
from moeplan.ranking import Ranking as Ranking
from moeplan.ranking import mended
from moeplan.spec.calibration import Calibration
from moeplan.spec.case import Case, check_case
from moeplan.spec.cluster import num_ranks
from moeplan.spec.given import texts, wrong_type
from moeplan.spec.shipped import calibration_of
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric
from moeplan.topology.units import together

BASELINE = "colocated"
GIB = 1024**3


def machine_of(case: Case, calibration: Calibration) -> Machine:
    """Routes of the case's cluster and how much of them is reached."""
    return Machine(Fabric(build(case.cluster)), calibration)


def optimize(
    case: Case,
    calibration: Calibration | str | Path,
    *,
    families: Sequence[str] = (),
    fixed: Fixed = MappingProxyType({}),
    progress: Callable[[str], None] = lambda family: None,
) -> Ranking:
    """The best layout of each of `families` (all by default), always with a colocated baseline.

    `fixed` keeps degrees: only layouts that have these values are searched; a baseline that was not asked for, or lacks
    one of them, is free. `calibration` may be the name of one. `progress` hears the name of each family before it is
    searched. Where the cluster says which nodes to `use`, their order is free: they are searched rack by rack, then
    each best layout's order is improved. SpecError for a family or a degree that does not exist.
    """
    case, measured = check_case(case), calibration_of(calibration)
    families = texts(families, "families", BASELINE)
    if not isinstance(fixed, Mapping):
        raise wrong_type(fixed, "fixed", 'degrees by name, such as {"pp": 8}')
    if not callable(progress):
        raise wrong_type(progress, "progress", "a function of a family's name")
    for family in families:
        if family not in FAMILIES:
            raise SpecError(f"family {family!r} is not known; there are {', '.join(FAMILIES)}")
    wanted = tuple(family for family in FAMILIES if not families or family in families)
    excluded = check_fixed(case, fixed, wanted)
    if not set(fixed) <= set(fields_of(BASELINE)):
        wanted = tuple(family for family in wanted if family != BASELINE)
    asked = {family: fixed if family in wanted else {} for family in FAMILIES if family in (BASELINE, *wanted)}
    case = structs.replace(case, cluster=together(case.cluster))
    machine = machine_of(case, measured)
    none = [Found(family, None, (), 0, excluded=why) for family, why in excluded.items() if family in wanted]
    asked = {family: degrees for family, degrees in asked.items() if family not in wanted or family not in excluded}
    found = [one for group in _side_by_side(case, machine, asked, progress) for one in group]
    found = [*(_placed(one, measured) for one in found), *none]
    found.sort(key=lambda f: (f.best.predictions.step_s if f.best else float("inf"), f.family))
    return Ranking(case, wanted, tuple(_signed(f, machine) for f in found))


def _side_by_side(
    case: Case,
    machine: Machine,
    asked: Mapping[str, Fixed],
    progress: Callable[[str], None],
) -> list[list[Found]]:
    """Meshes, which share what they evaluate, in one process, and disaggregated layouts in another; each in order."""
    meshes = {family: fixed for family, fixed in asked.items() if family != disaggregated.NAME}
    others = {family: fixed for family, fixed in asked.items() if family == disaggregated.NAME}
    for family in asked:
        progress(family)
    if not (meshes and others):
        return [_search(case, machine, asked)]
    fork = get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    beside = fork.Process(target=_search_beside, args=(sender, case, machine, others), daemon=True)
    beside.start()
    sender.close()
    found = _search(case, machine, meshes)
    try:
        answer = receiver.recv()
    except EOFError:
        raise SolverError(f"the search of {disaggregated.NAME} layouts ended without an answer") from None
    beside.join()
    if isinstance(answer, Exception):
        raise answer
    return [found, answer]


def _search_beside(answer: Connection, case: Case, machine: Machine, asked: Mapping[str, Fixed]) -> None:
    """As `_search`, in a child: what it finds, or the error it ends with, goes to the parent, who hears interrupts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()
    try:
        answer.send(_search(case, machine, asked))
    except Exception as error:  # an error of ours or a bug: the parent raises it
        answer.send(error)


def _placed(found: Found, calibration: Calibration) -> Found:
    """`found` whose best layout has its blocks of ranks on the nodes that suit it, where the job's are scattered."""
    if found.best is None or not found.best.case.cluster.use:
        return found
    return found._replace(best=replaced(found.best, calibration))


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(SolverError.exit_code)


def _search(case: Case, machine: Machine, asked: Mapping[str, Fixed]) -> list[Found]:
    """What is found for each family; the last ones, whose layouts are fewer, first: others hold them too."""
    search = Search(case, machine)
    searched = {colocated.NAME: _colocated, piper.NAME: _piper, disaggregated.NAME: search_disaggregated}
    found = {family: searched[family](search, fixed) for family, fixed in reversed([*asked.items()])}
    return [found[family] for family in asked]


def _colocated(search: Search, fixed: Fixed) -> Found:
    layouts = (one for one in colocated.layouts(search.case, chosen(fixed)) if has(one, fixed))
    return search.meshes(colocated.NAME, layouts)


def _piper(search: Search, fixed: Fixed) -> Found:
    """The best with any number of copies, and beside it the best of one copy: the paper's own mesh."""
    layouts = [one for one in piper.layouts(search.case, chosen(fixed)) if has(one, fixed)]
    alone = search.meshes(piper.NAME, (one for one in layouts if one.dp == 1)).best
    found = search.meshes(piper.NAME, layouts)
    return found if found.best is None or found.best.layout.dp == 1 else found._replace(uncopied=alone)


def _signed(found: Found, machine: Machine) -> Found:
    """`found` whose plan says how it was found, what it assumes and how sure it is."""
    if found.best is None:
        return found
    ended = f"; allocations: {found.allocations}" if found.allocations else ""
    solver = Solver(
        status=f"best of the search{ended}",
        gap=GAP,
        evaluated=found.simulated,
        pruned=sum(p.layouts for p in found.pruned),
    )
    if (relaxed := found.relaxed) is not None:
        solver = structs.replace(
            solver, bound_s=relaxed.seconds, gpu_price_s=relaxed.gpu_price_s, nic_price_s=relaxed.nic_price_s
        )
    plan = structs.replace(
        found.best,
        solver=solver,
        assumptions=ASSUMPTIONS,
        warnings=(
            *warnings_of(found.best),
            *assumed_rates(found.best.case, machine.calibration),
            *calibration_warnings(found.best.case, machine.calibration),
        ),
    )
    return found._replace(best=signed(sure(plan, machine)))


def winner(ranking: Ranking) -> Plan:
    """The best plan; InfeasibleError says by how much the nearest layout of each family fails."""
    if ranking.best is not None:
        return ranking.best
    limit = usable_bytes(ranking.case)
    misses = [_miss(found, ranking.case) for found in ranking.found if found.family in ranking.wanted]
    raise InfeasibleError(f"no layout for {limit / GIB:.3g} GiB of usable HBM per GPU; {'; '.join(misses)}")


def _miss(found: Found, case: Case) -> str:
    if found.mend is not None:
        return f"{found.family}: nearest is {mended(found.mend, case.model)}"
    if found.pruned:
        return f"{found.family}: {found.pruned[0].reason}"
    return f"{found.family}: no layout of {num_ranks(case.cluster)} GPUs: {found.excluded or 'none was searched'}"
