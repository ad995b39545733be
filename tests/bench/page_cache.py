# SPDX-License-Identifier: Apache-2.0
"""Sets the content of the page cache before a measurement."""
import os
import shutil


def read_file(path):
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 24):
            pass


def evict(path):
    """Takes a file out of the page cache, once it is on the disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_into_page_cache(folder):
    for entry in os.scandir(folder):
        read_file(entry.path)


class PageCacheFiller:
    """Reads files that consist of one hole: page cache without any disk behind it."""
    KEEP_FREE = 1 << 30

    def __init__(self, folder):
        self.folder = os.path.join(folder, "filler")
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        self.files = 0

    def fill(self):
        """Fills free memory with unneeded page cache, as on a machine that has been running for a while."""
        with open("/proc/meminfo") as info:
            free = next(int(line.split()[1]) << 10 for line in info if line.startswith("MemFree"))
        if free < 3 * self.KEEP_FREE // 2:
            return
        path = os.path.join(self.folder, str(self.files))
        self.files += 1
        with open(path, "wb") as file:
            file.truncate(free - self.KEEP_FREE)
        read_file(path)

    def close(self):
        shutil.rmtree(self.folder)
