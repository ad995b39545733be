#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Drawn faults between the tool and a server: the result has the local bytes, or there is a named error and nothing is published.

    check_faults_remote.py --tool PROGRAM --data FOLDER [--runs N] [--seed N] [--faults N] [--workers N]

Each run is one command with faults drawn from the seed and the number of the run.  --faults goes on until so many were made.
"""
import collections
import concurrent.futures
import itertools
import os
import random
import sys
import tempfile
import threading
import time

import commands
import inputs
import proxy
import server

TOKEN = "session/token+with=odd chars"
# In times of a stalled answer.
DEADLINE = 4
# For a machine that does something else too.
SLACK = 15
FSDP2 = "golden/2.15.0/fsdp2/ckpt"
READING = [["inspect", FSDP2, "--json"], ["verify", FSDP2, "--json"], ["stats", "golden/2.11.0/shards/ckpt", "--json"],
           ["diff", FSDP2, "golden/2.15.0/fsdp1/ckpt", "--json"], ["verify", "golden/2.11.0/hf_sharded/ckpt", "--json"],
           ["inspect", "golden/2.11.0/zip_pt/full.pt", "--json"], ["extract", "golden/2.11.0/shards/ckpt", "*row*", "--json"],
           ["stats", "middle.safetensors", "--json"], ["verify", "middle.pt", "--json"], ["latest", "run", "--json"]]
# With the place of the output, which is a file or a folder.
COPYING = [(["consolidate", FSDP2, "{}"], "full.pt"), (["convert", "middle.pt", "{}", "--drop-values"], "full.safetensors"),
           (["reshard", "golden/2.11.0/shards/ckpt", "{}", "-w", "3"], "folder"), (["convert", "middle.safetensors", "{}"], "full.h5")]
WRITING = COPYING + [(["shard", "middle.pt", "{}", "-w", "2"], "folder"), (["reshard", FSDP2, "{}", "-w", "2", "--seal"], "folder"),
                     (["convert", FSDP2, "{}", "--to", "safetensors", "--drop-values", "--max-shard-size", "2K"], "folder"),
                     (["convert", FSDP2, "{}", "--seal"], "full.pt")]
# Without these no reader takes a folder for a checkpoint.
LEADING = (".metadata", "model.safetensors.index.json")
SEAL = ".fsdp_seal.json"   # behind the name of a file
FOLDER_SEAL = "fsdp_seal.json"
# Requests that take uploads back: if one of them fails, an upload may stay.
TAKING_BACK = ("abort", "uploads", "parts")


def objects(s3, url):
    """The digests of the files of an output by their names in it; of a single file, that of itself as '' and that of its seal."""
    key = url.split("/", 3)[3]
    found = server.download_tree(s3, commands.BUCKET, key)
    found.update({SEAL: body for body in server.download_tree(s3, commands.BUCKET, key + SEAL).values()})
    return {name: commands.digest(body) for name, body in found.items()}


def local_objects(path):
    """The same of an output on this machine."""
    found = commands.files_at(path)
    if os.path.exists(path + SEAL):
        found[SEAL] = commands.files_at(path + SEAL)[""]
    return found


class Run:
    """One command between a proxy that makes faults and a server."""

    def __init__(self, faults, number):
        self.faults = faults
        self.number = number
        chance = random.Random(f"{faults.args.seed} {number}")
        self.kind = chance.choice(("reading", "copying", "writing", "writing"))
        if self.kind == "reading":
            self.words, self.out = chance.choice(READING), None
        else:
            self.words, self.out = chance.choice(COPYING if self.kind == "copying" else WRITING)
        self.replaces = self.kind == "writing" and chance.random() < 0.4
        names = chance.choice((proxy.FAULTS, proxy.FAULTS, proxy.PASSING))
        self.plan = proxy.Drawn(chance.random(), chance.choice((0.1, 0.3, 0.6)), names, most=chance.choice((2, 10, 100)))
        self.running = faults.servers[number % len(faults.servers)]
        self.prefix = f"out/{number}"
        self.sealed = chance.random() < 0.5   # the old output

    def label(self):
        return f"run {self.number} of seed {self.faults.args.seed} ({self.running.name}): {' '.join(self.words)} {self.kind}" \
               f"{' --force' if self.replaces else ''}: {dict(self.between.faults)}"

    def __call__(self):
        credentials = (server.ACCESS_KEY, server.SECRET_KEY, TOKEN if self.running.name == "moto" else None)
        with tempfile.TemporaryDirectory(dir=self.faults.folder) as folder, \
                proxy.Proxy(self.running.endpoint, self.plan, credentials=credentials, region=server.REGION, elsewhere=self.faults.elsewhere) as between:
            self.folder, self.between = folder, between
            stall = self.faults.args.stall
            self.environment = server.s3_environment(between.endpoint, TMPDIR=folder, FSDP_CKPT_NETWORK_TRIES="5",
                                                     FSDP_CKPT_NETWORK_SECONDS=str(DEADLINE * stall), FSDP_CKPT_STALL_SECONDS=str(stall))
            between.slow_seconds = 0.8 * stall
            if credentials[2]:
                self.environment["AWS_SESSION_TOKEN"] = credentials[2]
            between.watch = self.watch
            try:
                self.check()
            except AssertionError as error:
                raise AssertionError(f"{self.label()}\n{error}") from None
            return between.faults

    def watch(self, request):
        assert server.SECRET_KEY.encode() not in request.head and server.SECRET_KEY.encode() not in request.body

    def input(self, word, remote):
        known = word.startswith("golden/") or word.startswith("middle") or word == "run"
        return word if not known else f"s3://{commands.BUCKET}/a/{word}" if remote else os.path.join(self.faults.tree, word)

    def check(self):
        """Runs the command, and judges what came of it."""
        place = {"reading": "", "copying": f"{self.folder}/{self.out}", "writing": f"s3://{commands.BUCKET}/{self.prefix}/{self.out}"}[self.kind]
        words = [self.input(word, self.kind != "writing").replace("{}", place) for word in self.words]
        old = {}
        if self.replaces:
            self.between.plan = None
            self.make_old(place, server.s3_environment(self.running.endpoint))
            old = self.written()
            self.between.plan = self.plan
            words.append("--force")
        begin = time.monotonic()
        done = commands.run(self.faults.args.tool, words, self.environment)
        seconds = time.monotonic() - begin
        self.between.plan = None
        made = self.between.faults.total()
        # Each fault may use up one operation's time at most.
        assert seconds < SLACK + DEADLINE * self.faults.args.stall * min(made + 1, 12), f"took {seconds:.1f} s"
        assert done.returncode >= 0, f"ended by signal {-done.returncode}"
        for secret in (server.SECRET_KEY, TOKEN):
            assert secret not in done.stdout + done.stderr, "a secret in the output"
        assert not self.between.violations and not self.between.failures, (self.between.violations, self.between.failures)
        answer = commands.Answer(f"{done.returncode}\n{done.stdout}", {}).compared(
            [(f"s3://{commands.BUCKET}/a/", "@"), (self.faults.tree + "/", "@"), (place or "\0", "{}")])[:2]
        expected = self.faults.expected(self)
        written = self.written() if self.out else {}
        if done.returncode == 0 and expected[0] == 0:
            assert made or answer == expected[:2], f"other words without a fault: {answer} {expected[:2]}"
            assert written == expected[2], f"wrong bytes: {sorted(n for n in {*written, *expected[2]} if written.get(n) != expected[2].get(n))}"
            if not self.out:
                self.judge_answer(answer, expected[:2])
            self.judge_uploads(done)
            return
        if answer == expected[:2] and not self.out:
            return
        self.judge_failure(done, answer, old, written, expected[2])
        self.judge_uploads(done)

    def judge_uploads(self, done):
        """No upload stays that was begun and not completed."""
        lost = self.between.hit + self.between.slow
        if self.kind != "writing" or self.between.slow["create"] or any(lost[kind] for kind in TAKING_BACK):
            return   # a begin that the server comes to after the look cannot be found by it
        if self.between.hit["create"] and done.returncode != 0 and not self.running.dates_uploads:
            return   # one that nobody knows is told from others by its time
        s3 = self.faults.clients[self.number % len(self.faults.servers)]
        found = s3.list_multipart_uploads(Bucket=commands.BUCKET, Prefix=self.prefix + "/").get("Uploads") or []
        assert not found, f"uploads: {[upload['Key'] for upload in found]} after status {done.returncode}\n{done.stderr}"

    def make_old(self, place, environment):
        words = ["convert", f"{self.faults.tree}/golden/2.11.0/minimal/ckpt", place]
        words += ["--drop-values"] if "--drop-values" in self.words else []
        words += ["--seal"] if self.sealed else []
        words += (["--to", "safetensors", "--max-shard-size", "1MB"] if "safetensors" in self.words else ["--to", "dcp"]) if self.out == "folder" else []
        done = commands.run(self.faults.args.tool, words, environment)
        assert done.returncode == 0, f"the old output: {done.stderr}"

    def judge_answer(self, answer, expected):
        if answer == expected:
            return
        # A server that says that a file is not there is believed, by what looks for files.
        assert self.between.faults["not_found"] and self.words[0] in ("latest", "inspect"), f"another answer:\n{answer[1]}\ninstead of\n{expected[1]}"

    def judge_failure(self, done, answer, old, written, new):
        if self.words[0] == "verify" and done.returncode == 1:
            # A server that says that a file is not there is believed.
            assert self.between.faults["not_found"] and any(f'"{code}"' in done.stdout for code in ("MISSING_FILE", "NOT_FOUND", "NO_METADATA")), \
                f"damage that is not there:\n{done.stdout}"
            return
        codes = ("NETWORK", "ACCESS", "CHANGED", "NOT_FOUND", "NO_METADATA", "EXISTS", "MISSING_FILE", "NO_CHECKPOINT", "UNKNOWN_FORMAT")
        assert done.returncode in (1, 2) and any(f"[{code}]" in done.stderr or f'"{code}"' in done.stdout for code in codes), \
            f"status {done.returncode}, and no error that fits:\n{done.stdout[-1500:]}{done.stderr[-1500:]}"
        assert self.between.faults.total() or self.between.slow.total(), "an error without a fault"
        if self.kind == "writing":
            self.judge_left(done, old, written, new)
        else:
            assert not written and os.listdir(self.folder) == [], f"left: {os.listdir(self.folder)}"

    def judge_left(self, done, old, written, new):
        """After an error OUT is the old one or not there; the new one only if its last answer was lost."""
        assert os.listdir(self.folder) == [], f"left below TMPDIR: {os.listdir(self.folder)}"
        if written == old:
            return
        said = done.stderr
        in_place, unknown = "is in place" in said, "is in place is not known" in said or "does not say whether the file is in place" in said
        strange = [name for name, digest in written.items() if digest not in (old.get(name), new.get(name))]
        assert not strange, f"files of neither: {strange} after\n{said}"
        if self.out != "folder":
            assert "" in written or not old, f"the old file is gone after\n{said}"
            is_new = written.get("") == new[""] != old.get("")
            assert not is_new or in_place or unknown, f"the new file is in place after\n{said}"
            # A seal may be missing, and is never another file's.
            assert written.get(SEAL) in (None, (new if is_new else old).get(SEAL)), f"another file's seal after\n{said}"
            return

        def named(names):
            return all(f"'{name}'" in said for name in names)

        def whole(files):
            return all(written.get(name) == digest for name, digest in files.items() if name != FOLDER_SEAL)
        made = [name for name in written if written[name] != old.get(name)]
        leads = [name for name in new if name in LEADING]
        if leads and all(written.get(name) == new[name] for name in leads):
            kept = [name for name in written if written[name] != new.get(name)]
            assert whole(new), f"torn: {sorted(written)} instead of {sorted(new)} after\n{said}"
            assert unknown or (in_place and named(kept)), f"the new one is in place with {kept} after\n{said}"
            assert new.get(FOLDER_SEAL) == written.get(FOLDER_SEAL) or unknown or "without its seal" in said, f"no seal after\n{said}"
            return
        assert not any(name in LEADING for name in made), f"torn: {sorted(written)} after\n{said}"
        assert named(made), f"left and not named: {made} after\n{said}"
        if whole(old):
            assert old.get(FOLDER_SEAL) == written.get(FOLDER_SEAL) or "lost its seal" in said, f"no seal after\n{said}"
            return
        assert "no longer complete" in said and not any(name in LEADING for name in written), \
            f"torn: {sorted(written)} instead of {sorted(old)} after\n{said}"

    def written(self):
        if self.kind == "copying":
            return local_objects(os.path.join(self.folder, self.out))
        return objects(self.faults.clients[self.number % len(self.faults.servers)], f"s3://{commands.BUCKET}/{self.prefix}/{self.out}")


class Faults:
    def __init__(self, args, folder, servers, elsewhere):
        self.args, self.folder, self.servers, self.elsewhere = args, folder, servers, elsewhere
        self.tree = os.path.join(folder, "in")
        os.mkdir(self.tree)
        inputs.make(args.tool, args.data, self.tree)
        self.clients = [running.client() for running in servers]
        for s3 in self.clients:
            commands.upload(s3, commands.BUCKET, self.tree, "a")
        self.known = {}
        self.lock = threading.Lock()

    def expected(self, run):
        """The answer and the files of the same command without faults: on this machine, or in place of an old output in a store."""
        key = (tuple(run.words), run.out, run.replaces)
        with self.lock:
            if key not in self.known:
                with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                    place, environment = os.path.join(folder, run.out or "none"), server.environment()
                    if run.replaces:
                        place, environment = f"s3://{commands.BUCKET}/expected/{len(self.known)}/{run.out}", server.s3_environment(self.servers[0].endpoint)
                        run.make_old(place, environment)
                    words = [run.input(word, False).replace("{}", place) for word in run.words] + (["--force"] if run.replaces else [])
                    done = commands.run(self.args.tool, words, environment)
                    assert done.returncode == 0 or not run.out, done.stderr
                    files = objects(self.clients[0], place) if run.replaces else local_objects(place) if run.out else {}
                    self.known[key] = commands.Answer(f"{done.returncode}\n{done.stdout}", files).compared([(self.tree + "/", "@"), (place, "{}")])
            return self.known[key]

    def stalled(self):
        """A server that never answers, from some request on: an error within the deadline."""
        cases = [(["verify", FSDP2], None, "range"), (["inspect", FSDP2], None, None)]
        cases += [(words, out, kind) for words, out in WRITING[:3:2] for kind in ("put", "create", "part", "complete")]

        def one(case):
            words, out, kind = case
            run = Run(self, 0)
            run.words, run.out, run.kind, run.replaces = words, out, "writing" if out else "reading", False
            run.prefix = f"out/stalled-{kind}-{words[0]}"
            run.plan = lambda request: "stalled" if kind in (None, proxy.kind_of(request)) else None
            run()
            return run.between.faults.total()
        with concurrent.futures.ThreadPoolExecutor(self.args.workers) as pool:
            made = list(pool.map(one, cases))
        assert sum(count > 0 for count in made) > len(cases) / 2, made

    def drawn(self):
        """Returns the failures, and how many faults were made."""
        made, failures, done = collections.Counter(), [], 0
        begin = time.monotonic()

        def numbers():
            for number in itertools.count(self.args.first):
                if number >= self.args.first + self.args.runs and made.total() >= self.args.faults:
                    return
                yield number
        numbers = numbers()
        lock = threading.Lock()

        def work():
            nonlocal done
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                try:
                    faults = Run(self, number)()
                except Exception as error:   # what the harness itself throws is a failure too
                    with lock:
                        failures.append(f"{type(error).__name__}: {error}")
                        print(failures[-1], flush=True)
                    if len(failures) >= self.args.most_failures:
                        return
                    continue
                with lock:
                    made.update(faults)
                    done += 1
                    if done % 200 == 0:
                        print(f"{done} runs, {made.total()} faults, {time.monotonic() - begin:.0f} s", flush=True)
        threads = [threading.Thread(target=work) for _ in range(self.args.workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return failures, made, done


def main():
    parser = commands.arguments(__doc__)
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--first", type=int, default=0, help="the number of the first run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=0)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--stall", type=int, default=1, help="seconds that a stalled answer costs; more of them for a busy machine")
    parser.add_argument("--most-failures", type=int, default=10)
    args = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, server.Seaweed() as seaweed, server.Moto() as moto, proxy.Elsewhere() as elsewhere:
        faults = Faults(args, folder, [seaweed, moto], elsewhere)
        # Both mostly wait.
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            stalled = pool.submit(faults.stalled)
            failures, made, done = faults.drawn()
            stalled.result()
        assert not elsewhere.leaked, elsewhere.leaked
    print(f"{done} runs with {made.total()} faults in {time.monotonic() - begin:.0f} s: {dict(sorted(made.items()))}")
    print(f"{len(failures)} failures")
    return len(failures) != 0


if __name__ == "__main__":
    sys.exit(main())
