#include "troika/train/profile/plan_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "troika/base/text.h"

namespace troika::train {

namespace {

using plan::StepFamily;
using plan::StepPlan;

std::string time_text(double seconds) {
  return fmt::format("{:.2f} ms", seconds * 1e3);
}

std::string savers(const plan::StepModel& model, const StepPlan& plan) {
  auto text = fmt::format("precision {}, micro-batches of {:g}",
                          model.problem().profiles[plan.settings.profile].precision,
                          model.problem().profiles[plan.settings.profile].micro_batch);
  if (plan.settings.axes.sequence) text += ", sequence parallelism";
  if (plan.settings.tensor_overlap) text += ", overlapped sums";
  if (plan.settings.recompute) text += ", recomputation";
  if (plan.settings.zero_stage > 0) text += fmt::format(", ZeRO {}", plan.settings.zero_stage);
  if (plan.settings.offloads_activations) text += ", activations offloaded";
  if (plan.settings.offloads_optimizer) text += ", optimizer offloaded";
  if (plan.settings.sums) text += ", summation servers";
  return text;
}

std::string replicas(const StepPlan& plan) {
  std::vector<int> counts;
  for (const auto& stage : plan.stages) counts.push_back(stage.replicas);
  return fmt::format("{}", fmt::join(counts, "-"));
}

// The fastest of these alternatives that fits, or a null pointer.
template <typename Filter>
const StepPlan* fastest_of(const AutomaticPlan& automatic, const Filter& filter) {
  const StepPlan* fastest = nullptr;
  for (const auto& plan : automatic.found.alternatives) {
    if (plan.lacking_bytes > 0 || !filter(plan)) continue;
    if (!fastest || plan.seconds < fastest->seconds) fastest = &plan;
  }
  return fastest;
}

// The ranks among which ZeRO shares the states of a stage.
double shards_of(const StepPlan& plan, int replicas) {
  return plan.settings.zero_stage > 0 ? plan.settings.copies(replicas) : 1;
}

// The predicted seconds of the phases of a step of one stage, by StepTimes' names: passes of one
// micro-batch, and what follows the last one.
std::vector<std::pair<std::string, double>> phases_of(const AutomaticPlan& automatic) {
  const auto& chosen = automatic.chosen();
  const auto& profile = automatic.model.profile_of_rank(chosen.settings);
  double forward = 0, backward = 0, bytes = 0;
  for (const auto& block : profile.blocks) {
    forward += block.forward;
    backward += block.backward();
    bytes += block.parameter_bytes;
  }
  const int replicas = chosen.stages.front().replicas;
  const auto sums =
      automatic.model.axis_sums(chosen.settings, 0, automatic.model.blocks(), 0, replicas);
  const double count =
      static_cast<double>(automatic.model.micro_batches(chosen.settings.profile)) / replicas;
  if (chosen.settings.recompute) backward += forward;
  const double first = 1 + (profile.in_step.first_micro_batch_factor - 1) / count;
  forward = forward * first + sums.forward;
  backward = backward * first + sums.backward;
  const auto offload = automatic.model.offload_seconds(chosen.settings);
  forward += offload.pass / 2;  // writes
  backward += offload.pass / 2;
  const double shards = shards_of(chosen, replicas);
  double optimizer = offload.optimizer / shards;
  if (profile.optimizer_bytes_per_second > 0) {
    optimizer += bytes / shards / profile.optimizer_bytes_per_second;
  }
  const double rest = chosen.seconds - count * (forward + backward) - optimizer;
  if (chosen.settings.tensor_overlap) forward *= 2;  // both are one phase of a run
  return {{"forward", forward},
          {"backward", backward},
          {"exposed_communication", std::max(0.0, rest)},
          {"optimizer", optimizer}};
}

// The predicted seconds of all passes of a step on a rank of a stage, and of its optimizer.
struct StageSeconds {
  double passes = 0;
  double optimizer = 0;
};

StageSeconds seconds_of(const AutomaticPlan& automatic, size_t stage) {
  const auto& chosen = automatic.chosen();
  const auto& profile = automatic.model.profile_of_rank(chosen.settings);
  const auto& order = automatic.model.order();
  const auto& of = chosen.stages[stage];
  const size_t begin = stage > 0 ? chosen.stages[stage - 1].end : 0;
  int used = 0;
  for (size_t i = 0; i < stage; ++i) used += chosen.stages[i].replicas;
  const auto sums = automatic.model.axis_sums(chosen.settings, begin, of.end, used, of.replicas);
  StageSeconds seconds{.passes = sums.forward + sums.backward};
  double bytes = 0;
  for (size_t i = begin; i < of.end; ++i) {
    const auto& block = profile.blocks[order[i]];
    seconds.passes += block.forward * (chosen.settings.recompute ? 2 : 1) + block.backward();
    bytes += block.parameter_bytes;
  }
  const double count = automatic.model.micro_batches(chosen.settings.profile);
  seconds.passes *= count / of.replicas;
  if (profile.optimizer_bytes_per_second > 0) {
    seconds.optimizer = bytes / shards_of(chosen, of.replicas) / profile.optimizer_bytes_per_second;
  }
  return seconds;
}

const std::vector<double>& milliseconds_of(const observe::RunSummary& summary,
                                           const std::string& phase) {
  static const std::vector<double> none;
  const auto found =
      std::ranges::find(summary.phase_milliseconds, phase, &observe::PhaseTime::phase);
  return found == summary.phase_milliseconds.end() ? none : found->milliseconds;
}

}  // namespace

std::string describe(const AutomaticPlan& automatic, const layout::Plan& plan) {
  const auto& chosen = automatic.chosen();
  std::string text;
  const auto line = [&](const char* name, const std::string& value) {
    text += fmt::format("\n  {:<12} {}", name, value);
  };
  if (!automatic.forced.empty()) {
    line("considered", fmt::format("also {}, as the whole model does not fit without",
                                   fmt::join(automatic.forced, ", ")));
  }
  const auto* whole = fastest_of(automatic, [](const StepPlan& one) { return one.is_whole(); });
  line("savers", whole ? fmt::format("without a cut it fits: {} a step with {}",
                                     time_text(whole->seconds), savers(automatic.model, *whole))
                       : "nothing fits without a cut");
  const auto* sums = fastest_of(automatic, [](const StepPlan& one) { return one.settings.sums; });
  if (sums) {
    line("servers",
         fmt::format("{} a step at least with {} on spare hosts, which sum gradients",
                     time_text(sums->seconds), automatic.model.problem().cluster.spares.size()));
  }
  const auto* cut = fastest_of(automatic, [](const StepPlan& one) {
    return one.settings.family != StepFamily::one_stage && one.settings.axes.ranks() == 1;
  });
  if (cut) line("pipelines", time_text(cut->seconds) + " a step at least");
  const auto* tensor = fastest_of(automatic, [](const StepPlan& one) {
    return one.settings.axes.tensor > 1 && one.settings.axes.context == 1;
  });
  if (tensor) line("tensor axes", time_text(tensor->seconds) + " a step at least");
  const auto* context =
      fastest_of(automatic, [](const StepPlan& one) { return one.settings.axes.context > 1; });
  if (context) line("context axes", time_text(context->seconds) + " a step at least");
  line("plan", fmt::format("{} {}, mesh {}, {}", plan::name(chosen.settings.family),
                           replicas(chosen), plan.mesh.text(), savers(automatic.model, chosen)));
  line("predicted", fmt::format("{} a step, {} on a rank", time_text(chosen.seconds),
                                human_bytes(std::ranges::max(chosen.memory_bytes))));
  return text;
}

std::string compare(const AutomaticPlan& automatic, const observe::RunSummary& summary) {
  std::string text = "plan auto: predicted and measured";
  const auto line = [&](const std::string& name, const std::string& predicted,
                        const std::string& measured, double ratio) {
    text += fmt::format("\n  {:<22} {:>12} {:>12} {:>+8.1f} %", name, predicted, measured,
                        (ratio - 1) * 100);
  };
  const auto& chosen = automatic.chosen();
  const double step = summary.median_step_milliseconds / 1e3;
  if (std::isfinite(step)) {
    line("step", time_text(chosen.seconds), time_text(step), chosen.seconds / step);
  }
  const auto phase = [&](const std::string& name, size_t rank, double seconds, double measured) {
    line(fmt::format("{}, rank {}", name, rank), time_text(seconds), time_text(measured),
         measured > 0 ? seconds / measured : 1);
  };
  // The sums over a tensor axis and the messages on a context axis are a part of the passes.
  if (chosen.settings.family == StepFamily::one_stage) {
    for (const auto& [name, seconds] : phases_of(automatic)) {
      const auto& measured = milliseconds_of(summary, name);
      for (size_t rank = 0; rank < measured.size(); ++rank) {
        phase(name == "exposed_communication" ? "exchange" : name, rank, seconds,
              measured[rank] / 1e3);
      }
    }
  } else {
    const auto& runs = milliseconds_of(summary, "backward");  // with all passes
    const auto& optimizers = milliseconds_of(summary, "optimizer");
    for (size_t rank = 0; rank < std::min(runs.size(), summary.bubble.size()); ++rank) {
      const auto predicted = seconds_of(automatic, automatic.stage_of(static_cast<int>(rank)));
      const double longest = std::ranges::max(runs) / 1e3;
      phase("passes", rank, predicted.passes, (1 - summary.bubble[rank]) * longest);
      phase("waits", rank, chosen.seconds - predicted.passes - predicted.optimizer,
            summary.bubble[rank] * longest);
      if (rank < optimizers.size()) {
        phase("optimizer", rank, predicted.optimizer, optimizers[rank] / 1e3);
      }
    }
  }
  const auto& peaks = summary.peak_tensor_bytes;
  for (size_t rank = 0; rank < peaks.size(); ++rank) {
    const auto stage = automatic.stage_of(static_cast<int>(rank));
    const double predicted = chosen.memory_bytes[stage];
    line(fmt::format("memory, rank {}", rank), human_bytes(predicted),
         human_bytes(static_cast<double>(peaks[rank])),
         peaks[rank] > 0 ? predicted / static_cast<double>(peaks[rank]) : 1);
  }
  return text;
}

}  // namespace troika::train
