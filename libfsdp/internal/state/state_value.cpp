// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/state_value.h"

#include "libfsdp/internal/comm/errors.h"

namespace fsdp {

std::string text_of(const StateKey& key) {
  if (const auto* text = std::get_if<std::string>(&key)) return *text;
  return std::to_string(std::get<std::int64_t>(key));
}

std::string text_of(const std::vector<StateKey>& path) {
  std::string result;
  for (const StateKey& key : path) {
    if (!result.empty()) result += '.';
    result += text_of(key);
  }
  return result;
}

StateDict::StateDict() = default;
StateDict::StateDict(const StateDict& other) = default;
StateDict::StateDict(StateDict&& other) noexcept = default;
StateDict& StateDict::operator=(const StateDict& other) = default;
StateDict& StateDict::operator=(StateDict&& other) noexcept = default;
StateDict::~StateDict() = default;

StateDict::StateDict(std::initializer_list<Entry> entries) {
  for (const Entry& entry : entries) set(entry.first, entry.second);
}

const StateValue* StateDict::find(const StateKey& key) const noexcept {
  const auto found = positions_.find(key);
  return found == positions_.end() ? nullptr : &entries_[found->second].second;
}

const StateValue& StateDict::at(const StateKey& key) const {
  const StateValue* const found = find(key);
  FSDP_CHECK(found != nullptr, "the state dict has no key '", text_of(key), "'");
  return *found;
}

StateValue& StateDict::operator[](const StateKey& key) {
  const auto [place, added] = positions_.try_emplace(key, entries_.size());
  if (added) entries_.emplace_back(key, StateValue());
  return entries_[place->second].second;
}

void StateDict::set(const StateKey& key, StateValue value) {
  (*this)[key] = std::move(value);
}

bool StateDict::erase(const StateKey& key) {
  const auto found = positions_.find(key);
  if (found == positions_.end()) return false;
  const std::size_t position = found->second;
  positions_.erase(found);
  entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(position));
  for (auto& [_, other] : positions_) {
    if (other > position) --other;
  }
  return true;
}

struct StateValue::Storage {
  Content content;
};

template <typename T>
const T* StateValue::get() const noexcept {
  return content_ ? std::get_if<T>(&content_->content) : nullptr;
}
template const bool* StateValue::get() const noexcept;
template const std::int64_t* StateValue::get() const noexcept;
template const double* StateValue::get() const noexcept;
template const std::string* StateValue::get() const noexcept;
template const at::Tensor* StateValue::get() const noexcept;
template const ShardedTensor* StateValue::get() const noexcept;
template const StateList* StateValue::get() const noexcept;
template const StateTuple* StateValue::get() const noexcept;
template const StateDict* StateValue::get() const noexcept;

StateValue::StateValue() = default;
StateValue::StateValue(bool value) : content_(new Storage{value}) {}
StateValue::StateValue(int value) : StateValue(static_cast<std::int64_t>(value)) {}
StateValue::StateValue(std::int64_t value) : content_(new Storage{value}) {}
StateValue::StateValue(double value) : content_(new Storage{value}) {}
StateValue::StateValue(const char* value) : StateValue(std::string(value)) {}
StateValue::StateValue(std::string value) : content_(new Storage{std::move(value)}) {}
StateValue::StateValue(at::Tensor value) : content_(new Storage{std::move(value)}) {
  FSDP_CHECK(as_tensor()->defined(), "a state dict holds no undefined tensors");
}
StateValue::StateValue(ShardedTensor value) : content_(new Storage{std::move(value)}) {}
StateValue::StateValue(StateList value) : content_(new Storage{std::move(value)}) {}
StateValue::StateValue(StateTuple value) : content_(new Storage{std::move(value)}) {}
StateValue::StateValue(StateDict value) : content_(new Storage{std::move(value)}) {}
StateValue::StateValue(const StateValue& other)
    : content_(other.content_ ? new Storage(*other.content_) : nullptr) {}
StateValue::StateValue(StateValue&& other) noexcept = default;
StateValue& StateValue::operator=(const StateValue& other) {
  StateValue copy(other);
  content_.swap(copy.content_);
  return *this;
}
StateValue& StateValue::operator=(StateValue&& other) noexcept = default;
StateValue::~StateValue() = default;

bool StateValue::is_none() const noexcept {
  return content_ == nullptr;
}

double StateValue::number() const {
  if (const auto* value = as_int()) return static_cast<double>(*value);
  if (const auto* value = as_double()) return *value;
  if (const auto* value = as_bool()) return *value ? 1 : 0;
  const auto* tensor = as_tensor();
  FSDP_CHECK(tensor != nullptr && tensor->numel() == 1, "expected a number, found ", kind_name());
  return tensor->item<double>();
}

const StateDict& StateValue::dict() const {
  FSDP_CHECK(as_dict() != nullptr, "expected a dict, found ", kind_name());
  return *as_dict();
}

const char* StateValue::kind_name() const noexcept {
  if (!content_) return "None";
  constexpr const char* kNames[] = {"None",   "bool",           "int",  "float", "str",
                                    "tensor", "sharded tensor", "list", "tuple", "dict"};
  return kNames[content_->content.index()];
}

}  // namespace fsdp
