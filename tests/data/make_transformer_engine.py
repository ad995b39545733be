#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A folder of torch.distributed.checkpoint with FP8 parameters by Transformer Engine's own classes, and what it dequantizes them to.

  python make_transformer_engine.py SOURCES OUT      needs torch 2.11, pydantic; SOURCES holds transformer_engine/ of the wheel on PyPI

Transformer Engine itself needs a GPU: its compiled module is replaced by numbers, and its Python code, which pickles and dequantizes, is used.
"""
import enum
import importlib.machinery
import os
import shutil
import sys
import types

import torch
import torch.distributed.checkpoint as dcp

SOURCES, OUT = sys.argv[1:]


class Zeros(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return 0


class Compiled(types.ModuleType):
    # The numbers of transformer_engine.h.
    DType = enum.IntEnum("DType", {"kByte": 0, "kInt32": 2, "kFloat32": 4, "kFloat16": 5, "kBFloat16": 6, "kFloat8E4M3": 7, "kFloat8E5M2": 8, "kFloat4E2M1": 10})

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Zeros(name, (), {})


def package(*path):
    module = types.ModuleType(".".join(path))
    module.__path__ = [os.path.join(SOURCES, *path)]
    module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None, is_package=True)
    sys.modules[module.__name__] = module
    return module


sys.modules["transformer_engine_torch"] = Compiled("transformer_engine_torch")
package("transformer_engine")
package("transformer_engine", "common").decode_cudnn_version = lambda version: (0, 0, 0)
package("transformer_engine", "pytorch")

from transformer_engine.pytorch.constants import DType
from transformer_engine.pytorch.tensor.float8_tensor import _make_float8_tensor_in_reduce_ex as make

from transformer_engine.pytorch.tensor.float8_blockwise_tensor import Float8BlockQuantizer
from transformer_engine.pytorch.tensor.float8_blockwise_tensor import _make_float8_blockwise_tensor_in_reduce_ex as make_blocks

codes = torch.arange(256, dtype=torch.uint8).reshape(8, 32)
codes[codes % 128 > 123] = 1   # no NaN: PyTorch does not say which one a product has
tensors = {"e4m3": make(codes, DType.kFloat8E4M3, torch.tensor([0.37]), torch.bfloat16, codes.shape, None),
           "e5m2": make(codes, DType.kFloat8E5M2, torch.tensor([1.75]), torch.float32, codes.shape, None)}


def blocks(shape, kind, dtype, tiles):
    """A scale for each 128 by 128 elements; rows of scales are padded to multiples of 4."""
    torch.manual_seed(len(shape))
    data = torch.randint(0, 120, shape, dtype=torch.uint8) + 128 * torch.randint(0, 2, shape, dtype=torch.uint8)
    quantizer = Float8BlockQuantizer(fp8_dtype=kind, rowwise=True, columnwise=True)
    return make_blocks(torch.Size(shape), data, torch.rand(tiles) + 0.1, None, None, kind, dtype, quantizer, True)


tensors["blocks"] = blocks((130, 132), DType.kFloat8E4M3, torch.bfloat16, (2, 4))
tensors["stacked_blocks"] = blocks((2, 3, 256), DType.kFloat8E5M2, torch.float32, (1, 2))
shutil.rmtree(OUT, ignore_errors=True)
for kind in ("by_name", "by_value"):   # how Python 3.11, and 3.12, write members of an enumeration
    if kind == "by_value":
        DType.__reduce_ex__ = lambda self, protocol: (DType, (int(self),))
    dcp.save({"model": {**tensors, "bias": torch.ones(3)}}, checkpoint_id=os.path.join(OUT, kind), no_dist=True)
torch.save({"model": {**{name: tensor.dequantize().clone() for name, tensor in tensors.items()}, "bias": torch.ones(3)}}, os.path.join(OUT, "truth.pt"))
