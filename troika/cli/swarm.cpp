// `troika swarm`: collaborative training (docs/swarm.md).
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>

#include "troika/base/error.h"
#include "troika/cli/commands.h"
#include "troika/cli/session.h"
#include "troika/cli/swarm_commands.h"
#include "troika/cli/training.h"
#include "troika/train/options/resolve_plan.h"

namespace troika::cli {

namespace {

struct PeerArguments : ConfigArguments {
  std::vector<std::string> peers;
  bool is_auxiliary = false;
};

Command add_peer(CLI::App& command, bool joins) {
  const auto arguments = std::make_shared<PeerArguments>();
  add_config_arguments(command, *arguments);
  if (joins) {
    command
        .add_option("--peer", arguments->peers,
                    "HOST:PORT of a peer of the swarm, as `troika swarm start` prints it; may be "
                    "given several times")
        ->required();
    command.add_flag("--auxiliary", arguments->is_auxiliary,
                     "train nothing, and reduce for the others; the same as "
                     "--swarm.mode=auxiliary");
  }
  return [&command, arguments] {
    return run_configured(
        "train", *arguments, command.remaining(),
        [](const train::TrainOptions& options, const cluster::Environment& environment) {
          return train_here(options, environment);
        },
        {},
        [&](train::TrainOptions& options) {
          options = train::with_strategy(std::move(options), train::kSwarmStrategy);
          auto& peers = options.swarm.peers;
          peers.insert(peers.end(), arguments->peers.begin(), arguments->peers.end());
          if (arguments->is_auxiliary) options.swarm.mode = "auxiliary";
        });
  };
}

Command add_authority(CLI::App& command) {
  const auto arguments = std::make_shared<AuthorityArguments>();
  command
      .add_option("--key", arguments->key,
                  "file of the authority's secret key (mode 0600), which is made if it does not "
                  "exist")
      ->required();
  command
      .add_option("--list", arguments->list,
                  "file of the peers that it admits: on each line the public key of a peer, a "
                  "blank, and the user's name; read again when it changes")
      ->required();
  command.add_option("--listen", arguments->listen, "HOST:PORT at which it listens")
      ->capture_default_str();
  command.add_option("--run", arguments->run, "name of the run: swarm.run of the peers")
      ->capture_default_str();
  command
      .add_option("--lifetime", arguments->lifetime_seconds,
                  "seconds until a token expires; peers renew theirs before")
      ->capture_default_str();
  return [arguments] { return run_authority(*arguments); };
}

Command add_monitor(CLI::App& command) {
  const auto arguments = std::make_shared<MonitorArguments>();
  command
      .add_option("--peer", arguments->peers,
                  "HOST:PORT of a peer of the swarm; may be given several times")
      ->required();
  command.add_option("--run", arguments->run, "name of the run: swarm.run of the peers")
      ->capture_default_str();
  auto* once = command.add_flag("--once", arguments->once, "print the page once and stop");
  auto* json = command.add_flag("--json", arguments->json, "print JSON, one line for each page");
  command
      .add_option("--http", arguments->http,
                  "HOST:PORT at which it serves the page to browsers instead, HOST a numeric "
                  "address of this machine, PORT 0 for any free port")
      ->excludes(once)
      ->excludes(json);
  command.add_option("--timeout", arguments->timeout_seconds, "seconds to wait for an answer")
      ->capture_default_str();
  return [arguments] { return run_monitor(*arguments); };
}

Command add_simulation(CLI::App& command) {
  const auto arguments = std::make_shared<SwarmSimulationArguments>();
  const auto add = [&](const char* name, auto& value, const char* meaning) {
    return command.add_option(name, value, meaning)->capture_default_str();
  };
  add("--peers", arguments->peers, "peers at the beginning");
  add("--hours", arguments->hours, "simulated hours");
  add("--seed", arguments->seed, "the same seed gives the same run");
  add("--kind", arguments->kinds,
      "SHARE:UP:DOWN:LATENCY:SPEED, and :client or :auxiliary: a kind of peers; its share of them, "
      "Mbit/s each way, milliseconds into the network, and samples per second; may be given "
      "several "
      "times");
  add("--joins", arguments->joins, "peers that join in an hour, in the mean");
  add("--kills", arguments->kills, "peers whose connections end in an hour");
  add("--stops", arguments->stops, "peers that fall silent in an hour");
  add("--liars", arguments->liars, "share of peers that lie about their gradients");
  add("--lie", arguments->lies,
      "sign_flip, scaled, constant, delayed, not_a_number or colluding; may be given several "
      "times");
  add("--aggregation", arguments->aggregation, "swarm.aggregation of the peers")
      ->check(CLI::IsMember({"mean", "centred_clip"}));
  add("--group-size", arguments->group_size,
      "peers of a group, about, in two rounds of groups for each step; 0: one group of all");
  add("--target-batch", arguments->target_batch, "samples of a step");
  add("--batch", arguments->batch, "samples that a peer computes at a time");
  add("--numbers", arguments->numbers, "parameters of the model");
  add("--bytes-per-number", arguments->bytes_per_number, "bytes of a parameter in averagings");
  add("--carried", arguments->carried,
      "parameters that are computed, which stand for all; fewer are faster");
  command.add_option("--json", arguments->json, "file for all numbers, of each peer too");
  return [arguments] { return run_swarm_simulation(*arguments); };
}

}  // namespace

Entry add_swarm(CLI::App& app) {
  auto* command = app.add_subcommand("swarm", "train one model with peers that come and go");
  command->require_subcommand(1);
  const auto commands = std::make_shared<std::vector<Entry>>();
  const auto add = [&](const char* name, const char* meaning, const auto& declare) {
    auto* inner = command->add_subcommand(name, meaning);
    commands->push_back({inner, declare(*inner)});
  };
  add("start", "train as the first peer of a swarm, and print the address for others",
      [](CLI::App& inner) { return add_peer(inner, /*joins=*/false); });
  add("join", "train as a peer of a swarm that others have started",
      [](CLI::App& inner) { return add_peer(inner, /*joins=*/true); });
  add("authority", "admit peers: give tokens to those on a list", add_authority);
  add("monitor", "show the peers of a swarm, their steps, and who contributes what", add_monitor);
  add("simulate", "simulate a swarm: its peers, their links, churn and liars", add_simulation);
  return {command, [commands] {
            for (const auto& entry : *commands) {
              if (entry.app->parsed()) return entry.run();
            }
            TROIKA_CHECK(false, "a command within swarm");
          }};
}

}  // namespace troika::cli
