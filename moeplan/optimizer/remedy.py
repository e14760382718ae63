"""What would have to change for a layout that does not fit: other recompute, smaller micro-batches, more GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from math import ceil
from typing import NamedTuple

from msgspec import structs

from moeplan.draft import dealt
from moeplan.errors import SpecError
from moeplan.layout import Disaggregated, Layout, Piper
from moeplan.layouts import stages
from moeplan.mesh import divisors
from moeplan.optimizer.candidate import MOST_ACTIONS, RECOMPUTE, Candidate, describe
from moeplan.optimizer.evaluate import usable_bytes
from moeplan.optimizer.ledger import Miss
from moeplan.optimizer.room import Room
from moeplan.spec.case import Case
from moeplan.spec.cluster import with_nodes

GROWTH = (2, 3, 4, 8)
"""Times as many nodes that are tried."""


MOST_USABLE = 0.93
"""Share of the HBM that may be advised: what lies beside tensors (reserve, communicators, context) takes the rest."""


class Mend(NamedTuple):
    """A layout that does not fit, and the least change of each kind that makes it fit, alone."""

    miss: Miss
    changes: tuple[str, ...]
    """Such as "recompute full/none (at least 3.1 s)" or "64 nodes of 8 GPUs (pp 16)"; empty where none was found."""


def mend(case: Case, miss: Miss, bounded: Callable[[Candidate], float], faster_than_s: float | None = None) -> Mend:
    """The changes that make `miss` fit: on the same GPUs, with a little more of their HBM, on more of such nodes.

    What `bounded` says takes as long as `faster_than_s` on the same GPUs is no remedy.
    """
    limit_s = float("inf") if faster_than_s is None else faster_than_s
    told = []
    for kind in (_recomputed(case, miss.candidate), _smaller(case, miss.candidate)):
        for changed in islice(kind, 1):
            if (bound_s := bounded(changed)) < limit_s:
                told.append(f"{_difference(miss.candidate, changed)} (at least {bound_s:.4g} s)")
    share = case.memory.usable + miss.short_bytes / case.cluster.gpu.hbm_bytes
    if share <= MOST_USABLE:
        told.append(f"memory.usable {ceil(share * 1000) / 1000:g}")
    return Mend(miss, tuple([*told, *islice(_grown(case, miss.candidate), 1)]))


def _difference(before: Candidate, after: Candidate) -> str:
    if before.recompute != after.recompute:
        return f"recompute {after.recompute.attention}/{after.recompute.ffn}"
    return f"micro-batch {after.layout.micro_batch}"


def _recomputed(case: Case, short: Candidate) -> Iterator[Candidate]:
    """Rules further down the list, which keep less on one side at least; between two sides no rows are sent again."""
    two_sides = isinstance(short.layout, Disaggregated)
    for rule in RECOMPUTE[RECOMPUTE.index(short.recompute) + 1 :]:
        if two_sides and rule.ffn == "full":
            continue
        if fits(case, changed := short._replace(recompute=rule)):
            yield changed


def _smaller(case: Case, short: Candidate) -> Iterator[Candidate]:
    """Smaller micro-batches, largest first."""
    for size in divisors(short.layout.micro_batch)[-2::-1]:
        if fits(case, changed := short._replace(layout=structs.replace(short.layout, micro_batch=size))):
            yield changed


def _grown(case: Case, short: Candidate) -> Iterator[str]:
    """Several times as many nodes, fewest first, with one or two degrees that many times larger."""
    for times in GROWTH if case.cluster.node.nics else ():
        if (cluster := with_nodes(case.cluster, case.cluster.nodes * times)) is None:
            return
        for layout in grown(short.layout, times):
            if fits(structs.replace(case, cluster=cluster), short._replace(layout=layout)):
                yield f"{cluster.nodes} nodes of {cluster.node.gpus} GPUs ({describe(layout, case.model)})"


def grown(layout: Layout, times: int) -> Iterator[Layout]:
    """`layout` on `times` as many GPUs: longer pipelines, larger groups, more copies."""
    names: tuple[tuple[str, ...], ...] = (("pp",), ("ep", "dp"), ("dp",))
    if isinstance(layout, Piper):
        names = (("pp",), ("ep",), ("dp",))
    if isinstance(layout, Disaggregated):
        sides = ("attention_gpus", "ffn_gpus", "attention_nics", "ffn_nics")
        names = (("pairs", *sides), sides, ("dp",))
    for chosen in names:
        yield structs.replace(layout, **{name: getattr(layout, name) * times for name in chosen})


def fits(case: Case, candidate: Candidate) -> bool:
    """Whether `candidate` is a layout of `case` whose fullest rank fits into the usable HBM."""
    return is_layout(case, candidate) and Room(case).peak_bytes(candidate) <= usable_bytes(case)


def is_layout(case: Case, candidate: Candidate) -> bool:
    """Whether `candidate` breaks no rule of its family and has no order too long to simulate."""
    try:
        graph = stages(case, candidate.layout)
    except SpecError:
        return False
    return 2 * len(graph.stages) * dealt(case, candidate.layout, graph).microbatches <= MOST_ACTIONS
