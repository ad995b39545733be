#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Injects faults into fsdp-ckpt with strace: in every case the destination is the old one or the new one, whole.

  python3 check_faults.py CASE --tool PATH --data tests/data     exit 0: passed, 1: failed, 77: no strace here

signals                     SIGINT, SIGTERM, SIGHUP in mid-write: status 128 + n, nothing left behind
stuck                       SIGINT and SIGTERM while a thread is held in a system call that does not end
streams                     a closed pipe, a full device, closed descriptors
one_writer                  threads never write one file at the same time or spin for its lock; reads meanwhile are counted
no_execution                no verb starts a program, opens a socket or loads libcurl, over sound and damaged checkpoints
"""
import argparse
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from injector import SKIPPED, STATIC, is_static


class Failure(Exception):
    pass


def check(condition, message):
    if not condition:
        raise Failure(message)


class Bench:
    def __init__(self, tool, data, hold, folder):
        self.tool, self.hold, self.folder = tool, hold, folder
        self.source = os.path.join(data, "golden/2.15.0/fsdp2/ckpt")
        self.other = os.path.join(data, "golden/2.11.0/minimal/ckpt")

    def path(self, name):
        return os.path.join(self.folder, name)

    def run(self, args, strace=(), **kw):
        command = ["strace", "-f", "-o", self.path("trace"), *strace, self.tool, *args] if strace else [self.tool, *args]
        kw.setdefault("capture_output", True)
        return subprocess.run(command, text=True, **kw)

    def clear(self):
        for name in os.listdir(self.folder):
            path = self.path(name)
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)

    def trace_count(self, args, call):
        self.run(args, ["-e", f"trace={call}"])
        with open(self.path("trace")) as f:
            return sum(1 for line in f if f" {call}(" in line)


def content(path):
    """Returns a hash of a file, or of a folder's names and files; None if it does not exist."""
    if not os.path.lexists(path):
        return None
    digest = hashlib.sha256()
    names = sorted(os.listdir(path)) if os.path.isdir(path) else [""]
    for name in names:
        digest.update(name.encode() + b"\0")
        with open(os.path.join(path, name) if name else path, "rb") as f:
            digest.update(f.read())
    return digest.hexdigest()


class Write:
    """A command that replaces an old output by a new one."""

    def __init__(self, bench, folder):
        self.bench = bench
        self.out = bench.path("out" if folder else "out.pt")
        how = ["--force", "--threads", "1"]
        if folder == "reshard":
            self.args = ["reshard", bench.source, self.out, *how, "--world-size", "3", "-k", "app.model.blocks.**"]
            self.old_args = ["reshard", bench.other, self.out, *how, "--world-size", "2"]
        else:
            split = ["--max-shard-size", "20KB", "-k", "app.model.**"] if folder else []
            self.args = ["consolidate", bench.source, self.out, *how, *split]
            self.old_args = ["consolidate", bench.other, self.out, *how, *(["--max-shard-size", "1MB", "-k", "w"] if folder else [])]
        bench.clear()
        self.must(self.args)
        self.new = content(self.out)
        self.reset()
        self.old = content(self.out)
        check(self.old != self.new, "the old and the new output are the same")

    def must(self, args):
        done = self.bench.run(args)
        check(done.returncode == 0, f"{args}: status {done.returncode}\n{done.stderr}")

    def reset(self):
        self.bench.clear()
        self.must(self.old_args)

    def leftovers(self):
        return sorted(set(os.listdir(self.bench.folder)) - {os.path.basename(self.out), "trace"})


def short_io(bench):
    """EINTR on reads and writes changes nothing."""
    write = Write(bench, False)
    data = [os.path.join(bench.source, name) for name in os.listdir(bench.source)]
    for call, paths in (("pwrite64", []), ("pread64", data)):
        write.reset()
        only = [x for path in paths for x in ("-P", path)]   # the dynamic loader reads as well
        done = bench.run(write.args, [*only, "-e", f"trace={call}", "-e", f"inject={call}:error=EINTR:when=1+2"])
        check(done.returncode == 0 and content(write.out) == write.new, f"EINTR at every other {call}: {done.stderr}")


def signals(bench):
    short_io(bench)
    for folder in (False, True, "reshard"):
        write = Write(bench, folder)
        for name, number in (("INT", 2), ("TERM", 15), ("HUP", 1)):
            write.reset()
            done = bench.run(write.args, ["-e", "trace=pwrite64", "-e", f"inject=pwrite64:signal={name}:when=5"])
            check(done.returncode == 128 + number, f"SIG{name}: status {done.returncode}")
            check(content(write.out) == write.old, f"SIG{name}: the old output is gone")
            check(write.leftovers() == [], f"SIG{name}: left {write.leftovers()}")
    print("SIGINT, SIGTERM and SIGHUP leave the old output and nothing else")


# Far longer than a verb may take to end, and far shorter than the calls in which it is held (held_call.cpp).
ENDS = 20


def stuck(bench):
    """Threads that never check whether they should stop: the process ends all the same, and removes its temporaries."""
    tried = 0
    for folder in (False, True):
        write = Write(bench, folder)
        # The last fsync is that of the folder, after the rename.
        last = bench.trace_count(write.args, "fsync")
        check(last >= 2, f"{last} calls of fsync")
        verbs = [(write.args, "pwrite", 2), (write.args, "fsync", 1), (write.args, "fsync", last)]
        if not folder:
            verbs += [([verb, bench.source], "pread", 2) for verb in ("verify", "inspect", "stats")]
            verbs += [(["diff", bench.source, bench.source], "pread", 2), (["extract", bench.source, "step"], "pread", 2)]
        for args, call, at in verbs:
            for number in (signal.SIGINT, signal.SIGTERM):
                where = f"{args[0]}, held up in {call} #{at}: {number.name}"
                write.reset()
                mark = bench.path("trace")
                held = subprocess.Popen([bench.tool, *args], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        env={**os.environ, "LD_PRELOAD": bench.hold, "FSDP_HELD_CALL": call, "FSDP_HELD_AT": str(at), "FSDP_HELD_MARK": mark})
                try:
                    while not os.path.exists(mark):
                        check(held.poll() is None, f"{where}: ended before it was held up, status {held.returncode}")
                        time.sleep(0.05)
                    held.send_signal(number)
                    status = held.wait(ENDS)
                except subprocess.TimeoutExpired:
                    raise Failure(f"{where} does not end it") from None
                finally:
                    held.kill()
                    held.wait()
                check(status == 128 + number, f"{where}: status {status}")
                placed = call == "fsync" and at == last
                check(content(write.out) == (write.new if placed else write.old), f"{where}: the output is not {'the new' if placed else 'the old'} one")
                # A replaced folder may be left to the next run.
                check(write.leftovers() == [] or (placed and folder), f"{where} left {write.leftovers()}")
                tried += 1
    print(f"{tried} times held up and ended")


def streams(bench):
    source = bench.source
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = bench.run(["inspect", source, "--json"], stdout=write_end, stderr=subprocess.PIPE, capture_output=False)
    os.close(write_end)
    check(done.returncode == 141 and done.stderr == "", f"closed pipe: status {done.returncode}, {done.stderr!r}")
    with open("/dev/full", "w") as full:
        done = bench.run(["inspect", source], stdout=full, stderr=subprocess.PIPE, capture_output=False)
    check(done.returncode == 2 and "standard output" in done.stderr, f"full device: status {done.returncode}, {done.stderr!r}")
    # If standard output fails after the replacement, the message says that the new output is in place, and it is.
    for folder in (False, True):
        write = Write(bench, folder)
        for json in ([], ["--json"]):
            write.reset()
            with open("/dev/full", "w") as full:
                done = bench.run([*write.args, *json], stdout=full, stderr=subprocess.PIPE, capture_output=False)
            check(done.returncode == 2 and f"could not be written; {write.out} is in place" in done.stderr, f"full device: {done.stderr!r}")
            check(content(write.out) == write.new, "full device: not the new output")
        write.reset()
        read_end, write_end = os.pipe()
        os.close(read_end)
        done = bench.run(write.args, stdout=write_end, stderr=subprocess.PIPE, capture_output=False)
        os.close(write_end)
        check(done.returncode == 141 and f"{write.out} is in place" in done.stderr, f"closed pipe: {done.returncode}, {done.stderr!r}")
    bench.clear()
    good = bench.path("a.pt")
    check(bench.run(["consolidate", source, good]).returncode == 0, "consolidate")
    # With 0 to 2 closed, the first files opened could become standard output and receive messages.
    out = bench.path("b.pt")
    done = subprocess.run(["sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh", bench.tool, "consolidate", source, out, "--progress", "always"])
    check(done.returncode == 0, f"closed descriptors: status {done.returncode}")
    check(content(good) == content(out), "closed descriptors: the output differs")
    print("closed pipe 141, full device 2, closed descriptors harmless")


def one_writer(bench):
    """See output_windows.h: the calls that write a file never overlap, with any number of threads."""
    writes, size = 0, 64 << 20
    header = f'{{"w":{{"dtype":"F32","shape":[{size // 4}],"data_offsets":[0,{size}]}}}}'.encode()
    for _ in range(4):
        bench.clear()
        source, out = bench.path("large.safetensors"), bench.path("out.pt")
        with open(source, "wb") as f:
            f.write(len(header).to_bytes(8, "little") + header)
            f.truncate(8 + len(header) + size)
        done = bench.run(["consolidate", source, out, "--threads", "4", "--no-sync"], ["-y", "-e", "trace=pwrite64"])
        check(done.returncode == 0, done.stderr)
        begun = {}   # by thread, the file that it is writing
        with open(bench.path("trace")) as f:
            for line in f:
                thread, call = line.split(None, 1)
                if call.startswith("<... pwrite64 resumed"):
                    begun.pop(thread)
                elif call.startswith("pwrite64("):
                    name = call[call.index("<") + 1:call.index(">")]
                    check(name not in begun.values(), f"two threads write {name} at once: {line}")
                    writes += 1
                    if call.rstrip().endswith("<unfinished ...>"):
                        begun[thread] = name
    check(writes > 200, f"only {writes} writes were seen")
    print(f"{writes} writes, one at a time")


def no_execution(bench):
    paths = [bench.source, bench.other]
    damaged = bench.path("damaged")
    shutil.copytree(bench.other, damaged)
    with open(os.path.join(damaged, ".metadata"), "r+b") as f:
        # posix.system called by the planner data: PyTorch would run it.
        f.write(b"\x80\x02cposix\nsystem\nX\x05\x00\x00\x00touchq\x00\x85R.")
        f.truncate()
    runs = 0
    for path in [*paths, damaged]:
        out = bench.path("x")
        for verb in (["inspect", path], ["verify", path], ["consolidate", path, f"{out}.pt", "--force"], ["stats", path],
                     ["diff", path, path], ["reshard", path, out, "--world-size", "2", "--force"],
                     ["convert", path, f"{out}.h5", "--force"], ["rename", path, f"{out}-renamed", "--rename", "/=all.", "--force"],
                     ["inspect", path, "--html", f"{out}.html", "--force"]):
            done = bench.run(verb, ["-e", "trace=execve,socket,connect,fork,vfork,openat"])
            with open(bench.path("trace")) as f:
                lines = f.readlines()
            calls = [line for line in lines if any(f" {c}(" in line for c in ("execve", "socket", "connect", "fork", "vfork"))]
            check(len(calls) == 1, f"{verb}: {calls}")
            check(not any("libcurl" in line for line in lines), f"{verb}: loads what talks to servers")
            if path == damaged:
                check(done.returncode == (1 if verb[0] == "verify" else 2), f"{verb}: status {done.returncode}")
                check("GLOBAL" in done.stdout + done.stderr and "posix.system" in done.stdout + done.stderr, f"{verb}: {done.stderr}")
            runs += 1
    print(f"{runs} runs: nothing started, no socket")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case")
    parser.add_argument("--tool", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--hold", help="the library of held_call.cpp; for stuck")
    a = parser.parse_args()
    # A job in the background of a shell ignores SIGINT, and so do the processes that it starts.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    probe = shutil.which("strace") and subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True)
    if not probe or probe.returncode != 0:
        print("skipped: strace is not installed or may not trace here")
        return 77
    if a.case == "stuck" and is_static(a.tool):
        print(STATIC)
        return SKIPPED
    cases = {"signals": signals, "stuck": stuck, "streams": streams, "one_writer": one_writer, "no_execution": no_execution}
    with tempfile.TemporaryDirectory() as folder:
        try:
            cases[a.case](Bench(os.path.abspath(a.tool), os.path.abspath(a.data), a.hold, folder))
        except Failure as failure:
            print(f"FAILED: {failure}")
            return 1
    return 0


sys.exit(main())
