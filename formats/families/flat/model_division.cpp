// SPDX-License-Identifier: Apache-2.0
#include "formats/families/flat/model_division.h"

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/state/model/box.h"

namespace fsdp::formats::flat {
namespace {

using Kind = FlatModel::Member::Kind;

// Parameters of the list, by their numbers in it, that one flat parameter holds.
struct Unit {
  std::vector<std::size_t> own;   // those with elements of their own
  std::vector<std::size_t> tied;  // those that share the elements of one of `own`
};

std::string text_of(const FlatParameter& flat) {
  return flat.module.empty() ? std::string("the flat parameter of the model itself")
                             : cat("the flat parameter of ", quote(flat.module, 200));
}

class Dividing {
 public:
  Dividing(const FlatModel& model, const ParameterList& list, const HoldsPadding& holds_padding)
      : model_(model), list_(list), holds_padding_(holds_padding) {
    for (const FlatModel::Member& member : model.members) members_.emplace(member.name, &member);
    for (std::size_t i = 0; i < list.parameters.size(); ++i) {
      if (!listed_.emplace(list.parameters[i].name, i).second)
        fail(ErrorCode::kKey, cat(quote(list.parameters[i].name, 200), " occurs twice"));
    }
  }

  ModelDivision run() {
    ModelDivision out;
    out.divided.assign(model_.flats.size(), 0);
    sort_into_units();
    places_.resize(list_.parameters.size());
    for (std::size_t f = 0; f < model_.flats.size(); ++f) {
      Unit& unit = units_[f];
      if (unit.own.empty()) continue;
      out.divided[f] = 1;
      place(f, unit, out.odd_padding);
    }
    place_tied();
    for (std::size_t i = 0; i < list_.parameters.size(); ++i) {
      const ListedParameter& listed = list_.parameters[i];
      const auto& place = places_[i];
      if (!place) continue;
      out.parameters.push_back({&listed, place->flat, place->begin, numel(i), place->tied});
    }
    return out;
  }

 private:
  struct Place {
    std::size_t flat;
    std::int64_t begin;
    bool tied;
  };

  [[noreturn]] void fail(ErrorCode code, const std::string& why) const {
    throw Error(code, cat(list_.origin, ": ", why));
  }

  std::int64_t numel(std::size_t i) const {
    return static_cast<std::int64_t>(numel_of(list_.parameters[i].shape));
  }

  // Finds the flat parameter of each listed one: by the views in the files if there are any, else
  // by its module.
  void sort_into_units() {
    units_.resize(model_.flats.size());
    for (std::size_t i = 0; i < list_.parameters.size(); ++i) {
      const ListedParameter& listed = list_.parameters[i];
      const auto member = members_.find(listed.name);
      if (member != members_.end() && member->second->kind == Kind::kOther) {
        check_shape(listed, *member->second);
        continue;
      }
      if (member != members_.end() && member->second->kind == Kind::kNamed) {
        views_.emplace(i, &model_.named[member->second->number]);
        units_[model_.named[member->second->number].flat].own.push_back(i);
        continue;
      }
      const auto flat = model_.flat_of(listed.name);
      if (!flat) {
        fail(ErrorCode::kKey, cat(quote(listed.name, 200),
                                  " is neither a key of the files nor below a module with a flat "
                                  "parameter"));
      }
      if (!model_.named.empty()) {
        fail(ErrorCode::kKey,
             cat(quote(listed.name, 200), " is not among the names of parameters in the files"));
      }
      if (listed.tied.empty()) {
        units_[*flat].own.push_back(i);
      } else {
        tied_elsewhere_.emplace_back(i, listed_.at(listed.tied));
      }
    }
    for (const NamedParameter& named : model_.named) {
      if (!listed_.contains(named.name) && !units_[named.flat].own.empty()) {
        fail(ErrorCode::kKey, cat("lacks the shape of ", quote(named.name, 200),
                                  ", a part of which is in the files"));
      }
    }
  }

  // A tensor of the files that is not flat must have the listed shape.
  void check_shape(const ListedParameter& listed, const FlatModel::Member& member) const {
    if (!member.shape || *member.shape == listed.shape) return;
    fail(ErrorCode::kShape, cat(quote(listed.name, 200), " has shape ", shape_text(listed.shape),
                                ", in the files ", shape_text(*member.shape)));
  }

  void place(std::size_t f, Unit& unit, std::vector<std::size_t>& odd_padding) {
    const FlatParameter& flat = model_.flats[f];
    const bool seen = views_.contains(unit.own.front());
    if (seen) {
      order_by_views(unit);
    } else if (!list_.ordered && unit.own.size() > 1) {
      throw Error(ErrorCode::kRekeyAmbiguous,
                  cat(text_of(flat), " may hold ", quote(name(unit.own[0]), 200), " or ",
                      quote(name(unit.own[1]), 200), " first: the order in ", list_.origin,
                      " may not be the model's, and the files do not tell it; a torch.save file of "
                      "the model's state dict, or a JSON object made of it, has its order"));
    }
    std::vector<std::int64_t> numels;
    for (const std::size_t i : unit.own) numels.push_back(numel(i));
    std::vector<Division> fitting = divisions(numels, flat.size);
    if (fitting.empty()) throw_unfit(flat, unit);
    if (seen) {
      std::erase_if(fitting, [&](const Division& division) { return !views_fit(unit, division); });
      if (fitting.empty()) {
        throw Error(
            ErrorCode::kMismatch,
            cat(text_of(flat), ": the places of parameters in the files are not those that ",
                list_.origin, " leads to: it has other shapes, or another order"));
      }
    }
    std::vector<Division> sound;
    for (Division& division : fitting) {
      if (padding_fits(flat, division)) sound.push_back(division);
    }
    // Views leave nothing open that padding would have to decide.
    if (sound.empty() && seen && fitting.size() == 1) {
      odd_padding.push_back(f);
      sound = fitting;
    }
    if (sound.empty()) {
      throw Error(
          ErrorCode::kMismatch,
          cat(text_of(flat), ": with the shapes of ", list_.origin, ", elements ",
              fitting[0].padding[0].begin, " to ", fitting[0].padding[0].end,
              " would be padding, and do not hold what FSDP writes there (",
              fitting[0].alignment == 0 ? "0" : "42", "): it is another model, or another order"));
    }
    if (sound.size() > 1) {
      std::size_t p = 0;
      while (sound[0].begins[p] == sound[1].begins[p] && p + 1 < unit.own.size()) ++p;
      throw Error(ErrorCode::kRekeyAmbiguous,
                  cat(text_of(flat), " may be divided in ", sound.size(),
                      " ways: ", quote(name(unit.own[p]), 200), " may begin at element ",
                      sound[0].begins[p], " or ", sound[1].begins[p],
                      "; the padding decides between the two, and it is in the file of a rank that "
                      "is missing, or parameters hold the same elements as padding"));
    }
    for (std::size_t p = 0; p < unit.own.size(); ++p)
      places_[unit.own[p]] = Place{f, sound[0].begins[p], false};
    for (const std::size_t i : unit.tied) {
      const auto first = std::ranges::find_if(
          unit.own, [&](std::size_t own) { return begin_seen(own) == begin_seen(i); });
      if (numel(*first) != numel(i)) throw_unlike(i, *first);
      places_[i] = Place{f, places_[*first]->begin, true};
    }
  }

  // Gives listed ties the places of what they are tied to.
  void place_tied() {
    for (const auto& [i, to] : tied_elsewhere_) {
      if (!places_[to]) {
        fail(ErrorCode::kKey, cat(quote(name(i), 200), " is tied to ", quote(name(to), 200),
                                  ", which lies in no flat parameter"));
      }
      places_[i] = Place{places_[to]->flat, places_[to]->begin, true};
    }
  }

  const std::string& name(std::size_t i) const { return list_.parameters[i].name; }

  [[noreturn]] void throw_unlike(std::size_t a, std::size_t b) const {
    fail(ErrorCode::kShape,
         cat(quote(name(a), 200), " and ", quote(name(b), 200), " are tied in the files, and have ",
             numel(a), " and ", numel(b), " elements"));
  }

  // Returns the first element that a file has of a parameter; nothing if none has any.
  std::optional<std::int64_t> begin_seen(std::size_t i) const {
    std::optional<std::int64_t> begin;
    for (const auto& [file, range] : views_.at(i)->in) {
      if (range.begin != range.end) begin = std::min(begin.value_or(range.begin), range.begin);
    }
    return begin;
  }

  // Puts parameters in the order of their elements; those that begin where another does are tied.
  void order_by_views(Unit& unit) {
    std::vector<std::size_t> own;
    std::map<std::int64_t, std::size_t> begins;
    std::vector<std::size_t> nothing;  // parameters without elements
    for (const std::size_t i : unit.own) {
      const auto begin = begin_seen(i);
      if (!begin && numel(i) == 0) {
        nothing.push_back(i);
      } else if (!begin) {
        throw Error(ErrorCode::kShardMissing,
                    cat(quote(name(i), 200),
                        ": no file holds a part of it; the file of a rank is "
                        "missing, or ",
                        list_.origin, " has another shape"));
      } else if (!begins.emplace(*begin, i).second) {
        unit.tied.push_back(i);
      }
    }
    for (const auto& [begin, i] : begins) own.push_back(i);
    own.insert(own.end(), nothing.begin(), nothing.end());
    unit.own = std::move(own);
  }

  // Returns whether all views are of the elements that a division gives their parameters.
  bool views_fit(const Unit& unit, const Division& division) const {
    for (std::size_t p = 0; p < unit.own.size(); ++p) {
      const std::int64_t begin = division.begins[p];
      const std::int64_t end = begin + numel(unit.own[p]);
      for (const auto& [file, range] : views_.at(unit.own[p])->in) {
        FlatRange wanted;
        for (const FlatRun& run : runs_in(unit, file)) {
          const FlatRange part{std::max(begin, run.begin), std::min(end, run.begin + run.count)};
          if (part.begin < part.end) wanted = part;
        }
        if (range != wanted) return false;
      }
    }
    return true;
  }

  std::vector<FlatRun> runs_in(const Unit& unit, std::uint32_t file) const {
    const FlatParameter& flat = model_.flats[views_.at(unit.own.front())->flat];
    std::vector<FlatRun> out;
    for (const auto* runs : {&flat.runs, &flat.replicas}) {
      for (const FlatRun& run : *runs) {
        if (run.file == file) out.push_back(run);
      }
    }
    return out;
  }

  bool padding_fits(const FlatParameter& flat, const Division& division) const {
    return std::ranges::all_of(division.padding, [&](const FlatRange& range) {
      return holds_padding_(flat, range, range.end == flat.size.numel);
    });
  }

  // Returns which names may share elements, if the list has them as if they had their own.
  std::string tie_hint(const FlatParameter& flat, const Unit& unit) const {
    std::map<std::vector<std::int64_t>, std::size_t> first;  // parameters by shape
    for (const std::size_t i : unit.own) first.emplace(list_.parameters[i].shape, i);
    for (auto last = unit.own.rbegin(); last != unit.own.rend(); ++last) {
      const auto same = first.find(list_.parameters[*last].shape);
      if (same == first.end()) continue;
      const std::size_t other = same->second;
      first.erase(same);  // each shape once: a model has many layers of the same ones
      if (other == *last) continue;
      std::vector<std::int64_t> fewer;
      for (const std::size_t i : unit.own) {
        if (i != *last) fewer.push_back(numel(i));
      }
      if (divisions(fewer, flat.size).empty()) continue;
      return cat("; it would fit if ", quote(name(*last), 200), " were tied to ",
                 quote(name(other), 200),
                 ", which a JSON list says with the name in the place of the shape");
    }
    return {};
  }

  [[noreturn]] void throw_unfit(const FlatParameter& flat, const Unit& unit) const {
    std::int64_t sum = 0;
    bool whole = true;
    for (const std::size_t i : unit.own)
      whole = whole && !__builtin_add_overflow(sum, numel(i), &sum);
    const std::string hint = whole ? tie_hint(flat, unit) : std::string();
    throw Error(
        ErrorCode::kShape,
        cat(text_of(flat), " has ", flat.size.numel, " elements, expected ",
            whole ? cat(sum) : std::string("more than 2^63 - 1"), " in the ", unit.own.size(),
            " parameters of ", list_.origin, " from ", quote(name(unit.own.front()), 200), " to ",
            quote(name(unit.own.back()), 200), ", and padding", hint));
  }

  const FlatModel& model_;
  const ParameterList& list_;
  const HoldsPadding& holds_padding_;
  std::unordered_map<std::string, const FlatModel::Member*> members_;
  std::unordered_map<std::string, std::size_t> listed_;
  std::unordered_map<std::size_t, const NamedParameter*> views_;  // by the number in the list
  std::vector<std::pair<std::size_t, std::size_t>> tied_elsewhere_;
  std::vector<Unit> units_;                   // of each flat parameter
  std::vector<std::optional<Place>> places_;  // of each listed parameter
};

}  // namespace

ModelDivision divide(const FlatModel& model, const ParameterList& list,
                     const HoldsPadding& holds_padding) {
  return Dividing(model, list, holds_padding).run();
}

}  // namespace fsdp::formats::flat
