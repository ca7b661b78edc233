// Tests of what checkpoints keep of the errors of codecs at summation servers.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

#include "tests/parallel/replica.h"
#include "tests/support/errors.h"
#include "troika/comm/local/local.h"
#include "troika/parallel/data_parallel.h"
#include "troika/parallel/servers/summation.h"
#include "troika/parallel/sharded.h"

namespace troika::parallel {
namespace {

using comm::Group;

std::shared_ptr<SummationServers> lossy_sums(const Group& group, bool has_feedback = true) {
  return std::make_shared<SummationServers>(
      group, SummationOptions{.coding = {.form = server::SumForm::top,
                                         .density = 0.3,
                                         .error_feedback = has_feedback}});
}

// A model whose gradients servers average.
struct Course {
  Course(const Group& group, bool has_feedback = true, int64_t bucket_bytes = 200)
      : group(group),
        ddp(*replica.module, group,
            {.bucket_bytes = bucket_bytes,
             .first_bucket_bytes = bucket_bytes,
             .sums = lossy_sums(group, has_feedback)}) {}
  void step(int number) {
    ddp.begin_step(1);
    replica.backward(group.rank(), number);
    ddp.finish_backward();
    ddp.step(*replica.optimizer);
  }

  Group group;
  Replica replica{kAdamW};
  DataParallel ddp;
};

optim::NamedTensors copies(const optim::NamedTensors& state) {
  optim::NamedTensors result;
  for (const auto& [name, tensor] : state) result.emplace_back(name, tensor.clone());
  return result;
}

optim::NamedTensors trained_state(const Group& group) {
  Course course(group);
  for (int i = 0; i < 3; ++i) course.step(i);
  return copies(course.ddp.state());
}

optim::NamedTensors of_sums(const optim::NamedTensors& state, const std::string& prefix) {
  optim::NamedTensors found;
  for (const auto& [name, tensor] : state) {
    if (name.starts_with(prefix)) found.emplace_back(name, tensor);
  }
  return found;
}

double most_of(const optim::NamedTensors& state) {
  double most = 0;
  for (const auto& [name, tensor] : state) {
    most = std::max(most, tensor.abs().max().item<double>());
  }
  return most;
}

void expect_equal(const optim::NamedTensors& got, const optim::NamedTensors& expected) {
  std::map<std::string, at::Tensor> left(expected.begin(), expected.end());
  for (const auto& [name, tensor] : got) {
    const auto found = left.find(name);
    ASSERT_NE(found, left.end()) << name;
    EXPECT_TRUE(tensor.equal(found->second)) << name;
    left.erase(found);
  }
  EXPECT_THAT(left, testing::IsEmpty());
}

// A rank that fails saves its state alone, and a server may be lost at a checkpoint.
TEST(StateOfSums, PartsOfItLoad) {
  comm::local::run(2, [](const Group& group) {
    const auto whole = trained_state(group);
    auto part = whole;
    EXPECT_EQ(std::erase_if(part,
                            [](const auto& entry) {
                              return entry.first.starts_with("sums.mean_error.");
                            }) > 0,
              group.rank() == 0);
    Course course(group);
    course.ddp.load_state(part);
    const auto loaded = course.ddp.state();
    EXPECT_GT(most_of(of_sums(whole, "sums.error.")), 0);
    expect_equal(of_sums(loaded, "sums.error."), of_sums(whole, "sums.error."));
    if (group.rank() == 0) {
      EXPECT_EQ(most_of(of_sums(loaded, "sums.mean_error.")), 0);
    }
    course.step(3);
    expect_same_bits_on_all_ranks(group, course.replica.values());
  });
}

// Errors count by the rate of their step, so without it they are dropped.
TEST(StateOfSums, ErrorsWithoutTheirRateAreDropped) {
  comm::local::run(2, [](const Group& group) {
    auto state = trained_state(group);
    EXPECT_EQ(std::erase_if(state, [](const auto& entry) { return entry.first == "sums.rate"; }),
              1);
    Course course(group);
    course.ddp.load_state(state);
    for (const auto* kind : {"sums.error.", "sums.mean_error."}) {
      EXPECT_EQ(most_of(of_sums(course.ddp.state(), kind)), 0) << kind;
    }
  });
}

// A rank that loads another one's begins without, also if it had momentum before.
TEST(StateOfSums, MomentumIsThatOfTheRank) {
  comm::local::run(2, [](const Group& group) {
    SummationServers sums(group, {.sums = {.momentum = 0.5}});
    std::vector<Bucket> buckets(1);
    buckets[0].gradient.flat = at::full({10}, 1.0 + group.rank(), at::kDouble);
    buckets[0].gradient.parts = {buckets[0].gradient.flat};
    buckets[0].gradient.names = {"weight"};
    sums.lay_out(buckets);
    sums.start(buckets[0]);
    sums.finish();
    auto state = sums.state();
    const auto momentum = [&] { return of_sums(sums.state(), "momentum.weight").at(0).second; };
    EXPECT_EQ(momentum()[0].item<double>(), 1.0 + group.rank());
    for (const int64_t rank : {1 - group.rank(), group.rank()}) {
      for (auto& [name, tensor] : state) {
        if (name == "rank") tensor = at::scalar_tensor(rank, at::kLong);
      }
      sums.load_state(state);
      EXPECT_EQ(momentum()[0].item<double>(), rank == group.rank() ? 1.0 + group.rank() : 0.0);
    }
  });
}

// Each bucket has these parameters. The gradient of the i-th one is 4, 1 + i, again and again.
std::vector<Bucket> named_buckets(const std::vector<std::vector<std::string>>& names) {
  std::vector<Bucket> buckets;
  for (const auto& of_bucket : names) {
    auto& gradient = buckets.emplace_back().gradient;
    gradient.index = static_cast<int64_t>(buckets.size()) - 1;
    gradient.names = of_bucket;
    for (size_t i = 0; i < of_bucket.size(); ++i) {
      gradient.parts.push_back(at::tensor({4.0, 1.0 + i}, at::kDouble).repeat({64}));
    }
    gradient.flat = at::cat(gradient.parts);
    gradient.parts = gradient.flat.chunk(static_cast<int64_t>(of_bucket.size()));
  }
  return buckets;
}

// A run that freezes a parameter and thaws another of the same shape, and has other buckets.
TEST(StateOfSums, BelongsToParametersByName) {
  comm::local::run(2, [](const Group& group) {
    const SummationOptions options{
        .sums = {.momentum = 0.5},
        .coding = {.form = server::SumForm::top, .density = 0.5, .error_feedback = true}};
    SummationServers before(group, options), after(group, options);
    const auto buckets = named_buckets({{"a", "b"}});
    before.lay_out(buckets);
    before.start(buckets[0]);
    before.finish();
    const auto others = named_buckets({{"c"}, {"b"}});
    after.lay_out(others);
    after.load_state(before.state());
    std::map<std::string, at::Tensor> loaded;
    for (const auto& [name, tensor] : after.state()) loaded.emplace(name, tensor);
    const auto expect = [&](const std::string& name, double first, double second) {
      ASSERT_TRUE(loaded.contains(name)) << name;
      EXPECT_TRUE(loaded.at(name).equal(at::tensor({first, second}, at::kDouble).repeat({64})))
          << name << loaded.at(name);
    };
    expect("momentum.b", 4, 2);
    expect("momentum.c", 0, 0);
    // The larger half of the numbers was sent: 4 + 0.5 * 4.
    expect("error.b", 0, 3);
    expect("error.c", 0, 0);
    EXPECT_EQ(loaded.size(), group.rank() == 0 ? 9u : 7u);
    group.barrier();
  });
}

// A run may go on with other strategies and options, which drop the errors, and with other buckets.
TEST(StateOfSums, OthersLoadWithoutIt) {
  comm::local::run(2, [](const Group& group) {
    const auto whole = trained_state(group);
    ASSERT_FALSE(of_sums(whole, "sums.").empty());
    Replica replica(kAdamW);
    DataParallel plain(*replica.module, group);
    plain.load_state(whole);
    EXPECT_THAT(of_sums(plain.state(), "sums."), testing::IsEmpty());
    Replica other(kAdamW);
    Sharded sharded(*other.module, group, {});
    sharded.load_state(whole);
    Course without(group, false);
    without.ddp.load_state(whole);
    without.step(3);
    Course smaller(group, true, 64);
    smaller.ddp.load_state(whole);
    EXPECT_GT(smaller.ddp.bucket_count(), 1u);
    for (const auto* kind : {"sums.error.", "sums.mean_error."}) {
      expect_equal(of_sums(smaller.ddp.state(), kind), of_sums(whole, kind));
    }
    smaller.step(3);
    expect_same_bits_on_all_ranks(group, smaller.replica.values());
  });
}

// Nothing of a state that is refused is under way to servers.
TEST(StateOfSums, AForeignOneIsRefusedAsAWhole) {
  comm::local::run(2, [](const Group& group) {
    auto state = trained_state(group);
    state.emplace_back("sums.bucket0.error", at::ones({1}));
    Course course(group);
    EXPECT_ERROR(course.ddp.load_state(state), ErrorKind::usage,
                 "[parallel] the state of summation servers; got bucket0.error, expected errors "
                 "of codecs, and momentum");
    group.barrier();
    course.step(3);
    expect_same_bits_on_all_ranks(group, course.replica.values());
  });
}

// The state of a rank that fails in a backward pass lacks them. Buckets under way stay as they are.
TEST(StateOfSums, IsEmptyInsideOfAStep) {
  comm::local::run(2, [](const Group& group) {
    const auto sums = lossy_sums(group);
    std::vector<Bucket> buckets(1);
    buckets[0].gradient.flat = at::ones({100}, at::kDouble);
    buckets[0].gradient.parts = {buckets[0].gradient.flat};
    buckets[0].gradient.names = {"weight"};
    sums->lay_out(buckets);
    if (group.rank() == 0) {
      sums->start(buckets[0]);
      EXPECT_THAT(sums->state(), testing::IsEmpty());
    }
    group.barrier();
    if (group.rank() == 1) sums->start(buckets[0]);
    sums->finish();
    EXPECT_EQ(buckets[0].gradient.flat.sum().item<double>(), 30) << "a density of 0.3";
    EXPECT_EQ(sums->state().size(), group.rank() == 0 ? 5u : 4u);
  });
}

// The other ranks go on without rank 0's part, and call collectives of their own.
TEST(StateOfSums, ALostServerDoesNotStopACheckpoint) {
  comm::local::run(2, [](const Group& group) {
    auto sums = std::make_shared<SummationServers>(
        group,
        SummationOptions{
            .servers = {.limit_seconds = 1},
            .sums = {.partition_bytes = 64},
            .coding = {.form = server::SumForm::top, .density = 0.3, .error_feedback = true}});
    std::vector<Bucket> buckets(1);
    buckets[0].gradient.flat = at::ones({100}, at::kDouble);
    sums->lay_out(buckets);
    group.barrier();
    try {
      const auto own = std::exchange(sums, nullptr);
      if (group.rank() == 1) throw std::runtime_error("a rank that fails does not serve others");
      sums = own;
    } catch (const std::runtime_error&) {
      EXPECT_EQ(group.rank(), 1);
    }
    group.barrier();
    if (group.rank() == 0) {
      EXPECT_THAT(sums->state(), testing::IsEmpty());
    }
    group.broadcast(at::ones({1}), 0, {.label = "checkpoint"});
  });
}

}  // namespace
}  // namespace troika::parallel
