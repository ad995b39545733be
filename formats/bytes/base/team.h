// SPDX-License-Identifier: Apache-2.0
// Processes that run the same verb on the same arguments and divide its data among them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interface.h"

namespace fsdp::formats {

// Note [one team, one step]
// Every member makes the same plan and takes the same steps; each exchange is one of them.  A
// member that fails joins the exchange in which the others are, or the next one, with its error in
// place of what they expect.  So all members leave that exchange with the same error, and none
// waits for a member that is gone.  After that there are no more exchanges.
//
// Member 0 leads: it alone makes names in the file system and reports to the user.  A team is used
// by one thread at a time; `progress` may be called by another one, also one at a time.
//
// A process alone is a team too: its exchanges return what it gives, and several threads may use
// it.
class Team : public Interface {
 public:
  Team() = default;
  Team(std::size_t rank, std::size_t size) : rank_(rank), size_(size) {}

  std::size_t rank() const { return rank_; }
  std::size_t size() const { return size_; }
  bool leads() const { return rank_ == 0; }
  bool alone() const { return size_ == 1; }

  // Gives `mine` to all members, and returns what each of them gave, by rank.  `step` names the
  // step, with the same name on all members.
  // Throws: the error of the members that failed; kMismatch if they are at different steps; the
  // errors of the connection.
  std::vector<std::string> exchange(std::string_view step, const std::string& mine = {});
  // Returns the leader's `mine`, of any size, on every member.  Throws: the errors of `exchange`.
  std::string from_leader(std::string_view step, std::string mine = {});
  // Compares `mine` of all members.  Throws: kMismatch naming the first member whose text differs
  // from member 0's; the errors of `exchange`.  `what` says what differs: "sees another source".
  void agree(std::string_view step, const std::string& mine, std::string_view what);
  // Makes the other members fail with this error, unless the team failed before.  Returns the error
  // to report: that of the team, with the rank of the failed member if it failed alone and does not
  // lead.
  Error fail(const Error& error);
  // Returns whether a member failed, so that there are no more exchanges.
  bool failed() const { return failure_.has_value(); }
  // Returns whether the connection broke: a member ended without notice, or hangs.
  bool lost() const { return lost_; }
  // Returns whether a member failed because it was asked to stop.
  bool stopped() const { return failure_ && failure_->code() == ErrorCode::kInterrupted; }
  // Returns whether this member tells the user how the work ended: the leader does, or another
  // member if the leader is gone.
  virtual bool reports() const { return leads(); }
  // Tells the leader how many bytes this member has moved so far.  Returns the sum over all members
  // as far as it is known, which is meant for the leader.
  virtual std::uint64_t progress(std::uint64_t bytes) { return bytes; }

 private:
  // Returns every member's message.  All members call it equally often.  Throws: kIo, kInterrupted;
  // after that the connection must not be used.
  virtual std::vector<std::string> gather(const std::string& mine) { return {mine}; }
  std::vector<std::string> opened(std::vector<std::string> messages, std::string_view step);

  std::size_t rank_ = 0;
  std::size_t size_ = 1;
  std::optional<Error> failure_;
  bool lost_ = false;
};

// Returns the team of this process alone.
Team& this_process();

// Packs numbers and texts into one text, for another member of the same program.
class Packed {
 public:
  Packed& number(std::uint64_t value);
  Packed& text(std::string_view value);
  // Appends the bytes of `value` as they are.
  template <typename T>
  requires std::is_trivially_copyable_v<T> Packed& object(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Takes a text of Packed apart, in the same order.  Throws: kTruncated.
class Unpacked {
 public:
  explicit Unpacked(std::string_view bytes) : rest_(bytes) {}
  std::uint64_t number();
  std::string_view text();
  template <typename T>
  requires std::is_trivially_copyable_v<T> T object() {
    T value;
    take(&value, sizeof value);
    return value;
  }
  bool empty() const { return rest_.empty(); }

 private:
  void take(void* out, std::size_t size);

  std::string_view rest_;
};

}  // namespace fsdp::formats
