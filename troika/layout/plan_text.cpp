// Descriptions of plans.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <string>
#include <vector>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/layout/plan.h"

namespace troika::layout {

namespace {

std::string exchange_text(const Plan& plan) {
  const auto& exchange = plan.exchange;
  const int64_t sharing = plan.sharing_ranks();
  switch (exchange.method) {
    case ExchangeMethod::all_reduce:
      return !plan.mesh.has_uneven_stages() && plan.mesh.size(Axis::data) == 1 &&
                     plan.mesh.size(Axis::context) == 1 && plan.threads <= 1
                 ? "one replica: nothing is exchanged"
                 : "each step averages gradients by all-reduce; every replica holds all parameters "
                   "and states";
    case ExchangeMethod::summation: {
      const bool is_asynchronous = exchange.summation.asynchronous;
      std::string text = is_asynchronous
                             ? "summation servers, one in each process"
                             : "each step averages gradients by summation servers, one in each "
                               "process";
      if (const int64_t spares = exchange.servers.count; spares > 0) {
        text += fmt::format(" and {} beside them", spares);
      }
      if (is_asynchronous) {
        return text + ", keep the parameters and add the change of each rank's step at once";
      }
      return text + "; every replica holds all parameters and states";
    }
    case ExchangeMethod::zero: {
      constexpr std::array kSharded{"optimizer states", "optimizer states and gradients",
                                    "optimizer states, gradients and parameters"};
      return fmt::format("each step averages gradients; ZeRO stage {} shards {} over {} rank{}",
                         exchange.zero_stage,
                         kSharded[static_cast<size_t>(exchange.zero_stage) - 1], sharing,
                         sharing == 1 ? "" : "s");
    }
    case ExchangeMethod::servers: {
      const auto& servers = exchange.servers;
      std::string text = servers.count == 0 ? "a server in each process steps"
                                            : fmt::format("{} servers step", servers.count);
      text += " the parameters with the ranks' gradients; consistency " + servers.consistency;
      if (servers.delay > 0) text += fmt::format(", delay {}", servers.delay);
      if (servers.replicas > 0) text += fmt::format("; copies on {} servers", servers.replicas);
      return text;
    }
    case ExchangeMethod::downpour: {
      const auto& downpour = exchange.downpour;
      std::string text =
          fmt::format("replicas push gradients every {} and fetch parameters every {} step{}",
                      downpour.n_push, downpour.n_fetch, downpour.n_fetch == 1 ? "" : "s");
      if (downpour.warm_start_steps > 0) {
        text += fmt::format("; replica 0 makes {} steps alone", downpour.warm_start_steps);
      }
      const auto& servers = exchange.servers;
      if (servers.replicas > 0) text += fmt::format("; copies on {} servers", servers.replicas);
      return text;
    }
    case ExchangeMethod::sandblaster: {
      const auto& sandblaster = exchange.sandblaster;
      const auto& servers = exchange.servers;
      std::string text = fmt::format(
          "L-BFGS of {} pairs on servers; replicas compute {} portions each, with {} backup{}",
          sandblaster.history, sandblaster.portions, sandblaster.backups,
          sandblaster.backups == 1 ? "" : "s");
      if (servers.replicas > 0) text += fmt::format("; copies on {} servers", servers.replicas);
      return text;
    }
    case ExchangeMethod::fault_tolerant:
      return "each step averages the gradients of the replicas that are there";
    case ExchangeMethod::collaborative:
      if (!exchange.outer.is_on) {
        return "each step averages the gradients of the peers of a swarm that are there";
      }
      return "the peers of a swarm step by themselves and average parameters in rounds" +
             exchange.outer.text();
    case ExchangeMethod::local_steps:
      break;
  }
  std::string text = fmt::format("ranks step by themselves and average parameters every {} steps",
                                 exchange.period);
  text += exchange.outer.text();
  if (exchange.warmup_steps > 0) {
    text += fmt::format("; the first {} steps average gradients", exchange.warmup_steps);
  }
  return text;
}

std::string memory_text(const Plan& plan) {
  std::string text = fmt::format("precision {}", plan.precision);
  text += plan.recompute == "none" ? ", all activations kept"
                                   : fmt::format(", recomputation {}", plan.recompute);
  if (!plan.offload.activations.empty()) {
    text += fmt::format(", activations offloaded to {}", plan.offload.activations);
  }
  if (!plan.offload.optimizer.empty()) {
    text += fmt::format(", optimizer states offloaded to {}", plan.offload.optimizer);
  }
  return text;
}

std::string weights_text(const Plan& plan) {
  switch (plan.weights()) {
    case StageWeights::synchronous:
      return "";
    case StageWeights::stashed:
      return "no flushes; a micro-batch uses each stage's newest weights, forward and backward";
    case StageWeights::unstashed:
      return "no flushes; a pass uses each stage's newest weights, backward other ones than "
             "forward";
    case StageWeights::vertical_sync:
      return "no flushes; a micro-batch uses weights of the same step on all stages";
    case StageWeights::double_buffered:
      return "no flushes; a step's gradients are those of the weights before the latest step";
  }
  TROIKA_CHECK(false, "weights of a known kind");
}

}  // namespace

std::string explain(const Plan& plan) {
  plan.verify();
  std::vector<std::string> lines;
  const auto mesh = plan.mesh.text();
  const int ranks = plan.mesh.ranks();
  lines.push_back(fmt::format("strategy   {}", plan.strategy));
  lines.push_back(fmt::format(
      "mesh       {} rank{}{}{}", ranks, ranks == 1 ? "" : "s", mesh.empty() ? "" : ": " + mesh,
      plan.threads > 0 ? fmt::format(", {} thread{} with a replica each in each", plan.threads,
                                     plan.threads == 1 ? "" : "s")
                       : ""));
  const bool is_whole = plan.schedule == kOneStageSchedule;
  lines.push_back(
      fmt::format("stages     {}{}",
                  is_whole ? "one: each replica runs the whole model"
                  : plan.stages.cut.empty()
                      ? "the model's blocks, cut into stages of about equal numbers of parameters"
                      : "",
                  is_whole && !plan.stages.cut.empty() ? ", " + plan.stages.cut : plan.stages.cut));
  if (const auto tensor = plan.mesh.size(Axis::tensor); tensor > 1) {
    lines.push_back(fmt::format("layers     cut over the {} ranks of each tensor axis{}{}", tensor,
                                plan.stages.sequence_parallel ? ", as tokens between them" : "",
                                plan.stages.tensor_overlap
                                    ? "; collectives of a forward pass beside that of another "
                                      "micro-batch"
                                    : ""));
  }
  if (const auto context = plan.mesh.size(Axis::context); context > 1) {
    lines.push_back(
        fmt::format("samples    cut by tokens over the {} ranks of each context axis, {}", context,
                    plan.stages.context_method));
  }
  lines.push_back(fmt::format("schedule   {}, {} micro-batch{} a step{}", plan.schedule,
                              plan.micro_batches, plan.micro_batches == 1 ? "" : "es",
                              plan.micro_batches == 1   ? ""
                              : plan.sums_micro_batches ? ", summed"
                                                        : ", averaged"));
  if (plan.is_asynchronous()) lines.push_back("           " + weights_text(plan));
  if (plan.without_flushes.steps_by_replicas) {
    lines.push_back("           a stage steps after a micro-batch of each of its replicas");
  }
  // Longer schedules are not shown, since they explain nothing more.
  constexpr int64_t kShownPasses = 8;
  const int64_t passes = plan.mesh.size(Axis::pipeline) * plan.micro_batches;
  if (passes <= kShownPasses && plan.schedule != kAutomaticSchedule && !plan.is_asynchronous()) {
    const auto text = schedule_of(plan).text();
    const char* title = "actions    ";
    for (const auto& actions : split(trim(text), '\n')) {
      lines.push_back(title + actions);
      title = "           ";
    }
  }
  lines.push_back(fmt::format("exchange   {}", exchange_text(plan)));
  if (plan.compression.codec != "none") {
    lines.push_back(
        fmt::format("           gradients are compressed by {}", plan.compression.codec));
  }
  lines.push_back(fmt::format("memory     {}", memory_text(plan)));
  return fmt::format("{}\n", fmt::join(lines, "\n"));
}

}  // namespace troika::layout
