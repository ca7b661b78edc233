// Options of the trainer that concern the whole run: endless epochs, accelerator, machines,
// profiler.
#include <gmock/gmock.h>

#include "tests/train/error_words.h"
#include "tests/train/waves.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/base/text.h"
#include "troika/comm/local/local.h"
#include "troika/observe/profile.h"
#include "troika/train/engine/placement.h"
#include "troika/train/run/run_group.h"
#include "troika/train/trainer.h"

namespace troika::train {
namespace {

using testing::HasSubstr;

class RunOptions : public testing::Test {
 protected:
  RunOptions() {
    options_.run.folder = folder_.path().string();
    options_.trainer.enable_progress_bar = false;
    options_.trainer.max_epochs = 1;
    options_.trainer.loggers = {};
    options_.data.global_batch_size = 12;  // 2 steps an epoch
  }

  observe::RunSummary fit(const comm::Group& group = comm::local::alone()) {
    const auto task = make_waves_task(4, 0);
    return Trainer(options_, group).fit(*task, Waves(), Waves());
  }

  const TemporaryFolder folder_;
  TrainOptions options_;
};

TEST_F(RunOptions, EpochsGoOnUntilMaxStepsOrMaxTime) {
  options_.trainer.max_epochs = -1;
  options_.trainer.max_steps = 7;
  EXPECT_EQ(fit().steps, 7);
  options_.trainer.max_steps = -1;
  options_.trainer.max_time = "00:00:00:00";
  options_.schedule.name = "constant";
  EXPECT_GE(fit().steps, 1);
}

TEST_F(RunOptions, ValuesThatNoFileMayHaveAreRefusedFromAProgramToo) {
  const auto error_with = [&](const std::function<void(TrainOptions&)>& set) {
    auto options = options_;
    set(options);
    return error_of([&] { Trainer(options, comm::local::alone()); });
  };
  EXPECT_EQ(error_with([](TrainOptions& o) { o.trainer.accumulate_grad_batches = 0; }),
            "[config] trainer.accumulate_grad_batches; got 0, expected an integer from 1 to "
            "1000000000");
  for (const auto& [key, set] : std::map<std::string, std::function<void(TrainOptions&)>>{
           {"trainer.log_every_n_steps", [](auto& o) { o.trainer.log_every_n_steps = 0; }},
           {"trainer.check_val_every_n_epoch",
            [](auto& o) { o.trainer.check_val_every_n_epoch = 0; }},
           {"trainer.gradient_clip_algorithm",
            [](auto& o) { o.trainer.gradient_clip_algorithm = "nrm"; }},
           {"trainer.loggers", [](auto& o) { o.trainer.loggers = {"tb"}; }},
           {"trainer.memory_check", [](auto& o) { o.trainer.memory_check = "maybe"; }},
           {"checkpoint.mode", [](auto& o) { o.checkpoint.mode = "mx"; }},
           {"optim.lr", [](auto& o) { o.optimizer.lr = -1; }}}) {
    EXPECT_THAT(error_with(set), testing::StartsWith("[config] " + key + "; got "));
  }
}

TEST_F(RunOptions, EndlessEpochsNeedAnEnd) {
  options_.trainer.max_epochs = -1;
  EXPECT_EQ(error_of([&] { fit(); }),
            "[train] trainer.max_epochs makes no sense; got -1 without trainer.max_steps and "
            "max_time, expected one of these, to end the run");
  options_.trainer.max_time = "00:00:00:00";
  EXPECT_EQ(error_of([&] { fit(); }),
            "[train] a run that only trainer.max_time ends has no number of steps; got "
            "optim.schedule cosine, which needs one, expected constant, step, multi_step or "
            "plateau, or trainer.max_steps");
}

// As with max_steps alone, a learning-rate schedule is over the real number of steps.
TEST_F(RunOptions, EndlessEpochsKeepTheCourseOfMaxSteps) {
  options_.trainer.max_steps = 5;
  options_.trainer.max_epochs = 100;
  const double expected = fit().validation_loss;
  options_.trainer.max_epochs = -1;
  EXPECT_EQ(fit().validation_loss, expected);
}

TEST_F(RunOptions, AGpuThatIsNotThereIsRefused) {
  const bool has_gpu = torch::cuda::is_available();
  EXPECT_EQ(Placement::of(options_, comm::local::alone()).device.is_cpu(), !has_gpu);
  for (const char* name : {"gpu", "cuda"}) {
    options_.trainer.accelerator = name;
    const auto refusal = error_of([&] { Placement::of(options_, comm::local::alone()); });
    EXPECT_EQ(refusal,
              has_gpu ? "nothing"
                      : "[train] trainer.accelerator " + std::string(name) +
                            " cannot be had; got a LibTorch that finds no CUDA device, expected at "
                            "least one GPU (trainer.accelerator=cpu computes on processors)");
  }
  options_.trainer.accelerator = "cpu";
  EXPECT_GT(fit().steps, 0);
}

TEST_F(RunOptions, TheNumberOfMachinesIsChecked) {
  const auto train_on = [&](const std::vector<int>& nodes) {
    comm::local::run_ranks(comm::local::make(static_cast<int>(nodes.size()), nodes),
                           [&](const comm::Group& group) { fit(group); });
  };
  options_.trainer.num_nodes = 2;
  EXPECT_EQ(error_of([&] { train_on({0, 1, 1}); }), "nothing");
  EXPECT_EQ(
      error_of([&] {
        train_on({0, 0});
      }),
      "[train] trainer.num_nodes and the launcher disagree; got num_nodes = 2, expected 1, the "
      "machines that the 2 processes are on (start it on 2, with srun --nodes=2 or troika "
      "launch --nnodes 2, or leave it at -1)");
}

TEST_F(RunOptions, AGroupThatWasMadeElsewhereIsWhatTheOptionsAskFor) {
  const auto error_with = [&](const std::function<void(TrainOptions&)>& change,
                              const comm::GroupOptions& made_with = {}) {
    auto options = options_;
    change(options);
    return error_of([&] {
      comm::local::run(
          4,
          [&](const comm::Group& group) {
            const auto task = make_waves_task(4, 0);
            Trainer(options, group).fit(*task, Waves(), Waves());
          },
          made_with);
    });
  };
  const std::string hint = " (make it with comm::world(train::world_options(options)))";
  EXPECT_EQ(error_with([](TrainOptions& o) { o.comm.timeout_seconds = 20; }),
            "[train] comm.timeout_seconds is not what the trainer's group was made with; got 20, "
            "expected 300" +
                hint);
  EXPECT_EQ(error_with([](TrainOptions& o) { o.comm.stall_warning_seconds = 5; }),
            "[train] comm.stall_warning_seconds is not what the trainer's group was made with; got "
            "5, expected 30" +
                hint);
  EXPECT_EQ(error_with([](TrainOptions& o) { o.comm.protection = "encrypted"; }),
            "[train] comm.protection is not what the trainer's group was made with; got encrypted, "
            "expected none" +
                hint);
  EXPECT_EQ(
      error_with([](TrainOptions& o) { o.comm.streams = 4; }),
      "[train] comm.streams is not what the trainer's group was made with; got 4, expected 1" +
          hint);
  EXPECT_EQ(error_with([](TrainOptions& o) { o.comm.algorithm = "ring"; }),
            "[train] comm.algorithm is not what the trainer's group was made with; got ring, "
            "expected auto" +
                hint);
  EXPECT_EQ(
      error_with([](TrainOptions& o) { o.comm.backend = "gloo"; }),
      "[train] comm.backend is not what the trainer's group was made with; got gloo, expected "
      "local" +
          hint);
  EXPECT_EQ(
      error_with([](TrainOptions& o) { o.trainer.devices = 2; }),
      "[train] trainer.devices and the launcher disagree; got devices = 2, expected 4, the "
      "processes of the group on this machine (leave trainer.devices at -1 under a launcher)");
  options_.trainer.devices = 2;
  EXPECT_EQ(error_of([&] { fit(); }),
            "[train] trainer.devices and the launcher disagree; got devices = 2, expected 1, the "
            "processes of the group on this machine (start it by `troika launch -n 2 PROGRAM`)");
  options_.trainer.devices = -1;
  const auto asked = [](TrainOptions& o) {
    o.comm.timeout_seconds = 20;
    o.comm.algorithm = "ring";
    o.trainer.devices = 4;
  };
  auto options = options_;
  asked(options);
  EXPECT_EQ(error_with(asked, world_options(options).group), "nothing");
}

TEST_F(RunOptions, TheSimpleProfilerMakesLightningsTable) {
  EXPECT_GT(fit().steps, 0);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run/fit-profile.txt"));
  options_.run.overwrite = true;
  options_.trainer.profiler = "simple";
  options_.trainer.max_epochs = 3;
  fit();
  const auto text = read_file(folder_ / "run/fit-profile.txt");
  EXPECT_THAT(text, HasSubstr("|  Mean duration (s)  |  Num calls  |  Total time (s)  |  "
                              "Percentage %  |\n"));
  const auto calls = [&](const std::string& action) {
    const auto begin = text.find("|  " + action + " ");
    EXPECT_NE(begin, std::string::npos) << action << " in\n" << text;
    const auto cells = split(text.substr(begin, text.find('\n', begin) - begin), '|');
    return parse_int(trim(cells.at(3))).value();
  };
  EXPECT_EQ(calls("run_training_epoch"), 3);
  EXPECT_EQ(calls("run_training_batch"), 6);
  EXPECT_EQ(calls("[Step]forward"), 6);
  EXPECT_EQ(calls("[Step]optimizer"), 6);
  EXPECT_EQ(calls("run_validation"), 3);
  EXPECT_EQ(calls("run_sanity_check"), 1);
  EXPECT_EQ(calls("save_checkpoint"), 3);
  EXPECT_EQ(calls("[Task].on_train_epoch_end"), 3);
  EXPECT_EQ(calls("[Callback]model_checkpoint.on_validation_end"), 3);
}

TEST_F(RunOptions, TestsAreProfiledToo) {
  options_.trainer.profiler = "simple";
  const auto task = make_waves_task(4, 0);
  Trainer(options_, comm::local::alone()).test(*task, Waves());
  EXPECT_THAT(read_file(folder_ / "run/test-profile.txt"), HasSubstr("[Task].on_test_batch_end"));
}

TEST(Profile, ActionsComeByTheirTotalTime) {
  observe::Profile profile;
  using std::chrono::seconds;
  profile.add("short", seconds(2));
  profile.add("often", seconds(1));
  profile.add("often", seconds(4));
  const auto text = profile.table();
  EXPECT_LT(text.find("often"), text.find("short"));
  EXPECT_THAT(text,
              HasSubstr("|  often   |  2.5                |  2          |  5               |"));
  EXPECT_THAT(text, HasSubstr("|  Total   |  -                  |  3          |"));
}

}  // namespace
}  // namespace troika::train
