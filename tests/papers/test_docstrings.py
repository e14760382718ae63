"""Every formula says where it comes from, and names planner functions that exist."""

import inspect
import re
from importlib import import_module
from pkgutil import iter_modules

import pytest

from moeplan import papers

MODULES = [import_module(f"moeplan.papers.{module.name}") for module in iter_modules(papers.__path__)]
FUNCTIONS = {
    f"{module.__name__.rpartition('.')[2]}.{name}": function
    for module in MODULES
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if function.__module__ == module.__name__ and not name.startswith("_")
}
TEXTS = [inspect.getsource(module) for module in (papers, *MODULES)]


def exists(dotted):
    """Whether the longest importable module of `dotted` has the rest as an attribute."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for part in parts[cut:]:
            fields = getattr(found, "__annotations__", {})
            if part not in fields and not hasattr(found, part):
                return False
            found = getattr(found, part, None)
        return True
    return False


def test_all_modules_are_looked_at():
    assert len(MODULES) >= 6
    assert len(FUNCTIONS) >= 60


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_formula_has_a_source(name):
    doc = " ".join(inspect.getdoc(FUNCTIONS[name]).split())
    assert re.search(r"Source: .*\b(printed|reported|inferred)\b", doc)
    if name.endswith("_paper"):
        assert re.search(
            r"Source: (DisagMoE \(arXiv 2605\.11005\)|Piper \(arXiv 2605\.05049\)), .*(printed|reported)", doc
        )


def test_named_functions_of_the_planner_exist():
    names = {name for text in TEXTS for name in re.findall(r"`(moeplan\.[\w.]+)", text)}
    assert len(names) >= 15
    assert [name for name in sorted(names) if not exists(name)] == []
