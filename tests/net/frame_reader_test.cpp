// Frames from a socket, in random pieces, into memory that the reader guesses in advance.
#include "troika/net/frame_reader.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "troika/base/error.h"
#include "troika/base/random.h"
#include "troika/net/descriptor.h"
#include "troika/net/frame_writer.h"
#include "troika/net/mailbox.h"

namespace troika::net {
namespace {

struct Sockets {
  Sockets() {
    int both[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, both) != 0) {
      throw std::runtime_error("no sockets");
    }
    out = Descriptor(both[0]);
    in = Descriptor(both[1]);
  }
  Descriptor out, in;
};

std::string text_of(uint64_t number, size_t length) {
  Random random(number);
  std::string text(length, 0);
  for (size_t i = 0; i < length; i += 97) text[i] = static_cast<char>(random());
  return text;
}

// Has buffers for some messages in advance, like a mailbox. A buffer's owner writes to it and frees
// it as soon as its message is complete, or when it withdraws the buffer.
class Buffers : public FrameSink {
 public:
  Buffers(FrameReader& reader, uint64_t seed) : reader_(reader), random_(seed) {}

  char* begin(const FrameHead& head) override {
    if (head.kind != FrameKind::message) return nullptr;
    auto& queue = posted_[head.channel];
    if (!queue.empty() && queue.front()->size() >= head.length) {
      current_ = std::move(queue.front());
      queue.pop_front();
    } else {
      current_ = std::make_unique<std::string>(head.length, '?');
    }
    return current_->data();
  }
  void end(const FrameHead& head) override {
    if (head.kind == FrameKind::message) {
      taken.push_back(current_->substr(0, head.length));
      current_->assign(current_->size(), '!');
      current_.reset();
    }
    if (random_.uniform() < 0.2) withdraw();
    if (random_.uniform() < 0.8) post();
  }
  // Usually the next buffer of some channel, and a length that is right for some messages.
  Expected expected() const override {
    for (const auto& [channel, queue] : posted_) {
      if (queue.empty() || random_.uniform() < 0.3) continue;
      const size_t lengths[] = {queue.front()->size(), 20'000, 9'000};
      const auto length = lengths[random_() % 3];
      const std::span<char> buffer(*queue.front());
      return {channel, buffer.first(std::min(length, buffer.size()))};
    }
    return {};
  }

  std::vector<std::string> taken;

 private:
  void post() {
    const size_t lengths[] = {20'000, 40'000, 40'000};
    posted_[random_() % 2].push_back(std::make_unique<std::string>(lengths[random_() % 3], '?'));
  }
  void withdraw() {
    auto& queue = posted_[random_() % 2];
    if (queue.empty()) return;
    reader_.forget(*queue.front());
    queue.front()->assign(queue.front()->size(), '!');
    queue.pop_front();
  }

  FrameReader& reader_;
  mutable Random random_;
  std::map<Channel, std::deque<std::unique_ptr<std::string>>> posted_;
  std::unique_ptr<std::string> current_;
};

class FrameReaders : public testing::TestWithParam<Protection> {};

TEST_P(FrameReaders, GuessesChangeNothing) {
  const Secret key = Secret::random();
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    const Sockets sockets;
    FrameWriter writer(key, GetParam());
    FrameReader reader(key, GetParam());
    Buffers buffers(reader, seed);
    Random random(1000 + seed);
    std::deque<std::string> texts;
    std::vector<std::string> sent;
    std::vector<OutFrame> written;
    std::string reason;
    const auto read = [&] {
      ASSERT_TRUE(reader.read(sockets.in.get(), buffers, reason)) << reason;
    };
    while (sent.size() < 150) {
      // Rows of equal frames, so that guesses are often right.
      const size_t lengths[] = {16, 9'000, 20'000, 20'000, 40'000};
      const size_t length = lengths[random() % 5];
      const Channel channel = random() % 2;
      for (uint64_t i = 1 + random() % 6; i > 0; --i) {
        if (random.uniform() < 0.2) writer.add({{.kind = FrameKind::credit, .size = 1}});
        // A short message, usually on a channel without buffers, and a message of any length.
        for (const size_t each : {size_t{16}, length}) {
          sent.push_back(text_of(sent.size(), each));
          texts.push_back(sent.back());
          const auto message = std::make_shared<Outgoing>(Outgoing{0, channel, texts.back()});
          writer.add({{.kind = FrameKind::message,
                       .length = static_cast<uint32_t>(each),
                       .channel = each == 16 && random.uniform() < 0.8 ? 7 : channel},
                      message});
        }
        if (random.uniform() < 0.2 && !writer.is_full()) continue;
        while (!writer.is_empty()) {
          ASSERT_TRUE(writer.flush(sockets.out.get(), written, reason)) << reason;
          if (random.uniform() < 0.8 || !writer.is_empty()) read();
        }
      }
    }
    while (!writer.is_empty()) {
      ASSERT_TRUE(writer.flush(sockets.out.get(), written, reason)) << reason;
      read();
    }
    read();
    ASSERT_EQ(buffers.taken.size(), sent.size());
    for (size_t i = 0; i < sent.size(); ++i) ASSERT_TRUE(buffers.taken[i] == sent[i]) << i;
  }
}

// A mailbox as sink, as a connection has it.
class MailSink : public FrameSink {
 public:
  char* begin(const FrameHead& head) override {
    return head.kind == FrameKind::message ? mailbox.begin(head) : nullptr;
  }
  void end(const FrameHead& head) override {
    if (head.kind == FrameKind::message) mailbox.end(head);
    if (head.kind == FrameKind::announce) mailbox.announce(head);
  }
  Expected expected() const override { return mailbox.expected(); }

  const Handlers handlers;
  Mailbox mailbox{"peer", handlers, [](const FrameHead&) {}};
};

// The frame that ends a receive does not fill its buffer, where the frames behind it were read.
TEST_P(FrameReaders, NothingIsReadFromABufferAfterItsReceiveHasEnded) {
  constexpr uint32_t kLong = 20'000;
  const Secret key = Secret::random();
  const std::string text = text_of(1, 2 * kLong), other = text_of(2, 10'000);
  const auto message = [](Channel channel, std::string_view payload) {
    return OutFrame{{.kind = FrameKind::message,
                     .length = static_cast<uint32_t>(payload.size()),
                     .channel = channel},
                    std::make_shared<Outgoing>(Outgoing{0, channel, payload})};
  };
  const std::pair<OutFrame, Outcome> cases[] = {
      {message(1, ""), Outcome::done},
      {message(1, std::string_view(text).substr(0, 5)), Outcome::done},
      {message(1, text), Outcome::too_long},
      {OutFrame{{.kind = FrameKind::announce, .channel = 1, .id = 3, .size = 2 * kLong}},
       Outcome::too_long}};
  for (const auto& [frame, outcome] : cases) {
    SCOPED_TRACE(frame.head.length);
    const Sockets sockets;
    FrameWriter writer(key, GetParam());
    FrameReader reader(key, GetParam());
    MailSink mail;
    std::string reason;
    std::vector<OutFrame> written;
    const auto pass = [&] {
      ASSERT_TRUE(writer.flush(sockets.out.get(), written, reason)) << reason;
      ASSERT_TRUE(writer.is_empty());
      ASSERT_TRUE(reader.read(sockets.in.get(), mail, reason)) << reason;
    };
    std::string first(kLong, '?'), taken(other.size(), '?');
    mail.mailbox.post(1, {1, first, {}}, true);
    writer.add(message(1, std::string_view(text).substr(0, kLong)));
    pass();
    ASSERT_EQ(first, text.substr(0, kLong));

    std::optional<Outcome> ended;
    const auto reuse = [&](const Result& result) {
      ended = result.outcome;
      first.assign(first.size(), '!');
    };
    mail.mailbox.post(1, {2, first, reuse}, true);
    mail.mailbox.post(2, {3, taken, {}}, true);
    ASSERT_FALSE(mail.expected().place.empty());
    writer.add(frame);
    writer.add(message(2, other));
    pass();
    EXPECT_EQ(ended, outcome);
    EXPECT_TRUE(taken == other);
    EXPECT_EQ(first, std::string(first.size(), '!'));
  }
}

INSTANTIATE_TEST_SUITE_P(All, FrameReaders,
                         testing::Values(Protection::none, Protection::authenticated,
                                         Protection::encrypted));

}  // namespace
}  // namespace troika::net
