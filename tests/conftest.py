"""What all tests share: golden files, rewritten only on request, and small cases on shipped machines."""

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from msgspec import structs

from moeplan import cli
from moeplan.cost.durations import Machine
from moeplan.spec.case import Case
from moeplan.spec.cluster import first_gpus
from moeplan.spec.shipped import load_calibration, load_cluster, load_model
from moeplan.spec.workload import Memory, Workload
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric

GOLDEN = Path(__file__).parent / "golden"

# A slow machine is no failure, and the same commit always tries the same examples.
settings.register_profile("moeplan", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("moeplan")


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files with what the code makes")


@pytest.fixture
def golden(request):
    """golden(name, text): `text` is the content of tests/golden/`name`."""

    def check(name, text):
        if request.config.getoption("--update-golden"):
            (GOLDEN / name).parent.mkdir(parents=True, exist_ok=True)
            (GOLDEN / name).write_text(text)
        assert text == (GOLDEN / name).read_text()

    return check


@pytest.fixture(scope="session")
def make_case():
    """make_case(gpus, **fields of the model): tiny-moe on H800 nodes of `per_node` GPUs, one NIC each."""

    def make(gpus, *, per_node=8, seq_len=64, global_batch=16, memory=None, model="tiny-moe", **changes):
        cluster = load_cluster("h800-16x8")
        node = structs.replace(cluster.node, gpus=per_node, nics=per_node)
        cluster = structs.replace(cluster, nodes=max(16, gpus // per_node), node=node)
        return Case(
            model=structs.replace(load_model(model), **changes),
            cluster=first_gpus(cluster, gpus),
            workload=Workload(seq_len=seq_len, global_batch=global_batch),
            memory=memory or Memory(),
        )

    return make


@pytest.fixture(scope="session")
def machine_of():
    """machine_of(case): the links of its cluster and the calibration that it names."""

    def machine(case, **cluster):
        spec = structs.replace(case.cluster, **cluster)
        return Machine(Fabric(build(spec)), load_calibration(spec.calibration))

    return machine


@pytest.fixture
def command_line(monkeypatch, capsys):
    """command_line(*arguments): exit code, stdout and stderr of `moeplan` with these arguments."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["moeplan", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, *capsys.readouterr()

    return run
