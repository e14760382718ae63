"""How ranks start, who they are, what is refused, and how a failure ends them all."""

import os
import socket
import subprocess
import sys
import time

import pytest
from cases import model, plan_of, run_all
from msgspec.structs import replace

from moeplan import plan_file
from moeplan.errors import ExecutionError, SpecError
from moeplan.layout import Colocated, Disaggregated, Recompute
from moeplan.spec.model import Latent
from moeplan_exec.launch import launch
from moeplan_exec.refuse import check_world, refuse
from moeplan_exec.run import Options, run
from moeplan_exec.start import first_host, from_environment

QUICK = Options(steps=2, dtype="fp64", timeout_s=30)
RANK_SCRIPT = """
import sys
from pathlib import Path
from moeplan.errors import MoeplanError
from moeplan.plan_file import read_plan
from moeplan_exec.hooks import Hooks
from moeplan_exec.run import Options, leave, run_rank
from moeplan_exec.start import from_environment

start = from_environment()

def before(op):
    if sys.argv[2] == str(start.rank) and op.kind == "B":
        raise ValueError("a cosmic ray")

options = Options(steps=2, dtype="fp64", timeout_s=30, seed=start.rank if sys.argv[2] == "seeds" else 0)
try:
    result = run_rank(read_plan(Path(sys.argv[1])), options, start, hooks=Hooks(before=before))
except MoeplanError as error:
    sys.stdout.write(str(error))
    leave(error.exit_code)
sys.stdout.write(" ".join(repr(step.loss) for step in result.steps))
"""


def start_ranks(folder, failing=""):
    """Output and exit code of two ranks that were started as torchrun starts them."""
    plan_file.write_plan(small(), folder / "plan.json")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-c", RANK_SCRIPT, str(folder / "plan.json"), failing]
    ranks = [
        subprocess.Popen(command, env=os.environ | shared | {"RANK": rank}, stdout=subprocess.PIPE, text=True)
        for rank in "01"
    ]
    return [(rank.communicate(timeout=60)[0], rank.returncode) for rank in ranks]


def small():
    return plan_of(model(num_layers=2), Colocated(pp=2), 2, global_batch=2)


def test_launch_reports_each_step_as_it_ends():
    seen = []
    result = launch(small(), QUICK, on_step=seen.append)
    assert [step.step for step in seen] == [0, 1]
    assert result.steps == tuple(seen)
    assert all(step.seconds > 0 for step in seen)
    assert result.trace.lanes == ("rank 0 (stage 0)", "rank 1 (stage 1)")


def test_ranks_started_one_by_one_find_each_other(tmp_path):
    losses = " ".join(repr(step.loss) for step in launch(small(), QUICK).steps)
    assert start_ranks(tmp_path) == [(losses, 0)] * 2


def test_ranks_started_one_by_one_all_end_with_three_when_one_fails(tmp_path):
    begin = time.monotonic()
    (first, one), (second, two) = start_ranks(tmp_path, failing="1")
    assert (one, two) == (3, 3)
    assert first.startswith("rank 0: ")
    assert second == "rank 1: ValueError: a cosmic ray"
    assert time.monotonic() - begin < 30


def test_ranks_started_with_other_options_all_end_with_three(tmp_path):
    (first, one), (second, two) = start_ranks(tmp_path, failing="seeds")
    assert (one, two) == (3, 3)
    told = "ranks [{}] were started with another plan or other options"
    assert f"rank 0: {told.format(1)}" == first or f"rank 1: {told.format(0)}" == second


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK=4 is not below WORLD_SIZE=4"),
        ({"RANK": "0"}, "WORLD_SIZE is not set"),
        ({"WORLD_SIZE": "2"}, "RANK is not set"),
        ({"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "here", "MASTER_PORT": "99999"}, "not within 1..65535"),
    ],
)
def test_launcher_variables_that_cannot_be_are_refused(variables, message):
    with pytest.raises(SpecError, match=message):
        from_environment(variables)


def test_a_rank_that_fails_ends_all_and_is_named():
    plan = plan_of(model(), Disaggregated(pairs=2, attention_gpus=2, ffn_gpus=2), 4)

    def before(start):
        def fail(op):
            if start.rank == 2 and op.kind == "B":
                raise ValueError("a cosmic ray")

        return fail

    begin = time.monotonic()
    with pytest.raises(ExecutionError, match=r"^rank 2: ValueError: a cosmic ray") as caught:
        run_all(plan, QUICK, before=before)
    assert caught.value.exit_code == 3
    assert time.monotonic() - begin < 15
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_rank_that_dies_without_a_word_is_named():
    def before(start):
        return lambda op: os._exit(9) if start.rank == 1 else None

    with pytest.raises(ExecutionError, match=r"^rank 1: ended without a word"):
        run_all(small(), QUICK, before=before)


def test_a_world_of_another_size_is_refused(monkeypatch):
    with pytest.raises(SpecError, match="3 ranks were started, the plan uses 2") as caught:
        check_world(small(), 3)
    assert caught.value.exit_code == 2
    for key, value in {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(key, value)
    with pytest.raises(SpecError, match="3 ranks were started"):
        run(small(), QUICK)


@pytest.mark.parametrize(
    ("layout", "recompute", "message"),
    [
        (Colocated(tp=2), None, "tp 2"),
        (Colocated(cp=2), None, "cp 2"),
        (Colocated(dp=2, etp=2), None, "etp 2"),
        (Disaggregated(), Recompute(ffn="full"), "recompute ffn 'full'"),
    ],
)
def test_what_cannot_run_is_refused_by_name(layout, recompute, message):
    with pytest.raises(SpecError, match=message):
        refuse(plan_of(model(), layout, 2, recompute=recompute))


LATENT = Latent(heads=4, q_lora_rank=0, kv_lora_rank=8, nope_head_dim=4, rope_head_dim=2, v_head_dim=4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention": LATENT}, "attention of kind 'mla' cannot be run, 'gqa' can"),
        ({"attention": {"bias": True}}, "attention.bias true cannot be run, false can"),
        ({"attention": {"sinks": True}}, "attention.sinks true cannot be run, false can"),
        (
            {"attention": {"window": 3, "full_every": 2}},
            "attention.window 3 cannot be run on sequences of 4 tokens; 0, or 4 and more, can",
        ),
        (
            {"attention": {"window": 3, "full_every": 2, "chunked": True}},
            "attention.window 3 cannot be run on sequences of 4 tokens; 0, or 4 and more, can",
        ),
        (
            {"attention": {"qk_norm": True, "qk_norm_weights": "all"}},
            "attention.qk_norm_weights 'all' cannot be run, 'head' can",
        ),
        ({"shared_experts": 1, "shared_gate": True}, "model.shared_gate true cannot be run, false can"),
        ({"norm": "layer"}, "model.norm 'layer' cannot be run, 'rms' can"),
        ({"head_bias": True}, "model.head_bias true cannot be run, false can"),
        ({"scoring": "plain_sigmoid"}, "model.scoring 'plain_sigmoid' cannot be run, 'softmax' can"),
        ({"gated": False}, "model.gated false cannot be run, true can"),
        ({"ffn_bias": True}, "model.ffn_bias true cannot be run, false can"),
        ({"scoring": "sigmoid"}, "model.scoring 'sigmoid' cannot be run, 'softmax' can"),
        ({"expert_groups": 2}, "model.expert_groups 2 cannot be run, 1 can"),
        ({"routed_scale": 2.5}, r"model.routed_scale 2\.5 cannot be run, 1\.0 can"),
        ({"rope_scaled": True}, "model.rope_scaled true cannot be run, false can"),
        ({"pattern": "*E*E"}, r"model.pattern '\*E\*E' cannot be run, '' can"),
        ({"expert_latent": 8}, "model.expert_latent 8 cannot be run, 0 can"),
        ({"attention": {"output_gate": True}}, "attention.output_gate true cannot be run, false can"),
    ],
)
def test_a_model_that_cannot_run_is_refused_by_field(changes, message):
    fields = dict(changes)
    if isinstance(fields.get("attention"), dict):
        fields["attention"] = replace(model().attention, **fields["attention"])
    with pytest.raises(SpecError, match=f"^run: {message}$"):
        refuse(plan_of(replace(model(), **fields), Colocated(dp=2), 2))


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        ({"mtp": True}, "memory.mtp true with mtp_layers 1 cannot be run, false can"),
        ({"dropout": True}, "memory.dropout true cannot be run, false can"),
    ],
)
def test_what_the_executor_would_leave_out_of_the_step_is_refused(memory, message):
    plan = plan_of(replace(model(), mtp_layers=1), Colocated(dp=2), 2)
    refuse(plan)
    with pytest.raises(SpecError, match=f"^run: {message}$"):
        refuse(replace(plan, case=replace(plan.case, memory=replace(plan.case.memory, **memory))))


@pytest.mark.parametrize("attention", [{"window": 4, "full_every": 2}, {"full_every": 3}])
def test_a_window_that_sees_the_whole_sequence_can_run(attention):
    refuse(plan_of(replace(model(), attention=replace(model().attention, **attention)), Colocated(dp=2), 2))


def test_an_edge_by_another_algorithm_is_refused():
    plan = plan_of(model(), Disaggregated(deduplicate=True), 2)
    refuse(plan)
    edges = tuple(replace(e, algorithm="flat") if e.kind == "n2m" else e for e in plan.graph.edges)
    with pytest.raises(SpecError, match="n2m by 'flat' cannot be run, p2p and deduplicated can"):
        refuse(replace(plan, graph=replace(plan.graph, edges=edges)))


def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(SpecError, match="has no GPU; this machine has 0"):
        launch(small(), Options(device="cuda", timeout_s=30))


SLURM = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "16", "SLURM_JOB_ID": "7", "MASTER_ADDR": "a"}


def test_torchrun_wins_over_a_slurm_step_and_a_step_over_its_job():
    assert from_environment({}) is None
    job = from_environment(SLURM)
    step = from_environment(SLURM | {"SLURM_STEP_NUM_TASKS": "8"})
    torchrun = from_environment(SLURM | {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_PORT": "9"})
    assert (job.rank, job.world, job.local_rank, job.port) == (3, 16, 1, 20007)
    assert (step.rank, step.world) == (3, 8)
    assert (torchrun.rank, torchrun.world, torchrun.port) == (0, 2, 9)


def test_a_variable_that_is_no_number_is_refused():
    with pytest.raises(SpecError, match="SLURM_NTASKS='x' is not a number"):
        from_environment(SLURM | {"SLURM_NTASKS": "x"})


@pytest.mark.parametrize(
    ("nodes", "first"), [("node[03-07,9],gpu1", "node03"), ("gpu1,gpu2", "gpu1"), ("n[1,3]-ib", "n1-ib"), ("", "")]
)
def test_the_first_host_of_a_list(nodes, first):
    assert first_host(nodes) == first
