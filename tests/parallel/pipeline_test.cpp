#include "troika/parallel/pipeline/pipeline.h"

#include <gmock/gmock.h>

#include <latch>
#include <map>
#include <mutex>

#include "tests/parallel/pipeline_course.h"
#include "tests/support/errors.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/layout/schedules/table.h"
#include "troika/nn/batch_norm.h"
#include "troika/parallel/pipeline/split_batch.h"

namespace troika::parallel {
namespace {

using comm::Group;

void expect_oracle_on(int ranks, const std::string& mesh, const std::string& model, int64_t samples,
                      const PipelineOptions& options) {
  comm::local::run(ranks,
                   [&](Group world) { expect_oracle(world, mesh, model, samples, options); });
}

TEST(Pipeline, StepsAsOneProcessUnderEverySchedule) {
  for (const auto& row : layout::schedule_table()) {
    const std::string name(row.name);
    expect_oracle_on(2, "pipeline=2", "mlp", 8, {.schedule = name, .micro_batches = 4});
    expect_oracle_on(4, "pipeline=4", "skips", 8, {.schedule = name, .micro_batches = 8});
  }
}

TEST(Pipeline, StepsAsOneProcessWithEveryModel) {
  for (const std::string model : {"mlp", "skips", "gpt", "resnet20", "s2vt", "unet"}) {
    expect_oracle_on(3, "pipeline=3", model, 7, {.schedule = "1f1b", .micro_batches = 5});
    expect_oracle_on(2, "pipeline=2", model, 6, {.schedule = "zb-v", .micro_batches = 3});
    expect_oracle_on(1, "pipeline=1", model, 4, {.schedule = "gpipe", .micro_batches = 2});
  }
}

// Masks are a function of samples, whichever rank computes them.
TEST(Pipeline, DropsOutAsOneProcessUnderEverySchedule) {
  for (const auto& row : layout::schedule_table()) {
    const std::string name(row.name);
    expect_oracle_on(4, "pipeline=2 data=2", "gpt with dropout", 8,
                     {.schedule = name, .micro_batches = 4});
  }
  expect_oracle_on(4, "pipeline=3 data=2-1-1", "gpt with dropout", 7, {.micro_batches = 5});
  expect_oracle_on(
      3, "pipeline=3", "gpt with dropout", 5,
      {.micro_batches = 5, .cut = "embed,transformer.h*4|transformer.h*1|transformer.h,head"});
}

TEST(Pipeline, WeighsMicroBatchesByTheirTargetsThatAreNotIgnored) {
  expect_oracle_on(2, "pipeline=2", "gpt with ignored targets", 7, {.micro_batches = 4});
  expect_oracle_on(4, "pipeline=2 data=3-1", "gpt with ignored targets", 8,
                   {.schedule = "zb-h1", .micro_batches = 5});
}

TEST(Pipeline, AveragesOverReplicas) {
  for (const std::string model : {"skips", "gpt"}) {
    expect_oracle_on(4, "pipeline=2 data=2", model, 6, {.schedule = "1f1b", .micro_batches = 3});
    expect_oracle_on(4, "data=2 pipeline=2", model, 6,
                     {.schedule = "interleaved", .micro_batches = 4});
  }
}

TEST(Pipeline, SharesMicroBatchesAmongUnevenReplicas) {
  expect_oracle_on(4, "pipeline=3 data=2-1-1", "skips", 7, {.micro_batches = 5});
  expect_oracle_on(4, "pipeline=2 data=3-1", "mlp", 7, {.schedule = "gpipe", .micro_batches = 7});
  expect_oracle_on(4, "pipeline=2 data=1-3", "skips", 9, {.schedule = "zb-h1", .micro_batches = 6});
}

// The last stage's weight parts may come after the first stage's last backward pass; both have the
// embedding on rank 0.
TEST(Pipeline, AveragesAParameterThatTwoStagesOfARankUse) {
  for (const std::string schedule : {"zb-v", "v-half", "v-min", "dualpipe-v"}) {
    expect_oracle_on(4, "pipeline=2 data=2", "skips", 5,
                     {.schedule = schedule, .micro_batches = 4});
    expect_oracle_on(
        4, "pipeline=2 data=2", "skips", 3,
        {.schedule = schedule == "dualpipe-v" ? "zb-v" : schedule, .micro_batches = 2});
  }
}

TEST(Pipeline, RunsAnyCut) {
  for (const std::string cut : {"embedding|layer|head", "|embedding,layer,head|",
                                "embedding,layer||head", "embedding,layer,head||",
                                "embedding,layer.0|layer.1,layer.2,layer.3|layer.4,layer.5,head"}) {
    expect_oracle_on(3, "pipeline=3", "skips", 8, {.micro_batches = 4, .cut = cut});
  }
}

// "Peak live activations" of the schedules' papers, for which their memory predictions hold.
TEST(Pipeline, KeepsAsManyMicroBatchesAsTheScheduleSays) {
  const auto expect_active = [](const std::string& schedule, auto expected) {
    comm::local::run(4, [&](Group world) {
      const auto of = pipeline_case_alone("mlp", 8);
      const comm::MeshGroups groups(world, layout::Mesh::parse("pipeline=4"));
      Pipeline pipeline(of.model, groups, {.schedule = schedule, .micro_batches = 8});
      pipeline.run(of.inputs, of.targets, of.loss);
      EXPECT_EQ(pipeline.most_active(), static_cast<size_t>(expected(world.rank())))
          << schedule << " on rank " << world.rank();
    });
  };
  expect_active("naive", [](int) { return 1; });
  expect_active("gpipe", [](int) { return 8; });
  expect_active("1f1b", [](int rank) { return 4 - rank; });
}

// Has the model's last block compute the loss.
class OutputLosses : public SplitBatch {
 public:
  OutputLosses(const PipelineCase& of, int micro_batches)
      : SplitBatch(of.inputs, of.targets, micro_batches, of.loss),
        targets_(of.targets.tensor_split(micro_batches)) {}
  std::shared_ptr<const nn::OutputLoss> output_loss(int micro_batch) override {
    return std::make_shared<nn::OutputLoss>(
        nn::OutputLoss{.targets = targets_[static_cast<size_t>(micro_batch)]});
  }
  at::Tensor loss(int, nn::Tensors outputs) override { return nn::only(std::move(outputs)); }

 private:
  std::vector<at::Tensor> targets_;
};

TEST(Pipeline, TakesTheLossOfAnOutputLayer) {
  for (const std::string schedule : {"1f1b", "zb-h1", "zb-v"}) {
    comm::local::run(2, [&](Group world) {
      const auto of = pipeline_case_alone("gpt", 7);
      const auto oracle = accumulate(of, 4);
      of.model->zero_grad(/*set_to_none=*/true);
      const comm::MeshGroups groups(world, layout::Mesh::parse("pipeline=2"));
      Pipeline pipeline(of.model, groups, {.schedule = schedule, .micro_batches = 4});
      OutputLosses source(of, 4);
      pipeline.run(source);
      for (const auto& parameter : pipeline.parameters()) {
        EXPECT_TRUE(
            parameter.tensor.grad().allclose(oracle.gradients.at(parameter.name), 1e-10, 1e-12))
            << parameter.name << " under " << schedule;
      }
    });
  }
}

// Running statistics of a step are those of the whole mini-batch, and of every replica of the
// pipeline the first one's.
TEST(Pipeline, UpdatesRunningStatisticsOnceAStep) {
  comm::local::run(2, [](Group world) {
    auto model = std::make_shared<nn::Model>();
    const auto first = model->place("first", nn::BatchNorm(torch::nn::BatchNormOptions(3)));
    auto linear = model->place("linear", torch::nn::Linear(3, 4));
    const auto second = model->place("second", nn::BatchNorm(torch::nn::BatchNormOptions(4)));
    model->add_block(
        {"first", {"first"}, {}, [=](const at::Tensor& x) { return first->forward(x); }});
    model->add_block({"rest", {"linear", "second"}, {}, [=](const at::Tensor& x) mutable {
                        return second->forward(linear->forward(x));
                      }});
    model->to(at::kDouble);
    {
      const at::NoGradGuard no_grad;
      linear->weight.copy_(at::sin(at::arange(12, at::kDouble)).view({4, 3}));
      linear->bias.zero_();
    }
    const auto inputs = at::cos(at::arange(30, at::kDouble)).view({10, 3}) * 2 + 1;
    const comm::MeshGroups groups(world, layout::Mesh::parse("pipeline=2"));
    Pipeline pipeline(model, groups, {.schedule = "gpipe", .micro_batches = 3});
    pipeline.run(inputs, at::zeros({10, 4}, at::kDouble),
                 [](const at::Tensor& x, const at::Tensor& y) { return at::mse_loss(x, y); });

    std::vector<at::Tensor> normal;  // each micro-batch normalised by its own statistics
    for (const auto& part : inputs.tensor_split(3)) {
      normal.push_back((part - part.mean(0)) / (part.var(0, false) + 1e-5).sqrt());
    }
    const auto hidden = at::matmul(at::cat(normal), linear->weight.detach().t());
    const auto& norm = world.rank() == 0 ? first : second;
    const auto values = world.rank() == 0 ? inputs : hidden;
    EXPECT_TRUE(norm->running_mean.allclose(0.1 * values.mean(0), 1e-10, 1e-12));
    EXPECT_TRUE(norm->running_var.allclose(0.9 + 0.1 * values.var(0), 1e-10, 1e-12));
    EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 1);
  });
}

TEST(Pipeline, EvaluatesWithForwardPassesOnly) {
  comm::local::run(2, [](Group world) {
    const auto of = pipeline_case_alone("skips", 5);
    const auto expected = of.model->forward(of.inputs);
    const comm::MeshGroups groups(world, layout::Mesh::parse("pipeline=2"));
    Pipeline pipeline(of.model, groups, {.schedule = "zb-v", .micro_batches = 2});
    SplitBatch source(of.inputs, of.targets, 5, of.loss);
    std::vector<at::Tensor> outputs;
    pipeline.evaluate(source, 5, [&](int micro_batch, nn::Tensors given) {
      EXPECT_EQ(micro_batch, static_cast<int>(outputs.size()));
      outputs.push_back(nn::only(std::move(given)));
    });
    if (world.rank() == 0) {  // a V ends where it begins
      EXPECT_TRUE(at::cat(outputs).allclose(expected, 1e-10, 1e-12));
    } else {
      EXPECT_TRUE(outputs.empty());
    }
  });
}

// Three rounds of the schedule's five micro-batches, the last one short, on two replicas.
TEST(Pipeline, EvaluatesAnyNumberOfMicroBatchesOnUnevenReplicas) {
  std::mutex mutex;
  std::map<int, at::Tensor> outputs;
  comm::local::run(4, [&](Group world) {
    const auto of = pipeline_case_alone("skips", 13);
    const comm::MeshGroups groups(world, layout::Mesh::parse("pipeline=3 data=1-2-1"));
    Pipeline pipeline(of.model, groups, {.schedule = "gpipe", .micro_batches = 5});
    SplitBatch source(of.inputs, of.targets, 13, of.loss);
    pipeline.evaluate(source, 13, [&](int micro_batch, nn::Tensors given) {
      const std::lock_guard lock(mutex);
      outputs[micro_batch] = nn::only(std::move(given));
    });
  });
  const auto of = pipeline_case("skips", 13);
  const auto expected = of.model->forward(of.inputs);
  ASSERT_EQ(outputs.size(), 13u);
  for (const auto& [micro_batch, output] : outputs) {
    EXPECT_TRUE(output.allclose(expected.narrow(0, micro_batch, 1), 1e-10, 1e-12)) << micro_batch;
  }
}

// One rank does not come: all others are told in time, by stage, micro-batch and direction.
TEST(Pipeline, NamesTheMessageThatDoesNotCome) {
  for (const int victim : {0, 2}) {
    std::mutex mutex;
    std::map<int, std::string> told;
    std::latch others(3);
    const auto body = [&](Group world) {
      const auto of = pipeline_case_alone("skips", 8);
      const comm::MeshGroups groups(world, layout::Mesh::parse("pipeline=4"));
      Pipeline pipeline(of.model, groups, {.micro_batches = 4});
      if (world.rank() == victim) return others.wait();
      try {
        pipeline.run(of.inputs, of.targets, of.loss);
      } catch (const Error& error) {
        const std::lock_guard lock(mutex);
        told[world.rank()] = error.what();
      }
      others.count_down();
    };
    EXPECT_NO_THROW(comm::local::run(4, body, {.timeout = std::chrono::milliseconds(1500)}));
    ASSERT_EQ(told.size(), 3u) << "of the others, when rank " << victim << " does not come";
    for (const auto& [rank, text] : told) {
      EXPECT_THAT(text,
                  testing::MatchesRegex(
                      "\\[parallel\\] stage [0-3] (sends|receives) (activations|gradients) of "
                      "micro-batch [0-3] (to|from) stage [0-3] on rank [0-3]: \\[comm\\].*"))
          << "on rank " << rank;
    }
  }
}

TEST(Pipeline, RefusesWhatDoesNotFitBeforeItCommunicates) {
  comm::local::run(2, [](Group world) {
    const auto of = pipeline_case_alone("mlp", 8);
    const comm::MeshGroups groups(world, layout::Mesh::parse("pipeline=2"));
    if (world.rank() > 0) return;  // the refusing rank waits for nobody
    const auto make = [&](const PipelineOptions& options) {
      Pipeline pipeline(of.model, groups, options);
    };
    EXPECT_ERROR(make({.schedule = "dualpipe-v", .micro_batches = 3}), ErrorKind::usage,
                 "[layout] schedule dualpipe-v on 2 ranks; got 3 micro-batches, expected at least "
                 "twice the ranks");
    EXPECT_ERROR(make({.schedule = "gpip"}), ErrorKind::usage,
                 "[layout] name of a schedule; got gpip, expected one of naive, gpipe, 1f1b, "
                 "interleaved, bfs, zb-h1, zb-h2, zb-v, v-half, v-min, dualpipe-v (did you mean "
                 "gpipe?)");
    EXPECT_ERROR(make({.cut = "stem|head"}), ErrorKind::usage,
                 "[layout] the cut `stem|head` has a name that is not the next block's; got stem, "
                 "expected layers.0 (blocks in the model's order, `|` between stages, `name*2` for "
                 "the next two of a name)");
    EXPECT_ERROR(make({.cut = "layers*3|layers|head"}), ErrorKind::usage,
                 "[parallel] the cut `layers*3|layers|head` is for another number of stages; "
                 "got 3, expected 2, those of the schedule");
    EXPECT_ERROR(make({.micro_batches = 2, .actions = "0F0 0B0\n1F0 1B0"}), ErrorKind::usage,
                 "[parallel] a schedule for another number of micro-batches; got 1, expected 2");
    EXPECT_ERROR(make({.actions = "0F0\n1F0"}), ErrorKind::usage,
                 "[parallel] a schedule that does not train; got forward passes alone, expected "
                 "backward passes, too");
    EXPECT_ERROR(make({.micro_batches = 2, .actions = "0F0 0F1 0B1 0B0\n1F1 1B1 1F0 1B0"}),
                 ErrorKind::usage,
                 "[parallel] stages take micro-batches in different orders in their forward "
                 "passes; got 1 0 on stage 1, expected 0 1, as on stage 0");
    EXPECT_ERROR(make({.actions = "0F0 0B0"}), ErrorKind::usage,
                 "[parallel] a schedule for another number of pipeline ranks; got 1, expected 2: "
                 "mesh pipeline=2");
  });
}

}  // namespace
}  // namespace troika::parallel
