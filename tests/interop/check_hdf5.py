#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks HDF5 files of fsdp-ckpt with h5py, and files of h5py with fsdp-ckpt.

  python check_hdf5.py CASE... --tool PATH      a CASE holds ckpt/ or full.pt

For every case, pt -> hdf5 -> pt: the size is the one that a dry run names; the same input gives the same bytes; verify finds nothing and
leaves nothing unchecked; h5py sees every tensor under the name that the rules give it, with equal elements; the way back gives the object
that consolidate gives directly.  Then files that h5py wrote, and files that are refused.
"""
import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import traceback
import warnings
import zlib

warnings.simplefilter("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [HERE, os.path.join(os.path.dirname(HERE), "support")]   # HERE: for objects.Config in a pickle

import h5py
import numpy as np
import torch

import truth


class Failure(Exception):
    pass


def expect(condition, what):
    if not condition:
        raise Failure(what)


def run(*args, status=0):
    done = subprocess.run([TOOL, *map(str, args)], capture_output=True, text=True)
    if done.returncode != status:
        raise Failure(f"exit {done.returncode}, expected {status}: {' '.join(map(str, args))}\n{done.stderr[-1500:]}{done.stdout[-500:]}")
    return done.stdout + done.stderr if status else done.stdout


def read_back(dataset):
    """A dataset as the torch tensor it holds, by the instructions of docs/formats/hdf5.md."""
    array = dataset[()]
    array = np.asarray(array).reshape(dataset.shape)
    name = dataset.attrs.get("dtype")
    tensor = torch.from_numpy(np.ascontiguousarray(array)).reshape(dataset.shape)
    return tensor.view(getattr(torch, name)) if name is not None else tensor


def escaped(name):
    return "".join(f"%{ord(c):02X}" if c in "/%" or ord(c) < 32 or ord(c) == 127 else c for c in name) or "%"


def tensors_of(x, path=(), out=None):
    out = {} if out is None else out
    if isinstance(x, torch.Tensor):
        out[path if path not in out else path[:-1] + (path[-1] + "#2",)] = x   # 3 and "3"
    elif isinstance(x, dict):
        for k, v in x.items():
            tensors_of(v, path + (str(k),), out)
    elif isinstance(x, (list, tuple)):
        for i, v in enumerate(x):
            tensors_of(v, path + (str(i),), out)
    return out


def dense(t):
    return t.layout is torch.strided and not t.is_quantized and not t.is_nested and t.device.type == "cpu"


def check_arrays(file, full):
    want = {p: t for p, t in tensors_of(full).items() if dense(t)}
    names = {tuple(escaped(part) for step in p for part in step.split(".")) or ("%",): p for p in want}
    direct = 0
    found = collections.Counter()
    with h5py.File(file, "r") as f:
        seen = {}
        def visit(group, path):
            for name in group:
                item = group[name]
                if isinstance(item, h5py.Group):
                    if path or name != ".fsdp":
                        visit(item, path + (name,))
                else:
                    seen[path + (name,)] = truth._tensor(read_back(item))
                    raw = np.ascontiguousarray(item[()]).tobytes()
                    expect(zlib.crc32(raw) == item.attrs["crc32"], f"{item.name}: crc32 attribute")
                    if item.shape and item.size:
                        expect(item.fletcher32, f"{item.name}: no fletcher32")
        visit(f, ())
    for t in want.values():   # HDF5 allows no more dimensions
        if t.dim() > 32:
            want = {p: t.reshape(-1) if t.dim() > 32 else t for p, t in want.items()}
    for name, tensor in seen.items():
        found[json.dumps(tensor, sort_keys=True)] += 1
        if name in names:
            plain = truth._tensor(want[names[name]].detach().as_subclass(torch.Tensor).clone())
            plain.pop("class", None)
            expect(tensor == plain, f"{'/'.join(name)}: h5py sees {tensor}, torch {plain}")
            direct += 1
    expect(len(seen) == len(want), f"h5py sees {len(seen)} tensors, expected {len(want)}: {sorted(seen)} {sorted(want)}")
    prefixes = {n[:i] for n in names for i in range(1, len(n))}
    if len(names) == len(want) and not prefixes & set(names):
        expect(direct == len(want), f"{direct} of {len(want)} tensors have the name the rules give them")
    everything = collections.Counter()
    for t in want.values():
        d = truth._tensor(t)
        d.pop("class", None)
        everything[json.dumps(d, sort_keys=True)] += 1
    expect(found == everything, "the tensors h5py sees are others")


def ties(x):
    """Returns the places that hold exactly the same view of the same bytes."""
    groups = collections.defaultdict(list)
    for path, t in tensors_of(x).items():
        if dense(t) and t.numel():
            groups[(t.data_ptr(), t.dtype, tuple(t.shape), t.stride())].append(path)
    return sorted(g for g in groups.values() if len(g) > 1)


def check_case(folder, tmp):
    is_file = os.path.exists(os.path.join(folder, "full.pt"))
    path = os.path.join(folder, "full.pt" if is_file else "ckpt")
    name = os.path.join(folder, "full_truth.json" if is_file else "truth.json")
    said = {}
    if os.path.exists(name):
        with open(name, encoding="utf-8") as f:
            said = json.load(f)
    if "refused" in said:
        return expect(said["refused"] in run("convert", path, os.path.join(tmp, "a.h5"), status=2), "is not refused by name")
    allow = [x for g in said.get("allow", []) for x in ("--allow-global", g)]
    h5, again, direct, back = (os.path.join(tmp, n) for n in ("a.h5", "b.h5", "direct.pt", "back.pt"))
    plan = json.loads(run("convert", path, h5, "--dry-run", "--json", *allow))
    expect(not os.path.exists(h5), "a dry run wrote the file")
    run("convert", path, h5, *allow)
    size = os.path.getsize(h5)
    expect(f" {size}" in " " + json.dumps(plan), f"a dry run did not name {size} bytes: {plan}")
    run("convert", path, again, "--threads", "1", *allow)
    with open(h5, "rb") as a, open(again, "rb") as b:
        expect(a.read() == b.read(), "the same input gave other bytes")
    report = json.loads(run("verify", h5, "--json", *allow))
    # Unreadable names are kept as they are.
    expect(all(f["code"] == "NAME" and f["severity"] == "warning" for f in report["findings"]), f"verify: {report['findings']}")
    run("consolidate", path, direct, *allow)
    run("convert", h5, back, *allow)
    want = torch.load(direct, weights_only=False)
    got = torch.load(back, weights_only=False)
    lines = truth.diff(truth.describe(want), truth.describe(got))
    expect(not lines, "the way back gives another object:\n  " + "\n  ".join(lines[:20]))
    expect(ties(want) == ties(got), f"ties: expected {ties(want)}, found {ties(got)}")
    check_arrays(h5, want)


def check_shapes(tmp):
    """Tensors of many chunks and odd shapes."""
    torch.manual_seed(5)
    base = torch.randn(1200, 700)
    objects = {
        "rows": torch.randn(3, 700, 401), "long": torch.randn(1_000_003), "wide": torch.randn(2, 1_000_000), "single": torch.randn(1, 1, 600_001),
        "half": torch.randn(999, 1111).to(torch.bfloat16), "bytes": torch.randint(0, 255, (3_000_001,), dtype=torch.uint8),
        "zeros": torch.zeros(700_000), "full": torch.full((600_000,), -1, dtype=torch.int32), "transposed": base.t(), "part": base[3:900, 5:600],
        "tied": [base, base], "deep": torch.randn(*[1] * 40, 6), "complex": torch.randn(300_000, dtype=torch.complex64).conj(),
        "a": torch.ones(2), "a.b": torch.ones(3), 3: torch.ones(4), "3": torch.ones(5), "": {"": torch.ones(1)}, "x/y": {".": torch.ones(6)},
        "names": ["a" * 70000], "nan": [float("nan"), float("inf")], "text": "größe\n", "\x00": 1, "tuple": ((1, 2), {4: (torch.ones(2), None)}),
    }
    torch.save(objects, os.path.join(tmp, "full.pt"))
    check_case(tmp, tmp)


# ---- files that h5py wrote

def write_foreign(path):
    """Returns its content: nested dicts of numpy arrays and values."""
    rng = np.random.default_rng(7)
    arrays = {
        "contiguous": rng.standard_normal((37, 11)).astype("f4"),
        "f8": rng.standard_normal((5, 3)),
        "f2": rng.standard_normal((9,)).astype("f2"),
        "c8": (rng.standard_normal((4, 3)) + 1j).astype("c8"),
        "c16": (rng.standard_normal((4,)) - 1j).astype("c16"),
        "flags": rng.integers(0, 2, (13,)).astype(bool),
        "scalar": np.float32(3.25),
        "empty": np.zeros((0, 4), "i4"),
        **{f"int_{t}": rng.integers(0, 100, (6, 5)).astype(t) for t in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")},
    }
    big = rng.standard_normal((100, 70)).astype("f4")
    with h5py.File(path, "w") as f:
        group = f.create_group("model/inner")
        for name, array in arrays.items():
            group[name] = array
        layouts = {
            "chunked": dict(chunks=(33, 17)), "gzip": dict(chunks=(33, 17), compression="gzip"),
            "shuffle": dict(chunks=(50, 70), compression="gzip", shuffle=True), "fletcher": dict(chunks=(33, 17), fletcher32=True),
            "all": dict(chunks=(40, 30), compression="gzip", shuffle=True, fletcher32=True), "rows": dict(chunks=(7, 70), fletcher32=True),
            "shuffle_only": dict(chunks=(100, 70), shuffle=True), "wide": dict(chunks=(1, 70)), "grown": dict(maxshape=(None, None)),
        }
        for name, options in layouts.items():
            f.create_dataset(f"layouts/{name}", data=big, **options)
        f["layouts/grown"].resize((90, 80))
        partly = f.create_dataset("layouts/partly", (64, 64), "f4", chunks=(16, 16), fillvalue=2.5)
        partly[20:30, 5:7] = 1
        f.create_dataset("layouts/unwritten", (7,), "i4", fillvalue=9)
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_layout(h5py.h5d.COMPACT)
        compact = h5py.h5d.create(f["layouts"].id, b"compact", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((3, 4)), plist)
        compact.write(h5py.h5s.ALL, h5py.h5s.ALL, np.arange(12, dtype="f4").reshape(3, 4))
        bits = rng.integers(0, 65536, (8, 8)).astype("u2")
        f["half/brain"] = bits
        f["half/brain"].attrs["dtype"] = "bfloat16"
        f["half/eight"] = rng.integers(0, 127, (5,)).astype("u1")
        f["half/eight"].attrs["dtype"] = "float8_e4m3fn"
        f["tied"] = f["layouts/rows"]
        f["soft"] = h5py.SoftLink("/layouts/wide")
        f.attrs["epoch"] = 3
        f.attrs["lr"] = 0.125
        f.attrs["name"] = "größe"
        f.attrs["done"] = True
        f["model"].attrs["sizes"] = [1, 2, 3]
        f["model"].attrs["names"] = ["a", "b"]
        f["model"].attrs["fixed"] = np.bytes_(b"abc")
        f["model"].attrs["big"] = np.uint64(2**64 - 1)
        f.create_group("nothing")
    values = {("epoch",): 3, ("lr",): 0.125, ("name",): "größe", ("done",): True, ("model", "sizes"): [1, 2, 3],
              ("model", "names"): ["a", "b"], ("model", "fixed"): "abc", ("model", "big"): 2**64 - 1, ("nothing",): {}}
    return values


def check_foreign(tmp):
    path, out = os.path.join(tmp, "foreign.h5"), os.path.join(tmp, "foreign.pt")
    values = write_foreign(path)
    for threads in (1, 2):
        run("convert", path, out, "--force", "--threads", threads)
        got = torch.load(out, weights_only=True)
        with h5py.File(path, "r") as f:
            count = 0
            def visit(name, item):
                nonlocal count
                if isinstance(item, h5py.Dataset):
                    compare(name, item)
            def compare(name, item):
                nonlocal count
                at = got
                for step in name.split("/"):
                    at = at[step]
                want, have = truth._tensor(read_back(item)), truth._tensor(at)
                expect(want == have, f"{name}: expected {want}, found {have}")
                count += 1
            f.visititems(visit)
            compare("soft", f["soft"])
            compare("tied", f["tied"])
        expect(got["tied"].data_ptr() == got["layouts"]["rows"].data_ptr(), "hard links are no longer tied")
        for place, value in values.items():
            at = got
            for step in place:
                at = at[step]
            expect(type(at) is type(value) and at == value, f"{place}: expected {value!r}, found {at!r}")
        expect(len(tensors_of(got)) == count, f"{len(tensors_of(got))} tensors, expected {count}")
    run("verify", path)


def check_versions(tmp):
    """Files of the oldest and the newest layout that h5py's library writes."""
    data = np.arange(4000, dtype="f4").reshape(50, 80)
    for low in ("earliest", "v108", "v110", "v112", "latest"):
        path = os.path.join(tmp, f"{low}.h5")
        with h5py.File(path, "w", libver=(low, "latest") if low != "latest" else "latest") as f:
            f.create_dataset("a/b", data=data, chunks=(7, 9), fletcher32=True, compression="gzip")
            f.create_dataset("a/grow", data=data, chunks=(8, 80), maxshape=(None, None))
            f.create_dataset("a/long", data=data, chunks=(8, 80), maxshape=(None, 80))
            f.create_dataset("a/one", data=data, chunks=(50, 80))
        done = subprocess.run([TOOL, "convert", path, path + ".pt"], capture_output=True, text=True)
        if low == "latest" and done.returncode == 2 and "H5_" in done.stderr:
            continue   # a format newer than the library the tool was built with; the tool says so
        expect(done.returncode == 0, f"{low}: {done.stderr}")
        got = torch.load(path + ".pt", weights_only=True)["a"]
        for name, tensor in got.items():
            expect(torch.equal(tensor, torch.from_numpy(data)), f"{low}: {name} differs")


# ---- files that are refused

def refused(tmp, name, code, write, words=""):
    path, out = os.path.join(tmp, name + ".h5"), os.path.join(tmp, name + ".pt")
    if os.path.exists(path):
        os.remove(path)
    made = write(path)
    if made is None:
        said = run("convert", path, out, status=2)
        expect(f"error[{code}]" in said and words in said, f"{name}: expected {code} {words!r}: {said}")
        expect(not os.path.exists(out), f"{name}: an output was written")
    return path


def in_file(fill):
    def write(path):
        with h5py.File(path, "w") as f:
            f["good"] = np.arange(10, dtype="f4")
            fill(f)
    return write


def user_block(path):
    with h5py.File(path, "w", userblock_size=1024) as f:
        f["a"] = np.zeros(3, "f4")


def absurd(f):
    f.create_dataset("huge", (2**60,), "f4", chunks=(1024,))


def absurd_contiguous(f):
    space = h5py.h5s.create_simple((2**40,))
    h5py.h5d.create(f.id, b"huge", h5py.h5t.IEEE_F32LE, space)


def cycle(f):
    f.create_group("a/b")
    f["a/b/c"] = f["a"]


def virtual(f):
    layout = h5py.VirtualLayout((10,), "f4")
    layout[:] = h5py.VirtualSource(f["good"])
    f.create_virtual_dataset("v", layout)


def unknown_filter(f):
    f.create_dataset("z", data=np.arange(100, dtype="f4"), chunks=(10,), compression="lzf")


def check_refusals(tmp):
    cases = [
        ("user_block", "H5_OPEN", user_block, "user block"),
        ("external_link", "H5_LINK", in_file(lambda f: f.__setitem__("x", h5py.ExternalLink("/etc/passwd", "/"))), "another file"),
        ("external_data", "H5_LINK", in_file(lambda f: f.create_dataset("x", (4,), "f4", external=[("raw.bin", 0, 16)])), "other files"),
        ("virtual", "H5_LINK", in_file(virtual), "virtual"),
        ("soft_loop", "H5_LINK", in_file(lambda f: (f.__setitem__("a", h5py.SoftLink("/b")), f.__setitem__("b", h5py.SoftLink("/a")))), "soft link"),
        ("soft_nowhere", "H5_LINK", in_file(lambda f: f.__setitem__("a", h5py.SoftLink("/none"))), "soft link"),
        ("soft_to_external", "H5_LINK", in_file(lambda f: (f.__setitem__("b", h5py.ExternalLink("/etc/passwd", "/")), f.__setitem__("a", h5py.SoftLink("/b")))), ""),
        ("cycle", "H5_LINK", in_file(cycle), "cycle"),
        ("lzf", "UNSUPPORTED", in_file(unknown_filter), "32000"),
        ("big_endian", "H5_TYPE", in_file(lambda f: f.__setitem__("x", np.arange(3, dtype=">f4"))), "big-endian"),
        ("big_endian_int", "H5_TYPE", in_file(lambda f: f.__setitem__("x", np.arange(3, dtype=">i2"))), "big-endian"),
        ("text", "H5_TYPE", in_file(lambda f: f.__setitem__("x", "words")), "text"),
        ("compound", "H5_TYPE", in_file(lambda f: f.__setitem__("x", np.zeros(3, [("a", "f4"), ("b", "i4")]))), "compound"),
        ("reference", "H5_TYPE", in_file(lambda f: f.create_dataset("x", (1,), h5py.ref_dtype)), "reference"),
        ("vlen", "H5_TYPE", in_file(lambda f: f.create_dataset("x", (2,), h5py.vlen_dtype("i4"))), "varying"),
        ("opaque", "H5_TYPE", in_file(lambda f: f.__setitem__("x", np.zeros(2, "V5"))), "opaque"),
        ("enum", "H5_TYPE", in_file(lambda f: f.create_dataset("x", (2,), h5py.enum_dtype({"A": 1, "B": 2}))), "enumeration"),
        ("null", "H5_TYPE", in_file(lambda f: f.create_dataset("x", data=h5py.Empty("f4"))), "dataspace"),
        ("dtype_attribute", "H5_TYPE", in_file(lambda f: f["good"].attrs.__setitem__("dtype", "bfloat16")), "bfloat16"),
        ("absurd", "LIMIT_SIZE", in_file(absurd), "claims"),
        ("absurd_contiguous", "LIMIT_SIZE", in_file(absurd_contiguous), "claims"),
    ]
    for name, code, write, words in cases:
        refused(tmp, name, code, write, words)

    def cut(path):
        in_file(lambda f: None)(path)
        with open(path, "r+b") as f:
            f.truncate(os.path.getsize(path) - 100)
    refused(tmp, "cut", "H5_OPEN", cut)

    def noise(path):
        with open(path, "wb") as f:
            f.write(b"\x89HDF\r\n\x1a\n" + bytes(range(256)) * 4)
    refused(tmp, "noise", "H5_OPEN", noise)


def check_flips(tmp):
    """Every kind of checksum a chunk can have finds a flipped bit in it, by verify and before a copy ends."""
    data = np.random.default_rng(3).standard_normal((64, 64)).astype("f4")
    for name, options in {"fletcher": dict(fletcher32=True), "gzip": dict(compression="gzip"),
                          "both": dict(fletcher32=True, compression="gzip", shuffle=True)}.items():
        path = os.path.join(tmp, f"flip_{name}.h5")
        with h5py.File(path, "w") as f:
            d = f.create_dataset("group/w", data=data, chunks=(16, 64), **options)
            places = [(d.id.get_chunk_info(i).byte_offset, d.id.get_chunk_info(i).size) for i in range(4)]
        with open(path, "rb") as f:
            sound = f.read()
        for at in [places[1][0], places[2][0] + places[2][1] // 2, places[3][0] + places[3][1] - 1]:
            broken = bytearray(sound)
            broken[at] ^= 0x10
            with open(path, "wb") as f:
                f.write(broken)
            said = run("verify", path, status=1)
            expect("group.w" in said and "damage[" in said, f"{name}: byte {at}: verify does not name it: {said}")
            said = run("convert", path, path + ".pt", status=2)
            codes = ("H5_CHECKSUM",) if name == "fletcher" else ("H5_CHECKSUM", "ZIP_MISMATCH", "LIMIT_RATIO", "TRUNCATED", "H5_OPEN")
            expect(any(f"error[{c}]" in said for c in codes) and "group/w" in said, f"{name}: byte {at}: {said}")
            expect(not os.path.exists(path + ".pt"), "an output was written")


def main():
    global TOOL
    ap = argparse.ArgumentParser()
    ap.add_argument("case", nargs="*")
    ap.add_argument("--tool", required=True)
    args = ap.parse_args()
    TOOL = args.tool
    steps = {"shapes and names": check_shapes, "files of h5py": check_foreign, "formats of libhdf5": check_versions, "refusals": check_refusals, "flipped bits": check_flips}
    for folder in args.case:
        folder = os.path.abspath(folder)
        steps[".".join(folder.split(os.sep)[-2:])] = lambda tmp, folder=folder: check_case(folder, tmp)
    failed = 0
    for name, step in steps.items():
        with tempfile.TemporaryDirectory() as tmp:
            try:
                step(tmp)
                print(f"ok    {name}", flush=True)
            except Exception as why:
                failed += 1
                print(f"FAIL  {name}: {why if isinstance(why, Failure) else traceback.format_exc()}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
