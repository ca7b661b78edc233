// A user's program: what it prints, and how it fails.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <csignal>
#include <cstdlib>

#include "tests/support/errors.h"
#include "tests/train/own_program.h"
#include "troika/base/config.h"
#include "troika/comm/end_with.h"
#include "troika/data/make_dataset.h"
#include "troika/train/run/callback.h"
#include "troika/train/run/fit_context.h"

namespace troika::train {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// Returns LibTorch's message for the mistake of the module below, which depends on the version.
std::string words_of_libtorch() {
  try {
    at::linear(at::ones({4, 4}), at::ones({8, 5}), at::ones({8}));
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST_F(OwnProgram, AnErrorOfLibTorchIsALineThatSaysWhereItWas) {
  const auto refused = fmt::format(
      "[train] LibTorch refused an operation in training_step; got `{}` (batch: inputs Float [4, "
      "4], targets Float [4, 1])",
      words_of_libtorch());
  Task task(make_sum_net(5), mean_square);
  options_.data.batch_size = 4;
  options_.trainer.num_sanity_val_steps = 0;
  try {
    Trainer(options_, comm::local::alone()).fit(task, Sums(), Sums());
    FAIL() << "fit() of a module that does not fit the data";
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), refused);
    EXPECT_EQ(error.kind(), ErrorKind::failure);
    EXPECT_THROW(std::rethrow_if_nested(error), c10::Error) << "LibTorch's own is kept";
  }
  const auto summary = observe::read_summary(folder_ / "run/summary.json");
  EXPECT_EQ(summary.status, "failed");
  EXPECT_EQ(summary.failure, refused);
}

TEST_F(OwnProgram, AnErrorOfLibTorchInTheLossIsOneOnEveryRank) {
  options_.trainer.num_sanity_val_steps = 0;
  comm::local::run(5, [&](comm::Group group) {
    Task task(make_sum_net(), [](const at::Tensor& outputs, const at::Tensor& targets) {
      return (outputs - targets.expand({-1, 3}).t()).square().mean();
    });
    try {
      Trainer(options_, group).fit(task, Sums(20), Sums());
      ADD_FAILURE() << "fit() of a loss that fails";
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::peer) return;  // another rank was the first
      EXPECT_THAT(error.what(), StartsWith("[train] LibTorch refused an operation in the loss of "
                                           "training_step; got `The size of tensor a"));
      EXPECT_THAT(error.what(), testing::EndsWith("(outputs Float [4, 1]; batch: inputs Float [4, "
                                                  "4], targets Float [4, 1])"));
      EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
      EXPECT_THROW(std::rethrow_if_nested(error), c10::Error);
    }
  });
}

TEST_F(OwnProgram, AnErrorInTheSanityCheckIsSaidToBeThere) {
  Task task(make_sum_net(), [](const at::Tensor& outputs, const at::Tensor& targets) {
    return (outputs - targets.view({-1, 3})).square().mean();
  });
  testing::internal::CaptureStderr();
  EXPECT_THAT([&] { Trainer(options_, comm::local::alone()).fit(task, Sums(), Sums()); },
              testing::ThrowsMessage<Error>(
                  AllOf(StartsWith("[train] LibTorch refused an operation in the loss of "
                                   "validation_step (sanity check); got `shape '[-1, 3]' is "),
                        HasSubstr("(outputs Float [4, 1]; batch: inputs"))));
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("memory     not predicted as a trial with a small batch failed: shape "
                        "'[-1, 3]' is"));
}

// A target without the last dimension of the outputs, which LibTorch broadcasts to [4, 4].
TEST_F(OwnProgram, ALossThatBroadcastsIsWarnedOfOnce) {
  using LossFunction = at::Tensor (*)(const at::Tensor&, const at::Tensor&, int64_t);
  for (const auto& [name, loss] :
       {std::pair<const char*, LossFunction>("mse_loss", at::mse_loss), {"l1_loss", at::l1_loss}}) {
    Task task(make_sum_net(), [loss = loss](const at::Tensor& outputs, const at::Tensor& targets) {
      return loss(outputs, targets.squeeze(1), at::Reduction::Mean);
    });
    const auto said = said_by_fit(task);
    const auto warning = std::string(" warning: [observe] ") + name +
                         " takes an input of shape [4, 1] and a target of shape [4]: it "
                         "broadcasts them, which likely gives wrong results; give both the same "
                         "shape\n";
    const auto at = said.find(warning);
    ASSERT_NE(at, std::string::npos) << said;
    EXPECT_EQ(said.find("arning", at + warning.size()), std::string::npos) << said;
  }
  Task right(make_sum_net(), mean_square);
  EXPECT_THAT(said_by_fit(right), Not(HasSubstr("arning")));
}

// Every step gives the warning.
TEST_F(OwnProgram, WarningsOfLibTorchAreALineOfTheLogOnce) {
  Task task(make_sum_net(), [](const at::Tensor& outputs, const at::Tensor& targets) {
    TORCH_WARN("mind the ", "step");
    return mean_square(outputs, targets);
  });
  const auto said = said_by_fit(task);
  const auto at = said.find("warning: LibTorch: mind the step");
  ASSERT_NE(at, std::string::npos) << said;
  EXPECT_EQ(said.find("mind the step", at + 32), std::string::npos) << said;
}

TEST_F(OwnProgram, EvaluationsPrintTheirMetrics) {
  Task task(make_sum_net(), mean_square);
  Trainer trainer(options_, comm::local::alone());
  testing::internal::CaptureStderr();
  const auto metrics = trainer.test(task, Sums());
  trainer.validate(task, Sums());
  const auto said = testing::internal::GetCapturedStderr();
  ASSERT_EQ(metrics.size(), 1u);
  EXPECT_THAT(said, HasSubstr(fmt::format("info: test finished\n  test/loss            {:.4f}\n",
                                          metrics[0].second)));
  EXPECT_THAT(said, HasSubstr("info: validate finished\n  validation/loss      "));
}

TEST_F(OwnProgram, HooksOfAnEvaluationHaveNoRunToSave) {
  class Saving : public Callback {
   public:
    std::string name() const override { return "saving"; }
    void on_validation_start(FitContext& context) override {
      EXPECT_ERROR(context.save_checkpoint("x", false), ErrorKind::usage,
                   "[train] no run to save as x; got a hook of validate(), expected a hook of "
                   "fit()");
      ++calls;
    }
    int calls = 0;
  };
  Task task(make_sum_net(), mean_square);
  Trainer trainer(options_, comm::local::alone());
  const auto saving = std::make_shared<Saving>();
  trainer.add(saving);
  trainer.validate(task, Sums());
  EXPECT_EQ(saving->calls, 1);
}

TEST_F(OwnProgram, EpochsThatNobodyChoseAreTold) {
  Task task(make_sum_net(), mean_square);
  options_.trainer.max_epochs = 0;
  testing::internal::CaptureStderr();
  Trainer trainer(options_, comm::local::alone());
  trainer.ask_to_stop([] { return cluster::StopRequest::save_and_stop; });
  trainer.fit(task, Sums(), Sums());
  EXPECT_THAT(
      testing::internal::GetCapturedStderr(),
      HasSubstr("warning: [train] trainer.max_epochs is not set: the run takes 1000 epochs, "
                "as Lightning's would; -1 means no limit\n"));
  options_.trainer.max_steps = 2;
  EXPECT_THAT(said_by_fit(task), Not(HasSubstr("max_epochs")));
}

TEST_F(OwnProgram, FramesOfTheStackAreShownWhereTheyAreAskedFor) {
  Task task(make_sum_net(5), mean_square);
  ::setenv("TORCH_SHOW_CPP_STACKTRACES", "1", 1);
  EXPECT_THAT(
      [&] { Trainer(options_, comm::local::alone()).validate(task, Sums()); },
      testing::ThrowsMessage<Error>(AllOf(
          HasSubstr("in validation_step; got `" + words_of_libtorch()), HasSubstr("frame #0: "))));
  ::unsetenv("TORCH_SHOW_CPP_STACKTRACES");
  EXPECT_THAT(
      [&] { Trainer(options_, comm::local::alone()).predict(task, Sums()); },
      testing::ThrowsMessage<Error>(AllOf(HasSubstr("in predict_step; got `" + words_of_libtorch()),
                                          Not(HasSubstr("frame #")))));
}

// Returns the text that main() prints for an error, and the exit code.
std::pair<std::string, int> ending_of(const std::function<void()>& body) {
  testing::internal::CaptureStderr();
  int code = 0;
  try {
    body();
  } catch (const std::exception& error) {
    code = comm::end_with(error);
  }
  return {testing::internal::GetCapturedStderr(), code};
}

TEST_F(OwnProgram, AnErrorThatEndsItIsALineAndAnExitCode) {
  using testing::Pair;
  auto table = make_table(options_);
  EXPECT_THAT(ending_of([&] { table.set_argument("--optim.rl=1"); }),
              Pair("error: [config] unknown key optim.rl (did you mean optim.lr?)\n", 2));
  EXPECT_THAT(ending_of([&] { table.set_argument("--learning-rate=1"); }),
              Pair("error: [config] unknown key learning-rate (did you mean optim.lr?)\n", 2));
  EXPECT_THAT(ending_of([] { throw std::runtime_error("no luck"); }), Pair("error: no luck\n", 1));
  const auto product = [] { at::ones({2, 3}).mm(at::ones({2, 3})); };
  // Newer versions of LibTorch begin with the name of the operator.
  EXPECT_THAT(
      ending_of(product),
      Pair(testing::MatchesRegex("error: (mm: )?mat1 and mat2 shapes cannot be multiplied .*\n"),
           1));
  ::setenv("TORCH_SHOW_CPP_STACKTRACES", "1", 1);
  EXPECT_THAT(ending_of(product), Pair(HasSubstr("frame #0: "), 1));
  ::unsetenv("TORCH_SHOW_CPP_STACKTRACES");
}

// Gets a signal to end in its first step.
class Signalled : public Task {
 public:
  using Task::Task;
  at::Tensor training_step(const data::Batch& batch) override {
    ::raise(SIGTERM);
    return Task::training_step(batch);
  }
};

TEST_F(OwnProgram, OnceASignalHasEndedACallTheExitCodeStays) {
  Signalled task(make_sum_net(), mean_square);
  Trainer trainer(options_, comm::local::alone());
  trainer.stop_on_signals();
  EXPECT_EQ(trainer.fit(task, Sums(), Sums()).status, "stopped");
  EXPECT_TRUE(trainer.test(task, Sums(4)).empty()) << "one batch, after which nobody asks";
  EXPECT_EQ(trainer.exit_code(), 6);
}

TEST_F(OwnProgram, ExceptionsOfTheProgramItselfStayWhatTheyAre) {
  Task task(make_sum_net(), [](const at::Tensor&, const at::Tensor&) -> at::Tensor {
    throw std::domain_error("no loss for this");
  });
  EXPECT_THROW(Trainer(options_, comm::local::alone()).fit(task, Sums(), Sums()),
               std::domain_error);
  EXPECT_EQ(observe::read_summary(folder_ / "run/summary.json").failure, "no loss for this");
}

TEST_F(OwnProgram, EndsWithWhatCameOfTheRun) {
  Task task(make_sum_net(), mean_square);
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
  Task task(make_sum_net(), mean_square);
  testing::internal::CaptureStderr();
  Trainer trainer(options_, comm::local::alone());
  trainer.ask_to_stop([] { return cluster::StopRequest::save_and_stop; });
  trainer.fit(task, Sums(), Sums());
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("\n  to resume            start the program with run.name = \"run\" and "
                        "trainer.ckpt_path = \"last\"\n"));
}

TEST_F(OwnProgram, PrintsNothingThatWasNotComputed) {
  JudgedByItself task(make_sum_net(), mean_square);
  observe::RunSummary summary;
  const auto said = said_by_fit(task, &summary);
  EXPECT_THAT(said, ContainsRegex("epoch 2/2: train loss [0-9.]+\n"));
  EXPECT_THAT(said, HasSubstr("\n  f1                   0.5000\n"));
  EXPECT_THAT(said, AllOf(Not(HasSubstr("nan")), Not(HasSubstr("validation loss"))));
  EXPECT_FALSE(summary.metrics.contains("validation/loss"));
  EXPECT_THAT(file("metrics.csv"), AllOf(Not(HasSubstr("nan")), Not(HasSubstr("validation/loss"))));
  EXPECT_EQ(Trainer(options_, comm::local::alone()).validate(task, Sums()),
            (observe::MetricValues{{"f1", 0.5}}));
  options_.schedule.name = "plateau";
  EXPECT_ERROR(Trainer(options_, comm::local::alone()).fit(task, Sums(), Sums()), ErrorKind::usage,
               "[train] optim.schedule=plateau follows validation/loss; got a validation whose "
               "steps gave none, expected a task that adds its loss to the Evaluation, or another "
               "schedule");
}

TEST_F(OwnProgram, ALossThatIsNoNumberIsPrintedAsOne) {
  Task task(make_sum_net(), [](const at::Tensor& outputs, const at::Tensor&) {
    return -(outputs.sum() * at::scalar_tensor(std::nan("")));
  });
  options_.trainer.terminate_on_nan = false;
  EXPECT_THAT(said_by_fit(task),
              AllOf(HasSubstr("\n  validation loss      nan\n"), Not(HasSubstr("-nan"))));
}

TEST_F(OwnProgram, ItsOptionsNameNeitherModelNorData) {
  Task task(make_sum_net(), mean_square);
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
  EXPECT_ERROR(
      data::make_dataset(read.data, data::Split::train), ErrorKind::usage,
      "[data] data.name is empty, as in the options of a run whose data a program gave; "
      "got none, expected one of shapes, shape_masks, captions, cifar10, cifar100, idx, text "
      "(the program that made the run has its data)");
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
      Task task(make_sum_net(), mean_square);
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

}  // namespace
}  // namespace troika::train
