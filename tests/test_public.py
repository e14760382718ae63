"""Public names: all there, and the same however much of the package is loaded."""

from importlib.util import find_spec
from types import ModuleType

import pandas as pd
import pytest
from msgspec import structs

import moeplan as mp
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
    told = mp.validate(mp.Tables(runs=tmp_path / "mine.csv"))
    assert isinstance(told, mp.Validation)
    assert told.to_dict()["overall"]["step_time"]["rows"] == 1


def test_one_name_is_not_a_list_of_letters(case):
    changed = mp.override(case, "model.top_k=1")
    assert changed.model.top_k == 1
    ranking = mp.optimize(changed, mp.load_calibration("laptop"), families="piper")
    assert ranking.wanted == ("piper",)
