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

template <typename T>
T prepared(T&& value, const InputCast&) {
  return std::forward<T>(value);
}
inline at::Tensor prepared(const at::Tensor& tensor, const InputCast& cast) {
  return prepared_tensor(tensor, cast);
}
inline at::Tensor prepared(at::Tensor& tensor, const InputCast& cast) {
  return prepared_tensor(tensor, cast);
}
inline at::Tensor prepared(at::Tensor&& tensor, const InputCast& cast) {
  return prepared_tensor(tensor, cast);
}

template <typename T>
std::vector<T> prepared(const std::vector<T>& values, const InputCast& cast);
template <typename T>
std::optional<T> prepared(const std::optional<T>& value, const InputCast& cast);
template <typename... T>
std::tuple<T...> prepared(const std::tuple<T...>& values, const InputCast& cast);
template <typename A, typename B>
std::pair<A, B> prepared(const std::pair<A, B>& values, const InputCast& cast);
template <typename K, typename V>
std::map<K, V> prepared(const std::map<K, V>& values, const InputCast& cast);
template <typename K, typename V>
std::unordered_map<K, V> prepared(const std::unordered_map<K, V>& values, const InputCast& cast);

template <typename T>
std::vector<T> prepared(const std::vector<T>& values, const InputCast& cast) {
  std::vector<T> result;
  result.reserve(values.size());
  for (const T& value : values) result.push_back(prepared(value, cast));
  return result;
}
template <typename T>
std::optional<T> prepared(const std::optional<T>& value, const InputCast& cast) {
  return value ? std::optional<T>(prepared(*value, cast)) : std::nullopt;
}
template <typename... T>
std::tuple<T...> prepared(const std::tuple<T...>& values, const InputCast& cast) {
  return std::apply([&](const T&... value) { return std::tuple<T...>(prepared(value, cast)...); },
                    values);
}
template <typename A, typename B>
std::pair<A, B> prepared(const std::pair<A, B>& values, const InputCast& cast) {
  return {prepared(values.first, cast), prepared(values.second, cast)};
}
template <typename K, typename V>
std::map<K, V> prepared(const std::map<K, V>& values, const InputCast& cast) {
  std::map<K, V> result;
  for (const auto& [key, value] : values) result.emplace(key, prepared(value, cast));
  return result;
}
template <typename K, typename V>
std::unordered_map<K, V> prepared(const std::unordered_map<K, V>& values, const InputCast& cast) {
  std::unordered_map<K, V> result;
  for (const auto& [key, value] : values) result.emplace(key, prepared(value, cast));
  return result;
}

}  // namespace internal
}  // namespace fsdp
