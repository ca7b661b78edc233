#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <thread>

#include "troika/base/error.h"
#include "troika/base/exit_code.h"
#include "troika/base/file.h"
#include "troika/base/log.h"
#include "troika/base/text.h"
#include "troika/cli/commands.h"
#include "troika/cli/configuration.h"
#include "troika/cli/elastic_batch.h"
#include "troika/cluster/environment.h"
#include "troika/cluster/launcher.h"
#include "troika/cluster/slurm/commands.h"
#include "troika/cluster/stop_signals.h"
#include "troika/comm/world.h"
#include "troika/compat/tensor_memory.h"
#include "troika/compat/torch.h"
#include "troika/train/memory/prediction.h"
#include "troika/train/strategy.h"
#include "troika/train/trainer.h"

namespace troika::cli {

namespace {

struct Arguments {
  std::string file;
  bool print_config = false;
  bool describe_config = false;
  bool trace = false;
  std::optional<double> shutdown_seconds;  // of processes that this one starts
};

std::filesystem::path run_folder(const train::TrainOptions& options) {
  return std::filesystem::path(options.run.folder) / options.run.name;
}

std::filesystem::path log_folder(const train::TrainOptions& options) {
  return run_folder(options) / "logs";
}

// Starts this program once per device on the resolved configuration, which unlike CONFIG can be
// read many times and does not change meanwhile, and watches over the processes.
int launch_self(const train::TrainOptions& options, const config::Table& table,
                std::optional<double> shutdown_seconds) {
  const auto config = run_folder(options) / "config.toml";
  write_file_atomically(config, table.to_toml());
  cluster::LaunchOptions launch;
  launch.processes =
      static_cast<int>(std::min<int64_t>(options.trainer.devices, std::numeric_limits<int>::max()));
  launch.command = {std::filesystem::read_symlink("/proc/self/exe").string(), "train",
                    std::filesystem::absolute(config).string()};
  launch.log_dir = log_folder(options);
  if (shutdown_seconds) {
    launch.shutdown_timeout = to_timeout("shutdown timeout", *shutdown_seconds);
  }
  return cluster::launch(launch);
}

void check_devices(const train::TrainOptions& options, const cluster::Environment& environment) {
  const int64_t devices = options.trainer.devices;
  if (devices == -1 || devices == environment.local_world_size) return;
  if (train::in_one_process(options)) return;
  throw Error("train", ErrorKind::usage,
              {.what = "trainer.devices and the launcher disagree",
               .got = fmt::format("devices = {}", devices),
               .expected = fmt::format("{}, the processes that {} started on this machine",
                                       environment.local_world_size, environment.launcher),
               .hint = "leave trainer.devices at -1 under a launcher"});
}

void set_threads(const train::TrainOptions& options, const cluster::Environment& environment) {
  int64_t threads = options.trainer.threads;
  if (threads == 0 && std::getenv("OMP_NUM_THREADS")) return;
  if (threads == 0) {
    threads =
        std::max<int64_t>(1, std::thread::hardware_concurrency() / environment.local_world_size);
  }
  at::set_num_threads(static_cast<int>(threads));
}

// A launcher of ours already keeps this process's output in the run's folder.
bool output_is_kept(const std::filesystem::path& folder) {
  const char* error_file = std::getenv("TROIKA_ERROR_FILE");
  std::error_code none;
  return error_file &&
         std::filesystem::equivalent(std::filesystem::path(error_file).parent_path(), folder, none);
}

void open_log(const train::TrainOptions& options, const cluster::Environment& environment) {
  if (environment.world_size > 1) log::set_prefix(fmt::format("rank {}", environment.rank));
  const auto folder = log_folder(options);
  if (!output_is_kept(folder)) {
    log::also_to_file(folder / fmt::format("rank-{}.log", environment.rank));
  }
}

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

void print_summary(const train::RunSummary& summary) {
  fmt::print(
      "\n{} {}: {} steps on {} process{} in {}\n"
      "  train loss           {:.4f}\n"
      "  validation loss      {:.4f}\n"
      "  validation accuracy  {:.2f} %\n"
      "  throughput           {:.1f} samples/s, median step {:.1f} ms\n"
      "  peak memory          {}\n"
      "  checkpoint           {}\n"
      "  metrics and logs     {}\n",
      summary.name, summary.status, summary.steps, summary.world_size,
      summary.world_size == 1 ? "" : "es", human_seconds(summary.seconds), summary.train_loss,
      summary.validation_loss, 100 * summary.validation_accuracy, summary.samples_per_second,
      summary.median_step_milliseconds, peak_memory(summary), summary.checkpoint,
      summary.run_folder);
}

// Of the run's peak, on rank 0; 0 where that is not predicted. Before the run's own tensors are
// made and random numbers are drawn: it leaves no trace in either.
int64_t predicted_bytes(const train::TrainOptions& options, const data::Dataset& dataset,
                        const comm::Group& group) {
  if (group.rank() != 0) return 0;
  train::MemoryPredictor predictor(options, dataset);
  const auto choice = predictor.configured(group.size());
  if (!predictor.why_not(choice).empty()) return 0;
  return static_cast<int64_t>(predictor.predict(choice).peak());
}

Milliseconds milliseconds(double seconds) {
  return Milliseconds(static_cast<int64_t>(seconds * 1e3));
}

// Rank 0 alone puts the job back, when all have saved.
int end(cluster::StopRequest asked, const cluster::Environment& environment) {
  using cluster::StopRequest;
  if (asked == StopRequest::none) return static_cast<int>(ExitCode::done);
  if (asked == StopRequest::save_and_stop) return static_cast<int>(ExitCode::stopped);
  if (environment.rank == 0) {
    log::info("job {} is in the queue again", cluster::slurm::requeue());
  }
  return static_cast<int>(ExitCode::requeued);
}

// By Slurm, which had put the job into the queue again, or by torchrun or troika launch, in whose
// elastic runs not every round is a restart.
bool started_again() {
  const auto is_positive = [](const char* name) {
    return cluster::process_variable(name).value_or("0") != "0";
  };
  return std::getenv("SLURM_RESTART_COUNT") || is_positive("TORCHELASTIC_RESTART_COUNT") ||
         is_positive("TROIKA_ROUND");
}

int train_here(train::TrainOptions options, const cluster::Environment& environment) {
  // Whatever fails from here on, an earlier run of this name must not speak for this one.
  if (environment.rank == 0) std::filesystem::remove(run_folder(options) / "summary.json");
  compat::count_tensor_memory();
  check_devices(options, environment);
  require_elastic_batch(options, environment);
  set_threads(options, environment);
  open_log(options, environment);
  const cluster::StopSignals signals(cluster::slurm::may_requeue());
  if (started_again() && std::filesystem::exists(run_folder(options) / "checkpoints/last")) {
    options.trainer.ckpt_path = "last";
  }
  const auto& comm = options.comm;
  const auto group =
      comm::world(environment, {.backend = comm.backend,
                                .join_timeout = milliseconds(comm.join_timeout_seconds),
                                .group = {.timeout = milliseconds(comm.timeout_seconds),
                                          .stall_warning = milliseconds(comm.stall_warning_seconds),
                                          .algorithm = comm::algorithm_from(comm.algorithm),
                                          .flight_record = run_folder(options) / "flight-record"}});
  log::info("{}, back end {}", cluster::describe(environment), group.backend());

  const auto training = data::make_dataset(options.data, data::Split::train);
  const auto validation = data::make_dataset(options.data, data::Split::validation);
  options.model = fit_model(options.model, *training);
  const int64_t predicted = predicted_bytes(options, *training, group);
  torch::manual_seed(static_cast<uint64_t>(options.run.seed));
  const auto task = train::make_task(options);
  train::Trainer trainer(options, group);
  trainer.expect_tensor_bytes(predicted);
  trainer.ask_to_stop([&] { return signals.asked(); });
  const auto summary = trainer.fit(*task, *training, *validation);
  if (environment.rank == 0) print_summary(summary);
  return end(trainer.stopped_by(), environment);
}

int run(const Arguments& arguments, const std::vector<std::string>& overrides) {
  train::TrainOptions options;
  auto table = train::make_table(options);
  if (arguments.describe_config) {
    std::cout << table.to_markdown();
    return 0;
  }
  read_configuration(table, arguments.file, overrides);
  if (arguments.trace) options.trainer.trace = true;
  if (arguments.print_config) {
    std::cout << table.to_toml();
    return 0;
  }
  const auto environment = cluster::discover();
  if (environment.launcher == "none" && options.trainer.devices > 1 &&
      !train::in_one_process(options)) {
    return launch_self(options, table, arguments.shutdown_seconds);
  }
  if (arguments.shutdown_seconds) {
    throw Error("train", ErrorKind::usage,
                {.what = "--shutdown-timeout without processes to wait for",
                 .got = fmt::format("trainer.devices = {} and launcher {}", options.trainer.devices,
                                    environment.launcher),
                 .expected = "trainer.devices > 1 and no launcher",
                 .hint = "troika launch and Slurm have their own"});
  }
  return train_here(options, environment);
}

}  // namespace

Entry add_train(CLI::App& app) {
  auto* command = app.add_subcommand("train", "train a model as a configuration file says");
  const auto arguments = std::make_shared<Arguments>();
  command->add_option("CONFIG", arguments->file, "TOML file; without one, the defaults");
  command->add_flag("--trace", arguments->trace,
                    "write a timeline of all ranks, as --trainer.trace=true");
  command->add_option("--shutdown-timeout", arguments->shutdown_seconds,
                      "with trainer.devices > 1: seconds from SIGTERM to SIGKILL, 5 unless told");
  command->add_flag("--print-config", arguments->print_config,
                    "print the resolved configuration and stop");
  command->add_flag("--describe-config", arguments->describe_config,
                    "print all options with their defaults and meanings, and stop");
  command->allow_extras();
  command->footer("Any option of CONFIG may follow as --section.name=value.");
  return {command, [command, arguments] { return run(*arguments, command->remaining()); }};
}

}  // namespace troika::cli
