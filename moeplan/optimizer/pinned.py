"""Degrees that a user fixed: whether layouts have them, and which rule leaves none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import lcm, prod

from moeplan.errors import SpecError
from moeplan.importers.found import some
from moeplan.layout import Colocated, Disaggregated, Mesh, Piper
from moeplan.layouts import FAMILIES, RECORDS, colocated, disaggregated, piper
from moeplan.mesh import check_experts, divisors, mesh_of, uncut
from moeplan.optimizer.candidate import has
from moeplan.optimizer.disaggregate import DEPTHS, has_room
from moeplan.spec.case import Case
from moeplan.spec.cluster import domain_gpus, num_ranks
from moeplan.spec.model import moe_layers

Fixed = Mapping[str, object]
"""Degrees by name that a layout must have."""
NOT_FIXED = {"split", "attention_nics", "ffn_nics"}
"""What a layout says and nobody fixes."""
MULTIPLIED = {colocated.NAME: ("tp", "cp", "pp", "dp"), piper.NAME: ("pp", "ep", "dp"), disaggregated.NAME: ("dp",)}
"""Degrees whose product is the number of GPUs, or divides it."""


def fields_of(family: str) -> tuple[str, ...]:
    """The degrees that a layout of `family` has."""
    record = next(record for record, name in RECORDS.items() if name == family)
    return tuple(record.__struct_fields__)  # type: ignore[attr-defined]


def chosen(fixed: Fixed) -> dict[str, tuple[int, ...]]:
    """The micro-batches and virtual stages to enumerate, where the user fixed them."""
    return {
        name: (value,) for name, value in fixed.items() if name in ("micro_batch", "vpp") and isinstance(value, int)
    }


def check_fixed(case: Case, fixed: Fixed, wanted: Sequence[str]) -> dict[str, str]:
    """Why no layout of a family of `wanted` has the degrees `fixed`, for those of which none has.

    SpecError with the rule and its numbers where that is so of all, and for what is no degree.
    """
    known = sorted({name for family in FAMILIES for name in fields_of(family)} - NOT_FIXED)
    for name, value in fixed.items():
        if name not in known:
            raise SpecError(f"layout.{name}: layouts have {', '.join(known)}")
        if name == "deduplicate":
            if not isinstance(value, bool):
                raise SpecError(f"layout.deduplicate: {value!r} is not true or false")
        elif not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise SpecError(f"layout.{name}: {value!r} is not a whole number of at least 1")
    able = [family for family in wanted if set(fixed) <= set(fields_of(family))]
    if not able:
        raise SpecError(f"layout: no family of {', '.join(wanted)} has {' and '.join(fixed)}")
    numbers = {name: value for name, value in fixed.items() if isinstance(value, int)}
    check_experts(case.model, numbers.get("ep", 1), num_ranks(case.cluster))
    reasons = {family: _rule(case, family, numbers) or _none_left(case, family, numbers) for family in able}
    if all(reasons.values()):
        alike = len(set(reasons.values())) == 1
        told = reasons[able[0]] if alike else "; ".join(f"{family}: {why}" for family, why in reasons.items())
        raise SpecError(f"layout: {told}")
    lacks = {f: f"it has no {some([n for n in fixed if n not in fields_of(f)])}" for f in wanted if f not in able}
    return {family: why for family, why in (reasons | lacks).items() if why}


def _rule(case: Case, family: str, fixed: Mapping[str, int]) -> str:
    """The rule that the degrees `fixed` break, whatever the others are; empty where they break none."""
    model, world = case.model, num_ranks(case.cluster)
    factors = {name: fixed[name] for name in MULTIPLIED[family] if name in fixed}
    rules = [
        (
            world % prod(factors.values()) == 0,
            f"{' * '.join(f'{n} {v}' for n, v in factors.items())} does not divide {world} GPUs",
        ),
        (not (reason := uncut(model, fixed.get("tp", 1))), reason),
        (fixed.get("cp", 1) == 1, f"cp {fixed.get('cp')} is not planned; cp may be 1"),
        (fixed.get("etp", 1) == 1, f"etp {fixed.get('etp')} is not searched; etp may be 1"),
        (fixed.get("pp", 1) * fixed.get("vpp", 1) <= model.num_layers, f"pp * vpp exceeds {model.num_layers} layers"),
        (fixed.get("pairs", 1) <= model.num_layers, f"pairs {fixed.get('pairs')} > {model.num_layers} layers"),
        (fixed.get("depth", 1) in DEPTHS, f"depth {fixed.get('depth')} is not searched; it may be {DEPTHS}"),
        (
            fixed.get("micro_batch", 1) <= case.workload.global_batch,
            f"micro_batch {fixed.get('micro_batch')} > {case.workload.global_batch} sequences of a step",
        ),
        (
            family != disaggregated.NAME or fixed.get("attention_gpus", 1) + fixed.get("ffn_gpus", 1) <= world,
            f"attention {fixed.get('attention_gpus', 1)} + ffn {fixed.get('ffn_gpus', 1)} ranks > {world} GPUs",
        ),
        (
            not fixed.get("deduplicate") or case.cluster.nodes > 1,
            "deduplicate true on one node, where no row crosses to another; it may be false",
        ),
    ]
    return next((message for right, message in rules if not right), "")


def _none_left(case: Case, family: str, fixed: Mapping[str, int]) -> str:
    """The rule that no layout of `family` with the degrees `fixed` keeps, and what one of them may be; else empty.

    The rule is that of the layout which keeps most of the others.
    """
    if family == disaggregated.NAME:
        if not disaggregated.alternates(case.model) or any(has_room(case, f, fixed) for f in _frames(case, fixed)):
            return ""
        nearest = _latest(_broken_sides(case, one) for one in _sides(case, fixed))
        return nearest or f"no frame of {case.model.name} has them"
    if any(has(one, fixed) for one in _layouts(case, family, fixed)):
        return ""
    nearest = _latest(_broken(case, one) for one in _grid(case, family, fixed))
    told = nearest or f"{' and '.join(f'{name} {value}' for name, value in fixed.items())} do not go together"
    for name in fixed:
        rest = {other: value for other, value in fixed.items() if other != name}
        if values := sorted({getattr(one, name) for one in _layouts(case, family, rest) if has(one, rest)}):
            beside = " beside the others" if rest else ""
            return f"{told}; {name} may be {some([str(value) for value in values], 12)}{beside}"
    return told


def _layouts(case: Case, family: str, fixed: Fixed) -> Iterable[Mesh]:
    found: Iterable[Mesh] = FAMILIES[family].layouts(case, chosen(fixed))
    return found


def _latest(rules: Iterable[list[str]]) -> str:
    """The first message of the list that has fewest rules broken."""
    return min((broken for broken in rules if broken), key=len, default=[""])[0]


def _grid(case: Case, family: str, fixed: Mapping[str, int]) -> Iterator[Mesh]:
    """Layouts with the degrees `fixed`, whether they keep the rules or not."""
    world, experts = num_ranks(case.cluster), case.model.experts if moe_layers(case.model) else 1

    def values(name: str, usual: Iterable[int]) -> Iterable[int]:
        return (fixed[name],) if name in fixed else usual

    vpp, size = fixed.get("vpp", 1), fixed.get("micro_batch", 1)
    for pp in values("pp", divisors(world)):
        for ep in values("ep", divisors(max(experts, 1))):
            if family == piper.NAME:
                copies = fixed.get("dp", max(1, world // (pp * ep)))
                yield Piper(pp=pp, vpp=vpp, ep=ep, dp=copies, micro_batch=size)
                continue
            for tp in values("tp", divisors(domain_gpus(case.cluster))):
                dp = fixed.get("dp", max(1, world // (pp * tp)))
                yield Colocated(tp=tp, pp=pp, vpp=vpp, ep=ep, dp=dp, micro_batch=size)


def _broken(case: Case, layout: Mesh) -> list[str]:
    """The rules of the search that `layout` breaks, with its numbers."""
    mesh, world, batch = mesh_of(layout), num_ranks(case.cluster), case.workload.global_batch
    degrees = {"tp": mesh.tp, "pp": mesh.pp, "dp": mesh.dp}
    if isinstance(layout, Piper):
        degrees = {"pp": layout.pp, "ep": layout.ep, "dp": layout.dp}
    product = " * ".join(f"{name} {value}" for name, value in degrees.items() if value > 1 or name != "tp")
    whole, widest = prod(degrees.values()), domain_gpus(case.cluster)
    shards = f"micro_batch {mesh.micro_batch} * {' * '.join(f'{n} {degrees[n]}' for n in ('ep', 'dp') if n in degrees)}"
    group = piper.group_rule(case.cluster, layout.ep) if isinstance(layout, Piper) else ""
    rules = [
        (whole == world, f"{product} = {whole}, not {world} GPUs"),
        (not (reason := uncut(case.model, mesh.tp)), reason),
        (mesh.tp <= widest, f"tp {mesh.tp} > {widest} GPUs that one switch joins, within which it is searched"),
        (not group, group),
        (
            world % (mesh.pp * lcm(mesh.tp, mesh.ep)) == 0,
            f"expert groups of ep {mesh.ep} do not fill the {world / mesh.pp:g} GPUs of each of {mesh.pp} stages"
            + f" beside tp {mesh.tp}" * (mesh.tp > 1),
        ),
        (
            mesh.pp * mesh.vpp <= case.model.num_layers,
            f"pp {mesh.pp} * vpp {mesh.vpp} = {mesh.pp * mesh.vpp} stages > {case.model.num_layers} layers",
        ),
        (mesh.vpp == 1 or mesh.pp > 1, f"vpp {mesh.vpp} with pp 1: one position has one stage"),
        (
            mesh.micro_batch == 1 or mesh.micro_batch * mesh.dp <= batch,
            f"{shards} = {mesh.micro_batch * mesh.dp} > {batch} sequences of a step",
        ),
    ]
    return [message for right, message in rules if not right]


def _frames(case: Case, fixed: Mapping[str, int]) -> Iterator[disaggregated.Frame]:
    for frame in disaggregated.frames(case):
        if fixed.get("pairs", frame.pairs) == frame.pairs and fixed.get("dp", frame.dp) == frame.dp:
            yield frame


def _sides(case: Case, fixed: Mapping[str, int]) -> Iterator[Disaggregated]:
    """Layouts with the degrees `fixed` and the smallest others, whether they keep the rules or not."""
    world = num_ranks(case.cluster)
    widest = min(disaggregated.WIDEST_PAIRS, case.model.num_layers)
    for dp in (fixed["dp"],) if "dp" in fixed else divisors(world):
        for pairs in (fixed["pairs"],) if "pairs" in fixed else range(1, widest + 1):
            attention, ffn = (fixed.get(name, pairs) for name in ("attention_gpus", "ffn_gpus"))
            yield Disaggregated(pairs=pairs, attention_gpus=attention, ffn_gpus=ffn, dp=dp)


def _broken_sides(case: Case, layout: Disaggregated) -> list[str]:
    """The rules of the search that `layout` breaks, with its numbers."""
    pairs, batch = layout.pairs, case.workload.global_batch
    rules = [(layout.dp <= batch, f"dp {layout.dp} copies > {batch} sequences of a step")]
    rules += [(pairs <= disaggregated.WIDEST_PAIRS, f"pairs {pairs} > {disaggregated.WIDEST_PAIRS}, which is searched")]
    broken = [message for right, message in rules if not right]
    try:
        disaggregated.check_degrees(case.model, layout, num_ranks(case.cluster))
    except SpecError as error:
        broken.append(str(error).removeprefix("layout: "))
    return broken
