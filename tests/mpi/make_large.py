# SPDX-License-Identifier: Apache-2.0
"""Writes the `.metadata` of a Llama of 405 billion parameters with both moments of AdamW, as PyTorch 2.11 does for FSDP2, and sparse data files:
only every RANKSth tensor is there, and is zero.

  python make_large.py OUT RANKS LAYERS      126 layers are the whole model: 4.9 TB of float32
"""
import gc
import io
import os
import pickle
import sys

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties, TensorStorageMetadata

WIDTH, INNER, KEYS, WORDS = 16384, 53248, 1024, 128256
OVERHEAD = 1577 - 24                                  # of a tensor item: bytes besides the data


def item(shape):
    """The beginning and the end of what torch.save makes of zeros."""
    zeros, out = torch.zeros(shape), io.BytesIO()
    torch.save(zeros, out)
    whole = out.getvalue()
    size = zeros.numel() * 4
    begin = whole.index(bytes(size))
    return whole[:begin], size, whole[begin + size:]


def parameters(layers):
    yield "tok_embeddings.weight", (WORDS, WIDTH)
    for layer in range(layers):
        at = f"layers.{layer}."
        for name, shape in (("attention.wq", (WIDTH, WIDTH)), ("attention.wk", (KEYS, WIDTH)), ("attention.wv", (KEYS, WIDTH)),
                            ("attention.wo", (WIDTH, WIDTH)), ("feed_forward.w1", (INNER, WIDTH)), ("feed_forward.w2", (WIDTH, INNER)),
                            ("feed_forward.w3", (INNER, WIDTH)), ("attention_norm", (WIDTH,)), ("ffn_norm", (WIDTH,))):
            yield f"{at}{name}.weight", shape
    yield "norm.weight", (WIDTH,)
    yield "output.weight", (WORDS, WIDTH)


def main():
    out, ranks, layers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    gc.disable()                                      # there are millions of objects, but no garbage
    os.makedirs(out)
    state, storage, end, items, written = {}, {}, [0] * ranks, {}, [[] for _ in range(ranks)]
    for prefix, suffix in (("model.", ""), ("optimizer.state.", ".exp_avg"), ("optimizer.state.", ".exp_avg_sq")):
        for name, shape in parameters(layers):
            key, rest = prefix + name + suffix, shape[1:]
            rows = -(-shape[0] // ranks)              # as torch.chunk cuts
            chunks = []
            for r in range(ranks):
                count = min(rows, shape[0] - r * rows)
                if count <= 0:
                    break
                chunk = ChunkStorageMetadata(torch.Size([r * rows, *(0 for _ in rest)]), torch.Size([count, *rest]))
                chunks.append(chunk)
                length = OVERHEAD + chunk.sizes.numel() * 4
                if len(state) % ranks in (0, ranks - 1):  # those at which the first and the last rank of a job of as many look
                    if chunk.sizes not in items:
                        items[chunk.sizes] = item(chunk.sizes)
                    begin, size, rest_of = items[chunk.sizes]
                    length = len(begin) + size + len(rest_of)
                    written[r] += [(end[r], begin), (end[r] + len(begin) + size, rest_of)]
                storage[MetadataIndex(key, chunk.offsets, r)] = _StorageInfo(f"__{r}_0.distcp", end[r], length)
                end[r] += length
            state[key] = TensorStorageMetadata(TensorProperties(), torch.Size(shape), chunks)
    for r in range(ranks):
        with open(os.path.join(out, f"__{r}_0.distcp"), "wb") as f:
            f.truncate(end[r])
            for at, piece in written[r]:
                f.seek(at)
                f.write(piece)
    with open(os.path.join(out, ".metadata"), "wb") as f:
        pickle.dump(Metadata(state_dict_metadata=state, storage_data=storage), f, protocol=4)


main()
os._exit(0)                                           # freeing them one by one takes longer than making them
