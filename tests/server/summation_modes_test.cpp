// Summation servers that compress, and those that keep parameters.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "tests/server/sums.h"
#include "tests/support/errors.h"
#include "troika/server/sum_coding.h"
#include "troika/server/value_coding.h"

namespace troika::server {
namespace {

template <typename T>
constexpr ValueType kType = sizeof(T) == sizeof(float) ? ValueType::float32 : ValueType::float64;

template <typename T>
std::vector<T> decoded(const SumCoding& coding, std::vector<T>& values, std::vector<T>& left_out) {
  std::string encoded, result;
  left_out.assign(values.size(), 0);
  EXPECT_TRUE(encode_sum(coding, kType<T>, bytes_of(values, 0, values.size()), encoded,
                         reinterpret_cast<char*>(left_out.data())));
  EXPECT_LT(encoded.size(), values.size() * sizeof(T));
  decode_sum(coding.form, kType<T>, encoded, values.size() * sizeof(T), result);
  const auto* const first = reinterpret_cast<const T*>(result.data());
  return {first, first + result.size() / sizeof(T)};
}

template <typename T>
void expect_codings() {
  auto values = numbers<T>(0, 1000, 0);
  std::vector<T> left_out;
  const auto top = decoded({SumForm::top, 50}, values, left_out);
  std::vector<T> sorted(values);
  std::ranges::sort(sorted, std::greater(), [](T value) { return std::abs(value); });
  EXPECT_EQ(std::ranges::count_if(top, [](T value) { return value != 0; }), 50);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_TRUE(top[i] == 0 || top[i] == values[i]);
    const bool is_chosen = std::abs(values[i]) > std::abs(sorted[49]);
    EXPECT_TRUE(!is_chosen || top[i] == values[i]);
    EXPECT_EQ(left_out[i], values[i] - top[i]);
  }
  const auto levels = decoded({SumForm::int8, 64}, values, left_out);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(left_out[i], values[i] - levels[i]);
    EXPECT_LE(std::abs(left_out[i]), 143.0 / 127 / 2 * 1.001);
  }
  const auto some = decoded({SumForm::random, 50}, values, left_out);
  EXPECT_EQ(std::ranges::count_if(some, [](T value) { return value != 0; }), 50);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_TRUE(some[i] == 0 || some[i] == values[i]);
  double magnitude = 0;
  for (const T value : values) magnitude += std::abs(value) / 1000;
  const auto signs = decoded({SumForm::sign, 1}, values, left_out);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(signs[i], values[i] < 0 ? -magnitude : magnitude, 1e-5 * magnitude);
    EXPECT_EQ(left_out[i], values[i] - signs[i]);
  }
  const auto dithered = decoded({SumForm::dither, 64}, values, left_out);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_LE(std::abs(left_out[i]), 143.0 / 127 * 1.001);
  }
  const auto natural = decoded({SumForm::natural, 64}, values, left_out);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_LE(std::abs(left_out[i]), std::abs(values[i]) * 1.001) << "the level above is twice it";
  }
  const auto halves = decoded({SumForm::half, 0}, values, left_out);
  EXPECT_EQ(halves[3], from_half(to_half(static_cast<float>(values[3]))));
}

TEST(SumCoding, LeavesOutWhatItSays) {
  expect_codings<float>();
  expect_codings<double>();
}

// The seed depends on the values, of which one differs each time.
TEST(SumCoding, DitheringHasTheExpectationOfTheValues) {
  constexpr int kDraws = 10'000;
  std::vector<double> values(16), sums(16), left_out;
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(1.0 + static_cast<double>(i));
  values[0] = 1;
  for (int draw = 0; draw < kDraws; ++draw) {
    values[1] = 1e-9 * draw;
    const auto result = decoded({SumForm::dither, 16}, values, left_out);
    for (size_t i = 0; i < values.size(); ++i) sums[i] += result[i] / kDraws;
  }
  // Six standard deviations of a mean of roundings to multiples of 1 / 127.
  for (size_t i = 2; i < values.size(); ++i) {
    EXPECT_NEAR(sums[i], values[i], 6 * 0.5 / 127 / std::sqrt(kDraws));
  }
}

// Levels are parts of a block's norm, and no value is lost to one that overflows.
TEST(SumCoding, DitheringByTheNormOfABlock) {
  for (const auto form : {SumForm::dither, SumForm::natural}) {
    std::vector<float> values(20, 3), left_out;
    values[7] = -4;
    const double norm = std::sqrt(19 * 9 + 16);
    const auto result = decoded({form, 20, true}, values, left_out);
    for (size_t i = 0; i < values.size(); ++i) {
      const double level = std::abs(result[i]) / norm;
      if (form == SumForm::dither) {
        EXPECT_NEAR(127 * level, std::round(127 * level), 1e-4);
      } else {
        EXPECT_NEAR(std::log2(level), std::round(std::log2(level)), 1e-5);
      }
      EXPECT_EQ(result[i] < 0, i == 7);
    }
    const float most = std::numeric_limits<float>::max();
    values.assign(20, most / 2);
    for (const float value : decoded({form, 20, true}, values, left_out)) {
      EXPECT_NEAR(value / most, 0.5, 1e-5);
    }
  }
}

TEST(SumCoding, NaturalDitheringHasTheExpectationOfTheValues) {
  constexpr int kDraws = 10'000;
  std::vector<double> values{1, 0, 0.3, -0.7, 0.011, 1e-50, 0.5, -0.25}, sums(8), left_out;
  for (int draw = 0; draw < kDraws; ++draw) {
    values[1] = 1e-9 * draw;
    const auto result = decoded({SumForm::natural, 8}, values, left_out);
    for (size_t i = 0; i < values.size(); ++i) {
      sums[i] += result[i] / kDraws;
      const double part = std::abs(result[i]);
      int exponent = 0;
      EXPECT_TRUE(part == 0 || std::frexp(part, &exponent) == 0.5) << "a power of two";
    }
  }
  // Six standard deviations of a mean of roundings to p and 2 p.
  for (size_t i = 2; i < values.size(); ++i) {
    EXPECT_NEAR(sums[i], values[i], 6 * 0.5 * std::abs(values[i]) / std::sqrt(kDraws) + 1e-38);
  }
  EXPECT_NEAR(sums[0], 1, 1e-12);
  for (const size_t exact : {6u, 7u}) EXPECT_NEAR(sums[exact], values[exact], 1e-12);
}

// The numbers that are sent and those that are kept are together those that were given (error
// feedback).
TEST(SumCoding, ResidualsHaveWhatWasLeftOut) {
  constexpr size_t kCount = 400;
  for (const auto form : {SumForm::sign, SumForm::random, SumForm::dither, SumForm::natural}) {
    Residuals residuals;
    const SumCoding coding = coding_for({.form = form, .density = 0.1, .block = 50}, kCount);
    std::vector<double> given(kCount), sent(kCount);
    double kept = 0;
    for (uint64_t round = 0; round < 60; ++round) {
      auto values = numbers<double>(0, kCount, round);
      for (size_t i = 0; i < kCount; ++i) given[i] += values[i];
      std::string encoded, result;
      const std::span bytes(reinterpret_cast<char*>(values.data()), kCount * sizeof(double));
      ASSERT_TRUE(residuals.encode(7, coding, ValueType::float64, bytes, encoded));
      decode_sum(form, ValueType::float64, encoded, bytes.size(), result);
      const auto* const decoded = reinterpret_cast<const double*>(result.data());
      kept = 0;
      for (size_t i = 0; i < kCount; ++i) {
        sent[i] += decoded[i];
        kept = std::max(kept, std::abs(values[i] - decoded[i]));
      }
    }
    double farthest = 0;
    for (size_t i = 0; i < kCount; ++i) {
      farthest = std::max(farthest, std::abs(given[i] - sent[i]));
    }
    EXPECT_NEAR(farthest, kept, 1e-9) << static_cast<int>(form);
    EXPECT_GT(kept, 0) << static_cast<int>(form);
  }
}

// A part that was left out moves parameters as far as it would have at its own step.
TEST(SumCoding, ResidualsAreScaledWithTheLearningRate) {
  Residuals residuals;
  const auto sent = [&](std::vector<double> values, double rate) {
    std::string encoded, result;
    const std::span bytes(reinterpret_cast<char*>(values.data()), values.size() * sizeof(double));
    EXPECT_TRUE(residuals.encode(3, {SumForm::top, 1}, ValueType::float64, bytes, encoded, rate));
    decode_sum(SumForm::top, ValueType::float64, encoded, bytes.size(), result);
    const auto* const decoded = reinterpret_cast<const double*>(result.data());
    return std::vector<double>(decoded, decoded + values.size());
  };
  std::vector<double> none(8), first{4, 1, 0, 0, 0, 0, 0, 0};
  EXPECT_EQ(sent(first, 0.5)[0], 4);
  EXPECT_EQ(sent(none, 0.125)[1], 4) << "1 at a rate of 0.5";
  residuals = Residuals();
  sent(first, 0);
  EXPECT_THAT(sent(none, 0.5), testing::Each(0)) << "a rate of 0 moves nothing";
}

TEST(SumCoding, RefusesWhatIsNoValueOrNotShorter) {
  auto values = numbers<float>(0, 100, 0);
  std::string encoded, result;
  const auto bytes = bytes_of(values, 0, values.size());
  EXPECT_FALSE(encode_sum({SumForm::top, 60}, ValueType::float32, bytes, encoded));
  EXPECT_FALSE(encode_sum({SumForm::plain, 1}, ValueType::float32, bytes, encoded));
  ASSERT_TRUE(encode_sum({SumForm::top, 6}, ValueType::float32, bytes, encoded));
  EXPECT_ERROR(decode_sum(SumForm::top, ValueType::float32, encoded, 396, result),
               ErrorKind::failure, "[server] encoded gradients; got 64 bytes");
  EXPECT_ERROR(decode_sum(SumForm::int8, ValueType::float32, encoded, 400, result),
               ErrorKind::failure, "[server] encoded gradients; got 64 bytes");
  // A place beyond the values.
  encoded[encoded.size() - 4] = 100;
  EXPECT_ERROR(decode_sum(SumForm::top, ValueType::float32, encoded, 400, result),
               ErrorKind::failure, "[server] encoded gradients; got 48 bytes");
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    values[3] = bad;
    EXPECT_FALSE(encode_sum({SumForm::top, 6}, ValueType::float32, bytes, encoded));
    EXPECT_FALSE(encode_sum({SumForm::int8, 6}, ValueType::float32, bytes, encoded));
    EXPECT_FALSE(encode_sum({SumForm::sign, 1}, ValueType::float32, bytes, encoded));
    EXPECT_FALSE(encode_sum({SumForm::random, 6}, ValueType::float32, bytes, encoded));
  }
}

// Pushes one piece of all workers, whose values become the mean.
template <typename T>
void average(Sums& sums, std::vector<std::vector<T>>& values, double rate = 1) {
  for (size_t w = 0; w < values.size(); ++w) {
    sums.client(w).push({{.key = 7,
                          .type = kType<T>,
                          .values = bytes_of(values[w], 0, values[w].size()),
                          .rate = rate}});
  }
  sums.wait();
  for (const auto& one : values) EXPECT_TRUE(one == values[0]) << "the same bits";
}

// After rounds without gradients that bring what was left out, the sum of all means, each times the
// learning rate of its round, is that of the means of all gradients. Without feedback it is not.
TEST(SummationServers, FeedbackLosesNothingOnEitherWay) {
  constexpr size_t kCount = 400, kWorkers = 3;
  constexpr uint64_t kRounds = 12;
  for (const auto form : {SumForm::top, SumForm::int8}) {
    for (const bool has_feedback : {true, false}) {
      Sums sums(kWorkers, 0, 0, 1, {},
                {.form = form, .density = 0.05, .block = 50, .error_feedback = has_feedback});
      std::vector<double> wanted(kCount), got(kCount);
      const uint64_t rest = form == SumForm::top ? 50 : 12;
      for (uint64_t round = 0; round < kRounds + rest; ++round) {
        const double rate = 1.0 / static_cast<double>(1 + round % 5);
        std::vector<std::vector<double>> values;
        for (size_t w = 0; w < kWorkers; ++w) {
          values.push_back(round < kRounds ? numbers<double>(w, kCount, round)
                                           : std::vector<double>(kCount));
        }
        for (size_t i = 0; i < kCount; ++i) {
          for (const auto& one : values) wanted[i] += rate * one[i] / kWorkers;
        }
        average(sums, values, rate);
        for (size_t i = 0; i < kCount; ++i) got[i] += rate * values[0][i];
      }
      double farthest = 0;
      for (size_t i = 0; i < kCount; ++i) {
        farthest = std::max(farthest, std::abs(got[i] - wanted[i]));
      }
      if (has_feedback) {
        EXPECT_LT(farthest, 1e-9);
      } else {
        EXPECT_GT(farthest, 0.5);
      }
      // 16 bytes of a head, then 20 places and values, or 8 scales and a byte for each value.
      const uint64_t bytes = form == SumForm::top ? 16 + 20 * 12 : 16 + 8 * 8 + kCount;
      EXPECT_EQ(sums.client(0).traffic().sent_bytes, bytes * (kRounds + rest));
      EXPECT_EQ(sums.server(0).traffic().received_bytes, kWorkers * bytes * (kRounds + rest));
      EXPECT_EQ(sums.server(0).traffic().sent_bytes, kWorkers * bytes * (kRounds + rest));
    }
  }
}

// The part that was left out of a layout's values does not come into those of another one.
TEST(SummationServers, FeedbackEndsWithTheLayout) {
  Sums sums(2, 0, 0, 1, {}, {.form = SumForm::top, .density = 0.02, .error_feedback = true});
  std::vector<std::vector<float>> values(2, std::vector<float>(100, 1));
  average(sums, values);
  // The third layout has the keys of the first one.
  for (const uint64_t key : {kLayoutBit | 7, uint64_t{7}}) {
    std::vector<std::vector<float>> others(2, std::vector<float>(100));
    for (size_t w = 0; w < 2; ++w) {
      sums.client(w).push({{.key = key, .values = bytes_of(others[w], 0, 100)}});
    }
    sums.wait();
    EXPECT_THAT(others[0], testing::Each(0));
  }
}

// Gradients that are no numbers reach all workers, and do not stay.
TEST(SummationServers, FeedbackForgetsAnOverflow) {
  Sums sums(2, 0, 0, 1, {}, {.form = SumForm::top, .density = 0.25, .error_feedback = true});
  std::vector<std::vector<float>> values(2, std::vector<float>(40, 1));
  values[1][3] = std::numeric_limits<float>::infinity();
  for (size_t w = 0; w < 2; ++w) {
    sums.client(w).push({{.key = 0, .values = bytes_of(values[w], 0, 40)}});
  }
  sums.wait();
  EXPECT_TRUE(std::isinf(values[0][3]) && std::isinf(values[1][3]));
  float sum = 0;
  for (int round = 0; round < 30; ++round) {
    for (size_t w = 0; w < 2; ++w) {
      values[w].assign(40, 1);
      sums.client(w).push({{.key = 0, .values = bytes_of(values[w], 0, 40)}});
    }
    sums.wait();
    for (const float value : values[0]) EXPECT_TRUE(std::isfinite(value));
    sum += values[0][3];
  }
  EXPECT_GT(sum, 20) << "the place gets the gradients of both workers again";
}

template <typename T>
void act(Sums& sums, size_t worker, SummationAction action, std::vector<T>& values) {
  sums.client(worker).push({{.key = 3,
                             .type = kType<T>,
                             .action = action,
                             .values = bytes_of(values, 0, values.size())}});
  sums.client(worker).wait(Deadline::after(std::chrono::minutes(1)));
}

// The changes of a worker alone are its own values, also where a difference has no exact float.
TEST(SummationServers, KeepTheValuesOfAWorkerAloneBitByBit) {
  Sums sums(1, 1);
  auto values = numbers<float>(0, 500, 0);
  act(sums, 0, SummationAction::set, values);
  act(sums, 0, SummationAction::read, values);
  for (uint64_t round = 1; round < 5; ++round) {
    const auto next = numbers<float>(0, 500, round);
    for (size_t i = 0; i < next.size(); ++i) values[i] = next[i] * 1e-9F + (i % 2) * values[i];
    const auto pushed = values;
    act(sums, 0, SummationAction::change, values);
    EXPECT_TRUE(values == pushed);
  }
}

// Each worker's changes count once, in whichever order they come.
TEST(SummationServers, AddTheChangesOfAllWorkersOnce) {
  constexpr size_t kWorkers = 3, kCount = 64;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    Sums sums(kWorkers, 0, 0, seed);
    std::vector<std::vector<double>> values(kWorkers, std::vector<double>(kCount, 0.5));
    act(sums, 0, SummationAction::set, values[0]);
    for (size_t w = 0; w < kWorkers; ++w) act(sums, w, SummationAction::read, values[w]);
    Random random(seed);
    double wanted = 0.5;
    for (int i = 0; i < 60; ++i) {
      const size_t w = random() % kWorkers;
      const double change = static_cast<double>(random() % 1000) - 500;  // sums are exact
      wanted += change;
      for (double& value : values[w]) value += change;
      act(sums, w, SummationAction::change, values[w]);
      EXPECT_THAT(values[w], testing::Each(wanted)) << "and those of the others so far";
    }
    for (size_t w = 0; w < kWorkers; ++w) act(sums, w, SummationAction::read, values[w]);
    for (const auto& one : values) EXPECT_THAT(one, testing::Each(wanted));
  }
}

TEST(SummationServers, RefuseChangesOfWhatTheyHaveNotGiven) {
  std::vector<float> values(10);
  const auto error_of = [&](Sums& sums, SummationAction action) {
    sums.client(1).push({{.key = 3, .action = action, .values = bytes_of(values, 0, 10)}});
    return sums.error_of(1);
  };
  const std::string what = "[server] summation servers cannot average gradients; got s0: ";
  {
    Sums sums(2, 0);
    EXPECT_EQ(error_of(sums, SummationAction::read),
              what + "key 3 has no values when w1 reads or changes it");
  }
  Sums sums(2, 0);
  act(sums, 0, SummationAction::set, values);
  EXPECT_EQ(error_of(sums, SummationAction::change),
            what + "a change of key 3 is 40 bytes of float32 for round 0 of 2 workers at w1");
}

}  // namespace
}  // namespace troika::server
