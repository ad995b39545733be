// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/pickle/cycles.h"

#include <atomic>
#include <cstddef>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/containers/pickle/opcodes.h"
#include "formats/containers/pickle/reader.h"

namespace fsdp::formats {
namespace {

// A value on the stack whose memo slot, if it has one, is never fetched.
constexpr std::uint32_t kNameless = UINT32_MAX;

// Returns a number that is unique in the process, so that values of several streams can be
// combined.
std::uint32_t next_number() {
  static std::atomic<std::uint32_t> last{0};
  const std::uint32_t number = ++last;
  if (number == 0)
    throw Error(ErrorCode::kLimitNodes, "more than 2^32 - 1 values contain themselves");
  return number;
}

}  // namespace

// Tracks the stack of a stream as ranks of memo slots.
class PickleCycles::Walk {
 public:
  Walk(PickleCycles& cycles, const ByteSource& source, std::uint64_t offset,
       std::uint64_t max_values)
      : cycles_(cycles), reader_(source, offset), max_values_(max_values) {}

  // Stops at STOP, or where the stack is too short for an opcode: the machine reports that error.
  void run() {
    while (step()) {
    }
  }
  // Returns whether any container contains itself.
  bool any() const { return any_; }

 private:
  bool step() {
    switch (reader_.opcode()) {
      case PickleOp::kStop:
        return false;
      case PickleOp::kProto:
      case PickleOp::kFrame:
        reader_.skip_argument();
        return true;
      case PickleOp::kMark:
        if (marks_.size() >= max_values_) throw_too_many();
        marks_.push_back(stack_.size());
        return true;
      case PickleOp::kTuple:
      case PickleOp::kFrozenSet:
        return pop_to_mark() && push(kNameless);
      case PickleOp::kTuple1:
      case PickleOp::kBinPersid:
        return pop(1) && push(kNameless);
      case PickleOp::kTuple2:
      case PickleOp::kStackGlobal:
      case PickleOp::kReduce:
      case PickleOp::kNewObj:
        return pop(2) && push(kNameless);
      case PickleOp::kTuple3:
        return pop(3) && push(kNameless);
      case PickleOp::kAppend:
      case PickleOp::kBuild:
        return pop(1) && change();
      case PickleOp::kSetItem:
        return pop(2) && change();
      case PickleOp::kAppends:
      case PickleOp::kSetItems:
      case PickleOp::kAddItems:
        return pop_to_mark() && change();
      case PickleOp::kBinPut:
        return put(reader_.u8());
      case PickleOp::kLongBinPut:
        return put(reader_.u32());
      case PickleOp::kMemoize:
        return put(put_count_);
      case PickleOp::kBinGet:
        return get(reader_.u8());
      case PickleOp::kLongBinGet:
        return get(reader_.u32());
      default:
        // Every other opcode puts one value on the stack.
        reader_.skip_argument();
        return push(kNameless);
    }
  }

  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  bool push(std::uint32_t rank) {
    if (stack_.size() >= max_values_) throw_too_many();
    stack_.push_back(rank);
    return true;
  }
  bool pop(std::size_t count) {
    if (stack_.size() - floor() < count) return false;
    stack_.resize(stack_.size() - count);
    return true;
  }
  bool pop_to_mark() {
    if (marks_.empty()) return false;
    stack_.resize(marks_.back());
    marks_.pop_back();
    return true;
  }
  // Records that the value on top of the stack changes.
  bool change() {
    if (stack_.size() == floor()) return false;
    if (stack_.back() == kNameless) return true;
    Row& row = cycles_.rows_[stack_.back()];
    if (!row.fetched) return true;
    row.last_change = reader_.opcode_offset();
    if (row.number == 0) row.number = next_number();
    any_ = true;
    return true;
  }
  bool put(std::uint64_t slot) {
    ++put_count_;
    if (stack_.size() == floor()) return false;
    if (!cycles_.fetched_.contains(slot)) return true;
    const std::uint32_t rank = cycles_.fetched_.rank(slot);
    if (stack_.back() == kNameless) stack_.back() = rank;
    cycles_.object_[rank] = stack_.back();
    return true;
  }
  bool get(std::uint64_t slot) {
    if (!cycles_.fetched_.contains(slot)) return false;
    const std::uint32_t object = cycles_.object_[cycles_.fetched_.rank(slot)];
    cycles_.rows_[object].fetched = true;
    return push(object);
  }
  [[noreturn]] void throw_too_many() const {
    throw Error(ErrorCode::kLimitNodes, "more than ", max_values_, " values are on the stack");
  }

  PickleCycles& cycles_;
  PickleReader reader_;
  const std::uint64_t max_values_;
  std::vector<std::uint32_t> stack_;
  std::vector<std::size_t> marks_;
  std::uint64_t put_count_ = 0;
  bool any_ = false;
};

PickleCycles::PickleCycles(const ByteSource& source, std::uint64_t offset, SlotSet fetched,
                           std::uint64_t max_values)
    : fetched_(std::move(fetched)), object_(fetched_.count()), rows_(fetched_.count()) {
  for (std::uint32_t rank = 0; rank < object_.size(); ++rank) object_[rank] = rank;
  Walk walk(*this, source, offset, max_values);
  walk.run();
  if (!walk.any()) rows_.clear();
}

}  // namespace fsdp::formats
