// SPDX-License-Identifier: Apache-2.0
// Patterns of keys with named captures: model.layers.{i:int}.self_attn.{p:q|k|v}_proj.weight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "formats/changes/map/expression.h"

namespace fsdp::formats::map {

// Texts of captures by name.
using Captures = std::map<std::string, std::string>;

// {i} stands for one component of a key or a part of it (at least one character, no dot), {i:int}
// for a decimal integer of at most 18 digits without leading zeros, {p:q|k} for one of the texts,
// {rest:**} for anything that is not empty.  A capture that occurs twice has the same text.
// {i+layers} stands for the integer i plus the parameter `layers`; a smaller one does not match.
// "{{" and "}}" are braces.
class Pattern {
 public:
  // Throws: kUsage for a pattern that is not well formed.
  explicit Pattern(const std::string& text);

  const std::string& text() const { return text_; }
  const std::set<std::string>& names() const { return names_; }
  // Returns the texts of the captures if the whole key matches.  Of several ways to match, earlier
  // captures are as short as possible.  Keys longer than kMaxKeyBytes do not match.
  std::optional<Captures> match(std::string_view key) const;
  // Returns the key with these captures.  Requires: all names have one, an integer where a
  // parameter is added.
  std::string filled(const Captures& captures) const;
  // Restricts each capture as `other` restricts its capture of the same name.
  void restrict_like(const Pattern& other);
  // Returns whether {name} is restricted to integers wherever it occurs.
  bool is_integer(const std::string& name) const;
  // Returns the parameters that are added, each with its capture.
  std::map<std::string, std::string> offsets() const;
  // Sets them; they are 0 before.  Requires: values from 0 to kMaxOffset.
  void set_offsets(const ParameterValue& parameter);

  static constexpr std::size_t kMaxKeyBytes = 4096;
  static constexpr std::int64_t kMaxOffset = 1'000'000'000'000'000'000;  // twice fits 63 bits

 private:
  enum class Kind { kLiteral, kComponent, kInteger, kOneOf, kAnything };
  struct Token {
    Kind kind = Kind::kLiteral;
    std::string text;  // of a literal; name of a capture
    std::vector<std::string> choices;
    std::string offset;  // of an integer: the parameter that is added; "": none
    std::int64_t added = 0;
    // Returns the text that stands in the key for a capture; nothing if it is not an integer.
    std::optional<std::string> in_key(const std::string& capture) const;
    // Returns the capture for a text in the key; nothing if it is below `added`.
    std::optional<std::string> captured(std::string_view digits) const;
  };
  class Matcher;

  void add_capture(const std::string& inside);

  std::string text_;
  std::vector<Token> tokens_;
  std::set<std::string> names_;
};

}  // namespace fsdp::formats::map
