#include "troika/swarm/gossip.h"

#include <algorithm>

#include "troika/base/error.h"
#include "troika/base/log.h"

namespace troika::swarm {

namespace {

constexpr size_t kMostMessage = size_t{1} << 20;
constexpr size_t kHoldings = 4096;  // records that a message tells of
constexpr net::Duration kGather = std::chrono::milliseconds(2);
constexpr net::Duration kSweep = std::chrono::seconds(5);
// Greater than all hashes, which are hexadecimal digits.
constexpr const char* kEnd = "g";

std::string hash_of(const RecordKey& key) {
  const auto& [kind, peer, sub_key] = key;
  return digest_of(kind + '\n' + peer + '\n' + sub_key).substr(0, 32);
}

}  // namespace

GossipDirectory::GossipDirectory(net::Endpoint& endpoint, const Identity& identity,
                                 RecordRules rules, WallClock clock, GossipLimits limits,
                                 GossipReader reader)
    : endpoint_(endpoint),
      identity_(identity),
      rules_(std::move(rules)),
      clock_(std::move(clock)),
      limits_(limits),
      reader_(std::move(reader)),
      neighbours_(identity.name()) {
  endpoint_.handle(kGossip, kMostMessage,
                   [this](const std::string& peer, const std::string& text) { take(peer, text); });
  endpoint_.after(kSweep, alive_.guard([this] { remove_expired(); }));
}

GossipDirectory::~GossipDirectory() {
  endpoint_.handle(kGossip, 0, {});
}

void GossipDirectory::take_change(const net::PeerChange& change) {
  if (!change.is_up) {
    ill_timed_.erase(change.peer);
    return neighbours_.remove(change.peer);
  }
  if (const auto slot = neighbours_.add(change.peer)) {
    // A neighbour before had the slot.
    for (auto& [key, held] : held_) {
      if (*slot < held.knowing.size()) held.knowing[*slot] = false;
    }
  }
  send_holdings(change.peer);
}

bool GossipDirectory::Held::add_knowing(size_t slot) {
  if (slot >= knowing.size()) knowing.resize(slot + 1);
  if (knowing[slot]) return false;
  knowing[slot] = true;
  return true;
}

void GossipDirectory::add_knowing(Held& held, const std::string& peer) {
  if (const auto slot = neighbours_.slot(peer)) held.add_knowing(*slot);
}

void GossipDirectory::publish(const std::string& kind, const std::string& sub_key, int64_t epoch,
                              WallTime lifetime, const std::string& body) {
  Record record{.run = rules_.run,
                .kind = kind,
                .peer = identity_.name(),
                .sub_key = sub_key,
                .epoch = epoch,
                .created = now(),
                .body = body,
                .token = token_};
  record.expiry = record.created + lifetime;
  if (const auto held = held_.find(record.key()); held != held_.end()) {
    const auto& before = held->second.record.record();
    record.created = std::max(record.created, before.created + WallTime(1));
    // Otherwise the withdrawn record would come back where this one has expired.
    if (body.empty()) record.expiry = before.expiry;
  } else if (body.empty()) {
    return;
  }
  store(SignedRecord(identity_, std::move(record)), {});
}

std::vector<Record> GossipDirectory::find(const std::string& kind) const {
  std::vector<Record> found;
  const auto time = now();
  for (auto held = held_.lower_bound({kind, {}, {}}); held != held_.end(); ++held) {
    const auto& record = held->second.record.record();
    if (record.kind != kind) break;
    if (!record.body.empty() && !is_expired(record, rules_, time)) found.push_back(record);
  }
  return found;
}

void GossipDirectory::watch(std::function<void(const Record&)> changed) {
  changed_ = std::move(changed);
}

void GossipDirectory::take(const std::string& peer, const std::string& text) {
  try {
    const auto message = reader_(text);
    neighbours_.set_group(peer, message->group);
    if (message->holdings) {
      send_missing(peer, *message->holdings);
    } else {
      take_records(peer, *message);
    }
  } catch (const std::exception& problem) {
    log::warn("[swarm] {} is disconnected: {}", peer, problem.what());
    endpoint_.disconnect(peer);
  }
}

void GossipDirectory::take_records(const std::string& peer, const GossipMessage& message) {
  const auto others = neighbours_.receivers_of(message);
  for (const auto& record : message.records) {
    const auto key = record.record().key();
    const auto held = held_.find(key);
    if (held != held_.end() && !is_newer(record, held->second.record)) {
      if (!is_newer(held->second.record, record)) add_knowing(held->second, peer);
      continue;
    }
    const auto fault = check(record, rules_, now());
    if (fault == RecordFault::forged) {
      throw Error("swarm", ErrorKind::peer, {.what = "a record of it", .got = describe(fault)});
    }
    if (record.record().peer == peer) complain_of_clock(peer, fault);
    if (fault != RecordFault::none || !store(record, peer)) continue;
    auto& stored = held_.at(key);
    for (const size_t slot : others) stored.add_knowing(slot);
  }
}

void GossipDirectory::complain_of_clock(const std::string& peer, RecordFault fault) {
  const bool is_clock = fault == RecordFault::expired || fault == RecordFault::from_future ||
                        fault == RecordFault::lives_too_long;
  if (!is_clock || !ill_timed_.insert(peer).second) return;
  log::warn("[swarm] a record of {} is ignored: {}. Hint: compare the clocks of both machines",
            short_name(peer), describe(fault));
}

bool GossipDirectory::store(const SignedRecord& record, const std::string& from) {
  const auto key = record.record().key();
  const auto held = held_.find(key);
  if (!from.empty() && !is_allowed(record, held == held_.end())) return false;
  if (held == held_.end()) {
    ++authors_[record.record().peer].records;
    add_knowing(held_.emplace(key, Held{record, hash_of(key), {}}).first->second, from);
  } else {
    held->second.record = record;
    held->second.knowing.clear();
    add_knowing(held->second, from);
  }
  if (waiting_.empty()) endpoint_.after(kGather, alive_.guard([this] { flush(); }));
  waiting_.insert(key);
  if (changed_) changed_(record.record());
  return true;
}

bool GossipDirectory::is_allowed(const SignedRecord& record, bool is_new) {
  if (is_new && held_.size() >= limits_.most_records) return false;
  const auto time = now();
  const auto [found, is_first] = authors_.try_emplace(record.record().peer);
  auto& author = found->second;
  const double most = 2 * limits_.most_per_second;
  const double seconds = std::chrono::duration<double>(time - author.at).count();
  author.allowance =
      is_first
          ? most
          : std::min(most, author.allowance + std::max(0.0, seconds) * limits_.most_per_second);
  author.at = time;
  if (author.allowance < 1 || (is_new && author.records >= limits_.most_of_peer)) return false;
  author.allowance -= 1;
  return true;
}

void GossipDirectory::flush() {
  std::map<std::string, std::vector<std::string>> to;  // neighbour -> texts
  for (const auto& key : std::exchange(waiting_, {})) {
    const auto held = held_.find(key);
    if (held == held_.end()) continue;
    const auto text = held->second.record.text();
    for (const auto& [neighbour, slot] : neighbours_.slots()) {
      if (held->second.add_knowing(slot)) to[neighbour].push_back(text);
    }
  }
  // Neighbours that get the same message get one text of it.
  using Kind = std::pair<bool, std::vector<std::string>>;  // of the group or not, and the records
  std::map<Kind, std::vector<std::string>> receivers_of;
  for (auto& [neighbour, texts] : to) {
    receivers_of[{neighbours_.is_of_group(neighbour), std::move(texts)}].push_back(neighbour);
  }
  const auto group = neighbours_.group();
  const auto names = neighbours_.short_names();
  for (const auto& [kind, receivers] : receivers_of) {
    const auto& [is_of_group, texts] = kind;
    const auto messages =
        record_messages(texts, is_of_group ? std::vector<std::string>() : names, group);
    for (const auto& message : messages) {
      for (const auto& neighbour : receivers) {
        net::send_owned(endpoint_, neighbour, kGossip, message);
      }
    }
  }
}

void GossipDirectory::send_holdings(const std::string& peer) {
  std::map<std::string, int64_t> all;
  for (const auto& [key, held] : held_) all[held.hash] = held.record.record().created.count();
  GossipMessage::Holdings part;
  const auto send = [&] {
    net::send_owned(
        endpoint_, peer, kGossip,
        std::make_shared<const std::string>(holdings_message(part, neighbours_.group())));
  };
  for (const auto& [hash, created] : all) {
    if (part.have.size() == kHoldings) {
      part.to = hash;
      send();
      part = {.from = hash, .to = {}, .have = {}};
    }
    part.have.emplace(hash, created);
  }
  part.to = kEnd;
  send();
}

void GossipDirectory::send_missing(const std::string& peer, const GossipMessage::Holdings& theirs) {
  std::vector<std::string> texts;
  const auto time = now();
  for (auto& [key, held] : held_) {
    if (held.hash < theirs.from || held.hash >= theirs.to) continue;
    const auto found = theirs.have.find(held.hash);
    const auto& record = held.record.record();
    if (found != theirs.have.end() && found->second >= record.created.count()) continue;
    if (is_expired(record, rules_, time)) continue;
    add_knowing(held, peer);
    texts.push_back(held.record.text());
  }
  for (const auto& message : record_messages(texts, {}, {})) {
    net::send_owned(endpoint_, peer, kGossip, message);
  }
}

void GossipDirectory::remove_expired() {
  const auto time = now();
  for (auto held = held_.begin(); held != held_.end();) {
    if (!is_expired(held->second.record.record(), rules_, time)) {
      ++held;
      continue;
    }
    const auto author = authors_.find(held->second.record.record().peer);
    if (--author->second.records == 0) authors_.erase(author);
    held = held_.erase(held);
  }
  endpoint_.after(kSweep, alive_.guard([this] { remove_expired(); }));
}

}  // namespace troika::swarm
