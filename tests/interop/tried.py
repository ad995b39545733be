# SPDX-License-Identifier: Apache-2.0
"""Records what was tried of whose checkpoints.  docs/compatibility.md is made of the records.

  tried.record("accelerate", "FSDP2, `SHARDED_STATE_DICT`", "convert", "its load_fsdp_model loads what was written", ranks=4)

A check calls it after that has passed.  ctest names the file in FSDP_TEST_TRIED, one for each test; without the variable nothing
is recorded.  Only the process that runs the check records, none that it starts.
"""
import contextlib
import glob
import json
import os
import re
from importlib import metadata

SUPPORT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support")

# Names of the packages, as their authors write them.
PRODUCERS = {"accelerate": "Accelerate", "ai2-olmo-core": "OLMo-core", "deepspeed": "DeepSpeed", "fairscale": "FairScale", "fast-llm": "Fast-LLM", "lerobot": "LeRobot", "lightning": "Lightning", "megatron-bridge": "Megatron-Bridge", "megatron-core": "Megatron-Core", "mosaicml": "MosaicML Composer",
             "nemo-automodel": "NeMo Automodel",
             "peft": "peft", "torch": "PyTorch", "torch_checkpointing": "torch_checkpointing", "torchao": "torchao",
             "torchtitan": "torchtitan", "torchtune": "torchtune", "transformers": "transformers", "verl": "verl"}

# Checkpoints that the tests keep or make, by the beginning of their names: package, layout, and the version where no file of requirements pins it.
CASES = [
    ("accelerate_fsdp1_sharded_per_rank", "accelerate", "FSDP1, `SHARDED_STATE_DICT`, `use_dcp=False`"),
    ("accelerate_fsdp2_sharded_per_rank", "accelerate", "FSDP2, `SHARDED_STATE_DICT`, `use_dcp=False`"),
    ("accelerate_fsdp1_sharded", "accelerate", "FSDP1, `SHARDED_STATE_DICT`"),
    ("accelerate_fsdp2_sharded", "accelerate", "FSDP2, `SHARDED_STATE_DICT`"),
    ("accelerate_fsdp2_full", "accelerate", "FSDP2, `FULL_STATE_DICT`"),
    ("accelerate_fsdp1_local", "accelerate", "FSDP1, `LOCAL_STATE_DICT`"),
    ("bin_shards", "accelerate", "weights in several `.bin` files"),
    ("deepspeed_universal", "deepspeed", "universal checkpoints"),
    ("deepspeed_zero1", "deepspeed", "ZeRO stage 1"),
    ("deepspeed_zero2", "deepspeed", "ZeRO stage 2"),
    ("deepspeed_zero3", "deepspeed", "ZeRO stage 3"),
    ("fairscale_", "fairscale", "shards with metadata", "0.4.13"),
    ("lightning_file", "lightning", "`.ckpt` file"),
    ("lightning_model_parallel", "lightning", "`ModelParallelStrategy`"),
    ("torch_checkpointing_async", "torch_checkpointing", "saved asynchronously"),
    ("torch_checkpointing_boxes", "torch_checkpointing", "`default_tensor_v1`"),
    ("torch_checkpointing_safetensors", "torch_checkpointing", "safetensors and JSON items"),
    ("torch_checkpointing_undescribed", "torch_checkpointing", "without metadata"),
    ("torch_checkpointing_w", "torch_checkpointing", "`torch.save` items"),
    ("torchao_adamw", "torchao", "states of AdamW in 8 and 4 bits and float8", "0.18.0"),
    ("trainer_", "transformers", "Trainer, not sharded", "4.57.1"),
    ("per_rank_", "torch", "a `torch.save` file of each rank"),
    ("fsdp1_hsdp", "torch", "FSDP1, `HYBRID_SHARD`, DCP"),
    ("fsdp1", "torch", "FSDP1, DCP"),
    ("fsdp2_hsdp", "torch", "FSDP2 on a 2-D mesh, DCP"),
    ("fsdp2_tp", "torch", "FSDP2 with tensor parallelism, DCP"),
    ("fsdp2", "torch", "FSDP2, DCP"),
    ("hf_", "torch", "DCP in safetensors"),
    ("", "torch", "values and tensors of every kind"),
]

# What does not work with a version: package, version, the layout or the code that was tried, and what happened.  The page lists it with what was tried.
FAILS = [
    ("torch", "2.15.0", "casts to float8_e4m3fn", "it takes 448 for what is too large, infinity included, where 2.11.0 and `--dtype` give NaN"),
    ("torchao", "0.18.0", "torchtune's checkpoints", "torchtune 0.6.1 imports `torchao.dtypes.nf4tensor`, which this version no longer has"),
    ("transformers", "5.24.0", "FP8 weights in blocks", "tried without a GPU: its save_pretrained writes other keys than 5.23.0's"),
    ("transformers", "5.24.0", "`inkling2`, `inkling2_loop`", "no map has their conversions"),
]


def version_of(package):
    """Returns the version that this Python has installed, else the one that tests/support/requirements*.txt pin."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package).partition("+")[0]
    found = set()
    for path in glob.glob(os.path.join(SUPPORT, "requirements*.txt")):
        if path.endswith("-models.txt"):   # another version than the trainers run with
            continue
        with open(path, encoding="utf-8") as file:
            for line in file:
                name, _, version = line.strip().partition("==")
                if re.sub("[-_.]+", "-", name.lower()) == re.sub("[-_.]+", "-", package.lower()):
                    found.add(version)
    if len(found) != 1:
        raise KeyError(f"{package}: pinned to {sorted(found) or 'no version'}")
    return found.pop()


_begun = False


def record(package, layout, verbs, what, *, ranks=None, version=None):
    """`ranks`: of the checkpoint, where it has any.  `version`: where the package is neither installed nor pinned."""
    global _begun
    path = os.environ.get("FSDP_TEST_TRIED")
    if not path:
        return
    entry = {"producer": PRODUCERS[package], "version": version or version_of(package), "layout": layout, "verbs": verbs, "what": what, "ranks": ranks}
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "a" if _begun else "w", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")
    _begun = True


def record_case(folder, verbs, what):
    """`folder`: a checkpoint of the tests' data or of the corpus."""
    parent, name = os.path.normpath(folder).split(os.sep)[-2:]
    package, layout, *version = next(found[1:] for found in CASES if name.startswith(found[0]))
    if package == "torch" and re.fullmatch(r"[\d.]+", parent):   # golden/2.4.1/fsdp1
        version = [parent]
    if package == "torch" and name.endswith("_pt"):
        layout = "`torch.save` files: values and tensors of every kind"
    ranks = re.search(r"_w(\d+)$", name)
    record(package, layout, verbs, what, ranks=int(ranks[1]) if ranks else None, version=version[0] if version else None)
