#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <filesystem>
#include <iostream>
#include <memory>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/log.h"
#include "troika/base/temporary_folder.h"
#include "troika/cli/bench/net.h"
#include "troika/cli/bench/plan.h"
#include "troika/cli/bench/ranks.h"
#include "troika/cli/bench/report.h"
#include "troika/cli/bench/start.h"
#include "troika/cli/commands.h"
#include "troika/cluster/discovery/environment.h"

namespace troika::cli {

namespace {

void add_words(CLI::App& command, bench::Words& words) {
  command
      .add_option("--operation", words.operation,
                  "all_reduce, reduce_scatter, all_gather or broadcast")
      ->capture_default_str();
  command.add_option(
      "--backends", words.backends,
      "back ends to measure; default: shm, tcp, gloo and mpi, as far as this build has them");
  command
      .add_option("--algorithms", words.algorithms,
                  "algorithms of all_reduce: auto, ring, recursive_doubling, ...")
      ->capture_default_str();
  command.add_option("--ranks", words.ranks, "numbers of processes")->capture_default_str();
  command.add_option("--sizes", words.sizes, "sizes of the whole tensor, in bytes")
      ->capture_default_str();
  command.add_option("--dtype", words.dtype, "float32, float64, float16, bfloat16, int32 or int64")
      ->capture_default_str();
  command.add_option("--min-time", words.min_time, "seconds of each measurement")
      ->capture_default_str();
  command
      .add_option("--buffers", words.buffers,
                  "shared: allocated by the group; ordinary: by LibTorch")
      ->capture_default_str();
  command.add_option("--against", words.against,
                     "other libraries to compare with: gloo, mpi; all_reduce of float32 only");
  command.add_flag("--zero-copy-limit", words.zero_copy_limit,
                   "also measure a lower bound of all-reduces in shared memory");
}

// Under another launcher, each rank would start a benchmark at the same time. Slurm's variables are
// no evidence, because a batch script that starts one process has them, too.
void require_no_launcher() {
  const auto environment = cluster::discover();
  if (environment.world_size == 1 || environment.launcher == "slurm") return;
  throw Error("bench", ErrorKind::usage,
              {.what = "troika bench starts its ranks itself",
               .got = cluster::describe(environment),
               .expected = "no launcher"});
}

int measure_collectives(const bench::Words& words, const std::string& json_file) {
  const bench::Plan plan = bench::make_plan(words);
  require_no_launcher();
  const TemporaryFolder folder;
  const auto rows_file = folder / "rows.json";
  std::vector<std::string> command{std::filesystem::read_symlink("/proc/self/exe").string(),
                                   "bench", "rank", "--rows=" + rows_file.string()};
  for (auto& argument : bench::arguments(words)) command.push_back(std::move(argument));
  std::vector<bench::Row> rows;
  std::cout << bench::titles() << std::flush;
  for (const int ranks : plan.ranks) {
    log::info("measuring {} on {} rank{}", words.operation, ranks, ranks == 1 ? "" : "s");
    const int code = bench::start_ranks(command, ranks, bench::needs_mpi(plan));
    if (code != 0) return code;
    for (auto& row : bench::from_text(read_file(rows_file))) rows.push_back(std::move(row));
  }
  const std::string ratios = bench::to_ratios(rows);
  if (!ratios.empty()) {
    std::cout << "\nhow many times the bus bandwidth of others shm and tcp have:\n" << ratios;
  }
  std::cout.flush();
  if (!json_file.empty()) write_file_atomically(json_file, bench::to_record(rows));
  return 0;
}

int measure_messages(const bench::NetWords& words, const std::string& json_file) {
  const bench::NetPlan plan = bench::make_net_plan(words);
  require_no_launcher();
  const auto rows = bench::measure_net(plan);
  std::cout << bench::to_table(rows) << std::flush;
  if (!json_file.empty()) write_file_atomically(json_file, bench::to_record(rows));
  return 0;
}

void add_words(CLI::App& command, bench::NetWords& words) {
  command.add_option("--operations", words.operations, "round_trip, exchange, messages, death")
      ->capture_default_str();
  command.add_option("--sizes", words.sizes, "sizes of a message, in bytes")->capture_default_str();
  command.add_option("--streams", words.streams, "numbers of sockets for long messages")
      ->capture_default_str();
  command.add_option("--protections", words.protections, "none, authenticated, encrypted")
      ->capture_default_str();
  command.add_option("--min-time", words.min_time, "seconds of each measurement")
      ->capture_default_str();
}

}  // namespace

Entry add_bench(CLI::App& app) {
  struct Given {
    bench::Words words;
    bench::NetWords net_words;
    std::string json_file;
    std::string rows_file;
  };
  const auto given = std::make_shared<Given>();
  auto* command = app.add_subcommand("bench", "measure collectives and messages on this machine");
  command->require_subcommand(1);

  auto* collectives = command->add_subcommand(
      "collectives",
      "time collectives on processes of this machine; lists are separated by commas");
  add_words(*collectives, given->words);
  collectives->add_option("--json", given->json_file,
                          "file to write the measurements to, for bench/compare");

  auto* net = command->add_subcommand(
      "net",
      "time messages between two processes of this machine, beside plain sockets; lists are "
      "separated by commas");
  add_words(*net, given->net_words);
  net->add_option("--json", given->json_file,
                  "file to write the measurements to, for bench/compare");

  // Ranks of `collectives` are started with this command; the empty group hides it from the help.
  auto* rank = command->add_subcommand("rank", "one rank of a benchmark")->group("");
  add_words(*rank, given->words);
  rank->add_option("--rows", given->rows_file)->required();

  return {command, [given, rank, net] {
            if (net->parsed()) return measure_messages(given->net_words, given->json_file);
            if (!rank->parsed()) return measure_collectives(given->words, given->json_file);
            bench::measure_as_rank(bench::make_plan(given->words), given->rows_file);
            return 0;
          }};
}

}  // namespace troika::cli
