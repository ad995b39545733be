// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/edit/set_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/arithmetic/computed_checkpoint.h"
#include "formats/changes/arithmetic/replaced_tensors.h"
#include "formats/changes/edit/literal.h"
#include "formats/state/content/content.h"
#include "formats/state/model/meant_name.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kKeyText = 200;
constexpr std::size_t kMaxCandidates = 20'000;

// One element, repeated.
class ConstantSource : public ByteSource {
 public:
  ConstantSource(std::vector<std::byte> element, std::uint64_t numel)
      : element_(std::move(element)), bytes_(numel * element_.size()) {}
  std::uint64_t size() const override { return bytes_; }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    if (offset > bytes_ || out.size() > bytes_ - offset)
      throw Error(ErrorCode::kTruncated, "a read goes past the end of a constant tensor");
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = element_[(offset + i) % element_.size()];
  }

 private:
  std::vector<std::byte> element_;
  std::uint64_t bytes_;
};

template <typename Integer>
std::optional<std::vector<std::byte>> integer_bytes(std::int64_t number) {
  if (number < 0 && std::is_unsigned_v<Integer>) return std::nullopt;
  const auto held = static_cast<Integer>(number);
  if (static_cast<std::int64_t>(held) != number) return std::nullopt;
  std::vector<std::byte> bytes(sizeof(held));
  std::memcpy(bytes.data(), &held, sizeof(held));
  return bytes;
}

// Returns the bytes of an element; nothing if the dtype has no such number.
std::optional<std::vector<std::byte>> element_of(DType dtype, const Value& number) {
  if (is_floating(dtype)) {
    const double wide = *number.as_float();
    std::vector<std::byte> bytes(item_bytes(dtype));
    cast(DType::kFloat64, std::as_bytes(std::span(&wide, 1)), dtype, bytes);
    double held = 0;
    cast(dtype, bytes, DType::kFloat64, std::as_writable_bytes(std::span(&held, 1)));
    const bool fits = std::isnan(wide)   ? std::isnan(held)
                      : std::isinf(wide) ? held == wide
                                         : std::isfinite(held) &&
                                               (held == 0 || wide == 0 || (held < 0) == (wide < 0));
    return fits ? std::optional(bytes) : std::nullopt;
  }
  if (dtype == DType::kBool) return std::vector{std::byte{*number.as_bool()}};
  const std::int64_t whole = *number.as_int();
  switch (dtype) {
    case DType::kInt64:
      return integer_bytes<std::int64_t>(whole);
    case DType::kInt32:
      return integer_bytes<std::int32_t>(whole);
    case DType::kInt16:
      return integer_bytes<std::int16_t>(whole);
    case DType::kInt8:
      return integer_bytes<std::int8_t>(whole);
    case DType::kUInt8:
      return integer_bytes<std::uint8_t>(whole);
    case DType::kUInt16:
      return integer_bytes<std::uint16_t>(whole);
    case DType::kUInt32:
      return integer_bytes<std::uint32_t>(whole);
    default:
      return integer_bytes<std::uint64_t>(whole);
  }
}

// Returns an example of the type in which elements of the dtype are typed; nothing for other
// dtypes.
std::optional<Value> example_of(DType dtype) {
  if (is_floating(dtype)) return Value::floating(0);
  switch (dtype) {
    case DType::kBool:
      return Value::boolean(false);
    case DType::kInt64:
    case DType::kInt32:
    case DType::kInt16:
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kUInt16:
    case DType::kUInt32:
    case DType::kUInt64:
      return Value::integer(0);
    default:
      return std::nullopt;
  }
}

class Setter {
 public:
  Setter(std::shared_ptr<const Checkpoint> source, const std::vector<Assignment>& assignments,
         bool retype)
      : source_(std::move(source)),
        assignments_(assignments),
        retype_(retype),
        replaced_(source_) {}

  ValuesSet run(const Value& content) {
    std::vector<bool> used(assignments_.size());
    std::vector<std::string> candidates;
    result_.content = with_leaves(content, [&](const Leaf& leaf) -> std::optional<Value> {
      const Assignment* chosen = nullptr;
      for (std::size_t i = 0; i < assignments_.size(); ++i) {
        if (!assignments_[i].keys.matches(leaf.key)) continue;
        used[i] = true;
        if (chosen != nullptr) {
          throw Error(ErrorCode::kUsage, cat(quote(chosen->keys.text(), kKeyText), " and ",
                                             quote(assignments_[i].keys.text(), kKeyText),
                                             " both set ", quote(leaf.key, kKeyText)));
        }
        chosen = &assignments_[i];
      }
      if (candidates.size() < kMaxCandidates) candidates.push_back(leaf.key);
      if (chosen == nullptr) return leaf.value;
      if (const auto number = tensor_number(leaf.value)) return set_tensor(leaf, *number, *chosen);
      return set_value(leaf, *chosen);
    });
    for (std::size_t i = 0; i < used.size(); ++i) {
      if (!used[i]) refuse_unused(assignments_[i], candidates);
    }
    result_.checkpoint = source_;
    result_.tensors_changed = !replaced_.empty();
    if (result_.tensors_changed) {
      auto replaced = replaced_.finish(result_.content, source_->description().path, [] {});
      result_.checkpoint = std::move(replaced.checkpoint);
      result_.content = std::move(replaced.content);
    }
    return std::move(result_);
  }

 private:
  std::string place(const Leaf& leaf) const {
    return cat(source_->description().path, ": ", quote(leaf.key, kKeyText));
  }

  Value set_value(const Leaf& leaf, const Assignment& assignment) {
    ValueChange change;
    change.key = leaf.key;
    change.was = resolved(*source_, leaf.value);
    const auto typed = retype_ ? std::optional(value_of_text(assignment.text))
                               : value_like(change.was, assignment.text);
    if (!typed) {
      throw Error(
          ErrorCode::kType,
          cat(place(leaf), " is ", type_words(change.was), ", and ",
              quote(assignment.text, kKeyText), " is ", type_words(value_of_text(assignment.text))),
          {Remedy::kRetype});
    }
    change.now = *typed;
    result_.changes.push_back(std::move(change));
    return *typed;
  }

  Value set_tensor(const Leaf& leaf, std::size_t number, const Assignment& assignment) {
    const TensorEntry& tensor = source_->index().tensors[number];
    ValueChange change;
    change.key = leaf.key;
    change.tensor = cat(torch_name(tensor.dtype), " ", shape_text(tensor.shape));
    const auto example = example_of(tensor.dtype);
    if (!example) {
      throw Error(ErrorCode::kUnsupported, cat(place(leaf), " is ", change.tensor,
                                               ", which cannot be filled with a number"));
    }
    const auto typed = value_like(*example, assignment.text);
    const auto element = typed ? element_of(tensor.dtype, *typed) : std::nullopt;
    if (!element) {
      throw Error(ErrorCode::kType, cat(place(leaf), " is ", change.tensor, ", which cannot hold ",
                                        quote(assignment.text, kKeyText)));
    }
    change.now = *typed;
    result_.changes.push_back(std::move(change));
    ComputedTensor computed;
    computed.dtype = tensor.dtype;
    computed.shape = tensor.shape;
    computed.open = [bytes = *element, numel = tensor.numel()] {
      return ComputedElements{std::make_shared<ConstantSource>(bytes, numel), true};
    };
    replaced_.replace(leaf, std::move(computed));
    return leaf.value;
  }

  [[noreturn]] void refuse_unused(const Assignment& assignment,
                                  const std::vector<std::string>& candidates) const {
    throw Error(ErrorCode::kNotFound, cat(source_->description().path, ": no key matches ",
                                          quote(assignment.keys.text(), kKeyText),
                                          meant_glob(assignment.keys, candidates)));
  }

  std::shared_ptr<const Checkpoint> source_;
  const std::vector<Assignment>& assignments_;
  bool retype_;
  ReplacedTensors replaced_;
  ValuesSet result_;
};

}  // namespace

Assignment parse_assignment(const std::string& words) {
  const std::size_t equals = words.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw Error(ErrorCode::kUsage, cat(quote(words, kKeyText), " is not of the form KEY=VALUE"));
  }
  return {Glob(std::string_view(words).substr(0, equals)), words.substr(equals + 1)};
}

ValuesSet set_values(std::shared_ptr<const Checkpoint> source, const Value& content,
                     const std::vector<Assignment>& assignments, bool retype) {
  return Setter(std::move(source), assignments, retype).run(content);
}

}  // namespace fsdp::formats
