// Schedules whose backward pass is not split.
#include <algorithm>
#include <numeric>

#include "troika/layout/schedules/orders.h"

namespace troika::layout {

Schedule naive_order(const PipelineShape& shape) {
  Schedule order;
  for (int r = 0; r < shape.ranks; ++r) {
    auto& actions = order.ranks.emplace_back();
    for (int m = 0; m < shape.micro_batches; ++m) {
      actions.push_back({ActionKind::forward, r, m});
      actions.push_back({ActionKind::backward, r, m});
    }
  }
  return order;
}

Schedule gpipe_order(const PipelineShape& shape) {
  auto one_chunk = shape;
  one_chunk.chunks = 1;
  return breadth_first_order(one_chunk);
}

Schedule one_forward_one_backward_order(const PipelineShape& shape) {
  std::vector<int> warm_up(static_cast<size_t>(shape.ranks));
  std::iota(warm_up.rbegin(), warm_up.rend(), 0);
  return one_forward_one_backward_order(shape, warm_up);
}

Schedule one_forward_one_backward_order(const PipelineShape& shape,
                                        const std::vector<int>& warm_up) {
  Schedule order;
  for (int r = 0; r < shape.ranks; ++r) {
    auto& actions = order.ranks.emplace_back();
    const int ahead = std::min(shape.micro_batches, warm_up[static_cast<size_t>(r)]);
    for (int m = 0; m < ahead; ++m) actions.push_back({ActionKind::forward, r, m});
    for (int m = ahead; m < shape.micro_batches; ++m) {
      actions.push_back({ActionKind::forward, r, m});
      actions.push_back({ActionKind::backward, r, m - ahead});
    }
    for (int m = shape.micro_batches - ahead; m < shape.micro_batches; ++m) {
      actions.push_back({ActionKind::backward, r, m});
    }
  }
  return order;
}

Schedule interleaved_order(const PipelineShape& shape) {
  const int p = shape.ranks, v = shape.chunks, passes = shape.micro_batches * v;
  // Groups of p micro-batches run through all chunks of a rank.
  const auto chunk = [&](int pass) { return pass / p % v; };
  const auto micro_batch = [&](int pass) { return pass / (p * v) * p + pass % p; };
  Schedule order;
  for (int r = 0; r < p; ++r) {
    auto& actions = order.ranks.emplace_back();
    const auto forward = [&](int pass) {
      actions.push_back({ActionKind::forward, chunk(pass) * p + r, micro_batch(pass)});
    };
    const auto backward = [&](int pass) {
      actions.push_back({ActionKind::backward, (v - 1 - chunk(pass)) * p + r, micro_batch(pass)});
    };
    const int ahead = std::min(passes, (v - 1) * p + 2 * (p - 1 - r));
    for (int pass = 0; pass < ahead; ++pass) forward(pass);
    for (int pass = ahead; pass < passes; ++pass) {
      forward(pass);
      backward(pass - ahead);
    }
    for (int pass = passes - ahead; pass < passes; ++pass) backward(pass);
  }
  return order;
}

Schedule breadth_first_order(const PipelineShape& shape) {
  Schedule order;
  for (int r = 0; r < shape.ranks; ++r) {
    auto& actions = order.ranks.emplace_back();
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      for (int m = 0; m < shape.micro_batches; ++m) {
        actions.push_back({ActionKind::forward, chunk * shape.ranks + r, m});
      }
    }
    for (size_t pass = actions.size(); pass > 0; --pass) {
      auto action = actions[pass - 1];
      action.kind = ActionKind::backward;
      actions.push_back(action);
    }
  }
  return order;
}

}  // namespace troika::layout
