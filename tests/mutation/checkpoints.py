# SPDX-License-Identifier: Apache-2.0
"""The checkpoints that are changed: every layout that the tool reads, by the programs that write it."""
import glob
import os
from typing import NamedTuple


class Checkpoint(NamedTuple):
    layout: str     # counts are kept by it
    name: str
    path: str       # a folder or a file
    kind: str       # the reader: a KIND of reader.py, or "whole": only its producer, which left truth.json
    truth: str | None


GOLDEN_DCP = {"dcp 2.1": ["2.1.2/odd"], "dcp 2.4": ["2.4.1/fsdp1", "2.4.1/odd"], "dcp 2.15": ["2.15.0/fsdp1", "2.15.0/fsdp2", "2.15.0/odd"],
              "dcp 2.11": ["2.11.0/minimal", "2.11.0/shards", "2.11.0/many_files", "2.11.0/nested", "2.11.0/rank_local_metadata",
                           "2.11.0/safetensors_items", "2.11.0/as_1_13"],
              "dcp zstd": ["2.11.0/zstd"]}
GOLDEN_FILES = {"torch zip": ["2.11.0/zip_pt", "2.11.0/nested_pt", "2.11.0/odd_tensors_pt", "2.1.2/odd_pt", "2.15.0/odd_pt"],
                "torch legacy": ["2.11.0/legacy_pt"], "torch without CRC": ["2.11.0/nocrc_pt"]}
GOLDEN_SAFETENSORS = {"safetensors with index": ["2.11.0/hf_map"],
                      "HuggingFaceStorage": ["2.11.0/hf_plain", "2.11.0/hf_sharded", "2.11.0/hf_consolidated", "2.15.0/hf_safetensors"]}
CORPUS = {"dcp 2.11": ["fsdp2_w2", "fsdp2_w3", "fsdp1_w2", "fsdp1_w3", "fsdp2_hsdp_w4", "fsdp2_tp_w4", "values_w2"], "dcp zstd": ["fsdp2_zstd_w2"]}
FRAMEWORKS = {"accelerate_": "Accelerate", "deepspeed_universal": "DeepSpeed universal", "deepspeed_": "DeepSpeed ZeRO", "fairscale_": "FairScale",
              "lightning_": "Lightning", "per_rank_": "a file a rank", "torch_checkpointing_": "torch_checkpointing", "trainer_": "Trainer"}


def found(data, corpus, frameworks):
    """Returns those that exist: the tests' data always, PyTorch's and the trainers' output if these folders are given."""
    out = []

    def add(layout, folder, kind, path=None):
        truths = [t for t in (os.path.join(folder, n) for n in ("truth.json", "full_truth.json")) if os.path.exists(t)]
        name = "/".join(folder.rstrip("/").split("/")[-2:])
        out.append(Checkpoint(layout, name, path or os.path.join(folder, "ckpt"), kind, truths[0] if truths else None))

    for layout, names in GOLDEN_DCP.items():
        for name in names:
            add(layout, f"{data}/golden/{name}", "dcp")
    for layout, names in GOLDEN_FILES.items():
        for name in names:
            add(layout, f"{data}/golden/{name}", "file", f"{data}/golden/{name}/full.pt")
    for layout, names in GOLDEN_SAFETENSORS.items():
        for name in names:
            add(layout, f"{data}/golden/{name}", "safetensors")
    single = f"{data}/golden/2.11.0/hf_consolidated"
    out.append(Checkpoint("safetensors", "single", f"{single}/ckpt/model-00001-of-00001.safetensors", "safetensors", f"{single}/truth.json"))
    out.append(Checkpoint("HDF5", "layouts", f"{data}/hdf5/layouts.h5", "hdf5", None))
    out.append(Checkpoint("Megatron torch_dist", "megatron", f"{data}/producers/megatron", "dcp", None))
    for layout, names in CORPUS.items() if corpus else ():
        for name in names:
            add(layout, f"{corpus}/{name}", "dcp")
    for folder in sorted(glob.glob(f"{data}/golden/frameworks/*/")) + (sorted(glob.glob(f"{frameworks}/*/")) if frameworks else []):
        name = os.path.basename(folder.rstrip("/"))
        layout = next((layout for prefix, layout in FRAMEWORKS.items() if name.startswith(prefix)), None)
        if layout is not None and "local_per_rank" not in name:   # flat parameters, which no program can read back
            kind = "whole" if layout != "Lightning" else "dcp" if os.path.isdir(f"{folder}ckpt") else "file"
            add(layout, folder.rstrip("/"), kind)
    return out
