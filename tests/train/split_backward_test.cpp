// The stages that split their backward passes in the planner and the simulator, beside a run.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/train/pipelined_runs.h"
#include "troika/data/make_dataset.h"
#include "troika/layout/recompute.h"
#include "troika/layout/stage_cut.h"
#include "troika/parallel/pipeline/stages.h"
#include "troika/plan/search/step_model.h"
#include "troika/plan/simulation/stage_work.h"
#include "troika/train/profile/measure_profile.h"
#include "troika/train/task/task.h"

namespace troika::train {
namespace {

class SplitBackward : public testing::TestWithParam<std::string> {
 protected:
  SplitBackward() : profile_(measure()), task_(nn::make_model(model_)) {}

  // Whether the stage with blocks [begin, end) splits in a run.
  bool in_run(size_t begin, size_t end) const {
    const parallel::StagesOfModel stages(task_.blocks(), {begin, end, blocks()});
    return parallel::can_split_backward(task_.blocks(), stages[1]);
  }
  size_t blocks() const { return profile_.blocks.size(); }

  void compare_planner() {
    const plan::StepModel planner({.profiles = {profile_},
                                   .cluster = layout::Cluster::uniform(1, 3),
                                   .global_batch = profile_.micro_batch});
    for (const std::string policy : {"none", "full"}) {
      task_.recompute(layout::recompute_plan(policy, blocks()));
      for (size_t begin = 0; begin < blocks(); ++begin) {
        for (size_t end = begin + 1; end <= blocks(); ++end) {
          EXPECT_EQ(planner.splits_backward({.recompute = policy == "full"}, begin, end),
                    in_run(begin, end))
              << "blocks " << begin << " to " << end << ", recompute " << policy;
        }
      }
    }
  }

  void compare_simulation() {
    const layout::StageEnds ends{1, blocks() / 2, blocks()};
    std::vector<std::string> names;
    for (const auto& block : profile_.blocks) names.push_back(block.name);
    layout::Plan plan;
    plan.mesh = layout::Mesh::parse("pipeline=3");
    plan.schedule = "zb-h1";
    plan.micro_batches = 6;
    plan.stages.cut = layout::cut_text(ends, names);
    for (const std::string policy : {"none", "full", "every_2"}) {
      plan.recompute = policy;
      task_.recompute(layout::recompute_plan(policy, ends));
      size_t begin = 0, stage = 0;
      for (const auto& work : plan::stage_work(profile_, plan)) {
        EXPECT_EQ(work.splits_backward, in_run(begin, ends[stage]))
            << "stage " << stage << ", recompute " << policy;
        begin = ends[stage++];
      }
    }
  }

  nn::ModelOptions model_;
  const layout::Profile profile_;
  Task task_;

 private:
  // Also chooses the sizes of the model.
  layout::Profile measure() {
    model_ = sizes_of(GetParam());
    std::unique_ptr<data::Dataset> samples = std::make_unique<SizedSamples>(model_);
    if (model_.name == "unet") {
      samples = data::make_dataset({.name = "shape_masks", .train_samples = 2}, data::Split::train);
      model_ = {.name = "unet",
                .num_classes = samples->num_classes(),
                .in_channels = samples->input_shape().at(0),
                .image_size = samples->input_shape().at(1),
                .depth = 2,
                .convolutions = 1,
                .base_width = 4};
    }
    TrainOptions options;
    options.trainer.benchmark = false;
    options.trainer.enable_model_summary = false;
    options.data.workers = 0;
    options.data.batch_size = 2;
    options.model = model_;
    std::string text;
    comm::local::run(1, [&](const comm::Group& group) {
      text = measure_profile(options, *samples, group, {.seconds = 0}).text();
    });
    return layout::Profile::parse(text, "measured");
  }
};

// The profile is measured once, for both.
TEST_P(SplitBackward, IsThatOfARun) {
  compare_planner();
  compare_simulation();
}

INSTANTIATE_TEST_SUITE_P(Models, SplitBackward,
                         testing::Values("mlp", "resnet20", "unet", "gpt", "gpt+lora", "llama"));

}  // namespace
}  // namespace troika::train
