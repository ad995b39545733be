// SPDX-License-Identifier: Apache-2.0
#include "tests/support/sim_device/recording.h"

#include <array>
#include <cstring>
#include <mutex>
#include <utility>

#include <ATen/Context.h>

#include "tests/support/sim_device/arena.h"
#include "tests/support/sim_device/call_chain.h"
#include "tests/support/sim_device/device.h"
#include "tests/support/sim_device/device_allocator.h"
#include "tests/support/sim_device/findings.h"
#include "tests/support/sim_device/lock.h"
#include "tests/support/sim_device/timeline.h"

namespace fsdp::test::sim {
namespace {

Recording*& going_on(int device) {
  static auto* const all = new std::array<Recording*, kMostDevices>{};
  return all->at(static_cast<std::size_t>(device));
}

}  // namespace

int Recording::add(const Access& access) {
  work.push_back({access, {}, nullptr});
  return static_cast<int>(work.size()) - 1;
}

void Recording::save(const char* block, std::size_t bytes, std::uint64_t loan) {
  const auto [saved, fresh] = saved_.emplace(block, Saved{loan, {}});
  if (!fresh && saved->second.loan == loan) return;
  const char* const memory = on_host(block);
  saved->second = {loan, {memory, memory + bytes}};
}

void Recording::save(const at::Generator& generator) {
  for (const auto& [saved, state] : generators_) {
    if (saved == generator) return;
  }
  at::Generator source = generator;
  const std::lock_guard lock(source.mutex());
  generators_.emplace_back(generator, source.get_state());
}

void Recording::restore() {
  for (const auto& [block, saved] : saved_) {
    if (is_lent(block, saved.loan))
      std::memcpy(on_host(block), saved.bytes.data(), saved.bytes.size());
  }
  for (auto& [generator, state] : generators_) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

Recording* recording_of(int device) {
  return going_on(device);
}

void set_recording(int device, Recording* recording) {
  going_on(device) = recording;
}

void record(const Access& work, std::function<void(const Access& now)> run) {
  const Lock lock;
  Recording* const recording = recording_of(device_of_stream(work.stream));
  if (recording == nullptr || recording->number != work.capture) return;
  recording->work.at(static_cast<std::size_t>(work.node)).run = std::move(run);
}

void record_draws(int device, const at::Generator& generator) {
  const Lock lock;
  if (generator != at::globalContext().defaultGenerator(device_at(device)))
    refuse_in_capture(device, "random numbers of a generator that is not the device's own");
  if (Recording* const recording = recording_of(device)) recording->save(generator);
}

bool refuse_in_capture(int device, const std::string& what) {
  const Lock lock;
  if (recording_of(device) == nullptr) return false;
  report("in a capture: " + what, {{"now", call_chain()}});
  return true;
}

}  // namespace fsdp::test::sim
