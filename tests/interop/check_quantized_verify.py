# SPDX-License-Identifier: Apache-2.0
"""Quantized folders of other packages (make_quantized.py), against `verify`.

    check_quantized_verify.py CORPUS --tool PATH [--only NAME...]

`verify` finds nothing in a folder as its package wrote it, except in weights that the package itself reads as NaN or infinite; and finds each damage
of DAMAGES in a folder that has it: code, key, file and words, in text and in JSON, and the exit status.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file

from tool_run import Failure, check

DOWN = "model.layers.0.mlp.down_proj"
Q = "model.layers.0.self_attn.q_proj"
NAN, INF = float("nan"), float("inf")


def put(key, place, value):
    """Sets an element; of int32 words and FP8 codes, their bits."""
    def damage(tensors, config):
        tensor = tensors[key].clone()
        bits = tensor.view(torch.uint8) if tensor.element_size() == 1 and tensor.dtype != torch.int8 else tensor
        bits[place] = value
        tensors[key] = tensor
    return damage


def drop(key):
    return lambda tensors, config: tensors.pop(key)


def change(key, function):
    def damage(tensors, config):
        tensors[key] = function(tensors[key]).contiguous()
    return damage


def about(function):
    return lambda tensors, config: function(config["quantization_config"])


def state(key, function):
    """Changes bitsandbytes' JSON."""
    def damage(tensors, config):
        told = json.loads(bytes(tensors[key].tolist()))
        function(told)
        tensors[key] = torch.tensor(list(json.dumps(told).encode()), dtype=torch.uint8)
    return damage


def second_layer(module, plain):
    """Adds a layer as the first, and makes one module of it `plain`."""
    def damage(tensors, config):
        for key in [key for key in tensors if ".layers.0." in key]:
            tensors[key.replace(".layers.0.", ".layers.1.")] = tensors[key].clone()
        other = module.replace(".layers.0.", ".layers.1.")
        shape = tensors[other + ".weight"].shape
        for key in [key for key in tensors if key.startswith(other + ".weight")]:
            del tensors[key]
        tensors[other + ".weight"] = torch.ones(shape, dtype=plain)
    return damage


def expert_of_8_bits(tensors, config):
    key = "model.layers.0.mlp.experts.1.down_proj.weight"
    tensors[key] = torch.ones(tensors[key].shape, dtype=torch.int8)
    group = config["quantization_config"]["config_groups"]
    one = json.loads(json.dumps(next(iter(group.values()))))
    one["weights"] |= {"type": "int", "num_bits": 8, "strategy": "channel"}
    group["other"] = one


def tied_head(tensors, config):
    config["tie_word_embeddings"] = True
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].to(torch.float8_e4m3fn)
    tensors["lm_head.weight_scale"] = torch.ones(tensors["lm_head.weight"].shape[0], 1, dtype=torch.bfloat16)
    config["quantization_config"]["ignore"].remove("lm_head")


TENSORS, VALUES, CONFIG = "QUANT_TENSORS", "QUANT_VALUES", "QUANT_CONFIG"
# case: name of the damage, how it is done, code, key, words of the message[, seal]
DAMAGES = [
    ("ct_fp8_dynamic.odd", "a scale is NaN", put(DOWN + ".weight_scale", (2, 0), NAN), VALUES, DOWN + ".weight_scale", "1 of 36 scales is NaN, the first at [2, 0]"),
    ("ct_fp8_dynamic.odd", "a scale is infinite", put(DOWN + ".weight_scale", (1, 0), INF), VALUES, DOWN + ".weight_scale", "infinite, expected finite numbers, the first at [1, 0]"),
    ("ct_fp8_dynamic.odd", "scales are negative", change(DOWN + ".weight_scale", lambda x: -x.abs()), VALUES, DOWN + ".weight_scale", "36 of 36 scales are below zero"),
    ("ct_fp8_dynamic.odd", "a scale is zero", put(DOWN + ".weight_scale", (5, 0), 0), VALUES, DOWN + ".weight_scale", "zero, which this scheme does not write, the first at [5, 0]"),
    ("ct_fp8_dynamic.odd", "a scale is missing", drop(DOWN + ".weight_scale"), TENSORS, DOWN + ".weight", "has no scales beside it"),
    ("ct_fp8_dynamic.odd", "scales of integers", change(DOWN + ".weight_scale", lambda x: x.to(torch.int32)), TENSORS, DOWN + ".weight", "scales int32 [36, 1], expected floating numbers"),
    ("ct_fp8_dynamic.odd", "scales of another shape", change(DOWN + ".weight_scale", lambda x: x[:-1]), TENSORS, DOWN + ".weight", "scales bfloat16 [35, 1], expected [36, 1]"),
    ("ct_fp8_dynamic.odd", "rows and columns are swapped", change(DOWN + ".weight", lambda x: x.view(torch.uint8).t().contiguous().view(torch.float8_e4m3fn)), TENSORS, DOWN + ".weight", "scales bfloat16 [36, 1], expected [50, 1]"),
    ("ct_fp8_dynamic.odd", "NaN among numbers", put(DOWN + ".weight", (3, 7), 0x7F), VALUES, DOWN + ".weight", "1 of 1,800 numbers is NaN, the first at [3, 7]", True),
    ("ct_fp8_dynamic.odd", "a module is listed as ignored", about(lambda q: q["ignore"].append(DOWN)), CONFIG, DOWN + ".weight", f"'{DOWN}' in ignore says that it is not"),
    ("ct_fp8_dynamic.odd", "an expression ignores a module", about(lambda q: q["ignore"].append("re:.*mlp\\.down_proj$")), CONFIG, DOWN + ".weight", "in ignore says that it is not"),
    ("ct_fp8_dynamic.odd", "no tensor is quantized", lambda tensors, config: [tensors.update({key: value.to(torch.bfloat16)}) if value.dtype == torch.float8_e4m3fn else tensors.pop(key) if key.endswith("_scale") else None for key, value in list(tensors.items())], CONFIG, None, "quant_method is compressed-tensors, but no tensor is quantized"),
    ("ct_fp8_dynamic.odd", "a layer is not quantized", second_layer(Q, torch.bfloat16), CONFIG, Q.replace(".0.", ".1.") + ".weight", "and not quantized, but 1 of 'model.layers.*.self_attn.q_proj' are"),
    ("ct_fp8_dynamic.tied", "the head is quantized, the embedding is not", tied_head, CONFIG, "lm_head.weight", "to which tie_word_embeddings ties it, is not quantized"),
    ("ct_fp8_dynamic.moe", "an expert has another scheme", expert_of_8_bits, CONFIG, "model.layers.0.mlp.experts.1.down_proj.weight", "have several schemes: 2 fp8, a scale for each row, 1 int8"),
    ("ct_w4a16_g32.small", "more words than the shape has", change(DOWN + ".weight_packed", lambda x: torch.cat([x, x[:, :1]], 1)), TENSORS, DOWN + ".weight_packed", "weight_shape [64, 96], but packed numbers [64, 13]"),
    ("ct_w4a16_g32.small", "the shape is turned", change(DOWN + ".weight_shape", lambda x: x.flip(0)), TENSORS, DOWN + ".weight_packed", "weight_shape [96, 64], but packed numbers [64, 12]"),
    ("ct_w4a16_g32.small", "the shape is missing", drop(DOWN + ".weight_shape"), TENSORS, DOWN + ".weight_packed", "no weight_shape"),
    ("ct_w4a16_asym_g32.small_f32", "zero points are missing", drop(DOWN + ".weight_zero_point"), TENSORS, DOWN + ".weight_packed", "no zero points, but it is not symmetric"),
    ("ct_w4a16_asym_g32.small_f32", "zero points of bytes", change(DOWN + ".weight_zero_point", lambda x: x.to(torch.int8)), TENSORS, DOWN + ".weight_packed", "zero points int8 [8, 3], expected int32 [8, 3]"),
    ("ct_nvfp4a16.small", "the scale of scales makes them overflow", change(DOWN + ".weight_global_scale", lambda x: x * 0 + 1e-37), VALUES, DOWN + ".weight_global_scale", "divided by it overflows float32"),
    ("ct_nvfp4a16.small", "the scale of scales is zero", change(DOWN + ".weight_global_scale", lambda x: x * 0), VALUES, DOWN + ".weight_global_scale", "the scale of the scales is zero, which this scheme does not write"),
    ("ct_nvfp4a16.small", "a scale of a block is NaN", put(DOWN + ".weight_scale", (0, 1), 0x7F), VALUES, DOWN + ".weight_scale", "is NaN, the first at [0, 1]"),
    ("mo_w4a16_nvfp4.small", "the scale of scales is missing", drop(DOWN + ".weight_scale_2"), TENSORS, DOWN + ".weight", "no scale of the scales"),
    ("mo_w4a16_nvfp4.small", "the scale of scales makes them overflow", change(DOWN + ".weight_scale_2", lambda x: x * 0 + 3e38), VALUES, DOWN + ".weight_scale_2", "times it overflows float32"),
    ("mo_w4a16_nvfp4.small", "a module is excluded", about(lambda q: q["ignore"].append("*down_proj*")), CONFIG, DOWN + ".weight", "'*down_proj*' in ignore says that it is not"),
    ("mo_mxfp4.small", "an exponent is NaN", put(DOWN + ".weight_scale", (7, 2), 255), VALUES, DOWN + ".weight_scale", "is 255, which is NaN in E8M0, the first at [7, 2]"),
    ("tf_fp8_32.small", "scales of another block", about(lambda q: q.update(weight_block_size=[16, 32])), TENSORS, DOWN + ".weight", "scales float32 [2, 3], expected [4, 3]"),
    ("tf_fp8_32.small", "a module is listed", about(lambda q: q["modules_to_not_convert"].append("down_proj")), CONFIG, DOWN + ".weight", "'down_proj' in modules_to_not_convert says that it is not"),
    ("tf_mxfp4.gpt_oss", "an exponent is NaN", put("model.layers.0.mlp.experts.down_proj_scales", (1, 2, 0), 255), VALUES, "model.layers.0.mlp.experts.down_proj_scales", "255, which is NaN in E8M0, the first at [1, 2, 0]"),
    ("gptq_int4_g32.small", "a group that is not there", put(DOWN + ".g_idx", 95, 3), TENSORS, DOWN + ".qweight", "g_idx int32 [96], expected a group for each input"),
    ("gptq_int4_g32.small", "zero points of the other version", change(DOWN + ".qzeros", lambda x: x + 0x11111111), VALUES, DOWN + ".qzeros", "the configuration says `sym`, so that every word is 77777777; 24 of 24 zero points are others"),
    ("gptq_int4_g32.small", "zero points are missing", drop(DOWN + ".qzeros"), TENSORS, DOWN + ".qweight", "no qzeros"),
    ("awq_g32.small", "zero points of another shape", change(DOWN + ".qzeros", lambda x: x[:, :-1]), TENSORS, DOWN + ".qweight", "qzeros int32 [3, 7], expected int32 [3, 8]"),
    ("awq_g32.small", "a scale is NaN", put(DOWN + ".scales", (0, 3), NAN), VALUES, DOWN + ".scales", "NaN, the first at [0, 3]"),
    ("bnb_nf4.small", "absmax is cut", change(DOWN + ".weight.absmax", lambda x: x[:-1]), TENSORS, DOWN + ".weight", "absmax float32 [95], expected [96]"),
    ("bnb_nf4.small", "absmax is negative", put(DOWN + ".weight.absmax", 4, -1.0), VALUES, DOWN + ".weight.absmax", "below zero, expected positive numbers, the first at [4]"),
    ("bnb_nf4.small", "a number of the table is NaN", put(DOWN + ".weight.quant_map", 2, NAN), TENSORS, DOWN + ".weight", "quant_map has nan at 2, but nf4 is -0.525073"),
    ("bnb_nf4.small", "a number of the table is another", put(DOWN + ".weight.quant_map", 9, 0.5), TENSORS, DOWN + ".weight", "quant_map has 0.5 at 9, but nf4 is 0.16093 there"),
    ("bnb_fp4.small", "the table is that of nf4", change(DOWN + ".weight.quant_map", lambda x: torch.tensor([*range(-8, 8)]) / 8.0), TENSORS, DOWN + ".weight", "quant_map has -1 at 0, but fp4 is 0 there"),
    ("bnb_nf4_double.small", "a number of the table of scales is NaN", put(DOWN + ".weight.nested_quant_map", 2, NAN), VALUES, DOWN + ".weight.nested_quant_map", "numbers of the table of scales is NaN, the first at [2]"),
    ("bnb_nf4.small", "the state has another block", state(DOWN + ".weight.quant_state.bitsandbytes__nf4", lambda told: told.update(blocksize=48)), TENSORS, DOWN + ".weight", "blocksize of quant_state is 48"),
    ("bnb_nf4.small", "the state has another kind", state(DOWN + ".weight.quant_state.bitsandbytes__nf4", lambda told: told.update(quant_type="fp4")), TENSORS, DOWN + ".weight", "quant_map has -1 at 0, but fp4 is 0 there"),
    ("bnb_nf4.small", "the table is missing", drop(DOWN + ".weight.quant_map"), TENSORS, DOWN + ".weight", "no quant_map of 16 numbers"),
    ("bnb_nf4.small", "the state is not JSON", put(DOWN + ".weight.quant_state.bitsandbytes__nf4", 0, 0x7C), TENSORS, DOWN + ".weight", "expected JSON with blocksize and shape"),
    ("bnb_nf4.small", "the state has another shape", state(DOWN + ".weight.quant_state.bitsandbytes__nf4", lambda told: told.update(shape=[64, 97])), TENSORS, DOWN + ".weight", "expected 3104 bytes of uint8"),
    ("bnb_nf4.small", "the configuration says fp4", about(lambda q: q.update(bnb_4bit_quant_type="fp4")), CONFIG, DOWN + ".weight", "but bnb_4bit_quant_type is 'fp4'"),
    ("bnb_nf4_double.small", "a scale of scales is infinite", put(DOWN + ".weight.nested_absmax", 0, INF), VALUES, DOWN + ".weight.nested_absmax", "scales of the scales is infinite"),
    ("bnb_int8.odd", "SCB has another dtype", change(DOWN + ".SCB", lambda x: x.to(torch.float16)), TENSORS, DOWN + ".weight", "SCB float16 [36], expected float32 [36]"),
]
# Warnings: the tensors alone are as the configuration says.
WARNINGS = {"an expert has another scheme"}


def verify(tool, path, *args):
    done = subprocess.run([tool, "verify", path, "--json", *args], capture_output=True, text=True, timeout=120)
    check(done.returncode in (0, 1), f"verify {path}: exit {done.returncode}: {done.stderr[-800:]}")
    return done.returncode, json.loads(done.stdout)


def check_sound(tool, folder, case):
    status, told = verify(tool, folder / "ckpt")
    if "checkpoints" in told:   # pickled, in the manner of a run
        return check(status == 0 and told["sound"], f"is not sound: {told}")
    bad = set(case["nan"]) | set(case["infinite"])   # the package reads them as NaN or infinite itself
    left = [one for one in told["findings"] if one["code"] != VALUES or not any(one["key"].startswith(key.removesuffix("weight")) for key in bad)]
    check(not left, f"finds {left[0] if left else ''}")
    about = told.get("quantization")
    if case["package"] == "torchao" and about is None:   # pickled: its config.json has no tensors of these names
        return
    check(about is not None, "says nothing of quantization")
    if about["method"] is not None:
        check(about["values"] is True and about["left"] is None, f"quantization: {about}")
        # AWQ also changes the layers before.
        have, want = sum(one["weights"] for one in about["schemes"]), sum("layernorm" not in key for key in case["quantized"])
        check(have == want, f"{have} weights, expected {want}")
    status, told = verify(tool, folder / "ckpt", "--fast")
    check(status == 0 and not told["findings"], f"--fast finds {told['findings'][:1]}")


def check_damage(tool, corpus, work, case, what, damage, code, key, words, seal=False):
    copy = work / "damaged"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    source = corpus / case / "ckpt"
    file = source / "model.safetensors"
    with open(file, "rb") as stream:
        metadata = json.loads(stream.read(int.from_bytes(stream.read(8), "little"))).get("__metadata__")
    tensors, config = load_file(file), json.loads((source / "config.json").read_text())
    damage(tensors, config)
    save_file(tensors, copy / file.name, metadata=metadata)
    (copy / "config.json").write_text(json.dumps(config))
    if seal:   # without one, safetensors are not read
        status, told = verify(tool, copy)
        check(status == 0 and told["quantization"]["numbers"] is False, f"numbers are read without a seal: {told['findings'][:1]}")
        subprocess.run([tool, "seal", copy], check=True, capture_output=True)
    status, told = verify(tool, copy)
    found = [one for one in told["findings"] if one["code"] == code and one["key"] == key and words in one["message"]]
    check(found, f"not found: {code} {key}: {words}; but {json.dumps(told['findings'][:3])}")
    warns = what in WARNINGS
    check(found[0]["severity"] == ("warning" if warns else "damage"), f"is {found[0]['severity']}")
    check(status == (0 if warns else 1), f"exit {status}")
    if code != CONFIG and what != "scales of another block":   # those of all modules are
        module = key.rpartition("down_proj")[0] + "down_proj"
        others = [one for one in told["findings"] if not (one["key"] or "").startswith(module)]
        check(not others, f"also finds {others[:1]}")
    if key is not None:
        check(found[0]["file"] == file.name, f"file is {found[0]['file']}")
        plain = subprocess.run([tool, "verify", copy, "--limit", "1000"], capture_output=True, text=True)
        check("fsdp-ckpt " in plain.stdout and "PATH -k" in plain.stdout, f"no next command: {plain.stdout[:500]}")
        check(subprocess.run([tool, "verify", copy, "--strict"], capture_output=True).returncode == 1, "--strict: exit 0")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--only", nargs="*", help="names of cases or damages")
    args = parser.parse_args()
    torch.set_num_threads(1)
    passed, failed, only = 0, [], set(args.only or ())
    with tempfile.TemporaryDirectory(dir=args.corpus) as work:
        tests = [(file.parent.name, "as it was written", lambda file=file: check_sound(args.tool, file.parent, json.loads(file.read_text())))
                 for file in sorted(args.corpus.glob("*/case.json"))]
        tests += [(one[0], one[1], lambda one=one: check_damage(args.tool, args.corpus, pathlib.Path(work), *one)) for one in DAMAGES]
        for case, what, run in tests:
            if only and not only & {case, what}:
                continue
            try:
                run()
                passed += 1
            except (Failure, KeyError, OSError, subprocess.SubprocessError) as failure:
                failed.append(f"{case}: {what}: {type(failure).__name__}: {failure}")
    print("\n".join([*(f"FAILED: {line}" for line in failed), f"{passed} checks passed, {len(failed)} failed"]))
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
