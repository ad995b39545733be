// SPDX-License-Identifier: Apache-2.0
// Preloaded into a program under test: one allocation runs out of memory.
//
// Allocations are malloc, calloc, realloc and their aligned variants, of every library, thread and
// child process, counted from the beginning of main.  FSDP_FAIL_AT: the one that fails, 1 is the
// first, 0 means none; with FSDP_FAIL_STAYS all later ones fail as well.  FSDP_FAIL_COUNT names a
// file of 16 bytes that receives the number of allocations and of failures: two 64-bit numbers,
// which survive a crash.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>

extern "C" {
// The allocator itself: looking it up with dlsym would allocate.
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* memory, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);
}

namespace {

struct Counts {
  std::atomic<std::uint64_t> made;
  std::atomic<std::uint64_t> failed;
};

Counts* counts = nullptr;  // shared with children; nothing is counted before main
std::uint64_t fail_at = 0;
bool stays = false;

bool fails() {
  if (counts == nullptr) return false;
  const std::uint64_t number = ++counts->made;
  if (fail_at == 0 || number < fail_at || (number > fail_at && !stays)) return false;
  ++counts->failed;
  errno = ENOMEM;
  return true;
}

void begin() {
  const char* const name = std::getenv("FSDP_FAIL_COUNT");
  const char* const at = std::getenv("FSDP_FAIL_AT");
  const int fd = name == nullptr || at == nullptr ? -1 : open(name, O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  void* const shared = mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (shared == MAP_FAILED) return;
  fail_at = std::strtoull(at, nullptr, 10);
  stays = std::getenv("FSDP_FAIL_STAYS") != nullptr;
  counts = static_cast<Counts*>(shared);
}

using Main = int(int, char**, char**);
Main* program_main = nullptr;

int counted_main(int argc, char** argv, char** environment) {
  begin();
  return program_main(argc, argv, environment);
}

}  // namespace

extern "C" {
void* malloc(std::size_t bytes) {
  return fails() ? nullptr : __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) {
  return fails() ? nullptr : __libc_calloc(count, bytes);
}
void* realloc(void* memory, std::size_t bytes) {
  return fails() ? nullptr : __libc_realloc(memory, bytes);
}
void* memalign(std::size_t alignment, std::size_t bytes) {
  return fails() ? nullptr : __libc_memalign(alignment, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  return fails() ? nullptr : __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  if (fails()) return ENOMEM;
  *memory = __libc_memalign(alignment, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}

int __libc_start_main(Main* main, int argc, char** argv, void (*init)(), void (*fini)(),
                      void (*loader_fini)(), void* stack_end) {
  using Start = int(Main*, int, char**, void (*)(), void (*)(), void (*)(), void*);
  program_main = main;
  auto* const start = reinterpret_cast<Start*>(dlsym(RTLD_NEXT, "__libc_start_main"));
  return start(counted_main, argc, argv, init, fini, loader_fini, stack_end);
}
}
