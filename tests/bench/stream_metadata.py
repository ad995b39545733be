# SPDX-License-Identifier: Apache-2.0
"""Writes the `.metadata` that make_metadata.py writes, opcode by opcode, for more chunks than Python's objects would fit into memory.

  python stream_metadata.py OUT RANKS TENSORS      RANKS x TENSORS chunks; the data files are sparse, of the right size

With at most 10,000 chunks the file is loaded again and compared with PyTorch's own objects.  These need PyTorch; more chunks do not.
"""
import io
import os
import struct
import sys

COLUMNS, OVERHEAD = 512, 1577 - 24                    # of a tensor item: bytes besides the data
METADATA, FILES = "torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem"
NEW = b")\x81\x94"                                    # an object of a class on the stack, without arguments
BATCH = 1000                                          # items that PyTorch's pickler puts between MARK and SETITEMS or APPENDS


def name(t):
    return f"model.layers.{t // 10}.block.{t % 10}.weight"


def number(i):
    if i < 256:
        return b"K%c" % i
    if i < 65536:
        return b"M" + struct.pack("<H", i)
    return b"J" + struct.pack("<i", i) if i < 1 << 31 else b"\x8a\x08" + struct.pack("<q", i)


class Writer:
    """What was put once is fetched from the memo."""

    def __init__(self, file):
        self.file, self.count, self.known = file, 0, {}
        self.write = file.write
        self.write(b"\x80\x04")

    def put(self, code, memos=0):
        self.write(code)
        self.count += memos

    def keep(self, key):
        self.known[key] = b"h%c" % self.count if self.count < 256 else b"j" + struct.pack("<I", self.count)
        self.put(b"\x94", 1)

    def text(self, text):
        if text in self.known:
            return self.write(self.known[text])
        self.fresh(text)
        self.keep(text)

    def fresh(self, text):
        """A string of its own, however often the same was put before."""
        raw = text.encode()
        self.write(b"\x8c%c" % len(raw) + raw)

    def named(self, module, attribute):
        if (module, attribute) in self.known:
            return self.write(self.known[module, attribute])
        self.text(module)
        self.text(attribute)
        self.write(b"\x93")
        self.keep((module, attribute))

    def size(self, *sizes):
        self.named("torch", "Size")
        self.put(b"".join(map(number, sizes)) + b"\x86\x94\x85\x94R\x94", 3)

    def items(self, items, begin, end, put):
        """A list or a dict, in batches."""
        self.put(begin, 1)
        for first in range(0, len(items), BATCH):
            self.write(b"(")
            for item in items[first:first + BATCH]:
                put(item)
            self.write(end)


def write_metadata(file, ranks, tensors):
    w = Writer(file)

    def chunk(r, rows):
        w.named(METADATA, "ChunkStorageMetadata")
        w.put(NEW + b"}\x94(", 2)
        w.text("offsets")
        w.size(r * rows, 0)
        w.text("sizes")
        w.size(rows, COLUMNS)
        w.write(b"ub")

    def properties():
        w.text("properties")
        w.named(METADATA, "TensorProperties")
        w.put(NEW + b"(", 1)
        w.named("torch", "float32")
        if "strided" not in w.known:
            w.named("torch.serialization", "_get_layout")
            w.text("torch.strided")
            w.put(b"\x85\x94R", 1)
            w.keep("strided")
        else:
            w.write(w.known["strided"])
        w.write(b"\x89")
        if "contiguous" not in w.known:
            w.named("builtins", "getattr")
            w.named(METADATA, "_MEM_FORMAT_ENCODING")
            w.text("TORCH_CONTIGUOUS_FORMAT")
            w.put(b"\x86\x94R", 1)
            w.keep("contiguous")
        else:
            w.write(w.known["contiguous"])
        w.put(b"\x89t\x94b", 1)

    def tensor(t):
        w.text(name(t))
        rows = 1 + t % 3
        w.named(METADATA, "TensorStorageMetadata")
        w.put(NEW + b"}\x94(", 2)
        properties()
        w.text("size")
        w.size(ranks * rows, COLUMNS)
        w.text("chunks")
        w.items(range(ranks), b"]\x94", b"e", lambda r: chunk(r, rows))
        w.write(b"ub")

    def plan(t):
        w.text(name(t))
        w.text("model")
        w.text(name(t)[len("model."):])
        w.put(b"\x86\x94", 1)

    end = [0] * ranks

    def storage(item):
        r, t = divmod(item, tensors)
        rows = 1 + t % 3
        w.named(METADATA, "MetadataIndex")
        w.put(NEW + b"}\x94(", 2)
        w.text("fqn")
        w.fresh(name(t))
        w.put(b"\x94", 1)
        w.text("index")
        w.write(number(r))
        w.text("offset")
        w.size(r * rows, 0)
        w.write(b"ub")
        w.named(FILES, "_StorageInfo")
        w.put(NEW + b"}\x94(", 2)
        w.text("relative_path")
        w.text(f"__{r}_0.distcp")
        w.text("offset")
        w.write(number(end[r]))
        w.text("length")
        w.write(number(OVERHEAD + rows * COLUMNS * 4))
        end[r] += OVERHEAD + rows * COLUMNS * 4
        w.write(b"ub")

    w.named(METADATA, "Metadata")
    w.put(NEW + b"}\x94(", 2)
    w.text("state_dict_metadata")
    w.items(range(tensors), b"}\x94", b"u", tensor)
    w.text("planner_data")
    w.items(range(tensors), b"}\x94", b"u", plan)
    w.text("storage_data")
    w.items(range(ranks * tensors), b"}\x94", b"u", storage)
    w.text("storage_meta")
    w.write(b"N")
    w.text("version")
    w.write(b"N")
    w.write(b"ub.")
    return end


def check(file, ranks, tensors):
    import pickle
    import torch
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties, TensorStorageMetadata
    found = pickle.load(file)
    assert len(found.storage_data) == ranks * tensors and len(found.state_dict_metadata) == len(found.planner_data) == tensors
    end = [0] * ranks
    for t in range(tensors):
        rows = 1 + t % 3
        chunks = [ChunkStorageMetadata(torch.Size([r * rows, 0]), torch.Size([rows, COLUMNS])) for r in range(ranks)]
        assert found.state_dict_metadata[name(t)] == TensorStorageMetadata(TensorProperties(), torch.Size([ranks * rows, COLUMNS]), chunks)
        assert found.planner_data[name(t)] == ("model", name(t)[len("model."):])
        for r in range(ranks):
            length = OVERHEAD + rows * COLUMNS * 4
            assert found.storage_data[MetadataIndex(name(t), chunks[r].offsets, r)] == _StorageInfo(f"__{r}_0.distcp", end[r], length)
            end[r] += length


def main():
    out, ranks, tensors = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    os.makedirs(out)
    if ranks * tensors <= 10_000:
        written = io.BytesIO()
        write_metadata(written, ranks, tensors)
        written.seek(0)
        check(written, ranks, tensors)
    with open(os.path.join(out, ".metadata"), "wb", buffering=1 << 20) as file:
        end = write_metadata(file, ranks, tensors)
    for r in range(ranks):
        with open(os.path.join(out, f"__{r}_0.distcp"), "wb") as file:
            file.truncate(end[r])


main()
