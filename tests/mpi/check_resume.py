#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs that are killed at system calls, of any rank, and go on with --resume; plans and journals that do not fit.

    check_resume.py --mpirun PROGRAM ... --injector PROGRAM [--seed N] [--every [--others N]]
"""
import collections
import itertools
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zlib

import check_jobs
import jobs

# Kills in an ordinary run, drawn from the calls that change files; --every tries every call from the first file on that the tool opens,
# and of those before it, in which MPI starts, and of each kind that is only made to talk or to wait, --others.
KILLS = 10
CHANGES = ("pwrite64", "write", "fsync", "fallocate", "ftruncate", "renameat2", "unlinkat", "mkdirat", "flock", "close", "pread64")
TALKS = ("clock_nanosleep", "poll", "epoll_wait", "socket", "ioctl", "futex_wait", "futex_other", "epoll_ctl", "readv", "writev", "munmap")
# The tool alone makes it, and begins with it.
BEGINS = ["--from", "openat2"]
EXTENT = 1 << 20
BLOCK = 4096


class Resumed(check_jobs.Jobs):
    def __init__(self, args, folder):
        super().__init__(args, folder)
        self.large = os.path.join(folder, "large.safetensors")
        jobs.write_safetensors(self.large, {"a.weight": (1100, 1000), "b": (7,), "c.weight": (300, 40, 25), "d": (12345,)})
        shutil.rmtree(self.source)
        self.plain("shard", self.large, self.source, "-w", "3")
        self.plain("convert", "step-4", "expected.pt", "--force")
        self.plain("reshard", "step-4", "expected", "-w", "2")
        self.expected = {name: self.tree(f"expected{name}") for name in (".pt", "")}

    def words(self, name):
        """The verb that writes a file, or the one that writes a folder."""
        return ["convert", "step-4", "out.pt"] if name == ".pt" else ["reshard", "step-4", "out", "-w", "2"]

    def clean(self):
        for name in os.listdir(self.folder):
            if name.startswith(".out") or name.startswith("out"):
                at = os.path.join(self.folder, name)
                shutil.rmtree(at) if os.path.isdir(at) else os.remove(at)

    def resume(self, name, ranks, *more):
        """Goes on with --resume, with 0 ranks in a process without MPI; returns the bytes that were kept."""
        words = [*self.words(name), "--resume", "--json", *more]
        done = self.job(*words, ranks=ranks) if ranks else self.plain(*words)
        assert self.tree(f"out{name}") == self.expected[name], f"{ranks} ranks wrote other bytes after a kill"
        assert not self.remains(), self.remains()
        return json.loads(done.stdout)["kept_bytes"]

    def kill_plain(self, name, at, call="pwrite64", more=()):
        """One process with --resume, killed at that call; returns whether it came to it."""
        report = os.path.join(self.folder, "report")
        subprocess.run([self.args.injector, "--report", report, "--call", call, "--at", str(at), "--do", "kill", "--", self.args.plain,
                        *self.words(name), "--resume", "--threads", "1", *more], cwd=self.folder, capture_output=True, check=False)
        with open(report, encoding="utf-8") as file:
            return "signal 9" in file.read()

    # ---- kills

    def written(self, name):
        """The bytes of the temporary that are those of the output, in whole blocks."""
        total = 0
        temporary, output = (os.path.join(self.folder, at) for at in (f".out{name}.fsdp-tmp", f"expected{name}"))
        for member in [""] if name else os.listdir(output):
            at = os.path.join(temporary, member) if member else temporary
            if not os.path.exists(at):
                continue
            with open(at, "rb") as one, open(os.path.join(output, member) if member else output, "rb") as other:
                while block := one.read(BLOCK):
                    total += len(block) if block == other.read(BLOCK) else 0
        return total

    def points(self, generator):
        """(arguments of the injector, OUT, rank) of each kill."""
        kinds = {}
        for begins, name, rank in itertools.product((BEGINS, []) if self.args.every else (BEGINS,), self.expected, (0, 1)):
            _, report = self.injected(rank, begins, self.words(name), ranks=2)
            for words in map(str.split, report.splitlines()):
                if words[0] == "calls":
                    kinds[tuple(begins), name, rank, words[1]] = int(words[2])
            self.clean()
        if not self.args.every:
            chosen = generator.sample([kind for kind in kinds if kind[3] in CHANGES], KILLS)
            places = [(kind, generator.randint(1, kinds[kind])) for kind in chosen]
        else:
            starts = [(kind, at + 1) for kind, count in kinds.items() if not kind[0] for at in range(count)]
            places = generator.sample(starts, min(self.args.others, len(starts)))
            for kind, count in kinds.items():
                if kind[0]:
                    few = kind[3] in TALKS and count > self.args.others
                    places += [(kind, at) for at in (generator.sample(range(1, count + 1), self.args.others) if few else range(1, count + 1))]
            generator.shuffle(places)
        return [([*begins, "--call", call, "--at", str(at), "--do", "kill"], name, rank) for (begins, name, rank, call), at in places]

    def any_rank_at_calls(self):
        generator = random.Random(self.args.seed)
        points = self.points(generator)
        numbers = collections.Counter()
        for number, (kill, name, rank) in enumerate(points):
            self.clean()
            done, report = self.injected(rank, kill, self.words(name), ranks=2)
            what = f"out{name}, rank {rank} killed: {' '.join(kill)}"
            now = self.tree(f"out{name}")
            assert now in ("nothing", self.expected[name]), f"{what}: it is neither the old nor the new one"
            numbers["killed"] += "signal 9" in report
            if self.args.every and number % 100 == 99:
                print(f"  {number + 1} of {len(points)}: {dict(numbers)}", flush=True)
            if now != "nothing":
                numbers["in place"] += 1
                # What is left belongs to no temporary, or is about to go.
                self.plain(*self.words(name), "--force")
                assert not self.remains(), f"{what}: {self.remains()}"
                continue
            assert done.returncode != 0, f"{what}: the job succeeded"
            written = self.written(name)
            try:
                # One process takes less time than a job, and meets the same files.
                kept = self.resume(name, generator.randint(1, 3) if not self.args.every or number % 10 == 0 else 0)
            except AssertionError as error:
                raise AssertionError(f"{what}: {error}") from error
            numbers["kept an extent"] += kept != 0
            lost = written - kept
            numbers["most bytes done again"] = max(numbers["most bytes done again"], lost)
            # Blocks of two extents, and what is written between and after them, such as headers, are in no extent.
            assert lost <= 2 * EXTENT + 8 * BLOCK, f"{what}: {written} bytes were written, and {kept} of them kept"
        print(f"  {len(points)} kills: {dict(numbers)}", flush=True)
        assert numbers["killed"] > len(points) / 2 and numbers["kept an extent"] > 0, numbers
        self.clean()

    def one_extent_is_lost(self):
        """The files that are written in extents of 1 MiB by single writes keep all but the last one."""
        for name in self.expected:
            before = 0
            for at in itertools.count(2, 3):
                self.clean()
                if not self.kill_plain(name, at):
                    break
                now = self.tree(f"out{name}")
                if now != "nothing":
                    break
                kept = self.resume(name, 1)
                # Not every call writes a whole extent; headers come last.
                assert kept >= before, f"killed at pwrite #{at}: {kept} bytes were kept, {before} at an earlier one"
                before = kept
            whole = 4 * (1100 * 1000 + 7 + 300 * 40 * 25 + 12345)
            assert before >= whole - EXTENT - 4 * 12352, f"{before} of {whole} bytes were kept at the last write"
            self.clean()

    def old_output_stays(self):
        for name in self.expected:
            self.plain(*(["shard", self.large, "out", "-w", "1"] if name == "" else ["convert", self.large, "out.pt"]))
            old = self.tree(f"out{name}")
            assert self.kill_plain(name, 6, more=["--force"]) and self.tree(f"out{name}") == old
            assert self.resume(name, 2, "--force") > 0
            self.clean()

    def asked_to_stop(self):
        """A signal with --resume leaves what is done, and without it nothing."""
        journal = os.path.join(self.folder, ".out.pt.fsdp-journal", "rank-0")
        for more in (["--resume"], []):
            # fsync number 12 waits for ever: a disk that hangs.
            environment = dict(os.environ, LD_PRELOAD=self.args.hold, FSDP_HELD_CALL="fsync", FSDP_HELD_AT="12" if more else "1")
            with subprocess.Popen([self.args.plain, *self.words(".pt"), *more], cwd=self.folder, env=environment, stderr=subprocess.PIPE) as process:
                while not (os.path.exists(journal) and os.path.getsize(journal) > 0 if more else self.remains()):
                    time.sleep(0.01)
                process.terminate()
                assert process.wait() == 143, process.stderr.read()
            assert bool(self.remains()) == bool(more), self.remains()
            if more:
                assert self.resume(".pt", 2) > 0
            self.clean()

    # ---- what does not fit

    def refused(self, *words, text, code="MISMATCH"):
        before = self.tree(".out.pt.fsdp-tmp")
        for done in (self.plain(*words, "--resume", status=2), self.job(*words, "--resume", status=2)):
            assert done.stderr.count(f"error[{code}]") == 1 and text in done.stderr, done.stderr
        assert self.tree(".out.pt.fsdp-tmp") == before, "what an earlier run left was changed"

    def other_plan(self):
        assert self.kill_plain(".pt", 6)
        self.refused("convert", "step-4", "out.pt", "--dtype", "bf16", text="belong to another run: they have")
        self.refused("convert", self.large, "out.pt", text="belong to another run: PATH is")
        self.refused("convert", "step-4", "out.pt", "--no-sync", text="--no-sync", code="USAGE")
        member = os.path.join(self.source, "__1_0.distcp")
        times = os.stat(member)
        os.utime(member, ns=(times.st_atime_ns, times.st_mtime_ns - 5))
        self.refused(*self.words(".pt"), text="belong to another run: step-4: __1_0.distcp is")
        os.utime(member, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert self.resume(".pt", 2) > 0
        self.clean()
        assert self.kill_plain(".pt", 6)
        assert "belong to another run: version" in self.groups(
            [(2, [self.args.other_version, *self.words(".pt"), "--resume"])], 2).stderr
        self.clean()

    def other_times(self):
        """Clocks of machines that are decades apart: times are compared with themselves alone."""
        for when in (86400, 4 * 10 ** 9):
            assert self.kill_plain(".pt", 6)
            for name in self.remains():
                for folder, _, names in os.walk(os.path.join(self.folder, name)):
                    for inside in names:
                        os.utime(os.path.join(folder, inside), (when, when))
                os.utime(os.path.join(self.folder, name), (when, when))
            assert self.resume(".pt", 2) > 0
            self.clean()

    def other_output(self):
        """Journals that lie beside the temporary of another run."""
        assert self.kill_plain(".pt", 8)
        journals = os.path.join(self.folder, ".out.pt.fsdp-journal")
        kept = os.path.join(self.folder, "kept")
        shutil.copytree(journals, kept)
        self.clean()
        assert self.kill_plain(".pt", 2)
        shutil.rmtree(journals, ignore_errors=True)
        os.rename(kept, journals)
        assert self.resume(".pt", 2) == 0, "what another temporary has was kept"
        self.clean()

    def damaged_journal(self):
        journal = os.path.join(self.folder, ".out.pt.fsdp-journal", "rank-0")
        assert self.kill_plain(".pt", 8)
        with open(journal, "rb") as file:
            sound = file.read()
        for at in (0, 20, len(sound) // 2):
            with open(journal, "wb") as file:
                file.write(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1:])
            self.refused(*self.words(".pt"), text="rank-0' beside it: the journal is damaged: ")
        # Whole records that no run writes, in place of the first one; the last has other words of what was read of the source.
        size = struct.unpack_from("<I", sound, 4)[0]
        first, rest = sound[16:16 + size], sound[16 + size:]
        reads = struct.unpack_from("<Q", first, 8)[0]
        for record, text in ((b"no entry", "ends early"), (struct.pack("<QQQQQ", 0, 0, 2 ** 62, 0, 0), "a run without a file"),
                             (first[:16] + bytes(reads) + first[16 + reads:], "are damaged: another process")):
            head = struct.pack("<III", 0x4A4B4346, len(record), zlib.crc32(record))
            with open(journal, "wb") as file:
                file.write(head + struct.pack("<I", zlib.crc32(head)) + record + rest)
            self.refused(*self.words(".pt"), text=text)
        # A record that was being written when the machine stopped.
        for tail in (sound[:9], sound[:30], bytes(64)):
            with open(journal, "wb") as file:
                file.write(sound + tail)
            left = os.path.join(self.folder, "left")
            shutil.rmtree(left, ignore_errors=True)
            os.mkdir(left)
            for name in self.remains():
                at = os.path.join(self.folder, name)
                # Hard links: the file's identity is a part of its plan.
                (shutil.copytree if os.path.isdir(at) else os.link)(at, os.path.join(left, name))
            assert self.resume(".pt", 2) >= EXTENT
            os.remove(os.path.join(self.folder, "out.pt"))
            for name in os.listdir(left):
                os.rename(os.path.join(left, name), os.path.join(self.folder, name))
        self.clean()

    def damaged_source(self):
        """A flipped byte in an extent that was kept is found by the run that goes on."""
        flipped = os.path.join(self.folder, "flipped")
        shutil.copytree(self.source, flipped)
        with open(os.path.join(flipped, "__0_0.distcp"), "r+b") as file:
            file.seek(300_000)
            byte = file.read(1)
            file.seek(300_000)
            file.write(bytes([byte[0] ^ 1]))
        words = ["convert", "flipped", "out.pt"]
        report = os.path.join(self.folder, "report")
        subprocess.run([self.args.injector, "--report", report, "--call", "pwrite64", "--at", "2", "--do", "kill", "--", self.args.plain,
                        *words, "--resume", "--threads", "1"], cwd=self.folder, capture_output=True, check=False)
        assert os.path.getsize(os.path.join(self.folder, ".out.pt.fsdp-journal", "rank-0")) > 0
        for ranks in (3, 2):
            done = self.job(*words, "--resume", ranks=ranks, status=2)
            assert "error[ZIP_CRC]" in done.stderr, done.stderr
            assert self.tree("out.pt") == "nothing"
        self.clean()

    def not_every_format(self):
        done = self.plain("convert", "step-4", "out.h5", "--resume", status=2)
        assert "UNSUPPORTED" in done.stderr, done.stderr
        self.clean()


def main():
    args = jobs.arguments(__doc__)
    os.environ["FSDP_CKPT_EXTENT"] = str(EXTENT)
    with tempfile.TemporaryDirectory() as folder:
        tried = Resumed(args, folder)
        for case in (tried.one_extent_is_lost, tried.old_output_stays, tried.asked_to_stop, tried.other_plan, tried.other_times, tried.other_output,
                     tried.damaged_journal, tried.damaged_source, tried.not_every_format, tried.any_rank_at_calls):
            begin = time.monotonic()
            case()
            print(f"{case.__name__}: {time.monotonic() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
