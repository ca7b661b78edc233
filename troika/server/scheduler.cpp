#include "troika/server/scheduler.h"

#include <fmt/format.h>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/server/send.h"

namespace troika::server {

namespace {

constexpr size_t kMostBeat = size_t{64} << 20;

}  // namespace

Scheduler::Scheduler(net::Endpoint& endpoint, SchedulerOptions options)
    : endpoint_(endpoint), interval_(options.limit / 8), membership_(std::move(options)) {
  endpoint_.handle(kBeats, kMostBeat, [this](const std::string& peer, const std::string& message) {
    take(peer, message);
  });
  net::act_on(endpoint_, [this] { tick(); });
}

Scheduler::~Scheduler() {
  endpoint_.handle(kBeats, 0, {});
  net::act_on(endpoint_, [this] { endpoint_.cancel(timer_, net::Outcome::cancelled); });
}

void Scheduler::take(const std::string& peer, const std::string& message) {
  try {
    if (membership_.take(peer, parse_beat(message), endpoint_.now())) tell_all();
  } catch (const Error& error) {
    log::warn("a beat of {}: {}", peer, error.what());
    return;
  }
  tell(peer);
}

void Scheduler::tick() {
  if (membership_.expire(endpoint_.now())) tell_all();
  timer_ = endpoint_.after(interval_, [this] { tick(); });
}

void Scheduler::tell(const std::string& name) {
  net::send_owned(endpoint_, name, kStates,
                  std::make_shared<const std::string>(to_message(membership_.state_for(name))));
}

void Scheduler::tell_all() {
  for (const auto& name : membership_.nodes()) tell(name);
}

void Scheduler::set_consistency(Consistency consistency) {
  net::act_on(endpoint_, [&] {
    if (membership_.set_consistency(std::move(consistency))) tell_all();
  });
}

void Scheduler::wait_for(int servers, int workers, Deadline deadline) {
  NodeCounts counts;
  const auto is_over = [&] {
    counts = membership_.counts();
    return counts.servers >= servers && counts.workers >= workers;
  };
  if (endpoint_.run_until(is_over, time_left(deadline))) return;
  throw Error("server", ErrorKind::timeout,
              {.what = "not all nodes joined in time",
               .got = fmt::format("{} servers and {} workers", counts.servers, counts.workers),
               .expected = fmt::format("{} and {}", servers, workers)});
}

RingMap Scheduler::map() {
  RingMap map;
  net::act_on(endpoint_, [&] { map = membership_.map(); });
  return map;
}

std::string Scheduler::status() {
  std::string text;
  net::act_on(endpoint_, [&] { text = membership_.status(endpoint_.now()); });
  return text;
}

}  // namespace troika::server
