#include "troika/server/server.h"

#include <utility>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/server/wire.h"

namespace troika::server {

namespace {

constexpr size_t kMostCopy = size_t{1} << 36;
constexpr size_t kMostEarly = 256;

}  // namespace

Server::Server(net::Endpoint& endpoint, ServerOptions options)
    : endpoint_(endpoint),
      options_(std::move(options)),
      member_(
          endpoint, options_.member, Role::server, [this](Beat& beat) { fill(beat); },
          [this](const State&) { follow(); }) {
  for (const auto& [channel, most] :
       {std::pair(kRequests, kMostMessage + 4096), std::pair(kCopies, kMostCopy),
        std::pair(kReceipts, size_t{1024})}) {
    endpoint_.handle(channel, most, [this, channel](const std::string& peer, std::string message) {
      take(channel, peer, std::move(message));
    });
  }
  net::act_on(endpoint_, [this] { tick(); });
}

Server::~Server() {
  for (const auto channel : {kRequests, kCopies, kReceipts}) endpoint_.handle(channel, 0, {});
  net::act_on(endpoint_, [this] { endpoint_.cancel(timer_, net::Outcome::cancelled); });
}

void Server::tick() {
  for (auto& [index, range] : ranges_) range.resend();
  timer_ = endpoint_.after(options_.resend / 4, [this] { tick(); });
}

void Server::take(net::Channel channel, const std::string& peer, std::string message) {
  try {
    if (try_take(channel, peer, message)) return;
    if (early_.size() == kMostEarly) early_.pop_front();
    early_.push_back({channel, peer, std::move(message)});
    member_.beat();
  } catch (const Error& error) {
    log::warn("a message of {}: {}", peer, error.what());
  }
}

bool Server::try_take(net::Channel channel, const std::string& peer, std::string& message) {
  const uint64_t generation = member_.map()->generation;
  if (channel == kReceipts) {
    const auto receipt = parse_receipt(message);
    const auto found = ranges_.find(receipt.range);
    if (found != ranges_.end()) found->second.take_receipt(peer, receipt);
  } else if (channel == kCopies) {
    const auto head = parse_copy_head(message);
    if (head.generation > generation) return false;
    const auto found = ranges_.find(head.range);
    if (found == ranges_.end()) return true;
    found->second.take_copy(peer, head, std::string_view(message).substr(kCopyHead));
  } else {
    const auto kept = std::make_shared<std::string>(std::move(message));
    const auto request = parse_request(*kept);
    if (request.head.generation > generation) {
      message = std::move(*kept);
      return false;
    }
    const auto found = ranges_.find(request.head.range);
    if (found != ranges_.end()) requests_ += found->second.take_request(peer, request, kept);
  }
  return true;
}

void Server::follow() {
  const auto& map = member_.map();
  if (!failure_.empty() || map->generation == 0) return;
  try {
    if (tables_.empty()) {
      for (const auto& spec : map->tables) {
        tables_.push_back({spec, make_update(spec.update, options_.updates)});
      }
    }
  } catch (const Error& error) {
    failure_ = error.what();
    tables_.clear();
    return;
  }
  for (uint32_t i = 0; i < map->ranges.size(); ++i) {
    if (!map->has_server(i, endpoint_.name())) {
      ranges_.erase(i);
      continue;
    }
    const auto count = static_cast<uint32_t>(map->ranges.size());
    ranges_.try_emplace(i, endpoint_, i, count, tables_, options_.resend).first->second.follow(map);
  }
  auto early = std::exchange(early_, {});
  for (auto& [channel, peer, message] : early) take(channel, peer, std::move(message));
}

void Server::fill(Beat& beat) {
  beat.copies.clear();
  beat.bytes = beat.keys = 0;
  beat.requests = requests_;
  for (const auto& [index, range] : ranges_) {
    for (auto& copy : range.copies_done()) beat.copies.push_back(std::move(copy));
    beat.bytes += range.range().bytes();
    beat.keys += range.range().keys();
  }
}

void Server::wait_until_ready(Deadline deadline) {
  std::string problem;
  ErrorKind kind = ErrorKind::timeout;
  const auto is_over = [&] {
    kind = !failure_.empty() ? ErrorKind::usage : ErrorKind::peer;
    problem = !failure_.empty() ? failure_ : member_.refusal();
    return !problem.empty() || !ranges_.empty();
  };
  if (!endpoint_.run_until(is_over, time_left(deadline))) {
    net::act_on(endpoint_, [&] { problem = member_.scheduler_age(); });
    kind = ErrorKind::timeout;
  }
  if (problem.empty()) return;
  throw Error("server", kind,
              {.what = "server " + endpoint_.name() + " has no role", .got = problem});
}

void Server::leave(Deadline deadline) {
  net::act_on(endpoint_, [this] { member_.leave(); });
  if (endpoint_.run_until([this] { return member_.may_leave(); }, time_left(deadline))) return;
  throw Error("server", ErrorKind::timeout,
              {.what = "server " + endpoint_.name() + " could not hand its ranges over in time",
               .hint = "are there enough other servers?"});
}

}  // namespace troika::server
