#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "troika/server/held_range.h"
#include "troika/server/sum_coding.h"
#include "troika/server/summation.h"
#include "troika/server/summation_wire.h"

namespace troika::server {

namespace {

template <typename T>
void add_to(char* sum, const char* values, size_t bytes) {
  auto* const to = reinterpret_cast<T*>(sum);
  const auto* const from = reinterpret_cast<const T*>(values);
  for (size_t i = 0; i < bytes / sizeof(T); ++i) to[i] += from[i];
}

// The values that are kept when a worker that was given `given` pushes `pushed`.
template <typename T>
void add_change(char* kept, const char* given, const char* pushed, size_t bytes) {
  auto* const to = reinterpret_cast<T*>(kept);
  const auto* const before = reinterpret_cast<const T*>(given);
  const auto* const after = reinterpret_cast<const T*>(pushed);
  for (size_t i = 0; i < bytes / sizeof(T); ++i) {
    const double change = static_cast<double>(after[i]) - static_cast<double>(before[i]);
    to[i] = to[i] == before[i] ? after[i] : static_cast<T>(static_cast<double>(to[i]) + change);
  }
}

template <typename T>
void divide(char* values, size_t bytes, uint32_t by) {
  auto* const numbers = reinterpret_cast<T*>(values);
  for (size_t i = 0; i < bytes / sizeof(T); ++i) numbers[i] /= static_cast<T>(by);
}

}  // namespace

struct SummationServer::Push {
  PushHead head;
  std::string message;  // plain values follow the bytes of the head

  size_t bytes() const { return message.size() - kPushHead; }
  bool fits(const Push& other) const {
    return bytes() == other.bytes() && head.type == other.head.type &&
           head.round == other.head.round && head.workers == other.head.workers;
  }
  std::string text() const {
    return fmt::format("{} bytes of float{} for round {} of {} workers", bytes(),
                       8 * size_of(head.type), head.round, head.workers);
  }
};

struct SummationServer::Sum {
  std::vector<Push> pushes;        // by rank; without message: has not come, or is added
  std::vector<std::string> peers;  // by rank; empty: has not pushed
  uint32_t added = 0;              // the pushes of ranks below are added into the first one
  // The form in which the mean is sent: that of the pushes. A push that does not fit its form was
  // sent plain.
  SumCoding coding = {};
  bool has_feedback = false;
  double rate = 1;
};

struct SummationServer::Held {
  // Messages, whose values follow the bytes of a head.
  std::shared_ptr<const std::string> kept;
  std::vector<std::shared_ptr<const std::string>> given;  // by rank, what it last got
};

SummationServer::SummationServer(net::Endpoint& endpoint)
    : endpoint_(endpoint), residuals_(std::make_unique<Residuals>()) {
  endpoint_.handle(
      kPushes, kMostMessage + kPushHead,
      [this](const std::string& peer, std::string message) { take(peer, std::move(message)); });
}

SummationServer::~SummationServer() {
  endpoint_.handle(kPushes, 0, {});
  net::act_on(endpoint_, [this] {
    for (const auto& [peer, ticket] : std::exchange(peers_, {})) {
      endpoint_.cancel(ticket, net::Outcome::cancelled);
    }
  });
}

SummationTraffic SummationServer::traffic() {
  SummationTraffic traffic;
  net::act_on(endpoint_, [&] { traffic = traffic_; });
  return traffic;
}

void SummationServer::take(const std::string& peer, std::string message) {
  try {
    const auto head = PushHead::parse(message);
    watch(peer);
    if (!failure_.empty()) return tell_failure(peer);
    if (head.key == kHello) return begin_level(head);
    traffic_.received_bytes += message.size() - kPushHead;
    if (head.form != SumForm::plain) {
      std::string values;
      decode_sum(head.form, head.type, std::span<const char>(message).subspan(kPushHead),
                 kMostMessage, values);
      message.replace(kPushHead, std::string::npos, values);
    }
    if (head.action == SummationAction::sum) {
      add(peer, {head, std::move(message)});
    } else {
      hold(peer, {head, std::move(message)});
    }
  } catch (const std::exception& error) {
    fail(fmt::format("a push of {}: {}", peer, error.what()));
  }
}

void SummationServer::watch(const std::string& peer) {
  if (peers_[peer] != 0) return;
  const auto ended = [this, peer](const net::Result& result) {
    if (result.outcome != net::Outcome::lost) return;
    gone_[peer] = result.reason;
    // Workers that are done leave one after the other.
    if (!sums_.empty()) fail(fmt::format("{} is lost: {}", peer, result.reason));
  };
  // The completion may run before this function has the ticket.
  const auto ticket = endpoint_.receive(peer, kWatches, {}, ended);
  peers_[peer] = ticket;
}

void SummationServer::confirm(const std::string& peer, const PushHead& head) {
  std::string receipt;
  Writer writer(receipt);
  writer.number(head.key);
  writer.number(head.round);
  net::send_owned(endpoint_, peer, kReceived, std::make_shared<const std::string>(receipt),
                  net::Priority::urgent);
}

void SummationServer::hold(const std::string& peer, Push push) {
  const auto& head = push.head;
  confirm(peer, head);
  if (head.action == SummationAction::probe) {
    net::send_owned(endpoint_, peer, kMeans + head.key, std::make_shared<const std::string>());
    return;
  }
  if (head.action == SummationAction::left_out || head.action == SummationAction::set_left_out) {
    return answer_left_out(peer, push);
  }
  auto& held = held_[head.key];
  held.given.resize(std::max<size_t>(held.given.size(), head.workers));
  auto& given = held.given[head.rank];
  if (head.action == SummationAction::set) {
    held.kept = std::make_shared<const std::string>(std::move(push.message));
  } else if (!held.kept) {
    return fail(fmt::format("key {} has no values when {} reads or changes it", head.key, peer));
  } else if (head.action == SummationAction::change) {
    if (!given || given->size() != push.message.size() ||
        held.kept->size() != push.message.size() || push.bytes() % size_of(head.type) != 0) {
      return fail(fmt::format("a change of key {} is {} at {}", head.key, push.text(), peer));
    }
    const auto kept = std::make_shared<std::string>(*held.kept);
    const auto act = head.type == ValueType::float32 ? add_change<float> : add_change<double>;
    act(kept->data() + kPushHead, given->data() + kPushHead, push.message.data() + kPushHead,
        push.bytes());
    held.kept = kept;
  }
  given = held.kept;
  const auto values = std::string_view(*given).substr(kPushHead);
  traffic_.sent_bytes += values.size();
  endpoint_.send(peer, kMeans + head.key, values, net::Priority::normal,
                 [given](const net::Result& /*result*/) {});
}

// The next mean of the key waits for a push of this worker, which comes later.
void SummationServer::answer_left_out(const std::string& peer, const Push& push) {
  const auto answer = std::make_shared<std::string>();
  if (push.head.action == SummationAction::set_left_out) {
    residuals_->keep(push.head.key, push.message.substr(kPushHead), push.head.rate);
  } else {
    *answer = residuals_->residual(push.head.key);
  }
  net::send_owned(endpoint_, peer, kMeans + push.head.key, answer);
}

void SummationServer::add(const std::string& peer, Push push) {
  if (!gone_.empty()) {
    const auto& [name, reason] = *gone_.begin();
    return fail(fmt::format("{} is lost: {}", name, reason));
  }
  const auto& head = push.head;
  auto& sum = sums_[head.key];
  if (sum.peers.empty()) {
    sum.pushes.resize(head.workers);
    sum.peers.resize(head.workers);
  }
  // The push of the lowest rank that came before is still there.
  const auto other =
      std::ranges::find_if(sum.pushes, [](const Push& one) { return !one.message.empty(); });
  if (other != sum.pushes.end() && !push.fits(*other)) {
    const auto& whose = sum.peers[static_cast<size_t>(other - sum.pushes.begin())];
    return fail(fmt::format("key {} is {} at {} and {} at {}", head.key, push.text(), peer,
                            other->text(), whose));
  }
  if (!sum.peers[head.rank].empty()) {
    return fail(fmt::format("{} pushes key {} for rank {}, for which {} has pushed it", peer,
                            head.key, head.rank, sum.peers[head.rank]));
  }
  if (push.bytes() % size_of(head.type) != 0) {
    return fail(fmt::format("key {} is {} at {}", head.key, push.text(), peer));
  }
  confirm(peer, head);
  raise_level(peer, push);
  if (head.form != SumForm::plain) sum.coding = {head.form, head.parameter, head.has_l2_norm};
  sum.has_feedback = head.has_feedback;
  sum.rate = head.rate;
  sum.peers[head.rank] = peer;
  sum.pushes[head.rank] = std::move(push);
  for (; sum.added < sum.peers.size() && !sum.peers[sum.added].empty(); ++sum.added) {
    if (sum.added == 0) continue;
    auto& first = sum.pushes[0];
    const auto values = std::exchange(sum.pushes[sum.added].message, {});
    const auto act = first.head.type == ValueType::float32 ? add_to<float> : add_to<double>;
    act(first.message.data() + kPushHead, values.data() + kPushHead, first.bytes());
  }
  if (sum.added == sum.peers.size()) publish(sum.pushes[0].head.key, sum);
}

// Workers begin again together, so ranks whose hello is still to come only hold the level up.
void SummationServer::begin_level(const PushHead& hello) {
  if (progress_.empty()) progress_.resize(hello.workers);
  if (progress_.size() != hello.workers) {
    return fail(fmt::format("rank {} is one of {} workers; others are of {}", hello.rank,
                            hello.workers, progress_.size()));
  }
  progress_[hello.rank] = {};
  level_ = 0;
}

void SummationServer::raise_level(const std::string& peer, const Push& push) {
  if (progress_.size() != push.head.workers) return;
  auto& own = progress_[push.head.rank];
  own.peer = peer;
  own.bytes += push.bytes();
  const auto level = std::ranges::min(progress_, {}, &Progress::bytes).bytes;
  if (level <= level_) return;
  level_ = level;
  std::string text;
  Writer writer(text);
  writer.number(level);
  const auto message = std::make_shared<const std::string>(std::move(text));
  for (const auto& progress : progress_) {
    net::send_owned(endpoint_, progress.peer, kLevels, message, net::Priority::urgent);
  }
}

void SummationServer::publish(uint64_t key, Sum& sum) {
  const auto type = sum.pushes[0].head.type;
  const auto mean = std::make_shared<std::string>(std::move(sum.pushes[0].message));
  const auto act = type == ValueType::float32 ? divide<float> : divide<double>;
  act(mean->data() + kPushHead, mean->size() - kPushHead, static_cast<uint32_t>(sum.peers.size()));
  const auto values_of_mean = std::span<char>(*mean).subspan(kPushHead);
  const auto encoded = std::make_shared<std::string>();
  bool fits = false;
  if (sum.has_feedback) {
    residuals_->enter(key);
    fits = residuals_->encode(key, sum.coding, type, values_of_mean, *encoded, sum.rate);
  } else {
    fits = encode_sum(sum.coding, type, values_of_mean, *encoded);
  }
  const std::string_view values =
      fits ? *encoded : std::string_view(values_of_mean.data(), values_of_mean.size());
  const auto peers = std::move(sum.peers);
  sums_.erase(key);
  for (const auto& peer : peers) {
    traffic_.sent_bytes += values.size();
    endpoint_.send(peer, kMeans + key, values, net::Priority::normal,
                   [mean, encoded](const net::Result& /*result*/) {});
  }
}

void SummationServer::fail(const std::string& reason) {
  if (!failure_.empty()) return;
  failure_ = fmt::format("{}: {}", endpoint_.name(), reason).substr(0, kMostFailure);
  sums_.clear();
  for (const auto& [peer, ticket] : peers_) tell_failure(peer);
}

void SummationServer::tell_failure(const std::string& peer) {
  net::send_owned(endpoint_, peer, kSummationFailures,
                  std::make_shared<const std::string>(failure_), net::Priority::urgent);
}

}  // namespace troika::server
