"""Starts all ranks of a plan on this machine by fork, and ends them all when one fails.

The parent imports torch and runs no operation of it, so that a fork is safe and takes milliseconds.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.connection import Connection, Pipe
from typing import Any, NamedTuple, NoReturn

from moeplan.errors import ExecutionError, MoeplanError, SpecError
from moeplan.plan import Plan, world_size
from moeplan_exec.hooks import Hooks
from moeplan_exec.refuse import refuse
from moeplan_exec.run import Options, RunResult, StepResult, run_rank
from moeplan_exec.start import Start

GRACE_S = 5.0
"""From the first failure until ranks that still run are killed."""
SETTLE_S = 0.2
"""From the first message of a failure until a rank that died is surely seen to be dead."""
BACKWARD_IMPORTS = "torch.fx.experimental.symbolic_shapes"
"""What the first backward pass of a process imports, in over a second: once here instead of once per rank."""

Body = Callable[[Start, Callable[[Any], None]], Any]
"""What a rank does: (start, report) to its result; `report` sends a message to the parent at once."""


class _Child(NamedTuple):
    rank: int
    pid: int
    pipe: Connection


def launch(
    plan: Plan,
    options: Options,
    *,
    hooks: Hooks = Hooks(),  # noqa: B008
    on_step: Callable[[StepResult], None] | None = None,
) -> RunResult:
    """Run `plan` with all its ranks on this machine; the result of rank 0.

    `on_step` is called here after every step. SpecError for a plan that cannot be run; ExecutionError names the first
    rank that failed and its cause, after all ranks have ended.
    """
    refuse(plan)
    check_room(plan)

    def body(start: Start, report: Callable[[Any], None]) -> RunResult:
        return run_rank(plan, options, start, hooks=hooks, on_step=report)

    result: RunResult = fork(world_size(plan), body, on_report=on_step or (lambda _: None))[0]
    return result


def check_room(plan: Plan) -> None:
    """SpecError where parameters, gradients and optimizer of all ranks are more than this machine's memory."""
    ranks = [sum(map(len, position.ranks)) for position in plan.graph.positions]
    needed = sum(each * n for each, n in zip(plan.predictions.static_hbm_bytes, ranks, strict=False))
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise SpecError(
            f"run: {sum(ranks)} ranks hold {needed / 2**30:.3g} GiB together, this machine has {there / 2**30:.3g};"
            " start them on their cluster with torchrun or srun"
        )


def fork(world: int, body: Body, *, on_report: Callable[[Any], None] = lambda _: None) -> list[Any]:
    """Run `body` on `world` ranks of this machine; their results by rank. Errors as `launch`."""
    importlib.import_module(BACKWARD_IMPORTS)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(world + 64)
        children: list[_Child] = []
        try:
            children += (_fork_one(rank, world, listener, body) for rank in range(world))
            return _collect(children, on_report)
        finally:
            _end(children)


def _fork_one(rank: int, world: int, listener: socket.socket, body: Body) -> _Child:
    ours, theirs = Pipe()
    pid = os.fork()
    if pid == 0:
        ours.close()
        host, port = listener.getsockname()
        _child(Start(rank, world, rank, host, port, listener.fileno() if rank == 0 else None), theirs, body)
    theirs.close()
    return _Child(rank, pid, ours)


def _child(start: Start, pipe: Connection, body: Body) -> NoReturn:
    """One rank from its birth to its exit: 0, or 3 with the cause sent to the parent."""
    code = ExecutionError.exit_code
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=_end_with_parent, args=(pipe,), daemon=True).start()
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        result = body(start, lambda message: _tell(pipe, "report", message))
        _tell(pipe, "result", result)
        code = 0
    except BaseException as error:
        with contextlib.suppress(OSError):
            _tell(pipe, "error", (time.monotonic_ns(), _portable(error, start.rank)))
    finally:
        os._exit(code)


def _end_with_parent(pipe: Connection) -> None:
    """The parent writes nothing: the pipe becomes readable when it closes it or dies."""
    connection.wait([pipe])
    os._exit(ExecutionError.exit_code)


def _portable(error: BaseException, rank: int) -> MoeplanError:
    """The error as the parent shows it: with its rank, unless every rank would say the same of its input."""
    if isinstance(error, MoeplanError) and (not isinstance(error, ExecutionError) or str(error).startswith("rank ")):
        return error
    return ExecutionError(f"rank {rank}: {type(error).__name__}: {error}")


def _tell(pipe: Connection, kind: str, content: Any) -> None:
    pipe.send_bytes(pickle.dumps((kind, content)))


def _collect(children: list[_Child], on_report: Callable[[Any], None]) -> list[Any]:
    """Results by rank; reports are passed on as they come, and the earliest error is raised."""
    results: dict[int, Any] = {}
    waiting = {child.pipe.fileno(): child for child in children}
    while waiting:
        for number in connection.wait(list(waiting)):
            child = waiting[number]  # type: ignore[index]
            kind, content = _read(child)
            if kind == "error":
                raise _earliest(content, [other for other in waiting.values() if other is not child])
            if kind == "report":
                on_report(content)
            else:
                results[child.rank] = content
                del waiting[child.pipe.fileno()]
    return [results[child.rank] for child in children]


def _read(child: _Child) -> tuple[str, Any]:
    """One message: (kind, content); a rank that died comes before all those that miss it."""
    try:
        kind, content = pickle.loads(child.pipe.recv_bytes())
    except (EOFError, ConnectionError):
        cause = "ended without a word (killed, perhaps for want of memory)"
        return "error", (0, ExecutionError(f"rank {child.rank}: {cause}"))
    return kind, content


def _earliest(first: tuple[int, MoeplanError], others: list[_Child]) -> MoeplanError:
    """The first error in time: a failing rank takes others with it, whose word may be read before its own."""
    time.sleep(SETTLE_S)
    errors = [first]
    for child in others:
        while child.pipe.poll():
            kind, content = _read(child)
            if kind != "report":
                errors += [content] if kind == "error" else []
                break
    return min(errors, key=lambda error: error[0])[1]


def _end(children: list[_Child]) -> None:
    """Close the pipes, upon which every rank ends, and kill those that have not after a grace."""
    for child in children:
        child.pipe.close()
    alive, until = {child.pid for child in children}, time.monotonic() + GRACE_S
    while alive:
        if time.monotonic() > until:
            for pid in alive:
                os.kill(pid, signal.SIGKILL)
        alive -= {pid for pid in alive if os.waitpid(pid, os.WNOHANG)[0]}
        time.sleep(0.005)
