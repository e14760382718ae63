"""Small plans, runs of all their ranks, and the comparison with one process."""

from functools import cache

import torch

from moeplan.draft import draft
from moeplan.layout import Disaggregated
from moeplan.plan import world_size
from moeplan.spec.case import Case
from moeplan.spec.cluster import ClusterSpec, Gpu, Node, Tree
from moeplan.spec.execution import Execution
from moeplan.spec.model import GroupedQuery, ModelSpec
from moeplan.spec.workload import Workload
from moeplan.units import Bytes, BytesPerS, FlopPerS, Seconds
from moeplan_exec.hooks import Hooks
from moeplan_exec.launch import fork
from moeplan_exec.run import Options, run_rank
from moeplan_exec.single import train

SIZES = {"hidden": 16, "vocab": 32, "experts": 4, "top_k": 2, "expert_width": 8, "num_layers": 4}
FP64 = Options(steps=3, dtype="fp64", lr=0.01, timeout_s=30)


def model(*, qk_norm=False, **changes):
    attention = GroupedQuery(heads=4, kv_heads=2, head_dim=4, qk_norm=qk_norm)
    return ModelSpec(name="tiny", attention=attention, **(SIZES | changes))


def cluster(gpus, nodes=1):
    fast, soon = BytesPerS(1e9), Seconds(1e-6)
    return ClusterSpec(
        name="here",
        nodes=nodes,
        gpu=Gpu(name="cpu", hbm_bytes=Bytes(2e9), hbm_bytes_per_s=fast, peak_flop_per_s={"bf16": FlopPerS(1e9)}),
        node=Node(
            gpus=gpus, nics=1, link_bytes_per_s=fast, link_latency_s=soon, nic_bytes_per_s=fast, nic_latency_s=soon
        ),
        network=Tree(nodes_per_leaf=1, uplink_bytes_per_s=fast, hop_latency_s=soon),
    )


def plan_of(
    spec, layout, ranks, *, nodes=1, schedule=None, global_batch=6, seq_len=4, recompute=None, exchange="fastest"
):
    here = cluster(-(-ranks // nodes), nodes)
    workload, execution = Workload(seq_len=seq_len, global_batch=global_batch), Execution(exchange=exchange)
    case = Case(model=spec, cluster=here, workload=workload, execution=execution)
    usual = "af-pipe" if isinstance(layout, Disaggregated) else "1f1b"
    return draft(case, layout, schedule=schedule or usual, recompute=recompute)


def to_first(experts):
    """First values that send every token to the first `experts` experts: one coordinate outshines the others."""

    def initialise(name, values):
        if name == "embedding":
            values[:, 0] = 4.0
        if name.endswith("router"):
            values[:, 0] = -4.0
            values[:experts, 0] = 4.0
        return values

    return initialise


def run_all(plan, options=FP64, *, initialise=None, before=None):
    """Per rank: (result, {step: gradients by name}, [(step, layer, sequences, choices)])."""

    def body(start, report):
        gradients, routed = {}, []

        def summed(step, found):
            gradients.setdefault(step, {}).update(found)

        def choices(*what):
            routed.append(what)

        hooks = Hooks(
            initialise=initialise, routed=choices, summed=summed, **({"before": before(start)} if before else {})
        )
        return run_rank(plan, options, start, hooks=hooks), gradients, routed

    return fork(world_size(plan), body)


def gradients_of(ranks, step):
    """Gradients by name; all ranks that hold a parameter must agree bit for bit."""
    found = {}
    for _, gradients, _ in ranks:
        for name, gradient in gradients[step].items():
            if name in found and not torch.equal(found[name], gradient):
                raise AssertionError(f"{name} differs between its holders")
            found[name] = gradient
    return found


@cache
def reference(spec, workload, options, initialise=None):
    dtype = {"fp64": torch.float64, "fp32": torch.float32}[options.dtype]

    def body(start, report):
        torch.set_num_threads(1)
        size = {"steps": options.steps, "seed": options.seed, "lr": options.lr}
        return train(spec, workload, dtype=dtype, initialise=initialise, **size)

    return fork(1, body)[0]


def worst_error(plan, ranks, options=FP64, *, initialise=None):
    """Largest ||g - g1|| / ||g1|| over all parameters and steps, and largest relative difference of the loss."""
    single = reference(plan.case.model, plan.case.workload, options, initialise)
    worst = 0.0
    for step in range(options.steps):
        found, right = gradients_of(ranks, step), single.gradients[step]
        assert found.keys() == right.keys()
        for name, gradient in right.items():
            if not gradient.any():
                assert not found[name].any(), name
                continue
            worst = max(worst, float((found[name] - gradient).norm() / gradient.norm()))
        for result, _, _ in ranks:
            worst = max(worst, abs(result.steps[step].loss / single.losses[step] - 1))
    return worst
