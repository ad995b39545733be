# SPDX-License-Identifier: Apache-2.0
"""The measurements of tests/bench/train.sh: steps of one GPT, sharded by libfsdp and by PyTorch.

Every rank is a process of one thread that communicates by Gloo over loopback.  The rounds of a table are interleaved (A B C, A B C, ...),
so other load on the machine hits all alike.  The cost of sharding is a kind's step minus the step of the same language's unsharded model
in the same round, where as many processes train one model each without communication.  Milliseconds are the mean over ranks of a rank's
median step; the minimum is over all steps of all rounds; CPU is the sum over a rank's threads; the memory peak is that of the largest
rank.

All kinds must train alike: the first loss of every rank is compared among all of them, the last loss among the sharded kinds and among the
unsharded ones.
"""
import argparse
import json
import os
import platform
import re
import socket
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version

HERE = os.path.dirname(os.path.abspath(__file__))
SIZES = {
    "8": dict(width=8, layers=125, vocabulary=64, length=8, batch=1),      # 1,505 tiny parameters
    "64": dict(width=64, layers=4, vocabulary=256, length=32, batch=2),
    "512": dict(width=512, layers=6, vocabulary=8000, length=64, batch=2),
}
STEPS = {"8": dict(steps=30, warmup=5), "64": dict(steps=200, warmup=20), "512": dict(steps=12, warmup=3)}
# Kinds: (language, options of its trainer).
PEERS = {
    "LibTorch, unsharded": ("C++", dict(sharded=0)),
    "libfsdp": ("C++", dict()),
    "libfsdp, `use_orig_params`": ("C++", dict(orig=1)),
    "libfsdp, `SHARD_GRAD_OP`": ("C++", dict(strategy="grad_op")),
    "libfsdp, `bucket_bytes` 0": ("C++", dict(bucket_mib=0)),
    "libfsdp, embeddings and head units": ("C++", dict(wrap_ends=1)),
    "libfsdp, `torch::optim::AdamW`": ("C++", dict(fused=0)),
    "PyTorch, unsharded": ("Python", dict(kind="unsharded")),
    "PyTorch, unsharded, default AdamW": ("Python", dict(kind="unsharded", fused=0)),
    "FSDP1": ("Python", dict(kind="fsdp1")),
    "FSDP1, `use_orig_params`": ("Python", dict(kind="fsdp1", orig=1)),
    "FSDP1, `SHARD_GRAD_OP`": ("Python", dict(kind="fsdp1", strategy="grad_op")),
    "FSDP1, default AdamW": ("Python", dict(kind="fsdp1", fused=0)),
    "FSDP2": ("Python", dict(kind="fsdp2")),
    "FSDP2, default AdamW": ("Python", dict(kind="fsdp2", fused=0)),
}
SCALED = ["libfsdp", "FSDP1"]
WORLDS = [1, 2, 4]
GLOBAL_BATCH = 4  # of strong scaling


def is_sharded(settings):
    return settings.get("sharded") != 0 and settings.get("kind") != "unsharded"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Bench:
    def __init__(self, args):
        self.args = args
        self.trainers = {"C++": [os.path.abspath(args.trainer)], "Python": [sys.executable, os.path.join(HERE, "train_step.py")]}
        self.losses = {}   # (settings of the model, sharded, rank, first or last) -> (kind, loss)

    def once(self, kind, world, sizes, steps):
        """Returns the ranks' output, merged."""
        language, settings = PEERS[kind]
        told = [f"{name}={value}" for name, value in {**sizes, **steps, **settings}.items()]
        port = free_port()
        ranks = []
        with tempfile.TemporaryFile("w+") as errors:
            for rank in range(world):
                env = os.environ | dict(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world),
                                        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
                ranks.append(subprocess.Popen(self.trainers[language] + told, env=env, stdout=subprocess.PIPE, stderr=errors, text=True))
            said = [rank.communicate(timeout=1200)[0] for rank in ranks]
            if any(rank.returncode for rank in ranks):
                errors.seek(0)
                sys.exit(f"{kind}: exit codes {[rank.returncode for rank in ranks]}\n{errors.read()[-3000:]}")
        found = [json.loads(text) for text in said]
        for one in found:
            self.check(kind, (world, *sizes.values(), *steps.values(), one["rank"]), is_sharded(settings), one)
        mean = lambda name: statistics.fmean(one[name] for one in found)
        return dict(ms=mean("median_ms"), least=mean("min_ms"), cpu=mean("cpu_ms"), peak=max(one["peak_mib"] for one in found),
                    gathers=found[0].get("gathers"), reductions=found[0].get("reductions"))

    def check(self, kind, run, sharded, one):
        for place, key, tolerance in (("first", run, 1e-5), ("last", (*run, sharded), 1e-3)):
            loss = one[f"{place}_loss"]
            other, expected = self.losses.setdefault((place, key), (kind, loss))
            if abs(loss - expected) > tolerance * abs(expected):
                sys.exit(f"rank {one['rank']}: the {place} loss of {kind} is {loss}, that of {other} {expected}: they do not train alike")

    def rounds(self, runs):
        """runs: name -> (kind, world, sizes, steps). Returns name -> [output of one run]."""
        took = {name: [] for name in runs}
        for i in range(self.args.rounds):
            for name, run in runs.items():
                took[name].append(self.once(*run))
                print(f"  round {i + 1}: {run[0]}, {run[1]} ranks: {took[name][-1]['ms']:.2f} ms", file=sys.stderr, flush=True)
        return took

    def steps(self, size):
        return STEPS[size] | ({"steps": self.args.steps} if self.args.steps else {})


def median(runs, name):
    return statistics.median(run[name] for run in runs)


def least(runs):
    return min(run["least"] for run in runs)


def over(runs, baseline):
    """Milliseconds of a step and of CPU over the baseline, round by round."""
    return tuple(statistics.median(run[name] - base[name] for run, base in zip(runs, baseline)) for name in ("ms", "cpu"))


def title_of(sizes):
    return (f"hidden {sizes['width']}, {sizes['layers']} layers, {sizes['vocabulary']} tokens, "
            f"sequences of {sizes['length']}, {sizes['batch']} a rank")


def peers(b, size):
    sizes = SIZES[size]
    took = b.rounds({kind: (kind, 2, sizes, b.steps(size)) for kind in PEERS})
    # The first unsharded kind of a language.
    baselines = {language: next(kind for kind, (of, settings) in PEERS.items() if of == language and not is_sharded(settings))
                 for language in b.trainers}
    extra = {kind: over(took[kind], took[baselines[language]]) for kind, (language, settings) in PEERS.items()}
    # FSDP1 at its best with the same strategy: in each column the better of its two forms and of its optimizers.
    forms = [kind for kind, (_, settings) in PEERS.items() if settings.get("kind") == "fsdp1" and "strategy" not in settings]
    theirs = [min(extra[kind][column] for kind in forms) for column in (0, 1)]
    peak = min(median(took[kind], "peak") for kind in PEERS if PEERS[kind][1].get("kind") == "fsdp1")
    print(f"\n### GPT of {title_of(sizes)}; 2 ranks\n")
    print("| | step ms | least | over unsharded | of FSDP1's | CPU ms | over unsharded | of FSDP1's | peak MiB | of FSDP1's |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for kind, (_, settings) in PEERS.items():
        runs = took[kind]
        cells = [["", ""], ["", ""]]
        if is_sharded(settings):
            cells = [[f"{mine:.2f}", f"{mine / other:.2f}" if other > 0 else "-"] for mine, other in zip(extra[kind], theirs)]
        mib = median(runs, "peak")
        print(f"| {kind} | {median(runs, 'ms'):.2f} | {least(runs):.2f} | {' | '.join(cells[0])} | {median(runs, 'cpu'):.2f} | {' | '.join(cells[1])} | "
              f"{mib:,.0f} | {mib / peak:.2f} |")
    print(f"\nFSDP1's: the least that it adds in any of {len(forms)} forms ({', '.join(forms)}), and the least of its peaks.")
    print(f"Collectives a step of libfsdp: {median(took['libfsdp'], 'gathers'):.0f} for gathers, {median(took['libfsdp'], 'reductions'):.0f} for reductions.")
    sys.stdout.flush()


def scaling(b, size, name):
    """strong: the batch of all ranks together is fixed; weak: the batch of each rank is."""
    sizes = SIZES[size]
    batch = (lambda world: GLOBAL_BATCH // world) if name == "strong" else (lambda world: sizes["batch"])
    took = b.rounds({(kind, world): (kind, world, sizes | {"batch": batch(world)}, b.steps(size)) for kind in SCALED for world in WORLDS})
    print(f"\n### {name.capitalize()} scaling, hidden {sizes['width']}, {sizes['layers']} layers; "
          + (f"{GLOBAL_BATCH} sequences over all ranks\n" if name == "strong" else f"{sizes['batch']} sequences a rank\n"))
    print("| ranks | batch a rank | " + " | ".join(f"{kind}: step ms | least | CPU ms | tokens/s | over 1 rank" for kind in SCALED) + " |")
    print("|---:|---:|" + "---:|---:|---:|---:|---:|" * len(SCALED))
    for world in WORLDS:
        cells = []
        for kind in SCALED:
            rate = {w: batch(w) * w * sizes["length"] / median(took[kind, w], "ms") * 1e3 for w in WORLDS}
            cells.append(f"{median(took[kind, world], 'ms'):.2f} | {least(took[kind, world]):.2f} | {median(took[kind, world], 'cpu'):.2f} | "
                         f"{rate[world]:,.0f} | {rate[world] / rate[1]:.2f}")
        print(f"| {world} | {batch(world)} | " + " | ".join(cells) + " |")
    sys.stdout.flush()


def memory(trainer):
    """What a rank holds: libfsdp's bound by estimate_memory(), and what PyTorch's FSDPMemTracker finds that FSDP2 holds."""
    print("\n### Memory of a rank, AdamW, float32, without activations\n")
    print("| GPT | ranks | libfsdp MiB | FSDP2 MiB | ratio |\n|---|---:|---:|---:|---:|")
    for world, sizes in ((4, SIZES["512"]), (8, dict(width=1024, layers=24, vocabulary=8000, length=64, batch=2))):
        told = [f"{name}={value}" for name, value in sizes.items()]
        ours, theirs = (json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
                        for command in ([trainer, *told, f"estimate={world}"],
                                        [sys.executable, os.path.join(HERE, "train_memory.py"), *told, f"ranks={world}"]))
        print(f"| hidden {sizes['width']}, {sizes['layers']} layers | {world} | {ours['mib']:,.0f} | {theirs['mib']:,.0f} | "
              f"{ours['mib'] / theirs['mib']:.2f} |", flush=True)


def machine():
    with open("/proc/cpuinfo") as f:
        cpu = re.search(r"model name\s*: (.*)", f.read())
    return (f"{os.cpu_count()} x {cpu[1] if cpu else platform.machine()}, {os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') >> 30} GiB, "
            f"Linux {platform.release().split('-')[0]}, PyTorch {version('torch')}, load {os.getloadavg()[0]:.1f} at the start")


def main():
    parts = ["peers8"] + [f"{part}{size}" for size in ("64", "512") for part in ("peers", "strong", "weak")] + ["memory"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", required=True, help="bench_train_step")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="timed steps a run")
    parser.add_argument("--only", type=lambda text: text.split(","), default=parts, help=f"of {','.join(parts)}")
    args = parser.parse_args()
    unknown = set(args.only) - set(parts)
    if unknown:
        parser.error(f"no part is called {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    print(f"{machine()}; {args.rounds} rounds")
    b = Bench(args)
    for part in args.only:
        if part == "memory":
            memory(args.trainer)
            continue
        name, size = re.fullmatch(r"([a-z]+)(\d+)", part).groups()
        peers(b, size) if name == "peers" else scaling(b, size, name)
    print("\nAll kinds trained alike: every first loss agrees to 1e-5, every last one to 1e-3.")


main()
