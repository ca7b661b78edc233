#include "troika/plan/simulation/stage_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "troika/layout/buckets.h"
#include "troika/layout/context_shard.h"
#include "troika/layout/recompute.h"
#include "troika/layout/schedules/edges.h"
#include "troika/layout/schedules/inventory.h"
#include "troika/layout/stage_cut.h"
#include "troika/layout/tensor_shard.h"
#include "troika/plan/errors/refuse.h"
#include "troika/plan/lateness.h"
#include "troika/plan/memory/batch_memory.h"
#include "troika/plan/memory/block_exchange.h"
#include "troika/plan/memory/message_buffers.h"
#include "troika/plan/memory/stage_bytes.h"
#include "troika/plan/simulation/ordered_blocks.h"
#include "troika/plan/split_backward.h"

namespace troika::plan {

using layout::ExchangeMethod;
using layout::Profile;
using layout::ProfiledBlock;

namespace {

template <typename Value>
double sum(Blocks blocks, Value ProfiledBlock::*value) {
  double sum = 0;
  for (const auto& block : blocks) sum += block.*value;
  return sum;
}

double parameter_bytes(const Profile& profile) {
  return sum(profile.blocks, &ProfiledBlock::parameter_bytes);
}

void require_number(const char* what, double value) {
  if (std::isfinite(value) && value >= 0) return;
  refuse(what, fmt::format("{:g}", value), "a number from 0 on");
}

void require_same_model(const Profile& profile, const layout::Plan& plan,
                        const layout::PlanPlaces& places) {
  const int64_t planned = plan.stages.parameters, known = profile.model.parameters;
  if (planned == 0 || may_have(profile, planned)) return;
  refuse("a plan for another model: stages.parameters of the plan" + places.of("stages.parameters"),
         std::to_string(planned),
         known > 0 ? fmt::format("{}, the number in the profile", known)
                   : fmt::format("a number of parameters of {:.0f} bytes, those of the profile",
                                 parameter_bytes(profile)));
}

void require_told(const Profile& profile, const layout::Plan& plan,
                  const layout::PlanPlaces& places) {
  if (plan.precision != profile.precision) {
    refuse("precision of the plan", plan.precision, profile.precision + ", as the profile has");
  }
  require_same_model(profile, plan, places);
  if (plan.compression.codec != "none") {
    refuse("compression.codec of a simulation", plan.compression.codec, "none");
  }
  for (const auto& folder : {plan.offload.activations, plan.offload.optimizer}) {
    if (!folder.empty()) refuse("offload of a simulation", folder, "none");
  }
  const bool differs = plan.recompute.find('|') != std::string::npos;  // between stages
  if (differs || plan.recompute == "selective" || layout::recompute_budget(plan.recompute)) {
    refuse("recompute of a simulation", plan.recompute, "none, full, sqrt or every_K");
  }
}

class StageMaker {
 public:
  StageMaker(const layout::Plan& plan, const StageWorkOptions& options)
      : plan_(plan), options_(options) {}

  // `input_bytes` and `output_bytes` are the sizes of one sample's message from the previous stage
  // and to the next one, `place` is the stage's on the pipeline axis.
  StageWork make(Blocks blocks, double input_bytes, double output_bytes, int place,
                 const Profile& profile) const {
    const auto segments = layout::recompute_plan(plan_.recompute, blocks.size());
    double again = 0;
    for (const auto& segment : segments) {
      again += sum(part_of(blocks, segment), &ProfiledBlock::forward);
    }
    // Recomputation comes before the input part of the backward pass.
    const double inputs = sum(blocks, &ProfiledBlock::backward_input) + again;
    const double weights = sum(blocks, &ProfiledBlock::backward_weight);
    const double late = lateness(blocks, plan_.mesh.replicas(place)) * first_micro_batch(profile);
    StageWork work;
    work.passes = {.forward = seconds(sum(blocks, &ProfiledBlock::forward)) * late,
                   .backward_input = seconds(inputs) * late,
                   .backward_weight = seconds(weights) * late};
    // A backward pass that is not split has the overhead only once.
    work.passes.saved_by_whole = work.passes.backward() - seconds(inputs + weights) * late;
    work.output_bytes = output_bytes * options_.samples;
    work.parameter_bytes = sum(blocks, &ProfiledBlock::parameter_bytes);
    if (options_.optimizer_bytes_per_second > 0) {
      work.optimizer_seconds = work.parameter_bytes / options_.optimizer_bytes_per_second;
    }
    work.gather_seconds = profile.gather_seconds(work.parameter_bytes);
    add_buckets(work, blocks, segments);
    add_states(work, blocks, place, profile);
    add_activations(work, blocks, segments);
    work.input_bytes = input_bytes * options_.samples;
    work.resident_bytes += ReceiveBuffers(work.input_bytes, 1).of_evaluations();
    add_sums(work, blocks, segments);
    add_rounds(work, blocks, segments);
    if (blocks.size() > 1 && work.passes.forward > 0) {
      // A backward pass ends with the stage's first block.
      work.share_after_gather =
          (blocks.back().forward + blocks.front().backward()) /
          (sum(blocks, &ProfiledBlock::forward) + sum(blocks, &ProfiledBlock::backward_input) +
           sum(blocks, &ProfiledBlock::backward_weight));
    } else {
      work.share_after_gather = 1;
    }
    return work;
  }

 private:
  // Scales the measured time of a pass to the run's samples.
  double seconds(double measured) const {
    const double fixed = std::min(options_.pass_overhead, measured);
    return fixed + (measured - fixed) * options_.samples;
  }

  // Returns the factor on the times of passes because those of a step's first micro-batch take
  // longer.
  double first_micro_batch(const Profile& profile) const {
    return 1 + (profile.in_step.first_micro_batch_factor - 1) / plan_.micro_batches;
  }

  // Returns the factor on the times of passes because each replica waits for the latest: with ZeRO
  // stage 3 in each block, otherwise once for all blocks. The ranks of a tensor and a context axis
  // wait for each other in each block.
  double lateness(Blocks blocks, int replicas) const {
    double mean = 0, deviations = 0, variance = 0;
    for (const auto& block : blocks) {
      const double deviation = block.spread * block.seconds();
      mean += block.seconds();
      deviations += deviation;
      variance += deviation * deviation;
    }
    if (mean == 0) return 1;
    const auto& exchange = plan_.exchange;
    const bool gathers = exchange.method == ExchangeMethod::zero && exchange.zero_stage == 3;
    const double of_replicas = gathers ? deviations : std::sqrt(variance);
    return 1 + (expected_maximum(replicas) * of_replicas +
                expected_maximum(plan_.mesh.size(layout::Axis::tensor) * parts()) * deviations) /
                   mean;
  }

  // The ranks that each have a part of a sample's tokens.
  int parts() const { return plan_.mesh.size(layout::Axis::context); }

  static Blocks part_of(Blocks blocks, const layout::RecomputedSegment& segment) {
    return blocks.subspan(segment.begin, segment.end - segment.begin);
  }

  void add_buckets(StageWork& work, Blocks blocks, const layout::RecomputePlan& segments) const {
    std::vector<layout::BucketItem> items;
    std::vector<size_t> order;
    // For each block, the measured time of the rest of a backward pass after the block's part,
    // including the recomputation of earlier segments.
    std::vector<double> before, forward_before;
    double sum_before = 0, forward = 0;
    auto segment = segments.begin();
    for (size_t i = 0; i < blocks.size(); ++i) {
      for (; segment != segments.end() && segment->end <= i; ++segment) {
        sum_before += sum(part_of(blocks, *segment), &ProfiledBlock::forward);
      }
      items.push_back({.bytes = static_cast<int64_t>(blocks[i].parameter_bytes)});
      if (blocks[i].parameter_bytes > 0) order.insert(order.begin(), i);
      before.push_back(sum_before);
      forward_before.push_back(forward);
      sum_before += blocks[i].backward();
      forward += blocks[i].forward;
    }
    for (; segment != segments.end(); ++segment) {
      sum_before += sum(part_of(blocks, *segment), &ProfiledBlock::forward);
    }
    const double scale = sum_before > 0 ? work.passes.backward() / sum_before : 0;
    const double forward_scale = forward > 0 ? work.passes.forward / forward : 0;
    const auto& exchange = plan_.exchange;
    for (const auto& bucket :
         layout::assign_buckets(items, order, exchange.first_bucket_bytes, exchange.bucket_bytes)) {
      GradientBucket made{.seconds_before_end = before[bucket.back()] * scale,
                          .forward_seconds_before = forward_before[bucket.back()] * forward_scale};
      for (const size_t item : bucket) made.bytes += blocks[item].parameter_bytes;
      work.buckets.push_back(made);
    }
  }

  void add_states(StageWork& work, Blocks blocks, int place, const Profile& profile) const {
    const auto& exchange = plan_.exchange;
    const auto ranks = plan_.sharing_ranks(place);
    double fixed_bytes = 0;
    for (const auto& block : blocks) fixed_bytes += block.in_stage.fixed_bytes;
    work.resident_bytes = states_of(work.parameter_bytes, fixed_bytes,
                                    {.zero_stage = static_cast<int>(exchange.zero_stage),
                                     .ranks = static_cast<double>(ranks),
                                     .optimizer_factor = profile.optimizer_factor})
                              .sum();
    const bool is_pipeline = plan_.schedule != layout::kOneStageSchedule;
    // Replicas keep buffers for the average.
    if (is_pipeline && !plan_.is_asynchronous() && plan_.mesh.replicas(place) * parts() == 1) {
      work.gradient_bytes = work.parameter_bytes;
      work.resident_bytes -= work.gradient_bytes;
    }
    work.resident_bytes +=
        options_.samples * batch_bytes({.is_pipeline = is_pipeline,
                                        .micro_batches = static_cast<double>(plan_.micro_batches),
                                        .together = plan_.stages.tensor_overlap ? 2.0 : 1.0},
                                       profile.in_step.batches);
    if (ranks == 1) return;
    std::vector<double> of_blocks;
    for (const auto& block : blocks) of_blocks.push_back(block.parameter_bytes);
    work.resident_bytes += unsharded_bytes({.parameter_bytes = of_blocks,
                                            .zero_stage = static_cast<int>(exchange.zero_stage),
                                            .ranks = static_cast<int>(ranks),
                                            .accumulates = plan_.micro_batches > 1,
                                            .bucket_bytes = exchange.bucket_bytes,
                                            .first_bucket_bytes = exchange.first_bucket_bytes});
  }

  // A recomputed segment keeps its input, which the stage before has sent if it is the first one;
  // the stage's output is kept, too.
  void add_activations(StageWork& work, Blocks blocks,
                       const layout::RecomputePlan& segments) const {
    std::vector<PassedBlocks> passed;
    auto segment = segments.begin();
    for (size_t i = 0; i < blocks.size();) {
      if (segment != segments.end() && segment->begin == i) {
        passed.push_back(
            recompute(part_of(blocks, *segment), i > 0 ? blocks[i - 1].output_bytes : 0));
        i = segment++->end;
      } else {
        passed.push_back(keep(blocks[i++]));
      }
    }
    const size_t count = passed.size();
    auto bytes = BytesOfStages(std::move(passed)).of(0, count, work.output_bytes > 0);
    if (!segments.empty() && segments.back().end == blocks.size()) {
      bytes.kept += work.output_bytes / options_.samples;
    }
    const auto beyond = [&](double most, double kept) {
      return std::max(0.0, most - kept) * options_.samples;
    };
    work.activation_bytes = bytes.kept * options_.samples;
    work.workspace_bytes = beyond(bytes.most, bytes.kept);
    work.first_workspace_bytes = beyond(bytes.most_at_first, bytes.kept);
    work.weight_part_bytes = bytes.weight_kept * options_.samples;
    work.weight_part_takes_input = blocks.front().in_stage.weight_input_bytes > 0;
    work.weight_part_takes_gradient = blocks.back().in_stage.weight_output_bytes > 0;
    work.input_workspace_bytes = beyond(bytes.most_in_input_part, bytes.kept);
    work.weight_workspace_bytes = beyond(bytes.most_in_weight_part, bytes.weight_kept);
  }

  void add_sums(StageWork& work, Blocks blocks, const layout::RecomputePlan& segments) const {
    if (plan_.mesh.size(layout::Axis::tensor) == 1) return;
    const auto add = [&](std::vector<TensorSums>& sums, const ProfiledBlock& block,
                         int layout::TensorCut::*count, double beside) {
      if (!block.tensor || (*block.tensor).*count == 0 || block.tensor->sum_bytes == 0) return;
      const double bytes = block.tensor->sum_bytes * options_.samples;
      for (auto& one : sums) {
        if (one.bytes != bytes || one.beside != beside) continue;
        one.count += (*block.tensor).*count;
        return;
      }
      sums.push_back({(*block.tensor).*count, bytes, beside});
    };
    const auto add_forward = [&](std::vector<TensorSums>& sums, Blocks added) {
      for (const auto& block : added) add(sums, block, &layout::TensorCut::forward_sums, 0);
    };
    work.sums_tokens = plan_.stages.sequence_parallel;
    add_forward(work.forward_sums, blocks);
    if (plan_.stages.tensor_overlap) add_turns(work.forward_turns, blocks);
    for (const auto& segment : segments) add_forward(work.backward_sums, part_of(blocks, segment));
    for (const auto& block : blocks) {
      add(work.backward_sums, block, &layout::TensorCut::backward_sums,
          seconds(layout::seconds_beside_sum(block)));
      if (!work.sums_tokens) continue;
      add(work.backward_gathers, block, &layout::TensorCut::backward_gathers,
          seconds(layout::seconds_beside_gather(block)));
    }
  }

  void add_turns(ForwardTurns& pass, Blocks blocks) const {
    for (const auto& block : blocks) {
      pass.add(block, plan_.mesh.size(layout::Axis::tensor), plan_.stages.sequence_parallel);
    }
    const double all = pass.seconds();
    const double scale = all > 0 ? 1 / all : 0;
    pass.seconds_after *= scale;
    for (auto& turn : pass.turns) {
      turn.seconds *= scale;
      turn.bytes *= options_.samples;
    }
  }

  void add_rounds(StageWork& work, Blocks blocks, const layout::RecomputePlan& segments) const {
    if (parts() == 1) return;
    const auto method = layout::parse_context_method(plan_.stages.context_method);
    using Rounds = std::vector<layout::ContextRounds>;
    const auto add = [&](Rounds& sum, const Rounds& rounds) {
      for (auto more : rounds) {
        more.bytes *= options_.samples;
        more.beside = seconds(more.beside);
        const auto same = std::ranges::find_if(sum, [&](const layout::ContextRounds& one) {
          return one.bytes == more.bytes && one.beside == more.beside;
        });
        if (same == sum.end()) {
          sum.push_back(more);
        } else {
          same->count += more.count;
        }
      }
    };
    const auto add_forward = [&](Rounds& sum, Blocks added) {
      for (const auto& block : added) add(sum, layout::forward_rounds(block, parts(), method));
    };
    add_forward(work.forward_rounds, blocks);
    for (const auto& segment : segments) {
      add_forward(work.backward_rounds, part_of(blocks, segment));
    }
    for (const auto& block : blocks) {
      add(work.backward_rounds, layout::backward_rounds(block, parts(), method));
    }
  }

  const layout::Plan& plan_;
  const StageWorkOptions& options_;
};

}  // namespace

std::vector<StageWork> stage_work(const Profile& whole, const layout::Plan& plan,
                                  const StageWorkOptions& options) {
  require_told(whole, plan, options.places);
  const auto of_tokens =
      layout::context_shard(whole, plan.mesh.size(layout::Axis::context),
                            layout::parse_context_method(plan.stages.context_method));
  const auto profile = layout::tensor_shard(of_tokens, plan.mesh.size(layout::Axis::tensor),
                                            plan.stages.sequence_parallel);
  require_number("samples of a micro-batch", options.samples);
  require_number("overhead of a pass", options.pass_overhead);
  require_number("rate of the optimizer", options.optimizer_bytes_per_second);
  const OrderedBlocks blocks(profile);
  const auto schedule = layout::schedule_of_run(plan);
  const layout::Inventory inventory(schedule);
  if (blocks.size() < static_cast<size_t>(inventory.stages)) {
    refuse("blocks of the profile", std::to_string(blocks.size()),
           fmt::format("at least {}, one for each stage", inventory.stages));
  }
  auto told = options;
  auto& rate = told.optimizer_bytes_per_second;
  if (rate == 0) rate = profile.optimizer_bytes_per_second;
  const StageMaker maker(plan, told);
  const SplitBackward backward(profile, profile.topological_order());
  const auto ends = blocks.cut(plan.stages.cut, inventory.stages, options.places.of("stages.cut"));
  const bool recomputes = !layout::recompute_plan(plan.recompute, ends).empty();
  std::vector<StageWork> all;
  size_t begin = 0;
  for (const size_t end : ends) {
    all.push_back(maker.make(blocks.range(begin, end), blocks.crossing(begin), blocks.crossing(end),
                             inventory.rank(static_cast<int>(all.size())), profile));
    all.back().splits_backward = !recomputes && backward.splits(begin, end);
    begin = end;
  }
  for (const auto& edge : layout::message_edges(schedule)) {
    auto& to = all[static_cast<size_t>(edge.to)];
    const bool is_input = edge.kind == layout::ActionKind::send_activation;
    const ReceiveBuffers posted(is_input ? to.input_bytes : to.output_bytes, edge.depth);
    to.resident_bytes += posted.held_with(0);
  }
  return all;
}

bool may_have(const Profile& profile, int64_t parameters) {
  if (profile.model.parameters > 0) return parameters == profile.model.parameters;
  if (parameter_bytes(profile) == 0) return true;  // the profile does not say
  constexpr double kMargin = 0.01;                 // for numbers that are rounded
  const double each = parameter_bytes(profile) / static_cast<double>(parameters);
  return std::ranges::any_of(std::array{2, 4, 8},
                             [&](int size) { return std::abs(each - size) <= kMargin * size; });
}

}  // namespace troika::plan
