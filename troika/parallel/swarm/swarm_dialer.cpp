#include "troika/parallel/swarm/swarm_dialer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "troika/base/error.h"
#include "troika/cluster/discovery/run_secret.h"

namespace troika::parallel {

namespace {

constexpr Milliseconds kDialRest{200};
constexpr Milliseconds kDialPatience{2000};

}  // namespace

std::string show(const net::Address& address) {
  return address.host.find(':') == std::string::npos
             ? fmt::format("{}:{}", address.host, address.port)
             : fmt::format("[{}]:{}", address.host, address.port);
}

swarm::DoorSign ask_door(const net::Secret& secret, const net::Address& address,
                         Deadline deadline) {
  net::TcpEndpoint asker(
      {.name = cluster::unique_name(), .secret = secret, .listen = {}, .polls = false});
  const auto failed = [&](ErrorKind kind, const std::string& got) {
    return Error("swarm", kind,
                 {.what = "no peer of the swarm at " + show(address),
                  .got = got,
                  .expected = "a process with the same secret",
                  .hint = "TROIKA_RUN_SECRET_FILE names the file of the secret, which all peers "
                          "must have"});
  };
  const auto failure = asker.try_connect(swarm::kDoorName, address, secret, {deadline});
  if (failure) throw failed(ErrorKind::failure, describe(*failure));
  std::optional<std::pair<net::Result, std::string>> answered;
  net::Requests requests(asker, swarm::kDoors, 4096);
  requests.ask(swarm::kDoorName, "", deadline.left(),
               [&](const net::Result& result, const std::string& answer) {
                 answered.emplace(result, answer);
               });
  asker.run_until([&] { return answered.has_value(); }, deadline.left() + Milliseconds(100));
  if (!answered || answered->first.outcome != net::Outcome::done) {
    throw failed(ErrorKind::timeout, answered ? answered->first.reason : "no answer");
  }
  return swarm::sign_from(answered->second);
}

SwarmDialer::SwarmDialer(net::TcpEndpoint& endpoint, const net::Secret& secret, std::string run,
                         SwarmAcquaintances acquaintances)
    : endpoint_(endpoint),
      secret_(secret),
      run_(std::move(run)),
      acquaintances_(std::move(acquaintances)),
      thread_([this](const std::stop_token& stop) { this->run(stop); }) {}

std::set<std::string> SwarmDialer::names() const {
  const std::lock_guard lock(mutex_);
  std::set<std::string> names;
  for (const auto& [address, name] : names_) names.insert(name);
  return names;
}

std::map<std::string, std::string> SwarmDialer::failures() const {
  const std::lock_guard lock(mutex_);
  return failures_;
}

bool SwarmDialer::has_failed_at(const std::string& peer) const {
  const std::lock_guard lock(mutex_);
  return unreachable_.contains(peer);
}

std::string SwarmDialer::other_run() const {
  const std::lock_guard lock(mutex_);
  return other_run_;
}

void SwarmDialer::run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    learn_names(stop);
    auto peers = acquaintances_.told();
    peers.insert(acquaintances_.named.begin(), acquaintances_.named.end());
    {
      const std::lock_guard lock(mutex_);
      for (const auto& address : acquaintances_.known) {
        const auto name = names_.find(show(address));
        if (name != names_.end()) peers[name->second].push_back(address);
      }
    }
    for (const auto& [name, addresses] : peers) {
      if (stop.stop_requested()) return;
      if (name == endpoint_.name() || acquaintances_.is_connected(name)) continue;
      try_peer(name, addresses);
    }
    std::unique_lock lock(mutex_);
    rest_.wait_for(lock, stop, kDialRest, [] { return false; });
  }
}

void SwarmDialer::learn_names(const std::stop_token& stop) {
  for (const auto& address : acquaintances_.known) {
    const auto at = show(address);
    {
      const std::lock_guard lock(mutex_);
      if (names_.contains(at)) continue;
    }
    if (stop.stop_requested()) return;
    std::string failure;
    std::optional<swarm::DoorSign> sign;
    try {
      sign = ask_door(secret_, address, Deadline::after(kDialPatience));
    } catch (const Error& problem) {
      failure = problem.what();
    }
    const std::lock_guard lock(mutex_);
    if (!sign) {
      failures_[at] = failure;
    } else if (sign->run != run_) {
      other_run_ = fmt::format("{} at {}", sign->run, at);
    } else {
      names_[at] = sign->name;
      failures_.erase(at);
    }
  }
}

void SwarmDialer::try_peer(const std::string& name, const std::vector<net::Address>& addresses) {
  // A client will connect by itself.
  if (addresses.empty()) return;
  for (const auto& address : addresses) {
    std::string problem;
    try {
      const auto failure =
          endpoint_.try_connect(name, address, secret_, {Deadline::after(kDialPatience)});
      if (!failure || failure->kind == net::DialFailure::Kind::busy) {
        const std::lock_guard lock(mutex_);
        unreachable_.erase(name);
        return;
      }
      problem = describe(*failure);
    } catch (const Error& refused) {
      problem = refused.what();
    }
    // Another peer may listen there by now.
    const std::lock_guard lock(mutex_);
    if (names_.erase(show(address)) > 0) failures_[show(address)] = problem;
  }
  const std::lock_guard lock(mutex_);
  unreachable_.insert(name);
}

}  // namespace troika::parallel
