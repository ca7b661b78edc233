#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "troika/base/error.h"
#include "troika/base/machine_memory.h"
#include "troika/base/text.h"
#include "troika/cli/commands.h"
#include "troika/cli/configuration.h"
#include "troika/cli/session.h"
#include "troika/compat/torch.h"
#include "troika/train/memory/prediction.h"
#include "troika/train/summary.h"

namespace troika::cli {

namespace {

using train::MemoryChoice;
using train::MemoryParts;
using train::MemoryPrediction;

struct MemoryArguments {
  std::string file;
  std::vector<int> ranks;
  int64_t budget = 0;  // bytes; 0: none stated
  bool json = false;
  bool all = false;
};

struct Part {
  const char* name;
  double MemoryParts::*bytes;
};

constexpr Part kParts[]{
    {"parameters", &MemoryParts::parameters}, {"gradients", &MemoryParts::gradients},
    {"optimizer", &MemoryParts::optimizer},   {"activations", &MemoryParts::activations},
    {"buckets", &MemoryParts::buckets},       {"workspace", &MemoryParts::workspace},
    {"batches", &MemoryParts::batches}};

struct Report {
  std::vector<MemoryPrediction> predictions = {};
  MemoryChoice configured = {};
  int64_t resident_before = 0;  // of this process, before tensors: its libraries
  int64_t budget = 0;           // of each rank, with its process; 0: not known
  // The part of resident_before that other ranks' budgets hold: pages of libraries are in memory
  // once for all ranks of a machine. 0 unless the budget is a share of the machine's memory.
  int64_t shared = 0;
  std::string budget_text = {};

  double beside_libraries() const { return static_cast<double>(budget - resident_before + shared); }
  bool fits(const MemoryPrediction& prediction) const {
    return prediction.process() <= beside_libraries();
  }
  double resident(const MemoryPrediction& prediction) const {
    return static_cast<double>(resident_before) + prediction.process();
  }
  MemoryChoice configured_on(int ranks) const {
    auto choice = configured;
    choice.ranks = ranks;
    return choice;
  }
  bool is_configured(const MemoryPrediction& prediction) const {
    return prediction.choice == configured_on(prediction.choice.ranks);
  }
};

void print_row(const Report& report, const MemoryPrediction& prediction) {
  const auto& choice = prediction.choice;
  fmt::print("{:<2}{:<11}{:<10}{:<9}{:>10}{:>10}", report.is_configured(prediction) ? ">" : "",
             choice.precision, choice.recompute, choice.strategy,
             human_bytes(report.resident(prediction)), human_bytes(prediction.peak()));
  for (const auto& part : kParts) {
    fmt::print("{:>12}", human_bytes(prediction.step.*part.bytes));
  }
  fmt::print("{:>14}{:>12}{:>10}", human_bytes(prediction.between_steps),
             human_bytes(prediction.validation), human_bytes(prediction.start));
  if (report.budget > 0) fmt::print("{}", report.fits(prediction) ? "  fits" : "  -");
  fmt::print("\n");
}

void print_advice(const Report& report, const MemoryPrediction* fastest, int ranks) {
  if (report.budget == 0) return;
  if (!fastest) {
    fmt::print("nothing fits into {}: take a smaller batch or model, or more machines\n",
               report.budget_text);
  } else if (fastest->choice == report.configured_on(ranks)) {
    fmt::print("what is configured fits into {}\n", report.budget_text);
  } else {
    fmt::print("into {} fits, fastest first: {}\n", report.budget_text,
               train::options_of(fastest->choice));
  }
}

// For each number of ranks what is configured, the fastest that fits and the least; or all.
void print_table(const Report& report, const std::vector<int>& ranks, bool all) {
  fmt::print(
      "Predicted bytes of each rank: of its process, {} of them libraries', and of tensors\n",
      human_bytes(static_cast<double>(report.resident_before)));
  for (const int count : ranks) {
    std::vector<const MemoryPrediction*> here;
    for (const auto& prediction : report.predictions) {
      if (prediction.choice.ranks == count) here.push_back(&prediction);
    }
    const auto* fastest = train::fastest_within(report.predictions, report.beside_libraries(),
                                                report.configured_on(count));
    const auto* least = *std::ranges::min_element(here, {}, &MemoryPrediction::peak);
    fmt::print("\n{} rank{}\n  {:<11}{:<10}{:<9}{:>10}{:>10}", count, count == 1 ? "" : "s",
               "precision", "recompute", "strategy", "process", "peak");
    for (const auto& part : kParts) fmt::print("{:>12}", part.name);
    fmt::print("{:>14}{:>12}{:>10}\n", "between steps", "validation", "start");
    for (const auto* one : here) {
      if (all || report.is_configured(*one) || one == fastest || one == least) {
        print_row(report, *one);
      }
    }
    print_advice(report, fastest, count);
  }
  fmt::print("\n>: as configured. Parts are those at the peak of a step.{}\n",
             all ? "" : " --all prints every choice.");
}

void print_json(const Report& report) {
  auto rows = nlohmann::ordered_json::array();
  const auto whole = [](double bytes) { return static_cast<int64_t>(bytes); };
  for (const auto& prediction : report.predictions) {
    const auto& choice = prediction.choice;
    auto parts = nlohmann::ordered_json::object();
    for (const auto& part : kParts) parts[part.name] = whole(prediction.step.*part.bytes);
    nlohmann::ordered_json row{{"ranks", choice.ranks},
                               {"precision", choice.precision},
                               {"recompute", choice.recompute},
                               {"strategy", choice.strategy},
                               {"configured", report.is_configured(prediction)},
                               {"peak_bytes", whole(prediction.peak())},
                               {"step", parts},
                               {"between_steps_bytes", whole(prediction.between_steps)},
                               {"validation_bytes", whole(prediction.validation)},
                               {"start_bytes", whole(prediction.start)},
                               {"resident_bytes", whole(report.resident(prediction))}};
    if (report.budget > 0) row["fits"] = report.fits(prediction);
    rows.push_back(row);
  }
  const nlohmann::ordered_json all{{"process_bytes", report.resident_before},
                                   {"predictions", rows}};
  std::cout << all.dump(2) << '\n';
}

// The stated one, or for one number of ranks an equal share of what is left on this machine.
void set_budget(Report& report, const MemoryArguments& arguments, const std::vector<int>& ranks) {
  if (arguments.budget > 0) {
    report.budget = arguments.budget;
    report.budget_text = human_bytes(static_cast<double>(arguments.budget));
    return;
  }
  const auto left = memory::available();
  if (!left || ranks.size() != 1) return;
  report.budget = left->bytes / ranks.front();
  report.shared = memory::resident_files() / ranks.front() * (ranks.front() - 1);
  report.budget_text =
      fmt::format("{} (what is left of {}, by {})", human_bytes(static_cast<double>(report.budget)),
                  left->limit, ranks.front());
}

int print_memory(const MemoryArguments& arguments, const std::vector<std::string>& overrides) {
  train::TrainOptions options;
  auto table = train::make_table(options);
  read_configuration(table, arguments.file, overrides);
  check_memory(options);
  // One sample says what the model takes.
  options.data.train_samples = 1;
  const auto dataset = data::make_dataset(options.data, data::Split::train);
  options.model = fit_model(options.model, *dataset);
  auto ranks = arguments.ranks;
  if (ranks.empty()) {
    ranks.push_back(static_cast<int>(std::max<int64_t>(1, options.trainer.devices)));
  }
  Report report{.resident_before = train::peak_resident_bytes()};
  set_budget(report, arguments, ranks);
  train::MemoryPredictor predictor(options, *dataset);
  report.configured = predictor.configured(ranks.front());
  report.predictions = train::predict_choices(predictor, ranks);
  arguments.json ? print_json(report) : print_table(report, ranks, arguments.all);
  return 0;
}

}  // namespace

Entry add_memory(CLI::App& app) {
  auto* command = app.add_subcommand("memory", "predict the memory that training will take");
  const auto arguments = std::make_shared<MemoryArguments>();
  command->add_option("CONFIG,--config", arguments->file, "as of train; without one, the defaults");
  command->add_option("--ranks", arguments->ranks, "numbers of processes; one: trainer.devices")
      ->delimiter(',')
      ->check(CLI::Range(1, 1'000'000));
  command
      ->add_option("--budget", arguments->budget,
                   "of each process, as in 6GiB; none: a share of what is left here")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::PositiveNumber);
  command->add_flag("--all", arguments->all, "print every choice, not those that matter most");
  command->add_flag("--json", arguments->json, "print JSON, in bytes");
  command->allow_extras();
  command->footer("Any option of CONFIG may follow as --section.name=value.");
  return {command, [command, arguments] { return print_memory(*arguments, command->remaining()); }};
}

}  // namespace troika::cli
