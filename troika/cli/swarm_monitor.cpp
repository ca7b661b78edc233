#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <mutex>
#include <optional>
#include <string>

#include "troika/base/clock.h"
#include "troika/cli/commands.h"
#include "troika/cli/swarm_commands.h"
#include "troika/cli/swarm_page.h"
#include "troika/cli/swarm_table.h"
#include "troika/cli/swarm_view.h"
#include "troika/cluster/ranks/stop_signals.h"
#include "troika/net/http_server.h"
#include "troika/parallel/swarm/swarm_dialer.h"
#include "troika/train/run/swarm_run.h"

namespace troika::cli {

namespace {

constexpr net::Duration kEachPage = std::chrono::seconds(1);

// Serves the page and its numbers to browsers.
class ServedPage {
 public:
  ServedPage(const std::string& listen, const SwarmTable& table)
      : page_(swarm_page(table.run)),
        numbers_(as_json(table)),
        server_(train::parse_address(listen, "--http"),
                [this](const std::string& path) { return reply_to(path); }) {
    fmt::print("the page is at http://{}/\n", parallel::show(server_.address()));
    std::fflush(stdout);
  }
  void show(const SwarmTable& table) {
    const std::lock_guard lock(mutex_);
    numbers_ = as_json(table);
  }

 private:
  net::HttpReply reply_to(const std::string& path) {
    if (path == "/") return page_;
    if (path != kSwarmNumbers) return {.status = 404, .body = "there is only / here\n"};
    const std::lock_guard lock(mutex_);
    return {.type = "application/json", .body = numbers_};
  }

  const net::HttpReply page_;
  std::mutex mutex_;
  std::string numbers_;
  net::HttpServer server_;  // ends first
};

void print(const MonitorArguments& arguments, const SwarmTable& table) {
  const bool redraws = !arguments.once && !arguments.json && ::isatty(STDOUT_FILENO) != 0;
  if (redraws) fmt::print("\x1b[H\x1b[J");
  fmt::print("{}", arguments.json ? as_json(table) : as_text(table));
  std::fflush(stdout);
}

}  // namespace

int run_monitor(const MonitorArguments& arguments) {
  const auto deadline = Deadline::after(to_timeout("--timeout", arguments.timeout_seconds));
  const cluster::StopSignals signals(/*requeue=*/false);
  SwarmView view(arguments.run, arguments.peers, deadline);
  std::optional<ServedPage> served;
  const auto is_stopped = [&] { return signals.asked() != cluster::StopRequest::none; };
  for (;;) {
    const auto table = table_of(view.look());
    if (served) {
      served->show(table);
    } else if (!arguments.http.empty()) {
      served.emplace(arguments.http, table);
    } else {
      print(arguments, table);
    }
    if (arguments.once || view.wait(is_stopped, kEachPage)) return 0;
    view.reconnect();
  }
}

}  // namespace troika::cli
