# SPDX-License-Identifier: Apache-2.0
"""The measurements of tests/bench/remote.sh.

A checkpoint lies behind a server on this machine that answers each request after a while (range_server.cpp).  fsdp-ckpt reads it from
there, and so does curl, with 48 requests at once: the very ranges that fsdp-ckpt asked for, by one process, of which it keeps nothing,
or which it writes to a file each where fsdp-ckpt writes an output.  Both take turns in each round; a figure is the median of its rounds,
and a ratio the median of the rounds' ratios of throughput.  MB/s are 10^6 bytes of these ranges a second.
"""
import argparse
import contextlib
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

AT_ONCE = 48
BLOCK = random.Random(1).randbytes(16 << 20)


def write_safetensors(path, tensors, rows, columns):
    each = rows * columns * 4
    header = {f"layers.{i}.weight": {"dtype": "F32", "shape": [rows, columns], "data_offsets": [i * each, (i + 1) * each]}
              for i in range(tensors)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        left = tensors * each
        while left:
            left -= file.write(BLOCK[:left])


class Bench:
    def __init__(self, args):
        self.args, self.tool, self.server = args, os.path.abspath(args.tool), os.path.abspath(args.server)
        self.work = tempfile.mkdtemp(prefix="bench-remote-", dir=args.folder)
        self.bucket = os.path.join(self.work, "bucket")
        os.mkdir(self.bucket)

    def input(self, name, tensors, rows, columns, *verb):
        """A checkpoint in the bucket; `verb` makes it of a safetensors file."""
        plain = os.path.join(self.work, "x.safetensors")
        write_safetensors(plain, tensors, rows, columns)
        subprocess.run([self.tool, verb[0], plain, os.path.join(self.bucket, name), *verb[1:]], check=True, stdout=subprocess.DEVNULL)
        os.remove(plain)
        return name

    @contextlib.contextmanager
    def serving(self, latency, log=None):
        process = subprocess.Popen([self.server, self.work, str(latency), *([log] if log else [])], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True)
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()
            process.wait()
            process.stdout.close()

    def once(self, command, environment=None):
        """Returns wall and processor seconds."""
        shutil.rmtree(self.out, ignore_errors=True)
        os.mkdir(self.out)
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
        return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    @property
    def out(self):
        return os.path.join(self.work, "out")

    def environment(self, endpoint):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        kept.update(AWS_ENDPOINT_URL=endpoint, AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret", AWS_REGION="us-east-1",
                    AWS_CONFIG_FILE="/nonexistent", AWS_SHARED_CREDENTIALS_FILE="/nonexistent", AWS_EC2_METADATA_DISABLED="true")
        return kept

    def words(self, verb, name):
        url = f"s3://bucket/{name}"
        if verb == "consolidate":
            return [self.tool, verb, url, os.path.join(self.out, "full.safetensors"), "--no-sync"]
        return [self.tool, verb, url]

    def ranges(self, verb, name):
        """What the command asks for: (path, first, last)."""
        log = os.path.join(self.work, "log")
        with contextlib.suppress(FileNotFoundError):
            os.remove(log)
        with self.serving(10, log) as endpoint:
            self.once(self.words(verb, name), self.environment(endpoint))
        with open(log, encoding="utf-8") as file:
            return [(key, int(first), int(last)) for key, first, last in (line.rsplit(" ", 2) for line in file)]

    def curl(self, endpoint, ranges, keep):
        listed = os.path.join(self.work, "list")
        with open(listed, "w", encoding="utf-8") as file:
            for i, (key, first, last) in enumerate(ranges):
                place = os.path.join(self.out, str(i)) if keep else "/dev/null"
                file.write(f'{"next" if i else ""}\nurl = "{endpoint}{key}"\nrange = {first}-{last}\noutput = "{place}"\nfail\nnoproxy = "*"\n')
        return ["curl", "--disable", "--no-progress-meter", "--parallel", "--parallel-max", str(AT_ONCE), "--config", listed]

    def table(self, title, name, verb):
        ranges = self.ranges(verb, name)
        bytes_ = sum(last - first + 1 for _, first, last in ranges)
        print(f"\n{title}: `{verb}`, {len(ranges):,} ranges, {bytes_ / 1e6:,.0f} MB\n")
        print("| latency of a request | curl, s | fsdp-ckpt, s | curl, MB/s | fsdp-ckpt, MB/s | ratio | its range | processor s, curl | fsdp-ckpt |")
        print("|---|---:|---:|---:|---:|---:|---:|---:|---:|", flush=True)
        for latency in self.args.latencies:
            with self.serving(latency) as endpoint:
                ours, theirs = [], []
                for i in range(self.args.rounds + 1):
                    # Whoever is first finds other pages in the caches of the processor.
                    turns = [lambda: theirs.append(self.once(self.curl(endpoint, ranges, verb == "consolidate"))),
                             lambda: ours.append(self.once(self.words(verb, name), self.environment(endpoint)))]
                    for turn in turns if i % 2 else reversed(turns):
                        turn()
                ours, theirs = ours[1:], theirs[1:]
            ratios = sorted(their[0] / our[0] for our, their in zip(ours, theirs))
            our, their = (statistics.median(wall for wall, _ in side) for side in (ours, theirs))
            cpu_our, cpu_their = (statistics.median(cpu for _, cpu in side) for side in (ours, theirs))
            print(f"| {latency} ms | {their:.3f} | {our:.3f} | {bytes_ / their / 1e6:,.0f} | {bytes_ / our / 1e6:,.0f} "
                  f"| {statistics.median(ratios):.2f} | {ratios[0]:.2f} - {ratios[-1]:.2f} | {cpu_their:.2f} | {cpu_our:.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--server", required=True)
    parser.add_argument("--folder", help="where 3 GiB may lie for a while")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--latencies", type=lambda text: [int(word) for word in text.split(",")], default=[0, 10, 50])
    parser.add_argument("--gib", type=float, default=1)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--only", type=lambda text: text.split(","), default=["large", "small", "file", "consolidate"])
    args = parser.parse_args()
    bench = Bench(args)
    try:
        print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors, {args.rounds} rounds")
        if {"large", "consolidate"} & {*args.only}:
            large = bench.input("large", int(64 * args.gib), 2048, 2048, "shard", "--world-size", "8")
        if "large" in args.only:
            bench.table(f"{args.gib:g} GiB in 8 files of torch.distributed.checkpoint", large, "verify")
        if "consolidate" in args.only:
            bench.table(f"{args.gib:g} GiB in 8 files of torch.distributed.checkpoint", large, "consolidate")
        if "small" in args.only:
            small = bench.input("small", 10, args.files, 2500, "shard", "--world-size", str(args.files))
            bench.table(f"{args.files:,} files of torch.distributed.checkpoint", small, "verify")
        if "file" in args.only:
            name = bench.input("full.pt", 400, 640, 1024, "convert")
            bench.table("a torch.save file of 400 tensors", name, "verify")
    finally:
        shutil.rmtree(bench.work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
