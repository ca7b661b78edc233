// Measures a parameter server of one scheduler, servers and workers, each in a process of its own
// on this machine: push-pulls of 1, 4, 16 and 64 MiB of float32 values by all workers at the same
// time, and pushes of one value. Prints a record (troika/base/benchmark_record.h): seconds of a
// push-pull of worker 0, and the pushes per second and server of all workers together. The
// arguments are the numbers of `servers` (default 2), `workers` (default 2) and repetitions
// (default 10).
//
// The target: at least 100,000 small pushes per second and server.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <iostream>
#include <vector>

#include "troika/base/benchmark_record.h"
#include "troika/base/error.h"
#include "troika/net/socket.h"
#include "troika/server/scheduler.h"
#include "troika/server/world.h"

namespace {

using namespace troika;
using namespace troika::server;

constexpr uint64_t kMebi = uint64_t{1} << 20;
constexpr std::array<uint64_t, 4> kSizes{1, 4, 16, 64};  // in MiB
constexpr uint64_t kSmallPushes = 100'000;

struct Setup {
  int servers = 2;
  int workers = 2;
  int repetitions = 10;
};

Deadline patience() {
  return Deadline::after(std::chrono::minutes(5));
}

WorldParts parts() {
  WorldParts parts;
  for (const uint64_t mebi : kSizes) {
    parts.scheduler.tables.push_back(
        {.name = fmt::format("w{}", mebi), .keys = mebi * kMebi / sizeof(float)});
  }
  parts.scheduler.tables.push_back({.name = "small", .keys = kSmallPushes});
  // All workers add to one value: a barrier between measurements.
  parts.scheduler.tables.push_back({.name = "barrier", .type = ValueType::float64, .keys = 1});
  parts.scheduler.ranges = 8;
  parts.scheduler.consistency = eventual();
  return parts;
}

// Blocks until all workers have come here.
void wait_for_all(Worker& worker, const Setup& setup, int times) {
  worker.push("barrier", KeySpan{0, 1}, std::vector<double>{1}).wait(patience());
  for (double arrived = 0; arrived < setup.workers * times;) {
    const auto pull = worker.pull("barrier", KeySpan{0, 1});
    pull.wait(patience());
    arrived = pull.values<double>()[0];
  }
}

void measure(Worker& worker, const Setup& setup, BenchmarkRecord* record) {
  int waits = 0;
  for (const uint64_t mebi : kSizes) {
    const auto table = fmt::format("w{}", mebi);
    const KeySpan keys{0, mebi * kMebi / sizeof(float)};
    const std::vector<float> gradient(keys.count, 1);
    worker.push_pull(table, keys, gradient).wait(patience());
    std::vector<double> seconds;
    for (int i = 0; i < setup.repetitions; ++i) {
      wait_for_all(worker, setup, ++waits);
      const Stopwatch watch;
      worker.push_pull(table, keys, gradient).wait(patience());
      seconds.push_back(watch.seconds());
    }
    if (record) record->add(fmt::format("push-pull of {} MiB", mebi), "s", Better::lower, seconds);
  }
  std::vector<double> rates;
  for (int i = 0; i < setup.repetitions; ++i) {
    wait_for_all(worker, setup, ++waits);
    const Stopwatch watch;
    std::vector<Handle> pushes;
    pushes.reserve(kSmallPushes);
    const std::vector<float> one{1};
    for (uint64_t key = 0; key < kSmallPushes; ++key) {
      pushes.push_back(worker.push("small", KeySpan{key * 48'271 % kSmallPushes, 1}, one));
    }
    for (const auto& push : pushes) push.wait(patience());
    wait_for_all(worker, setup, ++waits);
    rates.push_back(static_cast<double>(kSmallPushes) * setup.workers / watch.seconds() /
                    setup.servers);
  }
  if (record) record->add("pushes of one value", "1/s and server", Better::higher, rates);
}

int run_role(WorldOptions options, const Setup& setup) {
  World world(options, parts());
  if (!world.is_worker()) {
    world.serve(patience());
    return 0;
  }
  BenchmarkRecord record("parameter_server", {{"troika", "0.1.0"}});
  auto& worker = world.worker(patience());
  worker.begin_step().wait(patience());  // It begins when all workers have joined.
  worker.end_step();
  measure(worker, setup, options.index == 0 ? &record : nullptr);
  if (options.index == 0) std::cout << record.to_json();
  std::cout.flush();
  world.leave(patience());
  return 0;
}

// Runs a role in a child process.
pid_t start(const WorldOptions& options, const Setup& setup) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  int code = 1;
  try {
    code = run_role(options, setup);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
  }
  std::_Exit(code);
}

int run(int argc, char** argv) {
  Setup setup;
  for (int i = 1; i < argc && i <= 3; ++i) {
    const int value = std::atoi(argv[i]);
    if (value < 1) {
      throw Error("bench", ErrorKind::usage,
                  {.what = "an argument", .got = argv[i], .expected = "a positive number"});
    }
    (i == 1 ? setup.servers : i == 2 ? setup.workers : setup.repetitions) = value;
  }
  int error = 0;
  const int port = net::port_of(net::listen_at("127.0.0.1", 0, error));
  WorldOptions options{.role = WorldRole::scheduler,
                       .index = 0,
                       .scheduler = fmt::format("127.0.0.1:{}", port),
                       .servers = setup.servers,
                       .workers = setup.workers,
                       .is_embedded = false,
                       .secret = net::Secret::random()};
  std::vector<pid_t> children{start(options, setup)};
  for (options.index = 0; options.index < setup.servers; ++options.index) {
    options.role = WorldRole::server;
    children.push_back(start(options, setup));
  }
  for (options.index = 0; options.index < setup.workers; ++options.index) {
    options.role = WorldRole::worker;
    children.push_back(start(options, setup));
  }
  int failures = 0;
  for (const pid_t pid : children) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    failures += !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) try {
  return run(argc, argv);
} catch (const std::exception& error) {
  fmt::print(stderr, "error: {}\n", error.what());
  return exit_code(error);
}
