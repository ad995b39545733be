// SPDX-License-Identifier: Apache-2.0
// See Note [a save] in checkpoint.h.  Ranks synchronize five times, and each costs a round trip
// through the store: to describe the state and claim the destination, to compare descriptions, to
// tell who has which part, when all files are written, and when the folder is in place.
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "formats/bytes/base/url.h"
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
#include "libfsdp/checkpoint.h"
#include "libfsdp/internal/checkpoint/part_writers.h"
#include "libfsdp/internal/checkpoint/tensor_bridge.h"
#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/construction/left_out_option.h"

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
  switch (options.page_cache) {
    case PageCache::kAlways:
      return formats::CacheUse::kAlways;
    case PageCache::kNever:
      return formats::CacheUse::kNever;
    case PageCache::kWhileQuick:
      break;
  }
  return formats::CacheUse::kWhileQuick;
}

formats::OutputOptions output_options(const SaveOptions& options, bool seal) {
  formats::OutputOptions result{options.overwrite, options.sync, seal};
  result.make_folders = true;
  return result;
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
      if (meta_content) write_meta(*meta_content);
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
    HostBytes bytes;
    const auto write = [&](formats::OutputFile& file) {
      dcp::write_rank_file(
          file, layout, group_->rank(),
          [&](std::size_t number) { return bytes.of(content.tensors[number].local); },
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

  void write_meta(const StateContent& content) {
    HostBytes bytes;
    formats::write_torch_file(
        staging_->add_file(std::string(dcp::kLightningMetaName)), content.root,
        [&](std::size_t number) { return bytes.of(content.tensors[number].local); },
        cache_use(options_));
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
    HostBytes bytes;
    formats::write_torch_file(
        output->file(), content.root,
        [&](std::size_t number) { return bytes.of(content.tensors[number].local); },
        cache_use(options));
    output->commit();
  });
}

}  // namespace fsdp
