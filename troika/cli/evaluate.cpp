// `troika validate`, `troika test` and `troika predict`.
#include <fmt/format.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <cmath>
#include <memory>

#include "troika/base/error.h"
#include "troika/checkpoint/safetensors.h"
#include "troika/cli/commands.h"
#include "troika/cli/configuration.h"
#include "troika/cli/session.h"
#include "troika/compat/torch.h"
#include "troika/data/make_dataset.h"
#include "troika/train/task/replicated_task.h"
#include "troika/train/trainer.h"

namespace troika::cli {

namespace {

// Uses the trainer, the task and the held-out samples.
using Work = std::function<void(train::Trainer&, train::Task&, const data::Dataset&,
                                const std::string& ckpt, const comm::Group&)>;

WorkHere work_here(train::RunMode mode, const Work& work) {
  return [mode, name = std::string(train::run_mode_name(mode)), work](
             train::TrainOptions options, const cluster::Environment& environment) {
    const auto group = join(options, environment);
    open_log(name, options, environment, group);
    const auto dataset = data::make_dataset(options.data, data::Split::validation);
    // The sizes of the weights that are judged, which may be all that is left of the run.
    if (options.weights.sizes) {
      options.weights.path =
          train::checkpoint_to_judge(mode, train::run_folder(options), ckpt_to_judge(options));
    }
    options.model = fit_model(options, *dataset);
    torch::manual_seed(static_cast<uint64_t>(options.run.seed));
    const auto task = train::make_task(options);
    options.trainer.enable_model_summary = false;  // results go to standard output instead
    train::Trainer trainer(options, group);
    work(trainer, *task, *dataset, ckpt_to_judge(options), group);
    return 0;
  };
}

void print(const comm::Group& group, const observe::MetricValues& metrics) {
  if (group.rank() != 0) return;
  const bool is_read = ::isatty(STDOUT_FILENO) != 0;
  for (const auto& [name, number] : metrics) {
    const double value = std::isnan(number) ? NAN : number;  // without the sign that a NaN may have
    is_read ? fmt::print("{} {:.6g}\n", name, value) : fmt::print("{} {}\n", name, value);
  }
}

Entry add(CLI::App& app, train::RunMode mode, const std::string& what, const Work& work) {
  const std::string name = train::run_mode_name(mode);
  auto* command = app.add_subcommand(name, what);
  const auto arguments = std::make_shared<ConfigArguments>();
  arguments->mode = mode;
  add_config_arguments(*command, *arguments);
  return {command, [=] {
            return run_configured(name, *arguments, command->remaining(), work_here(mode, work));
          }};
}

void predict(train::Trainer& trainer, train::Task& task, const data::Dataset& dataset,
             const std::string& ckpt, const comm::Group& group, const std::string& output) {
  checkpoint::require_replaceable(output);
  const auto predictions = train::gather_predictions(group, trainer.predict(task, dataset, ckpt));
  if (group.rank() != 0) return;
  if (!predictions.defined()) {
    throw Error("predict", ErrorKind::usage,
                {.what = "there is nothing to write to " + output,
                 .got = "no predictions",
                 .expected = "trainer.limit_predict_batches of at least one batch"});
  }
  checkpoint::save_safetensors(output, {{"predictions", predictions}});
  fmt::print("{} predictions: {}\n", predictions.size(0), output);
}

}  // namespace

Entry add_validate(CLI::App& app) {
  return add(app, train::RunMode::validate, "judge a checkpoint on the validation data",
             [](auto& trainer, auto& task, const auto& dataset, const auto& ckpt,
                const auto& group) { print(group, trainer.validate(task, dataset, ckpt)); });
}

Entry add_test(CLI::App& app) {
  return add(app, train::RunMode::test, "judge a checkpoint on the test data",
             [](auto& trainer, auto& task, const auto& dataset, const auto& ckpt,
                const auto& group) { print(group, trainer.test(task, dataset, ckpt)); });
}

Entry add_predict(CLI::App& app) {
  auto* command = app.add_subcommand("predict", "write a model's predictions for a data set");
  struct Arguments : ConfigArguments {
    std::string output;
  };
  const auto arguments = std::make_shared<Arguments>();
  arguments->mode = train::RunMode::predict;
  add_config_arguments(*command, *arguments);
  command->add_option("--output", arguments->output, "safetensors file with `predictions`")
      ->required();
  return {command, [=] {
            const auto& output = arguments->output;
            const auto work = work_here(
                arguments->mode,
                [&](auto& trainer, auto& task, const auto& dataset, const auto& ckpt,
                    const auto& group) { predict(trainer, task, dataset, ckpt, group, output); });
            return run_configured("predict", *arguments, command->remaining(), work,
                                  {"--output", output});
          }};
}

}  // namespace troika::cli
