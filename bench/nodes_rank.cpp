// One rank of bench/nodes, of several nodes that are all this machine: measures calls over shared
// memory inside the nodes and messages between them, over messages only, and in the group of one
// node's ranks.
//
// nodes_rank ROUNDS, with the variables of torchrun. Rank 0 prints JSON: for each call and group,
// the microseconds of each round: the mean over the round's calls, on the slowest rank.
#include <ATen/ATen.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/cluster/discovery/environment.h"
#include "troika/cluster/discovery/port.h"
#include "troika/comm/world/world.h"

namespace {

using troika::comm::Group;

constexpr double kSecondsEachRound = 0.1;

struct Size {
  const char* name;
  int64_t bytes;
};
constexpr Size kSizes[] = {
    {"4 B", 4}, {"1 KiB", 1 << 10}, {"64 KiB", 64 << 10}, {"4 MiB", 4 << 20}};

struct Measurement {
  std::string group, call;
  std::function<void()> run;  // empty on ranks that take no part
  int64_t calls = 0;          // in a round, the same on all ranks
  std::vector<double> microseconds = {};
};

// Returns the microseconds of a call on the slowest rank. Ranks outside the measured group sleep in
// a call of `world`.
double time_calls(const Group& world, const Measurement& what, int64_t calls) {
  world.barrier();
  const troika::Stopwatch watch;
  for (int64_t i = 0; what.run && i < calls; ++i) what.run();
  const auto seconds = at::full({1}, what.run ? watch.seconds() : 0, at::kDouble);
  world.all_reduce(seconds, troika::comm::ReduceOp::max).wait();
  return seconds.item<double>() * 1e6 / static_cast<double>(calls);
}

// Returns the number of calls that take the time of a round.
int64_t calls_a_round(const Group& world, const Measurement& what) {
  constexpr int64_t kFirst = 20;
  return 1 + static_cast<int64_t>(kSecondsEachRound * 1e6 / time_calls(world, what, kFirst));
}

void add_calls(std::vector<Measurement>& all, const std::string& name, const Group& group,
               bool takes_part) {
  const auto add = [&](const std::string& call, std::function<void()> run) {
    all.push_back({name, call, takes_part ? std::move(run) : nullptr});
  };
  add("barrier", [&group] { group.barrier(); });
  for (const Size& size : kSizes) {
    const auto tensor =
        group.allocate({size.bytes / static_cast<int64_t>(sizeof(float))}, at::kFloat).zero_();
    add(std::string("all_reduce ") + size.name,
        [&group, tensor] { group.all_reduce(tensor).wait(); });
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) return 2;
  auto environment = troika::cluster::discover();
  const auto levels = troika::comm::world(environment, {});
  // A world's port is in use as long as the world exists.
  environment.master_port = std::stoi(levels.broadcast_text(
      levels.rank() == 0 ? std::to_string(troika::cluster::free_port()) : "", 0, "port"));
  const auto messages = troika::comm::world(environment, {.backend = "tcp"});
  const auto node = levels.split(environment.node_rank).value();
  std::vector<Measurement> all;
  add_calls(all, "levels", levels, true);
  add_calls(all, "messages", messages, true);
  add_calls(all, "one node", node, environment.node_rank == 0);
  for (auto& each : all) each.calls = calls_a_round(messages, each);
  for (int round = 0; round < std::atoi(argv[1]); ++round) {
    for (auto& each : all) each.microseconds.push_back(time_calls(messages, each, each.calls));
  }
  if (environment.rank != 0) return 0;
  nlohmann::json result;
  for (const auto& each : all) result[each.call][each.group] = each.microseconds;
  std::cout << result.dump() << "\n";
  return 0;
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << "\n";
  return troika::exit_code(error);
}
