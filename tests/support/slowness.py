# SPDX-License-Identifier: Apache-2.0
"""How slow the processor is at this moment: a bound on processor time holds for one that has nothing else to do, and another
program on the same core, or a slower core, takes its part of every second."""
import subprocess
import sys
import time
import zlib

NOMINAL = 0.15   # seconds that work() takes where docs/reliability.md's bounds were set


def now():
    """Returns how many times the nominal seconds a fixed piece of work takes now, at least 1."""
    # Elsewhere: commands are charged with the memory that the process had which starts them.
    done = subprocess.run([sys.executable, __file__], stdout=subprocess.PIPE, check=True)
    return max(1.0, float(done.stdout) / NOMINAL)


def work():
    """Returns the seconds of processor time that it took."""
    data = bytes(range(256)) * (4096 * 32)
    begin = time.process_time()
    zlib.compress(data, 6)
    for _ in range(16):
        bytearray(16 << 20)   # page by page by the kernel, as a process that starts
    return time.process_time() - begin


if __name__ == "__main__":
    print(work())
