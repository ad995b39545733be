# SPDX-License-Identifier: Apache-2.0
"""The parts `quantize` and `quantize-memory` of run.py: a model in bfloat16 to each scheme, and back."""
import os
import resource
import shutil
import statistics
import subprocess
import sys

from page_cache import read_into_page_cache

HERE = os.path.dirname(os.path.abspath(__file__))
# The words of the tool, and the presets of compressed-tensors that are the same.
SCHEMES = {"fp8-tensor": "FP8", "fp8-channel": "FP8_DYNAMIC", "fp8-block": "FP8_BLOCK", "mxfp8": "MXFP8", "mxfp4": "MXFP4A16", "nvfp4": "NVFP4A16",
           "int8": "W8A8", "int4": "W4A16", "int4-asym": "W4A16_ASYM"}
WITHOUT_DATA = set(SCHEMES) - {"fp8-tensor"}   # the package's FP8 needs activations


def processor_seconds(b, commands):
    """As Bench.rounds; seconds of the processor, on a machine that does other things, too."""
    took = {name: [] for name in commands}
    for _ in range(b.args.rounds):
        for name, (argv, inner) in commands.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds, peak = b.once(argv, inner)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            took[name].append((seconds if inner else after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, peak))
    shutil.rmtree(b.work, ignore_errors=True)
    return took


def speed(b):
    """Each scheme beside `cp -r` of the model, and beside the package with the same threads."""
    clock, rounds = ("process_time", processor_seconds) if b.args.processor else ("perf_counter", lambda b, commands: b.rounds(commands))
    folder = b.input("model", "make_model.py", b.args.model)
    amount = sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))
    print(f"\n### {amount / 1e9:.2f} GB of bfloat16 quantized, and dequantized; seconds{' of the processor' if b.args.processor else ''}\n")
    print("| scheme | quantize | package | dequantize | package | stats --quantization |\n|---|---:|---:|---:|---:|---:|")
    copies = []
    for word in [word for word in SCHEMES if word in b.args.schemes.split(",")] if b.args.schemes else SCHEMES:
        made = b.work + "-" + word
        shutil.rmtree(made, ignore_errors=True)
        export = [b.tool, "export", "-q", "--no-sync", "--threads", b.threads]
        subprocess.run([*export, folder, made, "--quantize", word], check=True)
        try:
            for place in (folder, made):
                read_into_page_cache(place)
            commands = {"cp": (["cp", "-r", folder, "copy"], False),
                        "quantize": ([*export, folder, "out", "--quantize", word], False),
                        "dequantize": ([*export, made, "out", "--dequantize"], False),
                        "stats": ([b.tool, "stats", folder, "--quantization", "--quantize", word, "-q", "--threads", b.threads], False)}
            if b.args.packages and word in WITHOUT_DATA:
                package = [b.args.packages, os.path.join(HERE, "by_packages.py")]
                commands["package"] = ([*package, "quantize", folder, "out", SCHEMES[word], clock, b.threads], True)
                commands["package back"] = ([*package, "dequantize", made, "out", clock, b.threads], True)
            took = {name: statistics.median(seconds for seconds, _ in runs) for name, runs in rounds(b, commands).items()}
        finally:
            shutil.rmtree(made, ignore_errors=True)
        copies.append(took["cp"])
        cells = [f"{took[name]:.3f}" if name in took else "" for name in ("quantize", "package", "dequantize", "package back", "stats")]
        print(f"| {word} | {' | '.join(cells)} |", flush=True)
    print(f"\n`cp -r` {statistics.median(copies):.3f} s.")


def memory(b):
    """Peaks for models of growing size, whose weights are holes."""
    print("\n### Peak memory of quantization\n\n| model | command | s | peak MiB |\n|---|---|---:|---:|")
    for size in map(int, b.args.sizes.split(",")):
        folder, made = b.work + f"-sparse-{size}", b.work + f"-sparse-{size}-made"
        try:
            subprocess.run([sys.executable, os.path.join(HERE, "make_model.py"), folder, str(size * 1000), "--sparse"], check=True)
            export = [b.tool, "export", "-q", "--no-sync", "--threads", b.threads]
            for word in b.args.schemes.split(",") if b.args.schemes else ("nvfp4", "int4-asym"):
                shutil.rmtree(made, ignore_errors=True)
                for name, argv in {f"--quantize {word}": [*export, folder, made, "--quantize", word],
                                   f"--dequantize {word}": [*export, made, "out", "--dequantize"],
                                   f"stats --quantization, {word}": [b.tool, "stats", folder, "--quantization", "--quantize", word, "-q", "--threads", b.threads]}.items():
                    if name.startswith("--dequantize") and size > b.args.back:
                        continue   # the disk
                    seconds, peak = b.once(argv)
                    print(f"| {size} GB | {name} | {seconds:.2f} | {peak:,.0f} |", flush=True)
        finally:
            for place in (folder, made, b.work):
                shutil.rmtree(place, ignore_errors=True)
