// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/offer_board.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <random>
#include <string>

#include <climits>

#include "libfsdp/internal/comm/errors.h"

namespace fsdp::internal {
namespace {

// How many offers of a rank may be out at once.
constexpr std::uint64_t kPlaces = 512;
// A rank that trains beside this one answers within some microseconds; sleeping takes longer.
constexpr int kGlances = 2000;
// The limits of one call of process_vm_readv.
constexpr std::size_t kMostSegments = 512;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 30;

std::int64_t new_secret() {
  std::random_device source;
  return static_cast<std::int64_t>((std::uint64_t{source()} << 32) | source());
}

void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Both use words in memory that processes share.
void sleep_on(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
              OfferBoard::Clock::duration time) noexcept {
  const auto whole = std::chrono::duration_cast<std::chrono::seconds>(time);
  const timespec limit{whole.count(),
                       std::chrono::duration_cast<std::chrono::nanoseconds>(time - whole).count()};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}
void wake_all(const std::atomic<std::uint32_t>& word) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

struct OfferBoard::Offer {
  std::uint64_t address = 0;
  std::int64_t bytes = 0;
};

struct alignas(64) OfferBoard::Slot {
  std::int64_t process = 0;
  std::uint64_t secret_at = 0;  // an address of the process
  std::int64_t secret = 0;
  std::atomic<std::uint64_t> offered = 0;  // the number of the last offer
  // Rings when another rank has done something.
  alignas(64) std::atomic<std::uint32_t> bell = 0;
  std::atomic<std::uint32_t> sleepers = 0;
  alignas(64) std::array<Offer, kPlaces> offers;
  // The numbers of offers that the rank no longer needs, each in the place of its offer.
  alignas(64) std::array<std::atomic<std::uint64_t>, kPlaces> taken{};
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

OfferBoard::OfferBoard(int size)
    : rank_(0),
      size_(size),
      descriptor_(::memfd_create("fsdp-offers", MFD_CLOEXEC)),
      address_{::getpid(), descriptor_.get(), new_secret()} {
  const auto bytes = static_cast<off_t>(sizeof(Slot)) * size;
  FSDP_CHECK(descriptor_.get() >= 0 && ::ftruncate(descriptor_.get(), bytes) == 0,
             "no memory to share with the other ranks of this host: ", std::strerror(errno));
  map(descriptor_.get());
  for (int rank = 0; rank < size; ++rank) new (&slot(rank)) Slot;
  sit_down();
}

OfferBoard::OfferBoard(const Address& address, int rank, int size)
    : rank_(rank), size_(size), address_(address) {
  const std::string path =
      "/proc/" + std::to_string(address.process) + "/fd/" + std::to_string(address.descriptor);
  const formats::FileDescriptor there(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  FSDP_CHECK(there.get() >= 0, "cannot open ", path, ": ", std::strerror(errno));
  // The path may name something else here.
  FSDP_CHECK(::lseek(there.get(), 0, SEEK_END) == static_cast<off_t>(sizeof(Slot)) * size, path,
             " is not the memory that rank 0 shares");
  map(there.get());
  FSDP_CHECK(slot(0).secret == address.secret, path, " is not the memory that rank 0 shares");
  sit_down();
}

OfferBoard::~OfferBoard() {
  // A rank that still reads must not take what later lies at these addresses for this board's.
  std::atomic_ref(secret_).store(0);
  if (memory_ != nullptr) ::munmap(memory_, sizeof(Slot) * static_cast<std::size_t>(size_));
}

void OfferBoard::map(int descriptor) {
  void* const memory = ::mmap(nullptr, sizeof(Slot) * static_cast<std::size_t>(size_),
                              PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  FSDP_CHECK(memory != MAP_FAILED,
             "cannot map the memory that ranks share: ", std::strerror(errno));
  memory_ = memory;
}

void OfferBoard::sit_down() {
  secret_ = rank_ == 0 ? address_.secret : new_secret();
  Slot& own = slot(rank_);
  own.process = ::getpid();
  // Under Yama only ancestors may read a process: this also allows the launcher's other children.
  ::prctl(PR_SET_PTRACER, ::getppid());
  own.secret_at = reinterpret_cast<std::uint64_t>(&secret_);
  own.secret = secret_;
}

OfferBoard::Slot& OfferBoard::slot(int rank) const noexcept {
  return static_cast<Slot*>(memory_)[rank];
}

OfferBoard::Offer& OfferBoard::place(int rank, std::uint64_t number) const noexcept {
  return slot(rank).offers[number % kPlaces];
}

bool OfferBoard::can_read_all() const noexcept {
  try {
    for (int rank = 0; rank < size_; ++rank) copy_from(rank, {}, 0);
  } catch (const LostOffer&) {
    return false;
  }
  return true;
}

std::uint64_t OfferBoard::offer(const void* data, std::int64_t bytes) {
  Slot& own = slot(rank_);
  const std::uint64_t number = own.offered.load(std::memory_order_relaxed) + 1;
  FSDP_CHECK(number <= kPlaces || all_took(number - kPlaces), "another rank is more than ", kPlaces,
             " collectives behind");
  Offer& offer = place(rank_, number);
  offer.address = reinterpret_cast<std::uint64_t>(data);
  offer.bytes = bytes;
  own.offered.store(number, std::memory_order_release);
  wake_others();
  return number;
}

bool OfferBoard::all_offered(std::uint64_t number) const noexcept {
  for (int rank = 0; rank < size_; ++rank) {
    if (slot(rank).offered.load(std::memory_order_acquire) < number) return false;
  }
  return true;
}

int OfferBoard::of_another_size(std::uint64_t number) const noexcept {
  for (int rank = 0; rank < size_; ++rank) {
    if (place(rank, number).bytes != place(rank_, number).bytes) return rank;
  }
  return -1;
}

void OfferBoard::read(int rank, std::uint64_t number, const std::vector<Blocks::Segment>& segments,
                      std::int64_t base) const {
  copy_from(rank, segments, place(rank, number).address + static_cast<std::uint64_t>(base));
}

// Every call reads the secret, too: the PID of a process that has ended may be used again.
void OfferBoard::copy_from(int rank, const std::vector<Blocks::Segment>& segments,
                           std::uint64_t from) const {
  const Slot& of = slot(rank);
  std::vector<iovec> here;
  std::vector<iovec> there;
  std::int64_t secret = 0;
  std::int64_t total = 0;
  const auto add = [&](void* to, std::uint64_t address, std::int64_t bytes) {
    here.push_back({to, static_cast<std::size_t>(bytes)});
    // An address of another process.
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    there.push_back({reinterpret_cast<void*>(address), static_cast<std::size_t>(bytes)});
    total += bytes;
  };
  const auto begin = [&] {
    here.clear();
    there.clear();
    total = 0;
    secret = 0;
    add(&secret, of.secret_at, sizeof(secret));
  };
  const auto run = [&] {
    const auto got = ::process_vm_readv(static_cast<pid_t>(of.process), here.data(), here.size(),
                                        there.data(), there.size(), 0);
    if (got < 0)
      throw LostOffer("the memory of rank " + std::to_string(rank) + " of the group" +
                      " cannot be read: " + std::strerror(errno));
    if (got != total || secret != of.secret)
      throw LostOffer("the memory of rank " + std::to_string(rank) + " of the group" + " is gone");
  };
  begin();
  for (Blocks::Segment segment : segments) {
    while (segment.bytes > 0) {
      const std::int64_t bytes = std::min(segment.bytes, kMostBytes - total);
      add(segment.to, from + static_cast<std::uint64_t>(segment.from), bytes);
      segment.to += bytes;
      segment.from += bytes;
      segment.bytes -= bytes;
      if (total < kMostBytes && here.size() <= kMostSegments) continue;
      run();
      begin();
    }
  }
  if (here.size() > 1 || segments.empty()) run();
}

void OfferBoard::took(std::uint64_t number) noexcept {
  slot(rank_).taken[number % kPlaces].store(number, std::memory_order_release);
  wake_others();
}

bool OfferBoard::all_took(std::uint64_t number) const noexcept {
  for (int rank = 0; rank < size_; ++rank) {
    const auto& taken = slot(rank).taken[number % kPlaces];
    if (rank != rank_ && taken.load(std::memory_order_acquire) < number) return false;
  }
  return true;
}

void OfferBoard::wake_others() const noexcept {
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    Slot& of = slot(rank);
    of.bell.fetch_add(1);
    if (of.sleepers.load() != 0) wake_all(of.bell);
  }
}

bool OfferBoard::wait(const std::function<bool()>& done, Clock::time_point deadline) const {
  for (int glance = 0; glance < kGlances; ++glance) {
    if (done()) return true;
    pause();
  }
  Slot& own = slot(rank_);
  while (true) {
    // A rank that rings after this sees a sleeper; an earlier change is seen by done() below.
    own.sleepers.fetch_add(1);
    const std::uint32_t bell = own.bell.load();
    const bool is_done = done();
    const auto left = deadline - Clock::now();
    if (!is_done && left > Clock::duration::zero()) sleep_on(own.bell, bell, left);
    own.sleepers.fetch_sub(1);
    if (is_done || done()) return true;
    if (left <= Clock::duration::zero()) return false;
  }
}

}  // namespace fsdp::internal
