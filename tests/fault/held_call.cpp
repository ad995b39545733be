// SPDX-License-Identifier: Apache-2.0
// Preloaded into a program under test: one call of a function takes two minutes, despite signals,
// as on a file system that hangs.  FSDP_HELD_CALL names the function (pwrite, pread or fsync),
// FSDP_HELD_AT the call, 1 is the first; the file FSDP_HELD_MARK is created when it is held, and if
// FSDP_HELD_UNTIL is set, it ends as soon as that file exists.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string_view>

namespace {

constexpr timespec kHeld{120, 0};

void hold(std::string_view name) {
  static const char* const wanted = std::getenv("FSDP_HELD_CALL");
  static const char* const at = std::getenv("FSDP_HELD_AT");
  static std::atomic<int> calls{0};
  if (wanted == nullptr || at == nullptr || name != wanted || ++calls != std::atoi(at)) return;
  if (const char* const mark = std::getenv("FSDP_HELD_MARK"))
    close(open(mark, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  if (const char* const until = std::getenv("FSDP_HELD_UNTIL")) {
    constexpr timespec kLook{0, 10'000'000};
    while (access(until, F_OK) != 0) nanosleep(&kLook, nullptr);
    return;
  }
  timespec left = kHeld;
  while (nanosleep(&left, &left) != 0) {
  }
}

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

ssize_t write_held(int fd, const void* bytes, size_t count, off_t offset) {
  static auto* const real = next<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  hold("pwrite");
  return real(fd, bytes, count, offset);
}

ssize_t read_held(int fd, void* bytes, size_t count, off_t offset) {
  static auto* const real = next<ssize_t(int, void*, size_t, off_t)>("pread");
  hold("pread");
  return real(fd, bytes, count, offset);
}

}  // namespace

extern "C" {
ssize_t pwrite(int fd, const void* bytes, size_t count, off_t offset) {
  return write_held(fd, bytes, count, offset);
}
ssize_t pwrite64(int fd, const void* bytes, size_t count, off_t offset) {
  return write_held(fd, bytes, count, offset);
}
ssize_t pread(int fd, void* bytes, size_t count, off_t offset) {
  return read_held(fd, bytes, count, offset);
}
ssize_t pread64(int fd, void* bytes, size_t count, off_t offset) {
  return read_held(fd, bytes, count, offset);
}
int fsync(int fd) {
  static auto* const real = next<int(int)>("fsync");
  hold("fsync");
  return real(fd);
}
}
