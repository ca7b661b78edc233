#include "troika/train/metrics.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "troika/compat/torch.h"

namespace troika::train {
namespace {

struct Batch {
  at::Tensor logits;
  at::Tensor targets;
};

Batch random_batch(int64_t samples) {
  torch::manual_seed(3);
  auto targets = at::randint(10, {samples}, at::kLong);
  targets.slice(0, 5, 9).fill_(Accuracy::kIgnored);
  return {at::randn({samples, 10}), targets};
}

// The value over `shards` ranks whose states are added as an all-reduce would. Their numbers of
// samples differ, and of several ranks the first has none.
double sharded_accuracy(const Batch& batch, int64_t shards, int64_t top_k) {
  const int64_t n = batch.targets.size(0);
  const auto bound = [&](int64_t rank) {
    return rank == shards ? n : rank < 2 ? 0 : n * rank * rank / (shards * shards);
  };
  at::Tensor sum = at::zeros({2}, at::kDouble);
  for (int64_t rank = 0; rank < shards; ++rank) {
    Accuracy metric(top_k);
    const int64_t begin = bound(rank), end = bound(rank + 1);
    if (begin < end) {
      metric.update(batch.logits.slice(0, begin, end), batch.targets.slice(0, begin, end));
    }
    sum += metric.state();
  }
  Accuracy whole(top_k);
  whole.set_state(sum);
  return whole.value();
}

TEST(Metrics, ShardsGiveTheValueOfTheWhole) {
  const Batch batch = random_batch(103);
  const auto counted = batch.targets.ne(Accuracy::kIgnored);
  const auto logits = batch.logits.index({counted}), targets = batch.targets.index({counted});
  const double top1 = logits.argmax(1).eq(targets).to(at::kDouble).mean().item<double>();
  const auto rank_of_target = logits.gt(logits.gather(1, targets.unsqueeze(1))).sum(1);
  const double top3 = rank_of_target.lt(3).to(at::kDouble).mean().item<double>();
  ASSERT_GT(top3, top1);
  for (int64_t shards = 1; shards <= 7; ++shards) {
    SCOPED_TRACE(shards);
    EXPECT_DOUBLE_EQ(sharded_accuracy(batch, shards, 1), top1);
    EXPECT_DOUBLE_EQ(sharded_accuracy(batch, shards, 3), top3);
  }
}

TEST(Metrics, MeanWeighsByCountAndKeepsFloat64) {
  Mean mean;
  mean.update(1.0, 1);
  mean.update(at::tensor(4.0f).requires_grad_(), 3);
  EXPECT_DOUBLE_EQ(mean.value(), 13.0 / 4);
  EXPECT_FALSE(mean.state().requires_grad());
  mean.reset();
  for (int i = 0; i < 1000; ++i) mean.update(0.1, 16'777'216);
  EXPECT_NEAR(mean.value(), 0.1, 1e-13) << "float32 sums would be off by 1e-5";
}

TEST(Metrics, EmptyStatesAreLegal) {
  Mean mean;
  EXPECT_TRUE(std::isnan(mean.value()));
  EXPECT_TRUE(std::isnan(Accuracy().value()));
  const at::Tensor empty = mean.state();
  EXPECT_EQ(empty.scalar_type(), at::kDouble);
  EXPECT_TRUE(empty.equal(at::zeros({2}, at::kDouble)));
  mean.set_state(empty);
  EXPECT_TRUE(std::isnan(mean.value()));
  Accuracy accuracy;
  accuracy.update(at::zeros({0, 10}), at::zeros({0}, at::kLong));
  EXPECT_TRUE(std::isnan(accuracy.value()));
}

TEST(Metrics, StateIsACopy) {
  Mean mean;
  mean.update(2.0, 1);
  mean.state().zero_();
  EXPECT_EQ(mean.value(), 2.0);
  EXPECT_THROW(mean.set_state(at::zeros({2})), CheckError);
}

TEST(Metrics, AccuracyOfASequenceAndOfFewClasses) {
  Accuracy accuracy(5);  // top 5 of 3 classes: always right
  accuracy.update(at::randn({2, 4, 3}), at::zeros({2, 4}, at::kLong));
  EXPECT_EQ(accuracy.value(), 1);
  EXPECT_EQ(accuracy.state()[1].item<double>(), 8);
}

TEST(Metrics, RefusesWhatDoesNotGoTogether) {
  EXPECT_ERROR(Accuracy().update(at::zeros({2, 3}), at::zeros({3}, at::kLong)), ErrorKind::usage,
               "[train] logits and targets of a metric do not go together; got logits [2, 3] and "
               "targets [3] of Long, expected [..., classes] and [...] of Long");
  EXPECT_ERROR(Accuracy().update(at::zeros({2, 3}), at::zeros({2})), ErrorKind::usage,
               "[train] logits and targets of a metric do not go together; got logits [2, 3] and "
               "targets [2] of Float, expected [..., classes] and [...] of Long");
  EXPECT_ERROR(Accuracy(0), ErrorKind::usage,
               "[train] bad top_k of an accuracy; got 0, expected at least 1");
}

}  // namespace
}  // namespace troika::train
