// SPDX-License-Identifier: Apache-2.0
// What happens to the arguments of a root's forward: tensors are moved and cast wherever they are.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/pimpl.h>

namespace fsdp {

struct InputCast {
  std::optional<c10::Device> device;     // where not given, tensors stay where they are
  std::optional<c10::ScalarType> dtype;  // of floating-point tensors alone
};

namespace internal {

// GPT or GPTImpl -> GPTImpl
template <typename M, typename = void>
struct ImplOf {
  using type = M;
};
template <typename M>
struct ImplOf<M, std::void_t<typename M::ContainedType>> {
  using type = typename M::ContainedType;
};

at::Tensor prepared_tensor(const at::Tensor& tensor, const InputCast& cast);

// What `prepared` does to values of one type; as declared here, nothing.
template <typename T>
struct Prepare {
  template <typename U>
  static U run(U&& value, const InputCast&) {
    return std::forward<U>(value);
  }
};

// An argument of forward, with every tensor in it moved and cast; what holds none goes through
// as it is, references included.
template <typename T>
decltype(auto) prepared(T&& value, const InputCast& cast) {
  return Prepare<std::remove_cvref_t<T>>::run(std::forward<T>(value), cast);
}

template <>
struct Prepare<at::Tensor> {
  static at::Tensor run(const at::Tensor& tensor, const InputCast& cast) {
    return prepared_tensor(tensor, cast);
  }
};
template <typename T>
struct Prepare<std::optional<T>> {
  static std::optional<T> run(const std::optional<T>& value, const InputCast& cast) {
    return value ? std::optional<T>(prepared(*value, cast)) : std::nullopt;
  }
};
template <typename T>
struct Prepare<std::vector<T>> {
  static std::vector<T> run(const std::vector<T>& values, const InputCast& cast) {
    std::vector<T> result;
    result.reserve(values.size());
    for (const auto& value : values) result.push_back(prepared(value, cast));
    return result;
  }
};
template <typename... T>
struct Prepare<std::tuple<T...>> {
  static std::tuple<T...> run(const std::tuple<T...>& values, const InputCast& cast) {
    return std::apply([&](const T&... value) { return std::tuple<T...>(prepared(value, cast)...); },
                      values);
  }
};
template <typename A, typename B>
struct Prepare<std::pair<A, B>> {
  static std::pair<A, B> run(const std::pair<A, B>& values, const InputCast& cast) {
    return {prepared(values.first, cast), prepared(values.second, cast)};
  }
};
template <typename Map>
struct PrepareMap {
  static Map run(const Map& values, const InputCast& cast) {
    Map result;
    for (const auto& [key, value] : values) result.emplace(key, prepared(value, cast));
    return result;
  }
};
template <typename K, typename V>
struct Prepare<std::map<K, V>> : PrepareMap<std::map<K, V>> {};
template <typename K, typename V>
struct Prepare<std::unordered_map<K, V>> : PrepareMap<std::unordered_map<K, V>> {};

}  // namespace internal
}  // namespace fsdp
