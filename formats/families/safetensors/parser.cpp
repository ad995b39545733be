// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"
#include "formats/families/safetensors/file.h"

namespace fsdp::formats::safetensors {
namespace {

// Turns the header's JSON into entries while it is read: a tree would take many times its size.
class HeaderParser : public JsonHandler {
 public:
  void begin_object() override { open("an object", State::kTensor, State::kMetadata); }
  void begin_array() override { open("an array", std::nullopt, std::nullopt); }
  void end_object() override {
    if (leave_ignored()) return;
    if (state_ == State::kTensor) finish_tensor();
    state_ = state_ == State::kTop ? State::kStart : State::kTop;
  }
  void end_array() override {
    if (leave_ignored()) return;
    state_ = State::kTensor;
  }
  void key(std::string name, std::uint64_t offset) override {
    if (ignored_depth_ > 0) return;
    if (state_ == State::kTop) {
      begin_member(std::move(name), offset);
    } else if (state_ == State::kTensor) {
      begin_field(name);
    } else {
      if (name.size() > kMaxNameBytes) {
        throw Error(ErrorCode::kStMetadata, cat(kMetadataKey, ": key ", quote(name), " has ",
                                                name.size(), " bytes, at most ", kMaxNameBytes));
      }
      result_.metadata.emplace_back(std::move(name), std::string());
    }
  }
  void value(Json scalar) override {
    if (ignored_depth_ > 0) return;
    switch (state_) {
      case State::kStart:
        throw not_an_object(json_kind(scalar));
      case State::kTop:
        throw wrong_member(json_kind(scalar));
      case State::kTensor:
        return field_value(scalar);
      case State::kShape:
        return dimension(scalar);
      case State::kOffsets:
        return data_offset(scalar);
      case State::kMetadata:
        return metadata_value(scalar);
    }
  }
  void big_integer(std::string_view digits, std::uint64_t /*offset*/) override {
    if (ignored_depth_ > 0) return;
    if (state_ == State::kShape) throw bad_dimension(digits);
    if (state_ == State::kOffsets) throw bad_offset(digits);
    value(Json(0.0));
  }

  HeaderJson take() { return std::move(result_); }

 private:
  enum class State { kStart, kTop, kTensor, kShape, kOffsets, kMetadata };
  enum class Field { kDtype, kShape, kOffsets, kUnknown };

  // Handles the start of an object or array.  `tensor`, `in_metadata`: the states to which an
  // object leads as a member of the header; empty: not allowed.
  void open(std::string_view kind, std::optional<State> tensor, std::optional<State> in_metadata) {
    if (ignored_depth_ > 0) {
      ++ignored_depth_;
      return;
    }
    switch (state_) {
      case State::kStart:
        if (!tensor) throw not_an_object(kind);
        state_ = State::kTop;
        return;
      case State::kTop: {
        const std::optional<State> next = in_metadata_ ? in_metadata : tensor;
        if (!next) throw wrong_member(kind);
        state_ = *next;
        return;
      }
      case State::kTensor:
        if (field_ == Field::kUnknown) {
          ignored_depth_ = 1;
        } else if (!tensor && field_ == Field::kShape) {
          state_ = State::kShape;
        } else if (!tensor && field_ == Field::kOffsets) {
          state_ = State::kOffsets;
        } else {
          throw wrong_field(kind);
        }
        return;
      case State::kShape:
        throw bad_dimension(kind);
      case State::kOffsets:
        throw bad_offset(kind);
      case State::kMetadata:
        throw bad_metadata(kind);
    }
  }
  bool leave_ignored() {
    if (ignored_depth_ == 0) return false;
    --ignored_depth_;
    return true;
  }

  void begin_member(std::string name, std::uint64_t offset) {
    in_metadata_ = name == kMetadataKey;
    if (in_metadata_) {
      if (metadata_seen_) {
        throw Error(ErrorCode::kStDuplicate,
                    cat(kMetadataKey, " occurs in the header a second time at byte ", offset));
      }
      metadata_seen_ = true;
      return;
    }
    try {
      check_tensor_name(name);
    } catch (const Error& e) {
      throw e.in(cat("name at byte ", offset));
    }
    result_.entries.push_back({{std::move(name), DType::kUInt8, {}, 0, 0}, offset, 0, 0});
    dtype_seen_ = shape_seen_ = offsets_seen_ = false;
  }

  void begin_field(const std::string& name) {
    bool* seen = nullptr;
    if (name == "dtype") {
      field_ = Field::kDtype;
      seen = &dtype_seen_;
    } else if (name == "shape") {
      field_ = Field::kShape;
      seen = &shape_seen_;
    } else if (name == "data_offsets") {
      field_ = Field::kOffsets;
      seen = &offsets_seen_;
      offset_count_ = 0;
    } else {
      field_ = Field::kUnknown;
      return;
    }
    if (*seen) throw error(ErrorCode::kStField, cat("has field ", name, " twice"));
    *seen = true;
  }

  void field_value(const Json& scalar) {
    if (field_ == Field::kUnknown) return;
    const std::string* name = scalar.as_string();
    if (field_ != Field::kDtype || name == nullptr) throw wrong_field(json_kind(scalar));
    const auto dtype = dtype_from_safetensors_name(*name);
    if (!dtype)
      throw error(ErrorCode::kStDtype, cat("has dtype ", quote(*name), ", which is unknown"));
    result_.entries.back().tensor.dtype = *dtype;
  }

  void dimension(const Json& scalar) {
    const std::int64_t* size = scalar.as_int();
    if (size == nullptr || *size < 0) throw bad_dimension(to_text(scalar));
    std::vector<std::int64_t>& shape = result_.entries.back().tensor.shape;
    if (shape.size() == kMaxRank) {
      throw error(ErrorCode::kStShape, cat("has more than ", kMaxRank, " dimensions"));
    }
    shape.push_back(*size);
  }

  void data_offset(const Json& scalar) {
    const std::int64_t* offset = scalar.as_int();
    if (offset == nullptr || *offset < 0) throw bad_offset(to_text(scalar));
    if (++offset_count_ > 2)
      throw error(ErrorCode::kStOffsets, "has more than two data_offsets, expected begin and end");
    (offset_count_ == 1 ? result_.entries.back().data_begin : result_.entries.back().data_end) =
        static_cast<std::uint64_t>(*offset);
  }

  void finish_tensor() {
    HeaderEntry& entry = result_.entries.back();
    Tensor& tensor = entry.tensor;
    for (const auto& [seen, name] :
         {std::pair(dtype_seen_, "dtype"), std::pair(shape_seen_, "shape"),
          std::pair(offsets_seen_, "data_offsets")}) {
      if (!seen) throw error(ErrorCode::kStField, cat("has no field ", name));
    }
    if (offset_count_ != 2) {
      throw error(ErrorCode::kStOffsets,
                  cat("has ", offset_count_, " data_offsets, expected begin and end"));
    }
    if (entry.data_begin > entry.data_end) {
      throw error(ErrorCode::kStOffsets, cat("begins at byte ", entry.data_begin,
                                             " of the data, behind its end ", entry.data_end));
    }
    const auto bits = total_bits(tensor.dtype, tensor.shape);
    const std::string what = cat(safetensors_name(tensor.dtype), " ", shape_text(tensor.shape));
    if (!bits) throw error(ErrorCode::kStShape, cat(what, " has more than 2^64 bits"));
    if (is_packed_float(tensor.dtype)) {
      const auto each = static_cast<std::int64_t>(values_of_element(tensor.dtype));
      if (tensor.shape.empty() || tensor.shape.back() % each != 0) {
        throw error(ErrorCode::kStDtype,
                    cat(what, " does not fill whole bytes: the last dimension must be ",
                        each == 2 ? "even" : "a multiple of 4"));
      }
      tensor.shape.back() /= each;
    }
    tensor.bytes = entry.data_end - entry.data_begin;
    if (tensor.bytes != *bits / 8) {
      throw error(ErrorCode::kStSize,
                  cat(what, " takes ", *bits / 8, " bytes, but data_offsets span ", tensor.bytes));
    }
  }

  void metadata_value(Json& scalar) {
    const std::string* text = scalar.as_string();
    if (text == nullptr) throw bad_metadata(json_kind(scalar));
    result_.metadata.back().second = *text;
  }

  Error error(ErrorCode code, const std::string& symptom) const {
    const HeaderEntry& entry = result_.entries.back();
    return Error(code, cat("tensor ", quote(entry.tensor.name), " at byte ", entry.name_offset,
                           ": ", symptom));
  }
  static Error not_an_object(std::string_view kind) {
    return Error(ErrorCode::kStJson, cat("the header is ", kind, ", expected an object"));
  }
  Error wrong_member(std::string_view kind) const {
    if (!in_metadata_) return error(ErrorCode::kStField, cat("is ", kind, ", expected an object"));
    return Error(ErrorCode::kStMetadata, cat(kMetadataKey, " is ", kind, ", expected an object"));
  }
  Error wrong_field(std::string_view kind) const {
    const std::string_view field = field_ == Field::kDtype   ? "dtype"
                                   : field_ == Field::kShape ? "shape"
                                                             : "data_offsets";
    return error(ErrorCode::kStField, cat("field ", field, " is ", kind, ", expected ",
                                          field_ == Field::kDtype ? "a string" : "an array"));
  }
  Error bad_dimension(std::string_view found) const {
    return error(ErrorCode::kStShape, cat("has dimension ", quote(found, 40),
                                          ", expected an integer from 0 to 2^63 - 1"));
  }
  Error bad_offset(std::string_view found) const {
    return error(ErrorCode::kStOffsets, cat("has data offset ", quote(found, 40),
                                            ", expected an integer from 0 to 2^63 - 1"));
  }
  Error bad_metadata(std::string_view kind) const {
    return Error(ErrorCode::kStMetadata,
                 cat(kMetadataKey, ": value of ", quote(result_.metadata.back().first), " is ",
                     kind, ", expected a string"));
  }

  HeaderJson result_;
  State state_ = State::kStart;
  Field field_ = Field::kUnknown;
  std::size_t ignored_depth_ = 0;  // of arrays and objects inside an unknown field
  bool in_metadata_ = false;       // the member being read is __metadata__
  bool metadata_seen_ = false;
  bool dtype_seen_ = false;
  bool shape_seen_ = false;
  bool offsets_seen_ = false;
  int offset_count_ = 0;
};

}  // namespace

HeaderJson parse_header_json(std::string_view text, std::uint64_t base_offset) {
  HeaderParser parser;
  try {
    parse_json_stream(text, parser, {.base_offset = base_offset});
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kJson) throw;
    throw Error(ErrorCode::kStJson, cat("header: ", e.what()));
  }
  HeaderJson header = parser.take();
  const auto twice = find_duplicate(header.entries.size(), [&](std::size_t i) -> std::string_view {
    return header.entries[i].tensor.name;
  });
  if (twice) {
    const HeaderEntry& entry = header.entries[*twice];
    throw Error(ErrorCode::kStDuplicate,
                cat("tensor ", quote(entry.tensor.name),
                    " occurs in the header a second time at byte ", entry.name_offset));
  }
  refuse_twice(header.metadata);
  return header;
}

std::uint64_t item_bits(DType dtype) noexcept {
  return 8 * item_bytes(dtype) / values_of_element(dtype);
}

std::optional<std::uint64_t> total_bits(DType dtype, std::span<const std::int64_t> shape) noexcept {
  std::uint64_t bits = 1;
  for (const std::int64_t size : shape) {
    if (__builtin_mul_overflow(bits, static_cast<std::uint64_t>(size), &bits)) return std::nullopt;
  }
  if (__builtin_mul_overflow(bits, item_bits(dtype), &bits)) return std::nullopt;
  return bits;
}

std::optional<std::size_t> find_duplicate(
    std::size_t count, const std::function<std::string_view(std::size_t)>& name_of) {
  std::vector<std::pair<std::string_view, std::size_t>> names;
  names.reserve(count);
  for (std::size_t i = 0; i < count; ++i) names.emplace_back(name_of(i), i);
  std::ranges::sort(names);
  const auto same = std::ranges::adjacent_find(
      names, [](const auto& a, const auto& b) { return a.first == b.first; });
  return same == names.end() ? std::nullopt : std::optional(std::next(same)->second);
}

void refuse_twice(const std::vector<std::pair<std::string, std::string>>& metadata) {
  const auto twice = find_duplicate(
      metadata.size(), [&](std::size_t i) -> std::string_view { return metadata[i].first; });
  if (!twice) return;
  throw Error(ErrorCode::kStMetadata,
              cat(kMetadataKey, ": key ", quote(metadata[*twice].first), " occurs twice"));
}

}  // namespace fsdp::formats::safetensors
