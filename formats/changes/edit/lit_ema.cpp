// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/edit/lit_ema.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "formats/bytes/base/text.h"
#include "formats/state/content/placed_leaves.h"
#include "formats/state/content/tensor_value.h"

namespace fsdp::formats {
namespace {

constexpr std::string_view kUpdates = "num_updates";
constexpr std::string_view kDecay = "decay";
constexpr std::size_t kShownBytes = 200;

bool has_front(std::string_view name, std::string_view front) {
  return name.size() > front.size() + 1 && name.starts_with(front) && name[front.size()] == '.';
}

std::string without_dots(std::string_view name) {
  std::string out(name);
  std::erase(out, '.');
  return out;
}

bool is_scalar(const Value* value, bool floating) {
  const auto tensor = value == nullptr ? std::nullopt : dense_tensor(*value);
  return tensor && tensor->shape.empty() && is_floating(tensor->dtype) == floating;
}

// Returns the keys under which LitEma lies in `tensors`.
std::vector<std::string> fronts_of(const Value& tensors) {
  std::vector<std::string> fronts;
  for (const auto& [key, value] : members_of(tensors)) {
    const std::string& name = *key.as_string();
    if (!name.ends_with(cat('.', kUpdates))) continue;
    const std::string front = name.substr(0, name.size() - kUpdates.size() - 1);
    if (is_scalar(&value, false) && is_scalar(member(tensors, cat(front, '.', kDecay)), true))
      fronts.push_back(front);
  }
  return fronts;
}

// One LitEma, and the tensors beside it.
class LitNames {
 public:
  LitNames(const Value& tensors, const std::string& front) : front_(front) {
    for (const auto& [key, value] : members_of(tensors)) {
      const std::string& name = *key.as_string();
      if (!has_front(name, front)) {
        beside_.emplace_back(name, &value);
      } else if (const std::string own = name.substr(front.size() + 1);
                 own != kUpdates && own != kDecay) {
        averages_.emplace_back(own, &value);
      }
    }
  }

  // Returns whether names are such as LitEma has: buffers have no dots.
  bool is_one() const {
    return !averages_.empty() && std::ranges::none_of(averages_, [](const auto& average) {
      return average.first.find('.') != average.first.npos;
    });
  }

  LitEma run() const {
    LitEma out{.front = front_, .part = {}, .averages = {}, .problem = {}};
    SomeNames fitting;
    for (const std::string& part : parts_of(averages_[0].first)) {
      std::string problem;
      Value named = named_by(part, problem);
      if (problem.empty()) {
        fitting.add(part.empty() ? "all tensors" : quote(part, kShownBytes));
        out.part = part;
        out.averages = std::move(named);
      } else if (out.problem.empty()) {
        out.problem = std::move(problem);
      }
    }
    if (fitting.count() == 1) {
      out.problem.clear();
    } else if (fitting.count() > 1) {
      out.problem = cat("may hold the averages of ", fitting.text());
    } else if (out.problem.empty()) {
      out.problem = cat("holds an average of ", quote(averages_[0].first, kShownBytes),
                        ", and no tensor beside it has that name without dots");
    }
    return out;
  }

 private:
  // Returns the fronts behind which a tensor has the name `average` without dots.
  std::vector<std::string> parts_of(std::string_view average) const {
    std::vector<std::string> parts;
    for (const auto& [name, value] : beside_) {
      for (std::size_t at = 0; at != name.npos; at = name.find('.', at + 1)) {
        const std::size_t begin = at == 0 ? 0 : at + 1;
        if (without_dots(std::string_view(name).substr(begin)) != average) continue;
        const std::string part = name.substr(0, at);
        if (std::ranges::find(parts, part) == parts.end()) parts.push_back(part);
      }
    }
    return parts;
  }

  // Returns the averages by the names of the tensors below `part`; `problem`: why that fails.
  Value named_by(const std::string& part, std::string& problem) const {
    std::map<std::string, std::vector<std::pair<std::string, const Value*>>> by_name;
    for (const auto& [name, value] : beside_) {
      if (part.empty() || has_front(name, part))
        by_name[without_dots(part.empty() ? name : name.substr(part.size() + 1))].emplace_back(
            name, value);
    }
    std::vector<Value::Entry> entries;
    for (const auto& [own, average] : averages_) {
      const auto found = by_name.find(own);
      if (found == by_name.end()) {
        problem = cat("holds an average of ", quote(own, kShownBytes), ", and no tensor ",
                      part.empty() ? "beside it" : cat("of ", quote(part, kShownBytes)),
                      " has that name without dots");
        return {};
      }
      const auto& [name, weight] = found->second[0];
      if (found->second.size() > 1) {
        problem = cat("holds an average of ", quote(own, kShownBytes), ", which both ",
                      quote(name, kShownBytes), " and ", quote(found->second[1].first, kShownBytes),
                      " are without dots");
        return {};
      }
      const auto a = dense_tensor(*average);
      const auto b = dense_tensor(*weight);
      if (!a || !b || a->shape != b->shape) {
        problem = cat("holds an average of ", quote(own, kShownBytes), ", and ",
                      quote(name, kShownBytes), " has another shape");
        return {};
      }
      entries.emplace_back(Value::string(name), *average);
    }
    return Value::dict(std::move(entries));
  }

  const std::string front_;
  std::vector<std::pair<std::string, const Value*>> averages_;  // by names without dots
  std::vector<std::pair<std::string, const Value*>> beside_;
};

}  // namespace

std::vector<LitEma> lit_emas(const Value& tensors) {
  std::vector<LitEma> out;
  for (const std::string& front : fronts_of(tensors)) {
    const LitNames naming(tensors, front);
    if (naming.is_one()) out.push_back(naming.run());
  }
  return out;
}

Value without_fronts(const Value& tensors, const std::vector<std::string>& fronts) {
  std::vector<Value::Entry> entries;
  for (const auto& [key, value] : members_of(tensors)) {
    const auto inside = [&](const std::string& front) {
      return has_front(*key.as_string(), front);
    };
    if (std::ranges::none_of(fronts, inside)) entries.emplace_back(key, value);
  }
  return Value::dict(std::move(entries));
}

}  // namespace fsdp::formats
