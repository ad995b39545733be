# SPDX-License-Identifier: Apache-2.0
"""Makes files and folders of at most 1 MB that want more than they are worth: memory, processor time, or nesting without end.

Each function below makes one, named as the function; `make_all` makes them all.  None is damaged by accident: each is as sound as what it
attacks allows, so that readers come as far as they can.
"""
import json
import os
import random
import struct
import sys

from pickles import *

MOST = 1_000_000
KEYS = "a.b"
REGISTRY = []


def hostile(suffix):
    def register(function):
        REGISTRY.append((function.__name__ + suffix, function))
        return function
    return register


def write(path, data):
    assert len(data) <= MOST, (path, len(data))
    with open(path, "wb") as f:
        f.write(data)


def small(*shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size
    return tensor(shape, strides, step), b"\0" * (4 * step)


# ---- pickles

@hostile(".pt")
def deflated_list(path):
    """4 KB that are four million empty lists."""
    write(path, archive(stream(mapping({"a": LIST + MARK + LIST * 4_000_000 + APPENDS})), deflate=True))


@hostile(".pt")
def deflated_text(path):
    """One text of 600 MB."""
    body = text("x" * 600_000_000)
    write(path, archive(stream(mapping({"a": body})), deflate=True))


@hostile(".pt")
def deflated_texts(path):
    write(path, archive(stream(mapping({"a": LIST + MARK + text("x" * 1000) * 300_000 + APPENDS})), deflate=True))


@hostile(".pt")
def deflated_keys(path):
    """A million keys of a dictionary."""
    body = b"".join(text(f"{i}") + NONE for i in range(1_000_000))
    data = archive(stream(DICT + MARK + body + SETITEMS), deflate=True)
    while len(data) > MOST:
        body = body[:len(body) // 2]
        body = b"".join(text(f"{i}") + NONE for i in range(200_000))
        data = archive(stream(DICT + MARK + body + SETITEMS), deflate=True)
    write(path, data)


@hostile(".pt")
def deflated_memo(path):
    """Slots of the memo that are all fetched."""
    body = b"".join(LIST + put(i) + b"0" + get(i) for i in range(0)) or b""
    body = b"".join(LIST + put(i) for i in range(100_000)) + b"".join(get(i) for i in range(50_000))
    write(path, archive(stream(mapping({"a": MARK + body + TUPLE})), deflate=True))


@hostile(".pt")
def doubling(path):
    """Tuples of the tuple before, twice: 2^60 leaves in 1 KB."""
    body = EMPTY_TUPLE + TUPLE1 + put(0)
    for i in range(60):
        body += get(i) + TUPLE2 + put(i + 1)
    write(path, archive(stream(mapping({"a": body}))))


@hostile(".pt")
def doubling_lists(path):
    body = LIST + number(1) + APPEND + put(0)
    for i in range(60):
        body = body + b"0" + LIST + put(i + 1) + MARK + get(i) + get(i) + APPENDS
    write(path, archive(stream(mapping({"a": body}))))


@hostile(".pt")
def doubling_dicts(path):
    body = DICT + text("leaf") + number(1) + SETITEM + put(0)
    for i in range(60):
        body = body + b"0" + DICT + put(i + 1) + MARK + text("a") + get(i) + text("b") + get(i) + SETITEMS
    write(path, archive(stream(body)))


@hostile(".pt")
def doubling_tensors(path):
    code, data = small(4)
    body = DICT + text("leaf") + code + SETITEM + put(0)
    for i in range(40):
        body = body + b"0" + DICT + put(i + 1) + MARK + text("a") + get(i) + text("b") + get(i) + SETITEMS
    write(path, archive(stream(body), {"0": data}))


@hostile(".pt")
def doubling_keys(path):
    """Tuples as keys of a dictionary, equal and of 2^40 leaves."""
    body = number(1) + TUPLE1 + put(0)
    for i in range(40):
        body += get(i) + TUPLE2 + put(i + 1)
    body += get(40) + TUPLE1
    entries = DICT + MARK + body + NONE + number(1) + TUPLE1 + put(100)
    for i in range(40):
        entries += get(100 + i) + TUPLE2 + put(101 + i)
    entries += get(140) + TUPLE1 + NONE + SETITEMS
    write(path, archive(stream(entries)))


@hostile(".pt")
def deep_lists(path):
    write(path, archive(stream(mapping({"a": LIST * 900 + APPEND * 899}))))


@hostile(".pt")
def very_deep_lists(path):
    write(path, archive(stream(mapping({"a": LIST * 300_000 + APPEND * 299_999}))))


@hostile(".pt")
def deep_dicts(path):
    """Keys of 900 steps, and many of them."""
    body = b""
    for i in range(900):
        body += DICT + text("k" * 500)
    write(path, archive(stream(body + number(1) + SETITEM * 900)))


@hostile(".pt")
def deep_and_wide(path):
    """At the end of a path of 900 long names 20,000 leaves, each of which has that path in its key."""
    body = b"".join(DICT + text("k" * 100) for _ in range(900))
    body += mapping({str(i): NONE for i in range(20_000)})
    write(path, archive(stream(body + SETITEM * 900)))


@hostile(".pt")
def deep_and_wide_tensors(path):
    code, data = small(1)
    body = b"".join(DICT + text("k" * 100) for _ in range(500))
    body += DICT + MARK + text("first") + code + put(0) + b"".join(text(str(i)) + get(0) for i in range(40_000)) + SETITEMS
    write(path, archive(stream(body + SETITEM * 500), {"0": data}))


@hostile(".pt")
def long4(path):
    """An int of 64 KiB, the largest that is read."""
    write(path, archive(stream(mapping({"a": b"\x8b" + struct.pack("<i", 65536) + b"\x7f" * 65536}))))


@hostile(".pt")
def many_long4(path):
    value = b"\x8b" + struct.pack("<i", 60_000) + b"\x7f" * 60_000
    write(path, archive(stream(mapping({str(i): value for i in range(16)}))))


@hostile(".pt")
def deflated_long4(path):
    value = b"\x8b" + struct.pack("<i", 65536) + b"\x7f" * 65536
    write(path, archive(stream(mapping({str(i): value for i in range(1000)})), deflate=True))


@hostile(".pt")
def long4_keys(path):
    value = b"\x8b" + struct.pack("<i", 30_000) + b"\x7f" * 30_000
    write(path, archive(stream(DICT + MARK + b"".join(value[:-4] + struct.pack("<I", i) + NONE for i in range(32)) + SETITEMS)))


@hostile(".pt")
def nan_keys(path):
    """50,000 keys, of which none equals another."""
    body = DICT + MARK + real(float("nan")) + NONE
    body += b"".join(b"G" + struct.pack(">Q", 0x7FF8000000000000 + i) + NONE for i in range(1, 50_000))
    write(path, archive(stream(mapping({"a": body + SETITEMS}))))


@hostile(".pt")
def nan_keys_of_tensors(path):
    code, data = small(1)
    body = DICT + MARK + b"".join(b"G" + struct.pack(">Q", 0x7FF8000000000000 + i) + (code + put(0) if i == 0 else get(0)) for i in range(50_000))
    write(path, archive(stream(body + SETITEMS), {"0": data}))


@hostile(".pt")
def tuple_keys(path):
    """Keys that have no hash of their own."""
    body = DICT + MARK + b"".join(number(i) + number(i + 1) + TUPLE2 + NONE for i in range(60_000)) + SETITEMS
    write(path, archive(stream(mapping({"a": body}))))


@hostile(".pt")
def set_of_tuples(path):
    body = b"\x8f" + MARK + b"".join(number(i) + number(i + 1) + TUPLE2 for i in range(60_000)) + b"\x90"
    write(path, archive(b"\x80\x04" + mapping({"a": body}) + STOP))


@hostile(".pt")
def colliding_keys(path):
    """Names that become one when they are written under the name of a file or a group."""
    write(path, archive(stream(mapping({f"a/{i}" + "." * (i % 7): NONE for i in range(50_000)}))))


@hostile(".pt")
def flat_keys(path):
    code, data = small(1)
    body = DICT + MARK + text("x") + code + put(0) + b"".join(text(f"k{i}") + get(0) for i in range(60_000)) + SETITEMS
    write(path, archive(stream(body), {"0": data}))


@hostile(".pt")
def dotted_keys(path):
    """Names of 450 steps: in HDF5 a group each."""
    code, data = small(1)
    entries = {}
    body = DICT + MARK + text("x") + code + put(0)
    for i in range(900):
        body += text(".".join([f"{i}"] + ["k"] * 450)) + get(0)
    write(path, archive(stream(body + SETITEMS), {"0": data}))


@hostile(".pt")
def long_dotted_key(path):
    code, data = small(1)
    write(path, archive(stream(mapping({".".join("k" * 30_000): code})), {"0": data}))


@hostile(".pt")
def dots_alone(path):
    code, data = small(1)
    body = DICT + MARK + text("x") + code + put(0) + b"".join(text("." * (i + 1)) + get(0) for i in range(1_300)) + SETITEMS
    write(path, archive(stream(body), {"0": data}))


@hostile(".pt")
def dotted_values(path):
    write(path, archive(stream(mapping({".".join([f"{i}"] + ["k"] * 450): NONE for i in range(900)}))))


@hostile(".pt")
def long_names(path):
    write(path, archive(stream(mapping({f"{i}" + "n" * 60_000: NONE for i in range(15)}))))


@hostile(".pt")
def many_globals(path):
    """Names of Python that nobody knows, all different."""
    body = MARK + b"".join(name("m", f"n{i}") for i in range(60_000)) + TUPLE
    write(path, archive(stream(mapping({"a": body}))))


@hostile(".pt")
def calls_of_calls(path):
    body = name("os", "system")
    for _ in range(950):
        body += EMPTY_TUPLE + REDUCE
    write(path, archive(stream(mapping({"a": body}))))


@hostile(".pt")
def many_calls(path):
    body = MARK + name("collections", "OrderedDict") + put(0) + (get(0) + EMPTY_TUPLE + REDUCE) * 120_000 + TUPLE
    write(path, archive(stream(mapping({"a": body}))))


@hostile(".pt")
def builds(path):
    """One object whose state is set without end, of growing size."""
    body = name("m", "C") + EMPTY_TUPLE + NEWOBJ + put(0)
    body += (DICT + BUILD) * 100_000
    write(path, archive(stream(mapping({"a": body}))))


@hostile(".pt")
def marks(path):
    write(path, archive(stream(MARK * 900_000)))


@hostile(".pt")
def pops_and_puts(path):
    write(path, archive(stream(b"".join(NONE + put(i) for i in range(120_000)))))


@hostile(".pt")
def frames(path):
    write(path, archive(b"\x80\x04" + b"\x95" + struct.pack("<Q", 0) * 1 + (b"\x95" + struct.pack("<Q", 1) + b"N") * 80_000 + STOP))


@hostile(".pt")
def quoted_texts(path):
    """Bytes that grow when they are shown."""
    write(path, archive(stream(mapping({"a": text("\x01" * 900_000)}))))


@hostile(".pt")
def values_of_bytes(path):
    body = b"B" + struct.pack("<I", 900_000) + b"\x00" * 900_000
    write(path, archive(b"\x80\x03" + mapping({"a": body}) + STOP))


@hostile(".pt")
def floats(path):
    write(path, archive(stream(mapping({"a": LIST + MARK + real(1.1) * 100_000 + APPENDS}))))


@hostile(".pkl.pt")
def legacy(path):
    """The format before 1.6: five pickles; one of them is a bomb of the memo."""
    magic = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
    body = EMPTY_TUPLE + TUPLE1 + put(0)
    for i in range(60):
        body += get(i) + TUPLE2 + put(i + 1)
    system = mapping({"protocol_version": number(1001), "little_endian": b"\x88", "type_sizes": mapping({"short": number(2), "int": number(4), "long": number(4)})})
    keys = LIST
    write(path, magic + stream(number(1001)) + stream(system) + stream(mapping({"a": body})) + stream(keys))


# ---- tensors

@hostile(".pt")
def stride_0(path):
    """2^40 elements that are one."""
    write(path, archive(stream(mapping({"a": tensor([1 << 40], [0], 1)})), {"0": b"\0\0\x80\x3f"}))


@hostile(".pt")
def stride_0_matrix(path):
    write(path, archive(stream(mapping({"a": tensor([1 << 14, 1 << 14], [0, 1], 1 << 14)})), {"0": b"\0\0\x80\x3f" * (1 << 14)}))


@hostile(".pt")
def stride_0_columns(path):
    write(path, archive(stream(mapping({"a": tensor([1 << 14, 1 << 14], [1, 0], 1 << 14)})), {"0": b"\0\0\x80\x3f" * (1 << 14)}))


@hostile(".pt")
def overlapping_rows(path):
    """A view whose rows begin one element apart."""
    n = 1 << 17
    write(path, archive(stream(mapping({"a": tensor([n, n], [1, 1], 2 * n)})), {"0": b"\0" * (8 * n)}, deflate=True))


@hostile(".pt")
def many_views(path):
    """60,000 tensors, each the whole of one storage."""
    code = tensor([200_000], [1], 200_000)
    body = DICT + MARK + text("x") + code + put(0) + b"".join(text(f"k{i}") + get(0) for i in range(10_000)) + SETITEMS
    write(path, archive(stream(body), {"0": b"\0" * 800_000}))


@hostile(".pt")
def overlapping_views(path):
    """Tensors of one storage that begin one element apart."""
    body = b"".join(text(f"k{i}") + tensor([150_000], [1], 160_000, offset=i) for i in range(1_000))
    write(path, archive(stream(DICT + MARK + body + SETITEMS), {"0": b"\0" * 640_000}))


@hostile(".pt")
def transposed_views(path):
    body = b"".join(text(f"k{i}") + tensor([300, 500], [1, 300], 160_000, offset=i) for i in range(1_000))
    write(path, archive(stream(DICT + MARK + body + SETITEMS), {"0": b"\0" * 640_000}))


@hostile(".pt")
def zeros_deflated(path):
    """A storage of 900 MB in 900 KB."""
    n = 225_000_000
    write(path, archive(stream(mapping({"a": tensor([n], [1], n)})), {"0": b"\0" * (4 * n)}, deflate=True))


@hostile(".pt")
def many_zeros_deflated(path):
    n = 2_000_000
    records = {str(i): b"\0" * (4 * n) for i in range(50)}
    write(path, archive(stream(mapping({f"k{i}": tensor([n], [1], n, str(i)) for i in range(50)})), records, deflate=True))


@hostile(".pt")
def many_dimensions(path):
    write(path, archive(stream(mapping({"a": tensor([1] * 20_000, [1] * 20_000, 1)})), {"0": b"\0\0\0\0"}))


@hostile(".pt")
def two_to_the_24_in_24_dimensions(path):
    write(path, archive(stream(mapping({"a": tensor([2] * 17, [1 << i for i in range(17)], 1 << 17)})), {"0": b"\0" * (4 << 17)}))


@hostile(".pt")
def empty_tensors(path):
    body = b"".join(text(f"k{i}") + tensor([0, 1 << 40], [1 << 40, 1], 0) for i in range(3_000))
    write(path, archive(stream(DICT + MARK + body + SETITEMS), {"0": b""}))


# ---- archives

@hostile(".pt")
def many_records(path):
    """A zip of thousands of records."""
    write(path, archive(stream(mapping({"a": NONE})), more={f"{i}": b"" for i in range(9_000)}))


@hostile(".pt")
def entries_65000(path):
    """A directory that says 65,000 records lie where there are none."""
    data = archive(stream(mapping({"a": NONE})))
    write(path, data[:-14] + struct.pack("<HH", 65_000, 65_000) + data[-10:])


@hostile(".pt")
def deflated_mark(path):
    """version and byteorder that are bombs."""
    write(path, archive(stream(mapping({"a": NONE})), more={".format_version": b"1" * 200_000_000}, deflate=True))


# ---- folders of torch.distributed.checkpoint

def grid(shape, cut):
    boxes = [([], [])]
    for size, count in zip(shape, cut):
        boxes = [(o + [i * size // count], s + [(i + 1) * size // count - i * size // count]) for o, s in boxes for i in range(count)]
    return boxes


@hostile("")
def crossing_slabs(path):
    """Slabs along two dimensions: each crosses each."""
    n = 1_500
    boxes = [([i, 0], [1, n]) for i in range(n)] + [([0, i], [n, 1]) for i in range(n)]
    dcp_folder(path, dcp_metadata({"a": ([n, n], boxes)}))


@hostile("")
def many_chunks_of_16_dimensions(path):
    """2^11 corners of a cube of 16 dimensions."""
    boxes = [([(i >> d) & 1 for d in range(11)] + [0] * 5, [1] * 11 + [2] * 5) for i in range(1 << 11)]
    dcp_folder(path, dcp_metadata({"a": ([2] * 16, boxes)}))


@hostile("")
def hole_in_16_dimensions(path):
    boxes = [([(i >> d) & 1 for d in range(11)] + [0] * 5, [1] * 11 + [2] * 5) for i in range(1, 1 << 11)]
    dcp_folder(path, dcp_metadata({"a": ([2] * 16, boxes)}))


@hostile("")
def random_boxes(path):
    random.seed(1)
    boxes = []
    for _ in range(4_000):
        o = [random.randrange(1 << 20) for _ in range(3)]
        boxes.append((o, [random.randrange(1, (1 << 20) - x + 1) for x in o]))
    dcp_folder(path, dcp_metadata({"a": ([1 << 20] * 3, boxes)}))


@hostile("")
def diagonal_boxes(path):
    """All begin and end at different places in both dimensions, none meets another, and a sweep holds half of them."""
    n = 4_000
    boxes = [([i, i], [n - i, 1]) for i in range(n)] + [([i, j], [1, 1]) for i in range(1) for j in range(1)]
    dcp_folder(path, dcp_metadata({"a": ([n, n], boxes)}))


@hostile("")
def brick_wall(path):
    """A sound tiling that is no grid."""
    boxes = []
    for i in range(60):
        cut = sorted(random.Random(i).sample(range(1, 5_000), 60))
        for a, b in zip([0] + cut, cut + [5_000]):
            boxes.append(([i, a], [1, b - a]))
    dcp_folder(path, dcp_metadata({"a": ([60, 5_000], boxes)}))


@hostile("")
def chunks_10_5(path):
    n = 4_500
    dcp_folder(path, dcp_metadata({"a": ([n], [([i], [1]) for i in range(n)])}))


@hostile("")
def same_chunk(path):
    n = 4_500
    dcp_folder(path, dcp_metadata({"a": ([n], [([0], [n]) for i in range(n)])}))


@hostile("")
def scalar_chunks(path):
    dcp_folder(path, dcp_metadata({"a": ([], [([], []) for i in range(4_500)])}))


@hostile("")
def many_tensors(path):
    dcp_folder(path, dcp_metadata({f"k{i}": ([1], [([0], [1])]) for i in range(4_000)}))


@hostile("")
def values_of_one_item(path):
    """4,000 values that all name the same item, a bomb."""
    item = archive(stream(LIST + MARK + LIST * 300_000 + APPENDS), deflate=True)
    keys = [f"k{i}" for i in range(4_000)]
    dcp_folder(path, dcp_metadata({}, keys, {(k, None): ("__0_0.distcp", 0, len(item)) for k in keys}), item)


@hostile("")
def tensors_of_one_item(path):
    """Tensors that all name the same deflated item."""
    n = 1_000_000
    item = archive(stream(tensor([n], [1], n)), {"0": b"\0" * (4 * n)}, deflate=True)
    tensors = {f"k{i}": ([n], [([0], [n])]) for i in range(1_000)}
    dcp_folder(path, dcp_metadata(tensors, (), {(k, 0): ("__0_0.distcp", 0, len(item)) for k in tensors}), item)


@hostile("")
def deep_plan(path):
    """Where a key stands in the nested state dict: 100,000 steps."""
    plan = DICT + MARK + text("a") + MARK + text("k") * 100_000 + TUPLE + SETITEMS
    dcp_folder(path, dcp_metadata({"a": ([1], [([0], [1])])}, plan=plan))


@hostile("")
def plan_of_large_numbers(path):
    """The position in a list is 2^40."""
    plan = DICT + MARK + text("a") + text("l") + number(1 << 40) + TUPLE2 + SETITEMS
    dcp_folder(path, dcp_metadata({"a": ([1], [([0], [1])])}, plan=plan))


@hostile("")
def huge_tensors(path):
    """2,000 tensors of 2^60 elements."""
    dcp_folder(path, dcp_metadata({f"k{i}": ([1 << 60], [([0], [1 << 60])]) for i in range(2_000)}))


@hostile("")
def many_files(path):
    tensors = {f"k{i}": ([1], [([0], [1])]) for i in range(3_500)}
    dcp_folder(path, dcp_metadata(tensors, (), {(k, 0): (f"__{i}_0.distcp", 0, 1) for i, k in enumerate(tensors)}))


@hostile("")
def zstd_item(path):
    """An item whose bytes pass through zstd: a gigabyte in 40 KB, and a window of 128 MiB.  (One frame, of blocks that repeat a byte.)"""
    block = struct.pack("<I", (128 << 10) << 3 | 1 << 1)[:3] + b"\0"
    last = struct.pack("<I", (128 << 10) << 3 | 1 << 1 | 1)[:3] + b"\0"
    frame = struct.pack("<I", 0xFD2FB528) + b"\x00" + bytes([(27 - 10) << 3]) + block * 8_000 + last
    metadata = dcp_metadata({"a": ([1 << 20], [([0], [1 << 20])])}, (), {("a", 0): ("__0_0.distcp", 0, len(frame))})
    descriptors = text("transform_descriptors") + LIST + text("stream.zstd/1") + APPEND
    length = b"".join([])
    at = metadata.rindex(b"length") + len("length")
    # Behind the length of the one item the list of its transforms.
    rest = metadata[at:]
    end = 5 + len(number(len(frame)))
    dcp_folder(path, metadata[:at] + rest[:end] + descriptors + rest[end:], frame)


# ---- safetensors and JSON

def safetensors(header, data=b""):
    body = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(body)) + body + data


@hostile(".safetensors")
def wide_header(path):
    header = {f"k{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(14_000)}
    write(path, safetensors(header))


@hostile(".safetensors")
def deep_json(path):
    write(path, safetensors(b'{"a":' + b"[" * 450_000 + b"]" * 450_000 + b"}"))


@hostile(".safetensors")
def wide_json(path):
    write(path, safetensors(b'{"__metadata__":{' + b",".join(b'"%d":""' % i for i in range(70_000)) + b"}}"))


@hostile(".safetensors")
def same_names(path):
    write(path, safetensors(b"{" + b",".join(b'"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}' for _ in range(15_000)) + b"}"))


@hostile(".safetensors")
def long_shape(path):
    write(path, safetensors({"a": {"dtype": "F32", "shape": [1] * 200_000, "data_offsets": [0, 4]}}, b"\0" * 4))


@hostile(".safetensors")
def big_numbers(path):
    write(path, safetensors(b'{"a":{"dtype":"F32","shape":[' + b"9" * 900_000 + b'],"data_offsets":[0,0]}}'))


@hostile(".safetensors")
def dotted_names(path):
    header = {".".join([str(i)] + ["k"] * 450): {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(900)}
    write(path, safetensors(header))


@hostile(".safetensors")
def escapes(path):
    write(path, safetensors(b'{"' + b"\\u0001" * 150_000 + b'":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'))


@hostile("")
def index_json(path):
    os.makedirs(path)
    with open(os.path.join(path, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {}, "weight_map": {f"k{i}": f"f{i}.safetensors" for i in range(20_000)}}, f)


@hostile("")
def index_deep(path):
    os.makedirs(path)
    write(os.path.join(path, "model.safetensors.index.json"), b'{"weight_map":' + b"[" * 900_000)


@hostile("")
def index_of_one_file(path):
    """20,000 names in one file of one tensor."""
    os.makedirs(path)
    write(os.path.join(path, "f.safetensors"), safetensors({"a": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}))
    with open(os.path.join(path, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {}, "weight_map": {f"k{i}": "f.safetensors" for i in range(20_000)}}, f)


# ---- what trainers make

def rank_tensor(rank, ranks):
    return mapping({"a": small(4)[0]})


@hostile("")
def deepspeed(path):
    """ZeRO partitions whose pickles are bombs."""
    step = os.path.join(path, "global_step1")
    os.makedirs(step)
    bomb = archive(stream(mapping({"optimizer_state_dict": LIST + MARK + LIST * 4_000_000 + APPENDS, "module": DICT})), deflate=True)
    write(os.path.join(path, "latest"), b"global_step1")
    write(os.path.join(step, "mp_rank_00_model_states.pt"), bomb)
    for rank in range(4):
        write(os.path.join(step, f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"), bomb)


@hostile("")
def accelerate(path):
    os.makedirs(path)
    bomb = archive(stream(mapping({"a": LIST + MARK + LIST * 2_000_000 + APPENDS})), deflate=True)
    for part in ("pytorch_model_fsdp_0", "optimizer_0"):
        dcp_folder(os.path.join(path, part), dcp_metadata({"a": ([1], [([0], [1])])}, ["v"], {("v", None): ("__0_0.distcp", 0, len(bomb))}), bomb)
    write(os.path.join(path, "scheduler.bin"), bomb)
    write(os.path.join(path, "random_states_0.pkl"), bomb)


@hostile("")
def rank_files(path):
    os.makedirs(path)
    bomb = archive(stream(mapping({"a": LIST + MARK + LIST * 2_000_000 + APPENDS})), deflate=True)
    for rank in range(8):
        write(os.path.join(path, f"model_w8_r{rank}.pt"), bomb)


@hostile("")
def bin_index(path):
    """20,000 files that are not there."""
    os.makedirs(path)
    with open(os.path.join(path, "pytorch_model.bin.index.json"), "w") as f:
        json.dump({"metadata": {}, "weight_map": {f"k{i}": f"f{i}.bin" for i in range(20_000)}}, f)


@hostile("")
def bin_index_of_other_keys(path):
    """10,000 keys in each of two files, of which the index knows none."""
    os.makedirs(path)
    one = archive(stream(mapping({f"k{i}": number(i % 200) for i in range(10_000)})))
    for name_of_file in ("a.bin", "b.bin"):
        write(os.path.join(path, name_of_file), one)
    with open(os.path.join(path, "pytorch_model.bin.index.json"), "w") as f:
        json.dump({"weight_map": {f"m{i}": "ab"[i % 2] + ".bin" for i in range(20_000)}}, f)


def fairscale(path, names_of_all, entries):
    """A flat parameter of many names, and a state of many entries, each of which stands under every name."""
    os.makedirs(path)
    names = LIST + MARK + b"".join(text(f"p{i}") for i in range(names_of_all)) + APPENDS
    shapes = LIST + MARK + row([1]) * names_of_all + APPENDS
    numels = LIST + MARK + number(1) * names_of_all + APPENDS
    params = mapping({"flat_param_0": mapping({"names": names, "shapes": shapes, "numels": numels, "padding": number(0)})})
    unit = mapping({"fsdp_path": text(""), "params": params, "shared_param_info": LIST, "no_broadcast_optim_state": b"\x89"})
    meta = mapping({"param_metadata": LIST + MARK + unit + APPENDS, "buffer_names": LIST})
    flat, data = small(names_of_all)
    state = DICT + MARK + number(0) + mapping({f"k{i}": number(i % 200) for i in range(entries)}) + SETITEMS
    group = LIST + MARK + mapping({"params": LIST + MARK + number(0) + APPENDS}) + APPENDS
    saved = mapping({"model": mapping({"flat_param_0": flat}), "meta": meta, "optim": mapping({"state": state, "param_groups": group})})
    write(os.path.join(path, "shard_0.pt"), archive(stream(saved), {"0": data}))


@hostile("")
def fairscale_states(path):
    fairscale(path, 3_000, 20_000)


@hostile("")
def fairscale_names(path):
    fairscale(path, 24_000, 16)


@hostile("")
def low_bit(path):
    """torchao's states, one scale an element, in records that are packed."""
    numel = 4_000_000

    def flat(kind, key, size):
        return tensor([size], [1], size, key, kind=kind)

    made = MARK + name("torchao.optim.subclass_8bit", "OptimState8bit") + name("torch", "float32") + row([numel]) + row([1]) + TUPLE
    attributes = mapping({"codes": flat("ByteStorage", "0", numel), "scale": flat("FloatStorage", "1", numel), "qmap": flat("FloatStorage", "2", 256)})
    call = MARK + name("torch._utils", "_rebuild_wrapper_subclass") + name("torchao.optim.subclass_8bit", "OptimState8bit") + made + attributes + TUPLE
    item = archive(stream(name("torch._tensor", "_rebuild_from_type_v2") + call + REDUCE),
                   {"0": b"\0" * numel, "1": b"\0" * (4 * numel), "2": b"\0" * 1024}, deflate=True)
    dcp_folder(path, dcp_metadata({"a": ([numel], [([0], [numel])])}, items={("a", 0): ("__0_0.distcp", 0, len(item))}), item)


def paths(folder, only=None):
    """Where they are, by name."""
    return {function.__name__: os.path.join(folder, file) for file, function in REGISTRY if not only or function.__name__ in only}


def main(folder, only):
    for _, function in REGISTRY:
        path = paths(folder).get(function.__name__)
        if (not only or function.__name__ in only) and not os.path.lexists(path):
            function(path)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
