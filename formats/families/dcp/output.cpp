// SPDX-License-Identifier: Apache-2.0
#include "formats/families/dcp/output.h"

#include <sys/resource.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/store/store.h"
#include "formats/families/dcp/megatron.h"
#include "formats/families/dcp/names.h"
#include "formats/families/dcp/rank_writer.h"
#include "formats/families/dcp/source_plan.h"
#include "formats/families/torch/writer.h"
#include "formats/state/checkpoint/source_pieces.h"
#include "formats/state/content/content.h"

namespace fsdp::formats {
namespace {

using dcp::SourcePlan;
using dcp::TensorItem;
using dcp::ValueItem;

// Pieces copied at once, each a few hundred bytes of memory.  A batch ends after a whole tensor:
// all parts of a storage pass together, along with its checksum.
constexpr std::size_t kBatchPieces = 100'000;
// Descriptors for everything but data files.
constexpr std::int64_t kSpareDescriptors = 128;
// Files of the source that may be open at once, beyond those that a single piece needs.
constexpr std::int64_t kPooledFiles = 256;

// Returns the number of files that may be open for writing at once, besides those of the source:
// the least of all members of a team, which must write the same files at once.
std::int64_t files_at_once(Team& team, std::size_t source_files) {
  std::int64_t least = kPooledFiles;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    const auto most = static_cast<std::int64_t>(std::min<rlim_t>(limit.rlim_cur, 1U << 24U));
    least = std::max<std::int64_t>(
        16, most - static_cast<std::int64_t>(source_files) - kPooledFiles - kSpareDescriptors);
  }
  const std::string mine = Packed().number(static_cast<std::uint64_t>(least)).take();
  for (const std::string& other : team.exchange("open files", mine))
    least = std::min(least, static_cast<std::int64_t>(Unpacked(other).number()));
  return least;
}

// Returns a number that no data file in the folder has, if that lies in a store: while the folder
// is replaced, its old metadata then still lead to its old data.
std::int64_t free_number(const std::filesystem::path& destination, const std::string& prefix) {
  const Store* const store = store_of(destination.native());
  if (store == nullptr) return 0;
  std::string url = cat(destination.native(), "/", prefix);
  while (url.ends_with('/')) url.pop_back();
  const auto entries = store->list(url);
  std::set<std::string> names;
  if (entries) {
    for (const StoredEntry& entry : *entries) names.insert(entry.name);
  }
  const auto taken = [&](std::int64_t number) {
    return std::ranges::any_of(names, [&](const std::string& name) {
      const auto rank = dcp::rank_of_data_file(name);
      return rank && name == dcp::data_file_name(*rank, number);
    });
  };
  std::int64_t number = 0;
  while (taken(number)) ++number;
  return number;
}

void write_text(OutputFile& file, std::uint64_t offset, std::string_view text) {
  file.write_at(offset, std::as_bytes(std::span(text)));
}

// The files of ranks [first, first + files.size()), and the pieces that are being copied into them.
class FilesOfOneRank {
 public:
  FilesOfOneRank(const Checkpoint& source, const SourcePlan& layout, std::string prefix,
                 const CopyOptions& options, CopyResult& total)
      : source_(source),
        layout_(layout),
        prefix_(std::move(prefix)),
        options_(options),
        total_(total) {}

  void write(AtomicFolder& folder, std::int64_t first, std::int64_t count, bool sync) {
    first_ = first;
    for (std::int64_t rank = first; rank < first + count; ++rank) {
      files_.push_back(&folder.add_file(prefix_ + layout_.file_name(rank)));
      if (layout_.file_bytes(rank) != 0) files_.back()->reserve(layout_.file_bytes(rank));
    }
    for (const ValueItem& item : layout_.values()) add_value(item);
    SourcePlan::Cursor cursor(layout_);
    for (const TensorItem& item : layout_.tensors()) {
      add_tensor(item, cursor);
      if (pieces_.size() >= kBatchPieces) copy();
    }
    copy();
    for (OutputFile* file : files_) {
      if (options_.cancelled && options_.cancelled())
        throw Error(ErrorCode::kInterrupted, "interrupted");
      file->finish(sync);
    }
  }

 private:
  // An item whose payload is being copied; the archive's other parts and the checksum are written
  // later.
  struct OpenItem {
    std::shared_ptr<TorchSaveLayout> layout;
    OutputFile* file;
    std::uint64_t offset;
    std::size_t first_piece;
    std::size_t piece_count;
    std::size_t pieces_left;
  };

  using Place = std::pair<std::uint32_t, std::uint64_t>;  // file, byte
  static Place place_of(const TensorEntry& tensor) {
    if (tensor.chunks.size() == 0) return {};
    return {tensor.chunks.location(0).file, tensor.chunks.location(0).offset};
  }

  OutputFile* file_of(std::int64_t rank) const {
    if (rank < first_ || rank >= first_ + static_cast<std::int64_t>(files_.size())) return nullptr;
    return files_[static_cast<std::size_t>(rank - first_)];
  }

  void add_value(const ValueItem& item) {
    OutputFile* const file = file_of(item.rank);
    if (file == nullptr) return;
    if (!item.encoded.empty()) return write_text(*file, item.offset, item.encoded);
    const Value value = resolved(source_, layout_.entries()[item.entry].value);
    auto layout = std::make_shared<TorchSaveLayout>(value);
    if (layout->bytes() != item.bytes) {
      throw Error(
          ErrorCode::kChanged,
          cat(source_.description().path, ": ", quote(layout_.entries()[item.entry].key, 200),
              ": is not the value it was when the output was planned"));
    }
    const std::size_t first = pieces_.size();
    for (std::size_t s = 0; s < layout->storages().size(); ++s) {
      const StorageRef& storage = layout->storages()[s];
      TargetPiece piece = storage.tensor ? reference_piece(source_, *storage.tensor)
                                         : storage_piece(source_, storage);
      piece.file = file;
      piece.offset = item.offset + layout->storage_offset(s);
      pieces_.push_back(std::move(piece));
      read_from_.emplace_back();
    }
    open_.push_back({std::move(layout), file, item.offset, first, pieces_.size() - first,
                     pieces_.size() - first});
    if (pieces_.size() >= kBatchPieces || open_.size() >= kBatchPieces) copy();
  }

  void add_tensor(const TensorItem& item, SourcePlan::Cursor& cursor) {
    const TensorEntry& tensor = source_.index().tensors[item.tensor];
    const auto from = std::make_shared<TensorSource>(source_, item.tensor, chunks_);
    std::shared_ptr<TorchSaveLayout> layout;  // of a chunk of this size
    std::vector<std::int64_t> size;
    item.for_each_chunk([&](const dcp::ChunkItem& chunk) {
      const std::uint64_t offset = cursor.next(chunk.rank, chunk.bytes);
      OutputFile* const file = file_of(chunk.rank);
      if (file == nullptr) return;
      if (!layout || size != chunk.box.size) {
        size = chunk.box.size;
        layout = std::make_shared<TorchSaveLayout>(dcp::chunk_object(item.dtype, size));
      }
      TargetPiece piece = box_piece(from, chunk.box, item.dtype);
      piece.file = file;
      piece.offset = offset + layout->storage_offset(0);
      open_.push_back({layout, file, offset, pieces_.size(), 1, 1});
      pieces_.push_back(std::move(piece));
      read_from_.push_back(place_of(tensor));
    });
  }

  void copy() {
    // The source is read front to back.
    std::vector<std::uint32_t> order(pieces_.size());
    std::iota(order.begin(), order.end(), 0U);
    std::ranges::stable_sort(
        order, [&](std::uint32_t a, std::uint32_t b) { return read_from_[a] < read_from_[b]; });
    std::vector<TargetPiece> sorted;
    sorted.reserve(pieces_.size());
    for (const std::uint32_t piece : order) sorted.push_back(std::move(pieces_[piece]));
    CopyOptions options = options_.after(total_);
    std::vector<std::uint32_t> crcs(order.size());
    std::vector<OpenItem*> items;  // of each piece
    // A store is sent a part of a file as soon as the part has no gaps.
    const bool early = !files_.empty() && files_.front()->sent_by_parts();
    if (early) {
      for (OpenItem& item : open_) {
        items.insert(items.end(), item.piece_count, &item);
        if (item.piece_count == 0) write_rest(item, crcs);
      }
      options.on_piece = [&](std::size_t number, std::uint32_t crc) {
        const std::uint32_t piece = order[number];
        crcs[piece] = crc;
        if (--items[piece]->pieces_left == 0) write_rest(*items[piece], crcs);
      };
    }
    const CopyResult result = copy_pieces(sorted, options);
    total_ += result;
    if (!early) {
      for (std::size_t i = 0; i < order.size(); ++i) crcs[order[i]] = result.crcs[i];
      for (const OpenItem& item : open_) write_rest(item, crcs);
    }
    pieces_.clear();
    read_from_.clear();
    open_.clear();
  }

  // `crcs`: of all pieces.
  static void write_rest(const OpenItem& item, std::span<const std::uint32_t> crcs) {
    item.layout->write_rest(crcs.subspan(item.first_piece, item.piece_count),
                            [&](std::uint64_t offset, std::span<const std::byte> bytes) {
                              item.file->write_at(item.offset + offset, bytes);
                            });
  }

  const Checkpoint& source_;
  const SourcePlan& layout_;
  const std::string prefix_;
  const CopyOptions& options_;
  CopyResult& total_;
  std::int64_t first_ = 0;
  std::vector<OutputFile*> files_;
  std::shared_ptr<ChunkCache> chunks_ = std::make_shared<ChunkCache>();
  std::vector<TargetPiece> pieces_;
  std::vector<Place> read_from_;  // beginning of each piece's tensor in the source
  std::vector<OpenItem> open_;
};

class FolderOutput : public Output {
 public:
  FolderOutput(const Checkpoint& source, const Value& content,
               const std::filesystem::path& destination, const OutputOptions& options,
               const DcpOutputOptions& dcp)
      : Output(source, destination, options),
        prefix_(dcp.folder),
        kind_(dcp.layout.empty() ? source.description().layout : dcp.layout),
        layout_(source, content, kind_, dcp.world_size, dcp.choice, dcp.on_value) {
    if (dcp.meta) {
      if (!dcp.meta->entries().empty()) meta_.emplace(source, *dcp.meta);
      meta_values_ = dcp.meta->entries().size();
    } else if (!dcp::state_file_of(kind_).empty()) {
      state_file_ = dcp::state_file_of(kind_);
      meta_.emplace(source, Value::dict(layout_.state_file()));
    }
    if (options.replace) layout_.number_files(free_number(destination, prefix_));
    plan();
  }

  void write_files(AtomicFolder& folder, const CopyOptions& options, CopyResult& total) override {
    const std::int64_t ranks = layout_.world_size();
    const std::int64_t at_once = files_at_once(*options.team, source_.index().files.size());
    for (std::int64_t first = 0; first < ranks; first += at_once) {
      FilesOfOneRank(source_, layout_, prefix_, options, total)
          .write(folder, first, std::min(at_once, ranks - first), options_.sync);
    }
    if (meta_) {
      OutputFile& file = folder.add_file(prefix_ + state_file_);
      meta_->write(file, options);
    }
    dcp::write_metadata_file(folder.add_file(prefix_ + std::string(dcp::kMetadataName)), layout_);
    if (dcp::is_megatron_layout(kind_)) {
      write_text(folder.add_file(prefix_ + std::string(dcp::kMegatronMetadataName)), 0,
                 dcp::megatron_metadata(kind_));
    }
  }

 private:
  void plan() {
    plan_.format = "dcp";
    plan_.folder = true;
    for (std::int64_t rank = 0; rank < layout_.world_size(); ++rank)
      plan_.files.push_back({prefix_ + layout_.file_name(rank), layout_.file_bytes(rank)});
    if (meta_) plan_.files.push_back({prefix_ + state_file_, meta_->file_bytes()});
    std::uint64_t metadata_bytes = 0;
    layout_.write_metadata([&](std::string_view block) { metadata_bytes += block.size(); });
    plan_.files.push_back({prefix_ + std::string(dcp::kMetadataName), metadata_bytes});
    if (dcp::is_megatron_layout(kind_)) {
      plan_.files.push_back({prefix_ + std::string(dcp::kMegatronMetadataName),
                             dcp::megatron_metadata(kind_).size()});
    }
    plan_.tensors = layout_.tensors().size();
    plan_.values = layout_.value_count() + meta_values_;
    for (const TensorItem& item : layout_.tensors()) {
      plan_.tensor_bytes += source_.index().tensors[item.tensor].bytes();
      ++(item.cut ? plan_.cut_tensors : plan_.whole_tensors);
    }
  }

  const std::string prefix_;
  const std::string kind_;
  SourcePlan layout_;
  std::string state_file_ = std::string(dcp::kLightningMetaName);
  std::optional<TorchSaveWriter> meta_;
  std::size_t meta_values_ = 0;
};

}  // namespace

std::unique_ptr<Output> plan_dcp_output(const Checkpoint& source, const Value& content,
                                        const std::filesystem::path& destination,
                                        const OutputOptions& options, const DcpOutputOptions& dcp) {
  return std::make_unique<FolderOutput>(source, content, destination, options, dcp);
}

}  // namespace fsdp::formats
