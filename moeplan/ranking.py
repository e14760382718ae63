"""What a search found: the best layout of each family, fastest first, and what is said about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from moeplan.layout import Disaggregated
from moeplan.optimizer.candidate import describe, tell
from moeplan.optimizer.evaluate import usable_bytes
from moeplan.optimizer.relaxation import Relaxed
from moeplan.optimizer.remedy import Mend
from moeplan.optimizer.search import Found
from moeplan.plan import Plan
from moeplan.spec.case import Case
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
        """Plain numbers, units in the names: `ranking`, one row per family, and `notes`, one line each."""
        return {"ranking": ranking_rows(self), "notes": ranking_notes(self)}

    def to_dataframe(self) -> pd.DataFrame:
        """One row per family, fastest first."""
        import pandas as pd

        return pd.DataFrame(ranking_rows(self))

    def _repr_html_(self) -> str:
        return html_table(ranking_table(self)) + html_lines([*layout_lines(self), *ranking_notes(self)])


def ranking_rows(ranking: Ranking) -> Rows:
    """One row per family, fastest first: the best plan's predictions, or by how much its nearest layout fails."""
    rows: Rows = []
    for found in ranking.found:
        plan = found.best
        row: dict[str, Any] = {"family": found.family, "layout": "-", "fits": plan is not None}
        if plan is not None:
            row |= {
                "layout": describe(plan.layout),
                "recompute": f"{plan.recompute.attention}/{plan.recompute.ffn}",
                "schedule": plan.schedule.name,
                "microbatches": plan.batch.microbatches,
                **prediction_row(plan),
            }
        elif found.mend is not None:
            miss = found.mend.miss
            row |= {"layout": describe(miss.candidate.layout), "short_gib": miss.short_bytes / GIB}
        rows.append(row)
    return rows


COLUMNS = {
    "family": "family",
    "step_s": "step s",
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
    """The layout of each family where something fits, one line each."""
    return [
        f"{row['family']}: {row['layout']}; {row['schedule']}, {row['microbatches']} micro-batches,"
        f" recompute attention/ffn {row['recompute']}"
        for row in ranking_rows(ranking)
        if "schedule" in row
    ]


def prediction_row(plan: Plan) -> dict[str, Any]:
    """The predictions of one plan, units in the names."""
    told = plan.predictions
    return {
        "step_s": told.step_s,
        "tokens_per_s": told.tokens_per_s,
        "mfu": told.mfu,
        "peak_hbm_gib": max(told.peak_hbm_bytes, default=0.0) / GIB,
        "exposed_communication_s": told.exposed_communication_s,
        "bubble": told.bubble,
    }


def ranking_notes(ranking: Ranking) -> list[str]:
    """What stands below the table: peak and assumptions, why the winner wins, why the rest was pruned."""
    notes = []
    case = ranking.case
    peak = case.cluster.gpu.peak_flop_per_s.get(case.workload.dtype, 0.0)
    notes.append(
        f"MFU against {peak / 1e12:.4g} TFLOP/s dense {case.workload.dtype} per GPU, causal attention; usable HBM"
        f" {usable_bytes(case) / GIB:.3g} GiB per GPU; routing balanced; exposed s and bubble: the busiest position's"
    )
    if reason(ranking):
        notes.append(f"why: {reason(ranking)}")
    if ranking.best is not None and ranking.best is not ranking.found[0].best:
        notes.append(f"the plan is that of {' or '.join(ranking.wanted)}; colocated stands beside it for comparison")
    if ranking.relaxed is not None:
        relaxed = ranking.relaxed
        notes.append(
            f"balanced attention:FFN split {relaxed.attention_gpus:.1f}:{relaxed.ffn_gpus:.1f} GPUs, memory ignored:"
            f" {relaxed.seconds:.4g} s{_against(ranking)}; one more GPU saves {relaxed.gpu_price_s * 1e3:.3g} ms,"
            f" one more NIC {relaxed.nic_price_s * 1e3:.3g} ms"
        )
    for found in ranking.found:
        if found.best is not None and found.uncopied is not None:
            alone, copied = found.uncopied.predictions.step_s, found.best.predictions.step_s
            notes.append(
                f"{found.family}: the paper's own mesh (dp 1), {describe(found.uncopied.layout)}, takes {alone:.4g} s;"
                f" copies (dp {found.best.layout.dp}) make the step {alone / copied:.2f}x as fast"
            )
        if found.mend is not None:
            fate = "nothing fits; nearest is" if found.best is None else "may be faster, but does not fit:"
            notes.append(f"{found.family}: {fate} {mended(found.mend)}")
        notes += [f"{found.family}: {p.layouts} pruned: {p.reason}, such as {p.witness}" for p in found.pruned]
    return notes


def _against(ranking: Ranking) -> str:
    for found in ranking.found:
        if found.best is not None and isinstance(found.best.layout, Disaggregated) and ranking.relaxed:
            return f" (the disaggregated layout takes {found.best.predictions.step_s / ranking.relaxed.seconds:.2f}x)"
    return ""


def mended(mend: Mend) -> str:
    """A layout that does not fit, by how much, and what would make it fit, in one line."""
    short = f"{tell(mend.miss.candidate)}, at least {mend.miss.short_bytes / GIB:.3g} GiB short per GPU"
    return f"{short}; it fits with {', or '.join(mend.changes)}" if mend.changes else short


def reason(ranking: Ranking) -> str:
    """Why the fastest family is ahead of the next, in one sentence."""
    first = ranking.found[0].best
    if first is None:
        return ""
    if len(ranking.found) == 1:
        return ""
    others = [f for f in ranking.found[1:] if f.best]
    if not others or others[0].best is None:
        return f"{ranking.found[0].family} wins: no other family has a layout that fits"
    one, two = first.predictions, others[0].best.predictions
    if one.step_s == two.step_s:
        return f"{ranking.found[0].family} and {others[0].family} hold the same layout"
    parts = {
        "exposed communication": two.exposed_communication_s - one.exposed_communication_s,
        "bubble": two.bubble * two.step_s - one.bubble * one.step_s,
    }
    parts["compute"] = two.step_s - one.step_s - sum(parts.values())
    told = ", ".join(f"{name} {value:+.3g} s" for name, value in parts.items())
    return (
        f"{ranking.found[0].family} is {two.step_s / one.step_s:.2f}x as fast as {others[0].family};"
        f" of the {two.step_s - one.step_s:.3g} s between them: {told}"
    )
