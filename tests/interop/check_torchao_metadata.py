# SPDX-License-Identifier: Apache-2.0
"""Weights of torchao whose metadata or tensors were changed: the tool against torchao's own reader.

    check_torchao_metadata.py CORPUS --tool PATH [--every | --only CASE...] [--verbose]   a sample without --every

Of each of torchao's cases that make_quantized.py wrote, one weight and one plain tensor are kept.  Every member of the metadata is removed, and replaced
by values of other kinds, huge, negative and contradictory ones; texts are cut; tensors are lost, added, cut, turned and cast.  Then `export --dequantize`
either refuses with a message that names the file and the weight, and writes nothing, or makes the bits of torchao's unflatten_tensor_state_dict() and
dequantize().  The only other thing that is allowed: a member that says how activations are computed is damaged, torchao refuses, and the tool makes the
same weight as before.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

os.environ |= {"TORCHDYNAMO_DISABLE": "1"}
warnings.simplefilter("ignore")

import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from quantized_compare import bits  # noqa: E402
from tool_run import Failure, check  # noqa: E402

NAMES = "tensor_names"
# Members that do not touch the weight.
OF_ACTIVATIONS = {"act_quant_kwargs", "kernel_preference", "mm_config", "activation_quantization", "use_triton_kernel", "reduce_range"}
HUGE = (2 ** 31, 2 ** 62, 2 ** 63 - 1, 2 ** 63, 2 ** 64, 10 ** 30)
OTHERS = (None, True, False, 0, 1, -1, 0.5, 1e300, *HUGE, "", "x", [], [1], {}, {"_type": "x"})
CLASSES = ("Float8Tensor", "Int4Tensor", "Int8Tensor", "IntxUnpackedToInt8Tensor", "MXTensor", "NVFP4Tensor", "Tensor", "PerRow", "torch.dtype", "Absent")
DTYPES = ("float16", "float32", "float64", "bfloat16", "int4", "int8", "uint8", "int64", "complex64", "bool", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
          "float8_e8m0fnu", "float4_e2m1fn_x2", "fp6_e2m3", "Tensor", "nothing")
PARTS = ("qdata", "scale", "zero_point", "per_tensor_scale", "act_quant_scale", "act_pre_scale", "other")
LEAST = 800    # mutations, or the check has lost its corpus
SAMPLE = 20    # one of so many, without --every


# ---- what is changed

def values_for(value):
    """Values to put in the place of one, contradictory ones first."""
    if isinstance(value, bool):
        yield from (not value, int(value), str(value))
    elif isinstance(value, int):
        yield from (value + 1, value - 1, value * 2, value // 2, -value, float(value), str(value), [value])
    elif isinstance(value, str):
        yield from (other for other in (*CLASSES, *DTYPES, *PARTS, value + " ", value.upper(), [value]) if other != value)
    elif isinstance(value, list):
        yield from (value[::-1], value + value[:1], value[:-1], value[1:], [value], [1] * len(value), value + ["other"], {str(i): one for i, one in enumerate(value)})
    elif isinstance(value, dict):
        yield from (value | {"other": 1}, list(value.values()), list(value))
    yield from OTHERS


def changes(value, path=()):
    """(path, value with one member changed) for every member, at any depth."""
    for other in values_for(value):
        if other != value or type(other) is not type(value):
            yield path, other
    if isinstance(value, dict):
        for key, one in value.items():
            yield (*path, key), {name: two for name, two in value.items() if name != key}
            for inner, changed in changes(one, (*path, key)):
                yield inner, value | {key: changed}
    elif isinstance(value, list):
        for index, one in enumerate(value):
            for inner, changed in changes(one, (*path, index)):
                yield inner, value[:index] + [changed] + value[index + 1:]


def damaged_texts(text):
    yield "is cut", text[:-1]
    yield "is half", text[: len(text) // 2]
    yield "goes on", text + "}"
    yield "is empty", ""
    yield "is a word", "NaN"
    yield "has another member of the same name before", text.replace('"_type"', '"_type": "Tensor", "_type"', 1)
    yield "has another member of the same name behind", text[:-1] + ', "_type": "Tensor"}'
    yield "has another block_size before", text.replace('"block_size"', '"block_size": [1, 1], "block_size"', 1)
    yield "has spaces", " " + text.replace(",", " ,\n")
    yield "has a zero character", text + "\0"
    yield "is deep", "[" * 3000 + "]" * 3000


def changed_tensors(tensors, front):
    """(what, tensors) of one change to the parts of the weight."""
    parts = [key for key in tensors if key.startswith(front)]
    for key in parts:
        value, name = tensors[key], key.removeprefix(front)
        without = {other: one for other, one in tensors.items() if other != key}
        yield f"{name} is lost", without
        yield f"{name} has another name", without | {front + "other": value}
        raw = value.reshape(1) if value.ndim == 0 else value
        shapes = {"flat": value.reshape(-1), "a row": value.reshape(1, -1), "a column": value.reshape(-1, 1), "of one dimension more": value[None], "of one less": value.squeeze()}
        if value.ndim > 1:
            shapes |= {"turned": value.transpose(-1, -2).contiguous(), "another shape": value.reshape(value.shape[-1], *value.shape[:-1])}
        for what, other in shapes.items():
            yield f"{name} is {what}", tensors | {key: other.contiguous()}
        yield f"{name} is cut", tensors | {key: raw[:-1].contiguous()}
        yield f"{name} is cut to one", tensors | {key: raw.reshape(-1)[:1].contiguous()}
        yield f"{name} is empty", tensors | {key: raw[:0].contiguous()}
        yield f"{name} is doubled", tensors | {key: raw.reshape(-1).view(torch.uint8).repeat(2).view(value.dtype).reshape(-1, *raw.shape[1:])}
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.int32, torch.float8_e4m3fn, torch.float8_e5m2,
                      torch.float8_e8m0fnu):
            if dtype != value.dtype:
                yield f"{name} is {dtype}", tensors | {key: value.float().clamp(-100, 100).to(dtype)}
                if dtype.itemsize == value.dtype.itemsize:
                    yield f"{name} is seen as {dtype}", tensors | {key: raw.view(dtype).reshape(value.shape)}
    for part in PARTS:
        if front + part not in tensors:
            yield f"{part} is added", tensors | {front + part: tensors[front + "scale"].clone()}
            yield f"{part} of one number is added", tensors | {front + part: torch.tensor(2.0)}


def mutations(tensors, metadata, weight):
    """(what, path, tensors, metadata)."""
    described, names = json.loads(metadata[weight]), json.loads(metadata[NAMES])
    for path, changed in changes(described):
        yield f"{json.dumps(path)} becomes {json.dumps(changed)}", path, tensors, metadata | {weight: json.dumps(changed)}
    for path, changed in changes(names):
        yield f"{NAMES} becomes {json.dumps(changed)}", (NAMES,), tensors, metadata | {NAMES: json.dumps(changed)}
    for what, text in damaged_texts(metadata[weight]):
        yield f"the metadata {what}", (), tensors, metadata | {weight: text}
    for what, text in damaged_texts(metadata[NAMES]):
        yield f"{NAMES} {what}", (NAMES,), tensors, metadata | {NAMES: text}
    for key in (weight, NAMES):
        yield f"{key} is not in the metadata", (NAMES,), tensors, {name: text for name, text in metadata.items() if name != key}
    for what, changed in changed_tensors(tensors, front_of(weight)):
        yield what, (), changed, metadata


# ---- what both make of it

def front_of(weight):
    module, _, name = weight.rpartition(".")
    return f"{module}._{name}_"


def by_torchao(tensors, metadata, dtype, weight):
    """The tensors that torchao reads, in a dtype; raises what it does, and for a weight that it leaves in parts."""
    from torchao.prototype.safetensors.safetensors_support import unflatten_tensor_state_dict
    from torchao.quantization.quant_primitives import _DTYPE_TO_QVALUE_BOUNDS, dequantize_affine
    read, left = unflatten_tensor_state_dict(dict(tensors), {key: text for key, text in metadata.items() if key != "format"})
    check(not any(key.startswith(front_of(weight)) for key in left), f"leaves parts of {weight}: {sorted(left)}")
    result = {}
    for key, value in read.items():
        if type(value).__name__ == "IntxUnpackedToInt8Tensor":   # the same call, with a dtype
            low, high = _DTYPE_TO_QVALUE_BOUNDS[value.target_dtype]
            value = dequantize_affine(value.qdata, value.block_size, value.scale, value.zero_point, torch.int8, low, high, output_dtype=dtype)
        elif hasattr(value, "qdata"):
            value = value.dequantize(dtype)
        result[key] = value
    return result | {key: value for key, value in left.items() if key not in result}


def by_tool(tool, folder, work):
    out = work / "out"
    done = subprocess.run([tool, "export", folder, out, "--dequantize", "--force", "--no-sync", "--threads", "1"], capture_output=True, text=True, errors="replace", timeout=60)
    check(done.returncode in (0, 2), f"exit {done.returncode}: {done.stderr[-600:]}")
    if done.returncode == 2:
        check(not out.exists(), "refused, but a folder was written")
        return None, done.stderr
    made = load_file(out / "model.safetensors")
    for file in out.iterdir():
        file.unlink()
    out.rmdir()
    return made, ""


def same(have, want):
    return set(have) == set(want) and all(have[key].dtype == want[key].dtype and have[key].shape == want[key].shape and torch.equal(bits(have[key]), bits(want[key]))
                                          for key in want)


def judge(made, said, weight, path, before, want, refusal):
    """A word for the outcome.  Raises Failure."""
    if made is None:
        check("model.safetensors" in said or "/ckpt" in said, f"the message names no file: {said}")
        check(weight in said or front_of(weight) in said or NAMES in said or path == (NAMES,) and "tensor" in said, f"the message names no weight: {said}")
        return "refused by both" if refusal else "refused, torchao reads it"
    if refusal is None:
        check(same(made, want), f"other tensors than torchao: {describe(made, want)}")
        return "as torchao"
    check(len(path) > 1 and path[1] in OF_ACTIVATIONS, f"reads what torchao refuses: {type(refusal).__name__}: {str(refusal)[:200]}")
    check(same(made, before), f"another weight than before: {describe(made, before)}")
    return "of activations: torchao refuses, the weight is as before"


def describe(have, want):
    if set(have) != set(want):
        return f"missing {sorted(set(want) - set(have))}, unexpected {sorted(set(have) - set(want))}"
    for key in want:
        if have[key].dtype != want[key].dtype or have[key].shape != want[key].shape:
            return f"{key}: {have[key].dtype} {list(have[key].shape)}, expected {want[key].dtype} {list(want[key].shape)}"
    return [f"{key}: {have[key].flatten()[:4].tolist()}, expected {want[key].flatten()[:4].tolist()}" for key in want if not same({key: have[key]}, {key: want[key]})]


def kept(folder):
    """One weight and one plain tensor of a folder: tensors, metadata, name of the weight."""
    file = folder / "ckpt" / "model.safetensors"
    with open(file, "rb") as stream:
        metadata = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))["__metadata__"]
    weight = next(name for name in sorted(json.loads(metadata[NAMES]), key=lambda name: ("q_proj" not in name, name)) if "_data" in json.loads(metadata[name]))
    plain = next(name for name in sorted(json.loads(metadata[NAMES])) if "_data" not in json.loads(metadata[name]) and "norm" in name)
    tensors = {key: value for key, value in load_file(file).items() if key == plain or key.startswith(front_of(weight))}
    return tensors, {"format": "pt", NAMES: json.dumps([weight, plain]), weight: metadata[weight], plain: metadata[plain]}, weight


def write(folder, tensors, metadata, config):
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata=metadata)
    if not (folder / "config.json").exists():
        (folder / "config.json").write_text(json.dumps(config))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--every", action="store_true", help="every mutation of every case")
    parser.add_argument("--only", nargs="*", help="names of cases")
    parser.add_argument("--verbose", action="store_true", help="print every outcome")
    args = parser.parse_args()
    torch.set_num_threads(1)
    counts, failed = {}, []
    for number, file in enumerate(sorted(args.corpus.glob("ao_*/case.json"))):
        case, folder = json.loads(file.read_text()), file.parent
        if args.only and folder.name not in args.only or not args.only and case["dtype"] != "bfloat16" or case["options"].get("pickled") or case["extreme"]:
            continue
        tensors, metadata, weight = kept(folder)
        dtype = getattr(torch, case["dtype"])
        config = {"model_type": "own", "dtype": case["dtype"], "quantization_config": json.loads((folder / "ckpt/config.json").read_text())["quantization_config"]}
        before = by_torchao(tensors, metadata, dtype, weight)
        with tempfile.TemporaryDirectory() as temporary:
            work = pathlib.Path(temporary)
            for index, (what, path, changed, told) in enumerate([("nothing is changed", (), tensors, metadata), *mutations(tensors, metadata, weight)]):
                if not args.every and not args.only and index and (index + number) % SAMPLE:
                    continue
                want = refusal = None
                try:
                    want = by_torchao(changed, told, dtype, weight)
                except Exception as error:   # of any kind
                    refusal = error
                try:
                    write(work / "ckpt", changed, told, config)
                    made, said = by_tool(args.tool, work / "ckpt", work)
                    outcome = judge(made, said, weight, path, before, want, refusal)
                    check(what != "nothing is changed" or outcome == "as torchao", f"{outcome}: {said}")
                    counts[outcome] = counts.get(outcome, 0) + 1
                    if args.verbose:
                        print(f"{folder.name}: {what[:150]}: {outcome}: {said.strip()[:300]}")
                except (Failure, subprocess.SubprocessError) as failure:
                    failed.append(f"{folder.name}: {what[:300]}: {failure}")
    print("\n".join([*(f"FAILED: {line}" for line in failed), *(f"{count:5} {outcome}" for outcome, count in sorted(counts.items())),
                     f"{sum(counts.values())} mutations passed, {len(failed)} failed"]))
    return 1 if failed or sum(counts.values()) < LEAST and not args.only else 0


if __name__ == "__main__":
    sys.exit(main())
