"""Who may import whom: modules stand on floors and look down only; heavy packages load where they are used."""

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(find_spec("moeplan").origin).parent.parent
FLOORS = (
    ("errors", "units", "hostlist", "collector", "toml_text"),
    ("spec",),
    ("layout", "assembly", "batch", "mesh", "schedule", "overlap", "trace", "importers", "tiers"),
    ("program", "plan", "plan_rules", "plan_file", "options"),
    ("topology", "resources", "papers"),
    ("cost",),
    ("layouts", "schedules", "overlaps", "simulate", "draft", "analytic"),
    ("optimizer", "calibrate"),
    (
        "planner",
        "estimator",
        "exchanges",
        "closed",
        "peaks",
        "by_hand",
        "caveats",
        "report",
        "tables",
        "ranking",
        "sweep",
        "plots",
        "machine",
        "convert",
        "validation",
    ),
    ("cli",),
    ("__main__",),
)
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}
HEAVY = ("torch", "cvxpy", "highspy", "simpy", "matplotlib", "pandas", "networkx")


def module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_of(path): path for top in ("moeplan", "moeplan_exec") for path in sorted((ROOT / top).rglob("*.py"))}
"""Paths by module name."""


def imports(name, *, lazy=True):
    """Full names of what `name` imports; with `lazy` off, only what runs when it is loaded."""
    nodes = [ast.parse(FILES[name].read_text())]
    found = set()
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {full if full in FILES else node.module for full in names}
        elif lazy or not (isinstance(node, ast.FunctionDef) or is_type_checking(node)):
            nodes += ast.iter_child_nodes(node)
    return found - {"moeplan", "__future__"}


def is_type_checking(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def floor(name):
    return FLOOR[name.split(".")[1]]


OURS = [name for name in FILES if name.startswith("moeplan.")]
EXECUTOR = [name for name in FILES if name.split(".")[0] == "moeplan_exec"]


def test_every_module_stands_on_a_floor():
    assert {name.split(".")[1] for name in OURS} <= FLOOR.keys()
    assert len(OURS) > 40


@pytest.mark.parametrize("name", OURS)
def test_modules_look_down(name):
    above = {used for used in imports(name) if used.startswith("moeplan.") and floor(used) > floor(name)}
    assert not above
    if not name.startswith("moeplan.cli"):
        assert not any(used.startswith("moeplan_exec") for used in imports(name))


def test_no_modules_import_each_other_in_a_circle():
    graph = nx.DiGraph((name, used) for name in FILES for used in imports(name) if used in FILES)
    assert list(nx.simple_cycles(graph)) == []


@pytest.mark.parametrize("folder", ["layouts", "schedules", "overlaps"])
def test_files_of_a_folder_do_not_know_each_other(folder):
    for name in OURS:
        if name.startswith(f"moeplan.{folder}."):
            assert not any(used.startswith(f"moeplan.{folder}") for used in imports(name)), name


def test_the_executor_knows_the_lower_floors_only():
    used = {used for name in EXECUTOR for used in imports(name) if used.startswith("moeplan.")}
    assert {name for name in used if floor(name) > FLOOR["plan"]} == set()
    assert "moeplan.program" in used


def test_the_command_line_loads_the_executor_only_where_it_runs():
    for name in (name for name in OURS if name.startswith("moeplan.cli")):
        assert not any(used.startswith("moeplan_exec") for used in imports(name, lazy=False))


@pytest.mark.parametrize(
    ("package", "homes"),
    [
        ("torch", ("moeplan_exec",)),
        ("simpy", ("moeplan.simulate",)),
        ("cvxpy", ("moeplan.optimizer",)),
        ("highspy", ("moeplan.optimizer",)),
        ("networkx", ("moeplan.topology",)),
        ("matplotlib", ("moeplan.plots",)),
        ("typer", ("moeplan.cli",)),
    ],
)
def test_packages_have_one_home(package, homes):
    users = {name for name in FILES if any(used.split(".")[0] == package for used in imports(name))}
    assert users
    assert all(name.startswith(homes) for name in users)


def loaded(module):
    """Heavy packages in memory after `import module` in a new process."""
    code = f"import sys, {module}; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["moeplan", "moeplan.cli", "moeplan.plan"])
def test_importing_loads_nothing_heavy(module):
    assert loaded(module) == set()


def test_the_executor_loads_neither_simulator_nor_solver():
    pytest.importorskip("torch", reason="the executor needs the extra `run`: pip install moeplan[run]")
    assert not loaded("moeplan_exec.run, moeplan_exec.launch") & {"simpy", "highspy", "cvxpy", "pandas", "matplotlib"}
