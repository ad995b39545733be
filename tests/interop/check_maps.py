#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The built-in maps against the code that the models come from, bit for bit.

  python check_maps.py --tool PATH

transformers makes random models; torchtitan's own adapters convert their state dicts, and `map` must give the same, forwards and
with --reverse, from and to files and folders, with the state of an optimizer.
"""
import argparse
import json
import os
import sys
import types

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(HERE)

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

import megatron_gpt
import rekey_tool
import titan_adapters
import tried
from rekey_tool import check, load, run, same


# The package whose code converts the same, and what was compared.
TRIED = {"automodel": ("nemo-automodel", "equal to its own adapter"), "olmo": ("ai2-olmo-core", "equal to its own conversion"),
         "torchtitan": ("torchtitan", "equal to its own adapter"), "transformers": ("transformers", "equal to what save_pretrained writes"),
         "megatron": ("megatron-core", "the same logits in transformers")}


def mapped(*args):
    run("map", *args, "--force")


def hf_model(kind, **config):
    """A random model's state dict, and its config.json."""
    torch.manual_seed(len(config))
    cls = getattr(transformers, kind)
    model = cls(cls.config_class(**config))
    state = {name: torch.randn(t.shape, dtype=torch.float32).to(torch.bfloat16 if "norm" not in name else torch.float32)
             for name, t in model.state_dict().items()}
    return model, state


def write_config(tmp, model):
    path = os.path.join(tmp, "config.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(model.config.to_dict(), file, default=str)
    return path


def both_ways(tmp, name, titan, hf, *options, optimizer=True):
    """`titan` and `hf` are the two state dicts of one model, by the producer's code."""
    titan = {k: v.contiguous() for k, v in titan.items()}
    hf = {k: v.contiguous() for k, v in hf.items()}
    a, b = os.path.join(tmp, "titan.pt"), os.path.join(tmp, "hf.safetensors")
    torch.save(titan, a)
    save_file(hf, b)
    out = os.path.join(tmp, "out")
    mapped(name, a, out + ".safetensors", *options)
    same(load_file(out + ".safetensors"), hf, f"{name} forwards")
    mapped(name, b, out + ".pt", "--reverse", *options)
    same(load(out + ".pt"), titan, f"{name} backwards")
    # By way of a folder of three ranks.
    mapped(name, a, out + "-dcp", "--to", "dcp", "--world-size", "3", *options)
    same(load(out + "-dcp"), hf, f"{name} to a folder")
    check("sound" in run("verify", out + "-dcp"), name)
    mapped(name, out + "-dcp", out + "-back.pt", "--reverse", *options)
    same(load(out + "-back.pt"), titan, f"{name} from a folder and back")
    if optimizer:
        with_optimizer(tmp, name, titan, hf, *options)
    package, compared = TRIED[name.partition("-")[0]]
    tried.record(package, f"`{name}`", "map, verify", f"{compared}, both ways, from files and folders" + ", with the state of AdamW" * optimizer)


def with_optimizer(tmp, name, titan, hf, *options):
    """The moments are those of the parameters, converted by the same code."""
    def saved(state, key):
        return {"model": state, key: {
            "state": {n: {"step": torch.tensor(7.0), "exp_avg": t * 2, "exp_avg_sq": t * 4} for n, t in state.items()},
            "param_groups": [{"lr": 0.1, "betas": (0.9, 0.95), "params": list(state)}]}}
    a, out = os.path.join(tmp, "trained.pt"), os.path.join(tmp, "trained-out.pt")
    torch.save(saved(titan, "optim"), a)
    mapped(name, a, out, *options)
    got, want = load(out), saved(hf, "optim")
    for one in (got, want):
        one["optim"]["param_groups"][0]["params"].sort()
    same(got, want, f"{name} with an optimizer")
    steps = {s["step"].untyped_storage().data_ptr() for s in got["optim"]["state"].values()}
    check(len(steps) == len(hf), f"{name}: step counts share their memory")
    mapped(name, out, out + "-back.pt", "--reverse", *options)
    back, first = load(out + "-back.pt"), load(a)
    for one in (back, first):
        one["optim"]["param_groups"][0]["params"].sort()
    same(back, first, f"{name} with an optimizer, and back")


def fused_optimizer(tmp, name, titan, hf, layers, head_dim, heads_per_kv, *options):
    """With fuse_qkv torchtitan saves the model as without it, and the optimizer by the one weight."""
    fused = dict(titan)
    for i in range(layers):
        titan_adapters.merge_qkv(fused, f"layers.{i}.attention.qkv_linear.", head_dim, heads_per_kv)
    check(len(fused) < len(titan), f"{name}: torchtitan joins nothing")

    def saved(model, state):
        return {"model": model, "optim": {
            "state": {n: {"step": torch.tensor(7.0), "exp_avg": t * 2, "exp_avg_sq": t * 4} for n, t in state.items()},
            "param_groups": [{"lr": 0.1, "params": list(state)}]}}
    a, out = os.path.join(tmp, "fused.pt"), os.path.join(tmp, "fused-out.pt")
    torch.save(saved(titan, fused), a)
    mapped(name, a, out, *options)
    got, want = load(out), saved(hf, hf)
    for one in (got, want):
        one["optim"]["param_groups"][0]["params"].sort()
    same(got, want, f"{name} with a fused optimizer")
    # A weight that the model lacks altogether is refused, with the way on.
    other = saved(titan, {**fused, "layers.0.attention.qkv_linear.wother.weight": torch.ones(2, 2)})
    torch.save(other, a)
    said = run("map", name, a, out, "--force", *options, expect=2)
    check("wother.weight' is not in the model; --drop-optimizer leaves it out" in said, said)


def llama3(tmp, source=titan_adapters, maps="torchtitan"):
    cls = source.adapter("llama3", "Llama3StateDictAdapter")
    for heads, kv, dim, layers, tied in ((4, 2, 24, 3, False), (6, 1, 48, 11, False), (2, 2, 20, 1, True)):
        model, hf = hf_model("LlamaForCausalLM", hidden_size=dim, num_attention_heads=heads, num_key_value_heads=kv, vocab_size=37,
                             num_hidden_layers=layers, intermediate_size=56, tie_word_embeddings=False)
        if tied:
            del hf["lm_head.weight"]
        adapter = cls(source.config([0] * layers, dim, n_heads=heads, n_kv_heads=kv, head_dim=dim // heads), None)
        titan = adapter.from_hf(dict(hf))
        same(adapter.to_hf(dict(titan)), hf, "the adapter itself")
        both_ways(tmp, f"{maps}-llama3-hf", titan, hf, "--config", write_config(tmp, model))
        if maps == "torchtitan":
            fused_optimizer(tmp, f"{maps}-llama3-hf", titan, hf, layers, dim // heads, heads // kv, "--config", write_config(tmp, model))
        both_ways(tmp, f"{maps}-llama3-hf", titan, hf, "--set", f"n_heads={heads}", "--set", f"n_kv_heads={kv}")


def qwen3(tmp, source=titan_adapters, maps="torchtitan"):
    cls = source.adapter("qwen3", "Qwen3StateDictAdapter")
    for kv, dim in ((2, 24), (1, 40)):
        model, hf = hf_model("Qwen3ForCausalLM", hidden_size=dim, num_attention_heads=4, num_key_value_heads=kv, head_dim=8, vocab_size=31,
                             num_hidden_layers=2, intermediate_size=36, tie_word_embeddings=False)
        adapter = cls(source.config([0, 0], dim), None)
        titan = adapter.from_hf(dict(hf))
        both_ways(tmp, f"{maps}-qwen3-hf", titan, hf, "--config", write_config(tmp, model))
        if maps == "torchtitan":
            fused_optimizer(tmp, f"{maps}-qwen3-hf", titan, hf, 2, 8, 4 // kv, "--config", write_config(tmp, model))
    experts(tmp, cls, source, f"{maps}-qwen3-hf", {
        "mlp.gate.weight": (12, 16), "self_attn.q_norm.weight": (4,), "self_attn.k_norm.weight": (4,), "self_attn.q_proj.weight": (8, 16),
        "self_attn.k_proj.weight": (4, 16), "self_attn.v_proj.weight": (4, 16)}, {})


def experts(tmp, cls, source, name, attention, moe, **config):
    """torchtitan's adapters take checkpoints with one tensor for each expert, as they are published."""
    torch.manual_seed(3)
    hf = {"model.embed_tokens.weight": (19, 16), "model.norm.weight": (16,), "lm_head.weight": (19, 16)}
    for layer in range(3):
        at = f"model.layers.{layer}."
        hf |= {at + k: v for k, v in attention.items() if layer > 0 or "mlp." not in k}
        hf |= {at + "self_attn.o_proj.weight": (16, 8), at + "input_layernorm.weight": (16,), at + "post_attention_layernorm.weight": (16,)}
        if layer == 0:   # without experts
            hf |= {at + "mlp.gate_proj.weight": (20, 16), at + "mlp.up_proj.weight": (20, 16), at + "mlp.down_proj.weight": (16, 20)}
            continue
        hf |= {at + k: v for k, v in moe.items()}
        for expert in range(12):
            hf |= {f"{at}mlp.experts.{expert}.{k}.weight": s for k, s in
                   (("gate_proj", (5, 16)), ("up_proj", (5, 16)), ("down_proj", (16, 5)))}
    hf = {k: torch.randn(shape) for k, shape in hf.items()}
    adapter = cls(source.config([0, 12, 12], 16, **config), None)
    titan = adapter.from_hf(dict(hf))
    same(adapter.to_hf(dict(titan)), hf, "the adapter itself")
    both_ways(tmp, name, titan, hf)
    return hf, adapter


def deepseek(tmp, source=titan_adapters, maps="torchtitan"):
    cls = source.adapter("deepseek_v3", "DeepSeekV3StateDictAdapter")
    common = {"self_attn.kv_a_proj_with_mqa.weight": (10, 16), "self_attn.kv_a_layernorm.weight": (6,), "self_attn.kv_b_proj.weight": (14, 6),
              "mlp.gate.weight": (12, 16), "mlp.gate.e_score_correction_bias": (12,)}
    shared = {f"mlp.shared_experts.{k}.weight": s for k, s in (("gate_proj", (5, 16)), ("up_proj", (5, 16)), ("down_proj", (16, 5)))}
    experts(tmp, cls, source, f"{maps}-deepseek-v3-hf", common | {"self_attn.q_proj.weight": (8, 16)}, shared, q_lora_rank=0)
    hf, adapter = experts(tmp, cls, source, f"{maps}-deepseek-v3-hf", common | {
        "self_attn.q_a_proj.weight": (7, 16), "self_attn.q_a_layernorm.weight": (7,), "self_attn.q_b_proj.weight": (8, 7)}, shared, q_lora_rank=7)
    deepseek_fp8(tmp, hf, adapter, maps)


def deepseek_fp8(tmp, hf, adapter, maps):
    """A folder as DeepSeek-V3 is published, as torchtitan reads it: by PyTorch's reader, then the adapter."""
    from torch.distributed.checkpoint import load as dcp_load
    from torch.distributed.checkpoint.quantized_hf_storage import QuantizedHuggingFaceStorageReader
    published, folder = {}, os.path.join(tmp, "published")
    for key, value in hf.items():
        published[key] = value.to(torch.bfloat16)
        if key.endswith("_proj.weight") or "kv_a_proj_with_mqa" in key:
            # Larger than a block, which the adapter does not mind.
            value = torch.randn(value.shape[0] * 20, value.shape[1] * 10)
            published[key] = value.to(torch.float8_e4m3fn)
            published[key + "_scale_inv"] = torch.rand(-(-value.shape[0] // 128), -(-value.shape[1] // 128))
    os.makedirs(folder, exist_ok=True)
    save_file(published, os.path.join(folder, "model.safetensors"))
    with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
        json.dump({"metadata": {}, "weight_map": {key: "model.safetensors" for key in published}}, file)
    read = {k: torch.zeros(v.shape, dtype=torch.bfloat16) for k, v in published.items() if not k.endswith("_scale_inv")}
    dcp_load(read, storage_reader=QuantizedHuggingFaceStorageReader(folder, target_dtype=torch.bfloat16))
    titan = {k: v.contiguous() for k, v in adapter.from_hf(dict(read)).items()}
    out = os.path.join(tmp, "from-fp8")
    mapped(f"{maps}-deepseek-v3-hf", folder, out, "--reverse", "--to", "dcp", "--world-size", "3")
    same(load(out), titan, f"{maps}-deepseek-v3-hf from FP8")
    run("import", folder, out, "--map", f"{maps}-deepseek-v3-hf", "--world-size", "2", "--force")
    same(load(out), titan, "import of FP8")
    mapped("fp8-to-bf16", folder, os.path.join(tmp, "wide.safetensors"))
    same(load_file(os.path.join(tmp, "wide.safetensors")), read, "fp8-to-bf16")
    # A weight without its scale, or a scale without its weight, is not taken for what it is not.
    for lost in ("model.layers.1.mlp.experts.3.up_proj.weight_scale_inv", "model.layers.1.self_attn.o_proj.weight"):
        save_file({k: v for k, v in published.items() if k != lost}, os.path.join(tmp, "lost.safetensors"))
        said = run("map", f"{maps}-deepseek-v3-hf", os.path.join(tmp, "lost.safetensors"), os.path.join(tmp, "never.pt"), "--reverse", expect=2)
        check("error[KEY]" in said and lost in said and "is missing" in said, said)


def files(tmp):
    """What save_pretrained writes of a model that from_pretrained loads."""
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "vocab_size": 19, "num_hidden_layers": 2}
    kinds = [("Qwen3MoeForCausalLM", "transformers-moe-files", dict(
                  num_key_value_heads=1, head_dim=8, moe_intermediate_size=6, num_experts=3, num_experts_per_tok=2, mlp_only_layers=[1])),
             ("Qwen2MoeForCausalLM", "transformers-moe-files", dict(
                  num_key_value_heads=2, moe_intermediate_size=5, shared_expert_intermediate_size=7, num_experts=11, num_experts_per_tok=2)),
             ("DeepseekV3ForCausalLM", "transformers-moe-files", dict(
                  num_key_value_heads=2, moe_intermediate_size=6, n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1,
                  first_k_dense_replace=1, kv_lora_rank=6, q_lora_rank=7, qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=4, n_shared_experts=1)),
             ("MixtralForCausalLM", "transformers-mixtral-files", dict(num_key_value_heads=1, intermediate_size=6, num_local_experts=3)),
             ("MixtralForCausalLM", "transformers-mixtral-files", dict(num_key_value_heads=2, intermediate_size=9, num_local_experts=12))]
    for kind, name, more in kinds:
        torch.manual_seed(7)
        cls = getattr(transformers, kind)
        model = cls(cls.config_class(**sizes | more)).eval()
        model.set_experts_implementation("eager")   # takes any sizes
        model.save_pretrained(os.path.join(tmp, "saved"))
        saved = load_file(os.path.join(tmp, "saved", "model.safetensors"))
        trained = {k: v.contiguous() for k, v in model.state_dict().items()}
        check(set(saved) != set(trained), f"{kind}: nothing to convert")
        both_ways(tmp, name, trained, saved, "--config", write_config(tmp, model))
        # from_pretrained loads what map made.
        out = os.path.join(tmp, "exported")
        os.makedirs(out, exist_ok=True)
        torch.save(trained, os.path.join(tmp, "trained.pt"))
        mapped(name, os.path.join(tmp, "trained.pt"), os.path.join(out, "model.safetensors"))
        model.config.save_pretrained(out)
        ids = torch.arange(7)[None]
        again = cls.from_pretrained(out).eval()
        again.set_experts_implementation("eager")
        check(torch.equal(again(ids).logits, model(ids).logits), f"{kind}: the same model")


def gpt_oss(tmp, source=titan_adapters, maps="torchtitan"):
    """torchtitan's names, and the weights of experts as transformers' own reading of quantized files lays them out."""
    from torch.distributed.checkpoint.quantized_hf_storage import QuantizedHuggingFaceStorageReader
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    cls = source.adapter("gpt_oss", "GptOssStateDictAdapter")
    for experts, hidden, inner in ((3, 64, 32), (5, 32, 96)):
        model, hf = hf_model("GptOssForCausalLM", hidden_size=hidden, num_attention_heads=4, num_key_value_heads=2, head_dim=8, vocab_size=19,
                             num_hidden_layers=2, intermediate_size=inner, num_local_experts=experts, num_experts_per_tok=2)
        published = dict(hf)
        theirs = {k: v for k, v in hf.items() if "experts.gate_up_proj" not in k and "experts.down_proj" not in k or k.endswith("_bias")}
        for layer in range(2):
            for which, rows, columns in (("gate_up_proj", 2 * inner, hidden), ("down_proj", hidden, inner)):
                key = f"model.layers.{layer}.mlp.experts.{which}"
                blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16), dtype=torch.uint8)
                scales = torch.randint(120, 134, (experts, rows, columns // 32), dtype=torch.uint8)
                hf[key] = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16)
                del published[key]
                published |= {key + "_blocks": blocks, key + "_scales": scales}
                # As torchtitan gets them: by PyTorch's reader, which keeps [experts, outputs, inputs].
                reader = QuantizedHuggingFaceStorageReader.__new__(QuantizedHuggingFaceStorageReader)
                reader.target_dtype = torch.bfloat16
                whole = types.SimpleNamespace(storage_offsets=[0, 0, 0], lengths=[experts, rows, columns])
                theirs[key + "_blocks"] = reader._dequantize_tensor_mxfp4(blocks, scales, whole, 0, 0)
        adapter = cls(source.config([experts] * 2, hidden), None)
        titan = {source.parameter(k): v.contiguous() for k, v in adapter.from_hf(dict(theirs)).items()}
        both_ways(tmp, f"{maps}-gpt-oss-hf", titan, hf, "--config", write_config(tmp, model))
        path, out = os.path.join(tmp, "published.safetensors"), os.path.join(tmp, "from-mxfp4")
        save_file({k: v.contiguous() for k, v in published.items()}, path)
        mapped(f"{maps}-gpt-oss-hf", path, out + ".pt", "--reverse")
        same(load(out + ".pt"), titan, f"{maps}-gpt-oss-hf from MXFP4")
        mapped("mxfp4-to-bf16", path, out + ".safetensors")
        same(load_file(out + ".safetensors"), hf, "mxfp4-to-bf16")


def fp8(tmp):
    """Folders that transformers makes and reads: what from_pretrained dequantizes, what save_pretrained quantizes again."""
    import transformers.quantizers.quantizer_finegrained_fp8 as quantizer
    from transformers.integrations.finegrained_fp8 import Fp8Quantize
    quantizer.is_accelerate_available = lambda: True   # it is asked for, and not needed on a CPU
    torch.manual_seed(8)
    config = transformers.LlamaConfig(hidden_size=256, num_attention_heads=4, num_key_value_heads=2, vocab_size=64, num_hidden_layers=2,
                                      intermediate_size=384, tie_word_embeddings=False)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    wide, folder, back = (os.path.join(tmp, n) for n in ("wide", "fp8", "back.safetensors"))
    model.save_pretrained(wide)
    os.makedirs(folder)
    mapped("fp8-to-bf16", wide, os.path.join(folder, "model.safetensors"), "--reverse")
    made = load_file(os.path.join(folder, "model.safetensors"))
    settings = transformers.FineGrainedFP8Config(weight_block_size=(128, 128))
    theirs = {}
    for key, value in load_file(os.path.join(wide, "model.safetensors")).items():
        linear = key.endswith("_proj.weight")
        theirs |= Fp8Quantize(types.SimpleNamespace(quantization_config=settings)).convert({key: value}) if linear else {key: value}
    same(made, theirs, "Fp8Quantize")
    with open(os.path.join(wide, "config.json"), encoding="utf-8") as file:
        about = json.load(file) | {"quantization_config": settings.to_dict()}
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(about, file)
    mapped("fp8-to-bf16", folder, back)
    loaded, info = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, output_loading_info=True)
    check(not any(info.values()), info)
    same(load_file(back), {k: v for k, v in loaded.state_dict().items()}, "from_pretrained")
    loaded.save_pretrained(os.path.join(tmp, "again"))
    mapped("fp8-to-bf16", back, os.path.join(tmp, "again.safetensors"), "--reverse")
    same(load_file(os.path.join(tmp, "again.safetensors")), load_file(os.path.join(tmp, "again", "model.safetensors")), "save_pretrained")


def megatron(tmp):
    """A GPT of Megatron-Core's own layers and its image in transformers compute the same.  Transformer Engine needs a GPU: its names for
    the same tensors are those that megatron/core/models/gpt/gpt_layer_specs.py maps."""
    for heads, groups, experts in ((4, 2, 0), (6, 6, 0), (4, 1, 0), (4, 2, 3), (2, 2, 12)):
        model, config = megatron_gpt.model(heads=heads, groups=groups, experts=experts, hidden=heads * 6, layers=2, inner=10, vocabulary=31)
        local = {k: v.contiguous() for k, v in model.state_dict().items() if v is not None}
        kind = "mixtral" if experts else "llama"
        path, out = os.path.join(tmp, "megatron.pt"), os.path.join(tmp, "hf")
        os.makedirs(out, exist_ok=True)
        torch.save(local, path)
        cls = transformers.MixtralForCausalLM if experts else transformers.LlamaForCausalLM
        own = cls.config_class(hidden_size=config.hidden_size, num_attention_heads=heads, num_key_value_heads=groups, num_hidden_layers=2,
                               intermediate_size=10, vocab_size=31, rms_norm_eps=config.layernorm_epsilon, max_position_embeddings=32,
                               rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, tie_word_embeddings=False,
                               **({"num_local_experts": experts, "num_experts_per_tok": 2} if experts else {}))
        own.save_pretrained(out)
        mapped(f"megatron-local-{kind}-hf", path, os.path.join(out, "model.safetensors"), "--config", os.path.join(out, "config.json"))
        theirs, loaded = cls.from_pretrained(out, dtype=torch.float32, output_loading_info=True)
        check(not any(loaded.values()), loaded)
        if experts:
            theirs.set_experts_implementation("eager")
        ids = torch.randint(0, 31, (2, 9))
        error = (theirs.eval()(ids).logits - megatron_gpt.logits(model, ids)).abs().max()
        check(error < 1e-5, f"{kind}, {heads} heads, {groups} groups: logits differ by {error}")
        hf = load_file(os.path.join(out, "model.safetensors"))
        both_ways(tmp, f"megatron-local-{kind}-hf", local, hf, "--set", f"n_heads={heads}", "--set", f"n_kv_heads={groups}")
        engine = {megatron_gpt.engine_name(k, experts): v for k, v in local.items()}
        both_ways(tmp, f"megatron-{kind}-hf", engine, hf, "--set", f"n_heads={heads}", "--set", f"n_kv_heads={groups}")


def gpt2(tmp):
    """nanoGPT has nn.Linear where transformers has its Conv1D: the same function of the same input."""
    for heads, dim, layers, bias in ((2, 16, 2, True), (3, 24, 12, False)):
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=dim, n_head=heads, n_layer=layers, vocab_size=23, n_positions=9)).eval()
        hf = {k: v.clone() for k, v in model.state_dict().items()}
        hf["lm_head.weight"] = hf["transformer.wte.weight"]
        nano = {}
        for key, value in hf.items():
            nano[key] = value
            owner = model.get_submodule(key.rpartition(".")[0])
            if isinstance(owner, transformers.pytorch_utils.Conv1D) and key.endswith(".weight"):
                linear = nn.Linear(*owner.weight.shape)
                linear.weight.data = value.t().contiguous()
                linear.bias = owner.bias
                x = torch.randn(3, owner.weight.shape[0])
                check(torch.allclose(linear(x), owner(x), atol=1e-6), key)
                nano[key] = linear.weight.data
        if not bias:
            hf = {k: v for k, v in hf.items() if not k.endswith(".bias")}
            nano = {k: v for k, v in nano.items() if not k.endswith(".bias")}
        masks = {f"transformer.h.{i}.attn.bias": torch.ones(1, 1, 9, 9).tril() for i in range(layers)}
        a, out = os.path.join(tmp, "ckpt.pt"), os.path.join(tmp, "gpt2.pt")
        torch.save({"model": nano | masks, "iter_num": 5, "config": {"bias": bias}}, a)
        mapped("nanogpt-gpt2", a, out, "--config", write_config(tmp, model))
        got = load(out)
        check(got["iter_num"] == 5 and got["config"] == {"bias": bias}, "values stay")
        same(got["model"], hf, "nanogpt-gpt2")
        check(got["model"]["lm_head.weight"].data_ptr() == got["model"]["transformer.wte.weight"].data_ptr(), "tied weights stay tied")
        if bias:
            fresh = transformers.GPT2LMHeadModel(model.config).eval()
            fresh.load_state_dict(got["model"])
            ids = torch.arange(7)[None]
            check(torch.equal(fresh(ids).logits, model(ids).logits), "the same model")
        mapped("nanogpt-gpt2", out, out + "-back.pt", "--reverse")
        same(load(out + "-back.pt")["model"], nano, "nanogpt-gpt2 backwards")
    tried.record("transformers", "`nanogpt-gpt2`", "map", "nanoGPT's names and shapes; the same logits, both ways")


def wrong_models(tmp):
    model, hf = hf_model("LlamaForCausalLM", hidden_size=24, num_attention_heads=4, num_key_value_heads=2, vocab_size=37,
                         num_hidden_layers=2, intermediate_size=56)
    path, out = os.path.join(tmp, "llama.safetensors"), os.path.join(tmp, "never.pt")
    save_file({k: v.contiguous() for k, v in hf.items()}, path)
    config = write_config(tmp, model)
    text = run("map", "nanogpt-gpt2", path, out, expect=2)
    check("error[KEY]" in text and "another architecture" in text and not os.path.exists(out), text)
    text = run("map", "torchtitan-qwen3-hf", path, out, "--reverse", "--config", config, expect=2)
    check("error[KEY]" in text and "model_type 'llama'" in text, text)
    text = run("map", "torchtitan-llama3-hf", path, out, "--reverse", expect=2)
    check("error[USAGE]" in text and "--set n_heads=NUMBER" in text and "num_attention_heads" in text, text)
    text = run("map", "torchtitan-llama3-hf", path, out, "--reverse", "--set", "n_heads=5", expect=2)
    check("error[SHAPE]" in text and "model.layers.0.self_attn.k_proj.weight" in text and "[12, 24]" in text, text)


def megatron_qwen(tmp):
    """Options that Qwen's models need: biases of queries, keys and values; norms of queries and keys; a tied embedding."""
    for kind, heads, groups, tied in (("qwen2", 4, 2, True), ("qwen2", 6, 6, False), ("qwen3", 4, 1, True), ("qwen3", 6, 3, False)):
        model, config = megatron_gpt.model(heads=heads, groups=groups, experts=0, hidden=heads * 6, layers=2, inner=10, vocabulary=31, kind=kind,
                                           tied=tied)
        local = {k: v.contiguous() for k, v in model.state_dict().items() if v is not None}
        check(("output_layer.weight" in local) != tied, local.keys())
        path, out = os.path.join(tmp, "megatron.pt"), os.path.join(tmp, "hf")
        os.makedirs(out, exist_ok=True)
        torch.save(local, path)
        cls = transformers.Qwen2ForCausalLM if kind == "qwen2" else transformers.Qwen3ForCausalLM
        own = cls.config_class(hidden_size=config.hidden_size, num_attention_heads=heads, num_key_value_heads=groups, num_hidden_layers=2,
                               intermediate_size=10, vocab_size=31, rms_norm_eps=config.layernorm_epsilon, max_position_embeddings=32,
                               rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, tie_word_embeddings=tied,
                               **({"head_dim": 8} if kind == "qwen3" else {}))
        own.save_pretrained(out)
        mapped("megatron-local-llama-hf", path, os.path.join(out, "model.safetensors"), "--config", os.path.join(out, "config.json"))
        theirs, loaded = cls.from_pretrained(out, dtype=torch.float32, output_loading_info=True)
        check(not any(loaded.values()), loaded)
        ids = torch.randint(0, 31, (2, 9))
        error = (theirs.eval()(ids).logits - megatron_gpt.logits(model, ids)).abs().max()
        check(error < 1e-4, f"{kind}, {heads} heads, {groups} groups: logits differ by {error}")
        hf = load_file(os.path.join(out, "model.safetensors"))
        sizes = ("--set", f"n_heads={heads}", "--set", f"n_kv_heads={groups}")
        both_ways(tmp, "megatron-local-llama-hf", local, hf, *sizes)
        both_ways(tmp, "megatron-llama-hf", {megatron_gpt.engine_name(k, 0): v for k, v in local.items()}, hf, *sizes)


CHECKS = {"llama3": llama3, "qwen3": qwen3, "deepseek": deepseek, "gpt_oss": gpt_oss, "fp8": fp8, "files": files, "megatron": megatron,
          "megatron_qwen": megatron_qwen,
          "gpt2": gpt2, "wrong_models": wrong_models}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="*", choices=[[], *CHECKS])
    parser.add_argument("--tool", required=True)
    args = parser.parse_args()
    return 1 if rekey_tool.run_checks(args.tool, CHECKS, args.checks) else 0


if __name__ == "__main__":
    sys.exit(main())
