// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "formats/bytes/base/crc32.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/outputs/atomic_file.h"
#include "formats/containers/pickle/writer.h"
#include "formats/families/hdf5/file.h"
#include "formats/families/hdf5/filters.h"
#include "formats/families/hdf5/hdf5.h"
#include "formats/families/hdf5/names.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/checkpoint/source_pieces.h"
#include "formats/state/content/content.h"
#include "formats/state/content/tensor_value.h"
#include "formats/state/content/torch_globals.h"
#include "formats/state/model/division.h"
#include "formats/state/model/tensor_reader.h"

namespace fsdp::formats::hdf5 {
namespace {

// Longer values are in the pickle only.
constexpr std::size_t kMaxTextBytes = 64U << 10U;

// Appends JSON as Python's json module reads it; returns false if the value is not plain.
bool append_json(const Value& value, std::string& out) {
  if (out.size() > kMaxTextBytes) return false;
  switch (value.kind()) {
    case ValueKind::kNone:
      out += "null";
      return true;
    case ValueKind::kBool:
      out += *value.as_bool() ? "true" : "false";
      return true;
    case ValueKind::kInt:
      out += std::to_string(*value.as_int());
      return true;
    case ValueKind::kFloat: {
      const double number = *value.as_float();
      out += std::isnan(number)   ? "NaN"
             : std::isinf(number) ? (number > 0 ? "Infinity" : "-Infinity")
                                  : to_text(Json(number));
      return true;
    }
    case ValueKind::kString:
      if (!is_utf8(*value.as_string())) return false;
      append_json_string(out, *value.as_string());
      return true;
    case ValueKind::kDict:
      if (!value.entries().empty()) return false;
      out += "{}";
      return true;
    case ValueKind::kList:
    case ValueKind::kTuple: {
      out += '[';
      bool first = true;
      for (const Value& item : value.items()) {
        if (!first) out += ", ";
        first = false;
        if (!append_json(item, out)) return false;
      }
      out += ']';
      return true;
    }
    default:
      return false;
  }
}

// Returns whether the tensor is all of its storage, dense and row-major.
bool is_whole(const TensorValue& tensor) {
  return tensor.storage_offset == 0 && !tensor.conjugate && !tensor.negate &&
         tensor.strides == row_major_strides(tensor.shape) &&
         numel_of(tensor.shape) * item_bytes(tensor.dtype) ==
             tensor.storage->numel * item_bytes(tensor.storage->dtype);
}

TorchGlobal meaning_of(const Value& callable) {
  return callable.as_global() == nullptr ? TorchGlobal::kUnknown
                                         : static_cast<TorchGlobal>(callable.global_tag());
}

// A call around a tensor, or the tensor's own: (callable, arguments).
using Call = std::pair<Value, Value>;

// Returns `call` with the tensor inside it replaced by `dense`.
Call wrapped(const Call& call, const ObjectData& dense) {
  const auto items = call.second.items();
  std::vector<Value> args(items.begin(), items.end());
  switch (meaning_of(call.first)) {
    case TorchGlobal::kRebuildParameter:
    case TorchGlobal::kRebuildParameterWithState: {
      if (args[0].as_object() == nullptr) return {dense.callable, dense.args};
      ObjectData inner = *args[0].as_object();
      std::tie(inner.callable, inner.args) = wrapped({inner.callable, inner.args}, dense);
      args[0] = Value::object(std::move(inner));
      return {call.first, Value::tuple(std::move(args))};
    }
    case TorchGlobal::kRebuildFromTypeV2: {
      // (function, type, its arguments, state)
      std::tie(args[0], args[2]) = wrapped({args[0], args[2]}, dense);
      return {call.first, Value::tuple(std::move(args))};
    }
    default:
      return {dense.callable, dense.args};
  }
}

// Returns `root` with each reference to a tensor (content.h) wrapped as that tensor is in the
// checkpoint's own tree: in a Parameter, a Buffer, attributes.  A reference that occurs twice stays
// one value.
Value with_wrappers(const Checkpoint& checkpoint, const Value& root) {
  std::map<TensorRef, Value> made;
  return with_leaves(root, [&](const Leaf& leaf) -> std::optional<Value> {
    const auto number = tensor_number(leaf.value);
    if (!number) return leaf.value;
    const auto own = checkpoint.tensor_value(*number);
    const ObjectData* const object = own ? own->as_object() : nullptr;
    if (object == nullptr || object->by_new) return leaf.value;
    const auto [at, fresh] = made.try_emplace(*dense_tensor(leaf.value)->storage->tensor);
    if (fresh) {
      ObjectData copy = *object;
      std::tie(copy.callable, copy.args) =
          wrapped({copy.callable, copy.args}, *leaf.value.as_object());
      at->second = Value::object(std::move(copy));
    }
    return at->second;
  });
}

// The state of one dataset's elements so far.
struct Progress {
  CrcLedger crc;
  std::vector<Fletcher32> chunks;
  std::vector<std::uint64_t> written;  // bytes of each chunk
};

class Hdf5Output : public Output {
 public:
  Hdf5Output(const Checkpoint& source, const Value& content,
             const std::filesystem::path& destination, const OutputOptions& options)
      : Output(source, destination, options) {
    const Value root = with_wrappers(source, with_values(source, content));
    place(leaves_of(root));
    PickleWriterOptions pickle;
    pickle.storage_key = [&](const StorageRef& storage) {
      return std::to_string(number_of(storage));
    };
    pickle_ = write_pickle(root, pickle);
    add_hidden();
    image_ = laid_out();
    plan_.format = "hdf5";
    plan_.files = {{destination.filename().native(), image_.bytes}};
    count_leaves(content);
  }

  CopyResult write(const CopyOptions& options) override {
    if (options.journal->asked()) {
      throw Error(ErrorCode::kUnsupported,
                  cat(escape(destination_.native()), ": an HDF5 output cannot be resumed"));
    }
    return Output::write(options);
  }

 private:
  void write_file(OutputFile& out, const CopyOptions& options, CopyResult& total) override {
    // A checksum lies between two chunks; written later, it would leave a gap in an uploaded part.
    sums_early_ = out.sent_by_parts();
    total += write_data(out, options);
    write_part(out, pickle_number_, 0, std::as_bytes(std::span(pickle_)),
               [&](std::uint64_t at, std::span<const std::byte> part,
                   std::optional<std::uint32_t> crc) { out.write_at(at, part, crc); });
    finish_dataset(out, pickle_number_);
    write_structure(out);
  }

  // ---- the plan

  void place(const std::vector<Leaf>& leaves) {
    std::vector<KeyPath> tensors;
    for (const Leaf& leaf : leaves) {
      if (is_visible(leaf.value)) tensors.push_back(leaf.path);
    }
    Places places(tensors);
    for (const Leaf& leaf : leaves) {
      if (is_visible(leaf.value)) add_tensor(places.dataset(leaf.path), *dense_tensor(leaf.value));
    }
    for (const Leaf& leaf : leaves) {
      std::string text;
      if (!is_visible(leaf.value) && append_json(leaf.value, text) && text.size() <= kMaxTextBytes)
        file_.texts.push_back({places.attribute(leaf.path), std::move(text)});
    }
  }

  // Returns whether a value becomes a dataset under its own name.  References that content_of makes
  // for tensors do, and so do tensors inside values that are all of their storage.
  static bool is_visible(const Value& value) {
    const auto tensor = dense_tensor(value);
    return tensor && is_whole(*tensor);
  }

  static std::vector<std::int64_t> stored_shape(const TensorValue& tensor) {
    if (tensor.shape.size() <= kMaxRank) return tensor.shape;
    return {static_cast<std::int64_t>(numel_of(tensor.shape))};
  }

  void add_tensor(Path path, const TensorValue& tensor) {
    const auto [at, fresh] =
        numbers_.try_emplace(tensor.storage->identity(), file_.datasets.size());
    if (!fresh) {
      // A view of another dtype or shape cannot be a link; only the pickle holds it.
      const PlannedDataset& known = file_.datasets[at->second];
      if (known.dtype == tensor.dtype && known.shape == stored_shape(tensor))
        file_.links.push_back({std::move(path), at->second});
      return;
    }
    const std::vector<std::int64_t> shape = stored_shape(tensor);
    add_dataset(std::move(path), tensor.dtype, shape,
                chunk_shape_for(shape, item_bytes(tensor.dtype)));
    add_piece(*tensor.storage, at->second);
  }

  void add_piece(const StorageRef& storage, std::size_t dataset) {
    pieces_.push_back(storage.tensor ? reference_piece(source_, *storage.tensor)
                                     : storage_piece(source_, storage));
    piece_datasets_.push_back(dataset);
  }

  void add_dataset(Path path, DType dtype, std::vector<std::int64_t> shape,
                   std::vector<std::int64_t> chunk_shape) {
    const std::uint64_t number = file_.datasets.size();
    // The CRC is a placeholder of the right size.
    file_.datasets.push_back(
        {std::move(path), dtype, std::move(shape), std::move(chunk_shape), 0, number});
  }

  // Returns the dataset that holds a storage of the pickle.  A storage that is not a visible tensor
  // goes into the hidden group.
  std::size_t number_of(const StorageRef& storage) {
    const auto [at, fresh] = numbers_.try_emplace(storage.identity(), file_.datasets.size());
    if (fresh) {
      add_dataset(
          {std::string(kHiddenGroup), std::string(kStoragesName), std::to_string(at->second)},
          storage.dtype, {static_cast<std::int64_t>(storage.numel)}, {});
      add_piece(storage, at->second);
    }
    return at->second;
  }

  void add_hidden() {
    pickle_number_ = file_.datasets.size();
    file_.datasets.push_back({{std::string(kHiddenGroup), std::string(kContentName)},
                              DType::kUInt8,
                              {static_cast<std::int64_t>(pickle_.size())},
                              {},
                              0,
                              std::nullopt});
    structure_number_ = file_.datasets.size();
    file_.datasets.push_back({{std::string(kHiddenGroup), std::string(kStructureCrcName)},
                              DType::kUInt32,
                              {},
                              {},
                              std::nullopt,
                              std::nullopt});
    file_.texts.push_back(
        {{std::string(kHiddenGroup), std::string(kVersionAttribute)}, std::to_string(kVersion)});
  }

  // ---- writing

  Dataset described(std::size_t number) const {
    Dataset out = file_.datasets[number].described();
    const DatasetPlace& place = image_.places[number];
    if (out.numel() == 0) return out;
    out.storage = place.chunks.empty() ? Dataset::Storage::kContiguous : Dataset::Storage::kChunked;
    out.address = place.address;
    for (const std::uint64_t address : place.chunks)
      out.chunks.push_back({address, out.chunk_bytes() + kFletcherBytes, 0});
    return out;
  }

  CopyResult write_data(OutputFile& out, const CopyOptions& options) {
    VisitOptions visiting;
    visiting.threads = options.threads;
    visiting.max_buffer_bytes = options.max_buffer_bytes;
    visiting.on_progress = options.on_progress;
    visiting.cancelled = options.cancelled;
    visiting.team = options.team;
    agree_on_pieces(*options.team, pieces_);
    if (options.team->alone()) {
      visiting.on_piece = [&](std::size_t piece) { finish_dataset(out, piece_datasets_[piece]); };
    }
    CopyResult result = visit_pieces(pieces_, visiting, [&](const TensorBlock& block) {
      const auto put = [&](std::uint64_t at, std::span<const std::byte> bytes,
                           std::optional<std::uint32_t> crc) {
        out.put_at(at, bytes);
        if (out.summed()) out.add_crc(at, bytes.size(), crc ? *crc : crc32(0, bytes));
      };
      write_part(out, piece_datasets_[block.piece], block.offset, block.bytes, put);
    });
    if (!options.team->alone()) {
      join_progress(*options.team);
      for (const std::size_t number : piece_datasets_) finish_dataset(out, number);
    }
    return result;
  }

  // Adds the parts that other members of a team wrote.
  void join_progress(Team& team) {
    Packed mine;
    for (const auto& [number, progress] : progress_) {
      const auto runs = progress.crc.runs();
      mine.number(number).number(runs.size());
      for (const CrcLedger::Run& run : runs) mine.object(run);
      mine.number(progress.chunks.size());
      for (const Fletcher32& sum : progress.chunks) mine.object(sum);
    }
    progress_.clear();
    for (const std::string& sent : team.exchange("checksums of datasets", mine.take())) {
      Unpacked fields(sent);
      while (!fields.empty()) {
        Progress& progress = progress_[fields.number()];
        for (std::uint64_t left = fields.number(); left != 0; --left) {
          const auto run = fields.object<CrcLedger::Run>();
          progress.crc.add(run.begin, run.bytes, run.crc);
        }
        std::vector<Fletcher32> chunks;
        for (std::uint64_t left = fields.number(); left != 0; --left)
          chunks.push_back(fields.object<Fletcher32>());
        if (progress.chunks.empty()) {
          progress.chunks = std::move(chunks);
        } else {
          for (std::size_t c = 0; c < chunks.size(); ++c) progress.chunks.at(c).merge(chunks[c]);
        }
      }
    }
  }

  // Writes bytes of the dense elements from `offset` on by `write(at, bytes, crc)`.
  template <typename Write>
  void write_part(OutputFile& out, std::size_t number, std::uint64_t offset,
                  std::span<const std::byte> bytes, const Write& write) {
    const std::uint32_t crc = crc32(0, bytes);
    const auto runs = runs_for(number);
    {
      const std::lock_guard lock(mutex_);
      Progress& progress = progress_[number];
      progress.crc.add(offset, bytes.size(), crc);
      if (runs && progress.chunks.empty()) {
        progress.chunks.assign(image_.places[number].chunks.size(), Fletcher32(runs->run_bytes));
        progress.written.assign(progress.chunks.size(), 0);
      }
    }
    if (!runs) {
      write(image_.places[number].address + offset, bytes, crc);
      return;
    }
    while (!bytes.empty()) {
      const std::uint64_t c = runs->chunk(offset);
      const std::uint64_t inside = offset - runs->begin(c);
      const auto part =
          bytes.subspan(0, std::min<std::uint64_t>(bytes.size(), runs->bytes(c) - inside));
      Fletcher32 sum(runs->run_bytes);
      sum.add(inside, part);
      write(image_.places[number].chunks[c] + inside, part, std::nullopt);
      std::optional<std::uint32_t> whole;
      {
        const std::lock_guard lock(mutex_);
        Progress& progress = progress_[number];
        progress.chunks[c].merge(sum);
        progress.written[c] += part.size();
        if (progress.written[c] == runs->bytes(c)) whole = progress.chunks[c].value();
      }
      if (whole && sums_early_) {
        const std::vector<std::byte> padding(runs->run_bytes - runs->bytes(c));
        out.write_at(image_.places[number].chunks[c] + runs->bytes(c), padding);
        write_number(out, sum_offset(number, c, *runs), *whole);
      }
      offset += part.size();
      bytes = bytes.subspan(part.size());
    }
  }

  std::uint64_t sum_offset(std::size_t number, std::size_t chunk, const ChunkRuns& runs) const {
    return image_.places[number].chunks[chunk] + runs.run_bytes;
  }

  std::optional<ChunkRuns> runs_for(std::size_t number) const {
    const PlannedDataset& planned = file_.datasets[number];
    if (planned.chunk_shape.empty()) return std::nullopt;
    return runs_of(planned.described());
  }

  // Called when every byte of the dataset is written: adds its checksums.
  void finish_dataset(OutputFile& out, std::size_t number) {
    Progress progress;
    {
      const std::lock_guard lock(mutex_);
      progress = std::move(progress_[number]);
      progress_.erase(number);
    }
    PlannedDataset& planned = file_.datasets[number];
    const auto crc = progress.crc.total(planned.described().bytes());
    if (!crc)
      throw Error(ErrorCode::kHole, path_text(planned.path) + ": was not written completely");
    planned.crc = *crc;
    const auto runs = runs_for(number);
    for (std::size_t c = 0; c < progress.chunks.size(); ++c) {
      if (!sums_early_) write_number(out, sum_offset(number, c, *runs), progress.chunks[c].value());
    }
  }

  static void write_number(OutputFile& out, std::uint64_t offset, std::uint32_t number) {
    std::array<std::byte, 4> bytes{};
    for (unsigned i = 0; i < 4; ++i) bytes[i] = static_cast<std::byte>(number >> (8 * i) & 0xFFU);
    out.write_at(offset, bytes);
  }

  FileImage laid_out() const {
    return in_context([&] { return escape(destination_.native()); },
                      [&] { return lay_out(file_); });
  }

  // Lays the same file out once more, now with the CRCs in its attributes.
  void write_structure(OutputFile& out) {
    const FileImage known = laid_out();
    const auto same = [](const DatasetPlace& a, const DatasetPlace& b) {
      return a.address == b.address && a.chunks == b.chunks;
    };
    if (known.bytes != image_.bytes ||
        !std::equal(known.places.begin(), known.places.end(), image_.places.begin(), same)) {
      throw Error(ErrorCode::kUnsupported,
                  "libhdf5 laid the same file out differently the second time");
    }
    for (const auto& [offset, bytes] : known.structure)
      out.write_at(offset, std::as_bytes(std::span(bytes)));
    write_number(out, image_.places[structure_number_].address, structure_crc_of(known));
  }

  std::uint32_t structure_crc_of(const FileImage& known) const {
    std::vector<Dataset> datasets;
    for (std::size_t i = 0; i < file_.datasets.size(); ++i) datasets.push_back(described(i));
    std::uint32_t crc = 0;
    auto run = known.structure.begin();
    for (const Extent& extent : structure_extents(data_extents(datasets), known.bytes)) {
      const std::uint64_t end = extent.begin + extent.bytes;
      std::uint64_t at = extent.begin;
      for (; run != known.structure.end() && run->first < end; ++run) {
        crc = crc_of_zeros(crc, run->first - at);
        crc = crc32(crc, std::as_bytes(std::span(run->second)));
        at = run->first + run->second.size();
      }
      crc = crc_of_zeros(crc, end - at);
    }
    return crc;
  }

  static std::uint32_t crc_of_zeros(std::uint32_t crc, std::uint64_t bytes) {
    static constexpr std::array<std::byte, 4096> kZeros{};
    for (; bytes > kZeros.size(); bytes -= kZeros.size()) crc = crc32(crc, kZeros);
    return crc32(crc, std::span(kZeros).subspan(0, bytes));
  }

  FilePlan file_;
  std::map<StorageRef::Identity, std::size_t> numbers_;  // datasets by storage
  std::vector<TargetPiece> pieces_;
  std::vector<std::size_t> piece_datasets_;
  std::string pickle_;
  std::size_t pickle_number_ = 0;
  std::size_t structure_number_ = 0;
  FileImage image_;
  bool sums_early_ = false;  // write a chunk's checksum as soon as the chunk is written
  std::mutex mutex_;
  std::map<std::size_t, Progress> progress_;  // of datasets being written
};

}  // namespace

std::vector<std::int64_t> chunk_shape_for(std::span<const std::int64_t> shape,
                                          std::uint64_t item_bytes) {
  const bool empty = std::ranges::any_of(shape, [](std::int64_t n) { return n == 0; });
  if (shape.empty() || shape.size() > kMaxRank || empty) return {};
  std::uint64_t row = item_bytes;
  for (const std::int64_t size : shape) row *= static_cast<std::uint64_t>(size);
  std::vector<std::int64_t> chunk(shape.begin(), shape.end());
  for (std::size_t d = 0; d < shape.size(); ++d) {
    row /= static_cast<std::uint64_t>(shape[d]);
    if (row > kChunkBytes) {
      chunk[d] = 1;
      continue;
    }
    const auto size = static_cast<std::uint64_t>(shape[d]);
    const std::uint64_t most = std::max<std::uint64_t>(1, kChunkBytes / row);
    const std::uint64_t count = (size + most - 1) / most;
    chunk[d] = static_cast<std::int64_t>((size + count - 1) / count);
    break;
  }
  return chunk;
}

std::unique_ptr<Output> plan_hdf5_output(const Checkpoint& source, const Value& content,
                                         const std::filesystem::path& destination,
                                         const OutputOptions& options) {
  return std::make_unique<Hdf5Output>(source, content, destination, options);
}

}  // namespace fsdp::formats::hdf5
