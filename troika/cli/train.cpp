#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>
#include <optional>

#include "troika/base/log.h"
#include "troika/cli/automatic_arguments.h"
#include "troika/cli/commands.h"
#include "troika/cli/configuration.h"
#include "troika/cli/elastic_batch.h"
#include "troika/cli/plan_file.h"
#include "troika/cli/session.h"
#include "troika/cli/training.h"
#include "troika/cluster/discovery/environment.h"
#include "troika/cluster/ranks/stop_signals.h"
#include "troika/cluster/slurm/commands.h"
#include "troika/compat/torch.h"
#include "troika/data/make_dataset.h"
#include "troika/train/engine/served_exchange.h"
#include "troika/train/memory/memory_check.h"
#include "troika/train/profile/automatic_plan.h"
#include "troika/train/profile/plan_report.h"
#include "troika/train/run/quorum_run.h"
#include "troika/train/run/swarm_run.h"
#include "troika/train/task/replicated_task.h"
#include "troika/train/trainer.h"
#include "troika/train/tuning/tuning.h"

namespace troika::cli {

namespace {

// Profiles, searches, and takes the plan that was found.
train::AutomaticPlan take_found_plan(train::TrainOptions& options, const data::Dataset& training,
                                     const comm::Group& group,
                                     const AutomaticArguments& arguments) {
  auto found = train::find_plan(options, training, group, options_of(arguments));
  options = train::with_found_plan(std::move(options), found, group);
  if (group.rank() == 0) {
    log::info("plan auto{}",
              describe(found, layout::Plan::parse(options.trainer.plan, "trainer.plan")));
  }
  return found;
}

}  // namespace

int train_here(train::TrainOptions options, const cluster::Environment& environment,
               const std::optional<AutomaticArguments>& find) {
  check_memory(options);
  require_elastic_batch(options, environment);
  const auto signals = std::make_shared<const cluster::StopSignals>(cluster::slurm::may_requeue(),
                                                                    /*has_state=*/false);
  const auto quorum = train::make_quorum_run(options, environment);
  const auto swarm = train::make_swarm_member(options, environment);
  if (swarm) train::take_swarm_options(options);
  const auto group = join(options, environment, /*is_alone=*/quorum || swarm);
  auto folder = quorum
                    ? quorum->claim(options)
                    : train::RunFolder::claim(options, group, /*goes_on_when_started_again=*/true);
  open_log("train", options, environment, group);
  const auto training = data::make_dataset(options.data, data::Split::train);
  const auto validation = data::make_dataset(options.data, data::Split::validation);
  options.model = fit_model(options, *training);
  std::optional<train::AutomaticPlan> automatic;
  if (find) automatic.emplace(take_found_plan(options, *training, group, *find));
  options.model = train::tuned_model(options, *training, group, train::run_folder(options));
  const auto memory = train::check_memory_of(options, *training, group);
  // No rank may allocate tensors before rank 0 has accepted them.
  group.barrier({.label = "memory check"});
  torch::manual_seed(static_cast<uint64_t>(options.run.seed));
  const auto task = train::make_task_to_fit(options);
  train::Trainer trainer(options, group, std::move(folder));
  trainer.take_part(quorum);
  trainer.take_part(swarm);
  trainer.expect_memory(memory);
  trainer.stop_on_signals(signals);
  signals->begin_saving();
  const auto summary = trainer.fit(*task, *training, *validation);
  if (automatic && group.rank() == 0) log::info("{}", compare(*automatic, summary));
  return trainer.exit_code();
}

Entry add_train(CLI::App& app) {
  auto* command = app.add_subcommand("train", "train the model of a configuration file");
  struct Arguments : ConfigArguments {
    bool trace = false;
    std::string plan;
    AutomaticArguments automatic;
  };
  const auto arguments = std::make_shared<Arguments>();
  add_config_arguments(*command, *arguments);
  command->add_flag("--trace", arguments->trace,
                    "write a timeline of all ranks; the same as --trainer.trace=true");
  command->add_option("--plan", arguments->plan,
                      "file of the plan to run, in the form that `troika plan` prints; auto: "
                      "measure the model, and run the fastest plan; docs/plan.md");
  add_automatic_options(*command, arguments->automatic,
                        "with --plan auto: memory of a rank, in bytes; default: its share of what "
                        "is available");
  add_cluster_option(*command, arguments->automatic);
  return {command, [command, arguments] {
            const auto overrides = command->remaining();
            std::optional<AutomaticArguments> find;
            std::vector<std::string> more;
            if (arguments->plan == kAutomaticPlan) {
              find = arguments->automatic;
              more = words_of(*find);
            } else {
              require_no_automatic_options(*command, /*allows_memory=*/false);
              require_no_cluster(arguments->automatic);
            }
            return run_configured(
                "train", *arguments, overrides,
                [find](train::TrainOptions options, const cluster::Environment& environment) {
                  return train_here(std::move(options), environment, find);
                },
                more,
                [&](train::TrainOptions& options) {
                  if (arguments->trace) options.trainer.trace = true;
                  if (find)
                    options =
                        train::with_searched_servers(std::move(options), options_of(*find).cluster);
                  if (arguments->plan.empty() || find) return;
                  take_plan(options, arguments->plan, overrides);
                });
          }};
}

}  // namespace troika::cli
