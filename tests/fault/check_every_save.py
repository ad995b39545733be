#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes system calls of fsdp::save and its variants fail, and kills the process there, as check_every_call.py does with the tool's verbs.

  python3 check_every_save.py --tool PATH --injector PATH [--runs N | --every | --every-way] [--seed S] [--work FOLDER] [CASE...]

The tool is fault_save_program.  Only one rank: tests/libfsdp/checkpoint covers several ranks of which one fails or dies.
On ext4 and XFS (--work) data go past the page cache or are handed to threads, in memory they do not.
Calls count from the start of the save to the program's end; all are included except those that cannot fail (call_errors.py).
Exit 0: passed, 1: failed, 77: tracing is not possible here.
"""
import sys

from check_every_call import parser, sweep
from verb_cases import Case, chosen

CASES = [
    Case("save", "folder {out}/o 3", "folder {out}/o 2"),
    Case("save_new", "folder {out}/o 3"),
    # Enough for every buffer of OutputStream to be written, by a thread each.
    Case("save_direct", "direct {out}/o 2500", "folder {out}/o 2"),
    Case("save_async", "async {out}/o 3", "async {out}/o 2"),
    Case("save_meta", "meta {out}/o 3", "folder {out}/o 2"),
    Case("save_file", "file {out}/o.pt 3", "file {out}/o.pt 2"),
]
# The call that save_program.cpp makes right before it saves.
BEGINS = "getppid"

if __name__ == "__main__":
    options = parser(__doc__).parse_args()
    sys.exit(sweep(options, chosen(options.cases, CASES), BEGINS))
