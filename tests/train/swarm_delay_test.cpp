// Peers of a swarm that update weights one step late.
#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "tests/train/swarm_training.h"
#include "troika/checkpoint/reader.h"
#include "troika/train/engine/engine_state.h"

namespace troika::train {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

class DelayedTraining : public SwarmTraining {
 protected:
  DelayedTraining() {
    options_.swarm.delay_optimizer_step = true;
    use_plain_sgd();
  }
};

TEST_F(DelayedTraining, IsThatOfOneProcessWithOneStepsDelay) {
  options_.trainer.max_steps = 5;
  auto all = peers(3);
  all[2].swarm.mode = "client";
  TrainedSamples trained;
  const auto courses = fit_all(all, make_smooth_task<>, &trained);
  // The first step has two gradients, and that of the last step does not count.
  ASSERT_EQ(trained.of_step.size(), 6U);
  const auto oracle = course_on(trained, make_smooth_task<>);
  options_.swarm.delay_optimizer_step = false;
  EXPECT_GT(distance(oracle, course_on(trained, make_smooth_task<>)), 1e-3);
  expect_course(courses, oracle, 5);
  for (const auto& course : courses) {
    EXPECT_EQ(course.summary.metrics.at("swarm_steps"), 5);
    EXPECT_EQ(course.summary.metrics.at("swarm_lone_steps"), 0);
  }
}

// Running statistics, too, although passes change them while they are averaged.
TEST_F(DelayedTraining, AllPeersHaveTheSameBits) {
  options_.optimizer.name = "adamw";
  options_.schedule.name = "cosine";
  const auto courses = fit_all(peers(2), make_normed_task);
  EXPECT_EQ(distance(courses[0], courses[1]), 0);
  // All batches are counted, about: the counts of peers are averaged.
  const auto& counts = courses[0].weights;
  EXPECT_TRUE(std::ranges::any_of(
      counts, [](const at::Tensor& one) { return one.dim() == 0 && one.item<double>() >= 6; }));
}

// Ends a peer when all have come to a step.
class LeavesWithOthers : public Callback {
 public:
  LeavesWithOthers(Arrivals& arrivals, int count, int64_t step)
      : arrivals_(arrivals), count_(count), step_(step) {}
  std::string name() const override { return "leaves_with_others"; }
  void on_train_batch_start(FitContext& context, const data::Batch&) override {
    if (context.at.step < step_) return;
    arrivals_.add();
    while (!arrivals_.wait_shortly_for(count_)) {
    }
    throw Error("test", ErrorKind::failure, {.what = "lost"});
  }

 private:
  Arrivals& arrivals_;
  const int count_;
  const int64_t step_;
};

TEST_F(DelayedTraining, ResumesWithTheGradientThatWasNotAppliedYet) {
  options_.checkpoint.enabled = true;
  options_.checkpoint.every_n_train_steps = 3;
  options_.checkpoint.every_n_epochs = 0;
  options_.trainer.max_steps = 6;
  auto all = peers(2);
  TrainedSamples trained;
  Arrivals arrivals;
  const auto fit_both = [&](const std::function<Callbacks()>& callbacks) {
    std::vector<FittedCourse> courses(all.size());
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < all.size(); ++i) {
      threads.emplace_back([&, i] {
        try {
          courses[i] = fit(all[i], make_smooth_task(), member(all[i]), callbacks());
        } catch (const Error& problem) {
          EXPECT_THAT(problem.what(), HasSubstr("lost"));
        }
      });
    }
    threads.clear();
    return courses;
  };
  fit_both([&] {
    return Callbacks{std::make_shared<LeavesWithOthers>(arrivals, 2, 3),
                     std::make_shared<RecordsSamples>(trained)};
  });
  ASSERT_EQ(trained.of_step.size(), 4U);
  for (auto& own : all) own.trainer.ckpt_path = "last";
  // Without delays, there is no place for it.
  auto plain = all[0];
  plain.swarm.delay_optimizer_step = false;
  plain.swarm.min_peers = 1;
  EXPECT_THAT([&] { fit(plain, make_smooth_task(), member(plain), {}); },
              ThrowsMessage<Error>(HasSubstr("a saved state does not fit; got delayed.")));
  const auto courses =
      fit_both([&] { return Callbacks{std::make_shared<RecordsSamples>(trained)}; });
  ASSERT_EQ(trained.of_step.size(), 7U);
  expect_course(courses, course_on(trained, make_smooth_task<>), 6);
}

// Ends a run early, and saves the state when the peer has left the swarm.
class EndsEarly : public Callback {
 public:
  explicit EndsEarly(std::filesystem::path to) : to_(std::move(to)) {}
  std::string name() const override { return "ends_early"; }
  void on_train_batch_end(FitContext& context, const data::Batch&, const at::Tensor&) override {
    if (context.at.step == 2) context.ask_to_stop("enough");
  }
  void on_fit_end(FitContext& context) override { context.save_checkpoint(to_, false); }

 private:
  const std::filesystem::path to_;
};

TEST_F(DelayedTraining, AnEarlyEndWaitsForTheAverage) {
  const auto course = fit(options_, make_smooth_task(), member(options_),
                          {std::make_shared<EndsEarly>(folder_ / "saved")});
  EXPECT_EQ(course.summary.steps, 2);
  const checkpoint::CheckpointReader saved(folder_ / "saved", /*rank=*/0);
  EXPECT_THAT(saved.names(kExchangePrefix),
              testing::Contains(HasSubstr("delayed.gradient.0.weight")));
}

TEST_F(DelayedTraining, ALatePeerGoesOnWithTheGradientThatWasNotAppliedYet) {
  auto all = peers(2);
  all[0].swarm.min_peers = all[1].swarm.min_peers = 1;
  all[0].swarm.peers.clear();
  all[1].swarm.peers.resize(1);
  TrainedSamples trained;
  Arrivals first, late;
  std::vector<FittedCourse> courses(2);
  {
    std::vector<std::jthread> threads;
    threads.emplace_back([&] {
      const auto own = member(all[0]);
      courses[0] = fit(
          all[0], make_smooth_task(), own,
          {std::make_shared<TellsArrival>(first, 2), std::make_shared<WaitsFor>(late, 1, 2, *own),
           std::make_shared<RecordsSamples>(trained)});
    });
    threads.emplace_back([&] {
      while (!first.wait_shortly_for(1)) {
      }
      courses[1] = fit(all[1], make_smooth_task(), member(all[1]),
                       {std::make_shared<TellsArrival>(late, 2),
                        std::make_shared<RecordsSamples>(trained, /*first=*/1)});
    });
  }
  ASSERT_EQ(trained.of_step.size(), 7U);
  expect_course(courses, course_on(trained, make_smooth_task<>), 6);
  EXPECT_EQ(courses[1].summary.metrics.at("swarm_loads"), 1);
  EXPECT_EQ(courses[1].summary.metrics.at("swarm_peers"), 2);
}

}  // namespace
}  // namespace troika::train
