# SPDX-License-Identifier: Apache-2.0
"""Runs the tool within limits, and lists folders before and after."""
import hashlib
import os
import resource
import select
import stat
import subprocess
import tempfile

import slowness

# For files of about a megabyte, on a processor that has nothing else to do.  Sanitizers would need more: these tests are not built with them.
SECONDS = 1.0
MEGABYTES = 64
WALL_SECONDS = 60   # beside any other work
NOBODY = 65534


class Run:
    """One run: `status` (negative: the signal; None: it did not end), `out`, `err`, `seconds` of processor time, `megabytes`."""

    def __init__(self, tool, words, as_nobody=False):
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = subprocess.Popen([tool, *words], stdin=subprocess.DEVNULL, stdout=out, stderr=err, preexec_fn=limit,
                                       **({"user": NOBODY, "group": NOBODY, "extra_groups": []} if as_nobody else {}))
            handle = os.pidfd_open(process.pid)
            ended, _, _ = select.select([handle], [], [], WALL_SECONDS)
            os.close(handle)
            if not ended:
                process.kill()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            self.status = process.returncode if ended else None
            self.seconds, self.megabytes = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
            out.seek(0)
            err.seek(0)
            self.out, self.err = out.read().decode(errors="replace"), err.read().decode(errors="replace")

    def fault(self):
        if self.status is None:
            return f"did not end within {WALL_SECONDS} s"
        if self.status not in (0, 1, 2):
            return f"ended with status {self.status}"
        if self.seconds > SECONDS and self.seconds > SECONDS * slowness.now():
            return f"took {self.seconds:.2f} s of processor time"
        if self.megabytes > MEGABYTES:
            return f"took {self.megabytes:.0f} MB"
        return None


def limit():
    resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def snapshot(root):
    """Everything below `root` by name: kind, mode, time of change, and content or target."""
    out = {}
    for at, folders, names in os.walk(root):
        for name in ["."] * (at == root) + folders + names:
            path = os.path.join(at, name)
            info = os.lstat(path)
            entry = [stat.S_IFMT(info.st_mode), info.st_mode, info.st_mtime_ns]
            if stat.S_ISREG(info.st_mode):
                entry += [info.st_size, digest(path)]
            elif stat.S_ISLNK(info.st_mode):
                entry.append(os.readlink(path))
            out[os.path.relpath(path, root)] = entry
    return out


def contents(root):
    """Returns the files below `root`: digest of each, through links that stay inside; other entries have their kind."""
    out = {}
    inside = os.path.realpath(root) + os.sep
    for at, folders, names in os.walk(root):
        for name in names + [f for f in folders if os.path.islink(os.path.join(at, f))]:
            path = os.path.join(at, name)
            real = os.path.realpath(path)
            if os.path.isfile(real) and real.startswith(inside):
                out[os.path.relpath(path, root)] = digest(real)
            else:
                out[os.path.relpath(path, root)] = f"kind {stat.S_IFMT(os.lstat(path).st_mode):o}"
    return out


def has_no_end(root):
    """Returns whether reading something below `root` could wait for ever, or go on for ever."""
    for at, folders, names in os.walk(root):
        for name in names + folders:
            try:
                mode = os.stat(os.path.join(at, name)).st_mode
            except OSError:
                continue
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                return True
    return False


def has_checksums(path):
    """Returns whether a file is an archive, whose records have CRC-32s."""
    try:
        with open(path, "rb") as file:
            return file.read(2) == b"PK"
    except OSError:
        return False
