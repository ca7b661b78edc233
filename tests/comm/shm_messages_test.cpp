// Messages in shared memory: their order, their memory, and what happens when a side is late or
// wrong.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <map>
#include <random>
#include <thread>

#include "tests/comm/shm_ranks.h"
#include "tests/support/errors.h"
#include "tests/support/process_usage.h"

namespace troika::comm::shm {
namespace {

TEST(ShmMessages, MessagesOfAnySizesTakeTheMemoryOfAFew) {
  Ranks ranks(2);
  std::mt19937 random(1);
  constexpr size_t kLargest = 4 * kMiB;
  for (int i = 0; i < 200; ++i) {
    const size_t bytes = 1 + random() % kLargest;
    ranks.send(0, 1, 7, bytes);
    ranks.receive(1, 0, 7, bytes);
  }
  // The message in flight, the previous one, and unused memory between them.
  EXPECT_LT(shared_memory().resident, 4 * kLargest);
}

TEST(ShmMessages, MemoryOfOnePeersMessagesServesTheOthers) {
  constexpr int kRanks = 5;
  Ranks ranks(kRanks);
  std::mt19937 random(2);
  constexpr size_t kLargest = kMiB;
  for (int round = 0; round < 100; ++round) {
    std::map<std::pair<int, int>, size_t> sizes;
    for (int from = 0; from < kRanks; ++from) {
      const int to = (from + 1 + round % (kRanks - 1)) % kRanks;
      ranks.send(from, to, 1, sizes[{from, to}] = 1 + random() % kLargest);
    }
    for (const auto& [pair, bytes] : sizes) ranks.receive(pair.second, pair.first, 1, bytes);
  }
  // The last message of each pair stays until the next one is sent.
  EXPECT_LT(shared_memory().resident,
            2 * kRanks * (kRanks - 1) * kLargest + kRanks * BlockPool::kMostBytes);
}

TEST(ShmMessages, MessagesThatWaitLongDoNotKeepTheMemoryOfLaterOnes) {
  Ranks ranks(2);
  for (int i = 0; i < 200; ++i) ranks.send(0, 1, 1, 100);
  for (int i = 0; i < 2000; ++i) {
    ranks.send(0, 1, 2, 20'000);
    ranks.receive(1, 0, 2, 20'000);
  }
  EXPECT_LT(shared_memory().resident, 10 * kMiB);
  for (int i = 0; i < 200; ++i) ranks.receive(1, 0, 1, 100);
}

TEST(ShmMessages, SmallMessagesThatPiledUpGiveTheirMemoryBack) {
  Ranks ranks(2);
  for (int i = 0; i < 4000; ++i) ranks.send(0, 1, 1, 60'000);
  for (int i = 0; i < 4000; ++i) ranks.receive(1, 0, 1, 60'000);
  for (int i = 0; i < 200; ++i) {
    ranks.send(0, 1, 1, 100);
    ranks.receive(1, 0, 1, 100);
  }
  EXPECT_LE(shared_memory().resident, Arena::kKeptBytes + 8 * kMiB);
}

// More than there are cells: the others come in blocks.
TEST(ShmMessages, MessagesInCellsAndBlocksKeepTheirOrder) {
  Ranks ranks(2);
  std::mt19937 random(4);
  size_t sent = 0, received = 0;
  const auto bytes_of = [](size_t message) { return 1 + message * 37 % 12'000; };
  for (int i = 0; i < 2000; ++i) {
    const bool sends = sent == received || (sent < received + 40 && random() % 2 == 0);
    if (sends) {
      ranks.send(0, 1, 1, bytes_of(sent++));
    } else {
      ranks.receive(1, 0, 1, bytes_of(received++));
    }
  }
  EXPECT_GT(sent, 500u);
  while (received < sent) ranks.receive(1, 0, 1, bytes_of(received++));
}

TEST(ShmMessages, OneThatNobodyTakesDoesNotKeepOthersFromPassing) {
  Ranks ranks(2);
  ranks.send(0, 1, 1, 100);
  for (size_t i = 1; i < 5 * Cells::kCount; ++i) {
    ranks.send(0, 1, 2, i);
    ranks.receive(1, 0, 2, i);
  }
  ranks.receive(1, 0, 1, 100);
}

// One of the threads takes both blocks off the board.
TEST(ShmMessages, TwoThreadsThatWaitForOneRankBothGetTheirMessages) {
  Ranks ranks(2);
  for (int round = 0; round < 300; ++round) {
    std::thread other([&] { ranks.receive(1, 0, 2, 20'000); });
    std::thread sender([&] {
      ranks.send(0, 1, 2, 20'000);
      ranks.send(0, 1, 1, 20'000);
    });
    ranks.receive(1, 0, 1, 20'000);
    sender.join();
    other.join();
  }
}

// A sender without a time limit never uses a second block, so a long message goes through its
// window.
TEST(ShmMessages, BothSidesCopyALongMessageAtOnce) {
  Ranks ranks(2, std::chrono::minutes(10));
  const std::vector<size_t> sizes{
      9 * 1024, Block::kLargestWindow, 64 * kMiB, Block::kLargestWindow + 1, 5'000'001, 100};
  std::thread sender([&] {
    for (const size_t bytes : sizes) ranks.send(0, 1, 1, bytes);
  });
  for (const size_t bytes : sizes) ranks.receive(1, 0, 1, bytes);
  sender.join();
  EXPECT_LT(shared_memory().resident, 4 * kMiB);
}

TEST(ShmMessages, BytesThatTheReceiverDoesNotFetchAreLeftInAnotherBlock) {
  Ranks ranks(2, std::chrono::microseconds(0));
  constexpr size_t kBytes = 64 * kMiB;
  ranks.send(0, 1, 1, kBytes);
  EXPECT_GT(shared_memory().resident, kBytes);
  ranks.receive(1, 0, 1, kBytes);
}

TEST(ShmMessages, ALongMessageDoesNotHoldUpThoseOfOtherThreads) {
  Ranks ranks(2, std::chrono::seconds(20));
  constexpr size_t kBytes = 5'000'000;
  std::thread sender([&] { ranks.send(0, 1, 1, kBytes); });
  Envelope& message = ranks.await(1, 0, 1);
  for (const size_t bytes : {100u, 100'000u}) {
    ranks.send(0, 1, 2, bytes);
    ranks.receive(1, 0, 2, bytes);
  }
  // The sender still waits for this thread to fetch bytes.
  EXPECT_EQ(reinterpret_cast<Block&>(message).rest, Ref{0});
  ranks.copy(1, 0, message, kBytes);
  sender.join();
}

// The window fits into the present memory; the rest would need another segment.
TEST(ShmMessages, OneForWhichMemoryEndsIsAnErrorAtBothEndsAndLeaksNothing) {
  Ranks ranks(2, std::chrono::microseconds(0));
  ranks.send(0, 1, 1, Block::kLargestWindow);
  ranks.receive(1, 0, 1, Block::kLargestWindow);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{0, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_ERROR(ranks.send(0, 1, 1, 5 * kMiB), ErrorKind::failure,
               "[comm] cannot make 8388608 bytes of shared memory; got Too many open files");
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_ERROR(ranks.receive(1, 0, 1, 5 * kMiB), ErrorKind::peer,
               "[comm] the sender had no memory for the rest of a message; got 1015808 bytes, "
               "expected 5242880");
  EXPECT_TRUE(ranks.outbox(0).all_received());
  const auto segments = shared_memory().segments;
  ranks.send(0, 1, 1, Block::kLargestWindow);
  ranks.receive(1, 0, 1, Block::kLargestWindow);
  EXPECT_EQ(shared_memory().segments, segments);
}

TEST(ShmMessages, WordsOfASenderThatCannotBeTrueAreRefused) {
  Ranks ranks(2);
  const auto lane = [&]() -> Board::Lane& { return ranks.board(0).lane(0, 1); };
  const auto newest = [&]() -> Block& {
    return *reinterpret_cast<Block*>(ranks.arena(0)->at(0, lane().newest_block, sizeof(Block)));
  };
  ranks.send(0, 1, 1, 100);
  EXPECT_ERROR(ranks.receive(1, 0, 1, 99), ErrorKind::usage,
               "[comm] a message from the sender is longer than its receive; got 100 bytes, "
               "expected at most 99");
  ranks.send(0, 1, 1, 100);
  lane().cells.at(1).bytes = kMiB;
  EXPECT_ERROR(ranks.receive(1, 0, 1, kMiB), ErrorKind::peer,
               "[comm] a message from the sender is longer than its cell; got 1048576 bytes, "
               "expected at most 9168");
  ranks.send(0, 1, 1, 100'000);
  newest().filled = 3 * kMiB;
  ranks.receive(1, 0, 1, 100'000);
  ranks.send(0, 1, 1, 100'000);
  newest().envelope.bytes = 800'000;
  newest().rest = (Ref{1} << kOffsetBits) + 500'000;
  EXPECT_ERROR(
      ranks.receive(1, 0, 1, 800'000), ErrorKind::peer,
      "[comm] local rank 0 refers to memory outside of its segment; got 700000 bytes at byte "
      "500000, expected at most 1048576 bytes");
  ranks.send(0, 1, 1, 100'000);
  lane().newest_block = Ref{77} << kOffsetBits;
  EXPECT_ERROR(ranks.receive(1, 0, 1, 100'000), ErrorKind::peer,
               "[comm] local rank 0 refers to memory that it does not share; got reference "
               "0x4d0000000000, expected one of its segments");
}

TEST(ShmMessages, PairsThatExchangeNoneTakeNoMemory) {
  constexpr int kRanks = 24;
  Ranks ranks(kRanks);
  const auto before = test::process_usage().shared_bytes;
  for (int from = 0; from < kRanks; ++from) {
    const int to = (from + 1) % kRanks;
    ranks.send(from, to, 1, 100);
    ranks.receive(to, from, 1, 100);
  }
  for (int r = 0; r < kRanks; ++r) EXPECT_TRUE(ranks.outbox(r).all_received());
  // Some pages of each rank's mapping; all cells of all pairs are more than 4000 pages.
  EXPECT_LT(test::process_usage().shared_bytes - before, kRanks * 12 * 4096);
}

TEST(ShmMessages, ReceiptsTellWhatWasTaken) {
  Ranks ranks(2);
  for (const size_t bytes : {100u, 100'000u}) {
    const auto receipt = ranks.send(0, 1, 1, bytes, /*wants_receipt=*/true);
    EXPECT_FALSE(ranks.outbox(0).is_received(1, receipt));
    ranks.receive(1, 0, 1, bytes);
    EXPECT_TRUE(ranks.outbox(0).is_received(1, receipt));
    // The cell and the block may have other messages by now.
    for (size_t i = 1; i < 2 * Cells::kCount; ++i) {
      ranks.send(0, 1, 1, i);
      ranks.receive(1, 0, 1, i);
    }
    ranks.send(0, 1, 1, bytes);
    EXPECT_TRUE(ranks.outbox(0).is_received(1, receipt));
    ranks.receive(1, 0, 1, bytes);
  }
}

}  // namespace
}  // namespace troika::comm::shm
