// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hdf5/sandbox.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/files/file.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace fsdp::formats {
namespace {

using test::expect_error;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool kSanitized = false;
#endif

class Sandbox : public ::testing::Test {
 protected:
  std::string run(const std::function<std::string()>& work) {
    return run_sandboxed(file_->fd(), limits_, work);
  }
  void expect_failure(std::string_view words, const std::function<std::string()>& work) {
    expect_error(ErrorCode::kH5ReaderFailed, words, [&] { run(work); });
  }

  std::shared_ptr<const File> file_ = file_at(test::data_path("hdf5/text.h5"));
  SandboxLimits limits_{256U << 20U, 20, 60, 16U << 20U};
};

TEST_F(Sandbox, gives_what_the_function_returns) {
  EXPECT_EQ(run([] { return std::string("answer"); }), "answer");
  EXPECT_EQ(run([] { return std::string(10'000'000, 'x'); }), std::string(10'000'000, 'x'));
  EXPECT_EQ(run([] { return std::string(); }), "");
}

TEST_F(Sandbox, an_error_comes_out_as_it_was_thrown) {
  expect_error(ErrorCode::kH5Link, "/x: leads away", [&] {
    run([]() -> std::string { throw Error(ErrorCode::kH5Link, "/x: leads away"); });
  });
}

TEST_F(Sandbox, control_characters_of_an_error_do_not_come_out) {
  expect_error(ErrorCode::kH5Open, "a?[2Jb",
               [&] { run([]() -> std::string { throw Error(ErrorCode::kH5Open, "a\x1b[2Jb"); }); });
}

TEST_F(Sandbox, the_open_file_can_be_read) {
  EXPECT_EQ(run([&] {
              std::string bytes(4, ' ');
              file_->read_at(0, std::as_writable_bytes(std::span(bytes)));
              return bytes;
            }),
            "\x89HDF");
}

std::string outcome(long result) {
  return result >= 0 ? "done" : std::strerror(errno);
}

TEST_F(Sandbox, nothing_else_can_be_opened_run_or_connected) {
  EXPECT_EQ(run([] { return outcome(::open("/etc/passwd", O_RDONLY)); }), std::strerror(EPERM));
  EXPECT_EQ(run([] { return outcome(::open("/tmp/fsdp-sandbox", O_WRONLY | O_CREAT, 0600)); }),
            std::strerror(EPERM));
  EXPECT_EQ(run([] { return outcome(::socket(AF_INET, SOCK_STREAM, 0)); }), std::strerror(EPERM));
  EXPECT_EQ(run([] {
              char name[] = "/bin/true";
              char* const args[] = {name, nullptr};
              return outcome(::execv(name, args));
            }),
            std::strerror(EPERM));
  EXPECT_EQ(run([] { return outcome(::fork()); }), std::strerror(EPERM));
  EXPECT_EQ(run([] { return outcome(::kill(::getppid(), 0)); }), std::strerror(EPERM));
  EXPECT_EQ(run([] { return outcome(::unlink("/tmp/fsdp-sandbox")); }), std::strerror(EPERM));
}

TEST_F(Sandbox, no_other_process_gets_a_signal) {
  const pid_t parent = ::getpid();
  const auto signal_to = [](long process, long thread) {
    return outcome(::syscall(SYS_tgkill, process, thread, 0));
  };
  EXPECT_EQ(run([&] { return signal_to(parent, parent); }), std::strerror(EPERM));
  EXPECT_EQ(run([&] { return signal_to(1, 1); }), std::strerror(EPERM));
  EXPECT_EQ(run([&] { return signal_to(::getpid(), ::getpid()); }), "done");
  EXPECT_EQ(run([&] { return outcome(::syscall(SYS_tkill, parent, 0)); }), std::strerror(EPERM));
}

TEST_F(Sandbox, memory_holds_no_new_code) {
  EXPECT_EQ(run([] {
              void* const page =
                  ::mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
              return outcome(page == MAP_FAILED ? -1 : 0);
            }),
            std::strerror(EPERM));
  EXPECT_EQ(run([] {
              void* const page =
                  ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
              return outcome(::mprotect(page, 4096, PROT_READ | PROT_EXEC));
            }),
            std::strerror(EPERM));
}

TEST_F(Sandbox, a_wish_to_stop_ends_it) {
  interrupt_signal = SIGTERM;
  expect_error(ErrorCode::kInterrupted, "interrupted", [&] {
    run([] {
      for (std::atomic<bool> forever{true}; forever;) {
      }
      return std::string();
    });
  });
  interrupt_signal = 0;
}

TEST_F(Sandbox, descriptors_of_this_process_are_closed) {
  const auto other = file_at(test::data_path("hdf5/compound.h5"));
  EXPECT_EQ(run([&] {
              char byte = 0;
              return outcome(::pread(other->fd(), &byte, 1, 0));
            }),
            std::strerror(EBADF));
  EXPECT_EQ(run([] { return outcome(::write(STDOUT_FILENO, "x", 1)); }), std::strerror(EBADF));
}

TEST_F(Sandbox, memory_is_its_own) {
  int here = 1;
  run([&] {
    here = 2;
    return std::string();
  });
  EXPECT_EQ(here, 1);
}

TEST_F(Sandbox, a_crash_is_an_error_here) {
  expect_failure("crashed with signal", [] {
    (void)::signal(SIGABRT, SIG_DFL);
    std::abort();
    return std::string();
  });
}

TEST_F(Sandbox, being_killed_is_an_error_here) {
  expect_failure("was killed from outside", [] {
    ::raise(SIGKILL);
    return std::string();
  });
}

TEST_F(Sandbox, an_exit_without_a_word_is_an_error) {
  expect_failure("sent nothing", []() -> std::string { ::_exit(0); });
  expect_failure("ended with status 77", []() -> std::string { ::_exit(77); });
}

TEST_F(Sandbox, too_much_processor_time_ends_it) {
  limits_.cpu_seconds = 1;
  expect_failure("ended after 1 seconds of processor time", [] {
    for (std::atomic<bool> forever{true}; forever;) {
    }
    return std::string();
  });
}

TEST_F(Sandbox, too_much_time_ends_it) {
  limits_.wall_seconds = 1;
  expect_failure("was ended after 1 seconds", [] {
    for (std::atomic<bool> forever{true}; forever;) {
    }
    return std::string();
  });
}

TEST_F(Sandbox, too_much_memory_is_an_error) {
  if (kSanitized) GTEST_SKIP() << "sanitizers map more than any limit";
  expect_failure("ran out of memory", [] { return std::string(1ULL << 30U, 'x'); });
}

TEST_F(Sandbox, too_long_an_answer_is_an_error) {
  limits_.output_bytes = 1000;
  expect_failure("sent more than 1000 bytes", [] { return std::string(100'000, 'x'); });
}

}  // namespace
}  // namespace fsdp::formats
