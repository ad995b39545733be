// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/pickle/trace.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "formats/bytes/base/byte_reader.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/containers/pickle/literals.h"
#include "formats/containers/pickle/opcodes.h"
#include "formats/containers/pickle/reader.h"

namespace fsdp::formats {
namespace {

// The longest text that is read as a name.  The limit bounds the work for a text that is fetched
// repeatedly.
constexpr std::uint64_t kMaxNameBytes = 1024;
// An opcode and the length of a text.
constexpr std::uint64_t kMaxHeadBytes = 9;
// The most terms in tuples, 16 bytes each.
constexpr std::size_t kMaxTupleTerms = 50'000'000;
// The most names of one stream; real ones have some dozens.
constexpr std::size_t kMaxNames = 10'000;

using Kind = Term::Kind;

// A kFlat packs into 64 bits the number of its listed items and a four-bit code for each.
constexpr unsigned kFlatBits = 4;
constexpr std::uint64_t kFlatMask = 15;
constexpr std::size_t kMaxFlatItems = 15;
constexpr std::int64_t kFlatNone = 1;  // 0: other data
constexpr std::int64_t kFlatZero = 3;  // ints by sign: 2, 3, 4

std::uint64_t flat_code(const Term& term) {
  if (term.kind == Kind::kNone) return kFlatNone;
  if (term.kind != Kind::kInt) return 0;
  const auto value = static_cast<std::int64_t>(term.at);
  return static_cast<std::uint64_t>(kFlatZero + (value > 0 ? 1 : 0) - (value < 0 ? 1 : 0));
}

std::uint64_t flat_code(std::span<const Term> terms) {
  const std::size_t told = std::min(terms.size(), kMaxFlatItems);
  std::uint64_t code = told;
  for (std::size_t i = 0; i < told; ++i) code |= flat_code(terms[i]) << (kFlatBits * (i + 1));
  if (terms.size() == told) return code;
  const auto rest = terms.subspan(told - 1);
  const bool counts = std::ranges::all_of(rest, [](const Term& term) {
    return flat_code(term) >= static_cast<std::uint64_t>(kFlatZero);
  });
  const unsigned shift = kFlatBits * kMaxFlatItems;
  code &= ~(kFlatMask << shift);
  return code | (counts ? static_cast<std::uint64_t>(kFlatZero + 1) << shift : 0);
}

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

std::uint64_t PickleTrace::number_of(std::string_view module, std::string_view name) {
  std::string key;
  key.append(module).append("\n").append(name);
  const auto [at, fresh] = numbers_.try_emplace(std::move(key), names_.size());
  if (fresh) {
    if (names_.size() == kMaxNames)
      throw Error(ErrorCode::kLimitNodes, "more than ", kMaxNames, " names");
    names_.push_back({std::string(module), std::string(name)});
    host_.name(names_.back());
  }
  return at->second;
}

std::optional<std::string> PickleTrace::text(Term term) const {
  if (term.kind != Kind::kText) return std::nullopt;
  // The offsets exist: the stream was already followed past them.
  const auto at_most = [&](std::uint64_t offset, std::uint64_t count) {
    return read_bytes(source_, offset, std::min(count, source_.size() - offset));
  };
  const std::vector<std::byte> head = at_most(term.at, kMaxHeadBytes);
  const MemorySource head_source(head);
  PickleReader reader(head_source, 0);
  const PickleOp op = reader.opcode();
  const auto text = [&](std::uint64_t length) -> std::optional<std::string> {
    if (length > kMaxNameBytes) return std::nullopt;
    return text_of(at_most(term.at + reader.offset(), length));
  };
  switch (op) {
    case PickleOp::kShortBinString:
    case PickleOp::kShortBinUnicode:
      return text(reader.u8());
    case PickleOp::kBinString:
      return text(reader.signed_length());
    case PickleOp::kBinUnicode:
      return text(reader.u32());
    case PickleOp::kBinUnicode8:
      return text(reader.u64());
    default:
      break;
  }
  const std::string line = text_of(at_most(term.at + 1, kMaxNameBytes));
  const std::size_t end = line.find('\n');
  if (end == std::string::npos) return std::nullopt;
  const auto content = std::string_view(line).substr(0, end);
  return static_cast<PythonOp>(op) == PythonOp::kUnicode ? raw_unicode(content)
                                                         : quoted_text(content);
}

std::span<const Term> PickleTrace::items(Term term) const {
  if (term.kind != Kind::kTuple) return {};
  const TupleRange& range = tuples_[term.at];
  return std::span(tuple_items_).subspan(range.begin, range.size);
}

std::vector<Term> PickleTrace::flat_items(Term term) {
  std::vector<Term> items(term.at & kFlatMask);
  for (Term& item : items) {
    term.at >>= kFlatBits;
    const auto code = static_cast<std::int64_t>(term.at & kFlatMask);
    if (code == kFlatNone) item.kind = Kind::kNone;
    if (code > kFlatNone) item = {Kind::kInt, 0, static_cast<std::uint64_t>(code - kFlatZero)};
  }
  return items;
}

Term PickleTrace::tuple(std::span<const Term> terms) {
  const bool plain = std::ranges::all_of(terms, [](const Term& term) {
    return term.kind == Kind::kData || term.kind == Kind::kInt || term.kind == Kind::kNone;
  });
  if (plain) return {Kind::kFlat, 0, flat_code(terms)};
  if (tuple_items_.size() > kMaxTupleTerms)
    throw Error(ErrorCode::kLimitNodes, "more than ", kMaxTupleTerms, " values in tuples");
  tuples_.push_back({tuple_items_.size(), terms.size(), false});
  tuple_items_.insert(tuple_items_.end(), terms.begin(), terms.end());
  return {Kind::kTuple, 0, tuples_.size() - 1};
}

void PickleTrace::report_value(Term term) {
  if (term.kind == Kind::kName) return host_.value(term.at);
  if (term.kind != Kind::kTuple) return;
  // Tuples may be nested and shared in many ways: each is visited once, without recursion.
  std::vector<std::uint64_t> open = {term.at};
  while (!open.empty()) {
    TupleRange& range = tuples_[open.back()];
    open.pop_back();
    if (std::exchange(range.reported, true)) continue;
    for (const Term& item : std::span(tuple_items_).subspan(range.begin, range.size)) {
      if (item.kind == Kind::kName) host_.value(item.at);
      if (item.kind == Kind::kTuple) open.push_back(item.at);
    }
  }
}

}  // namespace fsdp::formats
