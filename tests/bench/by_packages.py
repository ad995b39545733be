# SPDX-License-Identifier: Apache-2.0
"""Quantizes or dequantizes a model's folder by llmcompressor's and compressed-tensors' own functions on the CPU; prints the seconds without imports.

  python by_packages.py quantize SOURCE OUT SCHEME CLOCK THREADS
  python by_packages.py dequantize SOURCE OUT CLOCK THREADS

CLOCK: perf_counter, or process_time for the processor's seconds.
"""
import os
import pathlib
import sys
import time

os.environ |= {"HF_HUB_OFFLINE": "1", "LOGURU_LEVEL": "ERROR", "TQDM_DISABLE": "1", "TORCHDYNAMO_DISABLE": "1"}
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../interop"))

import torch  # noqa: E402


def dequantize(source, out):
    """Shard by shard, as a loader that keeps memory small would."""
    import json
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig
    from quantized_producers import grouped
    from safetensors.torch import load_file, save_file
    config = QuantizationConfig.model_validate(json.loads((source / "config.json").read_text())["quantization_config"])
    (scheme,) = config.config_groups.values()
    compressor = BaseCompressor.get_value_from_registry(scheme.format)
    names = compressor.compression_param_names(scheme)
    names = (names[0], *[name for name in ("weight_scale", "weight_shape", "weight_zero_point", "weight_global_scale") if name in names])
    out.mkdir()
    for file in sorted(source.glob("*.safetensors")):
        modules, rest = grouped(load_file(file), names)
        made = {f"{module}.weight": compressor.decompress(dict(parts), scheme)["weight"].detach() if len(parts) > 1 else parts["weight"]
                for module, parts in modules.items()}
        save_file(made | rest, out / file.name)


def main():
    verb, source, out = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    torch.set_num_threads(int(sys.argv[-1]))
    clock = getattr(time, sys.argv[-2])
    if verb == "quantize":
        from llmcompressor import model_free_ptq
        begin = clock()
        model_free_ptq(source, out, scheme=sys.argv[4], ignore=["lm_head"], device="cpu", max_workers=1)
    else:
        import compressed_tensors.quantization  # noqa: F401
        import safetensors.torch  # noqa: F401
        begin = clock()
        dequantize(source, out)
    print(clock() - begin)


if __name__ == "__main__":
    main()
