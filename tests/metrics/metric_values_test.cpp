// Metrics against values computed by hand, and what they refuse.
#include <gmock/gmock.h>

#include <cmath>

#include "tests/support/errors.h"
#include "troika/compat/torch.h"
#include "troika/metrics/auroc.h"
#include "troika/metrics/confusion_matrix.h"
#include "troika/metrics/regression.h"

namespace troika::metrics {
namespace {

constexpr auto kBinary = ClassificationTask::binary;

at::Tensor labels(std::vector<int64_t> values) {
  return torch::tensor(values, at::kLong);
}

at::Tensor numbers(std::vector<double> values) {
  return torch::tensor(values, at::kDouble);
}

template <typename M>
double value_of(const StatScoresOptions& options, const at::Tensor& preds,
                const at::Tensor& target) {
  M metric(options);
  metric.update(preds, target);
  return metric.value();
}

// Targets 0 0 1 1 1 2, predicted 0 1 1 1 2 2: recalls 1/2, 2/3, 1, precisions 1, 2/3, 1/2.
TEST(MetricValues, OfThreeClasses) {
  const auto target = labels({0, 0, 1, 1, 1, 2}), preds = labels({0, 1, 1, 1, 2, 2});
  const StatScoresOptions micro{.num_classes = 3};
  StatScoresOptions macro = micro, weighted = micro;
  macro.average = Average::macro;
  weighted.average = Average::weighted;
  EXPECT_DOUBLE_EQ(value_of<Accuracy>(micro, preds, target), 4.0 / 6);
  EXPECT_DOUBLE_EQ(value_of<Precision>(micro, preds, target), 4.0 / 6);
  EXPECT_DOUBLE_EQ(value_of<Accuracy>(macro, preds, target), (1.0 / 2 + 2.0 / 3 + 1) / 3);
  EXPECT_DOUBLE_EQ(value_of<Precision>(macro, preds, target), (1 + 2.0 / 3 + 1.0 / 2) / 3);
  EXPECT_DOUBLE_EQ(value_of<Precision>(weighted, preds, target), (2 + 2 + 1.0 / 2) / 6);
  EXPECT_DOUBLE_EQ(value_of<Recall>(weighted, preds, target), 4.0 / 6);
  EXPECT_DOUBLE_EQ(value_of<F1Score>(macro, preds, target), (2.0 / 3 + 2.0 / 3 + 2.0 / 3) / 3);
}

// Probabilities .2 .7 .5 .9 over a threshold .6 for targets 0 0 1 1: tp 1, fp 1, tn 1, fn 1.
TEST(MetricValues, OfABinaryTask) {
  const auto target = labels({0, 0, 1, 1, kIgnored});
  const auto preds = numbers({0.2, 0.7, 0.5, 0.9, 0.1});
  EXPECT_EQ(value_of<Accuracy>({.task = kBinary, .threshold = 0.6}, preds, target), 0.5);
  EXPECT_EQ(value_of<Accuracy>({.task = kBinary, .threshold = 0.75}, preds, target), 0.75);
  EXPECT_EQ(value_of<Precision>({.task = kBinary, .threshold = 0.75}, preds, target), 1);
  EXPECT_EQ(value_of<Recall>({.task = kBinary, .threshold = 0.75}, preds, target), 0.5);
  EXPECT_DOUBLE_EQ(value_of<F1Score>({.task = kBinary, .threshold = 0.75}, preds, target), 2.0 / 3);
  EXPECT_EQ(value_of<Recall>({.task = kBinary, .threshold = 0.95}, preds, target), 0);
  EXPECT_EQ(value_of<Precision>({.task = kBinary, .threshold = 0.95}, preds, target), 0)
      << "nothing was said to be positive";
}

TEST(MetricValues, OfTopK) {
  const auto preds = torch::tensor({{0.5, 0.3, 0.2}, {0.1, 0.3, 0.6}, {0.2, 0.5, 0.3}});
  const auto target = labels({1, 0, 1});
  EXPECT_DOUBLE_EQ(value_of<Accuracy>({}, preds, target), 1.0 / 3);
  EXPECT_DOUBLE_EQ(value_of<Accuracy>({.top_k = 2}, preds, target), 2.0 / 3);
  EXPECT_DOUBLE_EQ(value_of<Accuracy>({.top_k = 9}, preds, target), 1);
  // Class 1 is right twice; the other sample counts as its best class, 2.
  const StatScoresOptions macro{.num_classes = 3, .average = Average::macro, .top_k = 2};
  EXPECT_DOUBLE_EQ(value_of<Precision>(macro, preds, target), 1.0 / 3);
}

TEST(MetricValues, OfASequence) {
  Accuracy accuracy;
  accuracy.update(torch::tensor({1.f, 0.f, 0.f}).expand({2, 4, 3}), at::zeros({2, 4}, at::kLong));
  accuracy.update(torch::tensor({0.f, 1.f}).expand({2, 2}), at::zeros({2}, at::kInt));
  EXPECT_EQ(accuracy.value(), 0.8);
}

TEST(MetricValues, OfAConfusionMatrix) {
  const auto matrix = [](Normalize normalize) {
    ConfusionMatrix metric({.task = kBinary, .normalize = normalize});
    metric.update(labels({0, 1, 1, 1}), labels({0, 0, 0, 1}));
    return metric.compute();
  };
  EXPECT_TRUE(matrix(Normalize::none).equal(torch::tensor({{1, 2}, {0, 1}}, at::kLong)));
  EXPECT_TRUE(matrix(Normalize::target)
                  .equal(torch::tensor({{1.0 / 3, 2.0 / 3}, {0.0, 1.0}}, at::kDouble)));
  EXPECT_TRUE(matrix(Normalize::prediction)
                  .equal(torch::tensor({{1.0, 2.0 / 3}, {0.0, 1.0 / 3}}, at::kDouble)));
  EXPECT_TRUE(matrix(Normalize::all).equal(torch::tensor({{0.25, 0.5}, {0.0, 0.25}}, at::kDouble)));
}

// Positives 3 and 2, negatives 2 and 1: of four pairs three are won and one is even.
TEST(MetricValues, OfAnAuroc) {
  Auroc metric({.task = kBinary});
  metric.update(numbers({3, 2, 2, 1, 9}), labels({1, 1, 0, 0, kIgnored}));
  EXPECT_EQ(metric.value(), 3.5 / 4);
  metric.update(numbers({NAN}), labels({0}));
  EXPECT_TRUE(std::isnan(metric.value()));
  metric.reset();
  metric.update(numbers({3, 2}), labels({1, 1}));
  EXPECT_TRUE(std::isnan(metric.value())) << "no negatives";
}

TEST(MetricValues, OfNumbers) {
  const auto preds = numbers({2.5, 0.0, 2.0, 8.0}), target = numbers({3.0, -0.5, 2.0, 7.0});
  MeanSquaredError square, root(false);
  MeanAbsoluteError absolute;
  R2Score r2;
  for (Metric* metric : {static_cast<Metric*>(&square), static_cast<Metric*>(&root),
                         static_cast<Metric*>(&absolute), static_cast<Metric*>(&r2)}) {
    metric->update(preds, target);
  }
  EXPECT_DOUBLE_EQ(square.value(), 0.375);
  EXPECT_DOUBLE_EQ(root.value(), std::sqrt(0.375));
  EXPECT_DOUBLE_EQ(absolute.value(), 0.5);
  EXPECT_NEAR(r2.value(), 1 - 1.5 / 29.1875, 1e-15);
}

TEST(MetricValues, OfEqualTargetsInR2) {
  const auto r2 = [](double prediction) {
    R2Score metric;
    metric.update(at::full({3, 1}, 0.1, at::kDouble), at::full({3, 1}, 0.1, at::kDouble));
    EXPECT_EQ(metric.value(), 1);
    metric.update(at::full({1}, prediction, at::kDouble), at::full({1}, 0.1, at::kDouble));
    return metric.value();
  };
  EXPECT_EQ(r2(0.1), 1);
  EXPECT_EQ(r2(0.2), 0);
  EXPECT_TRUE(std::isnan(r2(NAN)));
}

TEST(MetricValues, OfAMeanAndPerplexity) {
  Mean mean;
  mean.update(1.0, 1);
  mean.update(torch::tensor(4.0f).requires_grad_(), 3.0);
  EXPECT_DOUBLE_EQ(mean.value(), 13.0 / 4);
  EXPECT_FALSE(mean.compute().requires_grad());
  mean.update(torch::tensor({1.0, 2.0}), torch::tensor({false, true}));
  EXPECT_DOUBLE_EQ(mean.value(), 15.0 / 5);
  mean.reset();
  for (int i = 0; i < 1000; ++i) mean.update(0.1, 16'777'216);
  EXPECT_NEAR(mean.value(), 0.1, 1e-13) << "float32 sums would be off by 1e-5";
  Perplexity perplexity;
  perplexity.update(at::zeros({2, 3, 8}, at::kHalf), at::zeros({2, 3}, at::kLong));
  EXPECT_NEAR(perplexity.value(), 8, 1e-5);
}

TEST(MetricErrors, ShapesAndTypes) {
  const std::string what = "[metrics] predictions and targets of a metric do not go together; got ";
  EXPECT_ERROR(Accuracy().update(at::zeros({2, 3}), at::zeros({3}, at::kLong)), ErrorKind::usage,
               what +
                   "[2, 3] of Float and [3] of Long, expected [..., classes] of a "
                   "floating-point type and [...] of Long");
  EXPECT_ERROR(Accuracy().update(at::zeros({2, 3}), at::zeros({2})), ErrorKind::usage,
               what +
                   "[2, 3] of Float and [2] of Float, expected [..., classes] of a "
                   "floating-point type and [...] of Long");
  EXPECT_ERROR(Accuracy({.num_classes = 4}).update(at::zeros({2, 3}), labels({0, 0})),
               ErrorKind::usage,
               what +
                   "[2, 3] of Float and [2] of Long, expected [..., 4] of a floating-point type "
                   "and [...] of Long");
  EXPECT_ERROR(Accuracy({.top_k = 2}).update(labels({0}), labels({0})), ErrorKind::usage,
               what + "[1] of Long and [1] of Long, expected scores, as top_k is more than 1");
  EXPECT_ERROR(Auroc({.task = kBinary}).update(at::zeros({2}), at::zeros({2})), ErrorKind::usage,
               what + "[2] of Float and [2] of Float, expected [...] and [...] of Long");
  EXPECT_ERROR(MeanSquaredError().update(at::zeros({2, 1}), at::zeros({2})), ErrorKind::usage,
               what + "[2, 1] and [2], expected the same shape");
  EXPECT_ERROR(R2Score().update(at::zeros({2, 2}), at::zeros({2, 2})), ErrorKind::usage,
               what + "[2, 2] and [2, 2], expected [samples] or [samples, 1]");
}

TEST(MetricErrors, Values) {
  EXPECT_ERROR(
      Accuracy().update(at::zeros({2, 3}), labels({0, 3})), ErrorKind::usage,
      "[metrics] target of a metric is not a class number; got 3, expected 0 to 2, or -100 for "
      "ignored");
  EXPECT_ERROR(Accuracy({.ignore_index = {}}).update(at::zeros({2, 3}), labels({0, -100})),
               ErrorKind::usage,
               "[metrics] target of a metric is not a class number; got -100, expected 0 to 2");
  EXPECT_ERROR(ConfusionMatrix({.num_classes = 3}).update(labels({3}), labels({2})),
               ErrorKind::usage,
               "[metrics] prediction of a metric is not a class number; got 3, expected 0 to 2");
  EXPECT_ERROR(
      F1Score({.task = kBinary}).update(numbers({1.5}), labels({1})), ErrorKind::usage,
      "[metrics] prediction of a metric is not a probability; got 1.5, expected a number from 0 "
      "to 1 (apply sigmoid to logits)");
  EXPECT_ERROR(
      Auroc({.num_classes = 2}).update(at::full({1, 2}, -2.0), labels({1})), ErrorKind::usage,
      "[metrics] prediction of a metric is not a probability; got -2, expected a number from 0 "
      "to 1 (apply softmax to logits)");
}

TEST(MetricErrors, Options) {
  EXPECT_ERROR(Accuracy({.top_k = 0}), ErrorKind::usage,
               "[metrics] bad top_k of a metric; got 0, expected at least 1");
  EXPECT_ERROR(
      Recall({.average = Average::macro}), ErrorKind::usage,
      "[metrics] bad num_classes of a metric; got 0, expected at least 2 for what is counted "
      "class by class");
  EXPECT_ERROR(Accuracy({.task = kBinary, .num_classes = 2}), ErrorKind::usage,
               "[metrics] bad num_classes of a metric; got 2, expected none for a binary task");
  EXPECT_ERROR(
      Accuracy({.task = kBinary, .average = Average::macro}), ErrorKind::usage,
      "[metrics] bad average of a metric; got one over classes, expected micro, the default, "
      "for a binary task");
  EXPECT_ERROR(Accuracy({.threshold = 0.4}), ErrorKind::usage,
               "[metrics] bad threshold of a metric; got 0.4, expected none for a multiclass task");
  EXPECT_ERROR(Auroc({.num_classes = 3, .average = Average::micro}), ErrorKind::usage,
               "[metrics] bad average of an AUROC; got micro, expected macro, weighted or none");
  EXPECT_THROW(ConfusionMatrix({.task = kBinary}).value(), CheckError);
}

}  // namespace
}  // namespace troika::metrics
