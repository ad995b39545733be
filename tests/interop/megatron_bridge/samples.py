# SPDX-License-Identifier: Apache-2.0
"""A small random model of each family of Megatron-Bridge, its tensors as Megatron-Core and as Hugging Face have them."""
import contextlib
import copy
import io
import json
import os
import tempfile
import types

import torch
import transformers
from safetensors.torch import load_file

# What Megatron-LM's training passes to sharded_state_dict, and stores as content_metadata.
CONTENT = {"distrib_optim_sharding_type": "fully_reshardable", "singleton_local_shards": False, "chained_optim_avoid_prefix": True}

# How many layers for multi-token prediction a configuration has, which transformers' models lack.
PREDICTED = ("num_nextn_predict_layers", "mtp_num_hidden_layers")


class Sample:
    """`family`: of families.py.  Its configuration, the bridge, and a model of Megatron-Core."""

    def __init__(self, family, options):
        from megatron.bridge.models.conversion import model_bridge
        self.config = family.config(options)
        given = family.options | options
        predicts = any(inner.get(name) for inner in (given, given.get("text_config", {})) for name in PREDICTED)
        self.files = None if predicts else self._files(getattr(family.module(), family.architecture, None))
        if self.files and hasattr(family.module(), "published"):
            self.files = {family.module().published(name): tensor for name, tensor in self.files.items()}
        source = getattr(transformers, family.architecture, None)
        known = model_bridge.get_model_bridge._exact_types
        self.bridge = model_bridge.get_model_bridge(source if source in known else family.architecture, hf_config=self.config)
        self.bridge._is_quantized_expert_key = lambda key: False   # Kimi's are written as INT4 otherwise
        self.bridge.hf_pretrained = self._pretrained(self.files or {})
        self.model = self.fresh()
        if self.files is None:   # what transformers does not have: the files are those that the bridge writes
            torch.manual_seed(0)
            with torch.no_grad():
                for tensor in [*self.model.parameters(), *self.model.buffers()]:
                    if tensor.is_floating_point():
                        tensor.normal_()
            self.files = self.exported(self.config)
        self.files |= {name: torch.ones(shape) for name, shape in family.left_out.items()}
        self.load(self.model)

    def _files(self, cls):
        """The tensors of the files that save_pretrained writes; None where there is not a class of the model."""
        if cls is None:
            return None
        torch.manual_seed(len(cls.__name__))
        model = cls(copy.deepcopy(self.config)).bfloat16()   # it writes to its configuration
        with torch.no_grad():
            for tensor in [*model.parameters(), *model.buffers()]:
                if tensor.is_floating_point():
                    tensor.normal_()
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            return {k: v for name in os.listdir(folder) if name.endswith(".safetensors") for k, v in load_file(os.path.join(folder, name)).items()}

    def _pretrained(self, files):
        from megatron.bridge.models.hf_pretrained.state import StateDict
        return types.SimpleNamespace(config=self.config, state=StateDict(files), model_name_or_path=self.config, generation_config=None, trust_remote_code=True)

    def fresh(self):
        from megatron.core.process_groups_config import ProcessGroupCollection
        for name in [name for name in os.environ if name.startswith("NVTE_")]:   # of the model before
            del os.environ[name]
        provider = self.bridge.provider_bridge(self.bridge.hf_pretrained)
        provider.use_cpu_initialization, provider.gradient_accumulation_fusion = True, False
        if getattr(provider, "moe_token_dispatcher_type", "") == "flex":   # of HybridEP, which needs a GPU, and has no tensors
            provider.moe_token_dispatcher_type = "alltoall"
        provider.seq_length = min(provider.seq_length, 64)   # of masks and angles, which are not saved
        if hasattr(provider, "finalize"):
            provider.finalize()
        provider._pg_collection = ProcessGroupCollection.use_mpu_process_groups()
        return provider.provide(pre_process=True, post_process=True).bfloat16()

    def load(self, model):
        """Megatron-Bridge's way from Hugging Face: the files into a model."""
        with contextlib.redirect_stdout(io.StringIO()):
            self.bridge.load_weights_hf_to_megatron(self._pretrained(self.files), [model])

    def exported(self, pretrained=None):
        """Megatron-Bridge's way to Hugging Face: what it writes of the model."""
        with contextlib.redirect_stdout(io.StringIO()):
            pretrained = pretrained or self._pretrained(self.files)
            return {k: v.contiguous().clone() for k, v in self.bridge.stream_weights_megatron_to_hf([self.model], pretrained, show_progress=False)}

    def tasks(self):
        """What Megatron-Bridge does for each parameter."""
        with contextlib.redirect_stdout(io.StringIO()):
            tasks = self.bridge.build_conversion_tasks(self._pretrained(self.files), [self.model])
        return [task for task in tasks if task is not None and task.megatron_module is not None]

    def layers_apart(self):
        """Whether Megatron-Core keeps layers apart whatever they hold: it does where a list says which have experts."""
        configs = [getattr(module, "config", None) for module in self.model.modules()]
        return any(isinstance(getattr(config, "moe_layer_freq", None), list) for config in configs)

    def sharded(self, model, content=CONTENT):
        from megatron.core import parallel_state
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        return {"model": model.sharded_state_dict(metadata={**content, "dp_cp_group": group})}

    def save(self, folder):
        """The folder that Megatron-Core writes."""
        from megatron.core import dist_checkpointing
        os.makedirs(folder, exist_ok=True)
        dist_checkpointing.save({**self.sharded(self.model), "checkpoint_version": 3.0, "iteration": 7}, folder, content_metadata=CONTENT)

    def loaded(self, folder):
        """The model that Megatron-Core makes of a folder."""
        from megatron.core import dist_checkpointing
        model = self.fresh()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        content = dist_checkpointing.load_content_metadata(folder)
        model.load_state_dict(dist_checkpointing.load(self.sharded(model, content), folder)["model"], strict=False)
        return model

    def write_config(self, path):
        """config.json as from_pretrained reads it."""
        self.config.to_json_file(path, use_diff=False)
        with open(path, encoding="utf-8") as file:
            members = json.load(file)
        with open(path, "w", encoding="utf-8") as file:
            json.dump({**members, "model_type": self.config.model_type}, file)
