// SPDX-License-Identifier: Apache-2.0
#include "tests/support/sim_device/call_chain.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <sstream>
#include <string_view>
#include <vector>

#include "tests/support/sim_device/lock.h"

namespace fsdp::test::sim {
namespace {

constexpr int kMostFrames = 96;
constexpr int kMostShown = 8;
// Frames of call_chain() itself.
constexpr std::size_t kOwnFrames = 1;

struct Chains {
  std::map<std::vector<void*>, int> numbers;
  std::vector<const std::vector<void*>*> frames;  // by number; the keys of `numbers`
  std::map<void*, std::string> texts;             // of a frame; empty if it is not shown
};

Chains& chains() {
  static auto* const instance = new Chains;
  return *instance;
}

// Returns the base of the program itself: the project's code is linked statically.
void* own_base() {
  static void* const base = [] {
    Dl_info info{};
    dladdr(reinterpret_cast<void*>(&call_chain), &info);
    return info.dli_fbase;
  }();
  return base;
}

// "fsdp::internal::(anonymous namespace)::fill(fsdp::Unit const&, bool)" becomes "fill".
std::string short_name(std::string_view name) {
  std::size_t end = name.find('(');
  while (end != std::string_view::npos && name.substr(end, 11) == "(anonymous ")
    end = name.find('(', end + 1);
  name = name.substr(0, end);
  // A result type stands before the names of templates.
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '<') ++depth;
    if (name[i] == '>') --depth;
    if (depth != 0) continue;
    if (name[i] == ' ' || (name[i] == ':' && i > 0 && name[i - 1] == ':')) begin = i + 1;
  }
  return std::string(name.substr(begin));
}

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> plain(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), &std::free);
  return plain ? plain.get() : name;
}

bool is_shown(std::string_view file) {
  return !file.starts_with("tests/support/sim_device/") &&
         !file.starts_with("libfsdp/internal/engine/observer.cpp:");
}

// Reads addr2line's answers: an address, then pairs of a function and a place, inlined ones first.
void read_places(std::istream& answers, const std::map<std::uintptr_t, void*>& asked) {
  std::string line;
  std::string* text = nullptr;
  while (std::getline(answers, line)) {
    if (line.starts_with("0x")) {
      const auto found = asked.find(std::strtoull(line.c_str(), nullptr, 16));
      text = found == asked.end() ? nullptr : &chains().texts[found->second];
      continue;
    }
    std::string place;
    if (text == nullptr || !std::getline(answers, place)) continue;
    if (!place.starts_with(FSDP_TEST_SOURCE "/")) continue;
    place = place.substr(sizeof(FSDP_TEST_SOURCE));
    place = place.substr(0, place.find(' '));  // "(discriminator 2)"
    if (!is_shown(place)) continue;
    *text += (text->empty() ? "" : " < ") + short_name(line) + " (" + place + ")";
  }
}

// Finds the texts of frames that have none yet.
void find_texts(const std::vector<void*>& frames) {
  std::map<std::uintptr_t, void*> asked;
  for (void* const frame : frames) {
    const auto [known, fresh] = chains().texts.emplace(frame, "");
    if (!fresh) continue;
    // The call stands before the return address.
    char* const call = static_cast<char*>(frame) - 1;
    Dl_info info{};
    if (dladdr(call, &info) == 0) continue;
    if (info.dli_fbase == own_base()) {
      asked.emplace(static_cast<std::uintptr_t>(call - static_cast<char*>(info.dli_fbase)), frame);
    } else if (info.dli_sname != nullptr) {
      const std::string name = demangled(info.dli_sname);
      const std::string plain = name.substr(0, name.find('('));
      if (plain.starts_with("torch::optim::") || plain == "torch::autograd::backward")
        known->second = plain;
    }
  }
  if (asked.empty()) return;
  std::ostringstream command;
  command << "addr2line -e " << std::filesystem::read_symlink("/proc/self/exe").string()
          << " -a -i -f -C" << std::hex;
  for (const auto& [address, frame] : asked) command << " 0x" << address;
  command << " 2>/dev/null";
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.str().c_str(), "r"), &pclose);
  if (!pipe) return;
  std::stringstream answers;
  char part[4096];
  while (const std::size_t bytes = std::fread(part, 1, sizeof(part), pipe.get()))
    answers.write(part, static_cast<std::streamsize>(bytes));
  read_places(answers, asked);
}

}  // namespace

int call_chain() {
  void* frames[kMostFrames];
  const auto count = static_cast<std::size_t>(backtrace(frames, kMostFrames));
  const Lock lock;
  const auto next = static_cast<int>(chains().frames.size());
  const auto [found, fresh] = chains().numbers.emplace(
      std::vector<void*>(frames + std::min(kOwnFrames, count), frames + count), next);
  if (fresh) chains().frames.push_back(&found->first);
  return found->second;
}

std::string chain_text(int chain) {
  const Lock lock;
  const std::vector<void*>& frames = *chains().frames.at(static_cast<std::size_t>(chain));
  find_texts(frames);
  std::string result;
  int shown = 0;
  for (void* const frame : frames) {
    const std::string& text = chains().texts[frame];
    if (text.empty()) continue;
    result += (result.empty() ? "" : " < ") + text;
    if (++shown == kMostShown) break;
  }
  return result.empty() ? "(no code of the project)" : result;
}

}  // namespace fsdp::test::sim
