// The engine of one stage, micro-batch by micro-batch.
#include "troika/train/engine/engine.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "tests/train/waves.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/observe/step_times.h"
#include "troika/train/engine/optimization.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/task/step_losses.h"

namespace troika::train {
namespace {

using testing::ElementsAre;

// Records the calls of an engine, and ends the step early if asked to.
class Noted : public MicroBatches {
 public:
  Noted(std::vector<std::string>& notes, int64_t count, int64_t begin, int64_t given)
      : MicroBatches(/*step=*/0, count, begin), notes_(notes), given_(given) {}

  const data::Batch* next() override {
    if (taken_ == given_) return nullptr;
    const int64_t number = begin() + taken_++;
    notes_.push_back(fmt::format("next {}", number));
    batch_ = Waves().load(std::vector<int64_t>{2 * number, 2 * number + 1, 7}, {});
    return &batch_;
  }
  void done(const at::Tensor& loss) override {
    EXPECT_EQ(loss.numel(), 1);
    EXPECT_FALSE(loss.requires_grad()) << "it would keep its graph";
    notes_.push_back("done");
  }

 private:
  std::vector<std::string>& notes_;
  const int64_t given_;
  int64_t taken_ = 0;
  data::Batch batch_;
};

class OneStage : public testing::Test {
 protected:
  explicit OneStage(int64_t micro_batches = 3) {
    options_.trainer.accumulate_grad_batches = micro_batches;
    options_.optimizer = {.name = "sgd", .lr = 0.1};
  }

  // The model's parameters after steps that `train` makes.
  template <typename Train>
  std::vector<at::Tensor> after(const Train& train) {
    std::vector<at::Tensor> result;
    comm::local::run(1, [&](const comm::Group& group) {
      Task task(make_waves_model(4, 0));
      task.module().train();
      const auto plan = resolve_plan(options_, cluster_of(group));
      const comm::MeshGroups groups(group, plan.mesh);
      observe::StepTimes times;
      const auto engine = make_engine({.options = options_,
                                       .plan = plan,
                                       .task = task,
                                       .groups = groups,
                                       .steps = 1,
                                       .global_batch = 3,
                                       .times = times,
                                       .before_step = [&] { notes_.push_back("step"); }});
      train(*engine);
      for (const auto& parameter : task.module().parameters()) {
        result.push_back(parameter.detach().clone());
      }
    });
    return result;
  }

  StepResult step(Engine& engine, int64_t count, int64_t begin, int64_t given) {
    Noted batches(notes_, count, begin, given);
    return engine.step(batches);
  }

  TrainOptions options_;
  std::vector<std::string> notes_;
};

TEST_F(OneStage, TrainsOnOneMicroBatchAfterAnother) {
  after([&](Engine& engine) { EXPECT_TRUE(step(engine, 3, 0, 3).is_complete); });
  EXPECT_THAT(notes_, ElementsAre("next 0", "done", "next 1", "done", "next 2", "step", "done"));
}

TEST_F(OneStage, GoesOnWithAStepThatWasLeft) {
  const auto whole = after([&](Engine& engine) { step(engine, 3, 0, 3); });
  notes_.clear();
  const auto cut = after([&](Engine& engine) {
    const auto before = engine.state(/*in_step=*/false).model;
    EXPECT_FALSE(step(engine, 3, 0, 0).is_complete);
    EXPECT_FALSE(step(engine, 3, 0, 2).is_complete);
    for (const auto& [name, tensor] : before) EXPECT_TRUE(tensor.defined()) << name;
    EXPECT_TRUE(step(engine, 3, 2, 1).is_complete);
  });
  EXPECT_THAT(notes_, ElementsAre("next 0", "done", "next 1", "done", "next 2", "step", "done"));
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(cut[i].equal(whole[i])) << i;
}

// The last step of an epoch, whose gradients are still divided by the plan's number.
TEST_F(OneStage, MayHaveFewerMicroBatchesThanThePlan) {
  after([&](Engine& engine) {
    EXPECT_TRUE(step(engine, 1, 0, 1).is_complete);
    EXPECT_TRUE(step(engine, 2, 0, 2).is_complete);
  });
  EXPECT_THAT(notes_,
              ElementsAre("next 0", "step", "done", "next 0", "done", "next 1", "step", "done"));
}

TEST(StepLosses, AreReadTogether) {
  StepLosses losses;
  EXPECT_TRUE(losses.read().empty());
  data::Batch batch{at::zeros({2, 3}), at::zeros({2}, at::kLong)};
  batch.samples = {4, 9};
  const auto loss = at::full({1}, 0.5).set_requires_grad(true);
  losses.add(loss * 2, /*step=*/3, /*epoch=*/1, batch);
  losses.add(at::scalar_tensor(NAN), 4, 1, batch);
  EXPECT_EQ(losses.count(), 2);
  const auto read = losses.read();
  ASSERT_EQ(read.size(), 2);
  EXPECT_EQ(read[0].loss, 1);
  EXPECT_EQ(read[0].step, 3);
  EXPECT_EQ(read[0].epoch, 1);
  EXPECT_EQ(read[0].size, 2);
  EXPECT_THAT(read[0].samples, ElementsAre(4, 9));
  EXPECT_TRUE(std::isnan(read[1].loss));
  EXPECT_EQ(losses.count(), 0);
}

}  // namespace
}  // namespace troika::train
