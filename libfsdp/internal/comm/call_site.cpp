// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/call_site.h"

#ifdef FSDP_LEAVE_OUT_CALLS

#include <cstdlib>
#include <fstream>
#include <mutex>
#include <set>
#include <string>

namespace fsdp::internal {
namespace {

std::string value_of(const char* variable) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? std::string() : value;
}

void list(const std::string& path, const std::string& line) {
  static std::mutex mutex;
  static auto* const listed = new std::set<std::string>;
  const std::lock_guard lock(mutex);
  if (listed->insert(line).second) std::ofstream(path, std::ios::app) << line + '\n';
}

}  // namespace

bool is_left_out(const char* what, const CallSite& site) {
  static const std::string left_out = value_of("FSDP_LEAVE_OUT");
  static const std::string listed = value_of("FSDP_LIST_CALLS");
  if (left_out.empty() && listed.empty()) return false;
  const std::string file = site.file_name();
  const std::string place = file.substr(file.rfind('/') + 1) + ':' + std::to_string(site.line());
  if (!listed.empty()) list(listed, place + ' ' + what);
  return place == left_out;
}

}  // namespace fsdp::internal

#endif
