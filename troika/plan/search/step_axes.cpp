// The tensor and context axes of the search: their sizes, links, sums and messages.
#include <algorithm>

#include "troika/base/error.h"
#include "troika/layout/context_shard.h"
#include "troika/layout/tensor_shard.h"
#include "troika/plan/paired_forward.h"
#include "troika/plan/search/step_model.h"

namespace troika::plan {

using layout::ContextMethod;
using layout::ContextRounds;
using layout::Link;
using layout::Profile;

namespace {

bool is_among(const std::vector<int>& numbers, int wanted) {
  return wanted == 1 || std::ranges::count(numbers, wanted) > 0;
}

}  // namespace

void StepModel::find_axes() {
  axes_ = {BlockAxes{}};
  const auto& cluster = problem_.cluster;
  if (!problem_.cuts_layers || problem_.straight) return;
  const auto fill_hosts = [&](int ranks) {
    if (cluster.ranks() % ranks != 0) return false;
    for (int rank = 0; rank < cluster.ranks(); ++rank) {
      if (device(rank).host != device(rank / ranks * ranks).host) return false;
    }
    return true;
  };
  const auto numbers = [&](std::vector<int> (&of)(const Profile&, int)) {
    std::vector<int> all{1};
    for (const int ranks : of(problem_.profiles.front(), cluster.ranks())) {
      const auto fits = [&](const Profile& profile) { return is_among(of(profile, ranks), ranks); };
      if (std::ranges::all_of(problem_.profiles, fits)) all.push_back(ranks);
    }
    return all;
  };
  for (const int context : numbers(layout::context_ranks)) {
    for (const int tensor : numbers(layout::tensor_ranks)) {
      if (tensor * context == 1 || !fill_hosts(tensor * context)) continue;
      axes_.push_back({.tensor = tensor, .context = context});
      const bool gains = std::ranges::all_of(problem_.profiles, [&](const Profile& profile) {
        return layout::may_cut_tokens(layout::context_shard(profile, context), tensor);
      });
      if (tensor > 1 && gains) {
        axes_.push_back({.tensor = tensor, .sequence = true, .context = context});
      }
    }
  }
}

Link StepModel::slowest_axis(size_t profile, int first, const AxisOfRanks& axis, int axes,
                             int apart) const {
  Link slowest;
  if (axis.ranks == 1) return slowest;
  for (int i = 0; i < axes; ++i) {
    const int begin = first + i * apart;
    bool in_group = true;
    for (int rank = 0; rank < axis.ranks; ++rank) {
      in_group = in_group && device(begin + rank * axis.stride).group == device(begin).group;
    }
    slowest = layout::slower(slowest,
                             link(profile, in_group ? layout::Level::group : layout::Level::host));
  }
  return slowest;
}

Link StepModel::tensor_link(const StepSettings& settings, int first) const {
  const auto& [tensor, sequence, context] = settings.axes;
  return slowest_axis(settings.profile, first, {.ranks = tensor, .stride = 1}, context, tensor);
}

Link StepModel::context_link(const StepSettings& settings, int first) const {
  const auto& [tensor, sequence, context] = settings.axes;
  return slowest_axis(settings.profile, first, {.ranks = context, .stride = tensor}, tensor, 1);
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

// Returns the part of sums before each position; 0 if there are none.
double part_of_sums(const std::vector<double>& sums, size_t begin, size_t end) {
  return sums.empty() ? 0 : sums[end] - sums[begin];
}

}  // namespace

std::vector<double> StepModel::exposed_sums(const Profile& profile, const BlockAxes& axes,
                                            const Link& link, double slowness) const {
  const bool hides = std::ranges::any_of(profile.blocks, [](const auto& block) {
    return layout::seconds_beside_sum(block) > 0 || layout::seconds_beside_gather(block) > 0;
  });
  if (axes.tensor == 1 || !hides) return {};
  const auto exposed = [&](double message, double beside) {
    return layout::exposed_seconds(message, beside * slowness, profile.in_step.overlap);
  };
  std::vector<double> sums{0};
  for (const size_t index : order_) {
    const auto& block = profile.blocks[index];
    double seconds = 0;
    if (block.tensor && block.tensor->sum_bytes > 0) {
      const auto& cut = *block.tensor;
      const double gather = gathers_seconds(link, axes.tensor, 1, cut.sum_bytes);
      const double beside = layout::seconds_beside_sum(block);
      // With sequence parallelism, the gather of a sum comes before the pass through the layers.
      seconds = cut.backward_sums *
                (axes.sequence ? exposed(gather, beside) + gather : exposed(2 * gather, beside));
      if (axes.sequence) {
        seconds += cut.backward_gathers * exposed(gather, layout::seconds_beside_gather(block));
      }
    }
    sums.push_back(sums.back() + seconds);
  }
  return sums;
}

StepModel::Exposed StepModel::exposed_of(const Profile& profile, const BlockAxes& axes,
                                         const Link& tensor, const Link& context,
                                         double slowness) const {
  Exposed all;
  all.sums = exposed_sums(profile, axes, tensor, slowness);
  if (axes.context == 1) return all;
  const auto seconds = [&](const std::vector<ContextRounds>& rounds) {
    double sum = 0;
    for (const auto& round : rounds) {
      const double message = context.latency + round.bytes * context.seconds_per_byte();
      sum += round.count *
             layout::exposed_seconds(message, round.beside * slowness, profile.in_step.overlap);
    }
    return sum;
  };
  all.forward = all.backward = {0};
  for (const size_t index : order_) {
    const auto& block = profile.blocks[index];
    all.forward.push_back(all.forward.back() + seconds(layout::forward_rounds(
                                                   block, axes.context, ContextMethod::ring)));
    all.backward.push_back(all.backward.back() + seconds(layout::backward_rounds(
                                                     block, axes.context, ContextMethod::ring)));
  }
  return all;
}

void StepModel::find_fastest(Sums& sums, const Profile& own, const StepSettings& settings) const {
  const int ranks = settings.axes.ranks();
  sums.fastest_axis = tensor_link(settings, 0);
  auto ring = context_link(settings, 0);
  const auto speed_up = [](Link& link, const Link& other) {
    link.latency = std::min(link.latency, other.latency);
    if (other.seconds_per_byte() < link.seconds_per_byte()) link.bandwidth = other.bandwidth;
  };
  for (int first = ranks; first + ranks <= problem_.cluster.ranks(); first += ranks) {
    speed_up(sums.fastest_axis, tensor_link(settings, first));
    speed_up(ring, context_link(settings, first));
  }
  const double most_hidden = own.in_step.overlap > 0 ? std::ranges::max(sums.slowness) : 0;
  sums.exposed = exposed_of(own, settings.axes, sums.fastest_axis, ring, most_hidden);
}

const StepModel::Shard& StepModel::shard_of(const StepSettings& settings) const {
  if (axes_[latest_axes_] != settings.axes) {
    const auto found = std::ranges::find(axes_, settings.axes);
    TROIKA_CHECK(found != axes_.end(), "axes of the search");
    latest_axes_ = static_cast<size_t>(found - axes_.begin());
  }
  return shards_[settings.profile * axes_.size() + latest_axes_];
}

double StepModel::axis_forward_seconds(const StepSettings& settings, const Link& link,
                                       const Exposed& exposed, size_t begin, size_t end) const {
  if (settings.axes.ranks() == 1) return 0;
  const auto& sums = shard_of(settings).sums;
  return sums_seconds(link, settings.axes.tensor, part_of_sums(sums.forward_sums, begin, end),
                      part_of_sums(sums.forward_summed, begin, end)) +
         part_of_sums(exposed.forward, begin, end);
}

// Recomputation repeats those of the forward pass.
double StepModel::axis_seconds(const StepSettings& settings, const Link& link,
                               const Exposed& exposed, bool splits, size_t begin,
                               size_t end) const {
  const auto& axes = settings.axes;
  if (axes.ranks() == 1) return 0;
  const double forward =
      (settings.recompute ? 2 : 1) * axis_forward_seconds(settings, link, exposed, begin, end);
  const double rings = part_of_sums(exposed.backward, begin, end);
  if (!splits && !exposed.sums.empty()) {
    return forward + part_of_sums(exposed.sums, begin, end) + rings;
  }
  const auto& sums = shard_of(settings).sums;
  const double gathers =
      axes.sequence ? gathers_seconds(link, axes.tensor, part_of_sums(sums.gathers, begin, end),
                                      part_of_sums(sums.gathered, begin, end))
                    : 0;
  return forward + gathers +
         sums_seconds(link, axes.tensor, part_of_sums(sums.backward_sums, begin, end),
                      part_of_sums(sums.backward_summed, begin, end)) +
         rings;
}

void StepModel::overlap_sums(AxisSums& sums, const StepSettings& settings, size_t begin, size_t end,
                             const Place& place, int replicas) const {
  const auto& axes = settings.axes;
  const auto& profile = shard_of(settings).profile;
  ForwardTurns pass;
  for (size_t i = begin; i < end; ++i) {
    pass.add(profile.blocks[order_[i]], axes.tensor, axes.sequence);
  }
  const int count = own_micro_batches(settings, replicas);
  const double longer = (profile.in_step.first_micro_batch_factor - 1) / count;
  const double scale = scale_of_passes(settings, begin, end, place) * (1 + longer);
  const double pair = paired_seconds(
      pass, scale,
      [&](const layout::TensorTurn& turn) {
        const double gather = gathers_seconds(place.axis, axes.tensor, 1, turn.bytes);
        return turn.kind == layout::TensorCollective::sum ? 2 * gather : gather;
      },
      profile.in_step.overlap);
  const double alone = sums.forward;
  sums.first_forward = pair - 2 * pass.seconds() * scale;
  sums.last_forward = count % 2 == 1 ? alone : sums.first_forward;
  sums.forward = (count / 2 * sums.first_forward + count % 2 * alone) / count;
}

StepModel::AxisSums StepModel::axis_sums(const StepSettings& settings, size_t begin, size_t end,
                                         const Place& place, int replicas) const {
  const bool splits =
      settings.family == StepFamily::zero_bubble && splits_backward(settings, begin, end);
  const double forward = axis_forward_seconds(settings, place.axis, place.exposed, begin, end);
  const double all = axis_seconds(settings, place.axis, place.exposed, splits, begin, end);
  AxisSums sums{.forward = forward,
                .backward = all - forward,
                .first_forward = forward,
                .last_forward = forward};
  if (settings.tensor_overlap) overlap_sums(sums, settings, begin, end, place, replicas);
  return sums;
}

StepModel::AxisSums StepModel::axis_sums(const StepSettings& settings, size_t begin, size_t end,
                                         int used, int replicas) const {
  return axis_sums(settings, begin, end, place_of(settings, used, replicas), replicas);
}

}  // namespace troika::plan
