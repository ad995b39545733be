// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/families/torch/stored_file.h"
#include "formats/families/trainers/carried_files.h"
#include "formats/families/trainers/per_rank.h"
#include "formats/families/trainers/rank_archive.h"
#include "formats/families/trainers/relaid_tensor.h"
#include "formats/families/trainers/trainers.h"
#include "formats/state/content/content.h"
#include "formats/state/model/shard_spec.h"

namespace fsdp::formats {
namespace {

// A set of files, and what they become.
struct OutputSet {
  std::string first_name;  // of rank 0's file in the source
  Value content;
  std::unordered_map<std::string, Value> dtensors;  // by key, as rank 0 saved them
};

// Returns the name that the file of a rank of `to` ranks has, by that of rank 0 of `from` ranks.
std::string name_of_rank(const std::string& first, std::int64_t rank, std::int64_t from,
                         std::int64_t to) {
  const std::size_t end = first.rfind('.');
  std::size_t begin = end;
  while (begin > 0 && first[begin - 1] == '0') --begin;
  std::string number = std::to_string(rank);
  if (number.size() < end - begin) number.insert(0, end - begin - number.size(), '0');
  std::string before = first.substr(0, begin);
  constexpr std::string_view kWorldSize = "world_size_";
  if (const std::size_t at = before.find(kWorldSize); at != before.npos) {
    const std::size_t digits = at + kWorldSize.size();
    const std::size_t behind =
        std::min(before.find_first_not_of("0123456789", digits), before.size());
    if (before.substr(digits, behind - digits) != std::to_string(from)) {
      throw Error(ErrorCode::kMismatch,
                  cat(escape(first), ": is named for another number of ranks, but is one of ", from,
                      " files"));
    }
    before.replace(digits, behind - digits, std::to_string(to));
  }
  return cat(before, number, first.substr(end));
}

class RankFilesOutput : public Output {
 public:
  RankFilesOutput(const Checkpoint& source, const Value& content, std::filesystem::path destination,
                  OutputOptions options, const FrameworkOptions& how)
      : Output(source, std::move(destination), std::move(options)), ranks_(how.world_size) {
    check_world_size(ranks_);
    plan_.format = "per-rank";
    plan_.folder = true;
    const Listing listing(how.beside.value().folder);
    std::vector<RankFiles> others;
    const std::vector<RankFiles> sets = sharded_sets(listing, &others);
    from_ = static_cast<std::int64_t>(sets.at(0).files.size());
    for (const RankFiles& set : sets) {
      const Value* const part = sets.size() == 1 ? &content : content.find(set.name);
      if (part != nullptr) add_set(listing, set, *part);
    }
    for (std::int64_t rank = 0; rank < ranks_; ++rank) {
      for (const OutputSet& set : sets_) {
        RankArchive archive(source_);
        plan_.files.push_back({name_of_rank(set.first_name, rank, from_, ranks_),
                               RankArchive::file_bytes(object_of(set, rank, archive))});
      }
    }
    carry(listing, sets, others, how.beside->allowed_globals);
  }

 private:
  void add_set(const Listing& listing, const RankFiles& set, const Value& content) {
    std::int64_t next = 0;
    for (const auto& [rank, name] : set.files) {
      if (rank == next++ && static_cast<std::int64_t>(set.files.size()) == from_) continue;
      throw Error(ErrorCode::kShardMissing,
                  cat(source_.description().path, ": ", escape(name), ": is one of ",
                      set.files.size(), " files, expected those of ranks 0 to ", from_ - 1));
    }
    OutputSet out{set.files[0].second, content, {}};
    std::unordered_map<std::string, Value> whole;  // by key, what every rank has
    const auto first_file = listing.folder->open_member(out.first_name);
    const TorchFile first = read_torch_save(*first_file);
    for (Leaf& leaf : leaves_of(first.root)) {
      const bool cut = special_tensor(leaf.value) == "sharded";
      (cut ? out.dtensors : whole).emplace(std::move(leaf.key), std::move(leaf.value));
    }
    for (std::size_t f = 1; f < set.files.size(); ++f) {
      const auto file = listing.folder->open_member(set.files[f].second);
      check_alike(first, whole, read_torch_save(*file), content, *file);
    }
    for (const Leaf& leaf : leaves_of(content)) {
      if (tensor_number(leaf.value)) count_tensor(out, leaf);
    }
    count_leaves(content);
    sets_.push_back(std::move(out));
  }

  // Checks that what is not cut is the same on another rank: a rank that did not exist has nothing
  // of its own.
  void check_alike(const TorchFile& first, const std::unordered_map<std::string, Value>& whole,
                   const TorchFile& other, const Value& content, const File& file) const {
    std::unordered_set<std::string> wanted;
    for (const Leaf& leaf : leaves_of(content)) wanted.insert(leaf.key);
    for (const Leaf& leaf : leaves_of(other.root)) {
      if (!wanted.contains(leaf.key) || special_tensor(leaf.value) == "sharded") continue;
      const auto known = whole.find(leaf.key);
      const bool alike =
          known != whole.end() && saved_alike(first, known->second, other, leaf.value);
      if (alike) continue;
      throw Error(ErrorCode::kUnsupported,
                  cat(file.name(), ": ", quote(leaf.key, 200),
                      ": is not a DTensor, and not what rank 0 has, so another number of ranks "
                      "cannot be given it"),
                  {Remedy::kOtherLayout});
    }
  }

  void count_tensor(const OutputSet& set, const Leaf& leaf) {
    const auto known = set.dtensors.find(leaf.key);
    const auto cut = known == set.dtensors.end() ? std::nullopt : sharded_value(known->second);
    if (!cut) {
      ++plan_.whole_tensors;
      return;
    }
    ++plan_.cut_tensors;
    const auto& places = cut->placements;
    const bool fits =
        cut->mesh.size() == 1 && places.size() == 1 && cut->mesh[0] == from_ &&
        (!places[0].shards ||
         (places[0].dim >= 0 && static_cast<std::size_t>(places[0].dim) < cut->shape.size()));
    if (fits) return;
    std::string why =
        cut->mesh.empty() ? "is a ShardedTensor, which only its own ranks can load"
        : cut->mesh.size() > 1
            ? cat("lies on a mesh of ", cut->mesh.size(), " dimensions")
            : cat("lies on a mesh of ", cut->mesh[0], " ranks, but there are ", from_);
    throw Error(ErrorCode::kUnsupported,
                cat(source_.description().path, ": ", quote(leaf.key, 200), ": ", why,
                    ", and cannot be laid out so for other ranks"),
                {Remedy::kOtherLayout});
  }

  // Returns the content of a rank's file.
  Value object_of(const OutputSet& set, std::int64_t rank, RankArchive& archive) const {
    std::unordered_map<DType, Value> numbers;
    RelaidTensors mesh(rank, ranks_, [&](DType dtype) {
      auto& known = numbers[dtype];
      if (known.is_none()) known = archive.counted_up(dtype, ranks_);
      return known;
    });
    return with_leaves(set.content, [&](const Leaf& leaf) -> std::optional<Value> {
      const auto number = tensor_number(leaf.value);
      if (!number) return leaf.value;
      const TensorRef reference{.number = *number, .cast = {}};
      const TensorEntry& tensor = source_.index().tensors[*number];
      const auto known = set.dtensors.find(leaf.key);
      if (known == set.dtensors.end()) return archive.part(reference, whole_box(tensor.shape));
      try {
        const Placement placement = sharded_value(known->second).value().placements.at(0);
        Box box = placed_box(tensor.shape, std::span(&ranks_, 1), std::span(&rank, 1),
                             std::span(&placement, 1));
        return mesh.relaid(known->second, archive.part(reference, std::move(box)));
      } catch (const Error& error) {
        throw Error(error.code(),
                    error.in(cat(source_.description().path, ": ", quote(leaf.key, 200))).what(),
                    {Remedy::kOtherLayout});
      }
    });
  }

  void carry(const Listing& listing, const std::vector<RankFiles>& sets,
             const std::vector<RankFiles>& others, const std::set<std::string>& allowed) {
    for (const RankFiles& set : others) {
      const std::string& name = set.files[0].second;
      if (is_carried_of_rank_0(name, from_)) continue;
      throw Error(ErrorCode::kUnsupported,
                  cat(source_.description().path, ": ", escape(name),
                      ": is the file of a rank without DTensors, like an optimizer's of FSDP1, "
                      "whose flat parts cannot be divided for other ranks; save with FSDP2"),
                  {Remedy::kOtherLayout});
    }
    std::set<std::string> taken;
    for (const RankFiles& set : sets) {
      for (const auto& [rank, name] : set.files) taken.insert(name);
    }
    carried_ = carried_files(
        listing, {.from_ranks = from_,
                  .to_ranks = ranks_,
                  .allowed_globals = allowed,
                  .wanted = [&](const std::string& name) { return !taken.contains(name); }});
    carried_.plan(plan_);
  }

  void write_files(AtomicFolder& folder, const CopyOptions& options, CopyResult& total) override {
    for (std::int64_t rank = 0; rank < ranks_; ++rank) {
      for (const OutputSet& set : sets_) {
        RankArchive archive(source_);
        const Value object = object_of(set, rank, archive);
        OutputFile& file = folder.add_file(name_of_rank(set.first_name, rank, from_, ranks_));
        total += archive.write(object, file, options.after(total), chunks_);
        file.finish(options_.sync);
      }
    }
    carried_.write(folder, options_.sync);
  }

  std::int64_t ranks_;
  std::int64_t from_ = 0;
  std::vector<OutputSet> sets_;
  CarriedFiles carried_;
  std::shared_ptr<ChunkCache> chunks_ = std::make_shared<ChunkCache>();
};

}  // namespace

std::unique_ptr<Output> plan_rank_files(const Checkpoint& source, const Value& content,
                                        const std::filesystem::path& destination,
                                        const FrameworkOptions& options) {
  OutputOptions output = options.output;
  output.replaced = is_carried_name;
  return std::make_unique<RankFilesOutput>(source, with_values(source, content), destination,
                                           std::move(output), options);
}

}  // namespace fsdp::formats
