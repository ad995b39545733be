# SPDX-License-Identifier: Apache-2.0
"""Roots to install into: a copy of this machine on write, or an empty folder.  Nothing outlives the process.

The tests that need one begin with enter(): it runs the script once more in a mount namespace of its own, so that no mount is seen
outside and all of them go with it.
"""
import os
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
MARK = "FSDP_TEST_MOUNTS"


class Failure(Exception):
    pass


class Skipped(Exception):
    pass


def check(holds, what):
    if not holds:
        raise Failure(what)


def run(words, **options):
    options.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="backslashreplace", check=False, **options)


def wanted(words, status=0, said="", **options):
    """Runs a command that must end with the status and say that; returns what it printed."""
    done = run(words, **options)
    check(done.returncode == status and said in done.stdout, f"{words}: status {done.returncode}, not {status}; wanted {said!r}\n{done.stdout[-3000:]}")
    return done.stdout


def enter():
    """Goes on in a mount namespace of its own.  Throws: Skipped where this is not allowed."""
    if os.environ.get(MARK):
        return
    if os.geteuid() != 0 or not shutil.which("unshare") or run(["unshare", "--mount", "true"]).returncode != 0:
        raise Skipped("needs root and mount namespaces, to install into a copy of this machine")
    os.environ[MARK] = "1"
    os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv])


class Root:
    """A root folder: a copy of this machine on write, or, with empty=True, nothing at all."""

    def __init__(self, folder, empty=False):
        self.memory = tempfile.mkdtemp(dir=folder)
        wanted(["mount", "-t", "tmpfs", "-o", "size=3g,mode=755", "tmpfs", self.memory])
        self.upper, work, self.path = (os.path.join(self.memory, name) for name in ("upper", "work", "root"))
        for path in (self.upper, work, self.path):
            os.mkdir(path)
            os.chmod(path, 0o755)
        if empty:
            self.upper = self.path
            return
        done = run(["mount", "-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={self.upper},workdir={work}", self.path])
        if done.returncode != 0:
            raise Skipped(f"no overlay of this machine's files can be mounted: {done.stdout.strip()}")
        wanted(["mount", "-t", "proc", "proc", os.path.join(self.path, "proc")])
        wanted(["mount", "--rbind", "/dev", os.path.join(self.path, "dev")])
        wanted(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", os.path.join(self.path, "tmp")])
        self.inside(["true"])

    def share(self, path):
        """Shows a folder of this machine under its own name, read-only."""
        target = self.path + path
        os.makedirs(target, exist_ok=True)
        wanted(["mount", "--bind", path, target])
        wanted(["mount", "-o", "remount,bind,ro", target])

    def command(self, words, user=None):
        return ["chroot", *([f"--userspec={user}"] if user else []), self.path, *words]

    def inside(self, words, status=0, said="", user=None, **options):
        return wanted(self.command(words, user), status=status, said=said, **options)

    def added(self):
        """The files that are in this root and not on the machine, or differ from its own."""
        return {os.path.join(base, name)[len(self.upper):] for base, _, names in os.walk(self.upper) for name in names}


def main(case, options):
    """Runs a case in a folder of its own; returns the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            if getattr(case, "mounts", False):
                enter()
            case(options, folder)
        except Skipped as reason:
            print(f"skipped: {reason}")
            return SKIPPED
        except Failure as failure:
            print(f"FAILED: {failure}")
            return 1
        finally:
            # Busy mounts would keep the folder from being removed; the namespace is this process's own.
            if os.environ.get(MARK):
                for line in reversed(open("/proc/self/mounts", encoding="utf-8").read().splitlines()):
                    if line.split()[1].startswith(folder):
                        run(["umount", "--lazy", line.split()[1]])
    return 0
