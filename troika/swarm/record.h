// Records: small signed statements of peers about themselves, with an expiry.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include "troika/swarm/identity.h"

namespace troika::swarm {

// Milliseconds since 1970. Clocks of peers may differ by RecordRules::skew.
using WallTime = std::chrono::milliseconds;
using WallClock = std::function<WallTime()>;
// This machine's clock.
WallTime system_time();

// Kind, peer, sub-key. A peer has one record of each key; the newest replaces the others.
using RecordKey = std::tuple<std::string, std::string, std::string>;

struct Record {
  std::string run = {};
  std::string kind = {};
  std::string peer = {};     // the name of the identity that signs it
  std::string sub_key = {};  // tells several records of one kind apart
  int64_t epoch = 0;
  WallTime created{};
  WallTime expiry{};
  std::string body = {};   // UTF-8; empty: the peer withdrew the record
  std::string token = {};  // of the run's authority (token.h), if it has one

  RecordKey key() const { return {kind, peer, sub_key}; }
};

// A record as it is stored and passed on.
class SignedRecord {
 public:
  // Signs a record; its `peer` becomes that of the identity.
  SignedRecord(const Identity& identity, Record record);
  // Reads what text() returned. Throws Error(swarm, failure) for other texts. Does not check the
  // signature.
  static SignedRecord parse(std::string_view text);

  const Record& record() const { return record_; }
  // The signature and what it signs.
  std::string text() const { return signature_ + payload_; }
  // Checks the signature once, also for copies.
  bool is_genuine() const;

 private:
  SignedRecord() = default;

  Record record_;
  std::string payload_;
  std::string signature_;
  std::shared_ptr<std::optional<bool>> genuine_ = std::make_shared<std::optional<bool>>();
};

// Why a reader does not take a record.
enum class RecordFault : uint8_t {
  none,
  other_run,
  unknown_kind,
  too_large,
  expired,
  from_future,  // created later than now, by more than the skew
  lives_too_long,
  not_admitted,  // it has no valid token of the run's authority
  forged,        // signed by nobody, or by another peer
  invalid_body,
};
const char* describe(RecordFault fault);

// The rules by which each reader checks records. All peers of a run have the same.
struct RecordRules {
  std::string run = {};
  // The name of the authority whose tokens peers must have. Empty: all peers are admitted.
  std::string authority = {};
  // The known kinds. A function returns whether a record, whose signature was checked, has a body
  // that its readers understand; it is not called for withdrawn records.
  std::map<std::string, std::function<bool(const Record&)>> kinds = {};
  size_t most_body = size_t{16} << 10;  // bytes
  WallTime longest_life = std::chrono::minutes(10);
  WallTime skew = std::chrono::seconds(3);
};

// Checks a record at time `now`. The signature is checked after all that costs less.
RecordFault check(const SignedRecord& record, const RecordRules& rules, WallTime now);
// Whether a reader ignores the record from now on.
bool is_expired(const Record& record, const RecordRules& rules, WallTime now);
// Whether `a` replaces `b`, which has the same key. Total, so that all readers keep the same one.
bool is_newer(const SignedRecord& a, const SignedRecord& b);

}  // namespace troika::swarm
