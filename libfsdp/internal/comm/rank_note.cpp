// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/rank_note.h"

#include <charconv>

namespace fsdp::internal {
namespace {

// Writes the length first, "5:hello", so that the text may hold anything.
void put(std::string& out, std::string_view text) {
  out += std::to_string(text.size());
  out += ':';
  out += text;
}

void put(std::string& out, std::uint64_t number) {
  put(out, std::to_string(number));
}

class NoteReader {
 public:
  explicit NoteReader(std::string_view text) : rest_(text) {}

  bool done() const { return rest_.empty(); }

  std::string_view text() {
    std::size_t size = 0;
    const char* const end = rest_.data() + rest_.size();
    const auto [colon, error] = std::from_chars(rest_.data(), end, size);
    if (error != std::errc() || colon == end || size > static_cast<std::size_t>(end - colon) - 1) {
      rest_ = {};
      return {};
    }
    const std::string_view result(colon + 1, size);
    rest_ = {colon + 1 + size, static_cast<std::size_t>(end - colon) - 1 - size};
    return result;
  }

  std::uint64_t number() {
    const auto digits = text();
    std::uint64_t result = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), result);
    return result;
  }

 private:
  std::string_view rest_;
};

}  // namespace

std::string encode(const RankNote& note) {
  std::string result;
  for (const bool flag : {note.failed, note.left, note.lost}) put(result, std::uint64_t{flag});
  put(result, note.beat);
  put(result, note.message);
  for (const auto& [group, place] : note.places) {
    put(result, group);
    put(result, place.sequence);
    put(result, place.what);
  }
  return result;
}

RankNote decode_rank_note(std::string_view text) {
  NoteReader reader(text);
  RankNote result;
  for (bool* const flag : {&result.failed, &result.left, &result.lost}) {
    *flag = reader.number() != 0;
  }
  result.beat = reader.number();
  result.message = reader.text();
  while (!reader.done()) {
    const std::string group(reader.text());
    auto& place = result.places[group];
    place.sequence = reader.number();
    place.what = reader.text();
  }
  return result;
}

}  // namespace fsdp::internal
