// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/wrap_policy.h"

#include <cstdint>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace fsdp {
namespace {

namespace nn = torch::nn;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct LeafImpl : nn::Module {
  explicit LeafImpl(const at::Tensor& parameter)
      : weight(register_parameter("weight", parameter)) {}
  explicit LeafImpl(std::int64_t numel) : LeafImpl(torch::zeros({numel})) {}
  at::Tensor weight;
};
TORCH_MODULE(Leaf);

// Replaces Sequential, which must know how to call its children.
struct GroupImpl : nn::Module {
  GroupImpl() = default;
  template <typename... Children>
  explicit GroupImpl(const Children&... children) {
    (register_module(std::to_string(this->children().size()), children), ...);
  }
  using nn::Module::register_module;
};
TORCH_MODULE(Group);

// Reads the trees of wrap_policy_cases.py.
class TreeParser {
 public:
  explicit TreeParser(std::string text) : text_(std::move(text)) {}

  std::shared_ptr<nn::Module> parse() {
    const auto end = text_.find_first_of(",()", at_);
    const auto word = text_.substr(at_, end == std::string::npos ? end : end - at_);
    at_ += word.size();
    const auto colon = word.find(':');
    if (colon == std::string::npos) return container(word);
    const std::int64_t number = std::stoll(word.substr(colon + 1));
    const auto kind = word.substr(0, colon);
    if (kind == "mha") return nn::MultiheadAttention(number, 1).ptr();
    if (kind == "tied") {
      return std::make_shared<LeafImpl>(leaves_.at(static_cast<std::size_t>(number)));
    }
    auto leaf = std::make_shared<LeafImpl>(number);
    leaves_.push_back(leaf->weight);
    return leaf;
  }

 private:
  std::shared_ptr<nn::Module> container(const std::string& kind) {
    std::vector<std::shared_ptr<nn::Module>> children;
    while (text_.at(at_) != ')') {
      ++at_;
      children.push_back(parse());
    }
    ++at_;
    if (kind == "dict") {
      nn::ModuleDict dict;
      for (std::size_t i = 0; i < children.size(); ++i) {
        dict->update(std::vector<std::pair<std::string, std::shared_ptr<nn::Module>>>{
            {"k" + std::to_string(i), children[i]}});
      }
      return dict.ptr();
    }
    if (kind == "list") {
      nn::ModuleList list;
      for (const auto& child : children) list->push_back(child);
      return list.ptr();
    }
    auto sequential = std::make_shared<GroupImpl>();
    for (std::size_t i = 0; i < children.size(); ++i) {
      sequential->register_module(std::to_string(i), children[i]);
    }
    return sequential;
  }

  std::string text_;
  std::size_t at_ = 0;
  std::vector<at::Tensor> leaves_;
};

std::vector<std::string> words(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> result;
  for (std::string word; in >> word;) result.push_back(word);
  return result;
}

WrapPolicy policy_named(const std::string& text) {
  if (text.starts_with("size:")) return size_based_auto_wrap_policy(std::stoll(text.substr(5)));
  if (text == "always") return always_wrap_policy();
  if (text == "type:leaf") return module_wrap_policy<Leaf>();
  EXPECT_EQ(text, "type:seq,mha");
  return module_wrap_policy<Group, nn::MultiheadAttention>();
}

TEST(WrapPolicy, chooses_what_pytorch_wraps) {
  std::ifstream file(FSDP_TEST_WRAP_CASES);
  int cases = 0;
  for (std::string line; std::getline(file, line); ++cases) {
    SCOPED_TRACE(line);
    std::vector<std::string> fields;
    std::size_t begin = 0;
    for (std::size_t end; (end = line.find(" | ", begin)) != std::string::npos; begin = end + 3) {
      fields.push_back(line.substr(begin, end - begin));
    }
    fields.push_back(line.substr(begin));
    ASSERT_EQ(fields.size(), 4U);
    const auto root = TreeParser(fields[0]).parse();
    std::vector<const nn::Module*> ignored;
    for (const auto& name : words(fields[2])) {
      for (const auto& module : root->named_modules()) {
        if (module.key() == name) ignored.push_back(module.value().get());
      }
    }
    EXPECT_EQ(ignored.size(), words(fields[2]).size());
    EXPECT_EQ(unit_names(*root, policy_named(fields[1]), ignored), words(fields[3]));
  }
  EXPECT_EQ(cases, 120);
}

TEST(WrapPolicy, children_are_decided_before_their_parent_and_counted_out_of_it) {
  Group root{Group(Leaf(10), Leaf(4)), Leaf(3)};
  struct Question {
    bool recurse;
    std::int64_t numel;
    bool operator==(const Question&) const = default;
  };
  std::vector<Question> questions;
  const auto units =
      unit_names(*root, [&](const nn::Module& module, bool recurse, std::int64_t numel) {
        questions.push_back({recurse, numel});
        return recurse || (numel >= 4 && module.children().empty());
      });
  EXPECT_THAT(units, ElementsAre("0.0", "0.1"));
  EXPECT_EQ(questions, (std::vector<Question>{{true, 17},  // the root
                                              {true, 14},  // 0
                                              {true, 10},
                                              {false, 10},
                                              {true, 4},
                                              {false, 4},
                                              {false, 0},  // 0, without its units
                                              {true, 3},
                                              {false, 3}}));
}

TEST(WrapPolicy, a_policy_that_does_not_look_into_the_root_finds_nothing) {
  Group root{Leaf(10)};
  EXPECT_THAT(unit_names(*root, size_based_auto_wrap_policy(11)), IsEmpty());
  EXPECT_THAT(unit_names(*root, size_based_auto_wrap_policy(10)), ElementsAre("0"));
  EXPECT_THAT(unit_names(*root, WrapPolicy()), IsEmpty());
}

TEST(WrapPolicy, a_module_in_two_places_is_one_unit_under_its_first_name) {
  Leaf shared(10);
  Group root{Group{shared}, Group{shared}, Leaf(2)};
  EXPECT_THAT(unit_names(*root, module_wrap_policy<Leaf>()), ElementsAre("0.0", "2"));
}

TEST(WrapPolicy, ignored_modules_and_parameters_are_not_counted) {
  Leaf first(10);
  Leaf second(10);
  Group root{first, second};
  const auto policy = size_based_auto_wrap_policy(10);
  EXPECT_THAT(unit_names(*root, policy), ElementsAre("0", "1"));
  EXPECT_THAT(unit_names(*root, policy, {first.get()}), ElementsAre("1"));
  EXPECT_THAT(unit_names(*root, policy, {}, {second->weight}), ElementsAre("0"));
  EXPECT_THAT(unit_names(*root, policy, {root.get()}), IsEmpty());
}

TEST(WrapPolicy, leaves_and_excluded_modules_of_the_size_policy_can_be_chosen) {
  Group root{Group(Leaf(10), Leaf(10)), nn::MultiheadAttention(4, 1)};
  EXPECT_THAT(unit_names(*root, size_based_auto_wrap_policy(5)), ElementsAre("0.0", "0.1"));
  EXPECT_THAT(unit_names(*root, size_based_auto_wrap_policy(5, instances_of<Leaf>())),
              ElementsAre("0", "1", "1.out_proj"));
  EXPECT_THAT(unit_names(*root, size_based_auto_wrap_policy(5, {}, instances_of<LeafImpl>())),
              ElementsAre("0"));
}

TEST(WrapPolicy, types_are_given_by_module_or_holder_and_include_what_derives_from_them) {
  struct Special : LeafImpl {
    using LeafImpl::LeafImpl;
  };
  const auto special = std::make_shared<Special>(1);
  EXPECT_TRUE(instances_of<Leaf>()(*special));
  EXPECT_TRUE(instances_of<LeafImpl>()(*special));
  EXPECT_FALSE(instances_of<Special>()(*Leaf(1)));
  EXPECT_TRUE((instances_of<Special, Leaf>()(*Leaf(1))));
}

TEST(WrapPolicy, any_of_takes_what_one_of_its_policies_takes) {
  Group root{Group(Leaf(10), Leaf(4)), nn::MultiheadAttention(1, 1)};
  EXPECT_THAT(unit_names(*root, any_of({module_wrap_policy<nn::MultiheadAttention>(),
                                        size_based_auto_wrap_policy(10)})),
              ElementsAre("0.0", "1"));
  EXPECT_THROW(any_of({WrapPolicy()}), c10::Error);
  EXPECT_THROW(custom_policy({}), c10::Error);
}

// A model as its author writes it, for both ways.
struct ModelImpl : nn::Module {
  ModelImpl()
      : first(register_module("first", wrap(Leaf(2)))),
        second(register_module("second", Leaf(2))),
        third(register_module("third", wrap(std::make_shared<LeafImpl>(2)))) {}
  Leaf first;
  Leaf second;
  std::shared_ptr<LeafImpl> third;
};

TEST(Wrap, marks_modules_inside_its_scope_and_only_there) {
  const ModelImpl plain;
  EXPECT_THAT(unit_names(plain, wrapped_policy()), IsEmpty());
  std::unique_ptr<ModelImpl> marked;
  {
    const EnableWrap scope;
    { const EnableWrap inner; }
    marked = std::make_unique<ModelImpl>();
  }
  EXPECT_THAT(unit_names(*marked, wrapped_policy()), ElementsAre("first", "third"));
  EXPECT_THAT(unit_names(ModelImpl(), wrapped_policy()), IsEmpty());
}

TEST(Wrap, the_mark_dies_with_its_module) {
  const EnableWrap scope;
  // More than one sweep of the marks; modules that live keep theirs.
  std::vector<Leaf> kept;
  for (int i = 0; i < 1000; ++i) {
    auto leaf = wrap(Leaf(1));
    if (i % 100 == 0) kept.push_back(leaf);
  }
  for (const auto& leaf : kept) {
    EXPECT_TRUE(wrapped_policy()(*leaf, /*recurse=*/false, 1));
  }
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(wrapped_policy()(*Leaf(1), /*recurse=*/false, 1));
  }
  EXPECT_THROW(wrap(std::shared_ptr<LeafImpl>()), c10::Error);
}

}  // namespace
}  // namespace fsdp
