// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/arrays/references.h"

#include <cstdint>
#include <span>

#include "formats/state/content/content.h"

namespace fsdp::formats::arrays {
namespace {

// Arrays of more parts are not compared: few of them are tied, and those are written twice.
constexpr std::size_t kMaxPartsCompared = 64;

template <typename Number>
void append(std::string& out, std::span<const Number> numbers) {
  out.append(reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes());
  out += '/';
}

// Returns a text that is equal for arrays of the same elements; empty if they must not be compared.
std::string fingerprint(const Array& array) {
  if (array.parts.empty() || array.parts.size() > kMaxPartsCompared) return {};
  std::string out;
  append(out, std::span<const std::int64_t>(array.shape));
  for (const Part& part : array.parts) {
    const Operand* operand = part.operand.get();
    append(out, std::span<const Operand* const>(&operand, 1));
    append(out, std::span<const std::int64_t>(part.box.offset));
    append(out, std::span<const std::int64_t>(part.box.size));
    append(out, std::span<const std::int64_t>(part.view.base));
    append(out, std::span<const std::size_t>(part.view.dim));
    append(out, std::span<const std::int64_t>(part.view.step));
  }
  return out;
}

}  // namespace

Value References::shared(KeyPath path, const Array& array) {
  const std::string print = fingerprint(array);
  if (print.empty()) return separate(std::move(path), array);
  const auto found = made_.find(print);
  if (found != made_.end()) return found->second;
  return made_.emplace(print, separate(std::move(path), array)).first->second;
}

Value References::separate(KeyPath path, const Array& array) {
  return tensor_reference(*checkpoint_, checkpoint_->add(std::move(path), array));
}

}  // namespace fsdp::formats::arrays
