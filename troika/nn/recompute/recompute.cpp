#include "troika/nn/recompute/recompute.h"

#include <fmt/format.h>

#include <utility>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/loss_request.h"
#include "troika/nn/recompute/checkpoint.h"

namespace troika::nn {

namespace {

void verify(const RecomputePlan& plan, size_t begin, size_t end) {
  for (const auto& segment : plan) {
    TROIKA_CHECK(begin <= segment.begin && segment.begin < segment.end && segment.end <= end,
                 fmt::format("blocks {} to {} are out of order or range in a recompute plan",
                             segment.begin, segment.end));
    verify(segment.inside, segment.begin, segment.end);
    begin = segment.end;
  }
}

// BlockRun::backward_from of the last blocks of segments; an outer one begins earlier.
void note_ends(const RecomputePlan& plan, std::vector<size_t>& backward_from) {
  for (const auto& segment : plan) {
    note_ends(segment.inside, backward_from);
    backward_from[segment.end - 1] = segment.begin;
  }
}

}  // namespace

struct Recompute::Planned : std::enable_shared_from_this<Recompute::Planned> {
  std::shared_ptr<Model> model;
  RecomputePlan plan;
  std::vector<std::vector<at::Tensor>> buffers;  // of each block
  std::vector<size_t> backward_from;             // of each block, as in BlockRun

  // Blocks [begin, end) under the part of a plan that is about them; `again_until` as in BlockRun.
  void run(size_t begin, size_t end, const RecomputePlan& part, Flow& flow,
           size_t again_until) const {
    size_t next = begin;
    const auto keep_until = [&](size_t stop) {
      for (; next < stop; ++next) model->run({next, backward_from[next], again_until}, flow);
    };
    for (const auto& segment : part) {
      // Blocks that give a loss have computed its gradients; these are less than logits.
      if (segment.begin + 1 == model->blocks().size() && is_asked_for_loss()) break;
      keep_until(segment.begin);
      recompute(segment, flow, again_until);
      next = segment.end;
    }
    keep_until(end);
  }

  bool is_asked_for_loss() const {
    const auto& request = LossState::current().request;
    return request && request->model == model.get();
  }

  void recompute(const RecomputedSegment& segment, Flow& flow, size_t again_until) const {
    const auto& blocks = model->blocks();
    const auto takes = names_into(blocks, segment.begin, segment.end);
    const auto gives = names_out_of(blocks, segment.begin, segment.end);
    CheckpointOptions options{.name = "block " + blocks[segment.begin].name,
                              .keep_products = segment.keep_products};
    if (segment.end > segment.begin + 1) {
      options.name =
          fmt::format("blocks {} to {}", blocks[segment.begin].name, blocks[segment.end - 1].name);
    }
    for (size_t i = segment.begin; i < segment.end; ++i) {
      options.buffers.insert(options.buffers.end(), buffers[i].begin(), buffers[i].end());
    }
    const Tensors inputs = flow.take(takes, segment.end);
    // The graph may outlive this object's owner.
    const auto again = [self = shared_from_this(), &segment, takes, gives,
                        until = again_until](const Tensors& tensors) mutable {
      Flow inside(self->model->blocks(), takes, tensors);
      self->run(segment.begin, segment.end, segment.inside, inside,
                std::exchange(until, segment.end));
      return inside.take(gives, segment.end);
    };
    flow.give(options.name, gives, checkpoint(again, inputs, options));
  }
};

Recompute::Recompute(std::shared_ptr<Model> model, RecomputePlan plan) {
  verify(plan, 0, model->blocks().size());
  auto planned = std::make_shared<Planned>();
  for (const auto& block : model->blocks()) {
    auto& buffers = planned->buffers.emplace_back();
    for (auto& entry : model->owned_state(block)) {
      if (entry.is_buffer) buffers.push_back(std::move(entry.tensor));
    }
  }
  for (size_t i = 0; i < model->blocks().size(); ++i) planned->backward_from.push_back(i);
  note_ends(plan, planned->backward_from);
  planned->model = std::move(model);
  planned->plan = std::move(plan);
  planned_ = std::move(planned);
}

Tensors Recompute::operator()(Tensors inputs) const {
  const auto& blocks = planned_->model->blocks();
  Flow flow(blocks, planned_->model->input_names(), std::move(inputs));
  planned_->run(0, blocks.size(), planned_->plan, flow, /*again_until=*/0);
  return flow.take(blocks.back().gives, blocks.size());
}

at::Tensor Recompute::operator()(const at::Tensor& input) const {
  return only((*this)(Tensors{input}));
}

}  // namespace troika::nn
