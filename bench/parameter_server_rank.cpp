// A process of bench/parameter_server: the scheduler, a server or a worker of a parameter server.
//
// parameter_server_rank RANGES HOSTS, with the variables of `troika launch --servers`. Server i
// also sends bare messages of `net` back, and listens for them at port 29700 + i of host i of the
// comma-separated numeric HOSTS. A worker takes commands on its standard input (see
// rank_commands.h): "push_pull MEBI" and "messages MEBI" send that many MiB of float32 values there
// and back, in as many messages as there are ranges; "pushes N" pushes N single values.
#include <fmt/format.h>
#include <malloc.h>

#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <thread>
#include <vector>

#include "bench/rank_commands.h"
#include "troika/net/socket.h"
#include "troika/net/tcp_endpoint.h"
#include "troika/server/scheduler.h"
#include "troika/server/world.h"

namespace {

using namespace troika;
using namespace troika::server;

constexpr uint64_t kMebi = uint64_t{1} << 20;
constexpr std::array<uint64_t, 4> kSizes{1, 4, 16, 64};  // in MiB
constexpr uint64_t kSmallKeys = 100'000;
constexpr int kFirstPort = 29'700;

// After a message of this channel from a caller, an echo expects its other messages.
constexpr net::Channel kHello = 1000;

Deadline patience() {
  return Deadline::after(std::chrono::hours(1));
}

struct Setup {
  WorldOptions world;
  int ranges;
  std::vector<net::Address> echoes;  // of the servers
};

WorldParts parts(const Setup& setup) {
  WorldParts parts;
  for (const uint64_t mebi : kSizes) {
    parts.scheduler.tables.push_back(
        {.name = fmt::format("w{}", mebi), .keys = mebi * kMebi / sizeof(float)});
  }
  parts.scheduler.tables.push_back({.name = "small", .keys = kSmallKeys});
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
  explicit Echo(const Setup& setup)
      : ranges_(setup.ranges),
        buffers_(static_cast<size_t>(setup.world.workers * setup.ranges)),
        endpoint_({.name = echo(setup.world.index),
                   .secret = *setup.world.secret,
                   .protection = setup.world.protection,
                   .listen = {setup.echoes.at(static_cast<size_t>(setup.world.index))}}) {
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
  explicit Caller(const Setup& setup)
      : servers_(setup.world.servers),
        buffers_(static_cast<size_t>(setup.ranges)),
        endpoint_({.name = caller(setup.world.index),
                   .secret = *setup.world.secret,
                   .protection = setup.world.protection,
                   .listen = {}}) {
    for (auto& buffer : buffers_) buffer.resize(kSizes.back() * kMebi / buffers_.size());
    std::array<char, sizeof(int)> hello;
    std::memcpy(hello.data(), &setup.world.index, sizeof(int));
    for (int server = 0; server < servers_; ++server) {
      endpoint_.connect(echo(server), {setup.echoes.at(static_cast<size_t>(server))}, patience());
      net::send_by(endpoint_, echo(server), kHello, std::string_view(hello.data(), hello.size()),
                   patience());
      net::receive_by(endpoint_, echo(server), kHello, hello, patience());
    }
  }
  void call(std::span<const float> values) {
    const size_t ranges = buffers_.size(), bytes = values.size_bytes() / ranges;
    const auto* const begin = reinterpret_cast<const char*>(values.data());
    size_t missing = ranges;
    bool has_failed = false;
    for (size_t range = 0; range < ranges; ++range) {
      const auto peer = echo(static_cast<int>(range * static_cast<size_t>(servers_) / ranges));
      const auto channel = static_cast<net::Channel>(range);
      endpoint_.receive(peer, channel, std::span(buffers_[range]).first(bytes),
                        [&](const net::Result& result) {
                          has_failed = has_failed || result.outcome != net::Outcome::done;
                          --missing;
                        });
      endpoint_.send(peer, channel, std::string_view(begin + range * bytes, bytes),
                     net::Priority::normal, [](const net::Result&) {});
    }
    if (!endpoint_.run_until([&] { return missing == 0; }, std::chrono::minutes(1)) || has_failed) {
      throw Error("bench", ErrorKind::timeout, {.what = "a message did not come back"});
    }
  }

 private:
  const int servers_;
  std::vector<std::vector<char>> buffers_;
  net::TcpEndpoint endpoint_;
};

void push_single_values(Worker& worker, int count) {
  const std::vector<float> one{1};
  std::vector<Handle> pushes;
  pushes.reserve(static_cast<size_t>(count));
  for (uint64_t i = 0; i < static_cast<uint64_t>(count); ++i) {
    pushes.push_back(worker.push("small", KeySpan{i * 48'271 % kSmallKeys, 1}, one));
  }
  for (const auto& push : pushes) push.wait(patience());
}

void answer(Worker& worker, Caller& caller) {
  std::map<int, std::shared_ptr<const std::vector<float>>> gradients;
  std::map<int, std::shared_ptr<std::vector<float>>> results;
  for (const uint64_t mebi : kSizes) {
    const auto count = mebi * kMebi / sizeof(float);
    gradients[static_cast<int>(mebi)] = std::make_shared<std::vector<float>>(count, 1.0f);
    results[static_cast<int>(mebi)] = std::make_shared<std::vector<float>>(count);
  }
  const auto seconds = [](const auto& function) {
    return [function](int number) -> nlohmann::json {
      const Stopwatch watch;
      function(number);
      return watch.seconds();
    };
  };
  answer_commands({{"push_pull", seconds([&](int mebi) {
                      const auto& kept = gradients.at(mebi);
                      worker
                          .push_pull(fmt::format("w{}", mebi), KeySpan{0, kept->size()}, *kept,
                                     {.keeps = kept, .into = results.at(mebi)})
                          .wait(patience());
                    })},
                   {"messages", seconds([&](int mebi) { caller.call(*gradients.at(mebi)); })},
                   {"pushes", seconds([&](int count) { push_single_values(worker, count); })}});
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) return 2;
  // As training does (compat::count_tensor_memory()).
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
  ::mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  Setup setup{.world = find_world(), .ranges = static_cast<int>(number_of(argv[1])), .echoes = {}};
  for (int port = kFirstPort; const auto& host : split(argv[2], ',')) {
    setup.echoes.push_back({.host = host, .port = port++});
  }
  std::optional<Echo> echo;
  if (setup.world.role == WorldRole::server) echo.emplace(setup);
  World world(setup.world, parts(setup));
  if (!world.is_worker()) {
    world.serve(patience());
    return 0;
  }
  Caller caller(setup);
  auto& worker = world.worker(patience());
  worker.begin_step().wait(patience());  // It begins when all workers have joined.
  worker.end_step();
  answer(worker, caller);
  world.leave(patience());
  return 0;
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << "\n";
  return troika::exit_code(error);
}
