// SPDX-License-Identifier: Apache-2.0
#include "tools/command/process.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <exception>
#include <iostream>
#include <string_view>
#include <thread>

#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/upload/unfinished.h"
#include "tools/base/placed.h"

namespace fsdp::cli {
namespace {

// 128 + SIGPIPE: the status that a shell reports for a command ended by the signal.
constexpr int kPipeStatus = 141;
constexpr int kFailedStatus = 2;

// The failed write may be long past, and its errno lost, but the pipe still tells.
bool reader_went_away() {
  struct pollfd out {
    STDOUT_FILENO, POLLOUT, 0
  };
  return ::poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

// Posted by the handler.
sem_t asked_to_stop;

std::atomic<bool> speaks_when_stopped{true};

extern "C" void note_signal(int number) {
  formats::interrupt_signal.store(number);
  ::sem_post(&asked_to_stop);
}

// The time for loops to notice a request to stop, and for destructors to clean up.
constexpr timespec kGrace{0, 700'000'000};
// The same for a process that does not report the request.
constexpr timespec kQuietGrace{2, 0};
// A shell's code for the signal that ended a command.
constexpr int kSignalBase = 128;

// Waits for a signal, and ends the process if its threads take too long to react.  This code's long
// loops check for signals; a library's loop or a system call on a slow file system may not.
void end_when_asked() {
  while (::sem_wait(&asked_to_stop) != 0) {
  }
  timespec left = speaks_when_stopped ? kGrace : kQuietGrace;
  while (::nanosleep(&left, &left) != 0) {
  }
  formats::abandon_outputs();
  constexpr std::string_view kWords = "fsdp-ckpt: error[INTERRUPTED]: interrupted\n";
  if (speaks_when_stopped) (void)!::write(STDERR_FILENO, kWords.data(), kWords.size());
  ::_exit(interrupted_status());
}

// Opens the closed descriptor `fd`, the lowest one, so that no other file gets its number: on
// /dev/null, or, without /dev, on a pipe whose other end is closed.
void occupy(int fd) {
  if (::open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY) >= 0) return;
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return;
  const int kept = fd == 0 ? ends[0] : ends[1];
  if (kept != fd) (void)::dup2(kept, fd);
  for (const int end : ends) {
    if (end != fd) (void)::close(end);
  }
}

// Returns whether the stack of this process may be smaller than libraries need.
bool is_stack_small() {
  constexpr rlim_t kNeeded = rlim_t{1} << 20U;
  rlimit stack{};
  return ::getrlimit(RLIMIT_STACK, &stack) == 0 && stack.rlim_cur < kNeeded;
}

// Otherwise the stacks of threads have the size of the limit.
void give_threads_stacks() {
  constexpr std::size_t kGiven = std::size_t{8} << 20U;
  pthread_attr_t attributes;
  if (::pthread_attr_init(&attributes) != 0) return;
  if (::pthread_attr_setstacksize(&attributes, kGiven) == 0)
    (void)::pthread_setattr_default_np(&attributes);
  ::pthread_attr_destroy(&attributes);
}

void start_waiting_for_signals() {
  if (::sem_init(&asked_to_stop, 0, 0) != 0) return;
  try {
    std::thread(end_when_asked).detach();
  } catch (const std::exception&) {
    // Without a thread, loops still notice the signal.
  }
}

}  // namespace

void prepare_process() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF) occupy(fd);
  }
  if (is_stack_small()) give_threads_stacks();
  start_waiting_for_signals();
  struct sigaction action {};
  ::sigemptyset(&action.sa_mask);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before {};
    ::sigaction(number, nullptr, &before);
    if (before.sa_handler == SIG_IGN) continue;
    action.sa_handler = &note_signal;
    ::sigaction(number, &action, nullptr);
  }
  action.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &action, nullptr);
  // A write past the limit on file sizes is then an error, like a full disk.
  ::sigaction(SIGXFSZ, &action, nullptr);
  // A tensor of thousands of ranks lies in as many files, all open while the tensor is read.
  rlimit descriptors{};
  if (::getrlimit(RLIMIT_NOFILE, &descriptors) == 0) {
    descriptors.rlim_cur = descriptors.rlim_max;
    (void)::setrlimit(RLIMIT_NOFILE, &descriptors);
  }
}

int run_with_stack(const std::function<int()>& run) {
  if (!is_stack_small()) return run();
  int status = 0;
  std::thread([&] { status = run(); }).join();
  return status;
}

void speak_when_stopped(bool speaks) noexcept {
  speaks_when_stopped = speaks;
}

int interrupted_status() noexcept {
  // Without a signal here, another rank of the job got it.
  const int number = formats::interrupt_signal.load();
  return kSignalBase + (number != 0 ? number : SIGTERM);
}

int report_no_memory() noexcept {
  // Literals only: there is no memory to build a message.
  std::cerr << "fsdp-ckpt: error[OUT_OF_MEMORY]: out of memory; "
            << (removed_anything()                  ? "removed before that: checkpoints\n"
                : formats::outputs_committed() == 0 ? "nothing was written\n"
                                                    : "the new output is in place\n");
  return kFailedStatus;
}

int finish_process(int status) {
  std::cout.flush();
  if (std::cout.good()) return status;
  const std::string placed = placed_text();
  if (reader_went_away()) {
    if (!placed.empty())
      std::cerr << "fsdp-ckpt: note: standard output: the reader is gone" << placed << '\n';
    return kPipeStatus;
  }
  std::cerr << "fsdp-ckpt: error[IO]: standard output: could not be written" << placed << '\n';
  return kFailedStatus;
}

}  // namespace fsdp::cli
