// The limits that a volunteer sets: pauses, and caps on processor time and bandwidth.
#include <gmock/gmock.h>

#include <filesystem>
#include <functional>
#include <thread>

#include "tests/support/errors.h"
#include "tests/train/swarm_training.h"
#include "troika/base/config.h"
#include "troika/base/file.h"
#include "troika/parallel/swarm/duty_cycle.h"

namespace troika::train {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// Begins the pause of the own peer at a step, in its first micro-batch.
class MakesFile : public Callback {
 public:
  MakesFile(std::filesystem::path file, int64_t step) : file_(std::move(file)), step_(step) {}
  std::string name() const override { return "makes_file"; }
  void on_train_batch_start(FitContext& context, const data::Batch&) override {
    if (context.at.step >= step_) write_file_atomically(file_, "");
  }

 private:
  const std::filesystem::path file_;
  const int64_t step_;
};

class SwarmLimits : public SwarmTraining {
 protected:
  SwarmLimits() { use_plain_sgd(); }
};

// With delayed updates, and without.
class SwarmPauses : public SwarmLimits, public testing::WithParamInterface<bool> {
 protected:
  SwarmPauses() { options_.swarm.delay_optimizer_step = GetParam(); }

  // Trains two peers, of which the second one pauses while `file_` exists.
  void fit_both(const std::function<Callbacks(parallel::SwarmMember&)>& callbacks_of_first,
                const Callbacks& callbacks_of_paused) {
    auto all = peers(2);
    all[1].swarm.pause_file = file_.string();
    std::vector<std::jthread> threads;
    threads.emplace_back([&] {
      const auto own = member(all[0]);
      auto callbacks = callbacks_of_first(*own);
      callbacks.push_back(std::make_shared<RecordsSamples>(of_first_));
      courses_[0] = fit(all[0], make_smooth_task(), own, callbacks);
    });
    threads.emplace_back([&] {
      auto callbacks = callbacks_of_paused;
      callbacks.push_back(std::make_shared<RecordsSamples>(of_paused_));
      courses_[1] = fit(all[1], make_smooth_task(), member(all[1]), callbacks);
    });
  }

  // Both are one process on the samples of both, which made all steps.
  void expect_one_course() {
    const int64_t steps = options_.trainer.max_steps;
    TrainedSamples of_both{.mutex = {}, .of_step = of_first_.of_step};
    for (const auto& [step, samples] : of_paused_.of_step) {
      auto& all = of_both.of_step[step];
      all.insert(all.end(), samples.begin(), samples.end());
    }
    // The gradient of the last step does not count with delayed updates.
    ASSERT_EQ(of_both.of_step.size(), static_cast<size_t>(steps + (GetParam() ? 1 : 0)));
    expect_course(courses_, course_on(of_both, make_smooth_task<>), steps);
    for (const auto& course : courses_) {
      EXPECT_EQ(course.summary.samples, 8 * steps);
      EXPECT_EQ(course.summary.metrics.at("swarm_loads"), 0);
      EXPECT_EQ(course.summary.metrics.at("swarm_steps"), static_cast<double>(steps));
      EXPECT_EQ(course.summary.metrics.at("swarm_peers"), 2);
    }
  }

  const std::filesystem::path file_ = folder_ / "pause";
  TrainedSamples of_first_, of_paused_;
  std::vector<FittedCourse> courses_{2};
};

INSTANTIATE_TEST_SUITE_P(Swarm, SwarmPauses, testing::Bool(), [](const auto& test) {
  return std::string(test.param ? "WithDelay" : "WithoutDelay");
});

// The peer makes the steps of the other one, has its bits, and goes on with them when the pause
// ends.
TEST_P(SwarmPauses, FromTheFirstStepHaveNoSamples) {
  options_.trainer.max_steps = 8;
  write_file_atomically(file_, "");
  Arrivals arrivals;
  fit_both(
      [&](parallel::SwarmMember& own) {
        return Callbacks{std::make_shared<RemovesFile>(file_, 5),
                         std::make_shared<WaitsFor>(arrivals, 1, 5, own)};
      },
      {std::make_shared<TellsArrival>(arrivals, 0)});
  for (int64_t step = 0; step < 5; ++step) EXPECT_GE(of_first_.of_step[step].size(), 8U) << step;
  ASSERT_FALSE(of_paused_.of_step.empty());
  EXPECT_GE(of_paused_.of_step.begin()->first, 5);
  expect_one_course();
}

// The last step, too, has no micro-batch of the peer.
TEST_P(SwarmPauses, ToTheLastStepLeaveOneMicroBatch) {
  fit_both([](parallel::SwarmMember&) { return Callbacks{}; },
           {std::make_shared<MakesFile>(file_, 2)});
  const int64_t last = GetParam() ? 3 : 2;
  ASSERT_EQ(of_paused_.of_step.rbegin()->first, last);
  EXPECT_EQ(of_paused_.of_step[last].size(), 2U);
  expect_one_course();
}

TEST_F(SwarmLimits, CapsChangeNoStep) {
  options_.trainer.max_steps = 5;
  for (const bool delays : {false, true}) {
    options_.swarm.delay_optimizer_step = delays;
    auto all = peers(2);
    all[0].swarm.processor_share = .3;
    all[1].swarm.max_upload_megabits = all[1].swarm.max_download_megabits = 1;
    all[1].swarm.max_load_of_others = 0.999;
    TrainedSamples trained;
    const auto courses = fit_all(all, make_smooth_task<>, &trained);
    expect_course(courses, course_on(trained, make_smooth_task<>), 5);
  }
}

// The other one still waits for the average of its part then.
TEST_F(SwarmLimits, ACappedPeerLeavesWhenItHasSentItsPart) {
  options_.trainer.max_steps = 1;
  auto all = peers(2);
  all[0].swarm.max_upload_megabits = 1;
  const auto courses = fit_all(all, [] {
    torch::nn::Sequential net(torch::nn::Linear(3, 2000), torch::nn::Linear(2000, 2));
    fill_with_waves(*net);
    return std::make_shared<Task>(nn::from_sequential(net));
  });
  EXPECT_EQ(distance(courses[0], courses[1]), 0);
  for (const auto& course : courses) {
    EXPECT_EQ(course.summary.metrics.at("swarm_whole_steps"), 1);
  }
}

TEST_F(SwarmLimits, RatesAtWhichDownloadsDoNotEndAreRefused) {
  for (const std::string option : {"swarm.max_upload_megabits", "swarm.max_download_megabits"}) {
    auto options = options_;
    auto table = make_table(options);
    table.set_argument("--" + option + "=0.5");
    EXPECT_THAT([&] { member(options); },
                ThrowsMessage<Error>(
                    HasSubstr(option + " 0.5, expected 0 for no limit, or 1 Mbit/s at least")));
  }
}

// Two thirds of rest for each third of work.
TEST(DutyCycle, OwesTheRestThatItCouldNotTake) {
  using std::chrono::seconds;
  parallel::DutyCycle duty(1. / 3);
  const auto at = [](int64_t count) { return net::Duration(seconds(count)); };
  const auto close_to = [](net::Duration a, net::Duration b) {
    return std::chrono::abs(a - b) < std::chrono::microseconds(1);
  };
  EXPECT_TRUE(close_to(duty.end_work(at(10), at(110)), at(130)));
  // It rests longer than it must.
  EXPECT_TRUE(close_to(duty.end_work(at(10), at(150)), at(170)));
  // It begins again at 155, and still has 15 s to rest.
  EXPECT_TRUE(close_to(duty.end_work(at(5), at(160)), at(185)));
  parallel::DutyCycle whole(1);
  EXPECT_EQ(whole.end_work(at(10), at(110)), at(110));
}

}  // namespace
}  // namespace troika::train
