// SPDX-License-Identifier: Apache-2.0
// Values that hold tensors, as modules take and return them: tensors; optionals, vectors, arrays,
// pairs, tuples, maps, c10::List and torch::data::Example of such values, nested to any depth.
// Other types hold none, unless a program says which of their members do:
//
//   struct Batch { at::Tensor tokens; std::vector<at::Tensor> masks; int length; };
//   template <>
//   struct fsdp::TensorTree<Batch> : fsdp::TensorFields<&Batch::tokens, &Batch::masks> {};
//
// Then sharded.forward(batch) moves and casts its tensors, and checkpoint(f, batch) recomputes with
// them.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <torch/data/example.h>

namespace fsdp {

// Visits values of one type.
template <typename T>
struct TensorTree {
  static constexpr bool kHoldsTensors = false;
  template <typename Visit>
  static void visit(T&, Visit&) {}
};

// Calls visit(at::Tensor&) for every tensor of the value, in an order that depends only on the
// value's structure.
template <typename T, typename Visit>
void visit_tensors(T& value, Visit&& visit) {
  TensorTree<T>::visit(value, visit);
}

// The tree of a type whose tensors are in these members.
template <auto... members>
struct TensorFields {
  static constexpr bool kHoldsTensors = true;
  template <typename T, typename Visit>
  static void visit(T& value, Visit& visit) {
    (visit_tensors(value.*members, visit), ...);
  }
};

template <>
struct TensorTree<at::Tensor> {
  static constexpr bool kHoldsTensors = true;
  template <typename Visit>
  static void visit(at::Tensor& tensor, Visit& visit) {
    visit(tensor);
  }
};
template <typename T>
struct TensorTree<std::optional<T>> {
  static constexpr bool kHoldsTensors = TensorTree<T>::kHoldsTensors;
  template <typename Visit>
  static void visit(std::optional<T>& value, Visit& visit) {
    if (value) visit_tensors(*value, visit);
  }
};

namespace internal {
template <typename Sequence>
struct TensorTreeOfSequence {
  using Element = typename Sequence::value_type;
  static constexpr bool kHoldsTensors = TensorTree<Element>::kHoldsTensors;
  template <typename Visit>
  static void visit(Sequence& values, Visit& visit) {
    if constexpr (kHoldsTensors) {
      for (Element& value : values) visit_tensors(value, visit);
    }
  }
};
template <typename Map>
struct TensorTreeOfMap {
  static constexpr bool kHoldsTensors = TensorTree<typename Map::mapped_type>::kHoldsTensors;
  template <typename Visit>
  static void visit(Map& values, Visit& visit) {
    for (auto& entry : values) visit_tensors(entry.second, visit);
  }
};
}  // namespace internal

template <typename T>
struct TensorTree<std::vector<T>> : internal::TensorTreeOfSequence<std::vector<T>> {};
template <typename T, std::size_t N>
struct TensorTree<std::array<T, N>> : internal::TensorTreeOfSequence<std::array<T, N>> {};
template <typename K, typename V>
struct TensorTree<std::map<K, V>> : internal::TensorTreeOfMap<std::map<K, V>> {};
template <typename K, typename V>
struct TensorTree<std::unordered_map<K, V>> : internal::TensorTreeOfMap<std::unordered_map<K, V>> {
};
template <typename... T>
struct TensorTree<std::tuple<T...>> {
  static constexpr bool kHoldsTensors = (TensorTree<T>::kHoldsTensors || ...);
  template <typename Visit>
  static void visit(std::tuple<T...>& values, Visit& visit) {
    std::apply([&](T&... value) { (visit_tensors(value, visit), ...); }, values);
  }
};
template <typename A, typename B>
struct TensorTree<std::pair<A, B>> {
  static constexpr bool kHoldsTensors =
      TensorTree<A>::kHoldsTensors || TensorTree<B>::kHoldsTensors;
  template <typename Visit>
  static void visit(std::pair<A, B>& values, Visit& visit) {
    visit_tensors(values.first, visit);
    visit_tensors(values.second, visit);
  }
};
// Copies of a list share its elements, so the visited elements go to a new list.
template <typename T>
struct TensorTree<c10::List<T>> {
  static constexpr bool kHoldsTensors = TensorTree<T>::kHoldsTensors;
  template <typename Visit>
  static void visit(c10::List<T>& values, Visit& visit) {
    if constexpr (kHoldsTensors) {
      c10::List<T> own = values.copy();
      for (std::size_t i = 0; i < own.size(); ++i) {
        T value = own.get(i);
        visit_tensors(value, visit);
        own.set(i, std::move(value));
      }
      values = std::move(own);
    }
  }
};
template <typename Data, typename Target>
struct TensorTree<torch::data::Example<Data, Target>> {
  using Example = torch::data::Example<Data, Target>;
  static constexpr bool kHoldsTensors =
      TensorTree<Data>::kHoldsTensors || TensorTree<Target>::kHoldsTensors;
  template <typename Visit>
  static void visit(Example& example, Visit& visit) {
    visit_tensors(example.data, visit);
    visit_tensors(example.target, visit);
  }
};
template <typename Data>
struct TensorTree<torch::data::Example<Data, torch::data::example::NoTarget>> {
  using Example = torch::data::Example<Data, torch::data::example::NoTarget>;
  static constexpr bool kHoldsTensors = TensorTree<Data>::kHoldsTensors;
  template <typename Visit>
  static void visit(Example& example, Visit& visit) {
    visit_tensors(example.data, visit);
  }
};

namespace internal {

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

}  // namespace internal
}  // namespace fsdp
