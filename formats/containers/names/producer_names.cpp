// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/names/producer_names.h"

#include <algorithm>
#include <array>
#include <unordered_set>
#include <utility>
#include <vector>

#include "formats/containers/pickle/parts.h"

namespace fsdp::formats {
namespace {

constexpr auto kType = ProducerUse::kType;
constexpr auto kInstances = ProducerUse::kInstances;
constexpr auto kCalled = ProducerUse::kCalled;

constexpr auto kMaker = ProducerUse::kFunction;
constexpr auto kTensor = ProducerUse::kTensor;

constexpr std::string_view kTorchao = "torchao 0.18";
constexpr std::string_view kOmegaConf = "OmegaConf 2.1 to 2.4";
constexpr std::string_view kTyping = "Python's typing, in OmegaConf's nodes";
constexpr std::string_view kEngine = "Transformer Engine 2.20";
constexpr std::string_view kDeepSpeed = "DeepSpeed 0.14 to 0.19";

constexpr std::array kNames = {
    // Hydra's and Lightning's hyperparameters.  Nodes know their parents; interpolations and
    // resolvers are text until the value is accessed.
    ProducerName{"omegaconf.dictconfig", "DictConfig", kInstances, kOmegaConf},
    ProducerName{"omegaconf.listconfig", "ListConfig", kInstances, kOmegaConf},
    ProducerName{"omegaconf.base", "Metadata", kInstances, kOmegaConf},
    ProducerName{"omegaconf.base", "ContainerMetadata", kInstances, kOmegaConf},
    ProducerName{"omegaconf.base", "UnionNode", kInstances, kOmegaConf},
    ProducerName{"omegaconf.nodes", "AnyNode", kInstances, kOmegaConf},
    ProducerName{"omegaconf.nodes", "BooleanNode", kInstances, kOmegaConf},
    ProducerName{"omegaconf.nodes", "BytesNode", kInstances, kOmegaConf},
    ProducerName{"omegaconf.nodes", "EnumNode", kInstances, kOmegaConf},
    ProducerName{"omegaconf.nodes", "FloatNode", kInstances, kOmegaConf},
    ProducerName{"omegaconf.nodes", "IntegerNode", kInstances, kOmegaConf},
    ProducerName{"omegaconf.nodes", "InterpolationResultNode", kInstances, kOmegaConf},
    ProducerName{"omegaconf.nodes", "PathNode", kInstances, kOmegaConf},
    ProducerName{"omegaconf.nodes", "StringNode", kInstances, kOmegaConf},
    ProducerName{"typing", "Any", kType, kTyping},
    ProducerName{"typing", "Dict", kType, kTyping},
    ProducerName{"typing", "List", kType, kTyping},
    ProducerName{"typing", "Optional", kType, kTyping},
    ProducerName{"typing", "Tuple", kType, kTyping},
    ProducerName{"typing", "Union", kType, kTyping},
    // Objects beside the tensors of every ZeRO rank.
    ProducerName{"deepspeed.runtime.fp16.loss_scaler", "LossScaler", kInstances, kDeepSpeed},
    ProducerName{"deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler", kInstances, kDeepSpeed},
    ProducerName{"deepspeed.runtime.zero.config", "ZeroStageEnum", kCalled, kDeepSpeed},
    ProducerName{"deepspeed.runtime.zero.config", "ZeroStageEnum.disabled", kType, kDeepSpeed},
    ProducerName{"deepspeed.runtime.zero.config", "ZeroStageEnum.optimizer_states", kType,
                 kDeepSpeed},
    ProducerName{"deepspeed.runtime.zero.config", "ZeroStageEnum.gradients", kType, kDeepSpeed},
    ProducerName{"deepspeed.runtime.zero.config", "ZeroStageEnum.weights", kType, kDeepSpeed},
    ProducerName{"deepspeed.runtime.zero.config", "ZeroStageEnum.max_stage", kType, kDeepSpeed},
    ProducerName{"deepspeed.utils.tensor_fragment", "fragment_address", kInstances, kDeepSpeed},
    // States of 8-bit, 4-bit and fp8 optimizers, quantized weights.
    ProducerName{"torchao.optim.subclass_8bit", "OptimState8bit", kTensor, kTorchao},
    ProducerName{"torchao.optim.subclass_4bit", "OptimState4bit", kTensor, kTorchao},
    ProducerName{"torchao.optim.subclass_fp8", "OptimStateFp8", kTensor, kTorchao},
    ProducerName{"torchao.quantization", "Float8Tensor", kTensor, kTorchao},
    ProducerName{"torchao.quantization", "Int8Tensor", kTensor, kTorchao},
    ProducerName{"torchao.quantization", "IntxUnpackedToInt8Tensor", kTensor, kTorchao},
    ProducerName{"torchao.quantization.granularity", "PerRow", kInstances, kTorchao},
    ProducerName{"torchao.quantization.quantize_.workflows.int8.int8_tensor",
                 "QuantizeTensorToInt8Kwargs", kInstances, kTorchao},
    ProducerName{"torchao.quantization.quantize_.common.kernel_preference", "KernelPreference",
                 kCalled, kTorchao},
    ProducerName{"torchao.quantization.quantize_.common.kernel_preference", "KernelPreference.AUTO",
                 kType, kTorchao},
    ProducerName{"torchao.quantization.quantize_.common.kernel_preference",
                 "KernelPreference.TORCH", kType, kTorchao},
    ProducerName{"torchao.quantization.quantize_.common.kernel_preference", "KernelPreference.MSLK",
                 kType, kTorchao},
    ProducerName{"torchao.quantization.quantize_.common.kernel_preference",
                 "KernelPreference.EMULATED", kType, kTorchao},
    ProducerName{"torchao.quantization.quantize_.common.kernel_preference",
                 "KernelPreference.TRITON", kType, kTorchao},
    ProducerName{"torchao.quantization.quant_primitives", "MappingType", kCalled, kTorchao},
    ProducerName{"torchao.quantization.quant_primitives", "MappingType.SYMMETRIC", kType, kTorchao},
    ProducerName{"torchao.quantization.quant_primitives", "MappingType.SYMMETRIC_NO_CLIPPING_ERR",
                 kType, kTorchao},
    ProducerName{"torchao.quantization.quant_primitives", "MappingType.ASYMMETRIC", kType,
                 kTorchao},
    // FP8 parameters.
    ProducerName{"transformer_engine.pytorch.tensor.float8_tensor",
                 "_make_float8_tensor_in_reduce_ex", kMaker, kEngine},
    ProducerName{"transformer_engine.pytorch.tensor.float8_blockwise_tensor",
                 "_make_float8_blockwise_tensor_in_reduce_ex", kMaker, kEngine},
    ProducerName{"transformer_engine.pytorch.tensor.float8_blockwise_tensor",
                 "Float8BlockQuantizer", kInstances, kEngine},
    ProducerName{"transformer_engine.pytorch.constants", "DType", kCalled, kEngine},
    ProducerName{"transformer_engine.pytorch.constants", "DType.kFloat8E4M3", kType, kEngine},
    ProducerName{"transformer_engine.pytorch.constants", "DType.kFloat8E5M2", kType, kEngine},
};

}  // namespace

const ProducerName* producer_name(std::string_view module, std::string_view name) {
  const auto* const found = std::ranges::find_if(
      kNames, [&](const auto& known) { return known.module == module && known.name == name; });
  return found == kNames.end() ? nullptr : &*found;
}

std::map<std::string_view, std::set<std::string>> producer_names_in(const Value& value) {
  std::map<std::string_view, std::set<std::string>> names;
  std::unordered_set<const void*> seen;
  std::vector<Value> open = {value};
  while (!open.empty()) {
    const Value at = std::move(open.back());
    open.pop_back();
    if (at.identity() != nullptr && !seen.insert(at.identity()).second) continue;
    if (const GlobalName* name = at.as_global()) {
      if (const ProducerName* known = producer_name(name->module, name->name))
        names[known->producer].insert(name->dotted());
    }
    for_each_part(at, [&open](const Value& part) { open.push_back(part); });
  }
  return names;
}

}  // namespace fsdp::formats
