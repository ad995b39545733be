// SPDX-License-Identifier: Apache-2.0
// A team whose members are threads of one process.
#pragma once

#include <barrier>
#include <cstddef>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "formats/bytes/base/team.h"

namespace fsdp::test {

// What the members share.
struct ThreadTable {
  explicit ThreadTable(std::size_t size)
      : messages(size), meet(static_cast<std::ptrdiff_t>(size)) {}
  std::vector<std::string> messages;
  std::barrier<> meet;
};

class ThreadTeam : public formats::Team {
 public:
  ThreadTeam(std::size_t rank, ThreadTable& table)
      : Team(rank, table.messages.size()), table_(table) {}

 private:
  std::vector<std::string> gather(const std::string& mine) override {
    table_.messages[rank()] = mine;
    table_.meet.arrive_and_wait();
    std::vector<std::string> all = table_.messages;
    table_.meet.arrive_and_wait();
    return all;
  }

  ThreadTable& table_;
};

// Runs `work` as every member of a team; a member that throws makes the others fail, as a program
// does.  Returns the error that each reports, "" for none, by rank.
inline std::vector<std::string> run_team(std::size_t size,
                                         const std::function<void(formats::Team&)>& work) {
  ThreadTable table(size);
  std::vector<std::string> errors(size);
  {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        ThreadTeam team(rank, table);
        try {
          work(team);
          team.exchange("end");
        } catch (const Error& error) {
          errors[rank] = team.fail(error).what();
        }
      });
    }
  }
  return errors;
}

}  // namespace fsdp::test
