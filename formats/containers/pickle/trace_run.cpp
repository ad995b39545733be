// SPDX-License-Identifier: Apache-2.0
// The stack machine of PickleTrace: the effect of each opcode on the terms of the stack.
#include <charconv>
#include <cstddef>
#include <unordered_map>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/containers/pickle/literals.h"
#include "formats/containers/pickle/opcodes.h"
#include "formats/containers/pickle/reader.h"
#include "formats/containers/pickle/text.h"
#include "formats/containers/pickle/trace.h"

namespace fsdp::formats {
namespace {

// The most terms on the stack and in the memo, 16 bytes each.
constexpr std::size_t kMaxTerms = 50'000'000;

using Kind = Term::Kind;

// The memo.  Picklers number their slots from 0; other slots are in a map.
class TermMemo {
 public:
  void put(std::uint64_t slot, Term term) {
    if (slot < dense_.size()) {
      dense_[slot] = term;
      return;
    }
    if (dense_.size() + sparse_.size() > kMaxTerms)
      throw Error(ErrorCode::kLimitNodes, "more than ", kMaxTerms, " memo slots");
    if (slot == dense_.size() && !sparse_.contains(slot)) {
      dense_.push_back(term);
    } else {
      sparse_.insert_or_assign(slot, term);
    }
  }
  const Term* get(std::uint64_t slot) const {
    if (slot < dense_.size()) return &dense_[slot];
    const auto found = sparse_.find(slot);
    return found == sparse_.end() ? nullptr : &found->second;
  }
  // The number of slots in use: MEMOIZE uses it as the next slot.
  std::uint64_t count() const { return dense_.size() + sparse_.size(); }

 private:
  std::vector<Term> dense_;
  std::unordered_map<std::uint64_t, Term> sparse_;
};

}  // namespace

// The stack machine of one stream.
class PickleTrace::Run {
 public:
  Run(PickleTrace& trace, std::uint64_t offset)
      : trace_(trace), host_(trace.host_), reader_(trace.source_, offset) {}

  std::uint64_t run() {
    for (PickleOp op = reader_.opcode(); op != PickleOp::kStop; op = reader_.opcode()) {
      step(op);
      if (stack_.size() > kMaxTerms) fail(ErrorCode::kLimitNodes, "too many values");
    }
    trace_.report_value(pop());
    return reader_.offset();
  }

 private:
  [[noreturn]] void fail(ErrorCode code, std::string_view symptom) const {
    reader_.fail(code, symptom);
  }

  std::size_t fence() const { return marks_.empty() ? 0 : marks_.back(); }
  void need(std::size_t count) const {
    if (stack_.size() - fence() < count)
      fail(ErrorCode::kStack, "takes more values than the stack has");
  }
  Term pop() {
    need(1);
    const Term term = stack_.back();
    stack_.pop_back();
    return term;
  }
  void push(Term term) { stack_.push_back(term); }
  void push_data() { stack_.emplace_back(); }
  void push_int(std::int64_t value) { push({Kind::kInt, 0, static_cast<std::uint64_t>(value)}); }
  // Little-endian, in two's complement.
  void push_long(std::string_view bytes) {
    if (bytes.size() > 8) return push_int(Term::kHugeInt);
    std::uint64_t value = !bytes.empty() && (bytes.back() & 0x80) != 0 ? ~std::uint64_t{0} : 0;
    for (std::size_t i = bytes.size(); i-- > 0;)
      value = value << 8U | static_cast<unsigned char>(bytes[i]);
    push({Kind::kInt, 0, value});
  }
  // "-1" or "-1L"; "00" and "01" are bools.
  void push_decimal(std::string_view line) {
    if (line.ends_with('L')) line.remove_suffix(1);
    std::int64_t value = 0;
    const char* const end = line.data() + line.size();
    const auto [stop, error] = std::from_chars(line.data(), end, value);
    const bool is_bool = line == "00" || line == "01";
    if (is_bool) return push_data();
    // Python also reads spaces, signs and underscores.
    push_int(error == std::errc() && stop == end ? value : Term::kHugeInt);
  }
  // Removes the last mark and returns the terms above it.
  std::vector<Term> pop_mark() {
    if (marks_.empty()) fail(ErrorCode::kStack, "there is no MARK on the stack");
    std::vector<Term> terms(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()),
                            stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return terms;
  }
  void report(std::span<const Term> terms) {
    for (const Term& term : terms) trace_.report_value(term);
  }

  // Follow one opcode, which is not STOP.
  void step(PickleOp op) {
    const PickleArgument argument = kPickleOpcodes[static_cast<std::uint8_t>(op)].written;
    switch (op) {
      case PickleOp::kProto:
        if (const unsigned protocol = reader_.u8(); protocol > kMaxPickleProtocol)
          fail(ErrorCode::kProto, cat("protocol ", protocol, " is beyond ", kMaxPickleProtocol));
        return;
      case PickleOp::kFrame:
        return reader_.skip(8);
      case PickleOp::kMark:
        if (marks_.size() > kMaxTerms) fail(ErrorCode::kLimitNodes, "too many marks");
        return marks_.push_back(stack_.size());
      case PickleOp::kShortBinString:
      case PickleOp::kBinString:
      case PickleOp::kShortBinUnicode:
      case PickleOp::kBinUnicode:
      case PickleOp::kBinUnicode8:
        return text(argument);
      case PickleOp::kNone:
        return push({Kind::kNone, 0, 0});
      case PickleOp::kBinInt1:
        return push_int(reader_.u8());
      case PickleOp::kBinInt2:
        return push_int(reader_.u16());
      case PickleOp::kBinInt:
        return push_int(static_cast<std::int32_t>(reader_.u32()));
      case PickleOp::kLong1:
        return push_long(reader_.bytes(reader_.u8()));
      case PickleOp::kLong4: {
        const std::uint64_t size = reader_.signed_length();
        if (size <= 8) {
          push_long(reader_.bytes(size));
        } else {
          reader_.skip(size);
          push_int(Term::kHugeInt);
        }
        return;
      }
      case PickleOp::kTuple: {
        const std::vector<Term> terms = pop_mark();
        return tuple(terms, 0);
      }
      case PickleOp::kEmptyTuple:
        return push(trace_.tuple({}));
      case PickleOp::kTuple1:
        return tuple(1);
      case PickleOp::kTuple2:
        return tuple(2);
      case PickleOp::kTuple3:
        return tuple(3);
      case PickleOp::kFrozenSet:
        report(pop_mark());
        return push_data();
      case PickleOp::kAppend:
        return fill(1);
      case PickleOp::kSetItem:
        return fill(2);
      case PickleOp::kAppends:
      case PickleOp::kSetItems:
      case PickleOp::kAddItems:
        return fill(pop_mark());
      case PickleOp::kBinPut:
        return put(reader_.u8());
      case PickleOp::kLongBinPut:
        return put(reader_.u32());
      case PickleOp::kMemoize:
        return put(memo_.count());
      case PickleOp::kBinGet:
        return get(reader_.u8());
      case PickleOp::kLongBinGet:
        return get(reader_.u32());
      case PickleOp::kGlobal:
        return push(two_lines());
      case PickleOp::kStackGlobal:
        return stack_global();
      case PickleOp::kReduce:
      case PickleOp::kNewObj: {
        const Term args = pop();
        const Term callable = pop();
        return call(op == PickleOp::kReduce ? PickleCall::kCalled : PickleCall::kNew, callable,
                    args);
      }
      case PickleOp::kBuild:
        return build();
      case PickleOp::kBinPersid:
        return persistent_id();
      default:
        return step_python(static_cast<PythonOp>(op));
    }
  }

  void step_python(PythonOp op) {
    switch (op) {
      case PythonOp::kString:
      case PythonOp::kUnicode:
        return text(PickleArgument::kLine);
      case PythonOp::kInt:
      case PythonOp::kLong:
        return push_decimal(reader_.line());
      case PythonOp::kList:
      case PythonOp::kDict:
        report(pop_mark());
        return push_data();
      case PythonOp::kPop:
        // If nothing is above the mark, POP removes the mark.
        if (!marks_.empty() && marks_.back() == stack_.size()) {
          marks_.pop_back();
        } else {
          pop();
        }
        return;
      case PythonOp::kPopMark:
        pop_mark();
        return;
      case PythonOp::kDup:
        need(1);
        return push(stack_.back());
      case PythonOp::kPut:
        return put(decimal_slot());
      case PythonOp::kGet:
        return get(decimal_slot());
      case PythonOp::kInst: {
        const std::vector<Term> terms = pop_mark();
        const Term callable = two_lines();
        return call(PickleCall::kCalled, callable, trace_.tuple(terms));
      }
      case PythonOp::kObj:
        return object();
      case PythonOp::kExt1:
        return extension(reader_.u8());
      case PythonOp::kExt2:
        return extension(reader_.u16());
      case PythonOp::kExt4:
        return extension(reader_.u32());
      case PythonOp::kNewObjEx: {
        trace_.report_value(pop());
        const Term args = pop();
        const Term callable = pop();
        return call(PickleCall::kNew, callable, args);
      }
      case PythonOp::kReadonlyBuffer:
        return need(1);
      default:
        // A value without names, with or without an argument.
        skip_argument(kPickleOpcodes[static_cast<std::uint8_t>(op)].written);
        return push_data();
    }
  }

  void skip_argument(PickleArgument argument) {
    if (argument == PickleArgument::kRefused) {
      throw Error(ErrorCode::kOpcode, reader_.opcode_hex(), " at byte ", reader_.opcode_offset(),
                  " is not a pickle opcode");
    }
    reader_.skip(argument, true);
  }

  void text(PickleArgument argument) {
    push({Kind::kText, 0, reader_.opcode_offset()});
    skip_argument(argument);
  }
  void tuple(std::span<const Term> terms, std::size_t removed) {
    const Term made = trace_.tuple(terms);
    stack_.resize(stack_.size() - removed);
    push(made);
  }
  void tuple(std::size_t size) {
    need(size);
    const std::vector<Term> terms(stack_.end() - static_cast<std::ptrdiff_t>(size), stack_.end());
    tuple(terms, size);
  }
  void fill(std::span<const Term> items) {
    report(items);
    need(1);
    const Term target = stack_.back();
    if (target.kind == Kind::kName || target.kind == Kind::kObject) host_.items(target);
  }
  void fill(std::size_t count) {
    need(count + 1);
    const std::vector<Term> items(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    fill(items);
  }

  void put(std::uint64_t slot) {
    need(1);
    memo_.put(slot, stack_.back());
  }
  void get(std::uint64_t slot) {
    const Term* const term = memo_.get(slot);
    if (term == nullptr) fail(ErrorCode::kMemo, cat("memo slot ", slot, " is not defined"));
    push(*term);
  }
  std::uint64_t decimal_slot() {
    const auto slot = slot_number(reader_.line());
    if (!slot) fail(ErrorCode::kMemo, "its slot is not a number");
    return *slot;
  }

  Term two_lines() {
    const std::string module(reader_.line());
    const std::string_view name = reader_.line();
    if (!is_python_utf8(module) || !is_python_utf8(name))
      fail(ErrorCode::kGlobal, "the name is not UTF-8");
    return {Kind::kName, 0, trace_.number_of(module, name)};
  }
  void stack_global() {
    const Term name = pop();
    const Term module = pop();
    const auto module_text = trace_.text(module);
    const auto name_text = trace_.text(name);
    if (module_text && name_text)
      return push({Kind::kName, 0, trace_.number_of(*module_text, *name_text)});
    host_.hidden_name(cat(reader_.where(), " takes a name that is not a text in the pickle"));
    push_data();
  }
  void extension(std::uint64_t code) {
    host_.hidden_name(cat(reader_.where(), " takes name ", code, " of the extension registry"));
    push_data();
  }
  void call(PickleCall how, Term callable, Term args) {
    push(host_.call(trace_, how, callable, args));
  }
  // OBJ: the class stands below the arguments.
  void object() {
    const std::vector<Term> terms = pop_mark();
    if (terms.empty()) fail(ErrorCode::kStack, "there is no class above the MARK");
    call(PickleCall::kCalled, terms[0], trace_.tuple(std::span(terms).subspan(1)));
  }
  void build() {
    const Term state = pop();
    trace_.report_value(state);
    need(1);
    const Term target = stack_.back();
    if (target.kind == Kind::kName || target.kind == Kind::kObject)
      host_.state(trace_, target, state);
  }
  // Legacy torch.save files keep a class as ("module", class, file, source).
  void persistent_id() {
    const Term id = pop();
    trace_.report_value(id);
    const auto items = trace_.items(id);
    const bool is_class = items.size() == 4 && items[1].kind == Kind::kName &&
                          trace_.text(items[0]) == std::optional<std::string>("module");
    push(is_class ? items[1] : Term());
  }

  PickleTrace& trace_;
  PickleTraceHost& host_;
  PickleReader reader_;
  std::vector<Term> stack_;
  std::vector<std::size_t> marks_;  // heights of the stack
  TermMemo memo_;
};

std::uint64_t PickleTrace::run(std::uint64_t offset) {
  tuple_items_.clear();
  tuples_.clear();
  if (offset >= source_.size()) {
    throw Error(ErrorCode::kTruncated, "no pickle begins at byte ", offset, ": only ",
                source_.size(), " bytes");
  }
  return Run(*this, offset).run();
}

}  // namespace fsdp::formats
