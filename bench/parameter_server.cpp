// Measures a parameter server of one scheduler, servers and workers, each in a process of its own
// on this machine: push-pulls of 1, 4, 16 and 64 MiB of float32 values by all workers at the same
// time, the same bytes sent there and back as bare messages of `net`, and pushes of one value. The
// first two take turns. Prints a record (troika/base/benchmark_record.h): seconds of worker 0, and
// the pushes per second and server of all workers together. The arguments are the numbers of
// `servers` (default 2), `workers` (default 2) and repetitions (default 10), the protection of
// messages (none, authenticated or encrypted; default none), and the number of ranges (default 8).
// The bare messages are as many as the ranges.
//
// Targets: at least 100,000 small pushes per second and server; a push-pull takes at most 1 / 0.9
// of the time of the bare messages.
#include <fmt/format.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <limits>
#include <optional>
#include <thread>
#include <vector>

#include "troika/base/benchmark_record.h"
#include "troika/base/error.h"
#include "troika/net/socket.h"
#include "troika/net/tcp_endpoint.h"
#include "troika/server/scheduler.h"
#include "troika/server/world.h"

namespace {

using namespace troika;
using namespace troika::server;

constexpr uint64_t kMebi = uint64_t{1} << 20;
constexpr std::array<uint64_t, 4> kSizes{1, 4, 16, 64};  // in MiB
constexpr uint64_t kSmallPushes = 100'000;

// After a message of this channel from a caller, an echo expects its other messages.
constexpr net::Channel kHello = 1000;

struct Setup {
  int servers = 2;
  int workers = 2;
  int repetitions = 10;
  net::Protection protection = net::Protection::none;
  int ranges = 8;
  std::vector<int> echo_ports = {};  // of the servers
};

Deadline patience() {
  return Deadline::after(std::chrono::minutes(5));
}

WorldParts parts(const Setup& setup) {
  WorldParts parts;
  for (const uint64_t mebi : kSizes) {
    parts.scheduler.tables.push_back(
        {.name = fmt::format("w{}", mebi), .keys = mebi * kMebi / sizeof(float)});
  }
  parts.scheduler.tables.push_back({.name = "small", .keys = kSmallPushes});
  // All workers add to one value: a barrier between measurements.
  parts.scheduler.tables.push_back({.name = "barrier", .type = ValueType::float64, .keys = 1});
  parts.scheduler.ranges = static_cast<uint32_t>(setup.ranges);
  parts.scheduler.consistency = eventual();
  return parts;
}

std::string caller(int worker) {
  return fmt::format("caller-{}", worker);
}

std::string echo(int server) {
  return fmt::format("echo-{}", server);
}

// Sends all messages back to the callers, on a thread of its own.
class Echo {
 public:
  Echo(const WorldOptions& options, const Setup& setup, net::Descriptor listener)
      : ranges_(setup.ranges),
        buffers_(static_cast<size_t>(setup.workers * setup.ranges)),
        endpoint_({.name = echo(options.index),
                   .secret = *options.secret,
                   .protection = setup.protection,
                   .listen = {}},
                  listeners(std::move(listener))) {
    for (auto& buffer : buffers_) {
      buffer.resize(kSizes.back() * kMebi / static_cast<uint64_t>(ranges_));
    }
    endpoint_.handle(
        kHello, sizeof(int), [this](const std::string& peer, const std::string& hello) {
          int worker = 0;
          std::memcpy(&worker, hello.data(), sizeof(worker));
          for (int range = 0; range < ranges_; ++range) post(worker, range);
          net::send_owned(endpoint_, peer, kHello, std::make_shared<const std::string>(hello));
        });
    thread_ = std::thread(
        [this] { endpoint_.run_until([this] { return stops_; }, std::chrono::hours(1)); });
  }
  ~Echo() {
    net::act_on(endpoint_, [this] { stops_ = true; });
    thread_.join();
  }

 private:
  static std::vector<net::Descriptor> listeners(net::Descriptor listener) {
    std::vector<net::Descriptor> all;
    all.push_back(std::move(listener));
    return all;
  }
  void post(int worker, int range) {
    auto& buffer = buffers_[static_cast<size_t>(worker * ranges_ + range)];
    const auto channel = static_cast<net::Channel>(range);
    endpoint_.receive(
        caller(worker), channel, buffer, [=, this, &buffer](const net::Result& result) {
          if (result.outcome != net::Outcome::done) return;
          endpoint_.send(caller(worker), channel, std::string_view(buffer.data(), result.bytes),
                         net::Priority::normal, [=, this](const net::Result& sent) {
                           if (sent.outcome == net::Outcome::done) post(worker, range);
                         });
        });
  }

  const int ranges_;
  std::vector<std::vector<char>> buffers_;
  bool stops_ = false;
  net::TcpEndpoint endpoint_;
  std::thread thread_;
};

// Sends bytes to the echoes, as many messages as a push-pull has ranges, and waits for them.
class Caller {
 public:
  Caller(const WorldOptions& options, const Setup& setup)
      : setup_(setup),
        buffers_(static_cast<size_t>(setup.ranges)),
        endpoint_({.name = caller(options.index),
                   .secret = *options.secret,
                   .protection = setup.protection,
                   .listen = {}}) {
    for (auto& buffer : buffers_) buffer.resize(kSizes.back() * kMebi / buffers_.size());
    for (int server = 0; server < setup.servers; ++server) {
      endpoint_.connect(echo(server),
                        {{"127.0.0.1", setup.echo_ports[static_cast<size_t>(server)]}}, patience());
      std::array<char, sizeof(int)> hello;
      std::memcpy(hello.data(), &options.index, sizeof(int));
      net::send_by(endpoint_, echo(server), kHello, std::string_view(hello.data(), hello.size()),
                   patience());
      net::receive_by(endpoint_, echo(server), kHello, hello, patience());
    }
  }
  void call(std::span<const float> values) {
    int missing = setup_.ranges;
    const size_t bytes = values.size_bytes() / buffers_.size();
    for (int range = 0; range < setup_.ranges; ++range) {
      const auto peer = echo(range * setup_.servers / setup_.ranges);
      const auto channel = static_cast<net::Channel>(range);
      auto& buffer = buffers_[static_cast<size_t>(range)];
      endpoint_.receive(peer, channel, std::span(buffer).first(bytes),
                        [&](const net::Result&) { --missing; });
      const auto* const begin = reinterpret_cast<const char*>(values.data());
      endpoint_.send(peer, channel,
                     std::string_view(begin + static_cast<size_t>(range) * bytes, bytes),
                     net::Priority::normal, [](const net::Result&) {});
    }
    if (!endpoint_.run_until([&] { return missing == 0; }, std::chrono::minutes(1))) {
      throw Error("bench", ErrorKind::timeout, {.what = "a message did not come back in time"});
    }
  }

 private:
  const Setup& setup_;
  std::vector<std::vector<char>> buffers_;
  net::TcpEndpoint endpoint_;
};

// Blocks until all workers have come here.
void wait_for_all(Worker& worker, const Setup& setup, int times) {
  worker.push("barrier", KeySpan{0, 1}, std::vector<double>{1}).wait(patience());
  for (double arrived = 0; arrived < setup.workers * times;) {
    const auto pull = worker.pull("barrier", KeySpan{0, 1});
    pull.wait(patience());
    arrived = pull.values<double>()[0];
  }
}

void measure(Worker& worker, Caller& caller, const Setup& setup, BenchmarkRecord* record) {
  int waits = 0;
  for (const uint64_t mebi : kSizes) {
    const auto table = fmt::format("w{}", mebi);
    const KeySpan keys{0, mebi * kMebi / sizeof(float)};
    const auto kept = std::make_shared<const std::vector<float>>(keys.count, 1.0f);
    const auto& gradient = *kept;
    const auto pulled = std::make_shared<std::vector<float>>(keys.count);
    std::vector<double> seconds, bare;
    for (int i = 0; i <= setup.repetitions; ++i) {
      wait_for_all(worker, setup, ++waits);
      const Stopwatch watch;
      worker.push_pull(table, keys, gradient, {.keeps = kept, .into = pulled}).wait(patience());
      const double served = watch.seconds();
      wait_for_all(worker, setup, ++waits);
      const Stopwatch other;
      caller.call(gradient);
      if (i == 0) continue;  // memory is allocated
      seconds.push_back(served);
      bare.push_back(other.seconds());
    }
    if (!record) continue;
    record->add(fmt::format("push-pull of {} MiB", mebi), "s", Better::lower, seconds);
    record->add(fmt::format("messages of {} MiB there and back", mebi), "s", Better::lower, bare);
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

int run_role(const WorldOptions& options, const Setup& setup, net::Descriptor listener) {
  // As training does (compat::count_tensor_memory()).
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
  ::mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  std::optional<Echo> echo;
  if (options.role == WorldRole::server) echo.emplace(options, setup, std::move(listener));
  World world(options, parts(setup));
  if (!world.is_worker()) {
    world.serve(patience());
    return 0;
  }
  Caller caller(options, setup);
  BenchmarkRecord record("parameter_server", {{"troika", "0.1.0"}});
  auto& worker = world.worker(patience());
  worker.begin_step().wait(patience());  // It begins when all workers have joined.
  worker.end_step();
  measure(worker, caller, setup, options.index == 0 ? &record : nullptr);
  if (options.index == 0) std::cout << record.to_json();
  std::cout.flush();
  world.leave(patience());
  return 0;
}

// Runs a role in a child process.
pid_t start(const WorldOptions& options, const Setup& setup, net::Descriptor listener = {}) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  int code = 1;
  try {
    code = run_role(options, setup, std::move(listener));
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
  }
  std::_Exit(code);
}

int positive(const char* argument) {
  const int value = std::atoi(argument);
  if (value >= 1) return value;
  throw Error("bench", ErrorKind::usage,
              {.what = "an argument", .got = argument, .expected = "a positive number"});
}

int run(int argc, char** argv) {
  Setup setup;
  for (int i = 1; i < argc && i <= 3; ++i) {
    (i == 1 ? setup.servers : i == 2 ? setup.workers : setup.repetitions) = positive(argv[i]);
  }
  if (argc > 4) setup.protection = net::protection_from(argv[4]);
  if (argc > 5) setup.ranges = positive(argv[5]);
  int error = 0;
  const int port = net::port_of(net::listen_at("127.0.0.1", 0, error));
  WorldOptions options{.role = WorldRole::scheduler,
                       .index = 0,
                       .scheduler = fmt::format("127.0.0.1:{}", port),
                       .servers = setup.servers,
                       .workers = setup.workers,
                       .is_embedded = false,
                       .secret = net::Secret::random(),
                       .protection = setup.protection};
  std::vector<net::Descriptor> listeners;
  for (int server = 0; server < setup.servers; ++server) {
    listeners.push_back(net::listen_at("127.0.0.1", 0, error));
    setup.echo_ports.push_back(net::port_of(listeners.back()));
  }
  std::vector<pid_t> children{start(options, setup)};
  for (options.index = 0; options.index < setup.servers; ++options.index) {
    options.role = WorldRole::server;
    children.push_back(
        start(options, setup, std::move(listeners[static_cast<size_t>(options.index)])));
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
