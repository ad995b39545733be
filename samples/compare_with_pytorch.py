# SPDX-License-Identifier: Apache-2.0
"""Reports whether a consolidated file holds exactly what PyTorch reads from the sharded folder.

  python compare_with_pytorch.py FOLDER FULL.pt
"""
import os
import sys
import tempfile

import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save


def same(a, b, at, count):
    if type(a) is not type(b):
        sys.exit(f"{at}: {type(a).__name__} against {type(b).__name__}")
    if isinstance(a, torch.Tensor):
        count["tensors"] += 1
        if a.dtype != b.dtype or a.shape != b.shape or not torch.equal(a, b):
            sys.exit(f"{at}: the tensors differ")
    elif isinstance(a, dict):
        if list(a) != list(b):
            sys.exit(f"{at}: keys {list(a)} against {list(b)}")
        for k in a:
            same(a[k], b[k], f"{at}/{k}", count)
    elif isinstance(a, (list, tuple)):
        if len(a) != len(b):
            sys.exit(f"{at}: {len(a)} elements against {len(b)}")
        for i, (x, y) in enumerate(zip(a, b)):
            same(x, y, f"{at}/{i}", count)
    else:
        count["values"] += 1
        if a != b:
            sys.exit(f"{at}: {a!r} against {b!r}")


full = torch.load(sys.argv[2], weights_only=True)
with tempfile.TemporaryDirectory() as tmp:
    dcp_to_torch_save(sys.argv[1], os.path.join(tmp, "full.pt"))
    expected = torch.load(os.path.join(tmp, "full.pt"), weights_only=False)
beside = os.path.join(sys.argv[1], "meta.pt")   # meta.pt holds the values that every rank has, for Lightning and libfsdp
if os.path.exists(beside):
    expected.update(torch.load(beside, weights_only=True))
count = {"tensors": 0, "values": 0}
same(expected, full, "", count)
print(f"identical: {count['tensors']} tensors and {count['values']} values, in the same nesting and order")
