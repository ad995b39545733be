# SPDX-License-Identifier: Apache-2.0
"""Quantized folders of other packages (make_quantized.py), against the figures of `stats --quantization`.

    check_quantized_stats.py CORPUS --tool PATH [--only CASE...]

The figures are computed here with PyTorch in float64, from the weights before and those that the package itself reads:
  folder   `stats CKPT --quantization --original SOURCE`
  scheme   `stats SOURCE --quantization --quantize SCHEME`, where the package made the folder in the same way
Counts are equal, other figures to 1e-9 of themselves.
"""
import argparse
import json
import pathlib
import subprocess
import sys

import torch
from safetensors.torch import load_file

from quantized_compare import UNKNOWN, Left
from quantized_producers import tensors_of
from tool_run import Failure, check

NEAR = 1e-9
FLOATS = (torch.float8_e4m3fn, torch.bfloat16, torch.float16, torch.float32)


def stats(tool, *args):
    done = subprocess.run([tool, "stats", *map(str, args), "--quantization", "--json"], capture_output=True, text=True, timeout=300)
    if done.returncode == 2 and any(words in done.stderr for words in UNKNOWN):
        raise Left(done.stderr.strip().splitlines()[-1][:300])
    check(done.returncode == 0, f"stats {' '.join(map(str, args))}: exit {done.returncode}: {done.stderr[-800:]}")
    return json.loads(done.stdout)


def fields(tensor, bits):
    """The fields of a packed tensor, low bits first, as integers."""
    data = tensor.contiguous().view(torch.uint8).flatten().to(torch.int64)
    return torch.cat([(data >> at) & ((1 << bits) - 1) for at in range(0, 8, bits)])


def saturated(tensors, module, config, numel):
    """Numbers at an end of their range; None where the dialect has another meaning of that."""
    if module + ".weight_packed" in tensors or module + ".qweight" in tensors:
        value = tensors.get(module + ".weight_packed", tensors.get(module + ".qweight"))
        if value.dtype == torch.uint8:
            return int((fields(value, 4) % 8 == 7).sum())
        bits = config.get("bits") or next(iter(config["config_groups"].values()))["weights"]["num_bits"]
        codes = fields(value, bits)
        return int(((codes == 0) | (codes == 2 ** bits - 1)).sum()) - (codes.numel() - numel)   # words end with zero bits
    value = tensors.get(module + ".weight")
    if value is None or value.dtype in FLOATS[1:]:
        return None
    if value.dtype == torch.float8_e4m3fn:
        return int((value.view(torch.uint8) & 0x7F == 0x7E).sum())
    if module + ".SCB" in tensors:
        return int((value.abs() == 127).sum() + (value == -128).sum())
    if value.dtype == torch.int8:
        return int(((value == 127) | (value == -128)).sum())
    if module + ".weight.absmax" in tensors:
        codes = fields(value, 4)
        if module + ".weight.quant_state.bitsandbytes__fp4" in tensors:
            return int((codes % 8 == 3).sum())
        return int(((codes == 0) | (codes == 15)).sum()) - (codes.numel() - numel)
    if "int4" in config.get("quant_algo", "").lower() or "w4a16_awq" in config.get("quant_algo", "").lower():
        codes = fields(value, 4)
        return int(((codes == 7) | (codes == 8)).sum())
    return int((fields(value, 4) % 8 == 7).sum())


def figures(before, after, ends):
    before, after = before.double().flatten(), after.double().flatten()
    error = after - before
    finite = error.isfinite()
    norm, loss = (before[finite] ** 2).sum().item(), (error[finite] ** 2).sum().item()
    return {"elements": before.numel(), "not_finite": int((~finite).sum()), "zeros": int((after == 0).sum()), "original_zeros": int((before == 0).sum()),
            "max_abs": error[finite].abs().max().item() if finite.any() else 0, "relative": (loss / norm) ** 0.5 if norm else None,
            "snr_db": 10 * torch.log10(torch.tensor(norm / loss, dtype=torch.float64)).item() if norm and loss else None, "saturated": ends}


def compare(told, folder, case):
    before, after, ckpt = tensors_of(folder / "source"), load_file(folder / "dequantized.safetensors"), tensors_of(folder / "ckpt")
    config = json.loads((folder / "ckpt" / "config.json").read_text())["quantization_config"]
    have = {one["key"]: one for one in told["tensors"]}
    expected = {key for key in case["quantized"] if "layernorm" not in key}   # AWQ also changes the layers before
    check(set(have) == expected, f"weights: missing {sorted(expected - set(have))[:3]}, unexpected {sorted(set(have) - expected)[:3]}")
    for key, one in have.items():
        check(one["shape"] == list(before[key].shape), f"{key}: shape {one['shape']}")
        want = figures(before[key], after[key], saturated(ckpt, key.removesuffix(".weight"), config, before[key].numel()))
        for name, value in want.items():
            if name == "saturated" and value is None:
                continue
            found = one[name]
            same = found == value if value is None or isinstance(value, int) else found is not None and abs(found - value) <= NEAR * abs(value)
            check(same, f"{key}: {name} {found}, expected {value}")
    check(told["totals"]["elements"] == sum(before[key].numel() for key in have) and not told["not_compared"], f"totals: {told['totals']}")


def check_folder(tool, folder, case):
    config = json.loads((folder / "ckpt" / "config.json").read_text())
    if case["dequantized_dtype"] != [config.get("dtype", config.get("torch_dtype"))]:
        raise Left("the package reads the weights in another dtype than config.json names")
    told = stats(tool, folder / "ckpt", "--original", folder / "source")
    check(told["dtype"] == config.get("dtype", config.get("torch_dtype")), f"dtype {told['dtype']}")
    compare(told, folder, case)
    one = told["tensors"][0]["key"]
    check([row["key"] for row in stats(tool, folder / "ckpt", "--original", folder / "source", "-k", one)["tensors"]] == [one], "-k is ignored")
    check(stats(tool, folder / "ckpt", "--original", folder / "source", "--threads", "1")["tensors"] == told["tensors"], "other figures with one thread")


def check_scheme(tool, folder, case):
    wanted = case["quantize"]
    if wanted["group"]:
        raise Left("groups of another size than 128")
    if case["dequantized_dtype"] != [case["dtype"]]:
        raise Left("the package reads the weights in another dtype than those before")
    told = stats(tool, folder / "source", "--quantize", wanted["scheme"], "--quantize-dialect", wanted["dialect"])
    compare(told, folder, case)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--only", nargs="*", help="names of cases")
    args = parser.parse_args()
    torch.set_num_threads(1)
    passed, failed, left, only = 0, [], [], set(args.only or ())
    for file in sorted(args.corpus.glob("*/case.json")):
        case, folder = json.loads(file.read_text()), file.parent
        for name, one in (("folder", check_folder), ("scheme", check_scheme)):
            if only and folder.name not in only or name == "scheme" and not case["quantize"]:
                continue
            try:
                one(args.tool, folder, case)
                passed += 1
            except Left as reason:
                left.append(f"{folder.name}: {name}: {reason}")
            except (Failure, KeyError, RuntimeError, subprocess.SubprocessError) as failure:
                failed.append(f"{folder.name}: {name}: {type(failure).__name__}: {failure}")
    print("\n".join([*(f"left out: {line}" for line in left), *(f"FAILED: {line}" for line in failed),
                     f"{passed} checks passed, {len(failed)} failed, {len(left)} left out"]))
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
