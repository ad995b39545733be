# SPDX-License-Identifier: Apache-2.0
"""Writes quantized folders with the packages that quantize, and beside each what the package itself reads from it.

    make_quantized.py OUT [--seed N] [--only CASE...]

OUT/<case>/ckpt                    the folder as the package writes it
OUT/<case>/source                  the model before
OUT/<case>/dequantized.safetensors each weight as the package reads it, by the names of `source`
OUT/<case>/case.json               package, version, scheme, dtype, and how `export --quantize` makes the same folder
OUT/left_out.json                  the cases that a package failed to make here, with its words: check_quantized.py fails for them
"""
import argparse
import contextlib
import importlib.metadata
import io
import json
import os
import pathlib
import shutil
import sys
import time
import traceback
import warnings

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "LOGURU_LEVEL": "ERROR", "TQDM_DISABLE": "1", "TORCHDYNAMO_DISABLE": "1"}
warnings.simplefilter("ignore")

import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

import quantized_producers as producers  # noqa: E402
from quantized_sources import write_source  # noqa: E402

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
NAMES = {BF16: "bf16", F16: "f16", F32: "f32"}


def ct(scheme, quantize=None, **options):
    return dict(package="compressed-tensors", make=producers.compressed_tensors, options=dict(scheme=scheme, **options), quantize=quantize)


def mo(config, quantize=None):
    return dict(package="nvidia-modelopt", make=producers.modelopt, options=dict(config=config), quantize=quantize)


def other(package, make, quantize=None, **options):
    return dict(package=package, make=make, options=options, quantize=quantize)


def ao(config, **options):
    return other("torchao", producers.torchao, None, config=config, **options)


# name: what makes it, and the sources that it is made of.
SCHEMES = {
    "ct_fp8": (ct("FP8", "fp8-tensor"), ["odd"]),
    "ct_fp8_dynamic": (ct("FP8_DYNAMIC", "fp8-channel"), ["odd", "odd_f16", "odd_f32", "odd_extreme", "tied", "moe"]),
    "ct_fp8_block": (ct("FP8_BLOCK", "fp8-block"), ["blocks", "blocks_f32", "blocks_extreme"]),
    "ct_w8a8": (ct("W8A8", "int8"), ["odd", "odd_f16", "odd_extreme"]),
    "ct_w8a16": (ct("W8A16", "int8-group"), ["large", "large_f16"]),
    "ct_w8a16_g32": (ct("W8A16", "int8-group", group=32), ["small", "small_f32", "small_extreme"]),
    "ct_w8a16_g2": (ct("W8A16", "int8-group", group=2), ["odd"]),
    "ct_w4a16": (ct("W4A16", "int4"), ["large", "large_f16"]),
    "ct_w4a16_g32": (ct("W4A16", "int4", group=32), ["small", "small_f32", "small_extreme", "tied", "moe"]),
    "ct_w4a16_g2": (ct("W4A16", "int4", group=2), ["odd", "odd_f16"]),
    "ct_w4a16_g64": (ct("W4A16", "int4", group=64), ["large"]),
    "ct_w4a16_asym": (ct("W4A16_ASYM", "int4-asym"), ["large", "large_f16"]),
    "ct_w4a16_asym_g32": (ct("W4A16_ASYM", "int4-asym", group=32), ["small_f32", "small_extreme"]),
    "ct_w4a16_asym_g2": (ct("W4A16_ASYM", "int4-asym", group=2), ["odd"]),
    "ct_w4a16_asym_g64": (ct("W4A16_ASYM", "int4-asym", group=64), ["large_f16"]),
    "ct_nvfp4": (ct("NVFP4", None), ["small"]),
    "ct_nvfp4a16": (ct("NVFP4A16", "nvfp4"), ["small", "small_f16", "small_f32", "small_extreme", "moe"]),
    "ct_mxfp4": (ct("MXFP4", None), ["small", "small_f16", "small_extreme"]),
    "ct_mxfp4a16": (ct("MXFP4A16", "mxfp4"), ["small", "moe"]),
    "ct_mxfp8": (ct("MXFP8", "mxfp8"), ["small", "small_f16", "small_extreme"]),
    "mo_fp8": (mo("FP8_DEFAULT_CFG", "fp8-tensor"), ["odd", "odd_f16", "odd_f32", "tied"]),
    "mo_fp8_channel": (mo("FP8_PER_CHANNEL_PER_TOKEN_CFG", "fp8-channel"), ["odd", "odd_f16", "odd_extreme"]),
    "mo_fp8_block": (mo("FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG", "fp8-block"), ["blocks", "blocks_f32"]),
    "mo_nvfp4": (mo("NVFP4_DEFAULT_CFG", None), ["small", "moe"]),
    "mo_w4a16_nvfp4": (mo("W4A16_NVFP4_CFG", "nvfp4"), ["small", "small_f16", "small_f32", "small_extreme"]),
    "mo_mxfp4": (mo("MXFP4_DEFAULT_CFG", "mxfp4"), ["small", "small_f16"]),
    "mo_mxfp8": (mo("MXFP8_DEFAULT_CFG", "mxfp8"), ["small", "small_f32"]),
    "mo_int4": (mo("INT4_BLOCKWISE_WEIGHT_ONLY_CFG", "int4"), ["large", "large_f16"]),
    "mo_int4_awq": (mo("INT4_AWQ_CFG", None), ["large"]),
    "mo_int8": (mo("INT8_WEIGHT_ONLY_CFG", "int8"), ["odd", "odd_f16"]),
    "mo_int8_smooth": (mo("INT8_SMOOTHQUANT_CFG", None), ["odd"]),
    "tf_fp8": (other("transformers", producers.finegrained_fp8, "fp8-block", blocks=[128, 128]), ["large", "large_f16", "blocks"]),
    "tf_fp8_32": (other("transformers", producers.finegrained_fp8, None, blocks=[32, 32]), ["small", "moe"]),
    "tf_mxfp4": (other("transformers", producers.mxfp4_gpt_oss, None), ["gpt_oss"]),
    "bnb_nf4": (other("bitsandbytes", producers.bitsandbytes, None, load_in_4bit=True, bnb_4bit_quant_type="nf4"), ["small", "small_f16", "odd"]),
    "bnb_nf4_double": (other("bitsandbytes", producers.bitsandbytes, None, load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True),
                       ["small", "small_f32"]),
    "bnb_fp4": (other("bitsandbytes", producers.bitsandbytes, None, load_in_4bit=True, bnb_4bit_quant_type="fp4"), ["small"]),
    "bnb_int8": (other("bitsandbytes", producers.bitsandbytes, None, load_in_8bit=True), ["odd", "odd_f16"]),
    "ao_int8": (ao("Int8WeightOnlyConfig()"), ["odd", "odd_f16", "odd_f32", "odd_extreme"]),
    "ao_int8_tensor": (ao("Int8WeightOnlyConfig(granularity=PerTensor())"), ["odd", "odd_f16"]),
    "ao_int8_group": (ao("Int8WeightOnlyConfig(granularity=PerGroup(32))"), ["small", "small_f32"]),
    "ao_int8_dynamic": (ao("Int8DynamicActivationInt8WeightConfig()"), ["odd"]),
    "ao_fp8": (ao("Float8WeightOnlyConfig()"), ["odd", "odd_f16", "odd_f32"]),
    "ao_fp8_e5m2": (ao("Float8WeightOnlyConfig(weight_dtype=torch.float8_e5m2)"), ["odd"]),
    "ao_fp8_tensor": (ao("Float8WeightOnlyConfig(granularity=PerTensor())"), ["odd", "odd_f32"]),
    "ao_int4_unpacked": (ao("IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32), mapping_type=MappingType.ASYMMETRIC)"),
                         ["small", "small_f16", "small_f32"]),
    "ao_int3_unpacked": (ao("IntxWeightOnlyConfig(weight_dtype=torch.int3, scale_dtype=torch.float32)"), ["odd"]),
    "ao_int8_unpacked": (ao("Int8DynamicActivationIntxWeightConfig()"), ["small", "small_f16"]),
    "ao_mxfp8": (ao("MXDynamicActivationMXWeightConfig()"), ["small", "large", "small_extreme"]),
    "ao_mxfp8_e5m2": (ao("MXDynamicActivationMXWeightConfig(weight_dtype=torch.float8_e5m2, activation_dtype=torch.float8_e5m2)"), ["small"]),
    "ao_mxfp4": (ao("MXDynamicActivationMXWeightConfig(weight_dtype=torch.float4_e2m1fn_x2, activation_dtype=torch.float4_e2m1fn_x2)"),
                 ["small", "large", "small_extreme"]),
    "ao_nvfp4": (ao("NVFP4WeightOnlyConfig()"), ["small", "large", "small_f32"]),
    "ao_nvfp4_one": (ao("NVFP4WeightOnlyConfig(use_dynamic_per_tensor_scale=False)"), ["large"]),
    "ao_int8_pickled": (ao("Int8WeightOnlyConfig()", pickled=True), ["odd"]),
    "ao_fp8_pickled": (ao("Float8WeightOnlyConfig()", pickled=True), ["odd"]),
    "awq_g128": (other("autoawq", producers.autoawq, None, group=128), ["large_f16"]),
    "awq_g64": (other("autoawq", producers.autoawq, None, group=64), ["large_f16"]),
    "awq_g32": (other("autoawq", producers.autoawq, None, group=32), ["small_f16", "small"]),
    "gptq_int4": (other("gptqmodel", producers.gptqmodel, None, bits=4, group=128), ["large_f16"]),
    "gptq_int4_g32": (other("gptqmodel", producers.gptqmodel, None, bits=4, group=32), ["small"]),
    "gptq_int4_order": (other("gptqmodel", producers.gptqmodel, None, bits=4, group=32, act_order=True), ["small_f16"]),
    "gptq_int4_asym": (other("gptqmodel", producers.gptqmodel, None, bits=4, group=32, symmetric=False), ["small_f16"]),
    "gptq_int4_v2": (other("gptqmodel", producers.gptqmodel, None, bits=4, group=32, symmetric=False, format="gptq_v2"), ["small_f16"]),
    "gptq_int8": (other("gptqmodel", producers.gptqmodel, None, bits=8, group=32), ["small_f16"]),
    "gptq_int8_order": (other("gptqmodel", producers.gptqmodel, None, bits=8, group=32, act_order=True, symmetric=False), ["small_f16"]),
}
DIALECTS = {"compressed-tensors": "compressed-tensors", "nvidia-modelopt": "modelopt", "transformers": "transformers"}


def source_of(name):
    """Kind, dtype, tied, extreme of a source's name."""
    kind, _, what = name.partition("_")
    if name in ("moe", "gpt_oss"):
        return name, BF16, False, False
    if name == "tied":
        return "small", BF16, True, False
    return kind, {"f16": F16, "f32": F32}.get(what, BF16), False, what == "extreme"


def link(source, target):
    target.mkdir(parents=True)
    for file in source.iterdir():
        os.link(file, target / file.name)


def make_case(out, name, scheme, source_name, source):
    made, folder = SCHEMES[scheme][0], out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    link(source, folder / "source")
    dequantized = made["make"](folder / "source", folder / "ckpt", **made["options"])
    before = producers.tensors_of(folder / "source")
    if set(before) != set(dequantized):
        raise ValueError(f"other names than in the source: {sorted(set(before) ^ set(dequantized))[:6]}")
    kind, dtype, tied, extreme = source_of(source_name)
    save_file({key: value.contiguous() for key, value in dequantized.items()}, folder / "dequantized.safetensors")
    changed = sorted(key for key in before if dequantized[key].dtype != before[key].dtype or not torch.equal(dequantized[key], before[key]))
    nan = sorted(key for key, value in dequantized.items() if value.isnan().any())
    infinite = sorted(key for key, value in dequantized.items() if value.isinf().any())
    case = {
        "package": made["package"], "version": importlib.metadata.version(made["package"]), "scheme": scheme,
        "options": made["options"], "source": source_name, "dtype": str(dtype).removeprefix("torch."), "tied": tied, "extreme": extreme,
        "dequantized_dtype": sorted({str(dequantized[key].dtype).removeprefix("torch.") for key in changed}),
        "quantized": changed, "ignored": sorted(set(before) - set(changed)), "nan": nan, "infinite": infinite,
        "quantize": None if not made["quantize"] or tied and made["package"] == "transformers" else
        {"scheme": made["quantize"], "dialect": DIALECTS[made["package"]], "group": made["options"].get("group") if made["package"] == "compressed-tensors" else None},
    }
    (folder / "case.json").write_text(json.dumps(case, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", help="names of cases or schemes")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    sources, left_out, count, begun = args.out / ".sources", [], 0, time.time()
    for scheme, (_, names) in SCHEMES.items():
        for source_name in names:
            name = f"{scheme}.{source_name}"
            if args.only and name not in args.only and scheme not in args.only:
                continue
            noise = io.StringIO()
            try:
                with contextlib.nullcontext() if args.verbose else contextlib.redirect_stdout(noise), \
                        contextlib.nullcontext() if args.verbose else contextlib.redirect_stderr(noise):
                    source = sources / source_name
                    if not source.exists():
                        kind, dtype, tied, extreme = source_of(source_name)
                        write_source(source, kind, dtype, args.seed, tied, extreme)
                    make_case(args.out, name, scheme, source_name, source)
                count += 1
            except Exception as error:   # of any package: the other cases are made
                if args.verbose:
                    traceback.print_exc()
                shutil.rmtree(args.out / name, ignore_errors=True)
                left_out.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
    print("\n".join(["left out: " + line for line in left_out] + [f"{count} cases in {time.time() - begun:.0f} s, {len(left_out)} left out"]))
    (args.out / "left_out.json").write_text(json.dumps(left_out, indent=1) + "\n")
    shutil.rmtree(sources, ignore_errors=True)
    return 0 if count else 1


if __name__ == "__main__":
    sys.exit(main())
