#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# How fast the cores of this machine compile, as a ratio to those of tests/README.md: figures of one build on two machines differ
# by about the ratio of their yardsticks.  Prints one line.
set -eu
ONE=5.6   # seconds of processor time

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/yardstick.cpp" <<'END'
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <regex>
#include <string>
#include <unordered_map>
#include <vector>
int main(int argc, char** argv) {
  std::map<std::string, std::vector<std::function<std::string(int)>>> calls;
  std::unordered_map<std::string, std::map<int, std::string>> words;
  for (int i = 0; i < argc; ++i) {
    calls[argv[i]].push_back([&words, argv, i](int n) { return words[argv[i]][n]; });
    words[std::regex_replace(argv[i], std::regex("a+(b|c)*"), "x")].emplace(i, argv[i]);
  }
  for (auto& [name, list] : calls) {
    std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a(1) < b(1); });
    std::cout << name << list.size() << std::regex_match(name, std::regex("[a-z]*")) << '\n';
  }
}
END
seconds=$( { TIMEFORMAT='%U %S'; time c++ -std=c++20 -O2 -c "$work/yardstick.cpp" -o "$work/yardstick.o"; } 2>&1 | awk '{ print $1 + $2 }')
awk -v s="$seconds" -v one=$ONE 'BEGIN { printf "yardstick: %.1f s of processor time, %.2f of the machine of tests/README.md\n", s, s / one }'
