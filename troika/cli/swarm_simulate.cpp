// `troika swarm simulate`: many peers in one process.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "troika/base/file.h"
#include "troika/base/text.h"
#include "troika/cli/refuse_argument.h"
#include "troika/cli/swarm_commands.h"
#include "troika/swarm/simulation/simulation.h"

namespace troika::cli {

namespace {

constexpr double kMegabit = 125e3;  // bytes
constexpr const char* kCommand = "swarm simulate";
constexpr const char* kKindForm =
    "SHARE:UP:DOWN:LATENCY:SPEED[:client|:auxiliary]: a share, Mbit/s, Mbit/s, milliseconds and "
    "samples per second";

swarm::PeerKind kind_from(const std::string& text) {
  const auto refuse = [&] { refuse_argument(kCommand, "--kind", text, kKindForm); };
  auto parts = split(text, ':');
  swarm::PeerKind kind{.name = text};
  if (parts.size() == 6) {
    if (parts.back() != "client" && parts.back() != "auxiliary") refuse();
    kind.mode = parts.back() == "client" ? swarm::Mode::client : swarm::Mode::auxiliary;
    parts.pop_back();
  }
  if (parts.size() != 5) refuse();
  std::array<double, 5> numbers{};
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto number = parse_double(parts[i]);
    if (!number) refuse();
    numbers[i] = *number;
  }
  kind.share = numbers[0];
  kind.up = numbers[1] * kMegabit;
  kind.down = numbers[2] * kMegabit;
  kind.latency = numbers[3] / 1e3;
  kind.speed = numbers[4];
  return kind;
}

nlohmann::ordered_json as_json(const swarm::SimulationReport& report) {
  auto peers = nlohmann::ordered_json::array();
  for (const auto& peer : report.peers) {
    peers.push_back({{"kind", peer.kind},
                     {"lie", swarm::name_of(peer.lie)},
                     {"seconds", peer.seconds},
                     {"is_there", peer.is_there},
                     {"steps", peer.steps},
                     {"downloads", peer.downloads},
                     {"computed", peer.computed},
                     {"contributed", peer.contributed},
                     {"sent", peer.sent},
                     {"received", peer.received}});
  }
  return {{"seconds", report.seconds},
          {"steps", report.steps},
          {"longest_step", report.longest_step},
          {"samples", report.samples},
          {"computed", report.computed},
          {"averages", report.averages},
          {"whole", report.whole},
          {"alone", report.alone},
          {"first_loss", report.first_loss},
          {"last_loss", report.last_loss},
          {"events", report.events},
          {"peers", peers}};
}

struct KindSum {
  int peers = 0;
  double seconds = 0, bytes = 0, contributed = 0;
};

void print(const swarm::SimulationReport& report, const std::vector<swarm::PeerKind>& kinds) {
  const auto percent = [](double part, double whole) { return whole > 0 ? 100 * part / whole : 0; };
  const auto there = std::ranges::count(report.peers, true, &swarm::SimulatedPeerReport::is_there);
  fmt::print("peers       {} in all, {} at the end\n", report.peers.size(), there);
  fmt::print("steps       {} in {:.0f} s\n", report.steps, report.seconds);
  if (report.steps > 0) {
    fmt::print("step        {:.2f} s in the mean, {:.2f} s at most\n",
               report.seconds / static_cast<double>(report.steps), report.longest_step);
  }
  fmt::print("samples     {:.1f} a second\n", report.samples / report.seconds);
  fmt::print("goodput     {:.1f} % of the samples that were computed\n",
             percent(report.samples, report.computed));
  fmt::print("averages    {:.2f} % whole, {:.2f} % alone\n",
             percent(static_cast<double>(report.whole), static_cast<double>(report.averages)),
             percent(static_cast<double>(report.alone), static_cast<double>(report.averages)));
  fmt::print("loss        {:.4g}, from {:.4g}\n\n", report.last_loss, report.first_loss);
  fmt::print("{:<28} {:>6} {:>10} {:>14} {:>7}\n", "kind", "peers", "hours", "MB each hour",
             "share");
  double all = 0;
  for (const auto& peer : report.peers) all += static_cast<double>(peer.contributed);
  for (const auto& kind : kinds) {
    KindSum sum;
    for (const auto& peer : report.peers) {
      if (peer.kind != kind.name) continue;
      ++sum.peers;
      sum.seconds += peer.seconds;
      sum.bytes += static_cast<double>(peer.sent + peer.received);
      sum.contributed += static_cast<double>(peer.contributed);
    }
    const double hours = sum.seconds / 3600;
    fmt::print("{:<28} {:>6} {:>10.2f} {:>14.1f} {:>5.1f} %\n", kind.name, sum.peers, hours,
               hours > 0 ? sum.bytes / 1e6 / hours : 0, percent(sum.contributed, all));
  }
}

}  // namespace

int run_swarm_simulation(const SwarmSimulationArguments& arguments) {
  swarm::Scenario scenario{
      .peers = arguments.peers,
      .seconds = arguments.hours * 3600,
      .seed = arguments.seed,
      .kinds = {},
      .churn = {.joins = arguments.joins, .kills = arguments.kills, .stops = arguments.stops},
      .liars = arguments.liars,
      .aggregation = arguments.aggregation == "mean" ? swarm::Aggregation::mean
                                                     : swarm::Aggregation::centred_clip,
      .group_size = arguments.group_size,
      .target_batch = arguments.target_batch,
      .batch = arguments.batch,
      .numbers = arguments.numbers,
      .bytes_per_number = arguments.bytes_per_number,
      .carried = std::min<size_t>(arguments.carried, arguments.numbers)};
  for (const auto& kind : arguments.kinds) scenario.kinds.push_back(kind_from(kind));
  for (const auto& lie : arguments.lies) scenario.lies.push_back(swarm::lie_from(lie));
  const auto report = swarm::simulate(scenario);
  print(report, scenario.kinds);
  if (!arguments.json.empty()) {
    write_file_atomically(arguments.json, as_json(report).dump(2) + "\n");
  }
  return 0;
}

}  // namespace troika::cli
