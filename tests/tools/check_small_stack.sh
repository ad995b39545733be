#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs fsdp-ckpt where the limit on stacks is far below what libraries take: check_small_stack.sh FSDP_CKPT FOLDER
set -e
ulimit -s 64
for path in "$2"/golden/2.11.0/nested/ckpt "$2"/hdf5/layouts.h5; do
  "$1" verify "$path" --threads 2 | grep -q ': sound'
done
