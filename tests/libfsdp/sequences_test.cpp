// SPDX-License-Identifier: Apache-2.0
// A random search: sequences of what a user may do with a sharded module between steps, each held
// against the unsharded module, to which the same is done.  It knows nothing of the engine.
//
// FSDP_TEST_SEQUENCES: how many (default 30); FSDP_TEST_SEQUENCE: only that one, step by step.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "libfsdp/fully_shard.h"
#include "libfsdp/optim_state_dict.h"
#include "tests/libfsdp/train_loop.h"

namespace fsdp {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

// Three units, two of them of several parameters, beside the root's own.
struct NetImpl : nn::Module {
  NetImpl()
      : a(register_module("a", nn::Linear(4, 5))),
        b(register_module("b", nn::Linear(5, 3))),
        c(register_module("c", nn::Linear(nn::LinearOptions(3, 2).bias(false)))) {
    scale = register_parameter("scale", torch::ones({3}));
    shift = register_parameter("shift", torch::ones({1, 2}));
  }
  Tensor forward(const Tensor& x) { return c(torch::tanh(b(torch::tanh(a(x)))) * scale) + shift; }
  nn::Linear a, b, c;
  Tensor scale, shift;
};
TORCH_MODULE(Net);

const std::vector<std::vector<std::string>>& units() {
  static const std::vector<std::vector<std::string>> result{
      {"a.weight", "a.bias"}, {"b.weight", "b.bias"}, {"c.weight"}, {"scale", "shift"}};
  return result;
}

using Sharded = FullyShardedDataParallel<Net>;
using Sgd = torch::optim::SGD;
using SgdOptions = torch::optim::SGDOptions;

int number_of(const char* variable, int otherwise) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? otherwise : std::atoi(value);
}

// One sequence, on one rank.  Every rank draws the same numbers.
class Sequence {
 public:
  Sequence(const Group& group, int seed, bool speaks)
      : group_(group),
        random_(static_cast<std::uint64_t>(seed)),
        watches_(speaks),
        speaks_(speaks && group->rank() == 0) {
    dtype_ = chance(50) ? torch::kFloat : torch::kDouble;
    options_.process_group = group;
    options_.device_id = test::device_id_of_rank(group->rank());
    options_.use_orig_params = chance(70);
    options_.node_size = group->size() == 4 ? 2 : 1;
    options_.sharding_strategy =
        one_of<ShardingStrategy>({ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp,
                                  ShardingStrategy::kNoShard, ShardingStrategy::kHybridShard});
    way_ = options_.use_orig_params ? one_of({Way::kWrapped, Way::kComposed, Way::kNested})
                                    : Way::kWrapped;
    one_unit_ = options_.use_orig_params && chance(25);
    if (!one_unit_ && way_ == Way::kWrapped)
      options_.auto_wrap_policy = module_wrap_policy<nn::LinearImpl>();
    options_.bucket_bytes = chance(50) ? 0 : 4 << 20;
    options_.forward_prefetch = chance(50);
    options_.backward_prefetch = one_of<BackwardPrefetch>(
        {BackwardPrefetch::kNone, BackwardPrefetch::kBackwardPre, BackwardPrefetch::kBackwardPost});
    for (nn::Module* module :
         {static_cast<nn::Module*>(&*whole_), static_cast<nn::Module*>(&*net_)}) {
      fill_parameters(*module);
      module->to(dtype_);
    }
    // Some are frozen from the beginning.
    for (const auto& unit : units()) {
      if (chance(15)) set_trainable(unit, false, /*wrapped=*/false);
    }
    shard();
    say(std::string(name_of(options_.sharding_strategy)) +
        (way_ == Way::kWrapped    ? ""
         : way_ == Way::kComposed ? ", composed"
                                  : ", nested") +
        (options_.use_orig_params ? one_unit_ ? ", one unit" : "" : ", flat") +
        (dtype_ == torch::kFloat ? ", float" : ", double"));
    const double rate = 0.05;
    const SgdOptions sgd = SgdOptions(rate).momentum(0.5).weight_decay(0.1);
    std::vector<std::string> first;
    for (const auto& unit : units()) {
      if (chance(50))
        first.insert(first.end(), unit.begin(), unit.end());
      else
        later_.push_back(unit);
    }
    if (first.empty()) {
      first = later_.back();
      later_.pop_back();
    }
    std::string all;
    for (const std::string& name : first) all += " " + name;
    say("optimizer of" + all);
    optimizer_ = std::make_unique<Sgd>(shards_of(first), sgd);
    whole_optimizer_ = std::make_unique<Sgd>(tensors_of(first), sgd);
  }

  void run() {
    const int count = 6 + number(14);
    try {
      for (int i = 0; i < count && !::testing::Test::HasFailure(); ++i) {
        act();
        if (watches_) compare("after it");
      }
      if (!::testing::Test::HasFailure()) compare("at the end");
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    EXPECT_FALSE(::testing::Test::HasFailure()) << said_;
  }

 private:
  int number(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }
  bool chance(int percent) { return number(100) < percent; }
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return *(values.begin() + number(static_cast<int>(values.size())));
  }

  // By the wrapper, by fully_shard() alone, or the wrapper around what fully_shard() has sharded,
  // each module with a strategy of its own then.
  void shard() {
    if (way_ == Way::kWrapped || (way_ == Way::kNested && one_unit_)) {
      wrapper_.emplace(net_, options_);
      sharded_ = &*wrapper_;
      return;
    }
    FullyShardOptions inner;
    inner.process_group = group_;
    inner.device_id = options_.device_id;
    inner.node_size = options_.node_size;
    inner.bucket_bytes = options_.bucket_bytes;
    inner.forward_prefetch = options_.forward_prefetch;
    inner.backward_prefetch = options_.backward_prefetch;
    const auto varied = [&] {
      FullyShardOptions result = inner;
      result.sharding_strategy =
          one_of<ShardingStrategy>({ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp,
                                    ShardingStrategy::kNoShard, ShardingStrategy::kHybridShard});
      if (chance(30)) result.reshard_after_forward = chance(50);
      if (chance(20))
        result.reshard_after_forward =
            result.sharding_strategy == ShardingStrategy::kFullShard ? group_->size() : 1;
      return result;
    };
    if (!one_unit_) {
      for (const nn::Linear& linear : {net_->a, net_->b, net_->c}) {
        if (chance(80)) fully_shard(linear, varied());
      }
    }
    if (way_ == Way::kNested) {
      wrapper_.emplace(net_, options_);
      sharded_ = &*wrapper_;
    } else {
      composed_ = fully_shard(net_, varied());
      sharded_ = composed_.get();
    }
  }
  Tensor forward(const Tensor& x) {
    return wrapper_ ? wrapper_->forward(x)
                    : net_->forward(options_.device_id ? x.to(*options_.device_id) : x);
  }

  void say(const std::string& text) {
    said_ += text + "; ";
    if (speaks_) std::cerr << text << '\n';
  }

  std::vector<Tensor> tensors_of(const std::vector<std::string>& names) {
    const auto all = whole_->named_parameters();
    std::vector<Tensor> result;
    for (const std::string& name : names) result.push_back(all[name]);
    return result;
  }
  std::vector<Tensor> shards_of(const std::vector<std::string>& names) {
    std::vector<Tensor> result;
    std::set<std::string> wanted;
    for (const std::string& name : names) {
      const std::size_t dot = name.find('.');
      wanted.insert(options_.use_orig_params   ? name
                    : dot == std::string::npos ? "_flat_param"
                                               : name.substr(0, dot + 1) + "_flat_param");
    }
    for (const auto& [name, tensor] : sharded_->named_parameters()) {
      if (wanted.count(name) != 0) result.push_back(tensor);
    }
    return result;
  }

  void set_trainable(const std::vector<std::string>& names, bool on, bool wrapped = true) {
    for (Tensor& tensor : tensors_of(names)) tensor.set_requires_grad(on);
    // At the module's tensors, at the optimizer's, or at both.  Before a forward has seen the first
    // change, another has to be at both: nobody knows which of two tensors was set last.
    int where = wrapped ? number(3) : 0;
    for (const std::string& name : names) {
      if (wrapped && !unseen_.insert(name).second) where = 2;
    }
    if (where != 1) {
      const auto own = net_->named_parameters();
      for (const std::string& name : names) Tensor(own[name]).set_requires_grad(on);
    }
    if (where != 0) {
      for (Tensor& shard : shards_of(names)) shard.set_requires_grad(on);
    }
    for (const std::string& name : names) {
      if (on)
        frozen_.erase(name);
      else
        frozen_.insert(name);
    }
  }

  void toggle() {
    // Flat parameters train as a whole.
    std::vector<std::string> names = units()[static_cast<std::size_t>(number(4))];
    if (options_.use_orig_params && chance(60))
      names = {names[static_cast<std::size_t>(number(static_cast<int>(names.size())))]};
    const bool on = frozen_.count(names.front()) != 0;
    if (!on && unreduced_) return;  // an error, which freezing_test.cpp has
    say((on ? "thaw " : "freeze ") + names.front() + (names.size() > 1 ? " and more" : ""));
    set_trainable(names, on);
  }

  bool any_trains() const {
    for (const auto& unit : units()) {
      for (const std::string& name : unit) {
        if (frozen_.count(name) == 0) return true;
      }
    }
    return false;
  }

  Tensor loss_of(const Tensor& output) { return output.pow(2).mean() + output.sum() * 0.1; }

  void train() {
    if (!any_trains()) return;
    const int micro = 1 + number(2);
    for (int i = 0; i < micro; ++i) {
      const bool sync = chance(75);
      say(sync ? "backward" : "backward without synchronization");
      const bool twice = chance(15);
      const int batch = batch_++;
      sharded_->set_requires_gradient_sync(sync);
      for (int rank = 0; rank < group_->size(); ++rank)
        (whole_loss(batch, rank, twice) / (divisor_ * group_->size())).backward();
      unseen_.clear();
      Tensor loss = loss_of(forward(input(batch, group_->rank())));
      if (twice) loss = loss + loss_of(forward(input(batch + 1000, group_->rank())));
      loss.backward();
      unreduced_ = !sync;
    }
  }
  Tensor input(int batch, int rank) {
    return random_values({3, 4}, static_cast<std::uint64_t>(batch * 8 + rank + 1)).to(dtype_);
  }
  Tensor whole_loss(int batch, int rank, bool twice) {
    Tensor loss = loss_of(whole_->forward(input(batch, rank)));
    if (twice) loss = loss + loss_of(whole_->forward(input(batch + 1000, rank)));
    return loss;
  }

  void act() {
    switch (number(13)) {
      case 0:
      case 1:
      case 2:
        return train();
      case 3:
      case 4:
        return toggle();
      case 5:
      case 6:
        return step();
      case 7:
        return zero();
      case 8:
        return clip();
      case 9:
        return add_group();
      case 10:
        return chance(50) ? save() : load();
      case 11:
        return control();
      default:
        return chance(50) ? write() : evaluate();
    }
  }

  void step() {
    if (unreduced_) return;
    say("step");
    optimizer_->step();
    whole_optimizer_->step();
    if (chance(30)) compare("after a step");
  }

  void zero() {
    const bool to_none = chance(50);
    const int how = number(3);
    say(how == 0   ? "zero by the optimizer"
        : how == 1 ? "zero by the wrapper"
                   : "zero by the module");
    // The optimizer may have only some of them.
    if (how == 0 && !later_.empty()) return;
    if (how == 0)
      optimizer_->zero_grad(to_none);
    else if (how == 1)
      sharded_->zero_grad(to_none);
    else
      net_->zero_grad(to_none);
    whole_->zero_grad(to_none);
    unreduced_ = false;
  }

  void clip() {
    if (unreduced_) return;
    const double p = one_of<double>({2.0, 1.0, std::numeric_limits<double>::infinity()});
    const double most = chance(50) ? 0.5 : 100.0;
    say("clip");
    std::vector<Tensor> all;
    for (const Tensor& tensor : whole_->parameters()) all.push_back(tensor);
    const double expected = nn::utils::clip_grad_norm_(all, most, p);
    const double found = sharded_->clip_grad_norm_(most, p).item<double>();
    EXPECT_NEAR(found, expected, tolerance() * std::max(1.0, expected)) << "norm";
  }

  void add_group() {
    if (later_.empty()) return;
    const std::vector<std::string> names = later_.back();
    later_.pop_back();
    say("add a group of " + names.front());
    const auto options = [] {
      return std::make_unique<SgdOptions>(SgdOptions(0.02).momentum(0.9));
    };
    optimizer_->add_param_group({shards_of(names), options()});
    whole_optimizer_->add_param_group({tensors_of(names), options()});
  }

  // What FSDP2 has to say of one unit or of all.
  void control() {
    const std::vector<Unit*> all = sharded_->units();
    const auto any = [&] {
      return all[static_cast<std::size_t>(number(static_cast<int>(all.size())))];
    };
    const auto handle_of = [&](const Unit& unit) {
      return unit.name.empty() ? nullptr : sharded_->part(*unit.module);
    };
    const std::shared_ptr<ShardedModule> part = handle_of(*any());
    ShardedModule& chosen = part ? *part : *sharded_;
    const bool on = chance(50);
    switch (number(7)) {
      case 0:
        say("reshard after forward");
        return chosen.set_reshard_after_forward(on, chance(50));
      case 1:
        say("reshard after backward");
        return chosen.set_reshard_after_backward(on, chance(50));
      case 2:
      case 3: {
        say("prefetch");
        const auto other = handle_of(*any());
        std::vector<ShardedModule*> list;
        if (chance(70)) list.push_back(other ? &*other : sharded_);
        return on ? chosen.set_modules_to_forward_prefetch(list)
                  : chosen.set_modules_to_backward_prefetch(list);
      }
      case 4: {
        if (way_ != Way::kComposed) return;
        say("unshard");
        UnshardHandle handle = chosen.unshard(on);
        if (chance(50)) handle.wait();
        return;
      }
      case 5:
        if (way_ != Way::kComposed) return;
        say("reshard");
        return chosen.reshard();
      default:
        if (unreduced_) return;
        say("divide");
        divisor_ = 1 + number(3);
        return sharded_->set_gradient_divide_factor(divisor_ * group_->size());
    }
  }

  struct Saved {
    StateDict weights;
    StateDict momentum;
    std::map<std::string, Tensor> whole;
    StateDict whole_momentum;
    std::size_t groups = 0;
  };

  void save() {
    say("save");
    Saved saved;
    saved.weights = sharded_->state_dict();
    saved.momentum = optim_state_dict(*sharded_, *optimizer_);
    for (const auto& item : whole_->named_parameters())
      saved.whole[item.key()] = item.value().detach().clone();
    saved.whole_momentum = copied(optimizer_state_dict(*whole_optimizer_));
    saved.groups = optimizer_->param_groups().size();
    saved_ = std::move(saved);
  }
  static StateDict copied(const StateDict& state) {
    StateDict result;
    for (const auto& [key, value] : state.entries()) {
      if (const Tensor* const tensor = value.as_tensor())
        result.set(key, tensor->clone());
      else if (const StateDict* const inner = value.as_dict())
        result.set(key, copied(*inner));
      else
        result.set(key, value);
    }
    return result;
  }
  void load() {
    if (!saved_ || saved_->groups != optimizer_->param_groups().size()) return;
    say("load");
    sharded_->load_state_dict(saved_->weights);
    optim_state_dict_to_load(*sharded_, *optimizer_, saved_->momentum, /*load_directly=*/true);
    const torch::NoGradGuard no_grad;
    for (const auto& item : whole_->named_parameters())
      Tensor(item.value()).copy_(saved_->whole.at(item.key()));
    load_optimizer_state_dict(*whole_optimizer_, copied(saved_->whole_momentum));
  }

  void write() {
    const auto& names = units()[static_cast<std::size_t>(number(4))];
    say("write " + names.front());
    const FullParams scope = sharded_->summon_full_params();
    const torch::NoGradGuard no_grad;
    Tensor(net_->named_parameters()[names.front()]).mul_(0.9);
    tensors_of(names).front().mul_(0.9);
  }

  void evaluate() {
    say("evaluate");
    const torch::NoGradGuard no_grad;
    const Tensor found = forward(input(7, 0));
    const Tensor expected = whole_->forward(input(7, 0));
    EXPECT_LE(distance(found, expected), tolerance()) << "evaluation";
  }

  double tolerance() const { return dtype_ == torch::kFloat ? 3e-5 : 1e-12; }

  void compare(const char* when) {
    say("compare");
    const bool with_grads = options_.use_orig_params && !unreduced_;
    const FullParams scope =
        sharded_->summon_full_params({.writeback = false, .with_grads = with_grads});
    const auto found = net_->named_parameters();
    for (const auto& item : whole_->named_parameters()) {
      const Tensor& own = found[item.key()];
      EXPECT_LE(distance(own.detach(), item.value().detach()),
                tolerance() * std::max(1.0, item.value().abs().max().item<double>()))
          << item.key() << ' ' << when;
      if (!with_grads) continue;
      EXPECT_EQ(own.grad().defined(), item.value().grad().defined())
          << "gradient of " << item.key() << ' ' << when;
      if (!own.grad().defined() || !item.value().grad().defined()) continue;
      EXPECT_LE(distance(own.grad(), item.value().grad()),
                tolerance() * std::max(1.0, item.value().grad().abs().max().item<double>()))
          << "gradient of " << item.key() << ' ' << when;
    }
  }

  const Group group_;
  std::mt19937_64 random_;
  const bool watches_;  // compares after each action
  const bool speaks_;
  c10::ScalarType dtype_ = torch::kFloat;
  FsdpOptions options_;
  bool one_unit_ = false;
  Net whole_;
  Net net_;
  std::set<std::string> frozen_;
  std::set<std::string> unseen_;  // set since the last forward
  enum class Way { kWrapped, kComposed, kNested };
  Way way_ = Way::kWrapped;
  std::optional<Sharded> wrapper_;
  std::shared_ptr<ShardedModule> composed_;
  ShardedModule* sharded_ = nullptr;
  std::vector<std::vector<std::string>> later_;  // units that no optimizer has yet
  std::unique_ptr<Sgd> optimizer_;
  std::unique_ptr<Sgd> whole_optimizer_;
  std::optional<Saved> saved_;
  bool unreduced_ = false;  // the last backward was without synchronization
  double divisor_ = 1;      // of gradients, beside the number of ranks
  int batch_ = 0;
  std::string said_;
};

TEST(Sequences, what_a_user_does_between_steps_is_what_it_is_without_sharding) {
  const int only = number_of("FSDP_TEST_SEQUENCE", -1);
  const int count = number_of("FSDP_TEST_SEQUENCES", 30);
  for (const int world_size : {1, 2, 3}) {
    spawn_ranks(world_size, [&](const Group& group) {
      for (int i = 0; i < count && !HasFailure(); ++i) {
        if (only >= 0 && i != only) continue;
        SCOPED_TRACE("world size " + std::to_string(world_size) + ", sequence " +
                     std::to_string(i));
        Sequence(group, i * 3 + world_size, only >= 0).run();
      }
    });
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace fsdp
