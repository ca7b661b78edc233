#include "troika/net/frame.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "troika/base/random.h"
#include "troika/net/frame_cipher.h"

namespace troika::net {
namespace {

using Head = std::array<char, kFrameHead>;

Head encoded(const FrameHead& head) {
  Head bytes{};
  encode(head, bytes);
  return bytes;
}

TEST(Frame, HeadsComeOutAsTheyWentIn) {
  for (const FrameHead& head :
       {FrameHead{FrameKind::message, 7, ~uint64_t{0}, 0, 0},
        FrameHead{FrameKind::message, kEagerBytes, 1, 0, 0},
        FrameHead{FrameKind::announce, 0, 3, 1, kEagerBytes + 1},
        FrameHead{FrameKind::data, kMaxFramePayload, 3, 1, uint64_t{1} << 40},
        FrameHead{FrameKind::announce, 0, 3, 1, 1}, FrameHead{FrameKind::grant, 0, 0, 9, 0},
        FrameHead{FrameKind::hold, 0, 0, 0, 0}, FrameHead{FrameKind::bye, 0, 0, 0, 0}}) {
    EXPECT_EQ(decode(encoded(head)), head);
  }
}

TEST(Frame, NoHeadMakesAnyoneWaitForMoreThanAFrame) {
  for (const FrameHead& head :
       {FrameHead{FrameKind::message, kEagerBytes + 1, 1, 0, 0},
        FrameHead{FrameKind::data, kMaxFramePayload + 1, 1, 1, 0},
        FrameHead{FrameKind::data, 0, 1, 1, 0}, FrameHead{FrameKind::announce, 0, 1, 1, 0},
        FrameHead{FrameKind::grant, 1, 0, 1, 0},
        FrameHead{static_cast<FrameKind>(8), 0, 0, 0, 0}}) {
    EXPECT_ERROR(decode(encoded(head)), ErrorKind::failure,
                 "[net] broken frame; got bytes that no endpoint sends");
  }
  Random random(5);
  for (int i = 0; i < 10'000; ++i) {
    Head bytes;
    for (char& c : bytes) c = static_cast<char>(random());
    EXPECT_THROW(decode(bytes), Error);
  }
}

class FrameCiphers : public testing::TestWithParam<Protection> {
 protected:
  struct Sealed {
    std::array<char, kSealedHead> head;
    std::string payload;
    std::array<char, kFrameTag> tag;
  };
  Sealed seal(FrameCipher& cipher, const std::string& payload) {
    Sealed sealed{{}, payload, {}};
    cipher.seal_head(plain_, sealed.head);
    if (GetParam() == Protection::encrypted) {
      cipher.seal(payload, sealed.payload.data(), sealed.tag);
    } else {
      cipher.sign(payload, sealed.tag);
    }
    return sealed;
  }
  std::string open(FrameCipher& cipher, Sealed sealed) {
    Head head;
    cipher.open_head(sealed.head, head);
    EXPECT_EQ(head, plain_);
    if (GetParam() == Protection::encrypted) {
      cipher.open(sealed.payload, sealed.tag);
    } else {
      cipher.verify(sealed.payload, sealed.tag);
    }
    return sealed.payload;
  }

  const Secret key_ = Secret::random();
  const Head plain_ = encoded({FrameKind::message, 5, 1, 0, 0});
};

TEST_P(FrameCiphers, OpenWhatTheOtherEndSealed) {
  FrameCipher sealer(key_), opener(key_);
  for (const std::string text : {"first", "second", "first"}) {
    const Sealed sealed = seal(sealer, text);
    EXPECT_EQ(sealed.payload == text, GetParam() == Protection::authenticated);
    EXPECT_EQ(open(opener, sealed), text);
  }
}

TEST_P(FrameCiphers, NoBitCanBeChanged) {
  FrameCipher sealer(key_);
  const Sealed good = seal(sealer, "text");
  const auto opens = [&](const Sealed& sealed) {
    FrameCipher opener(key_);
    try {
      open(opener, sealed);
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  EXPECT_TRUE(opens(good));
  for (size_t i = 0; i < kSealedHead; ++i) {
    Sealed bad = good;
    bad.head[i] = static_cast<char>(bad.head[i] ^ 1);
    EXPECT_FALSE(opens(bad)) << i;
  }
  for (size_t i = 0; i < good.payload.size(); ++i) {
    Sealed bad = good;
    bad.payload[i] = static_cast<char>(bad.payload[i] ^ 1);
    EXPECT_FALSE(opens(bad)) << i;
  }
  for (size_t i = 0; i < kFrameTag; ++i) {
    Sealed bad = good;
    bad.tag[i] = static_cast<char>(bad.tag[i] ^ 1);
    EXPECT_FALSE(opens(bad)) << i;
  }
}

TEST_P(FrameCiphers, NoneCanBeDroppedRepeatedOrTakenFromAnotherSession) {
  FrameCipher sealer(key_), other(Secret::random());
  const Sealed first = seal(sealer, "a"), second = seal(sealer, "b");
  FrameCipher opener(key_);
  EXPECT_THROW(open(opener, second), Error);
  FrameCipher again(key_);
  EXPECT_EQ(open(again, first), "a");
  EXPECT_THROW(open(again, first), Error);
  FrameCipher foreign(key_);
  EXPECT_THROW(open(foreign, seal(other, "a")), Error);
}

INSTANTIATE_TEST_SUITE_P(, FrameCiphers,
                         testing::Values(Protection::authenticated, Protection::encrypted),
                         [](const auto& info) { return std::string(name(info.param)); });

}  // namespace
}  // namespace troika::net
