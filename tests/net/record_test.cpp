#include "troika/net/record.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <vector>

#include "troika/base/error.h"
#include "troika/base/random.h"

namespace troika::net {
namespace {

// Returns the records in these bytes, which the reader gets in pieces of this size.
std::string open_all(Opener& opener, const std::string& bytes, size_t piece) {
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += piece) opener.open(bytes.substr(i, piece), text);
  return text;
}

class Records : public testing::Test {
 protected:
  bool opens(const std::string& bytes) {
    Opener opener(key_);
    std::string text;
    try {
      opener.open(bytes, text);
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "[net] broken record; got bytes that the other end did not send");
      EXPECT_THROW(opener.open("", text), Error) << "it stays broken";
      return false;
    }
    return true;
  }

  const Secret key_ = Secret::random();
  Sealer sealer_{key_};
};

TEST_F(Records, AnyStreamInAnyPiecesComesOutAsItWentIn) {
  Random random(3);
  for (const size_t size :
       {size_t{1}, size_t{100}, kMaxRecordText, kMaxRecordText + 1, 3 * kMaxRecordText}) {
    std::string text(size, '\0');
    for (auto& c : text) c = static_cast<char>(random());
    for (const size_t piece : {size_t{1}, size_t{7}, size_t{4096}, size_t{1} << 20}) {
      Sealer sealer(key_);
      Opener opener(key_);
      std::string records = sealer.seal(text);
      records += sealer.seal("");
      records += sealer.seal("end");
      EXPECT_EQ(open_all(opener, records, piece), text + "end") << size << " " << piece;
    }
  }
}

TEST_F(Records, CostTwentyBytesEach) {
  EXPECT_EQ(sealer_.seal("abc").size(), 3 + kRecordOverhead);
  EXPECT_EQ(sealer_.seal(std::string(kMaxRecordText + 1, 'x')).size(),
            kMaxRecordText + 1 + 2 * kRecordOverhead);
}

TEST_F(Records, NoBitCanBeChanged) {
  const std::string record = sealer_.seal("text");
  for (size_t i = 0; i < record.size(); ++i) {
    std::string changed = record;
    changed[i] = static_cast<char>(changed[i] ^ 4);
    // A length that became larger waits for bytes that then do not fit.
    EXPECT_FALSE(opens(changed + std::string(kMaxRecordText, 'x'))) << i;
  }
  EXPECT_TRUE(opens(record));
}

TEST_F(Records, NoneCanBeDroppedRepeatedOrReordered) {
  const std::string a = sealer_.seal("a"), b = sealer_.seal("b");
  EXPECT_TRUE(opens(a + b));
  EXPECT_FALSE(opens(b));
  EXPECT_FALSE(opens(b + a));
  EXPECT_FALSE(opens(a + a));
  EXPECT_FALSE(opens(Sealer(Secret::random()).seal("a")));
}

TEST_F(Records, NoLengthMakesItWaitForMore) {
  for (const std::string& length : {std::string(4, '\xff'), std::string(4, '\0'),
                                    std::string("\x10\0\0\0", 4), std::string("\x11\0\1\0", 4)}) {
    EXPECT_FALSE(opens(length));
  }
}

}  // namespace
}  // namespace troika::net
