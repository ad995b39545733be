#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the built-in maps of trainers into formats/changes/map/maps, from what the trainers' own code does to numbered elements.

  python write_trainer_maps.py SOURCE [MAP...]

The same packages give the same files.  check_trainer_maps.py compares them on other models.
"""
import argparse
import importlib
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(HERE)

import trainer_family

MAPS = os.path.join(os.path.dirname(os.path.dirname(HERE)), "formats", "changes", "map", "maps")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("maps", nargs="*")
    args = parser.parse_args()
    source = importlib.import_module(args.source + "_source")
    for family in (make() for make in source.FAMILIES):
        if family.handwritten or args.maps and family.name not in args.maps:
            continue
        with open(os.path.join(MAPS, family.name + ".toml"), "w", encoding="ascii") as file:
            file.write(trainer_family.rule_file(family, source.PRODUCER, source.VERSION))
        print(family.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
