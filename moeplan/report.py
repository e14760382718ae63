"""What users read: tables of rankings, plans and simulations, as text, JSON or CSV. Numbers carry their unit."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from moeplan.caveats import mfu_basis
from moeplan.closed import PEAKS_TITLE, SIMULATED_TITLE, ClosedEstimate, closed_rows, closed_title
from moeplan.estimator import HBM_TITLE, SECONDS_TITLE, Estimate, estimate_facts, estimate_tables
from moeplan.exchanges import exchange_text
from moeplan.layout import experts_of
from moeplan.optimizer.candidate import describe
from moeplan.plan import Plan, world_size
from moeplan.ranking import PRUNED_TITLE, Ranking, layout_lines, prediction_row, pruned_rows, ranking_table
from moeplan.ranking import ranking_notes as ranking_notes
from moeplan.ranking import ranking_rows as ranking_rows
from moeplan.resources.parameters import active_parameters, counted, mtp_parameters, total_parameters
from moeplan.spec.execution import Execution
from moeplan.spec.model import ModelSpec, has_ffn, is_dense, moe_layers
from moeplan.spec.override import settings_text
from moeplan.spec.workload import Memory
from moeplan.tables import Rows, columns_of
from moeplan.tables import cell as cell
from moeplan.tables import heading as heading

if TYPE_CHECKING:
    from rich.table import Table

    from moeplan.analytic.forecast import Forecast
    from moeplan.simulate import Metrics

GIB = 1024**3
UNCUT = 10**9
"""Columns that no table has."""
LONG_WORD = 24
"""Longer words, such as paths, are folded where a terminal is narrow."""


def print_ranking(ranking: Ranking, out: TextIO) -> None:
    """The ranked table and the layout of each row, where something fits, the notes, and what was not simulated."""
    if layouts := layout_lines(ranking):
        print_table(ranking_table(ranking), out)
        print("as options of moeplan estimate:", *layouts, "", sep="\n", file=out)
    print(*ranking_notes(ranking), sep="\n", file=out)
    if pruned := pruned_rows(ranking):
        print_table(pruned, out, title=PRUNED_TITLE)


def plan_facts(plan: Plan) -> dict[str, Any]:
    """A plan in a few lines."""
    model, workload, told = plan.case.model, plan.case.workload, plan.predictions
    return {
        "model": model.name,
        "parameters": total_parameters(model),
        "active_parameters": active_parameters(model),
        "counted": counted(model),
        "weights_gb": total_parameters(model) * plan.case.memory.weight_bytes / 1e9,
        "weights_gib": total_parameters(model) * plan.case.memory.weight_bytes / GIB,
        "cluster": plan.case.cluster.name,
        "world": world_size(plan),
        "seq_len": workload.seq_len,
        "global_batch": workload.global_batch,
        "dtype": workload.dtype,
        "layout": f"{plan.layout.__struct_config__.tag} {describe(plan.layout, model)}",
        "schedule": plan.schedule.name,
        "microbatches": plan.batch.microbatches,
        "recompute": ", ".join(
            [f"attention {plan.recompute.attention}", f"ffn {plan.recompute.ffn}", *plan.recompute.modules]
        ),
        **({"exchange": exchange_text(plan)} if moe_layers(model) else {}),
        "execution": settings_text(plan.case.execution, Execution()),
        "memory": settings_text(plan.case.memory, Memory()),
        **prediction_row(plan),
        "peak_flop_per_s": told.peak_flop_per_s,
        "mfu_of": mfu_basis(plan.case, told.peak_flop_per_s),
    }


def model_row(model: ModelSpec) -> dict[str, Any]:
    """One shipped model: its shape and the counts that follow; `mtp` (sharing embedding and head) is in no other."""
    return {
        "model": model.name,
        "parameters": total_parameters(model),
        "active": active_parameters(model),
        "mtp": mtp_parameters(model, own_copies=False),
        "layers": model.num_layers,
        "dense_layers": sum(is_dense(model, n) and has_ffn(model, n) for n in range(model.num_layers)),
        "hidden": model.hidden,
        "attention": " and ".join(str(m.__struct_config__.tag) for m in (model.attention, model.mixer) if m),
        "experts": model.experts,
        "top_k": model.top_k,
        "expert_width": model.expert_width,
        "shared": model.shared_experts,
        "assumed": ", ".join(model.assumed),
    }


def print_estimate(told: Estimate, out: TextIO) -> None:
    """The step, then per position memory and seconds, then the closed form; the fullest position is marked with *."""
    facts = [{"what": heading(k), "value": cell(v, k)} for k, v in estimate_facts(told).items()]
    print_table(facts, out, title=SIMULATED_TITLE)
    memory, spent = estimate_tables(told)
    print_table(memory, out, title=HBM_TITLE)
    print_table(spent, out, title=SECONDS_TITLE)
    print_closed_form(told.closed_form, out)
    for note in told.notes:
        print(note, file=out)


def print_closed_estimate(told: ClosedEstimate, out: TextIO) -> None:
    """The step in closed form, the memory of each position where it is known, and what a user should know."""
    print_closed_form(told.step, out)
    if told.positions:
        print_table(told.positions, out, title=PEAKS_TITLE)
    for warning in told.warnings:
        print(warning, file=out)


def print_closed_form(told: Forecast | None, out: TextIO) -> None:
    """The step in closed form with its interval and its parts, or in one word that there is none."""
    if told is None:
        print("closed form: none", file=out)
    else:
        print_table(closed_rows(told), out, title=closed_title(told))


def position_rows(plan: Plan) -> Rows:
    """One row per pipeline position: its ranks, layers, experts per rank and HBM."""
    rows: Rows = []
    for number, position in enumerate(plan.graph.positions):
        here = [p for p in plan.graph.pieces if number in plan.graph.stages[p.stage]]
        layers = sorted({p.layer for p in here if p.kind in ("attention", "experts", "dense")})
        static, peak = plan.predictions.static_hbm_bytes, plan.predictions.peak_hbm_bytes
        row: dict[str, Any] = {
            "position": position.name,
            "ranks": ranges([rank for group in position.ranks for rank in group]),
            "layers": ranges(layers),
        }
        if any(p.kind == "experts" for p in here):
            row["experts_per_rank"] = len(experts_of(plan.case.model, plan.graph, 0))
        if number < len(peak):
            row |= {"static_gib": static[number] / GIB, "peak_gib": peak[number] / GIB, "peak_gb": peak[number] / 1e9}
        rows.append(row)
    return rows


def use_rows(plan: Plan, use: Metrics) -> Rows:
    """One row per position: where the time of the simulated step goes."""
    return [
        {
            "position": position.name,
            "compute_s": part.compute_ns / 1e9,
            "exposed_communication_s": part.exposed_ns / 1e9,
            "bubble_s": part.bubble_ns / 1e9,
            "bubble": part.bubble_ns / max(use.step_ns, 1),
        }
        for position, part in zip(plan.graph.positions, use.positions, strict=True)
    ]


def ranges(numbers: Sequence[int]) -> str:
    """`0-3,8`: whole numbers with runs written as ranges."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def as_json(value: Any) -> str:
    """`value` as indented JSON."""
    return json.dumps(value, indent=1)


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """`rows` as CSV; columns in the order in which they first appear."""
    columns = columns_of(rows)
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().rstrip("\n")


def print_table(rows: Sequence[Mapping[str, Any]], out: TextIO, *, title: str = "") -> None:
    """`rows` as a table: as wide as a terminal is, else plain text as wide as it needs, without blanks at line ends.

    A terminal that is too narrow for whole words and numbers wraps the lines by itself.
    """
    from rich.console import Console

    terminal, table = out.isatty(), _table(rows)
    console = Console(file=out, highlight=False, markup=False, emoji=False, force_terminal=terminal)
    needs = console.measure(table, options=console.options.update(max_width=UNCUT)).maximum
    if not terminal:
        console.width = needs
    elif needs > console.width:
        console.width = max(console.width, _narrowed(table, needs, console.width))
    with console.capture() as drawn:
        if title:
            console.print(title, style="italic", soft_wrap=not terminal)
        console.print(table)
    lines = drawn.get().split("\n")
    out.write("\n".join(map(str.rstrip, lines)))


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    columns = columns_of(rows)
    for column in columns:
        numeric = any(
            isinstance(row.get(column), int | float) and not isinstance(row.get(column), bool) for row in rows
        )
        table.add_column(heading(column), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell(row.get(column, ""), column)) for column in columns))
    return table


def _narrowed(table: Table, needs: int, room: int) -> int:
    """Columns of `table`, which `needs` more than `room`, made narrower where they have several words; its width then.

    None is narrower than its longest word, up to LONG_WORD.
    """
    from rich.cells import cell_len

    texts = [[str(column.header), *map(str, column.cells)] for column in table.columns]
    most = [max(map(cell_len, column)) for column in texts]
    least = [
        min(LONG_WORD, max(cell_len(word) for text in column for word in text.split() or [""])) for column in texts
    ]
    spare = max(0, room - (needs - sum(most)) - sum(least))
    wanted = sum(most) - sum(least)
    for column, low, high in zip(table.columns, least, most, strict=True):
        column.width = low + spare * (high - low) // wanted if wanted else low
    return needs - sum(most) + sum(column.width or 0 for column in table.columns)
