// Steps of workers: equality with one process, and the bounds of delays.
#include <gmock/gmock.h>

#include "tests/server/one_process.h"
#include "tests/support/errors.h"

namespace troika::server {
namespace {

TEST(ServerSteps, SequentialOnesEqualOneProcess) {
  for (const char* update : {"sgd rate=0.1", "momentum rate=0.05 momentum=0.9", "adagrad rate=0.2",
                             "adam rate=0.05", "proximal_l1 rate=0.1 l1=0.05"}) {
    expect_equal_to_one_process(update, 3, 4, 0);
  }
  for (const int servers : {1, 3}) {
    for (const int workers : {1, 2, 4}) {
      expect_equal_to_one_process("adam rate=0.05", servers, workers, servers > 1);
    }
  }
}

TEST(ServerSteps, EqualOneProcessOnABadNetwork) {
  const test::Faults bad{.drop = 0.3, .duplicate = 0.3, .delay = 0.5};
  expect_equal_to_one_process("adam rate=0.05", 1, 2, 0, {}, bad);
  expect_equal_to_one_process("momentum rate=0.05 momentum=0.9", 3, 4, 1, {}, bad);
}

// Workers that push 1 in each step, and take the time `pace` for it.
class PacedWorkers {
 public:
  PacedWorkers(Nodes& nodes, int workers, int64_t steps) {
    for (int i = 0; i < workers; ++i) {
      trainers_.push_back(std::make_unique<Trainer>(
          nodes.worker(i), "w", kKeys, steps,
          [](int64_t, std::span<const double>) { return std::vector<double>(kKeys, 1); }));
      trainers_.back()->on_step = [this](int64_t step) {
        int64_t least = step;
        for (const auto& trainer : trainers_) least = std::min(least, trainer->finished());
        farthest_ = std::max(farthest_, step - least);
      };
    }
  }
  bool are_done() const {
    return std::ranges::all_of(trainers_, [](const auto& t) { return t->is_done(); });
  }
  int64_t least_finished() const {
    int64_t least = trainers_[0]->finished();
    for (const auto& trainer : trainers_) least = std::min(least, trainer->finished());
    return least;
  }
  // Returns the largest distance, since the last call, between a step that began and the last step
  // that all workers had finished.
  int64_t take_farthest() { return std::exchange(farthest_, 0); }

 private:
  std::vector<std::unique_ptr<Trainer>> trainers_;
  int64_t farthest_ = 0;
};

// The messages of one worker are late, so that the others get as far ahead as they may.
TEST(ServerSteps, DelaysAreBoundedAndTheBoundCanChange) {
  const test::Faults slow{.delay = 0.3, .longest_delay = milliseconds(30)};
  SchedulerOptions options{.tables = {table_with("sum", Application::per_push)},
                           .ranges = 8,
                           .first_servers = 2,
                           .first_workers = 4,
                           .consistency = bounded_delay(4)};
  Nodes nodes(options, 3, slow);
  nodes.add_all(2, 4);
  PacedWorkers workers(nodes, 4, 120);
  ASSERT_TRUE(nodes.run_until([&] { return workers.least_finished() >= 40; }));
  EXPECT_EQ(workers.take_farthest(), 5) << "a delay of 4, which is used";
  nodes.scheduler().set_consistency(bounded_delay(1));
  ASSERT_TRUE(nodes.run_until([&] { return workers.least_finished() >= 50; }));
  workers.take_farthest();  // steps that had begun or were granted before the change
  ASSERT_TRUE(nodes.run_until([&] { return workers.least_finished() >= 80; }));
  EXPECT_EQ(workers.take_farthest(), 2);
  nodes.scheduler().set_consistency(sequential());
  ASSERT_TRUE(nodes.run_until([&] { return workers.least_finished() >= 85; }));
  workers.take_farthest();
  ASSERT_TRUE(nodes.run_until([&] { return workers.least_finished() >= 100; }));
  EXPECT_EQ(workers.take_farthest(), 1);
  nodes.scheduler().set_consistency(eventual());
  ASSERT_TRUE(nodes.run_until([&] { return workers.are_done(); }));
  EXPECT_GT(workers.take_farthest(), 2) << "no step waits";
  const auto pull = nodes.worker(0).pull("w", KeySpan{0, kKeys});
  pull.wait(soon());
  EXPECT_THAT(pull.values<double>(), testing::ElementsAreArray(pull_all(nodes, nodes.worker(1))));
  for (Key key = 0; key < kKeys; ++key) {
    EXPECT_NEAR(pull.values<double>()[key],
                initial_value(table_with("sum", Application::per_push), key, 0) + 4 * 120, 1e-9)
        << "the sum of the pushes";
  }
}

// Workers of unequal speed make steps under bounds that change.
class Trace {
 public:
  Trace(Nodes& nodes, int workers, int64_t steps, int64_t delay) : delay_(delay) {
    finished_.resize(static_cast<size_t>(workers), -1);
    for (int i = 0; i < workers; ++i) {
      trainers_.push_back(std::make_unique<Trainer>(
          nodes.worker(i), "w", kKeys, steps,
          [](int64_t, std::span<const double>) { return std::vector<double>(kKeys, 1); }));
      auto& endpoint = nodes.endpoint("w" + std::to_string(i));
      trainers_.back()->compute = [&endpoint, i](std::function<void()> push) {
        endpoint.after(milliseconds(i == 3 ? 12 : 1 + i), std::move(push));
      };
      trainers_.back()->on_step = [this](int64_t step) { begin(step); };
      trainers_.back()->on_finish = [this, i](int64_t step) {
        auto& last = finished_[static_cast<size_t>(i)];
        last = std::max(last, step);
      };
    }
  }
  bool are_done() const {
    return std::ranges::all_of(trainers_, [](const auto& t) { return t->is_done(); });
  }
  int64_t least() const { return *std::ranges::min_element(finished_); }
  // The scheduler's bound has changed. Steps that it had granted before may still begin.
  void change(int64_t delay) {
    granted_ = least() + delay_ + 1;
    delay_ = delay;
    farthest_ = 0;
  }
  // The largest distance between a step that began under this bound and the last one that all
  // workers had finished.
  int64_t farthest() const { return farthest_; }

 private:
  void begin(int64_t step) {
    if (step <= granted_) return;
    EXPECT_LE(step, least() + delay_ + 1);
    farthest_ = std::max(farthest_, step - least());
  }

  int64_t delay_;
  int64_t granted_ = -1;
  int64_t farthest_ = 0;
  std::vector<int64_t> finished_;
  std::vector<std::unique_ptr<Trainer>> trainers_;
};

TEST(ServerSteps, BoundsHoldForWorkersOfUnequalSpeed) {
  SchedulerOptions options{.tables = {table_with("sum", Application::per_push)},
                           .ranges = 8,
                           .first_servers = 2,
                           .first_workers = 4,
                           .consistency = bounded_delay(3)};
  Nodes nodes(options, 3);
  nodes.add_all(2, 4);
  Trace trace(nodes, 4, 60, 3);
  int64_t delay = 3;
  for (const auto& [until, next] : {std::pair<int64_t, int64_t>(12, 1), {25, 6}, {40, 0}}) {
    ASSERT_TRUE(nodes.run_until([&] { return trace.least() >= until; }));
    EXPECT_EQ(trace.farthest(), delay + 1) << "fast workers use the bound";
    delay = next;
    nodes.scheduler().set_consistency(bounded_delay(delay));
    trace.change(delay);
  }
  ASSERT_TRUE(nodes.run_until([&] { return trace.are_done(); }));
  EXPECT_EQ(trace.farthest(), 1);
  const auto values = pull_all(nodes, nodes.worker(0));
  const auto initial = initial_value(table_with("sum", Application::per_push), 0, 0);
  EXPECT_NEAR(values[0], initial + 4 * 60, 1e-9) << "the sum of the pushes";
}

TEST(ServerSteps, UsersDecideWhenTheyBegin) {
  // Worker w1 may begin a step when w0 has finished it.
  SchedulerOptions options{.tables = {table_with("sum", Application::per_push)},
                           .ranges = 2,
                           .first_workers = 2,
                           .consistency = [](const StepRequest& request) {
                             return request.worker == "w0" ||
                                    request.finished.at("w0") >= request.step;
                           }};
  Nodes nodes(options);
  nodes.add_all(1, 2);
  const auto second = nodes.worker(1).begin_step();
  nodes.run_for(milliseconds(300));
  EXPECT_FALSE(second.is_done());
  nodes.worker(0).begin_step().wait(soon());
  nodes.worker(0).end_step();
  second.wait(soon());
  EXPECT_EQ(nodes.worker(1).step(), 0);
  EXPECT_ERROR(nodes.worker(1).begin_step(), ErrorKind::usage,
               "[server] a step begins before the one before was ended (call end_step() first)");
}

// A worker that joins later begins with the step after the last that all others have finished.
TEST(ServerSteps, WorkersJoinAndLeaveBetweenSteps) {
  Nodes nodes({.tables = {table_with("sum", Application::per_step)}, .ranges = 4});
  nodes.add_all(1, 1);
  auto& first = nodes.worker(0);
  for (int step = 0; step < 5; ++step) {
    first.begin_step().wait(soon());
    first.push("w", KeySpan{0, kKeys}, std::vector<double>(kKeys, 1));
    first.end_step();
  }
  ASSERT_TRUE(nodes.run_until([&] { return first.committed() == 4; }));
  auto& second = nodes.add_worker("w1");
  second.wait_until_ready(soon());
  second.begin_step().wait(soon());
  EXPECT_EQ(second.step(), 5);
  second.push("w", KeySpan{0, kKeys}, std::vector<double>(kKeys, 10));
  second.end_step();
  first.begin_step().wait(soon());
  EXPECT_EQ(first.step(), 5);
  first.end_step();
  second.leave(soon());
  const auto values = pull_all(nodes, first);
  EXPECT_NEAR(values[0], initial_value(table_with("sum", {}), 0, 0) + 15, 1e-12);
}

// A worker is lost in the middle of a step: none of its pushes of this step count, all earlier ones
// do.
TEST(ServerSteps, LeaveOutTheUnfinishedStepOfALostWorker) {
  Nodes nodes({.tables = {table_with("sum", Application::per_step)},
               .ranges = 4,
               .first_workers = 2,
               .limit = milliseconds(300)});
  nodes.add_all(2, 2);
  for (int step = 0; step < 2; ++step) {
    std::vector<Handle> begun{nodes.worker(0).begin_step(), nodes.worker(1).begin_step()};
    for (int i = 0; i < 2; ++i) {
      begun[static_cast<size_t>(i)].wait(soon());
      const uint64_t keys = i == 1 && step == 1 ? kKeys / 2 : kKeys;
      const auto push =
          nodes.worker(i).push("w", KeySpan{0, keys}, std::vector<double>(keys, i == 0 ? 1 : 100));
      push.wait(soon());
      if (i == 0 || step == 0) nodes.worker(i).end_step();
    }
  }
  nodes.stop("w1");
  const auto values = pull_all(nodes, nodes.worker(0));
  EXPECT_NEAR(values[0], initial_value(table_with("sum", {}), 0, 0) + 102, 1e-12);
  EXPECT_NEAR(values[kKeys - 1], initial_value(table_with("sum", {}), kKeys - 1, 0) + 102, 1e-12);
}

}  // namespace
}  // namespace troika::server
