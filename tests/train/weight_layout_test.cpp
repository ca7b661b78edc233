// Runs of GPTs with the weight layout out_in, against runs with in_out.
#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "troika/base/temporary_folder.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/nn/zoo.h"
#include "troika/train/task/replicated_task.h"
#include "troika/train/trainer.h"

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

// Ranks are threads here, which share one generator.
std::shared_ptr<Task> make_sentences_task() {
  auto model = nn::make_model(kGptOfARun);
  const torch::NoGradGuard no_grad;
  double phase = 0;
  for (auto& parameter : model->parameters()) {
    const auto waves = torch::sin(torch::arange(parameter.numel(), torch::kDouble) + ++phase);
    parameter.copy_(waves.view_as(parameter) / 4);
  }
  return std::make_shared<Task>(model);
}

class WeightLayoutOfARun : public testing::Test {
 protected:
  WeightLayoutOfARun() {
    options_.run.folder = folder_.path().string();
    options_.run.overwrite = true;
    options_.trainer.precision = "64";
    options_.trainer.max_epochs = 2;
    options_.trainer.enable_progress_bar = false;
    options_.data.global_batch_size = 4;
    options_.optimizer = {.name = "adamw", .lr = 1e-2};
    options_.schedule.name = "constant";  // others depend on the length of the run
    options_.comm.bucket_megabytes = 1e-2;
    options_.comm.first_bucket_megabytes = 1e-3;
  }

  static std::shared_ptr<Task> make_task_for(const TrainOptions& options) {
    if (options.trainer.strategy != "dp") return make_sentences_task();
    return std::make_shared<ReplicatedTask>(
        std::vector<std::shared_ptr<Task>>{make_sentences_task(), make_sentences_task()});
  }

  // Rank 0's weights.
  static state::StateDict fit(const TrainOptions& options, int ranks) {
    state::StateDict result;
    comm::local::run(ranks, [&](comm::Group group) {
      const auto task = make_task_for(options);
      const Sentences sentences;
      Trainer(options, group).fit(*task, sentences, sentences);
      if (group.rank() == 0) result = nn::named_state(task->module());
    });
    return result;
  }

  state::StateDict fit(const std::string& layout, int ranks) {
    options_.trainer.weight_layout = layout;
    return fit(options_, ranks);
  }

  // The run from its last checkpoint to its end.
  state::StateDict resume(const std::string& layout, int ranks = 1) const {
    auto options = options_;
    options.trainer.weight_layout = layout;
    options.trainer.ckpt_path = "last";
    return fit(options, ranks);
  }

  static void expect_equal(const state::StateDict& a, const state::StateDict& b, double tolerance) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_TRUE(a[i].second.allclose(b[i].second, tolerance, tolerance)) << a[i].first;
    }
  }

  static bool is_out_in(const state::StateDict& state) {
    for (const auto& [name, tensor] : state) {
      if (name == "transformer.h.1.mlp.c_fc.weight") return tensor.t().is_contiguous();
    }
    ADD_FAILURE() << "no such weight";
    return false;
  }

  const TemporaryFolder folder_;
  TrainOptions options_;
};

TEST_F(WeightLayoutOfARun, EveryStrategyGetsTheSameWeights) {
  for (const char* strategy : {"ddp", "dp", "local_sgd", "diloco", "zero1", "zero2", "zero3"}) {
    SCOPED_TRACE(strategy);
    options_.trainer.strategy = strategy;
    options_.trainer.devices = 2;
    options_.diloco.period = 2;
    options_.trainer.accumulate_grad_batches = strategy == std::string("ddp") ? 2 : 1;
    const auto whole = fit("in_out", 2);
    const auto turned = fit("out_in", 2);
    expect_equal(turned, whole, 1e-9);
    EXPECT_FALSE(is_out_in(whole));
    EXPECT_EQ(is_out_in(turned), !std::string(strategy).starts_with("zero"));
  }
}

TEST_F(WeightLayoutOfARun, CheckpointsGoIntoEither) {
  for (const std::string strategy : {"ddp", "zero2"}) {
    options_.trainer.strategy = strategy;
    for (const std::string from : {"in_out", "out_in"}) {
      options_.run.name = strategy + from;
      options_.trainer.max_epochs = 2;
      const auto whole = fit(from, 2);
      options_.run.name += "-resumed";
      options_.trainer.max_epochs = 1;
      fit(from, 2);
      options_.trainer.max_epochs = 2;
      // Without checkpoints of their own, both resume from that one.
      options_.checkpoint.enabled = false;
      for (const std::string to : {"in_out", "out_in"}) {
        SCOPED_TRACE(options_.run.name + " from " + from + " to " + to);
        expect_equal(resume(to, 2), whole, from == to ? 0 : 1e-9);
      }
      options_.checkpoint.enabled = true;
    }
  }
}

TEST_F(WeightLayoutOfARun, StatesThatFollowTheMemoryStayInIt) {
  const auto expect_refused = [&] {
    fit("out_in", 1);
    EXPECT_NO_THROW(resume("out_in"));
    EXPECT_ERROR(resume("in_out"), ErrorKind::usage,
                 "[train] states of adamw_8bit and of ddp.hook follow the order of weights in "
                 "memory; got a checkpoint of out_in for in_out, expected the same order (set "
                 "trainer.weight_layout to out_in)");
  };
  options_.trainer.max_epochs = 1;
  options_.optimizer.name = "adamw_8bit";
  expect_refused();
  options_.run.name = "hook";
  options_.optimizer.name = "adamw";
  options_.ddp.codec.name = "topk";
  expect_refused();
}

}  // namespace
}  // namespace troika::train
