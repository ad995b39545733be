#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that docs/errors.md explains exactly the codes of formats/bytes/base/error.h, each in a row with a meaning and a remedy or none.

    check_errors.py ERRORS_MD ERROR_H
"""
import re
import sys


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        page = file.read()
    listed = re.findall(r"^\| `([A-Z0-9_]+)` \|", page, re.MULTILINE)
    whole = re.findall(r"^\| `([A-Z0-9_]+)` \| [^|]+ \| (?:[^|]+ )?\|$", page, re.MULTILINE)
    with open(sys.argv[2], encoding="utf-8") as file:
        codes = re.findall(r'\bCODE\(k\w+, "(\w+)"\)', file.read())
    wrong = [f"{code}: not in errors.md" for code in codes if code not in listed]
    wrong += [f"{code}: no such code" for code in listed if code not in codes]
    wrong += [f"{code}: listed twice" for code in sorted(set(listed)) if listed.count(code) > 1]
    wrong += [f"{code}: the row has not three cells" for code in listed if code not in whole]
    for problem in wrong:
        print(problem)
    print(f"{len(codes)} codes, {len(listed)} explained")
    return 1 if wrong or not codes else 0


if __name__ == "__main__":
    sys.exit(main())
