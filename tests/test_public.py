"""Public names: all there, and the same however much of the package is loaded."""

import re
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
from msgspec import structs

import moeplan as mp
from moeplan.by_hand import recompute_of
from moeplan.errors import SpecError
from moeplan.validation import published


@pytest.mark.parametrize("name", mp.__all__)
def test_public_names_are_there_and_no_module_hides_them(name):
    """A module that is loaded becomes an attribute of its package: none may have the name of a public function."""
    assert not isinstance(getattr(mp, name), ModuleType)
    assert name in dir(mp)
    assert find_spec(f"moeplan.{name}") is None


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match="has no attribute 'optimise'"):
        _ = mp.optimise


@pytest.fixture
def case():
    return mp.Case(
        model=mp.load_model("tiny-moe"),
        cluster=mp.first_gpus(mp.load_cluster("laptop"), 2),
        workload=mp.Workload(seq_len=16, global_batch=4),
    )


@pytest.mark.parametrize("wrong", [{"seq_len": 0}, {"global_batch": 0}, {"dtype": "fp16"}, {"seq_len": "16"}])
def test_records_made_in_python_are_held_to_the_rules_of_files(case, wrong):
    fields = {"seq_len": 16, "global_batch": 4} | wrong
    case = structs.replace(case, workload=mp.Workload(**fields))
    calibration = mp.load_calibration("laptop")
    for ask in (lambda: mp.optimize(case, calibration), lambda: mp.estimate(case, calibration, mp.Colocated(dp=2))):
        with pytest.raises(SpecError, match="workload: "):
            ask()


WRONG = [None, 5, 1.5, True, "x", b"x", [1], ("a", 5), {"a": 1}, object()]


def asked_with(case, wrong):
    """Public functions called with `wrong` in place of each of their inputs."""
    calibration, layout = mp.load_calibration("laptop"), mp.Colocated(dp=2)
    for ask in (mp.estimate, mp.closed_form):
        yield lambda ask=ask: ask(wrong, calibration, layout)
        yield lambda ask=ask: ask(case, wrong, layout)
        yield lambda ask=ask: ask(case, calibration, wrong)
        yield lambda ask=ask: ask(case, calibration, layout, schedule=wrong)
        yield lambda ask=ask: ask(case, calibration, layout, recompute=wrong if wrong is not None else 0)
    for name in ("model", "cluster", "workload", "memory", "execution"):
        yield lambda name=name: mp.estimate(structs.replace(case, **{name: wrong}), calibration, layout)
    for name in ("nodes", "gpu", "node", "network"):
        cluster = structs.replace(case.cluster, **{name: wrong if wrong != 5 or name != "nodes" else 1.5})
        yield lambda cluster=cluster: mp.optimize(structs.replace(case, cluster=cluster), calibration)
    for load in (mp.load_model, mp.load_cluster, mp.load_calibration, mp.read_plan):
        yield lambda load=load: load(wrong)
    yield lambda: mp.optimize(wrong, calibration)
    yield lambda: mp.optimize(case, wrong)
    yield lambda: mp.optimize(case, calibration, families=wrong)
    yield lambda: mp.optimize(case, calibration, fixed=wrong)
    yield lambda: mp.optimize(case, calibration, progress=wrong)
    yield lambda: mp.override(wrong, "model.top_k=1")
    yield lambda: mp.override(case, wrong)
    yield lambda: mp.first_gpus(wrong, 2)
    yield lambda: mp.first_gpus(case.cluster, wrong if wrong != 5 else 2.0)
    yield lambda: mp.split_by_length(wrong, calibration, [16])
    yield lambda: mp.split_by_length(case, wrong, [16])
    yield lambda: mp.split_by_length(case, calibration, wrong if wrong != [1] else 1)
    yield lambda: mp.plot_split_by_length(wrong)
    yield lambda: mp.write_plan(wrong, "plan.json")
    yield lambda: mp.validate(wrong if wrong is not None else 0)
    yield lambda: mp.validate(runs=wrong if wrong is not None else 0)
    yield lambda: mp.validate(mp.Tables(gemm=wrong if wrong is not None else 0))
    yield lambda: mp.validate(mp.Tables(), wrong if wrong is not None else 0)


@pytest.mark.parametrize("wrong", WRONG, ids=[type(wrong).__name__ for wrong in WRONG])
def test_other_types_are_told_in_one_line(case, wrong, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for ask in asked_with(case, wrong):
        with pytest.raises(SpecError) as told:
            ask()
        assert "\n" not in str(told.value)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["none", "experts", "full", "full/experts", "none+norm+activation"])
def test_recompute_may_be_the_text_of_the_command_line(case, text):
    layout, calibration = mp.Colocated(dp=2), mp.load_calibration("laptop")
    told = mp.estimate(case, "laptop", layout, recompute=text)
    assert told == mp.estimate(case, calibration, layout, recompute=recompute_of(text))
    assert told.closed_form == mp.closed_form(case, "laptop", layout, recompute=text)


def test_files_may_be_text_or_paths(case, tmp_path):
    plan = mp.estimate(case, "laptop", mp.Colocated(dp=2)).plan
    for name in (tmp_path / "plan.json", str(tmp_path / "plan.json")):
        mp.write_plan(plan, name)
        assert mp.read_plan(name) == plan
    for file in ("mixtral-8x7b.toml", Path("mixtral-8x7b.toml")):
        assert mp.load_model(Path(mp.__file__).parent / "models" / file) == mp.load_model("mixtral-8x7b")


@pytest.mark.parametrize("layout", [mp.Colocated(dp="2"), mp.Colocated(dp=2, micro_batch=1.5), mp.Piper(split=(2.5,))])
def test_so_are_layouts(case, layout):
    with pytest.raises(SpecError, match="layout: Expected"):
        mp.estimate(case, mp.load_calibration("laptop"), layout)


def test_an_estimate_has_its_closed_form(case):
    told = mp.estimate(case, mp.load_calibration("laptop"), mp.Colocated(dp=2))
    assert isinstance(told.closed_form, mp.Forecast)
    faster = structs.replace(case, execution=mp.Execution(graphs="step"))
    assert mp.closed_form(faster, mp.load_calibration("laptop"), mp.Colocated(dp=2)).step_s < told.closed_form.step_s


def test_measurements_of_ones_own_are_compared(tmp_path):
    table = pd.read_csv(published().runs).head(1).assign(id="MY-1", measured_step_s=1.0)
    table.to_csv(tmp_path / "mine.csv", index=False)
    file = tmp_path / "mine.csv"
    told = mp.validate(mp.Tables(runs=file))
    assert isinstance(told, mp.Validation)
    assert told.to_dict()["overall"]["step_time"]["rows"] == 1
    for other in (mp.validate(mp.Tables(runs=str(file))), mp.validate(runs=str(file)), mp.validate(runs=file)):
        assert other == told


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"run": "mine.csv"}, "run: is no table; there are runs, collectives, gemm, layers"),
        ({"tables": mp.Tables(), "runs": "mine.csv"}, "runs: tables were given too; right is either"),
        ({"tables": "mine.csv"}, "tables: 'mine.csv' is a str; right is Tables"),
    ],
)
def test_tables_are_named_one_way_and_by_their_names(files, message):
    with pytest.raises(SpecError, match=re.escape(message)):
        mp.validate(**files)


def test_one_name_is_not_a_list_of_letters(case):
    changed = mp.override(case, "model.top_k=1")
    assert changed.model.top_k == 1
    ranking = mp.optimize(changed, mp.load_calibration("laptop"), families="piper")
    assert ranking.wanted == ("piper",)
