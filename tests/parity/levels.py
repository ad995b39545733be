# SPDX-License-Identifier: Apache-2.0
"""Levels of kernels that PyTorch can be told to compute at, and how far two of them lie apart: the noise that every
bfloat16 training has, whoever wrote it."""
import os

import torch

# The vector instructions that each may use, by their names in ATen and oneDNN.  Only the latter has kernels of bfloat16 instructions.
LEVELS = {
    "avx512": {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "default": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
}
VARIABLES = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")


def below():
    """The next level below this processor's own, or below what the environment says; None: there is none."""
    capability = torch.backends.cpu.get_cpu_capability()
    return {"AVX512": "avx2", "AVX2": "default"}.get(capability)


def environment():
    """Returns the present values of the variables."""
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def relative(found, expected):
    """Like compare.cpp: the largest |a - b| / |b|."""
    a, b = torch.tensor(found, dtype=torch.float64).flatten(), torch.tensor(expected, dtype=torch.float64).flatten()
    return ((a - b).abs() / b.abs()).max().item() if b.numel() else 0.0


def without_key_bias(bias):
    """See compare.cpp."""
    first, _, last = bias.chunk(3)
    return torch.cat([first, last])


def apart(case, found, expected):
    """Returns how far two trainings of a case lie apart, as compare.cpp measures it; each is (record, tensors)."""
    (a, tensors_a), (b, tensors_b) = found, expected
    weights = 0.0
    for name, value in tensors_b.items():
        pair = tensors_a[name].double(), value.double()
        if case["optimizer"] == "adamw" and "qkv.bias" in name:
            pair = tuple(map(without_key_bias, pair))
        weights = max(weights, ((pair[0] - pair[1]).abs() / (1 + pair[1].abs())).max().item())
    losses = max(relative(a[key], b[key]) for key in ("losses", "evaluations"))
    return {"losses": losses, "norms": relative(a["norms"], b["norms"]), "weights": weights}


def widest(floors):
    return {key: max(floor[key] for floor in floors) for key in ("losses", "norms", "weights")}
