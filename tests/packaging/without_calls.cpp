// SPDX-License-Identifier: Apache-2.0
// Runs a program as an old kernel would: the named system calls fail with ENOSYS.
//
//   without_calls CALL... -- PROGRAM ARGUMENT...
//
// The word `seccomp` takes prctl(PR_SET_SECCOMP) away as well, with EINVAL, as kernels without
// filters do. Exit: that of the program; 77 if this kernel takes no filters itself, 2 for other
// errors.
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace {

const std::map<std::string, int> kCalls = {
#include "call_names.inc"
};

constexpr int kSkipped = 77;

std::vector<sock_filter> filter_for(const std::vector<std::string>& names) {
  std::vector<sock_filter> program = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
  };
  for (const std::string& name : names) {
    const auto at = kCalls.find(name);
    if (at == kCalls.end()) continue;  // not of this processor
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(at->second), 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS));
    if (name != "seccomp") continue;
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 0, 4));
    program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)));
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PR_SET_SECCOMP, 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL));
    program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  return program;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> names;
  int at = 1;
  for (; at < argc && std::strcmp(argv[at], "--") != 0; ++at) names.emplace_back(argv[at]);
  if (at + 1 >= argc) {
    std::fprintf(stderr, "usage: without_calls CALL... -- PROGRAM ARGUMENT...\n");
    return 2;
  }
  for (const std::string& name : names) {
    if (!kCalls.contains(name)) std::fprintf(stderr, "no call %s here\n", name.c_str());
  }
  std::vector<sock_filter> program = filter_for(names);
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    std::perror("without_calls: seccomp");
    return kSkipped;
  }
  ::execv(argv[at + 1], argv + at + 1);
  std::perror(argv[at + 1]);
  return 2;
}
