# SPDX-License-Identifier: Apache-2.0
"""The steps of measure.py that use the GPU.  Each gets a Context, and records what it finds out."""
import concurrent.futures
import datetime
import functools
import gzip
import json
import os
import platform
import re
import shutil
import struct
import subprocess
import sys

from launch import launch, must

HERE = os.path.dirname(os.path.abspath(__file__))
TESTS = os.path.dirname(HERE)
SETUP = "setup.json"   # what the step `start` found, for the others
TOLERANCE = 1e-3       # of a loss
TOLERANCE_BF16 = 3e-2
WARMUP = 5
# Beside what differs, the settings of bench_train_step.
SIZES = {
    "hidden 512, 6 layers": dict(width=512, layers=6, vocabulary=8000, length=64, batch=2),
    "hidden 1,024, 24 layers, bfloat16": dict(width=1024, layers=24, vocabulary=32000, length=512, batch=4, bf16=1),
    "hidden 4,096, 8 layers, bfloat16": dict(width=4096, layers=8, vocabulary=32000, length=512, batch=4, bf16=1),
}
# Without a GPU only the scripts are tried.
SIZES_CPU = {"hidden 64, 2 layers": dict(width=64, layers=2, vocabulary=256, length=32, batch=2)}
KINDS = {"C++": {"libfsdp": {}, "LibTorch, unsharded": dict(sharded=0)},
         "Python": {"FSDP1": dict(kind="fsdp1"), "FSDP2": dict(kind="fsdp2"), "PyTorch, unsharded": dict(kind="unsharded")}}
# Where PyTorch is, and in which folders the libraries are that it uses, however it found them.  Those of the driver come from the system.
FIND = """
import json, os, re, torch
names = re.compile(r"lib(torch|c10|cudart|cublas|cudnn|nccl|cusparse|cusolver|cufft|cufile|curand|cupti|nvrtc|nvJitLink|nvshmem)")
with open("/proc/self/maps") as maps:
    paths = {line.split(None, 5)[5].strip() for line in maps if line.count("/")}
print(json.dumps({"torch": torch.__path__[0], "version": torch.__version__, "cuda": torch.cuda.is_available(),
                  "folders": sorted({os.path.dirname(p) for p in paths if names.match(os.path.basename(p))})}))
"""


class Skip(Exception):
    """A part cannot run here, for the reason that it says."""


def in_memory(work):
    """The folder in memory of a run whose other files are in `work`."""
    return os.path.join("/dev/shm", os.path.basename(work))


class Context:
    def __init__(self, args, results):
        self.args, self.results, self.step = args, results, args.step
        self.limit = args.limits[args.step]   # seconds until the step is killed
        self.device, self.out, self.work = args.device, args.out, os.path.join(args.work, args.step)
        self.bundle = os.path.abspath(args.bundle)
        self.in_memory = in_memory(args.work)
        self.setup_path = os.path.join(args.work, SETUP)
        self.runs = 0
        if os.path.exists(self.setup_path):
            with open(self.setup_path) as f:
                # PyTorch finds its libraries itself, and they are the same.
                os.environ["LD_LIBRARY_PATH"] = json.load(f)["path"]

    def program(self, name):
        return os.path.join(self.bundle, "bin", name)

    def folder(self, name):
        """A new folder of the step; what its programs say is kept in the log."""
        self.runs += 1
        path = os.path.join(self.work, f"{self.runs:02}-{re.sub('[^a-z0-9]+', '-', name.lower())}")
        os.makedirs(path)
        return path

    def part(self, name, body):
        """`body` returns the detail, or throws."""
        try:
            outcome, detail = "passed", body()
        except Skip as reason:
            outcome, detail = "skipped", reason
        except (RuntimeError, AssertionError, OSError, subprocess.SubprocessError, ValueError, LookupError) as error:
            outcome, detail = "failed", error
        self.results.part(self.step, name, outcome, detail)
        return outcome == "passed"

    def parts(self, bodies):
        """Several of them at a time: what they say is whether something works, and not how fast."""
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda item: self.part(*item), bodies.items()))


def gpus():
    """The GPUs that this process sees: (name, memory in MiB, version of the driver) each."""
    if not shutil.which("nvidia-smi"):
        return []
    said = subprocess.run(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"],
                          capture_output=True, text=True)
    if said.returncode:
        return []
    found = [tuple(word.strip() for word in line.split(",")) for line in said.stdout.splitlines() if line.count(",") == 2]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return found if visible is None else found[:len(visible.split(","))]


def machine(ctx):
    with open("/proc/cpuinfo") as f:
        cpu = re.search(r"model name\s*: (.*)", f.read())
    found = gpus() if ctx.device == "cuda" else []
    name, memory, driver = found[0] if found else ("", 0, "")
    with open(os.path.join(ctx.bundle, "bundle.json")) as f:
        bundle = json.load(f)
    return {"gpu": name, "gpus": len(found), "gpu_mib": int(memory), "driver": driver, "cores": os.cpu_count(), "cpu": cpu[1] if cpu else "",
            "memory_gib": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 30, "libc": " ".join(platform.libc_ver()),
            "date": datetime.date.today().isoformat(), "commit": bundle["commit"], "torch": bundle["torch"], "timed_steps": ctx.args.timed_steps}


# --- start

def start(ctx):
    about = machine(ctx)
    ctx.results.add({"kind": "machine", **about})
    ctx.part("LibTorch", lambda: find_torch(ctx, about))
    for name, (words, status, said) in {"tests_libfsdp_gpu": (["--gtest_list_tests"], 0, "PartsOnGpu."),
                                        "tests_libfsdp_cuda": (["--gtest_list_tests"], 0, "NcclOnDevice."),
                                        "train_gpt": (["--help"], 0, "--sharding-strategy"),
                                        "bench_train_step": (["?"], 2, "expected NAME=VALUE"),
                                        "fsdp-ckpt": (["--version"], 0, "fsdp-ckpt")}.items():
        ctx.part(f"{name} starts", functools.partial(starts, ctx, name, words, status, said))


def starts(ctx, name, words, status, wanted):
    done = subprocess.run([ctx.program(name), *words], capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == status and wanted in said, f"exit {done.returncode}: {said[-300:]} (this machine: {' '.join(platform.libc_ver())})"
    return f"exit {status}, as it should"


def find_torch(ctx, about):
    """Writes down where LibTorch is: in FSDP_TORCH, else where this Python has it."""
    done = subprocess.run([sys.executable, "-c", FIND], capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}
    folder = os.environ.get("FSDP_TORCH") or found.get("torch")
    assert folder, f"FSDP_TORCH is not set, and {sys.executable} has no torch: {done.stderr[-200:]}"
    assert os.path.exists(os.path.join(folder, "lib", "libtorch_cuda.so")), f"{folder}/lib has no libtorch_cuda.so"
    nvidia = os.path.join(folder, "..", "nvidia")
    beside = sorted(os.path.join(nvidia, name, "lib") for name in os.listdir(nvidia)) if os.path.isdir(nvidia) else []
    folders = [os.path.join(folder, "lib"), *beside, *found.get("folders", []), *os.environ.get("LD_LIBRARY_PATH", "").split(":")]
    path = ":".join(dict.fromkeys(one for one in folders if os.path.isdir(one)))
    with open(ctx.setup_path, "w") as f:
        json.dump({"path": path, "torch": folder}, f)
    os.environ["LD_LIBRARY_PATH"] = path
    assert found, f"the programs use {folder}, but {sys.executable} cannot import torch: {done.stderr[-200:]}"
    # Within a version LibTorch's classes keep their layout.
    assert found["version"].split("+")[0] == about["torch"].split("+")[0], \
        f"built with {about['torch']}, but this machine has {found['version']}: build the bundle with that one"
    assert found["cuda"] or ctx.device == "cpu", "PyTorch sees no CUDA device: is its CUDA newer than the driver?"
    return f"{found['version']} in {folder}, {len(path.split(':'))} folders of libraries"


def need_device(ctx):
    if ctx.device == "cpu":
        raise Skip("needs a CUDA device")


# --- a, e: programs of GoogleTest

def run_tests(ctx, program, filter):
    """What GoogleTest wrote of each test."""
    report = os.path.join(ctx.folder(program), "report.json")
    statuses, said = launch(1, [ctx.program(program), f"--gtest_filter={filter}", f"--gtest_output=json:{report}"], folder=os.path.dirname(report))
    # A program that crashed leaves none.
    if not os.path.exists(report):
        raise RuntimeError(f"exit {statuses[0]}: {said[0][-250:]}")
    with open(report) as f:
        return [test for suite in json.load(f)["testsuites"] for test in suite["testsuite"]]


def counted(ctx, found):
    """Returns how many passed, and the names of others."""
    outcomes = {"passed": [], "failed": [], "skipped": []}
    for test in found:
        status = "failed" if test.get("failures") else "skipped" if test["result"] == "SKIPPED" else "passed"
        outcomes[status].append(test["name"])
    detail = "; ".join(f"{len(names)} {status}" + (f": {', '.join(names)}" if status != "passed" else "")
                       for status, names in outcomes.items() if names)
    assert not outcomes["failed"], detail
    if not outcomes["passed"]:
        raise Skip(detail)
    assert ctx.device == "cpu" or not outcomes["skipped"] or outcomes["skipped"] == ["without_a_device_the_error_says_so"], detail
    return detail


def tests(ctx):
    for program, filter in {"tests_libfsdp_cuda": "-CapturedStep.*", "tests_libfsdp_gpu": "*"}.items():
        ctx.part(program, lambda: counted(ctx, run_tests(ctx, program, filter)))


def graph(ctx):
    def captured():
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        found = run_tests(ctx, "tests_libfsdp_cuda", "CapturedStep.*")
        detail, test = counted(ctx, found), found[0]
        return (f"{detail}; eager {float(test['eager_ms']):.2f} ms a step, replayed {float(test['replay_ms']):.2f}; "
                f"losses bit by bit the same: {test['identical']}")
    ctx.part("one step, replayed 20 times", captured)


# --- b, c, f: small trainings, compared

class Trainer:
    """train_gpt and its twin in Python, whose losses on the CPU are those to compare with."""
    SIZES = dict(vocab=61, dim=128, layers=4, heads=4, seq=32)
    BATCH, STEPS, SAVED_AT = 12, 10, 5

    def __init__(self, ctx):
        self.ctx = ctx
        self.tokens = os.path.join(ctx.work, "tokens.bin")
        with open(self.tokens, "wb") as f:
            f.write(struct.pack("<4000H", *((i * i + 7 * i) % 61 for i in range(4000))))

    def words(self, options):
        return [word for key, value in options.items() for word in ("--" + key.replace("_", "-"), value)]

    def losses(self, what, world, command, options, node_size=None):
        folder = self.ctx.folder(what)
        metrics = os.path.join(folder, "metrics.jsonl")
        options = {"data": self.tokens, **self.SIZES, "steps": self.STEPS, "metrics": metrics, **options}
        must(world, [*command, *self.words(options)], node_size=node_size, folder=folder)
        with open(metrics) as f:
            return [json.loads(line)["loss"] for line in f]

    def ours(self, what, world=1, device=None, node_size=None, **options):
        options = {"batch": self.BATCH // world, "device": device or self.ctx.device, **options}
        return self.losses(what, world, [self.ctx.program("train_gpt")], options, node_size)

    def fsdp2(self, what, device=None, **options):
        return self.losses(what, 1, [sys.executable, os.path.join(HERE, "fsdp2.py")],
                           {"batch": self.BATCH, "device": device or self.ctx.device, **options})

    @functools.cached_property
    def wanted(self):
        return self.ours("on the CPU", device="cpu")

    def near(self, found, wanted, tolerance=TOLERANCE):
        """Returns the largest distance of the losses, relative to what they should be."""
        assert len(found) == len(wanted), f"{len(found)} losses, expected {len(wanted)}"
        distance = max(abs(a - b) / abs(b) for a, b in zip(found, wanted))
        assert distance <= tolerance, f"losses {found}, on the CPU {wanted}"
        return f"losses as on the CPU, to {distance:.0e}"

    def compare(self, what, world=1, tolerance=TOLERANCE, **options):
        return self.near(self.ours(what, world, **options), self.wanted, tolerance)


def training(ctx):
    trainer = Trainer(ctx)
    ctx.part("train_gpt on the CPU", lambda: f"losses {trainer.wanted[0]:.4f} to {trainer.wanted[-1]:.4f}")
    count = len(gpus())
    parts = {"1 rank, NCCL" if ctx.device == "cuda" else "1 rank": lambda: trainer.compare("one rank"),
             "2 ranks on one device, Gloo": lambda: trainer.compare("gloo", 2, backend="gloo"),
             "FSDP2 in Python": lambda: trainer.near(trainer.fsdp2("fsdp2"), trainer.wanted)}

    def several():
        if count < 2:
            raise Skip(f"this machine has {count} GPUs, and NCCL needs one for each rank")
        return trainer.compare("several ranks", min(count, 4))
    parts["several ranks, NCCL"] = several
    ctx.parts(parts)


def checkpoints(ctx):
    trainer = Trainer(ctx)
    at, rest = trainer.SAVED_AT, trainer.wanted[trainer.SAVED_AT:]
    saved, by_torch, of_cpu = (os.path.join(ctx.work, name) for name in ("saved", "by_torch", "of_cpu"))

    def tool(*words):
        done = subprocess.run([ctx.program("fsdp-ckpt"), *words], capture_output=True, text=True)
        assert done.returncode == 0, f"{words[0]}: exit {done.returncode}: {(done.stdout + done.stderr)[-250:]}"

    def save():
        trainer.ours("saves", steps=at, save=saved)
        tool("verify", saved, "--strict", "-q")
        return "saved, and verified by fsdp-ckpt"
    if not ctx.part("train_gpt saves on the GPU", save):
        return

    def pytorch():
        found = trainer.fsdp2("loads", resume=saved, optimizer_key="optimizer_0", first=at, save=by_torch)
        detail = trainer.near(found, rest)
        # Through PyTorch and back no bit of a weight changes.
        tool("diff", saved, by_torch, "--keys", "model.**", "-q")
        return detail + "; what it saves has the same weights"
    ctx.parts({"the CPU goes on": lambda: trainer.near(trainer.ours("resumes", device="cpu", resume=saved), rest),
               "FSDP2 goes on, and saves": pytorch,
               "the CPU saves, the GPU goes on": lambda: (trainer.ours("cpu saves", device="cpu", steps=at, save=of_cpu),
                                                          trainer.near(trainer.ours("from cpu", resume=of_cpu), rest))[1]})
    ctx.part("the GPU goes on from what FSDP2 saved", lambda: trainer.near(trainer.ours("back", resume=by_torch), rest))


def options(ctx):
    trainer = Trainer(ctx)
    run, _ = trainer.compare, trainer.wanted   # once, before several need it at a time
    ctx.parts({
        "CPU offload": lambda: run("offload", cpu_offload=1),
        "activation checkpointing": lambda: run("recomputes", activation_checkpointing=1),
        "mixed precision, bfloat16": lambda: run("bf16", tolerance=TOLERANCE_BF16, mixed_precision="bf16"),
        "SHARD_GRAD_OP, forward prefetch": lambda: run("grad op", sharding_strategy="shard_grad_op", forward_prefetch=1),
        # Nodes of one rank: each has a copy of its own.
        "HYBRID_SHARD, 2 ranks": lambda: run("hybrid", 2, backend="gloo", node_size=1, sharding_strategy="hybrid_shard"),
        "all of it, 2 ranks": lambda: run("all", 2, tolerance=TOLERANCE_BF16, backend="gloo", cpu_offload=1, activation_checkpointing=1,
                                          mixed_precision="bf16"),
    })


# --- d: time and memory

def merged(found, sizes):
    """One row of what the ranks printed of one training."""
    mean = lambda name: sum(one[name] for one in found) / len(found)
    tokens = sizes["batch"] * sizes["length"] * len(found)
    return {"ranks": len(found), "step_ms": mean("median_ms"), "least_ms": min(one["min_ms"] for one in found), "host_ms": mean("host_ms"),
            "cpu_ms": mean("cpu_ms"), "device_ms": mean("device_ms"), "kernels": mean("kernels"), "allocations": mean("allocations"),
            "device_mib": max(one["device_mib"] for one in found), "tokens_per_s": tokens / mean("median_ms") * 1e3,
            "first_loss": found[0]["first_loss"], "last_loss": found[0]["last_loss"]}


def benchmark(ctx, language, world, sizes, losses, seconds):
    """Trains each size by each kind of a language, in one process a rank, and records a row of each."""
    runs = [(model, kind, settings) for model, settings in sizes.items() for kind in KINDS[language]]
    words = []
    for model, kind, settings in runs:
        one = {**settings, **KINDS[language][kind], "device": ctx.device, "steps": ctx.args.timed_steps, "warmup": WARMUP}
        words += ["--", *(f"{name}={value}" for name, value in one.items())]
    program = [ctx.program("bench_train_step")] if language == "C++" else [sys.executable, os.path.join(TESTS, "bench", "train_step.py")]
    folder = ctx.folder(f"{language} {world}")
    try:
        statuses, _ = launch(world, [*program, *words[1:]], folder=folder, timeout=seconds)
        end = f"exits {statuses}"
    except subprocess.TimeoutExpired:
        end = f"cut off after {seconds:g} s"
    said = []
    for rank in range(world):
        with open(os.path.join(folder, str(rank)), errors="replace") as f:
            said.append(f.read())
    # A last line without an end may have been cut off.
    lines = [[json.loads(line) for line in text.split("\n")[:-1] if line.startswith('{"rank"')] for text in said]
    for number, (model, kind, settings) in enumerate(runs):
        def row():
            found = [of_rank[number] for of_rank in lines if number < len(of_rank)]
            if len(found) < world:
                raise RuntimeError(f"{end}: {said[0][-250:]}")
            errors = [one["error"] for one in found if "error" in one]
            if errors:
                raise RuntimeError(errors[0])
            one = merged(found, settings)
            ctx.results.add({"kind": "row", "step": ctx.step, "model": model, "what": kind, **one})
            tolerance = TOLERANCE_BF16 if "bf16" in settings else TOLERANCE
            # Unsharded, each of several ranks trains a model of its own.
            alone = world > 1 and "unsharded" in kind
            for name, key in ("first_loss", (model, world)), ("last_loss", (model, world, alone)):
                other, wanted = losses.setdefault(key, (kind, one[name]))
                assert abs(one[name] - wanted) <= tolerance * abs(wanted), \
                    f"{name} {one[name]}, of {other} {wanted}: they do not train alike"
            return f"{one['step_ms']:.2f} ms a step"
        ctx.part(f"{model}: {kind}, {world} rank{'s' if world > 1 else ''}", row)


def benchmarks(ctx):
    sizes = SIZES if ctx.device == "cuda" else SIZES_CPU
    worlds = [1] + ([len(gpus())] if len(gpus()) > 1 else [])
    losses = {}
    for world in worlds:
        for language, seconds in {"C++": 0.42 * ctx.limit, "Python": 0.52 * ctx.limit}.items():
            benchmark(ctx, language, world, sizes, losses, seconds / len(worlds))


# --- g, h: other people's tools

def of_cuda(name):
    """A tool of the CUDA toolkit."""
    path = shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin:/opt/nvidia/nsight-compute")
    if not path:
        raise Skip(f"{name} is not here")
    return path


def short_training(ctx, what):
    """Returns the words of a training of two steps, and the folder of it."""
    trainer = Trainer(ctx)
    sizes = {**trainer.SIZES, "layers": 2}
    return [ctx.program("train_gpt"), *trainer.words({"data": trainer.tokens, **sizes, "batch": 2, "steps": 2, "device": "cuda",
                                                      "clip_grad_norm": 1})], ctx.folder(what)


# Kernels of LibTorch in which racecheck sees hazards.
RACES_OF_TORCH = "fmha_cutlass"


def sanitizers(ctx):
    def sanitize(tool, seconds, *words):
        need_device(ctx)
        sanitizer = of_cuda("compute-sanitizer")
        training, folder = short_training(ctx, tool)
        # Each tensor is an allocation of its own, so that what is beside it is not another one's.
        os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        statuses, said = launch(1, [sanitizer, "--tool", tool, "--error-exitcode", 9, "--report-api-errors", "no", *words, *training],
                                folder=folder, timeout=seconds)
        if "not supported" in said[0]:
            raise Skip(f"compute-sanitizer: {said[0][-200:]}")
        total = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: .*", said[0])
        assert statuses == [0] and total and "step 1" in said[0], f"exit {statuses[0]}: {said[0][-300:]}"
        return f"two steps: {total[-1]}"
    ctx.part("memcheck", lambda: sanitize("memcheck", 0.45 * ctx.limit))
    ctx.part("racecheck", lambda: sanitize("racecheck", 0.5 * ctx.limit, "--kernel-name-exclude", f"kns={RACES_OF_TORCH}")
             + f", without LibTorch's own {RACES_OF_TORCH}*")


KERNELS = 20   # ncu runs each of them ten times


def trace(ctx):
    model, sizes = list((SIZES if ctx.device == "cuda" else SIZES_CPU).items())[-2 if ctx.device == "cuda" else 0]

    def profiler():
        path = os.path.join(ctx.folder("trace"), "step_trace.json")
        must(1, [ctx.program("bench_train_step"), *(f"{name}={value}" for name, value in
                                                    {**sizes, "steps": 3, "warmup": 3, "device": ctx.device, "trace": path}.items())],
             folder=os.path.dirname(path))
        with open(path, "rb") as f:
            content = f.read()
        kept = os.path.join(ctx.out, "step_trace.json.gz")
        with gzip.open(kept, "wb", 6) as f:
            f.write(content)
        events = [event for event in json.loads(content)["traceEvents"] if event.get("ph") == "X"]
        kernels = any(event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") for event in events)
        assert events and (kernels or ctx.device == "cpu"), "the trace has no kernel"
        return f"{model}: {len(events):,} events, {os.path.getsize(kept) >> 10:,} KiB in {os.path.basename(kept)}"
    ctx.part("trace of LibTorch's profiler", profiler)

    def counters():
        need_device(ctx)
        ncu = of_cuda("ncu")
        training, folder = short_training(ctx, "ncu")
        report = os.path.join(ctx.out, "step")
        statuses, said = launch(1, [ncu, "--clock-control", "none", "--launch-skip", 150, "--launch-count", KERNELS, "--force-overwrite", "-o", report,
                                    *training], folder=folder, timeout=0.65 * ctx.limit)
        if "ERR_NVGPUCTRPERM" in said[0] or "LibraryNotLoaded" in said[0]:
            raise Skip(f"ncu may not read counters here, so the trace above is all: {said[0][-150:]}")
        assert statuses == [0] and os.path.exists(report + ".ncu-rep"), f"exit {statuses[0]}: {said[0][-250:]}"
        return f"{KERNELS} kernels in {os.path.basename(report)}.ncu-rep"
    ctx.part("counters of ncu", counters)
