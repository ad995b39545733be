#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads checkpoints with PyTorch, safetensors and h5py: a server for programs that do not load them.

A request is a line of JSON on standard input, its answer a line on standard output:

    {"read": KIND, "path": PATH}        {"flat": {"a/b/0": {...}, ...}}, as truth.flat has it, or {"error": text}
    {"tree": TREE}                      the same for the output of truth.describe
    {"about": true}                     {"h5py": whether HDF5 files can be read}
    {"another_step": PATH, "out": OUT}  a copy of a checkpoint, in which every floating tensor has other elements

KIND: dcp (a torch.distributed.checkpoint folder), file (torch.save), safetensors (a file or a folder of such), hdf5.
Each is answered by a separate process, with limits on time and memory: the input may be damaged in any way.
"""
import ast
import glob
import io
import json
import os
import resource
import shutil
import signal
import sys
import warnings

warnings.simplefilter("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [os.path.join(os.path.dirname(HERE), "interop"), os.path.join(os.path.dirname(HERE), "support")]

import numpy
import torch
import torch.distributed.checkpoint as dcp
import torch.distributed.tensor  # noqa: F401  DTensors in files
import safetensors
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

import truth

try:
    import h5py
except ImportError:
    h5py = None

# Of processor time; the other limit is for waits without end.
SECONDS = 20
WALL_SECONDS = 120
MEMORY = 3 << 30
torch.set_num_threads(1)


def read_dcp(path):
    state = {}
    _load_state_dict(state, storage_reader=dcp.FileSystemReader(path), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    for name in ("meta.pt", "common.pt"):   # Lightning's and Megatron's values
        if os.path.exists(os.path.join(path, name)):
            state.update(torch.load(os.path.join(path, name), weights_only=False))
    return state


def read_file(path):
    return torch.load(path, map_location="cpu", weights_only=False)


def read_safetensors(path):
    """Returns all tensors of a file; for a folder those of its index, or of all its files, joined by the offsets in their headers."""
    if os.path.isfile(path):
        state = load_file(path)
        with safetensors.safe_open(path, framework="pt") as file:
            for name, same in (file.metadata() or {}).items():   # a tied tensor is written once, as by transformers
                if same in state and name != "format":
                    state[name] = state[same]
        return state
    indexes = glob.glob(os.path.join(path, "*.safetensors.index.json"))
    named = {}
    if indexes:
        for index in indexes:
            with open(index, encoding="utf-8") as file:
                named.update(json.load(file)["weight_map"])
    names = sorted(set(named.values())) or sorted(n for n in os.listdir(path) if n.endswith(".safetensors"))
    parts = {}
    for name in names:
        with safetensors.safe_open(os.path.join(path, name), framework="pt") as file:
            sharding = json.loads((file.metadata() or {}).get("DCP_SHARDING_INFO", "{}"))
            for key in file.keys():
                tensor = file.get_tensor(key)
                offsets = sharding.get(key, {}).get("saved_offsets", [0] * tensor.dim())
                parts.setdefault(key, []).append((offsets, tensor))
    state = {}
    for key in set(named) - set(parts):
        raise KeyError(f"{key}: in the index, in no file")
    for key, pieces in parts.items():
        shape = [max(o[d] + t.shape[d] for o, t in pieces) for d in range(pieces[0][1].dim())]
        if sum(t.numel() for _, t in pieces) != torch.Size(shape).numel():
            raise ValueError(f"{key}: parts do not cover it")
        whole = torch.empty(shape, dtype=pieces[0][1].dtype)
        for offsets, tensor in pieces:
            whole[tuple(slice(o, o + n) for o, n in zip(offsets, tensor.shape))] = tensor
        state[key] = whole
    return state


def read_hdf5(path):
    if h5py is None:
        raise ImportError("no h5py")
    state = {}

    def visit(group, path):
        for name in group:   # by every link, so that an object with two names has both here
            item = group[name]
            if isinstance(item, h5py.Group):
                if path or name != ".fsdp":
                    visit(item, path + [name])
            elif isinstance(item, h5py.Dataset):
                array = item[()]
                if isinstance(array, h5py.Empty) or item.dtype.kind in "OS":   # values
                    continue
                tensor = torch.from_numpy(numpy.array(array))
                dtype = item.attrs.get("dtype")
                state[".".join(path + [name])] = tensor.view(getattr(torch, dtype)) if dtype is not None else tensor
    with h5py.File(path, "r") as file:
        visit(file, [])
    return state


READERS = {"dcp": read_dcp, "file": read_file, "safetensors": read_safetensors, "hdf5": read_hdf5}


def flat_of_tree(tree, prefix=""):
    """Returns the result of truth.flat for the object from which truth.describe made this tree."""
    if "container" not in tree:
        return {prefix: tree if "dtype" in tree else {"value": tree["value"]}}
    out = {} if tree["items"] else {prefix: {"empty": tree["container"]}}
    for key, value in tree["items"]:
        try:
            key = str(ast.literal_eval(key))
        except (ValueError, SyntaxError):
            pass
        out.update(flat_of_tree(value, f"{prefix}/{key}" if prefix else key))
    return out


def plain(flat):
    """Removes the classes of tensors: a Parameter holds the same as a tensor."""
    return {key: {k: v for k, v in leaf.items() if k != "class"} for key, leaf in flat.items()}


def other_elements(x):
    """The same, with other elements in every floating tensor, in place."""
    if isinstance(x, torch.Tensor):
        local = getattr(x, "_local_tensor", x)
        local = local.data if isinstance(local, torch.nn.Parameter) else local
        if local.is_floating_point() and local.layout is torch.strided and local.device.type == "cpu" and local.numel():
            storage = local.untyped_storage()
            if storage.nbytes():
                torch.tensor([], dtype=torch.uint8).set_(storage)[::local.element_size()] ^= 1
    elif isinstance(x, dict):
        for value in x.values():
            other_elements(value)
    elif isinstance(x, (list, tuple)):
        for value in x:
            other_elements(value)
    elif hasattr(x, "local_shards"):
        for shard in x.local_shards():
            other_elements(shard.tensor)
    return x


def saved_again(stream):
    """A torch.save archive with other elements, as long as this one."""
    out = io.BytesIO()
    torch.save(other_elements(torch.load(io.BytesIO(stream), weights_only=False)), out)
    return out.getvalue()


def another_step(path, out):
    shutil.copytree(path, out) if os.path.isdir(path) else shutil.copy(path, out)
    changed = 0
    for file in [os.path.join(at, n) for at, _, names in os.walk(out) for n in names] if os.path.isdir(out) else [out]:
        with open(file, "rb") as f:
            old = f.read()
        if file.endswith(".metadata"):
            folder = os.path.dirname(file)
            for item in dcp.FileSystemReader(folder).read_metadata().storage_data.values():
                with open(os.path.join(folder, item.relative_path), "r+b") as data:
                    data.seek(item.offset)
                    stream = data.read(item.length)
                    try:
                        new = saved_again(stream)
                    except Exception:   # compressed, or safetensors
                        continue
                    if len(new) == len(stream):
                        data.seek(item.offset)
                        data.write(new)
                        changed += new != stream
        elif file.endswith(".safetensors"):
            with safetensors.safe_open(file, framework="pt") as f:
                metadata = f.metadata()
            save_file({k: other_elements(t) for k, t in load_file(file).items()}, file, metadata)
            changed += 1
        elif not file.endswith((".distcp", ".json", ".h5", "latest", ".py")):
            try:
                new = saved_again(old)
            except Exception:   # not a torch.save file
                continue
            with open(file, "wb") as f:
                f.write(new)
            changed += new != old
    if not changed:
        raise ValueError("nothing of it could be changed")
    return changed


def answer(request):
    if "about" in request:
        return {"h5py": h5py is not None}
    if "tree" in request:
        return {"flat": plain(flat_of_tree(request["tree"]))}
    if "another_step" in request:
        return {"changed": another_step(request["another_step"], request["out"])}
    return {"flat": plain(truth.flat(READERS[request["read"]](request["path"])))}


def in_child(request):
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(WALL_SECONDS)
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.close(here)
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        os.dup2(1, 2)
        try:
            text = json.dumps(answer(request))
        except BaseException as error:
            text = json.dumps({"error": f"{type(error).__name__}: {str(error)[-600:]}"})
        with os.fdopen(there, "w") as out:
            out.write(text)
        os._exit(0)
    os.close(there)
    with os.fdopen(here) as text:
        text = text.read()
    _, status = os.waitpid(child, 0)
    return text if status == 0 and text else json.dumps({"error": f"ended with status {status}"})


if __name__ == "__main__":
    for line in sys.stdin:
        print(in_child(json.loads(line)), flush=True)
