// The messages of a parameter server over sockets: of a scheduler, two servers and two workers.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/recording_endpoint.h"
#include "troika/server/scheduler.h"
#include "troika/server/server.h"
#include "troika/server/worker.h"

namespace troika::server {

inline constexpr uint64_t kLong = 20'000;  // the keys of table w

inline Deadline soon() {
  return Deadline::after(std::chrono::seconds(60));
}

inline std::vector<TableSpec> tables() {
  return {parse_table("w float64 keys=20000 width=1 initial=0 spread=0 seed=0 per_push momentum "
                      "rate=0.1 momentum=0.5"),
          parse_table("steps float32 keys=40 width=2 initial=0 spread=0 seed=0 per_step adam"),
          parse_table("rows float32 keys=0 width=2 initial=0 spread=1 seed=3 admit=2 rows=64 "
                      "per_push adagrad"),
          parse_table("lengths float64 keys=20 width=0 initial=0 spread=0 seed=0 per_push sum")};
}

inline net::TcpOptions endpoint_options(const std::string& name, const net::Secret& secret) {
  return {.name = name, .secret = secret, .listen = {{"127.0.0.1", 0}}};
}

// One call of each kind, with and without filters.
inline void use(Worker& worker, int step) {
  const std::vector<Key> rows{1, 7, 1000, 77'000}, few{0, 3, 19};
  const std::vector<uint32_t> lengths{1, 0, 2};
  worker.begin_step().wait(soon());
  worker.set_filters("rows", parse_filters(step % 2 ? "cache_keys, fixed bytes=2, zlib" : ""),
                     parse_filters(step % 2 ? "cache_keys, half" : ""));
  std::vector<Handle> calls{
      worker.push_pull("w", KeySpan{0, kLong}, std::vector<double>(kLong, 1)),
      worker.push("steps", KeySpan{0, 40}, std::vector<float>(80, 1)),
      worker.push_pull("rows", rows, std::vector<float>(8, 1)),
      worker.push("lengths", few, std::vector<double>(3, 1), {.lengths = lengths}),
      worker.pull("lengths", few),
      worker.pull("w", few),
      worker.pull_state("w", KeySpan{0, 10}),
      worker.assign("w", KeySpan{5, 2}, std::vector<double>(2, 1)),
      worker.compute({VectorOperation::fill("w", 1)})};
  for (const auto& call : calls) call.wait(soon());
  worker.end_step();
}

// Returns all messages of such a world that makes some steps.
inline std::vector<Recorded> record(const net::Secret& secret) {
  Recording recording;
  std::map<std::string, std::unique_ptr<RecordingEndpoint>> endpoints;
  for (const char* name : {"scheduler", "s0", "s1", "w0", "w1"}) {
    auto& endpoint = endpoints[name];
    endpoint = std::make_unique<RecordingEndpoint>(endpoint_options(name, secret), recording);
    for (const auto& [other, peer] : endpoints) {
      if (other != name) endpoint->connect(*peer, soon());
    }
  }
  Scheduler scheduler(*endpoints["scheduler"], {.tables = tables(),
                                                .ranges = 2,
                                                .replicas = 1,
                                                .first_servers = 2,
                                                .first_workers = 2,
                                                .consistency = bounded_delay(1)});
  const ServerOptions server{.member = {.beat = std::chrono::milliseconds(10)}};
  Server s0(*endpoints["s0"], server), s1(*endpoints["s1"], server);
  const WorkerOptions worker{.member = {.beat = std::chrono::milliseconds(10)}};
  Worker w0(*endpoints["w0"], worker), w1(*endpoints["w1"], worker);
  const auto work = [](Worker& one) {
    one.wait_until_ready(soon());
    for (int step = 0; step < 4; ++step) use(one, step);
  };
  std::thread other([&] { work(w1); });
  work(w0);
  other.join();
  Scheduler::ask_for_status(*endpoints["w0"], "scheduler", soon());
  w0.leave(soon());
  w1.leave(soon());
  return recording.take();
}

}  // namespace troika::server
