// SPDX-License-Identifier: Apache-2.0
// A call is known by the return addresses behind it, as offsets in the program; run.py turns them
// into files and lines.
#include <dlfcn.h>
#include <execinfo.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <set>
#include <sstream>
#include <string>

#include "libfsdp/internal/comm/left_out.h"

namespace fsdp::internal {
namespace {

// Enough for this file's, the function that may be left out, and those that pass on to it.
constexpr int kMostFrames = 8;

std::string value_of(const char* variable) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? std::string() : value;
}

// Returns the offsets of the calls that led here, the innermost first: "1f00 2e34 ".
std::string chain_of_calls() {
  static const auto base = [] {
    Dl_info info{};
    dladdr(reinterpret_cast<void*>(&chain_of_calls), &info);
    return reinterpret_cast<std::uintptr_t>(info.dli_fbase);
  }();
  void* frames[kMostFrames];
  const int count = backtrace(frames, kMostFrames);
  std::ostringstream chain;
  // A call stands before its return address.
  for (int i = 0; i < count; ++i)
    chain << std::hex << reinterpret_cast<std::uintptr_t>(frames[i]) - 1 - base << ' ';
  return chain.str();
}

std::set<std::string> lines_in(const std::string& path) {
  std::ifstream file(path);
  std::set<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.insert(line);
  return lines;
}

void list_call(const std::string& path, const std::string& line) {
  static std::mutex mutex;
  static auto* const listed = new std::set<std::string>;
  const std::lock_guard lock(mutex);
  if (listed->insert(line).second) std::ofstream(path, std::ios::app) << line + '\n';
}

}  // namespace

// FSDP_LIST_CALLS names the file that gets each call once, as its name and its chain;
// FSDP_LEAVE_OUT one with the lines of the calls to leave out.
bool is_left_out(const char* name) {
  static const std::string to_list = value_of("FSDP_LIST_CALLS");
  static const std::set<std::string> left_out = lines_in(value_of("FSDP_LEAVE_OUT"));
  if (to_list.empty() && left_out.empty()) return false;
  const std::string line = std::string(name) + ' ' + chain_of_calls();
  if (!to_list.empty()) list_call(to_list, line);
  return left_out.contains(line);
}

}  // namespace fsdp::internal
