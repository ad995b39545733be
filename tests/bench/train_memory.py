# SPDX-License-Identifier: Apache-2.0
"""The most memory that a rank of FSDP2 holds, by PyTorch's own FSDPMemTracker, without other ranks and without a device.

  python train_memory.py width=W layers=L vocabulary=V length=N batch=B ranks=R

Prints MiB: with AdamW's state, which is added to what the tracker finds with an optimizer that has none.  Activations are left out: the data
is one token.
"""
import json
import sys
import warnings

warnings.simplefilter("ignore")

import torch
import torch.distributed as dist
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.testing._internal.distributed.fake_pg import FakeStore

from train_step import DEFAULTS, GPT, sharded


def main():
    settings = DEFAULTS | {"kind": "fsdp2"} | dict(argument.split("=") for argument in sys.argv[1:])
    dist.init_process_group("fake", rank=0, world_size=int(settings["ranks"]), store=FakeStore())
    model = sharded(GPT(*(int(settings[name]) for name in ("width", "layers", "vocabulary", "length"))), settings, torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    tracker = FSDPMemTracker(model, optimizer)
    data = torch.zeros(1, 1, dtype=torch.long)
    tracker.track_inputs((data,))
    with tracker:
        for step in range(2):
            model(data).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 0:
                tracker.reset_mod_stats()
    (peak,) = (snapshot["Total"] for snapshot in tracker.get_tracker_snapshot("peak").values())
    shards = sum(p.to_local().nbytes for p in model.parameters())
    print(json.dumps({"mib": (peak + 2 * shards) / 2**20}))


main()
