#include "troika/train/profile/rank_means.h"

#include "troika/base/clock.h"
#include "troika/compat/torch.h"

namespace troika::train {

namespace {

// The decision of rank 0.
bool decided(const comm::Group& group, bool own) {
  const auto flag = at::full({1}, own ? 1 : 0, at::kLong);
  group.broadcast(flag, 0, {.label = "rounds of a profile"}).wait();
  return flag.item<int64_t>() != 0;
}

}  // namespace

void repeat(const comm::Group& group, double seconds, const std::function<void()>& round) {
  constexpr size_t kLeastRounds = 5, kMostRounds = 300;
  const Stopwatch watch;
  size_t rounds = 0;
  do {
    round();
    ++rounds;
  } while (
      decided(group, rounds < kMostRounds && (rounds < kLeastRounds || watch.seconds() < seconds)));
}

void average_over_ranks(const at::Tensor& numbers, const comm::Group& group) {
  group.all_reduce(numbers, comm::ReduceOp::sum, {.label = "profile"}).wait();
  numbers.div_(group.size());
}

double mean_over_ranks(double own, const comm::Group& group) {
  const auto number = at::full({1}, own, at::kDouble);
  average_over_ranks(number, group);
  return number.item<double>();
}

}  // namespace troika::train
