#include "troika/cluster/ranks/rank_environment.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <random>
#include <thread>

#include "troika/cluster/discovery/environment.h"
#include "troika/cluster/discovery/listen.h"
#include "troika/cluster/discovery/port.h"

namespace troika::cluster {

std::string unique_run_id() {
  return fmt::format("troika-{}-{:08x}", ::getpid(), std::random_device()());
}

LaunchPlace decide_place(const LaunchOptions& options) {
  const bool alone = options.num_nodes == 1;
  const std::string address = options.master_address;
  const int port = options.master_port;
  LaunchPlace place{.address = address.empty() ? std::string("127.0.0.1") : address,
                    .port = port != 0 ? port : (alone ? free_port() : kDefaultPort),
                    .run_id = {},
                    .node_rank = options.node_rank,
                    .num_nodes = options.num_nodes};
  // With several nodes, all must derive the same id. On one machine it may be unique.
  place.run_id = alone ? unique_run_id() : fmt::format("troika-{}-{}", place.address, place.port);
  return place;
}

LaunchPlace next_place(const LaunchOptions& options, LaunchPlace place) {
  ++place.round;
  ++place.restarts;
  if (options.master_port == 0) place.port = free_port();
  return place;
}

RunSecret secret_of_launch(const LaunchOptions& options) {
  if (options.elastic) return find_secret("launches");
  if (options.num_nodes == 1) return {net::Secret::random(), "troika launch"};
  return find_secret(decide_place(options).run_id);
}

net::Secret secret_of_round(const net::Secret& launch, const LaunchPlace& place) {
  return launch.derive("ranks", fmt::format("{} {}", place.round, place.run_id));
}

std::vector<std::string> rank_environment(const LaunchOptions& options, const LaunchPlace& place,
                                          const net::Secret& secret, int local_rank,
                                          const FailureFiles& files) {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  variables["RANK"] = std::to_string(place.rank(local_rank, options.processes));
  variables["WORLD_SIZE"] = std::to_string(place.num_nodes * options.processes);
  variables["LOCAL_RANK"] = std::to_string(local_rank);
  variables["LOCAL_WORLD_SIZE"] = std::to_string(options.processes);
  variables["GROUP_RANK"] = std::to_string(place.node_rank);
  variables["GROUP_WORLD_SIZE"] = std::to_string(place.num_nodes);
  variables["MASTER_ADDR"] = place.address;
  variables["MASTER_PORT"] = std::to_string(place.port);
  variables["TORCHELASTIC_RESTART_COUNT"] = std::to_string(place.restarts);
  variables["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(options.max_restarts);
  variables["TROIKA_ROUND"] = std::to_string(place.round);
  if (options.elastic) {
    variables["TROIKA_NNODES"] =
        fmt::format("{}:{}", options.elastic->min_nodes, options.num_nodes);
  }
  variables["TROIKA_ERROR_FILE"] = files.error_file.string();
  variables.emplace("TROIKA_FLIGHT_RECORD", files.flight_record.string());
  variables[kSecretVariable] = secret.to_hex();
  if (!options.interface.empty()) variables[kInterfaceVariable] = options.interface;
  variables.emplace("TORCHELASTIC_RUN_ID", place.run_id);
  // The number of cores that this process may use, not of the machine.
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  variables.emplace("OMP_NUM_THREADS", std::to_string(std::max(1, cores / options.processes)));
  if (::isatty(STDERR_FILENO)) {
    variables.insert_or_assign("TROIKA_TTY", "1");
    // A rank writes to a pipe, so it cannot query the terminal itself.
    winsize size{};
    if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
      variables.insert_or_assign("COLUMNS", std::to_string(size.ws_col));
    }
  }

  std::vector<std::string> entries;
  for (const auto& [name, value] : variables) entries.push_back(fmt::format("{}={}", name, value));
  return entries;
}

}  // namespace troika::cluster
