// Modules that are made without memory get the values that they would have had.
#include "troika/compat/deferred_init.h"

#include <gtest/gtest.h>

#include "troika/base/memory.h"
#include "troika/compat/tensor_memory.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/nn/zoo.h"

namespace troika::nn {
namespace {

using compat::DeferredInit;

int64_t largest_of(const torch::nn::Module& module) {
  int64_t result = 0;
  for (const auto& item : named_state(module)) {
    result = std::max(result, static_cast<int64_t>(item.second.nbytes()));
  }
  return result;
}

struct DeferredCase {
  std::string model;
  at::ScalarType type;
};

class Deferred : public testing::TestWithParam<DeferredCase> {
 protected:
  Deferred() {
    compat::count_tensor_memory();
    options_.name = GetParam().model;
  }

  std::shared_ptr<Model> make() const {
    auto model = make_model(options_);
    model->to(GetParam().type);
    return model;
  }

  ModelOptions options_;
};

TEST_P(Deferred, ValuesAreThoseOfAModelThatIsMadeAtOnce) {
  torch::manual_seed(7);
  const auto expected = make();
  torch::manual_seed(7);
  DeferredInit init;
  std::shared_ptr<Model> model;
  init.record([&] { model = make(); });
  ASSERT_TRUE(init.is_complete());
  // Another rank, which may be a thread of this process, draws from the default generator.
  const auto generator = at::detail::getDefaultCPUGenerator();
  const auto before = generator.get_state();
  init.materialize([&](DeferredInit::Key, const at::Tensor&) {
    EXPECT_TRUE(generator.get_state().equal(before));
    return false;
  });
  const auto state = named_state(*model), wanted = named_state(*expected);
  ASSERT_EQ(state.size(), wanted.size());
  for (size_t i = 0; i < state.size(); ++i) {
    EXPECT_TRUE(state[i].second.equal(wanted[i].second)) << state[i].first;
  }
}

TEST_P(Deferred, TensorsHaveMemoryOneAfterAnother) {
  const int64_t before = memory::live();
  memory::restart_peak();
  DeferredInit init;
  std::shared_ptr<Model> model;
  init.record([&] { model = make(); });
  const int64_t made = memory::peak() - before;
  int64_t small = 0, tensors = 0, taken = 0;
  std::set<DeferredInit::Key> keys;
  for (const auto& item : named_state(*model)) {
    const auto bytes = static_cast<int64_t>(item.second.nbytes());
    small += bytes < compat::kLeastWithoutMemory ? bytes : 0;
    tensors += init.has(item.second) ? 1 : 0;
    keys.insert(DeferredInit::key(item.second));
  }
  EXPECT_LE(made, 4 * small + (1 << 20)) << "large ones have none";
  memory::restart_peak();
  init.materialize([&](DeferredInit::Key key, const at::Tensor&) {
    taken += static_cast<int64_t>(keys.count(key));
    return true;
  });
  EXPECT_EQ(taken, tensors);
  EXPECT_LE(memory::peak() - before, 3 * largest_of(*model) + made);
}

INSTANTIATE_TEST_SUITE_P(
    Of, Deferred,
    testing::Values(DeferredCase{"gpt", at::kFloat}, DeferredCase{"gpt", at::kBFloat16},
                    DeferredCase{"mlp", at::kFloat}, DeferredCase{"resnet18_cifar", at::kFloat},
                    DeferredCase{"resnet18_cifar", at::kDouble},
                    DeferredCase{"vgg11_bn_cifar", at::kFloat}),
    [](const auto& info) { return info.param.model + c10::toString(info.param.type); });

// Twice drawn, of which the first is lost, as layers do it.
TEST(DeferredInit, LostDrawsAreMadeAsWell) {
  const auto make = [] {
    auto first = torch::empty({300, 200}).normal_();
    const auto second =
        torch::empty({300, 200}).uniform_(0, 1, at::detail::getDefaultCPUGenerator());
    first.normal_(1.0, 2.0);
    return std::pair(first * second, second);
  };
  torch::manual_seed(3);
  const auto expected = make();
  torch::manual_seed(3);
  DeferredInit init;
  std::pair<at::Tensor, at::Tensor> made;
  init.record([&] { made = make(); });
  ASSERT_TRUE(init.is_complete());
  init.materialize([](DeferredInit::Key, const at::Tensor&) { return false; });
  EXPECT_TRUE(made.first.equal(expected.first));
  EXPECT_TRUE(made.second.equal(expected.second));
}

TEST(DeferredInit, TellsThatValuesWereRead) {
  DeferredInit init;
  init.record([] { static_cast<void>(torch::randn({300, 300}).sum().item<float>()); });
  EXPECT_FALSE(init.is_complete());
  EXPECT_THROW(init.materialize([](DeferredInit::Key, const at::Tensor&) { return true; }),
               CheckError);
}

TEST(DeferredInit, TakesAnotherGenerator) {
  torch::manual_seed(5);
  const auto expected = torch::randn({300, 300});
  torch::manual_seed(5);
  const auto five = at::detail::getDefaultCPUGenerator().get_state();
  torch::manual_seed(6);
  DeferredInit init;
  at::Tensor made;
  init.record([&] { made = torch::randn({300, 300}); });
  init.set_generator(five);
  init.materialize([](DeferredInit::Key, const at::Tensor&) { return false; });
  EXPECT_TRUE(made.equal(expected));
}

}  // namespace
}  // namespace troika::nn
