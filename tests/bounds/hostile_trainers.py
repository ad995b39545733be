# SPDX-License-Identifier: Apache-2.0
"""Hostile folders of trainers: bombs in every file, indexes of .bin files, FairScale's and torchao's states."""
import json
import os

from pickles import *
from registry import hostile, small, write


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
    """20,000 files that do not exist."""
    os.makedirs(path)
    with open(os.path.join(path, "pytorch_model.bin.index.json"), "w") as f:
        json.dump({"metadata": {}, "weight_map": {f"k{i}": f"f{i}.bin" for i in range(20_000)}}, f)


@hostile("")
def bin_index_of_other_keys(path):
    """10,000 keys in each of two files, which the index lacks."""
    os.makedirs(path)
    one = archive(stream(mapping({f"k{i}": number(i % 200) for i in range(10_000)})))
    for name_of_file in ("a.bin", "b.bin"):
        write(os.path.join(path, name_of_file), one)
    with open(os.path.join(path, "pytorch_model.bin.index.json"), "w") as f:
        json.dump({"weight_map": {f"m{i}": "ab"[i % 2] + ".bin" for i in range(20_000)}}, f)


def fairscale(path, names_of_all, entries):
    """A flat parameter of many names, and a state of many entries, each of which applies to every name."""
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


def torch_checkpointing(path, world, items, files=None):
    """`items`: item -> the opcodes of its tensors' layouts; `files`: name -> bytes."""
    os.makedirs(path)
    ranks = DICT + MARK + b"".join(number(rank) + NONE for rank in range(world)) + SETITEMS + put(0)
    described = {}
    for key, layouts in items.items():
        described[key] = mapping({"nested_path_to_metadata": layouts, "rank_to_layout_info": get(0) if described else ranks})
    write(os.path.join(path, "metadata.pkl"), stream(mapping({"metadata": mapping(described), "world_size": number(world), "version": text("2.0")})))
    for name_of_file, data in (files or {}).items():
        write(os.path.join(path, name_of_file), data)


def cut_over(world, paths, rows):
    """Tensors of some rows that share one description, by which the ranks of a mesh hold equal parts."""
    spec = mapping({"mesh_shape": row([world]), "mesh_data": row(range(world)) + put(1)})
    cut = LIST + MARK + mapping({"type": text("Shard"), "dim": number(0)}) + APPENDS
    data = mapping({"global_shape": row([rows]), "dtype": text("torch.float32"), "mesh_spec": spec, "placements": cut})
    group = mapping({"sharding_metadata": mapping({"type": text("DTensorShardingMetadata"), "data": data}), "ranks": get(1)})
    first = LIST + MARK + group + APPENDS + put(2)
    return DICT + MARK + b"".join(text(f'["{i}"]') + (first if i == 0 else get(2)) for i in range(paths)) + SETITEMS


EMPTY = archive(stream(DICT))


@hostile("")
def tensors_that_no_rank_has(path):
    """Each rank's file lacks each of the tensors that it should have parts of."""
    world = 400
    torch_checkpointing(path, world, {"model": cut_over(world, 20_000, world)}, {f"model_{rank}.pt": EMPTY for rank in range(world)})


@hostile("")
def ranks_without_files(path):
    """80,000 ranks of several items, whose files do not exist."""
    world = 80_000
    torch_checkpointing(path, world, {f"m{i}": cut_over(world, 1, world) if i == 0 else mapping({'["0"]': get(2)}) for i in range(8)})
