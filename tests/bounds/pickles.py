# SPDX-License-Identifier: Apache-2.0
"""Pickle streams, torch.save archives and DCP folders built byte by byte, so that they can hold content that no pickler writes."""
import io
import os
import struct
import zipfile

MARK, STOP, NONE, DICT, LIST, TUPLE = b"(", b".", b"N", b"}", b"]", b"t"
SETITEM, SETITEMS, APPEND, APPENDS, REDUCE, BUILD, NEWOBJ, PERSID = b"s", b"u", b"a", b"e", b"R", b"b", b"\x81", b"Q"
EMPTY_TUPLE, TUPLE1, TUPLE2, TUPLE3 = b")", b"\x85", b"\x86", b"\x87"


def text(s):
    data = s.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def number(n):
    if 0 <= n < 256:
        return b"K" + bytes([n])
    if -2**31 <= n < 2**31:
        return b"J" + struct.pack("<i", n)
    data = n.to_bytes(n.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data if len(data) < 256 else b"\x8b" + struct.pack("<i", len(data)) + data


def real(x):
    return b"G" + struct.pack(">d", x)


def name(module, attribute):
    return b"c" + f"{module}\n{attribute}\n".encode()


def put(slot):
    return b"r" + struct.pack("<I", slot)


def get(slot):
    return b"j" + struct.pack("<I", slot)


def row(numbers):
    return MARK + b"".join(map(number, numbers)) + TUPLE


def stream(body):
    return b"\x80\x02" + body + STOP


def mapping(entries):
    """`entries`: name -> the opcodes of its value."""
    return DICT + MARK + b"".join(text(k) + v for k, v in entries.items()) + SETITEMS


def tensor(shape, strides, numel, key="0", offset=0, kind="FloatStorage"):
    storage = MARK + text("storage") + name("torch", kind) + text(key) + text("cpu") + number(numel) + TUPLE + PERSID
    args = MARK + storage + number(offset) + row(shape) + row(strides) + b"\x89" + name("collections", "OrderedDict") + EMPTY_TUPLE + REDUCE + TUPLE
    return name("torch._utils", "_rebuild_tensor_v2") + args + REDUCE


def archive(pickle, records=None, deflate=False, more=None):
    """A torch.save file."""
    out = io.BytesIO()
    how = zipfile.ZIP_DEFLATED if deflate else zipfile.ZIP_STORED
    with zipfile.ZipFile(out, "w", how, compresslevel=9 if deflate else None) as z:
        z.writestr("archive/data.pkl", pickle)
        z.writestr("archive/byteorder", "little")
        for key, data in (records or {}).items():
            z.writestr(f"archive/data/{key}", data)
        for key, data in (more or {}).items():
            z.writestr(f"archive/{key}", data)
        z.writestr("archive/version", "3\n")
    return out.getvalue()


CHECKPOINT = "torch.distributed.checkpoint.metadata"


class Shared:
    """Opcodes that appear once in a stream and are fetched from the memo afterwards."""

    def __init__(self):
        self.slots = {}

    def __call__(self, code):
        if code in self.slots:
            return get(self.slots[code])
        self.slots[code] = len(self.slots)
        return code + put(self.slots[code])


def dcp_metadata(tensors, values=(), items=None, plan=None):
    """`tensors`: key -> (shape, [(offsets, sizes)]). If `items` is None, each chunk has one item, all of them at byte 0."""
    once = Shared()

    def size(numbers):
        return once(name("torch", "Size")) + row(numbers) + TUPLE1 + REDUCE

    def fields(module, cls, **of):
        return once(name(module, cls)) + EMPTY_TUPLE + NEWOBJ + DICT + MARK + b"".join(once(text(k)) + v() for k, v in of.items()) + SETITEMS + BUILD

    def item(key, offsets, number_of_chunk, where):
        out.write(fields(CHECKPOINT, "MetadataIndex", fqn=lambda: once(text(key)), offset=offsets, index=number_of_chunk))
        out.write(fields("torch.distributed.checkpoint.filesystem", "_StorageInfo", relative_path=lambda: once(text(where[0])),
                         offset=lambda: number(where[1]), length=lambda: number(where[2])))

    encoding = name("builtins", "getattr") + name(CHECKPOINT, "_MEM_FORMAT_ENCODING") + text("TORCH_CONTIGUOUS_FORMAT") + TUPLE2 + REDUCE
    layout = name("torch.serialization", "_get_layout") + text("torch.strided") + TUPLE1 + REDUCE
    state = MARK + name("torch", "float32") + layout + b"\x89" + encoding + b"\x89" + TUPLE
    properties = name(CHECKPOINT, "TensorProperties") + EMPTY_TUPLE + NEWOBJ + state + BUILD
    out = io.BytesIO()
    out.write(name(CHECKPOINT, "Metadata") + EMPTY_TUPLE + NEWOBJ + DICT + MARK + text("state_dict_metadata") + DICT + MARK)
    for key, (shape, chunks) in tensors.items():
        # In the order of writing: the first occurrence in the stream is fetched later.
        out.write(once(text(key)) + once(name(CHECKPOINT, "TensorStorageMetadata")) + EMPTY_TUPLE + NEWOBJ + DICT + MARK)
        out.write(once(text("properties")) + once(properties))
        out.write(once(text("size")) + size(shape) + once(text("chunks")) + LIST + MARK)
        for offsets, sizes in chunks:
            out.write(fields(CHECKPOINT, "ChunkStorageMetadata", offsets=lambda: size(offsets), sizes=lambda: size(sizes)))
        out.write(APPENDS + SETITEMS + BUILD)
    for key in values:
        out.write(once(text(key)) + once(name(CHECKPOINT, "BytesStorageMetadata")) + EMPTY_TUPLE + NEWOBJ)
    out.write(SETITEMS + text("planner_data"))
    if plan is None:
        plan = DICT + MARK + b"".join(once(text(k)) + once(text(k)) + TUPLE1 for k in [*tensors, *values]) + SETITEMS
    out.write(plan + text("storage_data") + DICT + MARK)
    default = ("__0_0.distcp", 0, 0)
    for key, (_, chunks) in tensors.items():
        for i, (offsets, _) in enumerate(chunks):
            item(key, lambda: size(offsets), lambda: number(i), (items or {}).get((key, i), default))
    for key in values:
        item(key, lambda: NONE, lambda: NONE, (items or {}).get((key, None), default))
    out.write(SETITEMS + SETITEMS + BUILD)
    return stream(out.getvalue())


def dcp_folder(path, metadata, data=b""):
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, ".metadata"), "wb") as f:
        f.write(metadata)
    with open(os.path.join(path, "__0_0.distcp"), "wb") as f:
        f.write(data)
