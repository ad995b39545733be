// SPDX-License-Identifier: Apache-2.0
// What glibc 2.28 lacks, for the native part of the Python module, which is linked against that
// version by old_glibc.py: functions that the archives of this machine call.
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/single_threaded.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <ctime>

namespace {

constexpr long kNanoseconds = 1'000'000'000;

struct Search {
  std::uintptr_t address;
  dl_find_object* found;
};

// Looks for the address in one of the objects that are loaded.  Returns 1 if it is there.
int search_object(dl_phdr_info* object, std::size_t /*size*/, void* given) {
  const Search& search = *static_cast<Search*>(given);
  void* frames = nullptr;
  bool inside = false;
  std::uintptr_t first = UINTPTR_MAX;
  std::uintptr_t last = 0;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = object->dlpi_phdr[i];
    const std::uintptr_t begin = object->dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_GNU_EH_FRAME) frames = reinterpret_cast<void*>(begin);
    if (part.p_type != PT_LOAD) continue;
    first = std::min(first, begin);
    last = std::max(last, begin + part.p_memsz);
    inside = inside || (search.address >= begin && search.address < begin + part.p_memsz);
  }
  if (!inside || frames == nullptr) return 0;
  *search.found = {};
  search.found->dlfo_map_start = reinterpret_cast<void*>(first);
  search.found->dlfo_map_end = reinterpret_cast<void*>(last);
  search.found->dlfo_eh_frame = frames;
  return 1;
}

}  // namespace

extern "C" {

char __libc_single_threaded = 0;  // nobody tells

int _dl_find_object(void* address, dl_find_object* found) noexcept {
  Search search{reinterpret_cast<std::uintptr_t>(address), found};
  return ::dl_iterate_phdr(search_object, &search) == 1 ? 0 : -1;
}

void arc4random_buf(void* out, std::size_t bytes) noexcept {
  constexpr std::size_t kMost = 256;  // of getentropy
  for (auto* at = static_cast<unsigned char*>(out); bytes != 0;) {
    const std::size_t some = std::min(bytes, kMost);
    if (::getentropy(at, some) != 0) std::abort();
    at += some;
    bytes -= some;
  }
}

std::uint32_t arc4random() noexcept {
  std::uint32_t number = 0;
  arc4random_buf(&number, sizeof(number));
  return number;
}

int fstatat(int folder, const char* path, struct stat* out, int flags) noexcept {
  return static_cast<int>(::syscall(SYS_newfstatat, folder, path, out, flags));
}

int stat(const char* path, struct stat* out) noexcept {
  return fstatat(AT_FDCWD, path, out, 0);
}

int lstat(const char* path, struct stat* out) noexcept {
  return fstatat(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW);
}

int fstat(int file, struct stat* out) noexcept {
  return static_cast<int>(::syscall(SYS_fstat, file, out));
}

// A time of the clock is turned into one of the system's; whoever waits compares the clock itself.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* end) {
  timespec now{};
  timespec system{};
  if (::clock_gettime(clock, &now) != 0 || ::clock_gettime(CLOCK_REALTIME, &system) != 0)
    return EINVAL;
  timespec until{system.tv_sec + end->tv_sec - now.tv_sec,
                 system.tv_nsec + end->tv_nsec - now.tv_nsec};
  for (; until.tv_nsec < 0; --until.tv_sec) until.tv_nsec += kNanoseconds;
  for (; until.tv_nsec >= kNanoseconds; ++until.tv_sec) until.tv_nsec -= kNanoseconds;
  return ::pthread_cond_timedwait(condition, mutex, &until);
}
}
