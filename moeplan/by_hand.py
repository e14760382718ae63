"""The layout that a user types: degrees that were not said follow from the others, as users of Megatron-LM expect."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, get_args

from moeplan.errors import SpecError
from moeplan.layout import Colocated, Disaggregated, Layout, Module, Piper, Recompute
from moeplan.layouts import FAMILIES
from moeplan.optimizer.candidate import describe
from moeplan.plan import Plan
from moeplan.spec.calibration import Calibration
from moeplan.spec.case import Case, check_case
from moeplan.spec.cluster import num_ranks
from moeplan.spec.given import of_type, wrong_type
from moeplan.spec.model import moe_layers
from moeplan.spec.record import validated
from moeplan.spec.shipped import calibration_of


class ByHand(NamedTuple):
    """Degrees as a user types them; None where nothing was said."""

    tp: int | None = None
    cp: int | None = None
    pp: int | None = None
    vpp: int | None = None
    ep: int | None = None
    etp: int | None = None
    dp: int | None = None
    micro_batch: int = 1
    split: tuple[int, ...] | None = None
    attention_gpus: int | None = None
    ffn_gpus: int | None = None
    pairs: int | None = None
    depth: int | None = None
    deduplicate: bool | None = None


MESH_ONLY = ("tp", "cp", "pp", "vpp", "ep", "etp", "split")
SIDES_ONLY = ("attention_gpus", "ffn_gpus", "pairs", "depth", "deduplicate")


def layout_of(case: Case, given: ByHand, family: str = "") -> Layout:
    """The layout that `given` means: two sides where a side is named, else a mesh over all GPUs.

    What was not said is 1; data parallelism takes what is left, and experts are split as attention is (ETP = TP, as in
    Megatron-LM). SpecError for degrees of the other kind of layout, or whose product does not divide the GPUs.
    """
    two = given.attention_gpus or given.ffn_gpus
    family = family or ("disaggregated" if two else "colocated")
    if family not in FAMILIES:
        raise SpecError(f"family {family!r} is not known; there are {', '.join(FAMILIES)}")
    strange = [
        *(MESH_ONLY if family == "disaggregated" else SIDES_ONLY),
        *(("tp", "cp", "etp") if family == "piper" else ()),
    ]
    for name in strange:
        if (value := getattr(given, name)) is not None:
            told = "" if value is True else f" {value}"
            raise SpecError(f"--{name.replace('_', '-')}{told}: {family} layouts have no such degree")
    if given.micro_batch > case.workload.global_batch:
        raise SpecError(f"layout: micro_batch {given.micro_batch} > {case.workload.global_batch} sequences of a step")
    if family == "disaggregated":
        return _two_sides(case, given)
    return _piper(case, given) if family == "piper" else _colocated(case, given)


def _two_sides(case: Case, given: ByHand) -> Disaggregated:
    if not (given.attention_gpus and given.ffn_gpus):
        raise SpecError("disaggregated layouts need both --attention-gpus and --ffn-gpus")
    node = case.cluster.node
    return Disaggregated(
        pairs=given.pairs or 1,
        attention_gpus=given.attention_gpus,
        ffn_gpus=given.ffn_gpus,
        attention_nics=given.attention_gpus * node.nics // node.gpus,
        ffn_nics=given.ffn_gpus * node.nics // node.gpus,
        dp=given.dp or 1,
        micro_batch=given.micro_batch,
        deduplicate=bool(given.deduplicate),
        depth=given.depth or 1,
    )


def _piper(case: Case, given: ByHand) -> Piper:
    pp, ep = given.pp or 1, given.ep or 1
    dp = given.dp or _left(case, pp=pp, ep=ep)
    return Piper(pp=pp, vpp=given.vpp or 1, ep=ep, dp=dp, micro_batch=given.micro_batch, split=given.split or ())


def _colocated(case: Case, given: ByHand) -> Colocated:
    tp, cp, pp, ep = given.tp or 1, given.cp or 1, given.pp or 1, given.ep or 1
    etp, world = given.etp or (tp if moe_layers(case.model) else 1), num_ranks(case.cluster)
    if moe_layers(case.model) and world % (etp * ep * pp):
        unsaid = " (etp was not given and is tp)" if given.etp is None and tp > 1 else ""
        raise SpecError(f"layout: etp {etp} * ep {ep} * pp {pp} = {etp * ep * pp} does not divide {world} GPUs{unsaid}")
    return Colocated(
        tp=tp,
        cp=cp,
        pp=pp,
        vpp=given.vpp or 1,
        ep=ep,
        etp=etp,
        dp=given.dp or _left(case, tp=tp, pp=pp, **({"cp": cp} if cp > 1 else {})),
        micro_batch=given.micro_batch,
        split=given.split or (),
    )


def _left(case: Case, **degrees: int) -> int:
    """What is left of the GPUs for data parallelism."""
    world, product = num_ranks(case.cluster), 1
    for degree in degrees.values():
        product *= degree
    if world % product:
        told = " * ".join(f"{name} {value}" for name, value in degrees.items())
        raise SpecError(f"layout: {told} = {product} does not divide {world} GPUs")
    return world // product


def as_options(plan: Plan) -> str:
    """The options of `moeplan estimate` that give the layout of `plan`, its recompute rule and its schedule."""
    family, rule = str(plan.layout.__struct_config__.tag), plan.recompute
    told = describe(plan.layout, plan.case.model)
    words = [("" if word.isdecimal() or "," in word else "--") + word for word in told.split()]
    degrees = " ".join(words) if told != "one rank" else ""
    options = f"--family {family} {degrees} --recompute {rule_text(rule)} --schedule {plan.schedule.name}"
    return " ".join(options.split())


class Question(NamedTuple):
    """What is asked of one layout, its parts held to the rules of files."""

    case: Case
    calibration: Calibration
    layout: Layout
    schedule: str
    """Empty: the usual one."""
    recompute: Recompute


def question(
    case: Case,
    calibration: Calibration | str | Path,
    layout: Layout,
    schedule: str,
    recompute: Recompute | str | None,
) -> Question:
    """These five as records; a calibration may be a name, a rule what `recompute_of` reads; SpecError for others."""
    if not isinstance(layout, Layout):
        raise wrong_type(layout, "layout", "a Colocated, Piper or Disaggregated, such as Colocated(pp=4, ep=8, dp=16)")
    rule = Recompute() if recompute is None else recompute_of(recompute) if isinstance(recompute, str) else recompute
    rule = of_type(rule, Recompute, "recompute", right="a Recompute, or text such as full or none/experts+norm")
    return Question(
        check_case(case),
        calibration_of(calibration),
        validated(layout, "layout"),
        of_type(schedule, str, "schedule", right="text, such as 1f1b"),
        validated(rule, "recompute"),
    )


def recompute_of(text: str) -> Recompute:
    """`none`, `experts`, `full`, or both sides as `attention/ffn`, such as `full/experts`, and modules after a + each.

    `none+norm+activation` computes these two again and keeps the rest. SpecError otherwise.
    """
    short = {"none": "none/none", "experts": "none/experts", "full": "full/full"}
    rule, *modules = text.split("+")
    attention, _, ffn = short.get(rule, rule).partition("/")
    if attention not in ("none", "full") or ffn not in ("none", "experts", "full"):
        raise SpecError(
            f"--recompute {text!r}: right is none, experts, full, or attention/ffn, (none|full)/(none|experts|full),"
            " and modules after it, such as none+norm+activation"
        )
    for module in modules:
        if module not in get_args(Module):
            raise SpecError(f"--recompute {text!r}: {module!r} is no module; there are {', '.join(get_args(Module))}")
    return Recompute(attention=attention, ffn=ffn, modules=tuple(dict.fromkeys(modules)))  # type: ignore[arg-type]


def rule_text(rule: Recompute) -> str:
    """`rule` as `recompute_of` reads it."""
    return "+".join([f"{rule.attention}/{rule.ffn}", *rule.modules])


def split_of(text: str) -> tuple[int, ...]:
    """`9,8,8,7` as numbers; SpecError otherwise."""
    parts = text.split(",")
    if not all(part.strip().isascii() and part.strip().isdigit() for part in parts):
        raise SpecError(f"--pp-split {text!r}: right is the layers of each virtual stage, such as 9,8,8,7")
    return tuple(int(part) for part in parts)
