#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests what tests/gpu/run.sh does without a GPU: what it refuses, the order and the limits of its steps, and the files that it leaves.

  python3 check_gpu.py no_gpu|table|steps|failures|limits
  python3 check_gpu.py bundle FOLDER      what tests/gpu/bundle.sh built; 77: it built nothing
"""
import gzip
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(ROOT, "tests", "support")]
import fill_table
import measure

RECORDED = os.path.join(HERE, "recorded.jsonl")
ONE_GPU = "#!/bin/sh\n[ \"$1\" = -L ] && echo 'GPU 0: NVIDIA X (UUID: GPU-1)' || echo 'NVIDIA X, 1000, 5.5'\n"


def program(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write(text)
    os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)


def without(*names):
    return {name: value for name, value in os.environ.items() if name not in names}


def no_gpu(tmp):
    """Says why, builds nothing, and ends with status 3."""
    document = os.path.join(ROOT, "docs", "performance.md")
    with open(document) as f:
        before = f.read()
    # A PATH without a driver: the tools that the script needs, and no others.
    plain = os.path.join(tmp, "plain")
    os.makedirs(plain)
    for tool in "bash", "dirname", "grep", "env":
        os.symlink(shutil.which(tool), os.path.join(plain, tool))

    def run(*options, driver=None, **variables):
        path = plain
        if driver is not None:
            path = os.path.join(tmp, "driver") + ":" + plain
            program(os.path.join(tmp, "driver", "nvidia-smi"), driver)
        done = subprocess.run([os.path.join(HERE, "run.sh"), *options], env=without("CUDA_VISIBLE_DEVICES") | {"PATH": path} | variables,
                              capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr

    closing = "nothing was built, run or measured; docs/performance.md stays as it is\n"
    for options in (), ("--bundle", tmp):
        assert run(*options) == (3, "no GPU: there is no nvidia-smi, so no driver of NVIDIA\n" + closing), run(*options)
    # As nvidia-smi ends where the driver is not loaded, and where there is no device.
    for driver in "#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n", "#!/bin/sh\necho 'No devices were found'\nexit 6\n":
        assert run(driver=driver) == (3, "no GPU: nvidia-smi lists none\n" + closing), run(driver=driver)
    for hidden in "", "-1":
        status, said = run(driver=ONE_GPU, CUDA_VISIBLE_DEVICES=hidden)
        assert (status, said) == (3, f"no GPU: CUDA_VISIBLE_DEVICES is '{hidden}'\n" + closing), said
    for options, words in {("--colour",): "unknown option '--colour'", ("--only",): "--only needs a value"}.items():
        status, said = run(*options)
        assert status == 2 and words in said, said
    with open(document) as f:
        assert f.read() == before, "the document changed"


def table(tmp):
    document = os.path.join(tmp, "document.md")

    def fill(text, results=RECORDED):
        with open(document, "w") as f:
            f.write(text)
        done = subprocess.run([sys.executable, os.path.join(HERE, "fill_table.py"), results, document], capture_output=True, text=True)
        with open(document) as f:
            return done.returncode, done.stderr, f.read()

    begin, end = fill_table.BEGIN, fill_table.END
    status, said, text = fill(f"# Before\n{begin}\nold\n{end}\nafter\n")
    assert (status, said) == (0, ""), said
    assert text.startswith(f"# Before\n{begin}\nMeasured 2026-01-02 by `tests/gpu/run.sh` (commit abc1234) on 2 x NVIDIA H100 | PCIe "
                           "(81,559 MiB, driver 570.00), PyTorch 2.11.0, 16 cores (A processor), 128 GiB; medians of 20 steps.\n"), text
    assert text.endswith(f"\n{end}\nafter\n") and "old" not in text, text
    lines = text.splitlines()
    # Rows of one model stand together, in the order of measuring.
    first = lines.index("| hidden 512 | ranks | step ms | least | host ms | device ms | kernels | allocations | peak MiB | tokens/s |")
    assert lines[first + 2:first + 5] == ["| libfsdp | 1 | 4.57 | 4.00 | 3.10 | 2.50 | 812 | 12 | 1,234 | 28,021 |",
                                          "| FSDP2 | 1 | 10.00 | 9.00 | 8.00 | 2.75 | 900 | 340 | 800 | 25,600 |", ""], lines
    assert "| libfsdp | 2 | 40.00 | 39.50 | 12.00 | 39.00 | 2,000 | 0 | 9,000 | 51,200 |" in lines, lines
    # GB/s, by the number of threads; a run that did not take place has no figure.
    at = lines.index("| GB/s read, threads: | GB | 1 | 16 |")
    assert lines[at + 2:at + 5] == ["| cp -r | 16.0 | 4.00 |  |", "| consolidate | 16.0 | 5.33 | 32.00 |", ""], lines
    # What failed, then what was skipped and why, then the rest, a row a step.
    outcomes = [line for line in lines if re.search(r"\| (passed|failed|skipped) \|", line)]
    assert outcomes == ["| b | 2 ranks, Gloo | failed | losses [1.0], on the CPU [2.0] |",
                        "| b | several ranks, NCCL | skipped | this machine has one GPU |", "| a | tests_libfsdp_gpu | passed | 4 passed |",
                        "| f | CPU offload and activation checkpointing (losses as on the CPU, to 3e-07); "
                        "HYBRID_SHARD, 2 ranks (losses as on the CPU, to 1e-06) | passed |  |"], outcomes
    assert fill(text)[2] == text, "filling it again changes it"
    # Nothing is written where it is not clear what to replace, or what with.
    for broken in "", begin, f"{end}\n{begin}\n", f"{begin}{end}{begin}{end}":
        status, said, left = fill(broken)
        assert status == 2 and left == broken and "fill_table.py: " in said, (broken, said)
    with open(RECORDED) as f:
        recorded = f.read().splitlines(keepends=True)
    bad = os.path.join(tmp, "bad.jsonl")
    no_card = recorded[0].replace("NVIDIA H100 | PCIe", "")
    for content, words in {"": "name no card", no_card + "".join(recorded[1:]): "name no card", "[]\n": "", "{}\n": "member 'kind' is missing",
                           recorded[0] + '{"kind": "row", "model": "x"}\n': "is missing", "".join(recorded[1:]): "name no card"}.items():
        with open(bad, "w") as f:
            f.write(content)
        status, said, left = fill(text, bad)
        assert status == 2 and left == text and said.count("\n") == 1 and words in said, (content, said)
    # A run that was cut off in the middle of a line.
    with open(bad, "w") as f:
        f.write("".join(recorded) + recorded[-1][:20])
    assert fill(text, bad) == (0, "", text), "a torn line counts"
    with open(os.path.join(ROOT, "docs", "performance.md")) as f:
        text = f.read()
    assert fill_table.filled(text, fill_table.read(RECORDED)) != text


# Stands in for train_gpt and for fsdp2.py: a loss of 2 / (step + 1) a step, off by a tenth if BREAK names the backend, or FSDP2.
TRAINER = """#!/usr/bin/env python3
import json, os, sys
if sys.argv[1:] == ["--help"]: sys.exit(print("--sharding-strategy"))
words = dict(zip((w[2:] for w in sys.argv[1::2]), sys.argv[2::2]))
broken = os.environ["BREAK"].split(",")
if "exit" in broken and words["device"] != "cpu": sys.exit("no such device")
wrong = 1.1 if words.get("backend", "fsdp2" if sys.argv[0].endswith("py") else "none") in broken else 1
print("step 1")
if "save" in words: os.makedirs(words["save"], exist_ok=True)
if os.environ["RANK"] == "0" and "metrics" in words:
    with open(words["metrics"], "w") as f:
        for step in range(5 if "resume" in words else 0, int(words["steps"])):
            print(json.dumps({"step": step, "loss": wrong * 2 / (step + 1)}), file=f)
"""
# Stands in for bench_train_step and train_step.py.
BENCH = """#!/usr/bin/env python3
import json, os, sys
if sys.argv[1] == "?": print("expected NAME=VALUE"); sys.exit(2)
rank = int(os.environ["RANK"])
print("a line of LibTorch's")
for group in " ".join(sys.argv[1:]).split("--"):
    words = dict(w.split("=", 1) for w in group.split())
    if words.get("trace"):
        with open(words["trace"], "w") as f:
            json.dump({"traceEvents": [{"ph": "X", "cat": "kernel", "name": "a_kernel", "dur": 1500}, {"ph": "M"}]}, f)
    if "memory" in os.environ["BREAK"].split(",") and words["width"] == "4096":
        print(json.dumps({"rank": rank, "error": "out of memory"}), flush=True)
        continue
    if "hang" in os.environ["BREAK"].split(",") and words["width"] == "4096":
        import time; time.sleep(60)
    off = 1.2 if "loss" in os.environ["BREAK"].split(",") and words.get("kind") == "fsdp1" else 1
    alone = os.environ["WORLD_SIZE"] != "1" and (words.get("sharded") == "0" or words.get("kind") == "unsharded")
    print(json.dumps({"rank": rank, "median_ms": 10 + 2 * rank, "min_ms": 9 + rank, "host_ms": 3, "cpu_ms": 4, "device_ms": 8, "kernels": 700,
                      "allocations": 5, "device_mib": 100 + rank, "first_loss": 2 * off, "last_loss": 0.5 if alone else 1 * off}), flush=True)
"""
# Stands in for the programs of GoogleTest.
GTEST = """#!/usr/bin/env python3
import json, os, subprocess, sys, time
if "--gtest_list_tests" in sys.argv: sys.exit(print("PartsOnGpu.\\nNcclOnDevice."))
words = dict(w[2:].split("=", 1) for w in sys.argv[1:])
if "crash" in os.environ["BREAK"].split(","): sys.exit("terminate called")
if "sleep" in os.environ["BREAK"].split(","):
    child = subprocess.Popen(["sleep", "60"])
    with open(os.environ["PIDS"], "w") as f: print(os.getpid(), child.pid, file=f)
    print("asleep", flush=True)
    time.sleep(60)
test = {"name": "a", "result": "COMPLETED", "eager_ms": "3.5", "replay_ms": "1.5", "identical": "yes"}
if "test" in os.environ["BREAK"].split(","): test["failures"] = [{"failure": "no"}]
with open(words["gtest_output"][5:], "w") as f: json.dump({"testsuites": [{"testsuite": [test]}]}, f)
"""
# Stands in for PyTorch as far as finding it goes.
TORCH = """
__version__ = "9.1.0+cu130"
class cuda:
    is_available = staticmethod(lambda: True)
"""
TOOL = """#!/bin/sh
[ "$1" != --version ] || echo fsdp-ckpt
case ,$BREAK, in *,$1,*) echo broken; exit 2 ;; esac
"""


class Stand:
    """A bundle with its own scripts, whose programs and Python side only stand in, and a machine that seems to have GPUs."""

    def __init__(self, tmp, gpus=1):
        self.tmp, self.bundle, self.out = tmp, os.path.join(tmp, "bundle"), os.path.join(tmp, "out")
        for file in os.listdir(HERE):
            if file.endswith((".py", ".sh")):
                program(os.path.join(self.bundle, "tests", "gpu", file), open(os.path.join(HERE, file)).read())
        program(os.path.join(self.bundle, "tests", "support", "launch.py"), open(os.path.join(ROOT, "tests", "support", "launch.py")).read())
        stand_ins = {"bin/tests_libfsdp_gpu": GTEST, "bin/tests_libfsdp_cuda": GTEST, "bin/train_gpt": TRAINER, "bin/bench_train_step": BENCH,
                     "bin/fsdp-ckpt": TOOL, "tests/gpu/fsdp2.py": TRAINER, "tests/bench/train_step.py": BENCH,
                     "tests/bench/make_folder.py": "import os, sys\nos.makedirs(sys.argv[1])\nopen(sys.argv[1] + '/x', 'w').write('x' * 1000)\n",
                     "tests/bench/by_pytorch.py": "print(0.5)\n"}
        for name, text in stand_ins.items():
            program(os.path.join(self.bundle, name), text)
        with open(os.path.join(self.bundle, "bundle.json"), "w") as f:
            json.dump({"commit": "abc1234", "torch": "9.1.0+cu130", "built": "2026-01-02"}, f)
        program(os.path.join(tmp, "site", "torch", "__init__.py"), TORCH)
        program(os.path.join(tmp, "site", "torch", "lib", "libtorch_cuda.so"), "")
        os.makedirs(os.path.join(tmp, "site", "nvidia", "nccl", "lib"))
        program(os.path.join(tmp, "path", "nvidia-smi"), ONE_GPU.replace("&& echo", "&& for i in $(seq %d); do echo" % gpus)
                .replace("|| echo", "; done || for i in $(seq %d); do echo" % gpus).rstrip() + "; done\n")
        program(os.path.join(tmp, "path", "compute-sanitizer"),
                "#!/bin/sh\necho '========= ERROR SUMMARY: 0 errors'\nwhile [ \"${1##*/}\" != train_gpt ]; do shift; done\nexec \"$@\"\n")
        program(os.path.join(tmp, "path", "ncu"), "#!/bin/sh\necho ERR_NVGPUCTRPERM\nexit 1\n")

    def command(self, *options):
        return [os.path.join(self.bundle, "tests", "gpu", "run.sh"), "--bundle", self.bundle, "--out", self.out, "--tool-gb", "0.000001", *options]

    def environment(self, broken="", **variables):
        return without("CUDA_VISIBLE_DEVICES", "FSDP_TORCH", "LD_LIBRARY_PATH") | {
            "PATH": os.path.join(self.tmp, "path") + ":" + os.environ["PATH"], "PYTHONPATH": os.path.join(self.tmp, "site"),
            "FSDP_PYTHON": sys.executable, "TMPDIR": self.tmp, "BREAK": broken} | variables

    def run(self, *options, broken="", **variables):
        """Returns the exit status, what was said on stdout, the results, and the names of parts by outcome."""
        done = subprocess.run(self.command(*options), env=self.environment(broken, **variables), capture_output=True, text=True, timeout=240)
        assert done.returncode in (0, 1), (done.returncode, done.stderr)
        return done.returncode, done.stdout, *self.results()

    def results(self):
        results = fill_table.read(os.path.join(self.out, "results.jsonl"))
        found = {outcome: [part["name"] for part in results["parts"] if part["outcome"] == outcome] for outcome in ("passed", "failed", "skipped")}
        return results, found


def steps(tmp):
    """All steps run in their order, and each thing that is left out has a reason."""
    assert sum(seconds for _, seconds, _ in measure.STEPS.values()) <= measure.MOST_SECONDS
    stand = Stand(tmp)
    status, said, results, found = stand.run()
    assert status == 0 and found["failed"] == [], results["parts"]
    assert [step["step"] for step in results["steps"]] == ["start", *"abcdefghi"], results["steps"]
    order = [part["step"] for part in results["parts"]]
    assert order == sorted(order, key=list(measure.STEPS).index), order
    assert found["skipped"] == ["several ranks, NCCL", "counters of ncu"], found
    assert all(part["detail"] for part in results["parts"]), results["parts"]
    machine = results["machine"]
    assert (machine["gpu"], machine["gpus"], machine["driver"], machine["commit"]) == ("NVIDIA X", 1, "5.5", "abc1234"), machine
    # libfsdp, LibTorch, FSDP1, FSDP2 and PyTorch, of three sizes.
    assert len(results["rows"]) == 15 and {row["ranks"] for row in results["rows"]} == {1}, results["rows"]
    row = results["rows"][0]
    assert row["what"] == "libfsdp" and row["step_ms"] == 10 and row["tokens_per_s"] == 2 * 64 / 10 * 1e3 and row["allocations"] == 5, row
    assert {run["command"] for run in results["tools"]} == {"cp -r", "cat", "PyTorch: dcp_to_torch_save", "consolidate", "reshard", "verify", "stats",
                                                            "export", "average"}, results["tools"]
    # What is carried back: few files, and the last line counts.
    assert sorted(os.listdir(stand.out)) == ["log.txt", "results.jsonl", "step_trace.json.gz", "summary.md"], os.listdir(stand.out)
    assert said.splitlines()[-1] == f"{len(found['passed'])} passed, 0 failed, 2 skipped" and len(said) <= 10_000, said
    with open(os.path.join(stand.out, "summary.md")) as f:
        assert f.read() == said
    with open(os.path.join(stand.out, "log.txt")) as f:
        assert "a line of LibTorch's" in f.read()
    with gzip.open(os.path.join(stand.out, "step_trace.json.gz")) as f:
        assert json.load(f)["traceEvents"][0]["name"] == "a_kernel"
    assert fill_table.described(results)

    # Some of the steps, and several GPUs.
    stand = Stand(os.path.join(tmp, "two"), gpus=2)
    status, said, results, found = stand.run("--only", "d,b")
    assert status == 0 and [step["step"] for step in results["steps"]] == ["start", "b", "d"], (said, results["steps"])
    assert len(found["skipped"]) == 7 and all("left out by --only d,b" in part["detail"] for part in results["parts"] if part["outcome"] == "skipped"), found
    assert "several ranks, NCCL" in found["passed"] and results["machine"]["gpus"] == 2, found
    two = [row for row in results["rows"] if row["ranks"] == 2]
    # Medians of 10 and 12 ms; 2 ranks of 2 sequences of 64 tokens.
    assert len(two) == 15 and two[0]["step_ms"] == 11 and two[0]["tokens_per_s"] == 256 / 11 * 1e3 and two[0]["device_mib"] == 101, two[0]
    # Without a device the rest is tried.
    status, said, results, found = stand.run("--device", "cpu", "--only", "g,h")
    assert status == 0 and results["machine"]["gpu"] == "" and {"memcheck", "racecheck", "counters of ncu"} < set(found["skipped"]), found
    for options, words in {("--only", "a,z"): "no step is called z", ("--device", "tpu"): "invalid choice", ("--timed-steps", "0"): "positive",
                           ("--limit", "a"): "expected STEP=SECONDS"}.items():
        done = subprocess.run(stand.command(*options), env=stand.environment(), capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and words in done.stderr, done.stderr
    os.remove(os.path.join(stand.bundle, "bundle.json"))
    done = subprocess.run(stand.command(), env=stand.environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "bundle.sh makes a bundle" in done.stderr, done.stderr


def failures(tmp):
    """A part that fails does not end the others, and says what is wrong."""
    stand = Stand(tmp)

    def detail(results, outcome="failed"):
        return " ".join(part["detail"] for part in results["parts"] if part["outcome"] == outcome)

    broken = "gloo,fsdp2,test,memory,loss,stats"
    status, said, results, found = stand.run("--only", "a,b,c,d,e,i", broken=broken)
    big = "hidden 4,096, 8 layers, bfloat16: "
    expected = ["tests_libfsdp_cuda", "tests_libfsdp_gpu", "2 ranks on one device, Gloo", "FSDP2 in Python", "FSDP2 goes on, and saves",
                *(f"{big}{kind}, 1 rank" for kind in ("libfsdp", "LibTorch, unsharded", "FSDP1", "FSDP2", "PyTorch, unsharded")),
                "hidden 512, 6 layers: FSDP1, 1 rank", "hidden 1,024, 24 layers, bfloat16: FSDP1, 1 rank", "one step, replayed 20 times"]
    threads = [name for name in found["failed"] if name.startswith("fsdp-ckpt, ")]
    assert status == 1 and sorted(found["failed"]) == sorted(expected + threads) and len(threads) >= 2, found
    said = detail(results)
    for words in ("on the CPU [2.0, ", "1 failed: a", "out of memory", "of libfsdp 2: they do not train alike", "stats: exit 2: broken"):
        assert words in said, (words, said)
    assert len(results["rows"]) == 10 and {run["command"] for run in results["tools"]} >= {"cat", "verify"}, results
    status, _, results, found = stand.run("--only", "a,f,g", broken="exit,crash")
    assert len(found["failed"]) == 10 and "no such device" in detail(results) and "terminate called" in detail(results), found
    # Another PyTorch than that of the bundle; none; a folder that is none.
    program(os.path.join(tmp, "site", "torch", "__init__.py"), TORCH.replace("9.1.0", "9.2.0"))
    status, _, results, found = stand.run("--only", "start")
    assert found["failed"] == ["LibTorch"] and "built with 9.1.0+cu130, but this machine has 9.2.0+cu130" in detail(results), found
    status, _, results, found = stand.run("--only", "a", FSDP_TORCH=tmp)
    assert found["failed"] == ["LibTorch"] and "has no libtorch_cuda.so" in detail(results) and "LibTorch was not found" in detail(results, "skipped"), found
    os.remove(os.path.join(tmp, "site", "torch", "__init__.py"))
    status, _, results, found = stand.run("--only", "a", PYTHONPATH="")
    assert status == 1 and found["failed"][0] == "LibTorch", found


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def limits(tmp):
    """A step that takes too long is killed with all that it started; what was found before it, and after it, is kept."""
    stand = Stand(tmp)
    pids = os.path.join(tmp, "pids")
    begin = time.monotonic()
    status, said, results, found = stand.run("--only", "a,b", "--limit", "a=3", broken="sleep", PIDS=pids)
    assert status == 1 and found["failed"] == [measure.STEPS["a"][0]] and "1 rank, NCCL" in found["passed"], found
    assert any(part["detail"] == "cut off after 3 s" for part in results["parts"]) and time.monotonic() - begin < 60
    with open(pids) as f:
        assert not any(alive(pid) for pid in f.read().split()), "a process was left"
    with open(os.path.join(stand.out, "log.txt")) as f:
        assert "asleep" in f.read(), "what it said until then is lost"
    # A benchmark that hangs: the rows before it count, and the other language is measured.
    status, said, results, found = stand.run("--only", "d", "--limit", "d=25", broken="hang")
    assert status == 1 and len(results["rows"]) == 4 + 6, results["rows"]
    assert len(found["failed"]) == 5 and any("cut off after 10.5 s" in part["detail"] for part in results["parts"]), results["parts"]
    # The whole run is ended from outside: by a signal that it can see, and by one that it cannot.
    for number in signal.SIGTERM, signal.SIGKILL:
        os.remove(pids)
        run = subprocess.Popen(stand.command("--only", "a,b"), env=stand.environment("sleep", PIDS=pids), stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, start_new_session=True)
        while not (os.path.exists(pids) and os.path.getsize(pids)):
            time.sleep(0.05)
            assert run.poll() is None
        with open(pids) as f:
            left = f.read().split()
        os.killpg(run.pid, number)
        run.wait(30)
        if number == signal.SIGTERM:
            assert not any(alive(pid) for pid in left), "a process was left"
        else:
            for pid in left:
                os.kill(int(pid), signal.SIGKILL)
        results, found = stand.results()
        assert "train_gpt starts" in found["passed"] and results["machine"]["gpu"] == "NVIDIA X", found
        with open(os.path.join(stand.out, "summary.md")) as f:
            assert f.read().endswith("6 passed, 0 failed, 0 skipped\n")


def bundle(tmp, folder):
    """The programs of a real bundle start with nothing but LibTorch, and say that there is no device."""
    def skip(reason):
        print(reason)
        sys.exit(77)
    if not os.path.exists(os.path.join(folder, "bundle.json")):
        skip(f"{folder} is not there: tests/gpu/bundle.sh builds it")
    python = os.environ.get("FSDP_PYTHON", sys.executable)
    found = subprocess.run([python, "-c", "import os, torch; at = torch.__path__[0]; beside = os.path.join(at, '..', 'nvidia'); "
                                          "print(':'.join([at + '/lib'] + [os.path.join(beside, one, 'lib') for one in os.listdir(beside)]))"],
                           capture_output=True, text=True)
    if found.returncode:
        skip(f"{python} has no PyTorch: set FSDP_PYTHON")
    size = sum(os.path.getsize(os.path.join(place, file)) for place, _, files in os.walk(folder) for file in files)
    assert size <= 60 << 20, f"{size:,} bytes, at most 60 MiB can be carried"
    plain, out = {"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""}, os.path.join(tmp, "out")
    slow = [word for step in ("start", "a", "b") for word in ("--limit", f"{step}=150")]   # other tests run beside this one
    done = subprocess.run([os.path.join(folder, "tests", "gpu", "run.sh"), "--bundle", folder, "--out", out, "--device", "cpu", "--only", "start,a,b", *slow],
                          env=plain | {"FSDP_PYTHON": python, "TMPDIR": tmp}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    said = {part["name"]: part["detail"] for part in fill_table.read(os.path.join(out, "results.jsonl"))["parts"]}
    assert said["tests_libfsdp_gpu"].startswith("4 skipped: "), said
    assert " passed; " in said["tests_libfsdp_cuda"] and "collectives_of_one_rank" in said["tests_libfsdp_cuda"], said
    tokens = os.path.join(tmp, "tokens.bin")
    with open(tokens, "wb") as f:
        f.write(bytes(2000))
    ranks = dict(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    for words, message in {("train_gpt", "--data", tokens, "--device", "cuda"): "shows no CUDA device",
                           ("bench_train_step", "device=cuda"): "this process sees none"}.items():
        done = subprocess.run([os.path.join(folder, "bin", words[0]), *words[1:]], capture_output=True, text=True,
                              env=plain | ranks | {"LD_LIBRARY_PATH": found.stdout.strip()})
        assert done.returncode != 0 and message in done.stderr, (words, done.returncode, done.stderr)


CHECKS = {check.__name__: check for check in (no_gpu, table, steps, failures, limits, bundle)}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in CHECKS or len(sys.argv) != 2 + (sys.argv[1] == "bundle"):
        sys.exit(__doc__.strip())
    # What a run that was killed had started may still be writing.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        CHECKS[sys.argv[1]](folder, *sys.argv[2:])
    print(f"{sys.argv[1]}: as it should be")
