// SPDX-License-Identifier: Apache-2.0
#include "tools/text/value_text.h"

#include <algorithm>

#include "formats/bytes/base/text.h"
#include "formats/containers/pickle/back_reference.h"
#include "formats/state/content/tensor_value.h"
#include "tools/text/float_text.h"

namespace fsdp::cli {
namespace {

using formats::Value;
using formats::ValueKind;

constexpr std::size_t kMaxJsonParts = 10'000;
// Values nested deeper than this are not shown in text.
constexpr std::size_t kMaxTextDepth = 20;

// Longer integers are not converted to decimal, because each digit takes a pass over all bytes;
// Python's limit is 4,300 digits.
constexpr std::size_t kMaxDecimalBytes = 1024;

// Returns the little-endian magnitude as Python writes it in hexadecimal.
std::string hexadecimal(const std::string& magnitude) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text = "0x";
  for (std::size_t i = magnitude.size(); i-- > 0;) {
    const auto byte = static_cast<unsigned char>(magnitude[i]);
    text += kDigits[byte >> 4U];
    text += kDigits[byte & 15U];
  }
  const std::size_t zeros = text.find_first_not_of('0', 2) - 2;
  return text.erase(2, zeros);
}

// Converts little-endian two's complement to decimal, or to hexadecimal if it is long.
std::string big_int_text(const std::string& bytes) {
  std::string magnitude = bytes;
  const bool negative = !bytes.empty() && (static_cast<unsigned char>(bytes.back()) & 0x80U) != 0;
  if (negative) {
    unsigned carry = 1;
    for (char& c : magnitude) {
      const unsigned sum = (static_cast<unsigned char>(c) ^ 0xFFU) + carry;
      c = static_cast<char>(sum & 0xFFU);
      carry = sum >> 8U;
    }
  }
  if (magnitude.size() > kMaxDecimalBytes) return (negative ? "-" : "") + hexadecimal(magnitude);
  std::string digits;
  bool more = true;
  while (more) {
    unsigned rest = 0;
    more = false;
    for (std::size_t i = magnitude.size(); i-- > 0;) {
      const unsigned current = rest * 256U + static_cast<unsigned char>(magnitude[i]);
      magnitude[i] = static_cast<char>(current / 10U);
      rest = current % 10U;
      more = more || magnitude[i] != 0;
    }
    digits += static_cast<char>('0' + rest);
  }
  std::reverse(digits.begin(), digits.end());
  return (negative ? "-" : "") + digits;
}

// Returns the name as in Python 3: builtins without their module.
std::string global_text(const formats::GlobalName& name) {
  const bool builtin = name.module == "__builtin__" || name.module == "builtins";
  return formats::escape(builtin ? name.name : name.dotted());
}

class TextWriter {
 public:
  explicit TextWriter(std::size_t limit) : limit_(limit) {}
  std::string take() { return cut_ ? out_ + "..." : std::move(out_); }

  void write(const Value& value, std::size_t depth) {
    if (full()) {
      cut_ = true;
      return;
    }
    if (depth > kMaxTextDepth) {
      put("...");
      return;
    }
    switch (value.kind()) {
      case ValueKind::kNone:
        put("None");
        break;
      case ValueKind::kBool:
        put(*value.as_bool() ? "True" : "False");
        break;
      case ValueKind::kInt:
        put(std::to_string(*value.as_int()));
        break;
      case ValueKind::kFloat:
        put(float_text(*value.as_float()));
        break;
      case ValueKind::kString:
        put(formats::quote(*value.as_string(), limit_));
        break;
      case ValueKind::kBytes:
        put("b" + formats::quote(*value.as_bytes(), limit_));
        break;
      case ValueKind::kByteArray:
        put("bytearray(b" + formats::quote(*value.as_bytes(), limit_) + ")");
        break;
      case ValueKind::kBigInt:
        put(big_int_text(*value.as_bytes()));
        break;
      case ValueKind::kOpaque:
        put("...");
        break;
      case ValueKind::kList:
        sequence("[", value.items(), "]", depth);
        break;
      case ValueKind::kTuple:
        sequence("(", value.items(), value.items().size() == 1 ? ",)" : ")", depth);
        break;
      case ValueKind::kSet:
        sequence("{", value.items(), "}", depth);
        break;
      case ValueKind::kFrozenSet:
        sequence("frozenset({", value.items(), "})", depth);
        break;
      case ValueKind::kDict:
        mapping(value.entries(), depth);
        break;
      case ValueKind::kGlobal:
        put(global_text(*value.as_global()));
        break;
      case ValueKind::kStorage:
        put("storage " + formats::quote(value.as_storage()->key));
        break;
      case ValueKind::kObject:
        object(value, depth);
        break;
    }
  }

 private:
  // Returns whether nothing more fits.
  bool full() const { return cut_ || out_.size() >= limit_; }
  void put(const std::string& text) {
    if (text.empty()) return;
    const bool was_full = full();
    if (!was_full) out_ += text;
    if (!was_full && out_.size() <= limit_) return;
    cut_ = true;
    // Does not cut within a UTF-8 sequence.
    std::size_t end = std::min(limit_, out_.size());
    while (end > 0 && end < out_.size() && (static_cast<unsigned char>(out_[end]) & 0xC0U) == 0x80U)
      --end;
    out_.resize(end);
  }
  void sequence(const char* open, std::span<const Value> items, const char* close,
                std::size_t depth) {
    put(open);
    for (std::size_t i = 0; i < items.size() && !full(); ++i) {
      if (i != 0) put(", ");
      write(items[i], depth + 1);
    }
    put(close);
  }
  void mapping(std::span<const Value::Entry> entries, std::size_t depth) {
    put("{");
    for (std::size_t i = 0; i < entries.size() && !full(); ++i) {
      if (i != 0) put(", ");
      write(entries[i].first, depth + 1);
      put(": ");
      write(entries[i].second, depth + 1);
    }
    put("}");
  }
  void object(const Value& value, std::size_t depth) {
    if (const auto tensor = formats::dense_tensor(value)) {
      put(formats::cat("tensor(", formats::torch_name(tensor->dtype),
                       formats::shape_text(tensor->shape), ")"));
      return;
    }
    const formats::ObjectData& data = *value.as_object();
    write(data.callable, depth + 1);
    if (const auto entries = formats::mapping_entries(value)) {
      put("(");
      mapping(*entries, depth);
      put(")");
      return;
    }
    sequence("(", data.args.items(), ")", depth);
  }

  std::size_t limit_;
  std::string out_;
  bool cut_ = false;  // something was left out at the end
};

formats::Json json_of(const Value& value, std::size_t& parts) {
  if (++parts > kMaxJsonParts) return "...";
  switch (value.kind()) {
    case ValueKind::kNone:
      return nullptr;
    case ValueKind::kBool:
      return *value.as_bool();
    case ValueKind::kInt:
      return *value.as_int();
    case ValueKind::kFloat:
      if (std::isfinite(*value.as_float())) return *value.as_float();
      break;
    case ValueKind::kString:
      return *value.as_string();
    case ValueKind::kList:
    case ValueKind::kTuple: {
      formats::Json::Array items;
      for (const Value& item : value.items()) {
        if (parts > kMaxJsonParts) break;
        items.push_back(json_of(item, parts));
      }
      return items;
    }
    default:
      break;
  }
  if (const auto entries = formats::mapping_entries(value)) {
    formats::Json::Object members;
    for (const auto& [key, member] : *entries) {
      if (parts > kMaxJsonParts) break;
      const std::string* name = key.as_string();
      members.emplace_back(name != nullptr ? *name : value_text(key, 80), json_of(member, parts));
    }
    return members;
  }
  return value_text(value, 1000);
}

}  // namespace

std::string type_name(const Value& value) {
  switch (value.kind()) {
    case ValueKind::kNone:
      return "NoneType";
    case ValueKind::kBigInt:
      return "int";
    case ValueKind::kOpaque:
      return formats::back_reference(value) ? "cycle" : "record";
    case ValueKind::kStorage:
      return "torch.UntypedStorage";
    case ValueKind::kGlobal:
      return formats::dtype_from_torch_name(value.as_global()->name) &&
                     value.as_global()->module == "torch"
                 ? "torch.dtype"
                 : "type";
    case ValueKind::kObject:
      break;
    default:
      return std::string(formats::kind_name(value.kind()));
  }
  if (formats::dense_tensor(value)) return "torch.Tensor";
  if (const std::string special = formats::special_tensor(value); !special.empty()) {
    return special == "subclass" ? formats::special_tensor_text(value).substr(2)
                                 : special + " tensor";
  }
  const formats::GlobalName* callable = value.as_object()->callable.as_global();
  if (callable == nullptr) return "object";
  // numpy makes arrays and scalars by these calls.
  if (callable->module.starts_with("numpy.") && callable->name == "_reconstruct")
    return "numpy.ndarray";
  if (callable->module.starts_with("numpy.") && callable->name == "scalar") return "numpy scalar";
  return global_text(*callable);
}

std::string value_text(const Value& value, std::size_t limit) {
  TextWriter writer(limit);
  writer.write(value, 0);
  return writer.take();
}

formats::Json value_json(const Value& value) {
  std::size_t parts = 0;
  return json_of(value, parts);
}

formats::Json text_or_null(const std::string& text) {
  return text.empty() ? formats::Json() : formats::Json(text);
}

}  // namespace fsdp::cli
