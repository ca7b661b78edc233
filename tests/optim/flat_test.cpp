// How optimizers traverse memory, and how their states are saved.
#include <gmock/gmock.h>
#include <unistd.h>

#include <fstream>

#include "tests/support/errors.h"
#include "troika/base/temporary_folder.h"
#include "troika/compat/torch.h"
#include "troika/optim/optimizer.h"

namespace troika::optim {
namespace {

using testing::ElementsAre;

// Three parameters in one buffer, their gradients in another: 2 x 3, 5 and 4 elements.
struct Bucket {
  Bucket() {
    torch::manual_seed(1);
    values = at::randn({15});
    gradients = at::randn({15});
    const auto add = [&](const char* name, int64_t begin, at::IntArrayRef shape, int64_t count) {
      parameters.push_back({name, values.narrow(0, begin, count).view(shape)});
      parameters.back().tensor.mutable_grad() = gradients.narrow(0, begin, count).view(shape);
    };
    add("a", 0, {2, 3}, 6);
    add("b", 6, {5}, 5);
    add("c", 11, {4}, 4);
  }
  at::Tensor values, gradients;
  std::vector<Parameter> parameters;
};

std::vector<int64_t> lengths(const std::vector<FlatRange>& ranges) {
  std::vector<int64_t> found;
  for (const auto& range : ranges) found.push_back(range.count);
  return found;
}

TEST(FlatParameters, NeighboursInMemoryAreOnePass) {
  const auto all = [](size_t, size_t) { return true; };
  const Bucket bucket;
  const FlatParameters flat(bucket.parameters);
  EXPECT_THAT(lengths(join(flat.gradients().ranges, 4, all)), ElementsAre(15));
  EXPECT_THAT(lengths(join(flat.gradients().ranges, 4, [](size_t, size_t b) { return b != 1; })),
              ElementsAre(6, 9));
  // One gradient outside the buffer, and a missing one.
  bucket.parameters[2].tensor.mutable_grad() = at::randn({4});
  EXPECT_THAT(lengths(join(flat.gradients().ranges, 4, all)), ElementsAre(11, 4));
  bucket.parameters[1].tensor.mutable_grad() = at::Tensor();
  EXPECT_THAT(lengths(join(flat.gradients().ranges, 4, all)), ElementsAre(6, 4));
}

TEST(FlatParameters, PiecesAreCutAtAFixedLength) {
  const auto tensor = at::randn({2 * kAtOnce + 3});
  tensor.mutable_grad() = at::randn_like(tensor);
  const FlatParameters flat({{"x", tensor}});
  const auto parts = cut(flat.gradients().ranges, 4);
  EXPECT_THAT(lengths(parts), ElementsAre(kAtOnce, kAtOnce, 3));
  EXPECT_EQ(static_cast<void*>(parts[2].parameter), tensor.data_ptr<float>() + 2 * kAtOnce);
  EXPECT_EQ(parts[2].offset, 2 * kAtOnce);
}

TEST(FlatOptimizer, ABucketGoesTheWayOfItsTensors) {
  for (const auto& name : optimizer_names()) {
    const Bucket bucket;
    std::vector<Parameter> apart;
    for (const auto& [parameter, tensor, decay, box] : bucket.parameters) {
      apart.push_back({parameter, tensor.clone()});
      apart.back().tensor.mutable_grad() = tensor.grad().clone();
    }
    const auto joined = make_optimizer(bucket.parameters, {.name = name, .weight_decay = 0.1});
    const auto single = make_optimizer(apart, {.name = name, .weight_decay = 0.1});
    for (int step = 0; step < 3; ++step) {
      joined->step();
      single->step();
    }
    for (size_t i = 0; i < apart.size(); ++i) {
      EXPECT_TRUE(bucket.parameters[i].tensor.equal(apart[i].tensor)) << name << " " << i;
    }
  }
}

// Channels-last parameters with gradients of either order.
TEST(FlatOptimizer, TheOrderOfDimensionsInMemoryIsNoMatter) {
  torch::manual_seed(2);
  const auto plain = at::randn({8, 3, 5, 5}), gradient = at::randn_like(plain);
  const auto first = plain.contiguous(at::MemoryFormat::ChannelsLast), second = first.clone();
  plain.mutable_grad() = gradient;
  first.mutable_grad() = gradient;
  second.mutable_grad() = gradient.contiguous(at::MemoryFormat::ChannelsLast);
  const auto optimizer =
      make_optimizer(std::vector<at::Tensor>{plain, first, second}, {.name = "adam"});
  optimizer->step();
  EXPECT_TRUE(first.equal(plain));
  EXPECT_TRUE(second.equal(plain));
  const auto state = optimizer->state();
  EXPECT_EQ(state[0].first, "0.exp_avg");
  EXPECT_EQ(state[3].first, "1.exp_avg");
  EXPECT_TRUE(state[0].second.equal(state[3].second));
}

TEST(FlatOptimizer, ZeroGradKeepsGradientsWhereTheyLie) {
  const Bucket bucket;
  bucket.parameters[1].tensor.mutable_grad() = at::Tensor();
  const auto optimizer = make_optimizer(bucket.parameters, {.name = "sgd"});
  optimizer->zero_grad();
  EXPECT_EQ(bucket.gradients.narrow(0, 0, 6).abs().sum().item<float>(), 0);
  EXPECT_GT(bucket.gradients.narrow(0, 6, 5).abs().sum().item<float>(), 0);
  EXPECT_FALSE(bucket.parameters[1].tensor.grad().defined());
  EXPECT_EQ(bucket.parameters[0].tensor.grad().data_ptr(), bucket.gradients.data_ptr());
}

TEST(FlatOptimizer, StatesHavePyTorchsNames) {
  const std::map<std::string, std::vector<std::string>> expected{
      {"sgd", {"a.momentum_buffer"}},
      {"adam", {"a.exp_avg", "a.exp_avg_sq", "a.step"}},
      {"adamw", {"a.exp_avg", "a.exp_avg_sq", "a.step"}},
      {"adagrad", {"a.sum", "a.step"}},
      {"lars", {"a.momentum_buffer"}},
      {"lamb", {"a.exp_avg", "a.exp_avg_sq", "a.step"}},
      {"adamw_8bit",
       {"a.exp_avg_code", "a.exp_avg_largest", "a.exp_avg_sq_code", "a.exp_avg_sq_largest",
        "a.step"}}};
  for (const auto& name : optimizer_names()) {
    const auto tensor = at::randn({3, 2000});
    std::vector<std::string> names;
    for (const auto& item : make_optimizer({Parameter{"a", tensor}}, {.name = name})->state()) {
      names.push_back(item.first);
    }
    EXPECT_EQ(names, expected.at(name)) << name;
  }
}

TEST(FlatOptimizer, GoesOnFromItsStateAsIfNothingHadBeen) {
  for (const auto& name : optimizer_names()) {
    torch::manual_seed(4);
    const OptimizerOptions options{.name = name, .lr = 0.01, .weight_decay = 0.1};
    const std::vector<at::Tensor> parameters{at::randn({70, 100}), at::randn({9})};
    const auto step = [](const std::vector<at::Tensor>& tensors, FlatOptimizer& optimizer,
                         uint64_t seed) {
      torch::manual_seed(seed);
      for (const auto& tensor : tensors) tensor.mutable_grad() = at::randn_like(tensor);
      optimizer.step();
    };
    const auto optimizer = make_optimizer(parameters, options);
    for (uint64_t i = 0; i < 3; ++i) step(parameters, *optimizer, i);
    std::vector<at::Tensor> copies;
    for (const auto& tensor : parameters) copies.push_back(tensor.clone());
    const auto resumed = make_optimizer(copies, options);
    resumed->load_state(optimizer->state());
    for (uint64_t i = 3; i < 6; ++i) {
      step(parameters, *optimizer, i);
      step(copies, *resumed, i);
    }
    for (size_t i = 0; i < copies.size(); ++i) {
      EXPECT_TRUE(copies[i].equal(parameters[i])) << name << " " << i;
    }
  }
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0;
  file >> pages >> pages;
  return pages * ::sysconf(_SC_PAGESIZE);
}

TEST(FlatOptimizer, OffloadedStatesDoTheSameOutsideOfMemory) {
  const TemporaryFolder folder;
  constexpr int64_t kElements = 8 << 20;
  for (const auto& name : optimizer_names()) {
    if (name == "adamw_8bit") continue;
    const auto make = [&](const std::string& offload) {
      const auto tensor = at::linspace(1, 2, kElements);
      tensor.mutable_grad() = at::linspace(-1, 1, kElements);
      return std::pair(
          tensor, make_optimizer({Parameter{"a", tensor}}, {.name = name, .offload = offload}));
    };
    const auto [expected, plain] = make("");
    const auto [found, offloaded] = make(folder.path());
    plain->step();
    plain->step();
    const int64_t before = resident_bytes();
    offloaded->step();
    offloaded->step();
    EXPECT_LT(resident_bytes() - before, kElements * 4 / 4) << name;
    EXPECT_TRUE(found.equal(expected)) << name;
    EXPECT_TRUE(offloaded->state()[0].second.equal(plain->state()[0].second)) << name;
  }
  EXPECT_ERROR(
      make_optimizer({Parameter{"a", at::ones({2})}}, {.name = "adamw_8bit", .offload = "/tmp"}),
      ErrorKind::usage,
      "[optim] adamw_8bit keeps its states in memory; got offload to /tmp, expected none, "
      "or adamw");
}

TEST(FlatOptimizer, RefusesAStateThatDoesNotFitAndChangesNothing) {
  const auto tensor = at::ones({3});
  const auto optimizer = make_optimizer({Parameter{"a", tensor}}, {.name = "adagrad"});
  const auto fails = [&](const NamedTensors& state, const std::string& message) {
    EXPECT_ERROR(optimizer->load_state(state), ErrorKind::usage, message);
    EXPECT_EQ(optimizer->state()[0].second.sum().item<float>(), 0);
  };
  const auto sum = at::ones({3}), step = at::ones({}, at::kLong);
  fails({{"a.sum", sum}}, "[optim] a state is missing; got none, expected a.step");
  fails({{"a.sum", at::ones({4})}, {"a.step", step}},
        "[optim] state a.sum does not fit; got [4], expected [3]");
  fails({{"a.sum", sum.to(at::kLong)}, {"a.step", step}},
        "[optim] state a.sum does not fit; got integers [3], expected [3]");
  fails({{"a.sum", sum}, {"a.step", step}, {"b.sum", sum}},
        "[optim] an unknown state was given; got b.sum");
  fails({{"a.sum", sum}, {"a.sum", sum}}, "[optim] a state is given twice; got a.sum");
}

TEST(FlatOptimizer, RefusesParametersItCannotStep) {
  const auto fails = [](std::vector<Parameter> parameters, const std::string& message) {
    EXPECT_ERROR(make_optimizer(std::move(parameters), {}), ErrorKind::usage, message);
  };
  const auto x = at::ones({3, 4});
  fails({}, "[optim] nothing to optimize; got no parameters, expected at least one");
  fails({{"w", x.to(at::kBFloat16)}},
        "[optim] cannot optimize w; got BFloat16, expected Float or Double");
  fails({{"w", x}, {"v", at::ones({3}, at::kDouble)}},
        "[optim] cannot optimize v; got Double, expected Float as the parameters before it");
  fails(
      {{"w", x.slice(1, 0, 2)}},
      "[optim] cannot optimize w; got elements with gaps or overlaps in memory, expected a tensor "
      "that fills what it spans");
  fails({{"w", x}, {"v", x}}, "[optim] v and w are one tensor (give a tied parameter once)");
  fails({{"w", x}, {"w", x.clone()}}, "[optim] two parameters have the same name; got w");
}

TEST(FlatOptimizer, RefusesGradientsThatDoNotFit) {
  const auto x = at::ones({3});
  const auto optimizer = make_optimizer(std::vector<at::Tensor>{x}, {});
  x.mutable_grad() = at::ones({4});
  EXPECT_ERROR(optimizer->step(), ErrorKind::usage,
               "[optim] the gradient of 0 does not fit it; got cpu Float 4, expected cpu Float 3");
  x.mutable_grad() = at::ones({3}).to_sparse();
  EXPECT_ERROR(optimizer->step(), ErrorKind::usage,
               "[optim] the gradient of 0 is sparse; expected a dense one");
}

}  // namespace
}  // namespace troika::optim
