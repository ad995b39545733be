// SPDX-License-Identifier: Apache-2.0
#include "formats/layout/safetensors.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "formats/base/byte_reader.h"
#include "formats/base/error.h"
#include "formats/base/json.h"
#include "formats/base/text.h"

namespace fsdp::formats::safetensors {
namespace {

// The README's limit on the header ("prevents parsing extremely large JSON").
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
// The README sets none; PyTorch itself stops at 64 dimensions.
constexpr std::size_t kMaxRank = 64;
// No model comes near; a message or a table with such a name is of no use.
constexpr std::size_t kMaxNameBytes = 64 * 1024;
// The length that stands in front of the header.
constexpr std::uint64_t kLengthBytes = 8;
// A header, and with it the data, ends at a multiple of this when we write it: the largest element
// aligned.
constexpr std::size_t kAlignment = 8;

constexpr std::string_view kMetadataKey = "__metadata__";

std::uint64_t item_bits(DType dtype) {
  return dtype == DType::kFloat4E2M1FNx2 ? 4 : 8 * item_bytes(dtype);
}

// Bits of a tensor whose shape is as the file spells it; nothing where they exceed 64 bits.  A zero
// dimension does not hide an overflow in front of it: the reference refuses that.
std::optional<std::uint64_t> total_bits(DType dtype, const std::vector<std::int64_t>& shape) {
  std::uint64_t numel = 1;
  for (const std::int64_t size : shape) {
    if (__builtin_mul_overflow(numel, static_cast<std::uint64_t>(size), &numel))
      return std::nullopt;
  }
  std::uint64_t bits = 0;
  if (__builtin_mul_overflow(numel, item_bits(dtype), &bits)) return std::nullopt;
  return bits;
}

// ---- reading

// A tensor as the header spells it: offsets from the start of the data, F4 in elements of 4 bits.
struct Entry {
  Tensor tensor;
  std::uint64_t name_offset;  // of the name's opening quote, for messages
  std::uint64_t data_begin;
  std::uint64_t data_end;
};

// Makes entries of the header's JSON as it is read: its tree would take many times its size.
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
      check_metadata_name(name);
      metadata.emplace_back(std::move(name), std::string());
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

  std::vector<Entry> entries;
  std::vector<std::pair<std::string, std::string>> metadata;

 private:
  enum class State { kStart, kTop, kTensor, kShape, kOffsets, kMetadata };
  enum class Field { kDtype, kShape, kOffsets, kUnknown };

  // An object or array begins.  The states are those an object as member of the header leads to.
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
                    cat(kMetadataKey, " stands in the header a second time at byte ", offset));
      }
      metadata_seen_ = true;
      return;
    }
    try {
      check_tensor_name(name);
    } catch (const Error& e) {
      throw e.in(cat("name at byte ", offset));
    }
    entries.push_back({{std::move(name), DType::kUInt8, {}, 0, 0}, offset, 0, 0});
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
    entries.back().tensor.dtype = *dtype;
  }

  void dimension(const Json& scalar) {
    const std::int64_t* size = scalar.as_int();
    if (size == nullptr || *size < 0) throw bad_dimension(to_text(scalar));
    std::vector<std::int64_t>& shape = entries.back().tensor.shape;
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
    (offset_count_ == 1 ? entries.back().data_begin : entries.back().data_end) =
        static_cast<std::uint64_t>(*offset);
  }

  void finish_tensor() {
    Entry& entry = entries.back();
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
    if (tensor.dtype == DType::kFloat4E2M1FNx2) {
      if (tensor.shape.empty() || tensor.shape.back() % 2 != 0) {
        throw error(ErrorCode::kStDtype,
                    cat(what, " does not fill whole bytes: the last dimension must be even"));
      }
      tensor.shape.back() /= 2;
    }
    tensor.bytes = entry.data_end - entry.data_begin;
    if (tensor.bytes != *bits / 8) {
      throw error(ErrorCode::kStSize,
                  cat(what, " takes ", *bits / 8, " bytes, but data_offsets span ", tensor.bytes));
    }
  }

  void check_metadata_name(const std::string& name) const {
    if (name.size() <= kMaxNameBytes) return;
    throw Error(ErrorCode::kStMetadata, cat(kMetadataKey, ": key ", quote(name), " has ",
                                            name.size(), " bytes, at most ", kMaxNameBytes));
  }
  void metadata_value(Json& scalar) {
    const std::string* text = scalar.as_string();
    if (text == nullptr) throw bad_metadata(json_kind(scalar));
    metadata.back().second = *text;
  }

  Error error(ErrorCode code, const std::string& symptom) const {
    const Entry& entry = entries.back();
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
                 cat(kMetadataKey, ": value of ", quote(metadata.back().first), " is ", kind,
                     ", expected a string"));
  }

  State state_ = State::kStart;
  Field field_ = Field::kUnknown;
  std::size_t ignored_depth_ = 0;  // of arrays and objects inside an unknown field
  bool in_metadata_ = false;       // the member that is read is __metadata__
  bool metadata_seen_ = false;
  bool dtype_seen_ = false;
  bool shape_seen_ = false;
  bool offsets_seen_ = false;
  int offset_count_ = 0;
};

std::vector<std::size_t> iota(std::size_t count) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  return order;
}

// The index behind the first one that has the same name as an earlier one.
template <typename Name>
std::optional<std::size_t> find_duplicate(std::size_t count, const Name& name) {
  std::vector<std::size_t> order = iota(count);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const int difference = name(a).compare(name(b));
    return difference != 0 ? difference < 0 : a < b;
  });
  const auto same = std::adjacent_find(
      order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return name(a) == name(b); });
  if (same == order.end()) return std::nullopt;
  return *std::next(same);
}

void refuse_duplicates(const HeaderParser& parser) {
  const auto tensor = find_duplicate(
      parser.entries.size(),
      [&](std::size_t i) -> const std::string& { return parser.entries[i].tensor.name; });
  if (tensor) {
    const Entry& entry = parser.entries[*tensor];
    throw Error(ErrorCode::kStDuplicate,
                cat("tensor ", quote(entry.tensor.name),
                    " stands in the header a second time at byte ", entry.name_offset));
  }
  const auto key = find_duplicate(parser.metadata.size(), [&](std::size_t i) -> const std::string& {
    return parser.metadata[i].first;
  });
  if (key) {
    throw Error(
        ErrorCode::kStMetadata,
        cat(kMetadataKey, ": key ", quote(parser.metadata[*key].first), " stands there twice"));
  }
}

// Sorts by place in the data, and checks that the tensors cover them: each byte one tensor's.
// Returns where the last one ends.
std::uint64_t check_tiling(std::vector<Entry>& entries) {
  const auto before = [](const Entry& a, const Entry& b) {
    return std::pair(a.data_begin, a.data_end) < std::pair(b.data_begin, b.data_end);
  };
  if (!std::is_sorted(entries.begin(), entries.end(), before)) {
    std::stable_sort(entries.begin(), entries.end(), before);
  }
  std::uint64_t end = 0;
  const Entry* previous = nullptr;
  for (const Entry& entry : entries) {
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
    throw Error(ErrorCode::kStHeader, cat("the header is said to have ", length, " bytes, at most ",
                                          kMaxHeaderBytes, " are allowed"));
  }
  if (length > available - kLengthBytes) {
    throw Error(ErrorCode::kStHeader,
                cat("the header is said to have ", length, " bytes at byte ", offset + kLengthBytes,
                    ", but only ", available - kLengthBytes, " remain"));
  }
  if (length < 2)
    throw Error(ErrorCode::kStHeader,
                cat("the header is said to have ", length, " bytes, at least 2"));
  return length;
}

}  // namespace

Header read_header(const ByteSource& source, std::uint64_t offset, Trailing trailing) {
  if (offset > source.size()) {
    throw Error(ErrorCode::kStHeader,
                cat("begins at byte ", offset, ", but there are only ", source.size()));
  }
  const std::uint64_t length = read_length(source, offset);
  HeaderParser parser;
  {
    const std::vector<std::byte> bytes = read_bytes(source, offset + kLengthBytes, length);
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (text[0] != '{') {
      throw Error(ErrorCode::kStJson, cat("the header begins with ", quote(text.substr(0, 1)),
                                          " at byte ", offset + kLengthBytes, ", expected '{'"));
    }
    try {
      parse_json_stream(text, parser, {.base_offset = offset + kLengthBytes});
    } catch (const Error& e) {
      if (e.code() != ErrorCode::kJson) throw;
      throw Error(ErrorCode::kStJson, cat("header: ", e.what()));
    }
  }
  refuse_duplicates(parser);
  const std::uint64_t data_bytes = check_tiling(parser.entries);

  Header header;
  header.data_offset = offset + kLengthBytes + length;
  const std::uint64_t available = source.size() - header.data_offset;
  if (data_bytes > available) {
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
  header.metadata = std::move(parser.metadata);
  header.tensors.reserve(parser.entries.size());
  for (Entry& entry : parser.entries) {
    entry.tensor.begin = header.data_offset + entry.data_begin;
    header.tensors.push_back(std::move(entry.tensor));
  }
  return header;
}

// ---- writing

namespace {

// The shape as the file spells it, checked with `bytes`.
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
  if (std::any_of(shape.begin(), shape.end(), [](std::int64_t size) { return size < 0; })) {
    throw refuse(ErrorCode::kStShape,
                 cat("shape ", shape_text(shape), " has a negative dimension"));
  }
  if (tensor.dtype == DType::kFloat4E2M1FNx2) {
    if (shape.empty() || __builtin_mul_overflow(shape.back(), std::int64_t{2}, &shape.back())) {
      throw refuse(ErrorCode::kUnsupported,
                   cat(torch_name(tensor.dtype), " ", shape_text(tensor.shape),
                       " has no last dimension that could count elements of 4 bits"));
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
  const auto key = find_duplicate(
      metadata.size(), [&](std::size_t i) -> const std::string& { return metadata[i].first; });
  if (key)
    throw Error(ErrorCode::kStMetadata,
                cat(kMetadataKey, ": key ", quote(metadata[*key].first), " is there twice"));
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

void append_integers(std::string& json, const std::vector<std::int64_t>& numbers) {
  json += '[';
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (i != 0) json += ',';
    json += std::to_string(numbers[i]);
  }
  json += ']';
}

}  // namespace

std::string make_header(std::vector<Tensor>& tensors,
                        const std::vector<std::pair<std::string, std::string>>& metadata) {
  const auto twice = find_duplicate(
      tensors.size(), [&](std::size_t i) -> const std::string& { return tensors[i].name; });
  if (twice)
    throw Error(ErrorCode::kStDuplicate,
                cat("tensor ", quote(tensors[*twice].name), " is there twice"));
  std::string out(kLengthBytes, '\0');
  out += '{';
  if (!metadata.empty()) append_metadata(out, metadata);
  std::uint64_t end = 0;
  for (Tensor& tensor : tensors) {
    check_tensor_name(tensor.name);
    const std::vector<std::int64_t> shape = spelled_shape(tensor);
    tensor.begin = end;
    // The reader holds offsets in 63 bits, and no file is larger.
    if (__builtin_add_overflow(end, tensor.bytes, &end) ||
        end > static_cast<std::uint64_t>(INT64_MAX)) {
      throw Error(ErrorCode::kStSize,
                  cat("tensor ", quote(tensor.name), " would end beyond 2^63 bytes"));
    }
    if (out.back() != '{') out += ',';
    append_json_string(out, tensor.name);
    out += cat(":{\"dtype\":\"", safetensors_name(tensor.dtype), "\",\"shape\":");
    append_integers(out, shape);
    out += cat(",\"data_offsets\":[", tensor.begin, ",", end, "]}");
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
  const auto control = std::find_if(name.begin(), name.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte == 0x7F;
  });
  if (control != name.end())
    throw refuse(cat("has a control character at position ", control - name.begin()));
  if (!is_utf8(name)) throw refuse("is not UTF-8");
}

}  // namespace fsdp::formats::safetensors
