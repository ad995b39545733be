# SPDX-License-Identifier: Apache-2.0
"""A random search over peft's LoraConfig: adapters on small models of transformers, merged by `fsdp-ckpt merge-lora` and by peft.

Truth is what transformers' save_pretrained writes of peft's merge_and_unload(): names, ties and numbers.
"""
import copy
import json
import os
import random
import re
import shutil
import warnings

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tool_run import Failure, check, run


def models():
    import transformers as t

    small = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 32}

    def llama(rng, tied):
        config = t.LlamaConfig(**small, num_key_value_heads=rng.choice([1, 2]), tie_word_embeddings=tied, attention_bias=rng.random() < 0.5)
        return t.LlamaForCausalLM, config, ["q_proj", "k_proj", "o_proj", "up_proj", "down_proj"], ["embed_tokens", "lm_head"], "CAUSAL_LM"

    def gpt2(rng):
        config = t.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=32, n_positions=16, bos_token_id=0, eos_token_id=1)
        return t.GPT2LMHeadModel, config, ["c_attn", "c_proj", "c_fc"], ["wte", "lm_head"], "CAUSAL_LM"

    def classes(rng):
        config = t.BertConfig(**small, max_position_embeddings=16, num_labels=3)
        return t.BertForSequenceClassification, config, ["query", "value", "dense"], ["word_embeddings"], "SEQ_CLS"

    def scores(rng):
        config = t.LlamaConfig(**small, num_labels=3, pad_token_id=0)
        return t.LlamaForSequenceClassification, config, ["q_proj", "v_proj", "gate_proj"], ["embed_tokens"], "SEQ_CLS"

    def sequences(rng):
        config = t.T5Config(d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, vocab_size=32, decoder_start_token_id=0)
        return t.T5ForConditionalGeneration, config, ["q", "v", "wi", "wo"], ["lm_head"], "SEQ_2_SEQ_LM"

    def images(rng):
        text = {**small, "num_key_value_heads": 2, "model_type": "llama"}
        vision = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8, "patch_size": 4,
                  "model_type": "clip_vision_model"}
        config = t.LlavaConfig(text_config=text, vision_config=vision, image_token_index=3)
        return t.LlavaForConditionalGeneration, config, ["q_proj", "linear_1", "fc1"], ["lm_head"], "CAUSAL_LM"

    def experts(rng):
        config = t.Qwen2MoeConfig(**small, num_key_value_heads=2, num_experts=3, num_experts_per_tok=2, moe_intermediate_size=rng.choice([8, 16]),
                                  shared_expert_intermediate_size=8)
        return t.Qwen2MoeForCausalLM, config, ["q_proj"], ["lm_head"], "CAUSAL_LM"

    def turned_experts(rng):
        small_experts = {**small, "intermediate_size": rng.choice([8, 16])}
        config = t.GptOssConfig(**small_experts, num_key_value_heads=2, head_dim=8, num_local_experts=3, num_experts_per_tok=2)
        return t.GptOssForCausalLM, config, ["q_proj"], ["lm_head"], "CAUSAL_LM"

    return {"llama": lambda rng: llama(rng, False), "llama-tied": lambda rng: llama(rng, True), "gpt2": gpt2, "bert": classes, "score": scores, "t5": sequences,
            "llava": images, "moe": experts, "oss": turned_experts}


class Convolutions(nn.Module):
    """No model of transformers: its base is a file alone."""

    def __init__(self):
        super().__init__()
        self.one = nn.Conv1d(6, 8, 3)
        self.two = nn.Conv2d(6, 6, (3, 2), bias=False)
        self.point = nn.Conv2d(6, 5, 1)
        self.three = nn.Conv3d(3, 4, 2)
        self.lin = nn.Linear(6, 6)
        self.emb = nn.Embedding(7, 6)


def options_of(rng, name, targets, tables, kind):
    """Fields of a LoraConfig; None where peft is known to refuse them together."""
    options = {"r": rng.choice([1, 2, 4, 5]), "lora_alpha": rng.choice([1, 3, 8, 16]), "use_rslora": rng.random() < 0.3,
               "target_modules": rng.sample(targets, rng.randint(1, min(3, len(targets))))}
    if rng.random() < 0.5:
        options["task_type"] = kind
    if name in ("moe", "oss"):
        options["target_parameters"] = rng.choice([["mlp.experts.gate_up_proj"], ["experts.down_proj"], ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]])
        return options
    if rng.random() < 0.35:
        options["target_modules"] += rng.sample(tables, rng.randint(1, len(tables)))
    elif rng.random() < 0.3:
        options["modules_to_save"] = rng.sample(tables, rng.randint(1, len(tables)))
    elif rng.random() < 0.3 and tables[0] != "lm_head":
        rows = rng.sample(range(32), 3)
        options["trainable_token_indices"] = rows if name.startswith("llama") and rng.random() < 0.5 else {tables[0]: rows}
    if kind == "SEQ_CLS" and "task_type" not in options:
        options["modules_to_save"] = options.get("modules_to_save", []) + [{"bert": "classifier", "score": "score"}[name]]
    if rng.random() < 0.3:
        options["use_dora"] = True
    if rng.random() < 0.3:
        options["bias"] = rng.choice(["all", "lora_only"])
    if rng.random() < 0.2 and name in ("gpt2", "bert") and not options.get("use_dora") and not set(options["target_modules"]) & set(tables):
        options["lora_bias"] = True
    if rng.random() < 0.3:
        options["rank_pattern"] = rng.choice([{options["target_modules"][0]: 3}, {r"^.*\.[01]\..*(q_proj|c_attn|query)": 3}, {"nothing(?=x)": 9}, {".*": 2}])
    if rng.random() < 0.3:
        options["alpha_pattern"] = rng.choice([{options["target_modules"][0]: 5}, {r"layers?\.\d+\..*_proj": 7}, {"h.[^1].*": 2, "(dense|q|v)": 9}])
    if rng.random() < 0.3:
        options["fan_in_fan_out"] = rng.random() < 0.7
    if rng.random() < 0.3 and name in ("llama-tied", "gpt2"):
        options["ensure_weight_tying"] = True
    return options


def trained(model):
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)


def state_names(rng, adapter):
    """Names as checkpoints of trainers have them: the adapter's name inside, wrappers before and between."""
    path = os.path.join(adapter, "adapter_model.safetensors")
    front = rng.choice(["", "module.", "_orig_mod.", "module._orig_mod."])

    def renamed(key):
        for what in ("lora_A", "lora_B"):
            key = key.replace(f".{what}.", f".{what}.default.")
        for what in ("lora_embedding_A", "lora_embedding_B"):
            key = key + ".default" if key.endswith(what) else key
        if key.endswith("lora_magnitude_vector"):
            key += ".default.weight"
        return front + key.replace(".layers.0.", ".layers.0._checkpoint_wrapped_module.")

    save_file({renamed(key): tensor for key, tensor in load_file(path).items()}, path)


def near(got, want, where):
    check(got.dtype == want.dtype and got.shape == want.shape, f"{where}: {got.dtype} {list(got.shape)}, not {want.dtype} {list(want.shape)}")
    unit = 16 * torch.finfo(want.dtype).eps * max(float(want.float().abs().max()), 1e-3)
    apart = float((got.float() - want.float()).abs().max())
    check(apart <= unit, f"{where}: {apart} apart")


def compare(got, want, base, where):
    lacking = set(want) - set(got)
    check(not lacking, f"{where}: lacks {sorted(lacking)}")
    for key in set(got) - set(want):
        check(key in base and torch.equal(got[key], base[key]), f"{where}: has {key}")
    changed = 0
    for key, tensor in want.items():
        if key in base and torch.equal(base[key], tensor):
            check(torch.equal(got[key], tensor), f"{where}: {key} changed")
            continue
        changed += 1
        near(got[key], tensor, f"{where}: {key}")
    check(changed > 0, f"{where}: nothing changed")


def transformers_case(tool, folder, rng, name, model_of):
    import peft

    cls, config, targets, tables, kind = model_of(rng)
    options = options_of(rng, name, targets, tables, kind)
    base, adapter, want, out = (os.path.join(folder, part) for part in ("base", "adapter", "want", "out.pt"))
    model = cls(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(base)
    wrapped = peft.get_peft_model(model, peft.LoraConfig(init_lora_weights=rng.choice([True, False, "gaussian"]), **options))
    trained(wrapped)
    wrapped.save_pretrained(adapter)
    merges = options.get("bias", "none") == "none" and not options.get("ensure_weight_tying") and "trainable_token_indices" not in options
    held = copy.deepcopy(wrapped) if merges and rng.random() < 0.4 else None
    result = peft.PeftModel.from_pretrained(cls.from_pretrained(base), adapter).merge_and_unload()
    result.save_pretrained(want)
    if held is not None:
        held_case(tool, folder, rng, held, cls.from_pretrained(base).state_dict(), result.state_dict())
        exported_case(tool, folder, cls)
    source = base
    form = rng.choice(["folder", "folder", "storage", "copies"])
    words = []
    if form != "folder" and name not in ("llava", "oss"):
        state = cls.from_pretrained(base).state_dict()
        source = os.path.join(folder, "base.pt")
        if form == "copies":
            state = {key: tensor.clone() for key, tensor in state.items()}
            words = ["--config", os.path.join(base, "config.json")]
        torch.save(state, source)
    if rng.random() < 0.3:
        state_names(rng, adapter)
    if options.get("ensure_weight_tying") and set(options["target_modules"]) & {*tables, "lm_head"}:
        check("ensure_weight_tying with LoRA on" in run(tool, "merge-lora", source, adapter, out, *words, expect=2), f"{options}: it does not say why")
        return
    said = run(tool, "merge-lora", source, adapter, out, *words)
    got = torch.load(out, weights_only=True)
    if source != base:
        # A state dict has tied tensors twice.
        compare(got, result.state_dict(), state, f"{options} {form}")
    else:
        compare(got, load_file(os.path.join(want, "model.safetensors")), load_file(os.path.join(base, "model.safetensors")), f"{options} {form}")
        added = len(got) - len(load_file(os.path.join(base, "model.safetensors")))
        check((re.search(r"(\d+) tensors? added", said) or [0, "0"])[1] == str(added), f"{options}: {added} added: {said}")
        untied = is_tied(base) and not is_tied(want)
        check(("are two tensors now" in said) == untied, f"{options}: untied {untied}: {said}")


def held_case(tool, folder, rng, wrapped, before, want):
    """The state dict of a model of peft, as trainers save it: base and adapter in one."""
    import torch.distributed.checkpoint as dcp

    adapter, held, out = (os.path.join(folder, part) for part in ("adapter", "held", "out-held.pt"))
    front = rng.choice(["", "module.", "_orig_mod."])
    state = {front + key: tensor.clone() for key, tensor in wrapped.state_dict().items()}
    level = rng.choice([[], ["model"], ["app", "model"]])
    content = state
    for name in reversed(level):
        content = {name: content}
    if level:
        content["optimizer"] = {"state": {key: {"exp_avg": tensor} for key, tensor in state.items() if "lora_A" in key}}
    if rng.random() < 0.5:
        dcp.save(content, checkpoint_id=held, no_dist=True)
    else:
        held += ".pt"
        torch.save(content, held)
    words = ["--adapter-config", os.path.join(adapter, "adapter_config.json")]
    # Which experts are [in, out] is the class's: without a config the tool assumes that none are, and says so.
    config = ["--config", os.path.join(folder, "base", "config.json")] if wrapped.config.model_type == "gpt_oss" else []
    run(tool, "merge-lora", held, out, *words, *config, "-k", ".".join([*level, "**"]))
    got = torch.load(out, weights_only=True)
    for name in level:
        got = got[name]
    compare(got, want, before, f"held {front} {level}")
    again = os.path.join(folder, "again")
    run(tool, "merge-lora", held, again, "--adapter-only", *words, "-k", ".".join([*level, "**"]))
    first, second = (load_file(os.path.join(path, "adapter_model.safetensors")) for path in (adapter, again))
    for key, tensor in first.items():
        check("base_layer" in key or key.endswith("bias") or torch.equal(second[key], tensor), f"{key} of the adapter differs")


def exported_case(tool, folder, cls):
    """The same state dict through `export`: what transformers loads of it is what peft merged, and lacks nothing."""
    held = next(path for path in (os.path.join(folder, "held"), os.path.join(folder, "held.pt")) if os.path.exists(path))
    base, want, out = (os.path.join(folder, part) for part in ("base", "want", "exported"))
    shutil.copy(os.path.join(folder, "adapter", "adapter_config.json"), folder)
    said = run(tool, "export", held, out, "--config", base)
    check("merged: the adapter that it holds" in said, said)
    os.remove(os.path.join(folder, "adapter_config.json"))
    loaded, about = cls.from_pretrained(out, output_loading_info=True)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        check(not about[what], f"exported: {what} {sorted(about[what])[:3]}: {said}")
    compare(loaded.state_dict(), cls.from_pretrained(want).state_dict(), cls.from_pretrained(base).state_dict(), f"exported: {said}")


def is_tied(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        return json.load(file).get("tie_word_embeddings") is True


def convolution_case(tool, folder, rng):
    import peft

    base, adapter, out = (os.path.join(folder, part) for part in ("base.safetensors", "adapter", "out.safetensors"))
    model = Convolutions()
    save_file(model.state_dict(), base)
    before = load_file(base)
    options = {"r": rng.choice([1, 2, 4]), "lora_alpha": rng.choice([1, 6]), "use_rslora": rng.random() < 0.3, "use_dora": rng.random() < 0.3,
               "target_modules": rng.sample(["one", "two", "point", "three", "lin", "emb"], rng.randint(1, 4))}
    wrapped = peft.get_peft_model(model, peft.LoraConfig(init_lora_weights=False, **options))
    trained(wrapped)
    wrapped.save_pretrained(adapter)
    run(tool, "merge-lora", base, adapter, out)
    fresh = Convolutions()
    fresh.load_state_dict(before)
    compare(load_file(out), peft.PeftModel.from_pretrained(fresh, adapter).merge_and_unload().state_dict(), before, f"{options}")


def search(tool, folder, count, seed):
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    kinds = models()
    tried, refused, failed = {}, {}, []
    for number in range(seed, seed + count):
        rng = random.Random(number)
        torch.manual_seed(number)
        name = rng.choice([*kinds, "llama-tied", "gpt2", "conv"])
        own = os.path.join(folder, str(number))
        os.makedirs(own)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if name == "conv":
                    convolution_case(tool, own, rng)
                else:
                    transformers_case(tool, own, rng, name, kinds[name])
        except (ValueError, RuntimeError, TypeError, AttributeError, KeyError, NotImplementedError) as error:
            # peft's own refusals: the tool was not asked yet.
            refused.setdefault(f"{name}: {type(error).__name__}: {str(error)[:90]}", []).append(number)
        except Failure as error:
            failed.append(f"seed {number} {name}: {error}")
        tried[name] = tried.get(name, 0) + 1
        shutil.rmtree(own)
    for why, numbers in refused.items():
        print(f"peft refuses: {why}: {len(numbers)}, first {numbers[0]}")
    check(not failed, "\n".join([f"{len(failed)} of {count} differ", *failed]))
    left = sum(map(len, refused.values()))
    check(left * 3 <= count, f"{left} of {count} adapters are not made by peft")
    print(f"search: seeds {seed} to {seed + count - 1}: {dict(sorted(tried.items()))}, {left} that peft refuses")
