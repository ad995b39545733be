// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/contents/extraction.h"

#include <ostream>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/crc32.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/outputs/atomic_file.h"
#include "formats/bytes/outputs/atomic_folder.h"
#include "formats/families/torch/writer.h"
#include "formats/state/checkpoint/source_pieces.h"
#include "formats/state/content/tensor_value.h"
#include "tools/base/reading.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::DType;

// Drops the elements of a box that lie between those of the slice.
class StepFilter {
 public:
  StepFilter(const Slice& slice, std::size_t item)
      : slice_(slice), box_(slice.box()), item_(item), at_(slice.dimensions.size(), 0) {}

  // Returns the kept part of the next elements of the box.  Lifetime: until the next call.
  std::span<const std::byte> keep(std::span<const std::byte> elements) {
    kept_.clear();
    for (std::size_t at = 0; at < elements.size(); at += item_) {
      if (wanted()) {
        const auto element = elements.subspan(at, item_);
        kept_.insert(kept_.end(), element.begin(), element.end());
      }
      for (std::size_t d = at_.size(); d-- > 0;) {
        if (++at_[d] < box_.size[d]) break;
        at_[d] = 0;
      }
    }
    return kept_;
  }

 private:
  bool wanted() const {
    for (std::size_t d = 0; d < at_.size(); ++d) {
      if (at_[d] % slice_.dimensions[d].step != 0) return false;
    }
    return true;
  }

  const Slice& slice_;
  formats::Box box_;
  std::size_t item_;
  std::vector<std::int64_t> at_;
  std::vector<std::byte> kept_;
};

// Returns numpy's name of a dtype; empty if it has none.
std::string numpy_name(DType dtype) {
  const auto bytes = formats::item_bytes(dtype);
  if (dtype == DType::kBool) return "|b1";
  if (dtype == DType::kFloat16 || dtype == DType::kFloat32 || dtype == DType::kFloat64)
    return cat("<f", bytes);
  if (dtype == DType::kComplex64 || dtype == DType::kComplex128) return cat("<c", bytes);
  if (dtype < DType::kInt64 || dtype > DType::kUInt64) return {};
  const bool is_signed = formats::torch_name(dtype).starts_with("int");
  return cat(bytes == 1 ? "|" : "<", is_signed ? "i" : "u", bytes);
}

// numpy's file format, version 1.0: magic, the length of the header, a Python dict, elements.
constexpr const char* kUnpacked =
    "fsdp-ckpt convert PATH OUT --to safetensors --dtype float32 makes wider floats of it";

class NpyFile : public TensorFile {
 public:
  explicit NpyFile(const Extraction& extraction) : data_bytes_(extraction.bytes()) {
    const std::string descr = numpy_name(extraction.dtype);
    if (descr.empty()) {
      const std::string name(formats::torch_name(extraction.dtype));
      throw Error(ErrorCode::kUnsupported,
                  cat("numpy has no ", name, "; ",
                      formats::is_complex(extraction.dtype) ? "write a .pt file"
                      : formats::is_packed_float(extraction.dtype)
                          ? kUnpacked
                          : "cast with --dtype float32, or write a .pt file"));
    }
    constexpr std::size_t kAlignment = 64;
    constexpr std::size_t kPrefixBytes = 10;
    const std::vector<std::int64_t> shape = extraction.slice.shape();
    std::string dict = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': (";
    for (std::size_t d = 0; d < shape.size(); ++d)
      dict += (d == 0 ? "" : ", ") + std::to_string(shape[d]);
    dict += shape.size() == 1 ? ",), }" : "), }";
    const std::size_t used = (kPrefixBytes + dict.size() + 1) % kAlignment;
    dict += std::string((kAlignment - used) % kAlignment, ' ') + '\n';
    if (dict.size() > UINT16_MAX)
      throw Error(ErrorCode::kUnsupported, "the shape is too long for a .npy file");
    header_ = std::string("\x93NUMPY\x01\x00", 8);
    header_ += static_cast<char>(dict.size() & 0xFFU);
    header_ += static_cast<char>(dict.size() >> 8U);
    header_ += dict;
  }
  std::uint64_t bytes() const override { return header_.size() + data_bytes_; }
  std::uint64_t data_offset() const override { return header_.size(); }
  std::optional<std::string> head() const override { return header_; }
  void write_rest(formats::OutputFile& file, std::uint32_t) override {
    file.write_at(0, std::as_bytes(std::span(header_)));
  }

 private:
  std::uint64_t data_bytes_;
  std::string header_;
};

class PtFile : public TensorFile {
 public:
  explicit PtFile(const Extraction& extraction) : layout_(tensor_of(extraction)) {}
  std::uint64_t bytes() const override { return layout_.bytes(); }
  std::uint64_t data_offset() const override { return layout_.storage_offset(0); }
  void write_rest(formats::OutputFile& file, std::uint32_t crc) override {
    layout_.write_rest(std::span(&crc, 1),
                       [&](std::uint64_t offset, std::span<const std::byte> bytes) {
                         file.write_at(offset, bytes);
                       });
  }

 private:
  static formats::Value tensor_of(const Extraction& extraction) {
    formats::StorageRef storage;
    storage.key = "0";
    storage.dtype = extraction.dtype;
    const bool typed = !formats::storage_class(extraction.dtype).empty();
    storage.numel = typed ? extraction.numel() : extraction.bytes();
    return formats::make_dense_tensor(extraction.dtype, extraction.slice.shape(),
                                      std::move(storage));
  }
  formats::TorchSaveLayout layout_;
};

// Writes the elements and the parts around them.
formats::CopyResult write_into(const Extraction& extraction, TensorFile& layout,
                               formats::OutputFile& file, const CommonOptions& common,
                               const Streams& streams) {
  file.reserve(layout.bytes());
  std::uint64_t at = layout.data_offset();
  std::uint32_t crc = 0;
  auto result = read_slice(extraction, common, streams, [&](std::span<const std::byte> bytes) {
    const std::uint32_t part = formats::crc32(0, bytes);
    file.put_at(at, bytes);
    file.add_crc(at, bytes.size(), part);
    crc = formats::crc32_combine(crc, part, bytes.size());
    at += bytes.size();
  });
  layout.write_rest(file, crc);
  return result;
}

}  // namespace

std::uint64_t Extraction::numel() const {
  std::uint64_t numel = 1;
  for (const std::int64_t size : slice.shape()) numel *= static_cast<std::uint64_t>(size);
  return numel;
}

std::uint64_t Extraction::bytes() const {
  return numel() * formats::item_bytes(dtype);
}

formats::CopyResult read_slice(const Extraction& extraction, const CommonOptions& common,
                               const Streams& streams,
                               const std::function<void(std::span<const std::byte>)>& take) {
  const formats::TargetPiece piece = formats::box_piece(
      std::make_shared<formats::TensorSource>(*extraction.checkpoint, extraction.tensor),
      extraction.slice.box(), extraction.dtype);
  const std::uint64_t total =
      formats::volume(piece.box.view()) * formats::item_bytes(extraction.dtype);
  Progress progress(streams.err, streams.show_progress, "extract", total);
  formats::VisitOptions options = visit_options(common, progress);
  options.threads = 1;  // elements are wanted in order
  options.verify = extraction.verify;
  StepFilter filter(extraction.slice,
                    static_cast<std::size_t>(formats::item_bytes(extraction.dtype)));
  const bool steps = extraction.slice.has_steps();
  return formats::visit_pieces(std::span(&piece, 1), options,
                               [&](const formats::TensorBlock& block) {
                                 take(steps ? filter.keep(block.bytes) : block.bytes);
                               });
}

std::unique_ptr<TensorFile> make_tensor_file(const std::string& format,
                                             const Extraction& extraction) {
  if (format == "npy") return std::make_unique<NpyFile>(extraction);
  if (!formats::is_torch_dtype(extraction.dtype)) {
    throw Error(ErrorCode::kUnsupported,
                cat("PyTorch has no ", formats::torch_name(extraction.dtype), "; ", kUnpacked));
  }
  return std::make_unique<PtFile>(extraction);
}

formats::CopyResult write_tensor_file(const Extraction& extraction, TensorFile& layout,
                                      const std::string& destination,
                                      const formats::OutputOptions& options,
                                      const CommonOptions& common, const Streams& streams) {
  const auto output = formats::new_file(destination, options);
  auto result = write_into(extraction, layout, output->file(), common, streams);
  extraction.checkpoint->check_unchanged();
  output->commit();
  return result;
}

formats::CopyResult stream_tensor(const Extraction& extraction, const TensorFile& layout,
                                  std::ostream& out, const CommonOptions& common,
                                  const Streams& streams) {
  const auto head = layout.head();
  if (!head)
    throw Error(ErrorCode::kUnsupported, "only npy can go to standard output; name a file");
  const auto write = [&](const char* bytes, std::size_t count) {
    out.write(bytes, static_cast<std::streamsize>(count));
  };
  write(head->data(), head->size());
  auto result = read_slice(extraction, common, streams, [&](std::span<const std::byte> bytes) {
    write(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
  extraction.checkpoint->check_unchanged();
  return result;
}

formats::CopyResult write_tensor_folder(const std::vector<Extraction>& extractions,
                                        const std::vector<std::unique_ptr<TensorFile>>& layouts,
                                        const std::vector<std::string>& names,
                                        const std::string& destination,
                                        const formats::OutputOptions& options,
                                        const CommonOptions& common, const Streams& streams) {
  const auto output = formats::new_folder(destination, options);
  formats::CopyResult total;
  for (std::size_t i = 0; i < extractions.size(); ++i) {
    formats::OutputFile& file = output->add_file(names[i]);
    auto result = write_into(extractions[i], *layouts[i], file, common, streams);
    file.finish(options.sync);  // closes it: there may be more tensors than open files
    total.bytes += result.bytes;
    total.unchecked_bytes += result.unchecked_bytes;
  }
  if (!extractions.empty()) extractions.front().checkpoint->check_unchanged();
  output->commit();
  return total;
}

}  // namespace fsdp::cli
