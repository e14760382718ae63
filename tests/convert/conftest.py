"""The command line in an empty folder, files of other tools, and what a machine's own tools would print."""

from pathlib import Path

import pytest

from moeplan.spec.shipped import load_cluster

FIXTURES = Path(__file__).parents[1] / "fixtures" / "importers"


@pytest.fixture
def fixture():
    """fixture(name): the path of tests/fixtures/importers/`name`."""
    return lambda name: FIXTURES / name


@pytest.fixture
def moeplan(command_line, monkeypatch, tmp_path):
    """moeplan(*arguments): exit code, stdout and stderr of the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return command_line


@pytest.fixture
def converted(moeplan, tmp_path):
    """converted(*arguments): the cluster that `topology convert` writes, and what it says on stderr."""

    def run(*arguments):
        code, _, err = moeplan("topology", "convert", *arguments, "-o", tmp_path / "out.toml")
        assert code == 0, err
        return load_cluster(tmp_path / "out.toml"), err

    return run


@pytest.fixture
def smi(tmp_path):
    """smi(gpu_to_gpu, gpu_to_nic): a file as `nvidia-smi topo -m` prints it, from two tables of words."""

    def write(gpu_to_gpu, gpu_to_nic):
        gpus, nics = len(gpu_to_gpu), len(gpu_to_nic[0])
        names = [f"GPU{i}" for i in range(gpus)] + [f"NIC{j}" for j in range(nics)]
        rows = [["X" if i == j else gpu_to_gpu[i][j] for j in range(gpus)] + gpu_to_nic[i] for i in range(gpus)]
        for j in range(nics):
            among = ["X" if j == k else "SYS" for k in range(nics)]
            rows.append([gpu_to_nic[i][j] for i in range(gpus)] + among)
        lines = ["\t" + "\t".join(names)]
        lines += ["\t".join([name, *row]) for name, row in zip(names, rows, strict=True)]
        path = tmp_path / "smi.txt"
        path.write_text("\n".join(lines) + "\n")
        return path

    return write
