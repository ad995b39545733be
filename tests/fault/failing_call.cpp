// SPDX-License-Identifier: Apache-2.0
// Runs a program and makes one of its system calls fail, whether the program makes it through
// the C library or with syscall().  The kernel stops the program only at the calls that a
// seccomp filter selects, so other calls cost nothing; threads and child processes are
// included.
//
//   fault_failing_call --report FILE [--from NAME] [--call NAME --at N --do WHAT [--stays]]
//   [--seconds S] -- PROGRAM ARG...
//
// Calls are numbered by name, over all threads and processes, from the first instruction of the
// program: calls of the dynamic loader before that do not count. --from: counting starts at the
// first call of that name, which is made normally and not counted.  A program that wants its start
// ignored makes a call that it makes nowhere else (getppid, say).  WHAT is one of
//
//   error=E    the call is not made and fails with errno E;    done=E   is made, and fails with E
//   return=N   is not made and returns N;                      short=N  is made for at most N bytes
//   kill       the process that makes it gets SIGKILL
//   cut=F:DIR  power fails: EXT4_IOC_SHUTDOWN with flags F at the file system DIR, then SIGKILL
//              to the program
//
// --stays: all later calls of that name fail too.  A futex is called futex_wait if it may wait,
// because only then can it fail.
//
// FILE is a list of "calls NAME COUNT" (without --call, for every name), "reached COUNT" (how often
// WHAT was done), and how it ended: "exit STATUS", "signal NUMBER" or "hung".  The exit status is 0
// if the program could be started, however it ended; 77 if tracing is not possible.
#include <elf.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr int kSkipped = 77;

struct Name {
  const char* name;
  long number;
};
constexpr Name kNames[] = {
#include "call_names.inc"
};

std::string name_of(long number) {
  for (const Name& call : kNames) {
    if (call.number == number) return call.name;
  }
  return "call_" + std::to_string(number);
}

[[noreturn]] void give_up(const std::string& why, int status = 2) {
  std::fprintf(stderr, "fault_failing_call: %s: %s\n", why.c_str(), std::strerror(errno));
  std::exit(status);
}

struct Plan {
  std::string report;
  std::string from;  // empty: the first instruction
  std::string call;  // empty: count only
  long at = 0;
  std::string what;
  long value = 0;      // of `what`
  std::string folder;  // of a power cut
  bool stays = false;
  unsigned seconds = 30;
  char** program = nullptr;
};

Plan parse(int argc, char** argv) {
  Plan plan;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--") {
      plan.program = argv + i + 1;
      break;
    }
    if (word == "--stays") {
      plan.stays = true;
      continue;
    }
    if (++i == argc) break;
    const std::string value = argv[i];
    if (word == "--report") plan.report = value;
    if (word == "--from") plan.from = value;
    if (word == "--call") plan.call = value;
    if (word == "--at") plan.at = std::stol(value);
    if (word == "--seconds") plan.seconds = static_cast<unsigned>(std::stoul(value));
    if (word == "--do") {
      const std::size_t equals = value.find('=');
      plan.what = value.substr(0, equals);
      if (equals != std::string::npos) plan.value = std::stol(value.substr(equals + 1));
      const std::size_t colon = value.find(':');
      if (colon != std::string::npos) plan.folder = value.substr(colon + 1);
    }
  }
  if (plan.program == nullptr || *plan.program == nullptr || plan.report.empty()) {
    errno = EINVAL;
    give_up("needs --report FILE -- PROGRAM");
  }
  return plan;
}

#if defined(__x86_64__)

// Returns the number of the call of that name; -1 if no name is given.
long number_of(const std::string& call) {
  if (call.empty()) return -1;
  const std::string kernel = call == "futex_wait" || call == "futex_other" ? "futex" : call;
  for (const Name& known : kNames) {
    if (kernel == known.name) return known.number;
  }
  if (call.starts_with("call_")) return std::stol(call.substr(5));
  errno = EINVAL;
  give_up("no system call is named " + call);
}

// Makes the kernel stop the program at calls of number `call` and `from`; at all calls if `call` is
// -1.
[[noreturn]] void become_program(const Plan& plan, long call, long from) {
  // Makes addresses the same in each run, and with them the number of memory allocations.
  (void)::personality(ADDR_NO_RANDOMIZE);
  if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(kSkipped);
  ::raise(SIGSTOP);
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) ::_exit(kSkipped);
  std::vector<sock_filter> filter;
  if (call >= 0) {
    const auto stop_at = static_cast<std::uint32_t>(call);
    const auto and_at = static_cast<std::uint32_t>(from >= 0 ? from : call);
    filter.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, stop_at, 2, 0));
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, and_at, 1, 0));
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE));
  const sock_fprog rules{static_cast<unsigned short>(filter.size()), filter.data()};
  if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &rules) != 0) ::_exit(kSkipped);
  ::execv(plan.program[0], plan.program);
  ::_exit(kSkipped);
}

class Tracer {
 public:
  // `from`: the number of the call at which counting starts; -1: none.
  Tracer(const Plan& plan, pid_t program, long from)
      : plan_(plan), program_(program), from_(from), counting_(from < 0) {
    if (plan.what == "cut") {
      mount_ = ::open(plan.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      if (mount_ < 0) give_up(plan.folder);
    }
  }

  // Runs until every process has ended.
  void follow() {
    int status = 0;
    for (;;) {
      const pid_t pid = ::waitpid(-1, &status, __WALL);
      if (pid < 0 && errno == EINTR) {  // the alarm
        hung_ = true;
        (void)::kill(program_, SIGKILL);
        for (const pid_t known : known_) (void)::kill(known, SIGKILL);
        continue;
      }
      if (pid < 0) break;
      if (WIFSTOPPED(status)) {
        stopped(pid, status);
      } else if (pid == program_) {
        ended_ = status;
      }
    }
  }

  void report() const {
    std::ofstream out(plan_.report);
    for (const auto& [name, count] : counts_) out << "calls " << name << ' ' << count << '\n';
    out << "reached " << reached_ << '\n';
    if (hung_) {
      out << "hung\n";
    } else if (WIFSIGNALED(ended_)) {
      out << "signal " << WTERMSIG(ended_) << '\n';
    } else {
      out << "exit " << WEXITSTATUS(ended_) << '\n';
    }
    if (!out.flush()) give_up(plan_.report);
  }

 private:
  void stopped(pid_t pid, int status) {
    const int signal = WSTOPSIG(status);
    const int event = status >> 16;
    int pass_on = 0;
    bool to_exit = false;
    if (event == PTRACE_EVENT_SECCOMP) {
      to_exit = entered(pid);
    } else if (event == PTRACE_EVENT_EXEC) {
      if (!begun_ && entry_ == 0) set_breakpoint(pid);
    } else if (event != 0) {
      // another thread or process; it reports itself
    } else if (signal == (SIGTRAP | 0x80)) {
      left(pid);
    } else if (signal == SIGTRAP && at_breakpoint(pid)) {
      begun_ = true;
    } else if (signal == SIGSTOP && known_.insert(pid).second) {
      // the first stop of a new thread
    } else {
      pass_on = signal;
    }
    // A process that was just killed is gone.
    (void)::ptrace(to_exit ? PTRACE_SYSCALL : PTRACE_CONT, pid, nullptr,
                   static_cast<std::uintptr_t>(pass_on));
  }

  void set_breakpoint(pid_t pid) {
    std::ifstream table("/proc/" + std::to_string(pid) + "/auxv", std::ios::binary);
    Elf64_auxv_t entry{};
    while (table.read(reinterpret_cast<char*>(&entry), sizeof entry) && entry.a_type != AT_ENTRY) {
    }
    entry_ = entry.a_un.a_val;
    errno = 0;
    code_ = ::ptrace(PTRACE_PEEKTEXT, pid, entry_, nullptr);
    if (errno != 0 || ::ptrace(PTRACE_POKETEXT, pid, entry_, (code_ & ~0xFFL) | 0xCC) != 0)
      give_up("breakpoint");
  }

  bool at_breakpoint(pid_t pid) {
    user_regs_struct registers{};
    if (begun_ || ::ptrace(PTRACE_GETREGS, pid, nullptr, &registers) != 0 ||
        registers.rip != entry_ + 1) {
      return false;
    }
    registers.rip = entry_;
    return ::ptrace(PTRACE_POKETEXT, pid, entry_, code_) == 0 &&
           ::ptrace(PTRACE_SETREGS, pid, nullptr, &registers) == 0;
  }

  // A call is about to be made.  Returns whether to stop at its end too.
  bool entered(pid_t pid) {
    user_regs_struct registers{};
    if (!begun_ || ::ptrace(PTRACE_GETREGS, pid, nullptr, &registers) != 0) return false;
    const auto number = static_cast<long>(registers.orig_rax);
    if (!counting_) {
      counting_ = number == from_;
      return false;
    }
    std::string name = name_of(number);
    if (number == SYS_futex) {
      const auto operation = static_cast<int>(registers.rsi) & FUTEX_CMD_MASK;
      const bool waits = operation == FUTEX_WAIT || operation == FUTEX_WAIT_BITSET;
      name = waits ? "futex_wait" : "futex_other";
    }
    const long count = ++counts_[name];
    if (name != plan_.call || count < plan_.at || (count > plan_.at && !plan_.stays)) return false;
    ++reached_;
    return strike(pid, registers);
  }

  bool strike(pid_t pid, user_regs_struct registers) {
    if (plan_.what == "kill" || plan_.what == "cut") {
      if (plan_.what == "cut") cut();
      (void)::kill(plan_.what == "cut" ? program_ : process_of(pid), SIGKILL);
      return false;
    }
    before_[pid] = registers;
    if (plan_.what == "done") return true;
    if (plan_.what == "short") {
      if (registers.rdx <= static_cast<unsigned long long>(plan_.value)) --reached_;
      registers.rdx =
          std::min<unsigned long long>(registers.rdx, static_cast<unsigned long long>(plan_.value));
    } else if (plan_.call == "brk") {
      // Fails by returning the present end, which it does for 0 as well.
      registers.rdi = 0;
    } else {
      registers.orig_rax = static_cast<unsigned long long>(-1);
      registers.rax =
          static_cast<unsigned long long>(plan_.what == "error" ? -plan_.value : plan_.value);
    }
    (void)::ptrace(PTRACE_SETREGS, pid, nullptr, &registers);
    return plan_.what == "short" || plan_.call == "brk";
  }

  // A call whose end was awaited has returned.
  void left(pid_t pid) {
    user_regs_struct registers{};
    if (::ptrace(PTRACE_GETREGS, pid, nullptr, &registers) != 0) return;
    if (plan_.what == "done") {
      registers.rax = static_cast<unsigned long long>(-plan_.value);
    } else {
      registers.rdi = before_[pid].rdi;
      registers.rdx = before_[pid].rdx;
    }
    (void)::ptrace(PTRACE_SETREGS, pid, nullptr, &registers);
  }

  void cut() {
    constexpr unsigned long kShutdown = _IOR('X', 125, std::uint32_t);  // ext4 and XFS
    auto flags = static_cast<std::uint32_t>(plan_.value);
    if (::ioctl(mount_, kShutdown, &flags) != 0) give_up(plan_.folder + ": shutdown");
  }

  static pid_t process_of(pid_t thread) {
    std::ifstream status("/proc/" + std::to_string(thread) + "/status");
    std::string word;
    while (status >> word) {
      pid_t process = 0;
      if (word == "Tgid:" && status >> process) return process;
    }
    return thread;
  }

  const Plan& plan_;
  const pid_t program_;
  const long from_;
  bool counting_;
  int mount_ = -1;
  std::set<pid_t> known_;
  std::map<std::string, long> counts_;
  std::map<pid_t, user_regs_struct> before_;  // the arguments of a call
  unsigned long long entry_ = 0;
  long code_ = 0;  // the content at `entry_`
  bool begun_ = false;
  long reached_ = 0;
  bool hung_ = false;
  int ended_ = 0;
};

int run(const Plan& plan) {
  const long call = number_of(plan.call);
  const long from = number_of(plan.from);
  const pid_t program = ::fork();
  if (program < 0) give_up("fork");
  if (program == 0) become_program(plan, call, from);
  int status = 0;
  if (::waitpid(program, &status, 0) != program || !WIFSTOPPED(status))
    give_up("nothing can be traced here", kSkipped);
  constexpr long kOptions = PTRACE_O_TRACESECCOMP | PTRACE_O_TRACEEXEC | PTRACE_O_TRACECLONE |
                            PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACESYSGOOD |
                            PTRACE_O_EXITKILL;
  if (::ptrace(PTRACE_SETOPTIONS, program, nullptr, kOptions) != 0)
    give_up("nothing can be traced here", kSkipped);
  Tracer tracer(plan, program, from);
  struct sigaction action {};
  action.sa_handler = [](int) {};
  (void)::sigaction(SIGALRM, &action, nullptr);  // without SA_RESTART: waitpid returns
  (void)::alarm(plan.seconds);
  (void)::ptrace(PTRACE_CONT, program, nullptr, nullptr);
  tracer.follow();
  tracer.report();
  return 0;
}

#else

int run(const Plan&) {
  errno = ENOSYS;
  give_up("registers of this processor are not known", kSkipped);
}

#endif

}  // namespace

int main(int argc, char** argv) {
  return run(parse(argc, argv));
}
