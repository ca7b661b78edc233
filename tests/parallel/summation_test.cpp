// Data parallelism by summation servers, compared with the group's all-reduce.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tests/parallel/replica.h"
#include "tests/parallel/spares.h"
#include "tests/support/errors.h"
#include "troika/comm/local/local.h"
#include "troika/parallel/data_parallel.h"
#include "troika/parallel/servers/summation.h"

namespace troika::parallel {
namespace {

using comm::Group;

constexpr int kSums = 5;  // steps

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

// The split of measured links has other sums of the same order.
TEST(SummationServers, MeasureLinksAtTheStart) {
  constexpr int kRanks = 3, kSpares = 1;
  const Spares beside(kSpares, kRanks);
  comm::local::run(kRanks, [&](const Group& group) {
    const auto sums = std::make_shared<SummationServers>(
        group,
        SummationOptions{.servers = {.count = kSpares},
                         .sums = {.partition_bytes = 64, .links = "measured"}},
        beside.role(group.rank()));
    const auto values = train(group, sums), oracle = train(group, nullptr);
    for (size_t i = 0; i < oracle.size(); ++i)
      EXPECT_LT((values[i] - oracle[i]).abs().max().item<double>(), 1e-10);
    const auto& rates = sums->link_rates();
    ASSERT_EQ(rates.size(), 4u);
    for (const double rate : rates) EXPECT_GT(rate, 1e5) << "bytes per second of the loopback";
    const auto all = at::tensor(rates, at::kDouble);
    const auto first = all.clone();
    group.broadcast(first, 0);
    EXPECT_TRUE(all.equal(first)) << "all ranks have the same rates";
  });
}

// The values that codecs leave out are not lost: steps stay near those of whole gradients.
TEST(SummationServers, CodecsGiveTheSameBitsOnAllRanks) {
  for (const auto form : {server::SumForm::top, server::SumForm::int8, server::SumForm::dither}) {
    comm::local::run(3, [&](const Group& group) {
      const auto sums = std::make_shared<SummationServers>(
          group,
          SummationOptions{.coding = {.form = form, .density = 0.3, .error_feedback = true}});
      const auto values = train(group, sums), oracle = train(group, nullptr);
      for (size_t i = 0; i < oracle.size(); ++i) {
        EXPECT_LT((values[i] - oracle[i]).abs().max().item<double>(), 0.2);
      }
      const auto traffic = sums->traffic();
      EXPECT_EQ(traffic.sent_bytes, traffic.received_bytes);
    });
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
      "[layout] bandwidths of links; got `100, x`, expected 1 numbers with commas: of 0 "
      "spare machines, then of 1 workers; or measured");
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
