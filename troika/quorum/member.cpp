#include "troika/quorum/member.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/net/bytes.h"
#include "troika/quorum/member_endpoint.h"
#include "troika/quorum/ring.h"

namespace troika::quorum {

namespace {

// As TorchFT's; more often if the heartbeat timeout is short.
constexpr net::Duration kHeartbeat = std::chrono::milliseconds(100);
constexpr net::Duration kTimeToPart = std::chrono::milliseconds(500);

}  // namespace

Member::Member(MemberOptions options)
    : options_(std::move(options)),
      heartbeat_(std::min(kHeartbeat, seconds(options_.rules.heartbeat_timeout / 10))),
      endpoint_(member_endpoint(options_)) {
  endpoint_.listen_to_peers([this](const net::PeerChange& change) {
    if (change.is_up) {
      peers_.insert(change.peer);
      return;
    }
    peers_.erase(change.peer);
    if (change.peer == kLighthouse) has_lost_ = true;
  });
  endpoint_.handle(kFromLighthouse, kMostControl,
                   [this](const std::string& peer, const std::string& text) {
                     if (peer != kLighthouse) return;
                     try {
                       take(news_from_json(text));
                     } catch (const Error& problem) {
                       refusal_ = problem.what();
                     }
                   });
  endpoint_.handle(kHealRequests, sizeof(int64_t),
                   [this](const std::string& peer, const std::string& message) {
                     if (message.size() != sizeof(int64_t)) return;
                     give_state(peer, net::take<int64_t>(message.data()));
                   });
  endpoint_.connect(kLighthouse, {options_.lighthouse},
                    Deadline::after(seconds(options_.connect_timeout)));
  net::act_on(endpoint_, [this] { beat(); });
}

Member::~Member() {
  net::act_on(endpoint_, [this] { endpoint_.listen_to_peers({}); });
}

void Member::beat() {
  report({.kind = Report::Kind::heartbeat});
  endpoint_.after(heartbeat_, [this] { beat(); });
}

void Member::report(const Report& report) {
  net::send_owned(endpoint_, kLighthouse, kToLighthouse,
                  std::make_shared<const std::string>(to_json(report)), net::Priority::urgent);
}

void Member::take(const News& news) {
  switch (news.kind) {
    case News::Kind::name:
      name_ = news.text;
      return;
    case News::Kind::found:
      founds_ = news.quorum.id > 0 ? Founding::again : Founding::first;
      return;
    case News::Kind::refused:
      refusal_ = news.text;
      return;
    case News::Kind::finished:
      ending_ = Ending::finished;
      return;
    case News::Kind::save:
      ending_ = Ending::saves;
      return;
    case News::Kind::waiting:
      if (news.text != news_.text) log::info("[quorum] waits for replicas: {}", news.text);
      break;
    case News::Kind::quorum:
      break;
  }
  if (news.quorum.step != news_.quorum.step) state_.reset();
  news_ = news;
}

void Member::throw_problem() {
  if (!refusal_.empty()) {
    throw Error("quorum", ErrorKind::peer,
                {.what = fmt::format("replica {} has no place in the run any more", options_.rank),
                 .got = refusal_,
                 .expected = "a place in each step",
                 .hint = "a new process in its place joins the others, if they go on"});
  }
  if (has_lost_) {
    throw Error("quorum", ErrorKind::peer,
                {.what = "the lighthouse is lost",
                 .got = fmt::format("the end of the connection to {}:{}", options_.lighthouse.host,
                                    options_.lighthouse.port),
                 .expected = "a lighthouse as long as the run",
                 .hint = "end it after its members"});
  }
}

void Member::wait(const std::function<bool()>& is_over, const std::string& what) {
  const bool has_ended =
      endpoint_.run_until([&] { return is_over() || has_lost_ || !refusal_.empty(); }, kForever);
  net::act_on(endpoint_, [] {});
  throw_problem();
  TROIKA_CHECK(has_ended, "the end of " + what);
}

bool Member::founds() {
  bool result = false;
  net::act_on(endpoint_, [&] { result = founds_ != Founding::none; });
  return result;
}

Quorum Member::current() {
  Quorum result;
  net::act_on(endpoint_, [&] { result = news_.quorum; });
  return result;
}

std::string Member::name_run(const std::function<std::string()>& choose) {
  report({.kind = Report::Kind::name});
  wait([&] { return name_.has_value(); }, "naming the run");
  std::string name;
  net::act_on(endpoint_, [&] { name = *name_; });
  if (!name.empty()) return name;
  name = choose();
  report({.kind = Report::Kind::name, .text = name});
  return name;
}

Share Member::share() {
  const auto quorum = current();
  const auto* own = quorum.find(endpoint_.name());
  TROIKA_CHECK(own != nullptr, "a step that has begun");
  return own->share;
}

Admission Member::join(const std::function<bool()>& stops) {
  report({.kind = Report::Kind::join,
          .rank = options_.rank,
          .process_group = ::getpgrp(),
          .addresses = addresses_of(endpoint_, options_.lighthouse),
          .rules = options_.rules});
  int64_t tried = 0;
  for (;;) {
    const auto has_place = [&] {
      const auto* own = news_.quorum.find(endpoint_.name());
      return own != nullptr && news_.quorum.id > tried;
    };
    const auto has_ended = [&] { return ending_ == Ending::finished; };
    bool is_stopped = false;
    wait(
        [&] {
          is_stopped = stops();
          return is_stopped || founds_ != Founding::none || has_ended() || has_place();
        },
        "joining");
    if (is_stopped) return {.is_stopped = true};
    if (has_ended()) return {.is_finished = true};
    if (founds_ != Founding::none) {
      return {.founds = true, .founds_again = founds_ == Founding::again};
    }
    const auto quorum = current();
    tried = quorum.id;
    const auto* own = quorum.find(endpoint_.name());
    const auto* donor = own ? quorum.find(own->donor) : nullptr;
    if (donor == nullptr) continue;
    if (auto state = heal(quorum, *donor, stops)) {
      report({.kind = Report::Kind::healed, .step = quorum.step});
      healed_ = quorum.step;
      return {.step = quorum.step, .state = std::move(*state)};
    }
  }
}

std::optional<Share> Member::begin_step(int64_t step, const std::function<std::string()>& state,
                                        const std::function<bool()>& stops) {
  bool is_ready = false, is_stopped = false;
  net::act_on(endpoint_,
              [&] { is_ready = std::exchange(founds_, Founding::none) != Founding::none; });
  if (is_ready) report({.kind = Report::Kind::ready, .step = step});
  wait(
      [&] {
        const auto& quorum = news_.quorum;
        is_stopped = stops();
        return is_stopped || founds_ != Founding::none || ending_ == Ending::finished ||
               (quorum.step >= step && quorum.find(endpoint_.name()) != nullptr);
      },
      "waiting for a quorum");
  if (is_stopped) return std::nullopt;
  require_unfinished(step);
  const auto quorum = current();
  const auto* own = quorum.find(endpoint_.name());
  const bool has_state = own != nullptr && (own->donor.empty() || healed_ == step);
  if (founds() || quorum.step != step || !has_state) lose_place(step);
  const bool gives = std::ranges::any_of(
      quorum.members, [&](const QuorumMember& member) { return member.donor == endpoint_.name(); });
  if (gives) {
    const auto own = std::make_shared<const std::string>(state());
    net::act_on(endpoint_, [&] {
      state_ = own;
      for (const auto& peer : std::exchange(patients_, {})) give_state(peer, step);
    });
  }
  return own->share;
}

void Member::require_unfinished(int64_t step) {
  bool is_finished = false;
  net::act_on(endpoint_, [&] { is_finished = ending_ == Ending::finished; });
  if (!is_finished) return;
  throw Error("quorum", ErrorKind::peer,
              {.what = fmt::format("replica {} begins or makes step {}", options_.rank, step),
               .got = "another replica that has finished the run",
               .expected = "the same last step on all replicas"});
}

// A donor that is lost before the lighthouse knows that its patient has healed takes the patient's
// place along.
void Member::lose_place(int64_t step) const {
  throw Error("quorum", ErrorKind::peer,
              {.what = fmt::format("replica {} has lost its place in step {}", options_.rank, step),
               .got = "the loss of the replica that gave it its state",
               .expected = "a place in each step",
               .hint = "a new process in its place joins the others, if they go on"});
}

void Member::drop(int64_t id) {
  const auto channel = kSums + static_cast<net::Channel>(id);
  // Messages for this sum that still come must not stay in the mailbox.
  endpoint_.handle(channel, 0, [](const std::string&, const std::string&) {});
  old_sums_.push_back(channel);
}

template <typename Number>
bool Member::try_sum(const Quorum& quorum, std::shared_ptr<std::vector<Number>> values,
                     const net::Packing<Number>* packing, std::string& problem) {
  const auto stops = [&, id = quorum.id] {
    return news_.quorum.id != id || has_lost_ || !refusal_.empty();
  };
  const size_t size = quorum.members.size();
  const auto at = static_cast<size_t>(quorum.find(endpoint_.name()) - quorum.members.data());
  if (size == 1) return true;
  const size_t right = (at + 1) % size, left = (at + size - 1) % size;
  // The lighthouse refuses members that do not come within the time-out; then the sum may take as
  // long.
  const auto patience = seconds(2 * options_.rules.timeout);
  for (const size_t other : {right, left}) {
    const auto& peer = quorum.members[other];
    if (connect(peer, /*dials=*/at < other, stops, patience)) continue;
    problem = fmt::format("no connection to replica {}", peer.rank);
    return false;
  }
  const Ring ring{.endpoint = endpoint_,
                  .channel = kSums + static_cast<net::Channel>(quorum.id),
                  .left = quorum.members[left].name,
                  .right = quorum.members[right].name,
                  .index = at,
                  .size = size};
  const auto after_first = [this] {
    if (options_.on_phase) options_.on_phase(Phase::in_sum);
  };
  const auto result = ring_sum<Number>(ring, values, stops, patience, after_first, packing);
  if (result.end == RingResult::End::done) return true;
  drop(quorum.id);
  problem = result.problem;
  return false;
}

template <typename Number>
std::vector<Number> Member::sum(size_t size,
                                const std::function<void(std::span<Number>, bool is_first)>& fill,
                                const net::Packing<Number>* packing) {
  const auto tell = [&](Phase phase) {
    if (options_.on_phase) options_.on_phase(phase);
  };
  tell(Phase::before_sum);
  int64_t last = counted_.id;
  for (;;) {
    const auto quorum = current();
    // Members send for quorums that this one learns of too late.
    if (last > 0) {
      while (++last < quorum.id) drop(last);
    }
    last = quorum.id;
    const auto* own = quorum.find(endpoint_.name());
    TROIKA_CHECK(own != nullptr, "a sum in a step that has begun");
    const auto values = std::make_shared<std::vector<Number>>(size);
    fill(*values, own == quorum.members.data());
    std::string problem;
    report({.kind = Report::Kind::summing, .id = quorum.id});
    const bool is_done = try_sum<Number>(quorum, values, packing, problem);
    if (is_done || !problem.empty()) {
      tell(Phase::before_vote);
      report({.kind = Report::Kind::vote, .id = quorum.id, .ok = is_done, .text = problem});
      tell(Phase::after_vote);
    }
    wait(
        [&] {
          return founds_ != Founding::none || ending_ == Ending::finished ||
                 news_.quorum.id != quorum.id || news_.quorum.step != quorum.step;
        },
        "a vote");
    if (!founds() && current().step == quorum.step) {
      require_unfinished(quorum.step);
      continue;
    }
    // The others committed the step without this member's sum, or are all lost.
    if (!is_done || founds()) lose_place(quorum.step);
    counted_ = quorum;
    // All that members sent for earlier sums has arrived.
    for (const auto channel : std::exchange(old_sums_, {})) endpoint_.handle(channel, 0, {});
    return std::move(*values);
  }
}

template std::vector<float> Member::sum<float>(size_t,
                                               const std::function<void(std::span<float>, bool)>&,
                                               const net::Packing<float>*);
template std::vector<double> Member::sum<double>(
    size_t, const std::function<void(std::span<double>, bool)>&, const net::Packing<double>*);

bool Member::is_lowest() {
  const auto quorum = current();
  const auto& members = quorum.members.empty() ? counted_.members : quorum.members;
  for (const auto& member : members) {
    if (member.donor.empty() || quorum.members.empty()) return member.name == endpoint_.name();
  }
  return false;
}

Totals Member::totals() {
  return current().totals;
}

bool Member::must_save(const std::function<bool()>& stops) {
  report({.kind = Report::Kind::done});
  Ending ending = Ending::none;
  wait(
      [&] {
        ending = ending_;
        return ending != Ending::none || stops();
      },
      "the run");
  return ending == Ending::saves;
}

void Member::abandon() {
  net::act_on(endpoint_, [this] {
    endpoint_.listen_to_peers({});
    if (refusal_.empty()) refusal_ = "that it left";
  });
  endpoint_.part(kLighthouse, kTimeToPart);
}

void Member::leave(bool is_finished) {
  report({.kind = Report::Kind::leave, .ok = is_finished});
  abandon();
}

}  // namespace troika::quorum
