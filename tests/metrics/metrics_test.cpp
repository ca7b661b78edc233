// Metrics over samples spread unevenly over ranks, against one process and against computations by
// definition. metric_values_test.cpp has values computed by hand.
#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <memory>

#include "tests/support/errors.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/metrics/auroc.h"
#include "troika/metrics/confusion_matrix.h"
#include "troika/metrics/regression.h"

namespace troika::metrics {
namespace {

constexpr int64_t kScoredSamples = 103, kClasses = 5;

struct Samples {
  at::Tensor preds, target;
};

// Some ignored targets, and a class that no target has.
Samples class_samples() {
  torch::manual_seed(3);
  const auto target = at::randint(kClasses - 1, {kScoredSamples}, at::kLong);
  target.slice(0, 5, 9).fill_(kIgnored);
  return {at::softmax(at::randn({kScoredSamples, kClasses}), 1), target};
}

// Many scores are equal.
Samples binary_samples_with_ties() {
  torch::manual_seed(4);
  const auto target = at::randint(2, {kScoredSamples}, at::kLong);
  target.slice(0, 50, 53).fill_(kIgnored);
  return {at::round(at::rand({kScoredSamples}) * 20) / 20, target};
}

// The mean is large compared with the spread, so sums of squares would lose the result to rounding.
Samples number_samples() {
  torch::manual_seed(5);
  const auto target = at::randn({kScoredSamples}, at::kDouble) + 1e6;
  return {target + at::randn({kScoredSamples}, at::kDouble) * 0.5, target};
}

// If there are several ranks, rank 0 has no samples, and the others have different numbers of them.
int64_t share_begin(int rank, int ranks) {
  return rank == ranks ? kScoredSamples
         : rank < 2    ? 0
                       : kScoredSamples * rank * rank / (ranks * ranks);
}

using Factory = std::function<std::unique_ptr<Metric>()>;

// Returns the metric over all ranks, which must get the same bits. Each rank adds its samples in
// batches of at most 10.
at::Tensor over_ranks(const Factory& make, const Samples& samples, int ranks) {
  std::vector<at::Tensor> values(static_cast<size_t>(ranks));
  comm::local::run(ranks, [&](const comm::Group& group) {
    const auto metric = make();
    const int64_t end = share_begin(group.rank() + 1, ranks);
    for (int64_t i = ranks == 1 ? 0 : share_begin(group.rank(), ranks); i < end; i += 10) {
      const int64_t stop = std::min(i + 10, end);
      metric->update(samples.preds.slice(0, i, stop), samples.target.slice(0, i, stop));
    }
    const at::Tensor own = metric->compute();
    values[static_cast<size_t>(group.rank())] = metric->compute(group, "test");
    EXPECT_TRUE(metric->compute().equal(own) || own.isnan().any().item<bool>())
        << "the rank's own state has changed";
  });
  for (const at::Tensor& value : values) {
    EXPECT_EQ(std::memcmp(value.data_ptr(), values[0].data_ptr(), value.nbytes()), 0);
  }
  return values[0];
}

void expect_equal_for_all_ranks(const Factory& make, const Samples& samples,
                                const at::Tensor& expected, double tolerance = 0) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    const at::Tensor value = over_ranks(make, samples, ranks);
    EXPECT_EQ(value.sizes(), expected.sizes());
    EXPECT_TRUE(value.allclose(expected.to(value.scalar_type()), tolerance, tolerance))
        << ranks << " ranks: " << value << "\nexpected " << expected;
  }
}

at::Tensor number(double value) {
  return at::scalar_tensor(value, at::kDouble);
}

// Direct computations in one process, sample by sample.
struct Tally {
  std::vector<std::vector<double>> matrix;  // [target][predicted]
  double total = 0, right = 0;
};

Tally tally(const Samples& samples, int64_t top_k) {
  Tally result{std::vector(kClasses, std::vector<double>(kClasses)), 0, 0};
  for (int64_t i = 0; i < kScoredSamples; ++i) {
    const auto target = samples.target[i].item<int64_t>();
    if (target == kIgnored) continue;
    const at::Tensor row = samples.preds[i];
    const auto best = std::get<1>(row.topk(top_k));
    const bool hit = best.eq(target).any().item<bool>();
    const auto predicted = hit ? target : row.argmax().item<int64_t>();
    result.matrix[static_cast<size_t>(target)][static_cast<size_t>(predicted)] += 1;
    result.total += 1;
    result.right += hit;
  }
  return result;
}

struct ClassScores {
  std::vector<double> precision, recall, f1, support;
  std::vector<bool> seen;
};

ClassScores scores_of(const Tally& t) {
  ClassScores s;
  const auto ratio = [](double a, double b) { return b == 0 ? 0 : a / b; };
  for (size_t c = 0; c < kClasses; ++c) {
    double said = 0, are = 0;
    for (size_t k = 0; k < kClasses; ++k) said += t.matrix[k][c], are += t.matrix[c][k];
    const double tp = t.matrix[c][c];
    s.precision.push_back(ratio(tp, said));
    s.recall.push_back(ratio(tp, are));
    s.f1.push_back(ratio(2 * tp, said + are));
    s.support.push_back(are);
    s.seen.push_back(said + are > 0);
  }
  return s;
}

double average_of(const std::vector<double>& values, const ClassScores& s, Average average) {
  double sum = 0, weights = 0;
  for (size_t c = 0; c < values.size(); ++c) {
    const double weight = average == Average::weighted ? s.support[c] : s.seen[c];
    sum += values[c] * weight;
    weights += weight;
  }
  return sum / weights;
}

template <typename M>
Factory make_scores(Average average, int64_t top_k) {
  return [=] {
    return std::make_unique<M>(
        StatScoresOptions{.num_classes = kClasses, .average = average, .top_k = top_k});
  };
}

TEST(Metrics, ScoresOverRanksAreThoseOfOneProcess) {
  const Samples samples = class_samples();
  for (const int64_t top_k : {1, 2}) {
    SCOPED_TRACE(top_k);
    const Tally t = tally(samples, top_k);
    const ClassScores s = scores_of(t);
    const auto expect = [&](const auto& make, const std::vector<double>& values) {
      expect_equal_for_all_ranks(make(Average::micro, top_k), samples, number(t.right / t.total));
      expect_equal_for_all_ranks(make(Average::none, top_k), samples,
                                 torch::tensor(values, at::kDouble));
      for (const Average average : {Average::macro, Average::weighted}) {
        expect_equal_for_all_ranks(make(average, top_k), samples,
                                   number(average_of(values, s, average)), 1e-14);
      }
    };
    expect(make_scores<Accuracy>, s.recall);
    expect(make_scores<Precision>, s.precision);
    expect(make_scores<Recall>, s.recall);
    expect(make_scores<F1Score>, s.f1);
  }
}

TEST(Metrics, ConfusionMatrixOverRanksIsThatOfOneProcess) {
  const Samples samples = class_samples();
  const Tally t = tally(samples, 1);
  const at::Tensor expected = at::zeros({kClasses, kClasses}, at::kLong);
  for (int64_t i = 0; i < kClasses; ++i) {
    for (int64_t j = 0; j < kClasses; ++j) {
      expected[i][j] = t.matrix[static_cast<size_t>(i)][static_cast<size_t>(j)];
    }
  }
  const auto make = [] {
    return std::make_unique<ConfusionMatrix>(ConfusionMatrixOptions{.num_classes = kClasses});
  };
  expect_equal_for_all_ranks(make, samples, expected);
}

// Pair by pair.
double area_by_pairs(const at::Tensor& scores, const at::Tensor& target, int64_t positive) {
  double won = 0, pairs = 0;
  for (int64_t i = 0; i < kScoredSamples; ++i) {
    if (target[i].item<int64_t>() != positive) continue;
    for (int64_t j = 0; j < kScoredSamples; ++j) {
      const auto other = target[j].item<int64_t>();
      if (other == positive || other == kIgnored) continue;
      const auto a = scores[i].item<double>(), b = scores[j].item<double>();
      won += a > b ? 1 : a == b ? 0.5 : 0;
      pairs += 1;
    }
  }
  return won / pairs;
}

TEST(Metrics, AurocOverRanksIsThatOfAllPairs) {
  const Samples binary = binary_samples_with_ties();
  const auto make_binary = [] {
    return std::make_unique<Auroc>(AurocOptions{.task = ClassificationTask::binary});
  };
  expect_equal_for_all_ranks(make_binary, binary,
                             number(area_by_pairs(binary.preds, binary.target, 1)));

  const Samples samples = class_samples();
  double macro = 0, weighted = 0, support = 0;
  for (int64_t c = 0; c + 1 < kClasses; ++c) {
    const double area = area_by_pairs(samples.preds.select(1, c), samples.target, c);
    const auto count = samples.target.eq(c).sum().item<double>();
    macro += area / (kClasses - 1);
    weighted += area * count;
    support += count;
  }
  const auto make = [](Average average) {
    return [=] {
      return std::make_unique<Auroc>(AurocOptions{.num_classes = kClasses, .average = average});
    };
  };
  expect_equal_for_all_ranks(make(Average::macro), samples, number(macro), 1e-14);
  expect_equal_for_all_ranks(make(Average::weighted), samples, number(weighted / support), 1e-14);
  const at::Tensor each = over_ranks(make(Average::none), samples, 4);
  EXPECT_TRUE(std::isnan(each[kClasses - 1].item<double>())) << "no target is of this class";
}

template <typename M>
std::unique_ptr<Metric> made() {
  return std::make_unique<M>();
}

TEST(Metrics, RegressionOverRanksIsThatOfOneProcess) {
  const Samples samples = number_samples();
  const at::Tensor error = samples.preds - samples.target;
  const double mean_square = error.square().mean().item<double>();
  expect_equal_for_all_ranks(made<MeanSquaredError>, samples, number(mean_square), 1e-13);
  expect_equal_for_all_ranks([] { return std::make_unique<MeanSquaredError>(false); }, samples,
                             number(std::sqrt(mean_square)), 1e-13);
  expect_equal_for_all_ranks(made<MeanAbsoluteError>, samples, error.abs().mean(), 1e-13);
  // 1e6 is exact, so this shift is, and shifted targets have nothing to cancel.
  const at::Tensor shifted = samples.target - 1e6;
  const at::Tensor spread = (shifted - shifted.mean()).square().sum();
  expect_equal_for_all_ranks(made<R2Score>, samples, 1 - error.square().sum() / spread, 1e-12);
}

TEST(Metrics, PerplexityAndMeanOverRanksAreThoseOfOneProcess) {
  const Samples samples = class_samples();
  double sum = 0, count = 0;
  for (int64_t i = 0; i < kScoredSamples; ++i) {
    const auto target = samples.target[i].item<int64_t>();
    if (target == kIgnored) continue;
    const at::Tensor logits = samples.preds[i].to(at::kDouble);
    sum -= (logits[target] - logits.exp().sum().log()).item<double>();
    count += 1;
  }
  const Samples exact{samples.preds.to(at::kDouble), samples.target};
  expect_equal_for_all_ranks(made<Perplexity>, exact, number(std::exp(sum / count)), 1e-13);

  const Samples weighted{at::arange(kScoredSamples), at::arange(kScoredSamples) % 4};
  const at::Tensor mean = (weighted.preds * weighted.target).sum().to(at::kDouble) /
                          weighted.target.sum().to(at::kDouble);
  expect_equal_for_all_ranks(made<Mean>, weighted, mean);
}

TEST(Metrics, NoSamplesAtAllAreLegal) {
  const std::vector<Factory> all = {
      made<Mean>,
      made<Perplexity>,
      made<MeanSquaredError>,
      made<MeanAbsoluteError>,
      made<R2Score>,
      made<Accuracy>,
      make_scores<F1Score>(Average::macro, 1),
      [] { return std::make_unique<Auroc>(AurocOptions{.num_classes = 3}); }};
  for (const Factory& make : all) {
    EXPECT_TRUE(std::isnan(make()->value()));
    comm::local::run(3, [&](const comm::Group& group) {
      EXPECT_TRUE(std::isnan(make()->value(group, "test")));
    });
  }
  Accuracy accuracy;
  accuracy.update(at::zeros({0, 10}), at::zeros({0}, at::kLong));
  EXPECT_TRUE(std::isnan(accuracy.value()));
}

TEST(Metrics, MoreBatchesMayFollowAValueAndResetForgets) {
  comm::local::run(2, [](const comm::Group& group) {
    Mean mean;
    mean.update(1.0 + group.rank());
    EXPECT_EQ(mean.value(group, "test"), 1.5);
    mean.update(4.0);
    EXPECT_EQ(mean.value(group, "test"), 11.0 / 4);
    const Mean copy = mean;
    mean.update(100.0);
    EXPECT_EQ(copy.value(), (5.0 + group.rank()) / 2) << "a copy is independent";
    Mean loaded;
    loaded.update(50.0);
    loaded.load_state(copy.state());
    loaded.update(100.0);
    EXPECT_EQ(loaded.value(), mean.value()) << "the counts continue from a checkpoint";
    mean.reset();
    mean.update(7.0);
    EXPECT_EQ(mean.value(group, "test"), 7);
  });
}

}  // namespace
}  // namespace troika::metrics
