#include "troika/layout/schedules/v_block.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "troika/base/error.h"

namespace troika::layout {

namespace {

// The content of a slot: nothing, a VPass of a micro-batch, or the rank's k-th weight part.
constexpr int kFree = -1;
constexpr int kWeight = static_cast<int>(kVPasses);

// Marks a pass without a slot.
constexpr int kNowhere = -1;

struct TimeSlot {
  int type = kFree;
  int number = 0;  // the micro-batch, or k
};

bool is_forward(int type) {
  return type == static_cast<int>(VPass::forward_0) || type == static_cast<int>(VPass::forward_1);
}
bool is_backward(int type) {
  return type == static_cast<int>(VPass::backward_0) || type == static_cast<int>(VPass::backward_1);
}
int change_of_memory(int type) {
  return is_forward(type) ? 1 : type == kWeight ? -1 : 0;
}

// The slots of one rank, as a function of time.
class VRank {
 public:
  VRank(const std::array<int, kVPasses>& block, int micro_batches) {
    for (size_t type = 0; type < kVPasses; ++type) {
      places_[type].resize(static_cast<size_t>(micro_batches));
      for (int m = 0; m < micro_batches; ++m) {
        put(block[type] + kVPeriod * m, {static_cast<int>(type), m});
      }
    }
    weights_.resize(2 * static_cast<size_t>(micro_batches));
  }

  int place(int type, int number) const {
    const auto& places = type == kWeight ? weights_ : places_[static_cast<size_t>(type)];
    return places[static_cast<size_t>(number)];
  }
  const std::vector<TimeSlot>& slots() const { return slots_; }

  // Returns the slot of the k-th backward pass.
  int backward_place(int k) const {
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (is_backward(slots_[i].type) && k-- == 0) return static_cast<int>(i);
    }
    TROIKA_CHECK(false, "a weight part without its input part");
  }

  void drop_weights() {
    for (auto& slot : slots_) {
      if (slot.type == kWeight) slot = {};
    }
  }

  // Puts a weight part into each free slot while one is pending; the rest goes to the end.
  void insert_weights() {
    int pending = 0, k = 0;
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (is_backward(slots_[i].type)) ++pending;
      if (slots_[i].type != kFree || pending == 0) continue;
      put(static_cast<int>(i), {kWeight, k++});
      --pending;
    }
    for (; pending > 0; --pending) put(static_cast<int>(slots_.size()), {kWeight, k++});
  }

  int peak() const {
    int alive = 0, peak = 0;
    for (const auto& slot : slots_) peak = std::max(peak, alive += change_of_memory(slot.type));
    return peak;
  }

  // Returns the maximum number of activations if free slots hold weight parts while some are
  // pending.
  int peak_with_free_weights() const {
    int alive = 0, peak = 0, pending = 0;
    for (const auto& slot : slots_) {
      alive += change_of_memory(slot.type);
      peak = std::max(peak, alive);
      if (is_backward(slot.type)) ++pending;
      if (slot.type != kFree || pending == 0) continue;
      --pending;
      --alive;
    }
    return peak;
  }

  // Moves the pass at `from` to the first free slot from `earliest` on where the rank's activations
  // stay within the cap. Leaves the pass if there is no free slot before `from`. `lacks_weights`:
  // weight parts have no slots yet.
  void move_earlier(int from, int earliest, int cap, bool lacks_weights) {
    const TimeSlot moved = slots_[static_cast<size_t>(from)];
    if (!lacks_weights && is_forward(moved.type)) earliest = std::max(earliest, room(from, cap));
    for (int to = earliest; to < from; ++to) {
      if (slots_[static_cast<size_t>(to)].type != kFree) continue;
      slots_[static_cast<size_t>(from)] = {};
      put(to, moved);
      if (!lacks_weights || peak_with_free_weights() <= cap) return;
      slots_[static_cast<size_t>(to)] = {};
      put(from, moved);
    }
  }

  // Removes and returns all passes, in order.
  std::vector<TimeSlot> take_order() {
    std::erase_if(slots_, [](const TimeSlot& slot) { return slot.type == kFree; });
    for (auto& places : places_) std::ranges::fill(places, kNowhere);
    std::ranges::fill(weights_, kNowhere);
    return std::exchange(slots_, {});
  }

  // Adds a pass after all others.
  void append(TimeSlot slot, int earliest) {
    put(std::max(earliest, static_cast<int>(slots_.size())), slot);
  }

 private:
  void put(int at, TimeSlot slot) {
    if (static_cast<size_t>(at) >= slots_.size()) slots_.resize(static_cast<size_t>(at) + 1);
    slots_[static_cast<size_t>(at)] = slot;
    auto& places = slot.type == kWeight ? weights_ : places_[static_cast<size_t>(slot.type)];
    places[static_cast<size_t>(slot.number)] = at;
  }

  // Returns the first slot from which one more activation, kept until `from`, stays within the cap.
  int room(int from, int cap) const {
    std::vector<int> alive(static_cast<size_t>(from));
    int now = 0;
    for (size_t i = 0; i < alive.size(); ++i) alive[i] = now += change_of_memory(slots_[i].type);
    int first = from;
    while (first > 0 && alive[static_cast<size_t>(first) - 1] < cap) --first;
    return first;
  }

  std::vector<TimeSlot> slots_;
  std::array<std::vector<int>, kVPasses> places_;  // by micro-batch
  std::vector<int> weights_;                       // by k
};

class VRepetition {
 public:
  VRepetition(const VBlock& block, const PipelineShape& shape)
      : ranks_count_(shape.ranks), micro_batches_(shape.micro_batches) {
    for (const auto& rank : block) ranks_.emplace_back(rank, micro_batches_);
    insert_weights();
    for (const auto& rank : ranks_) cap_ = std::max(cap_, rank.peak());
    move_earlier(false);
    squeeze();
    for (auto& rank : ranks_) rank.drop_weights();
    move_earlier(true);
    insert_weights();
    squeeze();
    for (auto& rank : ranks_) rank.drop_weights();
    insert_weights();
  }

  Schedule order() const {
    Schedule order;
    for (int r = 0; r < ranks_count_; ++r) order.ranks.push_back(actions(r));
    return order;
  }

 private:
  void insert_weights() {
    for (auto& rank : ranks_) rank.insert_weights();
  }

  // Returns the slot of the same pass on the rank that provides its input, if that is another rank.
  std::optional<int> feeding_place(int rank, int type, int number) const {
    if (type == kWeight) return std::nullopt;
    const auto pass = static_cast<VPass>(type);
    const bool is_down = pass == VPass::forward_0 || pass == VPass::backward_1;
    const int feeding = is_down ? rank - 1 : rank + 1;
    if (feeding < 0 || feeding >= ranks_count_) return std::nullopt;
    return ranks_[static_cast<size_t>(feeding)].place(type, number);
  }

  int earliest(int rank, int type, int number) const {
    const auto& own = ranks_[static_cast<size_t>(rank)];
    int latest = -1;
    if (const auto place = feeding_place(rank, type, number)) latest = *place;
    if (number > 0) latest = std::max(latest, own.place(type, number - 1));
    if (type == kWeight) latest = std::max(latest, own.backward_place(number));
    if (type > 0 && type != kWeight) latest = std::max(latest, own.place(type - 1, number));
    return latest + 1;
  }

  // Moves passes earlier, in order of time: those of the beginning, up to the first backward pass
  // of rank 0's chunk 0, and those of the end, from the first forward pass of the last micro-batch
  // on. With `is_end_alone`, moves only those of the end, and counts free slots as weight parts.
  void move_earlier(bool is_end_alone) {
    std::vector<std::tuple<int, int, int, int>> visits;  // slot, rank, type, number
    for (int r = 0; r < ranks_count_; ++r) {
      const auto& slots = ranks_[static_cast<size_t>(r)].slots();
      for (size_t i = 0; i < slots.size(); ++i) {
        if (slots[i].type != kFree) {
          visits.emplace_back(static_cast<int>(i), r, slots[i].type, slots[i].number);
        }
      }
    }
    std::ranges::sort(visits);
    bool is_begin = !is_end_alone, is_end = false;
    for (const auto& [slot, rank, type, number] : visits) {
      if (rank == 0 && type == static_cast<int>(VPass::backward_0)) is_begin = false;
      if (type == static_cast<int>(VPass::forward_0) && number == micro_batches_ - 1) is_end = true;
      if (!is_begin && !is_end) continue;
      ranks_[static_cast<size_t>(rank)].move_earlier(slot, earliest(rank, type, number), cap_,
                                                     is_end_alone);
    }
  }

  // Schedules all passes as early as their order and their dependencies allow.
  void squeeze() {
    std::vector<std::vector<TimeSlot>> orders;
    for (auto& rank : ranks_) orders.push_back(rank.take_order());
    std::vector<size_t> next(ranks_.size(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < ranks_.size(); ++r) {
        for (; next[r] < orders[r].size(); ++next[r]) {
          const auto& slot = orders[r][next[r]];
          const int rank = static_cast<int>(r);
          if (feeding_place(rank, slot.type, slot.number) == kNowhere) break;
          ranks_[r].append(slot, earliest(rank, slot.type, slot.number));
          moved = true;
        }
      }
    }
  }

  // Returns the actions of a rank. Weight parts of chunk 1 come before those of chunk 0.
  std::vector<Action> actions(int rank) const {
    const std::array stages{rank, 2 * ranks_count_ - 1 - rank};
    std::array<std::vector<int>, 2> pending;  // micro-batches by chunk
    std::array<size_t, 2> next{};
    std::vector<Action> actions;
    for (const auto& slot : ranks_[static_cast<size_t>(rank)].slots()) {
      if (slot.type == kFree) continue;
      if (slot.type == kWeight) {
        const size_t chunk = next[1] < pending[1].size() ? 1 : 0;
        actions.push_back(
            {ActionKind::backward_weight, stages[chunk], pending[chunk][next[chunk]]});
        ++next[chunk];
        continue;
      }
      const auto pass = static_cast<VPass>(slot.type);
      const size_t chunk = pass == VPass::forward_1 || pass == VPass::backward_1 ? 1 : 0;
      const auto kind = is_forward(slot.type) ? ActionKind::forward : ActionKind::backward_input;
      actions.push_back({kind, stages[chunk], slot.number});
      if (kind == ActionKind::backward_input) pending[chunk].push_back(slot.number);
    }
    return actions;
  }

  int ranks_count_;
  int micro_batches_;
  int cap_ = 0;
  std::vector<VRank> ranks_;
};

}  // namespace

Schedule repeat_block(const VBlock& block, const PipelineShape& shape) {
  return VRepetition(block, shape).order();
}

Schedule v_half_order(const PipelineShape& shape) {
  const int p = shape.ranks, delay = p % 2 == 0 ? 3 : 0;
  VBlock block;
  for (int r = 0; r < p; ++r) {
    block.push_back({2 * r, 3 * p - 2 - r, 3 * p - 1 + delay + 2 * r, 6 * p - 2 + delay - r});
  }
  return repeat_block(block, shape);
}

Schedule v_min_order(const PipelineShape& shape) {
  const int p = shape.ranks, delay = p % 3 == 0 ? 2 : 0;
  VBlock block;
  for (int r = 0; r < p; ++r) {
    block.push_back({r, 2 * p - 1 - r, 2 * p + delay + r, 4 * p - 1 + delay - r});
  }
  return repeat_block(block, shape);
}

}  // namespace troika::layout
