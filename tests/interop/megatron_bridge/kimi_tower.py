# SPDX-License-Identifier: Apache-2.0
"""The vision tower of Kimi K2.5, which computes nothing: Megatron-Bridge takes it from the published code of the model.

Its tensors have the names and shapes of the files that transformers reads into its own model; Megatron-Bridge takes each as it is.
"""
import torch
from torch import nn
from transformers import Kimi_K25Config, Kimi_K25ForConditionalGeneration as KimiK25ForConditionalGeneration   # noqa: F401

# What transformers 5.23 writes of some names, and what it reads and the published files have.
WRITTEN = {"language_model.model.blocks.": "language_model.model.layers.", "model.mm_projector.": "mm_projector.",
           "vision_tower.encoder.patch_embed.": "vision_tower.patch_embed."}


def published(name):
    """The name in published files of what transformers writes."""
    written = next((one for one in WRITTEN if name.startswith(one)), "")
    return WRITTEN.get(written, "") + name.removeprefix(written)


class VisionTowerConfig:
    def __init__(self, config):
        self.hidden, self.inner, self.layers, self.patch = config.hidden_size, config.intermediate_size, config.num_hidden_layers, config.patch_size


ProjectorConfig = VisionTowerConfig


class Weight(nn.Module):
    def __init__(self, *shape):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*shape))


class MoonViTEncoderLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm0, self.norm1 = nn.LayerNorm(config.hidden), nn.LayerNorm(config.hidden)
        self.wqkv, self.wo = nn.Linear(config.hidden, 3 * config.hidden), nn.Linear(config.hidden, config.hidden)
        self.mlp = nn.Module()
        self.mlp.fc0, self.mlp.fc1 = nn.Linear(config.hidden, config.inner), nn.Linear(config.inner, config.hidden)


class MoonViT3dEncoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.blocks = nn.ModuleList(MoonViTEncoderLayer(config) for _ in range(config.layers))
        self.final_layernorm = nn.LayerNorm(config.hidden)


class MoonViT3dPretrainedModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.patch_embed = nn.Module()
        self.patch_embed.proj, self.patch_embed.pos_emb = nn.Conv2d(3, config.hidden, config.patch), Weight(4, 4, config.hidden)
        self.encoder = MoonViT3dEncoder(config)


class PatchMergerMLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.pre_norm = nn.LayerNorm(config.hidden)
        self.proj = nn.Sequential(nn.Linear(4 * config.hidden, 4 * config.hidden), nn.GELU(), nn.Linear(4 * config.hidden, 32))


def stand_in():
    """Megatron-Bridge finds these classes where it looks for the published ones."""
    from megatron.bridge.models.hf_pretrained import safe_config_loader
    from megatron.bridge.models.kimi_vl import modeling_kimi_k25_vl
    modeling_kimi_k25_vl.get_class_from_dynamic_module = lambda name, *_, **__: globals()[name.rpartition(".")[2]]
    safe_config_loader.safe_load_config_with_retry = lambda config, **_: config
