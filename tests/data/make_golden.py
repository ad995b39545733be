#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the small checkpoints of tests/data/golden/<torch version>/ and what is in them.

  python make_golden.py            writes golden/<version of the installed torch>/, and golden/SHA256SUMS

A case is `<case>/ckpt/` with `truth.json`, or `<case>_pt/full.pt` with `full_truth.json`.  The truth is the content that PyTorch reads
back; if this PyTorch cannot read a case back, "from" says "put in" and the truth is the content that went into it.  `as_*` are one real
folder whose `.metadata` is pickled again in the way of another version of PyTorch or Python.
"""
import collections
import copyreg
import hashlib
import io
import json
import os
import pickle
import shutil
import sys
import tempfile
import warnings

warnings.simplefilter("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "support"))

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.checkpoint import metadata as ckm
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import SerializationFormat, _StorageInfo
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import truth

OUT = os.path.join(HERE, "golden", torch.__version__.split("+")[0])


def work_in_out():
    """Relative names, as `.metadata` keeps the path it was saved to."""
    global OUT
    os.makedirs(OUT, exist_ok=True)
    os.chdir(OUT)
    OUT = ""


PUT_IN, READ_BACK = "put in", "read back"


# Tensors that fsdp-ckpt refuses to join, by name: a word of its message.
REFUSED = {"quantized": "quantized"}


def write_truth(path, obj, source):
    doc = {"torch": torch.__version__.split("+")[0], "from": source, "items": truth.flat(obj), "tree": truth.describe(obj)}
    case = os.path.basename(os.path.dirname(os.path.abspath(path)))
    if case in REFUSED:
        doc["refused"] = REFUSED[case]
    if case.startswith("hf_"):
        doc["ordered"] = False  # safetensors keep no order of keys
    with open(path, "w") as f:
        json.dump(doc, f, indent=1, ensure_ascii=False)
        f.write("\n")


def read_back(ckpt):
    with tempfile.TemporaryDirectory() as tmp:
        dcp_to_torch_save(ckpt, os.path.join(tmp, "full.pt"))
        return torch.load(os.path.join(tmp, "full.pt"), weights_only=False)


def fresh(case):
    path = os.path.join(OUT, case, "ckpt")
    shutil.rmtree(os.path.dirname(path), ignore_errors=True)
    os.makedirs(os.path.dirname(path))
    return path


def finish(case, put_in=None, wrongly_read=False):
    """The truth of a folder: read back, or `put_in` if PyTorch cannot read it or silently reads something else."""
    folder = os.path.join(OUT, case)
    try:
        if wrongly_read:
            raise ValueError("reads rank 0's part only, and leaves the rest of each tensor undefined")
        obj, source = read_back(os.path.join(folder, "ckpt")), READ_BACK
    except BaseException as why:  # CheckpointException is not an Exception
        if put_in is None:
            raise
        obj, source = put_in, PUT_IN
        print(f"  {case}: this PyTorch cannot read it back ({str(why).strip().splitlines()[-1][:90]})")
    write_truth(os.path.join(folder, "truth.json"), obj, source)
    print(case)


def folder_case(case, state, put_in=None, planner=None, **writer):
    dcp.save(state, storage_writer=dcp.FileSystemWriter(fresh(case), **writer), planner=planner)
    finish(case, put_in)


def file_case(case, obj, **how):
    folder = os.path.join(OUT, case + "_pt")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    torch.save(obj, os.path.join(folder, "full.pt"), **how)
    write_truth(os.path.join(folder, "full_truth.json"), torch.load(os.path.join(folder, "full.pt"), weights_only=False), READ_BACK)
    print(case + "_pt")


# ---------------------------------------------------------------- what goes in

DTYPES = """float64 float32 float16 bfloat16 complex128 complex64 complex32 int64 int32 int16 int8 uint64 uint32 uint16
uint8 bool float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu""".split()


def every_dtype():
    sd = {name: torch.tensor([1.0, 2.0, 0.0]).to(getattr(torch, name)) for name in DTYPES}
    sd["float4_e2m1fn_x2"] = torch.tensor([0x21, 0x43], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    return sd


def odd_tensors():
    z = torch.tensor([1 + 2j, 3 - 4j])
    return {
        "scalar": torch.tensor(3.5), "empty": torch.empty(0, 4), "empty_0d": torch.empty(2, 0, 3),
        "transposed": torch.arange(12.0).reshape(3, 4).t(), "middle": torch.arange(100.0)[10:20],
        "every_other": torch.arange(10.0)[::2], "column": torch.arange(12.0).reshape(3, 4)[:, 1],
        "channels_last": torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
        "expanded": torch.tensor([7.0]).expand(5), "conj": z.conj(), "neg": torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
        "conj_transposed": torch.tensor([[1 + 1j, 2j], [3.0, 4 - 1j]]).mH,
        "nan": torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0]),
        "parameter": nn.Parameter(torch.ones(3)),
    }


def nested():
    return {
        "a": {"b": torch.ones(2), "list": [torch.zeros(1), 5, "s"], "terminal": [1, 2, 3], "tuple": (torch.ones(2), 3),
              "nest": [[1, 2], [torch.ones(1), {"z": 1}]], "dicts": [{"lr": 0.1, "params": [0, 1]}, {"lr": 0.2, "params": []}],
              "empty": {}, "empty_list": [], 3: "int key", "dot.key": 1, "ünï": 2, "": 0},
        "ordered": collections.OrderedDict(x=1, y=torch.ones(1)), "none": None, "big": 2**70, "float": 1.5,
        "bytes": b"\x00\xff", "np_float": np.float64(1.5), "np_array": np.arange(3), "size": torch.Size([1, 2]),
        "dtype": torch.float16, "device": torch.device("cpu"), "set": {1, 2}, "complex": 1 + 2j,
        "layers.2": torch.ones(1), "layers.10": torch.ones(1),
    }


def aliased():
    base = torch.arange(10.0)
    return {"base": base, "view": base[2:4], "reshaped": base.view(2, 5), "tied": base, "empty": torch.empty(0, 3), "n": 3,
            "bytes": b"\x00\xff"}


# ---------------------------------------------------------------- one process

def folders():
    folder_case("minimal", {"w": torch.arange(6.0).reshape(2, 3), "step": 7})
    folder_case("nested", nested())
    folder_case("dtypes", every_dtype())
    folder_case("odd_tensors", odd_tensors())
    folder_case("threads", {"a": torch.ones(1000), "b": torch.ones(10), "c": 1}, thread_count=3)
    folder_case("many_files", {"a": torch.ones(4), "b": torch.ones(2), "c": 1}, single_file_per_rank=False)
    folder_case("not_flattened", {"a": {"b": torch.ones(2)}, "w": torch.ones(1)},
                planner=DefaultSavePlanner(flatten_state_dict=False))
    state = {"a": torch.arange(4.0), "b": torch.ones(2, 3, dtype=torch.bfloat16), "e": torch.empty(0, 2),
             "i": torch.arange(3), "c": 1}
    folder_case("safetensors_items", state, put_in=state, serialization_format=SerializationFormat.SAFETENSORS)
    from torch.distributed.checkpoint._extension import ZStandard
    folder_case("zstd", {"a": torch.zeros(1000), "b": torch.arange(3.0), "c": 1}, _extensions=[ZStandard()])
    folder_case("empty_dict", {"model": {"w": torch.ones(2)}, "state": {}, "epoch": 2})
    quantized = {"q": torch.quantize_per_tensor(torch.arange(4.0), 0.5, 3, torch.qint8), "w": torch.ones(2)}
    folder_case("quantized", quantized, put_in=quantized)


def files():
    file_case("dtypes", every_dtype())
    file_case("odd_tensors", odd_tensors())
    file_case("nested", nested())
    file_case("zip", aliased())
    file_case("legacy", aliased(), _use_new_zipfile_serialization=False)
    file_case("ordered", nn.Linear(2, 2).state_dict())
    file_case("bare_tensor", torch.arange(3.0))
    torch.serialization.set_crc32_options(False)
    file_case("nocrc", aliased())
    torch.serialization.set_crc32_options(True)
    x = torch.arange(8.0).reshape(2, 4)
    file_case("quantized", {
        "tensor": torch.quantize_per_tensor(x, 0.1, 10, torch.quint8), "int32": torch.quantize_per_tensor(x, 0.5, 0, torch.qint32),
        "channel": torch.quantize_per_channel(x, torch.tensor([0.1, 0.2]), torch.tensor([1, 2]), 0, torch.qint8)})
    d = torch.tensor([[0, 1.0, 0, 2.0], [3.0, 0, 0, 0]])
    file_case("sparse", {"coo": d.to_sparse(), "csr": d.to_sparse_csr(), "csc": d.to_sparse_csc(), "bsr": d.to_sparse_bsr((1, 2)),
                         "bsc": d.to_sparse_bsc((1, 2))})
    tagged = nn.Parameter(torch.ones(2), requires_grad=False)
    tagged.note = "attribute"
    file_case("parameters", {"plain": nn.Parameter(torch.ones(3)), "frozen": nn.Parameter(torch.zeros(2), requires_grad=False),
                             "tagged": tagged, "buffer": nn.Buffer(torch.ones(1)), "needs_grad": torch.ones(2, requires_grad=True)})


def hugging_face():
    state = {"a": torch.arange(4.0), "b": torch.ones(2, 3, dtype=torch.bfloat16), "layer.10.w": torch.full((3,), 10.0)}
    for case, how in {"hf_plain": {}, "hf_map": dict(fqn_to_index_mapping={"a": 1, "b": 2, "layer.10.w": 2}),
                      "hf_consolidated": dict(save_distributed=True, enable_consolidation=True)}.items():
        path = fresh(case)
        dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(path=path, **how))
        finish_hf(case, state)


def finish_hf(case, state):
    back = {k: torch.zeros_like(v) for k, v in state.items()}
    dcp.load(back, storage_reader=dcp.HuggingFaceStorageReader(path=os.path.join(OUT, case, "ckpt")))
    assert all(torch.equal(back[k], v) for k, v in state.items()), case
    write_truth(os.path.join(OUT, case, "truth.json"), back, READ_BACK)
    print(case)


# ---------------------------------------------------------------- .metadata as others write it

KEEP = object()


class OtherPickler(pickle._Pickler):
    """Pickles with module names replaced, enum members by value, and given states for some classes."""

    def __init__(self, out, protocol, modules, states):
        super().__init__(out, protocol)
        self.modules, self.states = modules, states

    def save_global(self, obj, name=None):
        name = name or getattr(obj, "__qualname__", None) or obj.__name__
        module = pickle.whichmodule(obj, name)
        module, name = self._renamed(module, name)
        if self.proto >= 4:
            self.save(module)
            self.save(name)
            self.write(pickle.STACK_GLOBAL)
        else:
            self.write(pickle.GLOBAL + module.encode() + b"\n" + name.encode() + b"\n")
        self.memoize(obj)

    def _renamed(self, module, name):
        to = self.modules.get((module, name)) or self.modules.get((module, None)) or (module, name)
        return to[0], to[1] or name

    def reducer_override(self, obj):
        if isinstance(obj, ckm._MEM_FORMAT_ENCODING):
            return type(obj), (obj.value,)
        if isinstance(obj, torch.dtype):
            return str(obj).split(".")[1]
        state = self.states.get(type(obj), KEEP)
        if state is not KEEP:
            return copyreg.__newobj__, (type(obj),), state(obj)
        return NotImplemented

    dispatch = dict(pickle._Pickler.dispatch)
    dispatch[type] = save_global


def item(obj):
    out = io.BytesIO()
    torch.save(obj, out)
    return out.getvalue()


def two_ranks(case, protocol=4, modules=None, states=None, planner_data=True, storage_meta=None):
    """{"model": {"w": 3x3 cut into rows [0,2) and [2,3)}, "step": 42}"""
    path = fresh(case)
    os.makedirs(path)
    w = torch.arange(9.0).reshape(3, 3)
    step, top, bottom = item(42), item(w[:2].clone()), item(w[2:].clone())
    for name, data in (("__0_0.distcp", step + top), ("__1_0.distcp", bottom)):
        with open(os.path.join(path, name), "wb") as f:
            f.write(data)
    size = torch.Size
    tensor = ckm.TensorStorageMetadata(
        properties=ckm.TensorProperties(), size=size([3, 3]),
        chunks=[ckm.ChunkStorageMetadata(size([0, 0]), size([2, 3])), ckm.ChunkStorageMetadata(size([2, 0]), size([1, 3]))])
    meta = ckm.Metadata(
        state_dict_metadata={"model.w": tensor, "step": ckm.BytesStorageMetadata()},
        planner_data={"model.w": ("model", "w"), "step": ("step",)} if planner_data else None,
        storage_data={ckm.MetadataIndex("step"): _StorageInfo("__0_0.distcp", 0, len(step)),
                      ckm.MetadataIndex("model.w", size([0, 0]), 0): _StorageInfo("__0_0.distcp", len(step), len(top)),
                      ckm.MetadataIndex("model.w", size([2, 0]), 1): _StorageInfo("__1_0.distcp", 0, len(bottom))},
        storage_meta=storage_meta)
    with open(os.path.join(path, ".metadata"), "wb") as f:
        OtherPickler(f, protocol, modules or {}, states or {}).dump(meta)
    finish(case, {"model": {"w": w}, "step": 42} if planner_data else {"model.w": w, "step": 42})


def without(*names):
    return lambda obj: {k: v for k, v in obj.__dict__.items() if k not in names}


def other_versions():
    m, fs = ckm.__name__, _StorageInfo.__module__
    old = "torch.distributed._shard.sharded_tensor.metadata"
    old_properties = {(m, "TensorProperties"): (old, "TensorProperties"), (m, "_MEM_FORMAT_ENCODING"): (old, "MEM_FORMAT_ENCODING")}
    info = {_StorageInfo: without("transform_descriptors")}
    first = "torch.distributed._shard.checkpoint"
    props = ckm.TensorProperties.__getstate__
    two_ranks("as_1_13", 4, {(m, None): (first + ".metadata", None), (fs, None): (first + ".filesystem", None), **old_properties},
              {ckm.Metadata: without("storage_meta", "version"), **info}, planner_data=False)
    two_ranks("as_2_0", 4, old_properties, {ckm.Metadata: without("storage_meta", "version"), **info})
    two_ranks("as_2_3", 4, {}, {ckm.Metadata: without("storage_meta", "version"), **info})
    two_ranks("as_2_15", 4, {}, {ckm.TensorProperties: lambda p: (*props(p), (3, 1)), **info})
    two_ranks("as_2_15_no_strides", 4, {}, {ckm.TensorProperties: lambda p: (*props(p), None), **info})
    where = ckm.StorageMeta(checkpoint_id=Where("/data/run"), save_id="s", load_id=None, modules=[])
    moved = {(__name__, "Where"): ("pathlib._local", "PosixPath")}
    two_ranks("as_python_3_13", 4, moved, info, storage_meta=where)
    two_ranks("as_python_3_14", 5, moved, info, storage_meta=where)
    two_ranks("as_python_3_7", 3, {}, info)
    two_ranks("protocol_2", 2, {}, info)


class Where:
    """Replaces a path: pickles as a call with one argument."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Where, (self.path,)


# ---------------------------------------------------------------- several processes

def worker(rank, world, port_file):
    work_in_out()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + port_file, rank=rank, world_size=world)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    line, grid = init_device_mesh("cpu", (world,)), init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("a", "b"))
    a = torch.arange(15.0).reshape(5, 3)

    def save(case, state, **how):
        if rank == 0:
            fresh(case)
        dist.barrier()
        dcp.save(state, storage_writer=dcp.FileSystemWriter(os.path.join(OUT, case, "ckpt")), **how)
        dist.barrier()

    save("shards", {
        "rows": distribute_tensor(a, line, [Shard(0)]), "columns": distribute_tensor(a, line, [Shard(1)]),
        "rows_twice": distribute_tensor(a, grid, [Shard(0), Shard(0)]), "grid": distribute_tensor(a, grid, [Shard(0), Shard(1)]),
        "replicated_columns": distribute_tensor(a, grid, [Replicate(), Shard(1)]), "plain": a,
        "one_row": distribute_tensor(torch.ones(1, 2), line, [Shard(0)]), "step": torch.tensor(3.0), "epoch": 4})
    save("rank_local_metadata", {"w": distribute_tensor(a, line, [Shard(0)]), "plain": a, "n": 5}, use_collectives=False)
    case = "hf_sharded"
    if rank == 0:
        fresh(case)
    dist.barrier()
    dcp.save({"rows": distribute_tensor(a, line, [Shard(0)]), "plain": torch.ones(2, dtype=torch.bfloat16)},
             storage_writer=dcp.HuggingFaceStorageWriter(path=os.path.join(OUT, case, "ckpt"), save_distributed=True))
    dist.barrier()
    dist.destroy_process_group()


def ranks():
    with tempfile.TemporaryDirectory() as tmp:
        mp.spawn(worker, args=(4, os.path.join(tmp, "store")), nprocs=4)
    a = torch.arange(15.0).reshape(5, 3)
    finish("shards")
    finish("rank_local_metadata", {"w": a, "plain": a, "n": 5}, wrongly_read=True)
    finish_hf("hf_sharded", {"rows": a, "plain": torch.ones(2, dtype=torch.bfloat16)})


def truth_of_2_1_2():
    """2.1.2/odd came without a truth: use the content that this PyTorch reads."""
    folder = os.path.join(HERE, "golden", "2.1.2", "odd")
    if os.path.isdir(folder):
        write_truth(os.path.join(folder, "truth.json"), read_back(os.path.join(folder, "ckpt")), READ_BACK)


def sums():
    root = os.path.join(HERE, "golden")
    paths = sorted(os.path.relpath(os.path.join(d, f), root) for d, _, fs in os.walk(root) for f in fs)
    with open(os.path.join(root, "SHA256SUMS"), "w") as out:
        for p in paths:
            if p not in ("SHA256SUMS", "README.md"):
                with open(os.path.join(root, p), "rb") as f:
                    out.write(f"{hashlib.sha256(f.read()).hexdigest()}  {p}\n")


if __name__ == "__main__":
    torch.manual_seed(0)
    work_in_out()
    folders()
    files()
    hugging_face()
    other_versions()
    ranks()
    truth_of_2_1_2()
    sums()
