// SPDX-License-Identifier: Apache-2.0
#include "formats/families/dcp/metadata_writer.h"

#include <algorithm>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats::dcp {
namespace {

constexpr std::uint64_t kBatch = 1000;  // as in Python's pickler
constexpr std::size_t kBlockBytes = 1U << 20U;
constexpr char kProtocol = 2;
constexpr std::string_view kVersion = "1.0.0";
// Steps of paths that are remembered; few repeat.
constexpr std::size_t kMaxSteps = 1U << 16U;

constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata";
constexpr std::string_view kFilesystemModule = "torch.distributed.checkpoint.filesystem";

// The words, in the order of the enumeration; those with a module are names.
constexpr std::pair<std::string_view, std::string_view> kWords[] = {
    {kMetadataModule, "TensorStorageMetadata"},
    {kMetadataModule, "TensorProperties"},
    {kMetadataModule, "ChunkStorageMetadata"},
    {kMetadataModule, "BytesStorageMetadata"},
    {kMetadataModule, "MetadataIndex"},
    {kFilesystemModule, "_StorageInfo"},
    {"torch.serialization", "_get_layout"},
    {kMetadataModule, "_MEM_FORMAT_ENCODING"},
    {"torch", "Size"},
    {"", "torch.strided"},
    {"", "properties"},
    {"", "size"},
    {"", "chunks"},
    {"", "offsets"},
    {"", "sizes"},
    {"", "fqn"},
    {"", "index"},
    {"", "offset"},
    {"", "relative_path"},
    {"", "length"},
};

// Makes a tuple of the last things written; those of more than three begin with a mark.
PickleOp tuple_of(std::size_t count) {
  constexpr PickleOp kShort[] = {PickleOp::kEmptyTuple, PickleOp::kTuple1, PickleOp::kTuple2,
                                 PickleOp::kTuple3};
  return count > 3 ? PickleOp::kTuple : kShort[count];
}

}  // namespace

MetadataWriter::MetadataWriter(Sink sink) : sink_(std::move(sink)) {
  static_assert(std::size(kWords) == kWordCount);
  words_.fill(kNone);
  dtypes_.fill(kNone);
  out_.reserve(kBlockBytes + (kBlockBytes >> 2U));
  op(PickleOp::kProto);
  out_.push_back(kProtocol);
  global(kMetadataModule, "Metadata");
  op(PickleOp::kEmptyTuple);
  op(PickleOp::kNewObj);
  op(PickleOp::kEmptyDict);
  op(PickleOp::kMark);
  text("state_dict_metadata");
  op(PickleOp::kEmptyDict);
}

void MetadataWriter::begin_tensor(std::string_view key, DType type,
                                  std::span<const std::int64_t> shape) {
  begin_entry(key);
  new_object(kTensorStorage);
  op(PickleOp::kEmptyDict);
  op(PickleOp::kMark);
  word(kPropertiesWord);
  new_object(kTensorProperties);
  op(PickleOp::kMark);
  dtype(type);
  word(kGetLayout);
  word(kStrided);
  op(PickleOp::kTuple1);
  op(PickleOp::kReduce);
  op(PickleOp::kNewFalse);
  word(kMemoryFormat);
  integer(0);  // contiguous
  op(PickleOp::kTuple1);
  op(PickleOp::kReduce);
  op(PickleOp::kNewFalse);
  op(PickleOp::kTuple);
  op(PickleOp::kBuild);
  word(kSizeWord);
  size(shape);
  word(kChunksWord);
  op(PickleOp::kEmptyList);
  chunks_ = 0;
}

void MetadataWriter::chunk(BoxView box) {
  begin_batch(chunks_);
  new_object(kChunkStorage);
  op(PickleOp::kEmptyDict);
  op(PickleOp::kMark);
  word(kOffsetsWord);
  size(box.offset);
  word(kSizesWord);
  size(box.size);
  op(PickleOp::kSetItems);
  op(PickleOp::kBuild);
  if (chunks_ % kBatch == 0) op(PickleOp::kAppends);
}

void MetadataWriter::end_tensor() {
  end_batches(chunks_, PickleOp::kAppends);
  op(PickleOp::kSetItems);
  op(PickleOp::kBuild);
  if (entries_ % kBatch == 0) op(PickleOp::kSetItems);
}

void MetadataWriter::value(std::string_view key) {
  begin_entry(key);
  new_object(kBytesStorage);
  if (entries_ % kBatch == 0) op(PickleOp::kSetItems);
}

void MetadataWriter::begin_paths() {
  end_batches(entries_, PickleOp::kSetItems);
  text("planner_data");
  op(PickleOp::kEmptyDict);
}

void MetadataWriter::path(std::size_t entry, const KeyPath& path) {
  begin_batch(entries_);
  get(keys_.at(entry));
  if (path.size() > 3) op(PickleOp::kMark);
  for (const PathStep& part : path) {
    if (const auto* name = std::get_if<std::string>(&part)) {
      step(*name);
    } else {
      integer(static_cast<std::uint64_t>(std::get<std::int64_t>(part)));
    }
  }
  op(tuple_of(path.size()));
  if (entries_ % kBatch == 0) op(PickleOp::kSetItems);
}

void MetadataWriter::begin_items() {
  end_batches(entries_, PickleOp::kSetItems);
  text("storage_data");
  op(PickleOp::kEmptyDict);
}

void MetadataWriter::tensor_item(std::size_t entry, std::size_t chunk,
                                 std::span<const std::int64_t> offset, const ItemPlace& where) {
  begin_item(entry);
  integer(chunk);
  word(kOffsetWord);
  size(offset);
  place(where);
}

void MetadataWriter::value_item(std::size_t entry, const ItemPlace& where) {
  begin_item(entry);
  op(PickleOp::kNone);
  place(where);
}

void MetadataWriter::finish() {
  end_batches(entries_, PickleOp::kSetItems);
  text("version");
  text(kVersion);
  op(PickleOp::kSetItems);
  op(PickleOp::kBuild);
  op(PickleOp::kStop);
  sink_(out_);
  out_.clear();
}

void MetadataWriter::little_endian(std::uint64_t number, unsigned count) {
  for (unsigned i = 0; i < count; ++i) out_.push_back(static_cast<char>(number >> (8 * i)));
}

void MetadataWriter::global(std::string_view module, std::string_view name) {
  op(PickleOp::kGlobal);
  out_.append(module).append("\n").append(name).append("\n");
}

void MetadataWriter::text(std::string_view utf8) {
  op(PickleOp::kBinUnicode);
  little_endian(utf8.size(), 4);
  out_ += utf8;
}

void MetadataWriter::integer(std::uint64_t number) {
  if (number <= UINT8_MAX) {
    op(PickleOp::kBinInt1);
    return little_endian(number, 1);
  }
  if (number <= UINT16_MAX) {
    op(PickleOp::kBinInt2);
    return little_endian(number, 2);
  }
  if (number <= static_cast<std::uint64_t>(INT32_MAX)) {
    op(PickleOp::kBinInt);
    return little_endian(number, 4);
  }
  // Two's complement, little-endian: a leading zero byte keeps the number from being negative.
  unsigned bytes = 4;
  while (bytes < 9 && (bytes == 8 ? number >> 63U : number >> (8 * bytes - 1)) != 0) ++bytes;
  op(PickleOp::kLong1);
  out_.push_back(static_cast<char>(bytes));
  little_endian(number, std::min(bytes, 8U));
  if (bytes == 9) out_.push_back(0);
}

std::uint32_t MetadataWriter::put() {
  op(memo_ <= UINT8_MAX ? PickleOp::kBinPut : PickleOp::kLongBinPut);
  little_endian(memo_, memo_ <= UINT8_MAX ? 1 : 4);
  return memo_++;
}

void MetadataWriter::get(std::uint32_t slot) {
  op(slot <= UINT8_MAX ? PickleOp::kBinGet : PickleOp::kLongBinGet);
  little_endian(slot, slot <= UINT8_MAX ? 1 : 4);
}

void MetadataWriter::word(Word word) {
  std::uint32_t& slot = words_[word];
  if (slot != kNone) return get(slot);
  const auto& [module, name] = kWords[word];
  if (module.empty()) {
    text(name);
  } else {
    global(module, name);
  }
  slot = put();
}

void MetadataWriter::size(std::span<const std::int64_t> numbers) {
  word(kSize);
  if (numbers.size() > 3) op(PickleOp::kMark);
  for (const std::int64_t number : numbers) integer(static_cast<std::uint64_t>(number));
  op(tuple_of(numbers.size()));
  op(PickleOp::kTuple1);
  op(PickleOp::kReduce);
}

void MetadataWriter::new_object(Word cls) {
  word(cls);
  op(PickleOp::kEmptyTuple);
  op(PickleOp::kNewObj);
}

void MetadataWriter::dtype(DType dtype) {
  std::uint32_t& slot = dtypes_[static_cast<std::size_t>(dtype)];
  if (slot != kNone) return get(slot);
  global("torch", torch_name(dtype));
  slot = put();
}

void MetadataWriter::begin_entry(std::string_view key) {
  begin_batch(entries_);
  text(key);
  keys_.push_back(put());
}

void MetadataWriter::begin_item(std::size_t entry) {
  begin_batch(entries_);
  new_object(kMetadataIndex);
  op(PickleOp::kEmptyDict);
  op(PickleOp::kMark);
  word(kFqnWord);
  get(keys_.at(entry));
  word(kIndexWord);
}

void MetadataWriter::place(const ItemPlace& place) {
  op(PickleOp::kSetItems);
  op(PickleOp::kBuild);
  new_object(kStorageInfo);
  op(PickleOp::kEmptyDict);
  op(PickleOp::kMark);
  word(kPathWord);
  if (place.file >= files_.size()) files_.resize(place.file + 1, kNone);
  std::uint32_t& slot = files_[place.file];
  if (slot == kNone) {
    text(place.name);
    slot = put();
  } else {
    get(slot);
  }
  word(kOffsetWord);
  integer(place.offset);
  word(kLengthWord);
  integer(place.length);
  if (!place.transforms.empty()) {
    text("transform_descriptors");
    op(PickleOp::kEmptyList);
    op(PickleOp::kMark);
    for (const std::string& transform : place.transforms) text(transform);
    op(PickleOp::kAppends);
  }
  op(PickleOp::kSetItems);
  op(PickleOp::kBuild);
  if (entries_ % kBatch == 0) op(PickleOp::kSetItems);
}

void MetadataWriter::step(const std::string& name) {
  if (const auto found = steps_.find(name); found != steps_.end()) return get(found->second);
  text(name);
  if (steps_.size() >= kMaxSteps) return;
  steps_.emplace(name, put());
}

void MetadataWriter::begin_batch(std::uint64_t& count) {
  if (out_.size() >= kBlockBytes) {
    sink_(out_);
    out_.clear();
  }
  if (count++ % kBatch == 0) op(PickleOp::kMark);
}

void MetadataWriter::end_batches(std::uint64_t& count, PickleOp end) {
  if (count % kBatch != 0) op(end);
  count = 0;
}

}  // namespace fsdp::formats::dcp
