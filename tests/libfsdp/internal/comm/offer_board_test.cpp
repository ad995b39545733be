// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/offer_board.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/files/file.h"

namespace fsdp::internal {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using Segment = Blocks::Segment;

OfferBoard::Clock::time_point in(std::chrono::milliseconds time) {
  return OfferBoard::Clock::now() + time;
}

std::vector<char> bytes_of(int rank, std::uint64_t number, std::size_t count) {
  std::minstd_rand random(static_cast<std::minstd_rand::result_type>(1000 * number + 7 * rank + 1));
  std::vector<char> result(count);
  for (char& byte : result) byte = static_cast<char>(random());
  return result;
}

// Runs `body` in another process, and returns its exit status or minus the signal that ended it.
class Child {
 public:
  template <typename F>
  explicit Child(const F& body) : pid_(::fork()) {
    if (pid_ == 0) ::_exit(body());
  }
  ~Child() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    wait();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void kill() const { ::kill(pid_, SIGKILL); }
  int wait() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_;
};

TEST(OfferBoard, parts_of_what_others_offer_are_read) {
  OfferBoard first(2);
  OfferBoard second(first.address(), 1, 2);
  EXPECT_TRUE(first.can_read_all());
  EXPECT_TRUE(second.can_read_all());
  const std::string text = "the memory of rank 1";
  const std::string own = "the memory of rank 0";
  EXPECT_EQ(first.offer(own.data(), 20), 1U);
  EXPECT_FALSE(first.all_offered(1));
  EXPECT_EQ(second.offer(text.data(), 20), 1U);
  ASSERT_TRUE(first.all_offered(1));
  EXPECT_EQ(first.of_another_size(1), -1);
  std::array<char, 12> read{};
  first.read(1, 1, {{14, 6, read.data()}, {4, 6, read.data() + 6}, {0, 0, nullptr}});
  EXPECT_EQ(std::string(read.data(), read.size()), "rank 1memory");
}

TEST(OfferBoard, an_offer_stands_until_all_others_took_it) {
  OfferBoard first(3);
  OfferBoard second(first.address(), 1, 3);
  OfferBoard third(first.address(), 2, 3);
  const char data = 'x';
  first.offer(&data, 1);
  EXPECT_FALSE(first.all_took(1));
  second.took(1);  // before it offers anything itself
  EXPECT_FALSE(first.all_took(1));
  third.took(1);
  EXPECT_TRUE(first.all_took(1));
}

TEST(OfferBoard, offers_of_another_size_are_noticed) {
  OfferBoard first(2);
  OfferBoard second(first.address(), 1, 2);
  const std::array<char, 8> data{};
  first.offer(data.data(), 8);
  second.offer(data.data(), 7);
  EXPECT_EQ(first.of_another_size(1), 1);
  EXPECT_EQ(second.of_another_size(1), 0);
}

TEST(OfferBoard, hundreds_of_offers_may_be_out_and_not_more) {
  OfferBoard first(2);
  OfferBoard second(first.address(), 1, 2);
  const char data = 'x';
  for (int i = 0; i < 512; ++i) first.offer(&data, 1);
  EXPECT_THROW(first.offer(&data, 1), c10::Error);
  second.took(1);
  EXPECT_EQ(first.offer(&data, 1), 513U);
}

TEST(OfferBoard, a_wait_ends_when_another_rank_does_something_or_at_its_deadline) {
  OfferBoard first(2);
  OfferBoard second(first.address(), 1, 2);
  const char data = 'x';
  first.offer(&data, 1);
  EXPECT_FALSE(first.wait([&] { return first.all_offered(1); }, in(20ms)));
  std::thread later([&] {
    std::this_thread::sleep_for(30ms);
    second.offer(&data, 1);
  });
  const auto began = OfferBoard::Clock::now();
  EXPECT_TRUE(first.wait([&] { return first.all_offered(1); }, in(20s)));
  EXPECT_LT(OfferBoard::Clock::now() - began, 10s) << "nobody rang";
  later.join();
}

TEST(OfferBoard, another_address_is_refused) {
  OfferBoard first(2);
  auto wrong = first.address();
  ++wrong.secret;
  EXPECT_THROW(OfferBoard(wrong, 1, 2), c10::Error);
  // Something else has this number, of another size.
  EXPECT_THROW(OfferBoard(first.address(), 1, 3), c10::Error);
  wrong = first.address();
  wrong.descriptor = 1 << 20;
  EXPECT_THROW(OfferBoard(wrong, 1, 2), c10::Error);
  wrong.process = 0;
  EXPECT_THROW(OfferBoard(wrong, 1, 2), c10::Error);
  first.close();
  EXPECT_THROW(OfferBoard(first.address(), 1, 2), c10::Error);
}

TEST(OfferBoard, memory_of_a_board_that_is_gone_is_not_taken_for_its) {
  OfferBoard first(2);
  std::optional<OfferBoard> second(std::in_place, first.address(), 1, 2);
  const std::array<char, 8> data{};
  first.offer(data.data(), 8);
  second->offer(data.data(), 8);
  second.reset();
  std::array<char, 8> read{};
  EXPECT_THROW(first.read(1, 1, {{0, 8, read.data()}}), LostOffer);
  EXPECT_FALSE(first.can_read_all());
}

TEST(OfferBoard, memory_that_is_not_mapped_is_an_error) {
  OfferBoard first(2);
  OfferBoard second(first.address(), 1, 2);
  const std::array<char, 8> data{};
  first.offer(data.data(), 8);
  second.offer(nullptr, 8);
  std::array<char, 8> read{};
  EXPECT_THROW(first.read(1, 1, {{0, 8, read.data()}}), LostOffer);
}

TEST(OfferBoard, memory_of_another_process_is_read_until_it_ends) {
  OfferBoard first(2);
  Child other([&] {
    OfferBoard second(first.address(), 1, 2);
    const std::vector<char> data = bytes_of(1, 1, 5'000'000);
    second.offer(data.data(), 5'000'000);
    second.wait([&] { return second.all_took(2); }, in(60s));
    return 0;
  });
  const std::vector<char> expected = bytes_of(1, 1, 5'000'000);
  const std::vector<char> own(5'000'000);
  first.offer(own.data(), 5'000'000);
  ASSERT_TRUE(first.wait([&] { return first.all_offered(1); }, in(30s)));
  EXPECT_TRUE(first.can_read_all());
  std::vector<char> read(5'000'000);
  first.read(1, 1, {{0, 5'000'000, read.data()}});
  EXPECT_TRUE(read == expected);
  // Many small parts, in another order, need several calls of the kernel.
  std::vector<Segment> segments;
  std::fill(read.begin(), read.end(), '\0');
  for (std::int64_t i = 0; i < 3000; ++i) {
    const std::int64_t from = (i * 1201) % 3000 * 1000;
    segments.push_back({from, 1000, read.data() + from});
  }
  first.read(1, 1, segments);
  EXPECT_TRUE(std::equal(read.begin(), read.begin() + 3'000'000, expected.begin()));
  other.kill();
  EXPECT_EQ(other.wait(), -SIGKILL);
  try {
    first.read(1, 1, {{0, 8, read.data()}});
    FAIL() << "read memory of a process that has ended";
  } catch (const LostOffer& error) {
    EXPECT_THAT(error.what(), HasSubstr("the memory of rank 1 of the group cannot be read"));
  }
}

// As a container's filter does.
int forbid_reading_of_processes() {
  std::array<sock_filter, 4> program{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog filter{program.size(), program.data()};
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  return ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

TEST(OfferBoard, a_kernel_that_forbids_it_is_noticed) {
  OfferBoard first(2);
  Child other([&] {
    if (forbid_reading_of_processes() != 0) return 2;
    const OfferBoard second(first.address(), 1, 2);
    return second.can_read_all() ? 1 : 0;
  });
  EXPECT_EQ(other.wait(), 0);
}

// Four ranks, some slow, some that give up collectives, in two processes.
TEST(OfferBoard, nothing_is_mixed_up_in_thousands_of_collectives) {
  constexpr int kRanks = 4;
  constexpr int kNumbers = 4000;
  OfferBoard first(kRanks);
  const auto size_of = [](std::uint64_t number) { return 1 + number * 977 % 20'000; };
  const auto run = [&](OfferBoard& board) {
    std::minstd_rand random(static_cast<std::minstd_rand::result_type>(board.rank() + 1));
    for (std::uint64_t number = 1; number <= kNumbers; ++number) {
      const std::size_t count = size_of(number);
      std::vector<char> own = bytes_of(board.rank(), number, count);
      if (board.offer(own.data(), static_cast<std::int64_t>(count)) != number) return 2;
      if (random() % 64 == 0) std::this_thread::sleep_for(100us);
      if (random() % 16 != 0) {
        if (!board.wait([&] { return board.all_offered(number); }, in(60s))) return 3;
        for (int rank = 0; rank < kRanks; ++rank) {
          if (rank == board.rank()) continue;
          std::vector<char> read(count);
          board.read(rank, number, {{0, static_cast<std::int64_t>(count), read.data()}});
          if (read != bytes_of(rank, number, count)) return 4;
        }
      }
      board.took(number);
      if (!board.wait([&] { return board.all_took(number); }, in(60s))) return 5;
      std::fill(own.begin(), own.end(), '\xff');
    }
    return 0;
  };
  const auto two_ranks = [&](OfferBoard& a, OfferBoard& b) {
    int of_a = -1;
    std::thread thread([&] { of_a = run(a); });
    const int of_b = run(b);
    thread.join();
    return of_a != 0 ? of_a : of_b;
  };
  Child others([&] {
    OfferBoard third(first.address(), 2, kRanks);
    OfferBoard fourth(first.address(), 3, kRanks);
    return two_ranks(third, fourth);
  });
  OfferBoard second(first.address(), 1, kRanks);
  EXPECT_EQ(two_ranks(first, second), 0);
  EXPECT_EQ(others.wait(), 0);
}

}  // namespace
}  // namespace fsdp::internal
