// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hdf5/wrapping.h"

#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/state/content/content.h"
#include "formats/state/content/tensor_value.h"
#include "formats/state/content/torch_globals.h"

namespace fsdp::formats::hdf5 {
namespace {

TorchGlobal meaning_of(const Value& callable) {
  return callable.as_global() == nullptr ? TorchGlobal::kUnknown
                                         : static_cast<TorchGlobal>(callable.global_tag());
}

// A call around a tensor, or the tensor's own: (callable, arguments).
using Call = std::pair<Value, Value>;

// Returns `call` with the tensor inside it replaced by `dense`.
Call wrapped(const Call& call, const ObjectData& dense) {
  const auto items = call.second.items();
  std::vector<Value> args(items.begin(), items.end());
  switch (meaning_of(call.first)) {
    case TorchGlobal::kRebuildParameter:
    case TorchGlobal::kRebuildParameterWithState: {
      if (args[0].as_object() == nullptr) return {dense.callable, dense.args};
      ObjectData inner = *args[0].as_object();
      std::tie(inner.callable, inner.args) = wrapped({inner.callable, inner.args}, dense);
      args[0] = Value::object(std::move(inner));
      return {call.first, Value::tuple(std::move(args))};
    }
    case TorchGlobal::kRebuildFromTypeV2: {
      // (function, type, its arguments, state)
      std::tie(args[0], args[2]) = wrapped({args[0], args[2]}, dense);
      return {call.first, Value::tuple(std::move(args))};
    }
    default:
      return {dense.callable, dense.args};
  }
}

}  // namespace

Value with_wrappers(const Checkpoint& checkpoint, const Value& root) {
  std::map<TensorRef, Value> made;
  return with_leaves(root, [&](const Leaf& leaf) -> std::optional<Value> {
    const auto number = tensor_number(leaf.value);
    if (!number) return leaf.value;
    const auto own = checkpoint.tensor_value(*number);
    const ObjectData* const object = own ? own->as_object() : nullptr;
    if (object == nullptr || object->by_new) return leaf.value;
    const auto [at, fresh] = made.try_emplace(*dense_tensor(leaf.value)->storage->tensor);
    if (fresh) {
      ObjectData copy = *object;
      std::tie(copy.callable, copy.args) =
          wrapped({copy.callable, copy.args}, *leaf.value.as_object());
      at->second = Value::object(std::move(copy));
    }
    return at->second;
  });
}

}  // namespace fsdp::formats::hdf5
