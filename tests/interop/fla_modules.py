# SPDX-License-Identifier: Apache-2.0
"""A stand-in for flash-linear-attention, whose kernels need a GPU: modules with the parameters of fla-core 0.6.0, which nothing runs."""
import importlib.util
import sys
import types

import torch
from torch import nn


class ShortConvolution(nn.Conv1d):
    def __init__(self, hidden_size, kernel_size, bias=False, activation="silu", backend="triton", device=None, dtype=None):
        super().__init__(hidden_size, hidden_size, kernel_size, groups=hidden_size, bias=bias, device=device, dtype=dtype)


class FusedRMSNormGated(nn.Module):
    def __init__(self, hidden_size, elementwise_affine=True, eps=1e-5, activation="swish", device=None, dtype=None):
        super().__init__()
        self.register_parameter("weight", nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype)) if elementwise_affine else None)


def kernel(*args, **kwargs):
    raise NotImplementedError("fla is not installed: tests/interop/fla_modules.py has its parameters alone")


def install():
    """Stands in, where the package itself is not installed."""
    if importlib.util.find_spec("fla"):
        return
    parts = {"fla": (), "fla.modules": (ShortConvolution, FusedRMSNormGated), "fla.ops": (), "fla.ops.kda": ("chunk_kda", "fused_recurrent_kda"),
             "fla.ops.kda.gate": ("fused_kda_gate",)}
    for name, what in parts.items():
        sys.modules[name] = types.ModuleType(name)
        for one in what:
            setattr(sys.modules[name], one if isinstance(one, str) else one.__name__, kernel if isinstance(one, str) else one)
