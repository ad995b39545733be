// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/files/checked_list.h"

#include <algorithm>
#include <charconv>
#include <span>

#include "formats/bytes/base/crc32.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/local_file.h"

namespace fsdp::formats {
namespace {

// Room for half a million files.
constexpr std::uint64_t kMaxListBytes = 64U << 20U;
// Enough for a path of the kernel's greatest length, with every byte as \u00XX, and for the
// numbers.
constexpr std::size_t kMaxLineBytes = 32U << 10U;
constexpr std::string_view kEnd = "],\"crc32\":\"";
constexpr std::size_t kEndBytes = kEnd.size() + 8 + 3;  // the checksum, and "}\n

std::string head_of(std::string_view tag) {
  return cat("{\"", tag, "\":1,\"files\":[\n");
}

std::string end_of(std::string_view above) {
  return cat(kEnd, hex32(crc32(0, std::as_bytes(std::span(above)))), "\"}\n");
}

Error malformed(const std::string& why) {
  return Error(ErrorCode::kSeal, why);
}

void check_head(std::string_view tag, std::string_view text) {
  const std::string head = head_of(tag);
  if (text.starts_with(head)) return;
  const std::string start = cat("{\"", tag, "\":");
  std::uint64_t version = 0;
  if (text.starts_with(start)) {
    const auto [end, error] =
        std::from_chars(text.data() + start.size(), text.data() + text.size(), version);
    if (error == std::errc() && version != 1)
      throw malformed(cat("is of version ", version, "; this program knows version 1"));
  }
  throw malformed(cat("does not begin like a file of this name: found ",
                      quote(text.substr(0, head.size())), ", expected ", quote(head)));
}

}  // namespace

CheckedListWriter::CheckedListWriter(std::string_view tag) : text_(head_of(tag)) {}

void CheckedListWriter::add(const Json::Object& line) {
  if (const auto name =
          std::ranges::find_if(line, [](const auto& member) { return member.first == "name"; });
      name != line.end() && !is_utf8(*name->second.as_string())) {
    throw Error(ErrorCode::kName, quote(*name->second.as_string()),
                ": the name is not UTF-8, and JSON cannot hold it; rename the "
                "file");
  }
  if (!empty_) text_.insert(text_.size() - 1, 1, ',');
  empty_ = false;
  text_ += to_text(Json(line)) + '\n';
}

std::string CheckedListWriter::finish() {
  return text_ + end_of(text_);
}

void read_checked_list(std::string_view tag, const File& file,
                       const std::function<void(const Json& line)>& line) {
  if (file.size() > kMaxListBytes)
    throw Error(ErrorCode::kLimitSize, "has ", file.size(), " bytes, at most ", kMaxListBytes);
  std::string bytes(file.size(), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(bytes)));
  const std::string_view text = bytes;
  check_head(tag, text);
  if (text.size() < kEndBytes)
    throw malformed(cat("has ", text.size(), " bytes, and ends before its checksum"));
  const std::string_view above = text.substr(0, text.size() - kEndBytes);
  const std::string end = end_of(above);
  if (text.substr(above.size()) != end) {
    throw malformed(cat("ends with ", quote(text.substr(above.size())), ", expected ", quote(end),
                        ": it was changed or cut"));
  }
  std::size_t at = head_of(tag).size();
  if (at > above.size()) throw malformed("has no list of files");
  CheckedListWriter again(tag);
  for (std::size_t number = 2; at < above.size(); ++number) {
    const std::size_t next = std::min(above.find('\n', at), above.size());
    std::string_view one = above.substr(at, next - at);
    at = next + 1;
    if (one.size() > kMaxLineBytes)
      throw malformed(cat("line ", number, " has ", one.size(), " bytes, at most ", kMaxLineBytes));
    if (at < above.size() && one.ends_with(',')) one.remove_suffix(1);
    try {
      const Json object = parse_json(one);
      if (object.as_object() == nullptr)
        throw malformed(cat("is ", json_kind(object), ", expected an object"));
      line(object);
      again.add(*object.as_object());
    } catch (const Error& error) {
      throw malformed(cat("line ", number, ": ", error.what()));
    }
  }
  if (again.finish() != text) throw malformed("is not in canonical form");
}

void require_members(const Json& object, std::initializer_list<std::string_view> names) {
  const Json::Object& members = *object.as_object();
  const bool same = std::ranges::equal(
      members, names,
      [](const auto& member, std::string_view name) { return member.first == name; });
  if (same) return;
  std::string wanted;
  for (const std::string_view name : names) wanted += cat(wanted.empty() ? "" : ", ", name);
  throw malformed("has other members than " + wanted);
}

const std::string& text_member(const Json& object, std::string_view name) {
  const Json* member = object.find(name);
  if (member == nullptr || member->as_string() == nullptr)
    throw malformed(cat(quote(name), " is not a string"));
  return *member->as_string();
}

std::uint64_t count_member(const Json& object, std::string_view name) {
  const Json* member = object.find(name);
  if (member == nullptr || member->as_int() == nullptr || *member->as_int() < 0)
    throw malformed(cat(quote(name), " is not a number of at most ", INT64_MAX));
  return static_cast<std::uint64_t>(*member->as_int());
}

std::uint32_t crc_member(const Json& object, std::string_view name) {
  const std::string& text = text_member(object, name);
  std::uint32_t crc = 0;
  std::from_chars(text.data(), text.data() + text.size(), crc, 16);
  if (text != hex32(crc))
    throw malformed(
        cat(quote(name), " is ", quote(text), ", expected eight lower-case hexadecimal digits"));
  return crc;
}

const std::string& name_member(const Json& object) {
  const std::string& name = text_member(object, "name");
  std::string_view rest = name;
  for (;;) {
    const std::size_t slash = rest.find('/');
    if (!is_plain_name(rest.substr(0, slash)))
      throw malformed(cat(quote(name), " is not the name of a file in a folder"));
    if (slash == rest.npos) return name;
    rest.remove_prefix(slash + 1);
  }
}

}  // namespace fsdp::formats
