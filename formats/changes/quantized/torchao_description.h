// SPDX-License-Identifier: Apache-2.0
// What a text says of one tensor of torchao's classes.
// Source: torchao/prototype/safetensors, and the classes' own lists of attributes, of torchao 0.18.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/bytes/base/dtype.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/changes/quantized/scaled_shape.h"

namespace fsdp::formats::quantized {

// Members are read on demand.  All throw: kJson naming a member that is missing or of another kind.
class Description {
 public:
  // `place`: the checkpoint and the parameter, for messages.  Lifetime: `json` outlives this.
  Description(std::string place, const Json& json) : place_(std::move(place)), json_(json) {}

  std::string type() const;
  // Returns the names of its tensors, each once.
  std::vector<std::string> tensors() const;
  // Refuses what the class does not have: members and tensors may change what a weight means.
  // Throws: kUnsupported for classes that torchao itself does not dequantize without an
  // accelerator, and for what the class does not have; kJson for what it lacks.
  void check_class() const;

  bool has(std::string_view name) const;
  // Returns PyTorch's or torchao's name of a dtype.
  std::string dtype(std::string_view name) const;
  std::int64_t number(std::string_view name) const;
  Shape sizes(std::string_view name) const;
  bool flag(std::string_view name) const;

  Error unlike_text(const std::string& what) const;
  Error unsupported(const std::string& what) const;

 private:
  Error bad(std::string_view name, const char* wanted, const Json& found) const;
  const Json& member(const Json& from, std::string_view name) const;
  const Json& data(std::string_view name) const { return member(member(json_, "_data"), name); }
  std::string text_of(const Json& from, std::string_view name) const;
  std::int64_t number_of(const Json& from, std::string_view name) const;

  std::string place_;
  const Json& json_;
};

}  // namespace fsdp::formats::quantized
