# SPDX-License-Identifier: Apache-2.0
"""Megatron-Bridge and the models of Megatron-Core that it makes, on a CPU, with the names of Transformer Engine's layers.

Transformer Engine needs a GPU.  What stands for it here has its parameters, by the names and shapes of its documentation, and computes
nothing: the layers around it, the models and all conversions are the producers' own.
"""
import contextlib
import importlib.abc
import importlib.machinery
import logging
import os
import sys
import types
import typing
import warnings

import torch
import typing_extensions

logging.disable(logging.WARNING)
warnings.simplefilter("ignore")


class Layer(torch.nn.Module):
    """Every layer of Transformer Engine has a state of its own beside its parameters."""

    def put(self, name, *shape, dtype):
        self.register_parameter(name, torch.nn.Parameter(torch.empty(*shape, dtype=dtype)))

    def get_extra_state(self):
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state):
        pass


class Linear(Layer):
    def __init__(self, in_features, out_features, bias=True, params_dtype=torch.float32, parallel_mode=None, **_):
        super().__init__()
        self.parallel_mode = parallel_mode
        self.put("weight", out_features, in_features, dtype=params_dtype)
        if bias:
            self.put("bias", out_features, dtype=params_dtype)
        else:
            self.bias = None


class LayerNormLinear(Linear):
    def __init__(self, in_features, out_features, normalization="LayerNorm", params_dtype=torch.float32, **more):
        super().__init__(in_features, out_features, params_dtype=params_dtype, **more)
        self.put("layer_norm_weight", in_features, dtype=params_dtype)
        if normalization == "LayerNorm":
            self.put("layer_norm_bias", in_features, dtype=params_dtype)
        else:
            self.layer_norm_bias = None


class GroupedLinear(Layer):
    def __init__(self, num_gemms, in_features, out_features, bias=True, params_dtype=torch.float32, **_):
        super().__init__()
        self.num_gemms, self.use_bias = num_gemms, bias
        self.fp8_meta, self.fp8, self.fp8_calibration = {"fp8_checkpoint": False}, False, False
        for expert in range(num_gemms):
            self.put(f"weight{expert}", out_features, in_features, dtype=params_dtype)
        for expert in range(num_gemms if bias else 0):
            self.put(f"bias{expert}", out_features, dtype=params_dtype)

    def init_fp8_metadata(self, num_gemms):
        pass


class RMSNorm(torch.nn.Module):
    def __init__(self, normalized_shape, params_dtype=torch.float32, **_):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(normalized_shape, dtype=params_dtype))


class LayerNorm(RMSNorm):
    def __init__(self, normalized_shape, params_dtype=torch.float32, **_):
        super().__init__(normalized_shape, params_dtype)
        self.bias = torch.nn.Parameter(torch.empty(normalized_shape, dtype=params_dtype))


class DotProductAttention(Layer):
    def __init__(self, num_attention_heads, kv_channels, softmax_type="vanilla", **_):
        super().__init__()
        self.softmax_type = softmax_type
        if softmax_type == "learnable":
            self.put("softmax_offset", num_attention_heads, dtype=torch.float32)


KNOWN = {"Linear": Linear, "LayerNormLinear": LayerNormLinear, "GroupedLinear": GroupedLinear, "RMSNorm": RMSNorm, "LayerNorm": LayerNorm,
         "DotProductAttention": DotProductAttention, "get_cpu_offload_context": lambda *_, **__: (contextlib.nullcontext(), None)}


class _Anything(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class _Module(types.ModuleType):
    """A module that has whatever is asked of it."""
    __path__ = []
    __version__ = "2.14.0"   # of Transformer Engine, the newest that Megatron-Core asks for

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in KNOWN:
            setattr(self, name, _Anything(name, (torch.nn.Module,), {}))
        return KNOWN.get(name) or self.__dict__[name]


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, packages):
        self.packages = packages

    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in self.packages:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        pass


@contextlib.contextmanager
def _standing_for(*packages):
    """Modules of these packages are made up while they are imported."""
    finder = _Finder(packages)
    sys.meta_path.append(finder)
    yield
    sys.meta_path.remove(finder)
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        del sys.modules[name]


def small_towers():
    """The vision tower of Nemotron's models has one size, of RADIO-H: here with two layers and few columns inside its MLPs."""
    from megatron.bridge.models.nemotron_omni import nemotron_omni_provider
    from megatron.bridge.models.nemotron_vl import nemotron_vl_provider
    def smaller(made):
        def make(vision_transformer_config, vision_projection_config, **more):
            vision_transformer_config.num_layers, vision_transformer_config.ffn_hidden_size = 2, 24
            vision_projection_config.ffn_hidden_size = 24
            return made(vision_transformer_config=vision_transformer_config, vision_projection_config=vision_projection_config, **more)
        return make
    for module in (nemotron_vl_provider, nemotron_omni_provider):
        module.LLaVAModel = smaller(module.LLaVAModel)


class _Nothing:
    def __init__(self, *_, **__):
        pass


def start():
    """Imports Megatron-Bridge, in a process group of this process alone."""
    import megatron_cpu
    import transformers
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    megatron_cpu.without_gpu()
    torch.cuda.Stream = torch.cuda.Event = _Nothing
    typing.override = typing_extensions.override   # of Python 3.12, which Megatron-Bridge asks for
    sys.meta_path.append(_Finder(("transformer_engine", "omegaconf")))
    from megatron.core import parallel_state, tensor_parallel
    tensor_parallel.random.CudaRNGStatesTracker.fork = lambda *_: contextlib.nullcontext()
    # They are kernels: transformers takes them for the real ones if it finds them.
    with _standing_for("fla", "mamba_ssm", "causal_conv1d"):
        import megatron.core.ssm.gated_delta_net, megatron.core.ssm.mamba_mixer   # noqa: E401
    from megatron.core.dist_checkpointing.strategies import filesystem_async
    filesystem_async._process_memory = lambda: 0   # asks psutil, only for a line of a log
    parallel_state.initialize_model_parallel(1, 1)
    with contextlib.redirect_stdout(sys.stderr):
        import megatron.bridge.models   # noqa: F401
        with _standing_for("diffusers"):   # of other models than those here
            import megatron.bridge.diffusion.models.nemotron_labs_diffusion   # noqa: F401
    small_towers()
    from megatron_bridge import kimi_tower   # after what it is made of
    kimi_tower.stand_in()
