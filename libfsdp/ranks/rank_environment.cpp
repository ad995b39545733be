// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "formats/bytes/base/crc32.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/network_address.h"
#include "libfsdp/internal/comm/node_list.h"
#include "libfsdp/process_group.h"

namespace fsdp {
using namespace internal;
namespace {

// The variables of one launcher.
class Variables {
 public:
  Variables(const std::function<const char*(const char*)>& get, std::string launcher)
      : get_(get), launcher_(std::move(launcher)) {}

  const std::string& launcher() const noexcept { return launcher_; }

  std::optional<std::string> text(const char* name) const {
    const char* const value = get_(name);
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  }

  std::string needed_text(const char* name) const {
    const auto value = text(name);
    FSDP_CHECK(value, name, " is not set, though other variables of ", launcher_, " are; set it");
    return *value;
  }

  std::optional<int> number(const char* name) const {
    const auto value = text(name);
    if (!value) return std::nullopt;
    int result = 0;
    const char* const end = value->data() + value->size();
    const auto [stop, error] = std::from_chars(value->data(), end, result);
    FSDP_CHECK(error == std::errc() && stop == end && result >= 0, name,
               ": expected a number that is not negative, but got '", *value, "'");
    return result;
  }

  int needed_number(const char* name) const {
    needed_text(name);
    return *number(name);
  }

  std::optional<std::uint16_t> port() const {
    const auto value = number("MASTER_PORT");
    if (!value) return std::nullopt;
    FSDP_CHECK(*value > 0 && *value < 65536, "MASTER_PORT: expected a port, but got ", *value);
    return static_cast<std::uint16_t>(*value);
  }

 private:
  const std::function<const char*(const char*)>& get_;
  const std::string launcher_;
};

// Checks `index`, which counts from zero, against the number in variable `count_name`.
void check_below(const char* name, int index, const char* count_name, int count) {
  FSDP_CHECK(count > 0, count_name, ": expected at least 1, but got ", count);
  FSDP_CHECK(index < count, name, " is ", index, ", but ", count_name, " is ", count,
             ": expected a smaller one");
}

// Returns a port that jobs on one machine are unlikely to share, below the ports that the system
// assigns to clients.
std::uint16_t port_of_job(std::string_view job) {
  const std::uint32_t hash = formats::crc32(0, std::as_bytes(std::span(job)));
  return static_cast<std::uint16_t>(20000U + hash % 10000U);
}

// The variables of a launcher that starts the ranks themselves.  A launcher inside it has as many
// ranks or more; otherwise its variables are left from something else.
struct RankNumbers {
  const char* launcher;
  const char* rank;
  const char* size;
};
constexpr RankNumbers kTorchrunNumbers{"torchrun", "RANK", "WORLD_SIZE"};
constexpr RankNumbers kOpenMpiNumbers{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"};
constexpr RankNumbers kPmiNumbers{"PMI", "PMI_RANK", "PMI_SIZE"};
constexpr RankNumbers kSlurmNumbers{"Slurm", "SLURM_PROCID", "SLURM_NTASKS"};

// Returns this process's place among all ranks.
RankEnvironment numbered(const Variables& variables, const RankNumbers& by) {
  RankEnvironment result;
  result.launcher = variables.launcher();
  result.rank = variables.needed_number(by.rank);
  result.world_size = variables.needed_number(by.size);
  check_below(by.rank, result.rank, by.size, result.world_size);
  return result;
}

// Sets its place on its node.
void set_local(RankEnvironment& result, const Variables& variables, const char* rank,
               const char* size) {
  result.local_rank = variables.needed_number(rank);
  result.local_world_size = variables.needed_number(size);
  check_below(rank, result.local_rank, size, result.local_world_size);
}

RankEnvironment from_torchrun(const Variables& variables) {
  RankEnvironment result = numbered(variables, kTorchrunNumbers);
  result.master_addr = variables.needed_text("MASTER_ADDR");
  variables.needed_text("MASTER_PORT");
  result.master_port = *variables.port();
  set_local(result, variables, "LOCAL_RANK", "LOCAL_WORLD_SIZE");
  FSDP_CHECK(result.local_world_size <= result.world_size, "LOCAL_WORLD_SIZE is ",
             result.local_world_size, ", but WORLD_SIZE is ", result.world_size,
             ": expected no more ranks on one node than in all");
  return result;
}

RankEnvironment from_open_mpi(const Variables& variables) {
  RankEnvironment result = numbered(variables, kOpenMpiNumbers);
  set_local(result, variables, "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE");
  const auto addr = variables.text("MASTER_ADDR");
  FSDP_CHECK(addr || result.local_world_size == result.world_size,
             "MASTER_ADDR is not set, and Open MPI started ranks on several nodes: set it and "
             "MASTER_PORT to where rank 0 can be reached (mpirun -x MASTER_ADDR=... )");
  result.master_addr = addr.value_or(kLoopback);
  // Open MPI 5 names the job in the former, Open MPI 4 in the latter.
  const auto job = variables.text("PMIX_NAMESPACE");
  const auto older_job = variables.text("OMPI_MCA_ess_base_jobid");
  result.master_port = variables.port().value_or(port_of_job(job.value_or(older_job.value_or(""))));
  return result;
}

// The variables by which launchers of PMI name a rank's place on its node.
constexpr RankNumbers kHydra{"Hydra", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
constexpr RankNumbers kPals{"PALS", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"};

// Sets where the ranks of PMI meet.  `one_node`: all of them are on this one.
void meet_under_pmi(RankEnvironment& result, const Variables& variables, bool one_node) {
  const auto addr = variables.text("MASTER_ADDR");
  FSDP_CHECK(addr || one_node, "MASTER_ADDR is not set, and ", result.launcher,
             " may have started ranks on several nodes: set it and MASTER_PORT to where rank 0 can "
             "be reached (mpiexec -genv MASTER_ADDR ...; 127.0.0.1 on one node)");
  result.master_addr = addr.value_or(kLoopback);
  // PMI gives ranks no name of the job in variables; that of the queue tells jobs apart.
  std::string job;
  for (const char* const name : {"PMI_JOBID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"})
    job += variables.text(name).value_or("") + ".";
  result.master_port = variables.port().value_or(port_of_job(job));
}

RankEnvironment from_pmi(const Variables& variables, const RankNumbers& place) {
  RankEnvironment result = numbered(variables, kPmiNumbers);
  set_local(result, variables, place.rank, place.size);
  meet_under_pmi(result, variables, result.local_world_size == result.world_size);
  return result;
}

// Reads the variables of launchers that set only PMI's own.
RankEnvironment from_plain_pmi(const Variables& variables) {
  RankEnvironment result = numbered(variables, kPmiNumbers);
  result.local_known = result.world_size == 1;
  meet_under_pmi(result, variables, result.local_known);
  return result;
}

RankEnvironment from_slurm(const Variables& variables) {
  RankEnvironment result = numbered(variables, kSlurmNumbers);
  result.local_rank = variables.needed_number("SLURM_LOCALID");

  // Uses the step's variables, if srun started a step on some of the job's nodes.
  const bool of_step = variables.text("SLURM_STEP_NODELIST").has_value();
  const char* const list_name = of_step ? "SLURM_STEP_NODELIST" : "SLURM_NODELIST";
  const auto nodes = parse_node_list(variables.needed_text(list_name), list_name);
  const int node = variables.number("SLURM_NODEID").value_or(0);
  check_below("SLURM_NODEID", node, list_name, static_cast<int>(nodes.size()));

  const char* const counts_name = of_step ? "SLURM_STEP_TASKS_PER_NODE" : "SLURM_TASKS_PER_NODE";
  if (nodes.size() == 1) {
    result.local_world_size = result.world_size;
  } else if (const auto counts = variables.text(counts_name)) {
    const auto per_node = parse_task_counts(*counts, counts_name);
    check_below("SLURM_NODEID", node, counts_name, static_cast<int>(per_node.size()));
    result.local_world_size = per_node[static_cast<std::size_t>(node)];
  } else {
    result.local_world_size = variables.needed_number("SLURM_NTASKS_PER_NODE");
  }
  check_below("SLURM_LOCALID", result.local_rank, "the number of ranks on this node",
              result.local_world_size);

  result.master_addr =
      variables.text("MASTER_ADDR").value_or(nodes.size() == 1 ? kLoopback : nodes.front());
  const std::string job = variables.text("SLURM_JOB_ID").value_or("") + "." +
                          variables.text("SLURM_STEP_ID").value_or("");
  result.master_port = variables.port().value_or(port_of_job(job));
  return result;
}

std::string with_values(const Variables& variables, const RankNumbers& of) {
  const auto value = [&](const char* name) {
    return std::string(name) + "=" + variables.text(name).value_or("");
  };
  return value(of.rank) + " and " + value(of.size) + " of " + of.launcher;
}

[[noreturn]] void refuse_both(const Variables& variables, const RankNumbers& first,
                              const RankNumbers& second) {
  FSDP_CHECK(false, with_values(variables, first), " contradict ", with_values(variables, second),
             ": unset those of the launcher that did not start this process");
}

bool has_any(const Variables& variables, const RankNumbers& of) {
  return variables.text(of.rank).has_value() || variables.text(of.size).has_value();
}

// Checks torchrun's variables, which count first, against those of another launcher.
void check_torchrun_inside(const Variables& variables, const RankNumbers& outer) {
  // A shell of `srun --pty` has Slurm's variables, but programs in it need not be Slurm's ranks.
  if (!variables.text(outer.rank) || variables.text("SLURM_PTY_PORT")) return;
  const auto size = variables.number(kTorchrunNumbers.size);
  const auto outer_size = variables.number(outer.size);
  // Some scripts set WORLD_SIZE for their own use.
  FSDP_CHECK(size && variables.text(kTorchrunNumbers.rank),
             size ? kTorchrunNumbers.size : kTorchrunNumbers.rank, " is set, but ",
             size ? kTorchrunNumbers.rank : kTorchrunNumbers.size, " is not, and ",
             with_values(variables, outer), " are set, too: unset the former to use ",
             outer.launcher, "'s, or set both");
  // torchrun itself may run once in each rank of another launcher, each time in a world of its own.
  if (variables.text("TORCHELASTIC_RUN_ID")) return;
  if (outer_size && *size < *outer_size) refuse_both(variables, kTorchrunNumbers, outer);
}

// Checks Open MPI's variables against those of PMI, whose launcher may be around Open MPI's or
// inside it: nothing tells.
void check_open_mpi_beside_pmi(const Variables& variables) {
  if (!has_any(variables, kPmiNumbers)) return;
  if (variables.text(kPmiNumbers.rank) != variables.text(kOpenMpiNumbers.rank) ||
      variables.text(kPmiNumbers.size) != variables.text(kOpenMpiNumbers.size))
    refuse_both(variables, kOpenMpiNumbers, kPmiNumbers);
}

}  // namespace

std::optional<RankEnvironment> rank_environment(
    const std::function<const char*(const char*)>& get) {
  const auto is_set = [&](const char* name) {
    const char* const value = get(name);
    return value != nullptr && *value != '\0';
  };
  // The innermost launcher decides: torchrun inside a job of srun or mpirun; mpirun inside a Slurm
  // job, whose variables its ranks have, too.
  if (is_set("RANK") || is_set("WORLD_SIZE")) {
    const Variables variables(get, "torchrun");
    for (const RankNumbers& outer : {kOpenMpiNumbers, kPmiNumbers, kSlurmNumbers})
      check_torchrun_inside(variables, outer);
    return from_torchrun(variables);
  }
  if (is_set("OMPI_COMM_WORLD_RANK") || is_set("OMPI_COMM_WORLD_SIZE")) {
    const Variables variables(get, "Open MPI");
    check_open_mpi_beside_pmi(variables);
    return from_open_mpi(variables);
  }
  // srun may set PMI_RANK, too, but not these two: Slurm starts mpiexec's proxies, and the proxies
  // start the ranks.
  for (const RankNumbers& place : {kHydra, kPals}) {
    if (is_set("PMI_RANK") && is_set(place.rank))
      return from_pmi(Variables(get, place.launcher), place);
  }
  // Not SLURM_NTASKS: a shell of salloc has it, and a program started there is not a rank.
  if (is_set("SLURM_PROCID")) return from_slurm(Variables(get, "Slurm"));
  if (is_set("PMI_RANK") || is_set("PMI_SIZE")) return from_plain_pmi(Variables(get, "PMI"));
  FSDP_CHECK(!is_set("PMIX_RANK"),
             "PMIX_RANK is set, but no variable says how many ranks there are: only PMIx's own "
             "library can find out; set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, "
             "MASTER_ADDR and MASTER_PORT, or start the program by Open MPI's mpirun or by srun");
  return std::nullopt;
}

std::optional<RankEnvironment> rank_environment() {
  return rank_environment([](const char* name) -> const char* { return std::getenv(name); });
}

}  // namespace fsdp
