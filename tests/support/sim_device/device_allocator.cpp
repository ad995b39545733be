// SPDX-License-Identifier: Apache-2.0
#include "tests/support/sim_device/device_allocator.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "tests/support/sim_device/arena.h"
#include "tests/support/sim_device/counting.h"
#include "tests/support/sim_device/findings.h"
#include "tests/support/sim_device/lock.h"
#include "tests/support/sim_device/recording.h"
#include "tests/support/sim_device/timeline.h"

namespace fsdp::test::sim {
namespace {

constexpr std::size_t kGranule = 512;  // as in CUDA's caching allocator
// A strided tensor of more runs of memory counts as its whole extent.
constexpr std::int64_t kMostRuns = 512;

std::uint64_t loans = 0;  // so far

struct Block {
  char* address = nullptr;
  std::size_t bytes = 0;
  int device = 0;
  int stream = 0;  // that it was allocated on
  bool is_live = false;
  std::uint64_t loan = 0;
  int graph = 0;                         // whose own memory it is
  std::map<int, std::uint32_t> used_on;  // by other streams; the times once it is freed
  Shadow shadow;
};

struct Pool {
  // By graph (0: none) and stream, by bytes.
  std::map<std::pair<int, int>, std::multimap<std::size_t, Block*>> free;
  std::vector<Block*> waiting;
};

Pool& pool_of(int device) {
  static auto* const pools = new std::array<Pool, kMostDevices>;
  return pools->at(static_cast<std::size_t>(device));
}

// All blocks, by address.  They are never destroyed.
std::map<const char*, Block*>& blocks() {
  static auto* const instance = new std::map<const char*, Block*>;
  return *instance;
}

Block* block_at(const void* address) {
  const auto* const at = static_cast<const char*>(address);
  auto found = blocks().upper_bound(at);
  if (found == blocks().begin()) return nullptr;
  --found;
  return at < found->second->address + found->second->bytes ? found->second : nullptr;
}

std::int64_t counted(const Block& block) {
  return static_cast<std::int64_t>(block.bytes);
}

void make_free(Block& block) {
  pool_of(block.device).free[{block.graph, block.stream}].emplace(block.bytes, &block);
  block.used_on.clear();
  // A graph holds its memory as long as it lives.
  if (block.graph == 0) count_memory(block.device, block.stream, 0, -counted(block));
}

void poison(const Block& block) {
  std::memset(on_host(block.address), kPoison, block.bytes);
}

// Returns the capture in progress whose memory the block is; null if there is none.
Recording* recording_into(const Block& block) {
  Recording* const recording = recording_of(block.device);
  return recording != nullptr && recording->number == block.graph ? recording : nullptr;
}

void free_block(void* context) {
  const Lock lock;
  auto& block = *static_cast<Block*>(context);
  block.is_live = false;
  count_memory(block.device, block.stream, -counted(block), 0);
  poison(block);
  if (Recording* const recording = recording_into(block)) {
    const int node = recording->add({block.stream, 0, "the end of a tensor"});
    recording->work.at(static_cast<std::size_t>(node)).run = [&block](const Access&) {
      poison(block);
    };
  }
  for (auto& [stream, time] : block.used_on) time = clock_of(stream).at(stream);
  if (block.used_on.empty()) {
    make_free(block);
  } else if (block.graph != 0) {
    // Only events could tell when the block is free, and a capture must not query them.
  } else {
    pool_of(block.device).waiting.push_back(&block);
  }
}

const char* text_of(Conflict conflict) {
  switch (conflict) {
    case Conflict::kReadAfterWrite:
      return "reads what is written by";
    case Conflict::kWriteAfterWrite:
      return "writes what is written by";
    case Conflict::kWriteAfterRead:
      break;
  }
  return "writes what is read by";
}

void touch(Block& block, std::size_t begin, std::size_t end, bool write, const Access& now) {
  Recording* const recording =
      now.capture == 0 ? nullptr : recording_of(device_of_stream(now.stream));
  Shadow& shadow = recording == nullptr ? block.shadow : recording->shadow_of(block.address);
  shadow.touch(
      begin, end, write, now, known_to(now), [&](Conflict conflict, const Access& earlier) {
        report(std::string("race: ") + now.name + " on " + full_stream_name(now.stream) + ' ' +
                   text_of(conflict) + ' ' + earlier.name + " on " +
                   full_stream_name(earlier.stream) + ", and no event orders them (" +
                   std::to_string(block.bytes) + " bytes of " + stream_name(block.stream) + ")",
               {{"now", now.chain}, {"earlier", earlier.chain}});
      });
}

// Returns a free block of the stream, removed from the free ones; null if none fits.
Block* reused(Pool& pool, int graph, int stream, std::size_t bytes) {
  auto& free = pool.free[{graph, stream}];
  const auto found = free.lower_bound(bytes);
  if (found == free.end() || found->first > bytes + bytes / 4) return nullptr;
  Block* const block = found->second;
  free.erase(found);
  return block;
}

Block* fresh(int device, std::size_t bytes) {
  auto* const block = new Block;
  block->address = take_addresses(device, bytes);
  block->bytes = bytes;
  block->device = device;
  blocks().emplace(block->address, block);
  ++counting(device).fresh_blocks;
  return block;
}

class DeviceAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const int device = current_device();
    const c10::Device where(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device));
    if (bytes == 0) return {nullptr, where};
    const Lock lock;
    release_waiting_blocks(device);
    const c10::Stream stream = current_stream(device);
    const int place = place_of(stream);
    const std::size_t rounded = (bytes + kGranule - 1) / kGranule * kGranule;
    const int graph = capture_of(place);
    Block* block = reused(pool_of(device), graph, place, rounded);
    const bool is_held = block != nullptr && graph != 0;
    if (block == nullptr) block = fresh(device, rounded);
    block->stream = place;
    block->is_live = true;
    block->loan = ++loans;
    block->graph = graph;
    count_memory(device, place, counted(*block), is_held ? 0 : counted(*block));
    count_allocation(device, place);
    // From now on the memory belongs to this stream, which may write it at any time.
    touch(*block, 0, block->bytes, true, begin_allocation(stream));
    poison(*block);
    return {block->address, block, &free_block, where};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "memory of a simulated device is copied by operators alone");
  }
};

// Notes that work of a capture uses memory.
void note_recorded(const Access& access, const Block& block, const void* memory, std::size_t bytes,
                   bool write) {
  Recording* const recording = recording_of(device_of_stream(access.stream));
  if (recording == nullptr || !is_recorded(access)) return;
  const bool is_own = block.graph == recording->number;
  recording->work.at(static_cast<std::size_t>(access.node))
      .uses.push_back({static_cast<const char*>(memory), bytes, block.loan, is_own, write});
  if (write && !is_own) recording->save(block.address, block.bytes, block.loan);
}

// The dimensions that a tensor's memory has beyond its innermost dense run.
struct Runs {
  std::int64_t numel = 1;                                      // of a run
  std::vector<std::pair<std::int64_t, std::int64_t>> outside;  // stride and size
  std::int64_t count = 1;
  std::int64_t extent = 1;  // from the first element to the last
};

Runs runs_of(const at::Tensor& tensor) {
  Runs result;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1 && tensor.stride(d) != 0)
      result.outside.emplace_back(tensor.stride(d), tensor.size(d));
  }
  std::sort(result.outside.begin(), result.outside.end());
  auto dimension = result.outside.begin();
  while (dimension != result.outside.end() && dimension->first <= result.numel) {
    result.numel += (dimension->second - 1) * dimension->first;
    ++dimension;
  }
  result.outside.erase(result.outside.begin(), dimension);
  result.extent = result.numel;
  for (const auto& [stride, size] : result.outside) {
    result.count *= size;
    result.extent += (size - 1) * stride;
  }
  return result;
}

}  // namespace

c10::Allocator* device_allocator() {
  static DeviceAllocator instance;
  return &instance;
}

void record_on_stream(const c10::DataPtr& memory, const c10::Stream& stream) {
  if (memory.get_deleter() != &free_block) return;
  const Lock lock;
  auto& block = *static_cast<Block*>(memory.get_context());
  ++counting(block.device).recorded_on_streams;
  const int place = place_of(stream);
  if (place != block.stream) block.used_on.emplace(place, 0);
}

void note_access(const Access& access, const void* memory, std::size_t bytes, bool write) {
  if (bytes == 0) return;
  const Lock lock;
  Block* const block = block_at(memory);
  if (block == nullptr) {
    report(std::string(access.name) + " uses a tensor without memory on the device",
           {{"now", access.chain}});
    return;
  }
  if (!block->is_live)
    report(std::string("use after free: ") + access.name + " on " +
               full_stream_name(access.stream) + " uses memory that was freed",
           {{"now", access.chain}});
  if (access.capture != 0) note_recorded(access, *block, memory, bytes, write);
  const auto begin = static_cast<std::size_t>(static_cast<const char*>(memory) - block->address);
  touch(*block, begin, std::min(begin + bytes, block->bytes), write, access);
}

bool note_access_again(const Access& access, const MemoryUse& use) {
  const Lock lock;
  Block* const block = block_at(use.memory);
  const auto begin = static_cast<std::size_t>(use.memory - block->address);
  touch(*block, begin, std::min(begin + use.bytes, block->bytes), use.write, access);
  return use.is_own || (block->is_live && block->loan == use.loan);
}

bool is_lent(const char* block, std::uint64_t loan) {
  const Lock lock;
  const Block* const found = block_at(block);
  return found != nullptr && found->is_live && found->loan == loan;
}

void poison_memory_of_graph(int graph) {
  const Lock lock;
  for (const auto& [address, block] : blocks()) {
    if (block->graph == graph) poison(*block);
  }
}

void give_back_memory_of_graph(int graph) {
  const Lock lock;
  for (const auto& [address, block] : blocks()) {
    if (block->graph != graph) continue;
    pool_of(block->device).free.erase({graph, block->stream});
    block->graph = 0;
    if (block->is_live) continue;
    block->shadow = Shadow();
    make_free(*block);
  }
}

void note_access(const Access& access, const at::Tensor& tensor, bool write) {
  if (!tensor.defined() || !tensor.is_privateuseone() || tensor.numel() == 0) return;
  const auto item = static_cast<std::int64_t>(tensor.itemsize());
  const auto* base = static_cast<const char*>(tensor.storage().data_ptr().get());
  if (base != nullptr) base += tensor.storage_offset() * item;
  const Runs runs = runs_of(tensor);
  if (base == nullptr || runs.count > kMostRuns) {
    note_access(access, base, static_cast<std::size_t>(runs.extent * item), write);
    return;
  }
  const Lock lock;
  for (std::int64_t run = 0; run < runs.count; ++run) {
    std::int64_t rest = run;
    std::int64_t offset = 0;
    for (const auto& [stride, size] : runs.outside) {
      offset += rest % size * stride;
      rest /= size;
    }
    note_access(access, base + offset * item, static_cast<std::size_t>(runs.numel * item), write);
  }
}

void release_waiting_blocks(int device) {
  const Lock lock;
  std::vector<Block*> still;
  for (Block* const block : std::exchange(pool_of(device).waiting, {})) {
    const bool is_over =
        progress() == Progress::kEager ||
        std::all_of(block->used_on.begin(), block->used_on.end(),
                    [&](const auto& use) { return host_knows(device, use.first, use.second); });
    if (!is_over) {
      still.push_back(block);
      continue;
    }
    // The next user of the block is ordered after the work of those streams.
    for (const auto& [stream, time] : block->used_on) block->shadow.settle(stream, time);
    make_free(*block);
  }
  auto& waiting = pool_of(device).waiting;
  waiting.insert(waiting.end(), still.begin(), still.end());
}

}  // namespace fsdp::test::sim
