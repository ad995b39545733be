#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the HDF5 files beside it with h5py.  Run: python make_hdf5.py (h5py 3.16)

layouts.h5 holds 12 x 10 numbers 0, 1, 2, ... in every layout that exists; the others each have one thing that is refused, named by the
file.
"""
import os

import h5py
import numpy as np

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hdf5")
DATA = np.arange(120, dtype="f4").reshape(12, 10)


def layouts(f):
    options = {
        "contiguous": {}, "chunked": dict(chunks=(5, 4)), "fletcher": dict(chunks=(5, 10), fletcher32=True),
        "grid_fletcher": dict(chunks=(5, 4), fletcher32=True), "gzip": dict(chunks=(5, 4), compression="gzip"),
        "shuffle_gzip_fletcher": dict(chunks=(5, 4), compression="gzip", shuffle=True, fletcher32=True),
        "shuffle": dict(chunks=(12, 10), shuffle=True), "grown": dict(chunks=(5, 4), maxshape=(None, None)),
    }
    for name, how in options.items():
        f.create_dataset(f"layouts/{name}", data=DATA, track_times=False, **how)
    partly = f.create_dataset("fill/partly", (12, 10), "f4", chunks=(5, 4), fillvalue=2.5, track_times=False)
    partly[0:5, 0:4] = 1
    f.create_dataset("fill/unwritten", (3, 2), "i4", fillvalue=9, track_times=False)
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_layout(h5py.h5d.COMPACT)
    plist.set_obj_track_times(False)
    compact = h5py.h5d.create(f["layouts"].id, b"compact", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((12, 10)), plist)
    compact.write(h5py.h5s.ALL, h5py.h5s.ALL, DATA)
    types = f.create_group("types")
    for t in ("f2", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "c8", "c16"):
        types.create_dataset({"?": "bool"}.get(t, t), data=np.array([0, 1, 1]).astype(t), track_times=False)
    types.create_dataset("bf16", data=np.array([0, 0x3F80, 0x3F80], "u2"), track_times=False)
    types["bf16"].attrs["dtype"] = "bfloat16"
    types.create_dataset("scalar", data=np.float64(0.5), track_times=False)
    f["tied"] = f["layouts/fletcher"]
    f["soft"] = h5py.SoftLink("/layouts/gzip")
    f.create_group("nothing")
    f.attrs["epoch"] = 3
    f.attrs["lr"] = 0.125
    f.attrs["name"] = "text"
    f.attrs["done"] = True
    f.attrs["sizes"] = [1, 2, 3]
    f.attrs["names"] = ["a", "b"]
    f.attrs["fixed"] = np.bytes_(b"abc")
    f.attrs["big"] = np.uint64(2**64 - 1)
    f.attrs["no_value"] = h5py.Empty("f4")
    f.attrs["matrix"] = np.zeros((2, 2))
    f.attrs["types"] = "the name of a group"
    f["layouts/gzip"].attrs["unit"] = "m"
    f["named_type"] = np.dtype("f4")


def virtual(f):
    layout = h5py.VirtualLayout((120,), "f4")
    layout[:] = h5py.VirtualSource(f.create_dataset("good", data=DATA.reshape(-1)))
    f.create_virtual_dataset("v", layout)


def cycle(f):
    f.create_group("a/b")
    f["a/b/c"] = f["a"]


def soft_loop(f):
    f["a"] = h5py.SoftLink("/b")
    f["b"] = h5py.SoftLink("/a")


FILES = {
    "layouts": layouts, "virtual": virtual, "group_in_itself": cycle, "soft_link_loop": soft_loop,
    "external_link": lambda f: f.__setitem__("x", h5py.ExternalLink("other.h5", "/")),
    "external_data": lambda f: f.create_dataset("x", (4,), "f4", external=[("raw.bin", 0, 16)]),
    "filter_lzf": lambda f: f.create_dataset("x", data=DATA, chunks=(5, 4), compression="lzf"),
    "big_endian": lambda f: f.__setitem__("x", DATA.astype(">f4")),
    "text": lambda f: f.__setitem__("x", "words"),
    "compound": lambda f: f.__setitem__("x", np.zeros(3, [("a", "f4"), ("b", "i4")])),
    "reference": lambda f: f.create_dataset("x", (1,), h5py.ref_dtype),
    "claims_2_to_60": lambda f: f.create_dataset("x", (2**60,), "f4", chunks=(1024,)),
    "dtype_of_another_width": lambda f: (f.__setitem__("x", np.zeros(3, "u4")), f["x"].attrs.__setitem__("dtype", "bfloat16")),
    "user_block": lambda f: f.__setitem__("x", DATA),
}

if __name__ == "__main__":
    os.makedirs(HERE, exist_ok=True)
    for name, fill in FILES.items():
        with h5py.File(os.path.join(HERE, name + ".h5"), "w", userblock_size=512 if name == "user_block" else 0) as f:
            fill(f)
