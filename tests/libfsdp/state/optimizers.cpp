// SPDX-License-Identifier: Apache-2.0
// State dicts of every optimizer after a few steps, whole and sharded, as text that optimizers.py
// holds against PyTorch's:
//
//   case <optimizer>|<unsharded, flat or original>
//   model <key> <dtype> <shape> = <values>
//   state <parameter> <key> <dtype> <shape> = <values>
//   group <number> <key> = <value as Python writes it>
#include <iostream>
#include <sstream>
#include <string>

#include <torch/torch.h>

#include "libfsdp/internal/load_problems.h"
#include "tests/libfsdp/state/trained.h"

namespace fsdp::test {
namespace {

constexpr int kSteps = 3;
constexpr int kRanks = 3;

void print(std::ostream& out, const Tensor& tensor) {
  out << fsdp::name_of(tensor.scalar_type()) << " [";
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

std::string sharded(const std::string& name, bool use_orig_params) {
  std::ostringstream out;
  out.precision(17);
  spawn_ranks(kRanks, [&](const Group& ranks) {
    Sharded both(ranks, {name, use_orig_params});
    both.train(0, kSteps);
    const StateDict model = both.model.state_dict();
    const StateDict optimizer = optim_state_dict(both.model, *both.optimizer);
    if (ranks->rank() == 0)
      print(out, name + (use_orig_params ? "|original" : "|flat"), model, optimizer);
  });
  return out.str();
}

}  // namespace
}  // namespace fsdp::test

int main() {
  for (const std::string& name : fsdp::test::optimizer_names()) {
    std::cout << fsdp::test::unsharded(name) << fsdp::test::sharded(name, false)
              << fsdp::test::sharded(name, true);
  }
}
