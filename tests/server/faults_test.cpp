// Nodes that are lost, join and leave while workers push: no push is lost, none counts twice.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/server/nodes.h"
#include "troika/server/send.h"

namespace troika::server {
namespace {

constexpr uint64_t kPushedKeys = 24;

SchedulerOptions fault_options(int replicas, int servers, int workers,
                               Application application = Application::per_push) {
  return {.tables = {{.name = "w",
                      .type = ValueType::float64,
                      .keys = kPushedKeys,
                      .application = application},
                     {.name = "rows", .type = ValueType::float64, .width = 2}},
          .ranges = 6,
          .replicas = replicas,
          .first_servers = servers,
          .first_workers = workers,
          .limit = milliseconds(400),
          .consistency = eventual()};
}

// Pushes numbers that differ, so that a lost or repeated push shows in the sum.
class Pushes {
 public:
  Pushes(Nodes& nodes, int workers) : nodes_(nodes), workers_(workers) {}

  // Each worker pushes once to both tables.
  void push(int count) {
    for (int i = 0; i < count; ++i) {
      for (int w = 0; w < workers_; ++w) {
        const double value = std::ldexp(1.0, next_++ % 40);
        sum_ += value;
        watch(nodes_.worker(w).push("w", KeySpan{0, kPushedKeys},
                                    std::vector<double>(kPushedKeys, value)));
        watch(nodes_.worker(w).push("rows", sparse_keys(), std::vector<double>(10, value)));
      }
    }
  }
  bool are_done() const { return open_ == 0; }
  void expect_sum() {
    const auto dense = nodes_.worker(0).pull("w", KeySpan{0, kPushedKeys});
    const auto rows = nodes_.worker(0).pull("rows", sparse_keys());
    dense.wait(soon());
    rows.wait(soon());
    EXPECT_THAT(dense.values<double>(), testing::Each(sum_));
    EXPECT_THAT(rows.values<double>(), testing::Each(sum_));
  }

 private:
  static const std::vector<Key>& sparse_keys() {
    static const std::vector<Key> keys{3, 1000, 77'000, 1'000'000, ~Key{0} - 5};
    return keys;
  }
  void watch(const Handle& handle) {
    ++open_;
    handle.then([this, handle] {
      --open_;
      EXPECT_EQ(handle.error(), "");
    });
  }

  Nodes& nodes_;
  const int workers_;
  int next_ = 0;
  int open_ = 0;
  double sum_ = 0;
};

// Runs two workers that push, and stops the node after `events` events of the network. Returns
// whether the pushes had not ended before.
bool lose(const std::string& node, int events, int replicas, int servers,
          test::Faults faults = {}) {
  SCOPED_TRACE(fmt::format("{} of {} servers is stopped after {} events, {} replicas", node,
                           servers, events, replicas));
  Nodes nodes(fault_options(replicas, servers, 2), 5, faults);
  nodes.add_all(servers, 2);
  Pushes pushes(nodes, 2);
  pushes.push(3);
  for (int i = 0; i < events; ++i) nodes.step();
  const bool was_early = !pushes.are_done();
  nodes.stop(node);
  pushes.push(2);
  EXPECT_TRUE(nodes.run_until([&] { return pushes.are_done(); })) << nodes.scheduler().status();
  pushes.expect_sum();
  return was_early;
}

TEST(ServerFaults, AServerIsLostAtEveryEventOfAPush) {
  int early = 0;
  for (int events = 0; lose("s1", events, 1, 3); events += 5) ++early;
  EXPECT_GT(early, 10) << "the pushes take many events";
  for (int events = 0; lose("s0", events, 1, 2); events += 17) {
  }
  for (int events = 0; lose("s2", events, 2, 4); events += 23) {
  }
}

TEST(ServerFaults, AServerIsLostOnABadNetwork) {
  for (const int events : {10, 100, 400, 900}) {
    lose("s0", events, 1, 3, {.drop = 0.3, .duplicate = 0.3, .delay = 0.5});
  }
}

// Pushes to a lost server are done soon after the limit, by the clock of the simulated network.
TEST(ServerFaults, RecoveryTakesLittleMoreThanTheLimit) {
  const auto options = fault_options(1, 3, 2);
  Nodes nodes(options, 5);
  nodes.add_all(3, 2);
  Pushes pushes(nodes, 2);
  const auto begin = nodes.endpoint("scheduler").now();
  nodes.stop("s0");
  pushes.push(3);
  ASSERT_TRUE(nodes.run_until([&] { return pushes.are_done(); }));
  const auto took = nodes.endpoint("scheduler").now() - begin;
  EXPECT_GT(took, options.limit - milliseconds(50)) << "it was lost when the limit had passed";
  EXPECT_LT(took, options.limit + milliseconds(100));
  pushes.expect_sum();
}

// New copies replace lost ones: one server after the other is lost.
TEST(ServerFaults, ServersAreLostOneAfterTheOther) {
  Nodes nodes(fault_options(1, 5, 2));
  nodes.add_all(5, 2);
  Pushes pushes(nodes, 2);
  for (const char* name : {"s3", "s0", "s4", "s1"}) {
    pushes.push(5);
    nodes.stop(name);
    pushes.push(5);
    ASSERT_TRUE(nodes.run_until([&] { return pushes.are_done(); })) << nodes.scheduler().status();
    // Waits until the new copies are whole.
    ASSERT_TRUE(nodes.run_until([&] {
      const auto map = nodes.scheduler().map();
      return std::ranges::all_of(map.ranges, [&](const RangeHolders& range) {
        return range.joiners.empty() && !std::ranges::count(range.holders, name) &&
               (range.holders.size() == 2 || std::string_view(name) == "s1");
      });
    })) << nodes.scheduler().status();
    pushes.expect_sum();
  }
}

void join_and_leave(int replicas, test::Faults faults) {
  auto options = fault_options(replicas, 2, 3);
  options.limit = std::chrono::seconds(2);  // in which some beat of each node arrives
  Nodes nodes(options, 9, faults);
  nodes.add_all(2, 3);
  Pushes pushes(nodes, 3);
  for (int i = 2; i < 6; ++i) {
    pushes.push(4);
    nodes.add_server("s" + std::to_string(i));
    nodes.run_for(milliseconds(3));
    pushes.push(4);
    // The server is asked to leave under load, and works until it has left.
    nodes.server("s" + std::to_string(i - 2)).leave(soon());
    pushes.push(4);
  }
  ASSERT_TRUE(nodes.run_until([&] { return pushes.are_done(); })) << nodes.scheduler().status();
  pushes.expect_sum();
  // Waits until the last copies are whole.
  ASSERT_TRUE(nodes.run_until([&] {
    const auto map = nodes.scheduler().map();
    return std::ranges::all_of(map.ranges, [](const auto& range) { return range.joiners.empty(); });
  })) << nodes.scheduler().status();
  const auto map = nodes.scheduler().map();
  for (uint32_t range = 0; range < map.ranges.size(); ++range) {
    EXPECT_THAT(map.ranges[range].holders, testing::SizeIs(static_cast<size_t>(replicas) + 1));
    EXPECT_THAT(map.ranges[range].holders, testing::Each(testing::AnyOf("s4", "s5")));
  }
}

TEST(ServerFaults, ServersJoinAndLeaveUnderLoad) {
  join_and_leave(0, {});
  join_and_leave(1, {});
  join_and_leave(0, {.drop = 0.3, .duplicate = 0.3, .delay = 0.5});
  join_and_leave(1, {.drop = 0.3, .duplicate = 0.3, .delay = 0.5});
}

// A copy applies a step between the same writes as the master did, even if the write comes from a
// worker that does not know yet that the step is finished.
TEST(ServerFaults, CopiesApplyStepsInTheOrderOfTheMaster) {
  auto options = fault_options(1, 2, 2, Application::per_step);
  options.ranges = 1;
  options.consistency = bounded_delay(1);
  Nodes nodes(options);
  nodes.add_all(2, 2);
  auto &w0 = nodes.worker(0), &w1 = nodes.worker(1);
  const KeySpan key{0, 1};
  w0.begin_step().wait(soon());
  w1.begin_step().wait(soon());
  w1.push("w", key, std::vector<double>{1}).wait(soon());
  w1.end_step();
  w1.begin_step().wait(soon());
  nodes.cut("w1", "scheduler");
  w0.push("w", key, std::vector<double>{1}).wait(soon());
  w0.end_step();
  ASSERT_TRUE(nodes.run_until([&] { return w0.committed() == 0; }));
  const auto pull = w0.pull("w", key);
  pull.wait(soon());
  EXPECT_THAT(pull.values<double>(), testing::Each(2)) << "the master has applied the step";
  ASSERT_EQ(w1.committed(), -1);
  w1.assign("w", key, std::vector<double>{10}).wait(soon());
  nodes.connect("w1", "scheduler");
  nodes.stop(nodes.scheduler().map().master(0));
  const auto after = w0.pull("w", key);
  after.wait(soon());
  EXPECT_THAT(after.values<double>(), testing::Each(10));
}

// A worker's word about finished steps does not commit the steps of others.
TEST(ServerFaults, AServerBelievesOnlyTheSchedulerAboutSteps) {
  Nodes nodes(fault_options(0, 1, 2, Application::per_step));
  nodes.add_all(1, 2);
  auto& w0 = nodes.worker(0);
  const KeySpan first{0, 1};
  w0.begin_step().wait(soon());
  w0.push("w", first, std::vector<double>{1}).wait(soon());
  const auto map = nodes.scheduler().map();
  uint64_t number = 0;
  for (const auto& [worker, name] : map.workers) {
    if (name == "w1") number = worker;
  }
  const RequestHead head{
      .generation = map.generation, .worker = number, .number = 1, .floor = 1, .committed = 5};
  net::send_owned(nodes.endpoint("w1"), "s0", kRequests,
                  std::make_shared<const std::string>(
                      plain_message(head, {.operation = Operation::pull, .run = first})));
  nodes.run_for(milliseconds(100));
  const auto pull = w0.pull("w", first);
  pull.wait(soon());
  EXPECT_THAT(pull.values<double>(), testing::Each(0));
}

// A new process under the name of a lost one has none of its values.
TEST(ServerFaults, AServerThatBeginsAgainIsANewOne) {
  Nodes nodes(fault_options(1, 2, 1));
  nodes.add_all(2, 1);
  Pushes pushes(nodes, 1);
  pushes.push(3);
  ASSERT_TRUE(nodes.run_until([&] { return pushes.are_done(); }));
  nodes.begin_again("s0");
  pushes.push(3);
  ASSERT_TRUE(nodes.run_until([&] { return pushes.are_done(); })) << nodes.scheduler().status();
  pushes.expect_sum();
}

// The scheduler does not accept a node again that it has declared lost, and the node reports this.
TEST(ServerFaults, ANodeThatWasSilentForTooLongIsTold) {
  Nodes nodes(fault_options(1, 2, 2));
  nodes.add_all(2, 2);
  nodes.cut("w1", "scheduler");
  nodes.run_for(milliseconds(700));
  EXPECT_THAT(nodes.scheduler().map().workers, testing::SizeIs(1));
  nodes.connect("w1", "scheduler");
  const auto step = nodes.worker(1).begin_step();
  EXPECT_THROW(step.wait(soon()), Error);
  EXPECT_EQ(step.error(), "the scheduler had not heard of w1 for 0.4 s");
}

// A worker is stopped after any number of events. The other one goes on, and every step is whole.
TEST(ServerFaults, AWorkerIsLostAtEveryEvent) {
  constexpr int64_t kSteps = 6;
  bool was_early = true;
  for (int events = 0; was_early; events += 23) {
    SCOPED_TRACE(events);
    auto options = fault_options(1, 2, 2, Application::per_step);
    options.consistency = sequential();
    Nodes nodes(options, 7);
    nodes.add_all(2, 2);
    std::vector<std::unique_ptr<Trainer>> trainers;
    for (int i = 0; i < 2; ++i) {
      trainers.push_back(std::make_unique<Trainer>(nodes.worker(i), "w", kPushedKeys, kSteps,
                                                   [](int64_t, std::span<const double> values) {
                                                     EXPECT_THAT(values, testing::Each(values[0]));
                                                     return std::vector<double>(kPushedKeys, 1);
                                                   }));
    }
    for (int i = 0; i < events; ++i) nodes.step();
    was_early = !trainers[1]->is_done();
    const int64_t known = trainers[1]->finished();
    nodes.stop("w1");
    // If all steps were done before, the loss shows only later.
    ASSERT_TRUE(nodes.run_until([&] {
      return trainers[0]->is_done() && !nodes.scheduler().map().departed.empty();
    })) << nodes.scheduler().status();
    nodes.worker(0).begin_step().wait(soon());
    const auto pull = nodes.worker(0).pull("w", KeySpan{0, kPushedKeys});
    pull.wait(soon());
    const auto departed = nodes.scheduler().map().departed;
    ASSERT_EQ(departed.size(), 1u);
    const int64_t steps = departed.begin()->second + 1;
    // The scheduler may not have heard of the last step that the worker finished.
    EXPECT_THAT(steps, testing::AllOf(testing::Ge(known), testing::Le(known + 1)));
    EXPECT_THAT(pull.values<double>(), testing::Each(static_cast<double>(kSteps + steps)));
  }
}

// Workers are lost, join and leave during steps. Every step is whole.
TEST(ServerFaults, WorkersAreLostAndJoinWithinSteps) {
  Nodes nodes(fault_options(1, 2, 3, Application::per_step), 13, {.drop = 0.1, .delay = 0.2});
  nodes.scheduler().set_consistency(sequential());
  nodes.add_all(2, 3);
  constexpr int64_t kSteps = 60;
  std::vector<std::unique_ptr<Trainer>> trainers;
  const auto add = [&](int worker, int64_t steps) {
    trainers.push_back(std::make_unique<Trainer>(nodes.worker(worker), "w", kPushedKeys, steps,
                                                 [](int64_t, std::span<const double> values) {
                                                   // Whole steps: all keys have the same sum.
                                                   EXPECT_THAT(values, testing::Each(values[0]));
                                                   return std::vector<double>(kPushedKeys, 1);
                                                 }));
  };
  for (int i = 0; i < 3; ++i) add(i, kSteps);
  ASSERT_TRUE(nodes.run_until([&] { return trainers[0]->finished() >= 10; }));
  nodes.stop("w1");
  ASSERT_TRUE(nodes.run_until([&] { return trainers[0]->finished() >= 20; }));
  nodes.add_worker("w3").wait_until_ready(soon());
  add(3, kSteps);
  const auto are_done = [&] {
    return trainers[0]->is_done() && trainers[2]->is_done() && trainers[3]->is_done();
  };
  ASSERT_TRUE(nodes.run_until(are_done));
  nodes.worker(2).leave(soon());
  nodes.worker(3).leave(soon());
  nodes.worker(0).begin_step().wait(soon());
  const auto pull = nodes.worker(0).pull("w", KeySpan{0, kPushedKeys});
  pull.wait(soon());
  const auto departed = nodes.scheduler().map().departed;
  // Workers 1 and 3 have finished all steps, worker 2 the steps that the scheduler knows, and the
  // last worker those since it joined.
  double expected = 2.0 * kSteps;
  for (const auto& [id, last] : departed) {
    if (nodes.scheduler().map().workers.contains(id)) continue;
    if (last + 1 < kSteps) expected += static_cast<double>(last) + 1;
  }
  const double joined_late = pull.values<double>()[0] - expected;
  EXPECT_GT(joined_late, 20);
  EXPECT_LE(joined_late, static_cast<double>(kSteps) - 10);
  EXPECT_EQ(joined_late, static_cast<double>(kSteps - trainers[3]->first()));
}

}  // namespace
}  // namespace troika::server
