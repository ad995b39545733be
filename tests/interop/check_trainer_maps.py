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
from safetensors.torch import load_file, save_file

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
            if family.computed:
                with_computed(tmp, family, own, hf, *options)
            if family.adds:
                rounded(tmp, family, variant, *options)
    return work


def with_computed(tmp, family, own, hf, *options):
    """What the trainer's model has of what is computed is left out."""
    source, out = os.path.join(tmp, "computed.pt"), os.path.join(tmp, "computed.safetensors")
    torch.save(own | {name: torch.ones(2) for name in family.computed}, source)
    run("map", family.name, source, out, *options)
    rekey_tool.same(load_file(out), hf, f"{family.name} with what is computed")


def none_needed(source, part):
    """The names of a model's files are its own, or what one command makes of them, both ways; optimizers follow."""
    def work(tmp):
        (verb, *options), variant = source.NONE[part]
        code, shapes = source.converter(variant), source.model(variant)[0]
        own = trainer_family.from_shapes(shapes, 1)
        hf = code.to_hf(dict(own))
        same(code.from_hf(dict(hf)), own, f"{part}: the trainer's own code both ways")
        for first, second, more in ((own, hf, options), (hf, own, ["=".join(reversed(o.split("="))) for o in options])):
            check((list(first) == list(second)) == (verb == "convert"), f"{part}: {verb}, yet names go from {list(first)} to {list(second)}")
            paths = [os.path.join(tmp, name) for name in ("first.pt", "second.pt")]
            torch.save(with_adamw(first), paths[0])
            run(verb, *paths, *more, "--force")
            same(load(paths[1]), with_adamw(second), f"{part}: {verb}")
    return work


def with_adamw(state):
    return {"model": state, "optim": {"state": {n: {"step": torch.tensor(7.0), "exp_avg": t * 2, "exp_avg_sq": t * 4} for n, t in state.items()},
                                      "param_groups": [{"lr": 0.1, "betas": (0.9, 0.95), "params": list(state)}]}}


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
        none, apart = getattr(source, "NONE", {}), getattr(source, "APART", {})
        covered = dict(source.BY_HAND) | {part: family.name for family in families for part in family.covers}
        without = {part: "needs none: " + ("the same names" if what[0] == ["convert"] else " ".join(what[0])) for part, what in none.items()}
        listed = without | {part: "-- " + why for part, why in (source.REASONS | apart).items()} | covered
        for part in sorted(listed):
            print(f"{source.VERSION}  {part:44} {listed[part]}")
        found = source.found()
        check(found == {part.partition(" ")[0] for part in listed},
              f"not listed: {sorted(found - listed.keys())}; not there: {sorted(listed.keys() - found)}")
        counted, done = len(found - apart.keys()), len(found & (covered.keys() | without.keys()))
        print(f"{source.VERSION}: {counted} families, {len(found & covered.keys())} covered by maps, {len(found & without.keys())} need none: "
              f"{100 * done / counted:.1f} %; {len(apart)} apart")
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
    checks |= {f"{part}: needs none": none_needed(source, part) for part in getattr(source, "NONE", {})}
    for family in families:
        checks |= {family.name: compared(family)} if family.handwritten else {f"{family.name}: made": made(source, family), family.name: compared(family)}
    return 1 if rekey_tool.run_checks(args.tool, checks, args.checks) else 0


if __name__ == "__main__":
    sys.exit(main())
