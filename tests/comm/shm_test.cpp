// The shared memory of back end shm: what it holds is bounded by what is in use.
#include <ATen/ATen.h>
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <string_view>
#include <thread>

#include "tests/support/errors.h"
#include "troika/comm/local/local.h"
#include "troika/comm/shm/mailbox.h"

namespace troika::comm::shm {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

struct SharedMemory {
  size_t segments = 0;
  size_t resident = 0;  // bytes
};

// Of this process, by what the system says of its descriptors.
SharedMemory shared_memory() {
  SharedMemory found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (!target.starts_with("/memfd:troika")) continue;
    struct stat status {};
    if (::stat(entry.path().c_str(), &status) != 0) continue;
    found.segments += 1;
    found.resident += static_cast<size_t>(status.st_blocks) * 512;
  }
  return found;
}

// Ranks that share memory, all of them in this thread.
class Ranks {
 public:
  explicit Ranks(int size) : worlds_(local::make(size)) {
    std::vector<int> numbers;
    for (int r = 0; r < size; ++r) numbers.push_back(r);
    const auto directory = Segment::create(Arena::directory_bytes(size));
    const auto board = Segment::create(Board::bytes_for(size));
    const auto present = Segment::create(Presence::bytes_for(size));
    for (int r = 0; r < size; ++r) {
      const auto& lifeline = worlds_[static_cast<size_t>(r)]->lifeline();
      arenas_.push_back(std::make_shared<Arena>(again(directory), r, size, lifeline));
      auto presence = std::make_shared<Presence>(again(present), r, numbers, lifeline);
      mailboxes_.push_back(std::make_unique<Mailbox>(
          std::make_shared<Board>(again(board), r, size, 0, std::move(presence)), arenas_.back(),
          numbers));
    }
  }
  ~Ranks() {
    for (const auto& world : worlds_) world->lifeline()->leave();
  }

  const std::shared_ptr<Arena>& arena(int rank) { return arenas_[static_cast<size_t>(rank)]; }
  Mailbox::Receipt send(int from, int to, uint32_t tag, size_t bytes, bool wants_receipt = false) {
    const auto data = content(bytes);
    const std::string_view payload(data.data(), bytes);
    return mailboxes_[static_cast<size_t>(from)]->send(
        to, {.tag = tag, .payload = payload, .wants_receipt = wants_receipt});
  }
  bool is_received(int from, int to, const Mailbox::Receipt& receipt) {
    return mailboxes_[static_cast<size_t>(from)]->is_received(to, receipt);
  }
  void receive(int to, int from, uint32_t tag, size_t bytes) {
    std::vector<char> data(bytes);
    auto& mailbox = *mailboxes_[static_cast<size_t>(to)];
    Envelope& message = mailbox.await(
        mailbox.expect(from, tag), Deadline::after(std::chrono::minutes(1)),
        [] { return "the sender"; }, [] { return false; });
    ASSERT_EQ(message.bytes, bytes);
    if (message.is_cell) {
      std::memcpy(data.data(), message.data(), bytes);
    } else {
      mailbox.copy_out(from, message, data.data(), Deadline::after(std::chrono::minutes(1)),
                       [] { return "the sender"; });
    }
    mailbox.take(from, message);
    ASSERT_TRUE(data == content(bytes));
  }

 private:
  // Differs with the length, and every 251 bytes.
  static std::vector<char> content(size_t bytes) {
    std::vector<char> data(bytes);
    for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(i % 251 + bytes);
    return data;
  }
  static Segment again(const Segment& segment) {
    return Segment::open(::getpid(), segment.fd(), segment.bytes());
  }

  std::vector<std::shared_ptr<GroupImpl>> worlds_;
  std::vector<std::shared_ptr<Arena>> arenas_;
  std::vector<std::unique_ptr<Mailbox>> mailboxes_;
};

TEST(Mailbox, MessagesOfAnySizesTakeTheMemoryOfAFew) {
  Ranks ranks(2);
  std::mt19937 random(1);
  constexpr size_t kLargest = 4 * kMiB;
  for (int i = 0; i < 200; ++i) {
    const size_t bytes = 1 + random() % kLargest;
    ranks.send(0, 1, 7, bytes);
    ranks.receive(1, 0, 7, bytes);
  }
  // One that is sent, the one before, and what was left over between them.
  EXPECT_LT(shared_memory().resident, 4 * kLargest);
}

TEST(Mailbox, MemoryOfOnePeersMessagesServesTheOthers) {
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
  // Of every pair the last message stays until the next one is sent.
  EXPECT_LT(shared_memory().resident, 2 * kRanks * (kRanks - 1) * kLargest);
}

TEST(Mailbox, MessagesThatWaitLongDoNotKeepTheMemoryOfLaterOnes) {
  Ranks ranks(2);
  for (int i = 0; i < 200; ++i) ranks.send(0, 1, 1, 100);
  for (int i = 0; i < 2000; ++i) {
    ranks.send(0, 1, 2, 20'000);
    ranks.receive(1, 0, 2, 20'000);
  }
  EXPECT_LT(shared_memory().resident, 10 * kMiB);
  for (int i = 0; i < 200; ++i) ranks.receive(1, 0, 1, 100);
}

TEST(Mailbox, SmallMessagesThatPiledUpGiveTheirMemoryBack) {
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
TEST(Mailbox, MessagesInCellsAndBlocksKeepTheirOrder) {
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

TEST(Mailbox, OneThatNobodyTakesDoesNotKeepOthersFromPassing) {
  Ranks ranks(2);
  ranks.send(0, 1, 1, 100);
  for (size_t i = 1; i < 5 * Cells::kCount; ++i) {
    ranks.send(0, 1, 2, i);
    ranks.receive(1, 0, 2, i);
  }
  ranks.receive(1, 0, 1, 100);
}

// One of the threads takes both blocks off the board.
TEST(Mailbox, TwoThreadsThatWaitForOneRankBothGetTheirMessages) {
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

TEST(Mailbox, BothSidesCopyALongMessageAtOnce) {
  Ranks ranks(2);
  const std::vector<size_t> sizes{9 * 1024, 31 * 32 * 1024, 31 * 32 * 1024 + 1, 5'000'001, 100};
  std::thread sender([&] {
    for (int round = 0; round < 5; ++round) {
      for (const size_t bytes : sizes) ranks.send(0, 1, 1, bytes);
    }
  });
  for (int round = 0; round < 5; ++round) {
    for (const size_t bytes : sizes) ranks.receive(1, 0, 1, bytes);
  }
  sender.join();
}

TEST(Mailbox, ReceiptsTellWhatWasTaken) {
  Ranks ranks(2);
  for (const size_t bytes : {100u, 100'000u}) {
    const auto receipt = ranks.send(0, 1, 1, bytes, /*wants_receipt=*/true);
    EXPECT_FALSE(ranks.is_received(0, 1, receipt));
    ranks.receive(1, 0, 1, bytes);
    EXPECT_TRUE(ranks.is_received(0, 1, receipt));
    // The cell and the block may have other messages by now.
    for (size_t i = 1; i < 2 * Cells::kCount; ++i) {
      ranks.send(0, 1, 1, i);
      ranks.receive(1, 0, 1, i);
    }
    ranks.send(0, 1, 1, bytes);
    EXPECT_TRUE(ranks.is_received(0, 1, receipt));
    ranks.receive(1, 0, 1, bytes);
  }
}

TEST(Arena, LargeTensorsGiveTheirPagesBack) {
  Ranks ranks(1);
  for (const int64_t count : {1, 2, 3, 4}) {
    std::vector<at::Tensor> tensors;
    for (int64_t i = 0; i < count; ++i) {
      tensors.push_back(ranks.arena(0)->tensor((40 + i) << 20, at::kByte).fill_(1));
    }
    EXPECT_GE(shared_memory().resident, static_cast<size_t>(count) * 40 * kMiB);
  }
  EXPECT_LE(shared_memory().resident, Arena::kKeptBytes + kMiB);
}

TEST(Arena, TensorsOfEverySizeInTurnTakeTheMemoryOfTheLargest) {
  Ranks ranks(1);
  for (int64_t kilobytes = 1; kilobytes < 4000; kilobytes += 7) {
    ranks.arena(0)->tensor(kilobytes << 10, at::kByte).fill_(1);
  }
  EXPECT_LE(shared_memory().resident, 10 * kMiB);
}

TEST(Arena, MoreThanAReferenceCanNameIsRefused) {
  Ranks ranks(1);
  EXPECT_ERROR(ranks.arena(0)->tensor((int64_t{1} << 40) + 1, at::kByte), ErrorKind::usage,
               "[comm] a piece of shared memory is too large; got 1099511627777 bytes, expected at "
               "most 1099511627776");
}

TEST(Arena, ThousandsOfSmallTensorsShareAFewSegments) {
  Ranks ranks(1);
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 5000; ++i) {
    tensors.push_back(ranks.arena(0)->tensor(3, at::kInt).fill_(i));
  }
  EXPECT_LT(shared_memory().segments, 10u);
  for (int i = 0; i < 5000; ++i)
    ASSERT_TRUE(tensors[static_cast<size_t>(i)].eq(i).all().item<bool>());
}

TEST(BuddyAllocator, GivesDisjointAlignedBlocksAndJoinsThemAgain) {
  constexpr Ref kBase = Ref{1} << kOffsetBits;
  BuddyAllocator buddies;
  buddies.add(kBase, kMiB);
  std::mt19937 random(3);
  std::map<Ref, size_t> taken;  // bytes asked for
  size_t bytes_taken = 0;
  for (int i = 0; i < 5000; ++i) {
    if (random() % 3 != 0) {
      const size_t bytes = 1 + random() % (size_t{1} << (8 + random() % 9));
      const auto ref = buddies.take(bytes);
      if (!ref) continue;
      const size_t block = BuddyAllocator::block_size(bytes);
      EXPECT_GE(block, bytes);
      EXPECT_EQ(*ref % block, 0u);
      EXPECT_LE(*ref + block, kBase + kMiB);
      const auto after = taken.lower_bound(*ref);
      if (after != taken.end()) {
        EXPECT_LE(*ref + block, after->first);
      }
      if (after != taken.begin()) {
        const auto before = std::prev(after);
        EXPECT_LE(before->first + BuddyAllocator::block_size(before->second), *ref);
      }
      taken[*ref] = bytes;
      bytes_taken += bytes;
    } else if (!taken.empty()) {
      const auto chosen = std::next(taken.begin(), static_cast<long>(random() % taken.size()));
      buddies.give_back(chosen->first, chosen->second);
      bytes_taken -= chosen->second;
      taken.erase(chosen);
    }
    ASSERT_EQ(buddies.taken(), bytes_taken);
    ASSERT_LE(buddies.resident_free() + bytes_taken, kMiB);
  }
  for (const auto& [ref, bytes] : taken) buddies.give_back(ref, bytes);
  EXPECT_GT(buddies.resident_free(), 0u);
  const auto evicted = buddies.evict(4096);
  ASSERT_TRUE(evicted);
  EXPECT_EQ(evicted->ref, kBase);
  EXPECT_EQ(evicted->bytes, kMiB);
  EXPECT_EQ(buddies.resident_free(), 0u);
  EXPECT_FALSE(buddies.evict(4096));
  EXPECT_EQ(buddies.take(kMiB), kBase);
  EXPECT_EQ(buddies.take(1), std::nullopt);
}

}  // namespace
}  // namespace troika::comm::shm
