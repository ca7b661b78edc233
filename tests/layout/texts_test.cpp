// Damaged texts: each is accepted or refused with Error(usage), and an accepted value has a text
// with the same meaning.
#include <gmock/gmock.h>

#include <random>

#include "troika/base/error.h"
#include "troika/layout/box.h"
#include "troika/layout/cluster.h"
#include "troika/layout/mesh.h"
#include "troika/layout/plan.h"
#include "troika/layout/schedules/schedule.h"

namespace troika::layout {
namespace {

class Damage {
 public:
  // Makes random edits of a text: removed, repeated and exchanged pieces, and changed numbers.
  std::string operator()(std::string text) {
    for (int edits = number(1, 3); edits > 0; --edits) {
      const auto at = static_cast<size_t>(number(0, static_cast<int>(text.size())));
      const auto length = static_cast<size_t>(number(0, 4));
      switch (number(0, 3)) {
        case 0:
          text.erase(at, length);
          break;
        case 1:
          text.insert(at, text.substr(at, length));
          break;
        case 2:
          text.insert(at, kPieces[static_cast<size_t>(number(0, 15))]);
          break;
        default:
          text.replace(at, std::min(length, text.size() - at),
                       kPieces[static_cast<size_t>(number(0, 15))]);
      }
    }
    return text;
  }

 private:
  int number(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  static constexpr std::array<const char*, 16> kPieces{"-1",
                                                       "0",
                                                       "9223372036854775807",
                                                       "-9223372036854775808",
                                                       "2147483647",
                                                       "=",
                                                       ":",
                                                       ",",
                                                       "[",
                                                       "]",
                                                       "(",
                                                       "nan",
                                                       "data=2 ",
                                                       "-",
                                                       " ",
                                                       "\n"};
  std::mt19937 random_{11};
};

template <typename Parse>
void expect_taken_or_refused(const std::string& text, const Parse& parse) {
  Damage damage;
  int taken = 0, refused = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    const auto damaged = damage(text);
    try {
      const auto found = parse(damaged);
      ASSERT_EQ(parse(found.text()), found) << damaged;
      ++taken;
    } catch (const Error& problem) {
      ASSERT_EQ(problem.kind(), ErrorKind::usage) << damaged;
      ++refused;
    }
  }
  EXPECT_GT(taken, 2) << text;
  EXPECT_GT(refused, 1000) << text;
}

TEST(DamagedTexts, AreTakenOrRefused) {
  const auto mesh = [](const std::string& text) { return Mesh::parse(text, 12); };
  expect_taken_or_refused("pipeline=2 data=3 tensor=2", mesh);
  expect_taken_or_refused("pipeline=3 data=2-1-1 tensor=-1", mesh);
  expect_taken_or_refused("weight(800,600,200)[0:4,2:6,1:2]{3:17}", Box::parse);
  expect_taken_or_refused("0F0 0SEND_F0 0RECV_B0 0B0 0REDUCE 0STEP\n1RECV_F0 1F0 1B0 1SEND_B0\n",
                          [](const std::string& text) { return Schedule::parse(text); });
  expect_taken_or_refused(
      "[links.host]\nlatency = 1e-6\nbandwidth = 5\n[[devices]]\nhost = \"a\"\ncount = 3\n",
      [](const std::string& text) { return Cluster::parse(text, "c"); });
  expect_taken_or_refused("[mesh]\naxes = \"data=4\"\n[exchange]\nperiod = 3\nouter_lr = 0.5\n",
                          [](const std::string& text) { return Plan::parse(text, "p", 4); });
}

}  // namespace
}  // namespace troika::layout
