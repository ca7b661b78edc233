// A program of one's own: a module, a loss and data that no table names. What it prints, how it
// fails, and what is predicted of it.
#include <gmock/gmock.h>

#include <cstdlib>

#include "tests/support/errors.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/comm/local/local.h"
#include "troika/compat/tensor_memory.h"
#include "troika/compat/torch.h"
#include "troika/data/make_dataset.h"
#include "troika/nn/state.h"
#include "troika/train/memory/prediction.h"
#include "troika/train/trainer.h"

namespace troika::train {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// Sums to learn, of `width` numbers.
class Sums : public data::Dataset {
 public:
  explicit Sums(int64_t size = 16, int64_t width = 4) : size_(size), width_(width) {}
  int64_t size() const override { return size_; }
  data::Batch load(std::span<const int64_t> indices, std::optional<uint64_t>) const override {
    const auto numbers = at::tensor(std::vector<int64_t>(indices.begin(), indices.end()));
    const auto inputs = at::sin(numbers.to(at::kFloat).unsqueeze(1) * at::arange(1, width_ + 1));
    return {inputs, inputs.sum(1, true)};
  }

 private:
  const int64_t size_, width_;
};

torch::nn::Sequential make_net(int64_t width = 4, int64_t hidden = 8) {
  return torch::nn::Sequential(torch::nn::Linear(width, hidden), torch::nn::BatchNorm1d(hidden),
                               torch::nn::ReLU(), torch::nn::Dropout(0.1),
                               torch::nn::Linear(hidden, 1));
}

at::Tensor mean_square(const at::Tensor& outputs, const at::Tensor& targets) {
  return at::mse_loss(outputs, targets);
}

class OwnProgram : public testing::Test {
 protected:
  OwnProgram() {
    options_.run.folder = folder_.path().string();
    options_.run.overwrite = true;
    options_.trainer.max_epochs = 2;
    options_.trainer.enable_progress_bar = false;
    options_.data.batch_size = 4;
  }

  // Runs a fit() and returns the text that it prints.
  std::string said_by_fit(Task& task, RunSummary* summary = nullptr) {
    testing::internal::CaptureStderr();
    const auto own = Trainer(options_, comm::local::alone()).fit(task, Sums(), Sums());
    if (summary) *summary = own;
    return testing::internal::GetCapturedStderr();
  }
  std::string file(const std::string& name) const { return read_file(folder_ / "run" / name); }

  const TemporaryFolder folder_;
  TrainOptions options_;
};

const std::string kRefused =
    "[train] LibTorch refused an operation in training_step; got `mat1 and mat2 shapes cannot be "
    "multiplied (4x4 and 5x8)` (batch: inputs Float [4, 4], targets Float [4, 1])";

TEST_F(OwnProgram, AnErrorOfLibTorchIsALineThatSaysWhereItWas) {
  Task task(make_net(5), mean_square);
  options_.data.batch_size = 4;
  options_.trainer.num_sanity_val_steps = 0;
  try {
    Trainer(options_, comm::local::alone()).fit(task, Sums(), Sums());
    FAIL() << "fit() of a module that does not fit the data";
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), kRefused);
    EXPECT_EQ(error.kind(), ErrorKind::failure);
    EXPECT_THROW(std::rethrow_if_nested(error), c10::Error) << "LibTorch's own is kept";
  }
  const auto summary = read_summary(folder_ / "run/summary.json");
  EXPECT_EQ(summary.status, "failed");
  EXPECT_EQ(summary.failure, kRefused);
}

TEST_F(OwnProgram, AnErrorOfLibTorchInTheLossIsOneOnEveryRank) {
  options_.trainer.num_sanity_val_steps = 0;
  comm::local::run(5, [&](comm::Group group) {
    Task task(make_net(), [](const at::Tensor& outputs, const at::Tensor& targets) {
      return (outputs - targets.expand({-1, 3}).t()).square().mean();
    });
    try {
      Trainer(options_, group).fit(task, Sums(20), Sums());
      ADD_FAILURE() << "fit() of a loss that fails";
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::peer) return;  // another rank was the first
      EXPECT_THAT(error.what(), StartsWith("[train] LibTorch refused an operation in "
                                           "training_step; got `The size of tensor a"));
      EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
    }
  });
}

TEST_F(OwnProgram, FramesOfTheStackAreShownWhereTheyAreAskedFor) {
  Task task(make_net(5), mean_square);
  ::setenv("TORCH_SHOW_CPP_STACKTRACES", "1", 1);
  EXPECT_THAT([&] { Trainer(options_, comm::local::alone()).validate(task, Sums()); },
              testing::ThrowsMessage<Error>(
                  AllOf(HasSubstr("in validation_step; got `mat1 and"), HasSubstr("frame #0: "))));
  ::unsetenv("TORCH_SHOW_CPP_STACKTRACES");
  EXPECT_THAT([&] { Trainer(options_, comm::local::alone()).predict(task, Sums()); },
              testing::ThrowsMessage<Error>(
                  AllOf(HasSubstr("in predict_step; got `mat1 and"), Not(HasSubstr("frame #")))));
}

TEST_F(OwnProgram, ExceptionsOfTheProgramItselfStayWhatTheyAre) {
  Task task(make_net(), [](const at::Tensor&, const at::Tensor&) -> at::Tensor {
    throw std::domain_error("no loss for this");
  });
  EXPECT_THROW(Trainer(options_, comm::local::alone()).fit(task, Sums(), Sums()),
               std::domain_error);
  EXPECT_EQ(read_summary(folder_ / "run/summary.json").failure, "no loss for this");
}

TEST_F(OwnProgram, EndsWithWhatCameOfTheRun) {
  Task task(make_net(), mean_square);
  options_.checkpoint.monitor = "validation/loss";
  const auto said = said_by_fit(task);
  EXPECT_THAT(said, ContainsRegex("info: run finished: 8 steps on 1 process in [0-9]+ s\n"
                                  "  train loss           [0-9.]+\n"
                                  "  validation loss      [0-9.]+\n"
                                  "  throughput           [0-9.]+ samples/s"));
  const auto run = (folder_ / "run").string();
  EXPECT_THAT(said, ContainsRegex("\n  checkpoint           " + run +
                                  "/checkpoints/epoch=[12]-step=[48]/model.safetensors\n"
                                  "  best checkpoint      " +
                                  run +
                                  "/checkpoints/epoch=[12]-step=[48]/model.safetensors by "
                                  "validation/loss\n  metrics and logs     " +
                                  run + "\n"));
  EXPECT_THAT(said, Not(HasSubstr("nan")));
  options_.trainer.enable_model_summary = false;
  EXPECT_THAT(said_by_fit(task), Not(HasSubstr("run finished")));
}

TEST_F(OwnProgram, OneThatWasStoppedSaysHowToGoOn) {
  Task task(make_net(), mean_square);
  testing::internal::CaptureStderr();
  Trainer trainer(options_, comm::local::alone());
  trainer.ask_to_stop([] { return cluster::StopRequest::save_and_stop; });
  trainer.fit(task, Sums(), Sums());
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("\n  to go on             start the program with run.name = \"run\" and "
                        "trainer.ckpt_path = \"last\"\n"));
}

// Judges by a number of its own alone.
class JudgedByItself : public Task {
 public:
  using Task::Task;
  void validation_step(const data::Batch& batch, Evaluation&) override {
    log("f1", batch.size() / 8.0, {.sync_dist = true});
  }
};

TEST_F(OwnProgram, PrintsNothingThatWasNotComputed) {
  JudgedByItself task(make_net(), mean_square);
  RunSummary summary;
  const auto said = said_by_fit(task, &summary);
  EXPECT_THAT(said, ContainsRegex("epoch 2/2: train loss [0-9.]+\n"));
  EXPECT_THAT(said, HasSubstr("\n  f1                   0.5000\n"));
  EXPECT_THAT(said, AllOf(Not(HasSubstr("nan")), Not(HasSubstr("validation loss"))));
  EXPECT_FALSE(summary.metrics.contains("validation/loss"));
  EXPECT_THAT(file("metrics.csv"), AllOf(Not(HasSubstr("nan")), Not(HasSubstr("validation/loss"))));
  EXPECT_EQ(Trainer(options_, comm::local::alone()).validate(task, Sums()),
            (MetricValues{{"f1", 0.5}}));
  options_.schedule.name = "plateau";
  EXPECT_ERROR(Trainer(options_, comm::local::alone()).fit(task, Sums(), Sums()), ErrorKind::usage,
               "[train] optim.schedule=plateau follows validation/loss; got a validation whose "
               "steps gave none, expected a task that adds its loss to the Evaluation, or another "
               "schedule");
}

TEST_F(OwnProgram, ALossThatIsNoNumberIsPrintedAsOne) {
  Task task(make_net(), [](const at::Tensor& outputs, const at::Tensor&) {
    return -(outputs.sum() * at::scalar_tensor(std::nan("")));
  });
  options_.trainer.terminate_on_nan = false;
  EXPECT_THAT(said_by_fit(task),
              AllOf(HasSubstr("\n  validation loss      nan\n"), Not(HasSubstr("-nan"))));
}

TEST_F(OwnProgram, ItsOptionsNameNeitherModelNorData) {
  Task task(make_net(), mean_square);
  options_.model.name = "resnet20";
  options_.data.name = "cifar10";
  said_by_fit(task);
  const auto config = file("config.toml");
  EXPECT_THAT(config, AllOf(ContainsRegex("\\[model\\]\nname = \"\""),
                            ContainsRegex("\\[data\\]\nname = \"\"")));
  EXPECT_THAT(config, AllOf(Not(HasSubstr("\naugment = ")), HasSubstr("\nbatch_size = 4 ")));
  TrainOptions read;
  make_table(read).parse(config, "config.toml");
  EXPECT_EQ(read.data.name, "");
  EXPECT_ERROR(data::make_dataset(read.data, data::Split::train), ErrorKind::usage,
               "[data] data.name is empty, as in the options of a run whose data a program gave; "
               "got none, expected one of shapes, cifar10, cifar100, idx, text (the program that "
               "made the run has its data)");
  const auto shapes =
      data::make_dataset({.name = "shapes", .train_samples = 4}, data::Split::train);
  EXPECT_EQ(shapes->name(), "shapes");
}

TEST_F(OwnProgram, BatchesThatDoNotFitAreRefusedByTheirOption) {
  const auto refused = [&](int ranks, int64_t each, int64_t whole, const std::string& message) {
    comm::local::run(ranks, [&](comm::Group group) {
      auto options = options_;
      options.data.batch_size = each;
      options.data.global_batch_size = whole;
      Task task(make_net(), mean_square);
      const Sums sums(16), validation(16);
      Trainer trainer(options, group);
      EXPECT_ERROR(trainer.fit(task, sums, validation), ErrorKind::usage, message);
    });
  };
  refused(1, 17, 0,
          "[train] data.batch_size is more than there is to train on; got 17, expected <= 16 (the "
          "training data has 16 samples)");
  refused(5, 4, 0,
          "[train] data.batch_size is more than there is to train on; got 4, expected <= 3 (the "
          "training data has 16 samples for 5 ranks)");
  refused(4, 1, 32,
          "[train] data.global_batch_size is more than there is to train on; got 32, expected <= "
          "16 (the training data has 16 samples)");
  refused(4, 1, 6,
          "[train] data.global_batch_size does not divide among 4 ranks; got 6, expected a "
          "multiple of 4 (data.batch_size is the samples of each rank, and always divides)");
  refused(17, 1, 0,
          "[train] training data with fewer samples than there are ranks; got 16, expected >= 17");
  options_.data.batch_size = 0;
  EXPECT_ERROR(Trainer(options_, comm::local::alone()), ErrorKind::usage,
               "[config] data.batch_size; got 0, expected an integer from 1 to 1000000000");
}

TEST_F(OwnProgram, ItsMemoryIsPredicted) {
  compat::count_tensor_memory();
  options_.optimizer.name = "adamw";
  options_.data.workers = 0;
  options_.data.batch_size = 8;
  Task task(make_net(64, 256), mean_square);
  testing::internal::CaptureStderr();
  const auto summary =
      Trainer(options_, comm::local::alone()).fit(task, Sums(16, 64), Sums(16, 64));
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              ContainsRegex("\n  memory     [0-9.]+ KiB of tensors a rank in training steps, "
                            "predicted\n"));
  ASSERT_EQ(summary.peak_tensor_bytes.size(), 1u);
  const auto measured = static_cast<double>(summary.peak_tensor_bytes[0]);
  EXPECT_LE(static_cast<double>(summary.predicted_tensor_bytes), 1.10 * measured);
  EXPECT_GE(static_cast<double>(summary.predicted_tensor_bytes), 0.97 * measured);
}

TEST_F(OwnProgram, APredictionLeavesTheModuleAsItWas) {
  compat::count_tensor_memory();
  auto net = make_net();
  Task task(net, mean_square);
  mean_square(net->forward(at::ones({2, 4})), at::ones({2, 1})).backward();
  struct Before {
    at::Tensor tensor, copy, gradient;
    void* address;
  };
  std::vector<Before> all;
  for (const auto& entry : nn::named_state(*net)) {
    all.push_back(
        {entry.tensor, entry.tensor.clone(), entry.tensor.grad(), entry.tensor.data_ptr()});
  }
  for (const char* precision : {"32", "bf16-mixed", "bf16-true"}) {
    options_.trainer.precision = precision;
    EXPECT_GT(check_memory_of(options_, Sums(), comm::local::alone(), &task).tensor_bytes, 1000);
    for (const auto& before : all) {
      EXPECT_TRUE(at::equal(before.tensor, before.copy));
      EXPECT_EQ(before.tensor.data_ptr(), before.address);
      EXPECT_TRUE(before.tensor.grad().is_same(before.gradient));
    }
  }
}

TEST_F(OwnProgram, WhereMemoryIsNotPredictedItSaysWhy) {
  JudgedByItself derived(make_net(), mean_square);
  EXPECT_THAT(said_by_fit(derived),
              HasSubstr("\n  memory     not predicted for a task of a class of its own\n"));
  int calls = 0;
  Task picky(make_net(), [&](const at::Tensor& outputs, const at::Tensor& targets) {
    if (++calls == 1) throw std::domain_error("not yet");
    return mean_square(outputs, targets);
  });
  EXPECT_THAT(said_by_fit(picky),
              HasSubstr("\n  memory     not predicted as this failed on tensors without memory: "
                        "not yet\n"));
  Task whole(make_net(), mean_square);
  options_.trainer.strategy = "diloco";
  EXPECT_THAT(said_by_fit(whole), HasSubstr("\n  memory     not predicted for strategy diloco\n"));
}

TEST_F(OwnProgram, ARunThatDoesNotFitIsRefused) {
  Task task(make_net(1 << 10, 4), mean_square);
  options_.data.batch_size = 1'000'000'000;
  const Sums endless(int64_t{1} << 40, 1 << 10);
  EXPECT_THAT([&] { Trainer(options_, comm::local::alone()).fit(task, endless, Sums()); },
              testing::ThrowsMessage<Error>(
                  ContainsRegex("\\[train\\] the run does not fit into memory; got [0-9.]+ TiB of "
                                "tensors on each rank, predicted, expected at most ")));
}

}  // namespace
}  // namespace troika::train
