#include "troika/nn/recompute/recompute.h"

#include <fmt/format.h>

#include <memory>
#include <utility>
#include <vector>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/output_layer.h"
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

// Sets BlockRun::backward_from for the last block of each segment; an outer segment overrides an
// inner one.
void note_ends(const RecomputePlan& plan, std::vector<size_t>& backward_from) {
  for (const auto& segment : plan) {
    note_ends(segment.inside, backward_from);
    backward_from[segment.end - 1] = segment.begin;
  }
}

class Recompute : public BlockWrapper, public std::enable_shared_from_this<Recompute> {
 public:
  Recompute(const Model& model, RecomputePlan plan) : plan_(std::move(plan)) {
    verify(plan_, 0, model.blocks().size());
    for (const auto& block : model.blocks()) {
      auto& buffers = buffers_.emplace_back();
      for (auto& [name, tensor] : Model::owned(block, named_buffers(model))) {
        buffers.push_back(std::move(tensor));
      }
    }
    for (size_t i = 0; i < model.blocks().size(); ++i) backward_from_.push_back(i);
    note_ends(plan_, backward_from_);
  }

  WrapperKind kind() const override { return WrapperKind::recompute; }

  Tensors run(const BlockRun& run, Tensors inputs, const InnerBlocks& next) override {
    Flow flow(next.model().wiring(), run.begin, run.end, std::move(inputs));
    run_part(run, plan_, flow, next);
    return flow.outputs();
  }

 private:
  // Runs blocks by the part of the plan that covers them.
  void run_part(const BlockRun& run, const RecomputePlan& part, Flow& flow,
                const InnerBlocks& next) const {
    const auto& blocks = next.model().blocks();
    const size_t begin = run.begin, end = run.end;
    size_t done = begin;
    const auto keep_until = [&](size_t stop) {
      for (; done < stop; ++done) {
        const BlockRun one{done, done + 1, backward_from_[done], run.again_until, run.loss};
        flow.give(done, done + 1, next(one, flow.take(done, done + 1)));
      }
    };
    for (const auto& segment : part) {
      if (segment.end <= begin || segment.begin >= end) continue;
      TROIKA_CHECK(begin <= segment.begin && segment.end <= end,
                   fmt::format("blocks {} to {} are recomputed together, and run apart",
                               segment.begin, segment.end));
      // Blocks that return a loss have already computed its gradients, which are smaller than
      // logits.
      if (segment.begin + 1 == blocks.size() && run.loss) break;
      keep_until(segment.begin);
      recompute(segment, run, flow, next);
      done = segment.end;
    }
    keep_until(end);
  }

  // Runs one segment, and recomputes it in the backward pass.
  void recompute(const RecomputedSegment& segment, const BlockRun& run, Flow& flow,
                 const InnerBlocks& next) const {
    const auto& blocks = next.model().blocks();
    BlockRun part{.begin = segment.begin,
                  .end = segment.end,
                  .again_until = run.again_until,
                  .loss = run.loss};
    CheckpointOptions options{.name = "block " + blocks[segment.begin].name,
                              .keep_products = segment.keep_products};
    if (segment.end > segment.begin + 1) {
      options.name =
          fmt::format("blocks {} to {}", blocks[segment.begin].name, blocks[segment.end - 1].name);
    }
    for (size_t i = segment.begin; i < segment.end; ++i) {
      options.buffers.insert(options.buffers.end(), buffers_[i].begin(), buffers_[i].end());
    }
    const Tensors inputs = flow.take(segment.begin, segment.end);
    // The graph may outlive this wrapper's guard and the model's owner.
    const auto again = [self = shared_from_this(), owner = next.model().weak_from_this().lock(),
                        next, &segment, part](const Tensors& tensors) mutable {
      Flow inside(next.model().wiring(), segment.begin, segment.end, tensors);
      self->run_part(part, segment.inside, inside, next);
      part.again_until = segment.end;
      return inside.outputs();
    };
    flow.give(segment.begin, segment.end, checkpoint(again, inputs, options));
  }

  const RecomputePlan plan_;
  std::vector<std::vector<at::Tensor>> buffers_;  // by block
  std::vector<size_t> backward_from_;             // by block, as in BlockRun
};

}  // namespace

WrapperGuard recompute(Model& model, RecomputePlan plan) {
  if (plan.empty()) return {};
  return {model, std::make_shared<Recompute>(model, std::move(plan))};
}

}  // namespace troika::nn
