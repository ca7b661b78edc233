// A parameter server over sockets: nodes with threads, in one process.
#include <gmock/gmock.h>

#include <array>
#include <thread>

#include "tests/net/endpoints.h"
#include "troika/server/batch/batch_replica.h"
#include "troika/server/batch/coordinator.h"
#include "troika/server/batch/lbfgs.h"
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

// L-BFGS minimises the sum of (x_i - i)^2, of which each portion has one term. Replicas are threads
// that use the blocking calls.
TEST(ServerSockets, ReplicasInThreadsMinimise) {
  constexpr uint64_t kTerms = 6;
  Sockets sockets;
  Scheduler scheduler(sockets.add("scheduler"),
                      {.tables = vector_tables(Lbfgs::vector_names(3), kTerms, "g"),
                       .ranges = 4,
                       .first_servers = 2,
                       .first_workers = 3});
  Server s0(sockets.add("s0")), s1(sockets.add("s1"));
  auto& e0 = sockets.add("w0");
  auto& e1 = sockets.add("w1");
  auto& e2 = sockets.add("w2");
  Worker w0(e0), w1(e1), w2(e2);
  std::array<int, 2> computed{};
  int committed = 0;
  const auto work = [](net::Endpoint& endpoint, Worker& worker, int& count) {
    worker.wait_until_ready(net::soon());
    BatchReplica replica(endpoint, worker, {.coordinator = "w0"});
    while (const auto portion = replica.next(net::soon())) {
      std::vector<double> gradient(kTerms);
      const auto i = portion->portion;
      const double error = portion->parameters()[i] - static_cast<double>(i);
      gradient[i] = 2 * error;
      replica.finish(*portion, error * error, std::move(gradient));
      ++count;
    }
  };
  std::thread first([&] { work(e1, w1, computed[0]); });
  std::thread second([&] { work(e2, w2, computed[1]); });
  w0.wait_until_ready(net::soon());
  {
    Coordinator coordinator(e0, w0, {.portions = kTerms});
    ServedVectors vectors(w0, std::chrono::seconds(60));
    Lbfgs lbfgs(vectors, [&] { return coordinator.evaluate(net::soon()); }, {.history = 3});
    LbfgsIteration last;
    while ((last = lbfgs.iterate()).outcome == LbfgsOutcome::moved) {
    }
    EXPECT_EQ(last.outcome, LbfgsOutcome::converged);
    committed = static_cast<int>(coordinator.counts().committed);
    EXPECT_EQ(coordinator.counts().passes * kTerms, coordinator.counts().committed);
  }
  first.join();
  second.join();
  EXPECT_GE(computed[0] + computed[1], committed) << "a fast replica may compute all portions";
  const auto pull = w0.pull("x", KeySpan{0, kTerms});
  pull.wait(net::soon());
  for (size_t i = 0; i < kTerms; ++i) {
    EXPECT_NEAR(pull.values<double>()[i], static_cast<double>(i), 1e-6);
  }
}

}  // namespace
}  // namespace troika::server
