#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs of fsdp-ckpt-mpi: reports, exit statuses, ranks that differ, fail, die and hang; and the plain tool under a launcher.

    check_jobs.py --mpirun PROGRAM ... --injector PROGRAM [--seed N]
"""
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import jobs

# Kills of one rank, at calls that are drawn.
KILLS = 12
CALLS = ("pwrite64", "fsync", "fallocate", "renameat2", "unlinkat", "pread64", "flock", "ftruncate")


class Jobs:
    def __init__(self, args, folder):
        self.args = args
        self.folder = folder
        self.large = os.path.join(folder, "large.safetensors")
        jobs.write_safetensors(self.large, {"a.weight": (700, 500), "b": (7,), "c.weight": (300, 40, 25), "d": (12345,)})
        self.source = os.path.join(folder, "step-4")
        self.plain("shard", self.large, self.source, "-w", "3")
        self.plain("convert", self.large, "expected.pt")
        self.expected = jobs.tree(os.path.join(folder, "expected.pt"))

    def plain(self, *words, status=0, **more):
        done = subprocess.run([self.args.plain, *words], cwd=self.folder, capture_output=True, text=True, **more)
        assert done.returncode == status, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def job(self, *words, ranks=2, status=0, **more):
        return self.groups([(ranks, [self.args.tool, *words])], status, **more)

    def groups(self, groups, status=0, **more):
        done = jobs.job(self.args.mpirun, groups, self.folder, **more)
        assert done.returncode == status, f"{groups}: {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done

    def tree(self, name):
        return jobs.tree(os.path.join(self.folder, name))

    def remains(self):
        return [name for name in os.listdir(self.folder) if name.startswith(".")]

    # ---- one report

    def reports_once(self):
        done = self.job("consolidate", "step-4", "full.pt", ranks=3)
        assert done.stdout.count("full.pt: 4 tensors") == 1, done.stdout
        assert self.tree("full.pt") == self.expected
        verified = self.job("verify", "step-4", ranks=3).stdout
        assert verified == self.plain("verify", "step-4").stdout, verified

    def fails_once(self):
        done = self.job("consolidate", "no-such", "x.pt", status=2)
        assert done.stderr.count("error[NOT_FOUND]") == 1, done.stderr
        assert "rank" not in done.stderr.split("error[NOT_FOUND]")[1].splitlines()[0], done.stderr
        assert self.tree("x.pt") == "nothing"
        done = self.job("consolidate", "step-4", "full.pt", status=2)
        assert done.stderr.count("full.pt: exists") == 1, done.stderr

    def names_damage(self):
        shutil.copytree(self.source, os.path.join(self.folder, "flipped"))
        with open(os.path.join(self.folder, "flipped", "__1_0.distcp"), "r+b") as file:
            file.seek(300_000)
            byte = file.read(1)
            file.seek(300_000)
            file.write(bytes([byte[0] ^ 1]))
        alone = self.plain("verify", "flipped", status=1).stdout
        assert self.job("verify", "flipped", ranks=3, status=1).stdout == alone
        for ranks in (1, 2, 4):
            done = self.job("consolidate", "flipped", "y.pt", ranks=ranks, status=2)
            assert done.stderr.count("error[ZIP_CRC]") == 1, done.stderr
            assert self.tree("y.pt") == "nothing" and not self.remains()

    def runs_other_verbs_alone(self):
        shown = self.job("inspect", "step-4", "--json", ranks=3).stdout
        assert shown == self.plain("inspect", "step-4", "--json").stdout
        self.job("rename", "step-4", "renamed", "--rename", "a=model.a")
        self.plain("verify", "renamed")

    # ---- ranks that differ

    def other_arguments(self):
        done = self.groups([(1, [self.args.tool, "verify", "step-4"]), (1, [self.args.tool, "stats", "step-4"])], 2)
        assert "rank 1 has other arguments than rank 0" in done.stderr, done.stderr

    def other_version(self):
        words = ["consolidate", "step-4", "z.pt"]
        done = self.groups([(2, [self.args.tool, *words]), (1, [self.args.other_version, *words])], 2)
        assert "rank 2 runs another version or build of fsdp-ckpt than rank 0" in done.stderr, done.stderr
        assert self.tree("z.pt") == "nothing"

    def other_folder(self):
        other = os.path.join(self.folder, "elsewhere")
        os.makedirs(other)
        words = [self.args.tool, "consolidate", "step-4", "z.pt"]
        away = ["sh", "-c", f"cd {other} && exec \"$@\"", "sh", *words]
        # Without a checkpoint, with one of the same content that was written at another time, and with the same.
        done = self.groups([(1, words), (1, away)], 2)
        assert "rank 1: step-4: " in done.stderr, done.stderr
        shutil.copytree(self.source, os.path.join(other, "step-4"), copy_function=shutil.copy)
        done = self.groups([(1, words), (1, away)], 2)
        assert "rank 1 sees another checkpoint at step-4 than rank 0" in done.stderr, done.stderr
        shutil.rmtree(os.path.join(other, "step-4"))
        os.symlink(self.source, os.path.join(other, "step-4"))
        done = self.groups([(1, words), (1, away)], 2)
        assert "z.pt" in done.stderr and "is it on a file system that all ranks share?" in done.stderr, done.stderr
        for place in (self.folder, other):
            assert not os.path.exists(os.path.join(place, "z.pt"))
            assert not [name for name in os.listdir(place) if name.startswith(".")], os.listdir(place)

    def metadata_is_read_once(self):
        """The leader's .metadata counts, whatever another rank would read under that name."""
        other = os.path.join(self.folder, "unread")
        shutil.copytree(self.source, os.path.join(other, "step-4"))
        at = os.path.join(other, "step-4", ".metadata")
        state = os.stat(at)
        with open(at, "wb") as file:
            file.write(bytes(state.st_size))
        os.utime(at, ns=(state.st_atime_ns, state.st_mtime_ns))
        words = [self.args.tool, "stats", "step-4"]
        done = self.groups([(1, words), (2, ["sh", "-c", f"cd {other} && exec \"$@\"", "sh", *words])])
        assert done.stdout == self.plain("stats", "step-4").stdout, done.stdout
        shutil.rmtree(other)

    # ---- faults

    def meanwhile(self, name, words, change):
        """Three ranks, of which one waits for its disk while something happens."""
        mark = os.path.join(self.folder, "mark")
        go = os.path.join(self.folder, "go")
        # It stops at its first write, and goes on when that is done.
        held = ["env", f"LD_PRELOAD={self.args.hold}", "FSDP_HELD_CALL=pwrite", "FSDP_HELD_AT=1", f"FSDP_HELD_MARK={mark}",
                f"FSDP_HELD_UNTIL={go}"]
        tool = [self.args.tool, *words]
        with subprocess.Popen([self.args.mpirun, "-n", "2", *tool, ":", "-n", "1", *held, *tool], cwd=self.folder, env=jobs.environment(),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
            while not os.path.exists(mark) and job.poll() is None:
                time.sleep(0.01)
            change()
            with open(go, "w", encoding="utf-8"):
                pass
            _, err = job.communicate(timeout=60)
        os.remove(mark)
        os.remove(go)
        assert job.returncode != 0, f"{words} succeeded"
        assert not self.remains(), self.remains()
        return err

    def source_changes(self):
        member = os.path.join(self.source, "__2_0.distcp")
        times = os.stat(member)
        err = self.meanwhile("w.pt", ["convert", "step-4", "w.pt"], lambda: os.utime(member))
        assert err.count("error[CHANGED]") == 1 and "__2_0.distcp" in err, err
        assert self.tree("w.pt") == "nothing"
        os.utime(member, ns=(times.st_atime_ns, times.st_mtime_ns))

    def output_appears(self):
        at = os.path.join(self.folder, "w.pt")
        shutil.copy(self.large, os.path.join(self.folder, "of_another"))
        err = self.meanwhile("w.pt", ["convert", "step-4", "w.pt"], lambda: os.rename(os.path.join(self.folder, "of_another"), at))
        assert err.count("error[EXISTS]") == 1 and "w.pt: appeared while it was being written" in err, err
        assert self.tree("w.pt") == jobs.tree(self.large), "the file of another was changed"
        os.remove(at)

    def small_limit(self):
        """A rank that may not write files as large as the output's part that it has, nor shared memory for MPICH's messages."""
        words = ["env", "UCX_TLS=self,sysv", self.args.tool, "convert", "step-4", "w.pt"]
        done = self.groups([(2, words), (1, ["sh", "-c", 'ulimit -f 1500; exec "$@"', "sh", *words])], 2)
        assert "rank 2: w.pt" in done.stderr and "w.pt: writing" in done.stderr, done.stderr
        assert self.tree("w.pt") == "nothing" and not self.remains()


    def injected(self, rank, fault, words, ranks=3):
        """Some ranks, of which one meets a fault."""
        report = os.path.join(self.folder, "report")
        tool = [self.args.tool, *words]
        # The rank's process is the shell: it ends as the tool did.
        ending = f'"$@"; case "$(cat {report})" in *"signal 9"*) kill -9 $$;; *"exit 0"*) exit 0;; esac; exit 2'
        faulty = ["sh", "-c", ending, "sh", self.args.injector, "--report", report, *fault, "--seconds", "50", "--", *tool]
        groups = [(1, faulty if n == rank else tool) for n in range(ranks)]
        done = jobs.job(self.args.mpirun, groups, self.folder)
        # The launcher ends the other ranks when one ends, and what writes the report with them.
        if not os.path.exists(report):
            return done, ""
        with open(report, encoding="utf-8") as file:
            text = file.read()
        os.remove(report)
        return done, text

    def full_disk(self):
        for rank in (1, 2):
            done, report = self.injected(rank, ["--call", "pwrite64", "--at", "1", "--do", "error=28", "--stays"],
                                         ["consolidate", "step-4", "w.pt"])
            assert "reached 0" not in report, report
            assert done.returncode != 0 and f"rank {rank}: w.pt" in done.stderr and "NO_SPACE" in done.stderr, done.stderr
            assert self.tree("w.pt") == "nothing" and not self.remains()

    def killed(self):
        generator = random.Random(self.args.seed)
        counts = {}
        for rank in (0, 1):
            _, report = self.injected(rank, [], ["convert", "step-4", "k.pt", "--to", "pt", "--force"])
            counts[rank] = {words[1]: int(words[2]) for words in map(str.split, report.splitlines()) if words[0] == "calls"}
        assert self.tree("k.pt") == self.expected
        killed = 0
        for number in range(KILLS):
            rank = number % 2
            call = generator.choice([c for c in CALLS if counts[rank].get(c)])
            at = generator.randint(1, counts[rank][call])
            shutil.copy(self.large, os.path.join(self.folder, "k.pt"))
            old = self.tree("k.pt")
            done, report = self.injected(rank, ["--call", call, "--at", str(at), "--do", "kill"],
                                         ["convert", "step-4", "k.pt", "--to", "pt", "--force"])
            now = self.tree("k.pt")
            assert now in (old, self.expected), f"rank {rank} killed at {call} #{at}: k.pt is neither the old nor the new one"
            if "signal 9" in report:
                killed += 1
                assert done.returncode != 0, f"rank {rank} killed at {call} #{at}: the job succeeded"
            # What it left is removed by the next run.
            self.plain("convert", "step-4", "k.pt", "--to", "pt", "--force")
            assert self.tree("k.pt") == self.expected and not self.remains(), f"rank {rank}, {call} #{at}: {self.remains()}"
        assert killed > KILLS / 2, f"only {killed} of {KILLS} ranks were killed"

    def hanging(self):
        """A rank that waits for a file server, and a leader that does not wait for ever."""
        held = ["env", f"LD_PRELOAD={self.args.hold}", "FSDP_HELD_CALL=fsync", "FSDP_HELD_AT=1"]
        words = [self.args.tool, "convert", "step-4", "h.pt"]
        os.environ["FSDP_CKPT_RANK_TIMEOUT"] = "3"
        begin = time.monotonic()
        try:
            done = jobs.job(self.args.mpirun, [(1, words), (1, held + words)], self.folder)
        finally:
            del os.environ["FSDP_CKPT_RANK_TIMEOUT"]
        assert done.returncode != 0 and "waited 3 s for the other ranks" in done.stderr, done.stderr
        assert time.monotonic() - begin < 60
        assert self.tree("h.pt") == "nothing" and not self.remains()

    # ---- signals

    def stopped(self, signals, release):
        """Three ranks, of which the last one waits for its disk, and the others for it; `signals` gets the launcher and the ranks'
        numbers of processes. If `release`, the disk goes on after that. Returns the lines of errors."""
        mark, go = (os.path.join(self.folder, name) for name in ("mark", "go"))
        held = ["env", f"LD_PRELOAD={self.args.hold}", "FSDP_HELD_CALL=pwrite", "FSDP_HELD_AT=1", f"FSDP_HELD_MARK={mark}", f"FSDP_HELD_UNTIL={go}"]
        words = [self.args.mpirun]
        for rank in range(3):
            words += ([":"] if rank else []) + ["-n", "1", "sh", "-c", f'echo $$ >pid{rank}; exec "$@"', "sh", *(held if rank == 2 else []),
                                                self.args.tool, "convert", "step-4", "s.pt"]
        with subprocess.Popen(words, cwd=self.folder, env=jobs.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
            while not os.path.exists(mark) and job.poll() is None:
                time.sleep(0.01)
            pids = []
            for rank in range(3):
                with open(os.path.join(self.folder, f"pid{rank}"), encoding="utf-8") as file:
                    pids.append(int(file.read()))
            signals(job.pid, pids)
            if release:
                with open(go, "w", encoding="utf-8"):
                    pass
            _, err = job.communicate(timeout=60)
        # A launcher may end before the ranks do.
        end = time.monotonic() + 30
        while any(os.path.exists(f"/proc/{pid}") for pid in pids):
            assert time.monotonic() < end, "ranks go on after their job"
            time.sleep(0.05)
        for name in (mark, go):
            if os.path.exists(name):
                os.remove(name)
        assert job.returncode != 0, "the job succeeded"
        assert self.tree("s.pt") == "nothing"
        # Nothing stays that is not worth to go on with.
        self.plain("convert", "step-4", "s.pt", "--force")
        os.remove(os.path.join(self.folder, "s.pt"))
        assert not self.remains(), self.remains()
        return [line for line in err.splitlines() if "error[" in line]

    def asked_to_stop(self):
        """Signals that reach all ranks, and those to a single one: one line in either case."""
        def everyone(_, pids):
            for pid in pids:
                os.kill(pid, signal.SIGTERM)

        def all_but_the_leader(_, pids):
            os.kill(pids[0], signal.SIGSTOP)
            everyone(None, pids[1:])

        for signals, release, who in ((lambda launcher, _: os.kill(launcher, signal.SIGTERM), False, "leader"),
                                      (lambda launcher, _: os.kill(launcher, signal.SIGINT), False, "leader"),
                                      (everyone, True, "leader"),  # as srun does
                                      (lambda _, pids: os.kill(pids[0], signal.SIGTERM), False, "leader"),
                                      (lambda _, pids: os.kill(pids[1], signal.SIGTERM), False, "rank 1"),
                                      (all_but_the_leader, False, "rank 1")):
            found = self.stopped(signals, release)
            # A rank that reads may say where.
            assert len(found) == 1 and re.fullmatch(r"fsdp-ckpt: error\[INTERRUPTED\]: (.*: )?interrupted", found[0]), f"{who}, {release}: {found}"
            assert ("rank" in found[0]) == (who != "leader") and (who == "leader" or f": {who}: " in found[0]), f"{who}: {found}"

    # ---- the plain tool

    def refuses_to_be_many(self):
        done = self.groups([(2, [self.args.plain, "convert", "step-4", "p.pt"])], 2)
        assert "error[USAGE]" in done.stderr and "fsdp-ckpt-mpi" in done.stderr, done.stderr
        assert self.tree("p.pt") == "nothing"
        self.groups([(1, [self.args.plain, "verify", "step-4"])])
        # Started by a task, not by the launcher.
        self.groups([(2, ["sh", "-c", f"'{self.args.plain}' verify step-4; exit $?"])])

    def knows_slurm(self):
        daemon = os.path.join(self.folder, "slurmstepd")
        shutil.copy(os.path.realpath(sys.executable), daemon)
        code = f"import subprocess, sys; sys.exit(subprocess.run([{self.args.plain!r}, 'verify', 'step-4']).returncode)"
        home = {"PYTHONHOME": sys.base_prefix}

        def status(**variables):
            return subprocess.run([daemon, "-S", "-c", code], cwd=self.folder, env=dict(os.environ, **home, **variables),
                                  capture_output=True, text=True)
        assert "error[USAGE]: srun started 4 tasks" in status(SLURM_STEP_NUM_TASKS="4", SLURM_PROCID="1").stderr
        for variables in ({"SLURM_STEP_NUM_TASKS": "1"}, {"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}):
            done = status(**variables)
            assert done.returncode == 0, f"{variables}: {done.stderr}"


def main():
    args = jobs.arguments(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        tried = Jobs(args, folder)
        for case in (tried.reports_once, tried.fails_once, tried.names_damage, tried.runs_other_verbs_alone, tried.other_arguments,
                     tried.other_version, tried.other_folder, tried.metadata_is_read_once, tried.full_disk,
                     tried.small_limit, tried.source_changes, tried.output_appears, tried.killed, tried.hanging, tried.asked_to_stop,
                     tried.refuses_to_be_many,
                     tried.knows_slurm):
            begin = time.monotonic()
            case()
            print(f"{case.__name__}: {time.monotonic() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
