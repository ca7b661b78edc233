#include "troika/plan/block_search.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace troika::plan {

using layout::kVPasses;
using layout::kVPeriod;
using layout::VBlock;

namespace {

// Slots modulo the period, on rank 0, of the passes after the first one.
struct Residues {
  int forward_1 = 0;
  int backward_1 = 0;
  int backward_0 = 0;
};

int at_or_after(int earliest, int residue) {
  const int past = (earliest - residue) % kVPeriod;
  return past == 0 ? earliest : earliest + kVPeriod - past;
}

// `steps` are the slots between each rank and the next one for passes that go down the ranks;
// passes that go up take one slot. Returns nothing if two passes of a rank have the same slot
// modulo the period.
std::optional<VBlock> block_of(const std::vector<int>& steps, const Residues& residues) {
  const int ranks = static_cast<int>(steps.size()) + 1;
  int down = 0;  // from rank 0 to the last rank
  for (const int step : steps) down += step;
  const int forward_1 = at_or_after(down + ranks, residues.forward_1);
  const int backward_1 = at_or_after(forward_1 + 1, residues.backward_1);
  const int backward_0 = at_or_after(backward_1 + down + ranks, residues.backward_0);
  VBlock block;
  int offset = 0;
  for (int r = 0; r < ranks; ++r) {
    block.push_back({offset, forward_1 - r, backward_1 + offset, backward_0 - r});
    std::array<bool, kVPeriod> taken{};
    for (const int slot : block.back()) {
      auto& is_taken = taken[static_cast<size_t>(slot % kVPeriod)];
      if (is_taken) return std::nullopt;
      is_taken = true;
    }
    if (r + 1 < ranks) offset += steps[static_cast<size_t>(r)];
  }
  return block;
}

// Returns the maximum activations of a stage that a rank keeps in the steady state, with each
// weight part in the next slot that the four passes leave free.
double steady_memory(const std::array<int, kVPasses>& slots, const MemoryModel& memory) {
  std::array<bool, kVPeriod> taken{};
  for (const int slot : slots) taken[static_cast<size_t>(slot % kVPeriod)] = true;
  const auto weight_after = [&](int slot) {
    do ++slot;
    while (taken[static_cast<size_t>(slot % kVPeriod)]);
    taken[static_cast<size_t>(slot % kVPeriod)] = true;
    return slot;
  };
  const auto& [forward_0, forward_1, backward_1, backward_0] = slots;
  const int weight_1 = weight_after(backward_1), weight_0 = weight_after(backward_0);
  // Returns the number of micro-batches that are between these two passes in a slot.
  const auto between = [](int begin, int end, int slot) {
    const auto begun = [&](int first) {
      const int past = slot - first;
      return past >= 0 ? past / kVPeriod : -((kVPeriod - 1 - past) / kVPeriod);
    };
    return begun(begin) - begun(end);
  };
  double most = 0;
  for (int slot = 0; slot < kVPeriod; ++slot) {
    const double kept = between(forward_0, weight_0, slot) + between(forward_1, weight_1, slot);
    const int inputs =
        between(backward_0 + 1, weight_0, slot) + between(backward_1 + 1, weight_1, slot);
    most = std::max(most, kept - inputs * memory.input_part_frees);
  }
  return most / 2;
}

}  // namespace

std::vector<VBlock> blocks_within(int ranks, double limit, const MemoryModel& memory, size_t most) {
  constexpr double kTolerance = 1e-9;
  std::vector<std::pair<double, VBlock>> found;
  const auto try_steps = [&](const std::vector<int>& steps) {
    for (int f = 1; f < kVPeriod; ++f) {
      for (int b1 = 1; b1 < kVPeriod; ++b1) {
        for (int b0 = 1; b0 < kVPeriod; ++b0) {
          auto block = block_of(steps, {f, b1, b0});
          if (!block) continue;
          double kept = 0;
          for (const auto& slots : *block) kept = std::max(kept, steady_memory(slots, memory));
          if (kept <= limit + kTolerance) found.emplace_back(kept, std::move(*block));
        }
      }
    }
  };
  const auto count = static_cast<size_t>(ranks - 1);
  constexpr size_t kMostChanges = 64;  // bounds the time for long pipelines
  const size_t stride = 1 + count / kMostChanges;
  for (int step = 1; step < kVPeriod; ++step) {
    try_steps(std::vector<int>(count, step));
    for (int smaller = 1; smaller < step; ++smaller) {
      for (size_t change = 1; change < count; change += stride) {
        std::vector<int> steps(count, smaller);
        std::fill_n(steps.begin(), change, step);
        try_steps(steps);
      }
    }
  }
  std::ranges::stable_sort(found, std::ranges::greater{}, &std::pair<double, VBlock>::first);
  std::vector<VBlock> blocks;
  for (auto& [kept, block] : found) {
    if (blocks.size() < most) blocks.push_back(std::move(block));
  }
  return blocks;
}

}  // namespace troika::plan
