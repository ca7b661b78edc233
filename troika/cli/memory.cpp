#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "troika/base/config.h"
#include "troika/base/error.h"
#include "troika/base/exit_code.h"
#include "troika/base/log.h"
#include "troika/base/machine_memory.h"
#include "troika/base/text.h"
#include "troika/cli/commands.h"
#include "troika/cli/configuration.h"
#include "troika/cli/plan_file.h"
#include "troika/cli/session.h"
#include "troika/compat/torch.h"
#include "troika/observe/summary.h"
#include "troika/train/memory/prediction.h"
#include "troika/train/memory/remedy.h"
#include "troika/train/options/limits.h"
#include "troika/train/options/resolve_plan.h"

namespace troika::cli {

namespace {

using train::MemoryChoice;
using train::MemoryParts;
using train::MemoryPrediction;

struct MemoryArguments {
  std::string file;
  std::string plan;  // a file
  std::vector<int> ranks;
  int64_t budget = 0;  // bytes; 0: not given
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

// The bytes available to each rank, for one number of ranks.
struct Budget {
  int64_t bytes = 0;  // for the whole process; 0: unknown
  // The part of Report::resident_before that other ranks' budgets cover: pages of libraries are in
  // memory once for all ranks of a machine. 0 unless the budget is a share of the machine's memory.
  int64_t shared = 0;
  std::string text = {};
};

struct Report {
  std::vector<MemoryPrediction> predictions = {};
  std::map<int, MemoryChoice> configured = {};  // by number of ranks
  int64_t resident_before = 0;                  // of this process before tensors: its libraries
  std::map<int, Budget> budgets = {};           // by number of ranks
  // If a pipeline is configured: the prediction for each rank of its pipeline axis, by number of
  // ranks.
  std::map<int, std::vector<MemoryPrediction>> pipelines = {};

  double beside_libraries(int ranks) const {
    const auto& budget = budgets.at(ranks);
    return static_cast<double>(budget.bytes - resident_before + budget.shared);
  }
  bool knows_budget(const MemoryPrediction& prediction) const {
    return budgets.at(prediction.choice.ranks).bytes > 0;
  }
  bool fits(const MemoryPrediction& prediction) const {
    return prediction.process() <= beside_libraries(prediction.choice.ranks);
  }
  // Whether no choice fits into its budget; choices with unknown budgets count as fitting.
  bool fits_nowhere() const {
    return std::ranges::none_of(
        predictions, [this](const auto& one) { return !knows_budget(one) || fits(one); });
  }
  double resident(const MemoryPrediction& prediction) const {
    return static_cast<double>(resident_before) + prediction.process();
  }
  bool is_configured(const MemoryPrediction& prediction) const {
    return prediction.choice == configured.at(prediction.choice.ranks);
  }
};

// Prints columns as wide as their longest cell: the first `texts` left-aligned, the others
// (numbers) right-aligned.
void print_columns(const std::vector<std::vector<std::string>>& rows, size_t texts) {
  std::vector<size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += i < texts ? fmt::format("{:<{}}  ", row[i], widths[i])
                        : fmt::format("{:>{}}  ", row[i], widths[i]);
    }
    fmt::print("{}\n", line.substr(0, line.find_last_not_of(' ') + 1));
  }
}

std::vector<std::string> row_of(const Report& report, const MemoryPrediction& prediction) {
  const auto& choice = prediction.choice;
  std::vector<std::string> row{(report.is_configured(prediction) ? "> " : "  ") + choice.precision,
                               choice.recompute, choice.strategy};
  for (const double bytes : {report.resident(prediction), prediction.peak(), prediction.step.sum(),
                             prediction.between_steps, prediction.validation, prediction.start}) {
    row.push_back(human_bytes(bytes));
  }
  if (report.knows_budget(prediction)) row.emplace_back(report.fits(prediction) ? "fits" : "-");
  return row;
}

void print_parts(const MemoryPrediction& prediction) {
  std::vector<std::string> names{"  step of >"}, bytes{""};
  for (const auto& part : kParts) {
    names.emplace_back(part.name);
    bytes.push_back(human_bytes(prediction.step.*part.bytes));
  }
  print_columns({names, bytes}, 1);
  if (prediction.mailboxes > 0) {
    fmt::print("  mailboxes of the back end, at most: {}\n", human_bytes(prediction.mailboxes));
  }
}

void print_pipeline(const std::vector<MemoryPrediction>& ranks) {
  std::vector<std::vector<std::string>> rows{{"  rank of the pipeline"}};
  for (const auto& part : kParts) rows.front().emplace_back(part.name);
  rows.front().insert(rows.front().begin() + 1, "step");
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    auto& row = rows.emplace_back(
        std::vector{fmt::format("  {}", rank), human_bytes(ranks[rank].step.sum())});
    for (const auto& part : kParts) row.push_back(human_bytes(ranks[rank].step.*part.bytes));
  }
  print_columns(rows, 1);
}

// Makes the predictions needed for advice.
struct Advisor {
  train::MemoryPredictor& predictor;
  const train::TrainOptions& options;
};

void print_advice(const Report& report, const Advisor& advisor, const MemoryPrediction* configured,
                  int ranks) {
  const auto& budget = report.budgets.at(ranks);
  if (budget.bytes == 0) return;
  if (!configured) {
    fmt::print("what is configured is not predicted: {}\n",
               advisor.predictor.why_not(report.configured.at(ranks)));
    return;
  }
  if (report.fits(*configured)) {
    fmt::print("what is configured fits into {}\n", budget.text);
    return;
  }
  fmt::print("what is configured does not fit into {}: {}\n", budget.text,
             train::remedy(advisor.predictor, advisor.options, report.configured.at(ranks),
                           report.predictions, report.beside_libraries(ranks)));
}

// Prints, for each number of ranks, the configured choice, the fastest one that fits, and the one
// with the least memory; or all choices.
void print_table(const Report& report, const Advisor& advisor, const std::vector<int>& ranks,
                 bool all) {
  fmt::print(
      "Predicted bytes of each rank: of its process, {} of them libraries', and of tensors\n",
      human_bytes(static_cast<double>(report.resident_before)));
  for (const int count : ranks) {
    std::vector<const MemoryPrediction*> here;
    for (const auto& prediction : report.predictions) {
      if (prediction.choice.ranks == count) here.push_back(&prediction);
    }
    const auto* fastest = train::fastest_within(report.predictions, report.beside_libraries(count),
                                                report.configured.at(count));
    const auto* least = *std::ranges::min_element(here, {}, &MemoryPrediction::peak);
    const MemoryPrediction* configured = nullptr;
    std::vector<std::vector<std::string>> rows{{"  precision", "recompute", "strategy", "process",
                                                "peak", "step", "between steps", "validation",
                                                "start"}};
    for (const auto* one : here) {
      if (report.is_configured(*one)) configured = one;
      if (all || one == configured || one == fastest || one == least) {
        rows.push_back(row_of(report, *one));
      }
    }
    rows.front().resize(rows.back().size());
    fmt::print("\n{} rank{}\n", count, count == 1 ? "" : "s");
    print_columns(rows, 3);
    if (configured) print_parts(*configured);
    if (report.pipelines.contains(count)) print_pipeline(report.pipelines.at(count));
    print_advice(report, advisor, configured, count);
  }
  fmt::print("\n>: as configured.{}\n", all ? "" : " --all prints every choice.");
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
                               {"mailbox_bytes", whole(prediction.mailboxes)},
                               {"resident_bytes", whole(report.resident(prediction))}};
    if (report.is_configured(prediction) && report.pipelines.contains(choice.ranks)) {
      for (const auto& rank : report.pipelines.at(choice.ranks)) {
        row["pipeline_peak_bytes"].push_back(whole(rank.training_peak()));
      }
    }
    if (report.knows_budget(prediction)) row["fits"] = report.fits(prediction);
    rows.push_back(row);
  }
  const nlohmann::ordered_json all{{"process_bytes", report.resident_before},
                                   {"predictions", rows}};
  std::cout << all.dump(2) << '\n';
}

// Returns the given budget, or an equal share of the memory available on this machine.
Budget budget_of(int ranks, int64_t stated) {
  if (stated > 0) {
    return {.bytes = stated, .text = human_bytes(static_cast<double>(stated))};
  }
  const auto left = memory::available();
  if (!left) return {};
  Budget budget{.bytes = left->bytes / ranks,
                .shared = memory::resident_files() / ranks * (ranks - 1)};
  const auto bytes = human_bytes(static_cast<double>(budget.bytes));
  budget.text = ranks == 1 ? fmt::format("{}, what is left of {}", bytes, left->limit)
                           : fmt::format(
                                 "{}, a share for each of {} ranks of what is left of {} "
                                 "(--budget says what ranks elsewhere have)",
                                 bytes, ranks, left->limit);
  return budget;
}

// Warns where `troika train` would refuse the batch as larger than the data, regardless of memory.
void warn_of_batches(const train::TrainOptions& options, const std::vector<int>& ranks,
                     int64_t samples) {
  for (const int count : ranks) {
    try {
      const auto mesh = train::resolve_plan(options, layout::Cluster::uniform(1, count)).mesh;
      train::require_batch(options, mesh.sample_shares(), samples);
    } catch (const Error& refused) {
      log::warn("troika train would refuse this on {} rank{}: {}", count, count == 1 ? "" : "s",
                refused.what());
    }
  }
}

int print_memory(const MemoryArguments& arguments, const std::vector<std::string>& overrides) {
  train::TrainOptions options;
  auto table = train::make_table(options);
  read_configuration(table, arguments.file, overrides);
  if (arguments.plan.empty()) {
    options = train::with_plan(std::move(options));
  } else {
    take_plan(options, arguments.plan, overrides);
  }
  check_memory(options);
  const auto data = options.data;
  // One sample is enough to show the model's input sizes.
  options.data.train_samples = 1;
  const auto dataset = data::make_dataset(options.data, data::Split::train);
  options.model = fit_model(options, *dataset);
  auto ranks = arguments.ranks;
  if (ranks.empty()) {
    ranks.push_back(static_cast<int>(std::max<int64_t>(1, options.trainer.devices)));
  }
  Report report{.resident_before = observe::peak_resident_bytes()};
  for (const int count : ranks) report.budgets[count] = budget_of(count, arguments.budget);
  warn_of_batches(options, ranks, data::count_samples(data, data::Split::train));
  train::MemoryPredictor predictor(options, *dataset);
  for (const int count : ranks) report.configured[count] = predictor.configured(count);
  report.predictions = train::predict_choices(predictor, ranks);
  for (const int count : ranks) {
    const auto& choice = report.configured.at(count);
    if (!predictor.why_not(choice).empty()) continue;
    auto predicted = predictor.predict_ranks(choice);
    if (predicted.size() > 1) report.pipelines[count] = std::move(predicted);
  }
  if (arguments.json) {
    print_json(report);
  } else {
    print_table(report, {predictor, options}, ranks, arguments.all);
  }
  return static_cast<int>(report.fits_nowhere() ? ExitCode::usage : ExitCode::done);
}

}  // namespace

Entry add_memory(CLI::App& app) {
  auto* command = app.add_subcommand("memory", "predict the memory that training will take");
  const auto arguments = std::make_shared<MemoryArguments>();
  command->add_option("CONFIG,--config", arguments->file,
                      "configuration, as for train; default: the default options");
  command->add_option("--plan", arguments->plan,
                      "file of a plan, in the form that `troika plan` prints; docs/plan.md");
  command->add_option("--ranks", arguments->ranks, "numbers of processes; default: trainer.devices")
      ->delimiter(',')
      ->check(CLI::Range(1, 1'000'000));
  command
      ->add_option("--budget", arguments->budget,
                   "memory of each process, for example 6GiB; default: a fraction of the free "
                   "memory of this machine")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::PositiveNumber);
  command->add_flag("--all", arguments->all,
                    "print all strategies and savers, not only the most useful");
  command->add_flag("--json", arguments->json, "print JSON, with sizes in bytes");
  command->allow_extras();
  command->footer("Any option of CONFIG may follow as --section.name=value.");
  return {command, [command, arguments] { return print_memory(*arguments, command->remaining()); }};
}

}  // namespace troika::cli
