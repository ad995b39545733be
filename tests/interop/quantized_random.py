# SPDX-License-Identifier: Apache-2.0
"""Random matrices, one a folder, quantized and read by the functions of compressed-tensors and ModelOpt, and by the tool.

Shapes, dtypes and values are drawn: rows of other sizes by powers of two, zeros, ties, denormals, equal values, the largest values.
"""
import contextlib
import copy
import io
import json
import pathlib
import tempfile

import torch
from safetensors.torch import save_file

from quantized_compare import Left, compare, tool
from quantized_producers import tensors_of
from tool_run import Failure

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
KEY = "model.layers.0.mlp.down_proj"
# Scheme of the tool: preset of compressed-tensors, configuration of ModelOpt, multiple of columns, and of rows.
SCHEMES = {
    "fp8-channel": ("FP8_DYNAMIC", "FP8_PER_CHANNEL_PER_TOKEN_CFG", 1, 1), "fp8-block": ("FP8_BLOCK", "FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG", 1, 1),
    "int8-group": ("W8A16", None, 128, 1), "int8": ("W8A8", "INT8_WEIGHT_ONLY_CFG", 1, 1), "int4": ("W4A16", "INT4_BLOCKWISE_WEIGHT_ONLY_CFG", 128, 2),
    "int4-asym": ("W4A16_ASYM", None, 128, 1), "nvfp4": ("NVFP4A16", "W4A16_NVFP4_CFG", 16, 1), "mxfp4": ("MXFP4A16", "MXFP4_DEFAULT_CFG", 32, 1),
    "mxfp8": ("MXFP8A16", "MXFP8_DEFAULT_CFG", 32, 1), "fp8-tensor": (None, "FP8_DEFAULT_CFG", 1, 1),
}

# Schemes whose groups compressed-tensors has of any size, and sizes of them.
GROUPED, GROUPS = ("int8-group", "int4", "int4-asym"), (1, 2, 3, 7, 16, 24, 32, 64, 100, 128, 256)


def draw(generator, rows, columns, dtype):
    def pick(low, high):
        return int(torch.randint(low, high, (), generator=generator))
    info = torch.finfo(dtype)
    low = int(torch.log2(torch.tensor(info.smallest_normal))) if dtype != torch.float16 else -20
    high = int(torch.log2(torch.tensor(info.max)))
    weight = torch.randn(rows, columns, generator=generator)
    for row in range(rows):
        way = pick(0, 10)
        if way < 3:
            weight[row] *= 2.0 ** pick(-8, 4)
        elif way == 3:
            weight[row] *= 2.0 ** pick(low, high - 3)
        elif way == 4:
            weight[row] = (weight[row] * 8).round() / 16            # ties
        elif way == 5:
            weight[row] *= (torch.rand(columns, generator=generator) < 0.2)
        elif way == 6:
            weight[row] = weight[row, 0]
        elif way == 7:
            weight[row, : pick(0, columns) + 1] = 0
        elif way == 8:
            weight[row] *= info.smallest_normal                     # denormals
        else:
            weight[row, pick(0, columns)] = 2.0 ** pick(0, high)
    if pick(0, 8) == 0:
        weight[pick(0, rows), pick(0, columns)] = info.max
    return weight.clamp(info.min, info.max).to(dtype)


def compressed(weight, preset, group):
    """The tensors of compressed-tensors for one weight, what it reads from them, and its configuration."""
    from compressed_tensors.compressors import compress_module, decompress_module
    from compressed_tensors.quantization import QuantizationConfig, preset_name_to_scheme
    from compressed_tensors.utils import get_direct_state_dict
    from llmcompressor.entrypoints.model_free.lifecycle import calibrate_weight, initialize_quantized_linear
    scheme = preset_name_to_scheme(preset, ["Linear"])
    if group:
        scheme.weights.group_size = group
    module = initialize_quantized_linear(weight, copy.deepcopy(scheme), "cpu")
    calibrate_weight(module)
    compress_module(module)
    scheme = module.quantization_scheme
    config = QuantizationConfig(config_groups={preset: scheme}, format=scheme.format.value, quantization_status="compressed", ignore=["lm_head"])
    tensors = {f"{KEY}.{name}": value.clone() for name, value in get_direct_state_dict(module).items() if value is not None}
    decompress_module(module)
    return tensors, {f"{KEY}.weight": module.weight.data.clone()}, {"quant_method": "compressed-tensors"} | config.model_dump(mode="json")


class One(torch.nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
        self.linear.weight.data.copy_(weight)

    def forward(self, values):
        return self.linear(values)


def exported(weight, config):
    """The tensors of ModelOpt for one weight."""
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export.unified_export_hf import _export_quantized_weight
    values = torch.linspace(-1, 1, weight.shape[1]).to(weight.dtype)[None]
    model = mtq.quantize(One(weight), getattr(mtq, config), forward_loop=lambda one: one(values))
    _export_quantized_weight(model.linear, weight.dtype)
    return {f"{KEY}.{name}": value for name, value in model.linear.state_dict().items() if "quantizer" not in name and name != "input_scale"}


def write(folder, tensors, dtype, quantization=None):
    folder.mkdir()
    config = {"model_type": "own", "dtype": str(dtype).removeprefix("torch.")} | ({"quantization_config": quantization} if quantization else {})
    (folder / "config.json").write_text(json.dumps(config))
    save_file({key: value.contiguous() for key, value in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"})


def search(tool_path, count, seed, where):
    """How many checks passed, what was left out, what failed."""
    generator = torch.Generator().manual_seed(seed)
    passed, left, failed = 0, set(), []
    names = [(scheme, dialect) for scheme, (preset, config, *_) in SCHEMES.items()
             for dialect, there in (("compressed-tensors", preset), ("modelopt", config)) if there]
    for index in range(count):
        scheme, dialect = names[index % len(names)]
        preset, config, each, pairs = SCHEMES[scheme]
        group = None
        if dialect == "compressed-tensors" and scheme in GROUPED:
            group = each = GROUPS[int(torch.randint(0, len(GROUPS), (), generator=generator))]
        dtype = DTYPES[int(torch.randint(0, len(DTYPES), (), generator=generator))]
        rows = int(torch.randint(1, 40, (), generator=generator)) * pairs
        columns = int(torch.randint(1, 5 if each > 1 else 300, (), generator=generator)) * each
        weight = draw(generator, rows, columns, dtype)
        label = f"random {index} of seed {seed}: {scheme} {dialect} {dtype} {rows}x{columns} groups of {group}"
        with tempfile.TemporaryDirectory(dir=where) as work, contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            work = pathlib.Path(work)
            try:
                if dialect == "modelopt":
                    want, read, quantization = exported(weight, config), None, None
                else:
                    want, read, quantization = compressed(weight, preset, group)
            except Exception as refusal:   # the package's, of a weight that it cannot take, such as one row for a scale a row
                left.add(f"{scheme} {dialect}: the package refuses a weight of {rows} rows: {type(refusal).__name__}: {str(refusal)[:80]}")
                continue
            try:
                write(work / "source", {f"{KEY}.weight": weight}, dtype)
                tool(tool_path, "export", work / "source", work / "out", "--quantize", scheme, "--quantize-dialect", dialect,
                     *(["--quantize-group", group] if group else []))
                compare(tensors_of(work / "out"), want, "export --quantize")
                passed += 1
                if read:
                    write(work / "ckpt", want, dtype, quantization)
                    tool(tool_path, "export", work / "ckpt", work / "read", "--dequantize", "--dtype",
                         str(read[f"{KEY}.weight"].dtype).removeprefix("torch."))
                    compare(tensors_of(work / "read"), read, "dequantize")
                    passed += 1
            except Left as reason:
                left.add(f"{scheme} {dialect}: {reason}")
            except Failure as failure:
                failed.append(f"{label}: {failure}")
    return passed, sorted(left), failed
