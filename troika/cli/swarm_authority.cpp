#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/log.h"
#include "troika/base/text.h"
#include "troika/cli/commands.h"
#include "troika/cli/swarm_commands.h"
#include "troika/cluster/ranks/stop_signals.h"
#include "troika/net/tcp_endpoint.h"
#include "troika/parallel/swarm/swarm_dialer.h"
#include "troika/swarm/token.h"
#include "troika/train/run/swarm_run.h"

namespace troika::cli {

namespace {

// User by public key.
std::map<std::string, std::string> read_list(const std::string& file) {
  std::map<std::string, std::string> users;
  int number = 0;
  for (const auto& raw : split(read_file(file), '\n')) {
    ++number;
    const auto line = trim(raw);
    if (line.empty() || line.starts_with('#')) continue;
    const auto blank = line.find(' ');
    const auto key = std::string(line.substr(0, blank));
    if (key.size() != 64 || key.find_first_not_of("0123456789abcdef") != key.npos ||
        blank == line.npos) {
      throw Error("swarm", ErrorKind::usage,
                  {.what = fmt::format("line {} of {} is no peer", number, file),
                   .got = '"' + std::string(line) + '"',
                   .expected = "a public key of 64 hexadecimal digits, a blank, and a name"});
    }
    users[key] = trim(line.substr(blank));
  }
  return users;
}

}  // namespace

int run_authority(const AuthorityArguments& arguments) {
  const auto identity = train::identity_of(arguments.key);
  const auto lifetime = std::chrono::duration_cast<swarm::WallTime>(
      to_timeout("--lifetime", arguments.lifetime_seconds));
  // A list that is being replaced may be missing for a moment.
  std::error_code missing;
  auto read_at = std::filesystem::last_write_time(arguments.list, missing);
  auto users = read_list(arguments.list);
  const cluster::StopSignals signals(/*requeue=*/false);
  const auto listen = train::parse_address(arguments.listen, "--listen");
  net::TcpEndpoint endpoint({.name = identity.name(),
                             .secret = train::swarm_secret(arguments.run),
                             .listen = {listen},
                             .polls = false,
                             .alias = swarm::kDoorName});
  std::optional<swarm::Authority> authority;
  std::optional<swarm::Door> door;
  net::act_on(endpoint, [&] {
    if (authority) return;
    authority.emplace(endpoint, identity, lifetime);
    door.emplace(endpoint, arguments.run);
    for (const auto& [key, user] : users) authority->allow(key, user);
  });
  fmt::print("peers take part with --swarm.authority={}@{}\n", identity.name(),
             parallel::show(endpoint.addresses().front()));
  std::fflush(stdout);
  log::info("[swarm] admits {} peers", users.size());
  const auto is_stopped = [&] { return signals.asked() != cluster::StopRequest::none; };
  while (!endpoint.run_until(is_stopped, std::chrono::milliseconds(500))) {
    const auto written_at = std::filesystem::last_write_time(arguments.list, missing);
    if (written_at == read_at) continue;
    read_at = written_at;
    try {
      const auto now = read_list(arguments.list);
      net::act_on(endpoint, [&] {
        for (const auto& [key, user] : users) authority->revoke(key);
        for (const auto& [key, user] : now) authority->allow(key, user);
      });
      users = now;
      log::info("[swarm] admits {} peers", users.size());
    } catch (const Error& problem) {
      log::warn("[swarm] the list is as it was: {}", problem.what());
    }
  }
  net::act_on(endpoint, [&] {
    door.reset();
    authority.reset();
  });
  return 0;
}

}  // namespace troika::cli
