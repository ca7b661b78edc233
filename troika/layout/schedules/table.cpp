#include "troika/layout/schedules/table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>

#include "troika/base/text.h"
#include "troika/layout/errors/refuse.h"
#include "troika/layout/schedules/complete.h"

namespace troika::layout {

namespace {

// For schedules that support any number of chunks.
constexpr int kAnyChunks = std::numeric_limits<int>::max();

}  // namespace

const std::vector<ScheduleRow>& schedule_table() {
  static const std::vector<ScheduleRow> rows{
      {.name = "naive",
       .meaning = "model parallelism: one micro-batch is under way at a time",
       .source = "arXiv 1811.06965, figure 2b",
       .order = naive_order},
      {.name = "gpipe",
       .meaning = "all forward passes, then all backward passes in reverse",
       .source = "arXiv 1811.06965, section 2.3",
       .order = gpipe_order},
      {.name = "1f1b",
       .meaning = "one forward, one backward: as few activations as stages remain",
       .source = "arXiv 2006.09503, section 3.2 (PipeDream-Flush)",
       .order = one_forward_one_backward_order},
      {.name = "interleaved",
       .meaning = "1f1b with several stages on each rank: a bubble that many times smaller",
       .source = "arXiv 2104.04473, section 2.2",
       .chunks = 2,
       .most_chunks = kAnyChunks,
       .domain = "a multiple of the ranks",
       .takes = [](const PipelineShape& shape) { return shape.micro_batches % shape.ranks == 0; },
       .order = interleaved_order},
      {.name = "bfs",
       .meaning = "breadth-first: all micro-batches through a stage, then through the next one",
       .source = "arXiv 2211.05953",
       .chunks = 2,
       .most_chunks = kAnyChunks,
       .order = breadth_first_order},
      {.name = "zb-h1",
       .meaning = "1f1b whose weight parts fill the bubble, with no more activations",
       .source = "arXiv 2401.10241, section 2",
       .splits_backward = true,
       .order = zb_h1_order},
      {.name = "zb-h2",
       .meaning = "no bubble where F = I = W, with twice the activations of 1f1b",
       .source = "arXiv 2401.10241, section 2",
       .splits_backward = true,
       .order = zb_h2_order},
      {.name = "zb-v",
       .meaning = "no bubble where F = I = W, with the activations of 1f1b",
       .source = "arXiv 2401.10241, section 6",
       .placement = StagePlacement::v,
       .chunks = 2,
       .most_chunks = 2,
       .splits_backward = true,
       .order = zb_v_order},
      {.name = "v-half",
       .meaning = "half the activations of 1f1b, and half its bubble",
       .source = "arXiv 2405.15362",
       .placement = StagePlacement::v,
       .chunks = 2,
       .most_chunks = 2,
       .splits_backward = true,
       .order = v_half_order},
      {.name = "v-min",
       .meaning = "a third of the activations of 1f1b, and two thirds of its bubble",
       .source = "arXiv 2405.15362",
       .placement = StagePlacement::v,
       .chunks = 2,
       .most_chunks = 2,
       .splits_backward = true,
       .order = v_min_order},
      {.name = "dualpipe-v",
       .meaning = "forward passes beside backward passes, whose communication they hide",
       .source = "github.com/deepseek-ai/DualPipe, DualPipeV",
       .placement = StagePlacement::v,
       .chunks = 2,
       .most_chunks = 2,
       .splits_backward = true,
       .domain = "at least twice the ranks",
       .takes = [](const PipelineShape& shape) { return shape.micro_batches >= 2 * shape.ranks; },
       .order = dualpipe_v_order}};
  return rows;
}

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const auto& row : schedule_table()) names.emplace_back(row.name);
  return names;
}

const ScheduleRow& schedule_row(std::string_view name) {
  for (const auto& row : schedule_table()) {
    if (row.name == name) return row;
  }
  const auto names = schedule_names();
  refuse("name of a schedule", std::string(name), fmt::format("one of {}", fmt::join(names, ", ")),
         fmt::format("did you mean {}?", nearest(name, names)));
}

PipelineShape require_domain(const ScheduleRow& row, PipelineShape shape) {
  const auto what = fmt::format("schedule {}", row.name);
  if (shape.chunks == 0) shape.chunks = row.chunks;
  if (shape.ranks < 1 || shape.ranks > kMostPipelineRanks) {
    refuse(what, fmt::format("{} ranks", shape.ranks),
           fmt::format("from 1 to {}", kMostPipelineRanks));
  }
  if (shape.micro_batches < 1) {
    refuse(what, fmt::format("{} micro-batches", shape.micro_batches), "at least 1");
  }
  const bool is_any = row.most_chunks == kAnyChunks;
  if (shape.chunks < 1 || (!is_any && shape.chunks != row.chunks)) {
    refuse(what, fmt::format("{} stages on each rank", shape.chunks),
           is_any ? "at least 1" : std::to_string(row.chunks));
  }
  if (int64_t{shape.ranks} * shape.chunks * shape.micro_batches > kMostPipelinePasses) {
    refuse(what,
           fmt::format("{} ranks, {} stages on each and {} micro-batches", shape.ranks,
                       shape.chunks, shape.micro_batches),
           fmt::format("a product of at most {}", kMostPipelinePasses));
  }
  if (shape.blocks > 0 && shape.blocks < shape.stages()) {
    refuse(fmt::format("{} on {} ranks", what, shape.ranks),
           fmt::format("a model of {} blocks", shape.blocks),
           fmt::format("at least {}, one for each of {} stages on each rank", shape.stages(),
                       shape.chunks));
  }
  if (row.takes && !row.takes(shape)) {
    refuse(fmt::format("{} on {} ranks", what, shape.ranks),
           fmt::format("{} micro-batches", shape.micro_batches), std::string(row.domain));
  }
  return shape;
}

Schedule make_schedule(std::string_view name, const PipelineShape& shape) {
  const auto& row = schedule_row(name);
  return complete(row.order(require_domain(row, shape)));
}

}  // namespace troika::layout
