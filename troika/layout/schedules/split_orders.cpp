// Schedules of one chunk per rank whose backward pass is split into two parts, in the orders that
// reach the published bubble rates.
#include <algorithm>

#include "troika/layout/schedules/orders.h"

namespace troika::layout {

namespace {

// The passes of one rank with one stage, numbered in order.
class SplitOrder {
 public:
  SplitOrder(int rank, int micro_batches) : rank_(rank), micro_batches_(micro_batches) {}

  bool has_forwards() const { return forwards_ < micro_batches_; }
  bool has_inputs() const { return inputs_ < micro_batches_; }
  // Returns the number of input parts whose weight parts are pending.
  int unmatched() const { return inputs_ - weights_; }

  void forward() { add(ActionKind::forward, forwards_++); }
  void backward_input() { add(ActionKind::backward_input, inputs_++); }
  void backward_weight() { add(ActionKind::backward_weight, weights_++); }
  void rest_of_backward_weight() {
    while (unmatched() > 0) backward_weight();
  }
  std::vector<Action> take() { return std::move(actions_); }

 private:
  void add(ActionKind kind, int micro_batch) { actions_.push_back({kind, rank_, micro_batch}); }

  int rank_;
  int micro_batches_;
  int forwards_ = 0;
  int inputs_ = 0;
  int weights_ = 0;
  std::vector<Action> actions_;
};

}  // namespace

Schedule zb_h1_order(const PipelineShape& shape) {
  Schedule order;
  for (int r = 0; r < shape.ranks; ++r) {
    SplitOrder rank(r, shape.micro_batches);
    for (int i = r + 1; i < shape.ranks && rank.has_forwards(); ++i) rank.forward();
    while (rank.has_forwards()) {
      rank.forward();
      rank.backward_input();
      if (rank.unmatched() > r) rank.backward_weight();
    }
    while (rank.has_inputs()) {
      rank.backward_input();
      rank.backward_weight();
    }
    rank.rest_of_backward_weight();
    order.ranks.push_back(rank.take());
  }
  return order;
}

Schedule zb_h2_order(const PipelineShape& shape) {
  Schedule order;
  for (int r = 0; r < shape.ranks; ++r) {
    SplitOrder rank(r, shape.micro_batches);
    for (int i = 2 * r + 1; i < 2 * shape.ranks && rank.has_forwards(); ++i) rank.forward();
    while (rank.has_inputs()) {
      rank.backward_input();
      if (rank.unmatched() > 2 * r) rank.backward_weight();
      if (rank.has_forwards()) rank.forward();
    }
    rank.rest_of_backward_weight();
    order.ranks.push_back(rank.take());
  }
  return order;
}

}  // namespace troika::layout
