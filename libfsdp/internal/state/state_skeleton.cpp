// SPDX-License-Identifier: Apache-2.0
// Each value is a letter and its data: n; b and 0 or 1; i number; d bits of the double; s the text
// quoted; l or t count and items; m count and pairs; T dtype, dimensions, sizes, and the value (an
// integer, or the bits of a double) if there are no dimensions.  Each word ends in a space.
#include "libfsdp/internal/state/state_skeleton.h"

#include <bit>
#include <iomanip>
#include <sstream>
#include <vector>

#include <ATen/Functions.h>

#include "libfsdp/agree.h"
#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/comm/devices.h"
#include "libfsdp/internal/comm/errors.h"

namespace fsdp::internal {
namespace {

bool is_integer(c10::ScalarType dtype) {
  return c10::isIntegralType(dtype, /*includeBool=*/true);
}

class SkeletonWriter {
 public:
  explicit SkeletonWriter(std::ostream& out) : out_(out) {}

  void write(const StateValue& value) {
    if (value.is_none()) {
      put('n');
    } else if (const auto* flag = value.as_bool()) {
      put('b', *flag);
    } else if (const auto* integer = value.as_int()) {
      put('i', *integer);
    } else if (const auto* real = value.as_double()) {
      put('d', std::bit_cast<std::int64_t>(*real));
    } else if (const auto* string = value.as_string()) {
      put('s', std::quoted(*string));
    } else if (const auto* tensor = value.as_tensor()) {
      write(*tensor);
    } else if (const auto* list = value.as_list()) {
      write('l', *list);
    } else if (const auto* tuple = value.as_tuple()) {
      write('t', tuple->items);
    } else {
      FSDP_CHECK(value.as_sharded() == nullptr, "expected whole tensors, found a sharded one");
      put('m', value.dict().size());
      for (const auto& [key, item] : value.dict().entries()) {
        std::visit([&](const auto& any) { write(StateValue(any)); }, key);
        write(item);
      }
    }
  }

 private:
  template <typename... Words>
  void put(const Words&... words) {
    ((out_ << words << ' '), ...);
  }

  void write(char letter, const StateList& items) {
    put(letter, items.size());
    for (const StateValue& item : items) write(item);
  }

  void write(const at::Tensor& tensor) {
    FSDP_CHECK(tensor.layout() == c10::kStrided && !tensor.is_quantized() && !tensor.is_meta(),
               "expected dense tensors with their data, found one that is sparse, quantized or on "
               "the meta device");
    put('T', static_cast<int>(tensor.scalar_type()), tensor.dim());
    for (const std::int64_t size : tensor.sizes()) put(size);
    if (travels_as_text(tensor))
      put(is_integer(tensor.scalar_type()) ? tensor.item<std::int64_t>()
                                           : std::bit_cast<std::int64_t>(tensor.item<double>()));
  }

  std::ostream& out_;
};

class SkeletonReader {
 public:
  explicit SkeletonReader(std::string_view text) : in_(std::string(text)) {}

  StateValue value() {
    char letter = 0;
    in_ >> letter;
    switch (letter) {
      case 'n':
        return {};
      case 'b':
        return number() != 0;
      case 'i':
        return number();
      case 'd':
        return std::bit_cast<double>(number());
      case 's': {
        std::string string;
        in_ >> std::quoted(string);
        return string;
      }
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
    in_ >> result;
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

  std::istringstream in_;
};

// Calls f for every tensor whose data the skeleton leaves out.
void each_moved(StateValue& value, const std::function<void(at::Tensor&)>& f) {
  each_tensor(value, [&](at::Tensor& tensor) {
    if (!travels_as_text(tensor)) f(tensor);
  });
}

// Sends the bytes of `own` (undefined on other ranks) and returns a CPU tensor like `like`.
at::Tensor sent(const std::shared_ptr<ProcessGroup>& group, const at::Tensor& own,
                const at::Tensor& like, int src, const std::string& what) {
  at::Tensor result = own.defined() ? own.detach().cpu().contiguous().clone()
                                    : at::empty(like.sizes(), like.options().device(at::kCPU));
  if (result.numel() == 0) return result;
  at::Tensor moved = result.view(-1).view(at::kByte).to(collective_device(*group));
  broadcast(group, moved, src, what).wait();
  return moved.cpu().view(like.scalar_type()).view(like.sizes());
}

}  // namespace

bool travels_as_text(const at::Tensor& tensor) {
  return tensor.dim() == 0 && !tensor.is_complex() && tensor.scalar_type() != at::kUInt64;
}

void each_tensor(StateValue& value, const std::function<void(at::Tensor&)>& f) {
  if (auto* const tensor = value.as_tensor()) {
    f(*tensor);
  } else if (auto* const sharded = value.as_sharded()) {
    f(sharded->local);
  } else if (auto* const list = value.as_list()) {
    for (StateValue& item : *list) each_tensor(item, f);
  } else if (auto* const tuple = value.as_tuple()) {
    for (StateValue& item : tuple->items) each_tensor(item, f);
  } else if (auto* const dict = value.as_dict()) {
    for (auto& [key, item] : dict->entries()) each_tensor(item, f);
  }
}

std::string skeleton_text(const StateValue& value) {
  std::ostringstream text;
  SkeletonWriter(text).write(value);
  return text.str();
}

StateValue skeleton_of(std::string_view text) {
  return SkeletonReader(text).value();
}

StateValue broadcast_value(const std::shared_ptr<ProcessGroup>& group, const StateValue& value,
                           int src, const std::string& what) {
  FSDP_CHECK(src >= 0 && src < group->size(), what, ": expected a rank below ", group->size(),
             ", found ", src);
  const bool own = group->rank() == src;
  std::string text;
  agree(group, what, [&] {
    if (own) text = skeleton_text(value);
  });
  const auto texts = all_gather_text(group, text, what);
  StateValue result = skeleton_of(texts[static_cast<std::size_t>(src)]);
  std::vector<at::Tensor> sources;
  if (StateValue given = value; own)
    each_moved(given, [&](const at::Tensor& tensor) { sources.push_back(tensor); });
  std::size_t next = 0;
  each_moved(result, [&](at::Tensor& tensor) {
    tensor = sent(group, own ? sources[next++] : at::Tensor(), tensor, src, what);
  });
  return result;
}

}  // namespace fsdp::internal
