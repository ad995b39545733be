# SPDX-License-Identifier: Apache-2.0
"""Quantizing, dequantizing and measuring a model takes no more memory than a bound, whatever its size.

  check_quantize_memory.py --tool PATH

The model's weights are holes of its files: 64 and 512 MB of zeros.
"""
import argparse
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
MEGABYTES = 64
GROWTH = 16   # the larger model may take so much more than the smaller one: names, threads that meet
SCHEMES = ("fp8-block", "nvfp4", "int4-asym")


def peak(*command):
    """MiB at peak.  From a shell: a process is charged with the memory of the process that it was forked from."""
    code = ("import resource, subprocess, sys; done = subprocess.run(sys.argv[1:]); "
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(done.returncode)")
    done = subprocess.run(["sh", "-c", 'exec "$@"', "sh", sys.executable, "-S", "-c", code, *command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return int(done.stdout.split()[-1]) / 1024


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", required=True)
    args = parser.parse_args()
    failed, peaks = [], {}
    for size in (64, 512):
        with tempfile.TemporaryDirectory() as work:
            model = os.path.join(work, "model")
            subprocess.run([sys.executable, os.path.join(HERE, "../bench/make_model.py"), model, str(size), "--sparse"], check=True)
            for word in SCHEMES:
                made, back = os.path.join(work, word), os.path.join(work, "back-" + word)
                common = ["--threads", "2"]
                for name, command in {"quantize": ["export", model, made, "--quantize", word, "--no-sync", "-q", *common],
                                      "verify": ["verify", made, "-q", *common],
                                      "stats": ["stats", model, "--quantization", "--quantize", word, "-q", *common],
                                      "dequantize": ["export", made, back, "--dequantize", "--no-sync", "-q", *common]}.items():
                    if size > 64 and name == "dequantize" and word != SCHEMES[-1]:
                        continue   # one of them takes the disk's space
                    peaks[name, word, size] = peak(args.tool, *command)
    for (name, word, size), mebibytes in peaks.items():
        print(f"{name} {word}, {size} MB: {mebibytes:.0f} MiB")
        if mebibytes > MEGABYTES:
            failed.append(f"{name} {word}, {size} MB: {mebibytes:.0f} MiB, at most {MEGABYTES}")
        small = peaks.get((name, word, 64), mebibytes)
        if mebibytes > small + GROWTH:
            failed.append(f"{name} {word}: {mebibytes:.0f} MiB of 512 MB, {small:.0f} of 64 MB")
    print("\n".join(f"FAILED: {line}" for line in failed) or f"{len(peaks)} peaks within {MEGABYTES} MiB")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
