"""The search over disaggregated layouts: an allocation per number of group pairs, its neighbours, then the simulator.

For each frame (pairs of groups, copies of the pipeline, micro-batch) the integer program allocates GPUs and NICs to the
two sides under memory limits. Its choices and their neighbours (a few GPUs more or fewer, other recompute rules,
deeper warm-up, M2N deduplicated or not, larger micro-batches) are searched best first, as meshes are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from itertools import product
from types import MappingProxyType

from msgspec import structs

from moeplan.cost.durations import Machine
from moeplan.errors import InfeasibleError
from moeplan.layout import Disaggregated, Recompute
from moeplan.layouts.disaggregated import Frame, frames, sides
from moeplan.mesh import divisors
from moeplan.optimizer.allocation import solve
from moeplan.optimizer.candidate import MOST_ACTIONS, Candidate, has
from moeplan.optimizer.evaluate import usable_bytes
from moeplan.optimizer.ledger import Ledger
from moeplan.optimizer.relaxation import Relaxed, relax
from moeplan.optimizer.search import Found, Search
from moeplan.optimizer.sides import Sides, Sizes
from moeplan.options import Budgets
from moeplan.spec.case import Case
from moeplan.spec.cluster import domain_gpus, domains, num_ranks

SEEDS = 12
"""Allocations whose neighbours are searched."""
MICRO_BATCHES = (1, 2)
"""Sequences per attention rank and micro-batch that are tried."""
DEPTHS = (1, 2)
"""How much deeper the warm-up is made."""
STEPS = (0, 1, 2, 3, 4, 6, 8, 12, 16)
"""GPUs per attention group that a neighbour has more or fewer."""


def search_disaggregated(search: Search, fixed: Mapping[str, object] = MappingProxyType({})) -> Found:
    """The best disaggregated layout that has the degrees `fixed`.

    Its nearest miss says which memory is short where nothing fits.
    """
    case = search.case
    both = Sides(case, search.machine)
    ledger = Ledger(case.model)
    seeds: list[tuple[float, Candidate]] = []
    ends: Counter[str] = Counter()
    guess = cache(lambda dp: first_guess(case, search.machine, dp))
    for frame in frames(case):
        if any(fixed.get(name, value) != value for name, value in (("pairs", frame.pairs), ("dp", frame.dp))):
            continue
        if not has_room(case, frame, fixed):
            continue
        fewest = case.workload.global_batch * frame.pairs // (num_ranks(case.cluster) * 2)
        if 4 * case.model.num_layers * fewest > MOST_ACTIONS:
            ledger.add(f"more than {MOST_ACTIONS:,} actions in a step", _any_of(frame, 1, fixed))
            continue
        allocated = allocate(both, frame, ledger, guess, fixed)
        if allocated is not None:
            candidate, status = allocated
            ends[status] += 1
            seeds.append((both.bound_s(candidate.layout, candidate.recompute), candidate))  # type: ignore[arg-type]
    seeds.sort(key=lambda seed: seed[0])
    around = {near: None for _, seed in seeds[:SEEDS] for near in neighbours(case, seed, fixed)}
    entries = [(both.bound_s(near.layout, near.recompute), near) for near in around if has(near.layout, fixed)]  # type: ignore[arg-type]
    least = lambda near: both.least_bytes(near.layout, near.recompute)  # noqa: E731
    found = search.best_first("disaggregated", entries, ledger, least)
    relaxed = None
    if found.best is not None and isinstance(found.best.layout, Disaggregated):
        relaxed = balanced(case, search.machine, found.best.layout, found.best.recompute)
    ended = ", ".join(f"{count} {status}" for status, count in sorted(ends.items()))
    return found._replace(allocations=ended, relaxed=relaxed)


def allocate(
    both: Sides,
    frame: Frame,
    ledger: Ledger,
    guess: Callable[[int], Relaxed],
    fixed: Mapping[str, object] = MappingProxyType({}),
) -> tuple[Candidate, str] | None:
    """The integer program's choice for `frame` and how it ended; None where it has none, which the ledger then says.

    It starts from the relaxation, `guess(dp)`.
    """
    case = both.case
    largest = max(sides(case, frame)[1])
    short = both.static_bytes(Sizes(frame, 1, largest), "ffn") - usable_bytes(case)
    if short > 0:
        ledger.add("expert parameters exceed the usable HBM at every size", _any_of(frame, largest, fixed), short)
        return None
    table = both.table(frame, deduplicate=True)
    node = case.cluster.node
    budgets = Budgets(
        num_ranks(case.cluster) // frame.dp, node.nics * case.cluster.nodes // frame.dp, usable_bytes(case)
    )
    for side, options in (("attention", table.attention), ("FFN", table.ffn)):
        short = min(option.hbm_bytes for option in options) - budgets.hbm_bytes
        if short > 0:
            ledger.add(f"{side} groups exceed the usable HBM at every size", _any_of(frame, largest, fixed), short)
            return None
    try:
        choice = solve(table, budgets, start=guess(frame.dp))
    except InfeasibleError as error:
        ledger.add(str(error), _any_of(frame, largest, fixed))
        return None
    layout = Disaggregated(
        pairs=frame.pairs,
        attention_gpus=choice.attention.gpus,
        ffn_gpus=choice.ffn.gpus,
        attention_nics=choice.attention.nics,
        ffn_nics=choice.ffn.nics,
        dp=frame.dp,
        micro_batch=frame.micro_batch,
        deduplicate=domains(case.cluster) > 1,
    )
    rule = Recompute(attention=choice.attention.recompute, ffn=choice.ffn.recompute)  # type: ignore[arg-type]
    return Candidate(layout, "af-pipe", rule), choice.status


def has_room(case: Case, frame: Frame, fixed: Mapping[str, object]) -> bool:
    """Whether sides of the sizes `fixed`, or the smallest, can be those of `frame`."""
    attention, ffn = _each(frame, "attention_gpus", fixed), _each(frame, "ffn_gpus", fixed)
    most = num_ranks(case.cluster) // frame.dp // frame.pairs
    return attention is not None and ffn in sides(case, frame)[1] and attention + ffn <= most


def _each(frame: Frame, side: str, fixed: Mapping[str, object]) -> int | None:
    """Ranks of each group of a side as `fixed`, 1 where they are free; None where groups would not be equal."""
    ranks = fixed.get(side, frame.pairs)
    return ranks // frame.pairs if isinstance(ranks, int) and ranks % frame.pairs == 0 else None


def _any_of(frame: Frame, ffn: int, fixed: Mapping[str, object]) -> Candidate:
    """A candidate that stands for all of `frame`: FFN groups of `ffn` ranks, attention groups of one, or as `fixed`."""
    ranks = {"attention_gpus": frame.pairs, "ffn_gpus": frame.pairs * ffn}
    ranks |= {side: value for side, value in fixed.items() if side in ranks and isinstance(value, int)}
    layout = Disaggregated(
        pairs=frame.pairs, attention_gpus=ranks["attention_gpus"], ffn_gpus=ranks["ffn_gpus"], dp=frame.dp
    )
    return Candidate(layout, "af-pipe", Recompute(attention="full", ffn="experts"))


def neighbours(case: Case, seed: Candidate, fixed: Mapping[str, object] = MappingProxyType({})) -> list[Candidate]:
    """Layouts near `seed`: other sizes of both groups, recompute rules, depths, micro-batches, M2N rows.

    Micro-batches and sizes are as `fixed` where they are.
    """
    layout = seed.layout
    size = fixed.get("micro_batch")
    micro_batches = (size,) if isinstance(size, int) else MICRO_BATCHES
    if not isinstance(layout, Disaggregated):
        return []
    result = []
    for (m, n), attention, ffn, depth, once, b in product(
        sizes_near(case, layout, fixed),
        ("none", "full"),
        ("none", "experts"),
        DEPTHS,
        (True, False) if layout.deduplicate else (False,),
        micro_batches,
    ):
        nics = [gpus * case.cluster.node.nics // case.cluster.node.gpus for gpus in (m, n)]
        near = structs.replace(
            layout,
            attention_gpus=m,
            ffn_gpus=n,
            attention_nics=nics[0],
            ffn_nics=nics[1],
            depth=depth,
            deduplicate=once,
            micro_batch=b,
        )
        result.append(Candidate(near, seed.schedule, Recompute(attention=attention, ffn=ffn)))  # type: ignore[arg-type]
    return result


def sizes_near(case: Case, layout: Disaggregated, fixed: Mapping[str, object]) -> list[tuple[int, int]]:
    """GPUs of all attention and of all FFN groups near those of `layout`, or as `fixed`.

    FFN groups of the size before, the same and the next; attention groups a few ranks smaller or larger, and as large
    as there is room for.
    """
    frame = Frame(layout.pairs, layout.dp, 1)
    pairs, most = layout.pairs, num_ranks(case.cluster) // layout.dp // layout.pairs
    m, n = layout.attention_gpus // pairs, layout.ffn_gpus // pairs
    allowed = sides(case, frame)[1]
    at = allowed.index(n)
    widths = allowed[max(at - 1, 0) : at + 2]
    if "ffn_gpus" in fixed:
        widths = [ffn for ffn in allowed if ffn == _each(frame, "ffn_gpus", fixed)]
    result = []
    for ffn in widths:
        near = {m + sign * step for step in STEPS for sign in (-1, 1)} | {most - ffn}
        if "attention_gpus" in fixed:
            near = {_each(frame, "attention_gpus", fixed) or 0}
        result += [(size * pairs, ffn * pairs) for size in sorted(near) if 0 < size <= most - ffn]
    return result


def first_guess(case: Case, machine: Machine, dp: int) -> Relaxed:
    """The relaxation of one of `dp` copies, at the efficiencies of two equal sides."""
    half = max(1, num_ranks(case.cluster) // dp // 2)
    ffn = max(n for n in divisors(max(case.model.experts, 1)) if n <= half)
    even = Disaggregated(attention_gpus=half, ffn_gpus=ffn, dp=dp, deduplicate=domains(case.cluster) > 1)
    relaxed = balanced(case, machine, even, Recompute())
    return replace(relaxed, attention_gpus=relaxed.attention_gpus / dp, ffn_gpus=relaxed.ffn_gpus / dp)


def balanced(case: Case, machine: Machine, layout: Disaggregated, recompute: Recompute) -> Relaxed:
    """The continuous allocation with the efficiencies and the recompute rule of `layout`, memory ignored.

    A lower bound on the step of every split of these GPUs whose FFN groups have as many ranks and whose GEMMs are no
    more efficient: all layers and the head are spread evenly over each side, and only those rows cross NICs that cannot
    stay inside a node.
    """
    both = Sides(case, machine)
    frame = Frame(1, layout.dp, layout.micro_batch)
    sizes = Sizes(frame, layout.attention_gpus // layout.pairs, layout.ffn_gpus // layout.pairs)
    attention = both.attention_s(frame, sizes.attention, recompute.attention) * sizes.attention
    ffn = both.ffn_s(sizes, recompute.ffn) * sizes.ffn
    node = case.cluster.node
    stay = min(1.0, (domain_gpus(case.cluster) - 1) / sizes.ffn)
    return relax(
        attention * layout.dp,
        ffn * layout.dp,
        both.volume_bytes(frame, sizes.ffn, deduplicate=layout.deduplicate) * (1 - stay) * layout.dp,
        node.nic_bytes_per_s * machine.calibration.network.efficiency,
        Budgets(num_ranks(case.cluster), node.nics * case.cluster.nodes, usable_bytes(case)),
    )
