// SPDX-License-Identifier: Apache-2.0
// The ranks of an MPI job as a team.  With mpi_main.cpp the only code that calls MPI.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/bytes/base/team.h"

namespace fsdp::cli {

// Requires: MPI is initialized with MPI_THREAD_SERIALIZED, and finalized after the object is
// destroyed.
class MpiTeam : public formats::Team {
 public:
  // `patience`: the time to wait for the other ranks at a step; nothing: no limit.
  explicit MpiTeam(std::optional<std::chrono::seconds> patience);
  ~MpiTeam() override;

  std::uint64_t progress(std::uint64_t bytes) override;
  // Returns the number of threads for this rank: the ranks of a machine share its processors.
  unsigned threads() const;
  // Returns whether the job cannot end normally: this rank gave up waiting.
  bool broken() const { return broken_; }
  bool reports() const override { return leads() ? !told_ : gave_up_; }

 private:
  std::vector<std::string> gather(const std::string& mine) override;
  void await(void* request);
  void give_up_after(std::chrono::steady_clock::duration waited);
  [[noreturn]] void give_up(ErrorCode code, const std::string& message);
  void take_reports();
  void take_last_reports();

  struct Connection;
  std::optional<std::chrono::seconds> patience_;
  std::unique_ptr<Connection> mpi_;
  bool broken_ = false;
  bool gave_up_ = false;
  bool told_ = false;  // a rank that gave up has told the user
  std::optional<std::chrono::steady_clock::time_point> asked_to_stop_;
  std::uint64_t step_ = 0;
};

}  // namespace fsdp::cli
