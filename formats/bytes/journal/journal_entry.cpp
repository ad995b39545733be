// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/journal/journal_entry.h"

#include <map>

#include <climits>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/team.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

void pack(Packed& out, const JournalEntry& entry) {
  out.number(entry.unchecked_bytes).text(entry.reads).number(entry.runs.size());
  std::map<std::string_view, std::uint64_t> numbers;
  std::vector<std::string_view> names;
  for (const JournalEntry::Run& run : entry.runs) {
    if (numbers.try_emplace(run.file, names.size()).second) names.push_back(run.file);
  }
  out.number(names.size());
  for (const std::string_view name : names) out.text(name);
  for (const JournalEntry::Run& run : entry.runs)
    out.number(numbers.at(run.file)).number(run.offset).number(run.bytes).number(run.crc);
}

JournalEntry unpacked(Unpacked& in) {
  JournalEntry entry;
  entry.unchecked_bytes = in.number();
  entry.reads = in.text();
  const std::uint64_t runs = in.number();
  std::vector<std::string> names;
  for (std::uint64_t left = in.number(); left != 0; --left) {
    names.emplace_back(in.text());
    // Each run copies its file's name: a name longer than any path would take its bytes for every
    // run.
    if (names.back().size() >= PATH_MAX)
      throw Error(ErrorCode::kTruncated, cat("a name of ", names.back().size(), " bytes"));
  }
  for (std::uint64_t left = runs; left != 0; --left) {
    const std::uint64_t name = in.number();
    if (name >= names.size()) throw Error(ErrorCode::kTruncated, "a run without a file");
    JournalEntry::Run run;
    run.file = names[static_cast<std::size_t>(name)];
    run.offset = in.number();
    run.bytes = in.number();
    run.crc = static_cast<std::uint32_t>(in.number());
    entry.runs.push_back(std::move(run));
  }
  return entry;
}

}  // namespace

std::string record_of(std::span<const JournalEntry> entries) {
  Packed record;
  for (const JournalEntry& entry : entries) pack(record, entry);
  return record.take();
}

std::vector<JournalEntry> entries_of(std::string_view record) {
  std::vector<JournalEntry> entries;
  for (Unpacked fields(record); !fields.empty();) entries.push_back(unpacked(fields));
  return entries;
}

}  // namespace fsdp::formats
