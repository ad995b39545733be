# SPDX-License-Identifier: Apache-2.0
"""What transformers' code does to the tensors of a class while it saves them: which tensors of modules become which of files, and how."""
import contextlib
import copy
import functools

import torch
import transformers
from transformers import conversion_mapping
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import PrefixChange, Split, WeightConverter, WeightRenaming, apply_converters, apply_renamings, dot_natural_key
from transformers.initialization import no_init_weights

import layouts
import small_models


@functools.cache
def tables():
    """The tables of conversions by their names, which are model types and classes."""
    return conversion_mapping._build_checkpoint_conversion_mapping()


def root_of(table):
    """The table that a name is another one for."""
    other = conversion_mapping._MODEL_TO_CONVERSION_PATTERN.get(table)
    shared = other in tables() and len(tables()[other]) == len(tables()[table]) and all(map(lambda a, b: a is b, tables()[other], tables()[table]))
    return root_of(other) if shared else table


@contextlib.contextmanager
def watched(used):
    """Notes the tables that are looked up and found."""
    own = conversion_mapping.get_checkpoint_conversion_mapping

    def looked_up(name):
        found = own(name)
        if found is not None and name != "legacy" and name not in used:
            used.append(name)
        return found
    conversion_mapping.get_checkpoint_conversion_mapping = looked_up
    try:
        yield
    finally:
        conversion_mapping.get_checkpoint_conversion_mapping = own


class Reverted:
    """The conversions of a model, from modules to files, as save_pretrained applies them."""

    def __init__(self, model):
        self.model, self.tables = model, []
        with watched(self.tables):
            found = get_model_conversion_mapping(model, add_legacy=False)
        # save_pretrained leaves PrefixChange out, too, for what was not made by from_pretrained.
        both = [(one, one.reverse_transform()) for one in reversed(found) if not isinstance(one, PrefixChange)]
        back = [one for _, one in both]
        self.renamings = [one for one in back if isinstance(one, WeightRenaming)]
        self.converters = [one for one in back if isinstance(one, WeightConverter)]
        # Patterns of tensors of different sizes, which reading divides by the shapes of the model.
        self.uneven = {pattern for forth, one in both for pattern in one.source_patterns
                       if any(isinstance(operation, Split) for operation in getattr(forth, "operations", ()))}
        self.by_pattern = {pattern: one for one in self.converters for pattern in one.source_patterns}

    def moves(self, state):
        """Yields (names in modules, operations as plain data, names in files, number of patterns of these) for a state dict."""
        groups = {}
        for key, value in sorted(state.items(), key=lambda item: dot_natural_key(item[0])):
            renamed, pattern = apply_converters(key, self.converters)
            if pattern is None:
                yield [key], [], [apply_renamings(key, self.renamings)], 1
                continue
            converter, sources = groups.setdefault(renamed, (copy.deepcopy(self.by_pattern[pattern]), []))
            converter.add_tensor(renamed, key, pattern, value)
            sources.append((pattern, key))
        for renamed, (converter, sources) in groups.items():
            order = converter.source_patterns
            sources.sort(key=lambda one: order.index(one[0]))
            made = converter.convert(renamed, model=self.model, config=self.model.config)
            operations = [described(one, any(pattern in self.uneven for pattern, _ in sources)) for one in converter.operations]
            yield [key for _, key in sources], operations, [apply_renamings(name, self.renamings) for name in made], len(converter.target_patterns)


def described(operation, uneven):
    """An operation as plain data: its class and its attributes, and whether the tensors that it joins have different sizes."""
    return [type(operation).__name__, {"uneven": uneven} | {k: v for k, v in vars(operation).items() if isinstance(v, (int, str, bool, list, tuple, type(None)))}]


def moves_of(model_type, name, more=()):
    """Returns what save_pretrained does to a small model of a class, and the tables that say so.  more: other names, such as the class has by other
    configurations, which are renamed only."""
    try:
        changes, _ = layouts.small(model_type, name)
    except Exception:   # what the default configuration lacks
        changes = small_models.sizes(model_type, name)
        if changes is None:
            raise
    config = layouts.config_of(model_type, changes, name)
    with torch.device("meta"), no_init_weights(), contextlib.redirect_stdout(None):
        model = getattr(transformers, name)(config)
    reverted = Reverted(model)
    state = model.state_dict()
    moves = list(map(list, reverted.moves(dict(state))))
    others = []
    for key in more:
        if key not in state and apply_converters(key, reverted.converters)[1] is None:
            others.append([[key], [], [apply_renamings(key, reverted.renamings)], 1])
    return {"type": model_type, "class": name, "tables": reverted.tables, "moves": moves, "others": others}
