// The states of keys that workers move, and the learning rates that come with pushes.
#include <gmock/gmock.h>

#include "tests/server/one_process.h"
#include "tests/support/errors.h"

namespace troika::server {
namespace {

SchedulerOptions with_tables(std::vector<TableSpec> tables) {
  return {.tables = std::move(tables), .ranges = 8, .replicas = 1, .first_servers = 2};
}

void make_step(Worker& worker, double gradient, std::optional<double> rate = {}) {
  worker.begin_step().wait(soon());
  worker.push("w", KeySpan{0, kKeys}, std::vector<double>(kKeys, gradient), {.rate = rate});
  const int64_t step = worker.step();
  worker.end_step();
  worker.wait_until_committed(step, soon());
}

std::vector<double> states_of(Worker& worker) {
  const auto pull = worker.pull_state("w", KeySpan{0, kKeys});
  pull.wait(soon());
  return {pull.values<double>().begin(), pull.values<double>().end()};
}

// A second run that begins with the states of the first one goes on like the first one.
TEST(ServerKeyStates, MoveToAnotherRun) {
  const auto spec = table_with("adam rate=0.05", Application::per_step);
  Nodes first(with_tables({spec})), second(with_tables({spec}));
  first.add_all(2, 1);
  second.add_all(2, 1);
  for (int step = 0; step < 3; ++step) make_step(first.worker(0), 1 + step);
  const auto states = states_of(first.worker(0));
  ASSERT_EQ(states.size(), kKeys * state_width(spec));
  EXPECT_EQ(updates_of(std::span(states).first(state_width(spec))), 3u);
  second.worker(0).assign_state("w", KeySpan{0, kKeys}, states).wait(soon());
  EXPECT_EQ(states_of(second.worker(0)), states);
  for (int step = 3; step < 5; ++step) {
    make_step(first.worker(0), 1 + step);
    make_step(second.worker(0), 1 + step);
  }
  EXPECT_EQ(states_of(second.worker(0)), states_of(first.worker(0)));
  EXPECT_EQ(pull_all(second, second.worker(0)), pull_all(first, first.worker(0)));
}

TEST(ServerKeyStates, KeepTheirBitsWithFilters) {
  auto spec = table_with("momentum rate=0.05", Application::per_push);
  spec.type = ValueType::float32;
  Nodes nodes(with_tables({spec}));
  nodes.add_all(2, 1);
  auto& worker = nodes.worker(0);
  std::vector<float> states(kKeys * state_width(spec), 1.0f / 3);
  for (Key key = 0; key < kKeys; ++key) {
    set_updates(std::span(states).subspan(key * state_width(spec), state_width(spec)),
                (uint64_t{1} << 40) + key);
  }
  worker.set_filters("w", parse_filters("half, zlib"), parse_filters("half, zlib"));
  worker.assign_state("w", KeySpan{0, kKeys}, states).wait(soon());
  const auto pull = worker.pull_state("w", KeySpan{0, kKeys});
  pull.wait(soon());
  const auto got = pull.values<float>();
  ASSERT_EQ(got.size(), states.size());
  EXPECT_EQ(std::memcmp(got.data(), states.data(), got.size_bytes()), 0);
}

TEST(ServerKeyStates, AreRefusedWhereTheyDoNotExist) {
  Nodes nodes(
      with_tables({parse_table("lists float64 keys=0 width=0 initial=0 spread=0 seed=0 "
                               "per_push sum")}));
  nodes.add_all(2, 1);
  EXPECT_ERROR(nodes.worker(0).pull_state("lists", std::vector<Key>{1}), ErrorKind::usage,
               "[server] the pull of states from table lists: the states of this table cannot be "
               "moved; got lists float64 keys=0 width=0 initial=0 spread=0 seed=0 per_push sum, "
               "expected a width above 0, and a rule that is no user's function");
}

TEST(ServerPushes, UseTheirRates) {
  for (const auto application : {Application::per_push, Application::per_step}) {
    const auto spec = table_with("sgd rate=0.05", application);
    Nodes nodes(with_tables({spec}));
    nodes.add_all(2, 1);
    make_step(nodes.worker(0), 1);
    make_step(nodes.worker(0), 1, 0.25);
    make_step(nodes.worker(0), 1, 0.0);
    const auto values = pull_all(nodes, nodes.worker(0));
    for (Key key = 0; key < kKeys; ++key) {
      EXPECT_NEAR(values[key], initial_value(spec, key, 0) - 0.05 - 0.25, 1e-12) << key;
    }
  }
}

TEST(ServerPushes, UseTheirRatesThroughEncodings) {
  const auto spec = table_with("sgd rate=0.05", Application::per_push);
  Nodes nodes(with_tables({spec}));
  nodes.add_all(2, 1);
  nodes.worker(0).set_filters("w", parse_filters("half, zlib"));
  make_step(nodes.worker(0), 1, 0.25);
  EXPECT_NEAR(pull_all(nodes, nodes.worker(0))[0], initial_value(spec, 0, 0) - 0.25, 1e-12);
}

TEST(ServerSteps, AreAwaited) {
  auto options = with_tables({table_with("sum", Application::per_step)});
  options.first_workers = 2;
  Nodes nodes(options);
  nodes.add_all(2, 2);
  for (int i = 0; i < 2; ++i) nodes.worker(i).begin_step().wait(soon());
  nodes.worker(0).end_step();
  EXPECT_THROW(nodes.worker(0).wait_until_committed(0, Deadline::after(milliseconds(300))), Error);
  nodes.worker(1).end_step();
  nodes.worker(0).wait_until_committed(0, soon());
  EXPECT_EQ(nodes.worker(0).committed(), 0);
}

// Without the scheduler a step never begins. A worker that has patience says so before the
// deadline.
TEST(ServerSteps, EndWithTheSchedulerForWorkersOfLimitedPatience) {
  Nodes nodes(with_tables({table_with("sum", Application::per_step)}));
  nodes.add_all(2, 1);
  auto& worker = nodes.add_worker("w1", milliseconds(400));
  worker.wait_until_ready(soon());
  worker.begin_step().wait(soon());
  nodes.end_scheduler();
  worker.end_step();
  const auto begun = worker.begin_step();
  EXPECT_THROW(worker.wait_until_committed(0, soon()), Error);
  try {
    begun.wait(soon());
    ADD_FAILURE() << "no step begins";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::peer) << error.what();
    EXPECT_THAT(error.what(), testing::HasSubstr("the scheduler was last heard of 0.4 s ago"));
  }
}

}  // namespace
}  // namespace troika::server
