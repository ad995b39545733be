// SPDX-License-Identifier: Apache-2.0
// Whole numbers of a map that may depend on parameters: 128, "n_heads * head_dim", "head_dim / 2".
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace fsdp::formats::map {

// Returns the value of a parameter.  Throws if there is none.
using ParameterValue = std::function<std::int64_t(const std::string& name)>;

// +, -, *, / and parentheses over whole numbers and names; / must leave no remainder.
class Expression {
 public:
  explicit Expression(std::int64_t number);
  // Throws: kUsage for a text that is not an expression.
  explicit Expression(const std::string& text);

  const std::string& text() const { return text_; }
  const std::set<std::string>& names() const { return names_; }
  // Throws: kShape if a division leaves a remainder, kOverflow; what `parameter` throws.
  std::int64_t value(const ParameterValue& parameter) const;

 private:
  enum class Step { kNumber, kName, kAdd, kSubtract, kMultiply, kDivide };
  // In the order of a stack machine: operands first.
  struct Code {
    Step step;
    std::int64_t number = 0;
    std::string name;
  };
  class Parser;

  std::string text_;
  std::vector<Code> code_;
  std::set<std::string> names_;
};

}  // namespace fsdp::formats::map
