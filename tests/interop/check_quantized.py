# SPDX-License-Identifier: Apache-2.0
"""Quantized folders of other packages (make_quantized.py), against `export --dequantize` and `export --quantize`.

    check_quantized.py CORPUS --tool PATH [--only CASE...] [--random N] [--seed S]

For each case: what `export --dequantize` makes of the folder is what the package itself reads from it; what `export --quantize` makes of the model
before is what the package made of it, and so is what the operations of a map make of one weight, there and back; and a folder with a scale missing, of another shape, or numbers that are cut, is refused.
What the tool says that it does not know is counted as left out, with its reason.

Compared bit for bit: names, dtypes, shapes, bits of every tensor (of NaN, that it is one).  Left out of the comparison with what a package exported:
  input_scale, input_global_scale         come from activations
  version, producer                       are the package's
  zeros of static FP8                     lose their sign in the calibration
  input_activations, format, observer and sparsity_config, where the activations are static: the way with data writes these otherwise
  names of config_groups                  are chosen freely: their values are compared
  ignore, exclude_modules                 name the same matrices of the model in many ways: the matrices are compared
"""
import argparse
import fnmatch
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
import warnings

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "LOGURU_LEVEL": "ERROR", "TQDM_DISABLE": "1", "TORCHDYNAMO_DISABLE": "1"}
warnings.simplefilter("ignore")

import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from quantized_compare import Left, bits, compare, tool  # noqa: E402
from quantized_producers import tensors_of, tokens  # noqa: E402
from tool_run import Failure, check  # noqa: E402

CALIBRATION = ("input_scale", "input_global_scale")
# Folders that transformers cannot read itself.
UNREADABLE = ("mo_", "ct_w4a16_asym")
SCALES = re.compile(r"(scale|scales|_scale_inv|absmax|SCB|scale_2|global_scale)$")
PACKED = re.compile(r"(weight_packed|qweight|_blocks|weight_qdata|\.weight)$")


# ---- configuration

def matrices(source):
    return sorted(key.removesuffix(".weight") for key, value in tensors_of(source).items() if value.ndim == 2 and "embed" not in key)


def named(patterns, modules):
    """The modules that a list of names, `re:` expressions and wildcards means."""
    def means(pattern, module):
        if pattern.startswith("re:"):
            return re.match(pattern[3:], module) is not None
        return fnmatch.fnmatchcase(module, pattern)
    return sorted(module for module in modules if any(means(pattern, module) for pattern in patterns or []))


def comparable(config, static, modules):
    config = json.loads(json.dumps(config))
    config.pop("version", None)
    config.pop("producer", None)
    for key in ("ignore", "exclude_modules", "modules_to_not_convert"):
        if key in config:
            config[key] = named(config[key], modules)
    inner = config.get("quantization")
    if inner:
        config["quantization"] = comparable(inner, static, modules)
    groups = config.get("config_groups")
    if groups is not None:
        config["config_groups"] = sorted(groups.values(), key=lambda group: json.dumps(group, sort_keys=True))
    for key in ("dequantize", "expert_dtype", "modules_to_convert", "scale_fmt"):   # of transformers, where they say nothing
        if config.get(key) in (False, "fp8", None, "float"):
            config.pop(key, None)
    if static:
        groups = config.get("config_groups", [])
        for part in [config, *groups, *(group.get("weights") or {} for group in groups)]:
            for key in ("format", "input_activations", "observer", "sparsity_config"):
                part.pop(key, None)
    return config


def is_static(config):
    inputs = [group.get("input_activations") for group in config.get("config_groups", {}).values()]
    return any(one is not None and one.get("dynamic") is not True for one in inputs)


# ---- the three checks

def load_model(folder):
    import transformers
    model, found = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        check(not found.get(kind), f"{folder}: from_pretrained: {kind}: {sorted(map(str, found[kind]))[:5]}")
    return model


def config_of(folder, name="config.json"):
    return json.loads((folder / name).read_text())


def check_dequantize(path, folder, case, work):
    out, told = work / "dequantized", case["dequantized_dtype"]
    if case["options"].get("pickled"):   # objects of the package, of which the next step is named
        _, said = tool(path, "export", folder / "ckpt" / "pytorch_model.bin", out, "--config", folder / "ckpt", "--dequantize", expect=(2,))
        check("save_pretrained() writes safetensors" in said, f"dequantize: {said}")
        return
    tool(path, "export", folder / "ckpt", out, "--dequantize", *(["--dtype", told[0]] if told else []))
    made, wanted, before = tensors_of(out), load_file(folder / "dequantized.safetensors"), tensors_of(folder / "ckpt")
    for key, value in wanted.items():   # what was not quantized is cast, too
        if told and key in before and value.dtype == before[key].dtype and value.is_floating_point():
            wanted[key] = value.to(getattr(torch, told[0]))
    compare(made, wanted, "--dequantize")
    config = config_of(out)
    check("quantization_config" not in config, "dequantize: config.json still has quantization_config")
    check(not (out / "hf_quant_config.json").exists(), "dequantize: hf_quant_config.json is there")
    before = config_of(folder / "ckpt")
    before.pop("quantization_config")
    for key in ("dtype", "torch_dtype"):
        config.pop(key, None), before.pop(key, None)
    check(config == before, f"dequantize: config.json: {[key for key in before if config.get(key) != before[key]]} changed")
    load_model(out)


def check_export(path, folder, case, work):
    wanted, out = case["quantize"], work / "quantized"
    group = ["--quantize-group", wanted["group"]] if wanted["group"] else []
    tool(path, "export", folder / "source", out, "--quantize", wanted["scheme"], "--quantize-dialect", wanted["dialect"], *group)
    made = {key: value for key, value in tensors_of(folder / "ckpt").items() if not key.endswith(CALIBRATION)}
    have = tensors_of(out)
    if is_static(config_of(folder / "ckpt")["quantization_config"]):
        for tensors in (have, made):
            for value in tensors.values():
                if value.dtype == torch.float8_e4m3fn:
                    codes = value.view(torch.uint8)
                    codes[codes == 0x80] = 0
    compare(have, made, "export --quantize")
    modules = matrices(folder / "source")
    have, want = (config_of(one)["quantization_config"] for one in (out, folder / "ckpt"))
    static = is_static(want)
    have, want = comparable(have, static, modules), comparable(want, static, modules)
    if wanted["dialect"] == "transformers":   # which does not name what 128 does not divide
        check(set(want["modules_to_not_convert"]) <= set(have["modules_to_not_convert"]), "export --quantize: modules_to_not_convert")
        have["modules_to_not_convert"] = want["modules_to_not_convert"]
    check(have == want, f"export --quantize: config.json:\n  {json.dumps(have, sort_keys=True)}, expected\n  {json.dumps(want, sort_keys=True)}")
    if folder.name.startswith(UNREADABLE) or case["extreme"]:
        return
    models = [load_model(one) for one in (out, folder / "ckpt")]
    if wanted["scheme"] == "fp8-block" and folder.name.startswith("ct_"):
        return   # its activations need sizes that 128 divides
    # Weights that compressed-tensors reads as bfloat16 do not multiply with a float16 or float32 model's activations.
    if not is_static(config_of(folder / "ckpt")["quantization_config"]) and case["dequantized_dtype"] == [case["dtype"]]:
        with torch.no_grad():
            logits = [model(tokens()).logits for model in models]
        check(torch.equal(bits(logits[0]), bits(logits[1])), "export --quantize: other logits than the package's folder")


# What is stored of a weight, in the order in which a map's operations take it.
PARTS = ("weight_packed", "weight", "weight_scale", "weight_scale_inv", "weight_zero_point", "weight_global_scale", "weight_scale_2", "weight_shape")
ALONE = "mlp.down_proj"   # shares its scale of scales with nothing


def check_map(path, folder, case, work):
    """One weight by the operations of a map, there and back."""
    wanted, ckpt = case["quantize"], tensors_of(folder / "ckpt")
    module = next((key.removesuffix(".weight") for key in case["quantized"] if key.endswith(f"{ALONE}.weight")), None)
    if module is None or is_static(config_of(folder / "ckpt")["quantization_config"]):   # kept, or with the zeros of a calibration
        return
    parts = [part for part in PARTS if f"{module}.{part}" in ckpt]
    do = {"op": "quantize", "scheme": wanted["scheme"], "dialect": wanted["dialect"], "from": case["dequantized_dtype"][0]}
    do |= {"group": wanted["group"]} if wanted["group"] else {}
    rules = {"rule": [{"from": f"{{m:**}}.{ALONE}.weight", "to": [f"{{m}}.{ALONE}.{part}" for part in parts], "do": [do]},
                      {"from": "{rest:**}", "to": "{rest}"}]}
    (work / "rules.json").write_text(json.dumps(rules))
    there, back = work / "there.safetensors", work / "back.safetensors"
    tool(path, "map", work / "rules.json", folder / "source", there)
    names = [f"{module}.{part}" for part in parts]
    made = load_file(there)
    compare({name: made.get(name) for name in names}, {name: ckpt[name] for name in names}, "map")
    tool(path, "map", work / "rules.json", there, back, "--reverse")
    compare({f"{module}.weight": load_file(back)[f"{module}.weight"]},
            {f"{module}.weight": load_file(folder / "dequantized.safetensors")[f"{module}.weight"]}, "map --reverse")


def longer(value):
    return value.repeat(2) if value.ndim == 0 else torch.cat([value, value[:1]])


def damages(tensors):
    """(what, the tensors with it), for the first scale and the first packed tensor."""
    scale = next((key for key in sorted(tensors) if SCALES.search(key) and not key.endswith((*CALIBRATION, "pre_quant_scale"))), None)
    if scale is None:   # the package left everything as it was
        return
    yield f"{scale} has another shape", tensors | {scale: longer(tensors[scale])}
    yield f"{scale} is missing", {key: value for key, value in tensors.items() if key != scale}
    packed = next((key for key in sorted(tensors) if PACKED.search(key) and tensors[key].element_size() in (1, 4) and tensors[key].ndim > 1
                   and tensors[key].dtype != torch.float32), None)
    if packed:
        value = tensors[packed]
        cut = value[:-4] if value.shape[-1] == 1 else value[..., :-1]
        yield f"{packed} is cut", tensors | {packed: cut.contiguous()}


def check_damage(path, folder, case, work):
    file = folder / "ckpt" / "model.safetensors"
    if not file.exists():
        return
    with open(file, "rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    copy = work / "damaged"
    for what, tensors in damages(load_file(file)):
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for one in (folder / "ckpt").iterdir():
            if one.name != file.name:
                os.link(one, copy / one.name)
        save_file(tensors, copy / file.name, metadata=header.get("__metadata__"))
        tool(path, "export", copy, work / "made", "--dequantize", expect=(2,))
        check(not (work / "made").exists(), f"{what}, but a model was written")


CHECKS = {"dequantize": check_dequantize, "export": check_export, "map": check_map, "damage": check_damage}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--only", nargs="*", help="names of cases, schemes or checks")
    parser.add_argument("--random", type=int, default=0, help="how many random matrices to try")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    passed, left = 0, []
    failed = [f"not made: {line}" for line in json.loads((args.corpus / "left_out.json").read_text())]
    only = set(args.only or ())
    for file in sorted(args.corpus.glob("*/case.json")):
        case, folder = json.loads(file.read_text()), file.parent
        for name, one in CHECKS.items():
            if only and not only & {folder.name, case["scheme"], name} or (name in ("export", "map") and not case["quantize"]):
                continue
            with tempfile.TemporaryDirectory(dir=args.corpus) as work:
                try:
                    one(args.tool, folder, case, pathlib.Path(work))
                    passed += 1
                except Left as reason:
                    left.append(f"{folder.name}: {name}: {reason}")
                except Failure as failure:
                    failed.append(f"{folder.name}: {name}: {failure}")
                except Exception as error:   # of a package that does not take what the tool made
                    failed.append(f"{folder.name}: {name}: {type(error).__name__}: {str(error)[:400]}")
    if args.random:
        import quantized_random
        good, without, bad = quantized_random.search(args.tool, args.random, args.seed, args.corpus)
        passed, left, failed = passed + good, left + without, failed + bad
    print("\n".join([*(f"left out: {line}" for line in left), *(f"FAILED: {line}" for line in failed),
                     f"{passed} checks passed, {len(failed)} failed, {len(left)} left out: not supported"]))
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
