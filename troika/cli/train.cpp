#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <memory>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/base/machine_memory.h"
#include "troika/base/text.h"
#include "troika/cli/commands.h"
#include "troika/cli/configuration.h"
#include "troika/cli/elastic_batch.h"
#include "troika/cli/session.h"
#include "troika/cluster/environment.h"
#include "troika/cluster/slurm/commands.h"
#include "troika/cluster/stop_signals.h"
#include "troika/compat/torch.h"
#include "troika/train/memory/prediction.h"
#include "troika/train/placement.h"
#include "troika/train/strategy.h"
#include "troika/train/trainer.h"

namespace troika::cli {

namespace {

std::string largest(const std::vector<int64_t>& bytes) {
  return human_bytes(static_cast<double>(*std::max_element(bytes.begin(), bytes.end())));
}

std::string peak_memory(const train::RunSummary& summary) {
  const auto resident = "resident " + largest(summary.peak_resident_bytes) + " a process";
  if (summary.peak_tensor_bytes.empty()) return resident;  // no step was made
  const double predicted = static_cast<double>(summary.predicted_tensor_bytes);
  return fmt::format("{} (predicted {}) in training steps, {}", largest(summary.peak_tensor_bytes),
                     predicted > 0 ? human_bytes(predicted) : "nothing", resident);
}

// Prints a line of the summary, or nothing for a number that was not computed.
void print_number(const char* name, double value, const char* unit = "", int digits = 4) {
  if (!std::isnan(value)) fmt::print("  {:<20} {:.{}f}{}\n", name, value, digits, unit);
}

void print_summary(const train::RunSummary& summary) {
  fmt::print("\n{} {}: {} steps on {} process{} in {}\n", summary.name, summary.status,
             summary.steps, summary.world_size, summary.world_size == 1 ? "" : "es",
             human_seconds(summary.seconds));
  print_number("train loss", summary.train_loss);
  print_number("validation loss", summary.validation_loss);
  print_number("validation accuracy", 100 * summary.validation_accuracy, " %", 2);
  if (summary.steps > 0 && !std::isnan(summary.median_step_milliseconds)) {
    fmt::print("  throughput           {:.1f} samples/s, median step {:.1f} ms\n",
               summary.samples_per_second, summary.median_step_milliseconds);
  }
  fmt::print("  peak memory          {}\n", peak_memory(summary));
  if (!summary.checkpoint.empty()) fmt::print("  checkpoint           {}\n", summary.checkpoint);
  fmt::print("  metrics and logs     {}\n", summary.run_folder);
}

// Throws Error(usage) where the tensors of the ranks on this machine are predicted to take more
// than there is, and warns where their processes are.
void require_fits(train::MemoryPredictor& predictor, const train::MemoryPrediction& prediction,
                  int local_ranks) {
  const auto left = memory::available();
  if (!left) return;
  const double each = static_cast<double>(left->bytes) / local_ranks;
  if (prediction.process() <= each) return;
  const auto choices = train::predict_choices(predictor, {prediction.choice.ranks});
  const auto* fits = train::fastest_within(choices, each, prediction.choice);
  const auto way_out = fits ? fmt::format("{} takes {}", train::options_of(fits->choice),
                                          human_bytes(fits->process()))
                            : std::string(
                                  "nothing that `troika memory` knows fits: take a smaller batch "
                                  "or model, or more machines");
  const auto room = fmt::format("{}: what is left of {}, for {} rank{} here", human_bytes(each),
                                left->limit, local_ranks, local_ranks == 1 ? "" : "s");
  if (prediction.peak() <= each) {
    log::warn("each rank is predicted to take {}, of {} ({})", human_bytes(prediction.process()),
              room, way_out);
    return;
  }
  throw Error(
      "cli", ErrorKind::usage,
      {.what = "the run does not fit into memory",
       .got = fmt::format("{} of tensors on each rank, predicted", human_bytes(prediction.peak())),
       .expected = "at most " + room,
       .hint = way_out + "; trainer.memory_check=off tries all the same"});
}

// The predicted peak of tensors in training, on rank 0; 0 where that is not predicted, as on GPUs.
// Before the run's own tensors are made and random numbers are drawn: it leaves no trace in either.
int64_t predicted_bytes(const train::TrainOptions& options, const data::Dataset& dataset,
                        const comm::Group& group, int local_ranks) {
  if (group.rank() != 0 || !train::Placement::of(options, group).device.is_cpu()) return 0;
  try {
    train::MemoryPredictor predictor(options, dataset);
    const auto choice = predictor.configured(group.size());
    if (!predictor.why_not(choice).empty()) return 0;
    const auto prediction = predictor.predict(choice);
    if (options.trainer.memory_check == "on") require_fits(predictor, prediction, local_ranks);
    return static_cast<int64_t>(prediction.training_peak());
  } catch (const Error& problem) {
    // As where a limit on addresses (ulimit -v) leaves none for tensors without memory.
    if (problem.kind() != ErrorKind::failure) throw;
    log::warn("memory is not predicted: {}", problem.what());
    return 0;
  }
}

int train_here(train::TrainOptions options, const cluster::Environment& environment) {
  check_memory(options);
  require_elastic_batch(options, environment);
  const auto signals = std::make_shared<const cluster::StopSignals>(cluster::slurm::may_requeue());
  const auto group = join(options, environment);
  auto folder = train::RunFolder::claim(options, group, /*goes_on_when_started_again=*/true);
  open_log("train", options, environment, group);
  const auto training = data::make_dataset(options.data, data::Split::train);
  const auto validation = data::make_dataset(options.data, data::Split::validation);
  options.model = fit_model(options.model, *training);
  const int64_t predicted =
      predicted_bytes(options, *training, group, environment.local_world_size);
  torch::manual_seed(static_cast<uint64_t>(options.run.seed));
  const auto task = train::make_task(options);
  train::Trainer trainer(options, group, std::move(folder));
  trainer.expect_tensor_bytes(predicted);
  trainer.stop_on_signals(signals);
  const auto summary = trainer.fit(*task, *training, *validation);
  if (environment.rank == 0) print_summary(summary);
  if (environment.rank == 0 && trainer.stopped_by() == cluster::StopRequest::save_and_stop) {
    fmt::print("\nto go on: troika train {}/config.toml --trainer.ckpt_path=last\n",
               summary.run_folder);
  }
  return trainer.exit_code();
}

}  // namespace

Entry add_train(CLI::App& app) {
  auto* command = app.add_subcommand("train", "train a model as a configuration file says");
  struct Arguments : ConfigArguments {
    bool trace = false;
  };
  const auto arguments = std::make_shared<Arguments>();
  add_config_arguments(*command, *arguments);
  command->add_flag("--trace", arguments->trace,
                    "write a timeline of all ranks, as --trainer.trace=true");
  return {command, [command, arguments] {
            return run_configured("train", *arguments, command->remaining(), train_here, {},
                                  [&](train::TrainOptions& options) {
                                    if (arguments->trace) options.trainer.trace = true;
                                  });
          }};
}

}  // namespace troika::cli
