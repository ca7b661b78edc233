#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <toml++/toml.h>
#include <filesystem>
#include <iostream>
#include <memory>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/log.h"
#include "troika/cli/commands.h"
#include "troika/cluster/slurm/commands.h"
#include "troika/cluster/slurm/script.h"
#include "troika/cluster/slurm/time_limit.h"
#include "troika/train/options/options.h"
#include "troika/train/options/resolve_plan.h"

namespace troika::cli {

namespace {

struct SlurmArguments {
  cluster::slurm::Job job;
  std::string site;
  std::string file;
  bool print_only = false;
  bool force = false;
};

// Returns the file of a site. A name without .toml is one of the tables installed with the program.
std::filesystem::path site_file(const std::string& site) {
  if (site.ends_with(".toml")) return site;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path() / TROIKA_SITES;
  const auto file = (folder / (site + ".toml")).lexically_normal();
  if (site.find('/') == std::string::npos && std::filesystem::exists(file)) return file;
  throw Error("slurm", ErrorKind::usage,
              {.what = "site",
               .got = site,
               .expected = fmt::format("a table in {} or the path of one, which ends in .toml",
                                       folder.lexically_normal().string())});
}

// Slurm reports nothing about an output file that it cannot open: the job ends at once, without a
// trace.
void check_output_folder(const cluster::slurm::Job& job) {
  const auto folder = std::filesystem::path(job.output).parent_path();
  if (folder.empty() || folder.string().find('%') != std::string::npos) return;
  if (std::filesystem::is_directory(folder)) return;
  throw Error("slurm", ErrorKind::usage,
              {.what = "folder of the job's output",
               .got = folder.string(),
               .expected = "a folder that is there"});
}

void check_count(const char* option, int64_t wanted, int got, const char* of_what,
                 const char* asks_for) {
  if (wanted == -1 || wanted == got) return;
  throw Error("slurm", ErrorKind::usage,
              {.what = fmt::format("{} and the job disagree", option),
               .got = fmt::format("{} = {}", option, wanted),
               .expected = fmt::format("{}, {}", got, of_what),
               .hint = fmt::format("{}{} asks for {}; -1 takes what the job has", asks_for, wanted,
                                   wanted)});
}

// Otherwise training would refuse a different number of ranks after the job has started.
void check_ranks(const cluster::slurm::Job& job, const std::string& configuration) {
  toml::table table;
  try {
    table = toml::parse(configuration);
  } catch (const toml::parse_error& problem) {
    throw Error("slurm", ErrorKind::failure,
                {.what = "answer of " + job.command.front() + " --check",
                 .got = std::string(problem.description()),
                 .expected = "a configuration in TOML"});
  }
  const auto trainer = table["trainer"];
  train::TrainOptions options;
  options.trainer.strategy = trainer["strategy"].value_or(options.trainer.strategy);
  options.trainer.plan = trainer["plan"].value_or(options.trainer.plan);
  check_count("trainer.num_nodes", trainer["num_nodes"].value_or<int64_t>(-1), job.nodes,
              "the nodes of the job", "-N ");
  if (train::trains_in_threads(options)) return;
  check_count("trainer.devices", trainer["devices"].value_or<int64_t>(-1), job.tasks_per_node,
              "the tasks that the job has on each node", "--tasks-per-node ");
}

std::string make(SlurmArguments& arguments, const AfterDashes& rest) {
  auto& job = arguments.job;
  if (rest) job.command = *rest;
  const auto site = arguments.site.empty() ? cluster::slurm::Site{}
                                           : cluster::slurm::load_site(site_file(arguments.site));
  std::string script = cluster::slurm::make_script(job, site);
  check_output_folder(job);
  check_ranks(cluster::slurm::complete(job, site), cluster::slurm::check_program(job));
  const auto* partition = cluster::slurm::find_partition(job, site);
  if (job.time.empty() && partition && partition->time_default.count() > 0) {
    log::warn("[slurm] no --time: {} ends the job after {}", partition->name,
              cluster::slurm::format_time(partition->time_default));
  }
  if (arguments.file.empty()) arguments.file = job.name + ".sbatch";
  return script;
}

// The script may have been edited by hand since it was written.
void write_script(const SlurmArguments& arguments, const std::string& script) {
  const auto& file = arguments.file;
  if (!arguments.force && std::filesystem::exists(file) && read_file(file) != script) {
    throw Error("slurm", ErrorKind::usage,
                {.what = "file of the script",
                 .got = file + ", which is there and says something else",
                 .expected = "a new file",
                 .hint = "-o or -J names another; --force replaces it"});
  }
  write_file_atomically(file, script);
}

int run_make(SlurmArguments& arguments, const AfterDashes& rest) {
  const std::string script = make(arguments, rest);
  if (arguments.print_only) {
    std::cout << script;
  } else {
    write_script(arguments, script);
    std::cout << arguments.file << '\n';
  }
  return 0;
}

int run_submit(SlurmArguments& arguments, const AfterDashes& rest) {
  const std::string script = make(arguments, rest);
  if (arguments.print_only) {
    std::cout << script;
    return 0;
  }
  write_script(arguments, script);
  std::cout << cluster::slurm::submit(arguments.file) << '\n';
  return 0;
}

void add_options(CLI::App& command, SlurmArguments& arguments) {
  auto& job = arguments.job;
  command.add_option("--site", arguments.site,
                     "table to check against: jean-zay, or a FILE.toml of your own");
  command.add_option("-J,--job-name", job.name, "name of the job")->capture_default_str();
  command.add_option("-N,--nodes", job.nodes, "number of machines")->capture_default_str();
  command.add_option("-g,--gpus-per-node", job.gpus_per_node, "GPUs of each node; 0: none")
      ->capture_default_str();
  command.add_option("--tasks-per-node", job.tasks_per_node,
                     "ranks on each node; default: one for each GPU");
  command.add_option("-c,--cpus-per-task", job.cpus_per_task,
                     "cores of each rank; default: the cores of a node divided by its ranks");
  command.add_option(
      "-p,--partition", job.partition,
      "kind of nodes, by its name in the site's table; default: the one with the constraint");
  command.add_option("-C,--constraint", job.constraint, "feature that the nodes must have");
  command.add_option("-A,--account", job.account, "account that pays for the job");
  command.add_option("-q,--qos", job.qos, "quality of service, with limits of its own");
  command.add_option("-t,--time", job.time, "HH:MM:SS, D-HH:MM:SS or minutes");
  command.add_option("--mem", job.memory, "memory of a node, if the site supports it");
  command.add_flag("--exclusive", job.exclusive, "whole nodes, without other jobs on them");
  command.add_option("-d,--dependency", job.dependency,
                     "jobs to wait for, for example afterok:4711");
  command.add_option("--reservation", job.reservation, "resources that were set aside for you");
  command
      .add_option(
          "--sbatch", job.sbatch,
          "more options of sbatch, for example --sbatch \"--mail-type=END --mail-user=me\"; may be "
          "repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command.add_option("-a,--array", job.array, "indices, for example 0-9, 1,3,7 or 0-99%4");
  command.add_option("--output", job.output, "file of the job's output, with sbatch's %x, %j, ...");
  command
      .add_option("--signal-lead", job.signal_lead,
                  "seconds before the time limit at which ranks are told to save; 0: never")
      ->capture_default_str();
  command.add_flag("!--no-requeue", job.requeue, "the job does not go back into the queue");
  command.add_option("-m,--module", job.modules, "module to load; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command
      .add_option("-e,--env", job.environment, "variable to set, as NAME=value; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command.add_option("-o,--script", arguments.file,
                     "file of the script; default: the job's name and .sbatch");
  command.add_flag("--force", arguments.force, "replace a file with other contents");
  command.footer("-- and the program with its arguments follow the options.");
}

}  // namespace

Entry add_slurm(CLI::App& app, const AfterDashes& rest) {
  auto* command = app.add_subcommand("slurm", "write a job script for Slurm, or submit it");
  command->require_subcommand(1);
  const auto arguments = std::make_shared<SlurmArguments>();
  auto* make = command->add_subcommand("make", "write the script and print its name");
  add_options(*make, *arguments);
  make->add_flag("--print", arguments->print_only, "print the script instead of writing it");
  auto* submit =
      command->add_subcommand("submit", "write the script, submit it, and print the job's id");
  add_options(*submit, *arguments);
  submit->add_flag("--dry-run", arguments->print_only, "print the script instead of submitting it");
  return {command, [make, arguments, rest] {
            return make->parsed() ? run_make(*arguments, rest) : run_submit(*arguments, rest);
          }};
}

}  // namespace troika::cli
