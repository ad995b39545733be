// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/comparing/comparison_sides.h"

#include <algorithm>
#include <optional>
#include <variant>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/state/content/key_set.h"
#include "formats/state/content/key_text.h"
#include "formats/state/content/placed_leaves.h"
#include "formats/state/content/values_apart.h"
#include "tools/base/reading.h"
#include "tools/base/runs.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::Index;

// Added to the number of an entry for each earlier entry with its name and types.  Larger than the
// number of types of keys.
constexpr std::uint32_t kTypesApart = 1U << 10U;
// Marks a key that is not text.
constexpr char kTyped = '\x01';

// Returns `key` without `prefix`, which is empty or ends with a dot.
std::string stripped(const std::string& key, const std::string& prefix) {
  return key.starts_with(prefix) ? key.substr(prefix.size()) : key;
}

// Returns the prefix with a dot at its end, because only whole parts are removed: "model" matches
// "model.", but not "models".
std::string whole_prefix(const std::string& prefix) {
  return prefix.empty() || prefix.ends_with('.') ? prefix : prefix + '.';
}
using Prefixes = std::array<std::string, 2>;

// `selection` sees the keys without the prefix.
std::unique_ptr<formats::Checkpoint> open_checkpoint(const DiffOptions& options, std::size_t number,
                                                     const std::string& prefix,
                                                     SelectionCheck& selection,
                                                     const Streams& streams) {
  const std::string& path = number == 0 ? options.common.path : options.other;
  bool used = prefix.empty();
  auto checkpoint = open_to_read(
      path, options.common,
      [&](const std::string& key) { return options.common.keys.selects(stripped(key, prefix)); },
      [&](const Index& whole) {
        selection.see(whole, [&](const std::string& key) {
          used = used || key.starts_with(prefix);
          return stripped(key, prefix);
        });
      });
  if (!used) {
    throw Error(ErrorCode::kRekeyUnused,
                cat(formats::escape(path), ": no key begins with ", formats::quote(prefix, 200)));
  }
  note_unread(path, *checkpoint, options.common, streams);
  return checkpoint;
}

// Returns the names of a side.
formats::KeySet names_of(const Side& side, const std::string& prefix) {
  std::vector<std::string> names;
  for (const Index::EntryRef& ref : side.index().order)
    names.push_back(stripped(side.key(ref), prefix));
  return formats::KeySet(std::move(names));
}

// A folder keeps as one value what a torch.save file shows key by key.  Values that one side has
// divided are divided on the other.
void take_apart(const Prefixes& prefixes, Sides& sides) {
  const std::array<formats::KeySet, 2> names = {names_of(sides[0], prefixes[0]),
                                                names_of(sides[1], prefixes[1])};
  for (std::size_t s = 0; s < 2; ++s) {
    const auto wanted = [&](const std::string& key) {
      return names[1 - s].only_below(stripped(key, prefixes[s]));
    };
    sides[s].checkpoint =
        formats::with_values_apart(std::move(sides[s].checkpoint), {.wanted = wanted});
  }
}

// An entry's key as users read it, which other entries may share, and its path with the types of
// the keys.
struct TypedPath {
  std::string name;
  std::string path;
};
// The typed paths of each entry of Index::order.
using TypedPaths = std::array<std::vector<TypedPath>, 2>;

// Returns typed paths if both sides show the types of their keys (1 and '1' are then two keys);
// empty otherwise.
TypedPaths typed_paths(const Sides& sides) {
  TypedPaths paths;
  const std::array<std::optional<formats::Value>, 2> trees = {sides[0].checkpoint->tree(),
                                                              sides[1].checkpoint->tree()};
  if (!trees[0] || !trees[1]) return paths;
  for (std::size_t s = 0; s < 2; ++s) {
    for (const formats::PlacedLeaf& leaf : formats::placed_leaves(*trees[s])) {
      std::string path;
      for (const formats::PlacedStep& step : leaf.path) {
        const bool text =
            step.key.as_string() != nullptr || std::holds_alternative<std::int64_t>(step.step);
        if (!path.empty()) path += '.';
        path += text ? formats::joined({step.step}) : kTyped + formats::key_repr(step.key);
      }
      paths[s].push_back({leaf.was, std::move(path)});
    }
  }
  return paths;
}

// By name: its distinct typed paths on both sides; the position of each is its number.
using TypeNumbers = std::map<std::string, std::vector<std::string>>;

class Naming {
 public:
  Naming(const DiffOptions& options, const Prefixes& prefixes, Sides& sides, TypedPaths typed)
      : options_(options), prefixes_(prefixes), sides_(sides), typed_(std::move(typed)) {
    for (std::size_t s = 0; s < 2; ++s) {
      for (std::size_t at = 0; at < typed_[s].size(); ++at) {
        auto& known = types_[name_of(s, at)];
        if (std::find(known.begin(), known.end(), typed_[s][at].path) == known.end())
          known.push_back(typed_[s][at].path);
      }
    }
  }

  void name_entries() {
    for (std::size_t s = 0; s < 2; ++s) name(s);
  }

 private:
  const std::string& key_of(std::size_t s, std::size_t at) const {
    return sides_[s].key(sides_[s].index().order[at]);
  }
  std::string name_of(std::size_t s, std::size_t at) const {
    return stripped(typed_[s].empty() ? key_of(s, at) : typed_[s][at].name, prefixes_[s]);
  }

  void name(std::size_t s) {
    std::map<std::string, std::string> stored;  // by the key without its prefix
    for (std::size_t at = 0; at < sides_[s].index().order.size(); ++at) {
      EntryName entry{name_of(s, at), 0};
      if (!prefixes_[s].empty()) note(s, stored, entry.first, key_of(s, at));
      if (!typed_[s].empty()) {
        const auto& paths = types_.at(entry.first);
        entry.second = static_cast<std::uint32_t>(
            std::find(paths.begin(), paths.end(), typed_[s][at].path) - paths.begin());
      }
      const Index::EntryRef& ref = sides_[s].index().order[at];
      while (!sides_[s].keys.emplace(entry, ref).second) entry.second += kTypesApart;
    }
  }

  void note(std::size_t s, std::map<std::string, std::string>& stored, const std::string& name,
            const std::string& key) const {
    const auto [place, added] = stored.emplace(name, key);
    if (added || place->second == key) return;
    throw Error(ErrorCode::kRekeyCollision,
                cat(formats::escape(s == 0 ? options_.common.path : options_.other),
                    ": without the prefix ", formats::quote(prefixes_[s]), ", ",
                    formats::quote(place->second, 200), " and ", formats::quote(key, 200),
                    " are both ", formats::quote(name, 200)));
  }

  const DiffOptions& options_;
  const Prefixes& prefixes_;
  Sides& sides_;
  TypedPaths typed_;
  TypeNumbers types_;
};

}  // namespace

bool EntryLess::operator()(const EntryName& a, const EntryName& b) const {
  if (a.first != b.first) {
    if (formats::natural_less(a.first, b.first)) return true;
    if (formats::natural_less(b.first, a.first)) return false;
    return a.first < b.first;
  }
  return a.second < b.second;
}

std::string Side::text(const Index::EntryRef& ref) const {
  if (!ref.is_tensor) return "a value";
  const formats::TensorEntry& tensor = index().tensors[ref.position];
  return cat(formats::torch_name(tensor.dtype), " ", formats::shape_text(tensor.shape));
}

bool Side::has(const std::string& name) const {
  const auto at = keys.lower_bound({name, 0});
  return at != keys.end() && at->first.first == name;
}

Sides open_sides(const DiffOptions& options, SelectionCheck& selection, const Streams& streams) {
  const Prefixes prefixes = {whole_prefix(options.strip_prefix[0]),
                             whole_prefix(options.strip_prefix[1])};
  Sides sides;
  for (std::size_t s = 0; s < 2; ++s)
    sides[s].checkpoint = open_checkpoint(options, s, prefixes[s], selection, streams);
  // The types come from the whole objects, entry by entry, before values are divided.
  TypedPaths typed;
  if (options.common.keys.everything()) typed = typed_paths(sides);
  take_apart(prefixes, sides);
  for (std::size_t s = 0; s < 2; ++s) {
    if (typed[s].size() != sides[s].index().order.size()) typed = {};
  }
  Naming(options, prefixes, sides, std::move(typed)).name_entries();
  return sides;
}

}  // namespace fsdp::cli
