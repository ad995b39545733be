// SPDX-License-Identifier: Apache-2.0
// Prints state dicts of every optimizer after a few steps, whole and sharded, as text that
// optimizers.py compares with PyTorch's:
//
//   case <optimizer>|<unsharded, flat or original>
//   model <key> <dtype> <shape> = <values>
//   state <parameter> <key> <dtype> <shape> = <values>
//   group <number> <key> = <value as Python writes it>
//
// With the argument "resume": reads cases from its input, loads their state into sharded modules
// and optimizers, and prints them a few steps later.
#include <iostream>
#include <sstream>
#include <string>

#include <torch/torch.h>

#include "libfsdp/internal/state/load_problems.h"
#include "tests/libfsdp/state/trained.h"

namespace fsdp::test {
using namespace internal;
namespace {

constexpr int kSteps = 3;
constexpr int kRanks = 3;

void print(std::ostream& out, const Tensor& tensor) {
  out << fsdp::internal::name_of(tensor.scalar_type()) << " [";
  for (std::int64_t d = 0; d < tensor.dim(); ++d) out << (d == 0 ? "" : ",") << tensor.size(d);
  out << "] =";
  const Tensor values = tensor.detach().to(torch::kDouble).contiguous();
  for (std::int64_t i = 0; i < values.numel(); ++i)
    out << ' ' << values.const_data_ptr<double>()[i];
  out << '\n';
}

void print(std::ostream& out, const StateValue& value);

void print(std::ostream& out, const StateList& items, char open, char close) {
  out << open;
  for (const StateValue& item : items) {
    print(out, item);
    out << ", ";
  }
  out << close;
}

void print(std::ostream& out, const StateValue& value) {
  if (value.is_none()) {
    out << "None";
  } else if (const auto* flag = value.as_bool()) {
    out << (*flag ? "True" : "False");
  } else if (const auto* integer = value.as_int()) {
    out << *integer;
  } else if (const auto* real = value.as_double()) {
    out << *real;
  } else if (const auto* text = value.as_string()) {
    out << '\'' << *text << '\'';
  } else if (const auto* tuple = value.as_tuple()) {
    print(out, tuple->items, '(', ')');
  } else {
    print(out, *value.as_list(), '[', ']');
  }
}

void print(std::ostream& out, const std::string& title, const StateDict& model,
           const StateDict& optimizer) {
  out << "case " << title << '\n';
  for (const auto& [key, value] : model.entries()) {
    out << "model " << text_of(key) << ' ';
    print(out, *value.as_tensor());
  }
  for (const auto& [name, entry] : optimizer.at("state").dict().entries()) {
    for (const auto& [key, value] : entry.dict().entries()) {
      out << "state " << text_of(name) << ' ' << text_of(key) << ' ';
      print(out, *value.as_tensor());
    }
  }
  std::size_t number = 0;
  for (const StateValue& group : *optimizer.at("param_groups").as_list()) {
    for (const auto& [key, value] : group.dict().entries()) {
      out << "group " << number << ' ' << text_of(key) << " = ";
      print(out, value);
      out << '\n';
    }
    ++number;
  }
}

std::string unsharded(const std::string& name) {
  std::ostringstream out;
  out.precision(17);
  Reference reference(name);
  reference.train(0, kSteps);
  StateDict model;
  for (const auto& [key, tensor] : named(*reference.module)) model.set(key, tensor.detach());
  print(out, name + "|unsharded", model, optimizer_state_dict(*reference.optimizer));
  return out.str();
}

void train_and_print(std::ostream& out, Sharded& both, const std::string& title, int first,
                     int last, bool prints) {
  both.train(first, last);
  const StateDict model = both.model.state_dict();
  const StateDict optimizer = optim_state_dict(both.model, *both.optimizer);
  if (prints) print(out, title, model, optimizer);
}

std::string title_of(const std::string& name, bool use_orig_params) {
  return name + (use_orig_params ? "|original" : "|flat");
}

std::string sharded(const std::string& name, bool use_orig_params) {
  std::ostringstream out;
  out.precision(17);
  spawn_ranks(kRanks, [&](const Group& ranks) {
    Sharded both(ranks, {name, use_orig_params});
    train_and_print(out, both, title_of(name, use_orig_params), 0, kSteps, ranks->rank() == 0);
  });
  return out.str();
}

struct GivenCase {
  std::string optimizer;
  StateDict model;
  StateDict states;
};

// "<dtype> [<sizes>] = <values>"
Tensor read_tensor(std::istream& in) {
  std::string dtype;
  std::string shape;
  std::string equals;
  in >> dtype >> shape >> equals;
  std::vector<std::int64_t> sizes;
  std::istringstream numbers(shape.substr(1));
  for (std::int64_t size = 0; numbers >> size; numbers.ignore()) sizes.push_back(size);
  std::vector<double> values;
  for (double value = 0; in >> value;) values.push_back(value);
  return torch::tensor(values, torch::kDouble).reshape(sizes).to(torch::kFloat);
}

std::vector<GivenCase> read_cases(std::istream& in) {
  std::vector<GivenCase> result;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string kind;
    std::string name;
    std::string key;
    words >> kind;
    if (kind == "case") {
      result.push_back({line.substr(5), {}, {}});
    } else if (kind == "model") {
      words >> name;
      result.back().model.set(name, read_tensor(words));
    } else {
      words >> name >> key;
      StateValue& entry = result.back().states[name];
      if (entry.is_none()) entry = StateDict();
      entry.dict().set(key, read_tensor(words));
    }
  }
  return result;
}

std::string resumed(const GivenCase& given, bool use_orig_params) {
  std::ostringstream out;
  out.precision(17);
  const Reference fresh(given.optimizer);
  StateDict state = fresh.state();
  state.set("state", given.states);
  spawn_ranks(kRanks, [&](const Group& ranks) {
    Sharded both(ranks, {given.optimizer, use_orig_params});
    both.model.load_state_dict(given.model);
    optim_state_dict_to_load(both.model, *both.optimizer, state, /*load_directly=*/true);
    train_and_print(out, both, title_of(given.optimizer, use_orig_params), kSteps, 2 * kSteps,
                    ranks->rank() == 0);
  });
  return out.str();
}

}  // namespace
}  // namespace fsdp::test

int main(int count, char** words) {
  using namespace fsdp::test;
  if (count > 1 && std::string(words[1]) == "resume") {
    for (const GivenCase& given : read_cases(std::cin))
      std::cout << resumed(given, false) << resumed(given, true);
    return 0;
  }
  for (const std::string& name : optimizer_names())
    std::cout << unsharded(name) << sharded(name, false) << sharded(name, true);
}
