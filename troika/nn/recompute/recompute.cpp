#include "troika/nn/recompute/recompute.h"

#include <fmt/format.h>

#include <utility>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
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
  at::Tensor run(size_t begin, size_t end, const RecomputePlan& part, at::Tensor x,
                 size_t again_until) const {
    size_t next = begin;
    const auto keep_until = [&](size_t stop) {
      for (; next < stop; ++next) x = model->run({next, backward_from[next], again_until}, x);
    };
    for (const auto& segment : part) {
      keep_until(segment.begin);
      x = recomputed(segment, x, again_until);
      next = segment.end;
    }
    keep_until(end);
    return x;
  }

  at::Tensor recomputed(const RecomputedSegment& segment, const at::Tensor& input,
                        size_t again_until) const {
    CheckpointOptions options{.name = "block " + model->blocks()[segment.begin].name,
                              .keep_products = segment.keep_products};
    if (segment.end > segment.begin + 1) {
      options.name = fmt::format("blocks {} to {}", model->blocks()[segment.begin].name,
                                 model->blocks()[segment.end - 1].name);
    }
    for (size_t i = segment.begin; i < segment.end; ++i) {
      options.buffers.insert(options.buffers.end(), buffers[i].begin(), buffers[i].end());
    }
    // The graph may outlive this object's owner.
    return checkpoint(
        [self = shared_from_this(), &segment, until = again_until](const at::Tensor& x) mutable {
          return self->run(segment.begin, segment.end, segment.inside, x,
                           std::exchange(until, segment.end));
        },
        input, options);
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

at::Tensor Recompute::operator()(const at::Tensor& input) const {
  return planned_->run(0, planned_->model->blocks().size(), planned_->plan, input,
                       /*again_until=*/0);
}

}  // namespace troika::nn
