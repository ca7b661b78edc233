// memory_ranks RANKS WHAT: on the ranks that a launcher started, compares the counted memory of
// training with predictions. The start must not take more memory than a step.
//   prediction MODEL [all]: MemoryPredictor's, for each strategy with each precision and with most
//     ways to recompute, then with an average of the weights; `all`: for each combination.
//   pipeline MODEL [all]: the same for the rank's part of a pipeline, with some schedules; `all`:
//     with more schedules, precisions and replicas.
//   tensor: the same on a tensor axis of 2 ranks, alone, with replicas and in a pipeline.
//   context: the same on a context axis of 2 ranks, alone, with replicas and in a pipeline.
//   own: the same for the module and the loss of a program, which are made before the prediction.
//   zero: the formulas of ZeRO (Rajbhandari et al., SC 2020, section 5 and 7, with parameters in
//     float32) for a GPT whose states are most of all; on more than 2 ranks also in groups of 2.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "tests/train/measured_memory.h"
#include "tests/train/ranks_main.h"
#include "troika/base/text.h"
#include "troika/compat/tensor_memory.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/train/memory/prediction.h"

namespace troika::train {
namespace {

TrainOptions options_for(const std::string& model) {
  TrainOptions options;
  options.model.name = model;
  options.model.vocab_size = 256;
  options.model.context = 32;
  options.model.layers = 4;
  options.model.heads = 2;
  options.model.width = 64;
  options.data.batch_size = 8;
  // LibTorch multiplies 16-bit numbers one by one on processors without AVX-512.
  if (model == "resnet18") options.model.base_width = 24;
  if (model == "s2vt") {
    options.model.hidden_width = 192;
    options.model.context = 12;
  }
  options.data.workers = 0;
  options.optimizer.name = "adamw";
  options.optimizer.lr = 1e-3;
  options.comm.bucket_megabytes = 4;
  return options;
}

constexpr const char* kPrecisions[] = {"32", "bf16-mixed", "bf16-true"};
constexpr const char* kRecomputes[] = {"none", "selective", "sqrt", "full"};
constexpr const char* kStrategies[] = {"ddp", "zero1", "zero2", "zero3"};

std::vector<MemoryChoice> choices(int ranks, bool averages, bool all) {
  const size_t recomputes = averages ? 1 : std::size(kRecomputes);
  const size_t turns = averages ? std::size(kPrecisions) : recomputes;
  std::vector<MemoryChoice> result;
  for (size_t p = 0; p < std::size(kPrecisions); ++p) {
    for (size_t r = 0; r < recomputes; ++r) {
      for (size_t s = 0; s < std::size(kStrategies); ++s) {
        // Each strategy meets each precision, and all but one way to recompute.
        if (!all && (p + r) % turns != s % turns) continue;
        result.push_back({kStrategies[s], kPrecisions[p], kRecomputes[r], ranks});
      }
    }
  }
  return result;
}

void expect_predicted(const std::string& model, const comm::Group& group, bool averages, bool all) {
  auto options = options_for(model);
  options.ema.enabled = averages;
  const TrainOptions unchanged = options;
  const Noise noise(options.model);
  MemoryPredictor predictor(unchanged, noise);
  for (const MemoryChoice& choice : choices(group.size(), averages, all)) {
    if (!predictor.why_not(choice).empty()) continue;
    options.trainer.precision = choice.precision;
    options.trainer.recompute = choice.recompute;
    options.trainer.strategy = choice.strategy;
    const auto predicted = predictor.predict(choice);
    const auto measured = measure(options, group);
    const auto what =
        fmt::format("{} {} {} {}", model, choice.precision, choice.recompute, choice.strategy);
    expect_close(predicted.peak(), measured.peak(), what);
    expect_close(predicted.step.sum(), measured.second, what + ", second step");
    expect_close(predicted.start, measured.start, what + ", start");
    expect_close(predicted.validation, measured.validation, what + ", validation");
    EXPECT_LE(measured.start, measured.step()) << what;
  }
}

// `most` is the largest ratio of the prediction to the measurement.
void expect_pipeline(TrainOptions options, const comm::Group& group, double most = 1.05) {
  const Noise noise(options.model);
  MemoryPredictor predictor(options, noise);
  const auto choice = predictor.configured(group.size());
  const auto plan = predictor.plan(choice);
  const auto at = plan.mesh.coordinates(group.rank());
  const auto predicted =
      predictor.predict_ranks(choice).at(static_cast<size_t>(at[layout::Axis::pipeline]));
  const int replica = at[layout::Axis::data];
  const auto measured = measure(options, group);
  const auto what = fmt::format("{} {} {} {} rank {}", options.model.name, choice.strategy,
                                choice.precision, choice.recompute, group.rank());
  const double step = predicted.step.sum() - (replica > 0 ? predicted.of_first_replica : 0);
  expect_close(step, measured.second, what + ", second step", most);
  expect_close(predicted.training_peak_of(replica),
               std::max({measured.start, measured.first, measured.second, measured.between}),
               what + ", training", most);
  // Counts the receive buffers of all edges of an evaluation, few of which are in use at a time.
  if (plan.mesh.has_uneven_stages() && replica > 0) return;  // runs no validation
  expect_close(predicted.validation, measured.validation, what + ", validation", 1.45);
}

// The policies of stages that keep within a share of the activations of the rank that has most.
std::string policies_within(double share, const TrainOptions& options, const comm::Group& group) {
  const Noise noise(options.model);
  MemoryPredictor predictor(options, noise);
  auto choice = predictor.configured(group.size());
  double most = 0;
  for (const auto& rank : predictor.predict_ranks(choice)) {
    most = std::max(most, rank.activation_peak);
  }
  choice.recompute = fmt::format("budget:{}", static_cast<int64_t>(share * most));
  return predictor.recompute_of_stages(choice);
}

void expect_uneven_pipelines(TrainOptions options, const comm::Group& group) {
  for (const char* replicas : {"2-1-1", "1-2-1"}) {
    options.mesh.axes = fmt::format("pipeline=3 data={}", replicas);
    expect_pipeline(options, group);
  }
}

void expect_asynchronous_pipelines(TrainOptions options, const comm::Group& group, bool all) {
  options.model.tie_word_embeddings = false;
  options.pipeline.micro_batches = 0;
  for (const char* strategy : {"pipedream", "pipedream_2bw"}) {
    options.trainer.strategy = strategy;
    expect_pipeline(options, group);
    if (group.size() == 4) expect_uneven_pipelines(options, group);
    if (!all) continue;
    options.mesh.pipeline = group.size() / 2;
    expect_pipeline(options, group);
    options.mesh = {};
  }
}

void expect_pipelines(const std::string& model, const comm::Group& group, bool all) {
  auto options = options_for(model);
  options.model.layers = 8;
  options.pipeline.micro_batches = 2 * group.size();
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "zb-v", "interleaved"}) {
    const bool is_one_of_few = schedule == std::string_view("gpipe") || schedule[0] == '1';
    if (!all && !is_one_of_few) continue;
    options.trainer.strategy = schedule;
    expect_pipeline(options, group);
    if (is_one_of_few && group.size() == 4) expect_uneven_pipelines(options, group);
  }
  options.trainer.strategy = "zb-h1";
  if (!all) expect_pipeline(options, group);
  for (const char* precision : {"bf16-mixed", "bf16-true"}) {
    if (!all) continue;
    options.trainer.precision = precision;
    expect_pipeline(options, group);
  }
  options.trainer.precision = "32";
  options.trainer.strategy = "1f1b";
  options.trainer.recompute = "full";
  expect_pipeline(options, group);
  options.trainer.recompute = "none";
  const auto policies = policies_within(0.6, options, group);
  EXPECT_NE(policies.find('|'), std::string::npos) << policies << " are the same for all stages";
  options.trainer.recompute = policies;
  expect_pipeline(options, group);
  options.trainer.recompute = "none";
  expect_asynchronous_pipelines(options, group, all);
  // Stages with 2 replicas.
  options.mesh.pipeline = group.size() / 2;
  const auto plain = options;
  for (const int stage : {1, 2, 3}) {
    options.zero.stage = stage;
    expect_pipeline(options, group);
    if (!all) continue;
    options.optimizer.name = "adamw_8bit";
    options.trainer.strategy = "zb-v";
    expect_pipeline(options, group);
    options = plain;
  }
  options = plain;
  if (group.size() < 4) return;
  expect_pipeline(options, group);
  if (model != "gpt") return;
  // Most of its memory is in an embedding that two stages use, and in buckets.
  options.model.vocab_size = 4096;
  options.model.context = 4;
  options.model.layers = 4;
  options.model.width = 128;
  options.data.batch_size = 1;
  options.comm.bucket_megabytes = 0.5;
  for (const int stage : {0, 2, 3}) {
    options.zero.stage = stage;
    expect_pipeline(options, group);
  }
}

void expect_tensor_axes(const comm::Group& group) {
  // The start counts the largest parameter of the model beside all of the rank's shards. A rank of
  // another stage, whose start is its peak, makes and drops it before it has shards.
  constexpr double kStart = 1.10;
  for (const std::string model : {"mlp", "gpt"}) {
    auto options = options_for(model);
    options.mesh.tensor = 2;
    for (const std::string strategy : {"tp", "3d"}) {
      // With 4 ranks, tp has 2 replicas, and 3d 2 stages.
      if (strategy == "3d") options.mesh.pipeline = group.size() / 2;
      options.trainer.strategy = strategy;
      options.pipeline.micro_batches = strategy == "3d" ? 4 : 0;
      for (const bool sequence : {false, true}) {
        if (sequence && model == "mlp") continue;
        options.mesh.sequence_parallel = sequence;
        const bool starts_large = model == "mlp" && options.mesh.pipeline > 1;
        expect_pipeline(options, group, starts_large ? kStart : 1.05);
      }
    }
  }
  auto options = options_for("gpt");
  options.trainer.strategy = "tp";
  options.mesh.tensor = 2;
  // The prediction is that of a pair of micro-batches that follows another one, with its gradients.
  options.mesh.tensor_overlap = true;
  options.trainer.accumulate_grad_batches = 4;
  expect_pipeline(options, group);
  if (group.size() < 4) return;
  options.trainer.recompute = "full";
  expect_pipeline(options, group);
  options.trainer.accumulate_grad_batches = 1;
  options.pipeline.micro_batches = 4;
  options.zero.stage = 1;
  expect_pipeline(options, group);
  options.trainer.strategy = "3d";
  options.mesh.pipeline = 2;
  for (const std::string schedule : {"gpipe", "1f1b"}) {
    options.pipeline.schedule = schedule;
    options.zero.stage = 0;
    expect_pipeline(options, group);
  }
  options = options_for("gpt");
  options.trainer.strategy = "tp";
  options.mesh.tensor = 2;
  options.trainer.recompute = "full";
  expect_pipeline(options, group);
  options.trainer.recompute = "none";
  options.trainer.precision = "bf16-true";
  options.zero.stage = 1;
  expect_pipeline(options, group);
}

void expect_context_axes(const comm::Group& group) {
  for (const std::string method : {"ring", "all_to_all"}) {
    auto options = options_for("gpt");
    options.mesh.context = 2;
    options.mesh.context_method = method;
    options.trainer.strategy = "cp";
    expect_pipeline(options, group);
    options.zero.stage = 1;
    options.trainer.recompute = "full";
    expect_pipeline(options, group);
    if (group.size() < 4) continue;
    options.zero.stage = 0;
    options.trainer.recompute = "none";
    options.trainer.strategy = "3d";
    options.mesh.pipeline = 2;
    options.pipeline.micro_batches = 4;
    expect_pipeline(options, group);
  }
}

// Numbers, and their sum.
class Sums : public data::Dataset {
 public:
  int64_t size() const override { return 1 << 20; }
  data::Batch load(std::span<const int64_t> indices, std::optional<uint64_t>) const override {
    const auto inputs = at::ones({static_cast<int64_t>(indices.size()), 96});
    return {inputs, inputs.sum(1, true)};
  }
};

std::shared_ptr<Task> make_own_task() {
  const torch::nn::Sequential net(torch::nn::Linear(96, 700), torch::nn::BatchNorm1d(700),
                                  torch::nn::Tanh(), torch::nn::Linear(700, 700), torch::nn::Tanh(),
                                  torch::nn::Linear(700, 1));
  return std::make_shared<Task>(net, [](const at::Tensor& outputs, const at::Tensor& targets) {
    return (outputs - targets).square().mean();
  });
}

void expect_own(const comm::Group& group) {
  auto options = options_for("mlp");
  options.data.batch_size = 64;
  const Sums sums;
  for (const char* precision : {"32", "bf16-true"}) {
    for (const char* strategy : {"ddp", "zero1", "zero2"}) {
      options.trainer.precision = precision;
      options.trainer.strategy = strategy;
      const auto predicted = [&] {
        const auto task = make_own_task();
        return MemoryPredictor(options, sums, *task)
            .predict({strategy, precision, "none", group.size()});
      }();
      const auto measured = measure(options, group, sums, make_own_task);
      const auto what = fmt::format("own {} {}", precision, strategy);
      expect_close(predicted.peak(), measured.peak(), what);
      expect_close(predicted.step.sum(), measured.second, what + ", second step");
      expect_close(predicted.validation, measured.validation, what + ", validation");
    }
  }
}

void expect_formulas(const comm::Group& group, int group_size) {
  const bool in_groups = group_size < group.size();
  auto options = options_for("gpt");
  options.model.context = 2;
  options.model.layers = 96;
  options.model.width = 96;
  options.data.batch_size = 1;
  options.comm.bucket_megabytes = 0.25;
  options.comm.first_bucket_megabytes = 0.25;
  const auto psi = static_cast<double>(nn::parameter_count(*nn::make_model(options.model)));
  options.zero.group_size = group_size;
  const double d = group_size;
  const TrainOptions unchanged = options;
  const Noise noise(options.model);
  MemoryPredictor predictor(unchanged, noise);
  for (const auto& [strategy, bytes] : {std::pair("ddp", 16 * psi),
                                        {"zero1", 8 * psi + 8 * psi / d},
                                        {"zero2", 4 * psi + 12 * psi / d},
                                        {"zero3", 16 * psi / d}}) {
    // The others share their code.
    if (in_groups && strategy != std::string_view("zero1") && strategy != std::string_view("zero3"))
      continue;
    options.trainer.strategy = strategy;
    const auto measured = measure(options, group);
    const double actual = measured.second;
    const auto what = fmt::format("{} on {} ranks in groups of {}: {} of {}", strategy,
                                  group.size(), d, human_bytes(actual), human_bytes(bytes));
    const auto predicted = predictor.predict({strategy, "32", "none", group.size()});
    expect_close(predicted.step.sum(), actual, what);
    expect_close(predicted.start, measured.start, what + ", start");
    EXPECT_LE(measured.start, measured.step()) << what;
    std::puts(what.c_str());
    EXPECT_NEAR(actual, bytes, 0.10 * bytes) << what;
  }
}

}  // namespace
}  // namespace troika::train

int main(int argc, char** argv) {
  using namespace troika;
  compat::count_tensor_memory();
  return train::main_of_ranks(argc, argv,
                              "memory_ranks RANKS prediction|pipeline MODEL [all]|tensor|own|zero",
                              [](const comm::Group& group, const std::vector<std::string>& more) {
                                if (more.size() >= 2 && more[0] == "prediction") {
                                  const bool all = more.size() == 3 && more[2] == "all";
                                  train::expect_predicted(more[1], group, false, all);
                                  train::expect_predicted(more[1], group, true, all);
                                } else if (more.size() >= 2 && more[0] == "pipeline") {
                                  const bool all = more.size() == 3 && more[2] == "all";
                                  train::expect_pipelines(more[1], group, all);
                                } else if (more == std::vector<std::string>{"tensor"}) {
                                  train::expect_tensor_axes(group);
                                } else if (more == std::vector<std::string>{"context"}) {
                                  train::expect_context_axes(group);
                                } else if (more == std::vector<std::string>{"own"}) {
                                  train::expect_own(group);
                                } else if (more == std::vector<std::string>{"zero"}) {
                                  train::expect_formulas(group, group.size());
                                  if (group.size() > 2) train::expect_formulas(group, 2);
                                } else {
                                  return false;
                                }
                                return true;
                              });
}
