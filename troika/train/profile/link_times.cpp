#include "troika/train/profile/link_times.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <vector>

#include "troika/base/clock.h"
#include "troika/compat/torch.h"
#include "troika/train/profile/robust_spread.h"

namespace troika::train {

namespace {

// Floats. The large tensor is larger than most caches, as the gradients of a model are.
constexpr int64_t kSmall = 16, kLarge = int64_t{1} << 22;

struct Times {
  RobustSpread small, large;  // seconds
};

// Times all-reduces of both sizes in turn, on all members together.
Times time_all_reduces(const comm::Group& group, at::Device device, double seconds) {
  const auto make = [&](int64_t count) {
    const auto tensor = device.is_cpu() ? group.allocate({count}, at::kFloat)
                                        : at::empty({count}, at::TensorOptions(device));
    return tensor.zero_();
  };
  const auto small = make(kSmall), large = make(kLarge);
  const auto time = [&](const at::Tensor& tensor) {
    const Stopwatch watch;
    group.all_reduce(tensor, comm::ReduceOp::sum, {.label = "measurement of links"}).wait();
    if (!device.is_cpu()) tensor[0].item<float>();
    return watch.seconds();
  };
  const auto go_on = at::zeros({1}, at::kLong);
  std::vector<double> of_small, of_large;
  constexpr size_t kLeastRounds = 5, kMostRounds = 200;
  const Stopwatch all;
  time(small), time(large);
  do {
    of_small.push_back(time(small));
    of_large.push_back(time(large));
    const bool is_done = of_small.size() >= kMostRounds ||
                         (of_small.size() >= kLeastRounds && all.seconds() > seconds);
    go_on.fill_(is_done ? 0 : 1);
    group.broadcast(go_on, 0, {.label = "measurement of links"}).wait();
  } while (go_on.item<int64_t>() != 0);
  return {robust_spread(of_small), robust_spread(of_large)};
}

// Solves the time of a ring for the link.
layout::MeasuredLink link_of(const Times& times, int ranks) {
  const double n = ranks;
  const double bytes = sizeof(float) * static_cast<double>(kLarge);
  layout::MeasuredLink link;
  link.link.latency = times.small.median / (2 * (n - 1));
  const double moving = std::max(times.large.median - times.small.median, 1e-9);
  link.link.bandwidth = 2 * (n - 1) / n * bytes / moving;
  link.spread = times.large.deviation / times.large.median;
  return link;
}

// The slowest rank's numbers on every rank. A rank without the link passes nothing.
layout::MeasuredLink slowest(const comm::Group& group,
                             const std::optional<layout::MeasuredLink>& own) {
  const auto numbers = at::zeros({3}, at::kDouble);
  if (own) {
    numbers[0] = own->link.latency;
    numbers[1] = 1 / own->link.bandwidth;
    numbers[2] = own->spread;
  }
  group.all_reduce(numbers, comm::ReduceOp::max, {.label = "measurement of links"}).wait();
  layout::MeasuredLink link;
  if (numbers[1].item<double>() == 0) return link;
  link.link = {.latency = numbers[0].item<double>(), .bandwidth = 1 / numbers[1].item<double>()};
  link.spread = numbers[2].item<double>();
  return link;
}

}  // namespace

MeasuredLinks measure_link_times(const comm::Group& group, at::Device device, double seconds) {
  MeasuredLinks result;
  if (group.size() == 1) return result;
  const auto& nodes = group.nodes();
  const int own_node = nodes[static_cast<size_t>(group.rank())];
  std::map<int, int> ranks_of;
  int index = 0;  // of this rank in its node
  for (int rank = 0; rank < group.size(); ++rank) {
    const int node = nodes[static_cast<size_t>(rank)];
    if (rank < group.rank() && node == own_node) ++index;
    ++ranks_of[node];
  }
  const auto measure = [&](int color) {
    const auto part = group.split(color);
    std::optional<layout::MeasuredLink> own;
    if (part && part->size() > 1) {
      own = link_of(time_all_reduces(*part, device, seconds), part->size());
    }
    return own;
  };
  const bool has_inside =
      std::ranges::any_of(ranks_of, [](const auto& node) { return node.second > 1; });
  if (has_inside) result.inside = slowest(group, measure(own_node));
  if (ranks_of.size() == 1) return result;
  auto own = measure(index);
  // The ranks of a node share its link to the network.
  if (own) own->link.bandwidth *= ranks_of[own_node];
  result.between = slowest(group, own);
  return result;
}

}  // namespace troika::train
