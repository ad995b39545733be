# SPDX-License-Identifier: Apache-2.0
"""Hostile pickles: they expand, nest, repeat or collide."""
import struct

from pickles import *
from registry import MOST, hostile, small, write


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
    """20,000 leaves at the end of a path of 900 long names, each of which has that path in its key."""
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
    """An int of 64 KiB, the largest that the tool reads."""
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
    """Keys without a hash of their own."""
    body = DICT + MARK + b"".join(number(i) + number(i + 1) + TUPLE2 + NONE for i in range(60_000)) + SETITEMS
    write(path, archive(stream(mapping({"a": body}))))


@hostile(".pt")
def set_of_tuples(path):
    body = b"\x8f" + MARK + b"".join(number(i) + number(i + 1) + TUPLE2 for i in range(60_000)) + b"\x90"
    write(path, archive(b"\x80\x04" + mapping({"a": body}) + STOP))


@hostile(".pt")
def colliding_keys(path):
    """Names that become equal when they are used as names of files or groups."""
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
    """One object whose state is set again and again, with growing size."""
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
