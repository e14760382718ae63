"""What a search found: the best layout of each family, fastest first, and what is said about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from moeplan.analytic.spread import interval
from moeplan.by_hand import as_options
from moeplan.caveats import batch_warnings
from moeplan.optimizer.candidate import describe, tell
from moeplan.optimizer.evaluate import usable_bytes
from moeplan.optimizer.relaxation import Relaxed
from moeplan.optimizer.remedy import Mend
from moeplan.optimizer.search import GAP, Found
from moeplan.plan import Plan, world_size
from moeplan.spec.case import Case
from moeplan.spec.cluster import num_ranks
from moeplan.spec.model import ModelSpec
from moeplan.tables import Rows, cell, html_lines, html_table

if TYPE_CHECKING:
    import pandas as pd

GIB = 1024**3


class Ranking(NamedTuple):
    """What was found, fastest family first; families where nothing fits come last."""

    case: Case
    wanted: tuple[str, ...]
    """Families from which the best plan is taken; the baseline may stand beside them for comparison only."""
    found: tuple[Found, ...]

    @property
    def relaxed(self) -> Relaxed | None:
        """The balanced split of the GPUs between attention and FFN; None where no family has two sides that fit."""
        return next((f.relaxed for f in self.found if f.relaxed is not None), None)

    @property
    def best(self) -> Plan | None:
        """The fastest plan of the wanted families."""
        return next((f.best for f in self.found if f.family in self.wanted), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, units in the names: `ranking`, one row per family, `notes`, one line each, and `pruned`."""
        return {"ranking": ranking_rows(self), "notes": ranking_notes(self), "pruned": pruned_rows(self)}

    def to_dataframe(self) -> pd.DataFrame:
        """One row per family, fastest first."""
        import pandas as pd

        return pd.DataFrame(ranking_rows(self))

    def _repr_html_(self) -> str:
        lines = html_lines([*layout_lines(self), *ranking_notes(self)])
        table = html_table(ranking_table(self)) if layout_lines(self) else ""
        return table + lines + html_table(pruned_rows(self), title=PRUNED_TITLE)

    def __repr__(self) -> str:
        told = ", ".join(f"{f.family} {f.best.predictions.step_s:.4g} s" if f.best else f.family for f in self.found)
        return f"Ranking({self.case.model.name} on {self.case.cluster.name}: {told})"


def ranking_rows(ranking: Ranking) -> Rows:
    """One row per family, fastest first: the best plan's predictions, or by how much its nearest layout fails."""
    rows: Rows = []
    for found in ranking.found:
        plan = found.best
        row: dict[str, Any] = {"family": found.family, "layout": "-", "fits": plan is not None}
        if plan is not None:
            row |= {
                "layout": describe(plan.layout, plan.case.model),
                "recompute": f"{plan.recompute.attention}/{plan.recompute.ffn}",
                "schedule": plan.schedule.name,
                "microbatches": plan.batch.microbatches,
                "options": as_options(plan),
                "gpus": world_size(plan),
                **prediction_row(plan),
            }
        elif found.mend is not None:
            miss = found.mend.miss
            row |= {"layout": describe(miss.candidate.layout, ranking.case.model), "short_gib": miss.short_bytes / GIB}
        rows.append(row)
    return rows


COLUMNS = {
    "family": "family",
    "gpus": "GPUs",
    "step_s": "step s",
    "low_s": "low s",
    "high_s": "high s",
    "tokens_per_s": "tokens/s",
    "mfu": "MFU",
    "peak_hbm_gib": "peak GiB",
    "exposed_communication_s": "exposed s",
    "bubble": "bubble",
    "short_gib": "short GiB",
}
"""What stands in the ranked table, and what people call it."""


def ranking_table(ranking: Ranking) -> Rows:
    """The ranked table as people see it: one row per family, numbers as text."""
    rows = ranking_rows(ranking)
    used = [key for key in COLUMNS if any(key in row for row in rows)]
    return [{COLUMNS[k]: cell(row.get(k, "-"), k) for k in used} for row in rows]


def layout_lines(ranking: Ranking) -> list[str]:
    """The layout of each family where something fits, as options of `moeplan estimate`, one line each."""
    return [
        f"{row['family']}: {row['options']} ({row['microbatches']} micro-batch{'es' * (row['microbatches'] > 1)})"
        for row in ranking_rows(ranking)
        if "schedule" in row
    ]


PRUNED_TITLE = "not simulated, with one of each class"


def pruned_rows(ranking: Ranking) -> Rows:
    """One row per class of layouts that was not simulated: how many, why, and one of them."""
    return [
        {"family": found.family, "layouts": p.layouts, "because": p.reason, "such_as": p.witness}
        for found in ranking.found
        for p in found.pruned
    ]


def prediction_row(plan: Plan) -> dict[str, Any]:
    """The predictions of one plan, units in the names; nine of ten steps lie between `low_s` and `high_s`."""
    told = plan.predictions
    low_s, high_s = interval(told.step_s, told.spread)
    return {
        "step_s": told.step_s,
        **({"low_s": low_s, "high_s": high_s} if told.spread else {}),
        "tokens_per_s": told.tokens_per_s,
        "mfu": told.mfu,
        "peak_hbm_gib": max(told.peak_hbm_bytes, default=0.0) / GIB,
        "exposed_communication_s": told.exposed_communication_s,
        "bubble": told.bubble,
    }


def ranking_notes(ranking: Ranking) -> list[str]:
    """What stands below the table: peak and assumptions, why the winner wins, and what stands beside it."""
    case = ranking.case
    if not layout_lines(ranking):
        return [_nothing(ranking), *(note for found in ranking.found for note in _family_notes(found, case))]
    peak = case.cluster.gpu.peak_flop_per_s.get(case.workload.dtype, 0.0)
    notes = [
        f"MFU against {peak / 1e12:.4g} TFLOP/s dense {case.workload.dtype} of each of {num_ranks(case.cluster)} GPUs,"
        f" causal attention; {usable_bytes(case) / GIB:.3g} GiB of HBM usable per GPU (memory.usable"
        f" {case.memory.usable:g}); routing balanced; exposed s and bubble: mean over the GPUs used"
    ]
    if reason(ranking):
        notes.append(f"why: {reason(ranking)}")
    if ranking.best is not None and ranking.best is not ranking.found[0].best:
        notes.append(f"the plan is that of {' or '.join(ranking.wanted)}; colocated stands beside it for comparison")
    for found in ranking.found:
        notes += _family_notes(found, case)
    return notes


def _nothing(ranking: Ranking) -> str:
    """What was tried where nothing fits, and whose miss is the nearest, in one line."""
    case, families = ranking.case, [found.family for found in ranking.found]
    tried = sum(found.simulated + sum(p.layouts for p in found.pruned) for found in ranking.found)
    near = [(f.mend.miss.short_bytes, f.family) for f in ranking.found if f.mend is not None]
    short = f"; nearest is one of {min(near)[1]}, {min(near)[0] / GIB:.3g} GiB short per GPU" if near else ""
    return (
        f"nothing fits: {tried:,} layouts of {', '.join(families)} on {num_ranks(case.cluster)} GPUs with"
        f" {usable_bytes(case) / GIB:.3g} GiB of HBM usable each (memory.usable {case.memory.usable:g}){short}"
    )


def _family_notes(found: Found, case: Case) -> list[str]:
    notes = []
    if found.best is None and found.mend is None and not found.pruned:
        why = f": {found.excluded}" if found.excluded else ""
        notes.append(f"{found.family}: no layout has the degrees that were set{why}")
    if found.best is not None:
        dealt = batch_warnings(found.best.batch, len(found.best.graph.positions))
        notes += [f"{found.family}: {warning}" for warning in dealt]
    if found.best is not None and found.relaxed is not None:
        ideal, step_s = found.relaxed, found.best.predictions.step_s
        prices = {"GPU": ideal.gpu_price_s, "NIC": ideal.nic_price_s}
        worth = ", ".join(f"one more {name} would save {s * 1e3:.3g} ms" for name, s in prices.items() if s > 0)
        notes.append(
            f"{found.family}: at its efficiencies a continuous split, memory ignored, balances attention and FFN at"
            f" {ideal.attention_gpus:.1f}:{ideal.ffn_gpus:.1f} GPUs and takes {ideal.seconds:.4g} s (the layout"
            f" {step_s / ideal.seconds:.2f}x as long){f'; there {worth}' if worth else ''}"
        )
    if found.best is not None and found.uncopied is not None:
        mesh = describe(found.uncopied.layout, case.model)
        alone, copied = found.uncopied.predictions.step_s, found.best.predictions.step_s
        notes.append(
            f"{found.family}: the paper's own mesh (dp 1), {mesh}, takes {alone:.4g} s;"
            f" copies (dp {found.best.layout.dp}) make the step {alone / copied:.2f}x as fast"
        )
    if found.mend is not None:
        fate = "nothing fits; nearest is" if found.best is None else "would be faster, but does not fit:"
        notes.append(f"{found.family}: {fate} {mended(found.mend, case.model)}")
    return notes


def mended(mend: Mend, model: ModelSpec) -> str:
    """A layout that does not fit, by how much, and what would make it fit, in one line."""
    seconds = f" (at least {mend.miss.bound_s:.4g} s)" if mend.miss.bound_s < float("inf") else ""
    short = f"{tell(mend.miss.candidate, model)}{seconds}, {mend.miss.short_bytes / GIB:.3g} GiB short per GPU"
    return f"{short}; it fits with {', or '.join(mend.changes)}" if mend.changes else short


def reason(ranking: Ranking) -> str:
    """Why the plan's family is ahead of the next other layout, or behind the baseline, in one sentence."""
    best = ranking.best
    if best is None or len(ranking.found) == 1:
        return ""
    name = str(best.layout.__struct_config__.tag)
    same = {f.family for f in ranking.found if f.best and _told(f.best) == _told(best)}
    others = [f.best for f in ranking.found if f.best and f.family not in same]
    if not others:
        alike = " and ".join(sorted(same))
        return f"{alike} hold the same layout" if len(same) > 1 else f"only {name} has a layout that fits"
    return _compared(best, others[0], name)


def _told(plan: Plan) -> tuple[object, ...]:
    """What two plans of one layout share, whatever their family."""
    return plan.predictions.step_s, plan.predictions.peak_hbm_bytes, plan.schedule


def _compared(best: Plan, other: Plan, name: str) -> str:
    one, two = best.predictions, other.predictions
    differs = {
        "exposed communication": one.exposed_communication_s - two.exposed_communication_s,
        "waiting": one.bubble * one.step_s - two.bubble * two.step_s,
    }
    differs["compute"] = one.step_s - two.step_s - sum(differs.values())
    told = ", ".join(
        f"{abs(seconds):.3g} s {'more' if seconds > 0 else 'less'} {part}"
        for part, seconds in sorted(differs.items(), key=lambda item: -abs(item[1]))
    )
    tie = f", which is a tie: the search leaves {GAP:.0%} open" if abs(two.step_s / one.step_s - 1) < GAP else ""
    return (
        f"{name} takes {one.step_s:.4g} s where {other.layout.__struct_config__.tag} takes {two.step_s:.4g} s{tie}; its"
        f" GPUs spend on average {told}"
    )
