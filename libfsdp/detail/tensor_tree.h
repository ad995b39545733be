// SPDX-License-Identifier: Apache-2.0
// Values that hold tensors, as modules take and return them: tensors; and optionals, vectors,
// arrays, pairs, tuples and maps of such values, nested to any depth.  Other types hold none.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace fsdp::internal {

// Visits values of one type; this primary template does nothing.
template <typename T>
struct TensorTree {
  template <typename Visit>
  static void visit(T&, Visit&) {}
};

// Calls visit(at::Tensor&) for every tensor of the value, in an order that depends only on the
// value's structure.
template <typename T, typename Visit>
void visit_tensors(T& value, Visit&& visit) {
  TensorTree<T>::visit(value, visit);
}

template <>
struct TensorTree<at::Tensor> {
  template <typename Visit>
  static void visit(at::Tensor& tensor, Visit& visit) {
    visit(tensor);
  }
};
template <typename T>
struct TensorTree<std::optional<T>> {
  template <typename Visit>
  static void visit(std::optional<T>& value, Visit& visit) {
    if (value) visit_tensors(*value, visit);
  }
};
template <typename Sequence>
struct TensorTreeSequence {
  template <typename Visit>
  static void visit(Sequence& values, Visit& visit) {
    for (auto& value : values) visit_tensors(value, visit);
  }
};
template <typename T>
struct TensorTree<std::vector<T>> : TensorTreeSequence<std::vector<T>> {};
// Its elements are not references to bool.
template <>
struct TensorTree<std::vector<bool>> {
  template <typename Visit>
  static void visit(std::vector<bool>&, Visit&) {}
};
template <typename T, std::size_t N>
struct TensorTree<std::array<T, N>> : TensorTreeSequence<std::array<T, N>> {};
template <typename... T>
struct TensorTree<std::tuple<T...>> {
  template <typename Visit>
  static void visit(std::tuple<T...>& values, Visit& visit) {
    std::apply([&](T&... value) { (visit_tensors(value, visit), ...); }, values);
  }
};
template <typename A, typename B>
struct TensorTree<std::pair<A, B>> {
  template <typename Visit>
  static void visit(std::pair<A, B>& values, Visit& visit) {
    visit_tensors(values.first, visit);
    visit_tensors(values.second, visit);
  }
};
template <typename Map>
struct TensorTreeMap {
  template <typename Visit>
  static void visit(Map& values, Visit& visit) {
    for (auto& entry : values) visit_tensors(entry.second, visit);
  }
};
template <typename K, typename V>
struct TensorTree<std::map<K, V>> : TensorTreeMap<std::map<K, V>> {};
template <typename K, typename V>
struct TensorTree<std::unordered_map<K, V>> : TensorTreeMap<std::unordered_map<K, V>> {};

// Returns the tensors of a value, undefined ones included.
template <typename T>
std::vector<at::Tensor> tensors_of(T& value) {
  std::vector<at::Tensor> result;
  visit_tensors(value, [&](at::Tensor& tensor) { result.push_back(tensor); });
  return result;
}

// Replaces the value's tensors by `tensors`, as many as tensors_of() found.
template <typename T>
void set_tensors(T& value, const std::vector<at::Tensor>& tensors) {
  auto next = tensors.begin();
  visit_tensors(value, [&](at::Tensor& tensor) { tensor = *next++; });
}

// Keeps the value's structure and removes its tensors.
template <typename T>
void clear_tensors(T& value) {
  visit_tensors(value, [](at::Tensor& tensor) { tensor = at::Tensor(); });
}

}  // namespace fsdp::internal
