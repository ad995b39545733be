// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/process_group.h"

#include <signal.h>

#include <algorithm>
#include <ctime>
#include <numeric>
#include <set>
#include <thread>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "libfsdp/agree.h"
#include "libfsdp/internal/comm/backend_registry.h"
#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/comm/devices.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/flight_record.h"
#include "libfsdp/internal/comm/group_internals.h"
#include "libfsdp/internal/comm/left_out.h"
#include "libfsdp/internal/comm/lifeline.h"
#include "libfsdp/internal/comm/network_address.h"
#include "libfsdp/internal/comm/offer_work.h"
#include "libfsdp/internal/comm/rendezvous.h"
#include "libfsdp/internal/comm/store_client.h"
#include "libfsdp/internal/comm/waits.h"

namespace fsdp {
using namespace internal;
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Limits how long an ending group waits for unfinished collectives and for ranks that still read.
constexpr milliseconds kGrace(1000);
constexpr milliseconds kReaders(10'000);
constexpr milliseconds kPause(5);

sigset_t pipe_signal() noexcept {
  sigset_t result;
  sigemptyset(&result);
  sigaddset(&result, SIGPIPE);
  return result;
}

// While it lives, SIGPIPE is blocked in the calling thread, and for good in every thread started
// meanwhile: their writes to a rank that has ended fail with EPIPE, an error that names the rank,
// instead of ending the program.  Gloo and the store's server write to sockets from their own
// threads without MSG_NOSIGNAL.  Python ignores the signal, a C++ program does not, and a library
// must not decide that for the whole process.
class PipeSignalBlocked {
 public:
  PipeSignalBlocked() noexcept {
    const sigset_t pipe = pipe_signal();
    pthread_sigmask(SIG_BLOCK, &pipe, &before_);
  }
  // Drops a signal that came meanwhile.
  ~PipeSignalBlocked() {
    if (sigismember(&before_, SIGPIPE) != 0) return;
    const sigset_t pipe = pipe_signal();
    const timespec at_once{};
    while (sigtimedwait(&pipe, nullptr, &at_once) == SIGPIPE) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  PipeSignalBlocked(const PipeSignalBlocked&) = delete;
  PipeSignalBlocked& operator=(const PipeSignalBlocked&) = delete;

 private:
  sigset_t before_{};
};

// Shared by all groups of a job.
struct Job {
  StoreEndpoint place;
  // Destroyed after the client, through which this rank reports that it leaves.
  std::unique_ptr<Lifeline> lifeline;
  std::shared_ptr<StoreClient> client;
  std::shared_ptr<RankMonitor> monitor;
  std::string backend;
  NcclOptions nccl;
  std::shared_ptr<FlightRecord> flight_record;  // may be null
  milliseconds timeout{};
  milliseconds warn_after{};
  bool direct_copies = true;
  int local_rank = 0;
  c10::Device device = c10::kCPU;
  std::string towards;
  std::vector<std::string> networks;  // by global rank
};

class Group final : public GroupInternals, public std::enable_shared_from_this<Group> {
 public:
  // `ranks` are global.
  Group(std::shared_ptr<const Job> job, std::string name, std::vector<int> ranks, int rank)
      : job_(std::move(job)), name_(std::move(name)), ranks_(std::move(ranks)), rank_(rank) {}

  ~Group() override {
    if (job_->place.served_here && size() > 1) wait_for_readers();
    leave_backend();
    if (job_->place.served_here) job_->monitor->linger();
  }

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return static_cast<int>(ranks_.size()); }
  int global_rank(int rank) const override {
    FSDP_CHECK(rank >= 0 && rank < size(), "expected a rank below ", size(), ", but got ", rank);
    return ranks_[static_cast<std::size_t>(rank)];
  }
  const std::string& backend_name() const noexcept override { return job_->backend; }
  int local_rank() const noexcept override { return job_->local_rank; }
  c10::Device device() const noexcept override { return job_->device; }
  milliseconds timeout() const noexcept override { return job_->timeout; }
  milliseconds warn_after() const noexcept override { return job_->warn_after; }
  const std::string& name() const noexcept override { return name_; }
  const c10::intrusive_ptr<c10d::Backend>& backend() const noexcept override { return backend_; }
  StoreClient* store() const noexcept override { return job_->client.get(); }
  RankMonitor& monitor() const noexcept override { return *job_->monitor; }
  CallState& calls() const noexcept override { return calls_; }

  std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks) override;

  // Collective.  Connects the ranks.  `parent`: null for the group of all ranks.
  void start(const Group* parent = nullptr);

 private:
  BackendRequest request(const Group* parent) const;
  void wait_for_readers() noexcept;
  void leave_backend() noexcept;

  const std::shared_ptr<const Job> job_;
  const std::string name_;
  const std::vector<int> ranks_;
  const int rank_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  mutable CallState calls_;
  int subgroup_count_ = 0;
};

BackendRequest Group::request(const Group* parent) const {
  BackendRequest result;
  c10::intrusive_ptr<c10d::Store> whole = job_->place.store;
  if (!whole) whole = c10::make_intrusive<c10d::HashStore>();
  result.store = c10::make_intrusive<c10d::PrefixStore>(name_ + "/backend", whole);
  result.group = name_;
  result.rank = rank_;
  result.size = size();
  result.device = job_->device;
  result.nccl = job_->nccl;
  result.flight_record = job_->flight_record;
  result.global_ranks.assign(ranks_.begin(), ranks_.end());
  if (parent != nullptr) {
    result.parent = parent->backend_;
    // A rank is in one of the groups made at once, so their first ranks tell them apart.
    result.color = ranks_.front();
  }
  result.timeout = job_->timeout;
  result.towards = job_->towards;
  std::set<std::string> networks;
  for (const int r : ranks_) networks.insert(job_->networks[static_cast<std::size_t>(r)]);
  result.one_host = networks.size() == 1;
  return result;
}

void Group::start(const Group* parent) {
  const auto& kind = backend_kind(job_->backend);
  if (size() == 1 && !kind.for_one_rank) return;
  const auto wanted = request(parent);
  agree(shared_from_this(), "starting " + job_->backend, [&] { kind.check(wanted); });
  const PipeSignalBlocked in_its_threads;
  try {
    backend_ = kind.make(wanted);
  } catch (const std::exception& error) {
    throw_lost(*this, "connecting the ranks by " + job_->backend, message_of(error));
  }
  // A rank finishes before others have connected to it: it must not leave while they connect.
  if (size() > 1) all_gather_text(shared_from_this(), "", "connecting the ranks");
  if (size() > 1 && is_host(kind.device_type) && wanted.one_host)
    calls_.board = meet_at_board(shared_from_this(), job_->direct_copies);
}

std::shared_ptr<ProcessGroup> Group::subgroup(const std::vector<int>& ranks) {
  std::string list;
  for (const int r : ranks) list.append(list.empty() ? "" : ",").append(std::to_string(r));
  agree(shared_from_this(), "the ranks of subgroups", [&] {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      FSDP_CHECK(ranks[i] >= 0 && ranks[i] < size(), "expected ranks below ", size(), ", but got ",
                 ranks[i]);
      FSDP_CHECK(i == 0 || ranks[i - 1] < ranks[i], "expected ascending ranks, but got ", list);
    }
    FSDP_CHECK(std::find(ranks.begin(), ranks.end(), rank_) != ranks.end(), "expected this rank, ",
               rank_, ", among the ranks of the group, ", list);
  });
  const auto lists = all_gather_text(shared_from_this(), list, "the ranks of subgroups");
  for (const int r : ranks) {
    const auto& other = lists[static_cast<std::size_t>(r)];
    FSDP_CHECK(other == list, "rank ", rank_, " asked for a subgroup of ranks ", list,
               ", but rank ", r, " of ", other);
  }
  std::vector<int> global;
  int own = 0;
  for (const int r : ranks) {
    if (r == rank_) own = static_cast<int>(global.size());
    global.push_back(global_rank(r));
  }
  auto result = std::make_shared<Group>(
      job_, name_ + "/" + std::to_string(subgroup_count_++) + ":" + list, std::move(global), own);
  result->start(this);
  return result;
}

// The store ends with this process.  Ranks that still have to read its last values would assume
// that the job is broken.
void Group::wait_for_readers() noexcept {
  try {
    const auto last = calls_.text_count;
    if (last == 0) return;
    const std::string key = name_ + "/text/" + std::to_string(last) + "/" + std::to_string(rank_);
    const auto deadline = Clock::now() + std::min(kReaders, job_->timeout);
    while (!calls_.text_failed && job_->client->has(key, deadline) && Clock::now() < deadline &&
           !job_->monitor->any_failed()) {
      std::this_thread::sleep_for(kPause);
    }
  } catch (const std::exception&) {
    // Nobody reads from a store that does not answer.
  }
}

// Destroying a backend waits for its threads, and those wait for ranks that may be stopped.  In
// that case the backend is leaked until the process ends.
void Group::leave_backend() noexcept {
  if (!backend_) return;
  const auto deadline = Clock::now() + kGrace;
  const auto busy = [&] {
    return std::any_of(calls_.abandoned.begin(), calls_.abandoned.end(),
                       [](const auto& work) { return !work->isCompleted(); });
  };
  while (busy() && Clock::now() < deadline) std::this_thread::sleep_for(kPause);
  if (!busy()) {
    try {
      // NCCL's destructor would do the same, with a warning that shutdown() was not called.
      backend_->shutdown();
    } catch (const std::exception&) {
      // The destructor ends what is left.
    }
    return;
  }
  static std::mutex mutex;
  // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new): without memory the program may end here
  static auto* const left = new std::vector<c10::intrusive_ptr<c10d::Backend>>;
  const std::lock_guard lock(mutex);
  left->push_back(std::move(backend_));
}

// Returns where this process stands; local_known says whether local_rank does.
RankEnvironment place_of(const ProcessGroupOptions& options) {
  FSDP_CHECK(options.rank.has_value() == options.world_size.has_value(),
             "expected both rank and world_size in the options, or neither");
  RankEnvironment place;
  if (options.rank) {
    place.rank = *options.rank;
    place.world_size = *options.world_size;
    place.local_known = false;
    FSDP_CHECK(place.world_size > 0 && place.rank >= 0 && place.rank < place.world_size,
               "expected a rank below the world size, but got rank ", place.rank, " of ",
               place.world_size);
    FSDP_CHECK(place.world_size == 1 || options.store.get() ||
                   (options.master_addr && options.master_port),
               "expected master_addr and master_port beside rank and world_size");
  } else {
    const auto environment = rank_environment();
    FSDP_CHECK(environment,
               "no launcher's variables are set (torchrun's RANK and WORLD_SIZE, Open MPI's "
               "OMPI_COMM_WORLD_RANK, PMI_RANK of MPICH and Intel MPI, Slurm's SLURM_PROCID): "
               "start the program by one of them, or set rank and world_size in the options");
    place = *environment;
  }
  FSDP_CHECK(!options.local_rank || *options.local_rank >= 0,
             "expected a local_rank that is not negative, but got ",
             options.local_rank.value_or(0));
  place.local_known = place.local_known || options.local_rank;
  place.local_rank = options.local_rank.value_or(place.local_known ? place.local_rank : 0);
  place.master_addr = options.master_addr.value_or(place.master_addr);
  place.master_port = options.master_port.value_or(place.master_port);
  return place;
}

// Returns whether the ranks of a store are threads of this process, which end together.
bool in_this_process(const c10::intrusive_ptr<c10d::Store>& store) {
  auto* const prefixed = dynamic_cast<c10d::PrefixStore*>(store.get());
  if (prefixed != nullptr) return in_this_process(prefixed->getUnderlyingNonPrefixStore());
  return dynamic_cast<c10d::HashStore*>(store.get()) != nullptr;
}

void watch_others(Job& job, const std::vector<Newcomer>& newcomers, const Newcomer& self) {
  std::vector<LifelineAddress> addresses;
  for (const auto& who : newcomers) {
    addresses.push_back(who.lifeline);
    if (who.network == self.network) addresses.back().host = kLoopback;
    // The caller's store has no usable address, so only heartbeats show that a rank has ended.
    if (addresses.back().host.empty()) return;
  }
  if (job.place.served_by == "rank 0" && self.rank != 0) {
    job.client->find_out_by([rank_0 = addresses.front()] { return Lifeline::has_ended(rank_0); });
  }
  const std::weak_ptr<RankMonitor> monitor = job.monitor;
  job.lifeline->watch(self.rank, std::move(addresses), [monitor](int rank) {
    if (const auto there = monitor.lock()) there->ended(rank);
  });
}

// Returns the backend's name.
std::string backend_of(const ProcessGroupOptions& options) {
  const auto& device = options.device_id;
  if (options.backend.empty()) return default_backend(device.value_or(c10::kCPU).type());
  const auto needed = backend_kind(options.backend).device_type;
  FSDP_CHECK(is_host(needed) || !device || device->type() == needed, "backend ", options.backend,
             " needs a device of type ", name_of_type(needed), ", but device_id is ",
             device.value_or(c10::kCPU).str(), ": leave one of them out");
  return options.backend;
}

// Collective.  Chooses the device of this rank.  `type` is that of all ranks.
void choose_device(const std::shared_ptr<ProcessGroup>& group, Job& job, c10::DeviceType type,
                   const std::optional<c10::Device>& given) {
  if (is_host(type)) return;
  DeviceChoice choice;
  choice.type = type;
  choice.local_rank = job.local_rank;
  if (given && given->has_index()) choice.given = given->index();
  agree(group, "choosing a device for each rank", [&] {
    choice.visible = visible_devices(choice.type);
    job.device = device_of_rank(choice);
  });
}

}  // namespace

c10::intrusive_ptr<c10d::Store> StorePtr::get() const {
  return store_ ? *store_ : c10::intrusive_ptr<c10d::Store>();
}

StorePtr::Shared StorePtr::share(c10::intrusive_ptr<c10d::Store> store) {
  return std::make_shared<const c10::intrusive_ptr<c10d::Store>>(std::move(store));
}

bool is_backend_available(const std::string& name) {
  return has_backend(name);
}

std::shared_ptr<ProcessGroup> init_process_group(const ProcessGroupOptions& given) {
  const ProcessGroupOptions options = with_option_left_out(given);
  const std::string backend = backend_of(options);
  const auto& kind = backend_kind(backend);
  const c10::DeviceType type = options.device_id ? options.device_id->type() : kind.device_type;
  check_nccl_options(options.nccl);
  FSDP_CHECK(options.timeout.count() > 0, "expected a timeout above zero, but got ",
             options.timeout.count(), " ms");
  const RankEnvironment place = place_of(options);
  const PipeSignalBlocked in_threads_started_here;
  auto job = std::make_shared<Job>();
  job->backend = backend;
  job->nccl = options.nccl;
  job->timeout = options.timeout;
  job->warn_after = std::min(options.warn_after, options.timeout / 2);
  job->direct_copies = options.direct_copies;
  job->local_rank = place.local_rank;
  job->towards = place.master_addr;
  std::string name = "fsdp";
  if (place.world_size == 1) {
    job->monitor = std::make_shared<RankMonitor>();
    job->networks = {""};
  } else {
    const auto store = options.store.get();
    job->place =
        store ? StoreEndpoint{store, "rank 0", false}
              : store_endpoint(place.master_addr, place.master_port, place.rank, options.timeout);
    job->client = std::make_shared<StoreClient>(job->place.store->clone(), job->place.served_by);
    const auto deadline = Clock::now() + options.timeout;
    // Jobs may follow one another at one store.
    const auto count = job->client->add("fsdp/jobs_of/" + std::to_string(place.rank), 1, deadline);
    name += "/" + std::to_string(count);
    job->monitor =
        std::make_shared<RankMonitor>(job->client, name + "/", place.rank, place.world_size);
    Newcomer self{place.rank,  place.world_size, backend, name_of_type(type),
                  host_name(), network_id(),     {}};
    if (!in_this_process(job->place.store)) {
      job->lifeline = std::make_unique<Lifeline>();
      self.lifeline = {place.master_addr.empty() ? "" : address_towards(place.master_addr),
                       job->lifeline->port()};
    }
    const auto newcomers =
        join(*job->client, name + "/", self, job->place.served_here, options.timeout);
    for (const auto& who : newcomers) job->networks.push_back(who.network);
    if (!place.local_known) job->local_rank = local_rank_of(newcomers, place.rank);
    if (job->lifeline) watch_others(*job, newcomers, self);
  }
  std::vector<int> all(static_cast<std::size_t>(place.world_size));
  std::iota(all.begin(), all.end(), 0);
  auto group = std::make_shared<Group>(job, name, std::move(all), place.rank);
  choose_device(group, *job, type, options.device_id);
  if (!options.flight_record_prefix.empty() && kind.flight_record) {
    job->flight_record = std::make_shared<FlightRecord>(
        flight_record_file(options.flight_record_prefix, place.rank), kind.flight_record);
    job->monitor->call_on_trouble([record = job->flight_record] { record->write(); });
  }
  group->start();
  return group;
}

}  // namespace fsdp
