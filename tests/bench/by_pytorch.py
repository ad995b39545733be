# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of the benchmarks: the same work by PyTorch. Prints the seconds of the work itself, without imports.

  python by_pytorch.py consolidate FOLDER FULL.pt  |  metadata FOLDER  |  equal A.pt B.pt
"""
import sys
import time

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save


def leaves(x, path=()):
    if isinstance(x, dict):
        for k, v in x.items():
            yield from leaves(v, path + (k,))
    elif isinstance(x, (list, tuple)):
        for i, v in enumerate(x):
            yield from leaves(v, path + (i,))
    else:
        yield path, x


what, args = sys.argv[1], sys.argv[2:]
begin = time.perf_counter()
if what == "consolidate":
    dcp_to_torch_save(*args)
elif what == "metadata":
    FileSystemReader(args[0]).read_metadata()
else:
    a, b = (dict(leaves(torch.load(p, mmap=True, weights_only=True))) for p in args)
    assert list(a) == list(b), "the keys differ"
    for k in a:
        assert torch.equal(a[k], b[k]) if isinstance(a[k], torch.Tensor) else a[k] == b[k], f"{k} differs"
print(time.perf_counter() - begin)
