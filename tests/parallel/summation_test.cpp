// Data parallelism by summation servers, compared with the group's all-reduce.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <thread>

#include "tests/parallel/replica.h"
#include "tests/support/errors.h"
#include "troika/cluster/discovery/port.h"
#include "troika/comm/local/local.h"
#include "troika/parallel/data_parallel.h"
#include "troika/parallel/servers/embedded_world.h"
#include "troika/parallel/servers/launched_world.h"
#include "troika/parallel/servers/summation.h"
#include "troika/server/scheduler.h"

namespace troika::parallel {
namespace {

using comm::Group;

constexpr int kSums = 5;  // steps

// The scheduler and the servers of spare machines, as threads of the test.
class Spares {
 public:
  Spares(int servers, int workers) {
    if (servers == 0) return;
    role_ = {.role = server::WorldRole::scheduler,
             .scheduler = fmt::format("127.0.0.1:{}", cluster::free_port()),
             .servers = servers,
             .workers = workers,
             .has_server_beside = true,
             .secret = net::Secret::random(),
             .protection = net::Protection::none};
    for (int i = 0; i <= servers; ++i) {
      threads_.emplace_back([role = role_, i]() mutable {
        server::WorldParts parts{.scheduler = scheduler_options({}), .service = summation_service};
        parts.scheduler.takes_tables = true;
        if (i > 0) {
          role.role = server::WorldRole::server;
          role.index = i - 1;
        }
        server::World world(role, parts);
        world.serve(Deadline::after(std::chrono::minutes(2)));
      });
    }
  }
  ~Spares() {
    for (auto& thread : threads_) thread.join();
  }
  // Returns the role of the worker of a rank; `alone` without spares.
  server::WorldOptions role(int rank) const {
    auto role = role_;
    if (!threads_.empty()) role.role = server::WorldRole::worker;
    role.index = rank;
    return role;
  }

 private:
  server::WorldOptions role_;
  std::vector<std::thread> threads_;
};

// Returns the values after some steps. A rank's weight of 0 leaves it out of a step.
std::vector<at::Tensor> train(const Group& group, std::shared_ptr<BucketSums> sums,
                              DataParallelOptions options = {}) {
  Replica replica(kAdamW);
  options.sums = std::move(sums);
  options.bucket_bytes = options.first_bucket_bytes = 200;
  DataParallel ddp(*replica.module, group, options);
  for (int step = 0; step < kSums; ++step) {
    const double weight = step == 3 ? group.rank() : 1;
    if (group.size() > 1) ddp.begin_step(weight);
    replica.backward(group.rank(), step);
    ddp.finish_backward();
    ddp.step(*replica.optimizer);
  }
  expect_same_bits_on_all_ranks(group, replica.values());
  return replica.values();
}

TEST(SummationServers, StepsAreThoseOfAnAllReduce) {
  for (const int ranks : {1, 2, 4}) {
    for (const int spares : {0, 1, 2}) {
      SCOPED_TRACE(fmt::format("{} ranks, {} spares", ranks, spares));
      const Spares beside(spares, ranks);
      comm::local::run(ranks, [&](const Group& group) {
        const layout::ServerExchange servers{.count = spares};
        // A credit below one partition, and pieces of a parameter.
        const auto sums = std::make_shared<SummationServers>(
            group,
            SummationOptions{.servers = servers,
                             .sums = {.partition_bytes = 64 << (spares + ranks) % 3,
                                      .credit_bytes = spares == 1 ? 16 : 0,
                                      .priorities = spares != 2}},
            beside.role(group.rank()));
        expect_near(train(group, sums), train(group, nullptr), 1e-10);
        const auto traffic = sums->traffic();
        EXPECT_EQ(traffic.sent_bytes, traffic.received_bytes);
        EXPECT_EQ(traffic.sent_bytes > 0, ranks > 1) << "a single rank has nothing to average";
      });
    }
  }
}

TEST(SummationServers, StepsThatLookForUnusedParametersAreThoseOfAnAllReduce) {
  comm::local::run(2, [](const Group& group) {
    const auto make = [&] { return std::make_shared<SummationServers>(group, SummationOptions{}); };
    const DataParallelOptions unused{.find_unused_parameters = true};
    expect_near(train(group, make(), unused), train(group, nullptr, unused), 1e-10);
  });
}

TEST(SummationServers, RefuseWhatTheyCannotDo) {
  EXPECT_ERROR(
      comm::local::run(
          1, [](const Group& group) { SummationServers(group, {.servers = {.count = 2}}); }),
      ErrorKind::usage,
      "[parallel] summation servers on spare machines are processes of their own; got "
      "server.servers 2, and no launch of servers, expected server.servers 0: one in each "
      "rank's process (troika launch --servers K --workers N starts them)");
  EXPECT_ERROR(
      comm::local::run(
          1, [](const Group& group) { SummationServers(group, {.sums = {.links = "100, x"}}); }),
      ErrorKind::usage,
      "[parallel] bandwidths of links; got `100, x`, expected 1 numbers with commas: of 0 "
      "spare machines, then of 1 workers");
  comm::local::run(1, [](const Group& group) {
    const auto sums = std::make_shared<SummationServers>(group, SummationOptions{});
    Replica replica(kAdamW);
    EXPECT_ERROR(DataParallel(*replica.module, group, {.codec = {.name = "fp16"}, .sums = sums}),
                 ErrorKind::usage,
                 "[parallel] summation servers average plain gradients; got codec fp16, expected "
                 "neither hook nor codec");
    Bucket bucket;
    bucket.gradient.flat = at::zeros({4}, at::kHalf);
    std::vector<Bucket> buckets;
    buckets.push_back(std::move(bucket));
    EXPECT_ERROR(sums->lay_out(buckets), ErrorKind::usage,
                 "[parallel] gradients for summation servers; got Half on cpu, expected float32 or "
                 "float64 on the CPU");
  });
}

}  // namespace
}  // namespace troika::parallel
