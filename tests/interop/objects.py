# SPDX-License-Identifier: Apache-2.0
"""Odd but legal contents of a checkpoint: every dtype, strange tensors, containers, keys and values."""
import argparse
import collections
import dataclasses

import numpy as np
import torch
from torch import nn

DTYPES = """float64 float32 float16 bfloat16 complex128 complex64 complex32 int64 int32 int16 int8 uint64 uint32 uint16
uint8 bool float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu""".split()


def every_dtype():
    torch.manual_seed(1)
    out = {n: (torch.rand(5, 3) * 4).to(getattr(torch, n)) for n in DTYPES}
    out["float4_e2m1fn_x2"] = torch.randint(0, 255, (4, 2), dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    return out


def tensors():
    torch.manual_seed(2)
    a, z = torch.rand(6, 4, 5), torch.randn(3, 4, dtype=torch.complex64)
    return {
        "scalar": torch.tensor(-1.5), "scalar_int": torch.tensor(2**40), "one": torch.ones(1), "empty": torch.empty(0),
        "empty_rows": torch.empty(0, 4), "empty_columns": torch.empty(3, 0), "rank_7": torch.rand(1, 2, 1, 3, 1, 2, 1),
        "transposed": a.transpose(0, 2), "permuted": a.permute(1, 2, 0), "strided": a[::2, 1:3, ::3], "expanded": torch.rand(3, 1).expand(3, 4),
        "channels_last": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last), "conj": z.conj(), "adjoint": z.mH,
        "neg": torch.randn(4, dtype=torch.complex64).conj().imag, "specials": torch.tensor([float("nan"), float("inf"), -0.0, 1e-45]),
        "parameter": nn.Parameter(torch.rand(2, 2)), "tied": [a, a], "view_of_tied": a[1],
    }


def values():
    return {
        "nested": {"list": [torch.ones(2), {"x": torch.zeros(3), "y": {"z": "deep"}}, 5, "text", None, True, 2.5],
                   "tuple": (1, "a", (2.0, None)), "tuple_with_tensor": (torch.arange(3), {"k": torch.ones(1)}),
                   "lists": [[1, 2], [3], []], "mixed": [[1, [2, torch.ones(1)]], "s"], "empty": {}, "empty_list": [], "empty_tuple": ()},
        "keys": {0: "int", 1: torch.ones(1), "dotted.key": 1, "..": 2, "": 3, "with space": torch.ones(1), "a/b": 4, "ключ": 5, "\u6f22\U0001f600": 6,
                 "quote\"'\\": 7, "new\nline": 8, "*": 9, "[0]": 10},
        "numbers": {"big": 2**70, "negative_big": -(2**70), "huge": 10**400, "int_edges": [0, -1, 255, 256, 65535, 65536, 2**31 - 1, 2**31, -(2**31), 2**63],
                    "floats": [0.0, -0.0, 1e308, 5e-324, float("inf"), 0.1], "complex": 1.5 - 2j, "bools": [True, False]},
        "text": {"empty": "", "unicode": "h\u00e9llo \U0001f600\n\0", "long": "x" * 70000},
        "bytes": {"some": bytes(range(256)), "bytearray": bytearray(b"\x00\xff")},
        "sets": {"set": {1, 2, 3}, "empty": set()},
        "torch": {"size": torch.Size([2, 3]), "dtype": torch.bfloat16, "device": torch.device("cpu"), "cuda": torch.device("cuda", 1)},
        "ordered": collections.OrderedDict([("b", 1), ("a", torch.ones(1))]),
        "ordered_in_tuple": (collections.OrderedDict([("b", 1), ("a", 2)]), collections.Counter("abca")),
        "none": None, "rng": torch.get_rng_state(),
    }


def values_beyond_weights_only():
    """Content that PyTorch itself reads back only with weights_only=False."""
    return {
        "numpy": {"float64": np.float64(1.5), "float32": np.float32(2.5), "int64": np.int64(-7), "bool": np.bool_(True),
                  "array": np.arange(6, dtype=np.int32).reshape(2, 3), "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
                  "empty": np.zeros((0, 2))},
        "empty_bytes": b"", "frozenset": frozenset({"a"}), "defaultdict": (collections.defaultdict(list, {"k": [1]}),),
        "namespace": argparse.Namespace(lr=0.1, layers=[1, 2], name="run"), "w": torch.ones(2),
    }


@dataclasses.dataclass
class Config:
    lr: float
    layers: list


def own_class():
    """Needs objects.Config to be allowed by name."""
    return {"w": torch.ones(2), "config": Config(0.1, [1, 2])}


def plain_training():
    """A state dict without FSDP: integer parameter ids, a scheduler."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
    opt = torch.optim.SGD([{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.5}], lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10)
    model(torch.randn(4, 3)).sum().backward()
    opt.step()
    schedule.step()
    return {"model": model.state_dict(), "optimizer": opt.state_dict(), "scheduler": schedule.state_dict(), "epoch": 1}
