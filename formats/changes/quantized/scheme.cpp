// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/quantized/scheme.h"

#include <algorithm>
#include <string_view>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats::quantized {
namespace {

constexpr std::int64_t kMostGroup = 1 << 20;

class Reader {
 public:
  Reader(const Json& config, const std::string& name) : config_(config), name_(name) {}

  Settings run() {
    out_.method = text(config_, "quant_method", "");
    if (out_.method == "compressed-tensors") {
      compressed_tensors();
    } else if (out_.method == "modelopt") {
      modelopt();
    } else if (out_.method == "fp8") {
      transformers_fp8();
    } else if (out_.method == "mxfp4") {
      out_.dialect = Dialect::kGptOss;
      add({.bits = 4, .sharing = Sharing::kGroups, .columns = 32, .powers = true});
    } else if (out_.method == "gptq") {
      gptq();
    } else if (out_.method == "awq") {
      awq();
    } else if (out_.method == "bitsandbytes") {
      const bool four = flag(config_, "load_in_4bit", false);
      if (!four && !flag(config_, "load_in_8bit", false))
        throw unsupported("load_in_4bit and load_in_8bit are false");
      out_.dialect = four ? Dialect::kBitsandbytes4 : Dialect::kBitsandbytes8;
      // What shares a scale stands beside each weight.
      out_.schemes.push_back({.name = four ? text(config_, "bnb_4bit_quant_type", "fp4")
                                           : std::string("int8, a scale for each row")});
    } else if (out_.method == "torchao") {
      out_.dialect = Dialect::kTorchao;
    } else {
      throw unsupported(cat("quant_method is ", quote(out_.method, 100),
                            ", known are compressed-tensors, modelopt, fp8, mxfp4, gptq, awq, "
                            "bitsandbytes and torchao"));
    }
    return std::move(out_);
  }

 private:
  Error unsupported(const std::string& what) const {
    return Error(ErrorCode::kUnsupported, cat(name_, ": quantization_config: ", what));
  }
  Error bad(std::string_view member, const char* wanted, const Json& found) const {
    return Error(ErrorCode::kJson, cat(name_, ": quantization_config: ", member, " is ",
                                       json_kind(found), ", expected ", wanted));
  }

  // Return a member; `otherwise` if it is missing or null.
  std::string text(const Json& from, std::string_view member, std::string otherwise) const {
    const Json* const found = from.find(member);
    if (found == nullptr || found->is_null()) return otherwise;
    if (found->as_string() == nullptr) throw bad(member, "a string", *found);
    return *found->as_string();
  }
  bool flag(const Json& from, std::string_view member, bool otherwise) const {
    const Json* const found = from.find(member);
    if (found == nullptr || found->is_null()) return otherwise;
    if (found->as_bool() == nullptr) throw bad(member, "true or false", *found);
    return *found->as_bool();
  }
  std::int64_t number(const Json& from, std::string_view member, std::int64_t otherwise) const {
    const Json* const found = from.find(member);
    if (found == nullptr || found->is_null()) return otherwise;
    if (found->as_int() == nullptr) throw bad(member, "an integer", *found);
    return *found->as_int();
  }
  std::int64_t group(const Json& from, std::string_view member, std::int64_t otherwise) const {
    const std::int64_t size = number(from, member, otherwise);
    if (size == -1 || (size > 0 && size <= kMostGroup)) return size;
    throw unsupported(cat(member, " is ", size, ", expected -1 or a size"));
  }
  unsigned bits(const Json& from, std::string_view member, std::int64_t otherwise) const {
    const std::int64_t count = number(from, member, otherwise);
    if (count < 1 || count > 8) throw unsupported(cat(member, " is ", count, ", known are 1 to 8"));
    return static_cast<unsigned>(count);
  }
  void blocks(const Json& from, std::string_view member, Scheme& scheme) const {
    const Json* const found = from.find(member);
    const Json::Array* const sizes = found == nullptr ? nullptr : found->as_array();
    if (sizes == nullptr || sizes->size() != 2)
      throw bad(member, "two sizes", found == nullptr ? Json() : *found);
    scheme.sharing = Sharing::kBlocks;
    for (std::size_t i = 0; i < 2; ++i) {
      const std::int64_t* const size = (*sizes)[i].as_int();
      if (size == nullptr || *size < 1 || *size > kMostGroup)
        throw bad(member, "two sizes", (*sizes)[i]);
      (i == 0 ? scheme.rows : scheme.columns) = *size;
    }
  }
  void refuse_unless_empty(std::string_view member, const char* why) const {
    const Json* const found = config_.find(member);
    if (found == nullptr || found->is_null()) return;
    const Json::Object* const members = found->as_object();
    if (members != nullptr && members->empty()) return;
    throw unsupported(cat("has a ", member, ": ", why));
  }
  void add(Scheme scheme) {
    scheme.name = scheme_text(scheme);
    out_.schemes.push_back(std::move(scheme));
  }

  void compressed_tensors() {
    out_.dialect = Dialect::kCompressedTensors;
    refuse_unless_empty("transform_config", "the weights are not those of the model without it");
    if (const Json* const sparsity = config_.find("sparsity_config");
        sparsity != nullptr && text(*sparsity, "format", "dense") != "dense")
      throw unsupported("has a sparsity_config: sparse weights are not read");
    const std::string status = text(config_, "quantization_status", "compressed");
    if (status != "compressed")
      throw unsupported(cat("quantization_status is ", quote(status, 100), ", not compressed"));
    const Json* const groups = config_.find("config_groups");
    if (groups == nullptr || groups->as_object() == nullptr)
      throw bad("config_groups", "an object", groups == nullptr ? Json() : *groups);
    for (const auto& [label, one] : *groups->as_object()) {
      const Json* const weights = one.find("weights");
      if (weights == nullptr || weights->is_null()) continue;  // activations alone
      add(compressed_tensors_scheme(*weights));
    }
  }

  Scheme compressed_tensors_scheme(const Json& weights) const {
    Scheme scheme;
    const std::string type = text(weights, "type", "int");
    if (type != "int" && type != "float")
      throw unsupported(cat("weights of type ", quote(type, 100)));
    scheme.numbers = type == "int" ? NumberKind::kInteger : NumberKind::kFloat;
    scheme.bits = bits(weights, "num_bits", 8);
    if (scheme.numbers == NumberKind::kFloat && scheme.bits != 4 && scheme.bits != 8)
      throw unsupported(cat("floating weights of ", scheme.bits, " bits"));
    scheme.symmetric = flag(weights, "symmetric", true);
    const std::string strategy = text(weights, "strategy", "tensor");
    if (strategy == "tensor") {
      scheme.sharing = Sharing::kTensor;
    } else if (strategy == "channel") {
      scheme.sharing = Sharing::kRows;
    } else if (strategy == "block") {
      blocks(weights, "block_structure", scheme);
    } else if (strategy == "group" || strategy == "tensor_group") {
      scheme.sharing = Sharing::kGroups;
      scheme.columns = group(weights, "group_size", -1);
      scheme.second_scale = strategy == "tensor_group";
      scheme.powers =
          strategy == "group" && scheme.numbers == NumberKind::kFloat && scheme.columns == 32;
    } else {
      throw unsupported(cat("weights of strategy ", quote(strategy, 100)));
    }
    return scheme;
  }

  void modelopt() {
    out_.dialect = Dialect::kModelOpt;
    // Newer files have `quant_algo` here, older ones below `quantization`.
    const Json* const inner = config_.find("quantization");
    const Json& about = inner != nullptr && inner->as_object() != nullptr ? *inner : config_;
    const std::string algorithm = text(about, "quant_algo", "");
    if (algorithm == "MIXED_PRECISION") {
      const Json* const layers = about.find("quantized_layers");
      if (layers == nullptr || layers->as_object() == nullptr)
        throw bad("quantized_layers", "an object", layers == nullptr ? Json() : *layers);
      std::vector<std::string> seen;
      for (const auto& [layer, one] : *layers->as_object()) {
        Scheme scheme = modelopt_scheme(text(one, "quant_algo", ""), one);
        if (std::string name = scheme_text(scheme);
            std::find(seen.begin(), seen.end(), name) == seen.end()) {
          seen.push_back(std::move(name));
          add(std::move(scheme));
        }
      }
      return;
    }
    add(modelopt_scheme(algorithm, about));
  }

  Scheme modelopt_scheme(std::string algorithm, const Json& from) const {
    // Some are written in small letters.
    std::ranges::transform(algorithm, algorithm.begin(),
                           [](char c) { return 'a' <= c && c <= 'z' ? char(c - 'a' + 'A') : c; });
    if (algorithm == "FP8") return {};
    if (algorithm == "FP8_PER_CHANNEL_PER_TOKEN") return {.sharing = Sharing::kRows};
    if (algorithm == "FP8_PB_WO" || algorithm == "FP8_PB_REAL") {
      const std::int64_t size = group(from, "group_size", 128);
      return {.sharing = Sharing::kBlocks, .rows = size, .columns = size};
    }
    if (algorithm == "NVFP4" || algorithm == "W4A16_NVFP4" || algorithm == "NVFP4_AWQ") {
      return {.bits = 4,
              .sharing = Sharing::kGroups,
              .columns = group(from, "group_size", 16),
              .second_scale = true};
    }
    if (algorithm == "MXFP8") return {.sharing = Sharing::kGroups, .columns = 32, .powers = true};
    if (algorithm == "MXFP4" || algorithm == "W4A8_MXFP4_FP8")
      return {.bits = 4, .sharing = Sharing::kGroups, .columns = 32, .powers = true};
    if (algorithm == "W8A8_SQ_PER_CHANNEL" || algorithm == "W8A16")
      return {.numbers = NumberKind::kInteger, .sharing = Sharing::kRows};
    if (algorithm == "W4A16_AWQ") {
      return {.numbers = NumberKind::kInteger,
              .bits = 4,
              .sharing = Sharing::kGroups,
              .columns = group(from, "group_size", 128)};
    }
    throw unsupported(cat("quant_algo is ", quote(algorithm, 100),
                          ", known are FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO, NVFP4, "
                          "W4A16_NVFP4, MXFP8, MXFP4, W8A8_SQ_PER_CHANNEL, W8A16 and W4A16_AWQ"));
  }

  void transformers_fp8() {
    out_.dialect = Dialect::kTransformersFp8;
    Scheme scheme;
    const Json* const block = config_.find("weight_block_size");
    if (block != nullptr && !block->is_null()) blocks(config_, "weight_block_size", scheme);
    add(scheme);
  }

  void gptq() {
    out_.dialect = Dialect::kGptq;
    const std::string stored = text(config_, "checkpoint_format", "gptq");
    if (stored != "gptq" && stored != "gptq_v2")
      throw unsupported(
          cat("checkpoint_format is ", quote(stored, 100), ", known are gptq and gptq_v2"));
    if (const std::string words = text(config_, "pack_dtype", "int32"); words != "int32")
      throw unsupported(cat("pack_dtype is ", quote(words, 100), ", known is int32"));
    Scheme scheme{.numbers = NumberKind::kInteger,
                  .bits = bits(config_, "bits", 4),
                  .sharing = Sharing::kGroups,
                  .columns = group(config_, "group_size", 128),
                  .symmetric = false,
                  .zeros_plus_one = stored == "gptq"};
    if (scheme.bits != 2 && scheme.bits != 4 && scheme.bits != 8)
      throw unsupported(cat("bits is ", scheme.bits, ", known are 2, 4 and 8"));
    add(scheme);
  }

  void awq() {
    out_.dialect = Dialect::kAwq;
    const std::string version = text(config_, "version", "gemm");
    if (version != "gemm" && version != "GEMM")
      throw unsupported(cat("version is ", quote(version, 100), ", known is gemm"));
    Scheme scheme{.numbers = NumberKind::kInteger,
                  .bits = bits(config_, "bits", 4),
                  .sharing = Sharing::kGroups,
                  .columns = group(config_, "group_size", 128),
                  .symmetric = !flag(config_, "zero_point", true)};
    if (scheme.bits != 4) throw unsupported(cat("bits is ", scheme.bits, ", known is 4"));
    add(scheme);
  }

  const Json& config_;
  const std::string& name_;
  Settings out_;
};

}  // namespace

std::string scheme_text(const Scheme& scheme) {
  std::string name = cat(scheme.powers ? "mx" : "", scheme.second_scale ? "nv" : "",
                         scheme.numbers == NumberKind::kFloat ? "fp" : "int", scheme.bits);
  switch (scheme.sharing) {
    case Sharing::kTensor:
      return name + ", a scale for the tensor";
    case Sharing::kRows:
      return name + ", a scale for each row";
    case Sharing::kGroups:
      if (scheme.columns < 0) return name + ", a scale for each row";
      return cat(name, ", a scale for each ", scheme.columns, " of a row");
    case Sharing::kBlocks:
      break;
  }
  return cat(name, ", a scale for each block of ", scheme.rows, " x ", scheme.columns);
}

Settings read_settings(const Json& config, const std::string& name) {
  return Reader(config, name).run();
}

}  // namespace fsdp::formats::quantized
