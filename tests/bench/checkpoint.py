# SPDX-License-Identifier: Apache-2.0
"""Saves and loads a GPT and its AdamW state, sharded, with libfsdp and with PyTorch's DCP, turn by turn, and prints a markdown table.

  python checkpoint.py --program bench_checkpoint --folder FOLDER [--mebibytes 2048] [--rounds 5] [--ranks 2]

Both sync what they write.  Times are medians over the rounds, from a barrier before to a barrier after; memory is the peak of a process
minus the state itself.  Each loads its own checkpoint three times: right after the save, when some of it may be in the page cache; from the
disk; and, after an untimed load, from the page cache.

Before everything that is timed, free memory is filled with unneeded page cache, as on a machine that has been running for a while.  (The
host of a virtual machine may have taken back memory that is really free: first touching it then takes several times as long, at random for
one side or the other.)
"""
import argparse
import datetime
import math
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import time
import warnings

from page_cache import PageCacheFiller, read_into_page_cache

warnings.simplefilter("ignore")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


WIDTH, VOCABULARY, BYTES_OF_PARAMETER = 1024, 4096, 12


def parameters(mebibytes):
    """Name -> shape: those of checkpoint.cpp."""
    block = 12 * WIDTH * WIDTH + 13 * WIDTH
    blocks = max(1, (mebibytes * 2**20 // BYTES_OF_PARAMETER - 2 * VOCABULARY * WIDTH) // block)
    shapes = {"emb.weight": (VOCABULARY, WIDTH)}
    for i in range(blocks):
        for name, rows, columns in (("ln1", WIDTH, 0), ("qkv", 3 * WIDTH, WIDTH), ("proj", WIDTH, WIDTH), ("ln2", WIDTH, 0),
                                    ("up", 4 * WIDTH, WIDTH), ("down", WIDTH, 4 * WIDTH)):
            shapes[f"blocks.{i}.{name}.weight"] = (rows, columns) if columns else (rows,)
            shapes[f"blocks.{i}.{name}.bias"] = (rows,)
    return {**shapes, "head.weight": (VOCABULARY, WIDTH)}


def worker(mebibytes):
    """PyTorch's side: the same as checkpoint.cpp."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=600))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    def sharded(shape):
        return DTensor.from_local(torch.randn(shape[0] // dist.get_world_size(), *shape[1:]), mesh, [Shard(0)])

    shapes = parameters(mebibytes)
    states = {name: {"step": torch.tensor(400.0), "exp_avg": sharded(shape), "exp_avg_sq": sharded(shape)} for name, shape in shapes.items()}
    options = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.01, "amsgrad": False, "params": list(shapes)}
    state = {"model": {name: sharded(shape) for name, shape in shapes.items()},
             "optimizer_0": {"state": states, "param_groups": [options]}}
    groups = dist.new_group(backend="gloo")
    print("ready", flush=True)
    for line in sys.stdin:
        what, _, folder = line.strip().partition(" ")
        if what == "quit":
            break
        dist.barrier()
        begin = time.perf_counter()
        returned = None
        if what == "save":
            dcp.save(state, storage_writer=dcp.FileSystemWriter(folder, sync_files=True))
        elif what == "load":
            dcp.load(state, checkpoint_id=folder)
        else:
            future = dcp.async_save(state, storage_writer=dcp.FileSystemWriter(folder, sync_files=True), process_group=groups)
            returned = time.perf_counter() - begin
            future.result()
        dist.barrier()
        print(*([returned] if returned is not None else []), time.perf_counter() - begin, flush=True)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, flush=True)


class Side:
    def __init__(self, command, ranks):
        port = free_port()
        self.ranks = [subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=dict(os.environ, RANK=str(r), WORLD_SIZE=str(ranks), LOCAL_RANK=str(r), LOCAL_WORLD_SIZE=str(ranks),
                     MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")) for r in range(ranks)]
        self.answer()

    def answer(self):
        return [rank.stdout.readline().split() for rank in self.ranks]

    def do(self, line):
        for rank in self.ranks:
            rank.stdin.write(line + "\n")
            rank.stdin.flush()
        said = self.answer()
        try:
            return [float(x) for x in said[0]]
        except ValueError:
            sys.exit(f"{line}: {said}")


def drop_from_page_cache(folder):
    for entry in os.scandir(folder):
        file = os.open(entry.path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program")
    parser.add_argument("--folder")
    parser.add_argument("--mebibytes", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--worker", action="store_true")
    args = parser.parse_args()
    if args.worker:
        return worker(args.mebibytes)
    sides = {"libfsdp": Side([args.program, str(args.mebibytes)], args.ranks),
             "PyTorch DCP": Side([sys.executable, __file__, "--worker", "--mebibytes", str(args.mebibytes)], args.ranks)}
    filler = PageCacheFiller(args.folder)
    times = {}
    for number in range(args.rounds):
        for what in ("save", "load behind", "load", "load again", "async"):
            order = list(sides) if number % 2 == 0 else list(sides)[::-1]
            for name in order:
                folder = os.path.join(args.folder, "ckpt-" + name.split()[0])
                if what == "load":
                    drop_from_page_cache(folder)
                elif what != "load behind" and what != "load again":
                    shutil.rmtree(folder, ignore_errors=True)
                    os.sync()
                filler.fill()
                if what == "load again":
                    read_into_page_cache(folder)
                    sides[name].do(f"load {folder}")
                for kind, value in zip(("blocks", "async") if what == "async" else (what,), sides[name].do(f"{what.split()[0]} {folder}")):
                    times.setdefault(kind, {}).setdefault(name, []).append(value)
    filler.close()
    peak = {name: max(side.do("quit")[0] for _ in [0]) for name, side in sides.items()}
    for name in sides:
        shutil.rmtree(os.path.join(args.folder, "ckpt-" + name.split()[0]), ignore_errors=True)
    own = sum(math.prod(shape) for shape in parameters(args.mebibytes).values()) * BYTES_OF_PARAMETER / args.ranks
    print(f"{own * args.ranks / 2**20:.0f} MiB on {args.ranks} ranks, {args.rounds} rounds, load before {os.getloadavg()[0]:.1f}\n")
    print("| | libfsdp | PyTorch DCP | ratio |\n|---|---:|---:|---:|")
    for kind, title in (("save", "save, s"), ("load behind", "load right behind it, s"), ("load", "load from disk, s"), ("load again", "load from page cache, s"), ("blocks", "async_save returns after, s"), ("async", "async_save, s")):
        a, b = (statistics.median(times[kind][name]) for name in sides)
        print(f"| {title} | {a:.2f} | {b:.2f} | {b / a:.1f} |")
    a, b = ((peak[name] - own) / 2**20 for name in sides)
    print(f"| peak memory beside the state, MiB a rank | {a:.0f} | {b:.0f} | {b / a:.1f} |")
    print("\nEach round, s, libfsdp / DCP:")
    for kind, rounds in times.items():
        print(f"  {kind}: " + ", ".join(f"{a:.2f} / {b:.2f}" for a, b in zip(*(rounds[name] for name in sides))))
    share = statistics.median(times["blocks"]["libfsdp"]) / statistics.median(times["save"]["libfsdp"])
    print(f"\nasync_save of libfsdp returns after {share:.2f} of what save takes")


main()
