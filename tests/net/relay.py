"""Carries frames between pairs of TAP devices: python relay.py DELAY_S FRAME_S TAP TAP [TAP TAP ...]

Each way of a pair takes one frame after the other, FRAME_S for each that carries data, and hands it over DELAY_S later.
Makes the devices, says "ready", and ends when its standard input is closed.
"""

import contextlib
import fcntl
import heapq
import os
import select
import struct
import sys
import time
from itertools import count

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
FRAME, BATCH = 65536, 32
SMALL_BYTES = 200
"""Up to here a frame is taken for one that only says that data came, or may come: it takes no time."""


def tap(name):
    """File descriptor of a new TAP device."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return device


def frames(device):
    """The frames that wait at `device`, at most BATCH of them."""
    for _ in range(BATCH):
        try:
            yield os.read(device, FRAME)
        except BlockingIOError:
            return


def relay(devices, delay_s, frame_s):
    """Hand on what arrives at one end of a pair to the other until standard input is closed."""
    other = {end: devices[i ^ 1] for i, end in enumerate(devices)}
    free, number, waiting = dict.fromkeys(devices, 0.0), count(), []
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        ready = select.select([0, *devices], [], [], timeout)[0]
        if 0 in ready:
            return
        for device in ready:
            for frame in frames(device):
                free[device] = max(free[device], time.monotonic()) + frame_s * (len(frame) > SMALL_BYTES)
                heapq.heappush(waiting, (free[device] + delay_s, next(number), other[device], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, device, frame = heapq.heappop(waiting)
            with contextlib.suppress(OSError):  # a device that is down, or full: the frame is lost, as on a wire
                os.write(device, frame)


if __name__ == "__main__":
    ends = [tap(name) for name in sys.argv[3:]]
    print("ready", flush=True)
    relay(ends, float(sys.argv[1]), float(sys.argv[2]))
