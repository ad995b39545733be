#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests what tests/gpu/run.sh does without a GPU, what it writes into the document, and how it deals with parts that fail.

  python3 check_gpu.py no_gpu|table|parts
"""
import json
import os
import re
import stat
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.append(HERE)
import fill_table

RECORDED = os.path.join(HERE, "recorded.json")


def program(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write(text)
    os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)


def no_gpu(tmp):
    """Says why, builds nothing, and ends with status 3."""
    document = os.path.join(ROOT, "docs", "performance.md")
    with open(document) as f:
        before = f.read()
    # A PATH without a driver: the tools that the script needs, and no others.
    plain = os.path.join(tmp, "plain")
    os.makedirs(plain)
    for tool in "bash", "dirname", "grep", "env":
        os.symlink(subprocess.run(["sh", "-c", f"command -v {tool}"], capture_output=True, text=True, check=True).stdout.strip(),
                   os.path.join(plain, tool))

    def run(*options, driver=None, **variables):
        path = plain
        if driver is not None:
            path = os.path.join(tmp, "driver") + ":" + plain
            program(os.path.join(tmp, "driver", "nvidia-smi"), driver)
        environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        done = subprocess.run([os.path.join(HERE, "run.sh"), *options], env=environment | {"PATH": path} | variables, capture_output=True, text=True,
                              timeout=60)
        return done.returncode, done.stdout + done.stderr

    closing = "nothing was built, run or measured; docs/performance.md stays as it is\n"
    assert run() == (3, "no GPU: there is no nvidia-smi, so no driver of NVIDIA\n" + closing), run()
    # As nvidia-smi ends where the driver is not loaded, and where there is no device.
    for driver in "#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n", "#!/bin/sh\necho 'No devices were found'\nexit 6\n":
        assert run(driver=driver) == (3, "no GPU: nvidia-smi lists none\n" + closing), run(driver=driver)
    one = "#!/bin/sh\necho 'GPU 0: NVIDIA H100 (UUID: GPU-1)'\n"
    for hidden in "", "-1":
        status, said = run(driver=one, CUDA_VISIBLE_DEVICES=hidden)
        assert (status, said) == (3, f"no GPU: CUDA_VISIBLE_DEVICES is '{hidden}'\n" + closing), said
    status, said = run("--colour")
    assert status == 2 and "unknown option '--colour'" in said, said
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
    assert text.startswith(f"# Before\n{begin}\nMeasured 2026-01-02 by `tests/gpu/run.sh` on 2 x NVIDIA H100 | PCIe (81,559 MiB, driver 570.00), 16 cores"), text
    assert text.endswith(f"\n{end}\nafter\n") and "old" not in text, text
    lines = text.splitlines()
    # Rows of one model stand together, in the order of measuring.
    first = lines.index("| hidden 512 | ranks | step ms | least | host ms | tokens/s | device MiB |")
    assert lines[first + 2:first + 5] == ["| libfsdp, NCCL | 1 | 4.57 | 4.00 | 3.10 | 28,021 | 1,234 |",
                                          "| libfsdp, Gloo | 2 | 10.00 | 9.00 | 8.00 | 25,600 | 800 |", ""], lines
    assert "| LibTorch, unsharded | 1 | 40.00 | 39.50 | 12.00 | 51,200 | 9,000 |" in lines, lines
    # What failed, then what was skipped and why, then the rest.
    outcomes = [line for line in lines if re.search(r"\| (passed|failed|skipped) \|", line)]
    assert outcomes == ["| training, 2 ranks, Gloo | failed | losses [1.0], on the CPU [2.0] |",
                        "| measuring: NCCL between ranks | skipped | this machine has one GPU |", "| tests with the label gpu | passed | 9 passed |"], outcomes
    assert fill(text)[2] == text, "filling it again changes it"
    # Nothing is written where it is not clear what to replace, or what with.
    for broken in "", begin, f"{end}\n{begin}\n", f"{begin}{end}{begin}{end}":
        status, said, left = fill(broken)
        assert status == 2 and left == broken and "fill_table.py: " in said, (broken, said)
    bad = os.path.join(tmp, "bad.json")
    for content in "", "[]", "{}", '{"machine": {}, "rows": [], "parts": []}':
        with open(bad, "w") as f:
            f.write(content)
        status, said, left = fill(text, bad)
        assert status == 2 and left == text and said.count("\n") == 1, (content, said)
    with open(os.path.join(ROOT, "docs", "performance.md")) as f:
        text = f.read()
    with open(RECORDED) as f:
        assert fill_table.filled(text, json.load(f)) != text


# Stands in for train_gpt: a loss of 2 / (step + 1) a step, off by a tenth if BREAK is the backend.
TRAINER = """#!/usr/bin/env python3
import json, os, sys
words = dict(zip((w[2:] for w in sys.argv[1::2]), sys.argv[2::2]))
if os.environ.get("BREAK") == "exit" and words["device"] != "cpu": sys.exit("no such device")
wrong = 1.1 if os.environ.get("BREAK") == words.get("backend", "none") else 1
if os.environ["RANK"] == "0":
    with open(words["metrics"], "a" if "resume" in words else "w") as f:
        for step in range(5 if "resume" in words else 0, int(words["steps"])):
            print(json.dumps({"step": step, "loss": wrong * 2 / (step + 1)}), file=f)
"""
BENCH = """#!/usr/bin/env python3
import json, os, sys
words = dict(w.split("=") for w in sys.argv[1:])
print("a line of LibTorch's")
rank = int(os.environ["RANK"])
print(json.dumps({"median_ms": 10 + 2 * rank, "min_ms": 9 + rank, "cpu_ms": 4, "device_mib": 100 + rank}))
"""
JUNIT = """<testsuite><testcase name="A.a" status="run"/><testcase name="A.b"><skipped message=""/></testcase>%s</testsuite>"""


def parts(tmp):
    """A part that fails does not end the others, and each that is left out has a reason."""
    build, junit, out = os.path.join(tmp, "build"), os.path.join(tmp, "gpu.xml"), os.path.join(tmp, "results.json")
    program(os.path.join(build, "samples", "train_gpt"), TRAINER)
    program(os.path.join(build, "tests", "bench", "bench_train_step"), BENCH)

    def run(gpus, broken="", failing=""):
        program(os.path.join(tmp, "driver", "nvidia-smi"), "#!/bin/sh\n" + "echo 'NVIDIA X, 1000, 5.5'\n" * gpus)
        with open(junit, "w") as f:
            f.write(JUNIT % failing)
        environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        path = os.path.join(tmp, "driver") + ":" + os.environ["PATH"]
        done = subprocess.run([sys.executable, os.path.join(HERE, "measure.py"), "--build", build, "--junit", junit, "--results", out, "--steps", "3"],
                              env=environment | {"PATH": path, "BREAK": broken}, capture_output=True, text=True, timeout=120)
        with open(out) as f:
            results = json.load(f)
        found = {outcome: [part["name"] for part in results["parts"] if part["outcome"] == outcome] for outcome in ("passed", "failed", "skipped")}
        return done.returncode, found, results

    status, found, results = run(1)
    assert status == 0 and found["failed"] == [], found
    assert found["skipped"] == ["tests that left themselves out", "training, several ranks, NCCL", "measuring: NCCL between ranks"], found
    assert all(part["detail"] for part in results["parts"]), results
    gloo = next(row for row in results["rows"] if row["what"] == "libfsdp, Gloo")
    # 2 ranks of 2 sequences of 64 tokens, and medians of 10 and 12 ms.
    assert gloo == {"model": "hidden 512, 6 layers", "what": "libfsdp, Gloo", "ranks": 2, "step_ms": 11, "least_ms": 9, "host_ms": 4,
                    "tokens_per_s": 256 / 11 * 1e3, "device_mib": 101}, gloo
    assert results["machine"]["gpus"] == 1 and results["machine"]["driver"] == "5.5", results["machine"]

    status, found, results = run(2)
    assert status == 0 and found["skipped"] == ["tests that left themselves out"] and "training, 2 ranks, NCCL" in found["passed"], found
    assert [row["ranks"] for row in results["rows"] if row["what"] == "libfsdp, NCCL"] == [1, 2, 1, 2], results["rows"]

    status, found, _ = run(1, broken="gloo")
    assert status == 1 and found["failed"] == ["training, 2 ranks, Gloo"], found
    status, found, results = run(1, broken="exit")
    assert status == 1 and len(found["failed"]) == 4 and len(results["rows"]) > 0, found
    assert any("no such device" in part["detail"] for part in results["parts"]), results
    status, found, results = run(1, failing='<testcase name="A.c"><failure message=""/></testcase>')
    assert status == 1 and found["failed"] == ["tests with the label gpu"] and "; failed: A.c" in results["parts"][0]["detail"], results["parts"][0]
    # The results go into the table as they are.
    assert fill_table.described(results)


CHECKS = {check.__name__: check for check in (no_gpu, table, parts)}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in CHECKS:
        sys.exit(__doc__.strip())
    with tempfile.TemporaryDirectory() as folder:
        CHECKS[sys.argv[1]](folder)
    print(f"{sys.argv[1]}: as it should be")
