#include "troika/plan/simulation/simulated_work.h"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "troika/layout/schedules/inventory.h"
#include "troika/layout/schedules/segment.h"
#include "troika/plan/errors/refuse.h"
#include "troika/plan/simulation/cluster_links.h"

namespace troika::plan {

using layout::Action;
using layout::ActionKind;

namespace {

bool is_local(const layout::Plan& plan) {
  return plan.exchange.method == layout::ExchangeMethod::local_steps;
}

// The split of a simulation is that of equal links.
void verify_summation(const SimulatedRun& run) {
  const auto& sums = run.plan.exchange.summation;
  if (sums.cross_barrier || sums.asynchronous ||
      !(sums.links.empty() || sums.links == "measured")) {
    refuse("summation servers of a simulation",
           fmt::format("summation.cross_barrier {}, asynchronous {} and links `{}`",
                       sums.cross_barrier, sums.asynchronous, sums.links),
           "false, false and equal links, which are the cluster's");
  }
  const int64_t wanted = run.plan.exchange.servers.count, spares = std::ssize(run.spare_devices());
  if (wanted > spares) {
    refuse("servers.count", std::to_string(wanted),
           fmt::format("at most {}, the hosts of the cluster without ranks", spares));
  }
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
    auto schedule = layout::schedule_of(plan);
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

std::vector<int> SimulatedRun::spare_devices() const {
  const ClusterLinks links(cluster);
  std::vector<int> devices;
  int host = links.host(plan.mesh.ranks() - 1);
  for (int device = plan.mesh.ranks(); device < links.ranks(); ++device) {
    if (std::ssize(devices) == plan.exchange.servers.count) break;
    if (std::exchange(host, links.host(device)) != host) devices.push_back(device);
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
  constexpr const char* kMethods = "all_reduce, summation, zero or local_steps";
  if (plan.has_servers()) {
    const bool is_downpour = plan.exchange.method == layout::ExchangeMethod::downpour;
    const bool is_sandblaster = plan.exchange.method == layout::ExchangeMethod::sandblaster;
    refuse("exchange.method of a simulation",
           is_downpour      ? "downpour_sgd"
           : is_sandblaster ? "sandblaster_lbfgs"
                            : "servers",
           kMethods);
  }
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
}

}  // namespace troika::plan
