// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/piece_reader.h"

#include <algorithm>

#include "formats/bytes/base/crc32.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

// Small enough that the checksum finds the bytes read in the cache.
constexpr std::uint64_t kRunStepBytes = 1U << 18U;
// Storages that are read only for their checksum are read in portions of this size.
constexpr std::size_t kCheckBytes = 1U << 20U;

// Returns whether the rows of `part` are contiguous in a dense row-major tensor of size `whole`.
bool is_run(std::span<const std::int64_t> part, std::span<const std::int64_t> whole) {
  std::size_t d = 0;
  while (d < part.size() && part[d] == 1) ++d;
  for (++d; d < part.size(); ++d) {
    if (part[d] != whole[d]) return false;
  }
  return true;
}

// Returns the number of elements before `at` in a dense row-major box.
std::uint64_t position(std::span<const std::int64_t> at, const Box& box) {
  std::uint64_t result = 0;
  for (std::size_t d = 0; d < at.size(); ++d) {
    result = result * static_cast<std::uint64_t>(box.size[d]) +
             static_cast<std::uint64_t>(at[d] - box.offset[d]);
  }
  return result;
}

// Returns the first of the boxes that make up elements [first, first + count) of a dense row-major
// box: some dimensions fixed, a range of the next, all of the rest.  Any range takes at most 2 *
// rank boxes.
Box leading_box(const Box& box, std::uint64_t first, std::uint64_t count) {
  Box part = box;
  std::uint64_t step = volume(box.view());  // elements from one index of dimension d to the next
  std::uint64_t rest = first;
  for (std::size_t d = 0; d < box.size.size(); ++d) {
    const auto size = static_cast<std::uint64_t>(box.size[d]);
    step /= size;
    const std::uint64_t index = rest / step;
    rest %= step;
    part.offset[d] = box.offset[d] + static_cast<std::int64_t>(index);
    if (rest == 0 && step <= count) {
      part.size[d] = static_cast<std::int64_t>(std::min(count / step, size - index));
      return part;
    }
    part.size[d] = 1;
  }
  return part;
}

// Transforms the elements of `part`, row by row within a slab.
void transform_part(const ChunkData& data, const Box& part, std::span<std::byte> out,
                    const std::vector<std::int64_t>& strides) {
  const std::uint64_t item = item_bytes(data.dtype);
  const std::size_t rank = part.size.size();
  const std::uint64_t row =
      rank == 0 ? item : static_cast<std::uint64_t>(part.size[rank - 1]) * item;
  const std::uint64_t rows =
      rank == 0 ? 1 : volume(part.view()) / static_cast<std::uint64_t>(part.size[rank - 1]);
  for (std::uint64_t r = 0; r < rows; ++r) {
    std::uint64_t rest = r;
    std::uint64_t at = 0;
    for (std::size_t d = rank < 2 ? 0 : rank - 1; d-- > 0;) {
      const auto size = static_cast<std::uint64_t>(part.size[d]);
      at += (rest % size) * static_cast<std::uint64_t>(strides[d]);
      rest /= size;
    }
    transform_elements(data, out.subspan(at * item, row));
  }
}

}  // namespace

void StorageChecks::note(const std::string& key, const ChunkData& data, bool counts) {
  const std::lock_guard lock(mutex_);
  if (!wants(data)) {
    if (!data.self_checked && counts) unchecked_bytes_ += data.storage_bytes;
    return;
  }
  PartialRead read;
  read.file = data.file;
  read.key = key;
  read.file_offset = data.file_offset;
  read.storage_bytes = data.storage_bytes;
  read.crc = *data.crc;
  read.mismatch = data.mismatch;
  storages_.try_emplace(name_of(data), Storage{std::move(read), data});
}

void StorageChecks::read(const ChunkData& data, const DenseRun& run) {
  if (!wants(data)) return;
  const std::lock_guard lock(mutex_);
  // If not found, another piece read the storage whole meanwhile, and it was settled.
  const auto found = storages_.find(name_of(data));
  if (found != storages_.end()) found->second.read.ledger.add(run.begin, run.bytes, run.crc);
}

void StorageChecks::settle(std::span<const SourceChunk> sources) {
  const std::lock_guard lock(mutex_);
  for (const SourceChunk& source : sources) {
    const auto found = storages_.find(name_of(source.data));
    if (found == storages_.end()) continue;
    const auto computed = found->second.read.ledger.total(source.data.storage_bytes);
    if (!computed) continue;
    check_crc(found->second.read, *computed);
    storages_.erase(found);
  }
}

void StorageChecks::finish(std::span<std::byte> buffer, const std::function<bool()>& cancelled) {
  const std::lock_guard lock(mutex_);
  for (const auto& [name, storage] : storages_) {
    const ChunkData& data = storage.data;
    auto crc = storage.read.ledger.total(data.storage_bytes);
    if (!crc) {
      crc = 0;
      for (std::uint64_t at = 0; at < data.storage_bytes; at += buffer.size()) {
        if (cancelled && cancelled()) throw Error(ErrorCode::kInterrupted, "interrupted");
        const auto part =
            buffer.subspan(0, std::min<std::uint64_t>(buffer.size(), data.storage_bytes - at));
        data.source->read_at(data.storage_offset + at, part);
        crc = crc32(*crc, part);
      }
    }
    check_crc(storage.read, *crc);
  }
  storages_.clear();
}

void StorageChecks::finish(std::span<const TargetPiece> pieces,
                           const std::function<bool()>& cancelled) {
  std::size_t unseen = 0;
  for (const auto& [name, storage] : storages_) unseen += storage.data.source == nullptr ? 1 : 0;
  for (std::size_t i = 0; i < pieces.size() && unseen != 0; ++i) {
    if (volume(pieces[i].box.view()) == 0) continue;
    for (const SourceChunk& source : pieces[i].sources()) {
      const auto found = storages_.find(name_of(source.data));
      if (found == storages_.end() || found->second.data.source != nullptr) continue;
      found->second.data = source.data;
      --unseen;
    }
  }
  std::vector<std::byte> buffer(storages_.empty() ? 0 : kCheckBytes);
  finish(buffer, cancelled);
}

void StorageChecks::restore(std::span<const PartialRead> reads, std::uint64_t unchecked_bytes) {
  const std::lock_guard lock(mutex_);
  for (const PartialRead& read : reads) add({read, {}});
  unchecked_bytes_ += unchecked_bytes;
}

void StorageChecks::absorb(StorageChecks& other) {
  const std::scoped_lock lock(mutex_, other.mutex_);
  for (auto& [name, storage] : other.storages_) add(std::move(storage));
  other.storages_.clear();
  unchecked_bytes_ += std::exchange(other.unchecked_bytes_, 0);
}

// Adds parts that were read of a storage, and compares it if it is complete.
void StorageChecks::add(Storage storage) {
  const Name name{storage.read.file, storage.read.file_offset};
  const auto [at, fresh] = storages_.try_emplace(name, std::move(storage));
  if (!fresh) {
    for (const auto& run : storage.read.ledger.runs())
      at->second.read.ledger.add(run.begin, run.bytes, run.crc);
    if (at->second.data.source == nullptr) at->second.data = std::move(storage.data);
  }
  const PartialRead& read = at->second.read;
  const auto computed = read.ledger.total(read.storage_bytes);
  if (!computed) return;
  check_crc(read, *computed);
  storages_.erase(at);
}

std::vector<PartialRead> StorageChecks::partial() const {
  std::vector<PartialRead> result;
  for (const auto& [name, storage] : storages_) result.push_back(storage.read);
  return result;
}

std::vector<PartialRead> StorageChecks::take_partial() {
  const std::lock_guard lock(mutex_);
  std::vector<PartialRead> result;
  for (auto& [name, storage] : storages_) result.push_back(std::move(storage.read));
  storages_.clear();
  return result;
}

void StorageChecks::join(Team& team) {
  if (team.alone()) return;
  std::vector<PartialRead> mine;
  for (const auto& [name, storage] : storages_) mine.push_back(storage.read);
  std::vector<std::vector<PartialRead>> readers;
  std::uint64_t unchecked = 0;
  for (const std::string& sent :
       team.exchange("checksums", Packed().number(unchecked_bytes_).text(text_of(mine)).take())) {
    Unpacked fields(sent);
    unchecked += fields.number();
    readers.push_back(partial_reads_from(std::string(fields.text())));
  }
  unchecked_bytes_ = unchecked;
  for (const JoinedRead& storage : joined(readers)) {
    const auto crc = storage.read.ledger.total(storage.read.storage_bytes);
    if (crc) check_crc(storage.read, *crc);
    if (crc || storage.first_reader != team.rank())
      storages_.erase({storage.read.file, storage.read.file_offset});
  }
}

PieceReader::PieceReader(const TargetPiece& piece, StorageChecks& checks, bool counts)
    : piece_(piece), checks_(checks), item_(item_bytes(piece.dtype)) {
  if (volume(piece.box.view()) == 0) return;
  for (SourceChunk& source : piece.sources()) {
    const auto part = intersect(source.box.view(), piece.box.view());
    if (part && volume(part->view()) != 0) sources_.push_back(std::move(source));
  }
  if (sources_.empty()) {
    throw Error(ErrorCode::kHole, quote(piece.key, 200), ": no chunk covers ",
                box_text(piece.box.view()));
  }
  for (const SourceChunk& source : sources_) {
    checks_.note(piece.key, source.data, counts);
    const Box part = *intersect(source.box.view(), piece.box.view());
    const bool dense =
        source.data.strides.empty() || source.data.strides == row_major_strides(source.box.size);
    straight_ = straight_ && dense && !source.data.transformed() &&
                is_run(part.size, source.box.size) && is_run(part.size, piece.box.size);
  }
  if (straight_) find_runs();
}

void PieceReader::find_runs() {
  for (const SourceChunk& source : sources_) {
    const Box part = *intersect(source.box.view(), piece_.box.view());
    runs_.push_back({position(part.offset, piece_.box),
                     source.data.first + position(part.offset, source.box), volume(part.view()),
                     &source});
  }
  std::ranges::stable_sort(runs_, {}, &Run::to);
  // The same box stored twice is read once; both storages are checked.
  const auto same = [](const Run& a, const Run& b) { return a.to == b.to && a.count == b.count; };
  runs_.erase(std::unique(runs_.begin(), runs_.end(), same), runs_.end());
  std::uint64_t end = 0;
  bool tiled = true;
  for (const Run& run : runs_) {
    tiled = tiled && run.to == end;
    end = run.to + run.count;
  }
  if (!tiled || end != volume(piece_.box.view())) {
    throw Error(ErrorCode::kHole, quote(piece_.key, 200), ": chunks do not tile ",
                box_text(piece_.box.view()));
  }
}

std::optional<std::uint32_t> PieceReader::read(std::uint64_t first, std::span<std::byte> out,
                                               std::span<std::byte> scratch,
                                               RunWindow* window) const {
  if (straight_) return read_runs(first, out, window);
  while (!out.empty()) {
    const Box slab = leading_box(piece_.box, first, out.size() / item_);
    const std::uint64_t count = volume(slab.view());
    assemble(slab, out.subspan(0, count * item_), scratch);
    first += count;
    out = out.subspan(count * item_);
  }
  return std::nullopt;
}

std::optional<std::uint32_t> PieceReader::read_runs(std::uint64_t first, std::span<std::byte> out,
                                                    RunWindow* window) const {
  auto run = std::ranges::upper_bound(runs_, first, {}, &Run::to);
  --run;
  std::optional<std::uint32_t> whole;
  for (std::uint64_t done = 0; done < out.size(); ++run) {
    const std::uint64_t skipped = first - run->to;
    const std::uint64_t bytes = std::min(out.size() - done, (run->count - skipped) * item_);
    const std::uint64_t from = (run->from + skipped) * item_;
    const ChunkData& data = run->source->data;
    const std::uint32_t crc = read_run(data, from, out.subspan(done, bytes), window);
    if (checks_.wants(data)) {
      checks_.read(data, {from, bytes, crc});
      if (bytes == out.size()) whole = crc;
    }
    done += bytes;
    first += bytes / item_;
  }
  return whole;
}

std::uint32_t PieceReader::read_run(const ChunkData& data, std::uint64_t from,
                                    std::span<std::byte> out, RunWindow* window) const {
  const std::uint64_t begin = data.storage_offset + from;
  std::uint32_t crc = 0;
  for (std::uint64_t at = 0; at < out.size(); at += kRunStepBytes) {
    const auto part = out.subspan(at, std::min(kRunStepBytes, out.size() - at));
    if (window != nullptr) {
      data.source->read_run(begin + at, part, begin + out.size(), *window);
    } else {
      data.source->read_at(begin + at, part);
    }
    if (checks_.wants(data)) crc = crc32(crc, part);
  }
  return crc;
}

void PieceReader::assemble(const Box& slab, std::span<std::byte> out,
                           std::span<std::byte> scratch) const {
  const std::vector<std::int64_t> strides = row_major_strides(slab.size);
  std::uint64_t filled = 0;
  for (const SourceChunk& source : sources_) {
    const auto part = intersect(source.box.view(), slab.view());
    if (!part) continue;
    std::vector<std::int64_t> begin = part->offset;
    for (std::size_t d = 0; d < begin.size(); ++d) begin[d] -= source.box.offset[d];
    const std::uint64_t to = position(part->offset, slab) * item_;
    const auto run =
        gather(source.data, source.box.size, begin, part->size, out.subspan(to), strides, scratch);
    if (run) checks_.read(source.data, *run);
    if (source.data.transformed()) transform_part(source.data, *part, out.subspan(to), strides);
    filled += volume(part->view()) * item_;
  }
  if (filled != out.size()) {
    throw Error(ErrorCode::kHole, quote(piece_.key, 200), ": chunks cover ", filled, " of ",
                out.size(), " bytes of ", box_text(slab.view()));
  }
}

}  // namespace fsdp::formats
