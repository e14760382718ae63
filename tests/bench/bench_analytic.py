"""Milliseconds of one evaluation, memory and closed form: python tests/bench/bench_analytic.py

Routes of a machine are searched once, and the order of a schedule is written once for each layout; both are in `first`.
`other` is the first evaluation of the same degrees at twice the micro-batch, its order included; `again` is the best of
several. Memory is that of all positions, in the order of the usual schedule.
"""

import time
from itertools import pairwise

from msgspec import structs

from moeplan.analytic.factors import factors_of, on_classes
from moeplan.analytic.forecast import forecast
from moeplan.analytic.form import form
from moeplan.cost.pricing import Machine, Pricing, loads
from moeplan.draft import dealt, shape_of
from moeplan.estimator import usual_schedule
from moeplan.layout import Colocated, Recompute
from moeplan.layouts import stages
from moeplan.resources.memory import peak_activations, state_bytes, tracks
from moeplan.schedules import make
from moeplan.spec.case import Case
from moeplan.spec.cluster import first_gpus
from moeplan.spec.shipped import load_calibration, load_cluster, load_model
from moeplan.spec.workload import Workload
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric

REPEATS = 25


def case_of(model, cluster, gpus, seq_len, global_batch):
    """A case on the first `gpus` of a shipped cluster, which gets more nodes where it has too few."""
    machine = load_cluster(cluster)
    machine = structs.replace(machine, nodes=max(machine.nodes, -(-gpus // machine.node.gpus)))
    workload = Workload(seq_len=seq_len, global_batch=global_batch)
    return Case(model=load_model(model), cluster=first_gpus(machine, gpus), workload=workload)


BIG = "deepseek-v3", "h800-16x8", 2048, 4096, 15360
CASES = {
    "tiny-moe, 8 on laptop": (("tiny-moe", "laptop", 8, 64, 16), Colocated(dp=8, ep=4)),
    "mixtral-8x7b, 64, pp 4 ep 8": (("mixtral-8x7b", "h800-16x8", 64, 4096, 256), Colocated(pp=4, ep=8, dp=16)),
    "deepseek-v3, 2,048, pp 16 ep 64": (BIG, Colocated(pp=16, ep=64, dp=128)),
    "deepseek-v3, 2,048, pp 8 ep 32": (BIG, Colocated(pp=8, ep=32, dp=256)),
    "deepseek-v3, 2,048, pp 16 vpp 2 ep 8": (BIG, Colocated(pp=16, vpp=2, ep=8, dp=128)),
    "deepseek-v3, 2,048, tp 2 pp 8 ep 64": (BIG, Colocated(tp=2, pp=8, ep=64, dp=128)),
}


def order_of(case, layout, graph):
    """What memory has to know of the usual schedule."""
    microbatches = dealt(case, layout, graph).microbatches
    return tracks(make(usual_schedule(layout), shape_of(layout, graph, microbatches)))


def evaluate(case, layout, machine, order):
    """Bytes of all positions and the step of `layout`: (seconds of the parts of this function, result)."""
    marks = [time.perf_counter()]
    graph = stages(case, layout)
    batch = dealt(case, layout, graph)
    marks.append(time.perf_counter())
    state = [sum(state_bytes(case, graph, position)) for position in range(len(graph.positions))]
    marks.append(time.perf_counter())
    live = peak_activations(case, graph, order, Recompute(), loads(case, graph, batch, 0))
    marks.append(time.perf_counter())
    priced = form(Pricing(case, graph, machine), batch, usual_schedule(layout))
    told = forecast(priced, on_classes(factors_of(machine.calibration.constants)))
    marks.append(time.perf_counter())
    peak = max(held + sum(more) for held, more in zip(state, live, strict=True))
    return [after - before for before, after in pairwise(marks)], peak, told.step_s


def main():
    titles = ("first", "other", "again", "stages", "state", "kept", "form", "GiB", "s")
    print(f"{'ms':38}", *(f"{title:>8}" for title in titles))
    for name, (given, layout) in CASES.items():
        case = case_of(*given)
        start = time.perf_counter()
        machine = Machine(Fabric(build(case.cluster)), load_calibration(case.cluster.calibration))
        order = order_of(case, layout, stages(case, layout))
        evaluate(case, layout, machine, order)
        first = time.perf_counter() - start
        other = structs.replace(layout, micro_batch=2)
        start = time.perf_counter()
        evaluate(case, other, machine, order_of(case, other, stages(case, other)))
        second = time.perf_counter() - start
        again = min((evaluate(case, layout, machine, order) for _ in range(REPEATS)), key=lambda found: sum(found[0]))
        parts, peak, step_s = again
        numbers = [1e3 * seconds for seconds in (first, second, sum(parts), *parts)]
        print(f"{name:38}", *(f"{number:8.2f}" for number in (*numbers, peak / 2**30, step_s)))


if __name__ == "__main__":
    main()
