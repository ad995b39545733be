# SPDX-License-Identifier: Apache-2.0
"""Makes hostile HDF5 files of at most 1 MB with h5py.  Run: python hostile_hdf5.py FOLDER (needs h5py and numpy)"""
import os
import sys

import h5py
import numpy as np

MOST = 1_000_000


def web(f):
    """Each of 30 groups has two links to the next one: a billion paths."""
    group = f
    for _ in range(30):
        below = group.create_group("a")
        group["b"] = below
        group = below
    group["w"] = np.zeros(3, "f4")


def wide_web(f):
    """A thousand links to a group of a thousand links to a group of a thousand links."""
    last = f.create_group("last")
    for i in range(1000):
        last[f"w{i}"] = last["w0"] if i else np.zeros(3, "f4")
    middle = f.create_group("middle")
    for i in range(1000):
        middle[f"g{i}"] = last
        f[f"g{i}"] = middle


def one_dataset(f):
    """20,000 names of one dataset."""
    f["w0"] = np.zeros(3, "f4")
    for i in range(20_000):
        f[f"w{i + 1}"] = f["w0"]


def deep(f):
    group = f
    for i in range(490):
        group = group.create_group("g" * 400)
    for i in range(600):
        group.attrs[f"a{i}"] = 1


def too_deep(f):
    group = f
    for i in range(900):
        group = group.create_group("g")


def deep_and_wide(f):
    """Names below a path of 200 KB."""
    group = f
    for i in range(400):
        group = group.create_group("g" * 500)
    for i in range(1_500):
        group.create_dataset(f"w{i}", (2,), "f4")


def many_groups(f):
    for i in range(900):
        f.create_group(f"g{i}")


def many_attributes(f):
    for i in range(8_000):
        f.attrs[f"a{i}"] = float("nan")


def long_texts(f):
    for i in range(14):
        f.attrs[f"a{i}"] = "\x01" * 60_000


def unwritten(f):
    """2^30 elements, all fill value."""
    f.create_dataset("w", (1 << 27,), "f4", fillvalue=1.0)


def beyond(f):
    f.create_dataset("w", (1 << 60,), "i1", chunks=(1 << 30,))


def small_chunks(f):
    """A grid of a million cells that are not stored."""
    f.create_dataset("w", (1000, 1000), "f4", chunks=(1, 1))


def many_small_chunks(f):
    for i in range(16):
        f.create_dataset(f"w{i}", (250, 250), "f4", chunks=(1, 1))


def bomb(f):
    """Zeros, deflated."""
    f.create_dataset("w", data=np.zeros(200_000_000, "i1"), chunks=(1 << 24,), compression="gzip", compression_opts=9)


def bombs(f):
    f.create_dataset("w", data=np.zeros((64, 1 << 20), "i1"), chunks=(1, 1 << 20), compression="gzip", compression_opts=9)
    for i in range(200):
        f[f"again{i}"] = f["w"]


def compounds(f):
    kind = np.dtype("f4")
    for i in range(30):
        kind = np.dtype([("a" * 100, kind), ("b", "f4")])
    f.create_dataset("w", (2,), kind)


def soft_links(f):
    for i in range(5_000):
        f[f"s{i}"] = h5py.SoftLink(f"/s{i + 1}")


def soft_circle(f):
    f["a"] = h5py.SoftLink("/b")
    f["b"] = h5py.SoftLink("/a")


def dots(f):
    """Names that our own writer would cut at their dots."""
    for i in range(800):
        f.create_dataset(".".join(["k"] * 400) + str(i), (2,), "f4")


def main(folder):
    for make in (web, wide_web, one_dataset, deep, too_deep, deep_and_wide, many_groups, many_attributes, long_texts, unwritten, beyond,
                 small_chunks, many_small_chunks, bomb, bombs, compounds, soft_links, soft_circle, dots):
        path = os.path.join(folder, f"hdf5_{make.__name__}.h5")
        if os.path.exists(path):
            continue
        with h5py.File(path, "w", libver="latest") as f:
            make(f)
        if os.path.getsize(path) > MOST:
            print(f"{path} has {os.path.getsize(path)} bytes", file=sys.stderr)
            sys.exit(1)


main(sys.argv[1])
