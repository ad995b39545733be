// SPDX-License-Identifier: Apache-2.0
#include "formats/families/dcp/item.h"

#include <algorithm>
#include <array>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/containers/zip/decompress.h"
#include "formats/families/torch/low_bit_tensor.h"

namespace fsdp::formats::dcp {
namespace {

// An item may decompress to this many times its size, or 64 MiB: zstd's own bound is far above
// anything real.
constexpr std::uint64_t kMaxExpansion = 100'000;
constexpr std::uint64_t kMinExpandedBytes = 64U << 20U;

// Returns whether the transform is a zstd transform that can be undone: "stream.zstd@domain/1.2".
bool is_zstd(std::string_view transform) {
  const std::size_t slash = transform.rfind('/');
  if (slash == std::string_view::npos) return false;
  std::string_view name = transform.substr(0, slash);
  std::string_view version = transform.substr(slash + 1);
  name = name.substr(0, name.find('@'));
  version = version.substr(0, version.find('.'));
  return name == "stream.zstd" && version == "1";
}

std::string context(const std::string& file, const std::string& key) {
  return file + ": " + quote(key, 200);
}

// Throws the error that `refuse` makes if a transform is not supported.
template <typename Refuse>
std::optional<LowBitTensor> low_bit_of(const Item& item, const Refuse& refuse) {
  try {
    return low_bit_tensor(item.torch.root);
  } catch (const Error& error) {
    throw refuse(error.code(), error.what());
  }
}

}  // namespace

Item item_bytes(const std::shared_ptr<const File>& file, const Location& location,
                const std::vector<std::string>& transforms, Spill& spill) {
  if (location.offset > file->size() || location.length > file->size() - location.offset) {
    throw Error(ErrorCode::kExtent,
                cat(location.length, " bytes at byte ", location.offset,
                    " reach past the end of the file, which has ", file->size()));
  }
  Item item;
  item.place = {file, file->name(), location.offset, location.offset};
  item.stream = std::make_shared<SourceRange>(file, location.offset, location.length);
  for (const std::string& transform : transforms) {
    if (!is_zstd(transform)) {
      throw Error(ErrorCode::kUnsupported,
                  cat("transform ", quote(transform), " is unknown, expected 'stream.zstd/1'"));
    }
    const std::uint64_t limit =
        std::max(kMinExpandedBytes, location.length > UINT64_MAX / kMaxExpansion
                                        ? UINT64_MAX
                                        : location.length * kMaxExpansion);
    const auto compressed = item.stream;
    const auto range = spill.get(item.place.file + '\0' + transform, location.offset,
                                 [&](const ByteSink& sink) { unzstd(*compressed, limit, sink); });
    item.place.source = range.source;
    item.place.offset = range.offset;
    item.stream = std::make_shared<SourceRange>(range.source, range.offset, range.bytes);
  }
  return item;
}

Item open_item(const std::shared_ptr<const File>& file, const Location& location,
               const std::vector<std::string>& transforms, const std::string& key,
               std::uint64_t archive, Spill& spill) {
  try {
    Item item = item_bytes(file, location, transforms, spill);
    if (sniff_torch_stream(*item.stream) == TorchStream::kOther && transforms.empty()) {
      // PyTorch's FileSystemWriter can put all tensors of a file into one safetensors blob; each of
      // its items then names the start of the blob, and a meaningless length.
      std::array<std::byte, 9> start{};
      if (file->size() - location.offset >= start.size()) {
        file->read_at(location.offset, start);
        if (start[8] == std::byte{'{'}) {
          const auto header =
              safetensors::read_header(*file, location.offset, safetensors::Trailing::kAllow);
          const auto found = std::ranges::find_if(
              header.tensors, [&](const auto& tensor) { return tensor.name == key; });
          if (found == header.tensors.end()) {
            throw Error(
                ErrorCode::kRecordMissing,
                cat("the safetensors data at byte ", location.offset, " do not contain this key"));
          }
          item.tensor = *found;
          item.stream.reset();
          return item;
        }
      }
    }
    item.torch = read_torch_file(*item.stream, archive);
    return item;
  } catch (const Error& error) {
    const std::string where =
        context(file->name(), key) + ": item at byte " + std::to_string(location.offset);
    throw error.in(where);
  }
}

bool expect_item(const File& file, const Location& location, std::uint64_t begin,
                 std::uint64_t end) noexcept {
  const std::uint64_t length = location.length;
  const auto bytes = std::min<std::uint64_t>(kTorchEndBytes, length);
  if (location.offset > file.size() || length > file.size() - location.offset) return false;
  if (begin >= end || !file.read_by_requests()) {
    file.will_read(location.offset, bytes);
    return file.will_read(location.offset + length - bytes, bytes);
  }
  // The elements begin within the first bytes.
  begin = std::min(begin, length);
  end = end > length - bytes ? length : end + bytes;
  bool more = true;
  // Neighbouring ranges are one hint: a request lies within one hint.
  if (begin <= bytes) begin = 0;
  if (begin != 0) more = file.read_ahead(location.offset, bytes);
  if (begin < end) more = file.read_ahead(location.offset + begin, end - begin);
  if (end < length) more = file.read_ahead(location.offset + length - bytes, bytes);
  return more;
}

ChunkData item_tensor(const Item& item, const std::string& key, DType dtype,
                      std::span<const std::int64_t> shape, Spill& spill) {
  const auto refuse = [&](ErrorCode code, const std::string& why) {
    return Error(code, context(item.place.file, key) + ": item at byte " +
                           std::to_string(item.place.file_offset) + ": " + why);
  };
  std::vector<std::int64_t> found_shape;
  DType found_dtype = dtype;
  ChunkData data;
  if (item.tensor) {
    found_shape = item.tensor->shape;
    found_dtype = item.tensor->dtype;
    data.source = item.place.source;
    data.file = item.place.file;
    data.storage_offset = item.tensor->begin;
    data.file_offset = item.tensor->begin;
    data.storage_bytes = item.tensor->bytes;
    data.dtype = found_dtype;
  } else if (auto low_bit = low_bit_of(item, refuse)) {
    // The tensor's declared type is only nominal and is lost in copies: elements are float32 unless
    // the metadata say otherwise.
    if (can_cast(DType::kFloat32, dtype)) low_bit->dtype = dtype;
    found_shape = low_bit->shape;
    found_dtype = low_bit->dtype;
    data = low_bit_data(item.torch, *low_bit, item.place, spill);
  } else {
    const auto tensor = dense_tensor(item.torch.root);
    if (!tensor) {
      const std::string special = special_tensor(item.torch.root);
      if (special.empty()) throw refuse(ErrorCode::kType, "the item holds no tensor");
      throw refuse(ErrorCode::kUnsupported,
                   "the tensor is " + special_tensor_text(item.torch.root) +
                       (special == "subclass" ? ", which only its own library can take apart"
                                              : ", whose chunks cannot be joined"));
    }
    found_shape = tensor->shape;
    found_dtype = tensor->dtype;
    data = tensor_data(item.torch, *tensor, item.place, spill);
  }
  if (found_dtype != dtype) {
    throw refuse(ErrorCode::kDtype,
                 cat("the item is ", torch_name(found_dtype), ", expected ", torch_name(dtype)));
  }
  if (!std::equal(found_shape.begin(), found_shape.end(), shape.begin(), shape.end())) {
    throw refuse(ErrorCode::kShape, cat("the item has shape ", shape_text(found_shape),
                                        ", expected ", shape_text(shape)));
  }
  return data;
}

}  // namespace fsdp::formats::dcp
