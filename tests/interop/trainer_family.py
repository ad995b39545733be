# SPDX-License-Identifier: Apache-2.0
"""A family of models that a trainer converts to Hugging Face: what its map is made of, and compared with."""
import dataclasses
import re

import torch

import learn_maps
import rekey_tool


@dataclasses.dataclass
class Family:
    name: str                 # of the map
    description: str
    model_types: list         # of config.json; none: the format has no key for it
    adapter: object           # adapter(variant): the producer's own converter, with to_hf and from_hf
    shapes: object            # shapes(variant): of the files of Hugging Face, by name; None, if own_shapes has those of the trainer
    learn: list               # variants of which the map is made
    check: list               # variants on which it is compared
    parameters: dict = dataclasses.field(default_factory=dict)   # TOML of each, by name
    numbers: object = lambda variant: {}                          # their values, by name
    config: object = None     # config(variant): members of config.json that parameters need
    sizes: learn_maps.Sizes = dataclasses.field(default_factory=learn_maps.Sizes)
    absent: tuple = ()                                            # what files may lack, such as the weight of a tied embedding
    drops: list = dataclasses.field(default_factory=list)         # what files hold and the trainer leaves out
    computed: tuple = ()                                          # what the trainer's model has and files do not, since it is computed
    by_hand: tuple = ("", ())                                     # names that are not learned, as a regular expression, and rules before the others
    own_shapes: object = None                                     # own_shapes(variant): of the trainer's model, by name
    dtype: torch.dtype = torch.float32
    variant_of: dict = dataclasses.field(default_factory=dict)    # by model_type, where there are several
    same: list = dataclasses.field(default_factory=list)          # beginnings of names that stay, whatever follows
    adds: bool = False        # numbers are added to some tensors, so that the two ways agree for short numbers alone
    handwritten: bool = False  # its map is not made by write_trainer_maps.py
    covers: tuple = ()        # what of the package this covers, as found() of the source says

    def states(self, variant, seed):
        """Random state dicts of one model, the trainer's and that of the files, by the trainer's own code; both of its ways agree."""
        first = from_shapes(self.own_shapes(variant) if self.own_shapes else self.shapes(variant), seed, self.dtype)
        if self.adds:
            first = {name: (tensor * 64).round() / 64 for name, tensor in first.items()}
        code = self.adapter(variant)
        there, back = (code.to_hf, code.from_hf) if self.own_shapes else (code.from_hf, code.to_hf)
        second = {k: v.contiguous() for k, v in there(dict(first)).items()}
        again = {k: v.contiguous() for k, v in back({k: v.clone() for k, v in second.items()}).items()}
        rekey_tool.same(again, first, f"{self.name}: the trainer's own code both ways")
        return (first, second) if self.own_shapes else (second, first)


def from_shapes(shapes, seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}


def rule_file(family, producer, version):
    """The text of the map, from what the producer's code does to numbered elements."""
    models = []
    for variant in family.learn:
        own = learn_maps.numbered({k: tuple(v.shape) for k, v in family.states(variant, 1)[0].items() if not re.fullmatch(family.by_hand[0], k)})
        hf, added = learn_maps.moved(family.adapter(variant).to_hf, own)
        stays = tuple(family.same)
        for name in [name for name in own if stays and name.startswith(stays)]:
            rekey_tool.check(torch.equal(own.pop(name), hf.pop(name)), f"{family.name}: {name} is another in the files")
        models.append((own, hf, family.numbers(variant), added))
    rules, left = learn_maps.learn(models, family.sizes)
    for rule in rules:
        rule.optional |= set(rule.hf) <= set(family.absent) or bool(family.by_hand[1])   # rules before may take all
    rules = learn_maps.merged(rules)
    used = {word for do in [do for rule in rules for do in rule.do] + [*family.by_hand[1]] for word in re.findall(r"[a-z_]+", do)}
    used |= {word for rule in rules for name in rule.hf for word in re.findall(r"\+([a-z_]+)", name)}
    names = [n for n in family.parameters if n in used]
    names = [n for n in family.parameters if n in names or any(n in family.parameters[m] for m in names)]
    types = family.model_types
    lines = ["# SPDX-License-Identifier: Apache-2.0", f"# Made by tests/interop/write_trainer_maps.py of {producer}'s own code.",
             f"description = {learn_maps.text(family.description)}", f'versions = "{version}"']
    if types:
        lines.append(f"model_type = {learn_maps.text(types[0] if len(types) == 1 else types)}")
    if names:
        lines += ["", "[parameters]"] + [f"{n} = {family.parameters[n]}" for n in names]
    blocks = [*family.by_hand[1]] + [learn_maps.written(rule) for rule in rules]
    blocks += [f'[[rule]]\nfrom = "{front}{{rest:**}}"\nto = "{front}{{rest}}"' for front in family.same]
    blocks += [f"[[rule]]\ndrop = {learn_maps.text(pattern)}\noptional = true\nonly = \"forward\"" for pattern in (*left, *family.computed)]
    blocks += [f"[[rule]]\ndrop = {learn_maps.text(pattern)}\noptional = true\nonly = \"reverse\"" for pattern in family.drops]
    return "\n".join(lines) + "\n\n" + "\n\n".join(blocks) + "\n"
