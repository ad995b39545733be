# SPDX-License-Identifier: Apache-2.0
"""Writes the `.metadata` of TENSORS parameters cut over RANKS ranks, with PyTorch's own classes and pickler.

  python make_metadata.py OUT RANKS TENSORS      RANKS x TENSORS chunks; the data files are sparse, of the right size;
only the value `step` is there
"""
import gc
import io
import os
import pickle
import sys

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (BytesStorageMetadata, ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties,
                                                   TensorStorageMetadata)

COLUMNS, OVERHEAD = 512, 1577 - 24                    # of a tensor item: bytes besides the data


def name(t):
    return f"model.layers.{t // 10}.block.{t % 10}.weight"


def main():
    out, ranks, tensors = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    gc.disable()                                      # there are millions of objects, but no garbage
    os.makedirs(out)
    state, plan, storage, end, lengths = {}, {}, {}, [0] * ranks, []
    for t in range(tensors):
        key, rows = name(t), 1 + t % 3
        chunks = [ChunkStorageMetadata(torch.Size([r * rows, 0]), torch.Size([rows, COLUMNS])) for r in range(ranks)]
        state[key] = TensorStorageMetadata(TensorProperties(), torch.Size([ranks * rows, COLUMNS]), chunks)
        plan[key] = ("model", key[len("model."):])
        lengths.append(OVERHEAD + rows * COLUMNS * 4)
    keys = list(state)
    for r in range(ranks):                            # each rank sent its results: its own strings, shared within the rank
        file = f"__{r}_0.distcp"
        for t in range(tensors):
            storage[MetadataIndex(name(t), state[keys[t]].chunks[r].offsets, r)] = _StorageInfo(file, end[r], lengths[t])
            end[r] += lengths[t]
    state["step"], plan["step"] = BytesStorageMetadata(), ("step",)
    step = io.BytesIO()
    torch.save(7, step)
    storage[MetadataIndex("step")] = _StorageInfo("__0_0.distcp", end[0], len(step.getvalue()))
    for r in range(ranks):
        with open(os.path.join(out, f"__{r}_0.distcp"), "wb") as f:
            f.truncate(end[r])
            if r == 0:
                f.seek(end[0])
                f.write(step.getvalue())
    with open(os.path.join(out, ".metadata"), "wb") as f:
        pickle.dump(Metadata(state_dict_metadata=state, planner_data=plan, storage_data=storage), f, protocol=4)


main()
os._exit(0)                                           # freeing them one by one takes longer than making them
