// The limits that a volunteer sets: pauses, and caps on processor time and bandwidth.
#include <gmock/gmock.h>

#include <thread>

#include "tests/support/errors.h"
#include "tests/train/swarm_training.h"
#include "troika/base/config.h"
#include "troika/parallel/swarm/duty_cycle.h"

namespace troika::train {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

class SwarmLimits : public SwarmTraining {
 protected:
  SwarmLimits() {
    options_.optimizer.momentum = options_.optimizer.weight_decay = 0;
    options_.schedule.name = "constant";
  }
};

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
