"""`moeplan validate`: tables in, scores out; what cannot be read is one line and exit code 2."""

import csv
import io
import json
from functools import partial

import pytest

RUN = {
    "id": "OWN-1",
    "model": "mixtral-8x7b",
    "hardware": "dgx-h100",
    "gpus": 8,
    "ep": 8,
    "global_batch": 16,
    "seq_len": 4096,
    "dtype": "BF16",
    "measured_step_s": 2.0,
    "measured_peak_mem_gb": 100.0,
}


@pytest.fixture
def moeplan(command_line):
    """moeplan(*arguments): exit code, stdout and stderr of `moeplan validate`."""
    return partial(command_line, "validate")


@pytest.fixture
def own_names(tmp_path):
    path = tmp_path / "names.csv"
    path.write_text('kind,name,target,overrides\nmodel,"Grok-1 proxy 4 layers",grok-1,"num_layers=4"\n')
    return path


def test_json_has_scores_as_fractions_and_what_was_left_out(moeplan, table):
    code, out, err = moeplan("--runs", table("runs", RUN, RUN | {"id": "OWN-2", "dtype": "INT8"}), "--format", "json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert {"overall", "by_source", "by_model", "by_accelerator", "by_kind", "skipped", "worst"} <= set(told)
    for measure in ("step_time", "peak_memory"):
        assert set(told["overall"][measure]) == {"rows", "median_ape", "p90_ape", "bias"}
        assert told["overall"][measure]["rows"] == 1
    assert told["overall"]["step_time"] == told["by_model"]["mixtral-8x7b"]["step_time"]
    assert told["overall"]["gemm"]["rows"] == 0
    assert told["skipped"] == {
        f"{what}: dtype: neither 16 bits nor a known narrower type": 1 for what in ("step_time", "peak_memory")
    }


def test_csv_has_a_row_per_prediction_that_the_scores_follow_from(moeplan, table):
    path = table("runs", RUN)
    rows = list(csv.DictReader(io.StringIO(moeplan("--runs", path, "--format", "csv")[1])))
    told = json.loads(moeplan("--runs", path, "--format", "json")[1])["overall"]
    assert [(row["id"], row["measure"]) for row in rows] == [
        ("OWN-1", measure) for measure in ("step_time", "peak_memory", "step_time_no_constants")
    ]
    for row in rows:
        assert float(row["error"]) == pytest.approx(float(row["predicted"]) / float(row["measured"]) - 1)
        assert float(row["error"]) == pytest.approx(told[row["measure"]]["bias"])


def test_ones_own_names(moeplan, table, own_names):
    path = table("runs", RUN | {"model": "Grok-1 proxy 4 layers"})
    code, out, _ = moeplan("--runs", path, "--names", own_names, "--format", "json")
    assert code == 0
    assert list(json.loads(out)["by_model"]) == ["grok-1"]


def test_rows_of_ones_own_are_listed_one_by_one(moeplan, table):
    many = [RUN | {"id": f"OWN-{number}", "measured_step_s": 10.0 + number} for number in range(1, 10)]
    code, out, _ = moeplan("--runs", table("runs", *many))
    assert code == 0
    assert "row by row" in out
    assert "inside" in out
    assert all(f" OWN-{number} " in out for number in range(1, 10))


def test_the_table_names_worst_rows_and_reasons(moeplan, table):
    code, out, _ = moeplan("--runs", table("runs", RUN, RUN | {"id": "OWN-2", "dp": 3}))
    assert code == 0
    assert "OWN-1" in out
    assert "OWN-2" in out
    assert "dp: 3 is not what the other degrees leave, gpus / (tp pp cp) = 8" in out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "Grok-1 proxy 4 layers"}, "(OWN-1): model 'Grok-1 proxy 4 layers'"),
        ({"hardware": "H9000"}, "(OWN-1): hardware 'H9000': 'H9000' is neither a shipped cluster nor a file"),
        ({"gpus": "eight"}, "line 2 (OWN-1): Expected `int`, got `str` - at `$.gpus`, not 'eight'"),
    ],
)
def test_a_bad_row_is_one_line(moeplan, table, changes, message):
    code, out, err = moeplan("--runs", table("runs", RUN | changes))
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_a_missing_column_is_one_line_with_the_columns(moeplan, table):
    path = table("runs", RUN)
    path.write_text(path.read_text().replace(",gpus,", ",cards,", 1))
    code, _, err = moeplan("--runs", path)
    assert code == 2
    assert (
        "no column 'gpus'; needed are id, model, hardware, gpus; the columns are id, source, model, hardware, gpus, tp"
        in err
    )
    assert len(err.splitlines()) == 1


def test_a_wrong_format_is_said_before_any_work(moeplan):
    assert moeplan("--format", "xml")[0] == 2


def test_constants_that_explain_ones_own_runs_are_told(moeplan, table):
    """A run twice as slow as predicted asks for more host seconds and less of every rate, within what is plausible."""
    rows = [json.loads(moeplan("--runs", table("runs", RUN), "--format", "json")[1])]
    slow = RUN | {"measured_step_s": 2 * rows[0]["worst"][0]["predicted"]}
    rows.append(json.loads(moeplan("--runs", table("runs", slow), "--format", "json")[1]))
    before, after = (row["constants"]["h100"] for row in rows)
    assert set(before) == {"gemm", "narrow_gemm", "attention", "hbm", "expert_bandwidth", "host"}
    assert after["gemm"] < 0.85
    assert after["host"] > 1.5
    assert all(0.3 < value < 3 for value in after.values())


OWN = {
    "id": "X-1",
    "model": "mixtral-8x7b",
    "hardware": "dgx-h100",
    "gpus": 64,
    "tp": 1,
    "pp": 4,
    "ep": 8,
    "micro_batch": 1,
    "global_batch": 256,
    "seq_len": 4096,
    "dtype": "BF16",
    "measured_step_s": 10,
}


def told(moeplan, option, path):
    code, out, err = moeplan(option, path, "--format", "json")
    assert (code, err) == (0, "")
    return json.loads(out, parse_constant=pytest.fail)


def test_ids_like_published_ones_mean_nothing_in_ones_own_table(moeplan, table):
    """SEQ's software, a figure set aside, and a pair, of rows that only look like those published."""
    names = ["X-1", "SEQ-1", "BRG-021", "BSK-009", "BSK-010"]
    found = told(moeplan, "--runs", table("runs", *(OWN | {"id": name} for name in names)))
    assert {row["predicted"] for row in found["worst"] if row["measure"] == "step_time"} == {
        found["worst"][0]["predicted"]
    }
    assert (found["listed"], found["pairs"]["pairs"], found["overall"]["step_time"]["rows"]) == ([], 0, 5)


def test_ones_own_row_of_a_published_source_has_its_practices(moeplan, table, published_runs):
    """Megatron-LM of arXiv 2205.05198 had neither fused loss nor divided optimizer states."""
    rows = [OWN | {"id": f"SEQ-{900 + i}", "measured_peak_mem_gb": 50} for i in range(2)]
    rows[1]["source"] = next(run.source for name, run in published_runs.items() if name.startswith("SEQ-"))
    found = told(moeplan, "--runs", table("runs", *rows))
    plain, known = sorted(row["predicted"] for row in found["worst"] if row["measure"] == "peak_memory")
    assert known > 1.2 * plain


@pytest.mark.parametrize(
    ("kind", "good", "bad", "reason"),
    [
        (
            "layers",
            {"gpus": 8, "layer": "MoE layer (router+dispatch+experts+combine)", "dispatcher": "DeepEP"}
            | {"config": "tokens/GPU 4096, hidden 2048, 64 experts top-6, ffn 1408, EP8", "forward_ms": 2},
            {"dtype": "NVFP4"},
            "gpu 'H100 SXM 80GB': no peak for fp4",
        ),
        (
            "collectives",
            {"nodes": 1, "gpus": 8, "collective": "alltoall", "message_bytes": 2**26, "latency_us": 300}
            | {"definition_of_bytes": "nccl-tests size"},
            {"gpus": 1},
            "one GPU sends nothing",
        ),
        (
            "gemm",
            {"kind": "gemm", "dtype": "bf16", "m": 4096, "n": 4096, "k": 4096, "latency_us": 200},
            {"dtype": "int4"},
            "dtype: int4 is no known element type",
        ),
    ],
)
def test_a_row_without_a_price_leaves_the_others_in(moeplan, table, kind, good, bad, reason):
    good |= {"id": "X-1", "hardware": "dgx-h100"}
    found = told(moeplan, f"--{kind}", table(kind, good, good | {"id": "X-2"} | bad))
    assert found["overall"][kind]["rows"] == 1
    (why,) = found["skipped"]
    assert reason in why


def test_a_time_that_is_none_is_one_line_with_file_row_column_and_value(moeplan, table):
    row = {"id": "X-1", "hardware": "dgx-h100", "gpus": 8, "layer": "attention", "forward_ms": "n/a"}
    code, out, err = moeplan("--layers", table("layers", row))
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "layers.csv (X-1): forward_ms: 'n/a' is not a number of milliseconds above 0" in err


def test_measurements_that_cannot_be_are_no_infinity(moeplan, table):
    found = told(moeplan, "--runs", table("runs", OWN | {"measured_step_s": 1e-300}))
    assert found["overall"]["step_time"]["rows"] == 0
    assert list(found["skipped"]) == ["step_time: predicted or measured is nothing that can be compared"]


def test_a_table_without_rows_is_one_line(moeplan, table):
    for kind in ("runs", "collectives", "gemm", "layers"):
        code, out, err = moeplan(f"--{kind}", table(kind))
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        assert f"{kind}.csv: no rows below the header" in err


def test_rows_that_measure_nothing_say_so(moeplan, table):
    path = table("runs", OWN | {"measured_step_s": ""})
    found = told(moeplan, "--runs", path)
    (why,) = found["skipped"]
    assert why.startswith("step_time: nothing measured: measured_step_s, ")
    assert set(found["overall"]["step_time"].values()) == {0, None}
    assert "no row could be compared: the reasons are above" in moeplan("--runs", path)[1]


def test_reasons_of_ones_own_rows_carry_values_and_counts_do_not(moeplan, table):
    rows = [OWN | {"id": f"X-{n}", "global_batch": n} for n in (1, 2)]
    found = told(moeplan, "--runs", table("runs", *rows))
    assert list(found["skipped"].values()) == [2]
    assert [row["reason"] for row in found["skipped_ids"]] == [
        f"global_batch: {n} is less than 16 micro-batches of 1, one per rank" for n in (1, 2)
    ]


def test_words_that_nobody_knows_are_told(moeplan, table):
    rows = [
        OWN | {"id": f"X-{n}", "dispatcher_or_overlap": text} for n, text in enumerate(("DeepEP; warp drive", "warp"))
    ]
    path = table("runs", *rows)
    found = told(moeplan, "--runs", path)
    assert found["not_understood"] == {"warp": 2, "drive": 1}
    assert {row["note"] for row in found["worst"]} == {"not understood: warp, drive", "not understood: warp"}
    assert "warp" in moeplan("--runs", path)[1].split("words not understood")[1]


def test_an_error_of_a_names_file_names_it_and_its_line(moeplan, table, own_names):
    own_names.write_text("kind,name,target\nmodel,A,B\nmodel,B,A\n")
    code, out, err = moeplan("--runs", table("runs", OWN | {"model": "A"}), "--names", own_names)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert f"{own_names} line 3: model 'B': A -> B -> A is a circle" in err
