# SPDX-License-Identifier: Apache-2.0
"""`python -m fsdp_ckpt ARGUMENTS` is `fsdp-ckpt ARGUMENTS`."""
import os
import sys

from ._process import FsdpCkptError, program

try:
    path = program()
    os.execv(path, ["fsdp-ckpt", *sys.argv[1:]])
except (FsdpCkptError, OSError) as error:
    print(error, file=sys.stderr)
    sys.exit(2)
