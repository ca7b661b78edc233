#include "troika/net/mailbox.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"

namespace troika::net {
namespace {

class Mail : public testing::Test {
 protected:
  void message(Channel channel, const std::string& text) {
    const FrameHead head{FrameKind::message, static_cast<uint32_t>(text.size()), channel, 0, 0};
    if (char* const place = mailbox_.begin(head)) std::ranges::copy(text, place);
    mailbox_.end(head);
  }
  Handlers handlers_;
  std::vector<FrameHead> replies_;
  Mailbox mailbox_{"peer", handlers_, [this](const FrameHead& head) { replies_.push_back(head); }};
};

TEST_F(Mail, APeerThatIgnoresItsCreditIsBroken) {
  const std::string text(kEagerBytes, 'x');
  for (size_t i = 0; i < kCreditWindow / (kEagerBytes + 64); ++i) message(1, text);
  EXPECT_ERROR(message(1, text), ErrorKind::failure,
               "[net] broken frame; got more bytes than the credit allows");
}

TEST_F(Mail, EmptyMessagesAndAnnouncementsCostCreditToo) {
  const auto flood = [&](const auto& send) {
    for (size_t i = 0; i <= kCreditWindow / 64; ++i) send(i);
  };
  EXPECT_THROW(flood([&](size_t) { message(1, ""); }), Error);
  mailbox_.fail("over");
  EXPECT_THROW(flood([&](size_t i) {
                 mailbox_.announce({FrameKind::announce, 0, 1, i, size_t{1} << 40});
               }),
               Error);
}

TEST_F(Mail, CreditComesBackWhenMessagesAreConsumed) {
  handlers_[1] = {kEagerBytes, [](const std::string&, const std::string&) {}};
  const std::string text(kEagerBytes, 'x');
  size_t back = 0;
  for (size_t i = 0; i < 10 * kCreditWindow / kEagerBytes; ++i) {
    message(1, text);
    for (const auto& reply : replies_) back += reply.size;
    replies_.clear();
  }
  EXPECT_GT(back, 9 * kCreditWindow);
}

TEST_F(Mail, AMessageAboveTheHandlersLimitIsDroppedWithAWarning) {
  std::vector<std::string> taken;
  handlers_[7] = {3, [&](const std::string&, std::string text) { taken.push_back(text); }};
  testing::internal::CaptureStderr();
  message(7, "four");
  message(7, "two");
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::HasSubstr("[net] a message of 4 bytes from peer on channel 7 is dropped; "
                                 "expected at most 3"));
  EXPECT_THAT(taken, testing::ElementsAre("two"));
}

TEST_F(Mail, AMessageWithoutMemoryForItIsRefused) {
  constexpr size_t kMoreThanAddresses = size_t{1} << 60;
  std::vector<std::string> taken;
  handlers_[7] = {kMoreThanAddresses,
                  [&](const std::string&, std::string text) { taken.push_back(std::move(text)); }};
  mailbox_.announce({FrameKind::announce, 0, 7, 1, kMoreThanAddresses});
  ASSERT_EQ(replies_.size(), 1u);
  EXPECT_EQ(replies_[0].kind, FrameKind::refuse);
  EXPECT_EQ(replies_[0].id, 1u);
  message(7, "two");
  EXPECT_THAT(taken, testing::ElementsAre("two"));
}

TEST_F(Mail, ItsSenderIsToldOnceThatNobodyTakesMessages) {
  const std::string text(kEagerBytes, 'x');
  for (int i = 0; i < 6; ++i) message(1, text);
  ASSERT_EQ(replies_.size(), 1u);
  EXPECT_EQ(replies_[0].kind, FrameKind::hold);
  std::string buffer(kEagerBytes, '?');
  for (Ticket i = 0; i < 6; ++i) mailbox_.post(1, {i + 1, buffer, {}}, true);
  size_t back = 0;
  for (const auto& reply : replies_) back += reply.size;
  EXPECT_GE(back, kCreditBack) << "so that messages go at once again";
  for (int i = 0; i < 3; ++i) message(1, text);
  EXPECT_EQ(replies_.back().kind, FrameKind::hold);
}

TEST_F(Mail, AHoldEndsWhenLittleIsLeft) {
  const std::string text(kEagerBytes, 'x');
  for (int i = 0; i < 3; ++i) message(1, text);
  EXPECT_EQ(replies_.back().kind, FrameKind::hold);
  std::string buffer(kEagerBytes, '?');
  for (Ticket i = 0; i < 3; ++i) mailbox_.post(1, {i + 1, buffer, {}}, true);
  EXPECT_EQ(replies_.back().kind, FrameKind::credit) << "less than is given back at other times";
}

TEST_F(Mail, CreditRidesAlongButEndsNoHold) {
  std::string buffer(kEagerBytes, '?');
  EXPECT_FALSE(mailbox_.take_credit());
  mailbox_.post(1, {1, buffer, {}}, true);
  message(1, std::string(10'000, 'x'));
  EXPECT_TRUE(replies_.empty()) << "by itself it is given back later";
  const auto credit = mailbox_.take_credit();
  ASSERT_TRUE(credit);
  EXPECT_EQ(credit->kind, FrameKind::credit);
  EXPECT_EQ(credit->size, 10'064u);
  EXPECT_FALSE(mailbox_.take_credit()) << "once";
  for (int i = 0; i < 5; ++i) message(1, std::string(kEagerBytes, 'x'));
  ASSERT_EQ(replies_.back().kind, FrameKind::hold);
  mailbox_.post(1, {2, buffer, {}}, true);
  EXPECT_FALSE(mailbox_.take_credit()) << "the sender would not announce any more";
}

TEST_F(Mail, ExpectsTheNextLongMessageWhereAReceiveIsPosted) {
  std::string first(20'000, '?'), second(20'000, '?'), shorter(9'000, '?');
  EXPECT_TRUE(mailbox_.expected().place.empty());
  mailbox_.post(1, {1, first, {}}, true);
  message(1, std::string(10'000, 'x'));
  EXPECT_TRUE(mailbox_.expected().place.empty()) << "no receive is posted";
  mailbox_.post(2, {2, second, {}}, true);
  EXPECT_TRUE(mailbox_.expected().place.empty()) << "another channel";
  mailbox_.post(1, {3, second, {}}, true);
  EXPECT_EQ(mailbox_.expected().place.data(), second.data());
  EXPECT_EQ(mailbox_.expected().place.size(), 10'000u);
  message(1, "a short one does not count");
  mailbox_.post(1, {4, shorter, {}}, true);
  EXPECT_EQ(mailbox_.expected().place.data(), shorter.data());
  EXPECT_EQ(mailbox_.expected().place.size(), 9'000u);
}

// Its buffer may hold bytes of the frames behind the message.
TEST_F(Mail, AReceiveThatIsTooShortEndsWithItsMessage) {
  std::string buffer(3, '?');
  std::vector<Outcome> outcomes;
  mailbox_.post(1, {1, buffer, [&](const Result& r) { outcomes.push_back(r.outcome); }}, true);
  const FrameHead head{FrameKind::message, 4, 1, 0, 0};
  EXPECT_EQ(mailbox_.begin(head), nullptr);
  EXPECT_TRUE(outcomes.empty());
  mailbox_.end(head);
  EXPECT_THAT(outcomes, testing::ElementsAre(Outcome::too_long));
}

TEST_F(Mail, DataMustBelongToAMessageThatWasGranted) {
  std::string buffer(2 * kEagerBytes, '?');
  mailbox_.post(1, {1, buffer, {}}, true);
  mailbox_.announce({FrameKind::announce, 0, 1, 5, 2 * kEagerBytes});
  ASSERT_EQ(replies_.size(), 1u);
  EXPECT_EQ(replies_[0].kind, FrameKind::grant);
  const auto data = [](uint64_t id, uint64_t offset, size_t length) {
    return FrameHead{FrameKind::data, static_cast<uint32_t>(length), 1, id, offset};
  };
  EXPECT_THROW(mailbox_.begin(data(6, 0, 1)), Error);
  EXPECT_THROW(mailbox_.begin(data(5, 2 * kEagerBytes, 1)), Error);
  EXPECT_THROW(mailbox_.begin(data(5, kEagerBytes + 1, kEagerBytes)), Error);
  EXPECT_THROW(mailbox_.begin(data(5, ~uint64_t{0}, kEagerBytes)), Error);
  EXPECT_EQ(mailbox_.begin(data(5, kEagerBytes, kEagerBytes)), buffer.data() + kEagerBytes);
}

TEST_F(Mail, HandlersFillOneVeryLongMessageAtATime) {
  std::vector<size_t> sizes;
  const size_t size = 80 * kMaxFramePayload;
  handlers_[1] = {size + 1,
                  [&](const std::string&, const std::string& m) { sizes.push_back(m.size()); }};
  const auto arrive = [&](uint64_t id) {
    for (size_t at = 0; at < size; at += kMaxFramePayload) {
      const FrameHead data{FrameKind::data, static_cast<uint32_t>(kMaxFramePayload), 1, id, at};
      ASSERT_NE(mailbox_.begin(data), nullptr);
      mailbox_.end(data);
    }
  };
  for (const uint64_t id : {1, 2}) mailbox_.announce({FrameKind::announce, 0, 1, id, size});
  mailbox_.announce({FrameKind::announce, 0, 1, 3, size + 2});
  ASSERT_EQ(replies_.size(), 1u) << "the second waits, and the third behind it";
  arrive(1);
  EXPECT_THAT(sizes, testing::ElementsAre(size));
  ASSERT_EQ(replies_.size(), 3u);
  EXPECT_EQ(replies_[1].kind, FrameKind::grant);
  EXPECT_EQ(replies_[2].kind, FrameKind::refuse) << "the third is longer than the handler takes";
  arrive(2);
  EXPECT_EQ(sizes.size(), 2u);
}

// With several sockets, the data of messages may arrive in any order.
TEST_F(Mail, HandlersFillSeveralLongMessagesAndTakeThemInOrder) {
  std::vector<std::string> taken;
  handlers_[1] = {3 * kEagerBytes,
                  [&](const std::string&, std::string text) { taken.push_back(std::move(text)); }};
  const size_t half = kEagerBytes;
  for (const uint64_t id : {1, 2}) mailbox_.announce({FrameKind::announce, 0, 1, id, 2 * half});
  EXPECT_EQ(replies_.size(), 2u) << "both are granted";
  const auto arrive = [&](uint64_t id, size_t at, char letter) {
    const FrameHead data{FrameKind::data, static_cast<uint32_t>(half), 1, id, at};
    std::fill_n(mailbox_.begin(data), half, letter);
    mailbox_.end(data);
  };
  arrive(2, half, 'd');
  arrive(2, 0, 'c');
  arrive(1, half, 'b');
  EXPECT_THAT(taken, testing::IsEmpty());
  arrive(1, 0, 'a');
  EXPECT_THAT(taken, testing::ElementsAre(std::string(half, 'a') + std::string(half, 'b'),
                                          std::string(half, 'c') + std::string(half, 'd')));
}

TEST_F(Mail, NothingIsWrittenToABufferThatWasCancelled) {
  std::string buffer(2 * kEagerBytes, '?');
  std::vector<Outcome> outcomes;
  mailbox_.post(1, {7, buffer, [&](const Result& r) { outcomes.push_back(r.outcome); }}, true);
  mailbox_.announce({FrameKind::announce, 0, 1, 5, 2 * kEagerBytes});
  const auto freed = mailbox_.cancel(7, Outcome::timeout);
  ASSERT_TRUE(freed);
  EXPECT_EQ(freed->data(), buffer.data());
  EXPECT_THAT(outcomes, testing::ElementsAre(Outcome::timeout));
  const FrameHead data{FrameKind::data, static_cast<uint32_t>(kEagerBytes), 1, 5, 0};
  EXPECT_EQ(mailbox_.begin(data), nullptr);
  mailbox_.end(data);
}

TEST_F(Mail, WhatHasComeCanBeReceivedAfterTheEnd) {
  message(1, "last words");
  mailbox_.fail("gone");
  std::string buffer(20, '?');
  std::vector<Result> results;
  const auto keep = [&](const Result& r) { results.push_back(r); };
  mailbox_.post(1, {1, buffer, keep}, false);
  mailbox_.post(1, {2, buffer, keep}, false);
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0].outcome, Outcome::done);
  EXPECT_EQ(buffer.substr(0, results[0].bytes), "last words");
  EXPECT_EQ(results[1].outcome, Outcome::lost);
}

}  // namespace
}  // namespace troika::net
