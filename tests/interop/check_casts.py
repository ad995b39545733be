# SPDX-License-Identifier: Apache-2.0
"""Casts of formats/bytes/base/cast.h against torch.Tensor.to, bit by bit.

    check_casts.py CAST_BYTES

Every pattern of the 8 and 16-bit types, and of the wider ones: every sign, exponent and top of the mantissa with the bits below
around where rounding changes, random patterns, and the values next to each value of each narrower type.
NaN need only be NaN again: PyTorch gives other payloads in vector and in scalar loops.
"""
import subprocess
import sys

import numpy as np
import torch

NARROW = ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]
TYPES = ["float64", "float32"] + NARROW
INTS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def tensor_of(bits, name):
    return torch.from_numpy(bits.view(np.uint8)).view(getattr(torch, name))


def bits_of(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().view(INTS[tensor.element_size()])


def float32_patterns():
    top = np.arange(1 << 16, dtype=np.uint32)[:, None] << 16      # sign, exponent, 7 bits of the mantissa
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x0FFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x3001], dtype=np.uint32)
    parts = [(top | low).ravel(), np.random.default_rng(5).integers(0, 1 << 32, 500_000, dtype=np.uint32)]
    for name in NARROW:     # and the neighbours of the middle between two values
        size = torch.empty(0, dtype=getattr(torch, name)).element_size()
        values = tensor_of(np.arange(1 << (8 * size), dtype=INTS[size]), name).to(torch.float64).numpy()
        values = np.unique(np.concatenate([values[np.isfinite(values)], [0.0]]))
        middles = ((values[1:] + values[:-1]) / 2).astype(np.float32)
        both = np.concatenate([values.astype(np.float32), middles])
        parts += [np.nextafter(both, np.float32(way)).view(np.uint32) for way in (np.inf, -np.inf)] + [both.view(np.uint32)]
    return np.concatenate(parts)


def float64_patterns(singles):
    exact = singles.view(np.float32).astype(np.float64)
    parts = [exact.view(np.uint64), np.random.default_rng(6).integers(0, 1 << 64, 500_000, dtype=np.uint64)]
    some = exact[np.isfinite(exact)][::7]
    parts += [np.nextafter(some, way).view(np.uint64) for way in (np.inf, -np.inf)]
    with np.errstate(over="ignore"):
        parts.append(((some + np.nextafter(some.astype(np.float32), np.float32(np.inf)).astype(np.float64)) / 2).view(np.uint64))
    return np.concatenate(parts)


def main():
    tool = sys.argv[1]
    np.seterr(all="ignore")
    singles = float32_patterns()
    doubles = float64_patterns(singles)
    failures, casts, elements = [], 0, 0
    for source in TYPES:
        size = torch.empty(0, dtype=getattr(torch, source)).element_size()
        bits = doubles if size == 8 else singles if size == 4 else np.arange(1 << (8 * size), dtype=INTS[size])
        tensor = tensor_of(bits, source)
        for target in TYPES:
            want = tensor.to(getattr(torch, target))
            made = subprocess.run([tool, source, target], input=bits.tobytes(), stdout=subprocess.PIPE, check=True).stdout
            got = tensor_of(np.frombuffer(made, dtype=np.uint8).copy(), target)
            nan = torch.isnan(want.to(torch.float64))
            bad = (bits_of(want) != bits_of(got)) & ~(nan & torch.isnan(got.to(torch.float64))).numpy()
            casts, elements = casts + 1, elements + len(bits)
            if bad.any():
                i = int(np.argmax(bad))
                failures.append(f"{source} -> {target}: {int(bad.sum())} of {len(bits)} differ, the first at {bits[i]:#x}:"
                                f" PyTorch {bits_of(want)[i]:#x}, here {bits_of(got)[i]:#x}")
    print("\n".join(failures) or f"{casts} casts of {elements} elements as torch {torch.__version__}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
