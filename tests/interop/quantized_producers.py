# SPDX-License-Identifier: Apache-2.0
"""What the packages that quantize make of a source folder, and what they read from it.

Each function writes the folder `ckpt` as the package does and returns {key: tensor}, the weights that the package itself reads from it, by the names of
the unquantized model, in the dtype that the package gives.
"""
import json
import shutil
import types

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

CALIBRATION = {"length": 16, "samples": 2}
NOT_QUANTIZED = ["lm_head", "model.embed_tokens", "re:.*mlp\\.gate$"]


def tensors_of(folder):
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


def tokens(vocabulary=32):
    generator = torch.Generator().manual_seed(7)
    return torch.randint(0, vocabulary, (CALIBRATION["samples"], CALIBRATION["length"]), generator=generator)


def grouped(tensors, parts):
    """{module: {part: tensor}} of the modules that have the first part, and the rest."""
    modules = {key.rpartition(".")[0] for key in tensors if key.rpartition(".")[2] == parts[0]}
    found = {module: {part: tensors[f"{module}.{part}"] for part in parts if f"{module}.{part}" in tensors} for module in sorted(modules)}
    taken = {f"{module}.{part}" for module, own in found.items() for part in own}
    return found, {key: value for key, value in tensors.items() if key not in taken}


def write_config(source, ckpt, quantization):
    """Copies what belongs to the model, and sets its quantization_config."""
    ckpt.mkdir(parents=True)
    for file in source.iterdir():
        if file.suffix != ".safetensors":
            shutil.copyfile(file, ckpt / file.name)
    config = json.loads((ckpt / "config.json").read_text()) | {"quantization_config": quantization}
    (ckpt / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


# ---- compressed-tensors

def decompressed(ckpt):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig
    config = QuantizationConfig.model_validate(json.loads((ckpt / "config.json").read_text())["quantization_config"])
    (scheme,) = config.config_groups.values()
    compressor = BaseCompressor.get_value_from_registry(scheme.format)
    names = compressor.compression_param_names(scheme)
    names = (names[0], *[name for name in ("weight_scale", "weight_shape", "weight_zero_point", "weight_global_scale") if name in names])
    result = {}
    modules, rest = grouped(tensors_of(ckpt), names)
    for module, parts in modules.items():
        result[f"{module}.weight"] = compressor.decompress(dict(parts), scheme)["weight"].detach() if len(parts) > 1 else parts["weight"]
    return result | {key: value for key, value in rest.items() if not key.endswith(("input_scale", "input_global_scale"))}


def compressed_tensors(source, ckpt, scheme, group=None, activations=True):
    """The data-free way of llmcompressor, or the one with data where a scheme has static activations."""
    from compressed_tensors.quantization import preset_name_to_scheme
    args = preset_name_to_scheme(scheme, ["Linear"])
    if group:
        args.weights.group_size = group
    if args.input_activations is not None and args.input_activations.dynamic is not True:
        calibrated(source, ckpt, scheme)
    else:
        from llmcompressor import model_free_ptq
        model_free_ptq(source, ckpt, scheme=args if group else scheme, ignore=NOT_QUANTIZED, device="cpu")
    return decompressed(ckpt)


def calibrated(source, ckpt, scheme):
    import datasets
    import tokenizers
    import transformers
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import QuantizationModifier
    model = transformers.AutoModelForCausalLM.from_pretrained(source)
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({str(i): i for i in range(32)}, unk_token="0"))
    oneshot(model=model, dataset=datasets.Dataset.from_dict({"input_ids": tokens().tolist()}), pipeline="basic", output_dir=str(ckpt),
            processor=transformers.PreTrainedTokenizerFast(tokenizer_object=words), max_seq_length=CALIBRATION["length"],
            num_calibration_samples=CALIBRATION["samples"],
            recipe=QuantizationModifier(targets="Linear", scheme=scheme, ignore=NOT_QUANTIZED))


# ---- ModelOpt

def modelopt(source, ckpt, config):
    import modelopt.torch.quantization as mtq
    import transformers
    from modelopt.torch.export import export_hf_checkpoint
    model = transformers.AutoModelForCausalLM.from_pretrained(source)
    dtype = model.dtype
    model = mtq.quantize(model, getattr(mtq, config), forward_loop=lambda quantized: quantized(tokens()))
    export_hf_checkpoint(model, export_dir=str(ckpt))
    algorithm = json.loads((ckpt / "hf_quant_config.json").read_text())["quantization"]["quant_algo"]
    modules, rest = grouped(tensors_of(ckpt), ("weight_scale", "weight", "weight_scale_2", "pre_quant_scale", "input_scale"))
    return {f"{module}.weight": modelopt_weight(algorithm, dtype, **parts) for module, parts in modules.items()} | rest


def modelopt_weight(algorithm, dtype, weight, weight_scale, weight_scale_2=None, pre_quant_scale=None, input_scale=None):
    from modelopt.torch.export.quant_utils import from_quantized_weight
    from modelopt.torch.quantization.qtensor import FP8QTensor, MXFP4QTensor, MXFP8QTensor, NVFP4QTensor
    doubled = torch.Size((weight.shape[0], weight.shape[1] * 2))
    if algorithm == "fp8_pb_wo":
        blocks = {-1: 128, -2: 128}
        value = FP8QTensor(weight.shape, dtype, weight).dequantize(dtype, scale=weight_scale.reshape(weight_scale.shape[0], -1), block_sizes=blocks)
    elif algorithm in ("FP8", "FP8_PER_CHANNEL_PER_TOKEN"):
        value = FP8QTensor(weight.shape, dtype, weight).dequantize(dtype, scale=weight_scale if weight_scale.ndim == 0 else weight_scale[:, None])
    elif algorithm in ("NVFP4", "W4A16_NVFP4"):
        value = NVFP4QTensor(doubled, dtype, weight).dequantize(dtype, scale=weight_scale, double_scale=weight_scale_2, block_sizes={-1: 16})
    elif algorithm == "mxfp4":
        value = MXFP4QTensor(doubled, dtype, weight).dequantize(dtype, scale=weight_scale, block_sizes={-1: 32})
    elif algorithm == "MXFP8":
        value = MXFP8QTensor(weight.shape, dtype, weight).dequantize(dtype, scale=weight_scale)
    elif algorithm == "W4A16_AWQ":
        # The package has no reader of what it exports: the code times its scale, and times the channel's where the activations were smoothed.
        codes = torch.stack((weight & 15, weight >> 4), 1).to(torch.int8).reshape(-1, weight.shape[1])
        codes = torch.where(codes > 7, codes - 16, codes)
        value = codes.float() * weight_scale.repeat_interleave(weight.shape[1] // weight_scale.shape[1], 1)
        return (value if pre_quant_scale is None else value * pre_quant_scale.float()).to(dtype)
    else:
        value = from_quantized_weight(weight, weight_scale, {"W8A16": "int8_wo", "W8A8_SQ_PER_CHANNEL": "int8_sq"}[algorithm], dtype)
    return value if pre_quant_scale is None else (value.float() * pre_quant_scale.float()).to(dtype)


# ---- transformers

def loaded(ckpt):
    """What transformers itself makes of a folder on a machine without an accelerator: weights that are no longer quantized."""
    import transformers
    quantized = transformers.AutoModelForCausalLM.from_pretrained(ckpt)
    # Into a model that knows nothing of it: saving the one that was read would quantize again.
    plain = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(ckpt.parent / "source"))
    plain = plain.to(quantized.dtype)
    plain.load_state_dict(quantized.state_dict())
    saved = ckpt.parent / "loaded"
    plain.save_pretrained(saved)
    result = tensors_of(saved)
    shutil.rmtree(saved)
    return result


def finegrained_fp8(source, ckpt, blocks, scale_fmt=None):
    import transformers
    from transformers.integrations.finegrained_fp8 import Fp8Quantize
    extra = {"scale_fmt": scale_fmt} if scale_fmt else {}
    config = transformers.FineGrainedFP8Config(weight_block_size=blocks, modules_to_not_convert=["lm_head"], **extra)
    quantize, result = Fp8Quantize(types.SimpleNamespace(quantization_config=config)), {}
    for key, value in tensors_of(source).items():
        plain = value.ndim != 2 or "embed" in key or "lm_head" in key or key.endswith("mlp.gate.weight")
        result |= {key: value} if plain else quantize._quantize_one(key, value)
    write_config(source, ckpt, config.to_dict())
    save_file({key: value.contiguous() for key, value in result.items()}, ckpt / "model.safetensors", metadata={"format": "pt"})
    return loaded(ckpt)


def mxfp4_gpt_oss(source, ckpt, seed=3):
    """Every code of E2M1 and most scales: the package quantizes on an accelerator only, and reads everywhere."""
    import transformers
    generator = torch.Generator().manual_seed(seed)
    result = {}
    for key, value in tensors_of(source).items():
        if key.endswith(("gate_up_proj", "down_proj")):
            experts, inner, outer = value.shape
            result[key + "_blocks"] = torch.randint(0, 256, (experts, outer, inner // 32, 16), generator=generator, dtype=torch.uint8)
            scales = torch.randint(118, 124, (experts, outer, inner // 32), generator=generator, dtype=torch.uint8)
            scales[0, 3:9, 0] = torch.tensor([0, 1, 60, 110, 126, 127], dtype=torch.uint8)
            result[key + "_scales"] = scales
        else:
            result[key] = value
    write_config(source, ckpt, transformers.Mxfp4Config(modules_to_not_convert=["lm_head", "model.embed_tokens"]).to_dict())
    save_file(result, ckpt / "model.safetensors", metadata={"format": "pt"})
    return loaded(ckpt)


def bitsandbytes(source, ckpt, **options):
    import transformers
    config = transformers.BitsAndBytesConfig(**options)
    transformers.AutoModelForCausalLM.from_pretrained(source, quantization_config=config, device_map="cpu").save_pretrained(ckpt)
    model = transformers.AutoModelForCausalLM.from_pretrained(ckpt, device_map="cpu")
    weights = {f"{name}.weight": four_bits(module.weight) for name, module in model.named_modules() if type(module).__name__ == "Linear4bit"}
    plain = {key: value.detach().contiguous() for key, value in model.dequantize().state_dict().items()}
    if model.config.tie_word_embeddings:
        del plain["lm_head.weight"]
    return plain | weights


def four_bits(weight):
    """By the package's code for every device: its code for this processor takes the wrong blocks where 64 does not divide a row, and has no denormals."""
    from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
    from bitsandbytes.functional import dequantize_blockwise
    state = weight.quant_state
    absmax = dequantize_blockwise(state.absmax, state.state2) + state.offset if state.nested else state.absmax
    return _dequantize_4bit_compute(weight.data.reshape(-1), absmax, state.code, state.blocksize, state.shape, state.dtype)


def torchao(source, ckpt, config, pickled=False):
    """`config`: the call that makes the configuration, with names of torchao.quantization and of its prototype of MX formats."""
    import torchao.prototype.mx_formats
    import torchao.quantization
    import transformers
    names = {"torch": torch} | vars(torchao.prototype.mx_formats) | vars(torchao.quantization)
    config = transformers.TorchAoConfig(quant_type=eval(config, names))
    model = transformers.AutoModelForCausalLM.from_pretrained(source, quantization_config=config, device_map="cpu")
    model.save_pretrained(ckpt)
    if pickled:
        torch.save(model.state_dict(), ckpt / "pytorch_model.bin")
        (ckpt / "model.safetensors").unlink()
    return {key: (value.dequantize() if hasattr(value, "qdata") else value).detach().contiguous() for key, value in model.state_dict().items()}


# ---- AWQ and GPTQ

def packed_linears(source, ckpt, quantization, pack):
    """Packs every Linear of the source.  `pack` takes the Linear and returns its tensors and the weight that is read from them."""
    result, read = {}, {}
    for key, value in tensors_of(source).items():
        if value.ndim != 2 or "embed" in key or "lm_head" in key or key.endswith("mlp.gate.weight"):
            result[key] = read[key] = value
            continue
        linear = torch.nn.Linear(value.shape[1], value.shape[0], bias=False, dtype=value.dtype)
        linear.weight.data.copy_(value)
        own, read[key] = pack(linear)
        module = key.removesuffix(".weight")
        result |= {f"{module}.{name}": tensor.contiguous() for name, tensor in own.items()}
    write_config(source, ckpt, quantization)
    save_file(result, ckpt / "model.safetensors", metadata={"format": "pt"})
    return {key: value.contiguous() for key, value in read.items()}


def autoawq(source, ckpt, group):
    from awq.models._config import AwqConfig
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.quantize.quantizer import AwqQuantizer
    from awq.utils.packing_utils import dequantize_gemm
    settings = types.SimpleNamespace(group_size=group, zero_point=True, w_bit=4)

    def pack(linear):
        linear.weight.data, scales, zeros = AwqQuantizer.pseudo_quantize_tensor(settings, linear.weight.data)
        packed = WQLinear_GEMM.from_linear(linear, 4, group, False, scales.t().contiguous(), zeros.t().contiguous())
        own = {name: getattr(packed, name) for name in ("qweight", "qzeros", "scales")}
        return own, dequantize_gemm(packed.qweight, packed.qzeros, packed.scales, 4, group).t()

    config = AwqConfig(quant_method="awq", zero_point=True, q_group_size=group, w_bit=4, version="gemm", modules_to_not_convert=["lm_head"])
    return packed_linears(source, ckpt, config.to_transformers_dict(), pack)


def gptqmodel(source, ckpt, bits, group, act_order=False, symmetric=True, format="gptq"):
    from gptqmodel import QuantizeConfig
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.quantization import FORMAT
    from gptqmodel.quantization.quantizer import Quantizer
    from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module
    config = QuantizeConfig(bits=bits, group_size=group, desc_act=act_order, sym=symmetric, format=format)
    generator = torch.Generator().manual_seed(11)

    def pack(linear):
        weight, (rows, columns) = linear.weight.data.float(), linear.weight.shape
        order = torch.randperm(columns, generator=generator) if act_order else torch.arange(columns)
        scales, zeros, group_of = [], [], torch.empty(columns, dtype=torch.int32)
        for index, own in enumerate(order.split(group)):
            quantizer = Quantizer(config)
            quantizer.configure(perchannel=True)
            quantizer.find_params(weight[:, own], weight=True)
            scales.append(quantizer.scale)
            zeros.append(quantizer.zero)
            group_of[own] = index
        packed = TorchLinear(bits=bits, group_size=group, sym=symmetric, desc_act=act_order, in_features=columns, out_features=rows)
        packed.pack(linear.float(), torch.cat(scales, 1), torch.cat(zeros, 1), group_of, workers=1)
        packed.post_init()
        read = packed.dequantize_weight().t().clone()
        if FORMAT(format) == FORMAT.GPTQ:
            convert_gptq_v2_to_v1_format_module(packed, config)
        return {name: getattr(packed, name).clone() for name in ("qweight", "qzeros", "scales", "g_idx")}, read

    return packed_linears(source, ckpt, {"quant_method": "gptq"} | config.to_dict(), pack)
