#include "troika/server/world.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <malloc.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <set>
#include <thread>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/net/interface.h"
#include "troika/net/socket.h"
#include "troika/net/tcp_endpoint.h"
#include "troika/server/scheduler.h"
#include "troika/server/send.h"

namespace troika::server {

namespace {

constexpr const char* kWorker = "worker-";
constexpr Milliseconds kBetweenAttempts{50}, kAttempt{500};
// How late a process may come after a run has failed before it began, and still hear why.
constexpr std::chrono::seconds kLateness{5};

[[noreturn]] void refuse_variable(const std::string& name, const std::string& got,
                                  const std::string& expected) {
  throw Error("server", ErrorKind::usage,
              {.what = name,
               .got = got,
               .expected = expected,
               .hint = "troika launch --servers S --workers W sets it"});
}

net::Address parse_address(const std::string& text) {
  const auto colon = text.rfind(':');
  const auto port = parse_int(colon == std::string::npos ? "" : text.substr(colon + 1));
  std::string host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (!port || *port < 0 || *port > 65535 || host.empty()) {
    throw Error("server", ErrorKind::usage,
                {.what = "the address of a node", .got = text, .expected = "HOST:PORT"});
  }
  return {host, static_cast<int>(*port)};
}

std::string address_text(const std::string& host, int port) {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

// Freed blocks below 32 MiB stay with this process: new pages take longer than a message's copy.
void keep_freed_memory() {
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
  ::mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
}

}  // namespace

WorldOptions find_world(const VariableOf& variable) {
  WorldOptions options;
  const auto role = variable("TROIKA_ROLE");
  if (!role) return options;
  if (*role != "scheduler" && *role != "server" && *role != "worker") {
    refuse_variable("TROIKA_ROLE", *role, "scheduler, server or worker");
  }
  options.role = *role == "scheduler" ? WorldRole::scheduler
                 : *role == "server"  ? WorldRole::server
                                      : WorldRole::worker;
  const auto number = [&](const std::string& name, int64_t least, int64_t most) {
    const auto text = variable(name).value_or("");
    const auto value = parse_int(text);
    if (!value || *value < least || *value > most) {
      refuse_variable(name, text.empty() ? "nothing" : text,
                      fmt::format("a number from {} to {}", least, most));
    }
    return static_cast<int>(*value);
  };
  options.is_embedded = variable("TROIKA_EMBEDDED").value_or("0") == "1";
  options.index = number("TROIKA_ROLE_INDEX", 0, 1'000'000);
  options.servers = number("TROIKA_SERVERS", options.is_embedded ? 0 : 1, 1'000'000);
  options.workers = number("TROIKA_WORKERS", 1, 1'000'000);
  options.scheduler = variable("TROIKA_SCHEDULER").value_or("");
  if (options.scheduler.empty()) refuse_variable("TROIKA_SCHEDULER", "nothing", "HOST:PORT");
  parse_address(options.scheduler);
  options.ends = variable("TROIKA_ENDS").value_or("");
  options.secret =
      net::Secret::parse(variable("TROIKA_RUN_SECRET").value_or(""), "TROIKA_RUN_SECRET");
  if (const auto name = variable("TROIKA_PROTECTION").value_or(""); !name.empty()) {
    options.protection = net::protection_from(name);
  }
  return options;
}

WorldOptions find_world() {
  return find_world([](const std::string& name) -> std::optional<std::string> {
    const char* const value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  });
}

// An endpoint, and a thread that connects it to the scheduler and to servers, again and again.
class World::Node {
 public:
  explicit Node(net::TcpOptions options) : endpoint(std::move(options)) {}
  ~Node() { stop(); }

  // `servers` returns the servers that this node connects to, with their addresses.
  void connect_to(const std::string& scheduler,
                  std::function<std::map<std::string, std::string>()> servers) {
    thread_ = std::thread([this, scheduler, servers = std::move(servers)] {
      do {
        connect(kScheduler, scheduler);
        for (const auto& [name, addresses] : servers()) connect(name, addresses);
      } while (!wait());
    });
  }
  void watch_peers() {
    endpoint.listen_to_peers([this](const net::PeerChange& change) {
      if (change.is_up) {
        peers.insert(change.peer);
      } else {
        peers.erase(change.peer);
      }
    });
  }
  // Must be called before the object that `servers` uses ends.
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  std::set<std::string> peers;  // that are connected, if watch_peers() was called
  net::TcpEndpoint endpoint;

 private:
  bool wait() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kBetweenAttempts, [this] { return is_stopping_; });
  }
  void connect(const std::string& peer, const std::string& addresses) {
    try {
      std::vector<net::Address> parsed;
      for (const auto& word : split(trim(addresses), ' ')) parsed.push_back(parse_address(word));
      endpoint.connect(peer, parsed, Deadline::after(kAttempt));
    } catch (const Error&) {
      // It is tried again. Calls that wait for others have deadlines.
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_stopping_ = false;
  std::thread thread_;
};

World::World(const WorldOptions& options, const WorldParts& parts)
    : secret_(options.secret.value_or(net::Secret::random())),
      protection_(options.protection),
      scheduler_address_(options.scheduler),
      worker_patience_(parts.worker.patience) {
  auto scheduler = parts.scheduler;
  const bool has_one_each = options.is_embedded && options.servers == 0;
  first_servers_ = has_one_each ? options.workers : std::max(options.servers, 1);
  const int beside = first_servers_;  // the number of the first server beside a worker
  if (options.has_server_beside) first_servers_ += options.workers;
  scheduler.ends = options.ends;
  scheduler.first_servers = first_servers_;
  scheduler.first_workers = options.role == WorldRole::alone ? 1 : options.workers;
  if (options.has_coordinator) ++scheduler.first_workers;
  switch (options.role) {
    case WorldRole::alone:
      scheduler_address_ = "127.0.0.1:0";
      add_scheduler(scheduler);
      for (int i = 0; i < scheduler.first_servers; ++i) add_server(i, parts);
      worker_ = add_worker(kWorker + std::to_string(0), parts.worker);
      break;
    case WorldRole::scheduler:
      add_scheduler(scheduler);
      if (options.has_coordinator) coordinating_worker_ = add_worker(kCoordinator, {});
      break;
    case WorldRole::server:
      keep_freed_memory();
      add_server(options.index, parts);
      break;
    case WorldRole::worker:
      if (options.has_scheduler) add_scheduler(scheduler);
      if (options.has_scheduler && options.has_coordinator) {
        coordinating_worker_ = add_worker(kCoordinator, {});
      }
      for (int i = options.index; options.is_embedded && i < scheduler.first_servers;
           i += options.workers) {
        add_server(i, parts);
      }
      if (options.has_server_beside) add_server(beside + options.index, parts);
      worker_ = add_worker(kWorker + std::to_string(options.index), parts.worker);
      break;
  }
}

World::~World() {
  for (const auto& node : nodes_) node->stop();
}

auto World::add_node(const std::string& name, std::vector<net::Address> listen) -> Node& {
  nodes_.push_back(std::make_unique<Node>(net::TcpOptions{
      .name = name, .secret = secret_, .protection = protection_, .listen = std::move(listen)}));
  return *nodes_.back();
}

void World::add_scheduler(SchedulerOptions scheduler) {
  const auto address = parse_address(scheduler_address_);
  // Any other name is for the others: this process then listens on all addresses.
  const std::string here = address.host == "localhost"      ? "127.0.0.1"
                           : net::is_loopback(address.host) ? address.host
                                                            : "";
  auto& node = add_node(kScheduler, {net::Address{here, address.port}});
  scheduler_address_ = address_text(address.host, node.endpoint.addresses()[0].port);
  node.watch_peers();
  scheduler_ = std::make_unique<Scheduler>(node.endpoint, std::move(scheduler));
}

void World::add_server(int index, const WorldParts& parts) {
  const auto name = fmt::format("server-{}", index);
  auto server = parts.server;
  const auto scheduler = parse_address(scheduler_address_);
  const bool is_local = net::is_loopback(scheduler.host);
  auto& node = add_node(name, {net::Address{is_local ? "127.0.0.1" : "", 0}});
  const int port = node.endpoint.addresses()[0].port;
  const auto hosts =
      is_local ? std::vector<std::string>{"127.0.0.1"} : net::own_addresses(scheduler.host);
  for (const auto& host : hosts) server.member.addresses += address_text(host, port) + " ";
  server.member.scheduler = kScheduler;
  node.watch_peers();
  if (parts.service) services_.push_back(parts.service(node.endpoint));
  servers_.push_back(std::make_unique<Server>(node.endpoint, std::move(server)));
  node.connect_to(scheduler_address_, [name, here = servers_.back().get()] {
    // The server with the later name connects to the other one.
    auto servers = here->surroundings().servers;
    std::erase_if(servers, [&](const auto& entry) { return entry.first >= name; });
    return servers;
  });
}

std::unique_ptr<Worker> World::add_worker(const std::string& name, WorkerOptions options) {
  auto& node = add_node(name, {});
  node.watch_peers();
  options.member.scheduler = kScheduler;
  auto worker = std::make_unique<Worker>(node.endpoint, std::move(options));
  node.connect_to(scheduler_address_,
                  [here = worker.get()] { return here->surroundings().servers; });
  return worker;
}

Worker& World::worker(Deadline deadline) {
  TROIKA_CHECK(worker_, "this process has no worker");
  return ready(*worker_, *nodes_.back(), deadline);
}

Worker& World::coordinating_worker(Deadline deadline) {
  TROIKA_CHECK(coordinating_worker_, "this process has no coordinator");
  return ready(*coordinating_worker_, *nodes_[1], deadline);
}

net::Endpoint& World::scheduler_endpoint() {
  TROIKA_CHECK(scheduler_, "this process has no scheduler");
  return nodes_[0]->endpoint;
}

Worker& World::ready(Worker& worker, Node& node, Deadline deadline) {
  worker.wait_until_ready(deadline);
  // The first requests to servers that are not connected would be lost, and sent again much later.
  // If a server has ended, another one has its ranges soon.
  const auto are_connected = [&] {
    return std::ranges::all_of(worker.surroundings().servers, [&](const auto& server) {
      return node.peers.contains(server.first);
    });
  };
  node.endpoint.run_until(are_connected, std::min<net::Duration>(time_left(deadline), kAttempt));
  return worker;
}

net::Endpoint& World::worker_endpoint() {
  TROIKA_CHECK(worker_, "this process has no worker");
  return nodes_.back()->endpoint;
}

net::Endpoint& World::connected_endpoint(Deadline deadline, net::Duration patience) {
  TROIKA_CHECK(worker_, "this process has no worker");
  auto& node = *nodes_.back();
  const auto silence =
      fmt::format("a scheduler silent for {:g} s", std::chrono::duration<double>(patience).count());
  std::vector<std::string> missing;
  std::string refusal;
  const auto are_connected = [&] {
    const auto now = worker_->surroundings();
    refusal = now.scheduler_silence > patience ? silence : now.refusal;
    if (!refusal.empty()) return true;
    missing.clear();
    for (int i = 0; i < first_servers_; ++i) {
      const auto name = fmt::format("server-{}", i);
      if (!node.peers.contains(name)) missing.push_back(name);
    }
    return missing.empty();
  };
  if (!node.endpoint.run_until(are_connected, time_left(deadline))) {
    throw Error("server", ErrorKind::timeout,
                {.what = "not all servers were there in time",
                 .got = fmt::format("none of {}", fmt::join(missing, ", ")),
                 .expected = fmt::format("{} servers", first_servers_)});
  }
  if (!refusal.empty()) {
    throw Error("server", ErrorKind::peer,
                {.what = node.endpoint.name() + " cannot begin", .got = refusal});
  }
  return node.endpoint;
}

std::string World::trouble(net::Duration patience) {
  const auto now = worker_->surroundings();
  if (!now.refusal.empty()) return now.refusal;
  if (now.scheduler_silence > patience) {
    return fmt::format("the scheduler was last heard of {:.1f} s ago",
                       std::chrono::duration<double>(now.scheduler_silence).count());
  }
  for (int i = 0; i < first_servers_; ++i) {
    const auto name = fmt::format("server-{}", i);
    if (!now.servers.contains(name)) return "the scheduler has not heard of " + name + " for long";
  }
  return {};
}

void World::leave(Deadline deadline) {
  if (worker_) worker_->leave(deadline);
  if (scheduler_) {
    serve_scheduler(deadline, {});
  } else if (!servers_.empty()) {
    serve(deadline, worker_patience_.count() > 0 ? worker_patience_ : kServerPatience);
  }
}

void World::serve_scheduler(Deadline deadline, const std::function<bool()>& is_asked_to_end) {
  const auto is_worker = [](const std::string& peer) { return peer.starts_with(kWorker); };
  const bool have_ended = scheduler_->wait_for_workers_to_end(deadline, [&] {
    return is_asked_to_end && is_asked_to_end() &&
           std::ranges::none_of(nodes_[0]->peers, is_worker);
  });
  if (!have_ended) return;
  const auto is_here = [&](const std::string& peer) {
    return std::ranges::any_of(nodes_,
                               [&](const auto& node) { return node->endpoint.name() == peer; });
  };
  const auto failure = scheduler_->failure();
  if (!failure.empty()) scheduler_->wait_until_all_have_heard(kLateness);
  // The servers end when they have heard of it.
  nodes_[0]->endpoint.run_until([&] { return std::ranges::all_of(nodes_[0]->peers, is_here); },
                                std::chrono::seconds(2));
  if (failure.empty()) return;
  throw Error("server", ErrorKind::peer, {.what = "the run cannot go on", .got = failure});
}

void World::serve(Deadline deadline, net::Duration patience,
                  const std::function<bool()>& is_asked_to_end) {
  if (scheduler_ && !worker_) return serve_scheduler(deadline, is_asked_to_end);
  if (servers_.empty() || scheduler_) return;
  Surroundings now;
  bool is_alone = false;  // and asked to end
  net::Endpoint& endpoint = nodes_[0]->endpoint;
  const auto is_over = [&] {
    now = servers_[0]->surroundings();
    is_alone = is_asked_to_end && is_asked_to_end() && !nodes_[0]->peers.contains(kScheduler);
    return is_alone || now.is_over || !now.refusal.empty() || !now.failure.empty() ||
           now.scheduler_silence > patience;
  };
  const bool has_ended = endpoint.run_until(is_over, time_left(deadline));
  if (is_alone || (now.is_over && now.refusal.empty())) return;
  if (!now.failure.empty()) {
    throw Error("server", ErrorKind::usage,
                {.what = endpoint.name() + " cannot work", .got = now.failure});
  }
  throw Error("server", has_ended ? ErrorKind::peer : ErrorKind::timeout,
              {.what = endpoint.name() + " ends before the run",
               .got = !now.refusal.empty() ? now.refusal
                      : has_ended          ? "a scheduler that was silent for too long"
                                           : "a run that has not ended in time"});
}

}  // namespace troika::server
