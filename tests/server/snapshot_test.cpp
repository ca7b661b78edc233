// Snapshots, recovery of all nodes from them, and schedulers that begin again.
#include "troika/server/snapshot.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "tests/server/one_process.h"
#include "tests/support/errors.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"

namespace troika::server {
namespace {

namespace fs = std::filesystem;

SchedulerOptions snapshot_options(int servers, int workers, int replicas,
                                  std::string snapshot = "") {
  return {.tables = {table_with("adam rate=0.05", Application::per_step),
                     {.name = "rows", .type = ValueType::float64, .rows = 1000}},
          .ranges = 8,
          .replicas = replicas,
          .first_servers = servers,
          .first_workers = workers,
          .limit = milliseconds(400),
          .snapshot = std::move(snapshot)};
}

// Workers that train until `steps` steps are finished.
class Training {
 public:
  Training(Nodes& nodes, int workers, int64_t steps) {
    for (int i = 0; i < workers; ++i) {
      trainers_.push_back(std::make_unique<Trainer>(
          nodes.worker(i), "w", kKeys, steps, [i, workers](int64_t, std::span<const double> w) {
            return row_gradients(i, workers, w);
          }));
    }
  }
  int64_t finished() const {
    int64_t least = trainers_[0]->finished();
    for (const auto& trainer : trainers_) least = std::min(least, trainer->finished());
    return least;
  }
  const Trainer& first() const { return *trainers_[0]; }

 private:
  std::vector<std::unique_ptr<Trainer>> trainers_;
};

void expect_one_process(Nodes& nodes, int workers) {
  for (int i = 1; i < workers; ++i) nodes.worker(i).leave(soon());
  const auto got = pull_all(nodes, nodes.worker(0));
  const auto expected = one_process(table_with("adam rate=0.05", Application::per_step));
  for (Key key = 0; key < kKeys; ++key) EXPECT_NEAR(got[key], expected[key], 1e-10) << key;
}

// All nodes end; others, of another number, go on from the snapshot.
TEST(ServerSnapshots, EndAndGoOnWithOtherNumbersOfNodes) {
  const TemporaryFolder folder;
  const std::vector<Key> keys{5, 700, 1ull << 50};
  {
    Nodes nodes(snapshot_options(3, 2, 1), 3, {.drop = 0.1, .duplicate = 0.1, .delay = 0.3});
    nodes.add_all(3, 2);
    nodes.worker(0).push("rows", keys, std::vector<double>{1, 2, 3}).wait(soon());
    Training training(nodes, 2, kSteps);
    ASSERT_TRUE(nodes.run_until([&] { return training.finished() >= 7; }));
    nodes.scheduler().save(folder / "half", soon());
    ASSERT_TRUE(nodes.run_until([&] { return training.finished() == kSteps - 1; }))
        << "steps begin again";
    expect_one_process(nodes, 2);
  }
  const auto step = read_index(folder / "half").step;
  EXPECT_GE(step, 7);
  EXPECT_LT(step, kSteps - 1);
  for (const auto& [servers, workers] : {std::pair(1, 4), std::pair(4, 1)}) {
    Nodes nodes(snapshot_options(servers, workers, servers > 1, folder / "half"));
    nodes.add_all(servers, workers);
    Training training(nodes, workers, kSteps);
    ASSERT_TRUE(nodes.run_until([&] { return training.finished() == kSteps - 1; }));
    EXPECT_EQ(training.first().first(), step + 1);
    const auto pull = nodes.worker(0).pull("rows", keys);
    pull.wait(soon());
    EXPECT_THAT(pull.values<double>(), testing::ElementsAre(1, 2, 3));
    expect_one_process(nodes, workers);
  }
}

TEST(ServerSnapshots, AreWholeIfAServerIsLost) {
  for (int events = 0; events < 60; events += 6) {
    const TemporaryFolder folder;
    Nodes nodes(snapshot_options(3, 2, 1));
    nodes.add_all(3, 2);
    Training training(nodes, 2, kSteps);
    ASSERT_TRUE(nodes.run_until([&] { return training.finished() >= 3; }));
    nodes.endpoint("scheduler").after(std::chrono::microseconds(50 * events), [&] {
      nodes.stop("s1");
    });
    nodes.scheduler().save(folder / "half", soon());
    Nodes others(snapshot_options(1, 1, 0, folder / "half"));
    others.add_all(1, 1);
    Training rest(others, 1, kSteps);
    ASSERT_TRUE(others.run_until([&] { return rest.finished() == kSteps - 1; }));
    expect_one_process(others, 1);
  }
}

TEST(ServerSnapshots, ThatCannotBeMadeLeaveNothingBehind) {
  const TemporaryFolder folder;
  Nodes nodes(snapshot_options(2, 2, 0));
  nodes.add_all(2, 2);
  nodes.worker(0).begin_step().wait(soon());
  nodes.worker(1).begin_step().wait(soon());
  nodes.worker(1).end_step();
  EXPECT_ERROR(nodes.scheduler().save(folder / "early", Deadline::after(milliseconds(100))),
               ErrorKind::timeout,
               "[server] the snapshot " + (folder / "early").string() +
                   " failed; got waits for worker w0, which has finished step -1 of 0");
  EXPECT_TRUE(fs::is_empty(folder.path()));
  nodes.worker(0).end_step();
  nodes.worker(1).begin_step().wait(soon());
  nodes.worker(1).end_step();
  nodes.worker(0).begin_step().wait(soon());
  nodes.worker(0).end_step();
  nodes.scheduler().save(folder / "good", soon());
  EXPECT_ERROR(nodes.scheduler().save(folder / "good", soon()), ErrorKind::usage,
               "[server] the snapshot's folder exists; got " + (folder / "good").string());
  nodes.scheduler().save(folder / "other" / "", soon());
  EXPECT_EQ(read_index(folder / "other").step, read_index(folder / "good").step);
  nodes.stop("s1");
  EXPECT_ERROR(
      nodes.scheduler().save(folder / "lost", soon()), ErrorKind::failure,
      "[server] the snapshot " + (folder / "lost").string() + " failed; got range 7 was lost");
  EXPECT_FALSE(fs::exists(folder / "lost"));
}

TEST(ServerSnapshots, ThatWereChangedAreRefused) {
  const TemporaryFolder folder;
  {
    Nodes nodes(snapshot_options(1, 1, 0));
    nodes.add_all(1, 1);
    nodes.scheduler().save(folder / "good", soon());
  }
  auto options = snapshot_options(1, 1, 0, folder / "good");
  options.ranges = 9;
  EXPECT_THROW(Nodes{options}, Error);
  const auto saved = read_index(folder / "good").ranges.at(3);
  auto content = read_file(folder / "good" / saved.file);
  content[content.size() / 2] ^= 1;
  write_file_atomically(folder / "good" / saved.file, content);
  Nodes nodes(snapshot_options(1, 1, 0, folder / "good"));
  auto& server = nodes.add_server("s0");
  nodes.add_worker("w0");
  nodes.run_for(milliseconds(100));
  try {
    server.wait_until_ready(soon());
    FAIL() << "it read a changed file";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(saved.file + " was changed; got "));
  }
  const auto index = read_file(folder / "good" / "index");
  write_file_atomically(folder / "good" / "index", index.substr(0, index.size() / 2));
  EXPECT_ERROR(read_index(folder / "good"), ErrorKind::usage,
               "[server] no whole snapshot in " + (folder / "good").string() +
                   "; got an index with another checksum");
}

// The scheduler ends at any event, and one server with it. A new scheduler takes over.
TEST(ServerRecovery, ANewSchedulerTakesOver) {
  for (int events = 0; events < 400; events += 37) {
    SCOPED_TRACE(events);
    Nodes nodes(snapshot_options(3, 2, 1));
    nodes.add_all(3, 2);
    Training training(nodes, 2, kSteps);
    ASSERT_TRUE(nodes.run_until([&] { return training.finished() >= 3; }));
    for (int i = 0; i < events; ++i) nodes.step();
    nodes.end_scheduler();
    if (events % 2 == 1) nodes.stop("s2");
    nodes.run_for(milliseconds(1000));
    EXPECT_LT(training.finished(), kSteps - 1) << "no step begins without a scheduler";
    auto options = snapshot_options(3, 2, 1);
    options.takes_over = true;
    nodes.begin_scheduler(options);
    ASSERT_TRUE(nodes.run_until([&] { return training.finished() == kSteps - 1; }))
        << nodes.scheduler().status();
    expect_one_process(nodes, 2);
  }
}

// The scheduler learns the map before it orders a snapshot.
TEST(ServerRecovery, ASnapshotWaitsForTheTakeOver) {
  const TemporaryFolder folder;
  Nodes nodes(snapshot_options(2, 2, 0));
  nodes.add_all(2, 2);
  Training training(nodes, 2, kSteps);
  ASSERT_TRUE(nodes.run_until([&] { return training.finished() >= 3; }));
  nodes.end_scheduler();
  auto options = snapshot_options(2, 2, 0);
  options.takes_over = true;
  nodes.begin_scheduler(options);
  nodes.scheduler().save(folder / "half", soon());
  EXPECT_GE(read_index(folder / "half").step, 3);
  Nodes others(snapshot_options(1, 1, 0, folder / "half"));
  others.add_all(1, 1);
  Training rest(others, 1, kSteps);
  ASSERT_TRUE(others.run_until([&] { return rest.finished() == kSteps - 1; }));
  expect_one_process(others, 1);
}

// A worker with a new number would have its unanswered pushes executed twice.
TEST(ServerRecovery, AWorkerThatTheNewSchedulerDoesNotKnowIsTold) {
  auto options = snapshot_options(2, 2, 0);
  Nodes nodes(options);
  nodes.add_all(2, 2);
  nodes.end_scheduler();
  nodes.cut("w1", "scheduler");
  options.takes_over = true;
  nodes.begin_scheduler(options);
  nodes.run_for(milliseconds(1000));
  nodes.connect("w1", "scheduler");
  const auto step = nodes.worker(1).begin_step();
  EXPECT_THROW(step.wait(soon()), Error);
  EXPECT_EQ(step.error(), "w1 was lost together with an earlier scheduler");
  EXPECT_THAT(nodes.scheduler().map().workers, testing::SizeIs(1));
}

// A worker is lost together with the scheduler: its unfinished step is left out on all ranges.
TEST(ServerRecovery, WorkersThatWereLostWithTheSchedulerAreLeftOut) {
  auto options = snapshot_options(2, 2, 0);
  options.tables = {table_with("sum", Application::per_step)};
  options.tables[0].spread = 0;
  for (int events = 0; events < 200; events += 23) {
    SCOPED_TRACE(events);
    options.takes_over = false;
    Nodes nodes(options);
    nodes.add_all(2, 2);
    std::vector<std::unique_ptr<Trainer>> trainers;
    for (int i = 0; i < 2; ++i) {
      trainers.push_back(std::make_unique<Trainer>(
          nodes.worker(i), "w", kKeys, kSteps, [](int64_t, std::span<const double> values) {
            EXPECT_THAT(values, testing::Each(values[0])) << "steps are whole";
            return std::vector<double>(kKeys, 1);
          }));
    }
    ASSERT_TRUE(nodes.run_until([&] { return trainers[0]->finished() >= 3; }));
    for (int i = 0; i < events; ++i) nodes.step();
    nodes.end_scheduler();
    nodes.stop("w1");
    options.takes_over = true;
    nodes.begin_scheduler(options);
    ASSERT_TRUE(nodes.run_until([&] { return trainers[0]->is_done(); }));
    const auto values = pull_all(nodes, nodes.worker(0));
    EXPECT_THAT(values, testing::Each(values[0]));
    EXPECT_GE(values[0], static_cast<double>(kSteps + 3));
  }
}

}  // namespace
}  // namespace troika::server
