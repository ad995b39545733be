#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of JAX by Orbax itself: OCDBT with zarr3 arrays, and a folder of zarr for each array.

  python make_orbax.py OUT      needs orbax-checkpoint 0.12, which installs JAX
"""
import os
import sys

import jax.numpy as jnp
import orbax.checkpoint as ocp

TREE = {"params": {"dense": {"kernel": jnp.arange(12, dtype=jnp.float32).reshape(3, 4), "bias": jnp.ones((4,), jnp.bfloat16)}},
        "step": jnp.asarray(7, jnp.int32)}
KINDS = {"orbax_ocdbt": {"use_ocdbt": True, "use_zarr3": True}, "orbax_zarr": {"use_ocdbt": False, "use_zarr3": False}}

for name, kind in KINDS.items():
    folder = os.path.join(os.path.abspath(sys.argv[1]), name)
    ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**kind)).save(folder, TREE, force=True)
    os.remove(os.path.join(folder, "commit_success.txt"))   # names the place where it was made
