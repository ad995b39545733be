// SPDX-License-Identifier: Apache-2.0
// Classes of known producers that are plain data, in addition to PyTorch's and Python's own: making
// one, or setting its state, runs no code that a file chooses.  Only its producer knows the meaning
// of such an object: it is kept as it is, and torch.load(weights_only=True) asks for its class
// before it loads it.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "formats/containers/pickle/value.h"

namespace fsdp::formats {

// The way in which a pickle makes the object.
enum class ProducerUse : std::uint8_t {
  kType,       // only named: a class or a constant as a value
  kInstances,  // NEWOBJ, then BUILD
  kCalled,     // REDUCE with its value: an enumeration
  kFunction,   // REDUCE: a function that makes a tensor of its arguments
  kTensor,     // a tensor's class: an argument of _rebuild_wrapper_subclass
};

struct ProducerName {
  std::string_view module;
  std::string_view name;  // with its class in front, if getattr takes it from one
  ProducerUse use;
  std::string_view
      producer;  // and the versions whose classes were examined: "OmegaConf 2.1 to 2.4"
};

// Returns nullptr if the name is not in any producer's list.
const ProducerName* producer_name(std::string_view module, std::string_view name);

// Returns the producers' names inside `value`, by producer.  Visits each shared part once.
std::map<std::string_view, std::set<std::string>> producer_names_in(const Value& value);

}  // namespace fsdp::formats
