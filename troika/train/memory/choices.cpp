// The choices that predictions are compared for.
#include <fmt/format.h>

#include <algorithm>

#include "troika/train/memory/prediction.h"
#include "troika/train/options/resolve_plan.h"

namespace troika::train {

namespace {

void add_if_new(std::vector<std::string>& list, const std::string& name) {
  if (std::find(list.begin(), list.end(), name) == list.end()) list.push_back(name);
}

}  // namespace

std::vector<MemoryPrediction> predict_choices(MemoryPredictor& predictor,
                                              const std::vector<int>& ranks) {
  const auto is_left_out = [&](int count) {
    return !predictor.why_not(predictor.configured(count)).empty();
  };
  const auto configured = predictor.configured(ranks.front());
  if (std::ranges::all_of(ranks, is_left_out)) predictor.predict(configured);  // throws
  std::vector<std::string> precisions{"32", "bf16-mixed", "bf16-true"};
  std::vector<std::string> policies{"none", "selective", "sqrt", "full"};
  auto strategies = strategies_by_memory();
  add_if_new(precisions, configured.precision);
  add_if_new(policies, configured.recompute);
  add_if_new(strategies, configured.strategy);
  std::vector<MemoryPrediction> result;
  for (const auto& precision : precisions) {
    for (const auto& policy : policies) {
      for (const int count : ranks) {
        for (const auto& strategy : strategies) {
          auto choice = predictor.configured(count);
          choice.strategy = strategy;
          choice.precision = precision;
          choice.recompute = policy;
          if (predictor.why_not(choice).empty()) result.push_back(predictor.predict(choice));
        }
      }
    }
  }
  std::stable_sort(result.begin(), result.end(), [](const auto& one, const auto& other) {
    return one.choice.ranks < other.choice.ranks;
  });
  return result;
}

const MemoryPrediction* fastest_within(const std::vector<MemoryPrediction>& predictions,
                                       double bytes, const MemoryChoice& like) {
  const MemoryPrediction* found = nullptr;
  for (const auto& prediction : predictions) {
    const auto& choice = prediction.choice;
    if (choice.ranks != like.ranks || prediction.process() > bytes) continue;
    if (choice.precision == like.precision) return &prediction;
    if (!found) found = &prediction;
  }
  return found;
}

std::string options_of(const MemoryChoice& choice) {
  return fmt::format("--trainer.precision={} --trainer.recompute={} --trainer.strategy={}",
                     choice.precision, choice.recompute, choice.strategy);
}

}  // namespace troika::train
