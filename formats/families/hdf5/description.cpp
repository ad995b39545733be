// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hdf5/description.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "formats/bytes/base/byte_reader.h"
#include "formats/bytes/base/checked_math.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/team.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats::hdf5 {
namespace {

// The last bytes of a complete description.
constexpr std::string_view kEnd = "h5-end\n";
constexpr std::uint32_t kMaxPathSteps = 1000;

class Encoder : public Packed {
 public:
  void path(const Path& path) {
    number(path.size());
    for (const std::string& step : path) text(step);
  }
  template <typename T>
  void numbers(const std::vector<T>& values) {
    number(values.size());
    for (const T value : values) number(static_cast<std::uint64_t>(value));
  }
  template <typename T>
  void optional(const std::optional<T>& value) {
    number(value.has_value() ? 1 : 0).number(value.value_or(0));
  }
};

void encode_dataset(const Dataset& dataset, Encoder& out) {
  out.path(dataset.path);
  out.number(static_cast<std::uint64_t>(dataset.dtype));
  out.numbers(dataset.shape);
  out.number(static_cast<std::uint64_t>(dataset.storage));
  out.text(dataset.fill);
  out.number(dataset.address);
  out.text(dataset.data);
  out.numbers(dataset.chunk_shape);
  out.numbers(dataset.filters);
  out.number(dataset.chunks.size());
  for (const StoredChunk& chunk : dataset.chunks) {
    out.number(chunk.address).number(chunk.bytes).number(chunk.filter_mask);
  }
  out.optional(dataset.crc);
  out.optional(dataset.number);
}

[[noreturn]] void unsound(const std::string& why) {
  throw Error(ErrorCode::kH5ReaderFailed,
              "the reading process sent an invalid description: " + why);
}

class Decoder {
 public:
  explicit Decoder(std::span<const std::byte> bytes) : in_(bytes) {}

  std::uint64_t number(std::string_view what) { return in_.u64(what); }
  std::uint64_t number_below(std::uint64_t limit, std::string_view what) {
    const std::uint64_t value = number(what);
    if (value >= limit) unsound(cat(what, " is ", value));
    return value;
  }
  // Reads a count of things that take at least `least` bytes each.
  std::size_t count(std::uint64_t least, std::string_view what) {
    const std::uint64_t value = number(what);
    if (value > in_.remaining() / least) unsound(cat(what, " is ", value));
    return static_cast<std::size_t>(value);
  }
  std::string text(std::string_view what) {
    const std::size_t size = count(1, what);
    return std::string(in_.text(size, what));
  }
  Path path() {
    const std::size_t steps = count(8, "path length");
    if (steps > kMaxPathSteps) unsound(cat("path length is ", steps));
    Path path(steps);
    for (std::string& step : path) step = text("name");
    return path;
  }
  std::vector<std::int64_t> sizes(std::string_view what) {
    const std::size_t rank = count(8, what);
    if (rank > kMaxRank) unsound(cat("rank of ", what, " is ", rank));
    std::vector<std::int64_t> sizes(rank);
    for (std::int64_t& size : sizes)
      size = static_cast<std::int64_t>(number_below(std::uint64_t{1} << 63U, what));
    return sizes;
  }
  std::optional<std::uint64_t> optional(std::uint64_t limit, std::string_view what) {
    const bool has = number_below(2, what) == 1;
    const std::uint64_t value = number(what);
    if (!has) return std::nullopt;
    if (value > limit) unsound(cat(what, " is ", value));
    return value;
  }
  void end() {
    if (in_.text(kEnd.size(), "end mark") != kEnd || in_.remaining() != 0) unsound("no end mark");
  }

 private:
  ByteReader in_;
};

[[noreturn]] void outside(std::uint64_t begin, std::uint64_t bytes, std::uint64_t file_bytes) {
  throw Error(ErrorCode::kExtent, cat("data at byte ", begin, " take ", bytes,
                                      " bytes, but the file has ", file_bytes));
}

void check_inside(std::uint64_t begin, std::uint64_t bytes, std::uint64_t file_bytes) {
  if (bytes > file_bytes || begin > file_bytes - bytes) outside(begin, bytes, file_bytes);
}

// Checks that a chunk's stored size follows from its filters.
void check_chunk(const Dataset& dataset, const StoredChunk& chunk, std::uint64_t file_bytes) {
  if (chunk.bytes == 0) return;
  check_inside(chunk.address, chunk.bytes, file_bytes);
  bool deflated = false;
  std::uint64_t expected = dataset.chunk_bytes();
  for (std::size_t f = 0; f < dataset.filters.size(); ++f) {
    if ((chunk.filter_mask >> f & 1U) != 0) continue;
    deflated = deflated || dataset.filters[f] == Filter::kDeflate;
    if (dataset.filters[f] == Filter::kFletcher32) expected += kFletcherBytes;
  }
  if (!deflated && chunk.bytes != expected) {
    throw Error(ErrorCode::kH5Open, cat("the chunk at byte ", chunk.address, " has ", chunk.bytes,
                                        " bytes, expected ", expected));
  }
}

void check_dataset(const Dataset& dataset, std::uint64_t file_bytes) {
  check_claim(dataset, file_bytes);
  if (dataset.fill.size() != item_bytes(dataset.dtype)) unsound("a fill value of another size");
  switch (dataset.storage) {
    case Dataset::Storage::kFill:
      return;
    case Dataset::Storage::kContiguous:
      return check_inside(dataset.address, dataset.bytes(), file_bytes);
    case Dataset::Storage::kCompact:
      if (dataset.data.size() != dataset.bytes()) unsound("compact data of another size");
      return;
    case Dataset::Storage::kChunked:
      break;
  }
  std::uint64_t cells = 1;
  for (const std::int64_t size : grid_of(dataset)) cells *= static_cast<std::uint64_t>(size);
  if (dataset.chunks.size() != cells) unsound("another number of chunks than in the grid");
  for (const StoredChunk& chunk : dataset.chunks) check_chunk(dataset, chunk, file_bytes);
}

Dataset decode_dataset(Decoder& in, std::uint64_t file_bytes) {
  Dataset dataset;
  dataset.path = in.path();
  if (dataset.path.empty()) unsound("a dataset without a name");
  dataset.dtype = static_cast<DType>(
      in.number_below(static_cast<std::uint64_t>(DType::kQUInt2x4) + 1, "dtype"));
  dataset.shape = in.sizes("shape");
  dataset.storage = static_cast<Dataset::Storage>(in.number_below(4, "storage"));
  dataset.fill = in.text("fill value");
  dataset.address = in.number("address");
  dataset.data = in.text("compact data");
  dataset.chunk_shape = in.sizes("chunk shape");
  const std::size_t filters = in.count(8, "filters");
  for (std::size_t i = 0; i < filters; ++i) {
    const std::uint64_t filter = in.number_below(4, "filter");
    if (filter == 0) unsound("filter 0");
    dataset.filters.push_back(static_cast<Filter>(filter));
  }
  if (filters > 32) unsound("more than 32 filters");
  const std::size_t chunks = in.count(24, "chunks");
  dataset.chunks.reserve(chunks);
  for (std::size_t i = 0; i < chunks; ++i) {
    StoredChunk chunk;
    chunk.address = in.number("chunk address");
    chunk.bytes = in.number("chunk bytes");
    chunk.filter_mask = static_cast<std::uint32_t>(in.number_below(1ULL << 32U, "filter mask"));
    dataset.chunks.push_back(chunk);
  }
  if (const auto crc = in.optional(UINT32_MAX, "crc32"))
    dataset.crc = static_cast<std::uint32_t>(*crc);
  dataset.number = in.optional(UINT64_MAX, "storage number");
  in_context([&] { return path_text(dataset.path); }, [&] { check_dataset(dataset, file_bytes); });
  return dataset;
}

void encode_scalar(const Scalar& scalar, Encoder& out) {
  out.number(scalar.index());
  if (const auto* flag = std::get_if<bool>(&scalar)) out.number(*flag ? 1 : 0);
  if (const auto* number = std::get_if<std::int64_t>(&scalar))
    out.number(static_cast<std::uint64_t>(*number));
  if (const auto* number = std::get_if<std::uint64_t>(&scalar)) out.number(*number);
  if (const auto* number = std::get_if<double>(&scalar))
    out.number(std::bit_cast<std::uint64_t>(*number));
  if (const auto* text = std::get_if<std::string>(&scalar)) out.text(*text);
}

Scalar decode_scalar(Decoder& in) {
  switch (in.number_below(5, "kind of value")) {
    case 0:
      return in.number_below(2, "truth value") == 1;
    case 1:
      return static_cast<std::int64_t>(in.number("number"));
    case 2:
      return in.number("number");
    case 3:
      return std::bit_cast<double>(in.number("number"));
    default:
      return in.text("text");
  }
}

Attribute decode_attribute(Decoder& in) {
  Attribute attribute;
  attribute.path = in.path();
  if (attribute.path.empty()) unsound("an attribute without a name");
  attribute.is_list = in.number_below(2, "list flag") == 1;
  const std::size_t items = in.count(16, "items");
  for (std::size_t i = 0; i < items; ++i) attribute.items.push_back(decode_scalar(in));
  if (!attribute.is_list && attribute.items.size() > 1)
    unsound("several items in an attribute that is not a list");
  return attribute;
}

}  // namespace

std::uint64_t Dataset::numel() const {
  std::uint64_t numel = 1;
  for (const std::int64_t size : shape) numel *= static_cast<std::uint64_t>(size);
  return numel;
}

std::uint64_t Dataset::chunk_bytes() const {
  std::uint64_t bytes = item_bytes(dtype);
  for (const std::int64_t size : chunk_shape) bytes *= static_cast<std::uint64_t>(size);
  return bytes;
}

std::string path_text(const Path& path) {
  std::string text;
  for (const std::string& step : path) text += "/" + escape(step);
  return text.empty() ? "/" : text;
}

std::vector<std::int64_t> grid_of(const Dataset& dataset) {
  std::vector<std::int64_t> grid;
  for (std::size_t d = 0; d < dataset.shape.size(); ++d) {
    const std::int64_t size = dataset.shape[d];
    const std::int64_t chunk = dataset.chunk_shape[d];
    grid.push_back(size / chunk + (size % chunk != 0 ? 1 : 0));
  }
  return grid;
}

void check_claim(const Dataset& dataset, std::uint64_t file_bytes) {
  // Even the smallest file may hold small datasets that consist of fill value only.
  const std::uint64_t most = checked_mul(std::max<std::uint64_t>(file_bytes, 64), kMaxExpansion,
                                         "what the file can stand for");
  std::uint64_t numel = 0;
  try {
    numel = checked_numel(dataset.shape, "number of elements");
  } catch (const Error&) {
    numel = UINT64_MAX;
  }
  if (numel > most / item_bytes(dataset.dtype)) {
    throw Error(ErrorCode::kLimitSize,
                cat("claims shape ", shape_text(dataset.shape), " of ", torch_name(dataset.dtype),
                    ", more than a file of ", file_bytes, " bytes can expand to"));
  }
  if (dataset.storage != Dataset::Storage::kChunked) return;
  if (dataset.chunk_shape.size() != dataset.shape.size()) {
    throw Error(ErrorCode::kH5Open, cat("chunks have ", dataset.chunk_shape.size(),
                                        " dimensions, expected ", dataset.shape.size()));
  }
  std::uint64_t bytes = item_bytes(dataset.dtype);
  for (const std::int64_t size : dataset.chunk_shape) {
    if (size <= 0) throw Error(ErrorCode::kH5Open, "chunks without elements");
    bytes = checked_mul(bytes, static_cast<std::uint64_t>(size), "chunk size");
  }
  std::uint64_t cells = 1;
  for (const std::int64_t size : grid_of(dataset))
    cells = checked_mul(cells, static_cast<std::uint64_t>(size), "number of chunks");
  // A chunk that is stored takes bytes of its own and a place in an index.
  const std::uint64_t most_cells =
      std::min(kMaxGridCells, std::max(kFreeGridCells, file_bytes / kLeastChunkBytes));
  if (cells > most_cells) {
    throw Error(ErrorCode::kLimitSize, cat("has ", cells, " chunks, at most ", most_cells,
                                           " in a file of ", file_bytes, " bytes"));
  }
  const bool undone =
      std::ranges::any_of(dataset.filters, [](Filter f) { return f != Filter::kFletcher32; });
  if (undone && bytes > kMaxFilteredChunkBytes) {
    throw Error(ErrorCode::kLimitSize, cat("chunks with filters have ", bytes, " bytes, at most ",
                                           kMaxFilteredChunkBytes));
  }
}

std::string encode(const Description& description) {
  Encoder out;
  out.number(description.datasets.size());
  for (const Dataset& dataset : description.datasets) encode_dataset(dataset, out);
  out.number(description.attributes.size());
  for (const Attribute& attribute : description.attributes) {
    out.path(attribute.path);
    out.number(attribute.is_list ? 1 : 0);
    out.number(attribute.items.size());
    for (const Scalar& item : attribute.items) encode_scalar(item, out);
  }
  out.number(description.empty_groups.size());
  for (const Path& path : description.empty_groups) out.path(path);
  out.number(description.left_out.size());
  for (const LeftOut& left_out : description.left_out) {
    out.path(left_out.path);
    out.text(left_out.what);
  }
  std::string sent = out.take();
  sent += kEnd;
  return sent;
}

Description decode(std::span<const std::byte> bytes, std::uint64_t file_bytes) {
  Description description;
  try {
    Decoder in(bytes);
    for (std::size_t n = in.count(8, "datasets"); n > 0; --n)
      description.datasets.push_back(decode_dataset(in, file_bytes));
    for (std::size_t n = in.count(8, "attributes"); n > 0; --n)
      description.attributes.push_back(decode_attribute(in));
    for (std::size_t n = in.count(8, "empty groups"); n > 0; --n)
      description.empty_groups.push_back(in.path());
    for (std::size_t n = in.count(8, "left out"); n > 0; --n) {
      LeftOut left_out;
      left_out.path = in.path();
      left_out.what = in.text("what");
      description.left_out.push_back(std::move(left_out));
    }
    in.end();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kTruncated) unsound(error.what());
    throw;
  }
  return description;
}

std::optional<ChunkRuns> runs_of(const Dataset& dataset) {
  const std::size_t rank = dataset.shape.size();
  std::size_t cut = 0;
  while (cut + 1 < rank && dataset.chunk_shape[cut] == 1) ++cut;
  std::uint64_t row = item_bytes(dataset.dtype);
  for (std::size_t d = cut + 1; d < rank; ++d) {
    if (dataset.chunk_shape[d] != dataset.shape[d]) return std::nullopt;
    row *= static_cast<std::uint64_t>(dataset.shape[d]);
  }
  ChunkRuns runs;
  runs.run_bytes = row * static_cast<std::uint64_t>(dataset.chunk_shape[cut]);
  runs.group_bytes = row * static_cast<std::uint64_t>(dataset.shape[cut]);
  runs.group = (runs.group_bytes + runs.run_bytes - 1) / runs.run_bytes;
  return runs;
}

std::vector<Extent> data_extents(std::span<const Dataset> datasets) {
  std::vector<Extent> extents;
  for (const Dataset& dataset : datasets) {
    if (dataset.storage == Dataset::Storage::kContiguous)
      extents.push_back({dataset.address, dataset.bytes()});
    for (const StoredChunk& chunk : dataset.chunks) {
      if (chunk.bytes != 0) extents.push_back({chunk.address, chunk.bytes});
    }
  }
  const auto key = [](const Extent& e) { return std::pair(e.begin, e.bytes); };
  std::ranges::sort(extents, [&](const Extent& a, const Extent& b) { return key(a) < key(b); });
  const auto last = std::unique(extents.begin(), extents.end(),
                                [&](const auto& a, const auto& b) { return key(a) == key(b); });
  extents.erase(last, extents.end());
  return extents;
}

std::vector<Extent> structure_extents(std::span<const Extent> data, std::uint64_t file_bytes) {
  std::vector<Extent> between;
  std::uint64_t at = 0;
  for (const Extent& extent : data) {
    if (extent.begin < at) {
      throw Error(
          ErrorCode::kExtentOverlap,
          cat("data at byte ", extent.begin, " begin inside other data, which end at byte ", at));
    }
    if (extent.begin > at) between.push_back({at, extent.begin - at});
    at = extent.begin + extent.bytes;
  }
  if (at < file_bytes) between.push_back({at, file_bytes - at});
  return between;
}

}  // namespace fsdp::formats::hdf5
