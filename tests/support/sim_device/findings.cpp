// SPDX-License-Identifier: Apache-2.0
#include "tests/support/sim_device/findings.h"

#include <map>

#include "tests/support/sim_device/call_chain.h"
#include "tests/support/sim_device/lock.h"

namespace fsdp::test::sim {
namespace {

using Finding = std::pair<std::string, std::vector<std::pair<std::string, int>>>;

std::map<Finding, int>& findings() {
  static auto* const instance = new std::map<Finding, int>;
  return *instance;
}

}  // namespace

void report(std::string what, std::vector<std::pair<std::string, int>> chains) {
  const Lock lock;
  ++findings()[{std::move(what), std::move(chains)}];
}

std::vector<std::string> take_findings() {
  const Lock lock;
  std::vector<std::string> result;
  for (const auto& [finding, count] : findings()) {
    std::string text = finding.first;
    if (count > 1) text += " (" + std::to_string(count) + " times)";
    for (const auto& [whose, chain] : finding.second)
      text += "\n  " + whose + ": " + chain_text(chain);
    result.push_back(std::move(text));
  }
  findings().clear();
  return result;
}

}  // namespace fsdp::test::sim
