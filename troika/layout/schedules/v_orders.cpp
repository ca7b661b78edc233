// Schedules with two chunks per rank in a V, written as phases.
#include <algorithm>
#include <utility>

#include "troika/layout/schedules/orders.h"

namespace troika::layout {

VOrder::VOrder(const PipelineShape& shape, int rank) : micro_batches_(shape.micro_batches) {
  chunks_[0].stage = rank;
  chunks_[1].stage = 2 * shape.ranks - 1 - rank;
}

void VOrder::add(ActionKind kind, int chunk, int micro_batch, bool joined) {
  if (micro_batch >= micro_batches_) return;
  actions_.push_back({kind, chunks_[static_cast<size_t>(chunk)].stage, micro_batch, -1, joined});
}

void VOrder::forward(int chunk) {
  add(ActionKind::forward, chunk, chunks_[static_cast<size_t>(chunk)].forwards++);
}

void VOrder::backward(int chunk) {
  add(ActionKind::backward, chunk, chunks_[static_cast<size_t>(chunk)].backwards++);
}

void VOrder::backward_input(int chunk) {
  const int micro_batch = chunks_[static_cast<size_t>(chunk)].backwards++;
  add(ActionKind::backward_input, chunk, micro_batch);
  if (micro_batch < micro_batches_) pending_.push_back({chunk, micro_batch});
}

void VOrder::forward_beside_backward(int chunk) {
  add(ActionKind::forward, chunk, chunks_[static_cast<size_t>(chunk)].forwards++, true);
  backward(1 - chunk);
}

void VOrder::backward_weight(int chunk) {
  const auto oldest = std::ranges::find(pending_, chunk, &Weight::chunk);
  if (oldest == pending_.end()) return;
  add(ActionKind::backward_weight, chunk, oldest->micro_batch);
  pending_.erase(oldest);
}

void VOrder::backward_weight() {
  if (!pending_.empty()) backward_weight(pending_.front().chunk);
}

void VOrder::rest_of_backward_weight(int chunk) {
  while (std::ranges::find(pending_, chunk, &Weight::chunk) != pending_.end()) {
    backward_weight(chunk);
  }
}

bool VOrder::has_forwards() const {
  return chunks_[0].forwards < micro_batches_ || chunks_[1].forwards < micro_batches_;
}

Schedule zb_v_order(const PipelineShape& shape) {
  const int p = shape.ranks;
  // With fewer than 2p - 1 micro-batches, the order is that of 2p - 1 with the excess passes
  // omitted.
  auto enough = shape;
  enough.micro_batches = std::max(2 * p - 1, shape.micro_batches);
  Schedule order;
  for (int r = 0; r < p; ++r) {
    VOrder rank(enough, r);
    for (int i = 0; i < 2 * (p - r) - 1; ++i) rank.forward(0);
    for (int i = 0; i < r; ++i) {
      rank.forward(1);
      rank.forward(0);
    }
    for (int i = 0; i < p - r; ++i) {
      rank.forward(1);
      rank.backward_input(1);
      rank.backward_weight(1);
    }
    while (rank.has_forwards()) {
      rank.forward(0);
      rank.backward_input(0);
      rank.backward_weight(0);
      rank.forward(1);
      rank.backward_input(1);
      rank.backward_weight(1);
    }
    for (int i = 0; i < r; ++i) {
      rank.backward_input(0);
      rank.backward_input(1);
    }
    for (int i = 0; i < p - r; ++i) {
      rank.backward_input(0);
      rank.backward_weight(0);
    }
    rank.rest_of_backward_weight(1);
    rank.rest_of_backward_weight(0);
    auto actions = rank.take();
    std::erase_if(actions,
                  [&](const Action& action) { return action.micro_batch >= shape.micro_batches; });
    order.ranks.push_back(std::move(actions));
  }
  return order;
}

Schedule dualpipe_v_order(const PipelineShape& shape) {
  const int p = shape.ranks, m = shape.micro_batches;
  Schedule order;
  for (int r = 0; r < p; ++r) {
    VOrder rank(shape, r);
    for (int i = 0; i < 2 * (p - r - 1); ++i) rank.forward(0);
    for (int i = 0; i < r + 1; ++i) {
      rank.forward(0);
      rank.forward(1);
    }
    for (int i = 0; i < p - r - 1; ++i) {
      rank.backward_input(1);
      rank.backward_weight();
      rank.forward(1);
    }
    for (int i = 0; i < m - 2 * p + r + 1; ++i) {
      // On the last rank these two passes could not overlap at first.
      if (i == 0 && r == p - 1) {
        rank.forward(0);
        rank.backward(1);
      } else {
        rank.forward_beside_backward(0);
      }
      rank.forward_beside_backward(1);
    }
    for (int i = 0; i < p - r - 1; ++i) {
      rank.backward(1);
      rank.forward_beside_backward(1);
    }
    // From the middle on, backward passes are split. The split begins after the middle iteration's
    // first backward pass on even ranks, and before it on odd ranks.
    const auto backward = [&](int chunk, bool is_split) {
      is_split ? rank.backward_input(chunk) : rank.backward(chunk);
    };
    for (int i = 0; i < r + 1; ++i) {
      const int middle = (r + 1) / 2;
      backward(1, r % 2 == 1 ? i >= middle : i > middle);
      backward(0, i >= middle);
    }
    for (int i = 0; i < p - r - 1; ++i) {
      rank.backward_weight();
      rank.backward_input(0);
    }
    for (int i = 0; i < r + 1; ++i) rank.backward_weight();
    order.ranks.push_back(rank.take());
  }
  return order;
}

}  // namespace troika::layout
