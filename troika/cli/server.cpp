#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>
#include <optional>

#include "troika/base/error.h"
#include "troika/cli/commands.h"
#include "troika/cluster/discovery/endpoint.h"
#include "troika/cluster/ranks/roles.h"
#include "troika/net/tcp_endpoint.h"
#include "troika/server/scheduler.h"

namespace troika::cli {

namespace {

// Returns the status; nullopt if the scheduler protects its messages in another way.
std::optional<std::string> ask(const std::string& address, net::Protection protection,
                               Deadline deadline) {
  const auto [host, port] = cluster::parse_endpoint(address);
  net::TcpEndpoint endpoint({.name = cluster::unique_name(),
                             .secret = cluster::secret_of_scheduler(address).secret,
                             .protection = protection,
                             .listen = {}});
  try {
    endpoint.connect("scheduler", {{host, port}}, deadline);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) throw;
    return std::nullopt;
  }
  return server::Scheduler::ask_for_status(endpoint, "scheduler", deadline);
}

int show_status(const std::string& address, double seconds) {
  const auto deadline = Deadline::after(to_timeout("timeout", seconds));
  for (const auto protection :
       {net::Protection::encrypted, net::Protection::none, net::Protection::authenticated}) {
    const auto status = ask(address, protection, deadline);
    if (!status) continue;
    fmt::print("{}", *status);
    return 0;
  }
  throw Error("server", ErrorKind::usage,
              {.what = "the scheduler refuses this command", .got = address});
}

}  // namespace

Entry add_server(CLI::App& app) {
  auto* command = app.add_subcommand("server", "look at a parameter server");
  command->require_subcommand(1);
  auto* status = command->add_subcommand(
      "status", "show which servers have which ranges, who was heard of, and how far workers are");
  const auto address = std::make_shared<std::string>();
  const auto seconds = std::make_shared<double>(5);
  status
      ->add_option("SCHEDULER", *address,
                   "HOST:PORT, as troika launch --workers prints it; the secret is that of "
                   "$TROIKA_RUN_SECRET or $TROIKA_RUN_SECRET_FILE, else the user's")
      ->required();
  status->add_option("--timeout", *seconds, "seconds to wait for an answer")->capture_default_str();
  return {command, [address, seconds] { return show_status(*address, *seconds); }};
}

}  // namespace troika::cli
