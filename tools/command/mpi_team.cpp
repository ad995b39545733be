// SPDX-License-Identifier: Apache-2.0
#include "tools/command/mpi_team.h"

#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <thread>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "tools/command/process.h"

namespace fsdp::cli {
namespace {

using Clock = std::chrono::steady_clock;

// The most bytes that all ranks together send at once: MPI counts them in an int.
constexpr std::uint64_t kMostBytesAtOnce = 512U << 20U;
constexpr std::chrono::milliseconds kReportEvery{100};
constexpr int kReportTag = 1;
constexpr int kToldTag = 2;
// Pauses between checks for the other ranks: a waiting rank leaves its processor to them.
constexpr std::chrono::microseconds kFirstNap{20};
constexpr std::chrono::microseconds kLongestNap{2000};
// After a request to stop, the ranks that got it have this time to meet, so that all end together
// and the leader reports once.  The other ranks wait longer for that, rank 1 less than the rest.
constexpr std::chrono::milliseconds kMeeting{400};
constexpr std::chrono::milliseconds kDeference{400};
constexpr std::size_t kMostDeferences = 3;

int number_of(int (*ask)(MPI_Comm, int*)) {
  int number = 0;
  ask(MPI_COMM_WORLD, &number);
  return number;
}

void check(int code) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw Error(ErrorCode::kIo,
              formats::cat("MPI: ", formats::escape(std::string(
                                        text.data(), static_cast<std::size_t>(length)))));
}

}  // namespace

struct MpiTeam::Connection {
  // Bytes moved by a rank in a step.
  struct Report {
    std::uint64_t step;
    std::uint64_t bytes;
  };
  MPI_Comm reports = MPI_COMM_NULL;
  std::vector<std::uint64_t> bytes;  // of each rank in the present step; only in the leader
  std::uint64_t bytes_step = 0;
  std::uint64_t sent = 0;      // reports
  std::uint64_t received = 0;  // reports
  Report report{};             // being sent
  MPI_Request sending = MPI_REQUEST_NULL;
  Clock::time_point last_sent;
};

MpiTeam::MpiTeam(std::optional<std::chrono::seconds> patience)
    : Team(static_cast<std::size_t>(number_of(&MPI_Comm_rank)),
           static_cast<std::size_t>(number_of(&MPI_Comm_size))),
      patience_(patience),
      mpi_(std::make_unique<Connection>()) {
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  check(MPI_Comm_dup(MPI_COMM_WORLD, &mpi_->reports));
  mpi_->bytes.resize(size());
}

MpiTeam::~MpiTeam() {
  if (broken_) return;
  try {
    take_last_reports();
    MPI_Comm_free(&mpi_->reports);
  } catch (const Error&) {
    broken_ = true;
  }
}

unsigned MpiTeam::threads() const {
  MPI_Comm here = MPI_COMM_NULL;
  check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here));
  int ranks = 1;
  MPI_Comm_size(here, &ranks);
  MPI_Comm_free(&here);
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
  const auto own = static_cast<unsigned>(CPU_COUNT(&allowed));
  const auto together = own * static_cast<unsigned>(ranks);
  // A launcher that binds ranks gives each rank its own processors.
  const bool bound = together <= std::max(1U, std::thread::hardware_concurrency());
  return bound ? own : std::max(1U, own / static_cast<unsigned>(ranks));
}

void MpiTeam::give_up(ErrorCode code, const std::string& message) {
  broken_ = true;
  gave_up_ = !told_;
  // The launcher stops the other ranks next; they need not report that.
  MPI_Request told = MPI_REQUEST_NULL;
  for (std::size_t other = 0; gave_up_ && other < size(); ++other) {
    if (other == rank()) continue;
    if (MPI_Isend(nullptr, 0, MPI_BYTE, static_cast<int>(other), kToldTag, mpi_->reports, &told) ==
        MPI_SUCCESS) {
      MPI_Request_free(&told);
    }
  }
  throw Error(code, message);
}

// Gives up if this rank has waited too long at a step.
void MpiTeam::give_up_after(Clock::duration waited) {
  std::size_t deferences = leads() ? 0 : std::min(rank() + 1, kMostDeferences);
  if (formats::interrupted()) {
    int there = 0;
    check(MPI_Iprobe(MPI_ANY_SOURCE, kToldTag, mpi_->reports, &there, MPI_STATUS_IGNORE));
    if (there != 0) {
      told_ = true;
      speak_when_stopped(false);
      // Ending the job now would end the rank that is about to report.
      deferences = kMostDeferences;
    }
    if (!asked_to_stop_) asked_to_stop_ = Clock::now();
    if (Clock::now() - *asked_to_stop_ > kMeeting + deferences * kDeference) {
      give_up(ErrorCode::kInterrupted, "interrupted");
    }
  }
  if (patience_ && waited > *patience_ + deferences * kDeference) {
    give_up(ErrorCode::kIo, formats::cat("waited ", patience_->count(), " s for the other ranks"));
  }
}

// Polls, because a rank that waits inside MPI keeps its processor busy.
void MpiTeam::await(void* pending) {
  const Clock::time_point begin = Clock::now();
  std::chrono::microseconds nap = kFirstNap;
  for (;;) {
    int done = 0;
    check(MPI_Test(static_cast<MPI_Request*>(pending), &done, MPI_STATUS_IGNORE));
    if (done != 0) return;
    give_up_after(Clock::now() - begin);
    std::this_thread::sleep_for(nap);
    nap = std::min(2 * nap, kLongestNap);
  }
}

std::vector<std::string> MpiTeam::gather(const std::string& mine) {
  ++step_;
  const std::uint64_t own = mine.size();
  std::vector<std::uint64_t> sizes(size());
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Iallgather(&own, 1, MPI_UINT64_T, sizes.data(), 1, MPI_UINT64_T, MPI_COMM_WORLD,
                       &request));
  await(&request);
  std::vector<std::string> texts(size());
  const std::uint64_t most = *std::max_element(sizes.begin(), sizes.end());
  const std::uint64_t each = std::max<std::uint64_t>(1, kMostBytesAtOnce / size());
  for (std::uint64_t at = 0; at < most; at += each) {
    std::vector<int> counts(size());
    std::vector<int> places(size());
    int total = 0;
    for (std::size_t r = 0; r < size(); ++r) {
      counts[r] = static_cast<int>(std::min(each, sizes[r] - std::min(at, sizes[r])));
      places[r] = total;
      total += counts[r];
    }
    std::string part(static_cast<std::size_t>(total), '\0');
    check(MPI_Iallgatherv(mine.data() + std::min(at, own), counts[rank()], MPI_BYTE, part.data(),
                          counts.data(), places.data(), MPI_BYTE, MPI_COMM_WORLD, &request));
    await(&request);
    for (std::size_t r = 0; r < size(); ++r)
      texts[r].append(part, static_cast<std::size_t>(places[r]),
                      static_cast<std::size_t>(counts[r]));
  }
  return texts;
}

std::uint64_t MpiTeam::progress(std::uint64_t bytes) {
  Connection& mpi = *mpi_;
  if (leads()) {
    if (mpi.bytes_step != step_) std::fill(mpi.bytes.begin(), mpi.bytes.end(), 0);
    mpi.bytes_step = step_;
    mpi.bytes[0] = bytes;
    const Clock::time_point now = Clock::now();
    if (now - mpi.last_sent >= kReportEvery) {
      mpi.last_sent = now;
      take_reports();
    }
    return std::accumulate(mpi.bytes.begin(), mpi.bytes.end(), std::uint64_t{0});
  }
  const Clock::time_point now = Clock::now();
  if (now - mpi.last_sent < kReportEvery) return bytes;
  int done = 0;
  check(MPI_Test(&mpi.sending, &done, MPI_STATUS_IGNORE));
  if (done == 0) return bytes;
  mpi.last_sent = now;
  mpi.report = {step_, bytes};
  check(MPI_Isend(&mpi.report, static_cast<int>(sizeof mpi.report), MPI_BYTE, 0, kReportTag,
                  mpi.reports, &mpi.sending));
  ++mpi.sent;
  return bytes;
}

void MpiTeam::take_reports() {
  for (;;) {
    int there = 0;
    MPI_Status status{};
    check(MPI_Iprobe(MPI_ANY_SOURCE, kReportTag, mpi_->reports, &there, &status));
    if (there == 0) return;
    Connection::Report report{};
    check(MPI_Recv(&report, static_cast<int>(sizeof report), MPI_BYTE, status.MPI_SOURCE,
                   kReportTag, mpi_->reports, &status));
    ++mpi_->received;
    if (report.step == step_)
      mpi_->bytes[static_cast<std::size_t>(status.MPI_SOURCE)] = report.bytes;
  }
}

// Every message has to be received before MPI is finalized.
void MpiTeam::take_last_reports() {
  std::uint64_t sent = 0;
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Iallreduce(&mpi_->sent, &sent, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD, &request));
  await(&request);
  while (leads() && mpi_->received < sent) take_reports();
  check(MPI_Wait(&mpi_->sending, MPI_STATUS_IGNORE));
}

}  // namespace fsdp::cli
