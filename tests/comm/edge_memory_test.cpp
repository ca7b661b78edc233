// Predictions of an edge's memory against what its ends hold.
#include "troika/comm/edge_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "troika/base/memory.h"
#include "troika/comm/edge.h"
#include "troika/comm/local/local.h"
#include "troika/compat/tensor_memory.h"

namespace troika::comm {
namespace {

// The tensors are float32. At most 2048 elements follow their frame in the same message.
constexpr EdgeTraffic kUses[] = {
    {.tensor_bytes = 40'000, .depth = 3, .referenced = 1},
    {.tensor_bytes = 40'000, .depth = 1, .referenced = 1},
    {.tensor_bytes = 40'000, .depth = 2, .referenced = 5},
    {.tensor_bytes = 4 * 2'049, .depth = 4, .referenced = 2},
    {.tensor_bytes = 4 * 2'048, .depth = 4, .referenced = 2},
    {.tensor_bytes = 400, .depth = 3, .referenced = 4},
};

// The allocator may round up each of so many tensors.
int64_t rounding(int tensors) {
  return int64_t{64} * tensors;
}

// Counts what this process allocates between two barriers: the sender makes its tensor before.
TEST(EdgeMemory, TheReceivingEndHoldsWhatIsPredicted) {
  compat::count_tensor_memory();
  for (const auto& use : kUses) {
    SCOPED_TRACE(testing::Message() << use.tensor_bytes << " bytes, depth " << use.depth);
    local::run(2, [&](const Group& group) {
      constexpr int kTensors = 20;
      if (group.rank() == 0) {
        const auto tensor = at::ones({use.tensor_bytes / 4});
        const auto edge = group.edge_to(1, 0, {.depth = use.depth});
        group.barrier();
        group.barrier();
        for (int i = 0; i < kTensors; ++i) edge.send(tensor);
        return group.barrier();
      }
      group.barrier();
      const int64_t before = memory::live();
      const auto edge = group.edge_from(0, 0, {.depth = use.depth});
      group.barrier();
      std::deque<at::Tensor> referenced_now;
      for (int i = 0; i < kTensors; ++i) {
        if (std::ssize(referenced_now) == use.referenced) referenced_now.pop_front();
        referenced_now.push_back(edge.receive());
        const int64_t held = memory::live() - before;
        const auto predicted = receiving_edge_bytes(use);
        EXPECT_LE(held, predicted.tensors + rounding(use.depth + use.referenced));
        if (i + 1 >= use.referenced) {
          EXPECT_GE(held, predicted.tensors);
        }
        EXPECT_LE(edge.buffer_bytes(), predicted.sum());
      }
      group.barrier();
    });
  }
}

TEST(EdgeMemory, TensorsOfDifferentSizesTakeNoMoreThanTheLargest) {
  compat::count_tensor_memory();
  local::run(2, [](const Group& group) {
    constexpr int kDepth = 3, kReferenced = 2;
    const auto elements = [](int i) { return int64_t{5'000} + (i * 7'919) % 20'000; };
    constexpr int kTensors = 30;
    if (group.rank() == 0) {
      std::vector<at::Tensor> tensors;
      for (int i = 0; i < kTensors; ++i) tensors.push_back(at::ones({elements(i / 2)}));
      const auto edge = group.edge_to(1, 0, {.depth = kDepth});
      group.barrier();
      group.barrier();
      for (const auto& tensor : tensors) edge.send(tensor);
      return group.barrier();
    }
    group.barrier();
    const int64_t before = memory::live();
    const auto edge = group.edge_from(0, 0, {.depth = kDepth});
    group.barrier();
    std::deque<at::Tensor> referenced;
    int64_t largest = 0, most = 0;
    for (int i = 0; i < kTensors; ++i) {
      if (referenced.size() == kReferenced) referenced.pop_front();
      referenced.push_back(edge.receive());
      largest = std::max(largest, elements(i / 2));
      most = std::max(most, memory::live() - before);
    }
    EXPECT_LE(most - rounding(kDepth + kReferenced),
              receiving_edge_bytes(
                  {.tensor_bytes = 4 * largest, .depth = kDepth, .referenced = kReferenced})
                  .tensors);
    group.barrier();
  });
}

}  // namespace
}  // namespace troika::comm
