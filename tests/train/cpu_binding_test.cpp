#include "troika/train/options/cpu_binding.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>

#include "tests/support/errors.h"
#include "troika/base/temporary_folder.h"
#include "troika/comm/local/local.h"
#include "troika/compat/compute_threads.h"
#include "troika/compat/torch.h"

namespace troika::train {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;

// Shares on a machine whose processors are cores.
std::vector<CoreShare> shares_of(const std::vector<RankProcessors>& ranks) {
  const TemporaryFolder no_system;
  std::vector<CoreShare> result;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    result.push_back(share_of(ranks, rank, no_system.path()));
  }
  return result;
}

std::vector<Processors> processors_of(const std::vector<CoreShare>& shares) {
  std::vector<Processors> result;
  for (const auto& share : shares) {
    EXPECT_EQ(share.problem, "");
    EXPECT_EQ(share.divides, !share.processors.empty());
    result.push_back(share.processors);
  }
  return result;
}

TEST(CoreShares, DivideWhatRanksOfANodeMayUse) {
  const Processors four{4, 5, 6, 7}, five{1, 2, 3, 8, 9};
  EXPECT_THAT(processors_of(shares_of({{0, 1, four}, {0, 1, four}})),
              ElementsAre(ElementsAre(4, 5), ElementsAre(6, 7)));
  EXPECT_THAT(processors_of(shares_of({{0, 1, five}, {0, 1, five}, {0, 1, five}})),
              ElementsAre(ElementsAre(1), ElementsAre(2, 3), ElementsAre(8, 9)));
  // Two nodes, whose ranks take turns.
  EXPECT_THAT(
      processors_of(shares_of({{0, 1, four}, {1, 1, four}, {0, 1, four}, {1, 1, four}})),
      ElementsAre(ElementsAre(4, 5), ElementsAre(4, 5), ElementsAre(6, 7), ElementsAre(6, 7)));
  // Ranks that a launcher has given a socket each.
  EXPECT_THAT(processors_of(shares_of({{0, 2, four}, {0, 2, {1, 2}}, {0, 2, four}})),
              ElementsAre(ElementsAre(4, 5), IsEmpty(), ElementsAre(6, 7)));
}

TEST(CoreShares, AreNoneWhereRanksHaveProcessorsOfTheirOwn) {
  EXPECT_THAT(processors_of(shares_of({{0, 1, {0, 1}}, {0, 2, {2, 3}}, {1, 1, {0, 1}}})),
              Each(IsEmpty()));
  EXPECT_THAT(processors_of(shares_of({{0, 8, {0, 1}}})), Each(IsEmpty()));
}

TEST(CoreShares, AreRefusedWhereThreadsWouldWaitForEachOther) {
  const Processors two{0, 1}, three{0, 1, 2};
  for (const auto& share : shares_of({{0, 2, two}, {0, 2, two}})) {
    EXPECT_EQ(share.problem, "2 processes of 2 threads on processors 0-1");
    EXPECT_THAT(share.processors, IsEmpty());
    EXPECT_FALSE(share.divides);
  }
  EXPECT_EQ(shares_of({{0, 1, two}, {0, 1, two}, {0, 1, two}})[0].problem,
            "3 processes of 1 threads on processors 0-1");
  const auto overlapping = shares_of({{0, 1, two}, {0, 1, three}});
  EXPECT_EQ(overlapping[0].problem, "rank 0 may run on processors 0-1 and rank 1 on 0-2");
  EXPECT_EQ(overlapping[1].problem, "rank 1 may run on processors 0-2 and rank 0 on 0-1");
}

TEST(CoreShares, AreWholeCoresWhereThereAreEnough) {
  const TemporaryFolder system;
  for (int i = 0; i < 4; ++i) {
    const auto topology = system / ("sys/devices/system/cpu/cpu" + std::to_string(i) + "/topology");
    std::filesystem::create_directories(topology);
    std::ofstream(topology / "core_id") << i % 2;
  }
  const Processors all{0, 1, 2, 3};
  const std::vector<RankProcessors> two{{0, 2, all}, {0, 2, all}};
  EXPECT_THAT(share_of(two, 0, system.path()).processors, ElementsAre(0, 2));
  EXPECT_THAT(share_of(two, 1, system.path()).processors, ElementsAre(1, 3));
  const std::vector<RankProcessors> four(4, {0, 1, all});
  EXPECT_THAT(share_of(four, 0, system.path()).processors, ElementsAre(0));
  EXPECT_THAT(share_of(four, 1, system.path()).processors, ElementsAre(2));
  EXPECT_THAT(share_of(four, 3, system.path()).processors, ElementsAre(3));
}

// Tests that run on separate threads, which start with the mask of this process.
class CpuBindingOfThreads : public testing::Test {
 protected:
  void SetUp() override { ASSERT_GE(all_.size(), 2u) << "a test of how threads are bound"; }

  static Processors of_a_new_thread() {
    Processors found;
    std::thread([&] { found = allowed_processors(); }).join();
    return found;
  }

  // Expects that `count` threads compute for this one, and that they may run on these processors.
  static void expect_computing(size_t count, const Processors& expected) {
    std::mutex mutex;
    std::set<std::thread::id> threads;
    compat::on_each_compute_thread([&] {
      const std::lock_guard lock(mutex);
      threads.insert(std::this_thread::get_id());
      EXPECT_EQ(allowed_processors(), expected);
    });
    // ThreadSanitizer does not see how LibTorch's threads wait, so programs compute on one there.
#ifdef __SANITIZE_THREAD__
    count = 1;
#endif
    const std::lock_guard lock(mutex);
    EXPECT_EQ(threads.size(), count);
  }

  // Runs the body in a separate thread, which has its own compute threads.
  static void apart(const std::function<void()>& body) {
    const int before = at::get_num_threads();
    std::thread(body).join();
    at::set_num_threads(before);
  }

  const Processors all_ = allowed_processors();
};

TEST_F(CpuBindingOfThreads, BindsThoseThatComputeAlone) {
  apart([&] {
    at::set_num_threads(2);
    expect_computing(2, all_);
    {
      const CpuBinding binding({all_.back()});
      expect_computing(2, {all_.back()});
#ifndef __SANITIZE_THREAD__
      EXPECT_EQ(of_a_new_thread(), all_);
#endif
      EXPECT_EQ(allowed_processors(), Processors{all_.back()});
    }
    expect_computing(2, all_);
    run_on({all_.front()});
    EXPECT_EQ(of_a_new_thread(), Processors{all_.front()}) << "new threads inherit again";
  });
}

TEST_F(CpuBindingOfThreads, HoldsForThreadsThatLibTorchStartsLater) {
  apart([&] {
    at::set_num_threads(1);
    const CpuBinding binding({all_.back()});
    at::set_num_threads(2);
    expect_computing(2, {all_.back()});
  });
}

TEST_F(CpuBindingOfThreads, NeverWidensAMask) {
  apart([&] {
    const Processors own{all_.front()};
    run_on(own);
    EXPECT_ERROR(CpuBinding({all_.back()}), ErrorKind::usage,
                 "[train] threads cannot be bound to these processors; got " +
                     processors_text({all_.back()}) + ", expected some of " + processors_text(own));
    const CpuBinding nothing({});
    EXPECT_EQ(allowed_processors(), own);
  });
}

TEST_F(CpuBindingOfThreads, SharesAreAgreedOnByRanks) {
  const auto shares = [](int ranks, const std::function<void(int)>& before) {
    std::vector<CoreShare> all(static_cast<size_t>(ranks));
    comm::local::run(ranks, [&](comm::Group group) {
      before(group.rank());
      all[static_cast<size_t>(group.rank())] = share_of(group);
    });
    return all;
  };
  const auto divided = shares(2, [](int) {});
  for (const auto& share : divided) {
    EXPECT_TRUE(share.divides);
    EXPECT_TRUE(std::ranges::includes(all_, share.processors));
    EXPECT_THAT(share.processors, testing::Not(IsEmpty()));
  }
  EXPECT_NE(divided[0].processors, divided[1].processors);
  for (const auto& share :
       shares(2, [&](int rank) { run_on({rank == 0 ? all_.front() : all_.back()}); })) {
    EXPECT_EQ(share.problem, "");
    EXPECT_FALSE(share.divides);
  }
  for (const auto& share : shares(3, [&](int rank) {
         if (rank == 2) run_on({all_.back()});
       })) {
    EXPECT_THAT(share.problem, testing::HasSubstr("may run on processors"));
    EXPECT_FALSE(share.divides);
  }
  ::setenv("OMP_PROC_BIND", "close", 1);
  for (const auto& share : shares(2, [](int) {})) {
    EXPECT_EQ(share.problem, "OMP_PROC_BIND in the environment");
  }
  ::setenv("OMP_PROC_BIND", "false", 1);
  EXPECT_TRUE(shares(2, [](int) {})[0].divides);
  ::unsetenv("OMP_PROC_BIND");
}

}  // namespace
}  // namespace troika::train
