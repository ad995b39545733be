// SPDX-License-Identifier: Apache-2.0
// Shared memory by which processes of one host let each other read their own memory.
//
// A rank reads another's memory by process_vm_readv: one copy, no socket, no thread.  Over loopback
// the kernel copies twice and handles packets; see docs/performance.md.  The board itself holds
// only where the offered memory lies, who has read it, and the bells by which ranks wake each
// other.
//
// Each rank numbers its offers: offers of number n of all ranks belong to one collective.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <vector>

#include "formats/bytes/files/local_file.h"
#include "libfsdp/internal/comm/blocks.h"

namespace fsdp::internal {

// The memory of another rank cannot be read: its process has ended.
class LostOffer : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Thread-safe.
class OfferBoard {
 public:
  using Clock = std::chrono::steady_clock;

  // Where other processes find the memory of a board.
  struct Address {
    std::int64_t process = 0;
    std::int64_t descriptor = 0;
    std::int64_t secret = 0;  // tells it from other memory at the same address
  };

  // Makes a board, as its rank 0.  Throws: c10::Error if the system gives no memory.
  explicit OfferBoard(int size);
  // Joins a board that its rank 0 has not left.  Throws: c10::Error if the board cannot be reached:
  // it is on another host, or in another PID namespace.
  OfferBoard(const Address& address, int rank, int size);
  ~OfferBoard();
  OfferBoard(const OfferBoard&) = delete;
  OfferBoard& operator=(const OfferBoard&) = delete;

  const Address& address() const noexcept { return address_; }
  // Lets no other process join.
  void close() noexcept { descriptor_.reset(); }
  // Returns whether this rank may read the memory of all others; the kernel may forbid it by Yama,
  // or in a container by seccomp.  Requires: all ranks have joined.
  bool can_read_all() const noexcept;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  // Offers memory, which must not change until all_took() its number.  Returns the number.
  // Throws: c10::Error if another rank has not taken an offer that is hundreds of offers old.
  std::uint64_t offer(const void* data, std::int64_t bytes);
  // Returns whether every rank has offered its memory of that number.
  bool all_offered(std::uint64_t number) const noexcept;
  // Returns a rank whose offer has another size than this rank's; -1: none.
  // Requires: all_offered(number).
  int of_another_size(std::uint64_t number) const noexcept;
  // Copies parts of what a rank has offered, counted from byte `base` of it.
  // Requires: all_offered(number), not yet took(number).
  // Throws: LostOffer.
  void read(int rank, std::uint64_t number, const std::vector<Blocks::Segment>& segments,
            std::int64_t base = 0) const;
  // Tells that this rank does not read, or no longer reads, the others' offers of that number.
  void took(std::uint64_t number) noexcept;
  // Returns whether all others took this rank's offer.
  bool all_took(std::uint64_t number) const noexcept;

  // Returns once `done` is true, or at the deadline; returns `done()`.
  bool wait(const std::function<bool()>& done, Clock::time_point deadline) const;

 private:
  struct Offer;
  struct Slot;

  void map(int descriptor);
  void sit_down();
  Slot& slot(int rank) const noexcept;
  Offer& place(int rank, std::uint64_t number) const noexcept;
  void wake_others() const noexcept;
  void copy_from(int rank, const std::vector<Blocks::Segment>& segments, std::uint64_t from) const;

  const int rank_;
  const int size_;
  formats::FileDescriptor descriptor_;
  Address address_;
  void* memory_ = nullptr;
  std::int64_t secret_ = 0;  // other ranks read it with every copy, to verify the process
};

}  // namespace fsdp::internal
