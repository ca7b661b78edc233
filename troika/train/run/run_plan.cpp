#include "troika/train/run/run_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "troika/base/text.h"

namespace troika::train {

namespace {

// "1,234"
std::string grouped(int64_t number) {
  std::string digits = std::to_string(number);
  for (auto at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<size_t>(at), 1, ',');
  }
  return digits;
}

// "1 rank", "1,234 ranks"
std::string noun_text(int64_t number, const char* noun) {
  return fmt::format("{} {}{}", grouped(number), noun, number == 1 ? "" : "s");
}

std::string model_text(const RunPlan& plan) {
  std::string text = fmt::format("{}, {}", plan.model, noun_text(plan.parameters, "parameter"));
  if (plan.trainable != plan.parameters) {
    text += fmt::format(", {} of them trainable", grouped(plan.trainable));
  }
  return text;
}

std::string steps_text(const RunPlan& plan) {
  std::string text = plan.steps > 0 ? noun_text(plan.steps, "step") : "until the time is over";
  if (plan.steps_made > 0) text += fmt::format(", from step {} on", grouped(plan.steps_made));
  return text + fmt::format("; {} an epoch", grouped(plan.steps_per_epoch));
}

std::string batch_text(const RunPlan& plan) {
  std::string text = noun_text(plan.batch * plan.micro_batches, "sample") + " a step";
  if (plan.replicas > 1) {
    text += fmt::format(", {:.4g} on each {}",
                        static_cast<double>(plan.batch * plan.micro_batches) / plan.replicas,
                        plan.replicas == plan.ranks ? "rank" : "replica");
  }
  if (plan.micro_batches > 1) text += fmt::format(", in {} micro-batches", plan.micro_batches);
  return text;
}

std::string strategy_text(const RunPlan& plan) {
  if (plan.ranks == 1) return fmt::format("1 rank on {}", plan.device);
  return fmt::format("{}, {} on {}, back end {}, on {}", plan.strategy,
                     noun_text(plan.ranks, "rank"), noun_text(plan.nodes, "node"), plan.backend,
                     plan.device);
}

}  // namespace

std::string describe(const RunPlan& plan) {
  std::string text = plan.name + " starts";
  const auto line = [&](const char* name, const std::string& value) {
    text += fmt::format("\n  {:<10} {}", name, value);
  };
  line("model", model_text(plan));
  line("data", fmt::format("{}, {} to validate", noun_text(plan.training_samples, "sample"),
                           grouped(plan.validation_samples)));
  line("steps", steps_text(plan));
  line("batch", batch_text(plan));
  line("strategy", strategy_text(plan));
  line("precision", plan.precision);
  if (!plan.predicted_bytes.empty()) {
    const auto [least, most] = std::ranges::minmax(plan.predicted_bytes);
    const auto text = human_bytes(static_cast<double>(most));
    line("memory", (least == most ? "" : human_bytes(static_cast<double>(least)) + " to ") + text +
                       " of tensors a rank in training steps, predicted");
  }
  if (!plan.why_not_predicted.empty()) {
    line("memory", "not predicted " + plan.why_not_predicted);
  }
  line("folder", plan.folder);
  return text;
}

}  // namespace troika::train
