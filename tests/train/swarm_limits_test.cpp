// The limits that a volunteer sets: pauses, and caps on processor time and bandwidth.
#include <gmock/gmock.h>

#include <filesystem>
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

// Ends the pause of another peer at a step.
class RemovesFile : public Callback {
 public:
  RemovesFile(std::filesystem::path file, int64_t step) : file_(std::move(file)), step_(step) {}
  std::string name() const override { return "removes_file"; }
  void on_train_batch_start(FitContext& context, const data::Batch&) override {
    if (context.at.step >= step_) std::filesystem::remove(file_);
  }

 private:
  const std::filesystem::path file_;
  const int64_t step_;
};

class SwarmLimits : public SwarmTraining {
 protected:
  SwarmLimits() {
    options_.optimizer.momentum = options_.optimizer.weight_decay = 0;
    options_.schedule.name = "constant";
  }
};

// It makes the steps of the other one, has its bits, and goes on with them when the pause ends.
TEST_F(SwarmLimits, APausedPeerFollowsWithoutSamples) {
  options_.trainer.max_steps = 8;
  auto all = peers(2);
  const auto file = folder_ / "pause";
  write_file_atomically(file, "");
  all[1].swarm.pause_file = file.string();
  TrainedSamples of_first, of_paused;
  Arrivals arrivals;
  std::vector<FittedCourse> courses(all.size());
  {
    std::vector<std::jthread> threads;
    threads.emplace_back([&] {
      const auto own = member(all[0]);
      courses[0] =
          fit(all[0], make_smooth_task(), own,
              {std::make_shared<RecordsSamples>(of_first), std::make_shared<RemovesFile>(file, 5),
               std::make_shared<WaitsFor>(arrivals, 1, 5, *own)});
    });
    threads.emplace_back([&] {
      courses[1] = fit(all[1], make_smooth_task(), member(all[1]),
                       {std::make_shared<RecordsSamples>(of_paused),
                        std::make_shared<TellsArrival>(arrivals, 0)});
    });
  }
  for (int64_t step = 0; step < 5; ++step) EXPECT_EQ(of_first.of_step[step].size(), 8U) << step;
  ASSERT_FALSE(of_paused.of_step.empty());
  EXPECT_EQ(of_paused.of_step.begin()->first, 5);
  for (const auto& [step, samples] : of_paused.of_step) {
    auto& all = of_first.of_step[step];
    all.insert(all.end(), samples.begin(), samples.end());
  }
  ASSERT_EQ(of_first.of_step.size(), 8U);
  const auto oracle = one_process(of_first);
  for (const auto& course : courses) {
    EXPECT_EQ(course.summary.steps, 8);
    EXPECT_EQ(course.summary.samples, 8 * 8);
    EXPECT_EQ(distance(course, courses.front()), 0);
    EXPECT_LE(distance(course, oracle), 1e-10);
    EXPECT_EQ(course.summary.metrics.at("swarm_loads"), 0);
    EXPECT_EQ(course.summary.metrics.at("swarm_steps"), 8);
  }
}

TEST_F(SwarmLimits, CapsChangeNoStep) {
  options_.trainer.max_steps = 5;
  auto all = peers(2);
  all[0].swarm.processor_share = .3;
  all[1].swarm.max_upload_megabits = all[1].swarm.max_download_megabits = 1;
  all[1].swarm.max_load_of_others = 0.999;
  TrainedSamples trained;
  std::vector<FittedCourse> courses(all.size());
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < all.size(); ++i) {
      threads.emplace_back([&, i] {
        courses[i] = fit(all[i], make_smooth_task(), member(all[i]),
                         {std::make_shared<RecordsSamples>(trained)});
      });
    }
  }
  const auto oracle = one_process(trained);
  for (const auto& course : courses) {
    EXPECT_EQ(course.summary.steps, 5);
    EXPECT_EQ(distance(course, courses.front()), 0);
    EXPECT_LE(distance(course, oracle), 1e-10);
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
