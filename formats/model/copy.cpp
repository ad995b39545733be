// SPDX-License-Identifier: Apache-2.0
#include "formats/model/copy.h"

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "formats/base/crc32.h"
#include "formats/base/error.h"
#include "formats/base/text.h"
#include "formats/model/crc_ledger.h"

namespace fsdp::formats {
namespace {

// Straight runs move in blocks of this size: large enough that calls cost nothing, small enough to
// stay in a core's second-level cache between the read, the CRC and the write.
constexpr std::uint64_t kRunBlockBytes = 1U << 20U;
// Pieces whose chunks interleave are assembled in slabs of at most this size (and scratch of the
// same size).
constexpr std::uint64_t kMaxSlabBytes = 16U << 20U;
constexpr std::uint64_t kMinSlabBytes = 64U << 10U;

// One storage being read, and what is known of its CRC so far.
struct Storage {
  const ByteSource* source;
  ChunkData data;  // of the first chunk seen in it
  std::string key;
  CrcLedger ledger;
};

// A piece whose turn has come.
struct ActivePiece {
  std::size_t number;
  const TargetPiece* target;
  std::vector<SourceChunk> sources;
  bool straight = true;  // every chunk's part is one run on both sides
  CrcLedger ledger;
  std::uint64_t open_tasks = 0;
};

// One block of work for one thread.
struct Task {
  std::shared_ptr<ActivePiece> piece;
  const SourceChunk* source = nullptr;  // straight: where the run comes from; otherwise a slab
  std::uint64_t from = 0;               // straight: bytes from the start of the storage
  std::uint64_t to = 0;                 // bytes from the start of the piece
  std::uint64_t bytes = 0;
  Box slab;
};

[[noreturn]] void throw_crc(const Storage& storage, std::uint32_t computed) {
  throw Error(ErrorCode::kZipCrc,
              cat(storage.data.file, ": ", quote(storage.key, 200), ": data at byte ",
                  storage.data.file_offset, ": CRC-32 stored ", hex32(*storage.data.crc),
                  ", computed ", hex32(computed)));
}

// Whether the rows of `part` lie one behind the other in a dense row-major tensor of size `whole`.
bool is_run(std::span<const std::int64_t> part, std::span<const std::int64_t> whole) {
  std::size_t d = 0;
  while (d < part.size() && part[d] == 1) ++d;
  for (++d; d < part.size(); ++d) {
    if (part[d] != whole[d]) return false;
  }
  return true;
}

// The elements before `at` in a dense row-major box.
std::uint64_t position(std::span<const std::int64_t> at, const Box& box) {
  std::uint64_t result = 0;
  for (std::size_t d = 0; d < at.size(); ++d) {
    result = result * static_cast<std::uint64_t>(box.size[d]) +
             static_cast<std::uint64_t>(at[d] - box.offset[d]);
  }
  return result;
}

// Hands out tasks in output order and collects their checksums.  All members are used under the
// mutex.
class Schedule {
 public:
  Schedule(std::span<const TargetPiece> pieces, const CopyOptions& options,
           std::uint64_t slab_bytes)
      : pieces_(pieces), options_(options), slab_bytes_(slab_bytes) {
    result_.crcs.resize(pieces.size(), 0);
  }

  std::optional<Task> next() {
    const std::lock_guard lock(mutex_);
    if (stopped_) return std::nullopt;
    if (options_.cancelled && options_.cancelled())
      throw Error(ErrorCode::kInterrupted, "interrupted");
    while (queue_at_ == queue_.size()) {
      queue_.clear();
      queue_at_ = 0;
      if (next_piece_ == pieces_.size()) return std::nullopt;
      open_piece(next_piece_++);
    }
    return std::move(queue_[queue_at_++]);
  }

  // `written` is the CRC of the block in the output; `run` what was read of one storage, where it
  // was one run.
  void done(const Task& task, std::uint32_t written) {
    const std::lock_guard lock(mutex_);
    task.piece->ledger.add(task.to, task.bytes, written);
    result_.bytes += task.bytes;
    if (options_.on_progress) options_.on_progress(result_.bytes);
    if (--task.piece->open_tasks == 0) close_piece(*task.piece);
  }

  void read(const SourceChunk& source, const DenseRun& run) {
    if (!source.data.crc) return;
    const std::lock_guard lock(mutex_);
    // Not found: another piece read the storage whole meanwhile, and it was settled.
    const auto found = storages_.find(storage_key(source.data));
    if (found != storages_.end()) found->second.ledger.add(run.begin, run.bytes, run.crc);
  }

  void stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }

  // After all tasks: storages that did not pass whole are read on their own.
  CopyResult finish(std::span<std::byte> buffer) {
    for (auto& [key, storage] : storages_) {
      auto crc = storage.ledger.total(storage.data.storage_bytes);
      if (!crc) {
        crc = 0;
        for (std::uint64_t at = 0; at < storage.data.storage_bytes; at += buffer.size()) {
          if (options_.cancelled && options_.cancelled())
            throw Error(ErrorCode::kInterrupted, "interrupted");
          const auto part = buffer.subspan(
              0, std::min<std::uint64_t>(buffer.size(), storage.data.storage_bytes - at));
          storage.data.source->read_at(storage.data.storage_offset + at, part);
          crc = crc32(*crc, part);
        }
      }
      if (*crc != *storage.data.crc) throw_crc(storage, *crc);
    }
    return std::move(result_);
  }

 private:
  using StorageKey = std::pair<std::string, std::uint64_t>;
  static StorageKey storage_key(const ChunkData& data) { return {data.file, data.file_offset}; }

  void open_piece(std::size_t number) {
    auto piece = std::make_shared<ActivePiece>();
    piece->number = number;
    piece->target = &pieces_[number];
    const TargetPiece& target = *piece->target;
    const std::uint64_t item = item_bytes(target.dtype);
    if (volume(target.box.view()) == 0) return;
    for (SourceChunk& source : target.sources()) {
      if (!intersect(source.box.view(), target.box.view())) continue;
      piece->sources.push_back(std::move(source));
    }
    for (const SourceChunk& source : piece->sources) {
      note_storage(target.key, source.data);
      const Box part = *intersect(source.box.view(), target.box.view());
      const bool dense =
          source.data.strides.empty() || source.data.strides == row_major_strides(source.box.size);
      piece->straight = piece->straight && dense && !source.data.transformed() &&
                        is_run(part.size, source.box.size) && is_run(part.size, target.box.size);
    }
    if (piece->straight) {
      for (const SourceChunk& source : piece->sources) add_run(piece, source, item);
    } else {
      add_slabs(piece, item);
    }
    if (queue_.empty()) {
      throw Error(ErrorCode::kHole,
                  cat(quote(target.key, 200), ": no chunk covers ", box_text(target.box.view())));
    }
    piece->open_tasks = queue_.size();
  }

  void add_run(const std::shared_ptr<ActivePiece>& piece, const SourceChunk& source,
               std::uint64_t item) {
    const TargetPiece& target = *piece->target;
    const Box part = *intersect(source.box.view(), target.box.view());
    const std::uint64_t from = (source.data.first + position(part.offset, source.box)) * item;
    const std::uint64_t to = position(part.offset, target.box) * item;
    const std::uint64_t bytes = volume(part.view()) * item;
    for (std::uint64_t at = 0; at < bytes; at += kRunBlockBytes) {
      queue_.push_back(
          {piece, &source, from + at, to + at, std::min(kRunBlockBytes, bytes - at), {}});
    }
  }

  // Cuts the piece into boxes that are one run of the output each: some dimensions fixed, a range
  // of the next, all of the rest.
  void add_slabs(const std::shared_ptr<ActivePiece>& piece, std::uint64_t item) {
    const Box& box = piece->target->box;
    std::size_t cut = 0;
    std::uint64_t row_bytes = volume(box.view()) * item;
    for (; cut < box.size.size(); ++cut) {
      row_bytes /= static_cast<std::uint64_t>(box.size[cut]);
      if (row_bytes <= slab_bytes_) break;
    }
    if (cut == box.size.size()) {  // rank 0, or slabs of one element
      if (box.size.empty()) {
        queue_.push_back({piece, nullptr, 0, 0, item, box});
        return;
      }
      --cut;
      row_bytes = item;
    }
    const auto rows =
        static_cast<std::int64_t>(std::max<std::uint64_t>(1, slab_bytes_ / row_bytes));
    Box slab = box;
    std::fill_n(slab.size.begin(), cut, 1);
    for (;;) {
      const std::int64_t end = box.offset[cut] + box.size[cut];
      for (std::int64_t row = box.offset[cut]; row < end; row += rows) {
        slab.offset[cut] = row;
        slab.size[cut] = std::min(rows, end - row);
        const std::uint64_t bytes = row_bytes * static_cast<std::uint64_t>(slab.size[cut]);
        queue_.push_back({piece, nullptr, 0, position(slab.offset, box) * item, bytes, slab});
      }
      slab.offset[cut] = box.offset[cut];
      std::size_t d = cut;
      while (d > 0 && ++slab.offset[d - 1] == box.offset[d - 1] + box.size[d - 1]) {
        slab.offset[d - 1] = box.offset[d - 1];
        --d;
      }
      if (d == 0) return;
    }
  }

  void note_storage(const std::string& key, const ChunkData& data) {
    if (!data.crc) {
      result_.unchecked_bytes += data.storage_bytes;
      return;
    }
    storages_.try_emplace(storage_key(data), Storage{data.source.get(), data, key, {}});
  }

  void close_piece(ActivePiece& piece) {
    const std::uint64_t bytes = volume(piece.target->box.view()) * item_bytes(piece.target->dtype);
    const auto crc = piece.ledger.total(bytes);
    if (!crc) {
      throw Error(ErrorCode::kHole, cat(quote(piece.target->key, 200), ": chunks do not tile ",
                                        box_text(piece.target->box.view())));
    }
    result_.crcs[piece.number] = *crc;
    // A storage that passed whole is settled now: an error comes early and memory stays flat.
    for (const SourceChunk& source : piece.sources) {
      const auto found = storages_.find(storage_key(source.data));
      if (found == storages_.end()) continue;
      const auto computed = found->second.ledger.total(found->second.data.storage_bytes);
      if (!computed) continue;
      if (*computed != *found->second.data.crc) throw_crc(found->second, *computed);
      storages_.erase(found);
    }
  }

  std::span<const TargetPiece> pieces_;
  const CopyOptions& options_;
  std::uint64_t slab_bytes_;
  std::mutex mutex_;
  bool stopped_ = false;
  std::size_t next_piece_ = 0;
  std::vector<Task> queue_;
  std::size_t queue_at_ = 0;
  std::map<StorageKey, Storage> storages_;
  CopyResult result_;
};

// The buffers of one thread.
class Worker {
 public:
  Worker(Schedule& schedule, std::uint64_t slab_bytes)
      : schedule_(schedule),
        bytes_(slab_bytes),
        // Not zeroed: pages that no slab needs are never touched.
        memory_(std::make_unique_for_overwrite<std::byte[]>(2 * slab_bytes)) {}

  void run() {
    while (const auto task = schedule_.next()) {
      if (task->source != nullptr) {
        copy_run(*task);
      } else {
        assemble(*task);
      }
    }
  }
  std::span<std::byte> buffer() { return {memory_.get(), bytes_}; }

 private:
  std::span<std::byte> scratch() { return {memory_.get() + bytes_, bytes_}; }

  void copy_run(const Task& task) {
    const SourceChunk& source = *task.source;
    std::uint32_t crc = 0;
    for (std::uint64_t at = 0; at < task.bytes; at += bytes_) {
      const auto block = buffer().subspan(0, std::min(bytes_, task.bytes - at));
      source.data.source->read_at(source.data.storage_offset + task.from + at, block);
      crc = crc32(crc, block);
      task.piece->target->file->write_at(task.piece->target->offset + task.to + at, block);
    }
    schedule_.read(source, {task.from, task.bytes, crc});
    schedule_.done(task, crc);
  }

  void assemble(const Task& task) {
    const TargetPiece& target = *task.piece->target;
    const auto block = buffer().subspan(0, task.bytes);
    const std::vector<std::int64_t> strides = row_major_strides(task.slab.size);
    const std::uint64_t item = item_bytes(target.dtype);
    std::uint64_t filled = 0;
    for (const SourceChunk& source : task.piece->sources) {
      const auto part = intersect(source.box.view(), task.slab.view());
      if (!part) continue;
      std::vector<std::int64_t> begin = part->offset;
      for (std::size_t d = 0; d < begin.size(); ++d) begin[d] -= source.box.offset[d];
      const std::uint64_t to = position(part->offset, task.slab) * item;
      const auto run = gather(source.data, source.box.size, begin, part->size, block.subspan(to),
                              strides, scratch());
      if (run) schedule_.read(source, *run);
      if (source.data.transformed()) transform_part(source.data, *part, block.subspan(to), strides);
      filled += volume(part->view()) * item;
    }
    if (filled != task.bytes) {
      throw Error(ErrorCode::kHole, cat(quote(target.key, 200), ": chunks cover ", filled, " of ",
                                        task.bytes, " bytes of ", box_text(task.slab.view())));
    }
    target.file->write_at(target.offset + task.to, block);
    schedule_.done(task, crc32(0, block));
  }

  // The elements of `part` are rows within the slab: transform each row.
  static void transform_part(const ChunkData& data, const Box& part, std::span<std::byte> out,
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

  Schedule& schedule_;
  std::uint64_t bytes_;
  std::unique_ptr<std::byte[]> memory_;  // the output buffer, then scratch
};

}  // namespace

CopyResult copy_pieces(std::span<const TargetPiece> pieces, const CopyOptions& options) {
  const unsigned threads = std::max(1U, options.threads);
  // Each thread has an output buffer and a scratch buffer.
  const std::uint64_t slab_bytes = std::clamp(
      options.max_buffer_bytes / (2 * std::uint64_t{threads}), kMinSlabBytes, kMaxSlabBytes);
  Schedule schedule(pieces, options, slab_bytes);
  std::vector<std::unique_ptr<Worker>> workers;
  for (unsigned i = 0; i < threads; ++i)
    workers.push_back(std::make_unique<Worker>(schedule, slab_bytes));
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&](Worker& worker) {
    try {
      worker.run();
    } catch (...) {
      schedule.stop();
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    for (unsigned i = 1; i < threads; ++i) others.emplace_back([&, i] { work(*workers[i]); });
    work(*workers[0]);
  }
  if (failure) std::rethrow_exception(failure);
  return schedule.finish(workers[0]->buffer());
}

}  // namespace fsdp::formats
