# SPDX-License-Identifier: Apache-2.0
"""Runs the tool on quantized folders, and compares tensors bit for bit."""
import subprocess

import torch

from tool_run import Failure, check


# What the tool says of folders that it cannot read, and of matrices that it leaves to the user.
UNKNOWN = ("error[UNKNOWN_FORMAT]", "no tensors of quantized weights", "no matrix is left to quantize", "too large for a power of two", "has no finite scale")


class Left(Exception):
    """What the tool does not support."""


def tool(path, *args, expect=(0,)):
    """Its status and both outputs; Left where it says that this is not supported."""
    done = subprocess.run([path, *map(str, args)], capture_output=True, text=True, timeout=300)
    if done.returncode == 2 and any(words in done.stderr for words in UNKNOWN):
        raise Left(done.stderr.strip().splitlines()[-1][:300])
    check(done.returncode in expect, f"{' '.join(map(str, args))}: exit {done.returncode}, expected {expect}\n{done.stdout[-500:]}{done.stderr[-1500:]}")
    return done.returncode, done.stdout + done.stderr


def bits(tensor):
    """The bits as bytes, every NaN the same."""
    tensor = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)   # with the strides of its shape
    if tensor.is_floating_point():
        nan = tensor.isnan() if tensor.element_size() > 1 else tensor.float().isnan()
        if nan.any():
            tensor = tensor.clone().view(torch.uint8).reshape(*tensor.shape, -1)
            tensor[nan] = 255
            return tensor.reshape(-1)
    return tensor.reshape(-1).view(torch.uint8)


def compare(have, want, what):
    check(set(have) == set(want), f"{what}: missing {sorted(set(want) - set(have))[:5]}, unexpected {sorted(set(have) - set(want))[:5]}")
    for key in sorted(want):
        one, other = have[key], want[key]
        check(one.dtype == other.dtype and one.shape == other.shape,
              f"{what}: {key}: {one.dtype} {list(one.shape)}, expected {other.dtype} {list(other.shape)}")
        if not torch.equal(bits(one), bits(other)):
            size = other.element_size()
            differ = (bits(one).reshape(-1, size) != bits(other).reshape(-1, size)).any(1).nonzero().flatten()
            first = int(differ[0])
            raise Failure(f"{what}: {key}: {len(differ)} of {other.numel()} elements differ, the first at {first}: "
                          f"{one.flatten()[first].item()}, expected {other.flatten()[first].item()}")
