// Tokens of an authority, and peers without them.
#include "troika/swarm/token.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/swarm/trainers.h"

namespace troika::swarm {
namespace {

using namespace std::chrono_literals;
using testing::ContainsRegex;
using testing::IsEmpty;
using testing::SizeIs;

constexpr WallTime kTokenTime = 1'000'000s;

TEST(Tokens, AdmitOnePeerUntilTheyExpire) {
  const auto authority = identity_of(1), peer = identity_of(2), other = identity_of(3);
  const auto text = signed_token(authority, {"user", peer.name(), kTokenTime});
  EXPECT_EQ(token_from(text).user, "user");
  const auto is_admitted = [&](const Identity& by, const Identity& one, const std::string& token,
                               WallTime now) {
    return admits(by.name(), one.name(), token, now, 3s);
  };
  EXPECT_TRUE(is_admitted(authority, peer, text, kTokenTime));
  EXPECT_TRUE(is_admitted(authority, peer, text, kTokenTime + 3s));
  EXPECT_FALSE(is_admitted(authority, peer, text, kTokenTime + 4s));
  EXPECT_FALSE(is_admitted(authority, other, text, kTokenTime));
  EXPECT_FALSE(is_admitted(other, peer, text, kTokenTime));
  for (const size_t place : {size_t{0}, size_t{100}, text.size() - 3}) {
    auto changed = text;
    changed[place] = changed[place] == '1' ? '2' : '1';
    EXPECT_FALSE(is_admitted(authority, peer, changed, kTokenTime)) << place;
  }
  EXPECT_FALSE(is_admitted(authority, peer, "", kTokenTime));
  EXPECT_FALSE(is_admitted(authority, peer, text.substr(0, 100), kTokenTime));
}

TEST(Tokens, RequestsAreCheckedByTheAuthority) {
  net::SimulatedNetwork network(1);
  const auto identity = identity_of(1), peer = identity_of(2), other = identity_of(3);
  auto now = kTokenTime;
  Authority authority(network.add("authority"), identity, 10min, [&] { return now; });
  authority.allow(peer.name(), "user");
  const auto request = token_request(peer, identity.name(), now);
  EXPECT_EQ(authority.judge(request), TokenRefusal::none);
  EXPECT_EQ(authority.judge(request), TokenRefusal::replayed);
  EXPECT_EQ(authority.judge(token_request(peer, identity.name(), now)), TokenRefusal::none);
  EXPECT_EQ(authority.judge(token_request(peer, other.name(), now)), TokenRefusal::mis_addressed);
  EXPECT_EQ(authority.judge(token_request(peer, identity.name(), now - 61s)),
            TokenRefusal::wrong_time);
  EXPECT_EQ(authority.judge(token_request(peer, identity.name(), now + 61s)),
            TokenRefusal::wrong_time);
  EXPECT_EQ(authority.judge(token_request(other, identity.name(), now)), TokenRefusal::not_listed);
  auto forged = token_request(other, identity.name(), now);
  forged.replace(forged.find(other.name()), 64, peer.name());
  EXPECT_EQ(authority.judge(forged), TokenRefusal::forged);
  for (const auto* text : {"", "x", "{}"}) {
    EXPECT_EQ(authority.judge(text), TokenRefusal::malformed);
    EXPECT_EQ(authority.judge(std::string(128, '0') + text), TokenRefusal::malformed);
  }
  // A nonce is remembered for longer than its request is in time.
  now += 59s;
  EXPECT_EQ(authority.judge(request), TokenRefusal::replayed);
  now += 3min;
  EXPECT_EQ(authority.judge(request), TokenRefusal::wrong_time);
  authority.revoke(peer.name());
  EXPECT_EQ(authority.judge(token_request(peer, identity.name(), now)), TokenRefusal::not_listed);
}

TEST(Tokens, AreRenewedUntilThePeerIsTakenOffTheList) {
  net::SimulatedNetwork network(1);
  const auto identity = identity_of(1), peer = identity_of(2);
  const auto clock = clock_of(network);
  Authority authority(network.add(identity.name()), identity, 5min, clock);
  authority.allow(peer.name(), "user");
  std::vector<std::string> tokens, reasons;
  auto& endpoint = network.add(peer.name());
  network.connect(peer.name(), identity.name());
  TokenKeeper keeper(
      endpoint, peer, identity.name(), [&](const std::string& token) { tokens.push_back(token); },
      [&](const std::string& reason) { reasons.push_back(reason); }, clock);
  for (int second = 0; second < 1200; ++second) {
    pass(network, 1);
    ASSERT_FALSE(tokens.empty());
    ASSERT_TRUE(admits(identity.name(), peer.name(), tokens.back(), clock() + 50s, WallTime(0)));
  }
  EXPECT_THAT(tokens, SizeIs(5));
  EXPECT_THAT(reasons, IsEmpty());
  authority.revoke(peer.name());
  pass(network, 300);
  EXPECT_FALSE(admits(identity.name(), peer.name(), tokens.back(), clock(), WallTime(0)));
  EXPECT_THAT(reasons, testing::Contains("the peer is not on the list"));
}

TEST(Tokens, SilenceOfTheAuthorityIsNoRefusal) {
  net::SimulatedNetwork network(1);
  const auto identity = identity_of(1), peer = identity_of(2);
  const auto clock = clock_of(network);
  auto& silent = network.add(identity.name());
  auto& endpoint = network.add(peer.name());
  network.connect(peer.name(), identity.name());
  std::vector<std::string> tokens, reasons;
  testing::internal::CaptureStderr();
  TokenKeeper keeper(
      endpoint, peer, identity.name(), [&](const std::string& token) { tokens.push_back(token); },
      [&](const std::string& reason) { reasons.push_back(reason); }, clock);
  pass(network, 30);
  EXPECT_THAT(tokens, IsEmpty());
  EXPECT_THAT(reasons, IsEmpty());
  Authority authority(silent, identity, 1min, clock);
  authority.allow(peer.name(), "user");
  pass(network, 30);
  EXPECT_FALSE(tokens.empty());
  authority.revoke(peer.name());
  pass(network, 100);
  EXPECT_FALSE(reasons.empty());
  const auto warnings = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::ranges::count(warnings, '\n'), 3) << warnings;
  EXPECT_THAT(warnings, ContainsRegex("does not answer(.|\n)*not on the list(.|\n)*has expired"));
}

TEST(Tokens, PeersWithoutOneAreInNoGroup) {
  const auto authority = identity_of(1000);
  Trainers run(1);
  const auto token = [&](size_t index, WallTime lifetime) {
    return signed_token(authority,
                        {"user", identity_of(index).name(), clock_of(run.network)() + lifetime});
  };
  for (size_t i = 0; i < 3; ++i) run.add(8, {.authority = authority.name(), .token = token(i, 1h)});
  run.add(8, {.authority = authority.name()});
  run.add(8, {.authority = authority.name(), .token = token(4, 20s)});
  std::map<double, size_t> sizes;
  run.checked = [&](size_t index, const SwarmStep& step, const std::vector<double>&) {
    if (index == 0) {
      sizes[std::chrono::duration<double>(run.network.now()).count()] = step.members.size();
    }
  };
  pass(run.network, 60);
  EXPECT_EQ(sizes.begin()->second, 4u);
  EXPECT_EQ(sizes.rbegin()->second, 3u);
  for (const auto& [time, size] : sizes) EXPECT_LE(size, time < 33 ? 4u : 3u) << time;
  EXPECT_GT(sizes.size(), 10u);
}

}  // namespace
}  // namespace troika::swarm
