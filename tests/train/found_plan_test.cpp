// Plans that are found by measurement: what they consider if memory is short, and their memory.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "tests/train/pipelined_runs.h"
#include "tests/train/tuned_run.h"
#include "troika/compat/tensor_memory.h"
#include "troika/layout/plan.h"
#include "troika/train/memory/memory_check.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/profile/automatic_plan.h"
#include "troika/train/profile/plan_memory.h"
#include "troika/train/profile/plan_report.h"
#include "troika/train/task/replicated_task.h"

namespace troika::train {
namespace {

using plan::StepFamily;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class FoundPlanRun : public TunedRun {
 protected:
  static constexpr double kPlenty = 1e12;

  FoundPlanRun() {
    options_.trainer.benchmark = false;
    options_.trainer.enable_model_summary = false;
    options_.data.workers = 0;
    options_.optimizer.name = "adamw";
  }
  void SetUp() override {
    TunedRun::SetUp();
    options_.model = sizes_of("mlp");
    options_.model.image_size = 8;
    options_.model.hidden_width = 512;
    options_.model.hidden_layers = 3;
    options_.data.batch_size = 8;
    options_.trainer.max_steps = 3;
  }
  AutomaticPlan find(const comm::Group& group, double memory_bytes,
                     std::vector<std::string> precisions = {}) const {
    const SizedSamples samples(options_.model);
    return find_plan(
        options_, samples, group,
        {.seconds = 0, .precisions = std::move(precisions), .memory_bytes = memory_bytes});
  }
  static std::string precision_of(const AutomaticPlan& automatic) {
    return automatic.model.problem().profiles[automatic.chosen().settings.profile].precision;
  }
  static bool considers(const AutomaticPlan& automatic, const std::string& precision) {
    return std::ranges::any_of(automatic.found.alternatives, [&](const auto& plan) {
      return automatic.model.problem().profiles[plan.settings.profile].precision == precision;
    });
  }
  // The least memory with which an alternative fits.
  static double least_of(const AutomaticPlan& automatic) {
    double least = INFINITY;
    for (const auto& plan : automatic.found.alternatives) {
      least = std::min(least, plan.lacking_bytes + *automatic.model.problem().memory_bytes);
    }
    return least;
  }
  observe::RunSummary run(const AutomaticPlan& automatic, const comm::Group& group) const {
    const auto planned = with_found_plan(options_, automatic, group);
    const SizedSamples samples(options_.model);
    const auto task = make_task_to_fit(planned);
    Trainer trainer(planned, group);
    return trainer.fit(*task, samples, samples);
  }
};

TEST_F(FoundPlanRun, OffloadsOnlyIfTheModelDoesNotFit) {
  compat::count_tensor_memory();
  comm::local::run(1, [&](const comm::Group& group) {
    const auto roomy = find(group, kPlenty);
    EXPECT_THAT(roomy.forced, IsEmpty());
    EXPECT_EQ(precision_of(roomy), "32");
    EXPECT_FALSE(roomy.chosen().settings.offloads_optimizer);
    EXPECT_FALSE(roomy.chosen().settings.offloads_activations);

    const double short_of = 0.95 * least_of(roomy);
    const auto tight = find(group, short_of, {"32"});
    EXPECT_THAT(tight.forced, ElementsAre("offload"));
    ASSERT_TRUE(tight.found.best);
    const auto& settings = tight.chosen().settings;
    EXPECT_TRUE(settings.offloads_optimizer || settings.offloads_activations);
    EXPECT_LE(tight.chosen().lacking_bytes, 0);

    const auto planned = with_found_plan(options_, tight, group);
    const auto plan = layout::Plan::parse(planned.trainer.plan, "plan");
    EXPECT_EQ(plan.stages.parameters, nn::parameter_count(*nn::make_model(options_.model)));
    EXPECT_EQ(!plan.offload.optimizer.empty(), settings.offloads_optimizer);
    EXPECT_EQ(planned.optimizer.offload, plan.offload.optimizer);
    EXPECT_EQ(planned.offload.activations, plan.offload.activations);
    EXPECT_THAT(describe(tight, plan),
                testing::StartsWith("\n  considered   also offload, as the whole model does not "
                                    "fit without\n  savers       without a cut it fits: "));
    const auto summary = run(tight, group);
    ASSERT_EQ(summary.peak_tensor_bytes.size(), 1);
    const auto peak = static_cast<double>(summary.peak_tensor_bytes.front());
    EXPECT_LE(peak, short_of);
    // The prediction counts the most that the windows of offload can hold.
    EXPECT_GE(tight.chosen().memory_bytes.front(), 0.97 * peak);
    EXPECT_LE(tight.chosen().memory_bytes.front(), 1.2 * peak);
  });
}

// The gradients of a GPT come when most of its activations have been freed.
TEST_F(FoundPlanRun, PredictsTheMemoryOfOffloadedActivations) {
  compat::count_tensor_memory();
  options_.model = sizes_of("gpt");
  options_.model.context = 5;
  options_.model.width = 128;
  options_.data.batch_size = 16;
  comm::local::run(1, [&](const comm::Group& group) {
    const auto tight = find(group, 1000, {"32"});
    const auto& all = tight.found.alternatives;
    const auto offloaded = std::ranges::find_if(all, [](const auto& plan) {
      return plan.settings.offloads_activations && plan.settings.offloads_optimizer &&
             !plan.settings.recompute && plan.settings.zero_stage == 0 &&
             plan.settings.profile == 0;
    });
    ASSERT_NE(offloaded, all.end());
    auto automatic = tight;
    automatic.found.best = *offloaded;
    const auto summary = run(automatic, group);
    const auto peak = static_cast<double>(summary.peak_tensor_bytes.at(0));
    EXPECT_GE(offloaded->memory_bytes.front(), 0.97 * peak);
    EXPECT_LE(offloaded->memory_bytes.front(), 1.2 * peak);
  });
}

TEST_F(FoundPlanRun, ConsidersLowerPrecisionsOnlyIfTheModelDoesNotFit) {
  options_.model = sizes_of("gpt");
  options_.optimizer.name = "sgd";
  options_.data.batch_size = 44;
  comm::local::run(1, [&](const comm::Group& group) {
    const auto roomy = find(group, kPlenty);
    EXPECT_THAT(roomy.forced, IsEmpty());
    const auto tight = find(group, 0.95 * least_of(roomy));
    EXPECT_THAT(tight.forced, ElementsAre("bf16-mixed", "bf16-true", "offload"));
    EXPECT_TRUE(considers(tight, "bf16-mixed") && considers(tight, "bf16-true"));
    const auto lower = find(group, kPlenty, {"bf16-true"});
    EXPECT_EQ(with_found_plan(options_, lower, group).trainer.precision, "bf16-true");
    const auto both = find(group, kPlenty, {"32", "bf16"});
    EXPECT_THAT(both.forced, IsEmpty());
    EXPECT_TRUE(considers(both, "bf16-mixed"));
  });
}

// The search takes a pipeline's memory from the prediction that the run itself makes.
TEST_F(FoundPlanRun, HasTheMemoryThatARunOfThePipelinePredicts) {
  compat::count_tensor_memory();
  comm::local::run(2, [&](const comm::Group& group) {
    const SizedSamples samples(options_.model);
    const auto whole = find(group, kPlenty);
    auto pipeline = std::ranges::find_if(whole.found.alternatives, [](const auto& plan) {
      return plan.settings.family == StepFamily::pipeline && plan.settings.zero_stage == 0;
    });
    ASSERT_NE(pipeline, whole.found.alternatives.end());
    EXPECT_TRUE(std::ranges::none_of(whole.found.alternatives, [](const auto& plan) {
      return plan.settings.family == StepFamily::no_flushes;
    }));
    AutomaticPlan automatic = whole;
    automatic.found.best = *pipeline;
    const auto planned = with_found_plan(options_, automatic, group);
    const auto stages = predict_stages(planned, samples, 2, group);
    const auto outlook = check_memory_of(planned, samples, group);
    group.barrier({.label = "memory of a pipeline"});
    ASSERT_EQ(stages.size(), 2);
    if (group.rank() != 0) return;
    ASSERT_EQ(outlook.tensor_bytes.size(), 2) << outlook.why_not;
    for (size_t rank = 0; rank < 2; ++rank) {
      // Both measure a micro-batch, and small allocations of other threads may meet it.
      const auto predicted = static_cast<double>(outlook.tensor_bytes[rank]);
      EXPECT_NEAR(stages[rank].step, predicted, 1e-3 * predicted) << rank;
      EXPECT_GE(stages[rank].most, stages[rank].step);
    }
  });
}

// Plans whose blocks several ranks compute together.
class SharedPlanRun : public FoundPlanRun {
 protected:
  // Runs one of the found plans with this schedule and ZeRO stage that are as asked.
  void expect_runs(AutomaticPlan& found, const comm::Group& group, StepFamily family,
                   int zero_stage,
                   const std::function<bool(const plan::StepSettings&)>& asked) const {
    const auto plan = std::ranges::find_if(found.found.alternatives, [&](const auto& one) {
      return one.settings.family == family && one.settings.zero_stage == zero_stage &&
             asked(one.settings);
    });
    ASSERT_NE(plan, found.found.alternatives.end());
    found.found.best = *plan;
    const auto planned = with_found_plan(options_, found, group);
    const auto read = layout::Plan::parse(planned.trainer.plan, "plan");
    EXPECT_EQ(read.mesh.size(layout::Axis::tensor), plan->settings.axes.tensor);
    EXPECT_EQ(read.mesh.size(layout::Axis::context), plan->settings.axes.context);
    EXPECT_EQ(read.stages.sequence_parallel, plan->settings.axes.sequence);
    EXPECT_EQ(read.stages.tensor_overlap, plan->settings.tensor_overlap);
    const SizedSamples samples(options_.model);
    const auto stages =
        predict_stages(planned, samples, static_cast<int>(plan->stages.size()), group);
    ASSERT_EQ(stages.size(), plan->stages.size()) << "its memory is predicted";
    EXPECT_EQ(run(found, group).steps, 3);
  }
};

TEST_F(SharedPlanRun, HasATensorAxis) {
  compat::count_tensor_memory();
  options_.model = sizes_of("llama");
  options_.data.batch_size = 4;
  const auto asked = [](const plan::StepSettings& of) { return of.axes.tensor > 1; };
  const auto overlapped = [](const plan::StepSettings& of) { return of.tensor_overlap; };
  comm::local::run(4, [&](const comm::Group& group) {
    auto found = find(group, kPlenty, {"32"});
    expect_runs(found, group, StepFamily::one_stage, 1, asked);
    expect_runs(found, group, StepFamily::pipeline, 0, asked);
    expect_runs(found, group, StepFamily::one_stage, 0, overlapped);
    expect_runs(found, group, StepFamily::one_stage, 1, overlapped);
    expect_runs(found, group, StepFamily::pipeline, 0, overlapped);
  });
  options_.optimizer.name = "adamw_8bit";
  comm::local::run(2, [&](const comm::Group& group) {
    for (const auto& plan : find(group, kPlenty, {"32"}).found.alternatives) {
      EXPECT_EQ(plan.settings.axes, plan::BlockAxes());
    }
  });
}

// The attention that a rank alone uses may be timed; that of a ring is not.
TEST_F(SharedPlanRun, HasAContextAxis) {
  compat::count_tensor_memory();
  options_.trainer.benchmark = true;
  options_.model = sizes_of("llama8");
  options_.data.batch_size = 4;
  const auto asked = [](const plan::StepSettings& of) { return of.axes.context > 1; };
  comm::local::run(4, [&](const comm::Group& group) {
    auto found = find(group, kPlenty, {"32"});
    expect_runs(found, group, StepFamily::one_stage, 0, asked);
    expect_runs(found, group, StepFamily::one_stage, 1, asked);
    expect_runs(found, group, StepFamily::pipeline, 0, asked);
  });
}

TEST_F(FoundPlanRun, MayHaveNoFlushesIfTheConfiguredStrategyHasNone) {
  const auto without_flushes = [](const AutomaticPlan& automatic) {
    return std::ranges::find_if(automatic.found.alternatives, [](const auto& plan) {
      return plan.settings.family == StepFamily::no_flushes && !plan.settings.recompute;
    });
  };
  options_.trainer.strategy = "pipedream";
  comm::local::run(2, [&](const comm::Group& group) {
    auto found = find(group, kPlenty, {"32"});
    const auto plan = without_flushes(found);
    ASSERT_NE(plan, found.found.alternatives.end());
    found.found.best = *plan;
    const auto planned = with_found_plan(options_, found, group);
    const auto read = layout::Plan::parse(planned.trainer.plan, "plan");
    EXPECT_EQ(read.schedule, "pipedream");
    EXPECT_EQ(read.mesh.text(), "pipeline=2 data=1");
    EXPECT_EQ(run(found, group).steps, 3);
  });
  options_.model = sizes_of("gpt");  // shares its embedding
  comm::local::run(2, [&](const comm::Group& group) {
    const auto found = find(group, kPlenty, {"32"});
    EXPECT_EQ(without_flushes(found), found.found.alternatives.end());
  });
}

// On a machine with slow links, whose weight parts of backward passes are short: averages take
// longer than passes, and pipelines with flushes idle.
TEST_F(FoundPlanRun, ChoosesAPipelineWithoutFlushes) {
  for (const std::string strategy : {"pipedream", "pipedream_2bw"}) {
    SCOPED_TRACE(strategy);
    options_.trainer.strategy = strategy;
    options_.data.batch_size = strategy == "pipedream" ? 2 : 1;  // two samples in a step
    comm::local::run(2, [&](const comm::Group& group) {
      auto measured = find(group, kPlenty, {"32"});
      auto problem = measured.model.problem();
      problem.cuts_layers = false;
      auto& cluster = problem.cluster;
      cluster.group = cluster.host = cluster.network = {1e-5, 1e7};
      for (auto& profile : problem.profiles) {
        for (auto& block : profile.blocks) {
          block.forward = block.backward_input = 0.01 * profile.micro_batch;
          block.backward_weight = 0.005 * profile.micro_batch;
          block.spread = 0;
        }
      }
      plan::StepModel model(problem);
      auto found = plan::search_steps(model);
      const AutomaticPlan automatic{.model = std::move(model), .found = std::move(found)};
      const auto planned = with_found_plan(options_, automatic, group);
      const auto read = layout::Plan::parse(planned.trainer.plan, "plan");
      EXPECT_EQ(read.schedule, strategy == "pipedream" ? "pipedream" : "pipedream-2bw");
      EXPECT_EQ(read.mesh.text(), "pipeline=2 data=1");
      EXPECT_EQ(run(automatic, group).steps, 3);
    });
  }
}

TEST_F(FoundPlanRun, RefusesAnUnknownPrecision) {
  comm::local::run(1, [&](const comm::Group& group) {
    try {
      find(group, kPlenty, {"32", "bf61"});
      ADD_FAILURE() << "not refused";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("unknown precision; got bf61"));
    }
  });
}

}  // namespace
}  // namespace troika::train
