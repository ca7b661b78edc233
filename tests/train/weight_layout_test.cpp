// Runs of GPTs with the weight layout out_in, against runs with in_out.
#include <gmock/gmock.h>

#include "tests/train/layout_run.h"
#include "troika/compat/torch.h"
#include "troika/nn/zoo.h"

namespace troika::train {
namespace {

class Sentences : public data::Dataset {
 public:
  int64_t size() const override { return 16; }
  data::Batch load(std::span<const int64_t> indices, std::optional<uint64_t>) const override {
    const auto numbers = at::tensor(std::vector<int64_t>(indices.begin(), indices.end()));
    const auto tokens = (numbers.view({-1, 1}) * 3 + at::arange(7, at::kLong)) % 5;
    return {tokens.narrow(1, 0, 6), tokens.narrow(1, 1, 6)};
  }
  int64_t num_classes() const override { return 5; }
  std::vector<int64_t> input_shape() const override { return {6}; }
};

const nn::ModelOptions kGptOfARun{
    .name = "gpt", .vocab_size = 5, .context = 6, .layers = 2, .heads = 2, .width = 8};

std::shared_ptr<Task> make_sentences_task() {
  auto model = nn::make_model(kGptOfARun);
  fill_with_waves(*model, 0.25);
  return std::make_shared<Task>(model);
}

bool is_out_in(const state::StateDict& weights) {
  for (const auto& [name, tensor] : weights) {
    if (name == "transformer.h.1.mlp.c_fc.weight") return tensor.t().is_contiguous();
  }
  ADD_FAILURE() << "no such weight";
  return false;
}

class WeightLayoutOfARun : public LayoutRun {
 protected:
  WeightLayoutOfARun()
      : LayoutRun(
            {"weight_layout", &TrainOptions::Trainer::weight_layout, "in_out", "out_in", is_out_in},
            make_sentences_task, std::make_shared<Sentences>()) {
    options_.optimizer.lr = 1e-2;
  }
};

TEST_F(WeightLayoutOfARun, EveryStrategyGetsTheSameWeights) {
  expect_that_every_strategy_gets_the_same_weights();
}

TEST_F(WeightLayoutOfARun, CheckpointsGoIntoEither) {
  expect_that_checkpoints_can_be_loaded_into_either();
}

TEST_F(WeightLayoutOfARun, StatesThatFollowTheMemoryStayInIt) {
  expect_that_states_stay_in_their_order();
}

}  // namespace
}  // namespace troika::train
