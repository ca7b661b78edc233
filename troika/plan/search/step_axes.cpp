// The tensor axes of the search: their sizes, links and sums.
#include <algorithm>

#include "troika/base/error.h"
#include "troika/layout/tensor_shard.h"
#include "troika/plan/search/step_model.h"

namespace troika::plan {

using layout::Link;
using layout::Profile;

void StepModel::find_axes() {
  axes_ = {TensorAxis{}};
  const auto& cluster = problem_.cluster;
  if (!problem_.cuts_layers || problem_.straight) return;
  const auto fill_hosts = [&](int ranks) {
    if (cluster.ranks() % ranks != 0) return false;
    for (int rank = 0; rank < cluster.ranks(); ++rank) {
      if (device(rank).host != device(rank / ranks * ranks).host) return false;
    }
    return true;
  };
  for (const int ranks : layout::tensor_ranks(problem_.profiles.front(), cluster.ranks())) {
    const auto fits = [&](const Profile& profile) {
      return std::ranges::count(layout::tensor_ranks(profile, ranks), ranks) > 0;
    };
    if (!fill_hosts(ranks) || !std::ranges::all_of(problem_.profiles, fits)) continue;
    axes_.push_back({.ranks = ranks});
    const bool gains = std::ranges::all_of(problem_.profiles, [&](const Profile& profile) {
      return layout::may_cut_tokens(profile, ranks);
    });
    if (gains) axes_.push_back({.ranks = ranks, .sequence = true});
  }
}

Link StepModel::axis_link(const StepSettings& settings, int first) const {
  if (settings.tensor.ranks == 1) return {};
  bool in_group = true;
  for (int rank = first; rank < first + settings.tensor.ranks; ++rank) {
    in_group = in_group && device(rank).group == device(first).group;
  }
  return link(settings.profile, in_group ? layout::Level::group : layout::Level::host);
}

Link StepModel::fastest_axis(const StepSettings& settings) const {
  auto fastest = axis_link(settings, 0);
  const int ranks = settings.tensor.ranks;
  for (int first = ranks; first < problem_.cluster.ranks(); first += ranks) {
    const auto own = axis_link(settings, first);
    fastest.latency = std::min(fastest.latency, own.latency);
    if (own.seconds_per_byte() < fastest.seconds_per_byte()) fastest.bandwidth = own.bandwidth;
  }
  return fastest;
}

const StepModel::Shard& StepModel::shard_of(const StepSettings& settings) const {
  const auto axis = std::ranges::find(axes_, settings.tensor);
  TROIKA_CHECK(axis != axes_.end(), "a tensor axis of the search");
  return shards_[settings.profile * axes_.size() + static_cast<size_t>(axis - axes_.begin())];
}

namespace {

// All-gathers over rings, one after the other.
double gathers_seconds(const Link& link, int ranks, double count, double bytes) {
  return (ranks - 1) * (count * link.latency + bytes / ranks * link.seconds_per_byte());
}

// A sum is a reduce-scatter and an all-gather, which take equally long.
double sums_seconds(const Link& link, int ranks, double count, double bytes) {
  return 2 * gathers_seconds(link, ranks, count, bytes);
}

}  // namespace

double StepModel::axis_forward_seconds(const StepSettings& settings, const Link& link, size_t begin,
                                       size_t end) const {
  const int ranks = settings.tensor.ranks;
  if (ranks == 1) return 0;
  const auto& sums = shard_of(settings).sums;
  return sums_seconds(link, ranks, sums.forward_sums[end] - sums.forward_sums[begin],
                      sums.forward_summed[end] - sums.forward_summed[begin]);
}

// Recomputation repeats those of the forward pass.
double StepModel::axis_seconds(const StepSettings& settings, const Link& link, size_t begin,
                               size_t end) const {
  const int ranks = settings.tensor.ranks;
  if (ranks == 1) return 0;
  const auto& sums = shard_of(settings).sums;
  const double gathers = settings.tensor.sequence
                             ? gathers_seconds(link, ranks, sums.gathers[end] - sums.gathers[begin],
                                               sums.gathered[end] - sums.gathered[begin])
                             : 0;
  return (settings.recompute ? 2 : 1) * axis_forward_seconds(settings, link, begin, end) + gathers +
         sums_seconds(link, ranks, sums.backward_sums[end] - sums.backward_sums[begin],
                      sums.backward_summed[end] - sums.backward_summed[begin]);
}

StepModel::AxisSums StepModel::axis_sums(const StepSettings& settings, size_t begin, size_t end,
                                         int used, int replicas) const {
  const auto& link = place_of(settings, used, replicas).axis;
  const double forward = axis_forward_seconds(settings, link, begin, end);
  return {.forward = forward, .backward = axis_seconds(settings, link, begin, end) - forward};
}

}  // namespace troika::plan
