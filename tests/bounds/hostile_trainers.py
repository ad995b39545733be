# SPDX-License-Identifier: Apache-2.0
"""Folders of trainers whose every file is a bomb."""
import os

from pickles import *
from registry import hostile, write


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
