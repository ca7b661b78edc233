// A parameter server on a simulated network: scheduler, servers and workers in one thread.
#pragma once

#include <gmock/gmock.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/support/faulty_endpoint.h"
#include "troika/net/simulated_network.h"
#include "troika/server/scheduler.h"
#include "troika/server/server.h"
#include "troika/server/worker.h"

namespace troika::server {

using std::chrono::milliseconds;

inline Deadline soon() {
  return Deadline::after(std::chrono::seconds(60));
}

class Nodes {
 public:
  explicit Nodes(SchedulerOptions options, uint64_t seed = 1, test::Faults faults = {})
      : network_(seed), faults_(faults), seed_(seed) {
    scheduler_ = std::make_unique<Scheduler>(add("scheduler"), std::move(options));
  }

  Server& add_server(const std::string& name, ServerOptions options = {}) {
    auto& server = servers_[name];
    server = std::make_unique<Server>(add(name), test_options(std::move(options)));
    return *server;
  }
  Worker& add_worker(const std::string& name, net::Duration patience = {}) {
    auto& worker = workers_[name];
    worker = std::make_unique<Worker>(add(name), WorkerOptions{.member = {.beat = milliseconds(50)},
                                                               .resend = milliseconds(20),
                                                               .patience = patience});
    return *worker;
  }
  // Adds servers s0, s1, ... and workers w0, w1, ..., and waits until all take part.
  void add_all(int servers, int workers) {
    for (int i = 0; i < servers; ++i) add_server("s" + std::to_string(i));
    for (int i = 0; i < workers; ++i) add_worker("w" + std::to_string(i));
    ASSERT_TRUE(run_until([&] {
      bool are_ready = true;
      for (auto& [name, worker] : workers_) are_ready = are_ready && worker->is_ready();
      return are_ready;
    }));
  }
  // From now on this node does nothing, like a stopped process. No other node is notified.
  void stop(const std::string& name) { network_.stop(name); }
  // Replaces the server by a new process with the same name.
  void begin_again(const std::string& name) {
    servers_.erase(name);
    servers_[name] = std::make_unique<Server>(endpoint(name), test_options({}));
  }
  // Ends the worker. Its endpoint goes on.
  void end_worker(const std::string& name) { workers_.erase(name); }
  // Ends the scheduler without notice.
  void end_scheduler() { scheduler_.reset(); }
  void begin_scheduler(SchedulerOptions options) {
    scheduler_ = std::make_unique<Scheduler>(endpoint("scheduler"), std::move(options));
  }
  void cut(const std::string& a, const std::string& b) { network_.cut(a, b); }
  void connect(const std::string& a, const std::string& b) { network_.connect(a, b); }

  bool run_until(const std::function<bool()>& is_over,
                 net::Duration at_most = std::chrono::seconds(60)) {
    return endpoints_.at("scheduler")->run_until(is_over, at_most);
  }
  void run_for(net::Duration time) {
    run_until([] { return false; }, time);
  }
  // Runs one event of the network.
  bool step() { return network_.step(network_.now() + std::chrono::seconds(60)); }

  Scheduler& scheduler() { return *scheduler_; }
  Server& server(const std::string& name) { return *servers_.at(name); }
  Worker& worker(int i) { return *workers_.at("w" + std::to_string(i)); }
  net::Endpoint& endpoint(const std::string& name) { return *endpoints_.at(name); }

 private:
  static ServerOptions test_options(ServerOptions options) {
    options.resend = milliseconds(20);
    options.member.beat = milliseconds(50);
    return options;
  }
  net::Endpoint& add(const std::string& name) {
    auto& inner = network_.add(name);
    for (const auto& [other, endpoint] : endpoints_) network_.connect(name, other);
    auto& endpoint = endpoints_[name];
    endpoint = std::make_unique<test::FaultyEndpoint>(inner, faults_, ++seed_);
    return *endpoint;
  }

  net::SimulatedNetwork network_;
  const test::Faults faults_;
  uint64_t seed_;
  std::map<std::string, std::unique_ptr<test::FaultyEndpoint>> endpoints_;
  std::unique_ptr<Scheduler> scheduler_;
  std::map<std::string, std::unique_ptr<Server>> servers_;
  std::map<std::string, std::unique_ptr<Worker>> workers_;
};

// A worker that makes steps, driven by callbacks: it pulls, calls `gradient`, and pushes its
// result.
class Trainer {
 public:
  // `gradient(step, values)` returns what is pushed.
  using Gradient = std::function<std::vector<double>(int64_t, std::span<const double>)>;

  Trainer(Worker& worker, std::string table, uint64_t keys, int64_t steps, Gradient gradient)
      : worker_(worker), table_(std::move(table)), keys_(keys), steps_(steps), gradient_(gradient) {
    begin();
  }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  bool is_done() const { return finished_ + 1 >= steps_; }
  int64_t finished() const { return finished_; }
  int64_t first() const { return first_; }  // the first step; -1: none has begun
  // Called with each step that begins, and with each one whose push was answered.
  std::function<void(int64_t)> on_step = {}, on_finish = {};
  // Calls its argument when a gradient is computed; none: at once.
  std::function<void(std::function<void()>)> compute = {};
  // From the next step on, calls have a list of keys.
  void use_list() {
    for (Key key = 0; key < keys_; ++key) list_.push_back(key);
  }

 private:
  Keys keys() const { return list_.empty() ? Keys(KeySpan{0, keys_}) : Keys(list_); }
  void begin() {
    auto begun = std::make_shared<Handle>(worker_.begin_step());
    begun->then([this, begun] {
      if (begun->error() == "the worker has ended") return;
      ASSERT_EQ(begun->error(), "");
      const int64_t step = worker_.step();
      if (first_ < 0) first_ = step;
      if (on_step) on_step(step);
      const auto pull = worker_.pull(table_, keys());
      pull.then([this, step, pull] { take(step, pull); });
    });
  }
  void take(int64_t step, const Handle& pull) {
    if (pull.error() == "the worker has ended") return;
    ASSERT_EQ(pull.error(), "");
    const auto push = [this, step, pull] { this->push(step, pull); };
    if (compute) return compute(push);
    push();
  }
  void push(int64_t step, const Handle& pull) {
    const auto values = gradient_(step, pull.values<double>());
    const auto push = worker_.push(table_, keys(), values);
    worker_.end_step();
    push.then([this, step, push] {
      if (push.error() == "the worker has ended") return;
      ASSERT_EQ(push.error(), "");
      finished_ = std::max(finished_, step);
      if (on_finish) on_finish(step);
    });
    if (step + 1 < steps_) begin();
  }

  Worker& worker_;
  const std::string table_;
  const uint64_t keys_;
  const int64_t steps_;
  const Gradient gradient_;
  std::vector<Key> list_;
  int64_t first_ = -1;
  int64_t finished_ = -1;
};

}  // namespace troika::server
