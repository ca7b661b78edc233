// Processes of a parameter server that are killed and stopped.
#include "troika/server/world.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <signal.h>

#include <map>

#include "tests/net/endpoints.h"
#include "tests/server/child.h"
#include "tests/support/errors.h"
#include "troika/base/text.h"
#include "troika/net/socket.h"
#include "troika/server/scheduler.h"

namespace troika::server {
namespace {

using testing::HasSubstr;

constexpr int kWorldSteps = 30;

// The arguments of world_node.
std::vector<std::string> arguments(int replicas) {
  return {std::to_string(kWorldSteps), std::to_string(replicas)};
}

void expect_success(Processes& processes, const std::string& sum,
                    const std::vector<std::string>& names) {
  for (const auto& name : names) {
    EXPECT_EQ(processes[name].end(), 0) << name;
    if (name.starts_with("worker")) {
      EXPECT_THAT(processes[name].text(), HasSubstr("sum " + sum + "\n"));
    }
  }
}

TEST(ServerWorld, RunsInProcesses) {
  Processes processes(TROIKA_WORLD_NODE, 2, 2, arguments(0));
  ASSERT_TRUE(processes["worker0"].wait_for("step 5"));
  const auto colon = processes.address().find(':');
  const auto port = *parse_int(processes.address().substr(colon + 1));
  {
    net::TcpEndpoint endpoint({.name = "someone", .secret = processes.secret(), .listen = {}});
    endpoint.connect("scheduler", {{"127.0.0.1", static_cast<int>(port)}}, net::soon());
    const auto status = Scheduler::ask_for_status(endpoint, "scheduler", net::soon());
    EXPECT_THAT(status, HasSubstr("\nworker worker-1: heard "));
    EXPECT_THAT(status, HasSubstr("\nserver server-0: heard "));
  }
  {
    net::TcpEndpoint stranger({.name = "stranger", .secret = net::Secret::random(), .listen = {}});
    EXPECT_THROW(stranger.connect("scheduler", {{"127.0.0.1", static_cast<int>(port)}},
                                  Deadline::after(std::chrono::milliseconds(200))),
                 Error)
        << "another secret";
  }
  expect_success(processes, "60", {"worker0", "worker1", "server0", "server1", "scheduler0"});
}

// Nothing listens at port 1.
TEST(ServerWorld, AWorkerThatWaitsForServersMissesALostScheduler) {
  World worker({.role = WorldRole::worker,
                .scheduler = "127.0.0.1:1",
                .secret = net::Secret::random(),
                .protection = net::Protection::none},
               {});
  EXPECT_ERROR(worker.connected_endpoint(Deadline::after(std::chrono::seconds(10)),
                                         std::chrono::milliseconds(100)),
               ErrorKind::peer, "[server] worker-0 cannot begin; got a scheduler silent for 0.1 s");
}

TEST(ServerWorld, RunsWithServersInTheProcessesOfWorkers) {
  Processes processes(TROIKA_WORLD_NODE, 0, 3, arguments(1));
  expect_success(processes, "90", {"worker0", "worker1", "worker2", "scheduler0"});
}

// A killed server is lost. A stopped one is lost too, and is told so when it goes on.
TEST(ServerWorld, ServersAreKilledAndStopped) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    for (const char* server : {"server0", "server1"}) {
      SCOPED_TRACE(fmt::format("{} gets signal {}", server, signal));
      Processes processes(TROIKA_WORLD_NODE, 2, 2, arguments(1));
      ASSERT_TRUE(processes["worker0"].wait_for("step 9"));
      processes[server].signal(signal);
      ASSERT_TRUE(processes["worker1"].wait_for("step 20"));
      if (signal == SIGSTOP) processes[server].signal(SIGCONT);
      expect_success(processes, "60", {"worker0", "worker1", "scheduler0"});
      EXPECT_EQ(processes[server].end(), signal == SIGKILL ? 128 + SIGKILL : 3);
    }
  }
}

TEST(ServerWorld, WorkersAreKilledAndOthersJoin) {
  Processes processes(TROIKA_WORLD_NODE, 2, 2, arguments(0));
  ASSERT_TRUE(processes["worker1"].wait_for("step 9"));
  processes["worker1"].signal(SIGKILL);
  // It joins while worker 0 waits for the lost one.
  processes.start("worker", 2);
  EXPECT_EQ(processes["worker1"].end(), 128 + SIGKILL);
  EXPECT_EQ(processes["worker0"].end(), 0) << "steps are whole";
  EXPECT_EQ(processes["worker2"].end(), 0);
  EXPECT_EQ(processes["scheduler0"].end(), 0);
  const auto sum = [&](const char* worker) {
    const auto& text = processes[worker].text();
    return std::stod(text.substr(text.rfind("sum ") + 4));
  };
  EXPECT_GE(sum("worker0"), kWorldSteps + 10 + 1)
      << "of worker 0, steps 0 to 9 of worker 1, and of worker 2";
  EXPECT_LE(sum("worker0"), 3 * kWorldSteps);
  EXPECT_EQ(sum("worker0"), sum("worker2"));
}

TEST(ServerWorld, AnotherSchedulerTakesOver) {
  Processes processes(TROIKA_WORLD_NODE, 2, 2, arguments(1));
  ASSERT_TRUE(processes["worker0"].wait_for("step 9"));
  processes["scheduler0"].signal(SIGKILL);
  EXPECT_EQ(processes["scheduler0"].end(), 128 + SIGKILL);
  processes.start("scheduler", 0, "takes_over");
  expect_success(processes, "60", {"worker0", "worker1", "server0", "server1", "scheduler0"});
}

TEST(ServerWorld, OneProcessIsEnough) {
  WorldParts parts;
  parts.scheduler.tables = {{.name = "w", .type = ValueType::float64, .keys = 10}};
  WorldOptions options;
  options.servers = 2;
  World world(options, parts);
  ASSERT_TRUE(world.is_worker());
  auto& worker = world.worker(net::soon());
  worker.push("w", KeySpan{0, 10}, std::vector<double>(10, 2)).wait(net::soon());
  const auto pull = worker.pull("w", KeySpan{0, 10});
  pull.wait(net::soon());
  EXPECT_THAT(pull.values<double>(), testing::Each(2));
  EXPECT_THAT(world.scheduler()->status(), HasSubstr("server server-1: "));
  world.leave(net::soon());
}

// The scheduler gets the tables from a worker that joins after the servers and another worker.
TEST(ServerWorld, AWorkerBringsTheTables) {
  const auto secret = net::Secret::random();
  WorldParts parts;
  parts.scheduler.takes_tables = true;
  WorldOptions options{
      .role = WorldRole::scheduler, .scheduler = "127.0.0.1:0", .workers = 2, .secret = secret};
  World scheduler(options, parts);
  options.scheduler = scheduler.scheduler_address();
  options.role = WorldRole::server;
  World server(options, parts);
  options.role = WorldRole::worker;
  World first(options, {});
  scheduler.scheduler()->wait_for(1, 1, net::soon());
  EXPECT_THROW(first.worker(Deadline::after(std::chrono::milliseconds(300))), Error);
  options.index = 1;
  WorldParts brought;
  brought.worker.brings = {.tables = {{.name = "w", .type = ValueType::float64, .keys = 10}},
                           .ranges = 3};
  World second(options, brought);
  second.worker(net::soon())
      .push("w", KeySpan{0, 10}, std::vector<double>(10, 2))
      .wait(net::soon());
  const auto pull = first.worker(net::soon()).pull("w", KeySpan{0, 10});
  pull.wait(net::soon());
  EXPECT_THAT(pull.values<double>(), testing::Each(2));
  EXPECT_EQ(scheduler.scheduler()->map().ranges.size(), 3u);
  brought.worker.brings.tables.push_back({.name = "w", .keys = 1});
  EXPECT_ERROR(World(options, brought), ErrorKind::usage,
               "[server] two tables of one name; got w, expected other names");
  parts.scheduler.tables = {{.name = "w", .keys = 10}};
  options.role = WorldRole::scheduler;
  options.scheduler = "127.0.0.1:0";
  EXPECT_ERROR(
      World(options, parts), ErrorKind::usage,
      "[server] a scheduler that takes its tables from a worker; got tables, a snapshot or "
      "a lost scheduler of its own, expected none of them");
}

// A scheduler that is asked to end goes on while a worker is connected.
TEST(ServerWorld, EndsOnRequestAfterTheWorkers) {
  const auto secret = net::Secret::random();
  WorldParts parts;
  parts.scheduler.tables = {{.name = "w", .keys = 10}};
  WorldOptions options{
      .role = WorldRole::scheduler, .scheduler = "127.0.0.1:0", .workers = 2, .secret = secret};
  World scheduler(options, parts);
  options.scheduler = scheduler.scheduler_address();
  options.role = WorldRole::server;
  World server(options, parts);
  options.role = WorldRole::worker;
  auto worker = std::make_unique<World>(options, parts);
  worker->worker(net::soon());
  const auto patience = std::chrono::seconds(60);
  const auto always = [] { return true; };
  EXPECT_THROW(scheduler.serve(Deadline::after(std::chrono::milliseconds(300)), patience, always),
               Error);
  EXPECT_THROW(server.serve(Deadline::after(std::chrono::milliseconds(300)), patience, always),
               Error);
  worker.reset();
  EXPECT_NO_THROW(scheduler.serve(net::soon(), patience, always));
}

TEST(ServerWorld, AWorkerDoesNotWaitForALostScheduler) {
  const auto secret = net::Secret::random();
  WorldParts parts;
  parts.scheduler.tables = {{.name = "w", .keys = 10}};
  parts.worker.patience = std::chrono::seconds(1);
  WorldOptions options{.role = WorldRole::scheduler, .scheduler = "127.0.0.1:0", .secret = secret};
  auto scheduler = std::make_unique<World>(options, parts);
  options.scheduler = scheduler->scheduler_address();
  options.role = WorldRole::server;
  const World server(options, parts);
  options.role = WorldRole::worker;
  World worker(options, parts);
  worker.worker(net::soon());
  scheduler.reset();
  try {
    worker.leave(Deadline::after(std::chrono::minutes(5)));
    ADD_FAILURE() << "nobody has confirmed it";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::peer);
    EXPECT_THAT(error.what(),
                HasSubstr("could not leave in time; got the scheduler was last heard"));
  }
}

TEST(ServerWorld, AServerThatCannotWorkEnds) {
  WorldParts parts;
  parts.scheduler.tables = {{.name = "w", .keys = 10, .update = parse_update("user name=least")}};
  const auto secret = net::Secret::random();
  World scheduler({.role = WorldRole::scheduler, .scheduler = "127.0.0.1:0", .secret = secret},
                  parts);
  World server(
      {.role = WorldRole::server, .scheduler = scheduler.scheduler_address(), .secret = secret},
      parts);
  EXPECT_ERROR(server.serve(net::soon()), ErrorKind::usage,
               "[server] server-0 cannot work; got [server] the server does not know the update "
               "function; got least, expected a name in ServerOptions::updates");
}

TEST(ServerWorld, IsFoundInTheEnvironment) {
  std::map<std::string, std::string> variables;
  const auto variable = [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  EXPECT_EQ(find_world(variable).role, WorldRole::alone);
  variables = {{"TROIKA_ROLE", "worker"},
               {"TROIKA_ROLE_INDEX", "1"},
               {"TROIKA_SCHEDULER", "[::1]:4711"},
               {"TROIKA_SERVERS", "2"},
               {"TROIKA_WORKERS", "3"},
               {"TROIKA_RUN_SECRET", std::string(64, 'a')}};
  const auto world = find_world(variable);
  EXPECT_EQ(world.role, WorldRole::worker);
  EXPECT_EQ(world.index, 1);
  EXPECT_EQ(world.servers, 2);
  EXPECT_EQ(world.workers, 3);
  EXPECT_FALSE(world.is_embedded);
  variables["TROIKA_WORKERS"] = "many";
  EXPECT_ERROR(find_world(variable), ErrorKind::usage,
               "[server] TROIKA_WORKERS; got many, expected a number from 1 to 1000000 (troika "
               "launch --servers S --workers W sets it)");
  variables["TROIKA_WORKERS"] = "3";
  variables["TROIKA_SCHEDULER"] = "here";
  EXPECT_ERROR(find_world(variable), ErrorKind::usage,
               "[server] the address of a node; got here, expected HOST:PORT");
  variables["TROIKA_ROLE"] = "master";
  EXPECT_THROW(find_world(variable), Error);
}

}  // namespace
}  // namespace troika::server
