// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/writing/conversion.h"

#include <algorithm>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/store/place.h"
#include "formats/changes/arrays/computed_tensors.h"
#include "formats/changes/arrays/decode.h"
#include "formats/changes/arrays/elementwise.h"
#include "formats/changes/megatron/form.h"
#include "formats/changes/megatron/names.h"
#include "formats/families/checks/content_check.h"
#include "formats/families/dcp/megatron.h"
#include "formats/families/dcp/names.h"
#include "formats/front/create.h"
#include "formats/front/open.h"
#include "formats/front/parameter_list.h"
#include "formats/state/content/content.h"
#include "formats/state/content/state_tree.h"
#include "formats/state/content/values_apart.h"
#include "formats/state/rewrite/optimizer_ids.h"
#include "formats/state/rewrite/rename.h"
#include "tools/base/agreement.h"
#include "tools/base/dtype_word.h"
#include "tools/base/runs.h"
#include "tools/base/selection.h"
#include "tools/verbs/writing/name_report.h"
#include "tools/verbs/writing/producer_note.h"

namespace fsdp::cli {
namespace {

using formats::joined;
using formats::Leaf;
using formats::OutputGroup;
using formats::Value;
using formats::megatron::Form;

// An alias of hdf5 for --to: the usual suffix.
constexpr std::string_view kShortHdf5 = "h5";

// Returns whether the leaf is an optimizer's step count: a float tensor that is a number, not a
// weight.
bool is_step(const Leaf& leaf) {
  const auto* last = leaf.path.empty() ? nullptr : std::get_if<std::string>(&leaf.path.back());
  return last != nullptr && (*last == "step" || last->ends_with(".step"));
}

void replace_source(Prepared& prepared, std::shared_ptr<const formats::Checkpoint> next) {
  if (next == nullptr) return;
  prepared.originals.push_back(std::exchange(prepared.source, std::move(next)));
}

// Puts the values of packed floats, cast, in the place of tensors.  Their last dimension grows.
void unpack_tensors(Prepared& out, Value& content, formats::DType dtype) {
  const auto& tensors = out.source->index().tensors;
  std::unique_ptr<formats::arrays::ComputedTensors> computed;
  const auto unpacked = [&](const Leaf& leaf) -> std::optional<Value> {
    const auto number = formats::tensor_number(leaf.value);
    if (!number || !formats::is_packed_float(tensors[*number].dtype)) return leaf.value;
    if (computed == nullptr) {
      computed = std::make_unique<formats::arrays::ComputedTensors>(
          std::vector{std::make_shared<formats::arrays::ArraySource>(*out.source)});
    }
    const formats::arrays::Array values =
        formats::arrays::unpacked(computed->source_array(*number));
    return computed->shared(
        leaf.path, formats::arrays::with_step(values, {formats::arrays::Arithmetic::kCast, dtype}));
  };
  Value changed = formats::with_leaves(content, unpacked);
  if (computed == nullptr) return;
  content = std::move(changed);
  replace_source(out, std::move(computed));
}

// Turns floating tensors into references that cast; everything else stays.
Value with_dtype(const formats::Checkpoint& source, const Value& content, formats::DType dtype) {
  return formats::with_leaves(content, [&](const Leaf& leaf) -> std::optional<Value> {
    const auto number = formats::tensor_number(leaf.value);
    if (!number || is_step(leaf) ||
        !formats::can_cast(source.index().tensors[*number].dtype, dtype)) {
      return leaf.value;
    }
    return formats::tensor_reference(source, *number, dtype);
  });
}

// Returns `content` without the prefixes of --strip-prefix, and reports the changes.
Value stripped_content(const formats::Checkpoint& source, const Value& content,
                       const ConversionOptions& conversion, const CommonOptions& common,
                       ReportExtras& extras) {
  const formats::NameRules rules = strip_rules(conversion.strip_prefixes);
  formats::Renamed renamed = renamed_content(source, content, rules, common);
  if (!renamed.renamed.empty() || !conversion.strip_unasked)
    add_name_report(renamed, rules.strip_wrappers, conversion.writing.dry_run, extras);
  return std::move(renamed.content);
}

// Returns `content` without the prefix under which Lightning before 2.1 saved modules.  Lightning
// removes it, too, when it makes one file of a folder.
Value without_forward_module(const formats::Checkpoint& source, const Value& content,
                             const ConversionOptions& conversion, const CommonOptions& common,
                             ReportExtras& extras) {
  constexpr std::string_view kWrapper = "_forward_module.";
  const auto leaves = formats::leaves_of(content);
  const bool wrapped = std::any_of(leaves.begin(), leaves.end(), [&](const Leaf& leaf) {
    const std::size_t at = leaf.key.find(kWrapper);
    return at == 0 || (at != leaf.key.npos && leaf.key[at - 1] == '.');
  });
  if (!wrapped) return content;
  ConversionOptions strip = conversion;
  strip.strip_prefixes = {std::string(kWrapper.substr(0, kWrapper.size() - 1))};
  extras.lines.push_back("stripped: " + formats::quote(kWrapper));
  return stripped_content(source, content, strip, common, extras);
}

// Reports which versions of Megatron-Core write a torch_dist folder of that layout.
void note_layout(const std::string& layout, ReportExtras& extras) {
  const bool item = layout == formats::dcp::kMegatronItemLayout;
  extras.lines.push_back(formats::cat(
      "torch_dist: as Megatron-Core ",
      item ? "0.19 writes it, the common state in an item; earlier versions do not load it"
           : "up to 0.18 writes it, with common.pt; 0.19 loads it, too"));
  extras.members.emplace_back("layout", layout);
}

// Returns the names of --names-from in the order of modules, for an optimizer in buckets.
std::vector<std::string> module_names(const ConversionOptions& conversion,
                                      const CommonOptions& common) {
  std::vector<std::string> names;
  if (conversion.names_from.empty()) return names;
  const auto list = formats::read_parameter_list(conversion.names_from, {common.allowed_globals});
  if (!list->ordered) {
    throw Error(ErrorCode::kRekeyAmbiguous,
                formats::cat(list->origin,
                             ": its names are not in the order of modules, which "
                             "the parameters in buckets have"));
  }
  for (const auto& one : list->parameters) names.push_back(one.name);
  return names;
}

// Changes the form of Megatron-Core's content, and reports the values left out.  An optimizer in
// buckets changes even in the same form.
void change_form(Prepared& prepared, Value& content, Form& form, Form to, bool layers_apart,
                 const ConversionOptions& conversion, const CommonOptions& common) {
  const bool buckets = form == Form::kTorchDist && formats::megatron::has_buckets(content);
  if (form == to && !buckets) return;
  formats::megatron::Reformed reformed = formats::megatron::reformed(
      *prepared.source, content, form, to,
      {buckets ? module_names(conversion, common) : std::vector<std::string>(), layers_apart});
  if (to == Form::kTorchDist && layers_apart)
    prepared.extras.lines.emplace_back(
        "torch_dist: each layer by itself, as Megatron-Core reads this model");
  if (buckets)
    prepared.extras.lines.emplace_back(
        "optimizer: parameters in buckets found by their float32 copies, which rounded are the "
        "model's, bit for bit");
  replace_source(prepared, std::move(reformed.checkpoint));
  content = std::move(reformed.content);
  form = to;
  if (reformed.left_out == 0) return;
  prepared.extras.lines.push_back(formats::cat("left out: ", reformed.left_out,
                                               reformed.left_out == 1 ? " value" : " values",
                                               " of single ranks, layers or parameters"));
}

}  // namespace

std::vector<std::string> output_formats() {
  return formats::output_words({OutputGroup::kFull, OutputGroup::kSharded, OutputGroup::kTrainer});
}

std::vector<std::string> converted_formats() {
  return formats::output_words(
      {OutputGroup::kFull, OutputGroup::kSharded, OutputGroup::kTrainer, OutputGroup::kMegatron});
}

void declare_conversion_options(OptionSet& options, ConversionOptions& conversion,
                                const std::vector<std::string>& formats) {
  declare_writing_options(options, conversion.writing);
  std::vector<std::string> words = formats;
  words.emplace_back(kShortHdf5);
  options
      .add("--to", &conversion.format,
           joined(formats, ", ") + "; by the suffix of OUT if not given")
      .choices = words;
  options.add("--max-shard-size", &conversion.max_shard_bytes);
  options.add("--drop-values", &conversion.drop_values);
  options.add("--dtype", &conversion.dtype, "; integers stay");
}

void declare_conversion(OptionSet& options, ConversionOptions& conversion,
                        const std::vector<std::string>& formats) {
  options.positional("OUT", conversion.writing.destination, "File or folder to write");
  declare_conversion_options(options, conversion, formats);
  options.add("--strip-prefix", &conversion.strip_prefixes);
}

void declare_world_size(OptionSet& options, ConversionOptions& conversion) {
  options.add("--world-size", &conversion.world_size, ", in sharded formats; 1 if not given");
}

void declare_names_from(OptionSet& options, ConversionOptions& conversion) {
  options.add("--names-from", &conversion.names_from,
              ", for flat parameters and buckets; or FILE.json with names to shapes");
}

std::unique_ptr<formats::StoredCheckpoint> open_source(const std::string& path,
                                                       const CommonOptions& common,
                                                       const Streams& streams,
                                                       const std::string& names_from) {
  formats::OpenOptions options{common.allowed_globals, common.team};
  if (!names_from.empty())
    options.parameters = formats::read_parameter_list(names_from, {common.allowed_globals});
  auto source = formats::open_checkpoint(path, options);
  if (options.parameters != nullptr && !options.parameters->used &&
      !formats::megatron::has_buckets(source->index())) {
    throw Error(ErrorCode::kUsage,
                formats::cat(source->description().path,
                             ": holds no flat parameters, which --names-from would divide"));
  }
  agree_on_source(common, path, *source);
  note_unread(path, *source, common, streams);
  return source;
}

Value selected_content(const formats::Checkpoint& source, const CommonOptions& common) {
  Value content = formats::content_of(source);
  if (common.keys.everything()) return content;
  check_selection(common.keys, source.index(), source.description().path);
  return formats::pruned(content, [&](const std::string& key) { return common.keys.selects(key); });
}

formats::Renamed renamed_content(const formats::Checkpoint& source, const Value& content,
                                 const formats::NameRules& rules, const CommonOptions& common) {
  try {
    return formats::rename_content(
        content, rules, [&](const Value& value) { return formats::resolved(source, value); });
  } catch (const Error& error) {
    const ErrorCode code = error.code();
    const bool about_rules = code == ErrorCode::kRekeyCollision ||
                             code == ErrorCode::kRekeyUnused || code == ErrorCode::kName ||
                             code == ErrorCode::kUsage;
    if (about_rules) throw error.in(formats::escape(common.path));
    throw;
  }
}

std::unique_ptr<formats::Checkpoint> with_tensors_apart(std::unique_ptr<formats::Checkpoint> source,
                                                        const CommonOptions& common) {
  const auto selected = [&](const std::string& key) { return common.keys.selects(key); };
  return formats::with_values_apart(std::move(source),
                                    {.wanted = selected, .only_with_tensors = true});
}

formats::NameRules strip_rules(const std::vector<std::string>& words) {
  formats::NameRules rules;
  for (const std::string& word : words) {
    if (word == "auto") {
      rules.strip_wrappers = true;
    } else {
      rules.strip.push_back(word);
    }
  }
  return rules;
}

void refuse_selection(const CommonOptions& common, const std::string& word, Hint hint) {
  if (common.keys.everything() || (word != "step" && word != "deepspeed")) return;
  throw Error(ErrorCode::kUsage,
              formats::cat("-k and --exclude would leave ", formats::escape(common.path),
                           " without what its program needs; without them it keeps its layout"),
              std::move(hint));
}

std::string output_format_of(const ConversionOptions& conversion) {
  if (conversion.format == kShortHdf5) return "hdf5";
  if (!conversion.format.empty()) return conversion.format;
  return conversion.max_shard_bytes ? "safetensors"
                                    : formats::format_from_suffix(conversion.writing.destination);
}

int write_converted(const std::string& verb, const formats::Checkpoint& source,
                    const Value& content, const std::string& format,
                    const ConversionOptions& conversion, const CommonOptions& common,
                    const Streams& streams, ReportExtras extras, const std::string& layout) {
  check_globals(formats::with_own_tensors(source, content), common);
  note_producers(content, format, extras);
  std::optional<formats::Beside> beside;
  if (conversion.carries) beside = {common.path, common.allowed_globals};
  const auto output = formats::plan_output(format, source, content, conversion.writing.destination,
                                           {.output = conversion.writing.output(common),
                                            .max_shard_bytes = conversion.max_shard_bytes,
                                            .drop_values = conversion.drop_values,
                                            .world_size = conversion.world_size.value_or(1),
                                            .layout = layout,
                                            .beside = beside});
  return write_output(verb, source, *output, conversion.writing, common, streams,
                      std::move(extras));
}

Prepared prepare_conversion(const std::string& format, const ConversionOptions& conversion,
                            const CommonOptions& common, const Streams& streams,
                            const ContentChange& change) {
  std::optional<formats::DType> dtype;
  if (!conversion.dtype.empty()) dtype = floating_dtype(conversion.dtype);
  if (!conversion.writing.destination.empty())
    check_apart(common.path, conversion.writing.destination);
  std::unique_ptr<formats::Checkpoint> opened =
      open_source(common.path, common, streams, conversion.names_from);
  // Tensors inside values become tensors of the checkpoint if the format cannot hold them
  // otherwise, or if they are to be cast like all others, or looked for.
  if (format == "safetensors" || ((dtype || conversion.whole_tensors) && format == "pt"))
    opened = with_tensors_apart(std::move(opened), common);
  Prepared out;
  out.source = std::move(opened);
  if (!conversion.names_from.empty()) {
    out.extras.lines.push_back(
        formats::cat("names, order and shapes: ", formats::escape(conversion.names_from)));
  }
  Value content = selected_content(*out.source, common);
  const formats::CopyCheck check = formats::check_before_copy(
      *out.source, content, [] { return formats::interrupted(); },
      format == "pt" && !change ? formats::LibraryTensors::kKept
                                : formats::LibraryTensors::kRefused,
      *common.team);
  content = formats::with_objects(content, check);
  content = formats::with_values(*out.source, content);
  content = formats::with_integer_ids(*out.source, content);
  note_computed(check, out.extras);
  if (!conversion.strip_prefixes.empty())
    content = stripped_content(*out.source, content, conversion, common, out.extras);
  if (format == "lightning-ckpt")
    content = without_forward_module(*out.source, content, conversion, common, out.extras);
  Form form = formats::megatron::form_of(out.source->description());
  const std::string layout = formats::dcp::written_layout(format, out.source->description().layout);
  if (!conversion.with_optimizer) {
    content = formats::pruned(
        content, [](const std::string& key) { return !formats::megatron::is_bucket(key); });
  }
  bool layers_apart = false;
  const auto change_to = [&](Form to) {
    change_form(out, content, form, to, layers_apart, conversion, common);
  };
  if (conversion.by_module) {
    change_to(Form::kStateDict);
  } else if (format != "dcp" && form == Form::kTorchDist) {
    change_to(Form::kTorchDist);
  }
  if (change) {
    Changed changed = change(*out.source, content, out.extras);
    replace_source(out, std::move(changed.checkpoint));
    content = std::move(changed.content);
    layers_apart = changed.layers_apart;
  }
  if (formats::dcp::is_torch_dist(format)) {
    change_to(Form::kTorchDist);
    out.layout = layout;
    note_layout(layout, out.extras);
  }
  if (format == "fsdp_dtensor") change_to(Form::kFsdpDtensor);
  if (dtype) {
    unpack_tensors(out, content, *dtype);
    content = with_dtype(*out.source, content, *dtype);
  }
  out.content = std::move(content);
  return out;
}

int convert_checkpoint(const std::string& verb, const ConversionOptions& conversion,
                       const CommonOptions& common, const Streams& streams,
                       const ContentChange& change) {
  const std::string format = output_format_of(conversion);
  refuse_selection(common, format);
  Prepared prepared = prepare_conversion(format, conversion, common, streams, change);
  const formats::CheckpointDescription& from = prepared.source->description();
  if (formats::output_format(format)->group == OutputGroup::kOwn &&
      (formats::kept_output_word(from) != format || !formats::is_folder(common.path) ||
       !conversion.dtype.empty() || !conversion.strip_prefixes.empty())) {
    throw Error(ErrorCode::kUsage,
                formats::cat(formats::escape(common.path), ": is a ", formats::label_of(from),
                             "; --to ", format,
                             " writes a folder of that layout again, for other ranks, without "
                             "--dtype and --strip-prefix"));
  }
  return write_converted(verb, *prepared.source, prepared.content, format, conversion, common,
                         streams, std::move(prepared.extras), prepared.layout);
}

}  // namespace fsdp::cli
