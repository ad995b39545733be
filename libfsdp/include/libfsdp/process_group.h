// SPDX-License-Identifier: Apache-2.0
// The ranks that train together: how they find each other and how they communicate.
//
// Ranks meet at a store (c10d's TCPStore, served by rank 0) and then communicate through one of
// c10d's backends: Gloo for CPU tensors, NCCL for CUDA ones.  Nothing is ever pickled: text that
// ranks exchange goes through the store as bytes, tensors through the backend.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include "libfsdp/nccl_options.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace fsdp {

namespace internal {
class GroupInternals;
}  // namespace internal

// The place of this process, as its launcher assigned it.
struct RankEnvironment {
  std::string launcher;  // "torchrun", "Open MPI", "Hydra", "PALS", "Slurm", "PMI"
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;        // among the ranks of this node
  int local_world_size = 1;  // ranks on this node
  // False: the launcher does not say how ranks are spread over nodes.  Then the two numbers above
  // mean nothing, and init_process_group() counts ranks host by host.
  bool local_known = true;
  std::string master_addr;  // of rank 0
  std::uint16_t master_port = 0;
};

// Reads the variables of a launcher: torchrun's RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
// MASTER_ADDR, MASTER_PORT; Open MPI's OMPI_COMM_WORLD_*; PMI_RANK and PMI_SIZE with
// MPI_LOCALRANKID and MPI_LOCALNRANKS of Hydra (MPICH, Intel MPI) or PMI_LOCAL_RANK and
// PMI_LOCAL_SIZE of PALS; Slurm's SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_NTASKS_PER_NODE,
// SLURM_NODELIST; PMI_RANK and PMI_SIZE alone.  The first launcher in this order counts, so that
// ranks of an mpirun inside a Slurm job are mpirun's.  PMIX_RANK is set beside Open MPI's or
// Slurm's variables.  MASTER_ADDR and MASTER_PORT are used under every launcher; without them one
// node uses loopback, and several nodes of Slurm use the first node of the list.  `get` is
// std::getenv except in tests.  Returns nullopt if no launcher's variables are set.
// Throws: c10::Error naming the variable if one of a launcher's variables is missing, is not a
// number, or contradicts another (a rank outside the world); naming both launchers if two of them
// cannot both have started this process (WORLD_SIZE=1 in each rank of `mpirun -n 4`); if PMIX_RANK
// alone is set, because each process would be a world of its own.
std::optional<RankEnvironment> rank_environment(const std::function<const char*(const char*)>& get);
std::optional<RankEnvironment> rank_environment();

// A set of ranks that can run collectives.  Shared by everything that uses it.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;

  virtual int rank() const noexcept = 0;  // of this process, in this group
  virtual int size() const noexcept = 0;
  // Converts a rank of this group to its rank in the group of all ranks.
  virtual int global_rank(int rank) const = 0;
  virtual const std::string& backend_name() const noexcept = 0;  // "gloo", "nccl"
  virtual int local_rank() const noexcept = 0;                   // among the ranks of this node
  // Returns the device that ProcessGroupOptions gave this rank, or the one that its backend needs;
  // else the CPU.
  virtual c10::Device device() const noexcept = 0;
  virtual std::chrono::milliseconds timeout() const noexcept = 0;
  virtual std::chrono::milliseconds warn_after() const noexcept = 0;

  // Collective over *this* group, in the same order on every rank: makes a group of some of its
  // ranks.  Every rank calls it with its own `ranks` (of this group, ascending, this rank among
  // them).  Ranks with different lists make different groups, so one call makes disjoint groups.
  // Throws: c10::Error if another rank of the list gave another list.
  virtual std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks) = 0;

  virtual const std::string& name() const noexcept = 0;  // the same on all of its ranks
  // Null if there is no other rank to communicate with.
  virtual const c10::intrusive_ptr<c10d::Backend>& backend() const noexcept = 0;

 private:
  friend class internal::GroupInternals;  // of which every group is one
  ProcessGroup() = default;
};

// Holds a c10d::Store without needing c10d's headers.
class StorePtr {
 public:
  StorePtr() = default;
  // Implicit, as between pointers.
  template <typename S>
  StorePtr(c10::intrusive_ptr<S> store)  // NOLINT(google-explicit-constructor)
      : store_(share(std::move(store))) {}
  // Returns null if none was given.
  c10::intrusive_ptr<c10d::Store> get() const;

 private:
  using Shared = std::shared_ptr<const c10::intrusive_ptr<c10d::Store>>;
  static Shared share(c10::intrusive_ptr<c10d::Store> store);

  Shared store_;
};

struct ProcessGroupOptions {
  std::string backend;  // "gloo" or "nccl"; empty: "nccl" if device_id is of CUDA, else "gloo"
  // The device of this rank.  Without an index: the only device that the process sees, else the one
  // of the local rank.  Default: such a CUDA device for "nccl", else the CPU.
  std::optional<c10::Device> device_id;
  std::chrono::milliseconds timeout = std::chrono::seconds(1800);
  // A rank that waits for this long prints a warning that names the ranks it waits for, and again
  // each time the wait has doubled.  At most half of the timeout.
  std::chrono::milliseconds warn_after = std::chrono::seconds(30);
  // With Gloo, ranks of one host gather parameters and exchange gradients by reading each other's
  // memory (process_vm_readv), if the kernel lets all of them, instead of through sockets.  False
  // on one rank turns this off on all.
  bool direct_copies = true;
  // If given, they replace the result of rank_environment(): set both rank and world_size, and the
  // address unless world_size is 1.
  std::optional<int> rank;
  std::optional<int> world_size;
  // This rank's place among those of its node.  Default: what the launcher says; where it says
  // nothing, ranks are counted host by host.
  std::optional<int> local_rank;
  std::optional<std::string> master_addr;
  std::optional<std::uint16_t> master_port;
  // If given, the ranks meet here: ranks that are threads of one process share a HashStore.
  StorePtr store;
  NcclOptions nccl;
  // If given, and the backend keeps a record of its last collectives (NCCL's flight recorder): each
  // rank writes its record once, when the group fails, to this path with the rank appended, as
  // PyTorch's flight recorder tools read it: "nccl_trace_" becomes nccl_trace_0, nccl_trace_1, ...
  std::string flight_record_prefix;
};

// Returns whether the program contains a backend: "nccl" if it links fsdp::cuda.
bool is_backend_available(const std::string& name);

// Collective over all ranks.  Returns the group of all ranks.
// Throws: c10::Error if no launcher's variables and no explicit ranks are given; if ranks do not
// join within the timeout, naming them; if ranks were started with other world sizes, naming both;
// if the backend is unknown, was not built or finds no device; if device_id is of another type than
// the backend's.
std::shared_ptr<ProcessGroup> init_process_group(const ProcessGroupOptions& options = {});

}  // namespace fsdp
