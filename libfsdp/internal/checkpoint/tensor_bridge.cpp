// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/checkpoint/tensor_bridge.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

#include <ATen/ATen.h>
#include <c10/core/ScalarType.h>

#include "formats/families/dcp/rank_writer.h"
#include "formats/state/content/object_fields.h"
#include "libfsdp/internal/comm/errors.h"

namespace fsdp::internal {
namespace {

using formats::DType;
using formats::Value;
using formats::ValueKind;

constexpr std::array<std::pair<c10::ScalarType, DType>, 27> kTypes = {{
    {at::kDouble, DType::kFloat64},
    {at::kFloat, DType::kFloat32},
    {at::kHalf, DType::kFloat16},
    {at::kBFloat16, DType::kBFloat16},
    {at::kComplexDouble, DType::kComplex128},
    {at::kComplexFloat, DType::kComplex64},
    {at::kComplexHalf, DType::kComplex32},
    {at::kLong, DType::kInt64},
    {at::kInt, DType::kInt32},
    {at::kShort, DType::kInt16},
    {at::kChar, DType::kInt8},
    {at::kByte, DType::kUInt8},
    {at::kUInt16, DType::kUInt16},
    {at::kUInt32, DType::kUInt32},
    {at::kUInt64, DType::kUInt64},
    {at::kBool, DType::kBool},
    {at::kFloat8_e4m3fn, DType::kFloat8E4M3FN},
    {at::kFloat8_e5m2, DType::kFloat8E5M2},
    {at::kFloat8_e4m3fnuz, DType::kFloat8E4M3FNUZ},
    {at::kFloat8_e5m2fnuz, DType::kFloat8E5M2FNUZ},
    {at::kFloat8_e8m0fnu, DType::kFloat8E8M0FNU},
    {c10::ScalarType::Float4_e2m1fn_x2, DType::kFloat4E2M1FNx2},
    {c10::ScalarType::Bits8, DType::kBits8},
    {c10::ScalarType::Bits16, DType::kBits16},
    {c10::ScalarType::Bits1x8, DType::kBits1x8},
    {c10::ScalarType::Bits2x4, DType::kBits2x4},
    {c10::ScalarType::Bits4x2, DType::kBits4x2},
}};

// Returns why a checkpoint cannot hold the tensor; empty if it can.
std::string obstacle(const at::Tensor& tensor) {
  if (!tensor.defined()) return "is undefined";
  if (tensor.is_nested()) return "is nested";
  if (tensor.layout() != at::kStrided) return "is sparse";
  if (tensor.is_quantized()) return "is quantized";
  if (tensor.is_meta()) return "has no memory: it is on the meta device";
  const bool known = std::any_of(kTypes.begin(), kTypes.end(), [&](const auto& pair) {
    return pair.first == tensor.scalar_type();
  });
  if (!known) return std::string("is of dtype ") + c10::toString(tensor.scalar_type());
  return "";
}

// Takes a state dict apart.
class Describer {
 public:
  Value dict(const StateDict& state, const std::string& prefix) {
    std::vector<Value::Entry> entries;
    entries.reserve(state.size());
    for (const auto& [key, value] : state.entries()) {
      const auto* text = std::get_if<std::string>(&key);
      Value name =
          text != nullptr ? Value::string(*text) : Value::integer(std::get<std::int64_t>(key));
      entries.emplace_back(std::move(name), describe(value, prefix + text_of(key)));
    }
    return Value::dict(std::move(entries));
  }

  std::vector<StateTensor> take_tensors() { return std::move(tensors_); }

 private:
  Value describe(const StateValue& value, const std::string& key) {
    if (const auto* tensor = value.as_tensor()) return whole(*tensor, key);
    if (const auto* sharded = value.as_sharded()) return part(*sharded, key);
    if (const auto* inner = value.as_dict()) return dict(*inner, key + ".");
    if (const auto* list = value.as_list()) return Value::list(items(*list, key));
    if (const auto* tuple = value.as_tuple()) return Value::tuple(items(tuple->items, key));
    if (const auto* number = value.as_int()) return Value::integer(*number);
    if (const auto* number = value.as_double()) return Value::floating(*number);
    if (const auto* flag = value.as_bool()) return Value::boolean(*flag);
    if (const auto* text = value.as_string()) return Value::string(*text);
    return {};
  }

  std::vector<Value> items(const StateList& list, const std::string& key) {
    std::vector<Value> result;
    for (std::size_t i = 0; i < list.size(); ++i)
      result.push_back(describe(list[i], key + "." + std::to_string(i)));
    return result;
  }

  static void check(const at::Tensor& tensor, const std::string& key) {
    const std::string why = obstacle(tensor);
    FSDP_CHECK(why.empty(), "'", key, "': the tensor ", why,
               "; checkpoints hold dense tensors of plain dtypes");
  }

  Value whole(const at::Tensor& tensor, const std::string& key) {
    check(tensor, key);
    std::size_t number = tensors_.size();
    if (tensor.numel() != 0 && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) {
      const Bytes bytes{tensor.data_ptr(), tensor.scalar_type(), tensor.numel()};
      number = numbers_.try_emplace(bytes, number).first->second;
    }
    if (number == tensors_.size()) tensors_.push_back({key, tensor, nullptr});
    return reference(number, tensor.scalar_type(), tensor.sizes());
  }

  Value part(const ShardedTensor& sharded, const std::string& key) {
    check(sharded.local, key);
    const ShardLayout& layout = sharded.layout;
    FSDP_CHECK(sharded.part >= 0 && sharded.part < layout.world_size && sharded.replica >= 0 &&
                   sharded.replica < sharded.replica_count,
               "'", key, "': part ", sharded.part, " of ", layout.world_size, ", copy ",
               sharded.replica, " of ", sharded.replica_count, " does not exist");
    FSDP_CHECK(sharded.local.numel() == layout.numel_of(sharded.part), "'", key, "': part ",
               sharded.part, " of a tensor of shape ", at::IntArrayRef(layout.shape), " has shape ",
               at::IntArrayRef(layout.shape_of(sharded.part)), ", but found ",
               sharded.local.sizes());
    tensors_.push_back({key, sharded.local, &sharded});
    return reference(tensors_.size() - 1, sharded.local.scalar_type(), layout.whole_shape());
  }

  static Value reference(std::size_t number, c10::ScalarType type, at::IntArrayRef shape) {
    formats::dcp::PartTensor tensor;
    tensor.dtype = dtype_of(type);
    tensor.shape = shape.vec();
    return formats::dcp::part_reference(number, tensor);
  }

  using Bytes = std::tuple<const void*, c10::ScalarType, std::int64_t>;
  std::map<Bytes, std::size_t> numbers_;
  std::vector<StateTensor> tensors_;
};

// Names the kind for people: "a set", "an object of class 'pathlib.PosixPath'".
std::string kind_text(const Value& value) {
  const std::string special = formats::special_tensor(value);
  if (!special.empty()) return "a " + special + " tensor";
  switch (value.kind()) {
    case ValueKind::kBytes:
    case ValueKind::kByteArray:
      return "bytes";
    case ValueKind::kBigInt:
      return "an integer of more than 64 bits";
    case ValueKind::kObject: {
      const std::string name(formats::class_name(value));
      return name.empty() ? "an object" : "an object of class '" + name + "'";
    }
    case ValueKind::kGlobal:
      return "the name '" + value.as_global()->dotted() + "'";
    default:
      return "a " + std::string(formats::kind_name(value.kind()));
  }
}

// Builds state values; see state_value().
class Builder {
 public:
  Builder(const TensorOf& tensor_of, std::vector<std::string>& left_out)
      : tensor_of_(tensor_of), left_out_(left_out) {}

  // Returns nullopt if there is no counterpart.
  std::optional<StateValue> build(const Value& value, const std::string& key) {
    if (const auto tensor = formats::dense_tensor(value)) return StateValue(tensor_of_(*tensor));
    if (const auto entries = formats::mapping_entries(value)) return dict(*entries, key);
    if (value.is_none()) return StateValue();
    if (const auto flag = value.as_bool()) return StateValue(*flag);
    if (const auto number = value.as_int()) return StateValue(*number);
    if (const auto number = value.as_float()) return StateValue(*number);
    if (const auto* text = value.as_string()) return StateValue(*text);
    if (value.kind() == ValueKind::kList) return StateValue(items(value, key));
    if (value.kind() == ValueKind::kTuple) return StateValue(StateTuple{items(value, key)});
    if (formats::class_name(value) == "Size") return size(value, key);
    return lacking(value, key);
  }

 private:
  std::optional<StateValue> lacking(const Value& value, const std::string& key) {
    left_out_.push_back("'" + key + "': " + kind_text(value) + " has no counterpart here");
    return std::nullopt;
  }

  std::optional<StateValue> size(const Value& value, const std::string& key) {
    const auto numbers = formats::integers(value);
    if (!numbers) return lacking(value, key);
    StateTuple tuple;
    for (const std::int64_t number : *numbers) tuple.items.emplace_back(number);
    return StateValue(std::move(tuple));
  }

  StateValue dict(std::span<const Value::Entry> entries, const std::string& key) {
    StateDict result;
    for (const auto& [name, value] : entries) {
      const auto own = state_key(name);
      if (!own) {
        left_out_.push_back("'" + key + "': an entry whose key is " + kind_text(name) +
                            " has no counterpart here");
        continue;
      }
      if (auto built = build(value, key.empty() ? text_of(*own) : key + "." + text_of(*own)))
        result.set(*own, std::move(*built));
    }
    return result;
  }

  StateList items(const Value& value, const std::string& key) {
    StateList result;
    for (const Value& item : value.items()) {
      auto built = build(item, key + "." + std::to_string(result.size()));
      result.push_back(built ? std::move(*built) : StateValue());
    }
    return result;
  }

  const TensorOf& tensor_of_;
  std::vector<std::string>& left_out_;
};

}  // namespace

DType dtype_of(c10::ScalarType type) {
  for (const auto& [ours, theirs] : kTypes) {
    if (ours == type) return theirs;
  }
  FSDP_CHECK(false, "checkpoints hold no tensors of dtype ", c10::toString(type));
}

c10::ScalarType scalar_type_of(DType dtype) {
  for (const auto& [ours, theirs] : kTypes) {
    if (theirs == dtype) return ours;
  }
  FSDP_CHECK(false, "tensors of dtype ", formats::torch_name(dtype), " cannot be loaded here");
}

bool is_host_memory(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

std::span<std::byte> host_memory(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.nbytes())};
}

std::span<const std::byte> host_bytes(const at::Tensor& tensor, at::Tensor& held) {
  held.reset();
  held = is_host_memory(tensor) ? tensor.detach()
                                : tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
  return host_memory(held);
}

StateContent state_content(const StateDict& state) {
  Describer describer;
  StateContent result;
  result.root = describer.dict(state, "");
  result.tensors = describer.take_tensors();
  return result;
}

std::optional<StateKey> state_key(const Value& key) {
  if (const auto* text = key.as_string()) return *text;
  if (const auto number = key.as_int()) return *number;
  return std::nullopt;
}

StateValue state_value(const Value& value, const std::string& key, const TensorOf& tensor_of,
                       std::vector<std::string>& left_out) {
  return Builder(tensor_of, left_out).build(value, key).value_or(StateValue());
}

}  // namespace fsdp::internal
