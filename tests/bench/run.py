# SPDX-License-Identifier: Apache-2.0
"""The measurements of tests/bench/run.sh.

Every command is a separate process: wall time from start to end, peak resident memory by wait4 (ru_maxrss,
which starts at that of the measuring process).  The rounds of a table are interleaved (A B C, A B C, ...), and
the table gives medians with minimum and maximum.  The input is in the page cache (read once before).  A
command's output is removed and the disk synced before the next one starts.  MB/s are 10^6 bytes of the input a
second.
"""
import argparse
import hashlib
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time

import quantized
from page_cache import PageCacheFiller, evict, read_file, read_into_page_cache

HERE = os.path.dirname(os.path.abspath(__file__))
BY_PYTORCH = os.path.join(HERE, "by_pytorch.py")
MIB = 1 << 20
# Takes all free memory except 2 GiB, and gives it back.
TOUCH = """
import mmap
free = next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemFree")) << 10
if free > 3 << 30:
    mmap.mmap(-1, free - (2 << 30), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()
"""




def touch(bench):
    """A virtual machine's host may take idle memory back, and whoever touches it first then pays for it: here the
    command finds the memory it needs already there."""
    subprocess.run([sys.executable, "-c", TOUCH], check=True)   # as a separate process: its peak is not the command's


def fill(bench):
    """Fills the page cache, as on a machine that has been running for a while."""
    bench.filler.fill()
    for folder in bench.inputs:
        read_into_page_cache(folder)


MEMORY = {"touched": touch, "full": fill, "found": lambda bench: None}


class Bench:
    def __init__(self, args):
        self.inputs = []
        self.filler = PageCacheFiller(args.cache)
        self.args, self.tool = args, os.path.abspath(args.tool)
        self.work = os.path.join(args.cache, f"bench-work-{os.getpid()}")
        self.threads = str(os.cpu_count())

    def input(self, name, script, *params):
        """Made once for a script, its parameters and a PyTorch; below the cache folder."""
        with open(os.path.join(HERE, script), "rb") as f:
            key = hashlib.sha256(f.read() + sys.executable.encode()).hexdigest()[:12]
        path = os.path.join(self.args.cache, f"bench-{name}-{key}")
        if not os.path.isdir(path):
            print(f"making {path}", file=sys.stderr, flush=True)
            shutil.rmtree(path + ".part", ignore_errors=True)
            subprocess.run([sys.executable, os.path.join(HERE, script), path + ".part", *map(str, params)], check=True)
            os.rename(path + ".part", path)
        if path not in self.inputs:
            self.inputs.append(path)
        return path

    def fresh(self):
        """An empty folder to work in."""
        shutil.rmtree(self.work, ignore_errors=True)
        os.makedirs(self.work)

    def once(self, command, inner=False):
        """(seconds, MiB at peak); `inner`: the seconds the command itself prints."""
        self.fresh()
        os.sync()
        MEMORY[self.args.memory](self)
        spinners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(self.args.busy)]
        begin = time.perf_counter()
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.work, text=True)
        out, err = child.stdout.read(), child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - begin
        for spinner in spinners:
            spinner.kill()
            spinner.wait()
        if status:
            sys.exit(f"{' '.join(command)}: {os.waitstatus_to_exitcode(status)}\n{out[-2000:]}{err[-2000:]}")
        return float(out.split()[-1]) if inner else seconds, usage.ru_maxrss / 1024

    def rounds(self, commands, rounds=None):
        """commands: name -> (argv, inner).  Returns name -> [(seconds, MiB)]."""
        took = {name: [] for name in commands}
        for i in range(rounds or self.args.rounds):
            for name, (argv, inner) in commands.items():
                took[name].append(self.once(argv, inner))
                print(f"  round {i + 1}: {name}: {took[name][-1][0]:.3f} s", file=sys.stderr, flush=True)
        shutil.rmtree(self.work, ignore_errors=True)
        return took


def size_of(folder):
    return sum(os.path.getsize(os.path.join(d, f)) for d, _, fs in os.walk(folder) for f in fs)


def table(title, took, amount=None, baseline=None):
    print(f"\n### {title}\n\n| command | median s | least - most | MB/s | peak MiB | ratio |\n|---|---:|---:|---:|---:|---:|")
    base = statistics.median(s for s, _ in took[baseline]) if baseline else None
    for name, runs in took.items():
        seconds = [s for s, _ in runs]
        mid = statistics.median(seconds)
        rate = f"{amount / mid / 1e6:,.0f}" if amount else ""
        print(f"| {name} | {mid:.3f} | {min(seconds):.3f} - {max(seconds):.3f} | {rate} | {max(m for _, m in runs):,.0f} |"
              f" {f'{mid / base:.2f}' if base else ''} |")
    sys.stdout.flush()


def shell(text):
    return ["sh", "-c", text]


def copy(b):
    folder = b.input("2gb", "make_folder.py", 2)
    read_into_page_cache(folder)
    amount = size_of(folder)
    full = [b.tool, "consolidate", folder, "full.pt", "-q", "--threads", b.threads]
    took = b.rounds({
        "cp -r": (["cp", "-r", folder, "copy"], False),
        "consolidate --no-sync": (full + ["--no-sync"], False),
        "cp -r, each file synced": (shell(f"cp -r '{folder}' copy && sync copy/* copy/.metadata copy"), False),
        "consolidate": (full, False),
        "consolidate to safetensors": ([b.tool, "consolidate", folder, "full.safetensors", "--drop-values", "-q", "--threads", b.threads], False),
    })
    theirs = "PyTorch dcp_to_torch_save, without imports"
    took.update(b.rounds({theirs: ([sys.executable, BY_PYTORCH, "consolidate", folder, "full.pt"], True)},
                         min(3, b.args.rounds)))
    mid = {name: statistics.median(s for s, _ in runs) for name, runs in took.items()}
    table(f"One full state dict from {amount / 1e9:.2f} GB, 2 ranks, model and AdamW state; every CRC-32 checked", took, amount, "cp -r")
    print(f"\nTime of consolidate to that of cp -r: {mid['consolidate --no-sync'] / mid['cp -r']:.2f} without syncing, "
          f"{mid['consolidate'] / mid['cp -r, each file synced']:.2f} with; "
          f"dcp_to_torch_save, which does not sync, takes {mid[theirs] / mid['consolidate --no-sync']:.1f} times as long.")
    command = "python -m torch.distributed.checkpoint.format_utils dcp_to_torch"
    pair = b.rounds({
        "consolidate --no-sync": (full + ["--no-sync"], False),
        command: ([sys.executable, *command.split()[1:], folder, "full.pt"], False),
    })
    table("The same against PyTorch's own command, in pairs", pair, amount, "consolidate --no-sync")
    b.fresh()
    subprocess.run(full, check=True, cwd=b.work)
    subprocess.run([sys.executable, BY_PYTORCH, "consolidate", folder, "theirs.pt"], check=True, cwd=b.work, stdout=subprocess.DEVNULL)
    subprocess.run([sys.executable, BY_PYTORCH, "equal", "full.pt", "theirs.pt"], check=True, cwd=b.work, stdout=subprocess.DEVNULL)
    shutil.rmtree(b.work)
    print("\nBoth files hold the same: every tensor and value compared.")


def threads(b):
    """Measures whether more threads are ever slower, also beside `--busy` processes."""
    folder = b.input("2gb", "make_folder.py", 2)
    read_into_page_cache(folder)
    commands = {"cp -r": (["cp", "-r", folder, "copy"], False)}
    for count in ("1", "2", "4"):
        argv = [b.tool, "consolidate", folder, "full.pt", "-q", "--threads", count]
        commands[f"consolidate --no-sync --threads {count}"] = (argv + ["--no-sync"], False)
        commands[f"consolidate --threads {count}"] = (argv, False)
    commands["cp -r, each file synced"] = (shell(f"cp -r '{folder}' copy && sync copy/* copy/.metadata copy"), False)
    table(f"Threads, 2 GB, {b.args.busy} busy cores", b.rounds(commands), size_of(folder), "cp -r")


def before(b):
    """Compares with another build of the tool, `--before`."""
    folder = b.input("2gb", "make_folder.py", 2)
    metadata_folder = b.input("metadata-64x2000", "make_metadata.py", 64, 2000)
    for each in (folder, metadata_folder):
        read_into_page_cache(each)
    for name, argv in {"consolidate --no-sync": ["consolidate", folder, "full.pt", "-q", "--no-sync"],
                       "consolidate": ["consolidate", folder, "full.pt", "-q"],
                       "verify": ["verify", folder, "-q"],
                       "inspect": ["inspect", folder],
                       "inspect, 64 ranks x 2,000 tensors": ["inspect", metadata_folder]}.items():
        took = b.rounds({"before": ([b.args.before, *argv], False), "now": ([b.tool, *argv], False)})
        table(name, took, baseline="before")


def memory(b):
    print("\n### Peak memory of consolidate\n\n| folder | s | peak MiB |\n|---|---:|---:|")
    for gigabytes in (2, b.args.large):
        folder = b.input(f"{gigabytes:g}gb", "make_folder.py", gigabytes)
        seconds, peak = b.once([b.tool, "consolidate", folder, "full.pt", "-q", "--threads", b.threads])
        print(f"| {size_of(folder) / 1e9:.2f} GB | {seconds:.2f} | {peak:,.0f} |", flush=True)
        if gigabytes > 2:
            shutil.rmtree(folder)
    shutil.rmtree(b.work, ignore_errors=True)


def verify(b):
    folder = b.input("2gb", "make_folder.py", 2)
    read_into_page_cache(folder)
    took = b.rounds({"cat > /dev/null": (shell(f"cat '{folder}'/.metadata '{folder}'/* > /dev/null"), False),
                     "verify": ([b.tool, "verify", folder, "-q", "--threads", b.threads], False),
                     "verify --fast": ([b.tool, "verify", folder, "-q", "--fast"], False)})
    table("verify: structure and every CRC-32 of 2 GB", took, size_of(folder), "cat > /dev/null")


def inspect(b):
    folder = b.input("2gb", "make_folder.py", 2)
    took = b.rounds({"inspect": ([b.tool, "inspect", folder], False),
                     "PyTorch reads .metadata, without imports": ([sys.executable, BY_PYTORCH, "metadata", folder], True),
                     "PyTorch reads .metadata, whole process": ([sys.executable, BY_PYTORCH, "metadata", folder], False)})
    table("inspect of the 2 GB folder", took)


def metadata(b):
    for ranks in (64, 1024):
        folder = b.input(f"metadata-{ranks}x2000", "make_metadata.py", ranks, 2000)
        warm_one = os.path.join(folder, ".metadata")
        with open(warm_one, "rb") as f:
            amount = len(f.read())
        commands = {"inspect": ([b.tool, "inspect", folder], False)}
        took = b.rounds(commands)
        took.update(b.rounds({"PyTorch reads .metadata, without imports": ([sys.executable, BY_PYTORCH, "metadata", folder], True)}, 1))
        table(f"inspect of {ranks} ranks x 2,000 tensors: {ranks * 2000:,} chunks, {amount / 1e6:.0f} MB of .metadata", took, amount, "inspect")


def reshard(b):
    folder = b.input("2gb", "make_folder.py", 2)
    full = b.work + "-full.pt"
    subprocess.run([b.tool, "consolidate", folder, full, "-q", "--force"], check=True)
    how = ["-q", "--threads", b.threads]
    try:
        read_into_page_cache(folder)
        with open(full, "rb") as f:
            while f.read(8 * MIB):
                pass
        took = b.rounds({
            "cp -r": (["cp", "-r", folder, "copy"], False),
            "reshard to 4 --no-sync": ([b.tool, "reshard", folder, "out", "--world-size", "4", *how, "--no-sync"], False),
            "reshard to 64 --no-sync": ([b.tool, "reshard", folder, "out", "--world-size", "64", *how, "--no-sync"], False),
            "cp of the full file": (["cp", full, "copy.pt"], False),
            "shard to 4 --no-sync": ([b.tool, "shard", full, "out", "--world-size", "4", *how, "--no-sync"], False),
        })
        amount = size_of(folder)
        table(f"{amount / 1e9:.2f} GB of 2 ranks laid out for others; every CRC-32 checked", took, amount, "cp -r")
        mid = {name: statistics.median(s for s, _ in runs) for name, runs in took.items()}
        print(f"\nTime of reshard to 4 to that of cp -r: {mid['reshard to 4 --no-sync'] / mid['cp -r']:.2f}; "
              f"of shard to that of cp: {mid['shard to 4 --no-sync'] / mid['cp of the full file']:.2f}.")
        print("\n| ranks | s | peak MiB |\n|---|---:|---:|")
        for ranks in 4096,:
            seconds, peak = b.once([b.tool, "reshard", folder, "out", "--world-size", str(ranks), *how, "--no-sync"])
            print(f"| 2 to {ranks} | {seconds:.2f} | {peak:,.0f} |", flush=True)
    finally:
        os.remove(full)
        shutil.rmtree(b.work, ignore_errors=True)


def rewrite(b):
    folder = b.input("2gb", "make_folder.py", 2)
    read_into_page_cache(folder)
    took = b.rounds({"cp -r": (["cp", "-r", folder, "out"], False),
                     "rename": ([b.tool, "rename", folder, "out", "--rename", "model=net", "-q"], False),
                     "rekey --key-by id": ([b.tool, "rekey", folder, "out", "--key-by", "id", "-q"], False)})
    table("Other names for 2 GB: metadata written, data files linked, all synced", took)


NAMES = '[rename]\n"{rest:**}" = "net.{rest}"\n'
# Every matrix turned, with the optimizer's state.
TURNED = '[[rule]]\nfrom = "{layer:int}.{which:1|3}.weight"\nto = "{layer}.{which}.turned"\ndo = ["transpose"]\n' + NAMES


def maps(b):
    folder = b.input("2gb", "make_folder.py", 2)
    read_into_page_cache(folder)
    rules = {}
    for name, text in (("names", NAMES), ("turned", TURNED)):
        rules[name] = f"{b.work}-{name}.toml"
        with open(rules[name], "w", encoding="utf-8") as file:
            file.write(text)
    try:
        def mapped(name):
            return [b.tool, "map", rules[name], folder, "out", "--to", "dcp", "-w", "2", "-q", "--threads", b.threads]
        took = b.rounds({"cp -r, synced": (shell(f"cp -r '{folder}' out && sync out/* out"), False),
                         "map, names": (mapped("names"), False), "map, matrices turned": (mapped("turned"), False)})
        table("2 GB through a map that moves, in and out a folder of two ranks, all synced", took, size_of(folder), "cp -r, synced")
    finally:
        for path in rules.values():
            os.remove(path)


def values(b):
    folder = b.input("2gb", "make_folder.py", 2)
    full, short, rounded = (f"{b.work}-{name}.pt" for name in ("full", "short", "rounded"))
    one = ["-q", "--threads", "1"]
    try:
        subprocess.run([b.tool, "consolidate", folder, full, "-q"], check=True)
        subprocess.run([b.tool, "consolidate", folder, short, "-q", "--dtype", "bfloat16"], check=True)
        subprocess.run([b.tool, "convert", short, rounded, "-q", "--dtype", "float32"], check=True)
        os.remove(short)
        read_into_page_cache(folder)
        for path in (full, rounded):
            with open(path, "rb") as f:
                while f.read(8 * MIB):
                    pass
        compare = [b.tool, "diff", folder, full, *one]
        # Status 1 is the right answer there.
        differing = shell(f"'{b.tool}' diff '{folder}' '{rounded}' -q --threads 1 --limit 0 > /dev/null; test $? = 1")
        took = b.rounds({"cat > /dev/null": (shell(f"cat '{folder}'/* > /dev/null"), False),
                         "stats": ([b.tool, "stats", folder, *one], False),
                         "diff, the same": (compare, False),
                         "diff --close, the same": ([*compare, "--close"], False),
                         "diff, every float differs": (differing, False)})
        amount = size_of(folder)
        table(f"{amount / 1e9:.2f} GB of float32 on one thread, every CRC-32 checked; diff: MB of one side", took, amount)
    finally:
        for path in (full, short, rounded):
            if os.path.exists(path):
                os.remove(path)
        shutil.rmtree(b.work, ignore_errors=True)


def of_paths(paths, to):
    return shell("cat " + " ".join(f"'{path}'" for path in paths) + " > " + to)


def measure_files(b, title, paths, commands):
    """Side by side with reading the files by cat: from the page cache, and from the disk."""
    commands = {"cat > /dev/null": of_paths(paths, "/dev/null"), "cat > out": of_paths(paths, "out"), **commands}
    amount = sum(map(os.path.getsize, paths))
    for where, prepare in (("in the page cache", read_file), ("on the disk", evict)):
        took = {name: [] for name in commands}
        for _ in range(b.args.rounds):
            for name, argv in commands.items():
                for path in paths:
                    prepare(path)
                took[name].append(b.once(argv))
        table(f"{title}, {amount / 1e9:.2f} GB {where}", took, amount, "cat > /dev/null")


def average(b):
    """Means of three files of bfloat16, and of `--inputs` of them: a torch.save file each time, the others safetensors."""
    folder = b.input("2gb", "make_folder.py", 2)
    paths = [f"{b.work}-{i}.{'pt' if i == 1 else 'safetensors'}" for i in range(max(3, b.args.inputs))]
    try:
        for path in paths:
            subprocess.run([b.tool, "convert", folder, path, "-q", "--dtype", "bfloat16", "-k", "model.**"], check=True)
        for count in sorted({3, len(paths)}):
            command = [b.tool, "average", *paths[:count], "out.safetensors", "-q", "--no-sync", "--threads", b.threads]
            measure_files(b, f"mean of {count} files of bfloat16", paths[:count], {"average --no-sync": command})
    finally:
        for path in paths:
            if os.path.exists(path):
                os.remove(path)
        shutil.rmtree(b.work, ignore_errors=True)


def merge(b):
    """An adapter of rank 16 for every matrix of a model of bfloat16.  The output is as large as the input."""
    folder = b.input("2gb", "make_folder.py", 2)
    base, adapter = b.work + "-base.safetensors", b.work + "-adapter"
    try:
        subprocess.run([b.tool, "convert", folder, base, "-q", "--dtype", "bfloat16", "-k", "model.**"], check=True)
        subprocess.run([sys.executable, os.path.join(HERE, "make_adapter.py"), base, adapter, "16"], check=True)
        command = [b.tool, "merge-lora", base, adapter, "out.safetensors", "-q", "--no-sync", "--threads", b.threads]
        measure_files(b, "an adapter of rank 16 merged", [base], {"merge-lora --no-sync": command})
    finally:
        if os.path.exists(base):
            os.remove(base)
        for path in (adapter, b.work):
            shutil.rmtree(path, ignore_errors=True)


def arithmetic_memory(b):
    """Peaks of sums of eight inputs, and of a map."""
    folder = b.input("2gb", "make_folder.py", 2)
    turned, model = b.work + "-turned.toml", b.work + "-model.safetensors"
    try:
        with open(turned, "w", encoding="utf-8") as file:
            file.write(TURNED)
        subprocess.run([b.tool, "convert", folder, model, "-q", "-k", "model.**"], check=True)
        print("\n### Peak memory of sums and maps\n\n| command | s | peak MiB |\n|---|---:|---:|")
        for name, argv in {"average, 8 folders of 2 GB": ["average", *[folder] * 8, "out", "--to", "dcp", "-w", "2"],
                           "average, 8 files of float32": ["average", *[model] * 8, "out.safetensors"],
                           "map, matrices turned, 2 GB": ["map", turned, folder, "out", "--to", "dcp", "-w", "2"]}.items():
            seconds, peak = b.once([b.tool, *argv, "-q", "--no-sync"])
            print(f"| {name} | {seconds:.2f} | {peak:,.0f} |", flush=True)
    finally:
        for path in (turned, model):
            if os.path.exists(path):
                os.remove(path)
        shutil.rmtree(b.work, ignore_errors=True)


PARTS = {"copy": copy, "threads": threads, "reshard": reshard, "memory": memory, "verify": verify, "inspect": inspect, "metadata": metadata, "rewrite": rewrite, "values": values,
         "average": average, "merge": merge, "arithmetic-memory": arithmetic_memory, "map": maps, "quantize": quantized.speed, "quantize-memory": quantized.memory}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--tool", required=True)
    ap.add_argument("--cache", required=True)
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--only", default=",".join(PARTS))
    ap.add_argument("--large", type=float, default=8, help="gigabytes of the larger folder of `memory`")
    ap.add_argument("--inputs", type=int, default=8, help="files that `average` adds up, at most")
    ap.add_argument("--memory", choices=MEMORY, default="touched", help="what a command finds: memory that was touched just "
                    "before, page cache that nobody needs, or whatever there is")
    ap.add_argument("--model", type=int, default=2000, help="megabytes of the model of `quantize`")
    ap.add_argument("--sizes", default="2,4,8,16", help="gigabytes of the models of `quantize-memory`")
    ap.add_argument("--back", type=int, default=4, help="gigabytes of a model that is dequantized there, at most")
    ap.add_argument("--schemes", help="the schemes of both; all, or two")
    ap.add_argument("--processor", action="store_true", help="`quantize`: seconds of the processor, on a machine that does other things, too")
    ap.add_argument("--packages", help="a Python with llmcompressor, which `quantize` is measured beside")
    ap.add_argument("--busy", type=int, default=0, help="processes that take a core each meanwhile")
    ap.add_argument("--before", help="another fsdp-ckpt: measure nothing but the two side by side")
    args = ap.parse_args()
    if args.before:
        args.before, args.only = os.path.abspath(args.before), "before"
    bench = Bench(args)
    with open("/proc/cpuinfo") as f:
        cpu = next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), platform.machine())
    version = subprocess.run([bench.tool, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    print(f"{time.strftime('%Y-%m-%d')}, {cpu}, {bench.threads} threads, Linux {platform.release()}, {version}, {args.rounds} rounds")
    load, floor = os.getloadavg()[0], bench.once(["true"])[1]
    print(f"Load before: {load:.1f}. A peak of {floor:.0f} MiB means no more than that: it is the measuring process's own.")
    print(f"Memory: {args.memory}; busy cores: {args.busy}.")
    for name in args.only.split(","):
        (before if name == "before" else PARTS[name])(bench)
    bench.filler.close()


if __name__ == "__main__":
    main()
