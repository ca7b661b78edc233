#include "troika/comm/codec/codec.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <atomic>
#include <cmath>
#include <limits>

#include "tests/support/errors.h"
#include "tests/support/state_dict.h"
#include "troika/base/random.h"
#include "troika/comm/codec/orthonormal.h"
#include "troika/comm/local/local.h"

namespace troika::comm {
namespace {

using Shapes = std::vector<std::vector<int64_t>>;

// A layer, its bias, a convolution, something too small to compress at rank 2, a scalar.
const Shapes kShapes{{16, 12}, {12}, {10, 5, 2, 4}, {6, 8}, {}};
constexpr int64_t kCoded = 653;

GradientBucket bucket_of(at::Tensor flat, const Shapes& shapes) {
  GradientBucket bucket{.index = 0, .flat = std::move(flat), .parts = {}};
  int64_t begin = 0;
  for (const auto& shape : shapes) {
    const int64_t count = at::empty(shape).numel();
    bucket.names.push_back("p" + std::to_string(bucket.parts.size()));
    bucket.parts.push_back(bucket.flat.narrow(0, begin, count).view(shape));
    begin += count;
  }
  return bucket;
}

// Returns the gradient of a rank in a step, in new memory.
at::Tensor gradient(int rank, int step, int64_t count = kCoded,
                    c10::ScalarType type = at::kDouble) {
  Random random(mix(static_cast<uint64_t>(rank), static_cast<uint64_t>(step), 11));
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(random.normal());
  return at::tensor(values, at::kDouble).to(type);
}

// Returns the mean of the ranks' gradients, summed in the order of ranks.
at::Tensor mean_gradient(int ranks, int step, int64_t count = kCoded,
                         c10::ScalarType type = at::kDouble) {
  at::Tensor sum = gradient(0, step, count, type);
  for (int r = 1; r < ranks; ++r) sum = sum + gradient(r, step, count, type);
  return sum / ranks;
}

at::Tensor averaged(Codec& codec, const Group& group, const at::Tensor& given,
                    const Shapes& shapes = kShapes) {
  const GradientBucket bucket = bucket_of(given.clone(), shapes);
  codec.average(group, bucket);
  return bucket.flat;
}

// Returns what a codec keeps of buckets with kShapes.
at::Tensor kept_errors(const Codec& codec) {
  std::vector<at::Tensor> errors;
  const auto state = codec.state();
  for (size_t i = 0; i < kShapes.size(); ++i) {
    errors.push_back(tensor_of(state, "error.p" + std::to_string(i)).reshape({-1}));
  }
  return at::cat(errors);
}

at::Tensor sum_over_ranks(const Group& group, const at::Tensor& tensor) {
  const at::Tensor sum = tensor.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
  group.all_reduce(sum).wait();
  return sum;
}

// Returns the largest difference, relative to the largest expected value.
double distance(const at::Tensor& got, const at::Tensor& expected) {
  const at::Tensor wanted = expected.to(at::kDouble);
  return ((got.to(at::kDouble) - wanted).abs().max() / wanted.abs().max()).item<double>();
}

void expect_same_bits(const Group& group, const at::Tensor& tensor) {
  const at::Tensor bytes = tensor.view(at::kByte);
  const at::Tensor all = at::empty({group.size(), bytes.numel()}, bytes.options());
  group.all_gather(all, bytes).wait();
  for (int r = 0; r < group.size(); ++r) EXPECT_TRUE(all[r].equal(bytes)) << "rank " << r;
}

// For each codec, the tolerance of a single step (codecs that send only a part catch up in bursts),
// and the tolerance of the average over 150 steps of a constant gradient.
struct Row {
  CodecOptions options;
  double once;
  double on_average;
};
const std::vector<Row> kCodecs{
    {{.name = "none"}, 0, 0},
    {{.name = "fp16"}, 1e-3, 1e-3},
    {{.name = "bf16"}, 8e-3, 8e-3},
    {{.name = "powersgd", .rank = 2, .start_step = 2}, 10, 0.1},
    {{.name = "topk", .density = 0.1}, 10, 0.2},
    {{.name = "int8", .block = 50}, 0.03, 1e-3},
};
const std::vector<std::string> kWithMemory{"powersgd", "topk", "int8"};

CodecOptions options_of(const std::string& name) {
  for (const Row& row : kCodecs) {
    if (row.options.name == name) return row.options;
  }
  throw std::logic_error(name);
}

class Sizes : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Codec, Sizes, testing::Values(1, 2, 3, 4),
                         testing::PrintToStringParamName());

TEST_P(Sizes, EveryCodecAveragesEveryTypeToTheSameBitsEverywhere) {
  const int n = GetParam();
  const std::vector<std::pair<c10::ScalarType, double>> types{
      {at::kDouble, 1e-14}, {at::kFloat, 1e-6}, {at::kHalf, 2e-3}, {at::kBFloat16, 2e-2}};
  for (const auto& [type, rounding] : types) {
    for (const Row& row : kCodecs) {
      local::run(n, [&](Group group) {
        SCOPED_TRACE(std::string(c10::toString(type)) + " " + row.options.name);
        const auto codec = make_codec(row.options);
        EXPECT_EQ(codec->name(), row.options.name);
        const at::Tensor given = gradient(group.rank(), 0, kCoded, type);
        const at::Tensor expected = mean_gradient(n, 0);
        at::Tensor sum = at::zeros_like(expected);
        for (int step = 0; step < 150; ++step) {
          const at::Tensor result = averaged(*codec, group, given);
          EXPECT_EQ(result.scalar_type(), type);
          if (step % 10 == 0) expect_same_bits(group, result);
          EXPECT_LE(distance(result, expected), row.once + rounding);
          sum += result;
        }
        EXPECT_LE(distance(sum / 150, expected), row.on_average + rounding);
      });
    }
  }
}

TEST_P(Sizes, BucketsMayBeTinyOrEmpty) {
  for (const Row& row : kCodecs) {
    for (const int64_t count : {0, 1}) {
      local::run(GetParam(), [&](Group group) {
        SCOPED_TRACE(row.options.name);
        const auto codec = make_codec(row.options);
        for (int step = 0; step < 4; ++step) {
          const at::Tensor result =
              averaged(*codec, group, gradient(group.rank(), 0, count), {{count}});
          EXPECT_TRUE(at::allclose(result, mean_gradient(group.size(), 0, count), 0.02)) << result;
        }
      });
    }
  }
}

TEST_P(Sizes, WhatWasGivenIsWhatWasAppliedPlusTheMemories) {
  const int n = GetParam();
  for (const auto& [type, tolerance] : {std::pair{at::kDouble, 1e-9}, {at::kFloat, 1e-5}}) {
    for (const std::string& name : kWithMemory) {
      local::run(n, [&](Group group) {
        SCOPED_TRACE(std::string(c10::toString(type)) + " " + name);
        const auto codec = make_codec(options_of(name));
        at::Tensor given = at::zeros({kCoded}, at::kDouble);
        at::Tensor applied = at::zeros({kCoded}, at::kDouble);
        for (int step = 0; step < 20; ++step) {
          const at::Tensor mine = gradient(group.rank(), step, kCoded, type);
          given += mine;
          applied += averaged(*codec, group, mine);
        }
        const at::Tensor memory = kept_errors(*codec);
        EXPECT_EQ(memory.scalar_type(), type);
        given = sum_over_ranks(group, given);
        const at::Tensor left = sum_over_ranks(group, memory);
        EXPECT_LE(distance(n * applied + left, given), tolerance);
        // Without the kept errors, the sums are not equal.
        EXPECT_GE(distance(n * applied, given), 1e-4);
      });
    }
  }
}

TEST_P(Sizes, StateGoesOnWithTheSameBits) {
  auto cold = options_of("powersgd");
  cold.warm_start = false;
  for (const CodecOptions& options :
       {options_of("powersgd"), cold, options_of("topk"), options_of("int8")}) {
    local::run(GetParam(), [&](Group group) {
      SCOPED_TRACE(options.name);
      const auto first = make_codec(options);
      for (int step = 0; step < 5; ++step) averaged(*first, group, gradient(group.rank(), step));
      const auto second = make_codec(options);
      second->load_state(first->state());
      const auto fresh = make_codec(options);
      for (int step = 5; step < 8; ++step) {
        const at::Tensor mine = gradient(group.rank(), step);
        const at::Tensor expected = averaged(*first, group, mine);
        EXPECT_TRUE(averaged(*second, group, mine).equal(expected)) << step;
        EXPECT_FALSE(averaged(*fresh, group, mine).equal(expected)) << step;
      }
    });
  }
}

TEST_P(Sizes, AStepThatIsNotFiniteLeavesNoTrace) {
  for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    for (const Row& row : kCodecs) {
      local::run(GetParam(), [&](Group group) {
        SCOPED_TRACE(row.options.name);
        const auto codec = make_codec(row.options);
        for (int step = 0; step < 4; ++step) averaged(*codec, group, gradient(group.rank(), step));
        const auto before = codec->state();
        at::Tensor mine = gradient(group.rank(), 4);
        if (group.rank() == group.size() - 1) mine[7] = bad;
        EXPECT_FALSE(averaged(*codec, group, mine).isfinite().all().item<bool>());
        for (const auto& [name, tensor] : codec->state()) {
          EXPECT_TRUE(name.starts_with("step.") || tensor.equal(tensor_of(before, name))) << name;
        }
        const at::Tensor next = averaged(*codec, group, gradient(group.rank(), 5));
        EXPECT_TRUE(next.isfinite().all().item<bool>());
      });
    }
  }
}

TEST_P(Sizes, Fp16KeepsFiniteMeansFinite) {
  local::run(GetParam(), [](Group group) {
    const auto codec = make_codec({.name = "fp16"});
    const at::Tensor given = at::tensor({60000.0, -65504.0, 1e9, -1e30}, at::kDouble);
    const at::Tensor mean = averaged(*codec, group, given, {{4}});
    EXPECT_TRUE(mean.equal(at::tensor({60000.0, -65504.0, 65504.0, -65504.0}, at::kDouble)));
  });
}

TEST_P(Sizes, TopKOfEverythingIsTheMean) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    local::run(GetParam(), [&](Group group) {
      const auto codec = make_codec({.name = "topk", .density = 1});
      const at::Tensor result = averaged(*codec, group, gradient(group.rank(), 0, kCoded, type));
      EXPECT_TRUE(result.equal(mean_gradient(group.size(), 0, kCoded, type)));
    });
  }
}

TEST(TopK, SendsTheLargestAndKeepsTheRest) {
  local::run(1, [](Group group) {
    const auto codec = make_codec({.name = "topk", .density = 0.4});
    const at::Tensor given = at::tensor({1.0, -5.0, 2.0, 0.0, 3.0}, at::kDouble);
    const at::Tensor sent = at::tensor({0.0, -5.0, 0.0, 0.0, 3.0}, at::kDouble);
    EXPECT_TRUE(averaged(*codec, group, given, {{5}}).equal(sent));
    EXPECT_TRUE(tensor_of(codec->state(), "error.p0").equal(given - sent));
    const auto one = make_codec({.name = "topk", .density = 1e-9});
    EXPECT_EQ(averaged(*one, group, given, {{5}}).count_nonzero().item<int64_t>(), 1);
  });
}

TEST_P(Sizes, PowerSgdIsOnePowerIterationOnTheMean) {
  const int n = GetParam();
  const Shapes shapes{{24, 30}};
  local::run(n, [&](Group group) {
    const auto codec = make_codec({.name = "powersgd", .rank = 3, .start_step = 2});
    for (int step = 0; step < 2; ++step) {
      const at::Tensor exact = averaged(*codec, group, gradient(group.rank(), step, 720), shapes);
      EXPECT_LE(distance(exact, mean_gradient(n, step, 720)), 1e-14);
    }
    averaged(*codec, group, gradient(group.rank(), 2, 720), shapes);
    const auto state = codec->state();
    const at::Tensor result =
        averaged(*codec, group, gradient(group.rank(), 3, 720), shapes).view({24, 30});

    const at::Tensor memory = sum_over_ranks(group, tensor_of(state, "error.p0")) / n;
    const at::Tensor mean = mean_gradient(n, 3, 720).view({24, 30}) + memory;
    const at::Tensor p = std::get<0>(at::linalg_qr(mean.mm(tensor_of(state, "q.p0"))));
    EXPECT_LE(distance(result, p.mm(p.t()).mm(mean)), 1e-10);
    const at::Tensor q = tensor_of(codec->state(), "q.p0");
    EXPECT_LE(distance(q.mm(q.t()), mean.t().mm(p).mm(p.t()).mm(mean)), 1e-10);
  });
}

TEST_P(Sizes, PowerSgdOfEnoughRankIsExact) {
  const int n = GetParam();
  const Shapes shapes{{40, 48}};
  // A tiny matrix of rank n, which an absolute threshold would remove.
  const auto low_rank = [](int rank, c10::ScalarType type) {
    const at::Tensor u = gradient(rank, 1, 40).unsqueeze(1);
    return (1e-12 * u * gradient(rank, 2, 48)).reshape(-1).to(type);
  };
  for (const auto& [type, tolerance] : {std::pair{at::kDouble, 1e-12}, {at::kFloat, 1e-5}}) {
    local::run(n, [&](Group group) {
      SCOPED_TRACE(c10::toString(type));
      const auto codec = make_codec({.name = "powersgd", .rank = 4, .start_step = 2});
      at::Tensor mean = at::zeros({40 * 48}, at::kDouble);
      for (int r = 0; r < n; ++r) mean += low_rank(r, type) / n;
      for (int step = 0; step < 6; ++step) {
        // A mean of zero, as of an unused layer, must not leave Q at zero.
        averaged(*codec, group, at::zeros({40 * 48}, type), shapes);
        const at::Tensor result = averaged(*codec, group, low_rank(group.rank(), type), shapes);
        EXPECT_LE(distance(result, mean), tolerance) << step;
      }
    });
  }
}

TEST(PowerSgd, ColumnsBecomeOrthonormalOrZero) {
  const at::Tensor a = gradient(0, 0, 50), b = gradient(1, 0, 50);
  const at::Tensor matrix = at::stack({a, a + 1e-7 * b, 0 * a, 3 * a}, 1);
  EXPECT_THAT(codec::orthonormalise(matrix), testing::ElementsAre(2, 3));
  const at::Tensor expected = at::diag(at::tensor({1.0, 1.0, 0.0, 0.0}, at::kDouble));
  EXPECT_TRUE(at::allclose(matrix.t().mm(matrix), expected, 0, 1e-14));
}

TEST(PowerSgd, WithoutWarmStartEveryStepHasANewQ) {
  local::run(2, [](Group group) {
    const CodecOptions options{
        .name = "powersgd", .error_feedback = false, .warm_start = false, .start_step = 0};
    const auto codec = make_codec(options);
    const at::Tensor given = gradient(group.rank(), 0), first = averaged(*codec, group, given);
    EXPECT_FALSE(averaged(*codec, group, given).equal(first));
    EXPECT_THAT(codec->state(),
                testing::Each(testing::Field(&state::Entry::first, testing::StartsWith("step."))));
    auto seeded = options;
    seeded.seed = 1;
    EXPECT_TRUE(averaged(*make_codec(options), group, given).equal(first));
    EXPECT_FALSE(averaged(*make_codec(seeded), group, given).equal(first));
  });
}

// Returns the bytes that all ranks together send for one average() of float32, on rings.
uint64_t bytes_of(const CodecOptions& options, int ranks, int steps_before) {
  std::atomic<uint64_t> bytes = 0;
  local::run(ranks,
             [&](Group group) {
               const auto codec = make_codec(options);
               const at::Tensor given = gradient(group.rank(), 0, kCoded, at::kFloat);
               for (int step = 0; step < steps_before; ++step) averaged(*codec, group, given);
               const uint64_t before = group.counters().bytes;
               averaged(*codec, group, given);
               bytes += group.counters().bytes - before;
             },
             {.algorithm = Algorithm::ring});
  return bytes;
}

TEST_P(Sizes, BytesAreAsPromised) {
  const int n = GetParam();
  const auto others = static_cast<uint64_t>(n - 1);
  EXPECT_EQ(bytes_of({.name = "none"}, n, 0), 2 * others * kCoded * 4);
  EXPECT_EQ(bytes_of({.name = "bf16"}, n, 0), 2 * others * kCoded * 2);
  // 16 x 12 and 10 x 40 at rank 2; the other 61 elements as they are.
  EXPECT_EQ(bytes_of(options_of("powersgd"), n, 2),
            2 * others * 4 * ((16 + 12) * 2 + (10 + 40) * 2 + 61));
  EXPECT_EQ(bytes_of(options_of("topk"), n, 0), n * others * 65 * 8);
  // 14 blocks of 50 bytes and a scale.
  EXPECT_EQ(bytes_of(options_of("int8"), n, 0), 2 * others * 14 * (50 + 4));
}

TEST(Codec, WrongOptionsAreNamed) {
  EXPECT_ERROR(make_codec({.name = "topp"}), ErrorKind::usage,
               "[comm] unknown gradient codec; got topp (did you mean topk?)");
  const std::vector<std::pair<CodecOptions, std::string>> wrong{
      {{.density = 0}, "density; got 0, expected a number above 0 and at most 1"},
      {{.density = 1.5}, "density; got 1.5, expected a number above 0 and at most 1"},
      {{.rank = 0}, "rank; got 0, expected an integer >= 1"},
      {{.block = 0}, "block; got 0, expected an integer >= 1"},
      {{.start_step = 1},
       "start_step; got 1, expected an integer >= 2 with error feedback or warm start"}};
  for (const auto& [options, message] : wrong) {
    EXPECT_ERROR(make_codec(options), ErrorKind::usage, "[comm] gradient codec: " + message);
  }
}

}  // namespace
}  // namespace troika::comm
