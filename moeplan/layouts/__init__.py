"""The layout families there are: one file each, one line here."""

from __future__ import annotations

from types import ModuleType

from moeplan.layout import Colocated, Disaggregated, Layout, Piper, StageGraph
from moeplan.layouts import colocated, disaggregated, piper
from moeplan.spec.case import Case

FAMILIES: dict[str, ModuleType] = {module.NAME: module for module in (colocated, piper, disaggregated)}
RECORDS: dict[type, str] = {Colocated: "colocated", Piper: "piper", Disaggregated: "disaggregated"}


def family_of(layout: Layout) -> ModuleType:
    """The family module of `layout`."""
    return FAMILIES[RECORDS[type(layout)]]


def stages(case: Case, layout: Layout) -> StageGraph:
    """The stage graph of `layout`, whatever its family; SpecError where it breaks a rule."""
    graph: StageGraph = family_of(layout).stages(case, layout)
    return graph
