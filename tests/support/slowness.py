# SPDX-License-Identifier: Apache-2.0
"""How slow the processor is at this moment: a bound on processor time holds for one that has nothing else to do, and another
program on the same core, or a slower core, takes its part of every second."""
import time
import zlib

NOMINAL = 0.15   # seconds that the work below takes where docs/reliability.md's bounds were set
DATA = bytes(range(256)) * 4096


def now():
    """Returns how many times the nominal seconds a fixed piece of work takes now, at least 1."""
    begin = time.process_time()
    zlib.compress(DATA * 32, 6)
    for _ in range(16):
        bytearray(16 << 20)   # page by page by the kernel, as a process that starts
    return max(1.0, (time.process_time() - begin) / NOMINAL)
