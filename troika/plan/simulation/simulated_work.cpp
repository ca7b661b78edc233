#include "troika/plan/simulation/simulated_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "troika/layout/schedules/inventory.h"
#include "troika/layout/schedules/segment.h"
#include "troika/plan/errors/refuse.h"
#include "troika/plan/simulation/cluster_links.h"
#include "troika/plan/simulation/summation_links.h"

namespace troika::plan {

using layout::Action;
using layout::ActionKind;

namespace {

bool is_local(const layout::Plan& plan) {
  return plan.exchange.method == layout::ExchangeMethod::local_steps;
}

std::vector<int> all_ranks(const SimulatedRun& run) {
  std::vector<int> ranks(static_cast<size_t>(run.plan.mesh.ranks()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

void verify_summation(const SimulatedRun& run) {
  const auto& sums = run.plan.exchange.summation;
  if (sums.cross_barrier && sums.asynchronous) {
    refuse("summation.asynchronous of summation.cross_barrier", "true", "one of them");
  }
  const int64_t wanted = run.plan.exchange.servers.count, spares = std::ssize(run.spare_devices());
  if (wanted > spares) {
    refuse("servers.count", std::to_string(wanted),
           fmt::format("at most {}, the hosts of the cluster without ranks", spares));
  }
  summation_split(sums.links, run.summation_workers(), run.spare_devices(),
                  ClusterLinks(run.cluster));
}

// Replicas of one rank each, and servers without copies and filters.
void verify_replicas(const SimulatedRun& run) {
  const auto& plan = run.plan;
  const auto& mesh = plan.mesh;
  const bool is_one_stage = plan.schedule == layout::kOneStageSchedule;
  if (mesh.has_uneven_stages() || mesh.ranks() != mesh.size(layout::Axis::data) || !is_one_stage) {
    refuse("replicas of a simulation",
           fmt::format("mesh {} and schedule {}", mesh.text(), plan.schedule),
           "a data axis only, and schedule one_stage");
  }
  const auto& servers = plan.exchange.servers;
  const auto filters = servers.push_filters + servers.pull_filters;
  if (servers.replicas > 0 || !filters.empty()) {
    refuse("servers of a simulation",
           fmt::format("{} copies and filters \"{}\"", servers.replicas, filters),
           "no copies and no filters");
  }
  const bool is_sandblaster = plan.exchange.method == layout::ExchangeMethod::sandblaster;
  if (is_sandblaster && plan.micro_batches > 1) {
    refuse("schedule.micro_batches of exchange.method sandblaster_lbfgs",
           std::to_string(plan.micro_batches), "1");
  }
  if (run.evaluations < 1 || !(run.batch_micro_batches >= 0)) {
    refuse("passes of an iteration, and their micro-batches",
           fmt::format("{} and {:g}", run.evaluations, run.batch_micro_batches),
           "at least 1 and at least 0");
  }
  constexpr double kMostInPortion = 1e6, kMostInPass = 1e8;
  const double in_portion = run.portion_micro_batches(), in_pass = run.micro_batches_of_step();
  const bool has_many = in_portion > kMostInPortion || in_pass > kMostInPass ||
                        static_cast<double>(run.portions()) > kMostInPass;
  if (is_sandblaster && has_many) {
    refuse("micro-batches of a portion, and of a pass",
           fmt::format("{:g} and {:g}", in_portion, in_pass),
           fmt::format("at most {:g} and {:g}", kMostInPortion, kMostInPass),
           "give fewer samples, or more of them in a micro-batch");
  }
}

// The first devices of hosts that come after those with ranks.
std::vector<int> devices_without_ranks(const SimulatedRun& run) {
  const ClusterLinks links(run.cluster);
  std::vector<int> devices;
  int host = links.host(run.plan.mesh.ranks() - 1);
  for (int device = run.plan.mesh.ranks(); device < links.ranks(); ++device) {
    if (std::exchange(host, links.host(device)) != host) devices.push_back(device);
  }
  return devices;
}

// Returns the actions with whole backward passes of the stages that do not split them.
std::vector<Action> as_run(const std::vector<Action>& actions, const SimulatedRun& run) {
  std::vector<Action> result;
  for (auto action : actions) {
    const bool is_input = action.kind == ActionKind::backward_input;
    const bool is_part = is_input || action.kind == ActionKind::backward_weight;
    if (!is_part || run.stage(action.stage).splits_backward) {
      result.push_back(action);
    } else if (is_input) {
      action.kind = ActionKind::backward;
      result.push_back(action);
    } else if (!result.empty() && result.back().joined) {
      result.back().joined = action.joined;  // with what follows the weight part
    }
  }
  return result;
}

}  // namespace

layout::Schedule SimulatedRun::schedule() const {
  if (!plan.is_asynchronous()) {
    auto schedule = layout::schedule_of_run(plan);
    for (auto& actions : schedule.ranks) actions = as_run(actions, *this);
    return schedule;
  }
  return layout::asynchronous_segment(plan.asynchronous(), steps);
}

bool SimulatedRun::averages_gradients(int step) const {
  return !is_local(plan) || step < plan.exchange.warmup_steps;
}

bool SimulatedRun::averages_parameters(int step) const {
  const auto& exchange = plan.exchange;
  const int after_warmup = step - static_cast<int>(exchange.warmup_steps) + 1;
  return is_local(plan) && after_warmup > 0 && after_warmup % exchange.period == 0;
}

bool SimulatedRun::overlaps_steps() const {
  const auto& sums = plan.exchange.summation;
  const bool overlaps_sums = sums.cross_barrier || sums.asynchronous;
  const bool has_servers = plan.has_servers() && !plan.steps_on_all_samples();
  return plan.is_asynchronous() || overlaps_sums || has_servers;
}

double SimulatedRun::micro_batches_of_step() const {
  if (plan.steps_on_all_samples()) return static_cast<double>(portions()) * portion_micro_batches();
  const int replicas = plan.mesh.has_uneven_stages() ? 1 : plan.mesh.size(layout::Axis::data);
  return static_cast<double>(plan.micro_batches) * replicas;
}

int64_t SimulatedRun::portions() const {
  return plan.exchange.sandblaster.portions * plan.mesh.ranks();
}

double SimulatedRun::portion_micro_batches() const {
  return batch_micro_batches > 0 ? batch_micro_batches / static_cast<double>(portions()) : 1;
}

std::vector<int> SimulatedRun::spare_devices() const {
  auto devices = devices_without_ranks(*this);
  const auto count = static_cast<size_t>(plan.exchange.servers.count);
  devices.resize(std::min(devices.size(), count));
  return devices;
}

bool SimulatedRun::sums_on_hosts() const {
  return std::ssize(summation_workers()) < plan.mesh.ranks();
}

std::vector<int> SimulatedRun::summation_workers() const {
  const auto& sums = plan.exchange.summation;
  if (sums.asynchronous || sums.local_sums == "none") return all_ranks(*this);
  return summing_ranks(all_ranks(*this), ClusterLinks(cluster));
}

std::vector<int> SimulatedRun::server_devices() const {
  if (!plan.has_servers()) {
    auto devices = spare_devices();
    const auto workers = summation_workers();
    devices.insert(devices.end(), workers.begin(), workers.end());
    return devices;
  }
  auto hosts = devices_without_ranks(*this);
  if (hosts.empty()) hosts = all_ranks(*this);
  const auto wanted = static_cast<size_t>(plan.exchange.servers.count);
  std::vector<int> devices;
  for (size_t i = 0; i < (wanted > 0 ? wanted : hosts.size()); ++i) {
    devices.push_back(hosts[i % hosts.size()]);
  }
  return devices;
}

void SimulatedRun::verify() const {
  plan.verify();
  const int ranks = plan.mesh.ranks(), devices = cluster.ranks();
  if (ranks > devices) {
    refuse("devices of the cluster", std::to_string(devices),
           fmt::format("at least {}, the ranks of mesh {}{}", ranks, plan.mesh.text(),
                       places.of("mesh.axes")));
  }
  if (plan.threads > 0) {
    refuse("mesh.threads of a simulation", std::to_string(plan.threads), "0");
  }
  if (plan.has_servers()) verify_replicas(*this);
  constexpr const char* kMethods =
      "all_reduce, summation, zero, local_steps, servers, downpour_sgd or sandblaster_lbfgs";
  if (plan.exchange.method == layout::ExchangeMethod::fault_tolerant) {
    refuse("exchange.method of a simulation", "quorum", kMethods);
  }
  if (plan.exchange.method == layout::ExchangeMethod::collaborative) {
    refuse("exchange.method of a simulation", "collaborative", kMethods);
  }
  if (plan.exchange.method == layout::ExchangeMethod::summation) verify_summation(*this);
  const auto& outer = plan.exchange.outer;
  if (outer.fragments > 1 || outer.delay > 0 || outer.codec != "none") {
    refuse("outer steps of a simulation",
           fmt::format("{} fragments, a delay of {} and codec {}", outer.fragments, outer.delay,
                       outer.codec),
           "one fragment that is sent as it is and not delayed");
  }
  if (plan.without_flushes.steps_by_replicas) {
    refuse("schedule.steps_by_replicas of a simulation", "true", "false");
  }
  if (steps < 1) refuse("steps of a simulation", std::to_string(steps), "at least 1");
  for (const auto& [rank, factor] : disturbances.slow_ranks) {
    if (rank >= 0 && rank < ranks && factor > 0) continue;
    refuse("a slow rank", fmt::format("rank {} by {:g}", rank, factor),
           fmt::format("one of {} ranks, by a factor above 0", ranks));
  }
  const layout::Inventory inventory(layout::schedule_of(plan));
  if (stages.size() != 1 && stages.size() != static_cast<size_t>(inventory.stages)) {
    refuse("stages of a simulation", std::to_string(stages.size()),
           fmt::format("one for all, or {}, as schedule {} has", inventory.stages, plan.schedule));
  }
  const auto& sums = plan.exchange.summation;
  if ((sums.cross_barrier || sums.asynchronous) && stage(0).buckets.empty()) {
    refuse("gradients of a simulation with summation servers", "none", "a model with parameters");
  }
}

}  // namespace troika::plan
