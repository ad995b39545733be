// SPDX-License-Identifier: Apache-2.0
// Saving and loading of state dicts; see Note [a save] in checkpoint.h.  Ranks that save
// synchronize five times, and each costs a round trip through the store: to describe the state and
// claim the destination, to compare descriptions, to tell who has which part, when all files are
// written, and when the folder is in place.
#include "libfsdp/checkpoint.h"

#include <map>
#include <sstream>
#include <tuple>
#include <utility>

#include <ATen/core/Tensor.h>

#include "formats/bytes/base/text.h"
#include "formats/bytes/files/seal.h"
#include "formats/bytes/outputs/atomic_file.h"
#include "formats/bytes/outputs/atomic_folder.h"
#include "formats/bytes/outputs/joined.h"
#include "formats/families/dcp/names.h"
#include "formats/families/dcp/rank_writer.h"
#include "formats/families/dcp/sharding.h"
#include "formats/families/torch/writer.h"
#include "formats/state/content/content.h"
#include "formats/state/content/tensor_value.h"
#include "libfsdp/agree.h"
#include "libfsdp/internal/checkpoint/checkpoint_reader.h"
#include "libfsdp/internal/checkpoint/load_plan.h"
#include "libfsdp/internal/checkpoint/tensor_bridge.h"
#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/left_out.h"

namespace fsdp {
using namespace internal;
namespace {

namespace dcp = formats::dcp;

void check_destination(const std::filesystem::path& path, const SaveOptions& options) {
  FSDP_CHECK(!formats::is_url(path.native()), path.native(),
             ": cannot save to a URL; save to a folder, and copy it to a store with fsdp-ckpt");
  if (options.overwrite) return;
  FSDP_CHECK(!std::filesystem::exists(std::filesystem::symlink_status(path)), path.native(),
             ": exists; SaveOptions::overwrite replaces it");
}

void check_whole(const StateContent& content) {
  for (const StateTensor& tensor : content.tensors) {
    FSDP_CHECK(tensor.sharded == nullptr, "'", tensor.key,
               "': this rank has only a part of the tensor, but a file holds whole tensors; make "
               "the state dict with StateDictType::kFull");
  }
}

formats::CacheUse cache_use(const SaveOptions& options) {
  return options.page_cache == PageCache::kAlways  ? formats::CacheUse::kAlways
         : options.page_cache == PageCache::kNever ? formats::CacheUse::kNever
                                                   : formats::CacheUse::kWhileQuick;
}

formats::OutputOptions output_options(const SaveOptions& options, bool seal) {
  formats::OutputOptions result{options.overwrite, options.sync, seal};
  result.make_folders = true;
  return result;
}

// Writes a file of torch.save.
void write_stream(formats::OutputFile& file, const StateContent& content,
                  const SaveOptions& options) {
  at::Tensor held;
  formats::write_torch_file(
      file, content.root,
      [&](std::size_t number) { return host_bytes(content.tensors[number].local, held); },
      cache_use(options));
}

// Returns what must be the same on every rank, one line for each entry.
std::vector<std::string> lines_of(const StateContent& content) {
  std::vector<std::string> lines;
  for (const formats::Leaf& entry : dcp::entries_of(content.root)) {
    std::string line = "'" + entry.key + "': ";
    const auto number = formats::tensor_number(entry.value);
    if (!number) {
      line += "a value";
    } else {
      const StateTensor& tensor = content.tensors[*number];
      line += c10::str(formats::torch_name(dtype_of(tensor.local.scalar_type())),
                       at::IntArrayRef(formats::dense_tensor(entry.value)->shape));
      if (tensor.sharded != nullptr) {
        line += c10::str(" in ", tensor.sharded->layout.world_size, " parts and ",
                         tensor.sharded->replica_count, " copies");
        for (const Cut& cut : tensor.sharded->layout.cuts)
          line += c10::str(" of ", cut.parts, " blocks along dimension ", cut.dim);
        if (!tensor.sharded->over.empty()) line += " over " + tensor.sharded->over;
      }
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

// Decides which rank writes which part of a state's sharded tensors.
//
// A rank knows only its own part and copy of each tensor.  Tensors that are cut over the same
// dimensions into equally many parts, and exist in equally many copies, are distributed alike, so
// ranks exchange their parts and copies once for each such grouping.  Parts are counted block by
// block.
class PartWriters {
 public:
  // Throws: c10::Error if two tensors with equal numbers of parts and copies are not the same part
  // and copy on this rank.
  explicit PartWriters(const std::vector<StateTensor>& tensors) {
    for (const StateTensor& tensor : tensors) {
      if (tensor.sharded == nullptr) continue;
      const ShardedTensor& sharded = *tensor.sharded;
      const Grouping grouping = grouping_of(sharded);
      const int own = sharded.layout.block() * sharded.layout.world_size + sharded.part;
      const auto [place, fresh] = own_.try_emplace(grouping, own, sharded.replica);
      const auto [part, replica] = place->second;
      FSDP_CHECK(part == own && replica == sharded.replica, "'", tensor.key,
                 "': this rank has part ", own, " of copy ", sharded.replica, ", but part ", part,
                 " of copy ", replica, " of other ",
                 grouping_text(std::get<0>(grouping), std::get<1>(grouping)));
    }
  }

  // Describes what this rank has, two numbers for each grouping.
  std::string text() const {
    std::string result;
    for (const auto& [grouping, place] : own_) {
      for (const int number : {place.first, place.second}) result += std::to_string(number) + ' ';
    }
    return result;
  }

  // Takes the texts of all ranks, by rank.
  // Throws: c10::Error, the same on every rank, if no rank or several ranks have a part.
  void learn(const std::vector<std::string>& texts, const ProcessGroup& group) {
    for (const auto& [grouping, place] : own_) {
      auto& copies = copies_[grouping];
      for (int c = 0; c < std::get<1>(grouping); ++c) {
        copies.push_back(std::make_shared<std::vector<std::int64_t>>(
            static_cast<std::size_t>(std::get<0>(grouping)), kNobody));
      }
    }
    for (std::size_t rank = 0; rank < texts.size(); ++rank) {
      std::istringstream in(texts[rank]);
      // Groupings are the same on every rank, and in one order: the ranks have compared them.
      for (auto& [grouping, copies] : copies_) {
        std::size_t part = 0;
        std::size_t replica = 0;
        in >> part >> replica;
        std::int64_t& writer = copies.at(replica)->at(part);
        FSDP_CHECK(writer == kNobody, grouping_text(std::get<0>(grouping), std::get<1>(grouping)),
                   ": part ", part, " of copy ", replica, " is both rank ",
                   group.global_rank(static_cast<int>(writer)), "'s and rank ",
                   group.global_rank(static_cast<int>(rank)), "'s");
        writer = static_cast<std::int64_t>(rank);
      }
    }
    for (const auto& [grouping, copies] : copies_) {
      for (std::size_t c = 0; c < copies.size(); ++c) {
        for (std::size_t p = 0; p < copies[c]->size(); ++p) {
          FSDP_CHECK((*copies[c])[p] != kNobody,
                     grouping_text(std::get<0>(grouping), std::get<1>(grouping)),
                     ": no rank has part ", p, " of copy ", c);
        }
      }
    }
  }

  // Returns the writers of each part of the `count`-th sharded tensor, as ranks of the group.
  // Copies take turns from tensor to tensor.
  std::shared_ptr<const std::vector<std::int64_t>> of(const ShardedTensor& tensor,
                                                      std::size_t count) const {
    const auto& copies = copies_.at(grouping_of(tensor));
    return copies[count % copies.size()];
  }

 private:
  using Grouping = std::tuple<int, int, std::string>;  // parts, copies, ShardedTensor::over
  using Ranks = std::shared_ptr<std::vector<std::int64_t>>;

  static constexpr std::int64_t kNobody = -1;

  static Grouping grouping_of(const ShardedTensor& tensor) {
    return {tensor.layout.world_size * tensor.layout.block_count(), tensor.replica_count,
            tensor.over};
  }

  static std::string grouping_text(int parts, int copies) {
    return "tensors in " + std::to_string(parts) + " parts and " + std::to_string(copies) +
           " copies";
  }

  std::map<Grouping, std::pair<int, int>> own_;    // part, copy
  std::map<Grouping, std::vector<Ranks>> copies_;  // by copy and part
};

std::vector<dcp::PartTensor> part_tensors(const StateContent& content, const PartWriters& writers) {
  std::vector<dcp::PartTensor> result;
  std::size_t sharded = 0;
  for (const StateTensor& tensor : content.tensors) {
    dcp::PartTensor part;
    part.dtype = dtype_of(tensor.local.scalar_type());
    part.shape = tensor.shape().vec();
    if (tensor.sharded != nullptr) {
      part.writers = writers.of(*tensor.sharded, sharded++);
      const ShardLayout& layout = tensor.sharded->layout;
      part.row_dims = static_cast<std::size_t>(layout.row_dims);
      if (layout.block_count() > 1) {
        for (const ShardLayout& block : layouts_of_blocks(layout))
          part.blocks.push_back(
              {{block.offset, block.shape}, static_cast<std::size_t>(block.row_dims)});
      }
    }
    result.push_back(std::move(part));
  }
  return result;
}

class FolderSave {
 public:
  FolderSave(const std::filesystem::path& folder, const std::shared_ptr<ProcessGroup>& group,
             const SaveOptions& options)
      : folder_(folder),
        group_(group),
        options_(with_option_left_out(options)),
        what_("save " + folder.native()),
        first_(group->rank() == 0) {}

  // `meta`: null if there is none.
  void run(const StateDict& state, const StateDict* meta) {
    StateContent content;
    std::optional<StateContent> meta_content;
    std::optional<PartWriters> writers;
    std::vector<std::string> lines;
    agree(group_, what_, [&] {
      content = state_content(state);
      writers.emplace(content.tensors);
      lines = lines_of(content);
      if (!first_) return;
      if (meta != nullptr) {
        meta_content = state_content(*meta);
        check_whole(*meta_content);
      }
      check_destination(folder_, options_);
      staging_ = formats::new_shared_folder(folder_, output_options(options_, options_.seal));
      invitation_ = staging_->invitation();
    });
    require_same(group_, what_ + ": what the ranks hold", lines);
    exchange(*writers);
    const auto tensors = part_tensors(content, *writers);
    std::optional<dcp::RankPlan> layout;
    const auto written = agree_and_tell(group_, what_, [&] {
      layout.emplace(content.root, tensors, group_->size(), first_);
      return write_own(*layout, content);
    });
    agree(group_, what_, [&] {
      if (!first_) return;
      if (options_.seal) add_sealed(written);
      if (meta_content)
        write_stream(staging_->add_file(std::string(dcp::kLightningMetaName)), *meta_content,
                     options_);
      dcp::write_metadata_file(staging_->add_file(std::string(dcp::kMetadataName)), *layout);
      staging_->commit();
    });
  }

 private:
  // Tells every rank which rank has which part, and where rank 0's folder is.
  void exchange(PartWriters& writers) {
    auto texts = all_gather_text(group_, writers.text() + "|" + invitation_, what_);
    for (std::string& text : texts) {
      const auto bar = text.find('|');
      if (&text == &texts.front()) invitation_ = text.substr(bar + 1);
      text.resize(bar);
    }
    writers.learn(texts, *group_);
  }

  // Returns size and checksum of the file, unless rank 0 knows them already.
  std::string write_own(const dcp::RankPlan& layout, const StateContent& content) const {
    const std::string name = dcp::data_file_name(group_->rank(), 0);
    at::Tensor held;
    const auto write = [&](formats::OutputFile& file) {
      dcp::write_rank_file(
          file, layout, group_->rank(),
          [&](std::size_t number) { return host_bytes(content.tensors[number].local, held); },
          cache_use(options_));
      file.finish(options_.sync);
    };
    if (first_) {
      write(staging_->add_file(name));
      return {};
    }
    const auto file =
        formats::JoinedFolder(folder_, invitation_).add_file(name, options_.sync, options_.seal);
    write(*file);
    return c10::str(file->bytes(), ' ', file->crc());
  }

  // Adds the files of the other ranks to the seal.
  void add_sealed(const std::vector<std::string>& written) {
    for (std::size_t rank = 1; rank < written.size(); ++rank) {
      formats::SealedFile file{dcp::data_file_name(static_cast<std::int64_t>(rank), 0), 0, 0};
      std::istringstream(written[rank]) >> file.bytes >> file.crc;
      staging_->add_sealed(std::move(file));
    }
  }

  const std::filesystem::path folder_;
  const std::shared_ptr<ProcessGroup> group_;
  const SaveOptions options_;
  const std::string what_;
  const bool first_;  // rank 0
  std::unique_ptr<formats::SharedFolder> staging_;
  std::string invitation_;
};

}  // namespace

void save(const std::filesystem::path& folder, const StateDict& state,
          const std::shared_ptr<ProcessGroup>& group, const SaveOptions& options) {
  FolderSave(folder, group, options).run(state, nullptr);
}

void save_with_meta(const std::filesystem::path& folder, const StateDict& parts,
                    const StateDict& meta, const std::shared_ptr<ProcessGroup>& group,
                    const SaveOptions& options) {
  FolderSave(folder, group, options).run(parts, &meta);
}

void save_file(const std::filesystem::path& file, const StateDict& state,
               const std::shared_ptr<ProcessGroup>& group, const SaveOptions& given) {
  const SaveOptions options = with_option_left_out(given);
  agree(group, "save " + file.native(), [&] {
    if (group->rank() != 0) return;
    const StateContent content = state_content(state);
    check_whole(content);
    check_destination(file, options);
    const auto output = formats::new_file(file, output_options(options, /*seal=*/false));
    write_stream(output->file(), content, options);
    output->commit();
  });
}

LoadReport load(const std::filesystem::path& path, StateDict& state,
                const std::shared_ptr<ProcessGroup>& group, const LoadOptions& given) {
  const LoadOptions options = with_option_left_out(given);
  const std::string what = "load " + path.native();
  std::optional<CheckpointReader> reader;
  std::optional<LoadPlan> plan;
  agree(group, what, [&] {
    reader.emplace(path, options.allowed_globals);
    plan.emplace(*reader, options);
    plan->match(state, reader->content());
    plan->check();
  });
  reader->read(group, what, options.verify);
  return plan->finish();
}

}  // namespace fsdp
