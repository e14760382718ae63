"""Calibration files made again from the measurements that ship and from what is stated beside them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

from moeplan.calibrate.kernels import excess, measured, surface
from moeplan.calibrate.links import link_sections
from moeplan.spec.calibration import Calibration, Surface, check_calibration
from moeplan.spec.record import convert, read_toml
from moeplan.toml_text import toml_text

Table: TypeAlias = dict[str, Any]
STATED = Path(str(resources.files("moeplan.calibrate"))) / "stated.toml"
TFLOP = 1e12
SCALARS = ("hbm", "kernel_launch", "cold")
SECTIONS = ("linear", "grouped", "attention")
MERGED = ("linear", "constants")
"""Tables that an accelerator takes entry by entry from its bases, over which its own stand."""
LINKS = ("node", "network")


def accelerators() -> tuple[str, ...]:
    """Names of the calibrations that can be rebuilt, sorted."""
    return tuple(sorted(name for name in read_toml(STATED) if name != "base"))


def rebuilt(name: str) -> str:
    """The calibration file of `name` as text: fitted surfaces, links, and what is stated with its sources."""
    stated = _with_bases(read_toml(STATED), name)
    scalars = {key: stated[key] for key in SCALARS}
    constants = stated.get("constants", {})
    tables: Table = {"gemm": _surfaces(stated)}
    tables |= {key: stated[key] for key in SECTIONS if key in stated}
    tables |= {key: stated[key] for key in LINKS} if "node" in stated else link_sections(name)
    values = ({key: value for key, (value, _) in pairs.items()} for pairs in (scalars, constants))
    plain = {"name": name} | next(values) | {"constants": next(values)} | tables
    check_calibration(convert(plain, Calibration, where=f"calibration {name}"))
    head = [f"# {stated['title']} Sources are in each note; what has none is assumed.", f'name = "{name}"']
    text = "\n".join([*head, *_sourced(scalars), ""]) + toml_text(tables)
    return text + "\n".join(["", "[constants]", *_sourced(constants), ""]) if constants else text


def _sourced(pairs: Table) -> list[str]:
    """Lines of values with their sources beside them."""
    return [f"{key} = {toml_text(value)}  # {source}" for key, (value, source) in pairs.items()]


def _with_bases(stated: Mapping[str, Table], name: str) -> Table:
    """What is stated of `name`, over its bases', table by table; of `MERGED` entry by entry."""
    own = stated[name]
    whole: Table = {}
    for part in (*(stated["base"][base] for base in own.get("base", ())), own):
        merged = {key: whole.get(key, {}) | part.get(key, {}) for key in MERGED}
        whole = whole | part | {key: table for key, table in merged.items() if table}
    return whole


def _surfaces(stated: Table) -> Table:
    """Surfaces by element type: as stated, and fitted to the rows that are named."""
    fitted = _fitted(stated) if "rows_of" in stated else {}
    return dict(stated.get("gemm", {})) | fitted


def _fitted(stated: Table) -> Table:
    """Surfaces of the rows of `rows_of`; where those are another machine's, scaled to the own rows of `scaled_to`."""
    found: Table = {}
    own = measured(stated["scaled_to"]) if "scaled_to" in stated else {}
    borrowed, half_rows = stated.get("borrowed", ""), stated["grouped"]["half_rows"]
    for element, products in measured(stated["rows_of"]).items():
        peak = stated["peak"][element]
        note = f"fitted to {len(products)} products of published/gemm.csv, {stated['rows_of']}, of {peak} TFLOP/s"
        if borrowed:
            note += f"; {borrowed}"
        plain = surface(products, peak * TFLOP, "interpolated" if borrowed else "measured", note)
        if element in own:
            factor, rows = excess(own[element], convert(plain, Surface, where=element), peak * TFLOP, half_rows)
            plain["share"] = [round(share * factor, 4) for share in plain["share"]]
            plain["note"] += f"; times {factor:.3f}, the mean of {rows} products of {stated['scaled_to']}"
        found[element] = plain
    return found
