"""Samples: the names and shapes that a class of transformers has, for a configuration."""
import contextlib
import copy
import functools
import importlib
import json
import pkgutil
import re
import warnings

import torch
import transformers
from transformers import AutoConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import PrefixChange, Transpose, revert_weight_conversion
from transformers.initialization import no_init_weights
from transformers.models.auto import configuration_auto, modeling_auto

import starts

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
torch.set_num_threads(1)


@functools.cache
def classes():
    """Returns the classes that the Auto classes know, by model type: {class name: table}."""
    found = {}
    for table in sorted(name for name in dir(modeling_auto) if name.endswith("_MAPPING_NAMES")):
        if table == "CONFIG_MAPPING_NAMES":
            continue
        for model_type, names in getattr(modeling_auto, table).items():
            for name in names if isinstance(names, (tuple, list)) else [names]:
                found.setdefault(model_type, {}).setdefault(name, table)
    return found


@functools.cache
def every_class():
    """Returns classes(), and those beside them that name the configuration of a model type as theirs; their table is ""."""
    found = {model_type: dict(names) for model_type, names in classes().items()}
    for package in pkgutil.iter_modules(transformers.models.__path__):
        for module in pkgutil.iter_modules(importlib.import_module(f"transformers.models.{package.name}").__path__):
            if not module.name.startswith("modeling_"):
                continue
            try:
                own = importlib.import_module(f"transformers.models.{package.name}.{module.name}")
            except ImportError:   # of a package that is not here
                continue
            for name, one in vars(own).items():
                # Base classes have no own constructor; what lies inside of others is not exported.
                if isinstance(one, type) and issubclass(one, PreTrainedModel) and one.__module__ == own.__name__ and hasattr(transformers, name) and \
                        "__init__" in vars(one) and not name.endswith("PreTrainedModel"):
                    model_type = getattr(one.config_class, "model_type", None)
                    if model_type in configuration_auto.CONFIG_MAPPING_NAMES:
                        found.setdefault(model_type, {}).setdefault(name, "")
    return found


def flat(tree, front=""):
    """The leaves of a configuration by dotted path; lists of numbers by their elements, too."""
    out = {}
    for key, value in tree.items():
        path = front + str(key)
        if isinstance(value, dict):
            out.update(flat(value, path + "."))
        elif isinstance(value, (list, tuple)):
            out[path] = list(value)
            out[path + ".#"] = len(value)
            if len(value) <= 12:
                out.update({f"{path}.{i}": one for i, one in enumerate(value) if isinstance(one, (int, float)) and not isinstance(one, bool)})
        else:
            out[path] = value
    return out


SKIPPED = re.compile(r"(^|\.)((id2label|label2id)(\..*)?|architectures|transformers_version|dtype|torch_dtype|_name_or_path|model_type|problem_type|"
                     r".*_token_id|.*token_ids?|rope_parameters\..*|rope_scaling\..*|rope_theta|.*_scale|.*dropout.*|.*_eps|.*epsilon|initializer.*|"
                     r"task_specific_params\..*|use_cache|output_.*|return_dict|chunk_size_feed_forward|is_encoder_decoder|"
                     r".*_std|.*_prob|.*_loss.*|.*loss_.*|.*_coef.*|.*_factor|max_length|bos.*|eos.*|pad_token.*|sep_token.*|tokenizer_class|prefix)$")


def resolved(config):
    tree = config.to_dict()
    values = flat(tree)
    # to_dict leaves out what equals PretrainedConfig's own default.
    def add(cfg, front):
        values.setdefault(front + "num_labels", getattr(cfg, "num_labels", None))
        values[front + "tie_word_embeddings"] = getattr(cfg, "tie_word_embeddings", None)
        for name in getattr(cfg, "sub_configs", {}) or {}:
            sub = getattr(cfg, name, None)
            if sub is not None and hasattr(sub, "to_dict"):
                add(sub, f"{front}{name}.")
    add(config, "")
    return values


def nested(changes):
    tree = {}
    for path, value in changes.items():
        node = tree
        *parents, last = path.split(".")
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return tree


def begins_with(model_type, name=""):
    """Returns what the configuration of a class gets that its default one lacks."""
    return {**starts.STARTS.get(model_type, {}), **starts.STARTS.get(name, {})}


def config_of(model_type, changes, name=""):
    whole = {**begins_with(model_type, name), **changes}
    tree = nested({path: copy.deepcopy(one(whole)) if callable(one) else copy.deepcopy(one) for path, one in whole.items()})
    if any("backbone_config." in path for path in changes):
        keep_backbones(config_of(model_type, {}, name), tree)
    try:
        return AutoConfig.for_model(model_type, **tree)
    except KeyError as error:
        if error.args != ("model_type",):
            raise
    add_types(AutoConfig.for_model(model_type), tree)   # it looks for the types of what is inside
    return AutoConfig.for_model(model_type, **tree)


def add_types(config, tree):
    for name in getattr(config, "sub_configs", {}) or {}:
        own, inside = getattr(config, name, None), tree.get(name)
        if own is not None and isinstance(inside, dict):
            inside.setdefault("model_type", own.model_type)
            add_types(own, inside)


def keep_backbones(config, tree):
    """Fields of a backbone are changed beside its others: by itself a dictionary would say nothing of its type."""
    for name in getattr(config, "sub_configs", {}) or {}:
        own, inside = getattr(config, name, None), tree.get(name)
        if own is None or not isinstance(inside, dict):
            continue
        if name == "backbone_config":
            usual = own.to_dict()
            for key in ("stage_names", "out_features", "out_indices"):
                if key == "stage_names" or any(LAYERS.search(path) for path in inside):
                    usual.pop(key, None)   # they depend on the number of layers
            tree[name] = {**usual, **inside}
        else:
            keep_backbones(own, inside)


class Sample:
    def __init__(self, values, file, module, tied):
        self.values, self.file, self.module, self.tied = values, file, module, tied


def reverted(name, config):
    """Returns the model on the meta device, its tensors by the names of its modules and by those of its files, and the tied ones."""
    with torch.device("meta"), no_init_weights(), contextlib.redirect_stdout(None):
        model = getattr(transformers, name)(config)
    state = {key: value for key, value in model.state_dict().items()}
    tied = dict(getattr(model, "all_tied_weights_keys", None) or {})
    tied = {key: value for key, value in tied.items() if key in state and value in state}
    kept = {key: value for key, value in state.items() if key not in tied}
    ignored = [re.compile(pattern) for pattern in getattr(model, "_keys_to_ignore_on_save", None) or []]
    kept = {key: value for key, value in kept.items() if not any(pattern.search(key) for pattern in ignored)}
    changes = [one for one in get_model_conversion_mapping(model, add_legacy=False) if not isinstance(one, PrefixChange)]
    return kept, revert_weight_conversion(model, dict(kept)) if changes else kept, tied


def layouts(name, config):
    """Returns the names and shapes in files, those of the modules, and the tied ones: {name: that it equals}."""
    kept, file, tied = reverted(name, config)
    shapes = lambda found: {key: tuple(value.shape) for key, value in found.items()}
    return shapes(file), shapes(kept), tied


def turned(name, config):
    """Returns (pattern of names, dimension, dimension) of the tensors of files that from_pretrained takes both ways round."""
    with torch.device("meta"), no_init_weights(), contextlib.redirect_stdout(None):
        model = getattr(transformers, name)(config)
    found = []
    for change in get_model_conversion_mapping(model, add_legacy=False):
        for one in getattr(change, "operations", None) or ():
            if isinstance(one, Transpose) and one.check_dims:
                found += [(pattern, one.dim0, one.dim1) for pattern in change.source_patterns]
    return found


def renames(name, config):
    """Returns {name in files: name of its module} where they differ, numbers as {}; None if tensors are more than renamed."""
    kept, file, _ = reverted(name, config)
    module = {id(value): key for key, value in kept.items()}
    if len(module) != len(kept) or len(file) != len(kept) or any(id(value) not in module for value in file.values()):
        return None
    number = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)")
    found, literal = {}, set()
    for key, value in file.items():
        other = module[id(value)]
        pattern, of = number.sub("{}", key), number.sub("{}", other)
        if number.findall(key) != number.findall(other) or found.setdefault(pattern, of) != of:
            literal.add(pattern)
    out = {pattern: of for pattern, of in found.items() if pattern not in literal and pattern != of}
    out.update({key: module[id(value)] for key, value in file.items() if number.sub("{}", key) in literal})
    return out


def sample(model_type, name, changes):
    config = config_of(model_type, changes, name)
    file, module, tied = layouts(name, config)
    return Sample(resolved(config), file, module, tied)


LAYERS = re.compile(r"(^|\.)(num_hidden_layers|n_layers?|num_layers|.*_layers|depth|num_blocks|n_blocks)$")
EXPERTS = re.compile(r"(^|\.)(num_experts|num_local_experts|n_routed_experts|moe_num_experts|num_routed_experts)$")


def small(model_type, name):
    """Returns changes that make the default configuration small, of which the model can be made."""
    values = resolved(config_of(model_type, {}, name))
    changes = {}
    for path, value in values.items():
        if isinstance(value, int) and not isinstance(value, bool) and value > 8 and (LAYERS.search(path) or EXPERTS.search(path)):
            changes[path] = 8
    for tried in changes, {}:
        try:
            return tried, sample(model_type, name, tried)
        except Exception as error:
            last = error
    raise last
