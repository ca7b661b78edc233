// Signed records, and the checks of their readers.
#include "troika/swarm/record.h"

#include <gmock/gmock.h>

#include "tests/swarm/simulated_swarm.h"
#include "troika/base/error.h"

namespace troika::swarm {
namespace {

using namespace std::chrono_literals;

constexpr WallTime kNow = 1'000'000s;

RecordRules rules() {
  return {.run = "run", .kinds = {{"kind", [](const Record& r) { return r.body != "bad"; }}}};
}

Record record() {
  return {.run = "run",
          .kind = "kind",
          .peer = {},
          .sub_key = "sub",
          .epoch = 7,
          .created = kNow,
          .expiry = kNow + 60s,
          .body = R"({"samples": 3})"};
}

RecordFault fault_of(const Record& given, WallTime now = kNow) {
  return check(SignedRecord::parse(SignedRecord(identity_of(1), given).text()), rules(), now);
}

TEST(Records, TravelAsTexts) {
  const auto identity = identity_of(1);
  const auto read = SignedRecord::parse(SignedRecord(identity, record()).text());
  EXPECT_EQ(read.record().peer, identity.name());
  EXPECT_EQ(read.record().body, record().body);
  EXPECT_EQ(read.record().epoch, 7);
  EXPECT_EQ(read.record().key(), RecordKey("kind", identity.name(), "sub"));
  EXPECT_EQ(check(read, rules(), kNow), RecordFault::none);
  for (const auto* text : {"", "short", "{}"}) {
    EXPECT_THROW(SignedRecord::parse(text), Error);
    EXPECT_THROW(SignedRecord::parse(std::string(128, '0') + text), Error);
  }
}

TEST(Records, ReadersRefuseOthersByType) {
  auto other = record();
  other.run = "another";
  EXPECT_EQ(fault_of(other), RecordFault::other_run);
  other = record(), other.kind = "another";
  EXPECT_EQ(fault_of(other), RecordFault::unknown_kind);
  other = record(), other.body.resize(17 << 10, 'x');
  EXPECT_EQ(fault_of(other), RecordFault::too_large);
  other = record(), other.expiry = kNow + 11min;
  EXPECT_EQ(fault_of(other), RecordFault::lives_too_long);
  other = record(), other.created = WallTime::min();
  EXPECT_EQ(fault_of(other), RecordFault::lives_too_long);
  other = record(), other.body = "bad";
  EXPECT_EQ(fault_of(other), RecordFault::invalid_body);
  other.body = "";
  EXPECT_EQ(fault_of(other), RecordFault::none);
}

TEST(Records, ClocksMayDifferByTheSkew) {
  EXPECT_EQ(fault_of(record(), kNow - 3s), RecordFault::none);
  EXPECT_EQ(fault_of(record(), kNow - 4s), RecordFault::from_future);
  EXPECT_EQ(fault_of(record(), kNow + 63s), RecordFault::none);
  EXPECT_EQ(fault_of(record(), kNow + 64s), RecordFault::expired);
}

TEST(Records, OnlyTheirPeerCanSignThem) {
  const auto text = SignedRecord(identity_of(1), record()).text();
  for (const size_t place : {size_t{0}, size_t{127}, text.find("\"epoch\":7") + 8}) {
    auto changed = text;
    changed[place] = changed[place] == '1' ? '2' : '1';
    EXPECT_EQ(check(SignedRecord::parse(changed), rules(), kNow), RecordFault::forged) << place;
  }
  auto renamed = text;
  renamed.replace(renamed.find(identity_of(1).name()), 64, identity_of(2).name());
  EXPECT_EQ(check(SignedRecord::parse(renamed), rules(), kNow), RecordFault::forged);
}

TEST(Records, TheNewestIsTheSameForAll) {
  const SignedRecord a(identity_of(1), record());
  auto later = record();
  later.created += 1ms;
  const SignedRecord b(identity_of(1), later);
  later.body = "another";
  const SignedRecord c(identity_of(1), later);
  EXPECT_TRUE(is_newer(b, a) && !is_newer(a, b) && !is_newer(a, a));
  EXPECT_NE(is_newer(b, c), is_newer(c, b));
}

TEST(Identities, KeysFromASeedAreThoseOfTheStandard) {
  // The first test of RFC 8032, section 7.1.
  const std::array<uint8_t, 32> seed{0x9d, 0x61, 0xb1, 0x9d, 0xef, 0xfd, 0x5a, 0x60,
                                     0xba, 0x84, 0x4a, 0xf4, 0x92, 0xec, 0x2c, 0xc4,
                                     0x44, 0x49, 0xc5, 0x69, 0x7b, 0x32, 0x69, 0x19,
                                     0x70, 0x3b, 0xac, 0x03, 0x1c, 0xae, 0x7f, 0x60};
  const auto identity = Identity::from_seed(seed);
  EXPECT_EQ(identity.name(), "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a");
  EXPECT_EQ(identity.sign("").substr(0, 16), "e5564300c360ac72");
  EXPECT_TRUE(is_signed_by(identity.name(), "", identity.sign("")));
  EXPECT_NE(Identity::random().name(), Identity::random().name());
}

}  // namespace
}  // namespace troika::swarm
