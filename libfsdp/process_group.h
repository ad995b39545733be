// SPDX-License-Identifier: Apache-2.0
// The ranks that train together: how they find each other and by what they talk.
//
// Ranks meet at a store (c10d's TCPStore, served by rank 0) and then talk through one of c10d's
// backends: Gloo for CPU tensors, NCCL for CUDA ones.  Nothing is ever pickled: text that ranks
// exchange goes through the store as bytes, tensors through the backend.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace fsdp {

class RankMonitor;
class StoreClient;
struct CallState;

// Where a launcher put this process.
struct RankEnvironment {
  std::string launcher;  // "torchrun", "Open MPI", "Slurm"
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;        // among the ranks of this node
  int local_world_size = 1;  // ranks on this node
  std::string master_addr;   // of rank 0
  std::uint16_t master_port = 0;
};

// What the variables of a launcher say: torchrun's RANK, WORLD_SIZE, LOCAL_RANK,
// LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT; Open MPI's OMPI_COMM_WORLD_*; Slurm's SLURM_PROCID,
// SLURM_NTASKS, SLURM_LOCALID, SLURM_NTASKS_PER_NODE, SLURM_NODELIST.  MASTER_ADDR and MASTER_PORT
// count under every launcher; without them one node talks over loopback, and several nodes of Slurm
// over the first of its list.  `get` is std::getenv but for tests; nullopt where no launcher's
// variables are set.
// Throws: c10::Error naming the variable where one is missing beside others of its launcher, is not
// a number, or contradicts another (a rank outside the world).
std::optional<RankEnvironment> rank_environment(const std::function<const char*(const char*)>& get);
std::optional<RankEnvironment> rank_environment();

// A set of ranks that can run collectives.  Shared by everything that uses it.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;

  virtual int rank() const noexcept = 0;  // of this process, in this group
  virtual int size() const noexcept = 0;
  // The rank that rank `rank` of this group has in the group of all ranks.
  virtual int global_rank(int rank) const = 0;
  virtual const std::string& backend_name() const noexcept = 0;  // "gloo", "nccl"
  virtual std::chrono::milliseconds timeout() const noexcept = 0;
  virtual std::chrono::milliseconds warn_after() const noexcept = 0;

  // Collective over *this* group, in the same order on every rank: a group of some of its ranks.
  // Every rank calls it with its own `ranks` (of this group, ascending, this rank among them);
  // calls with different `ranks` make different groups at once, so that disjoint groups are made by
  // one call. Throws: c10::Error where a rank named another list than the ranks on it did.
  virtual std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks) = 0;

  // What the collectives of libfsdp/internal/comm/collectives.h stand on.
  virtual const std::string& name() const noexcept = 0;  // the same on all of its ranks
  // Null where there is no other rank to talk to.
  virtual const c10::intrusive_ptr<c10d::Backend>& backend() const noexcept = 0;
  virtual StoreClient* store() const noexcept = 0;    // keys begin with name(); null likewise
  virtual RankMonitor& monitor() const noexcept = 0;  // of all ranks
  virtual CallState& calls() noexcept = 0;
};

// A c10d::Store, held without a need for c10d's headers.
class StorePtr {
 public:
  StorePtr() = default;
  template <typename S>
  StorePtr(c10::intrusive_ptr<S> store)
      : store_(share(std::move(store))) {}  // NOLINT: as pointers are
  // Null where none was given.
  c10::intrusive_ptr<c10d::Store> get() const;

 private:
  using Shared = std::shared_ptr<const c10::intrusive_ptr<c10d::Store>>;
  static Shared share(c10::intrusive_ptr<c10d::Store> store);

  Shared store_;
};

struct ProcessGroupOptions {
  std::string backend = "gloo";  // or "nccl"
  std::chrono::milliseconds timeout = std::chrono::seconds(1800);
  // A rank that waits for so long warns of it, and names those it waits for; again each time the
  // wait has doubled.  Not above half of the timeout.
  std::chrono::milliseconds warn_after = std::chrono::seconds(30);
  // Where given, instead of what rank_environment() finds; all of rank and world_size, and the
  // address unless world_size is 1.
  std::optional<int> rank;
  std::optional<int> world_size;
  std::optional<std::string> master_addr;
  std::optional<std::uint16_t> master_port;
  // Where given, the ranks meet here: ranks that are threads of one process share a HashStore.
  StorePtr store;
};

// Collective over all ranks.  The group of all ranks.
// Throws: c10::Error where no launcher's variables and no explicit ranks are given; where ranks do
// not join within the timeout, naming them; where ranks were started with other world sizes, naming
// both; where the backend is unknown or was not built or finds no device.
std::shared_ptr<ProcessGroup> init_process_group(const ProcessGroupOptions& options = {});

}  // namespace fsdp
