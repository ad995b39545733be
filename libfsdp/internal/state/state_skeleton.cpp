// SPDX-License-Identifier: Apache-2.0
// Each value is a letter and its data: n; b and 0 or 1; i number; d bits of the double; s length
// and bytes; l or t count and items; m count and pairs; T dtype, dimensions, sizes, and the value
// (an integer, or the bits of a double) if there are no dimensions.  Numbers end in a space.
#include "libfsdp/internal/state/state_skeleton.h"

#include <bit>
#include <charconv>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include "libfsdp/internal/comm/errors.h"

namespace fsdp::internal {
namespace {

bool is_integer(c10::ScalarType dtype) {
  return c10::isIntegralType(dtype, /*includeBool=*/true);
}

class SkeletonWriter {
 public:
  void write(const StateValue& value) {
    if (value.is_none()) {
      text_ += 'n';
    } else if (const auto* flag = value.as_bool()) {
      text_ += *flag ? "b1 " : "b0 ";
    } else if (const auto* integer = value.as_int()) {
      text_ += 'i';
      number(*integer);
    } else if (const auto* real = value.as_double()) {
      text_ += 'd';
      number(std::bit_cast<std::int64_t>(*real));
    } else if (const auto* string = value.as_string()) {
      write(*string);
    } else if (const auto* tensor = value.as_tensor()) {
      write(*tensor);
    } else if (const auto* list = value.as_list()) {
      write('l', *list);
    } else if (const auto* tuple = value.as_tuple()) {
      write('t', tuple->items);
    } else {
      FSDP_CHECK(value.as_sharded() == nullptr, "expected whole tensors, found a sharded one");
      write(value.dict());
    }
  }

  void write(const StateDict& dict) {
    text_ += 'm';
    number(static_cast<std::int64_t>(dict.size()));
    for (const auto& [key, value] : dict.entries()) {
      std::visit([&](const auto& any) { write(StateValue(any)); }, key);
      write(value);
    }
  }

  std::string take() { return std::move(text_); }

 private:
  void number(std::int64_t value) { text_ += std::to_string(value) + ' '; }

  void write(const std::string& string) {
    text_ += 's';
    number(static_cast<std::int64_t>(string.size()));
    text_ += string;
  }

  void write(char letter, const StateList& items) {
    text_ += letter;
    number(static_cast<std::int64_t>(items.size()));
    for (const StateValue& item : items) write(item);
  }

  void write(const at::Tensor& tensor) {
    FSDP_CHECK(tensor.layout() == c10::kStrided && !tensor.is_quantized() && !tensor.is_meta(),
               "expected dense tensors with their data, found one that is sparse, quantized or on "
               "the meta device");
    text_ += 'T';
    number(static_cast<std::int64_t>(tensor.scalar_type()));
    number(tensor.dim());
    for (const std::int64_t size : tensor.sizes()) number(size);
    if (!travels_as_text(tensor)) return;
    number(is_integer(tensor.scalar_type()) ? tensor.item<std::int64_t>()
                                            : std::bit_cast<std::int64_t>(tensor.item<double>()));
  }

  std::string text_;
};

class SkeletonReader {
 public:
  explicit SkeletonReader(std::string_view text) : text_(text) {}

  StateValue value() {
    const char letter = text_.front();
    text_.remove_prefix(1);
    switch (letter) {
      case 'n':
        return {};
      case 'b':
        return number() != 0;
      case 'i':
        return number();
      case 'd':
        return std::bit_cast<double>(number());
      case 's':
        return string();
      case 'l':
        return items();
      case 't':
        return StateTuple{items()};
      case 'm':
        return dict();
      case 'T':
        return tensor();
    }
    TORCH_INTERNAL_ASSERT(false, "a skeleton holds ", letter);
  }

 private:
  std::int64_t number() {
    std::int64_t result = 0;
    const auto end = std::from_chars(text_.data(), text_.data() + text_.size(), result).ptr;
    text_.remove_prefix(static_cast<std::size_t>(end - text_.data()) + 1);
    return result;
  }

  std::string string() {
    const auto size = static_cast<std::size_t>(number());
    std::string result(text_.substr(0, size));
    text_.remove_prefix(size);
    return result;
  }

  StateList items() {
    StateList result;
    for (std::int64_t left = number(); left > 0; --left) result.push_back(value());
    return result;
  }

  StateDict dict() {
    StateDict result;
    for (std::int64_t left = number(); left > 0; --left) {
      const StateValue key = value();
      if (const auto* name = key.as_string()) {
        result.set(*name, value());
      } else {
        result.set(*key.as_int(), value());
      }
    }
    return result;
  }

  at::Tensor tensor() {
    const auto dtype = static_cast<c10::ScalarType>(number());
    std::vector<std::int64_t> shape;
    for (std::int64_t left = number(); left > 0; --left) shape.push_back(number());
    at::Tensor like = at::empty(shape, at::TensorOptions().dtype(dtype).device(c10::kMeta));
    if (!travels_as_text(like)) return like;
    const std::int64_t bits = number();
    return is_integer(dtype) ? at::scalar_tensor(bits, dtype)
                             : at::scalar_tensor(std::bit_cast<double>(bits), dtype);
  }

  std::string_view text_;
};

}  // namespace

bool travels_as_text(const at::Tensor& tensor) {
  return tensor.dim() == 0 && !tensor.is_complex() && tensor.scalar_type() != at::kUInt64;
}

std::string skeleton_text(const StateValue& value) {
  SkeletonWriter writer;
  writer.write(value);
  return writer.take();
}

StateValue skeleton_of(std::string_view text) {
  return SkeletonReader(text).value();
}

}  // namespace fsdp::internal
