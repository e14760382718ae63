"""A row of runs as moeplan's own records, with a list of what was not published."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import structs

from moeplan.by_hand import ByHand, layout_of
from moeplan.errors import MoeplanError, SpecError
from moeplan.estimator import usual_schedule
from moeplan.layout import Colocated, Recompute
from moeplan.mesh import check_degrees
from moeplan.spec.case import Case
from moeplan.spec.cluster import num_ranks
from moeplan.spec.execution import Execution
from moeplan.spec.model import ModelSpec
from moeplan.spec.override import override
from moeplan.spec.record import validated
from moeplan.spec.workload import Workload
from moeplan.validation.alike import Told
from moeplan.validation.degrees import degrees, expert_parallel, global_batch, seq_len
from moeplan.validation.names import Names
from moeplan.validation.outcome import Skip, skipping
from moeplan.validation.recompute import recompute_rule
from moeplan.validation.stacks import Stacks, Unknown
from moeplan.validation.tables import Run
from moeplan.validation.unread import MOST, unread
from moeplan.validation.words import DISPATCHERS, left_out, named_last, said, schedule_named, sharded, tells_overlap

UNITS = {
    f"{prefix}{end}": float(base**power)
    for prefix, power in (("m", 2), ("g", 3), ("t", 4))
    for end, base in (("b", 1000), ("ib", 1024))
}
"""Bytes of each unit of memory, in small letters."""
UNIT = r"[MGT]i?B"
MODULES = ("recompute.modules=norm,activation",)
EVERYTHING = ("recompute.attention=full", "recompute.ffn=full")
"""What may be computed again where the column is empty: cheap modules, or all."""
DP = "dp is not what the other degrees leave"
BATCH = "the global batch is less than one micro-batch per data-parallel rank"
DEGREES = ("tp", "pp", "cp")
"""Columns that are 1 where they are empty, and may be more."""
FURTHER = 2
"""What they may be: who divides a job further says so (assumed)."""
LEAST_CONTEXT = 8192
"""Tokens of a sequence that each rank has where contexts may have been divided (assumed)."""
USUALLY_HIDDEN = ("gradients", "parameters", "tensor")
"""Communication that may have run behind compute where neither a row nor its source says what did."""
KINDS = ("all_to_all", "deepep", "hybridep")
"""Dispatchers that may have run where none is named."""


class Setting(NamedTuple):
    """A row as records."""

    case: Case
    layout: Colocated
    recompute: Recompute
    schedule: str
    """1f1b, interleaved, gpipe, or a schedule that only the analytic step knows: see `words.SCHEDULES`."""
    unknown: tuple[Unknown, ...] = ()
    """What was not published; what is taken instead is in the other fields."""
    notes: tuple[str, ...] = ()
    """What the row did that no record says."""


AS_PUBLISHED = Execution(exchange="flat")
"""All-to-alls go straight, as NCCL and RCCL send them: no row is of another software."""


def setting(run: Run, names: Names, stacks: Stacks) -> Setting:
    """The row's model, machine, workload, memory, execution, layout, recompute rule and schedule.

    Empty cells are taken from the row of the same source that is most alike, else as `degrees` and `stacks` say. Skip
    for a model, machine, element type, module or layout that moeplan has not; SpecError for a name nobody explains.
    """
    whole = stacks.whole(run)
    filled, model = whole.run, names.model(run.model)
    settings = [f"memory.mtp={str(model.mtp_layers > 0).lower()}", *stacks.settings(filled)]
    rule = recompute_rule(filled.recompute, model.num_layers // (filled.pp or 1))
    cluster = names.part(run.hardware, run.gpus)
    workload = Workload(seq_len=seq_len(filled), global_batch=global_batch(filled))
    plain = Case(model=model, cluster=cluster, workload=workload, execution=AS_PUBLISHED)
    given = degrees(filled, model)
    with skipping():
        layout = _layout(plain, given)
        found = Setting(plain, layout, rule.recompute, schedule_named(filled) or usual_schedule(layout))
        found = vary(found, settings)
    if run.dp and run.dp != (dp := found.layout.dp):
        raise Skip(DP, f"dp: {run.dp} is not what the other degrees leave, gpus / (tp pp cp) = {dp}")
    if found.layout.micro_batch * found.layout.dp > workload.global_batch:
        each, dp = found.layout.micro_batch, found.layout.dp
        raise Skip(
            BATCH, f"global_batch: {workload.global_batch} is less than {dp} micro-batches of {each}, one per rank"
        )
    empty = (*_empty(run, whole, model), *_degrees(filled, plain, found.layout), *_behind(found, filled, stacks))
    open_ = {entry.name: entry for entry in (*empty, *stacks.unknown(run))}
    unknown = tuple(told for entry in open_.values() if (told := _possible(found, entry)).alternatives)
    fewer = ["fewer virtual stages, so that each has a layer"] if filled.vpp and filled.vpp != (given.vpp or 1) else []
    strange = [f"not understood: {', '.join(words[:MOST])}"] if (words := unread(run)) else []
    notes = (*([rule.note] if rule.note else []), *left_out(filled), *fewer, *strange)
    return found._replace(unknown=unknown, notes=notes)


def _layout(case: Case, given: ByHand) -> Colocated:
    layout = layout_of(case, given)
    if not isinstance(layout, Colocated):  # pragma: no cover - rows name no degree of another family
        raise SpecError("layout: not colocated")
    check_degrees(case.model, layout, num_ranks(case.cluster))
    return layout


def vary(found: Setting, settings: Sequence[str]) -> Setting:
    """`found` with settings as in `--set`; those of layout. and recompute. beside the case's. SpecError as `override`.

    execution.hidden+=tensor adds a name and execution.hidden-=tensor takes it away. With other virtual stages the
    layers are cut anew, as evenly as can be; the schedule follows.
    """
    split = {head: [s for s in settings if s.startswith(head)] for head in ("layout.", "recompute.")}
    of_case = [_hidden(found.case, s) for s in settings if not s.startswith(tuple(split))]
    case = override(found.case, of_case) if of_case else found.case
    layout = _changed(found.layout, split["layout."])
    check_degrees(case.model, layout, num_ranks(case.cluster))
    usual = found.schedule == usual_schedule(found.layout)
    schedule = usual_schedule(layout) if usual else found.schedule
    return found._replace(case=case, layout=layout, schedule=schedule, recompute=_recompute(found, split["recompute."]))


def _hidden(case: Case, setting: str) -> str:
    """`setting`, or where it adds or takes away a name of what is hidden, all names that are left."""
    path, _, name = setting.partition("=")
    if path not in ("execution.hidden+", "execution.hidden-"):
        return setting
    names = {*case.execution.hidden, name} if path.endswith("+") else {*case.execution.hidden} - {name}
    return f"execution.hidden={sorted(names)}"


def _changed(layout: Colocated, settings: Sequence[str]) -> Colocated:
    values = [setting.removeprefix("layout.").partition("=") for setting in settings]
    changes = {name: int(value) for name, _, value in values}
    stages = changes.get("pp", layout.pp) * changes.get("vpp", layout.vpp)
    split = layout.split if stages == len(layout.split) else ()
    return structs.replace(layout, **changes, split=split) if changes else layout


def _recompute(found: Setting, settings: Sequence[str]) -> Recompute:
    changes: dict[str, object] = {}
    for name, _, value in (s.partition("=") for s in settings):
        field = name.removeprefix("recompute.")
        changes[field] = tuple(value.split(",")) if field == "modules" else value
    return validated(structs.replace(found.recompute, **changes), "recompute") if changes else found.recompute


def _possible(found: Setting, entry: Unknown) -> Unknown:
    """`entry` without alternatives that change nothing, or that do not go together with the rest."""
    idle = {"tensor": found.layout.tp, "dispatcher": found.layout.ep}
    kept = []
    for alternative in entry.alternatives if idle.get(entry.name) != 1 else ():
        try:
            if vary(found, alternative)[:4] != found[:4]:
                kept.append(alternative)
        except MoeplanError:
            continue
    return Unknown(entry.name, tuple(kept))


def _empty(run: Run, whole: Told, model: ModelSpec) -> list[Unknown]:
    """What an empty cell may hold beside what is taken for it."""
    filled, found = whole.run, []
    if (run.pp or 1) > 1 and not (run.vpp or _one_chunk(run)):
        asked = {1, 2, 4, *(value for value in whole.values.get("vpp", ()) if isinstance(value, int))}
        found.append(Unknown("vpp", tuple((f"layout.vpp={value}",) for value in sorted(asked))))
    if not run.micro_batch:
        larger = (2,) if (run.pp or 1) > 1 else (2, 4)
        found.append(Unknown("micro_batch", tuple((f"layout.micro_batch={size}",) for size in larger)))
    if not run.global_batch:
        batch = global_batch(filled)  # a multiple of 4
        sizes = [batch // 4, batch // 2, batch * 2, batch * 4]
        found.append(Unknown("global_batch", tuple((f"workload.global_batch={size}",) for size in sizes)))
    if not run.seq_len:
        found.append(Unknown("seq_len", tuple((f"workload.seq_len={tokens}",) for tokens in (2048, 8192))))
    if not run.recompute:
        found.append(Unknown("recompute", (MODULES, EVERYTHING)))
    if not run.dtype:
        found.append(Unknown("dtype", (("execution.linear=fp8",),)))
    return found + (_of_experts(run, whole, model) if model.experts else [])


def _behind(found: Setting, run: Run, stacks: Stacks) -> list[Unknown]:
    """What may run behind compute where nobody says what does."""
    if tells_overlap(run) or stacks.tells(run):
        return []
    names = sorted({*found.case.execution.hidden, *USUALLY_HIDDEN})
    return [Unknown("overlap", ((f"execution.hidden={names}",),))]


def _degrees(run: Run, plain: Case, taken: Colocated) -> list[Unknown]:
    """Degrees that may stand in empty cells of a row that does not say how many data-parallel ranks they leave.

    Contexts are divided where `LEAST_CONTEXT` tokens are left to each rank.
    """
    most = {"tp": plain.cluster.node.gpus, "pp": run.gpus, "cp": plain.workload.seq_len // LEAST_CONTEXT}
    empty = [name for name in DEGREES if not getattr(run, name) and most[name] >= FURTHER] if not run.dp else []
    return [Unknown(name, (_with_degree(run, plain, taken, name),)) for name in empty]


def _with_degree(run: Run, plain: Case, taken: Colocated, name: str) -> tuple[str, ...]:
    """Settings of the layout that the row has with `FURTHER` in the column `name`; none where there is none."""
    try:
        other = _layout(plain, degrees(structs.replace(run, **{name: FURTHER}), plain.model))
    except (MoeplanError, Skip):
        return ()
    whole = (*DEGREES, "vpp", "ep", "etp", "dp")
    return tuple(f"layout.{d}={value}" for d in whole if (value := getattr(other, d)) != getattr(taken, d))


def _one_chunk(run: Run) -> bool:
    """Whether the row names a schedule in which virtual stages are not what `vpp` counts."""
    return bool(schedule_named(run)) or ("1f1b" in said(run) and "interleaved" not in said(run))


def _of_experts(run: Run, whole: Told, model: ModelSpec) -> list[Unknown]:
    """As `_empty` for a model with experts; with FSDP they are cut as attention is."""
    found = []
    if not run.ep:
        usual = expert_parallel(run, model)
        found.append(Unknown("ep", tuple((f"layout.ep={degree}",) for degree in (usual // 2, usual * 2))))
    if not run.etp and (run.tp or 1) > 1 and not sharded(run):
        found.append(Unknown("etp", (("layout.etp=1",),)))
    if "dispatcher_or_overlap" in whole.borrowed or not named_last(DISPATCHERS, said(whole.run)):
        found.append(Unknown("dispatcher", tuple((f"execution.dispatcher={kind}",) for kind in KINDS)))
    return found


def memory_unit_bytes(run: Run) -> float:
    """Bytes of one unit of the row's peak memory: GiB or TiB where its notes say so, else GB, as the column's name.

    Notes may say it for all rows ("mem unit GiB") or for some models' ("GiB for Qwen3-30B rows"). Skip for a unit that
    is none of memory.
    """
    some = re.search(rf"({UNIT}) for (\S+) rows", run.notes)
    if some and run.model.startswith(some[2]):
        return UNITS[some[1].lower()]
    told = re.search(r"mem(?:ory)? unit:? (?:is )?([A-Za-z]+)", run.notes)
    if told and told[1].lower() not in UNITS:
        raise Skip("notes: a unit of memory that is none", f"notes: mem unit {told[1]}: right is {', '.join(UNITS)}")
    plain = re.search(r"\b([GT]iB)\b", run.notes)
    return UNITS[(told or plain)[1].lower()] if told or plain else 1e9  # type: ignore[index]
