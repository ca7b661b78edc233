#include "troika/server/server.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/server/snapshot.h"

namespace troika::server {

namespace {

constexpr size_t kMostCopy = size_t{1} << 36;
constexpr size_t kMostEarly = 256;
constexpr size_t kMostEarlyBytes = size_t{256} << 20;

}  // namespace

Server::Server(net::Endpoint& endpoint, ServerOptions options)
    : endpoint_(endpoint),
      answers_(endpoint, kAnswers),
      options_(std::move(options)),
      member_(
          endpoint, options_.member, Role::server, [this](Beat& beat) { fill(beat); },
          [this](const State& state) { follow(state); }) {
  for (const auto& [channel, most] :
       {std::pair(kRequests, kMostMessage + 4096), std::pair(kCopies, kMostCopy),
        std::pair(kReceipts, size_t{1024})}) {
    endpoint_.handle(channel, most, [this, channel](const std::string& peer, std::string message) {
      receive(channel, peer, std::move(message));
    });
  }
  net::act_on(endpoint_, [this] { tick(); });
}

Server::~Server() {
  // A state that comes after this could start the timer for long work.
  for (const auto channel : {kStates, kRequests, kCopies, kReceipts}) {
    endpoint_.handle(channel, 0, {});
  }
  net::act_on(endpoint_, [this] {
    endpoint_.cancel(timer_, net::Outcome::cancelled);
    if (long_timer_ != 0) endpoint_.cancel(long_timer_, net::Outcome::cancelled);
  });
}

void Server::tick() {
  for (auto& [index, range] : ranges_) range.resend();
  timer_ = endpoint_.after(options_.resend / 4, [this] { tick(); });
}

void Server::receive(net::Channel channel, const std::string& peer, std::string message) {
  if (channel != kRequests) return take(channel, peer, std::move(message));
  answers_.begin_turn();
  try {
    for_each_message(std::move(message),
                     [&](std::string one) { take(channel, peer, std::move(one)); });
  } catch (const Error& error) {
    log::warn("messages of {}: {}", peer, error.what());
  }
}

void Server::take(net::Channel channel, const std::string& peer, std::string message) {
  try {
    if (try_take(channel, peer, message)) return;
    keep(channel, peer, std::move(message));
    // A beat asks for the newest map and step, which do not help while ranges are made.
    if (to_make_.empty()) member_.beat();
  } catch (const std::exception& error) {
    log::warn("a message of {}: {}", peer, error.what());
  }
}

void Server::keep(net::Channel channel, const std::string& peer, std::string message) {
  // Senders send again what is not kept.
  if (message.size() > kMostEarlyBytes) return;
  if (channel == kCopies && !member_.map()->has_server(peer)) return;
  while (early_.size() == kMostEarly || early_bytes_ + message.size() > kMostEarlyBytes) {
    early_bytes_ -= early_.front().message.size();
    early_.pop_front();
  }
  early_bytes_ += message.size();
  early_.push_back({channel, peer, std::move(message)});
}

bool Server::try_take(net::Channel channel, const std::string& peer, std::string& message) {
  const uint64_t generation = member_.map()->generation;
  if (channel == kReceipts) {
    const auto receipt = parse_receipt(message);
    const auto found = ranges_.find(receipt.range);
    if (found != ranges_.end()) found->second.take_receipt(peer, receipt);
  } else if (channel == kCopies) {
    const auto head = parse_copy_head(message);
    if (head.generation > generation || to_make_.contains(head.range)) return false;
    const auto found = ranges_.find(head.range);
    if (found == ranges_.end()) return true;
    found->second.take_copy(peer, head, std::string_view(message).substr(kCopyHead));
  } else {
    const auto kept = std::make_shared<std::string>(std::move(message));
    const auto head = parse_head(*kept);
    // The worker has heard of a commit before this server, which must not trust it.
    if (head.generation > generation || head.committed > committed_ ||
        to_make_.contains(head.range)) {
      message = std::move(*kept);
      return false;
    }
    const auto found = ranges_.find(head.range);
    if (found != ranges_.end()) requests_ += found->second.take_request(peer, head, kept);
  }
  return true;
}

void Server::follow(const State& state) {
  // Other servers have the ranges of a server that the scheduler refuses.
  if (!member_.refusal().empty()) {
    ranges_.clear();
    to_make_.clear();
    snapshot_ = {};
    return;
  }
  if (!failure_.empty() || member_.map()->generation == 0) return;
  committed_ = std::max(committed_, state.committed);
  follow_map();
  follow_snapshot(state);
  if (long_timer_ == 0) do_long_work();
}

void Server::follow_map() {
  const auto& map = member_.map();
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
    const auto found = ranges_.find(i);
    if (!map->has_server(i, endpoint_.name())) {
      ranges_.erase(i);
      to_make_.erase(i);
    } else if (found != ranges_.end()) {
      found->second.follow(map);
    } else {
      to_make_.insert(i);
    }
  }
  if (to_make_.empty()) take_early();
}

void Server::take_early() {
  auto early = std::exchange(early_, {});
  early_bytes_ = 0;
  for (auto& [channel, peer, message] : early) take(channel, peer, std::move(message));
}

void Server::follow_snapshot(const State& state) {
  snapshot_.is_ordered = state.snapshot != 0;
  // An older state without the order may arrive after a newer one, so the files that are written
  // are not forgotten before the next order.
  if (state.snapshot == 0 || state.snapshot == snapshot_.order) return;
  snapshot_ = {.is_ordered = true,
               .order = state.snapshot,
               .step = state.snapshot_step,
               .folder = state.snapshot_folder};
}

void Server::do_long_work() {
  long_timer_ = 0;
  if (!make_one() && !save_one()) return;
  long_timer_ = endpoint_.after(net::Duration(0), [this] { do_long_work(); });
}

bool Server::make_one() {
  if (to_make_.empty() || !failure_.empty()) return false;
  const uint32_t index = *to_make_.begin();
  const auto& map = member_.map();
  try {
    HeldRange range(answers_, index, static_cast<uint32_t>(map->ranges.size()), tables_,
                    options_.resend);
    // The first holders of a range were never its joiners, which get copies.
    const auto& holders = map->ranges[index].holders;
    const bool is_holder = std::ranges::find(holders, endpoint_.name()) != holders.end();
    if (is_holder && !map->origin.empty()) load(index, range);
    to_make_.erase(index);
    ranges_.emplace(index, std::move(range)).first->second.follow(map);
  } catch (const Error& error) {
    return fail(error);
  } catch (const std::exception& error) {
    return fail(
        Error("server", ErrorKind::usage,
              {.what = fmt::format("range {} of {} cannot be made", index, map->ranges.size()),
               .got = error.what(),
               .expected = "memory for its keys",
               .hint = "more servers, or fewer keys"}));
  }
  take_early();
  return true;
}

bool Server::fail(const Error& error) {
  failure_ = error.what();
  log::error("{}", failure_);
  to_make_.clear();
  early_.clear();
  early_bytes_ = 0;
  member_.beat();
  return false;
}

void Server::load(uint32_t index, HeldRange& range) const {
  const auto& map = member_.map();
  const auto saved = read_index(map->origin).ranges;
  if (saved.size() != map->ranges.size()) {
    throw Error("server", ErrorKind::usage,
                {.what = "the ranges of snapshot " + map->origin,
                 .got = std::to_string(saved.size()),
                 .expected = std::to_string(map->ranges.size())});
  }
  range.load_snapshot(read_range(map->origin, saved[index]));
}

bool Server::save_one() {
  if (!snapshot_.is_ordered || !snapshot_.failure.empty()) return false;
  for (auto& [index, range] : ranges_) {
    if (!range.is_master() || snapshot_.saved.contains(index)) continue;
    try {
      snapshot_.saved[index] =
          write_range(snapshot_.folder, index, endpoint_.name(), range.save_after(snapshot_.step));
    } catch (const Error& error) {
      snapshot_.failure = error.what();
    }
    member_.beat();
    return true;
  }
  return false;
}

void Server::fill(Beat& beat) {
  beat.copies.clear();
  beat.bytes = beat.keys = 0;
  beat.requests = requests_;
  beat.snapshot = snapshot_.is_ordered ? snapshot_.order : 0;
  beat.failure = failure_.empty() && snapshot_.is_ordered ? snapshot_.failure : failure_;
  beat.saved.clear();
  for (const auto& [index, saved] : snapshot_.saved) beat.saved.push_back(saved);
  beat.committed = -1;
  for (const auto& [index, range] : ranges_) {
    for (auto& copy : range.copies_done()) beat.copies.push_back(std::move(copy));
    beat.bytes += range.range().bytes();
    beat.keys += range.range().keys();
    beat.committed = std::max(beat.committed, range.range().committed());
  }
}

void Server::wait_until_ready(Deadline deadline) {
  std::string problem;
  ErrorKind kind = ErrorKind::timeout;
  const auto is_over = [&] {
    kind = !failure_.empty() ? ErrorKind::usage : ErrorKind::peer;
    problem = !failure_.empty() ? failure_ : member_.refusal();
    return !problem.empty() || (!ranges_.empty() && to_make_.empty());
  };
  if (!endpoint_.run_until(is_over, time_left(deadline))) {
    net::act_on(endpoint_, [&] { problem = member_.scheduler_age(); });
    kind = ErrorKind::timeout;
  }
  if (problem.empty()) return;
  throw Error("server", kind,
              {.what = "server " + endpoint_.name() + " has no role", .got = problem});
}

Surroundings Server::surroundings() {
  Surroundings surroundings;
  net::act_on(endpoint_, [&] {
    surroundings = member_.surroundings();
    surroundings.failure = failure_;
  });
  return surroundings;
}

void Server::leave(Deadline deadline) {
  net::act_on(endpoint_, [this] { member_.leave(); });
  if (endpoint_.run_until([this] { return member_.may_leave(); }, time_left(deadline))) return;
  throw Error("server", ErrorKind::timeout,
              {.what = "server " + endpoint_.name() + " could not hand its ranges over in time",
               .hint = "are there enough other servers?"});
}

}  // namespace troika::server
