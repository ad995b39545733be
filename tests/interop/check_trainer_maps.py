#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The maps that write_trainer_maps.py makes, against the trainers' own code, bit for bit.

  python check_trainer_maps.py SOURCE --tool PATH [MAP...]

SOURCE is a module beside this one without _source: titan, automodel, olmo.  Its models have other sizes than those of which the map was
made: both ways, from files and folders, with the state of AdamW.  Every family that the installed package has is covered, or has a reason.
"""
import argparse
import importlib
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(HERE)

import torch
from safetensors.torch import save_file

import rekey_tool
import trainer_family
from rekey_tool import check, load, run, same


def made(source, family):
    """The built-in map is what its maker makes of the producer's code now."""
    def work(_):
        text = json.loads(run("maps", "--show", family.name, "--json"))["rules"]
        check(text == trainer_family.rule_file(family, source.PRODUCER, source.VERSION), f"{family.name}: write_trainer_maps.py makes another one")
    return work


def compared(family):
    def work(tmp):
        from check_maps import both_ways   # after the source, which may need another transformers
        for number, variant in enumerate(family.check):
            own, hf = family.states(variant, number)
            options = ()
            if family.config:
                path = os.path.join(tmp, "config.json")
                with open(path, "w", encoding="utf-8") as file:
                    json.dump(family.config(variant), file)
                options = ("--config", path)
            both_ways(tmp, family.name, own, hf, *options, optimizer=not family.adds)
            if family.adds:
                rounded(tmp, family, variant, *options)
    return work


def rounded(tmp, family, variant, *options):
    """Where a number is added, each direction rounds as the producer's code does; moments are refused."""
    code, a, b, c = family.adapter(variant), *(os.path.join(tmp, name) for name in ("a.pt", "b.pt", "c.pt"))
    shapes = {name: tuple(tensor.shape) for name, tensor in family.states(variant, 1)[0].items()}
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        own = {name: tensor / 3 for name, tensor in trainer_family.from_shapes(shapes, 3, dtype).items()}
        torch.save(own, a)
        run("map", family.name, a, b, "--force", *options)
        same(load(b), code.to_hf(dict(own)), f"{family.name} forwards in {dtype}")
        run("map", family.name, b, c, "--reverse", "--force", *options)
        same(load(c), code.from_hf(load(b)), f"{family.name} backwards in {dtype}")
        check(any(not torch.equal(own[name], tensor) for name, tensor in load(c).items()), f"{family.name}: {dtype} rounds nothing")
    torch.save({"model": own, "optim": {"state": {n: {"exp_avg": t} for n, t in own.items()}, "param_groups": [{"params": list(own)}]}}, a)
    said = run("map", family.name, a, b, "--force", *options, expect=2)
    check("--drop-optimizer" in said, said)


def write_files(family, folder):
    for model_type in family.model_types:
        variant = family.variant_of.get(model_type, family.check[0])
        out = os.path.join(folder, family.name, model_type)
        os.makedirs(out)
        save_file(family.states(variant, 5)[1], os.path.join(out, "model.safetensors"))
        with open(os.path.join(out, "config.json"), "w", encoding="utf-8") as file:
            json.dump({"model_type": model_type} | (family.config(variant) if family.config else {}), file)


def table(source, families):
    """Prints what is covered of the package, and fails for what is in neither list."""
    def work(_):
        covered = dict(source.BY_HAND) | {part: family.name for family in families for part in family.covers}
        rows = [(part, covered.get(part) or "-- " + source.REASONS[part]) for part in sorted(covered.keys() | source.REASONS.keys())]
        for part, what in rows:
            print(f"{source.VERSION}  {part:44} {what}")
        found = source.found()
        print(f"{source.VERSION}: {len(found)} families, {len(found & covered.keys())} covered")
        check(found == {part.partition(" ")[0] for part in covered.keys() | source.REASONS.keys()},
              f"not listed: {sorted(found - covered.keys() - source.REASONS.keys())}; not there: {sorted((covered.keys() | source.REASONS.keys()) - found)}")
    return work


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("checks", nargs="*")
    parser.add_argument("--tool", required=True)
    parser.add_argument("--files", metavar="FOLDER", help="only write what is published of each model_type, and config.json beside it")
    args = parser.parse_args()
    source = importlib.import_module(args.source + "_source")
    families = [family() for family in source.FAMILIES]
    if args.files:
        for family in families:
            write_files(family, args.files)
        return 0
    checks = {"table": table(source, families)} | source.CHECKS
    for family in families:
        checks |= {family.name: compared(family)} if family.by_hand else {f"{family.name}: made": made(source, family), family.name: compared(family)}
    return 1 if rekey_tool.run_checks(args.tool, checks, args.checks) else 0


if __name__ == "__main__":
    sys.exit(main())
