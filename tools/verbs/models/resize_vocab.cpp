// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt resize-vocab: embeddings and output layers for another number of tokens.
#include <cmath>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/edit/resize_vocabulary.h"
#include "formats/families/hf/companions.h"
#include "tools/base/reading.h"
#include "tools/base/verbs.h"
#include "tools/verbs/models/configured_model.h"
#include "tools/verbs/writing/conversion.h"
#include "tools/verbs/writing/name_report.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::hf::Companions;

class ResizeVocabVerb : public Verb {
 public:
  ResizeVocabVerb()
      : Verb("resize-vocab",
             "Change the number of tokens: rows of the embedding and the output layer",
             {"fsdp-ckpt resize-vocab step-400 step-400-larger --size 32064 -w 8",
              "fsdp-ckpt resize-vocab model.safetensors out.safetensors --size 32064 --fill "
              "zeros"}) {}
  void declare(OptionSet& options) override {
    declare_conversion(options, conversion_, output_formats());
    options.add("--size", &size_).required = true;
    options.add("--table", &tables_);
    options.add("--fill", &fill_).choices = {"mean", "zeros", "noise"};
    options.add("--seed", &seed_);
    options.add("--std", &deviation_);
    options.add("--config", &config_, "; that beside PATH or in the run if not given; or none");
    declare_world_size(options, conversion_);
  }

  int run(const CommonOptions& common, const Streams& streams) override {
    const formats::VocabularyResize resize = read_options();
    const Companions companions = companions_for(config_, common.path);
    const auto change = [&](const formats::Checkpoint& source, const formats::Value& content,
                            ReportExtras& extras) {
      // Does not own: the caller keeps the source as long as the result.
      const std::shared_ptr<const formats::Checkpoint> kept(std::shared_ptr<void>(), &source);
      formats::VocabularyResized resized = resize_found(kept, content, resize);
      add_report(resized, companions, extras);
      Companions changed = companions;
      if (changed.config)
        changed.config = formats::hf::with_vocabulary(*changed.config, resized.old_rows, *size_);
      require_still(source.description().path, content, companions, resized.content, changed,
                    extras);
      return Changed{std::move(resized.checkpoint), std::move(resized.content)};
    };
    return convert_checkpoint(name(), conversion_, common, streams, change);
  }

 private:
  formats::VocabularyResize read_options() const {
    formats::VocabularyResize resize;
    resize.rows = *size_;
    resize.tables = formats::globs_of(tables_);
    const bool noise = fill_ == "noise";
    resize.fill = noise              ? formats::RowFill::kNoise
                  : fill_ == "zeros" ? formats::RowFill::kZeros
                                     : formats::RowFill::kMean;
    if (!noise && (seed_ || deviation_))
      throw Error(ErrorCode::kUsage, "--seed and --std are about --fill noise");
    resize.noise.seed = static_cast<std::uint64_t>(seed_.value_or(0));
    resize.noise.deviation = deviation_.value_or(resize.noise.deviation);
    if (!(resize.noise.deviation > 0) || !std::isfinite(resize.noise.deviation))
      throw Error(ErrorCode::kUsage, "--std is a finite number above 0");
    return resize;
  }

  static formats::VocabularyResized resize_found(
      const std::shared_ptr<const formats::Checkpoint>& source, const formats::Value& content,
      const formats::VocabularyResize& resize) {
    try {
      return formats::resize_vocabulary(source, content, resize);
    } catch (const Error& error) {
      const bool guess = resize.tables.empty() && (error.code() == ErrorCode::kNotFound ||
                                                   error.code() == ErrorCode::kMismatch);
      if (!guess) throw;
      throw error.saying(cat(error.what(), "; name the tables with --table GLOB"));
    }
  }

  void add_report(const formats::VocabularyResized& resized, const Companions& companions,
                  ReportExtras& extras) const {
    extras.lines.push_back(cat(resized.old_rows, " to ", *size_, " tokens",
                               resized.guessed ? ", in tables found by their names" : "", ":"));
    const auto line = [&](std::size_t i) {
      const formats::ResizedTensor& tensor = resized.tensors[i];
      return cat(formats::escape(tensor.key), ": ", formats::torch_name(tensor.dtype), " ",
                 formats::shape_text(tensor.was), " -> ", formats::shape_text(tensor.now),
                 tensor.state ? ", a state: zeros" : "");
    };
    list_names(resized.tensors.size(), line, extras.lines);
    if (!resized.alike.empty()) {
      extras.lines.push_back(cat("left as they are, with a dimension of ", resized.old_rows, ":"));
      const auto key = [&](std::size_t i) { return formats::escape(resized.alike[i]); };
      list_names(resized.alike.size(), key, extras.lines);
    }
    if (companions.config) {
      extras.lines.push_back(
          cat(companions.config_name, " is not written; its vocab_size is to be ", *size_));
    }
    formats::Json::Array tensors;
    for (const formats::ResizedTensor& tensor : resized.tensors) {
      tensors.emplace_back(
          formats::Json::Object{{"key", tensor.key},
                                {"dtype", formats::torch_name(tensor.dtype)},
                                {"was", formats::Json::Array(tensor.was.begin(), tensor.was.end())},
                                {"now", formats::Json::Array(tensor.now.begin(), tensor.now.end())},
                                {"state", tensor.state}});
    }
    extras.members = {{"old_size", resized.old_rows},
                      {"size", *size_},
                      {"fill", fill_.empty() ? "mean" : fill_},
                      {"guessed", resized.guessed},
                      {"resized", std::move(tensors)},
                      {"alike", formats::Json::Array(resized.alike.begin(), resized.alike.end())}};
  }

  ConversionOptions conversion_;
  std::optional<std::int64_t> size_;
  std::vector<std::string> tables_;
  std::string fill_;
  std::string config_;
  std::optional<std::int64_t> seed_;
  std::optional<double> deviation_;
};

}  // namespace

std::unique_ptr<Verb> make_resize_vocab() {
  return std::make_unique<ResizeVocabVerb>();
}

}  // namespace fsdp::cli
