#include "troika/swarm/gossip.h"

#include <algorithm>

#include "troika/base/log.h"
#include "troika/swarm/json_text.h"

namespace troika::swarm {

namespace {

constexpr size_t kMostMessage = size_t{1} << 20;
constexpr size_t kBatch = size_t{128} << 10;  // bytes of records in a message, about
constexpr size_t kHoldings = 4096;            // records that a message tells of
constexpr net::Duration kGather = std::chrono::milliseconds(2);
constexpr net::Duration kSweep = std::chrono::seconds(5);
// Greater than all hashes, which are hexadecimal digits.
constexpr const char* kEnd = "g";

std::string hash_of(const RecordKey& key) {
  const auto& [kind, peer, sub_key] = key;
  return digest_of(kind + '\n' + peer + '\n' + sub_key).substr(0, 32);
}

std::string short_name(const std::string& peer) {
  return peer.substr(0, 16);
}

std::vector<std::shared_ptr<const std::string>> messages_of(
    const std::vector<std::string>& texts, const std::vector<std::string>& sent_to) {
  std::vector<std::shared_ptr<const std::string>> messages;
  std::vector<std::string> batch;
  size_t bytes = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    bytes += texts[i].size();
    batch.push_back(texts[i]);
    if (bytes < kBatch && i + 1 < texts.size()) continue;
    messages.push_back(
        std::make_shared<const std::string>(text_of({{"records", batch}, {"sent_to", sent_to}})));
    batch.clear();
    bytes = 0;
  }
  return messages;
}

void send_json(net::Endpoint& endpoint, const std::string& peer, const nlohmann::json& json) {
  net::send_owned(endpoint, peer, kGossip, std::make_shared<const std::string>(text_of(json)));
}

}  // namespace

GossipDirectory::GossipDirectory(net::Endpoint& endpoint, const Identity& identity,
                                 RecordRules rules, WallClock clock, GossipLimits limits)
    : endpoint_(endpoint),
      identity_(identity),
      rules_(std::move(rules)),
      clock_(std::move(clock)),
      limits_(limits) {
  endpoint_.handle(kGossip, kMostMessage,
                   [this](const std::string& peer, const std::string& text) { take(peer, text); });
  endpoint_.after(kSweep, alive_.guard([this] { remove_expired(); }));
}

GossipDirectory::~GossipDirectory() {
  endpoint_.handle(kGossip, 0, {});
}

void GossipDirectory::take_change(const net::PeerChange& change) {
  if (change.is_up) {
    neighbours_.insert(change.peer);
    send_holdings(change.peer);
  } else {
    neighbours_.erase(change.peer);
    ill_timed_.erase(change.peer);
    for (auto& [key, held] : held_) held.knowing.erase(change.peer);
  }
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

void GossipDirectory::take(const std::string& peer, const std::string& message) {
  try {
    const auto json = parsed<nlohmann::json>(message);
    if (json.contains("records")) {
      take_records(peer, json.at("records").get<std::vector<std::string>>(),
                   json.at("sent_to").get<std::set<std::string>>());
    } else {
      send_missing(peer, json.at("from").get<std::string>(), json.at("to").get<std::string>(),
                   json.at("have").get<std::map<std::string, int64_t>>());
    }
  } catch (const std::exception& problem) {
    log::warn("[swarm] {} is disconnected: {}", peer, problem.what());
    endpoint_.disconnect(peer);
  }
}

void GossipDirectory::take_records(const std::string& peer, const std::vector<std::string>& texts,
                                   const std::set<std::string>& sent_to) {
  std::vector<std::string> others;  // that have got the records, too
  for (const auto& neighbour : neighbours_) {
    if (sent_to.contains(short_name(neighbour))) others.push_back(neighbour);
  }
  for (const auto& text : texts) {
    auto record = SignedRecord::parse(text);
    const auto key = record.record().key();
    const auto held = held_.find(key);
    if (held != held_.end() && !is_newer(record, held->second.record)) {
      if (!is_newer(held->second.record, record)) held->second.knowing.insert(peer);
      continue;
    }
    const auto fault = check(record, rules_, now());
    if (fault == RecordFault::forged) {
      throw Error("swarm", ErrorKind::peer, {.what = "a record of it", .got = describe(fault)});
    }
    if (record.record().peer == peer) complain_of_clock(peer, fault);
    if (fault != RecordFault::none || !store(std::move(record), peer)) continue;
    held_.at(key).knowing.insert(others.begin(), others.end());
  }
}

void GossipDirectory::complain_of_clock(const std::string& peer, RecordFault fault) {
  const bool is_clock = fault == RecordFault::expired || fault == RecordFault::from_future ||
                        fault == RecordFault::lives_too_long;
  if (!is_clock || !ill_timed_.insert(peer).second) return;
  log::warn("[swarm] a record of {} is ignored: {}. Hint: compare the clocks of both machines",
            short_name(peer), describe(fault));
}

bool GossipDirectory::store(SignedRecord record, const std::string& from) {
  const auto key = record.record().key();
  const auto held = held_.find(key);
  if (!from.empty() && !is_allowed(record, held == held_.end())) return false;
  if (held == held_.end()) {
    ++authors_[record.record().peer].records;
    held_.emplace(key, Held{record, hash_of(key), {from}});
  } else {
    held->second.record = record;
    held->second.knowing = {from};
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
  const auto keys = std::exchange(waiting_, {});
  std::vector<std::string> names;
  for (const auto& neighbour : neighbours_) names.push_back(short_name(neighbour));
  std::map<std::string, std::vector<std::string>> to;  // neighbour -> texts
  for (const auto& key : keys) {
    const auto held = held_.find(key);
    if (held == held_.end()) continue;
    std::vector<std::string> receivers;
    for (const auto& neighbour : neighbours_) {
      if (held->second.knowing.insert(neighbour).second) receivers.push_back(neighbour);
    }
    for (const auto& receiver : receivers) to[receiver].push_back(held->second.record.text());
  }
  std::map<std::vector<std::string>, std::vector<std::string>> receivers_of;  // by texts
  for (auto& [neighbour, texts] : to) receivers_of[std::move(texts)].push_back(neighbour);
  for (const auto& [texts, receivers] : receivers_of) {
    for (const auto& message : messages_of(texts, names)) {
      for (const auto& neighbour : receivers) {
        net::send_owned(endpoint_, neighbour, kGossip, message);
      }
    }
  }
}

void GossipDirectory::send_records(const std::string& peer, const std::vector<std::string>& texts,
                                   const std::vector<std::string>& sent_to) {
  for (const auto& message : messages_of(texts, sent_to)) {
    net::send_owned(endpoint_, peer, kGossip, message);
  }
}

void GossipDirectory::send_holdings(const std::string& peer) {
  std::map<std::string, int64_t> all;
  for (const auto& [key, held] : held_) all[held.hash] = held.record.record().created.count();
  std::string from;
  std::map<std::string, int64_t> have;
  for (const auto& [hash, created] : all) {
    if (have.size() == kHoldings) {
      send_json(endpoint_, peer, {{"from", from}, {"to", hash}, {"have", have}});
      have.clear();
      from = hash;
    }
    have.emplace(hash, created);
  }
  send_json(endpoint_, peer, {{"from", from}, {"to", kEnd}, {"have", have}});
}

void GossipDirectory::send_missing(const std::string& peer, const std::string& from,
                                   const std::string& to,
                                   const std::map<std::string, int64_t>& have) {
  std::vector<std::string> texts;
  const auto time = now();
  for (auto& [key, held] : held_) {
    if (held.hash < from || held.hash >= to) continue;
    const auto theirs = have.find(held.hash);
    const auto& record = held.record.record();
    if (theirs != have.end() && theirs->second >= record.created.count()) continue;
    if (is_expired(record, rules_, time)) continue;
    held.knowing.insert(peer);
    texts.push_back(held.record.text());
  }
  send_records(peer, texts, {});
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
