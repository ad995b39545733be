#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the built-in maps between Megatron-Core and Hugging Face out of the mappings of Megatron-Bridge.

  python tests/interop/megatron_bridge/generate.py formats/changes/map/maps [MAP...]

The Python is that of requirements-bridge.txt.  A map has a rule for each mapping that a small model of its families uses, and no other:
check_megatron_bridge.py compares what the rules do with what Megatron-Bridge does.
"""
import os
import sys
from importlib import metadata

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.dirname(HERE))

from megatron_bridge import engine, families, rules, samples


def text_of(members):
    """The text of a map for its families."""
    every_sample = [(family, samples.Sample(family, variant)) for family in members for variant in family.variants]
    made = [(family, rules.sample_rules(sample)) for family, sample in every_sample]
    every, texts = [], [{rules.rule_text(rule, False) for rule in found} for _, found in made]
    for _, found in made:
        every += [rule for rule in found if rule not in every]
    every = rules.told_apart(every)
    types = sorted({family.model_type for family in members if not family.by_name})
    versions = f"Megatron-Bridge {metadata.version('megatron-bridge')}, Megatron-Core {metadata.version('megatron-core')}"
    heading = ("# SPDX-License-Identifier: Apache-2.0\n# Made by tests/interop/megatron_bridge/generate.py of Megatron-Bridge's mappings.\n"
               f"description = \"Megatron-Core's model to transformers' {', '.join(dict.fromkeys(f.architecture for f in members))}\"\n"
               f"versions = \"{versions}\"\n" + f"model_type = {rules.names_text(types)}\n" * (types != [])
               + "layers_apart = true\n" * any(sample.layers_apart() for _, sample in every_sample) + "\n")
    optional = [rule.get("optional") or not all(rules.rule_text(rule, False) in text for text in texts) for rule in every]
    body = [rules.rule_text(rule, maybe) for rule, maybe in zip(every, optional) if maybe or not rules.is_rename(rule)]
    renames = [rules.rename_text(rule) for rule, maybe in zip(every, optional) if not maybe and rules.is_rename(rule)]
    state = '[[rule]]\ndrop = "{module:**}._extra_state"\noptional = true\nonly = "forward"\n'
    left_out = dict.fromkeys(rules.any_layer(left).replace(families.ANYTHING, "{rest:**}") for family in members for left in family.left_out)
    state += "".join(f'\n[[rule]]\ndrop = "{left}"\noptional = true\nonly = "reverse"\n' for left in left_out)
    return heading + rules.parameters_text(every, members[0].parameters) + "\n".join([*body, state]) + "\n[rename]\n" + "".join(renames)


def main():
    folder, chosen = sys.argv[1], sys.argv[2:]
    engine.start()
    for name, members in families.by_map().items():
        if chosen and name not in chosen:
            continue
        text = text_of(members)
        with open(os.path.join(folder, f"megatron-{name}-hf.toml"), "w", encoding="ascii") as file:
            file.write(text)


if __name__ == "__main__":
    main()
