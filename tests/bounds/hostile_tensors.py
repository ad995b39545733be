# SPDX-License-Identifier: Apache-2.0
"""Tensors larger than their bytes, and archives of many records."""
import struct

from pickles import *
from registry import hostile, write


@hostile(".pt")
def stride_0(path):
    """2^40 elements that share one."""
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


@hostile(".pt")
def many_records(path):
    """A zip of thousands of records."""
    write(path, archive(stream(mapping({"a": NONE})), more={f"{i}": b"" for i in range(9_000)}))


@hostile(".pt")
def entries_65000(path):
    """A directory that claims 65,000 records in places where there are none."""
    data = archive(stream(mapping({"a": NONE})))
    write(path, data[:-14] + struct.pack("<HH", 65_000, 65_000) + data[-10:])


@hostile(".pt")
def deflated_mark(path):
    """version and byteorder records that are bombs."""
    write(path, archive(stream(mapping({"a": NONE})), more={".format_version": b"1" * 200_000_000}, deflate=True))
