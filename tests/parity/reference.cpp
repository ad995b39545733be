// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/reference.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <span>
#include <sstream>

#include <ATen/Functions.h>
#include <ATen/Version.h>
#include <c10/util/Exception.h>

#include "formats/bytes/base/byte_source.h"
#include "formats/bytes/base/json.h"
#include "formats/families/safetensors/file.h"

namespace fsdp::test {
namespace {

using formats::Json;

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file, "cannot open ", path.string(), ": tests/run.sh makes it");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

at::ScalarType scalar_type(formats::DType dtype) {
  switch (dtype) {
    case formats::DType::kFloat32:
      return at::kFloat;
    case formats::DType::kBFloat16:
      return at::kBFloat16;
    case formats::DType::kInt64:
      return at::kLong;
    default:
      TORCH_CHECK(false, "reference.py writes no such dtype");
  }
}

Tensors read_safetensors(const std::filesystem::path& path) {
  std::string bytes = read_text(path);
  const formats::MemorySource source(std::as_bytes(std::span(bytes)));
  const auto header = formats::safetensors::read_header(source);
  Tensors tensors;
  for (const auto& entry : header.tensors) {
    const auto options = at::TensorOptions().dtype(scalar_type(entry.dtype));
    tensors[entry.name] = at::from_blob(bytes.data() + entry.begin, entry.shape, options).clone();
  }
  return tensors;
}

const Json& member(const Json& object, const std::string& name) {
  const Json* found = object.find(name);
  TORCH_CHECK(found, "no member '", name, "'");
  return *found;
}

const Json::Array& array(const Json& json) {
  TORCH_CHECK(json.as_array(), "expected an array");
  return *json.as_array();
}

void read(const Json& json, std::string& out) {
  TORCH_CHECK(json.as_string(), "expected a text");
  out = *json.as_string();
}

void read(const Json& json, bool& out) {
  TORCH_CHECK(json.as_bool(), "expected true or false");
  out = *json.as_bool();
}

void read(const Json& json, std::int64_t& out) {
  TORCH_CHECK(json.as_int(), "expected an integer");
  out = *json.as_int();
}

void read(const Json& json, int& out) {
  std::int64_t wide = 0;
  read(json, wide);
  out = static_cast<int>(wide);
}

void read(const Json& json, double& out) {
  const auto* number = std::get_if<double>(&json.storage());
  TORCH_CHECK(number || json.as_int(), "expected a number");
  out = number ? *number : static_cast<double>(*json.as_int());
}

template <typename T>
void read(const Json& json, std::vector<T>& out) {
  out.clear();
  for (const Json& element : array(json)) read(element, out.emplace_back());
}

using Reader = std::function<void(const Json&, ParityCase&)>;

template <typename T>
Reader into(T ParityCase::*place) {
  return [place](const Json& json, ParityCase& out) { read(json, out.*place); };
}

ParityCase read_case(const Json& json) {
  static const std::map<std::string, Reader> kMembers = {
      {"strategy", into(&ParityCase::strategy)},
      {"shard", into(&ParityCase::shard)},
      {"use_orig_params", into(&ParityCase::use_orig_params)},
      {"backward_prefetch", into(&ParityCase::backward_prefetch)},
      {"forward_prefetch", into(&ParityCase::forward_prefetch)},
      {"wrap", into(&ParityCase::wrap)},
      {"mixed", into(&ParityCase::mixed)},
      {"checkpoint", into(&ParityCase::checkpoint)},
      {"frozen", into(&ParityCase::frozen)},
      {"ignored", into(&ParityCase::ignored)},
      {"micro", into(&ParityCase::micro)},
      {"no_sync", into(&ParityCase::no_sync)},
      {"forwards", into(&ParityCase::forwards)},
      {"evaluate", into(&ParityCase::evaluate)},
      {"clip", into(&ParityCase::clip)},
      {"norm", into(&ParityCase::norm)},
      {"optimizer", into(&ParityCase::optimizer)},
      {"peer", into(&ParityCase::peer)},
      {"own", into(&ParityCase::own)},
      {"divide", into(&ParityCase::divide)},
      {"no_all_reduce", into(&ParityCase::no_all_reduce)},
  };
  ParityCase out;
  TORCH_CHECK(json.as_object(), "a case is not an object");
  for (const auto& [name, value] : *json.as_object()) {
    const auto member = kMembers.find(name);
    TORCH_CHECK(member != kMembers.end(), "cases.py has '", name, "', unknown to reference.cpp");
    member->second(value, out);
  }
  return out;
}

// The trainings of every rank, without tensors.
std::vector<Training> read_record(const Json& json, int world) {
  std::vector<Training> ranks(static_cast<std::size_t>(world));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    Training& training = ranks[rank];
    read(array(member(json, "losses")).at(rank), training.losses);
    read(array(member(json, "evaluations")).at(rank), training.evaluations);
    read(member(json, "norms"), training.norms);
    read(member(json, "units"), training.units);
  }
  return ranks;
}

Floor read_floor(const Json& record) {
  Floor floor;
  if (const Json* found = record.find("floor")) {
    read(member(*found, "losses"), floor.losses);
    read(member(*found, "norms"), floor.norms);
    read(member(*found, "weights"), floor.weights);
  }
  return floor;
}

Level level_of(const Json& json) {
  Level level;
  read(member(json, "capability"), level.capability);
  for (const auto& [name, value] : *member(json, "environment").as_object()) {
    read(value, level.environment[name]);
  }
  return level;
}

// "<case>/<name>" is every rank's, "<case>/<name>/<rank>" one rank's.
void hand_out(const Tensors& tensors, std::map<std::string, std::vector<Training>>& trainings) {
  for (const auto& [key, tensor] : tensors) {
    const auto slash = key.find('/');
    std::string name = key.substr(slash + 1);
    auto& ranks = trainings.at(key.substr(0, slash));
    const auto end = name.find('/');
    if (end == std::string::npos) {
      for (Training& training : ranks) training.tensors[name] = tensor;
    } else {
      ranks.at(std::stoul(name.substr(end + 1))).tensors[name.substr(0, end)] = tensor;
    }
  }
}

}  // namespace

bool ParityCase::casts(const std::string& what) const {
  return ("+" + mixed + "+").find("+" + what + "+") != std::string::npos;
}

bool Level::is_here() const {
  return capability == at::get_cpu_capability() &&
         std::all_of(environment.begin(), environment.end(), [](const auto& variable) {
           const char* value = std::getenv(variable.first.c_str());
           return value != nullptr && value == variable.second;
         });
}

Level read_level(const std::filesystem::path& folder, const std::string& group) {
  return level_of(formats::parse_json(read_text(folder / (group + ".json"))));
}

Reference read_reference(const std::filesystem::path& folder, const std::string& group, int world) {
  const std::filesystem::path stem = folder / group;
  const Json json = formats::parse_json(read_text(stem.string() + ".json"));
  Reference reference;
  reference.world = world;
  read(member(json, "steps"), reference.steps);
  reference.level = level_of(json);
  for (const auto& [name, record] : *member(json, "cases").as_object()) {
    reference.cases[name] = read_case(member(record, "case"));
    reference.trainings[name] = read_record(record, world);
    reference.floors[name] = read_floor(record);
  }
  hand_out(read_safetensors(stem.string() + ".safetensors"), reference.trainings);
  return reference;
}

Tensors read_inputs(const std::filesystem::path& folder, const std::string& model) {
  return read_safetensors(folder / (model + ".safetensors"));
}

}  // namespace fsdp::test
