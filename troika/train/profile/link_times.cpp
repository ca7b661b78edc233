#include "troika/train/profile/link_times.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "troika/base/clock.h"
#include "troika/compat/torch.h"
#include "troika/train/profile/other_memory.h"
#include "troika/train/profile/rank_means.h"
#include "troika/train/profile/robust_spread.h"

namespace troika::train {

namespace {

constexpr int64_t kSmall = 16;  // floats

struct Times {
  RobustSpread small, large;  // seconds
};

at::Tensor make_floats(const comm::Group& group, at::Device device, int64_t count) {
  return device.is_cpu() ? group.allocate({count}, at::kFloat)
                         : at::empty({count}, at::TensorOptions(device));
}

// Times all-reduces of kSmall and of `large_count` floats in turn, on all members together.
Times time_all_reduces(const comm::Group& group, at::Device device, int64_t large_count,
                       double seconds) {
  const auto small = make_floats(group, device, kSmall);
  const auto large = make_floats(group, device, large_count);
  const auto time = [&](const at::Tensor& tensor) {
    // A backward pass writes the gradients just before they are reduced, so that as many of them
    // are in caches.
    tensor.zero_();
    group.barrier({.label = "measurement of links"});
    const Stopwatch watch;
    group.all_reduce(tensor, comm::ReduceOp::sum, {.label = "measurement of links"}).wait();
    if (!device.is_cpu()) tensor[0].item<float>();
    return watch.seconds();
  };
  std::vector<double> of_small, of_large;
  time(small), time(large);
  repeat(group, seconds, [&] {
    of_small.push_back(time(small));
    of_large.push_back(time(large));
  });
  return {robust_spread(of_small), robust_spread(of_large)};
}

// Solves the time of a ring for the link.
layout::MeasuredLink link_of(const Times& times, int64_t large_count, int ranks) {
  const double n = ranks;
  const double bytes = sizeof(float) * static_cast<double>(large_count);
  layout::MeasuredLink link;
  link.link.latency = times.small.mean / (2 * (n - 1));
  const double moving = std::max(times.large.mean - times.small.mean, 1e-9);
  link.link.bandwidth = 2 * (n - 1) / n * bytes / moving;
  link.spread = times.large.deviation / times.large.mean;
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

int64_t timed_count(int64_t gradients) {
  return std::clamp(gradients, kLeastGradients, kMostGradients);
}

}  // namespace

MeasuredLinks measure_link_times(const comm::Group& group, at::Device device, int64_t gradients,
                                 double seconds) {
  MeasuredLinks result;
  if (group.size() == 1) return result;
  const int64_t large_count = timed_count(gradients);
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
      own =
          link_of(time_all_reduces(*part, device, large_count, seconds), large_count, part->size());
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

double measure_gathers(const comm::Group& group, at::Device device, int64_t gradients,
                       const MeasuredLinks& links) {
  const int64_t ranks = group.size();
  if (ranks == 1) return 0;
  constexpr size_t kRounds = 9;
  const int64_t each = timed_count(gradients) / ranks;
  const auto own = make_floats(group, device, each);
  const auto whole = make_floats(group, device, each * ranks);
  // As for the optimizer, the passes of a step leave none of the shards in caches.
  OtherMemory others(device);
  std::vector<double> seconds;
  for (size_t round = 0; round < kRounds; ++round) {
    others.fill_caches();
    group.barrier({.label = "measurement of gathers"});
    const Stopwatch watch;
    group.all_gather(whole, own, {}, {.label = "measurement of gathers"}).wait();
    if (!device.is_cpu()) whole[0].item<float>();
    seconds.push_back(watch.seconds());
  }
  const auto& link = (links.between.link.bandwidth > 0 ? links.between : links.inside).link;
  const double bytes = sizeof(float) * static_cast<double>(each * ranks);
  const double moved = bytes / static_cast<double>(ranks) * static_cast<double>(ranks - 1);
  const double messages = static_cast<double>(ranks - 1) * link.latency + moved / link.bandwidth;
  const double copying = mean_over_ranks(robust_spread(seconds).mean, group) - messages;
  return copying > 0 ? bytes / copying : 0;
}

double measure_overlap(const comm::Group& group, at::Device device, int64_t gradients,
                       double seconds, const std::function<void()>& compute) {
  if (group.size() == 1) return 1;
  constexpr int64_t kBucket = int64_t{1} << 20;  // floats
  std::vector<at::Tensor> buckets;
  for (int64_t left = timed_count(gradients); left > 0; left -= kBucket) {
    buckets.push_back(make_floats(group, device, std::min(left, kBucket)));
  }
  std::vector<comm::Work> works;
  const auto start = [&](size_t count) {
    for (size_t i = 0; i < count; ++i) {
      works.push_back(group.all_reduce(buckets[i % buckets.size()], comm::ReduceOp::sum,
                                       {.label = "overlap of a profile", .async_op = true}));
    }
  };
  const auto finish = [&] {
    for (const auto& work : std::exchange(works, {})) work.wait();
    if (!device.is_cpu()) buckets.back()[0].item<float>();
  };
  const auto time = [&](const std::function<void()>& work) {
    for (const auto& bucket : buckets) bucket.zero_();  // as in time_all_reduces()
    group.barrier({.label = "overlap of a profile"});
    const Stopwatch watch;
    work();
    return watch.seconds();
  };
  const auto mean = [&](const std::vector<double>& numbers) {
    return mean_over_ranks(robust_spread(numbers).mean, group);
  };
  const double once = mean({time(compute)});
  const double each =
      mean({time([&] { start(buckets.size()), finish(); })}) / static_cast<double>(buckets.size());
  // Less communication would make a difference that is lost in the noise of computing.
  const auto count = static_cast<size_t>(std::clamp(once / 2 / each, 1.0, 100.0));
  // The speed of a machine changes over time, so each round has a share of its own.
  std::vector<double> shares;
  repeat(group, seconds, [&] {
    const double alone = time(compute);
    const double reduced = time([&] { start(count), finish(); });
    const double both = time([&] { start(count), compute(), finish(); });
    shares.push_back((alone + reduced - both) / std::min(alone, reduced));
  });
  return std::clamp(mean(shares), -1.0, 1.0);
}

}  // namespace troika::train
