// SPDX-License-Identifier: Apache-2.0
// How quantized weights are stored, as a model's configuration says.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "formats/bytes/base/json.h"

namespace fsdp::formats::quantized {

// Whose names the tensors of a weight have, and whose arithmetic makes the weight.
enum class Dialect {
  kCompressedTensors,  // weight or weight_packed, weight_scale, weight_zero_point, ...
  kModelOpt,           // weight, weight_scale, weight_scale_2
  kTransformersFp8,    // weight, weight_scale_inv
  kGptOss,             // NAME_blocks, NAME_scales: MXFP4, turned
  kGptq,           // qweight, qzeros, scales, g_idx: [in, out] in words along the first dimension
  kAwq,            // qweight, qzeros, scales: [in, out] in words along the last dimension
  kBitsandbytes4,  // weight, weight.absmax, weight.quant_map, weight.quant_state...
  kBitsandbytes8,  // weight, SCB
  kTorchao         // _weight_qdata, _weight_scale, as metadata beside the tensors says (torchao.h)
};

enum class NumberKind { kFloat, kInteger };

// The elements that share a scale.
enum class Sharing { kTensor, kRows, kGroups, kBlocks };

// Members that the configuration does not give have the value of their format's definition.
struct Scheme {
  NumberKind numbers = NumberKind::kFloat;
  unsigned bits = 8;
  Sharing sharing = Sharing::kTensor;
  std::int64_t rows = 0;        // kBlocks: of a block
  std::int64_t columns = 0;     // kBlocks: of a block; kGroups: of a group, -1 for a whole row
  bool symmetric = true;        // without zero points
  bool powers = false;          // scales are bytes, exponents of two
  bool second_scale = false;    // the scales have a scale, one for the tensor
  bool zeros_plus_one = false;  // kGptq: zero points are stored less 1
  std::string name = {};        // for messages: "int4, a scale for each 128 of a row"
};

// Texts by name, as files keep them beside their tensors.
using Texts = std::vector<std::pair<std::string, std::string>>;

struct Settings {
  std::string method;  // quant_method: "compressed-tensors"
  Dialect dialect = Dialect::kCompressedTensors;
  // One for each group of modules.  Which module belongs to which follows from its tensors.
  // kTorchao: none.
  std::vector<Scheme> schemes;
  Texts texts;  // kTorchao: those of the files; for the caller to fill
};

// Returns how a scheme is named in messages, whatever its `name`.
std::string scheme_text(const Scheme& scheme);

// Reads the quantization_config of a config.json.  `name`: of the file, for messages.
// Throws: kUnsupported naming the method or member that is not known, and kJson for members of
// other kinds than the method defines.
Settings read_settings(const Json& config, const std::string& name);

}  // namespace fsdp::formats::quantized
