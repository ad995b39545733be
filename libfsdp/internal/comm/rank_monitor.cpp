// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/rank_monitor.h"

#include <algorithm>
#include <condition_variable>
#include <iomanip>
#include <map>
#include <mutex>
#include <sstream>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/store_client.h"

namespace fsdp::internal {

// The note that a rank keeps about itself at the store.
struct RankNote {
  struct Place {
    std::uint64_t sequence = 0;
    std::string what;
  };

  bool failed = false;
  bool left = false;  // its process group has ended
  bool lost = false;  // before either, it lost others
  std::uint64_t beat = 0;
  std::string message;                  // of the failure
  std::map<std::string, Place> places;  // by group
};

namespace {

using Clock = StoreClient::Clock;
using std::chrono::milliseconds;

// A rank whose heartbeat, sent once a second, stands still for this long is stopped or gone.
constexpr milliseconds kSilence(3500);
// Limits how long diagnosis() observes the others.
constexpr milliseconds kInquiry(6000);
// The time needed to read every note twice.
constexpr milliseconds kFirstLook(2500);
// The time for which the others are watched after a waiting rank last asked.
constexpr milliseconds kWatch(5000);
// Limits how long a rank that fails waits until the store knows.
constexpr milliseconds kTell(2000);
constexpr int kReadsPerSecond = 64;
constexpr std::size_t kMessageLength = 2000;

milliseconds since(Clock::time_point time) {
  return std::chrono::duration_cast<milliseconds>(Clock::now() - time);
}

std::string encode(const RankNote& note) {
  std::ostringstream out;
  out << note.failed << ' ' << note.left << ' ' << note.lost << ' ' << note.beat << ' '
      << std::quoted(note.message);
  for (const auto& [group, place] : note.places)
    out << ' ' << std::quoted(group) << ' ' << place.sequence << ' ' << std::quoted(place.what);
  return out.str();
}

RankNote decode_rank_note(const std::vector<std::uint8_t>& text) {
  std::istringstream in(std::string(text.begin(), text.end()));
  RankNote result;
  in >> result.failed >> result.left >> result.lost >> result.beat >> std::quoted(result.message);
  std::string group;
  RankNote::Place place;
  while (in >> std::quoted(group) >> place.sequence >> std::quoted(place.what))
    result.places[group] = place;
  return result;
}

std::string named(int rank) {
  return "rank " + std::to_string(rank);
}

std::string sentence(int rank, const RankNote& note) {
  return named(rank) + (note.failed ? " failed: " + note.message : " has ended");
}

void add_line(std::string& lines, const std::string& line) {
  if (!lines.empty()) lines += "; ";
  lines += line;
}

}  // namespace

// Shared by the client's thread and the threads that ask; it may outlive the monitor.
struct RankMonitor::Board {
  Board(std::string key_prefix, int own_rank, int world)
      : prefix(std::move(key_prefix)), rank(own_rank), others(static_cast<std::size_t>(world)) {
    for (int r = 0; r < world; ++r) note_keys.push_back(prefix + "note/" + std::to_string(r));
  }

  struct Other {
    RankNote note;
    Clock::time_point moved;  // when its heartbeat last moved
  };

  const std::string prefix;
  const int rank;
  std::vector<std::string> note_keys;

  std::mutex mutex;
  std::condition_variable read;
  RankNote own;
  std::int64_t failures = 0;  // of all ranks, this one included
  std::vector<Other> others;
  Clock::time_point watch_until{};
  Clock::time_point next_read{};
  std::optional<Clock::time_point> watching_since;
  // Set after the first read of the last diagnosis(): a rank whose heartbeat moves after that
  // lives.  A heartbeat that moved in the first read proves nothing, since it may have been old.
  std::optional<Clock::time_point> look_began;

  void exchange(c10d::Store& store);
  void tell(c10d::Store& store, std::int64_t more_failures);
  void take(const std::vector<std::vector<std::uint8_t>>& notes);

  // Requires, as all below: mutex is held.
  template <typename F>
  void each_other(const F& f) const {
    for (std::size_t r = 0; r < others.size(); ++r) {
      if (static_cast<int>(r) != rank) f(static_cast<int>(r), others[r]);
    }
  }
  bool all_are_known() const;
  bool anyone_there() const;
  std::string first_causes() const;
  std::string symptoms() const;
  std::string places_behind() const;
};

// Runs about once a second: reports that this rank lives, and reads the others while it waits.
void RankMonitor::Board::exchange(c10d::Store& store) {
  bool watch = false;
  {
    const std::lock_guard lock(mutex);
    ++own.beat;
    const auto now = Clock::now();
    watch = now < watch_until && now >= next_read;
    if (now >= watch_until) watching_since.reset();
  }
  tell(store, 0);
  if (!watch) return;
  take(store.multiGet(note_keys));
}

void RankMonitor::Board::tell(c10d::Store& store, std::int64_t more_failures) {
  std::string text;
  {
    const std::lock_guard lock(mutex);
    text = encode(own);
  }
  store.set(note_keys[static_cast<std::size_t>(rank)], text);
  const auto total = store.add(prefix + "failures", more_failures);
  const std::lock_guard lock(mutex);
  failures = total;
}

void RankMonitor::Board::take(const std::vector<std::vector<std::uint8_t>>& notes) {
  const std::lock_guard lock(mutex);
  const auto now = Clock::now();
  const bool first = !watching_since;
  if (first) watching_since = now;
  for (std::size_t r = 0; r < notes.size(); ++r) {
    auto note = decode_rank_note(notes[r]);
    if (first || note.beat != others[r].note.beat) others[r].moved = now;
    others[r].note = std::move(note);
  }
  // With many ranks the notes are read less often, so that the store's server keeps up.
  const auto ranks = static_cast<int>(notes.size());
  next_read = now + milliseconds(1000) * (ranks / kReadsPerSecond);
  read.notify_all();
}

// Returns whether each other rank has shown a heartbeat since the look began, or none for too
// long.
bool RankMonitor::Board::all_are_known() const {
  bool result = look_began.has_value();
  each_other([&](int, const Other& other) {
    const bool alive = result && other.moved > *look_began;
    if (!other.note.left && !alive && since(other.moved) < kSilence) result = false;
  });
  return result;
}

bool RankMonitor::Board::anyone_there() const {
  bool result = !watching_since;
  each_other([&](int, const Other& other) {
    const bool silent = since(other.moved) >= kSilence;
    if (!other.note.left && !silent) result = true;
  });
  return result;
}

// Lists the ranks that failed or ended by themselves.
std::string RankMonitor::Board::first_causes() const {
  std::string lines;
  for (const bool failed : {true, false}) {
    each_other([&](int r, const Other& other) {
      const auto& note = other.note;
      if (note.failed == failed && (failed || note.left) && !note.lost) {
        add_line(lines, sentence(r, note));
      }
    });
  }
  return lines;
}

std::string RankMonitor::Board::symptoms() const {
  std::string lines;
  each_other([&](int r, const Other& other) {
    const auto silence = since(other.moved);
    if (watching_since && !other.note.left && silence >= kSilence) {
      add_line(lines, named(r) + " has given no sign of life for " + duration_text(silence));
    }
  });
  if (lines.empty()) lines = places_behind();
  if (!lines.empty()) return lines;
  // Lists the ranks that failed after losing others, if no rank reported the loss itself.
  each_other([&](int r, const Other& other) {
    if (other.note.failed || other.note.left) add_line(lines, sentence(r, other.note));
  });
  return lines;
}

std::string RankMonitor::Board::places_behind() const {
  std::vector<std::pair<std::uint64_t, std::string>> behind;
  each_other([&](int r, const Other& other) {
    for (const auto& [group, mine] : own.places) {
      const auto found = other.note.places.find(group);
      const bool entered = found != other.note.places.end();
      // A rank without a note of a group may not belong to the group, unless it is the group of
      // all ranks.
      if (!entered && group + "/" != prefix) continue;
      const auto sequence = entered ? found->second.sequence : 0;
      if (mine.sequence <= sequence) continue;
      const auto count = mine.sequence - sequence;
      behind.emplace_back(
          count, named(r) + " is " +
                     (entered ? "at " + found->second.what : "before its first collective") + ", " +
                     std::to_string(count) +
                     (count == 1 ? " collective behind" : " collectives behind"));
    }
  });
  std::stable_sort(behind.begin(), behind.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string lines;
  for (const auto& [count, line] : behind) add_line(lines, line);
  return lines;
}

RankMonitor::RankMonitor(std::shared_ptr<StoreClient> client, const std::string& prefix, int rank,
                         int size)
    : client_(std::move(client)), board_(std::make_shared<Board>(prefix, rank, size)) {
  client_->set(board_->note_keys[static_cast<std::size_t>(rank)], encode(board_->own),
               Clock::now() + kInquiry);
  client_->repeat([board = board_](c10d::Store& store) { board->exchange(store); });
}

RankMonitor::RankMonitor() : board_(std::make_shared<Board>("", 0, 1)) {}

RankMonitor::~RankMonitor() {
  if (!client_) return;
  {
    const std::lock_guard lock(board_->mutex);
    board_->own.left = true;
  }
  client_->repeat(nullptr);
  client_->post([board = board_](c10d::Store& store) { board->tell(store, 0); });
}

void RankMonitor::entered(const std::string& group, std::uint64_t sequence,
                          const std::string& what) {
  const std::lock_guard lock(board_->mutex);
  auto& place = board_->own.places[group];
  place.sequence = sequence;
  place.what = what;
}

void RankMonitor::failed(const std::string& message) noexcept {
  if (!client_) return;
  change(true, message.substr(0, kMessageLength));
  if (on_trouble_) on_trouble_();
}

void RankMonitor::recovered() noexcept {
  change(false, "");
}

void RankMonitor::lost() noexcept {
  if (!client_) return;
  {
    const std::lock_guard lock(board_->mutex);
    board_->own.lost = true;
  }
  if (on_trouble_) on_trouble_();
}

bool RankMonitor::any_failed() noexcept {
  const std::lock_guard lock(board_->mutex);
  return board_->failures > (board_->own.failed ? 1 : 0);
}

std::string RankMonitor::elsewhere(const std::string& group) noexcept {
  const std::lock_guard lock(board_->mutex);
  const auto mine = board_->own.places.find(group);
  std::string result;
  if (mine == board_->own.places.end() || !board_->watching_since) return result;
  board_->each_other([&](int rank, const Board::Other& other) {
    const auto place = other.note.places.find(group);
    if (!result.empty() || place == other.note.places.end() ||
        place->second.sequence != mine->second.sequence || place->second.what == mine->second.what)
      return;
    result = named(rank) + " is at " + place->second.what;
  });
  return result;
}

void RankMonitor::watch() noexcept {
  const std::lock_guard lock(board_->mutex);
  board_->watch_until = Clock::now() + kWatch;
}

void RankMonitor::ended(int global_rank) noexcept {
  try {
    client_->post([board = board_, global_rank](c10d::Store& store) {
      const auto& key = board->note_keys[static_cast<std::size_t>(global_rank)];
      RankNote note = decode_rank_note(store.get(key));
      if (note.left || note.failed) return;
      // Writes the note on that rank's behalf, because the rank will not write again.
      note.failed = note.left = true;
      note.message = "its process has ended: it was killed, crashed, or exited without a report";
      store.set(key, encode(note));
      board->tell(store, 1);
    });
  } catch (const std::exception&) {
    // Out of memory: the rank's silence will tell.
  }
}

std::optional<std::string> RankMonitor::suspects() noexcept {
  try {
    const std::lock_guard lock(board_->mutex);
    if (!board_->watching_since || since(*board_->watching_since) < kFirstLook) return std::nullopt;
    const std::string causes = board_->first_causes();
    return causes.empty() ? board_->symptoms() : causes;
  } catch (const std::exception& error) {
    return message_of(error);
  }
}

bool RankMonitor::server_has_ended() noexcept {
  try {
    return client_ && client_->gone();
  } catch (const std::exception&) {
    return false;  // out of memory: nothing was found out
  }
}

bool RankMonitor::has_ended(int global_rank) noexcept {
  const std::lock_guard lock(board_->mutex);
  return board_->watching_since && board_->others[static_cast<std::size_t>(global_rank)].note.left;
}

void RankMonitor::linger() noexcept {
  const auto deadline = Clock::now() + kInquiry;
  std::unique_lock lock(board_->mutex);
  if (!board_->own.failed && !board_->own.lost) return;
  board_->own.left = true;
  while (Clock::now() < deadline && board_->anyone_there()) {
    board_->watch_until = Clock::now() + kWatch;
    board_->read.wait_for(lock, milliseconds(200));
  }
}

std::string RankMonitor::diagnosis() noexcept {
  try {
    return client_ ? look() : "";
  } catch (const std::exception& error) {
    return message_of(error);
  }
}

void RankMonitor::change(bool failed, const std::string& message) noexcept {
  if (!client_) return;
  try {
    std::int64_t more = 0;
    {
      const std::lock_guard lock(board_->mutex);
      if (failed == board_->own.failed) return;
      more = failed ? 1 : -1;
      board_->own.failed = failed;
      board_->own.message = message;
      if (!failed) board_->own.lost = false;
    }
    client_->post([board = board_, more](c10d::Store& store) { board->tell(store, more); });
    // Queued after that request: an answer means that the others can know.
    client_->has(board_->prefix + "failures", Clock::now() + kTell);
  } catch (const std::exception&) {
    // A rank that asks for this rank's note learns that the store is gone.
  }
}

std::string RankMonitor::look() {
  const auto began = Clock::now();
  {
    const std::lock_guard lock(board_->mutex);
    board_->look_began.reset();
  }
  client_->post([board = board_](c10d::Store& store) {
    {
      const std::lock_guard lock(board->mutex);
      board->watch_until = Clock::now() + kWatch;
      board->next_read = {};
    }
    board->exchange(store);
    const std::lock_guard lock(board->mutex);
    board->look_began = Clock::now();
  });
  while (true) {
    if (client_->gone()) {
      return "the store of " + client_->served_by() + " is gone: " + client_->served_by() +
             " has ended";
    }
    const auto silence = client_->silence();
    if (silence >= kSilence) {
      return client_->served_by() + " has given no sign of life for " + duration_text(silence) +
             ": its store does not answer";
    }
    std::unique_lock lock(board_->mutex);
    std::string causes = board_->watching_since ? board_->first_causes() : "";
    if (!causes.empty()) return causes;
    if (board_->all_are_known() || since(began) >= kInquiry) return board_->symptoms();
    board_->watch_until = Clock::now() + kWatch;
    board_->read.wait_for(lock, milliseconds(200));
  }
}

}  // namespace fsdp::internal
