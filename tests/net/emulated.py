"""A network of two tiers on one machine: a namespace per node, a bridge per rack, shaped NICs and uplinks.

    node: eth0 --- rack bridge === spine bridge === rack bridge --- eth0: node

NICs are veth pairs; uplinks (===) are veth pairs, or TAP pairs with a relay between where they have a delay; token
buckets shape both directions of each. Ranks of one node reach each other over its loopback, shaped where it has a
rate. Namespaces have no names:
they are file descriptors of this process and vanish with it, and so do all devices in them.
"""

import ctypes
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from moeplan_exec.launch import fork

CLONE_NEWNET = 0x40000000
MTU_BYTES = 9000
SEGMENT_BYTES = MTU_BYTES - 20 - 32
"""Data of a full frame: without headers of IP, and TCP with timestamps."""
PAYLOAD = SEGMENT_BYTES / (MTU_BYTES + 14)
"""Share of a shaped byte that is data: a bucket counts the header of Ethernet too."""
QUEUE = "16mb"
"""What may wait at a bucket: more than all windows together, so that nothing is lost."""
WINDOW_BYTES = 128 * 1024
"""Of a connection, where delays are none: larger ones only wait, so long that TCP takes what waits for lost."""
TOOLS = ("ip", "tc", "nsenter")
INTERFACE = "eth0"


class Unavailable(Exception):
    """Why this machine forbids an emulated network."""


class Shape(NamedTuple):
    """Nodes per rack, rates of a NIC and of a rack's uplink in each direction, one-way delay of an uplink, what it
    needs at least for a frame with data, however small: the price of many small messages; rate of what the ranks of a
    node send each other, all together (0: unbounded)."""

    racks: tuple[int, ...] = (2, 2)
    nic_bit_per_s: float = 200e6
    uplink_bit_per_s: float = 200e6
    uplink_delay_s: float = 0.0
    uplink_frame_s: float = 0.0
    inside_bit_per_s: float = 0.0


class Network(NamedTuple):
    """Namespaces of the nodes, rack after rack, as file descriptors, and their addresses."""

    shape: Shape
    nodes: list[int]
    addresses: list[str]

    def rack_of(self, node: int) -> int:
        """The rack of `node`."""
        return next(r for r in range(len(self.shape.racks)) if node < sum(self.shape.racks[: r + 1]))


def bucket_bytes(bit_per_s: float) -> int:
    """Bytes that may pass at once: 64 kB up to 200 Mbit/s, then in proportion to 1 Gbit/s, at which it is 256 kB."""
    return int(max(64e3, 256e3 * min(1.0, bit_per_s / 1e9)))


def inside(namespace: int, work: Callable[[], Any]) -> Any:
    """The result of `work`, done by a thread in `namespace`: the caller stays where it is."""
    return _in_thread(lambda: (enter(namespace), work())[1])


def enter(namespace: int) -> None:
    """Move this thread, and those that it starts, into `namespace`."""
    _call("setns", namespace, CLONE_NEWNET)


def fork_on(network: Network, nodes: Sequence[int], body: Callable[..., Any]) -> list[Any]:
    """Run `body(start, report)` with rank i on node `nodes[i]`; results by rank, errors as `fork`."""
    first = network.addresses[nodes[0]]
    with inside(network.nodes[nodes[0]], lambda: socket.create_server((first, 0), backlog=len(nodes) + 64)) as meeting:
        port = meeting.getsockname()[1]

        def moved(start, report):
            enter(network.nodes[nodes[start.rank]])
            os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
            listening = meeting.fileno() if start.rank == 0 else None
            return body(start._replace(host=first, port=port, listening=listening), report)

        return fork(len(nodes), moved)


@contextmanager
def emulated(shape: Shape):
    """A `Network` of `shape`; Unavailable with the reason where this machine forbids it."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise Unavailable(f"emulated network: {', '.join(missing)} is not installed")
    with ExitStack() as stack:
        core, *nodes = [_namespace(stack) for _ in range(1 + sum(shape.racks))]
        network = Network(shape, nodes, [f"10.77.{n // 200}.{n % 200 + 1}" for n in range(len(nodes))])
        if _relayed(shape):
            _start_relay(stack, core, shape)
        _wire(core, network)
        yield network


def _wire(core: int, network: Network) -> None:
    """Bridges, NICs, uplinks and their buckets."""
    shape, uplinks = network.shape, _uplinks(network.shape)
    bridges = ["spine", *(f"rack{r}" for r in range(len(shape.racks)))]
    lines = [f"link add {bridge} mtu {MTU_BYTES} type bridge" for bridge in bridges]
    if not _relayed(shape):
        lines += [f"link add {down} mtu {MTU_BYTES} type veth peer name {up} mtu {MTU_BYTES}" for down, up in uplinks]
    lines += [f"link set {down} mtu {MTU_BYTES} master rack{r}" for r, (down, _) in enumerate(uplinks)]
    lines += [f"link set {up} mtu {MTU_BYTES} master spine" for _, up in uplinks]
    for n, namespace in enumerate(network.nodes):
        there = f"name {INTERFACE} mtu {MTU_BYTES} netns {_path(namespace)}"
        lines.append(f"link add nic{n} mtu {MTU_BYTES} type veth peer {there}")
        lines.append(f"link set nic{n} master rack{network.rack_of(n)}")
    nics = [f"nic{n}" for n in range(len(network.nodes))]
    ends = [end for pair in uplinks for end in pair]
    _batch(core, "ip", lines + [f"link set {device} up" for device in (*bridges, *nics, *ends)])
    _batch(core, "tc", [_shaped(nic, shape.nic_bit_per_s) for nic in nics])
    _batch(core, "tc", [_shaped(end, shape.uplink_bit_per_s) for end in ends])
    for namespace, address in zip(network.nodes, network.addresses, strict=True):
        up = [f"link set {INTERFACE} up", f"link set lo mtu {MTU_BYTES} up"]
        _batch(namespace, "ip", [f"address add {address}/16 dev {INTERFACE}", *up])
        shaped = [(INTERFACE, shape.nic_bit_per_s), ("lo", shape.inside_bit_per_s)]
        _batch(namespace, "tc", [_shaped(device, rate) for device, rate in shaped if rate])
        inside(namespace, lambda: _set_windows(shape))


def _relayed(shape: Shape) -> bool:
    return shape.uplink_delay_s > 0 or shape.uplink_frame_s > 0


def _uplinks(shape: Shape) -> list[tuple[str, str]]:
    """Ends of each rack's uplink: (at the rack, at the spine)."""
    return [(f"down{r}", f"up{r}") for r in range(len(shape.racks))]


def _shaped(device: str, bit_per_s: float) -> str:
    return f"qdisc add dev {device} root tbf rate {bit_per_s:.0f}bit burst {bucket_bytes(bit_per_s)} limit {QUEUE}"


def _set_windows(shape: Shape) -> None:
    """Bound the windows of TCP: four times what is under way over two uplinks and back, at least WINDOW_BYTES."""
    largest = max(WINDOW_BYTES, int(4 * shape.nic_bit_per_s / 8 * 4 * shape.uplink_delay_s))
    for name in ("tcp_rmem", "tcp_wmem"):
        try:
            Path(f"/proc/sys/net/ipv4/{name}").write_text(f"4096 {WINDOW_BYTES // 2} {largest}")
        except OSError as error:
            raise Unavailable(f"emulated network: {name}: {error.strerror}") from None


def _namespace(stack: ExitStack) -> int:
    """A new network namespace, alive as long as its file descriptor."""

    def make() -> int:
        _call("unshare", CLONE_NEWNET)
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY)

    namespace: int = _in_thread(make)
    stack.callback(os.close, namespace)
    return namespace


def _start_relay(stack: ExitStack, core: int, shape: Shape) -> None:
    ends = [end for pair in _uplinks(shape) for end in pair]
    script, numbers = Path(__file__).parent / "relay.py", (str(shape.uplink_delay_s), str(shape.uplink_frame_s))
    command = [sys.executable, "-I", "-S", str(script), *numbers, *ends]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(["nsenter", f"--net={_path(core)}", *command], text=True, **pipes)
    stack.enter_context(process)
    stack.callback(process.stdin.close)
    if process.stdout.readline() != "ready\n":
        raise Unavailable(f"emulated network: TAP devices: {process.stderr.read().strip()[-200:]}")


def _batch(namespace: int, tool: str, lines: Sequence[str]) -> None:
    command = ["nsenter", f"--net={_path(namespace)}", tool, "-batch", "-"]
    done = subprocess.run(command, input="\n".join(lines) + "\n", text=True, capture_output=True, check=False)
    if done.returncode:
        raise Unavailable(f"emulated network: {tool}: {done.stderr.strip()[:200]}")


def _path(namespace: int) -> str:
    return f"/proc/{os.getpid()}/fd/{namespace}"


def _call(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        raise Unavailable(f"emulated network: {name}: {os.strerror(ctypes.get_errno())}")


def _in_thread(work: Callable[[], Any]) -> Any:
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]
