// The weight layout and the thread placement that runs choose at their start.
#include <gmock/gmock.h>

#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "tests/support/errors.h"
#include "tests/train/tuned_run.h"
#include "troika/base/file.h"
#include "troika/comm/local/local.h"
#include "troika/nn/dense.h"
#include "troika/nn/zoo.h"
#include "troika/train/trainer.h"
#include "troika/train/tuning/tuning.h"

namespace troika::train {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

class TunedWeightLayout : public TunedOrder {
 protected:
  TunedWeightLayout() : TunedOrder(&TrainOptions::Trainer::weight_layout, "in_out", "out_in") {}
  std::string tuned(const comm::Group& group) const override {
    return tuned_weight_layout(options_, Tokens(), group, run_folder(options_));
  }
  using TunedOrder::tuned;
};

TEST_F(TunedWeightLayout, IsTimedOnceForARunThatIsLongEnough) {
  options_.trainer.precision = "bf16-mixed";
  expect_timed_once("weight layout of linear layers of width 8, 32 rows, BFloat16");
}

TEST_F(TunedWeightLayout, IsTheOptionWhereNothingIsToBeTimed) {
  expect_the_option_if_nothing_is_timed({"mlp", "resnet20", ""});
}

TEST_F(TunedWeightLayout, SaysWhyNothingIsTimed) {
  options_.trainer.deterministic = true;
  testing::internal::CaptureStderr();
  EXPECT_EQ(tuned(), "auto");
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::HasSubstr("weight layout: in_out, by its default, as "
                                 "trainer.deterministic times nothing (trainer.weight_layout)"));
}

TEST_F(TunedWeightLayout, IsThatOfTheCheckpoint) {
  expect_the_order_of_the_checkpoint(Tokens());
  for (const auto& entry : timed()) {
    EXPECT_THAT(entry.question.what, testing::Not(testing::HasSubstr("weight layout")));
  }
}

TEST_F(TunedWeightLayout, OfAnUnknownNameIsRefused) {
  options_.trainer.weight_layout = "in-out";
  EXPECT_ERROR(
      Trainer(options_, comm::local::alone()), ErrorKind::usage,
      "[config] trainer.weight_layout; got \"in-out\", expected one of auto, in_out, out_in "
      "(did you mean in_out?)");
}

class TunedCpuBind : public TunedRun {
 protected:
  void SetUp() override {
    TunedRun::SetUp();
    options_.trainer.max_epochs = -1;
    options_.trainer.max_steps = kMicroBatchesWorthTiming;
    ASSERT_GE(all_.size(), 2u) << "a test of how processors are divided";
  }
  // The choice of each rank.
  std::vector<Processors> tuned(int ranks = 2) const {
    std::vector<Processors> all(static_cast<size_t>(ranks));
    comm::local::run(ranks, [&](comm::Group group) {
      all[static_cast<size_t>(group.rank())] = tuned_cpu_bind(options_, Tokens(), group);
    });
    return all;
  }
  static void expect_divided(const std::vector<Processors>& ranks) {
    std::set<int> seen;
    for (const auto& processors : ranks) {
      EXPECT_FALSE(processors.empty());
      for (const int one : processors) EXPECT_TRUE(seen.insert(one).second) << one;
    }
  }
  static void expect_free(const std::vector<Processors>& ranks) {
    for (const auto& processors : ranks) EXPECT_THAT(processors, IsEmpty());
  }

  const Processors all_ = allowed_processors();
};

TEST_F(TunedCpuBind, IsTimedOnceForARunThatIsLongEnough) {
  options_.trainer.max_steps = kMicroBatchesWorthTiming - 1;
  expect_free(tuned());
  EXPECT_THAT(timed(), IsEmpty());
  options_.trainer.max_steps = kMicroBatchesWorthTiming;
  const auto chosen = tuned();
  EXPECT_EQ(chosen[0].empty(), chosen[1].empty());
  EXPECT_EQ(allowed_processors(), all_);
  ASSERT_THAT(timed(), SizeIs(1));
  auto entry = timed()[0];
  EXPECT_EQ(entry.question.what, "threads of 2 processes on " + std::to_string(all_.size()) +
                                     " processors, gpt, 4 x 8, width 8, 5 classes, Float");
  ASSERT_THAT(entry.candidates, SizeIs(2));
  EXPECT_EQ(entry.candidates[0].name, "none") << "the rule of auto comes first";
  EXPECT_EQ(entry.candidates[1].name, "cores");
  // The file decides from now on, on all ranks.
  entry.choice = "cores";
  TuningFile::of_user().add(entry);
  expect_divided(tuned());
  entry.choice = "none";
  TuningFile::of_user().add(entry);
  expect_free(tuned());
  EXPECT_THAT(timed(), SizeIs(1));
}

// Entries of other choices, as in files of earlier versions, are kept.
TEST_F(TunedCpuBind, GoesIntoAFileOfAnEarlierVersion) {
  const auto path = TuningFile::of_user().path();
  make_folder(path.parent_path());
  write_file_atomically(path,
                        R"([{"what": "attention of 6 heads", "cpu": "Z80", "libtorch": "2.0.0",
      "threads": 1, "choice": "eager", "seconds": {"eager": 0.0123, "sdpa": 0.5}}])");
  tuned();
  ASSERT_THAT(timed(), SizeIs(2));
  EXPECT_EQ(timed()[0].choice, "eager");
  EXPECT_EQ(timed()[0].candidates[1].seconds, 0.5);
}

TEST_F(TunedCpuBind, IsTheOptionWhereNothingIsToBeTimed) {
  options_.trainer.deterministic = true;
  testing::internal::CaptureStderr();
  expect_free(tuned());
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::HasSubstr("thread placement: none, by its default, as "
                                 "trainer.deterministic times nothing (trainer.cpu_bind)"));
  options_.trainer.deterministic = false;
  options_.trainer.benchmark = false;
  expect_free(tuned());
  options_.trainer.benchmark = true;
  expect_free(tuned(1));
  options_.model.name = "";
  expect_free(tuned());
  options_.trainer.cpu_bind = "none";
  expect_free(tuned());
  options_.trainer.cpu_bind = "cores";
  expect_divided(tuned());
  expect_free(tuned(1));
  EXPECT_THAT(timed(), IsEmpty());
}

TEST_F(TunedCpuBind, IsRefusedWhereItCannotBe) {
  options_.trainer.cpu_bind = "cores";
  const int ranks = static_cast<int>(all_.size()) + 1;
  const auto problem =
      std::to_string(ranks) + " processes of 1 threads on processors " + processors_text(all_);
  EXPECT_ERROR(tuned(ranks), ErrorKind::usage,
               "[train] ranks cannot have cores of their own; got " + problem +
                   ", expected ranks with the same processors, one at least for each thread "
                   "(trainer.cpu_bind=none leaves threads to the system)");
  options_.trainer.cpu_bind = "auto";
  expect_free(tuned(ranks));
  EXPECT_THAT(timed(), IsEmpty());
  options_.trainer.cpu_bind = "core";
  EXPECT_ERROR(
      Trainer(options_, comm::local::alone()), ErrorKind::usage,
      "[config] trainer.cpu_bind; got \"core\", expected one of auto, none, cores (did you "
      "mean cores?)");
}

// The processors on which the threads of a run's ranks were.
struct Seen {
  std::mutex mutex;
  std::map<std::thread::id, Processors> computing, started;
};

class LookingTask : public Task {
 public:
  LookingTask(std::shared_ptr<nn::Model> model, Seen& seen) : Task(std::move(model)), seen_(seen) {}
  at::Tensor training_step(const data::Batch& batch) override {
    Processors started;
    std::thread([&] { started = allowed_processors(); }).join();
    {
      const std::lock_guard lock(seen_.mutex);
      seen_.computing[std::this_thread::get_id()] = allowed_processors();
      seen_.started[std::this_thread::get_id()] = started;
    }
    return Task::training_step(batch);
  }

 private:
  Seen& seen_;
};

TEST_F(TunedCpuBind, HoldsForTheThreadsThatComputeDuringFit) {
  options_.trainer.cpu_bind = "cores";
  options_.trainer.max_steps = 2;
  Seen seen;
  comm::local::run(2, [&](comm::Group group) {
    LookingTask task(nn::make_model(options_.model), seen);
    Trainer(options_, group).fit(task, Tokens(), Tokens());
    EXPECT_EQ(allowed_processors(), all_);
  });
  std::vector<Processors> computing;
  for (const auto& [thread, processors] : seen.computing) computing.push_back(processors);
  ASSERT_THAT(computing, SizeIs(2));
  expect_divided(computing);
// ThreadSanitizer starts threads with attributes of its own.
#ifndef __SANITIZE_THREAD__
  for (const auto& [thread, processors] : seen.started) EXPECT_EQ(processors, all_);
#endif
}

}  // namespace
}  // namespace troika::train
