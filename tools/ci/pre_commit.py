#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The hook of pre-commit: `fsdp-ckpt verify` over the checkpoints that changed files belong to.

    pre_commit.py [OPTION...] FILE...

A FILE that exists is never an option, whatever its name.  OPTIONs are those of verify, with `=` before a value.  FSDP_CKPT names the
program; otherwise it is the one on PATH.  Exit status: 0, 1 or 2 as that of fsdp-ckpt.
"""
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gate  # noqa: E402

# One file of many: the checkpoint is the folder.
PART = re.compile(r"^\.metadata$|\.distcp$|-\d{5}-of-\d{5}\.(safetensors|bin|pt)$|\.index\.json$|^fsdp_seal\.json$")
SEAL = ".fsdp_seal.json"


def checkpoint_of(file):
    folder, name = os.path.split(file)
    if PART.search(name):
        return folder or "."
    return file[:-len(SEAL)] if name.endswith(SEAL) else file


def main():
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    files = [word for word in sys.argv[1:] if os.path.lexists(word)]
    options = [word for word in sys.argv[1:] if not os.path.lexists(word)]
    strange = [word for word in options if not word.startswith("-")]
    try:
        if strange:
            raise gate.GateError(f"{gate.visible(strange[0])!r} is neither a file nor an option")
        if not files:
            return 0
        program = gate.find_program(os.environ.get("FSDP_CKPT") or "fsdp-ckpt")
        settings = gate.Settings({"FSDP_STRICT": "true" if "--strict" in options else "",
                                  "FSDP_OPTIONS": "\n".join(option for option in options if option != "--strict")})
        status = 0
        for path in sorted({checkpoint_of(file) for file in files}):
            for answer in gate.ask(program, settings, path):
                status = max(status, answer.status)
                if answer.status == 0:
                    continue
                for finding in answer.findings:
                    print(gate.visible(f"{finding.severity}[{finding.code}]: {answer.path}: {finding.text}"))
                print(gate.visible(f"{answer.path}: {answer.verdict}"))
        return status
    except gate.GateError as error:
        print(f"fsdp-ckpt: {error}; docs/install.md of the hook's repository says how to install it" if "is not a program" in str(error) else
              f"fsdp-ckpt: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
