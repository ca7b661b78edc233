// A parameter server over sockets: nodes with threads, in one process.
#include <gmock/gmock.h>

#include <thread>

#include "tests/net/endpoints.h"
#include "troika/server/scheduler.h"
#include "troika/server/server.h"
#include "troika/server/worker.h"

namespace troika::server {
namespace {

using net::TcpEndpoint;

class Sockets {
 public:
  TcpEndpoint& add(const std::string& name) {
    auto& endpoint = endpoints_[name];
    endpoint = std::make_unique<TcpEndpoint>(net::options_for(name, secret_));
    for (const auto& [other, peer] : endpoints_) {
      if (other != name) endpoint->connect(other, peer->addresses(), net::soon());
    }
    return *endpoint;
  }
  void remove(const std::string& name) { endpoints_.erase(name); }

 private:
  const net::Secret secret_ = net::Secret::random();
  std::map<std::string, std::unique_ptr<TcpEndpoint>> endpoints_;
};

TableSpec socket_table(Application application) {
  return {.name = "w",
          .type = ValueType::float64,
          .keys = 1000,
          .width = 4,
          .application = application,
          .update = parse_update("sum")};
}

// Each worker is a thread that uses the blocking calls.
TEST(ServerSockets, WorkersInThreadsMakeSequentialSteps) {
  Sockets sockets;
  Scheduler scheduler(sockets.add("scheduler"), {.tables = {socket_table(Application::per_step)},
                                                 .ranges = 16,
                                                 .replicas = 1,
                                                 .first_servers = 2,
                                                 .first_workers = 2});
  Server s0(sockets.add("s0")), s1(sockets.add("s1"));
  auto& e0 = sockets.add("w0");
  auto& e1 = sockets.add("w1");
  std::vector<Worker*> workers;
  Worker w0(e0), w1(e1);
  const auto work = [](Worker& worker) {
    worker.wait_until_ready(net::soon());
    for (int step = 0; step < 20; ++step) {
      worker.begin_step().wait(net::soon());
      EXPECT_EQ(worker.step(), step);
      const auto pull = worker.pull("w", KeySpan{0, 1000});
      pull.wait(net::soon());
      EXPECT_THAT(pull.values<double>(), testing::Each(2.0 * step));
      worker.push("w", KeySpan{0, 1000}, std::vector<double>(4000, 1));
      worker.end_step();
    }
  };
  std::thread other([&] { work(w1); });
  work(w0);
  other.join();
  scheduler.wait_for(2, 2, net::soon());
  EXPECT_THAT(scheduler.status(), testing::HasSubstr("worker 1 w"));
  EXPECT_THAT(scheduler.status(), testing::HasSubstr("server s1: heard "));
  w0.leave(net::soon());
  w1.leave(net::soon());
}

}  // namespace
}  // namespace troika::server
