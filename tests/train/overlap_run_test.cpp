// Runs with a tensor axis in which two micro-batches run forward at the same time.
#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "tests/train/checkpointed_runs.h"
#include "troika/layout/plan.h"
#include "troika/nn/sequential.h"
#include "troika/observe/report/timeline.h"

namespace troika::train {
namespace {

class OverlapRun : public CheckpointedRuns {
 protected:
  OverlapRun() { options_.trainer.max_epochs = 1; }

  TrainOptions cut(int64_t micro_batches, bool overlaps = true) const {
    auto options = accumulating(micro_batches);
    options.trainer.strategy = "tp";
    options.mesh.tensor = 2;
    options.mesh.tensor_overlap = overlaps;
    return options;
  }

  static void expect_same_bits(const PipelineCourse& found, const PipelineCourse& expected,
                               const std::string& what) {
    EXPECT_EQ(found.summary.steps, expected.summary.steps) << what;
    EXPECT_EQ(found.summary.train_loss, expected.summary.train_loss) << what;
    EXPECT_EQ(found.summary.validation_loss, expected.summary.validation_loss) << what;
    ASSERT_EQ(found.state.size(), expected.state.size()) << what;
    for (const auto& [name, tensor] : expected.state) {
      EXPECT_TRUE(found.state.at(name).equal(tensor)) << name << ", " << what;
    }
  }

  // With `make`, the task is made by it.
  void expect_refused(const TrainOptions& options, int ranks, const std::string& message,
                      const std::function<std::shared_ptr<Task>()>& make = {}) {
    comm::local::run(ranks, [&](const comm::Group& world) {
      auto own = options;
      own.run.folder = (folder_ / "refused").string();
      const auto task = make ? make() : std::make_shared<Task>(make_sized_model("gpt"));
      const SizedSamples samples(sizes_of("gpt"));
      try {
        Trainer(own, world).fit(*task, samples, samples);
        ADD_FAILURE() << "not refused; expected: " << message;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage);
        EXPECT_THAT(error.what(), testing::HasSubstr(message));
      }
    });
  }
};

// Steps of three micro-batches, the last of which runs alone, and a last step of two.
TEST_F(OverlapRun, EqualsOneProcessAndHasTheBitsOfRunsWithout) {
  struct Case {
    std::string model, axes = "data=1 tensor=2", recompute = "none", precision = "64";
    bool sequence = false;
  };
  for (const auto& of :
       {Case{"gpt-dropout", "data=2 tensor=2"}, Case{.model = "llama", .sequence = true},
        Case{"llama", "data=1 tensor=4", "full"}, Case{"gpt-dropout", "tensor=2", "full"},
        Case{.model = "llama", .precision = "bf16-mixed"},
        Case{.model = "gpt-dropout", .precision = "bf16-mixed"}, Case{.model = "mlp"},
        Case{.model = "resnet20"}}) {
    const auto run = [&](bool overlaps) {
      auto options = cut(3, overlaps);
      options.mesh = {.axes = of.axes, .tensor_overlap = overlaps};
      options.mesh.sequence_parallel = of.sequence;
      options.trainer.recompute = of.recompute;
      options.trainer.precision = of.precision;
      options.comm.algorithm = "ring";  // whatever the links measure
      return fit(options, layout::Mesh::parse(of.axes).ranks(), of.model);
    };
    const auto what = of.model + " on " + of.axes + ", " + of.precision + ", " + of.recompute;
    const auto found = run(true);
    expect_same_bits(found, run(false), what);
    if (of.precision != "64" || of.model == "resnet20") continue;
    expect_same_course(found, fit(accumulating(3), 1, of.model), what);
  }
}

TEST_F(OverlapRun, TracesShowTheSumsBesideTheOtherMicroBatch) {
  auto options = cut(2);
  options.trainer.trace = true;
  options.run.folder = (folder_ / "traced").string();
  fit(options, 2, "gpt");
  const auto trace =
      observe::report::read_trace(folder_ / "traced" / options.run.name / "trace.json");
  ASSERT_EQ(trace.ranks.size(), 2u);
  for (const auto& rank : trace.ranks) {
    std::map<std::pair<std::string, int64_t>, int> spans;
    for (const auto& span : rank.spans) ++spans[{span.name, span.step}];
    // Both micro-batches have one of the embedding, and two in each of six layers.
    EXPECT_EQ((spans[{"forward sum", 1}]), 26);
    EXPECT_EQ((spans[{"beside a sum", 1}]), 26);
    EXPECT_EQ((spans[{"forward", 1}]), 1);
    EXPECT_GT(observe::report::tensor_overlap(rank).hidden, 0);
  }
}

struct PipelineCase {
  std::string name, schedule, axes, model = "gpt-dropout";
  int64_t micro_batches = 4;
  std::string recompute = "none";
  bool sequence = false;
  int64_t zero = 0;
  std::string strategy = "3d";
};

class OverlapInPipelines : public OverlapRun, public testing::WithParamInterface<PipelineCase> {
 protected:
  TrainOptions of_case(bool overlaps = true) const {
    const auto& of = GetParam();
    auto options = pipelined(of.strategy, of.micro_batches);
    options.trainer.recompute = of.recompute;
    options.mesh = {.axes = of.axes, .sequence_parallel = of.sequence, .tensor_overlap = overlaps};
    options.pipeline.schedule = of.schedule;
    options.zero.stage = of.zero;
    return options;
  }
};

TEST_P(OverlapInPipelines, EqualOneProcessAndHaveTheBitsOfRunsWithout) {
  const auto& of = GetParam();
  const int ranks = layout::Mesh::parse(of.axes).ranks();
  const auto found = fit(of_case(), ranks, of.model);
  expect_same_bits(found, fit(of_case(/*overlaps=*/false), ranks, of.model), of.name);
  expect_same_course(found, fit(accumulating(of.micro_batches), 1, of.model), of.name);
}

constexpr const char *kFour = "pipeline=2 data=1 tensor=2", *kEight = "pipeline=2 data=2 tensor=2";
INSTANTIATE_TEST_SUITE_P(
    Meshes, OverlapInPipelines,
    testing::Values(
        PipelineCase{"gpipe4", "gpipe", kFour, "llama", 3, "none", true},
        PipelineCase{"gpipe8", "gpipe", kEight, "gpt-dropout", 2, "full"},
        PipelineCase{"1f1b4", "1f1b", kFour, "gpt-dropout", 3},
        PipelineCase{"1f1b8", "1f1b", kEight, "llama", 4, "full", true, 2},
        PipelineCase{"interleaved4", "interleaved", kFour, "gpt-dropout", 4, "full"},
        PipelineCase{"interleaved8", "interleaved", kEight, "gpt-dropout", 4},
        PipelineCase{"zb_h1_4", "zb-h1", kFour, "llama", 4, "none", true},
        PipelineCase{"zb_h1_8", "zb-h1", kEight, "mlp", 4},
        PipelineCase{"zero1", "1f1b", "data=2 tensor=2", "gpt-dropout", 3, "none", false, 1, "tp"},
        PipelineCase{"zero2", "gpipe", "data=2 tensor=2", "llama", 2, "none", true, 2, "tp"},
        PipelineCase{"zero3", "1f1b", "data=2 tensor=2", "llama", 4, "full", false, 3, "tp"}),
    [](const auto& info) { return info.param.name; });

TEST_F(OverlapRun, TracesOfPipelinesHaveTheSumsBesideTheOtherMicroBatch) {
  auto options = pipelined("3d", 4);
  options.mesh = {.axes = "pipeline=2 tensor=2", .tensor_overlap = true};
  options.trainer.trace = true;
  options.run.folder = (folder_ / "traced").string();
  fit(options, 4, "gpt");
  const auto trace =
      observe::report::read_trace(folder_ / "traced" / options.run.name / "trace.json");
  ASSERT_EQ(trace.ranks.size(), 4u);
  for (const auto& rank : trace.ranks) {
    int passes = 0, sums = 0, beside = 0;
    for (const auto& span : rank.spans) {
      if (span.step != 1) continue;
      passes += span.track == "passes" && span.name.substr(1, 1) == "F" ? 1 : 0;
      sums += span.track == "tensor axis" && span.name == "forward sum" ? 1 : 0;
      beside += span.name == "beside a sum" ? 1 : 0;
    }
    EXPECT_EQ(passes, 4);
    EXPECT_GE(sums, 4 * 2) << "two of each layer";
    EXPECT_EQ(beside, sums);
    const auto shares = observe::report::tensor_overlap(rank);
    EXPECT_GT(shares.hidden, 0);
    EXPECT_LE(shares.hidden, shares.communication);
  }
}

TEST_F(OverlapRun, GoesOnAsIfItHadNotStopped) {
  const auto options = cut(2);
  const auto whole = fit(options, 2, "gpt-dropout");
  auto stopped = options;
  stopped.run.folder = (folder_ / "stopped").string();
  stopped.trainer.max_steps = 3;
  fit(stopped, 2, "gpt-dropout");
  stopped.trainer.max_steps = -1;
  stopped.trainer.ckpt_path = "last";
  expect_same_bits(fit(stopped, 2, "gpt-dropout"), whole, "resumed");
}

TEST_F(OverlapRun, AWrongSampleEndsTheRunAndIsNamed) {
  class WrongSample : public SizedSamples {
   public:
    WrongSample() : SizedSamples(sizes_of("gpt")) {}
    data::Batch load(std::span<const int64_t> indices,
                     std::optional<uint64_t> seed) const override {
      auto batch = SizedSamples::load(indices, seed);
      if (indices.front() >= 22) batch.inputs.fill_(99);
      return batch;
    }
  };
  auto options = cut(2);
  comm::local::run(2, [&](const comm::Group& world) {
    auto own = options;
    own.run.folder = (folder_ / "wrong").string();
    Task task(make_sized_model("gpt"));
    const WrongSample samples;
    try {
      Trainer(own, world).fit(task, samples, samples);
      ADD_FAILURE() << "the run ends well";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("Index 99 is out of bounds"),
                                               testing::HasSubstr("in training_step")));
    }
  });
}

TEST_F(OverlapRun, RefusesWhatDoesNotCombine) {
  const auto refused = [&](const std::function<void(TrainOptions&)>& change,
                           const std::string& message) {
    auto options = cut(2);
    change(options);
    expect_refused(options, 2, message);
  };
  refused([](auto& of) { of.trainer.accumulate_grad_batches = 1; },
          "mesh.tensor_overlap of 1 micro-batch a step; got true");
  refused(
      [&](auto& of) {
        of = pipelined("3d", 2);
        of.mesh = {.axes = "pipeline=1 context=2 tensor=1", .tensor_overlap = true};
      },
      "it takes no mesh.tensor_overlap; got true");
  refused(
      [](auto& of) {
        of.trainer.strategy = "ddp";
        of.mesh.tensor = -1;
      },
      "it takes no mesh.tensor_overlap; got true");
  refused([](auto& of) { of.offload.activations = "host"; },
          "mesh.tensor_overlap of memory.offload_activations host");
  class OwnStep : public Task {
   public:
    using Task::Task;
    at::Tensor training_step(const data::Batch& batch) override {
      return Task::training_step(batch);
    }
  };
  expect_refused(cut(2), 2, "a training_step() of the task",
                 [] { return std::make_shared<OwnStep>(make_sized_model("gpt")); });
  auto recomputed = cut(2);
  recomputed.trainer.recompute = "full";
  expect_refused(recomputed, 2, "does not combine with trainer.recompute of own models", [] {
    const torch::nn::Sequential layers{torch::nn::Linear(3, 2)};
    return std::make_shared<Task>(nn::from_sequential(layers));
  });
  auto planned = cut(2);
  planned.trainer.plan =
      layout::Plan{.mesh = layout::Mesh::parse("tensor=2"), .micro_batches = 2}.text();
  expect_refused(planned, 2, "the overlap of two micro-batches is that of the plan");
}

}  // namespace
}  // namespace troika::train
