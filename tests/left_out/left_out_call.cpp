// SPDX-License-Identifier: Apache-2.0
// A call is known by the return addresses behind it, as offsets in the program; run.py turns them
// into files and lines.
#include <execinfo.h>

#include <cstdlib>
#include <fstream>
#include <mutex>
#include <set>
#include <sstream>
#include <string>

#include "libfsdp/internal/comm/left_out.h"

// Where the program begins and ends in memory, as the linker says.
extern "C" const char __executable_start;
extern "C" const char _end;

namespace fsdp::internal {
namespace {

// Enough for this file's, the function that may be left out, and those that pass on to it.
constexpr int kMostFrames = 8;

std::string value_of(const char* variable) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? std::string() : value;
}

// Returns the offsets of the calls that led here, the innermost first: "1f00 2e34 ".  It ends where
// another library called, whose address is another one in each process.
std::string chain_of_calls() {
  void* frames[kMostFrames];
  const int count = backtrace(frames, kMostFrames);
  std::ostringstream chain;
  for (int i = 0; i < count; ++i) {
    const char* const at = static_cast<const char*>(frames[i]);
    if (at < &__executable_start || at >= &_end) break;
    // A call stands before its return address.
    chain << std::hex << at - 1 - &__executable_start << ' ';
  }
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
