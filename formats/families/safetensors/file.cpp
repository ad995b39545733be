// SPDX-License-Identifier: Apache-2.0
#include "formats/families/safetensors/file.h"

#include <algorithm>

#include "formats/bytes/base/byte_reader.h"
#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats::safetensors {
namespace {

// The header we write, and so the data, is aligned to the largest element.
constexpr std::size_t kAlignment = 8;

// Sorts the tensors by their place in the data and checks that each byte belongs to exactly one.
// Returns the end of the last one.
std::uint64_t check_tiling(std::vector<HeaderEntry>& entries) {
  const auto before = [](const HeaderEntry& a, const HeaderEntry& b) {
    return std::pair(a.data_begin, a.data_end) < std::pair(b.data_begin, b.data_end);
  };
  if (!std::ranges::is_sorted(entries, before)) {
    std::ranges::stable_sort(entries, before);
  }
  std::uint64_t end = 0;
  const HeaderEntry* previous = nullptr;
  for (const HeaderEntry& entry : entries) {
    if (entry.data_begin != end) {
      const std::string other = previous == nullptr
                                    ? "the data begin"
                                    : cat("tensor ", quote(previous->tensor.name), " ends");
      throw Error(ErrorCode::kStOffsets,
                  cat("tensor ", quote(entry.tensor.name), " begins at byte ", entry.data_begin,
                      " of the data, but ", other, " at byte ", end,
                      entry.data_begin > end ? "; the bytes between belong to no tensor"
                                             : "; they overlap"));
    }
    end = entry.data_end;
    previous = &entry;
  }
  return end;
}

std::uint64_t read_length(const ByteSource& source, std::uint64_t offset) {
  const std::uint64_t available = source.size() - offset;
  if (available < kLengthBytes) {
    throw Error(ErrorCode::kStHeader,
                cat("the header's length takes ", kLengthBytes, " bytes at byte ", offset,
                    ", but only ", available, " remain"));
  }
  const std::uint64_t length = load_u64(read_bytes(source, offset, kLengthBytes), 0);
  if (length > kMaxHeaderBytes) {
    throw Error(ErrorCode::kStHeader, cat("the length of the header is ", length,
                                          " bytes, at most ", kMaxHeaderBytes, " are allowed"));
  }
  if (length > available - kLengthBytes) {
    throw Error(ErrorCode::kStHeader,
                cat("the length of the header is ", length, " bytes at byte ",
                    offset + kLengthBytes, ", but only ", available - kLengthBytes, " remain"));
  }
  if (length < 2)
    throw Error(ErrorCode::kStHeader,
                cat("the length of the header is ", length, " bytes, at least 2"));
  return length;
}

}  // namespace

Header read_header(const ByteSource& source, std::uint64_t offset, Trailing trailing) {
  if (offset > source.size()) {
    throw Error(ErrorCode::kStHeader,
                cat("begins at byte ", offset, ", but there are only ", source.size()));
  }
  const std::uint64_t length = read_length(source, offset);
  HeaderJson parsed;
  {
    const std::vector<std::byte> bytes = read_bytes(source, offset + kLengthBytes, length);
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (text[0] != '{') {
      throw Error(ErrorCode::kStJson, cat("the header begins with ", quote(text.substr(0, 1)),
                                          " at byte ", offset + kLengthBytes, ", expected '{'"));
    }
    parsed = parse_header_json(text, offset + kLengthBytes);
  }
  const std::uint64_t data_bytes = check_tiling(parsed.entries);

  Header header;
  header.data_offset = offset + kLengthBytes + length;
  const std::uint64_t available = source.size() - header.data_offset;
  if (data_bytes > available && trailing != Trailing::kAllowEither) {
    throw Error(ErrorCode::kStOffsets,
                cat("the tensors take ", data_bytes, " bytes behind the header, but only ",
                    available, " remain"));
  }
  if (data_bytes < available && trailing == Trailing::kRefuse) {
    throw Error(ErrorCode::kStOffsets,
                cat("the tensors end at byte ", header.data_offset + data_bytes, ", but ",
                    available - data_bytes, " bytes follow, which belong to no tensor"));
  }
  header.end = header.data_offset + data_bytes;
  header.metadata = std::move(parsed.metadata);
  header.tensors.reserve(parsed.entries.size());
  for (HeaderEntry& entry : parsed.entries) {
    entry.tensor.begin = header.data_offset + entry.data_begin;
    header.tensors.push_back(std::move(entry.tensor));
  }
  return header;
}

// ---- writing

namespace {

// Returns the shape as in the file, checked against `bytes`.
std::vector<std::int64_t> spelled_shape(const Tensor& tensor) {
  const auto refuse = [&](ErrorCode code, const std::string& symptom) {
    return Error(code, cat("tensor ", quote(tensor.name), ": ", symptom));
  };
  if (safetensors_name(tensor.dtype).empty()) {
    throw refuse(ErrorCode::kUnsupported,
                 cat("safetensors has no type for ", torch_name(tensor.dtype)));
  }
  std::vector<std::int64_t> shape = tensor.shape;
  if (shape.size() > kMaxRank) {
    throw refuse(ErrorCode::kStShape, cat("has ", shape.size(), " dimensions, at most ", kMaxRank));
  }
  if (std::ranges::any_of(shape, [](std::int64_t size) { return size < 0; })) {
    throw refuse(ErrorCode::kStShape,
                 cat("shape ", shape_text(shape), " has a negative dimension"));
  }
  if (is_packed_float(tensor.dtype)) {
    const auto each = static_cast<std::int64_t>(values_of_element(tensor.dtype));
    if (shape.empty() || __builtin_mul_overflow(shape.back(), each, &shape.back())) {
      throw refuse(ErrorCode::kUnsupported,
                   cat(torch_name(tensor.dtype), " ", shape_text(tensor.shape),
                       " has no last dimension that could count elements of ",
                       item_bits(tensor.dtype), " bits"));
    }
  }
  const auto bits = total_bits(tensor.dtype, shape);
  if (!bits)
    throw refuse(ErrorCode::kStShape, cat("shape ", shape_text(shape), " has more than 2^64 bits"));
  if (tensor.bytes != *bits / 8) {
    throw refuse(ErrorCode::kStSize,
                 cat(torch_name(tensor.dtype), " ", shape_text(tensor.shape), " takes ", *bits / 8,
                     " bytes, but ", tensor.bytes, " are to be written"));
  }
  return shape;
}

void append_metadata(std::string& json,
                     const std::vector<std::pair<std::string, std::string>>& metadata) {
  refuse_twice(metadata);
  append_json_string(json, kMetadataKey);
  json += ":{";
  bool first = true;
  for (const auto& [name, value] : metadata) {
    if (!is_utf8(name) || !is_utf8(value) || name.size() > kMaxNameBytes) {
      throw Error(ErrorCode::kStMetadata, cat(kMetadataKey, ": ", quote(name), " is longer than ",
                                              kMaxNameBytes, " bytes or not UTF-8"));
    }
    if (!first) json += ',';
    first = false;
    append_json_string(json, name);
    json += ':';
    append_json_string(json, value);
  }
  json += '}';
}

}  // namespace

std::string make_header(std::vector<Tensor>& tensors,
                        const std::vector<std::pair<std::string, std::string>>& metadata) {
  const auto twice = find_duplicate(
      tensors.size(), [&](std::size_t i) -> std::string_view { return tensors[i].name; });
  if (twice)
    throw Error(ErrorCode::kStDuplicate,
                cat("tensor ", quote(tensors[*twice].name), " occurs twice"));
  std::string out(kLengthBytes, '\0');
  out += '{';
  if (!metadata.empty()) append_metadata(out, metadata);
  std::uint64_t end = 0;
  for (Tensor& tensor : tensors) {
    check_tensor_name(tensor.name);
    const std::vector<std::int64_t> shape = spelled_shape(tensor);
    tensor.begin = end;
    // The reader holds offsets in 63 bits; no file is larger.
    if (__builtin_add_overflow(end, tensor.bytes, &end) ||
        end > static_cast<std::uint64_t>(INT64_MAX)) {
      throw Error(ErrorCode::kStSize,
                  cat("tensor ", quote(tensor.name), " would end beyond 2^63 bytes"));
    }
    if (out.back() != '{') out += ',';
    append_json_string(out, tensor.name);
    out += cat(":{\"dtype\":\"", safetensors_name(tensor.dtype), "\",\"shape\":[");
    for (const std::int64_t size : shape) out += cat(out.back() == '[' ? "" : ",", size);
    out += cat("],\"data_offsets\":[", tensor.begin, ",", end, "]}");
  }
  out += '}';
  out.append((kAlignment - out.size() % kAlignment) % kAlignment, ' ');
  const std::uint64_t length = out.size() - kLengthBytes;
  if (length > kMaxHeaderBytes) {
    throw Error(ErrorCode::kStHeader,
                cat("the header of ", tensors.size(), " tensors would have ", length,
                    " bytes, at most ", kMaxHeaderBytes, " are allowed"));
  }
  for (std::size_t i = 0; i < kLengthBytes; ++i)
    out[i] = static_cast<char>((length >> (8 * i)) & 0xFFU);
  for (Tensor& tensor : tensors) tensor.begin += out.size();
  return out;
}

bool stored_before(const Tensor& a, const Tensor& b) {
  const std::uint64_t a_bits = item_bits(a.dtype);
  const std::uint64_t b_bits = item_bits(b.dtype);
  return a_bits != b_bits ? a_bits > b_bits : a.name < b.name;
}

void check_tensor_name(std::string_view name) {
  const auto refuse = [&](const std::string& symptom) {
    return Error(ErrorCode::kName, cat("tensor name ", quote(name), " ", symptom));
  };
  if (name.empty()) throw refuse("is empty");
  if (name.size() > kMaxNameBytes)
    throw refuse(cat("has ", name.size(), " bytes, at most ", kMaxNameBytes));
  if (name == kMetadataKey) throw refuse("is reserved for metadata");
  const auto control = std::ranges::find_if(name, [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte == 0x7F;
  });
  if (control != name.end())
    throw refuse(cat("has a control character at position ", control - name.begin()));
  if (!is_utf8(name)) throw refuse("is not UTF-8");
}

}  // namespace fsdp::formats::safetensors
