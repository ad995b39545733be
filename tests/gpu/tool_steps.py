# SPDX-License-Identifier: Apache-2.0
"""The step of measure.py that runs fsdp-ckpt over a large checkpoint in memory, beside cp, cat and PyTorch."""
import os
import shutil
import subprocess
import sys
import time

from steps import TESTS, Skip

THREADS = (16, 1, 8, 4, 2)   # the ends first
SMALL_GB = 2                 # PyTorch reads and writes some 400 MB a second
# Of the bytes of the checkpoint: what a command reads.  A third are weights, two thirds the moments of AdamW.
COMMANDS = {
    "consolidate": (1, ["{source}", "{out}.pt", "--no-sync"]),
    "reshard": (1, ["{source}", "{out}", "--world-size", "8", "--no-sync"]),
    "verify": (1, ["{source}"]),
    "stats": (1, ["{source}"]),
    "export": (1 / 3, ["{source}", "{out}", "--dtype", "bf16", "--no-sync"]),
    "average": (2, ["{source}", "{source}", "{out}.pt", "--optimizer", "--no-sync"]),
}


def in_memory(ctx, need):
    """Returns a new folder in memory with room for `need` bytes, and what it is; or one on a disk."""
    if os.access("/dev/shm", os.W_OK) and shutil.disk_usage("/dev/shm").free > need:
        os.mkdir(ctx.in_memory)
        return ctx.in_memory, "/dev/shm"
    if shutil.disk_usage(ctx.work).free < need:
        raise Skip(f"needs {need / 1e9:.0f} GB in /dev/shm or {ctx.work}, and neither has them")
    return ctx.folder("checkpoint"), "the page cache, on the file system of " + ctx.work


def size_of(folder):
    return sum(os.path.getsize(os.path.join(place, file)) for place, _, files in os.walk(folder) for file in files)


class Measurements:
    def __init__(self, ctx, folder, until):
        self.ctx, self.folder, self.until = ctx, folder, until
        self.source, self.small, self.out = (os.path.join(folder, name) for name in ("source", "small", "out"))
        self.rates = {}      # bytes a second, of the last run of a command
        self.left_out = []

    def make(self):
        script = os.path.join(TESTS, "bench", "make_folder.py")
        ranks = str(max(2, min(8, os.cpu_count())))
        gb = self.ctx.args.tool_gb
        begin = time.monotonic()
        # Both at a time: starting Python takes as long as making the small one.
        makers = [subprocess.Popen([sys.executable, script, path, str(size), count], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                  for path, size, count in ((self.source, gb, ranks), (self.small, min(SMALL_GB, gb), "2"))]
        said = [maker.communicate()[1] for maker in makers]
        if any(maker.returncode for maker in makers):
            raise RuntimeError(" ".join(said)[-300:])
        return f"{size_of(self.source) / 1e9:.2f} GB of {ranks} ranks, in {time.monotonic() - begin:.0f} s"

    def clear(self):
        for name in os.listdir(self.folder):
            if name.startswith("out"):
                path = os.path.join(self.folder, name)
                shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)

    def once(self, name, threads, read, command, inner=False):
        """Runs the command, and records it.  `inner`: it prints the seconds of the work itself.  Returns whether there was time."""
        left = self.until - time.monotonic()
        if left < 1.2 * read / self.rates.get(name, 20e9):
            self.left_out.append(f"{name}, {threads} threads")
            return False
        begin = time.monotonic()
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=max(1, left))
        except subprocess.TimeoutExpired:
            self.left_out.append(f"{name}, {threads} threads (cut off)")
            return False
        finally:
            seconds = time.monotonic() - begin
            self.clear()
        if done.returncode:
            raise RuntimeError(f"{name}: exit {done.returncode}: {(done.stdout + done.stderr)[-250:]}")
        seconds = float(done.stdout.split()[-1]) if inner else seconds
        self.rates[name] = read / seconds
        self.ctx.results.add({"kind": "tool", "step": self.ctx.step, "command": name, "threads": threads, "gb": read / 1e9, "seconds": seconds})
        return True

    def tool(self, verb, threads):
        part, words = COMMANDS[verb]
        words = [word.format(source=self.source, out=self.out) for word in words]
        return self.once(verb, threads, part * self.bytes, [self.ctx.program("fsdp-ckpt"), verb, *words, "-q", "--threads", str(threads)])

    def beside(self):
        self.bytes = size_of(self.source)
        self.once("cp -r", 1, self.bytes, ["cp", "-r", self.source, self.out])
        self.once("cat", 1, self.bytes, ["sh", "-c", f"cat '{self.source}'/* > /dev/null"])
        return "cp and cat"

    def pytorch(self):
        script = os.path.join(TESTS, "bench", "by_pytorch.py")
        if not self.once("PyTorch: dcp_to_torch_save", 1, size_of(self.small), [sys.executable, script, "consolidate", self.small, self.out + ".pt"],
                         inner=True):
            raise Skip("no time was left")
        return f"of {size_of(self.small) / 1e9:.2f} GB, without imports"

    def verbs(self, threads):
        found = [verb for verb in COMMANDS if self.tool(verb, threads)]
        if not found:
            raise Skip("no time was left")
        return ", ".join(found)


def tool(ctx):
    # A little before the step would be killed, so that what was left out is said.
    until = time.monotonic() + 0.92 * ctx.limit
    need = (2.2 * ctx.args.tool_gb + SMALL_GB) * 1e9
    state = {}

    def make():
        folder, where = in_memory(ctx, need)
        state["folder"] = folder
        state["runs"] = Measurements(ctx, folder, until)
        return f"{state['runs'].make()}; in {where}"
    try:
        if not ctx.part("a checkpoint", make):
            return
        runs = state["runs"]
        ctx.part("cp, cat", runs.beside)
        counts = [count for count in THREADS if count <= max(2, os.cpu_count())]
        for at, threads in enumerate(counts):
            ctx.part(f"fsdp-ckpt, {threads} thread{'s' if threads > 1 else ''}", lambda: runs.verbs(threads))
            if at == 0:
                ctx.part("PyTorch", runs.pytorch)
        if runs.left_out:
            ctx.results.part(ctx.step, "runs for which no time was left", "skipped", ", ".join(runs.left_out))
    finally:
        if "folder" in state:
            shutil.rmtree(state["folder"], ignore_errors=True)
