// SPDX-License-Identifier: Apache-2.0
// The files into which `extract` puts the elements of a slice: .npy or .pt.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/bytes/outputs/options.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/model/tensor_reader.h"
#include "tools/base/common.h"
#include "tools/verbs/contents/slice.h"

namespace fsdp::cli {

// A part of a tensor of a checkpoint, cast or not.
struct Extraction {
  const formats::Checkpoint* checkpoint = nullptr;
  std::size_t tensor = 0;
  Slice slice;
  formats::DType dtype = formats::DType::kFloat32;  // of the result
  bool verify = true;                               // compare checksums

  const formats::TensorEntry& entry() const { return checkpoint->index().tensors[tensor]; }
  std::uint64_t numel() const;
  std::uint64_t bytes() const;
};

// Reads the box of the slice and hands out the elements of the slice in order.  Throws: what
// visit_pieces throws.
formats::CopyResult read_slice(const Extraction& extraction, const CommonOptions& common,
                               const Streams& streams,
                               const std::function<void(std::span<const std::byte>)>& take);

// A file being laid out: the parts before and after the elements.
class TensorFile {
 public:
  virtual ~TensorFile() = default;
  virtual std::uint64_t bytes() const = 0;
  virtual std::uint64_t data_offset() const = 0;
  // Returns everything but the elements, if all of it precedes the elements and does not depend on
  // them.
  virtual std::optional<std::string> head() const { return std::nullopt; }
  // Writes everything but the elements, whose CRC-32 is `crc`.
  virtual void write_rest(formats::OutputFile& file, std::uint32_t crc) = 0;
};

// Makes the layout for `format`, "npy" or "pt".
// Throws: kUnsupported if numpy has no such dtype, or PyTorch cannot save it.
std::unique_ptr<TensorFile> make_tensor_file(const std::string& format,
                                             const Extraction& extraction);

// Writes the elements and the bytes around them to a file under a temporary name, then renames it.
formats::CopyResult write_tensor_file(const Extraction& extraction, TensorFile& layout,
                                      const std::string& destination,
                                      const formats::OutputOptions& options,
                                      const CommonOptions& common, const Streams& streams);

// Writes head and elements to `out` as they are read.
// Throws: kUnsupported for a layout without a head; what read_slice throws, when a part is written.
formats::CopyResult stream_tensor(const Extraction& extraction, const TensorFile& layout,
                                  std::ostream& out, const CommonOptions& common,
                                  const Streams& streams);

// Writes each tensor, with its layout and its name, into a new folder.
formats::CopyResult write_tensor_folder(const std::vector<Extraction>& extractions,
                                        const std::vector<std::unique_ptr<TensorFile>>& layouts,
                                        const std::vector<std::string>& names,
                                        const std::string& destination,
                                        const formats::OutputOptions& options,
                                        const CommonOptions& common, const Streams& streams);

}  // namespace fsdp::cli
