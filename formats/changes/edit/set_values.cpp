// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/edit/set_values.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/arrays/computed_tensors.h"
#include "formats/changes/arrays/elementwise.h"
#include "formats/changes/edit/literal.h"
#include "formats/state/content/content.h"
#include "formats/state/model/meant_name.h"

namespace fsdp::formats {
namespace {

// Whole numbers of each dtype that has them.
struct WholeNumbers {
  DType dtype;
  std::int64_t least;
  std::uint64_t most;
};
template <typename Integer>
constexpr WholeNumbers whole_numbers(DType dtype) {
  using Limits = std::numeric_limits<Integer>;
  return {dtype, static_cast<std::int64_t>(Limits::min()),
          static_cast<std::uint64_t>(Limits::max())};
}
constexpr std::array kWholeNumbers = {
    whole_numbers<std::int64_t>(DType::kInt64),   whole_numbers<std::int32_t>(DType::kInt32),
    whole_numbers<std::int16_t>(DType::kInt16),   whole_numbers<std::int8_t>(DType::kInt8),
    whole_numbers<std::uint8_t>(DType::kUInt8),   whole_numbers<std::uint16_t>(DType::kUInt16),
    whole_numbers<std::uint32_t>(DType::kUInt32), whole_numbers<std::uint64_t>(DType::kUInt64)};

const WholeNumbers* whole_numbers_of(DType dtype) {
  const auto found = std::ranges::find_if(
      kWholeNumbers, [&](const WholeNumbers& one) { return one.dtype == dtype; });
  return found == kWholeNumbers.end() ? nullptr : found;
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
  const WholeNumbers& range = *whole_numbers_of(dtype);
  if (whole < range.least || (whole > 0 && static_cast<std::uint64_t>(whole) > range.most))
    return std::nullopt;
  // The bytes of an element come first in memory.
  const auto bytes = std::as_bytes(std::span(&whole, 1)).first(item_bytes(dtype));
  return std::vector(bytes.begin(), bytes.end());
}

// Returns an example of the type in which elements of the dtype are typed; nothing for other
// dtypes.
std::optional<Value> example_of(DType dtype) {
  if (is_floating(dtype)) return Value::floating(0);
  if (dtype == DType::kBool) return Value::boolean(false);
  return whole_numbers_of(dtype) != nullptr ? std::optional(Value::integer(0)) : std::nullopt;
}

class Setter {
 public:
  Setter(std::shared_ptr<const Checkpoint> source, const std::vector<Assignment>& assignments,
         bool retype)
      : source_(std::move(source)),
        assignments_(assignments),
        retype_(retype),
        tensors_(std::make_shared<arrays::ComputedTensors>(
            std::vector{std::make_shared<arrays::ArraySource>(source_)})) {}

  ValuesSet run(const Value& content) {
    std::vector<bool> used(assignments_.size());
    std::vector<std::string> candidates;
    result_.content = with_leaves(content, [&](const Leaf& leaf) -> std::optional<Value> {
      const Assignment* chosen = nullptr;
      for (std::size_t i = 0; i < assignments_.size(); ++i) {
        if (!assignments_[i].keys.matches(leaf.key)) continue;
        used[i] = true;
        if (chosen != nullptr) {
          throw Error(ErrorCode::kUsage, cat(quote(chosen->keys.text(), 200), " and ",
                                             quote(assignments_[i].keys.text(), 200), " both set ",
                                             quote(leaf.key, 200)));
        }
        chosen = &assignments_[i];
      }
      if (candidates.size() < kMostNamesCompared) candidates.push_back(leaf.key);
      if (chosen == nullptr) return leaf.value;
      if (const auto number = tensor_number(leaf.value)) return set_tensor(leaf, *number, *chosen);
      return set_value(leaf, *chosen);
    });
    for (std::size_t i = 0; i < used.size(); ++i) {
      if (!used[i]) refuse_unused(assignments_[i], candidates);
    }
    result_.tensors_changed = tensors_->replaced_any();
    if (result_.tensors_changed)
      result_.checkpoint = std::move(tensors_);
    else
      result_.checkpoint = source_;
    return std::move(result_);
  }

 private:
  std::string place(const Leaf& leaf) const {
    return cat(source_->description().path, ": ", quote(leaf.key, 200));
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
          cat(place(leaf), " is ", type_words(change.was), ", and ", quote(assignment.text, 200),
              " is ", type_words(value_of_text(assignment.text))),
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
    change.tensor = arrays::tensor_text(tensor);
    const auto example = example_of(tensor.dtype);
    if (!example) {
      throw Error(ErrorCode::kUnsupported, cat(place(leaf), " is ", change.tensor,
                                               ", which cannot be filled with a number"));
    }
    const auto typed = value_like(*example, assignment.text);
    const auto element = typed ? element_of(tensor.dtype, *typed) : std::nullopt;
    if (!element) {
      throw Error(ErrorCode::kType, cat(place(leaf), " is ", change.tensor, ", which cannot hold ",
                                        quote(assignment.text, 200)));
    }
    change.now = *typed;
    result_.changes.push_back(std::move(change));
    Value made =
        tensors_->separate(leaf.path, arrays::repeated_array(tensor.dtype, tensor.shape, *element));
    tensors_->replace(leaf, made);
    return made;
  }

  [[noreturn]] void refuse_unused(const Assignment& assignment,
                                  const std::vector<std::string>& candidates) const {
    throw Error(ErrorCode::kNotFound,
                cat(source_->description().path, ": no key matches ",
                    quote(assignment.keys.text(), 200), meant_glob(assignment.keys, candidates)));
  }

  std::shared_ptr<const Checkpoint> source_;
  const std::vector<Assignment>& assignments_;
  bool retype_;
  std::shared_ptr<arrays::ComputedTensors> tensors_;
  ValuesSet result_;
};

}  // namespace

Assignment parse_assignment(const std::string& words) {
  const std::size_t equals = words.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw Error(ErrorCode::kUsage, cat(quote(words, 200), " is not of the form KEY=VALUE"));
  }
  return {Glob(std::string_view(words).substr(0, equals)), words.substr(equals + 1)};
}

ValuesSet set_values(std::shared_ptr<const Checkpoint> source, const Value& content,
                     const std::vector<Assignment>& assignments, bool retype) {
  return Setter(std::move(source), assignments, retype).run(content);
}

}  // namespace fsdp::formats
