// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hdf5/sandbox.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interface.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/local_file.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FSDP_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define FSDP_SANITIZED 1
#endif
#endif

namespace fsdp::formats {
namespace {

#ifdef FSDP_SANITIZED
// Sanitizers take terabytes of address space for shadow memory, and report to stderr.
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// Exit statuses of a child that sends no message.
constexpr int kExitOutOfMemory = 3;
constexpr int kExitNotConfined = 4;

// The longest time until the parent notices a request to stop.
constexpr long long kPollMilliseconds = 100;

constexpr char kDone = 'D';
constexpr char kError = 'E';

#if defined(__x86_64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
constexpr std::uint32_t kArchitecture = 0;  // add this processor's AUDIT_ARCH_ here
#endif

// The system calls for reading an open file and using memory; in addition tgkill, mmap and mprotect
// are allowed with checked arguments.
constexpr std::array kAllowed = {
    SYS_read,         SYS_pread64,     SYS_write,         SYS_close,        SYS_lseek,
    SYS_fstat,        SYS_munmap,      SYS_mremap,        SYS_brk,          SYS_madvise,
    SYS_futex,        SYS_exit,        SYS_exit_group,    SYS_rt_sigreturn, SYS_rt_sigprocmask,
    SYS_rt_sigaction, SYS_sigaltstack, SYS_clock_gettime, SYS_gettimeofday, SYS_getrandom,
    SYS_getpid,       SYS_gettid,      SYS_sched_yield,
};

// Sanitizers use a pipe to find out whether memory can be read.
#if defined(FSDP_SANITIZED) && defined(SYS_pipe)
constexpr std::array kAllowedBeside = {SYS_pipe2, SYS_pipe};
#elif defined(FSDP_SANITIZED)
constexpr std::array kAllowedBeside = {SYS_pipe2};
#else
constexpr std::array<long, 0> kAllowedBeside = {};
#endif

bool allow_few_system_calls() {
  if (kArchitecture == 0) return false;
  std::vector<sock_filter> program = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
  };
  const auto jump = [&](std::uint16_t how, long to, std::uint8_t yes, std::uint8_t no) {
    program.push_back(BPF_JUMP(static_cast<std::uint16_t>(BPF_JMP | how | BPF_K),
                               static_cast<std::uint32_t>(to), yes, no));
  };
  const auto give = [&](std::uint32_t answer) {
    program.push_back(BPF_STMT(BPF_RET | BPF_K, answer));
  };
  // Loads the lower half of an argument; the kernel ignores the upper half of those checked here.
  const auto load_argument = [&](std::size_t number) {
    const std::size_t at = offsetof(seccomp_data, args) + number * sizeof(std::uint64_t);
    program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(at)));
  };
  // abort and raise send this process a signal; no other process may receive any.
  jump(BPF_JEQ, SYS_tgkill, 0, 4);
  load_argument(0);
  jump(BPF_JEQ, ::getpid(), 0, 1);
  give(SECCOMP_RET_ALLOW);
  give(SECCOMP_RET_ERRNO | EPERM);
  // Allows memory for reading and writing, but not for new code.
  jump(BPF_JEQ, SYS_mmap, 1, 0);
  jump(BPF_JEQ, SYS_mprotect, 0, 4);
  load_argument(2);
  jump(BPF_JSET, PROT_EXEC, 0, 1);
  give(SECCOMP_RET_ERRNO | EPERM);
  give(SECCOMP_RET_ALLOW);
  std::vector<long> allowed(kAllowed.begin(), kAllowed.end());
  allowed.insert(allowed.end(), kAllowedBeside.begin(), kAllowedBeside.end());
  for (std::size_t i = 0; i < allowed.size(); ++i) {
    const auto to_allow = static_cast<std::uint8_t>(allowed.size() - i);
    program.push_back(
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(allowed[i]), to_allow, 0));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  return ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

// Denies every access that this kernel's Landlock knows; a kernel without it denies nothing.
void close_file_system() {
#if defined(SYS_landlock_create_ruleset)
  constexpr std::uint32_t kAskVersion = 1;
  // The number of rights by version: 13 in the first; later ones add linking, truncating, ioctl.
  constexpr std::array<unsigned, 6> kRights = {0, 13, 14, 15, 15, 16};
  const long version = ::syscall(SYS_landlock_create_ruleset, nullptr, 0, kAskVersion);
  if (version < 1) return;
  const unsigned rights = kRights[std::min<std::size_t>(static_cast<std::size_t>(version), 5)];
  const std::uint64_t handled = (std::uint64_t{1} << rights) - 1;
  const FileDescriptor rules(
      static_cast<int>(::syscall(SYS_landlock_create_ruleset, &handled, sizeof handled, 0)));
  if (rules.get() >= 0) (void)::syscall(SYS_landlock_restrict_self, rules.get(), 0);
#endif
}

// `grace`: the distance from the soft limit, which is reported, to the hard one, which kills.
void limit(int resource, std::uint64_t value, std::uint64_t grace = 0) {
  struct rlimit now {};
  if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &now) != 0) return;
  const rlim_t hard = std::min(static_cast<rlim_t>(value + grace), now.rlim_max);
  const struct rlimit limits { std::min(static_cast<rlim_t>(value), hard), hard };
  (void)::setrlimit(static_cast<__rlimit_resource_t>(resource), &limits);
}

// Returns the bytes of address space in use.
std::uint64_t mapped_bytes() {
  std::uint64_t pages = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "re")) {
    unsigned long long read = 0;
    if (std::fscanf(file, "%llu", &read) == 1) pages = read;
    std::fclose(file);
  }
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

// Closes all descriptors but these two; stderr stays open if a sanitizer reports to it.
void close_others(int a, int b) {
  unsigned first = 0;
  std::array<int, 2> kept = {std::min(a, b), std::max(a, b)};
  for (const int fd : kept) {
    const auto keep = static_cast<unsigned>(fd);
    for (unsigned begin = first; begin < keep;) {
      const unsigned end = kSanitized && begin <= 2 && keep > 2 ? 1 : keep - 1;
      (void)::syscall(SYS_close_range, begin, end, 0);
      begin = end == 1 && keep > 2 ? 3 : keep;
    }
    first = keep + 1;
  }
  (void)::syscall(SYS_close_range, first, ~0U, 0);
}

bool confine(int input_fd, int output_fd, const SandboxLimits& limits, std::uint64_t mapped) {
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  (void)::prctl(PR_SET_DUMPABLE, 0);
  // This process's handlers for these signals do not apply to the child.
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGXCPU, SIGSEGV, SIGABRT, SIGBUS}) {
    if (!kSanitized || number != SIGSEGV) (void)::signal(number, SIG_DFL);
  }
  close_others(input_fd, output_fd);
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_FSIZE, 0);
  limit(RLIMIT_CPU, limits.cpu_seconds, 1);
  if (!kSanitized) limit(RLIMIT_AS, mapped + limits.memory_bytes);
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return false;
  close_file_system();
  return allow_few_system_calls();
}

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

[[noreturn]] void run_child(int input_fd, int output_fd, const SandboxLimits& limits,
                            std::uint64_t mapped, const std::function<std::string()>& work) {
  if (!confine(input_fd, output_fd, limits, mapped)) ::_exit(kExitNotConfined);
  try {
    std::string result;
    try {
      result = kDone + work();
    } catch (const Error& error) {
      result = cat(kError, static_cast<int>(error.code()), " ", error.what());
    }
    (void)write_all(output_fd, result);
  } catch (const std::exception&) {
    ::_exit(kExitOutOfMemory);
  }
  ::_exit(0);
}

[[noreturn]] void failed(const std::string& why) {
  throw Error(ErrorCode::kH5ReaderFailed, "the process that reads HDF5 " + why);
}

class SandboxProcess : NotCopied {
 public:
  explicit SandboxProcess(pid_t pid) : pid_(pid) {}
  ~SandboxProcess() {
    if (pid_ <= 0) return;
    (void)::kill(pid_, SIGKILL);
    (void)wait();
  }
  // Returns the status from waitpid; 0 if it is not available.
  int wait() {
    int status = 0;
    pid_t ended = 0;
    do {
      ended = ::waitpid(pid_, &status, 0);
    } while (ended < 0 && errno == EINTR);
    pid_ = 0;
    return ended < 0 ? 0 : status;
  }

 private:
  pid_t pid_;
};

std::string read_all(int fd, const SandboxLimits& limits, const SandboxService* service) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::seconds(limits.wall_seconds);
  std::string out;
  std::array<char, 1U << 16U> buffer{};
  for (;;) {
    throw_if_interrupted();
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) failed(cat("was ended after ", limits.wall_seconds, " seconds"));
    std::array<pollfd, 2> wanted = {
        {{fd, POLLIN, 0}, {service == nullptr ? -1 : service->fd, POLLIN, 0}}};
    const int ready = ::poll(wanted.data(), wanted.size(),
                             static_cast<int>(std::min<long long>(left, kPollMilliseconds)));
    if (ready < 0 && errno != EINTR) throw_errno("poll");
    if (ready > 0 && (wanted[1].revents & POLLIN) != 0) service->answer();
    if (ready <= 0 || wanted[0].revents == 0) continue;
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno("reading from the process that reads HDF5");
    if (got == 0) return out;
    if (static_cast<std::uint64_t>(got) > limits.output_bytes - out.size())
      failed(cat("sent more than ", limits.output_bytes, " bytes"));
    out.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

void check_status(int status, const SandboxLimits& limits) {
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    if (number == SIGXCPU)
      failed(cat("was ended after ", limits.cpu_seconds, " seconds of processor time"));
    if (number == SIGKILL)
      failed("was killed from outside; the kernel does so when memory runs out");
    failed(cat("crashed with signal ", number, " (", ::strsignal(number),
               "); libhdf5 does so on a malformed file, or when memory runs out"));
  }
  switch (WEXITSTATUS(status)) {
    case 0:
      return;
    case kExitOutOfMemory:
      failed(cat("ran out of memory: more than ", human_bytes(limits.memory_bytes)));
    case kExitNotConfined:
      failed("could not be confined: seccomp filters are refused, or not known for this processor");
    default:
      failed(cat("ended with status ", WEXITSTATUS(status)));
  }
}

[[noreturn]] void rethrow(std::string_view message) {
  int code = 0;
  std::size_t at = 0;
  while (at < message.size() && message[at] >= '0' && message[at] <= '9' && at < 6)
    code = code * 10 + (message[at++] - '0');
  if (at == message.size() || message[at] != ' ' || code > static_cast<int>(ErrorCode::kH5Checksum))
    failed("sent a malformed error");
  // The words of a hijacked child must not reach a terminal unescaped; escaping twice only doubles
  // backslashes.
  std::string text;
  for (const char c : message.substr(at + 1, 4096))
    text += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? '?' : c;
  throw Error(static_cast<ErrorCode>(code), text);
}

}  // namespace

std::string run_sandboxed(int input_fd, const SandboxLimits& limits,
                          const std::function<std::string()>& work, const SandboxService* service) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw_errno("pipe");
  FileDescriptor from(ends[0]);
  FileDescriptor to(ends[1]);
  const std::uint64_t mapped = mapped_bytes();
  const pid_t pid = ::fork();
  if (pid < 0) throw_errno("fork");
  if (pid == 0) run_child(input_fd, to.get(), limits, mapped, work);
  SandboxProcess child(pid);
  to.reset();
  const std::string message = read_all(from.get(), limits, service);
  check_status(child.wait(), limits);
  if (!message.empty() && message[0] == kError) rethrow(std::string_view(message).substr(1));
  if (message.empty() || message[0] != kDone) failed("sent nothing");
  return message.substr(1);
}

}  // namespace fsdp::formats
