#include "troika/cli/step_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "troika/base/text.h"

namespace troika::cli {

namespace {

using plan::StepFamily;
using plan::StepModel;
using plan::StepPlan;
using plan::StepSearch;
using SearchJson = nlohmann::ordered_json;

std::string replicas_text(const StepPlan& plan) {
  std::vector<int> counts;
  for (const auto& stage : plan.stages) counts.push_back(stage.replicas);
  return fmt::format("{}", fmt::join(counts, "-"));
}

std::string savers_text(const StepModel& model, const StepPlan& plan) {
  std::string text = model.problem().profiles[plan.settings.profile].precision;
  if (plan.settings.recompute) text += ", recompute";
  if (plan.settings.zero_stage > 0) text += fmt::format(", zero{}", plan.settings.zero_stage);
  if (plan.settings.offloads_activations) text += ", offload activations";
  if (plan.settings.offloads_optimizer) text += ", offload optimizer";
  if (plan.settings.sums) text += ", summation";
  return text;
}

std::string tensor_text(const plan::StepSettings& settings) {
  if (settings.axes.tensor == 1) return "";
  return fmt::format("{}{}{}", settings.axes.tensor, settings.axes.sequence ? ", sequence" : "",
                     settings.tensor_overlap ? ", overlap" : "");
}

std::string context_text(const plan::BlockAxes& axes) {
  return axes.context == 1 ? "" : std::to_string(axes.context);
}

std::string devices_text(const StepPlan& plan) {
  const int devices = plan.settings.devices;
  return fmt::format("{} device{}", devices, devices == 1 ? "" : "s");
}

double most_memory(const StepPlan& plan) {
  return std::ranges::max(plan.memory_bytes);
}

double device_hours(const StepPlan& plan) {
  constexpr double kSteps = 1000, kHour = 3600;
  return plan.seconds * plan.settings.devices * kSteps / kHour;
}

std::string reason(const StepPlan& plan, const StepSearch& found) {
  if (plan.lacking_bytes > 0) return "lacks " + human_bytes(plan.lacking_bytes);
  if (!found.best || plan.seconds <= found.best->seconds) return "as fast as any";
  return fmt::format("{:.3g} % slower", (plan.seconds / found.best->seconds - 1) * 100);
}

// The widths of columns; 0: there is no such column.
struct Widths {
  size_t replicas = 0, tensor = 0, context = 0, savers = 0;
};

void print_row(const StepModel& model, const StepPlan& plan, const StepSearch& found,
               const Widths& widths) {
  fmt::print("# {:<11}{:<{}}{:<{}}{:<{}}{:<{}}{:>11.5g}{:>12}{:>13.4g}  {}\n",
             name(plan.settings.family), replicas_text(plan), widths.replicas,
             tensor_text(plan.settings), widths.tensor, context_text(plan.settings.axes),
             widths.context, savers_text(model, plan), widths.savers, plan.seconds,
             human_bytes(most_memory(plan)), device_hours(plan), reason(plan, found));
}

// The fastest plan of one stage that fits, or a null pointer.
const StepPlan* fastest_uncut(const StepSearch& found) {
  const StepPlan* fastest = nullptr;
  for (const auto& plan : found.alternatives) {
    if (!plan.is_whole() || plan.lacking_bytes > 0) continue;
    if (!fastest || plan.seconds < fastest->seconds) fastest = &plan;
  }
  return fastest;
}

SearchJson plan_json(const StepModel& model, const StepPlan& plan) {
  const auto& profile = model.problem().profiles[plan.settings.profile];
  SearchJson stages = SearchJson::array();
  size_t block = 0;
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    SearchJson nodes = SearchJson::array();
    for (; block < plan.stages[i].end; ++block) {
      nodes.push_back(profile.blocks[model.order()[block]].name);
    }
    stages.push_back({{"replicas", plan.stages[i].replicas},
                      {"memory_bytes", plan.memory_bytes[i]},
                      {"nodes", nodes}});
  }
  return {{"schedule", std::string(name(plan.settings.family))},
          {"precision", profile.precision},
          {"recompute", plan.settings.recompute},
          {"zero_stage", plan.settings.zero_stage},
          {"offloads_activations", plan.settings.offloads_activations},
          {"offloads_optimizer", plan.settings.offloads_optimizer},
          {"spare_servers", plan.settings.sums ? model.problem().cluster.spares.size() : 0},
          {"devices", plan.settings.devices},
          {"tensor", plan.settings.axes.tensor},
          {"sequence_parallel", plan.settings.axes.sequence},
          {"tensor_overlap", plan.settings.tensor_overlap},
          {"context", plan.settings.axes.context},
          {"micro_batches", model.micro_batches(plan.settings.profile)},
          {"seconds_per_step", plan.seconds},
          {"device_hours_per_1000_steps", device_hours(plan)},
          {"lacking_bytes", std::max(0.0, plan.lacking_bytes)},
          {"stages", stages}};
}

// The time of plain data parallelism on all devices.
double data_parallel_seconds(const StepModel& model, const StepPlan& like) {
  const int devices = model.problem().cluster.ranks();
  return model
      .price({.profile = like.settings.profile, .devices = devices}, {{model.blocks(), devices}})
      .seconds;
}

}  // namespace

void print_search(const StepModel& model, const StepSearch& found, const std::string& text) {
  const auto& plan = found.best ? *found.best : *found.nearest;
  fmt::print("# cost model troika, {} samples a step, {} devices\n", model.problem().global_batch,
             model.problem().cluster.ranks());
  if (const auto* uncut = fastest_uncut(found)) {
    fmt::print("# savers     without a cut it fits with {} on {}: {:.5g} s a step\n",
               savers_text(model, *uncut), devices_text(*uncut), uncut->seconds);
  } else {
    fmt::print("# savers     nothing fits without a cut\n");
  }
  if (!found.best) {
    fmt::print("# does not fit; the nearest plan lacks {} on a device:\n",
               human_bytes(plan.lacking_bytes));
  }
  fmt::print("# plan       {} {}, {}: {:.5g} s a step on {}\n", name(plan.settings.family),
             replicas_text(plan), savers_text(model, plan), plan.seconds, devices_text(plan));
  const auto& axes = plan.settings.axes;
  if (axes.tensor > 1) {
    fmt::print("# tensor     {} devices compute each block together{}{}\n", axes.tensor,
               axes.sequence ? ", with sequence parallelism" : "",
               plan.settings.tensor_overlap ? ", and sum beside another micro-batch" : "");
  }
  if (axes.context > 1) {
    fmt::print("# context    {} {} each compute a part of the tokens\n", axes.context,
               axes.tensor > 1 ? "groups of devices" : "devices");
  }
  if (plan.settings.sums) {
    const size_t spares = model.problem().cluster.spares.size();
    fmt::print(
        "# servers    {} on spare hosts and {} beside the replicas sum gradients; launch --servers "
        "{}\n",
        spares, plan.settings.devices, spares);
  }
  fmt::print("# bound      no plan takes less than {:.5g} s{}\n", found.lower_bound,
             !found.is_exact ? "; not all plans were looked at"
             : found.best    ? "; this one is the fastest of the model's"
                             : "");
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    fmt::print("# stage {:<4} {} replica{}, {} each\n", i, plan.stages[i].replicas,
               plan.stages[i].replicas == 1 ? "" : "s", human_bytes(plan.memory_bytes[i]));
  }
  Widths widths{.replicas = 15, .savers = 22};
  for (const auto& row : found.alternatives) {
    widths.savers = std::max(widths.savers, savers_text(model, row).size() + 1);
    widths.replicas = std::max(widths.replicas, replicas_text(row).size() + 1);
    const size_t tensor = tensor_text(row.settings).size();
    if (tensor > 0) widths.tensor = std::max({widths.tensor, size_t{13}, tensor + 2});
    if (row.settings.axes.context > 1) widths.context = 9;
  }
  fmt::print("#\n# {:<11}{:<{}}{:<{}}{:<{}}{:<{}}{:>11}{:>12}{:>13}\n", "schedule", "replicas",
             widths.replicas, widths.tensor > 0 ? "tensor" : "", widths.tensor,
             widths.context > 0 ? "context" : "", widths.context, "savers", widths.savers,
             "s a step", "memory", "dev.h/1000");
  auto rows = found.alternatives;
  std::ranges::stable_sort(rows, [](const StepPlan& one, const StepPlan& other) {
    const bool fits = one.lacking_bytes <= 0, other_fits = other.lacking_bytes <= 0;
    return std::tuple(!fits, fits ? one.seconds : one.lacking_bytes) <
           std::tuple(!other_fits, other_fits ? other.seconds : other.lacking_bytes);
  });
  for (const auto& row : rows) print_row(model, row, found, widths);
  fmt::print("\n{}", text);
}

SearchJson search_json(const StepModel& model, const StepSearch& found) {
  const auto& plan = found.best ? *found.best : *found.nearest;
  const int micro_batches = model.micro_batches(plan.settings.profile);
  SearchJson json{{"cost_model", "troika"}, {"feasible", found.best.has_value()}};
  json["seconds_per_minibatch"] =
      found.best ? SearchJson(plan.seconds / micro_batches) : SearchJson(nullptr);
  json["data_parallel_seconds"] = data_parallel_seconds(model, plan) / micro_batches;
  json["lower_bound"] = found.lower_bound / micro_batches;
  json["optimal"] = found.is_exact;
  auto chosen = plan_json(model, plan);
  json["stages"] = found.best ? chosen["stages"] : SearchJson::array();
  json[found.best ? "plan" : "nearest"] = std::move(chosen);
  for (const auto& row : found.alternatives) json["alternatives"].push_back(plan_json(model, row));
  return json;
}

}  // namespace troika::cli
