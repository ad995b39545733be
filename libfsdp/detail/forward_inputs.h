// SPDX-License-Identifier: Apache-2.0
// Prepares the arguments of a root's forward: moves and casts tensors at any depth.
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
  std::optional<c10::Device> device;     // default: tensors stay where they are
  std::optional<c10::ScalarType> dtype;  // applies only to floating-point tensors
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

// Prepares values of one type; this primary template leaves them unchanged.
template <typename T>
struct Prepare {
  static constexpr bool kHoldsTensors = false;
  template <typename U>
  static U run(U&& value, const InputCast&) {
    return std::forward<U>(value);
  }
};

// Moves and casts every tensor in an argument of forward; an argument without tensors is passed on
// unchanged, references included.
template <typename T>
decltype(auto) prepared(T&& value, const InputCast& cast) {
  return Prepare<std::remove_cvref_t<T>>::run(std::forward<T>(value), cast);
}

template <>
struct Prepare<at::Tensor> {
  static constexpr bool kHoldsTensors = true;
  static at::Tensor run(const at::Tensor& tensor, const InputCast& cast) {
    return prepared_tensor(tensor, cast);
  }
};
template <typename T>
struct Prepare<std::optional<T>> {
  static constexpr bool kHoldsTensors = Prepare<T>::kHoldsTensors;
  static std::optional<T> run(const std::optional<T>& value, const InputCast& cast) {
    return value ? std::optional<T>(prepared(*value, cast)) : std::nullopt;
  }
};
template <typename T>
struct Prepare<std::vector<T>> {
  static constexpr bool kHoldsTensors = Prepare<T>::kHoldsTensors;
  static std::vector<T> run(const std::vector<T>& values, const InputCast& cast) {
    std::vector<T> result;
    result.reserve(values.size());
    for (const auto& value : values) result.push_back(prepared(value, cast));
    return result;
  }
};
template <typename... T>
struct Prepare<std::tuple<T...>> {
  static constexpr bool kHoldsTensors = (Prepare<T>::kHoldsTensors || ...);
  static std::tuple<T...> run(const std::tuple<T...>& values, const InputCast& cast) {
    return std::apply([&](const T&... value) { return std::tuple<T...>(prepared(value, cast)...); },
                      values);
  }
};
template <typename A, typename B>
struct Prepare<std::pair<A, B>> {
  static constexpr bool kHoldsTensors = Prepare<A>::kHoldsTensors || Prepare<B>::kHoldsTensors;
  static std::pair<A, B> run(const std::pair<A, B>& values, const InputCast& cast) {
    return {prepared(values.first, cast), prepared(values.second, cast)};
  }
};
template <typename Map>
struct PrepareMap {
  static constexpr bool kHoldsTensors = Prepare<typename Map::mapped_type>::kHoldsTensors;
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

// An argument of forward on its way to the module, with the caller's value category: an lvalue
// stays one.  Without preparation it is the caller's own object.  Otherwise the module gets a copy,
// and what it writes to an lvalue is copied back.  Lives as long as the call.
template <typename Arg>
class ForwardArgument {
  using Value = std::remove_cvref_t<Arg>;
  static constexpr bool kCopied = Prepare<Value>::kHoldsTensors;
  static constexpr bool kGivenBack =
      kCopied && std::is_lvalue_reference_v<Arg> && !std::is_const_v<std::remove_reference_t<Arg>>;
  struct Nothing {};
  template <bool condition>
  using If = std::conditional_t<condition, std::optional<Value>, Nothing>;

 public:
  ForwardArgument(Arg&& given, const InputCast& cast) : given_(given) {
    if constexpr (kCopied) {
      if (!cast.device && !cast.dtype) return;
      copy_.emplace(Prepare<Value>::run(std::as_const(given), cast));
      if constexpr (kGivenBack) before_.emplace(*copy_);
    }
  }

  Arg&& get() {
    if constexpr (kCopied) {
      if (copy_) return static_cast<Arg&&>(*copy_);
    }
    return static_cast<Arg&&>(given_);
  }

  // Call after the module has run.
  void give_back() {
    if constexpr (kGivenBack) {
      if (copy_) give(given_, *before_, *copy_);
    }
  }

 private:
  // Leaves unchanged values alone: the caller's values are not cast.
  template <typename T>
  static void give(T& value, const T& before, T& after) {
    if constexpr (!Prepare<T>::kHoldsTensors) {
      value = std::move(after);
    } else if constexpr (std::is_same_v<T, at::Tensor>) {
      if (!after.is_same(before)) value = std::move(after);
    } else {
      give_parts(value, before, after);
    }
  }
  template <typename T>
  static void give_parts(std::optional<T>& value, const std::optional<T>& before,
                         std::optional<T>& after) {
    if (value && before && after)
      give(*value, *before, *after);
    else
      value = std::move(after);
  }
  template <typename T>
  static void give_parts(std::vector<T>& value, const std::vector<T>& before,
                         std::vector<T>& after) {
    value.resize(after.size());
    for (std::size_t i = 0; i < after.size(); ++i) {
      if (i < before.size())
        give(value[i], before[i], after[i]);
      else
        value[i] = std::move(after[i]);
    }
  }
  template <typename... T>
  static void give_parts(std::tuple<T...>& value, const std::tuple<T...>& before,
                         std::tuple<T...>& after) {
    [&]<std::size_t... i>(std::index_sequence<i...>) {
      (give(std::get<i>(value), std::get<i>(before), std::get<i>(after)), ...);
    }
    (std::index_sequence_for<T...>());
  }
  template <typename A, typename B>
  static void give_parts(std::pair<A, B>& value, const std::pair<A, B>& before,
                         std::pair<A, B>& after) {
    give(value.first, before.first, after.first);
    give(value.second, before.second, after.second);
  }
  template <typename Map>
  static void give_parts(Map& value, const Map& before, Map& after) {
    std::erase_if(value, [&](const auto& entry) { return !after.contains(entry.first); });
    for (auto& [key, part] : after) {
      const auto known = before.find(key);
      if (known != before.end() && value.contains(key))
        give(value.at(key), known->second, part);
      else
        value.insert_or_assign(key, std::move(part));
    }
  }

  std::remove_reference_t<Arg>& given_;
  [[no_unique_address]] If<kCopied> copy_;
  [[no_unique_address]] If<kGivenBack> before_;
};

}  // namespace internal
}  // namespace fsdp
