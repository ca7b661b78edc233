// Profiles of models, and plans that are found from them.
#include "troika/train/profile/measure_profile.h"

#include <gmock/gmock.h>

#include <cmath>
#include <numeric>

#include "tests/support/errors.h"
#include "tests/train/pipelined_runs.h"
#include "tests/train/tuned_run.h"
#include "troika/compat/flop_counter.h"
#include "troika/data/make_dataset.h"
#include "troika/plan/search/step_layout.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/profile/automatic_plan.h"
#include "troika/train/profile/block_memory.h"
#include "troika/train/profile/like_device.h"
#include "troika/train/profile/link_times.h"
#include "troika/train/profile/plan_report.h"
#include "troika/train/profile/robust_spread.h"

namespace troika::train {
namespace {

using testing::AllOf;
using testing::Each;
using testing::Gt;
using testing::HasSubstr;
using testing::SizeIs;

TEST(RobustSpread, LeavesOutliersOut) {
  const auto spread = robust_spread({1, 3, 2, 6, 1000});
  EXPECT_EQ(spread.mean, 3);
  EXPECT_NEAR(spread.deviation, 2 * 1.4826, 1e-12);
  EXPECT_EQ(robust_spread({2, 4}).mean, 3);
  EXPECT_EQ(robust_spread({5, 5, 5, 6}).mean, 5) << "more than half are equal";
}

// A time of a step is the sum of many, so its middle is near the sum of the means.
TEST(RobustSpread, CountsALongTail) {
  const auto spread = robust_spread({10, 11, 9, 10, 15, 10, 14, 12, 11});
  EXPECT_NEAR(spread.mean, 102.0 / 9, 1e-12);
}

TEST(BlockMemory, ComesFromThePartsOfAPass) {
  using Kind = PassEvent::Kind;
  // Two blocks. The first saves 10 and needs 7 more at once, the second saves 20. Backward, the
  // second needs 5 beyond the 30 that are saved, and the first 4 beyond 10.
  const std::vector<PassPart> parts{{{Kind::block, 0, 1}, 3, 3},    {{Kind::block, 1, -1}, 20, 13},
                                    {{Kind::forward_done}, 33, 33}, {{Kind::block, 1, 0}, 33, 33},
                                    {{Kind::gradient, 1}, 38, 30},  {{Kind::block, 0, -1}, 30, 14},
                                    {{Kind::gradient, 0}, 17, 5},   {{Kind::end}, 5, 0}};
  const auto memory = memory_of_blocks(parts, 2);
  EXPECT_EQ(memory[0].saved, 10);
  EXPECT_EQ(memory[0].workspace, 7);
  EXPECT_EQ(memory[1].saved, 20);
  EXPECT_EQ(memory[1].workspace, 5);
}

data::Batch batch_of(const std::string& model, int64_t size) {
  std::vector<int64_t> indices(static_cast<size_t>(size));
  std::iota(indices.begin(), indices.end(), 0);
  auto batch = SizedSamples(sizes_of(model)).load(indices, {});
  return batch;
}

TEST(BlockTimes, RunTheWholeStepBlockByBlock) {
  comm::local::run(1, [](const comm::Group& group) {
    for (const std::string model : {"mlp", "gpt", "resnet20"}) {
      Task task(make_sized_model(model));
      const Placement placement;
      placement.place(task.module());
      const auto batch = placement.place(batch_of(model, 4));
      BlockTimes times(task, placement, batch, group);
      for (const auto round : {Round::whole, Round::extra, Round::whole, Round::split}) {
        EXPECT_GT(times.run(round), 0);
      }
      ASSERT_THAT(times.seconds(), SizeIs(task.blocks().blocks().size()));
      for (const auto& block : times.seconds()) {
        EXPECT_THAT(block.forward, AllOf(SizeIs(2), Each(Gt(0))));
        EXPECT_THAT(block.backward, AllOf(SizeIs(2), Each(Gt(0))));
        EXPECT_THAT(block.backward_input, SizeIs(1));
        EXPECT_THAT(block.backward_weight, SizeIs(1));
      }
      // The products of a step that is not cut into blocks.
      double whole = 0;
      {
        const compat::FlopCounter counter;
        task.training_step(batch).backward();
        whole = static_cast<double>(counter.flops());
      }
      double sum = 0, of_forward = 0;
      for (const auto& block : times.count_products()) {
        for (const auto& product : block.forward) of_forward += product.flops;
        for (const auto& product : block.backward) sum += product.flops;
      }
      EXPECT_DOUBLE_EQ(of_forward + sum, whole) << model;
      EXPECT_GT(sum, of_forward) << model;
    }
  });
}

class Profiling : public TunedRun {
 protected:
  Profiling() {
    options_.trainer.benchmark = false;
    options_.trainer.enable_model_summary = false;
    options_.data.workers = 0;
    options_.optimizer.name = "adamw";
  }

  // The same profile on every rank.
  layout::Profile measure(int ranks, const ProfileOptions& asked) const {
    std::vector<std::string> texts(static_cast<size_t>(ranks));
    comm::local::run(ranks, [&](const comm::Group& group) {
      const SizedSamples samples(options_.model);
      texts[static_cast<size_t>(group.rank())] =
          measure_profile(options_, samples, group, asked).text();
    });
    for (const auto& text : texts) EXPECT_EQ(text, texts.front());
    return layout::Profile::parse(texts.front(), "measured");
  }
};

TEST_F(Profiling, MeasuresEveryBlock) {
  for (const std::string model : {"mlp", "resnet20"}) {
    options_.model = sizes_of(model);
    const auto profile = measure(2, {.seconds = 0});
    EXPECT_EQ(profile.model.name, model);
    EXPECT_EQ(profile.micro_batch, 4);
    EXPECT_NEAR(profile.optimizer_factor, 2, 0.2) << "two moments, and counts of steps";
    EXPECT_GT(profile.optimizer_bytes_per_second, 0);
    EXPECT_GT(profile.device_flops, 0);
    EXPECT_GT(profile.group.link.bandwidth, 0);
    EXPECT_EQ(profile.network.link.bandwidth, 0);
    const auto built = nn::make_model(options_.model);
    ASSERT_EQ(profile.blocks.size(), built->blocks().size());
    double parameters = 0, bytes = 0;
    for (const auto& tensor : built->parameters())
      parameters += static_cast<double>(tensor.nbytes());
    for (size_t i = 0; i < profile.blocks.size(); ++i) {
      const auto& block = profile.blocks[i];
      EXPECT_EQ(block.name, built->blocks()[i].name);
      EXPECT_GT(block.forward, 0);
      EXPECT_GT(block.backward(), 0);
      EXPECT_GT(block.output_bytes, 0);
      bytes += block.parameter_bytes;
    }
    EXPECT_EQ(bytes, parameters) << model;
  }
}

// Half of the samples make half of the activations. Tensors between blocks that are not neighbours
// are edges.
TEST_F(Profiling, CountsBytesOfAMicroBatch) {
  options_.data.name = "shape_masks";
  options_.data.train_samples = 8;
  const auto masks = data::make_dataset(options_.data, data::Split::train);
  options_.model = {.name = "unet",
                    .num_classes = masks->num_classes(),
                    .in_channels = masks->input_shape().at(0),
                    .image_size = masks->input_shape().at(1),
                    .depth = 2,
                    .convolutions = 1,
                    .base_width = 4};
  comm::local::run(1, [&](const comm::Group& group) {
    const auto whole = measure_profile(options_, *masks, group, {.micro_batch = 8, .seconds = 0});
    const auto half = measure_profile(options_, *masks, group, {.micro_batch = 4, .seconds = 0});
    EXPECT_GT(whole.edges.size(), whole.blocks.size() - 1);
    double saved = 0, of_half = 0;
    for (const auto& block : whole.blocks) saved += block.saved_bytes;
    for (const auto& block : half.blocks) of_half += block.saved_bytes;
    EXPECT_NEAR(of_half / saved, 0.5, 0.05);
  });
}

TEST_F(Profiling, RefusesADeviceThatNobodyPublished) {
  comm::local::run(1, [&](const comm::Group& group) {
    const SizedSamples samples(options_.model);
    try {
      measure_profile(options_, samples, group, {.seconds = 0, .like = "A1000"});
      ADD_FAILURE() << "not refused";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("[train] no published rates of this device; got A1000, "
                                          "expected one of H200 NVL, "));
      EXPECT_THAT(error.what(), HasSubstr("did you mean A100?"));
    }
  });
}

TEST(LikeDevice, ScalesByTheRoofline) {
  layout::Profile profile{
      .optimizer_bytes_per_second = 10,
      .blocks = {{.name = "product", .forward = 1, .backward_input = 2, .backward_weight = 4},
                 {.name = "activation", .forward = 1, .saved_bytes = 8}}};
  // Bound by computing on both devices forward; backward by memory on the other device.
  const std::vector<BlockProducts> products{
      {.forward = {{.flops = 100, .bytes = 1}}, .backward = {{.flops = 100, .bytes = 100}}}, {}};
  scale_to(profile, products, {.flops = 10, .bandwidth = 10}, {.flops = 1000, .bandwidth = 20});
  EXPECT_DOUBLE_EQ(profile.blocks[0].forward, 0.01);
  EXPECT_DOUBLE_EQ(profile.blocks[0].backward_input, 1);
  EXPECT_DOUBLE_EQ(profile.blocks[0].backward_weight, 2);
  EXPECT_DOUBLE_EQ(profile.blocks[1].forward, 0.5);
  EXPECT_DOUBLE_EQ(profile.optimizer_bytes_per_second, 20);
  EXPECT_EQ(profile.device_flops, 1000);
}

TEST(LinkTimes, AreThoseOfEachLevel) {
  comm::local::run(3, [](const comm::Group& group) {
    const auto links = measure_link_times(group, at::kCPU, kLeastGradients, 0);
    EXPECT_GT(links.inside.link.latency, 0);
    EXPECT_GT(links.inside.link.bandwidth, 0);
    EXPECT_EQ(links.between, layout::MeasuredLink{});
    if (group.rank() == 0) {
      comm::local::run(1, [](const comm::Group& alone) {
        EXPECT_EQ(measure_link_times(alone, at::kCPU, kLeastGradients, 0).inside,
                  layout::MeasuredLink{});
      });
    }
  });
}

class Planning : public Profiling {
 protected:
  // Calls `body` on every rank with the plan that was found.
  void find(int ranks, const std::function<void(const AutomaticPlan&, const comm::Group&)>& body) {
    comm::local::run(ranks, [&](const comm::Group& group) {
      const SizedSamples samples(options_.model);
      body(find_plan(options_, samples, group, {.seconds = 0}), group);
    });
  }
};

TEST_F(Planning, FindsAPlanThatTheTrainerRuns) {
  options_.model = sizes_of("mlp");
  options_.data.batch_size = 8;
  options_.trainer.accumulate_grad_batches = 2;
  for (const int ranks : {1, 2}) {
    std::vector<std::string> plans(static_cast<size_t>(ranks));
    find(ranks, [&](const AutomaticPlan& automatic, const comm::Group& group) {
      ASSERT_TRUE(automatic.found.best);
      const auto planned = with_found_plan(options_, automatic, group);
      plans[static_cast<size_t>(group.rank())] = planned.trainer.plan;
      const auto plan = resolve_plan(planned, cluster_of(group));
      require_runnable(plan, group.size());
      // The samples of a step are those of the configuration.
      EXPECT_EQ(planned.data.global_batch_size * plan.micro_batches, 16 * ranks);
      bool has_pipelines = false;
      for (const auto& row : automatic.found.alternatives) {
        EXPECT_EQ(row.settings.devices, ranks);
        has_pipelines |= row.settings.family != plan::StepFamily::one_stage;
        require_runnable(plan::layout_of(automatic.model, row), ranks);
      }
      EXPECT_EQ(has_pipelines, ranks > 1);
      EXPECT_THAT(describe(automatic, plan), HasSubstr("\n  predicted "));
    });
    EXPECT_THAT(plans, Each(plans.front())) << "the same on all ranks";
  }
}

TEST_F(Planning, RefusesWhatItDoesNotKnow) {
  comm::local::run(1, [&](const comm::Group& group) {
    const SizedSamples samples(options_.model);
    const auto refused = [&](const TrainOptions& options) -> std::string {
      try {
        find_plan(options, samples, group, {.seconds = 0});
      } catch (const Error& error) {
        return error.what();
      }
      return "not refused";
    };
    auto local = options_;
    local.trainer.strategy = "local_sgd";
    EXPECT_THAT(refused(local), HasSubstr("got strategy local_sgd"));
    auto compressed = options_;
    compressed.ddp.codec.name = "powersgd";
    EXPECT_THAT(refused(compressed), HasSubstr("got ddp.hook powersgd"));
  });
}

// Stages with different numbers of replicas share whole micro-batches.
TEST(FoundPlan, KeepsTheSamplesOfAStepIfStagesAreUneven) {
  plan::StepProblem problem{
      .profiles = {{.micro_batch = 2, .blocks = {{.name = "a"}, {.name = "b"}}}},
      .cluster = layout::Cluster::uniform(1, 3),
      .global_batch = 12};
  plan::StepModel model(problem);
  plan::StepSearch found;
  found.best = model.price({.family = plan::StepFamily::pipeline, .devices = 3}, {{1, 2}, {2, 1}});
  const AutomaticPlan automatic{.model = std::move(model), .found = found};
  comm::local::run(3, [&](const comm::Group& group) {
    const auto planned = with_found_plan({}, automatic, group);
    const auto plan = resolve_plan(planned, cluster_of(group));
    EXPECT_TRUE(plan.mesh.has_uneven_stages());
    EXPECT_EQ(planned.data.global_batch_size, 2);
    EXPECT_EQ(planned.data.global_batch_size * plan.micro_batches, 12);
  });
}

TEST(FoundPlan, IsRefusedIfItDoesNotFit) {
  plan::StepProblem problem{.profiles = {{.blocks = {{.name = "all", .parameter_bytes = 1e6}}}},
                            .cluster = layout::Cluster::uniform(1, 1),
                            .global_batch = 1,
                            .memory_bytes = 1e3};
  plan::StepModel model(problem);
  auto found = plan::search_steps(model);
  const AutomaticPlan automatic{.model = std::move(model), .found = std::move(found)};
  comm::local::run(1, [&](const comm::Group& group) {
    EXPECT_ERROR(with_found_plan({}, automatic, group), ErrorKind::usage,
                 "[train] no plan for this model fits into memory; got 1.9 MiB on a rank for the "
                 "nearest one, expected at most 1000 B, the memory of a rank (smaller "
                 "batches, more machines, or trainer.memory_check=off)");
  });
}

}  // namespace
}  // namespace troika::train
