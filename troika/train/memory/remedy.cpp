#include "troika/train/memory/remedy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "troika/base/text.h"

namespace troika::train {

namespace {

// The maximum factor by which a remedy multiplies the number of machines.
constexpr int kMostMachines = 1024;

// The largest number of samples per rank, below the configured one, with which the choice fits; 0:
// none.
int64_t largest_batch(MemoryPredictor& predictor, MemoryChoice choice, double bytes) {
  int64_t too_large = predictor.batch_of(choice);
  const auto fits = [&](int64_t batch) {
    choice.batch = batch;
    return predictor.predict(choice).process() <= bytes;
  };
  int64_t found = 0;
  while (too_large - found > 1) {
    // A batch of one sample is tried first: if it does not fit, no batch does.
    const int64_t batch = found == 0 ? 1 : found + (too_large - found) / 2;
    (fits(batch) ? found : too_large) = batch;
  }
  return found;
}

// `batch` is that of each of `shares` replicas.
std::string batch_option(const TrainOptions& options, int64_t batch, int shares) {
  if (options.data.global_batch_size == 0) return fmt::format("--data.batch_size={}", batch);
  return fmt::format("--data.global_batch_size={}", batch * shares);
}

// Returns the choice with the least memory on `machines` times the nodes and ranks of `configured`,
// with one sample on each rank; nothing if none can be predicted, as for a pipeline with more
// stages than blocks. Considers only choices with full recomputation if there are any.
std::optional<MemoryPrediction> least_on(int machines, const MemoryChoice& configured,
                                         MemoryPredictor& predictor,
                                         const std::vector<MemoryPrediction>& choices) {
  const bool recomputes =
      std::ranges::any_of(choices, [](const auto& one) { return one.choice.recompute == "full"; });
  std::optional<MemoryPrediction> least;
  for (const auto& one : choices) {
    auto choice = one.choice;
    if (recomputes && choice.recompute != "full") continue;
    choice.ranks = configured.ranks * machines;
    choice.nodes = configured.nodes * machines;
    choice.batch = 1;
    if (!predictor.why_not(choice).empty()) continue;
    const auto there = predictor.predict(choice);
    if (!least || there.process() < least->process()) least = there;
  }
  return least;
}

// The parts of a run that exceed `bytes` by themselves, as text.
std::string parts_beyond(const MemoryPredictor& predictor, const MemoryPrediction& prediction,
                         double bytes) {
  std::vector<std::string> parts;
  const auto add = [&](const std::string& name, double part) {
    if (part + prediction.mailboxes + prediction.overhead <= bytes) return;
    parts.push_back(fmt::format("{} takes {}", name, human_bytes(part)));
  };
  const bool gathers = predictor.plan(prediction.choice).exchange.zero_stage == 3;
  add(gathers ? "the start" : "the start, for which each rank makes the whole model,",
      prediction.start);
  add("a training step", prediction.step.sum());
  add(gathers ? "a validation, for which each rank has all parameters," : "a validation",
      prediction.validation);
  if (parts.empty()) add("the time between steps", prediction.between_steps);
  return fmt::format("{}", fmt::join(parts, ", and "));
}

}  // namespace

std::string remedy(MemoryPredictor& predictor, const TrainOptions& options,
                   const MemoryChoice& configured, const std::vector<MemoryPrediction>& choices,
                   double bytes) {
  std::vector<std::string> remedies;
  if (const auto* fits = fastest_within(choices, bytes, configured)) {
    remedies.push_back(
        fmt::format("{} takes {}", options_of(fits->choice), human_bytes(fits->process())));
  }
  const int ranks = configured.ranks;
  const auto with_batch = [&](const MemoryChoice& choice) {
    const int64_t batch = largest_batch(predictor, choice, bytes);
    return batch == 0 ? ""
                      : batch_option(options, batch, predictor.plan(choice).mesh.sample_shares());
  };
  if (const auto option = with_batch(configured); !option.empty()) {
    remedies.push_back(option + " is the largest batch that fits");
  }
  if (!remedies.empty()) return fmt::format("{}", fmt::join(remedies, "; or "));
  auto choice = least_on(1, configured, predictor, choices).value().choice;
  choice.batch = 0;
  if (const auto option = with_batch(choice); !option.empty()) {
    return fmt::format("{} {} fits", options_of(choice), option);
  }
  const int most = std::min(kMostMachines, std::numeric_limits<int>::max() / ranks);
  // More ranks hold less of the model each, but more messages of each other.
  for (int machines = 2;; machines = std::min(2 * machines, most)) {
    const auto found = least_on(machines, configured, predictor, choices);
    if (!found) {
      return fmt::format(
          "no precision, recomputation or batch makes it fit on {} ranks, and more "
          "ranks do not fit the pipeline",
          ranks * machines / 2);
    }
    const auto& there = *found;
    if (there.process() <= bytes) {
      return fmt::format(
          "on {} ranks, {} {} takes {}", there.choice.ranks, options_of(there.choice),
          batch_option(options, 1, predictor.plan(there.choice).mesh.sample_shares()),
          human_bytes(there.process()));
    }
    if (machines < most) continue;
    return fmt::format(
        "no precision, recomputation, strategy, batch or number of machines makes it fit: with {} "
        "on {} ranks, {}; take a smaller model, or machines with more memory for each rank",
        options_of(there.choice), ranks * most, parts_beyond(predictor, there, bytes));
  }
}

}  // namespace troika::train
