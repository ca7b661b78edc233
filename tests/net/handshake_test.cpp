#include "troika/net/handshake.h"

#include <gmock/gmock.h>

#include "troika/base/random.h"

namespace troika::net {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string raw(const Secret& secret) {
  return std::string(reinterpret_cast<const char*>(secret.data()), Secret::kSize);
}

class Handshake : public testing::Test {
 protected:
  const Secret secret_ = Secret::random();
  ServerHandshake server_{secret_, "ranks:1"};
  const ClientHandshake client_{secret_, "ranks:1"};
};

TEST_F(Handshake, BothEndsComeToTheSameKeys) {
  const auto answer = server_.answer(client_.first_message());
  ASSERT_TRUE(answer);
  const auto keys = client_.finish(answer->message);
  ASSERT_TRUE(keys);
  EXPECT_TRUE(keys->send == answer->keys.receive);
  EXPECT_TRUE(keys->receive == answer->keys.send);
  EXPECT_FALSE(keys->send == keys->receive);
  Session client(*keys), server(answer->keys);
  std::string text;
  server.opener.open(client.sealer.seal("hello"), text);
  client.opener.open(server.sealer.seal(" there"), text);
  EXPECT_EQ(text, "hello there");
}

TEST_F(Handshake, EverySessionHasItsOwnKeys) {
  const ClientHandshake other(secret_, "ranks:1");
  EXPECT_NE(other.first_message(), client_.first_message());
  EXPECT_FALSE(server_.answer(client_.first_message())->keys.send ==
               server_.answer(other.first_message())->keys.send);
}

TEST_F(Handshake, WhoHasAnotherSecretGetsNoAnswerAndGivesNone) {
  ServerHandshake other(Secret::random(), "ranks:1");
  EXPECT_FALSE(other.answer(client_.first_message()));
  const ClientHandshake client(Secret::random(), "ranks:1");
  EXPECT_FALSE(server_.answer(client.first_message()));
}

TEST_F(Handshake, AMessageForAnotherListenerIsNone) {
  for (const char* name : {"ranks:2", "launches:1"}) {
    ServerHandshake other(secret_, name);
    EXPECT_FALSE(other.answer(client_.first_message())) << name;
  }
}

TEST_F(Handshake, ARecordedMessageEarnsNothing) {
  EXPECT_TRUE(server_.answer(client_.first_message()));
  EXPECT_FALSE(server_.answer(client_.first_message()));
}

TEST_F(Handshake, AnAnswerToAnotherMessageIsNone) {
  const ClientHandshake other(secret_, "ranks:1");
  const auto answer = server_.answer(other.first_message());
  EXPECT_TRUE(other.finish(answer->message));
  EXPECT_FALSE(client_.finish(answer->message));
}

TEST_F(Handshake, NothingCanBeReflected) {
  EXPECT_FALSE(client_.finish(client_.first_message()));
  std::string turned = client_.first_message();
  turned.replace(0, kServerMagic.size(), kServerMagic);
  EXPECT_FALSE(client_.finish(turned));
  auto answer = server_.answer(client_.first_message())->message;
  answer.replace(0, kClientMagic.size(), kClientMagic);
  EXPECT_FALSE(server_.answer(answer));
}

TEST_F(Handshake, EveryByteIsAuthenticated) {
  for (size_t i = 0; i < kHandshakeSize; ++i) {
    std::string first = client_.first_message();
    first[i] = static_cast<char>(first[i] ^ 1);
    EXPECT_FALSE(server_.answer(first)) << i;
  }
  const std::string good = server_.answer(client_.first_message())->message;
  for (size_t i = 0; i < kHandshakeSize; ++i) {
    std::string answer = good;
    answer[i] = static_cast<char>(answer[i] ^ 0x80);
    EXPECT_FALSE(client_.finish(answer)) << i;
  }
  EXPECT_TRUE(client_.finish(good));
}

TEST_F(Handshake, OtherSizesAndRandomBytesAreNone) {
  Random random(7);
  for (size_t size = 0; size < 3 * kHandshakeSize; ++size) {
    std::string bytes(kClientMagic);
    while (bytes.size() < size) bytes += static_cast<char>(random());
    EXPECT_FALSE(server_.answer(bytes.substr(0, size))) << size;
    EXPECT_FALSE(client_.finish(bytes.substr(0, size))) << size;
  }
  EXPECT_FALSE(server_.answer(client_.first_message() + "x"));
}

TEST_F(Handshake, WhatIsSentShowsNothingOfTheSecretsAndLooksRandom) {
  const auto answer = server_.answer(client_.first_message());
  Session client(*client_.finish(answer->message));
  const std::string run = "the name of the run";
  const std::string wire =
      client_.first_message() + answer->message + client.sealer.seal("hello from " + run);
  EXPECT_THAT(wire, Not(HasSubstr(raw(secret_))));
  EXPECT_THAT(wire, Not(HasSubstr(secret_.to_hex())));
  EXPECT_THAT(wire, Not(HasSubstr(raw(answer->keys.send))));
  EXPECT_THAT(wire, Not(HasSubstr(run)));
}

TEST(MayBegin, SeesAForeignProgramAtItsFirstByte) {
  EXPECT_TRUE(may_begin("", kServerMagic));
  EXPECT_TRUE(may_begin("TRO", kServerMagic));
  EXPECT_TRUE(may_begin("TROIKA1S and more", kServerMagic));
  EXPECT_FALSE(may_begin("H", kServerMagic));
  EXPECT_FALSE(may_begin("TROIKA1C", kServerMagic));
}

}  // namespace
}  // namespace troika::net
