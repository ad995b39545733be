# SPDX-License-Identifier: Apache-2.0
"""Pickles of every name that the tool lists as plain data, as its owner writes them and with parts that were changed.

A Node is a part of a pickle.  `real` makes Nodes of real objects, `makers` has one for each listed callable, `changed` replaces, adds and
removes parts, `opcodes` writes them.
"""
import argparse
import collections
import copy
import copyreg
import datetime
import decimal
import fractions
import os
import re
import struct
import types
import uuid

import numpy
import torch
import torch.distributed.checkpoint.metadata as dcp
import torch.distributed.checkpoint.planner as planner
from torch.distributed._mesh_layout import _MeshLayout
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor import metadata as sharded
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed._shard.sharded_tensor.shard import Shard as LocalShard
from torch.distributed._shard.sharding_spec import ChunkShardingSpec, EnumerableShardingSpec
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.remote_device import _remote_device
from torch.distributed.tensor import placement_types as placements
from torch.distributed.tensor._dtensor_spec import ShardOrderEntry, TensorMeta

SOURCES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "formats")
# Marks of plain_names.cpp and producer_names.cpp that let a file do more with a name than to say it.
CALLABLE = re.compile(r"\bk(Call|New|State|Called|Instances|Function|Maker|Rebuilder)\b")


def source(path):
    with open(os.path.join(SOURCES, path)) as file:
        return re.sub(r"//[^\n]*", "", file.read())


def listed():
    """Returns the names of the tool's list, (module, name) of callables and of those that are only named."""
    text, called, named = source("containers/names/plain_names.cpp"), set(), set()
    groups = re.findall(r'\bGroup\{([^"]+),\s*"([^"]+)",\s*((?:"[^"]*"\s*)+)\}', text)
    assert len(groups) == len(re.findall(r"\bGroup\{", text)) > 50, "groups that this script does not read"
    for uses, module, names in groups:
        names = "".join(re.findall(r'"([^"]*)"', names)).split()
        (called if CALLABLE.search(uses) else named).update((module, name) for name in names)
    text = source("containers/names/producer_names.cpp")
    producers = re.findall(r'\bProducerName\{\s*"([^"]+)",\s*"([^"]+)",\s*(k\w+),', text)
    assert len(producers) == len(re.findall(r"\bProducerName\{", text)) > 20, "producers that this script does not read"
    for module, name, use in producers:
        (called if CALLABLE.search(use) else named).add((module, name))
    for dtype, storage in re.findall(r'\{DType::k\w+, \d+, "(\w+)", "(\w*)"', source("bytes/base/dtype.cpp")):
        named.update({("torch", dtype)} | ({("torch", storage)} if storage else set()))
    return called, named


# -- parts of a pickle

class Node:
    """`kind` data: a scalar; name: (module, name); tuple, list, dict: of parts; storage: (class, bytes); call: its form, with the parts
    target, arguments, and state, items, entries or None."""
    __slots__ = ("kind", "value", "parts")

    def __init__(self, kind, value=None, parts=()):
        self.kind, self.value, self.parts = kind, value, list(parts)


def name(module, attribute):
    return Node("name", (module, attribute))


def call(target, *args, form="R", state=None, items=None, entries=None):
    """`form`: R and O and I call, N and X make a new one; `items` and `entries` are put into it."""
    made = [name(*target) if isinstance(target, tuple) else target, Node("tuple", None, map(real, args))]
    return Node("call", form, made + [None if part is None else real(part) for part in (state, items, entries)])


def real(value):
    """Returns the Node of a Python value, by its own reduction."""
    if isinstance(value, Node):
        return value
    if value is None or type(value) in (bool, int, float, str, bytes):
        return Node("data", value)
    if type(value) in (tuple, list):
        return Node(type(value).__name__, None, map(real, value))
    if type(value) is dict:
        return Node("dict", None, [real(part) for entry in value.items() for part in entry])
    if isinstance(value, torch.dtype):
        return name("torch", str(value)[len("torch."):])
    if isinstance(value, torch.storage.TypedStorage):
        return Node("storage", (value.pickle_storage_type(), bytes(value._untyped_storage)))
    if isinstance(value, torch.UntypedStorage):
        return Node("storage", ("UntypedStorage", bytes(value)))
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return name(value.__module__, value.__qualname__)
    registered = copyreg.dispatch_table.get(type(value))
    made = registered(value) if registered else value.__reduce_ex__(2)
    if isinstance(made, str):
        return name(type(value).__module__, made)
    function, args, state, items, entries = (tuple(made) + (None,) * 5)[:5]
    form = "R"
    if function is copyreg.__newobj__:
        function, args, form = args[0], args[1:], "N"
    items = list(items) if items is not None else None
    entries = dict(entries) if entries is not None else None
    return call(real(function), *args, form=form, state=state, items=items, entries=entries)


def opcodes(node, storages):
    """Returns the opcodes of a Node.  `storages`: the bytes of the records that it refers to, extended."""
    write = lambda part: opcodes(part, storages)
    if node.kind == "data":
        value = node.value
        if value is None or isinstance(value, bool):
            return {None: b"N", True: b"\x88", False: b"\x89"}[value]
        if isinstance(value, int):
            if 0 <= value < 256:
                return b"K" + bytes([value])
            if -2**31 <= value < 2**31:
                return b"J" + struct.pack("<i", value)
            size = value.bit_length() // 8 + 1
            return b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)
        if isinstance(value, float):
            return b"G" + struct.pack(">d", value)
        if isinstance(value, bytes):
            return write(call(("_codecs", "encode"), value.decode("latin1"), "latin1"))
        raw = value.encode()
        return b"X" + struct.pack("<I", len(raw)) + raw
    if node.kind == "name":
        module, attribute = node.value
        first, *rest = attribute.split(".")
        out = b"c" + module.replace("builtins", "__builtin__").encode() + b"\n" + first.encode() + b"\n"
        for member in rest:
            out = b"c__builtin__\ngetattr\n" + out + opcodes(Node("data", member), storages) + b"\x86R"
        return out
    if node.kind == "storage":
        cls, raw = node.value
        storages.append(raw)
        size = {"UntypedStorage": 1}.get(cls) or torch.empty(0, dtype=getattr(torch, cls).dtype).element_size()
        pid = Node("tuple", None, map(real, ["storage", name("torch", cls), str(len(storages) - 1), "cpu", len(raw) // size]))
        return write(pid) + b"Q"
    parts = [None if part is None else write(part) for part in node.parts]
    if node.kind == "tuple":
        return b"(" + b"".join(parts) + b"t"
    if node.kind == "list":
        return b"](" + b"".join(parts) + b"e"
    if node.kind == "dict":
        return b"}(" + b"".join(parts) + b"u"
    target, args, state, items, entries = parts
    is_tuple = node.parts[1].kind == "tuple"
    if node.value == "O" and is_tuple:
        out = b"(" + target + args[1:-1] + b"o"
    elif node.value == "I" and is_tuple and node.parts[0].kind == "name":
        out = b"(" + args[1:-1] + b"i" + "\n".join(node.parts[0].value).encode() + b"\n"
    elif node.value == "X":
        out = target + args + b"}X\x06\x00\x00\x00objectK\x01s\x92"
    else:
        out = target + args + (b"\x81" if node.value == "N" else b"R")
    of_items, of_entries = node.parts[3], node.parts[4]
    if items is not None:
        out += b"(" + items[2:-1] + b"e" if of_items.kind == "list" else items + b"a"
    if entries is not None:
        out += b"(" + entries[2:-1] + b"u" if of_entries.kind == "dict" else entries + b"Ns"
    return out + (state + b"b" if state is not None else b"")


def root(node):
    """Returns the pickle of {"v": node} and the records of its storages."""
    storages = []
    return b"\x80\x02}" + opcodes(Node("data", "v"), storages) + opcodes(node, storages) + b"s.", storages


# -- as their owners write them

def old_reduce(cls, state):
    return call(("copyreg", "_reconstructor"), name(*cls), name("builtins", "object"), None, state=state)


def tensor(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype)


def with_attribute(value):
    value.note = "a"
    return value


def nested(layout):
    parts = [torch.arange(2.0), torch.arange(3.0)]
    return torch.nested.nested_tensor(parts, layout=layout)


def sparse(kind):
    dense = torch.eye(3)
    return {"coo": dense.to_sparse_coo, "csr": dense.to_sparse_csr, "bsr": lambda: torch.eye(4).to_sparse_bsr((2, 2))}[kind]()


def arguments_of(value, index=1):
    return value.__reduce_ex__(2)[index]


MESH = ("torch.distributed.device_mesh", "DeviceMesh")
DTENSOR = ("torch.distributed.tensor", "DTensor")
NUMPY_DTYPES = ["b1", "i1", "i4", "u8", "f2", "f4", "f8", "f16", "c16", "S5", "S0", "U3", "V8", "V1", "O8", "M8", "m8", "M8[ns]", ">f4"]


def mesh():
    return call(MESH, form="N", state={"device_type": "cpu", "mesh": tensor(0, 1, dtype=torch.int64), "mesh_dim_names": ("dp",)})


def specification():
    meta = TensorMeta(torch.Size([4]), (1,), torch.float32)
    return call(("torch.distributed.tensor._dtensor_spec", "DTensorSpec"), form="N", state={"mesh": mesh(), "placements": (placements.Shard(0),), "tensor_meta": meta})


def wrapper():
    return [name(*DTENSOR), torch.float32, torch.Size([4]), (1,), 0, call(("torch.serialization", "_get_layout"), "torch.strided"), torch.device("cpu"), False]


def metadata():
    size = torch.Size([4])
    chunk = dcp.ChunkStorageMetadata(torch.Size([0]), size)
    index = dcp.MetadataIndex("a", torch.Size([0]), 0)
    tensor_metadata = dcp.TensorStorageMetadata(dcp.TensorProperties(dtype=torch.float32), size, [chunk])
    return dcp.Metadata({"a": tensor_metadata, "b": dcp.BytesStorageMetadata()}, {"a": ("a",)}, {index: _StorageInfo("__0_0.distcp", 0, 8)}, dcp.StorageMeta(save_id="x"))


def items():
    index = dcp.MetadataIndex("a", torch.Size([0]), 0)
    chunk = dcp.ChunkStorageMetadata(torch.Size([0]), torch.Size([4]))
    data = planner.TensorWriteData(chunk, dcp.TensorProperties(dtype=torch.float32), torch.Size([4]))
    kinds = planner.WriteItemType
    return {"WriteItem": planner.WriteItem(index, kinds.TENSOR, None, data), "TensorWriteData": data, "BytesIOWriteData": planner.BytesIOWriteData(8),
            "SavePlan": planner.SavePlan([planner.WriteItem(index, kinds.BYTE_IO, planner.BytesIOWriteData(8), None)])}


def sharded_parts():
    spec = ShardMetadata([0], [4], "rank:0/cpu")
    properties = sharded.TensorProperties(dtype=torch.float32)
    whole = sharded.ShardedTensorMetadata([spec], torch.Size([4]), properties)
    group = ShardedTensor.ProcessGroupState(0, 0, 1, 1)
    local = LocalShard(tensor(0, 1, 2, 3), spec)
    state = ([local], whole, group, ChunkShardingSpec(0, ["rank:0/cpu"]), False)
    return {"ShardMetadata": spec, "TensorProperties": properties, "ShardedTensorMetadata": whole, "ProcessGroupState": group, "Shard": local,
            "ShardedTensor": call(("torch.distributed._shard.sharded_tensor.api", "ShardedTensor"), form="N", state=state)}


def of_dtype(rng):
    return numpy.dtype(rng.choice(NUMPY_DTYPES))


def scalar(rng):
    dtype = numpy.dtype(rng.choice([said for said in NUMPY_DTYPES if said not in ("O8", "S0")]))
    return call(("numpy._core.multiarray", "scalar"), dtype, bytes(dtype.itemsize))


def array(rng):
    dtype = of_dtype(rng)
    values = numpy.array([1, None, "a"], dtype) if dtype.hasobject else numpy.zeros(3, dtype)
    return values if rng.random() < 0.5 else numpy.asfortranarray(values.reshape(3, 1))


def makers():
    """Returns a function of a random.Random for each listed callable, by its dotted name: a Node or a value as its owner writes them."""
    made = {}

    def add(modules, names, maker):
        for module in modules.split():
            for attribute in names.split():
                made[f"{module}.{attribute}"] = ((module, attribute), maker)

    one = lambda value: lambda rng, target: value() if isinstance(value, types.FunctionType) else value
    called = lambda *args, **more: lambda rng, target: call(target, *args, **more)
    new = lambda state, *args: lambda rng, target: call(target, *args, form="N", state=state)
    add("collections", "OrderedDict", lambda rng, target: rng.choice([
        collections.OrderedDict(a=1, b=2), call(target, [["a", 1], ["b", 2]]), call(target, entries={"a": 1}, state={"_metadata": {"": {"version": 1}}})]))
    add("collections", "Counter", called({"a": 3}))
    add("collections", "defaultdict", lambda rng, target: collections.defaultdict(rng.choice([None, list, dict, int, float, set]), {} if rng.random() < 0.5 else {"a": 1}))
    add("collections", "deque", lambda rng, target: collections.deque([1, 2], rng.choice([None, 3])))
    add("collections", "ChainMap", one(collections.ChainMap({"a": 1}, {"b": 2})))
    add("torch", "Size", one(torch.Size([2, 3])))
    add("torch", "device", lambda rng, target: torch.device(rng.choice(["cpu", "cuda:1", "meta", "mps:0"])))
    add("torch.serialization", "_get_layout", lambda rng, target: call(target, rng.choice(["torch.strided", "torch.sparse_coo", "torch.sparse_csr", "torch.jagged"])))
    add("torch.torch_version", "TorchVersion", lambda rng, target: call(target, "2.11.0", form=rng.choice("RN")))
    add("torch._utils", "_rebuild_tensor", lambda rng, target: call(target, *arguments_of(torch.arange(6.0).reshape(2, 3))[:4]))
    add("torch._utils", "_rebuild_tensor_v2", lambda rng, target: torch.arange(6).to(rng.choice([torch.float32, torch.int64, torch.bfloat16, torch.bool])).reshape(2, 3).t())
    add("torch._utils", "_rebuild_tensor_v3", lambda rng, target: torch.arange(6, dtype=torch.uint8).to(rng.choice([torch.uint16, torch.uint32, torch.float8_e5m2])))
    add("torch._utils", "_rebuild_parameter", one(lambda: torch.nn.Parameter(tensor(1, 2))))
    add("torch._utils", "_rebuild_parameter_with_state", one(lambda: with_attribute(torch.nn.Parameter(tensor(1, 2)))))
    add("torch._utils", "_rebuild_qtensor", lambda rng, target: rng.choice([
        lambda: torch.quantize_per_tensor(tensor(1, 2, 3), 0.5, 1, torch.qint8),
        lambda: torch.quantize_per_channel(torch.eye(2), torch.tensor([0.5, 1.0]), torch.tensor([0, 1]), 0, torch.quint8)])())
    add("torch._utils", "_rebuild_sparse_tensor", lambda rng, target: sparse(rng.choice(["coo", "csr", "bsr"])))
    add("torch._utils", "_rebuild_sparse_csr_tensor", lambda rng, target: call(target, *arguments_of(sparse("csr"))))
    add("torch._utils", "_rebuild_meta_tensor_no_storage", one(lambda: torch.zeros(2, 3, device="meta")))
    add("torch._utils", "_rebuild_nested_tensor", one(lambda: nested(torch.strided)))
    add("torch._utils", "_rebuild_device_tensor_from_numpy _rebuild_xla_tensor",
        lambda rng, target: call(target, numpy.zeros((2, 3), rng.choice(["f4", "i8", "u1"])), torch.float32, "cpu", False))
    add("torch._utils", "_rebuild_device_tensor_from_cpu_tensor", called(tensor(1, 2), torch.float32, "cpu", False))
    add("torch.nested._internal.nested_tensor", "_rebuild_njt", one(lambda: nested(torch.jagged)))
    add("torch._dynamo.decorators", "_DimRange", new({"dim": 0, "min": 2, "max": 8}))
    add("torch._utils", "_rebuild_wrapper_subclass", lambda rng, target: call(target, *wrapper()))
    add("torch._tensor", "_rebuild_from_type_v2", lambda rng, target: rng.choice([
        lambda: with_attribute(tensor(1, 2)),
        lambda: call(target, name("torch._utils", "_rebuild_wrapper_subclass"), name(*DTENSOR), tuple(wrapper()),
                     ({"_local_tensor": tensor(0, 1, 2, 3), "_spec": specification()}, {}))])())
    parts = sharded_parts()
    add("torch.distributed._shard.sharded_tensor.api", "ShardedTensor", one(parts["ShardedTensor"]))
    add("torch.distributed._shard.sharded_tensor.api", "ShardedTensor.ProcessGroupState", one(parts["ProcessGroupState"]))
    add("torch.distributed._shard.sharded_tensor.shard", "Shard", one(parts["Shard"]))
    for part in ("ShardedTensorMetadata", "TensorProperties"):
        add("torch.distributed._shard.sharded_tensor.metadata", part, one(parts[part]))
    add("torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING", lambda rng, target: call(target, rng.randrange(3)))
    add("torch.distributed._shard.metadata", "ShardMetadata", one(parts["ShardMetadata"]))
    add("torch.distributed._shard.sharding_spec.api", "EnumerableShardingSpec", one(EnumerableShardingSpec([parts["ShardMetadata"]])))
    add("torch.distributed._shard.sharding_spec.chunk_sharding_spec", "ChunkShardingSpec", one(ChunkShardingSpec(0, ["rank:0/cpu"])))
    add("torch.distributed.remote_device", "_remote_device", one(_remote_device("rank:0/cpu")))
    specs = "torch.distributed.tensor._dtensor_spec"
    add(specs + " torch.distributed._tensor.placement_types", "DTensorSpec", one(specification))
    add(specs + " torch.distributed._tensor.placement_types", "TensorMeta", one(TensorMeta(torch.Size([4]), (1,), torch.float32)))
    add(specs, "ShardOrderEntry", one(ShardOrderEntry(0, (0,))))
    for placement, value in (("Shard", placements.Shard(0)), ("Replicate", placements.Replicate()), ("_StridedShard", placements._StridedShard(0, split_factor=2)),
                             ("Partial", placements.Partial("sum"))):
        add("torch.distributed.tensor.placement_types torch.distributed._tensor.placement_types", placement, one(value))
    add(*MESH, one(mesh))
    add("torch.distributed._mesh_layout", "_MeshLayout", one(_MeshLayout((2,), (1,))))
    whole = metadata()
    chunk = whole.state_dict_metadata["a"]
    both = "torch.distributed.checkpoint.metadata torch.distributed._shard.checkpoint.metadata"
    for part, value in (("Metadata", whole), ("TensorStorageMetadata", chunk), ("TensorProperties", chunk.properties), ("ChunkStorageMetadata", chunk.chunks[0]),
                        ("BytesStorageMetadata", dcp.BytesStorageMetadata()), ("MetadataIndex", next(iter(whole.storage_data))), ("StorageMeta", whole.storage_meta)):
        add(both, part, one(value))
    add("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING", lambda rng, target: call(target, rng.randrange(3)))
    add("torch.distributed.checkpoint.filesystem torch.distributed._shard.checkpoint.filesystem", "_StorageInfo", one(_StorageInfo("__0_0.distcp", 0, 8)))
    for part, value in items().items():
        add("torch.distributed.checkpoint.planner", part, one(value))
    add("torch.distributed.checkpoint.planner", "WriteItemType", lambda rng, target: call(target, rng.randrange(1, 4)))
    add("builtins", "complex", called(1.0, 2.0))
    add("builtins", "set frozenset", lambda rng, target: call(target, [1, "a"]))
    add("builtins", "range slice", lambda rng, target: call(target, 0, 5, 2))
    add("builtins", "bytearray", lambda rng, target: rng.choice([call(target), call(target, "a\xff", "latin-1"), call(target, b"ab")]))
    add("builtins", "bytes", called())
    add("builtins", "object", lambda rng, target: call(target, form="N"))
    add("builtins", "getattr", lambda rng, target: call(target, name("torch.distributed.checkpoint.planner", "WriteItemType"), "SHARD"))
    add("_codecs", "encode", called("a\xff", "latin1"))
    add("copyreg", "_reconstructor", lambda rng, target: old_reduce(("argparse", "Namespace"), {"lr": 1}))
    add("argparse", "Namespace", one(argparse.Namespace(lr=1)))
    add("types", "SimpleNamespace", one(types.SimpleNamespace(lr=1)))
    hour = datetime.timezone(datetime.timedelta(hours=1))
    add("datetime", "datetime", lambda rng, target: datetime.datetime(2024, 2, 3, 4, 5, tzinfo=rng.choice([None, hour])))
    add("datetime", "date", one(datetime.date(2024, 2, 3)))
    add("datetime", "time", lambda rng, target: datetime.time(4, 5, tzinfo=rng.choice([None, hour])))
    add("datetime", "timedelta", one(datetime.timedelta(1, 2, 3)))
    add("datetime", "timezone", one(hour))
    add("decimal", "Decimal", one(decimal.Decimal("1.50")))
    add("fractions", "Fraction", one(fractions.Fraction(1, 3)))
    add("uuid", "UUID", one(uuid.UUID(int=5)))
    paths = "PosixPath WindowsPath PurePosixPath PureWindowsPath"
    add("pathlib", "Path " + paths, called("a", "b"))
    add("pathlib._local", paths, called("a", "b"))
    add("numpy.core.multiarray numpy._core.multiarray", "scalar", lambda rng, target: scalar(rng))
    add("numpy.core.multiarray numpy._core.multiarray", "_reconstruct", lambda rng, target: array(rng))
    add("numpy", "dtype", lambda rng, target: of_dtype(rng))
    # ndarray has a state, which it gets from the result of _reconstruct.
    add("numpy", "ndarray", lambda rng, target: array(rng))
    numbers = "Int8 UInt8 Int16 UInt16 Int32 UInt32 Int64 UInt64 Byte UByte Short UShort Int UInt Long ULong LongLong ULongLong Float16 Float32 Float64 LongDouble"
    for kind in f"Bool {numbers} Complex64 Complex128 CLongDouble Object Bytes Str Void DateTime64 TimeDelta64 String".split():
        add("numpy.dtypes", kind + "DType", called())
    # Packages that are not installed everywhere.
    for module, attribute in listed()[0]:
        if module.split(".")[0] in ("omegaconf", "torchao"):
            add(module, attribute, new({"_content": {"a": 1}, "_metadata": None}))
        if module.split(".")[0] == "deepspeed":
            add(module, attribute, called(1) if attribute.endswith("Enum") else new({"cur_scale": 1}))
    add("torchao.quantization.quantize_.common.kernel_preference", "KernelPreference", called("auto"))
    add("torchao.quantization.quant_primitives", "MappingType", called(1))
    add("transformer_engine.pytorch.constants", "DType", called(7))
    add("transformer_engine.pytorch.tensor.float8_tensor", "_make_float8_tensor_in_reduce_ex",
        lambda rng, target: call(target, tensor(1, 2, dtype=torch.uint8), call(("transformer_engine.pytorch.constants", "DType"), 7), tensor(1, 1), torch.bfloat16, (2,), None))
    blocks = "transformer_engine.pytorch.tensor.float8_blockwise_tensor"
    add(blocks, "Float8BlockQuantizer", new({"rowwise_usage": True}))
    add(blocks, "_make_float8_blockwise_tensor_in_reduce_ex",
        lambda rng, target: call(target, (1, 2), tensor(1, 2, dtype=torch.uint8), tensor(1, 1), None, None,
                                 call(("transformer_engine.pytorch.constants", "DType"), 7), torch.bfloat16, None, True, None))
    # The root has the name that was asked for: older modules give their names to the same classes.
    return {dotted: lambda rng, target=target, maker=maker: renamed(real(maker(rng, target)), target) for dotted, (target, maker) in made.items()}


def renamed(node, target):
    made = copy.deepcopy(node)
    own = made.parts[0] if made.kind == "call" else None
    if own is not None and own.kind == "name" and own.value[1] == target[1]:
        own.value = target
    return made


# -- changes

TEXTS = ["", "a", "cpu", "cuda:9", "rank:0/cpu", "f4", "O", "O8", "f4,O", "V0", "M8[7Y]", "latin1", "rot13", "1E9999999", "__class__", "__dict__", "__setstate__", "torch.strided", "x" * 300]
NUMBERS = [-1, 0, 1, 2, 7, 63, 255, 256, 1 << 20, 2**31 - 1, 2**31, -2**31, 2**40, 2**62, 2**63 - 1, -2**63, 2**64, 2**200]
TIMES = [("ns", 1, 1, 1), ("ns", 0, 1, 1), ("s", 2**31 - 1, 1, 1), ("M", 1, 0, 1), ("Z", 1, 1, 1), ("generic", -1, 1, 1), ("D", 1, 7, 1), ("s", 2**62, 1, 1)]
RAW = [b"", b"\0", b"\x41" * 4, b"\x41" * 8, b"\x41" * 16, b"\x02\xff\x63\xff\xff\xff\xff\xff\xff\xff", b"\x41" * 40]
FIELDS = ["O", "O,O", "f4,f4", "(2,)f4", "V8", "T"]


class Changes:
    def __init__(self, rng, made, called, named):
        self.rng, self.makers = rng, made
        self.called, self.named = sorted(called), sorted(named)

    def any_call(self):
        return self.makers[self.rng.choice(sorted(self.makers))](self.rng)

    def odd(self, depth=0):
        """Returns any part."""
        rng = self.rng
        kinds = [lambda: rng.choice(TEXTS), lambda: rng.choice(NUMBERS), lambda: rng.choice([None, True, False]), lambda: rng.choice([0.5, -1.0, float("inf"), float("nan")]),
                 lambda: rng.choice(RAW), lambda: name(*rng.choice(self.named + self.called)), lambda: tensor(1, 2), lambda: tensor(-1, 5, dtype=torch.int64),
                 lambda: call(("builtins", "range"), rng.choice(NUMBERS)), lambda: of_dtype(rng), lambda: array(rng), lambda: ({}, tuple(rng.choice(TIMES))),
                 lambda: call(("numpy", "dtype"), rng.choice(FIELDS)), lambda: call(("numpy", "dtype"), [("a", rng.choice(["O", "f8"]))]),
                 lambda: call(("numpy", "dtype"), name("numpy.dtypes", "StringDType")), lambda: call(("numpy.dtypes", rng.choice(["StringDType", "ObjectDType", "VoidDType"]))),
                 lambda: Node("storage", ("FloatStorage", bytes(16))), lambda: {"a": 1}, lambda: [1, "a"], lambda: ()]
        if depth < 3:
            more = lambda: [self.odd(depth + 1) for _ in range(rng.randrange(4))]
            kinds += [lambda: tuple(more()), more, lambda: Node("dict", None, [part for value in more() for part in (real(rng.choice(TEXTS)), real(value))]), self.any_call]
        return real(rng.choice(kinds)())

    def state(self):
        rng = self.rng
        some = {rng.choice(["a", "maps", "dim", "fqn", "__class__", "__dict__", "__setstate__", "_local_tensor", "_backward_hooks", "data", "int"]): self.odd(1) for _ in range(2)}
        return real(rng.choice([some, (None, some), (some, some), (1, (2,), of_dtype(rng), False, bytes(16)), self.odd(1)]))

    def places(self, node, out):
        for at, part in enumerate(node.parts):
            if part is not None:
                out.append((node, at))
                self.places(part, out)
        return out

    def changed(self, node):
        """Changes the parts of a tree in some places."""
        rng = self.rng
        for _ in range(rng.choice([0, 1, 1, 1, 2, 2, 3])):
            holder, at = rng.choice(self.places(Node("list", None, [node]), []))
            if holder.parts == [node]:
                holder, at = node, None
            part = holder if at is None else holder.parts[at]
            kind = rng.randrange(8)
            if part.kind == "call" and kind < 3:
                if kind == 0:
                    part.value = rng.choice("RRNNOIX")
                elif kind == 1:
                    part.parts[rng.choice([2, 2, 3, 4])] = self.state()
                elif rng.random() < 0.5:
                    part.parts[0] = name(*rng.choice(self.called))
                else:
                    part.parts[2] = None
            elif part.kind in ("tuple", "list") and kind < 6:
                places = len(part.parts)
                if kind < 2 and places:
                    del part.parts[rng.randrange(places)]
                elif kind < 4 and places:
                    part.parts[rng.randrange(places)] = self.odd()
                else:
                    part.parts.insert(rng.randint(0, places), self.odd())
            elif part.kind == "data" and isinstance(part.value, int) and kind < 6:
                part.value = rng.choice(NUMBERS)
            elif at is not None:
                holder.parts[at] = self.odd()
        return node

    def case(self, dotted):
        node = self.makers[dotted](self.rng)
        return self.changed(node)
