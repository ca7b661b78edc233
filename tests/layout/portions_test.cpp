// Portions of a batch, which workers of any speed compute.
#include "troika/layout/portions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "troika/base/random.h"

namespace troika::layout {
namespace {

// Workers of any speed that are lost at any time: a list of what each portion's result is must
// agree.
TEST(Portions, EachIsCommittedOnceByAWorkerThatIsLeft) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const int backups = static_cast<int>(random.below(3));
    Portions portions(9, backups);
    portions.begin();
    std::map<uint64_t, uint64_t> busy;   // portion by worker
    std::map<uint64_t, uint64_t> owner;  // worker by committed portion
    std::set<uint64_t> lost;
    for (int64_t step = 0; !portions.is_complete() && step < 2000; ++step) {
      const uint64_t worker = 1 + random.below(5);
      if (lost.contains(worker)) continue;
      if (random.below(60) == 0 && lost.size() < 4) {
        lost.insert(worker);
        busy.erase(worker);
        const uint64_t owned =
            std::erase_if(owner, [&](const auto& o) { return o.second == worker; });
        EXPECT_EQ(portions.lose(worker, -1), owned);
      } else if (!busy.contains(worker)) {
        const auto portion = portions.next(worker);
        if (!portion) continue;
        EXPECT_FALSE(owner.contains(*portion));
        EXPECT_LE(std::ranges::count_if(busy, [&](const auto& b) { return b.second == *portion; }),
                  backups);
        busy[worker] = *portion;
      } else {
        const auto portion = busy[worker];
        busy.erase(worker);
        EXPECT_EQ(portions.commit(worker, step, static_cast<double>(uint64_t{1} << portion)),
                  !owner.contains(portion));
        owner.try_emplace(portion, worker);
      }
    }
    ASSERT_TRUE(portions.is_complete());
    EXPECT_EQ(owner.size(), 9u);
    EXPECT_EQ(portions.loss(), 511);
  }
}

TEST(Portions, StepsThatALostWorkerHasFinishedStay) {
  Portions portions(2, 0);
  portions.begin();
  EXPECT_EQ(portions.next(1), 0u);
  EXPECT_TRUE(portions.commit(1, 3, 1));
  EXPECT_EQ(portions.next(1), 1u) << "the one after its last one";
  EXPECT_TRUE(portions.commit(1, 4, 2));
  EXPECT_EQ(portions.lose(1, 3), 1u);
  EXPECT_FALSE(portions.is_complete());
  EXPECT_EQ(portions.loss(), 1);
  EXPECT_EQ(portions.next(2), 1u);
}

}  // namespace
}  // namespace troika::layout
