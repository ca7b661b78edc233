#include "troika/swarm/record.h"

#include <array>

#include "troika/base/error.h"
#include "troika/swarm/json_text.h"
#include "troika/swarm/token.h"

namespace troika::swarm {

namespace {

constexpr size_t kSignature = 128;  // digits
constexpr size_t kMostName = 64;    // bytes of a kind or sub-key
constexpr size_t kMostTokenText = 2048;

}  // namespace

WallTime system_time() {
  return std::chrono::duration_cast<WallTime>(std::chrono::system_clock::now().time_since_epoch());
}

SignedRecord::SignedRecord(const Identity& identity, Record record) : record_(std::move(record)) {
  record_.peer = identity.name();
  payload_ = text_of({{"run", record_.run},
                      {"kind", record_.kind},
                      {"peer", record_.peer},
                      {"sub_key", record_.sub_key},
                      {"epoch", record_.epoch},
                      {"created", record_.created.count()},
                      {"expiry", record_.expiry.count()},
                      {"body", record_.body},
                      {"token", record_.token}});
  signature_ = identity.sign(payload_);
}

SignedRecord SignedRecord::parse(std::string_view text) {
  SignedRecord result;
  if (text.size() < kSignature) {
    throw Error("swarm", ErrorKind::failure, {.what = "a record without a signature"});
  }
  result.signature_ = text.substr(0, kSignature);
  result.payload_ = text.substr(kSignature);
  const auto json = parsed<nlohmann::json>(result.payload_);
  try {
    auto& record = result.record_;
    json.at("run").get_to(record.run);
    json.at("kind").get_to(record.kind);
    json.at("peer").get_to(record.peer);
    json.at("sub_key").get_to(record.sub_key);
    json.at("epoch").get_to(record.epoch);
    record.created = WallTime(json.at("created").get<int64_t>());
    record.expiry = WallTime(json.at("expiry").get<int64_t>());
    json.at("body").get_to(record.body);
    json.at("token").get_to(record.token);
  } catch (const nlohmann::json::exception& problem) {
    throw Error("swarm", ErrorKind::failure,
                {.what = "a record of another version", .got = problem.what()});
  }
  return result;
}

bool SignedRecord::is_genuine() const {
  if (!*genuine_) *genuine_ = is_signed_by(record_.peer, payload_, signature_);
  return **genuine_;
}

const char* describe(RecordFault fault) {
  static constexpr std::array<const char*, 10> texts{"no fault",
                                                     "it is of another run",
                                                     "its kind is unknown",
                                                     "it is too large",
                                                     "it has expired",
                                                     "it is from the future",
                                                     "it lives too long",
                                                     "its peer has no valid token",
                                                     "it is not signed by its peer",
                                                     "its body is invalid"};
  return texts.at(static_cast<size_t>(fault));
}

RecordFault check(const SignedRecord& given, const RecordRules& rules, WallTime now) {
  const auto& record = given.record();
  if (record.run != rules.run) return RecordFault::other_run;
  const auto kind = rules.kinds.find(record.kind);
  if (kind == rules.kinds.end()) return RecordFault::unknown_kind;
  if (record.body.size() > rules.most_body || record.sub_key.size() > kMostName ||
      record.token.size() > kMostTokenText) {
    return RecordFault::too_large;
  }
  if (is_expired(record, rules, now)) return RecordFault::expired;
  if (record.created > now + rules.skew) return RecordFault::from_future;
  // Both are near `now` here, so that the difference cannot overflow.
  if (record.created < now - rules.longest_life - rules.skew ||
      record.expiry > record.created + rules.longest_life) {
    return RecordFault::lives_too_long;
  }
  if (!rules.authority.empty() &&
      !admits(rules.authority, record.peer, record.token, now, rules.skew)) {
    return RecordFault::not_admitted;
  }
  if (!given.is_genuine()) return RecordFault::forged;
  if (!record.body.empty() && !kind->second(record)) return RecordFault::invalid_body;
  return RecordFault::none;
}

bool is_expired(const Record& record, const RecordRules& rules, WallTime now) {
  return record.expiry < now - rules.skew;
}

bool is_newer(const SignedRecord& a, const SignedRecord& b) {
  const auto times = [](const Record& record) { return std::pair(record.created, record.expiry); };
  const auto of_a = times(a.record());
  const auto of_b = times(b.record());
  return of_a != of_b ? of_a > of_b : a.text() > b.text();
}

}  // namespace troika::swarm
