// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/megatron/buckets.h"

#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/megatron/bucket_layout.h"
#include "formats/changes/megatron/names.h"
#include "formats/state/content/content.h"
#include "formats/state/content/placed_leaves.h"

namespace fsdp::formats::megatron {
namespace {

// The order in which buffers are read: that of the ranks of each optimizer.
struct BufferKey {
  std::string optimizer;   // "chained_0.", or empty
  std::int64_t group = 0;  // of data parallelism: a rank of tensor and pipeline parallelism
  std::int64_t buffer = 0;
  auto operator<=>(const BufferKey&) const = default;
};

struct BucketKey {
  BufferKey buffer;
  std::int64_t number = 0;
  std::string name;   // without the state
  std::string state;  // "exp_avg"
};

std::optional<std::int64_t> number_behind(std::string_view text, std::string_view word) {
  const std::size_t at = text.find(word);
  if (at == std::string_view::npos) return std::nullopt;
  text.remove_prefix(at + word.size());
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  return number;
}

constexpr std::string_view kDistributed = "optimizer.distributed.";

std::string optimizer_of(std::string_view key) {
  return std::string(key.substr(0, key.find(kDistributed)));
}

std::optional<BucketKey> bucket_key(const std::string& key) {
  constexpr std::string_view kBucket = ".bucket_idx_";
  const auto group = number_behind(key, "dp_group_idx_");
  const auto buffer = number_behind(key, ".gbuf_idx_");
  const auto number = number_behind(key, kBucket);
  const std::size_t dot = key.rfind('.');
  if (!group || !buffer || !number || dot < key.find(kBucket) + kBucket.size()) return std::nullopt;
  return BucketKey{
      {optimizer_of(key), *group, *buffer}, *number, key.substr(0, dot), key.substr(dot + 1)};
}

// Returns names as the model has them: modules name norms and experts otherwise.
std::vector<std::string> as_in_model(const std::vector<std::string>& names) {
  std::set<std::string> mixed;  // layers with experts
  const auto place = [](const std::string& name) {
    const auto layer = layer_of(name);
    return layer && layer->number ? layer->before + std::to_string(*layer->number) : std::string();
  };
  for (const std::string& name : names) {
    if (expert_of(name)) mixed.insert(place(name));
  }
  std::vector<std::string> out;
  for (const std::string& name : names) {
    const auto expert = expert_of(name);
    out.push_back(expert ? expert_name(*expert) : engine_name(name, mixed.contains(place(name))));
  }
  return out;
}

// Returns the value of an object that each group of ranks has one of: a list of it.
const Value* object_of(const Value& value) {
  return value.items().size() == 1 ? value.items().data() : nullptr;
}

class Reader {
 public:
  Reader(const std::string& path, arrays::ComputedTensors& made, ModuleState& state)
      : path_(path), made_(made), state_(state) {}

  void run(const std::vector<Value::Entry>& entries, const std::vector<std::string>& names) {
    for (const auto& [key, value] : entries) {
      const std::string& name = *key.as_string();
      if (const auto number = tensor_number(value)) {
        add(name, made_.source_array(*number));
      } else {
        add_object(name, value);
      }
    }
    BucketLayout layout(state_.model, as_in_model(names), path_);
    for (const auto& [key, numbered] : buffers_) {
      std::vector<Bucket> buffer;
      for (const auto& [number, bucket] : numbered) {
        if (number != static_cast<std::int64_t>(buffer.size()))
          fail(ErrorCode::kKey, bucket.key, cat("is there, and bucket ", buffer.size(), " is not"));
        check(key, number, bucket);
        buffer.push_back(bucket);
      }
      for (const PartPlace& place : layout.places(buffer))
        add_part(layout.parts()[place.part], buffer[place.bucket], place.begin);
    }
    finish();
  }

 private:
  [[noreturn]] void fail(ErrorCode code, const std::string& key, const std::string& what) const {
    throw Error(code, cat(path_, ": ", quote(key, 200), ": ", what),
                {Remedy::kExclude, "**optimizer.**"});
  }

  void add(const std::string& key, arrays::Array array) {
    const auto parsed = bucket_key(key);
    if (!parsed)
      fail(ErrorCode::kKey, key, "is a tensor of an optimizer in buckets, and names no bucket");
    Bucket& bucket = buffers_[parsed->buffer][parsed->number];
    bucket.key = parsed->name;
    bucket.states.emplace(parsed->state, std::move(array));
  }

  void add_object(const std::string& key, const Value& value) {
    const std::string optimizer = optimizer_of(key);
    const std::int64_t group = number_behind(key, "dp_group_idx_").value_or(0);
    const Value* const object = object_of(value);
    if (object == nullptr) return;
    if (key.find(".per_bucket_numel_unpadded/") != key.npos) {
      sizes_.emplace(std::pair(optimizer, group), *object);
    } else if (key.find(".optimizer/") != key.npos && optimizers_.insert(optimizer).second) {
      add_groups(*object, state_.groups);
    }
  }

  // Checks the states of a bucket, and its size with what the folder says of it.
  void check(const BufferKey& key, std::int64_t number, const Bucket& bucket) const {
    const auto copy = bucket.states.find(std::string(kMasterState));
    if (copy == bucket.states.end()) {
      fail(ErrorCode::kKey, bucket.key,
           "has no float32 copy of the parameters, by which they would be found");
    }
    for (const auto& [state, array] : bucket.states) {
      if (array.shape == copy->second.shape && array.shape.size() == 1) continue;
      fail(ErrorCode::kShape, bucket.key,
           cat("state ", quote(state, 200), " has shape ", shape_text(array.shape),
               ", the copy of the parameters ", shape_text(copy->second.shape),
               ", expected one dimension of one size"));
    }
    if (!is_floating(copy->second.dtype))
      fail(ErrorCode::kDtype, bucket.key, "the copy of the parameters is not of a floating dtype");
    const auto said = sizes_.find({key.optimizer, key.group});
    if (said == sizes_.end()) return;
    const std::optional<std::int64_t> size = said_size(said->second, key.buffer, number);
    if (size == copy->second.shape[0]) return;
    fail(ErrorCode::kShape, bucket.key,
         cat("has ", copy->second.shape[0], " elements, and per_bucket_numel_unpadded says ",
             size ? cat(*size) : std::string("nothing of it")));
  }

  // Returns the elements of a bucket by per_bucket_numel_unpadded: a list of each buffer's dict,
  // from its dtypes to a list.
  static std::optional<std::int64_t> said_size(const Value& said, std::int64_t buffer,
                                               std::int64_t number) {
    const auto buffers = said.items();
    if (static_cast<std::size_t>(buffer) >= buffers.size()) return std::nullopt;
    const auto dtypes = members_of(buffers[static_cast<std::size_t>(buffer)]);
    if (dtypes.size() != 1) return std::nullopt;
    const auto sizes = dtypes[0].second.items();
    if (static_cast<std::size_t>(number) >= sizes.size()) return std::nullopt;
    return sizes[static_cast<std::size_t>(number)].as_int();
  }

  void add_part(const RankPart& part, const Bucket& bucket, std::int64_t begin) {
    Found& found = found_.try_emplace(part.parameter, Found{.count = part.count}).first->second;
    if (found.count != part.count) {
      fail(ErrorCode::kOverlap, state_.model[part.parameter].name,
           cat("buckets hold one of ", found.count, " parts, and one of ", part.count));
    }
    // Ranks of tensor parallelism have the same norms.
    if (!found.numbers.insert(part.number).second) return;
    for (const Box& box : part.boxes) {
      const auto numel = static_cast<std::int64_t>(volume(box.view()));
      for (const auto& [state, array] : bucket.states) {
        arrays::Array piece = arrays::reshaped(arrays::sliced(array, 0, begin, numel), box.size);
        arrays::Array& whole = found.states[state];
        whole.dtype = array.dtype;
        for (arrays::Part& one : piece.parts) {
          for (std::size_t d = 0; d < box.offset.size(); ++d) one.box.offset[d] += box.offset[d];
          whole.parts.push_back(std::move(one));
        }
      }
      begin += numel;
    }
  }

  void finish() {
    for (auto& [parameter, found] : found_) {
      const NamedArray& one = state_.model[parameter];
      for (auto& [state, array] : found.states) {
        array.shape = one.array.shape;
        std::uint64_t numel = 0;
        for (const arrays::Part& part : array.parts) numel += volume(part.box.view());
        if (numel != numel_of(one.array)) {
          fail(ErrorCode::kShardMissing, one.name,
               cat("buckets hold state ", quote(state, 200), " of ", numel, " elements, expected ",
                   numel_of(one.array)));
        }
        state_.states[state].push_back({one.name, std::move(array)});
      }
    }
  }

  struct Found {
    std::size_t count = 1;  // of parts
    std::set<std::size_t> numbers = {};
    std::map<std::string, arrays::Array> states = {};
  };

  const std::string& path_;
  arrays::ComputedTensors& made_;
  ModuleState& state_;
  std::map<BufferKey, std::map<std::int64_t, Bucket>> buffers_;
  std::map<std::pair<std::string, std::int64_t>, Value> sizes_;  // by optimizer and group
  std::set<std::string> optimizers_;                             // whose groups are known
  std::map<std::size_t, Found> found_;                           // by parameter
};

}  // namespace

void read_buckets(const std::vector<Value::Entry>& entries, const std::vector<std::string>& names,
                  const std::string& path, arrays::ComputedTensors& made, ModuleState& state) {
  Reader(path, made, state).run(entries, names);
}

}  // namespace fsdp::formats::megatron
