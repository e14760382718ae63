"""What models and machines are called."""

import csv

import pytest

from moeplan.errors import SpecError
from moeplan.spec.cluster import domain_gpus, domains, num_ranks
from moeplan.spec.shipped import load_cluster, load_model
from moeplan.validation.names import PUBLISHED, Name, Names
from moeplan.validation.outcome import Skip
from moeplan.validation.tables import read_table

LISTED = read_table(PUBLISHED / "names.csv", Name)


@pytest.fixture
def own(tmp_path):
    """own(line, ...): names of a file with those lines, beside the ones that ship."""

    def make(*lines, header="kind,name,target,overrides"):
        path = tmp_path / "mine.csv"
        path.write_text("\n".join([header, *lines]))
        return Names([PUBLISHED / "names.csv", path])

    return make


def used():
    """(kind, name) of all that the published tables name."""
    for table in ("runs", "collectives", "gemm", "layers"):
        with (PUBLISHED / f"{table}.csv").open(newline="") as lines:
            for row in csv.DictReader(lines):
                yield from ((kind, row[kind]) for kind in ("model", "hardware") if kind in row)


def test_every_name_in_the_published_tables_is_listed():
    assert set(used()) <= {(name.kind, name.name) for name in LISTED}


def test_every_name_is_something_or_says_why_not(names):
    for name in LISTED:
        resolve = names.model if name.kind == "model" else names.cluster
        if name.target:
            assert resolve(name.name).name
        else:
            assert name.note
            with pytest.raises(Skip, match=name.note):
                resolve(name.name)


def test_names_are_listed_once_and_every_override_has_a_source_or_is_cut_from_its_target():
    assert len({(name.kind, name.name) for name in LISTED}) == len(LISTED)
    told = [name for name in LISTED if name.overrides and not name.note]
    assert {name.name for name in told} == {
        "DeepSeekV3 (w/o MTP)",
        "Llama-3.1-405B proxy 4 layers",
        "Llama-3.1-405B proxy 42 layers",
        "X-MoE Small-LR (14L)",
    }


def test_overrides_change_the_target(own):
    names = own('model,half,mixtral-8x7b,"num_layers=16; model.top_k=1"', "model,again,half,vocab=1000")
    half, again = names.model("half"), names.model("again")
    assert (half.num_layers, half.top_k, half.vocab) == (16, 1, 32000)
    assert (again.num_layers, again.vocab) == (16, 1000)


def test_a_later_file_wins(own):
    assert own("model,Mixtral-8x22B,tiny-moe,").model("Mixtral-8x22B").name == "tiny-moe"


def test_shipped_names_and_files_need_no_line(names, tmp_path):
    assert names.model("qwen3-30b-a3b") == load_model("qwen3-30b-a3b")
    assert names.cluster("dgx-h100") == load_cluster("dgx-h100")
    (tmp_path / "mine.toml").write_text((PUBLISHED / "models" / "gpt-3-175b.toml").read_text())
    assert names.model(str(tmp_path / "mine.toml")).name == "gpt-3-175b"


def test_a_target_may_be_a_file_beside_the_table(own, tmp_path):
    (tmp_path / "other.toml").write_text((PUBLISHED / "models" / "gpt-3-175b.toml").read_text())
    assert own("model,L,other.toml,").model("L").hidden == 12288


def test_a_shipped_name_wins_over_a_folder_beside_the_table(own, tmp_path):
    (tmp_path / "tiny-moe").mkdir()
    assert own("model,T,tiny-moe,").model("T").num_layers == 4


@pytest.mark.parametrize("text", ["Mixtral", "x" * 5000, "a\0b"])
def test_an_unknown_name_is_answered_with_the_columns(names, text):
    with pytest.raises(SpecError, match=r"neither a shipped model nor a file; .*kind,name,target,overrides"):
        names.model(text)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("model,A,B,", "model,B,A,"), "mine.csv line 3: model 'B': A -> B -> A is a circle"),
        (("model,A,B,", "model,B,C,", "model,C,B,"), "mine.csv line 4: model 'C': B -> C -> B is a circle"),
        (("model,A,tiny-moe,layers=4",), "line 2: model 'A': --set model.layers.*no field 'layers'; fields of model: "),
        (("model,X,tiny-moe,", "model,A,tiny-moe,top_k=many"), "mine.csv line 3: model 'A': .*Expected `int`"),
        (("model,A,B,", "model,B,tiny-moe,top_k=100"), "mine.csv line 3: model 'B': .*top_k 100"),
        (
            ("model,A,nothing,",),
            "mine.csv line 2: model 'A': 'nothing' is neither a shipped model nor a file; a target",
        ),
        (("model,A,A,",), "mine.csv line 2: model 'A': 'A' is neither a shipped model nor a file"),
        (("model,A,broken.toml,",), "mine.csv line 2: .*broken.toml: not valid TOML"),
    ],
)
def test_lines_that_cannot_be_meant(own, tmp_path, lines, message):
    (tmp_path / "broken.toml").write_text("=")
    with pytest.raises(SpecError, match=message):
        own(*lines).model("A")


@pytest.mark.parametrize("last", ["tiny-moe", "A0", "A2998", "nothing"])
def test_chains_of_any_length_end_or_say_that_they_do_not(own, last):
    found = own(*(f"model,A{n},A{n + 1}," for n in range(2999)), f"model,A2999,{last},")
    if last == "tiny-moe":
        assert found.model("A0").name == last
        return
    with pytest.raises(SpecError, match=r"mine.csv line 3001: model 'A2999'") as caught:
        found.model("A0")
    assert len(str(caught.value)) < 500


def test_a_kind_that_does_not_exist(own):
    with pytest.raises(SpecError, match=r"mine.csv line 2 \(cluster\): Invalid enum value 'cluster'"):
        own("cluster,A,dgx-h100,")


@pytest.mark.parametrize(("gpus", "nodes", "per_node"), [(2, 1, 2), (8, 1, 8), (16, 2, 8), (3072, 384, 8)])
def test_a_machine_is_as_large_as_asked(names, gpus, nodes, per_node):
    cluster = names.part("dgx-h100", gpus)
    assert (cluster.nodes, cluster.node.gpus) == (nodes, per_node)


@pytest.mark.parametrize(("gpus", "message"), [(12, "not whole nodes of 8"), (10**7, "at most")])
def test_a_machine_that_cannot_be_as_large(names, gpus, message):
    with pytest.raises(Skip, match=message):
        names.part("dgx-h100", gpus)


def test_racks_have_64_gpus_each_of_a_job(names):
    racks = names.part("GB200 NVL72", 256)
    assert (racks.nodes, racks.node.gpus, racks.gpu.name) == (64, 4, "GB200")
    assert (domains(racks), domain_gpus(racks)) == (4, 64)
    assert racks.node.link_bytes_per_s == 900e9


@pytest.mark.parametrize("gpus", [2496, 2560, 5120])
def test_more_racks_than_the_machine_has(names, gpus):
    racks = names.part("GB200 NVL72", gpus)
    assert (num_ranks(racks), domains(racks)) == (gpus, gpus // 64)
