// The order in which one member of a ring sends and receives, recorded by a transport for a single
// rank.
#include <gmock/gmock.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "troika/comm/algorithms/ring.h"

namespace troika::comm {
namespace {

constexpr int kMembers = 3;
constexpr size_t kBlock = 2 * kSegmentBytes;

// Rank 1 of three, whose neighbour sends zeros whenever this rank waits for them. Records what
// happens to payloads.
class LoneRank : public GroupImpl {
 public:
  LoneRank() : GroupImpl(world_of_three(), nullptr) {}

  std::unique_ptr<Transfer> send(int, uint32_t tag, const void*, size_t) override {
    if (is_payload(tag)) events.emplace_back("send");
    return std::make_unique<CompletedSend>();
  }

  std::unique_ptr<Transfer> receive(int, uint32_t tag, void* data, size_t bytes) override {
    return std::make_unique<Zeros>(*this, is_payload(tag), data, bytes);
  }

  std::vector<std::string> events;

 private:
  static GroupInfo world_of_three() {
    GroupInfo info = world_on_one_node("lone", 1, kMembers);
    info.world_ranks = {0, 1, 2};
    return info;
  }

  static bool is_payload(uint32_t tag) { return (tag & kPayloadTag) == kPayloadTag; }

  class Zeros : public Transfer {
   public:
    Zeros(LoneRank& rank, bool is_payload, void* data, size_t bytes)
        : rank_(rank), is_payload_(is_payload), data_(data), bytes_(bytes) {}
    void wait(Deadline) override {
      if (is_payload_) {
        rank_.events.emplace_back("take");
        std::memset(data_, 0, bytes_);
      } else {
        const Frame frame{{}, kSegmentBytes, 0};
        std::memcpy(data_, &frame, sizeof(frame));
      }
    }

   private:
    LoneRank& rank_;
    const bool is_payload_;
    void* const data_;
    const size_t bytes_;
  };
};

std::vector<std::string> events_of(void (*collective)(const RankSubset&,
                                                      const std::vector<ByteSpan>&,
                                                      const Elements&)) {
  LoneRank rank;
  const CollectiveFingerprint fingerprint;
  Channel channel(rank, fingerprint);
  Traffic traffic;
  const RankSubset subset = everyone(channel, Deadline::after(Milliseconds(1000)), traffic);
  std::vector<char> memory(kMembers * kBlock);
  collective(subset, even_blocks({memory.data(), memory.size()}, sizeof(float), kMembers),
             {c10::ScalarType::Float, ReduceOp::sum});
  return rank.events;
}

std::vector<std::string> joined(const std::vector<std::vector<std::string>>& parts) {
  std::vector<std::string> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

const std::vector<std::string> kFirstBlock{"send", "send"};
// Two segments, the first of which is on its way again when the second comes.
const std::vector<std::string> kPassedOn{"take", "send", "take", "send"};
const std::vector<std::string> kLastBlock{"take", "take"};

TEST(Ring, ASegmentIsSentOnBeforeTheNextOneIsAwaited) {
  EXPECT_EQ(events_of(ring_reduce_scatter), joined({kFirstBlock, kPassedOn, kLastBlock}));
  EXPECT_EQ(events_of([](const RankSubset& subset, const std::vector<ByteSpan>& blocks,
                         const Elements&) { ring_all_gather(subset, blocks); }),
            joined({kFirstBlock, kPassedOn, kLastBlock}));
}

TEST(Ring, AResultIsSentOnWhileOthersAreReduced) {
  EXPECT_EQ(events_of(ring_reduce_and_gather),
            joined({kFirstBlock, kPassedOn, kPassedOn, kPassedOn, kLastBlock}));
}

}  // namespace
}  // namespace troika::comm
