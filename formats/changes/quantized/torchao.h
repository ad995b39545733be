// SPDX-License-Identifier: Apache-2.0
// Weights of torchao: tensors of its classes, taken apart into plain ones, which texts beside them
// describe.
//   "a.weight": {"_type": "Int8Tensor", "_data": {"block_size": [1, 64], ...},
//                "_tensor_data_names": ["qdata", "scale"]}
//   a._weight_qdata, a._weight_scale
// Source: torchao/prototype/safetensors of torchao 0.18.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "formats/changes/arrays/array.h"
#include "formats/changes/quantized/scheme.h"
#include "formats/changes/quantized/stored_weight.h"

namespace fsdp::formats::quantized {

struct TorchaoWeight {
  std::string name;  // of the parameter: "a.weight"
  Scheme scheme;
  StoredWeight stored;
  std::map<Role, std::string> names;  // of the tensors
};

struct TorchaoTensors {
  std::map<std::string, TorchaoWeight> weights;  // by the tensors of their numbers
  std::set<std::string> parts;                   // their other tensors
  std::set<std::string> of_activations;
  std::set<std::string> fronts;  // of the names of all tensors of a weight: "a._weight_"
};

// `path`: of the checkpoint, for messages.  `tensor`: returns a tensor by its name, or nothing.
// Throws: kNotFound if the texts are not torchao's, and for tensors that they name and that are not
// there; kMismatch for texts that do not fit the shapes; kUnsupported for classes that torchao
// itself does not dequantize without an accelerator, and for what changes the meaning of a weight.
TorchaoTensors torchao_tensors(
    const std::string& path, const Texts& texts,
    const std::function<std::optional<arrays::Array>(const std::string& name)>& tensor);

}  // namespace fsdp::formats::quantized
