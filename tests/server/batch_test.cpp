// L-BFGS on a parameter server with a coordinator and replicas: its iterates are those of one
// process, also when replicas, servers and messages are lost.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>

#include "tests/server/nodes.h"
#include "tests/support/errors.h"
#include "troika/base/random.h"
#include "troika/server/batch/batch_replica.h"
#include "troika/server/batch/coordinator.h"
#include "troika/server/batch/lbfgs.h"

namespace troika::server {
namespace {

constexpr size_t kSize = 20;
constexpr uint64_t kPortions = 12, kRowsOfPortion = 3;
constexpr int kIterations = 8;

// Logistic regression; the penalty is shared out to the portions.
double portion_gradient(uint64_t portion, std::span<const double> w,
                        std::vector<double>& gradient) {
  const double penalty = 0.01 / kPortions;
  double loss = 0;
  for (size_t j = 0; j < kSize; ++j) {
    loss += penalty * w[j] * w[j] / 2;
    gradient[j] += penalty * w[j];
  }
  for (uint64_t row = 0; row < kRowsOfPortion; ++row) {
    Random random(portion * kRowsOfPortion + row + 1);
    std::vector<double> x(kSize);
    double margin = 0;
    for (size_t j = 0; j < kSize; ++j) {
      x[j] = random.normal() * (1 + static_cast<double>(j));
      margin += x[j] * w[j];
    }
    const double label = random.uniform() < 0.5 ? 1 : -1;
    loss += std::log1p(std::exp(-label * margin));
    for (size_t j = 0; j < kSize; ++j) gradient[j] -= label * x[j] / (1 + std::exp(label * margin));
  }
  return loss;
}

using PortionGradient = std::function<double(uint64_t portion, std::span<const double> w,
                                             std::vector<double>& gradient)>;

// The point after each iteration, and the value there.
struct Course {
  std::vector<std::vector<double>> points;
  std::vector<double> values;
};

const Course& one_process_course() {
  static const Course course = [] {
    Course made;
    LocalVectors space(kSize);
    Lbfgs lbfgs(space, [&] {
      auto& gradient = space.vector("g");
      std::ranges::fill(gradient, 0);
      double loss = 0;
      for (uint64_t p = 0; p < kPortions; ++p)
        loss += portion_gradient(p, space.vector("x"), gradient);
      return loss;
    });
    for (int i = 0; i < kIterations; ++i) {
      made.values.push_back(lbfgs.iterate().value);
      made.points.push_back(space.vector("x"));
    }
    return made;
  }();
  return course;
}

// A replica that takes `pace` of the network's time for a portion.
class PacedReplica {
 public:
  PacedReplica(Nodes& nodes, const std::string& name, Worker& worker, net::Duration pace,
               PortionGradient gradient)
      : endpoint_(nodes.endpoint(name)),
        pace_(pace),
        gradient_(std::move(gradient)),
        replica_(endpoint_, worker, {.coordinator = "w0", .resend = milliseconds(20)}) {
    look();
  }
  ~PacedReplica() { endpoint_.cancel(timer_, net::Outcome::cancelled); }
  PacedReplica(const PacedReplica&) = delete;
  PacedReplica& operator=(const PacedReplica&) = delete;

  int computed = 0;

 private:
  void look() {
    const auto work = replica_.poll();
    if (!work) {
      timer_ = endpoint_.after(std::chrono::microseconds(200), [this] { look(); });
      return;
    }
    timer_ = endpoint_.after(pace_, [this, work] {
      std::vector<double> gradient(work->parameters().size());
      const double loss = gradient_(work->portion, work->parameters(), gradient);
      replica_.finish(*work, loss, std::move(gradient));
      ++computed;
      look();
    });
  }

  net::Endpoint& endpoint_;
  const net::Duration pace_;
  const PortionGradient gradient_;
  BatchReplica replica_;
  net::Ticket timer_ = 0;
};

struct RunOptions {
  int servers = 1;
  int replicas = 1;
  int copies = 0;
  int backups = 1;
  net::Duration slow = milliseconds(2);  // for a portion, of the first replica
  test::Faults faults = {};
  uint64_t seed = 1;
  uint64_t size = kSize;
  PortionGradient gradient = portion_gradient;
};

// A run of a coordinator, w0, and replicas w1, w2, ...
class ServedRun {
 public:
  explicit ServedRun(const RunOptions& options)
      : gradient_(options.gradient),
        nodes_({.tables = vector_tables(Lbfgs::vector_names(10), options.size, "g"),
                .ranges = 7,
                .replicas = options.copies,
                .first_servers = options.servers,
                .first_workers = options.replicas + 1,
                .limit = milliseconds(400)},
               options.seed, options.faults) {
    nodes_.add_all(options.servers, options.replicas + 1);
    coordinator_ = std::make_unique<Coordinator>(
        nodes_.endpoint("w0"), nodes_.worker(0),
        CoordinatorOptions{
            .portions = kPortions, .backups = options.backups, .resend = milliseconds(20)});
    for (int i = 1; i <= options.replicas; ++i) {
      add_replica(i, i == 1 ? options.slow : milliseconds(2));
    }
  }
  void add_replica(int i, net::Duration pace = milliseconds(2)) {
    replicas_.push_back(std::make_unique<PacedReplica>(nodes_, fmt::format("w{}", i),
                                                       nodes_.worker(i), pace, gradient_));
  }

  void expect_course() {
    ServedVectors space(nodes_.worker(0), std::chrono::seconds(60));
    int evaluations = 0;
    Lbfgs lbfgs(space, [&] {
      const double value = coordinator_->evaluate(soon());
      if (after_evaluation) after_evaluation(++evaluations);
      return value;
    });
    for (size_t i = 0; i < kIterations; ++i) {
      SCOPED_TRACE(fmt::format("iteration {}", i));
      const auto iteration = lbfgs.iterate();
      EXPECT_NEAR(iteration.value, one_process_course().values[i], 1e-9);
      const auto pull = nodes_.worker(0).pull("x", KeySpan{0, kSize});
      pull.wait(soon());
      const auto got = pull.values<double>();
      for (size_t j = 0; j < kSize; ++j) {
        ASSERT_NEAR(got[j], one_process_course().points[i][j], 1e-8) << j;
      }
    }
  }
  // Called after each evaluation, with their number.
  std::function<void(int)> after_evaluation = {};
  Nodes& nodes() { return nodes_; }
  Coordinator& coordinator() { return *coordinator_; }
  const PacedReplica& replica(size_t i) const { return *replicas_[i]; }

 private:
  const PortionGradient gradient_;
  Nodes nodes_;
  std::unique_ptr<Coordinator> coordinator_;
  std::vector<std::unique_ptr<PacedReplica>> replicas_;
};

TEST(ServerBatch, IteratesEqualThoseOfOneProcess) {
  EXPECT_LT(one_process_course().values.back(), 0.7 * one_process_course().values.front());
  for (const int servers : {1, 3}) {
    for (const int replicas : {1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{} servers, {} replicas", servers, replicas));
      ServedRun run({.servers = servers, .replicas = replicas, .copies = servers > 1});
      run.expect_course();
      const auto counts = run.coordinator().counts();
      EXPECT_EQ(counts.committed, counts.passes * kPortions) << "each portion counts once";
      EXPECT_EQ(counts.repeated, 0u);
      EXPECT_EQ(run.nodes().worker(0).traffic().keys, 0u) << "the coordinator pushes nothing";
    }
  }
}

TEST(ServerBatch, IteratesEqualThoseOfOneProcessOnABadNetwork) {
  ServedRun run({.servers = 3,
                 .replicas = 3,
                 .copies = 1,
                 .faults = {.drop = 0.15, .duplicate = 0.2, .delay = 0.3},
                 .seed = 2});
  run.expect_course();
}

// A replica is stopped at any time: before, during and after its portions and its push.
TEST(ServerBatch, ALostReplicaChangesNothing) {
  uint64_t repeated = 0;
  for (int after = 5; after < 130; after += 10) {
    SCOPED_TRACE(fmt::format("after {} ms", after));
    ServedRun run({.servers = 2, .replicas = 3});
    auto& clock = run.nodes().endpoint("scheduler");
    clock.after(milliseconds(after), [&] { run.nodes().stop("w2"); });
    run.expect_course();
    repeated += run.coordinator().counts().repeated;
  }
  EXPECT_GT(repeated, 0u) << "some committed portions were lost with the replica";
}

TEST(ServerBatch, ALostServerChangesNothingWithCopies) {
  for (int after = 5; after < 130; after += 25) {
    SCOPED_TRACE(fmt::format("after {} ms", after));
    ServedRun run({.servers = 3, .replicas = 2, .copies = 1});
    auto& clock = run.nodes().endpoint("scheduler");
    clock.after(milliseconds(after), [&] { run.nodes().stop("s1"); });
    run.expect_course();
  }
}

TEST(ServerBatch, ReplicasJoin) {
  ServedRun run({.servers = 2, .replicas = 1});
  auto& clock = run.nodes().endpoint("scheduler");
  clock.after(milliseconds(30), [&] { run.nodes().add_worker("w2"); });
  std::function<void()> look = [&] {
    if (run.nodes().worker(2).is_ready()) return run.add_replica(2);
    clock.after(milliseconds(1), look);
  };
  clock.after(milliseconds(31), look);
  run.expect_course();
  EXPECT_GT(run.replica(1).computed, 0);
}

// Between two passes the parameters are changing: a replica must not fetch them before the pass
// begins, although its worker's step may begin at once.
TEST(ServerBatch, AReplicaJoinsBetweenPasses) {
  ServedRun run({.servers = 2, .replicas = 1});
  run.after_evaluation = [&](int evaluations) {
    if (evaluations != 3) return;
    auto& worker = run.nodes().add_worker("w2");
    worker.wait_until_ready(soon());
    run.add_replica(2);
    run.nodes().run_for(milliseconds(100));
  };
  run.expect_course();
  EXPECT_GT(run.replica(1).computed, 0);
}

// The times are those of the simulated network, so they are the same on every machine.
TEST(ServerBatch, BackupsShortenARunWithASlowReplica) {
  std::vector<double> seconds;
  for (const int backups : {0, 1}) {
    ServedRun run({.servers = 2, .replicas = 3, .backups = backups, .slow = milliseconds(30)});
    const auto begin = run.nodes().endpoint("scheduler").now();
    run.expect_course();
    const auto took = run.nodes().endpoint("scheduler").now() - begin;
    seconds.push_back(std::chrono::duration<double>(took).count());
    const auto counts = run.coordinator().counts();
    EXPECT_EQ(counts.backups > 0, backups > 0);
    EXPECT_EQ(counts.committed, counts.passes * kPortions);
  }
  EXPECT_LT(seconds[1], 0.85 * seconds[0]) << seconds[0] << " s without backups";
}

// All that it sends to servers and gets from them in three iterations is less than one vector.
TEST(ServerBatch, TheCoordinatorNeverHasAParameter) {
  constexpr uint64_t kLong = 50'000;
  const auto quadratic = [](uint64_t portion, std::span<const double> w,
                            std::vector<double>& gradient) {
    double loss = 0;
    for (size_t j = portion; j < w.size(); j += kPortions) {
      gradient[j] = static_cast<double>(1 + j % 5) * (w[j] - 1);
      loss += gradient[j] * (w[j] - 1) / 2;
    }
    return loss;
  };
  ServedRun run({.servers = 2, .replicas = 2, .size = kLong, .gradient = quadratic});
  ServedVectors space(run.nodes().worker(0), std::chrono::seconds(60));
  Lbfgs lbfgs(space, [&] { return run.coordinator().evaluate(soon()); });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(lbfgs.iterate().outcome, LbfgsOutcome::moved);
  const auto traffic = run.nodes().worker(0).traffic();
  EXPECT_EQ(traffic.keys, 0u) << "it pushes nothing";
  EXPECT_GT(traffic.answer_bytes, 0u);
  EXPECT_LT(traffic.request_bytes + traffic.answer_bytes, kLong * sizeof(double));
}

TEST(ServerBatch, APassWithoutReplicasEndsAtItsDeadline) {
  ServedRun run({.replicas = 1});
  run.nodes().stop("w1");
  EXPECT_ERROR(run.coordinator().evaluate(Deadline::after(std::chrono::seconds(2))),
               ErrorKind::timeout,
               "[server] a pass over 12 portions did not end in time; got 0 replicas (does each "
               "replica compute its portions?)");
}

TEST(ServerBatch, WrongTablesAreRefused) {
  Nodes nodes(
      {.tables = {{.name = "x", .keys = 4}, {.name = "g", .type = ValueType::float64, .keys = 4}},
       .first_workers = 1});
  nodes.add_all(1, 1);
  Coordinator coordinator(nodes.endpoint("w0"), nodes.worker(0), {.portions = 2});
  EXPECT_ERROR(coordinator.evaluate(soon()), ErrorKind::usage,
               "[server] the table of the gradient; got g float64 keys=4 width=1 initial=0 "
               "spread=0 seed=0 per_push sum, expected per_step sum");
  EXPECT_ERROR(BatchReplica(nodes.endpoint("w0"), nodes.worker(0), {.coordinator = "w0"}),
               ErrorKind::usage,
               "[server] a vector of a batch method; got x float32 keys=4 width=1 initial=0 "
               "spread=0 seed=0 per_push sum, expected a dense table of float64 of width 1");
  EXPECT_ERROR(Coordinator(nodes.endpoint("w0"), nodes.worker(0), {.portions = 0}),
               ErrorKind::usage,
               "[layout] portions of a batch; got 0 with 1 backups, expected at least 1 portion "
               "and 0 backups");
}

}  // namespace
}  // namespace troika::server
