// SPDX-License-Identifier: Apache-2.0
#include "tests/support/sim_device/arena.h"

#include <execinfo.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>

#include <c10/util/Exception.h>

namespace fsdp::test::sim {
namespace {

// Reserved, and not committed before it is used.
constexpr std::size_t kBytes = std::size_t{4} << 30;

struct Arena {
  char* device = nullptr;
  char* host = nullptr;
  std::size_t taken = 0;
};

std::array<Arena, kMostDevices> arenas;
int opened = 0;

char* reserve(int protection) {
  void* const result =
      mmap(nullptr, kBytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(result != MAP_FAILED, "no addresses for a simulated device");
  return static_cast<char*>(result);
}

void write_to_stderr(const char* text, std::size_t bytes) {
  if (write(STDERR_FILENO, text, bytes) < 0) _exit(99);
}

void on_fault(int signal, siginfo_t* info, void*) {
  if (device_of(info->si_addr) >= 0) {
    static constexpr char kText[] =
        "simulated device: the host has read or written device memory without an operator\n";
    write_to_stderr(kText, sizeof(kText) - 1);
    void* frames[48];
    backtrace_symbols_fd(frames, backtrace(frames, 48), STDERR_FILENO);
  }
  ::signal(signal, SIG_DFL);
  raise(signal);
}

}  // namespace

void open_arenas(int devices) {
  TORCH_CHECK(opened == 0, "the simulated devices exist already");
  TORCH_CHECK(devices <= kMostDevices, devices, " simulated devices; there are at most ",
              kMostDevices);
  for (int device = 0; device < devices; ++device)
    arenas.at(static_cast<std::size_t>(device)) = {reserve(PROT_NONE),
                                                   reserve(PROT_READ | PROT_WRITE), 0};
  opened = devices;
  struct sigaction action {};
  action.sa_sigaction = &on_fault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
}

int device_count() noexcept {
  return opened;
}

char* take_addresses(int device, std::size_t bytes) {
  Arena& arena = arenas.at(static_cast<std::size_t>(device));
  TORCH_CHECK(arena.taken + bytes <= kBytes, "simulated device ", device, " is out of memory");
  char* const result = arena.device + arena.taken;
  arena.taken += bytes;
  return result;
}

int device_of(const void* address) noexcept {
  const auto* const at = static_cast<const char*>(address);
  for (int device = 0; device < opened; ++device) {
    const char* const begin = arenas[static_cast<std::size_t>(device)].device;
    if (at >= begin && at < begin + kBytes) return device;
  }
  return -1;
}

char* on_host(const void* address) noexcept {
  const int device = device_of(address);
  if (device < 0) return nullptr;
  const Arena& arena = arenas[static_cast<std::size_t>(device)];
  return arena.host + (static_cast<const char*>(address) - arena.device);
}

}  // namespace fsdp::test::sim
