#include "troika/plan/search/step_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "troika/base/error.h"

namespace troika::plan {

using layout::Link;
using layout::Profile;

namespace {

constexpr double kUnlimitedBytes = std::numeric_limits<double>::infinity();

[[noreturn]] void refuse_problem(std::string what, std::string got, std::string expected) {
  throw Error("plan", ErrorKind::usage,
              {.what = std::move(what), .got = std::move(got), .expected = std::move(expected)});
}

void require_same_blocks(const std::vector<Profile>& profiles) {
  std::set<std::pair<std::string, double>> kinds;
  for (const auto& profile : profiles) {
    const auto& first = profiles.front();
    if (profile.blocks.size() != first.blocks.size() || profile.readers() != first.readers()) {
      refuse_problem("profiles of a model",
                     fmt::format("{} and {} blocks", first.blocks.size(), profile.blocks.size()),
                     "the same blocks with the same edges");
    }
    for (size_t i = 0; i < first.blocks.size(); ++i) {
      if (profile.blocks[i].name == first.blocks[i].name) continue;
      refuse_problem(fmt::format("block {} of the profiles of a model", i), profile.blocks[i].name,
                     first.blocks[i].name);
    }
    if (!kinds.emplace(profile.precision, profile.micro_batch).second) {
      refuse_problem("profiles of a model",
                     fmt::format("two of precision {} and micro-batches of {}", profile.precision,
                                 profile.micro_batch),
                     "one of each precision and size");
    }
  }
}

double ring_seconds(const Link& link, double share, int ranks, double bytes) {
  if (ranks == 1) return 0;
  return 2.0 * (ranks - 1) * (link.latency + bytes / ranks * share * link.seconds_per_byte());
}

}  // namespace

std::string_view name(StepFamily family) {
  switch (family) {
    case StepFamily::one_stage:
      return "one stage";
    case StepFamily::pipeline:
      return "1f1b";
    case StepFamily::pipeline_rows:
      return "1f1b, rows";
    case StepFamily::zero_bubble:
      return "zb-h1";
  }
  return {};
}

StepModel::StepModel(StepProblem problem) : problem_(std::move(problem)) {
  TROIKA_CHECK(!problem_.profiles.empty() && problem_.cluster.ranks() > 0,
               "a profile and a device");
  require_same_blocks(problem_.profiles);
  if (!(problem_.compression_ratio > 0)) {
    refuse_problem("compression ratio", fmt::format("{}", problem_.compression_ratio),
                   "a number > 0");
  }
  order_ = problem_.profiles.front().topological_order();
  for (const auto& profile : problem_.profiles) {
    const double count = problem_.global_batch / profile.micro_batch;
    constexpr double kMost = 1e6;
    const bool divides = count >= 1 && count <= kMost && count == std::floor(count);
    micro_batches_.push_back(divides ? static_cast<int>(count) : 0);
    sums_.push_back(sums_of(profile));
  }
  if (std::ranges::max(micro_batches_) == 0) {
    refuse_problem("samples of an optimizer step", fmt::format("{}", problem_.global_batch),
                   fmt::format("a multiple of a profile's micro-batch, as {}, at most 10^6 times",
                               problem_.profiles.front().micro_batch));
  }
}

StepModel::Sums StepModel::sums_of(const Profile& profile) const {
  const size_t count = order_.size();
  std::vector<size_t> place(count);
  for (size_t i = 0; i < count; ++i) place[order_[i]] = i;
  const auto readers = profile.readers();
  std::vector<double> inputs(count, 0);
  Sums sums;
  sums.crossing.assign(count + 1, 0);
  for (size_t from = 0; from < count; ++from) {
    size_t last = place[from];
    for (const size_t to : readers[from]) {
      inputs[place[to]] += profile.blocks[from].output_bytes;
      last = std::max(last, place[to]);
    }
    for (size_t at = place[from] + 1; at <= last; ++at) {
      sums.crossing[at] += profile.blocks[from].output_bytes;
    }
  }
  const auto add = [&](std::vector<double>& sum, auto&& value) {
    sum.push_back(0);
    for (size_t i = 0; i < count; ++i) sum.push_back(sum.back() + value(i));
  };
  const auto block = [&](size_t i) -> const layout::ProfiledBlock& {
    return profile.blocks[order_[i]];
  };
  add(sums.forward, [&](size_t i) { return block(i).forward; });
  add(sums.input, [&](size_t i) { return block(i).backward_input; });
  add(sums.weight, [&](size_t i) { return block(i).backward_weight; });
  add(sums.deviation, [&](size_t i) { return block(i).spread * block(i).seconds(); });
  add(sums.saved, [&](size_t i) { return block(i).saved_bytes; });
  add(sums.inputs, [&](size_t i) { return inputs[i]; });
  add(sums.parameters, [&](size_t i) { return block(i).parameter_bytes; });
  return sums;
}

int StepModel::rank_of(const StepSettings& settings, int used, int replicas, int replica) const {
  if (settings.family != StepFamily::pipeline_rows) return used + replica;
  return replica * (settings.devices / replicas) + used / replicas;
}

Link StepModel::link(size_t profile, layout::Level level) const {
  const auto& cluster = problem_.cluster;
  const auto& measured = problem_.profiles[profile];
  const auto known = [](const Link& one, const Link& other) {
    return one.bandwidth > 0 || one.latency > 0 ? one : other;
  };
  switch (level) {
    case layout::Level::group:
      return known(cluster.group, measured.group.link);
    case layout::Level::host:
      return known(cluster.host, measured.host.link);
    default:
      return known(cluster.network, measured.network.link);
  }
}

double StepModel::slowness(size_t profile, int rank) const {
  const double measured = problem_.profiles[profile].device_flops;
  const double flops = problem_.cluster.devices_of(rank).flops;
  return measured > 0 && flops > 0 ? measured / flops : 1;
}

const StepModel::Place& StepModel::place_of(const StepSettings& settings, int used,
                                            int replicas) const {
  const std::array key{static_cast<int>(settings.profile), static_cast<int>(settings.family),
                       settings.devices, used, replicas};
  const auto found = places_.find(key);
  if (found != places_.end()) return found->second;
  return places_[key] = find_place(settings, used, replicas);
}

StepModel::Place StepModel::find_place(const StepSettings& settings, int used, int replicas) const {
  const auto& cluster = problem_.cluster;
  Place place{.slowness = 0, .capacity = kUnlimitedBytes};
  std::map<int, int> ranks_of_hosts;
  std::set<std::pair<int, int>> groups;
  for (int i = 0; i < replicas; ++i) {
    const int rank = rank_of(settings, used, replicas, i);
    const auto& device = cluster.devices_of(rank);
    place.slowness = std::max(place.slowness, slowness(settings.profile, rank));
    const double memory = problem_.memory_bytes.value_or(static_cast<double>(device.memory_bytes));
    if (memory > 0 || problem_.memory_bytes) place.capacity = std::min(place.capacity, memory);
    ++ranks_of_hosts[device.host];
    groups.emplace(device.host, device.group);
  }
  place.hosts = static_cast<int>(ranks_of_hosts.size());
  for (const auto& [host, count] : ranks_of_hosts) place.fullest = std::max(place.fullest, count);
  const bool in_groups = static_cast<int>(groups.size()) == place.hosts;
  place.inside = link(settings.profile, in_groups ? layout::Level::group : layout::Level::host);
  place.between = link(settings.profile, layout::Level::network);
  if (settings.family == StepFamily::pipeline_rows) {
    // All stages average at once.
    int on_host = 0;
    const int host = cluster.devices_of(rank_of(settings, used, replicas, 0)).host;
    for (int rank = 0; rank < settings.devices; ++rank) {
      on_host += cluster.devices_of(rank).host == host ? 1 : 0;
    }
    place.share = static_cast<double>(on_host) / ranks_of_hosts[host];
  }
  return place;
}

double StepModel::average_seconds(const Place& place, int replicas, double bytes) const {
  if (bytes <= 0 || replicas == 1) return 0;
  if (place.hosts == 1) return ring_seconds(place.inside, 1, replicas, bytes);
  const double flat = ring_seconds(place.between, place.share, replicas, bytes);
  const double levels = ring_seconds(place.inside, 1, place.fullest, bytes) +
                        ring_seconds(place.between, place.share, place.hosts, bytes);
  return std::min(flat, levels);
}

StepModel::Cost StepModel::stage(const StepSettings& settings, size_t begin, size_t end, int used,
                                 int replicas) const {
  const auto& profile = problem_.profiles[settings.profile];
  const auto& sums = sums_[settings.profile];
  const auto& place = place_of(settings, used, replicas);
  const auto part = [&](const std::vector<double>& sum) { return sum[end] - sum[begin]; };
  const int count = micro_batches_[settings.profile];
  const int own = (count + replicas - 1) / replicas;
  const double zero = replicas;

  double bytes = part(sums.parameters), block_saved = 0, workspace = 0, block_bytes = 0;
  for (size_t i = begin; i < end; ++i) {
    const auto& block = profile.blocks[order_[i]];
    block_saved = std::max(block_saved, block.saved_bytes + block.workspace_bytes);
    workspace = std::max(workspace, block.workspace_bytes);
    block_bytes = std::max(block_bytes, block.parameter_bytes);
  }
  const double average = average_seconds(place, replicas, bytes);

  const double once = part(sums.forward) + part(sums.input) + part(sums.weight);
  const double late = part(sums.deviation) * std::sqrt(2 * std::log(static_cast<double>(replicas)));
  const double again = settings.recompute ? part(sums.forward) : 0;
  // ZeRO stage 3 gathers parameters for both passes, and then scatters gradients.
  const double gathers = settings.zero_stage == 3 ? average : 0;
  const double pass = (once + again + late) * place.slowness + gathers;
  Cost cost;
  cost.latency = pass;
  if (settings.family == StepFamily::zero_bubble) {
    // The weight parts fill the waits.
    const double waits =
        (part(sums.forward) + again + part(sums.input) - part(sums.weight)) * place.slowness;
    cost.latency = std::clamp(waits, 0.0, pass);
  }
  cost.steady = own * pass - cost.latency;
  // The average of the stage's first block begins when all is computed.
  const auto& first = profile.blocks[order_[begin]];
  const double reduced = settings.zero_stage == 3 ? average / 2 : average;
  const double hidden = (part(sums.input) + part(sums.weight) + again - first.backward() -
                         (settings.recompute ? first.forward : 0)) *
                        place.slowness;
  const double last = bytes > 0 ? reduced * first.parameter_bytes / bytes : 0;
  cost.exposed = std::max(last, reduced - hidden);

  int kept = (settings.devices - used + replicas - 1) / replicas;
  if (settings.family == StepFamily::zero_bubble) kept = settings.devices / replicas;
  kept = std::min(kept, own);
  const double activations = settings.recompute ? part(sums.inputs) : part(sums.saved);
  cost.memory_bytes = bytes * profile.optimizer_factor / (settings.zero_stage >= 1 ? zero : 1) +
                      bytes / (settings.zero_stage >= 2 ? zero : 1) +
                      bytes / (settings.zero_stage >= 3 ? zero : 1) + kept * activations +
                      (settings.recompute ? block_saved : workspace) + sums.crossing[begin] +
                      sums.crossing[end];
  if (settings.zero_stage == 3 && replicas > 1) cost.memory_bytes += 2 * block_bytes;
  cost.lacking_bytes = place.capacity == kUnlimitedBytes ? 0 : cost.memory_bytes - place.capacity;
  return cost;
}

StepModel::Cost StepModel::boundary(const StepSettings& settings, size_t end, int used,
                                    int replicas, int next_replicas) const {
  const double bytes = sums_[settings.profile].crossing[end] / problem_.compression_ratio;
  const auto& cluster = problem_.cluster;
  // The pairs of ranks repeat after so many micro-batches.
  const int period = std::lcm(replicas, next_replicas);
  std::map<int, int> leaving;  // micro-batches, by host
  std::map<int, int> arriving;
  double slowest = 0, port = 0;
  for (int i = 0; i < period; ++i) {
    const int from = rank_of(settings, used, replicas, i % replicas);
    const int to = rank_of(settings, used + replicas, next_replicas, i % next_replicas);
    const auto level = cluster.level_between(from, to);
    const auto wire = link(settings.profile, level);
    slowest = std::max(slowest, wire.seconds(bytes));
    if (level == layout::Level::network) {
      const int most = std::max(++leaving[cluster.devices_of(from).host],
                                ++arriving[cluster.devices_of(to).host]);
      port = std::max(port, most * bytes * wire.seconds_per_byte() / period);
    } else {
      const int fewer = std::min(replicas, next_replicas);
      port = std::max(port, bytes * wire.seconds_per_byte() / fewer);
    }
  }
  return {.latency = 2 * slowest, .steady = (micro_batches_[settings.profile] - 1) * port};
}

StepPlan StepModel::price(const StepSettings& settings,
                          const std::vector<StepStage>& stages) const {
  StepPlan plan{.settings = settings, .stages = stages, .lacking_bytes = -kUnlimitedBytes};
  double latency = 0, steady = 0, exposed = 0;
  size_t begin = 0;
  int used = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    const auto& [end, replicas] = stages[i];
    const auto own = stage(settings, begin, end, used, replicas);
    latency += own.latency;
    steady = std::max(steady, own.steady);
    exposed = std::max(exposed, own.exposed);
    plan.memory_bytes.push_back(own.memory_bytes);
    plan.lacking_bytes = std::max(plan.lacking_bytes, own.lacking_bytes);
    if (i + 1 < stages.size()) {
      const auto wire = boundary(settings, end, used, replicas, stages[i + 1].replicas);
      latency += wire.latency;
      steady = std::max(steady, wire.steady);
    }
    begin = end;
    used += replicas;
  }
  plan.seconds = latency + steady + exposed;
  return plan;
}

double StepModel::lower_bound() const {
  double least = kUnlimitedBytes;
  for (size_t i = 0; i < problem_.profiles.size(); ++i) {
    if (micro_batches_[i] == 0) continue;
    double fastest = kUnlimitedBytes;
    for (int rank = 0; rank < problem_.cluster.ranks(); ++rank) {
      fastest = std::min(fastest, slowness(i, rank));
    }
    const auto& sums = sums_[i];
    const double once = sums.forward.back() + sums.input.back() + sums.weight.back();
    least = std::min(least, once * fastest * micro_batches_[i] / problem_.cluster.ranks());
  }
  return least;
}

}  // namespace troika::plan
