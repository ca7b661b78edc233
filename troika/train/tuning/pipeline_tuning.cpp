#include "troika/train/tuning/pipeline_tuning.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <optional>

#include "troika/base/benchmark_record.h"
#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/base/text.h"
#include "troika/checkpoint/reader.h"
#include "troika/checkpoint/resume.h"
#include "troika/compat/error_text.h"
#include "troika/compat/tensor_memory.h"
#include "troika/compat/torch.h"
#include "troika/layout/recompute.h"
#include "troika/layout/schedules/complete.h"
#include "troika/layout/stage_cut.h"
#include "troika/nn/state.h"
#include "troika/parallel/pipeline/stages.h"
#include "troika/plan/automatic.h"
#include "troika/train/engine/block_times.h"
#include "troika/train/engine/pipeline_plan.h"
#include "troika/train/engine/placement.h"
#include "troika/train/memory/predicted_cut.h"
#include "troika/train/memory/prediction.h"
#include "troika/train/task/task.h"
#include "troika/train/tuning/tuning_file.h"

namespace troika::train {

namespace {

using layout::Axis;
using layout::StageTimes;

constexpr int kMeasurements = 3;
constexpr double kMicro = 1e-6;

data::Batch first_batch(const RunStart& run) {
  const int64_t samples = std::min(batch_of(run), run.dataset.size());
  std::vector<int64_t> indices(static_cast<size_t>(samples));
  std::iota(indices.begin(), indices.end(), 0);
  return run.dataset.load(indices, {});
}

std::string text_of(const std::vector<StageTimes>& times) {
  std::vector<std::string> texts;
  for (const auto& one : times) {
    texts.push_back(fmt::format("{:.1f} {:.1f} {:.1f}", one.forward / kMicro,
                                one.backward_input / kMicro, one.backward_weight / kMicro));
  }
  return fmt::format("{}", fmt::join(texts, "; "));
}

// Returns nothing for text that text_of() did not write, or for another number of blocks.
std::optional<std::vector<StageTimes>> parse_times(const std::string& text, size_t blocks) {
  std::vector<StageTimes> result;
  for (const auto& block : split(text, ';')) {
    std::vector<double> numbers;
    for (const auto& word : split(std::string(trim(block)), ' ')) {
      const auto number = parse_double(word);
      if (!number) return {};
      numbers.push_back(*number * kMicro);
    }
    if (numbers.size() != 3) return {};
    result.push_back(
        {.forward = numbers[0], .backward_input = numbers[1], .backward_weight = numbers[2]});
  }
  if (result.size() != blocks) return {};
  return result;
}

// Takes times from the user's file, or measures and stores them. Passes them through their text
// form, so that later runs decide by the same numbers.
std::vector<StageTimes> block_times(const RunStart& run, Task& task) {
  const auto& model = run.options.model;
  const auto file = model.name.empty() ? TuningFile({}) : TuningFile::of_user();
  const auto batch = first_batch(run);
  std::string shapes;
  for (const auto& [name, tensor] : batch.tensors()) {
    shapes += fmt::format(" {}", fmt::join(tensor.sizes(), "x"));
  }
  const int64_t elements = nn::parameter_count(task.module());
  const auto& trainer = run.options.trainer;
  const TuningQuestion question{
      .what = fmt::format(
          "passes of the blocks of {}, {} parameters, batch{}, attention {}, {}, {} ranks, {}, {}, "
          "{}",
          model.name, elements, shapes, model.attn_implementation, trainer.precision,
          run.group.size(),
          c10::DeviceTypeName(Placement::of(run.options, run.group).device.type(), true),
          trainer.memory_format, trainer.weight_layout),
      .cpu = cpu_model(),
      .libtorch = compat::torch_version(),
      .threads = at::get_num_threads()};
  const size_t blocks = task.blocks().blocks().size();
  const bool is_main = run.group.rank() == 0;
  std::string known = is_main ? file.choice(question) : "";
  if (!parse_times(known, blocks)) known.clear();
  known = run.group.broadcast_text(known, 0, "times of blocks");
  if (known.empty()) {
    known = text_of(measure_block_times(run, task));
    if (is_main) file.add({.question = question, .choice = known, .candidates = {}});
  }
  return parse_times(known, blocks).value();
}

void tell(const RunStart& run, const std::string& text) {
  if (run.group.rank() == 0 && run.options.trainer.enable_model_summary) log::info("{}", text);
}

// Schedule `auto` needs times, so it cuts by them, too.
bool is_cut_by_time(const TrainOptions& options, const layout::Plan& plan) {
  return plan.stages.cut.empty() &&
         (plan.schedule == layout::kAutomaticSchedule ||
          (options.trainer.plan.empty() && options.pipeline.cut_by == "time"));
}

std::string cut_by_time(const std::vector<StageTimes>& times, const nn::Model& model, int stages) {
  std::vector<double> costs;
  std::vector<std::string> names;
  for (const auto& one : times) costs.push_back(one.forward + one.backward());
  for (const auto& block : model.blocks()) names.push_back(block.name);
  return layout::cut_text(layout::balanced_cut(costs, stages), names);
}

// Returns the ends of the plan's stages, or of `stages` stages by times without a cut.
layout::StageEnds ends_of(const layout::Plan& plan, const std::vector<StageTimes>& times,
                          const nn::Model& model, int stages) {
  std::vector<std::string> names;
  for (const auto& block : model.blocks()) names.push_back(block.name);
  return layout::parse_cut(
      plan.stages.cut.empty() ? cut_by_time(times, model, stages) : plan.stages.cut, names);
}

// Returns the times of each rank's stages for one micro-batch. A stage whose backward pass does not
// split computes all of it in the part for the inputs.
std::vector<StageTimes> times_of_ranks(const nn::Model& model, const layout::StageEnds& ends,
                                       const std::vector<StageTimes>& times, int ranks) {
  const parallel::StagesOfModel stages(model, ends);
  std::vector<StageTimes> result(static_cast<size_t>(ranks),
                                 {.forward = 0, .backward_input = 0, .backward_weight = 0});
  const int chunks = static_cast<int>(ends.size()) / ranks;
  size_t block = 0;
  for (size_t s = 0; s < ends.size(); ++s) {
    // Two stages of a rank lie in a V.
    const int rank = chunks == 2 && static_cast<int>(s) >= ranks
                         ? 2 * ranks - 1 - static_cast<int>(s)
                         : static_cast<int>(s) % ranks;
    auto& own = result[static_cast<size_t>(rank)];
    const bool splits = parallel::can_split_backward(model, stages[static_cast<int>(s)]);
    for (; block < ends[s]; ++block) {
      own.forward += times[block].forward;
      own.backward_input += times[block].backward_input;
      (splits ? own.backward_weight : own.backward_input) += times[block].backward_weight;
    }
  }
  // An empty stage still has passes, which take no time that matters.
  constexpr double kLeast = 1e-7;
  for (auto& one : result) {
    for (auto* time : {&one.forward, &one.backward_input, &one.backward_weight}) {
      *time = std::max(*time, kLeast);
    }
  }
  return result;
}

// The actions of the checkpoint's plan, if they fit the plan; all ranks get rank 0's.
std::string actions_of_checkpoint(const RunStart& run, const layout::Plan& plan) {
  const auto& path = run.options.trainer.ckpt_path;
  if (path.empty()) return {};
  std::string actions;
  if (run.group.rank() == 0) {
    try {
      const auto found = checkpoint::find_checkpoint(run.folder / "checkpoints", path);
      const auto saved = found.empty()
                             ? layout::Plan()
                             : layout::Plan::parse(checkpoint::CheckpointReader(found, 0).plan(),
                                                   "the checkpoint's plan");
      if (saved.mesh.size(Axis::pipeline) == plan.mesh.size(Axis::pipeline) &&
          saved.micro_batches == plan.micro_batches) {
        actions = saved.actions;
      }
    } catch (const Error&) {
      // fit() reports the error later
    }
  }
  return run.group.broadcast_text(actions, 0, "schedule of the checkpoint");
}

void choose_schedule(layout::Plan& plan, const RunStart& run, const nn::Model& model,
                     const std::vector<StageTimes>& times) {
  const int ranks = plan.mesh.size(Axis::pipeline);
  plan.schedule = layout::kCustomSchedule;
  plan.actions = actions_of_checkpoint(run, plan);
  if (!plan.actions.empty()) {
    tell(run, "schedule: the checkpoint's (pipeline.schedule)");
    return;
  }
  const auto ends = ends_of(plan, times, model, ranks);
  const auto of_ranks = times_of_ranks(model, ends, times, ranks);
  const int chunks = plan.stages.cut.empty() ? static_cast<int>(plan.chunks)
                                             : static_cast<int>(ends.size()) / ranks;
  plan.chunks = 0;  // the actions have them
  const double asked = run.options.pipeline.activations;
  const double limit = asked > 0 ? asked : static_cast<double>(ranks);
  const auto schedule =
      plan::automatic_schedule({.ranks = ranks,
                                .micro_batches = static_cast<int>(plan.micro_batches),
                                .chunks = chunks,
                                .blocks = static_cast<int>(model.blocks().size())},
                               of_ranks, limit, {});
  plan.actions = layout::passes_of(schedule).text();
  const auto simulation = plan::simulate(schedule, plan::stage_times(schedule, of_ranks));
  std::vector<std::string> texts;
  for (const auto& one : of_ranks) {
    texts.push_back(fmt::format("{:.3g}/{:.3g}/{:.3g}", 1e3 * one.forward, 1e3 * one.backward_input,
                                1e3 * one.backward_weight));
  }
  tell(run,
       fmt::format("schedule: made from the times of the ranks' F/I/W passes, {} ms; predicted "
                   "bubble {:.1f} % (pipeline.schedule)",
                   fmt::join(texts, ", "), 100 * simulation.bubble_rate));
}

int stages_of(const layout::Plan& plan, const nn::Model& model) {
  const auto passes =
      parallel::passes_for(pipeline_options(plan), plan.mesh, model.blocks().size());
  int last = 0;
  for (const auto& actions : passes.ranks) {
    for (const auto& action : actions) last = std::max(last, action.stage);
  }
  return last + 1;
}

// Policies by a prediction of rank 0. Ranks that are threads count each other's tensors, so the
// other ranks wait meanwhile.
void choose_recomputation(layout::Plan& plan, const RunStart& run, Task& task) {
  if (!layout::recompute_budget(plan.recompute)) return;
  const auto refuse = [&](const std::string& got, const std::string& expected) {
    throw Error("train", ErrorKind::usage,
                {.what = "recomputation in the stages of a pipeline within " + plan.recompute,
                 .got = got,
                 .expected = expected,
                 .hint = "or a policy, as trainer.recompute=full"});
  };
  if (!Placement::of(run.options, run.group).device.is_cpu()) refuse("GPUs", "the CPU");
  run.group.barrier({.label = "recomputation"});
  std::string policies, problem;
  std::exception_ptr error;
  if (run.group.rank() == 0) {
    try {
      compat::count_tensor_memory();
      auto planned = run.options;
      planned.trainer.plan = plan.text();
      planned.trainer.recompute = plan.recompute;
      MemoryPredictor predictor(planned, run.dataset, task);
      const auto choice = predictor.configured(run.group.size());
      problem = predictor.why_not(choice);
      if (problem.empty()) policies = predictor.recompute_of_stages(choice);
    } catch (const std::exception& e) {
      error = std::current_exception();
      problem = compat::error_text(e);
    }
  }
  problem = run.group.broadcast_text(problem, 0, "recomputation");
  if (error) std::rethrow_exception(error);
  if (!problem.empty()) refuse(problem, "a plan whose memory is predicted");
  policies = run.group.broadcast_text(policies, 0, "recomputation");
  tell(run, fmt::format("recomputation: {}, for {} (trainer.recompute)", policies, plan.recompute));
  plan.recompute = policies;
}

void choose_stages(layout::Plan& plan, const RunStart& run, Task& task) {
  const auto& model = task.blocks();
  std::vector<StageTimes> times;
  if (is_cut_by_times(run.options, plan)) times = block_times(run, task);
  const bool by_time = is_cut_by_time(run.options, plan);
  if (plan.schedule == layout::kAutomaticSchedule) choose_schedule(plan, run, model, times);
  if (!plan.stages.cut.empty() || (!by_time && !run.options.trainer.plan.empty())) return;
  const std::string by = by_time ? "time" : run.options.pipeline.cut_by;
  plan.stages.cut = by_time ? cut_by_time(times, model, stages_of(plan, model))
                            : predicted_cut(run.options, plan, task, run.dataset, batch_of(run));
  // Ranks that are threads count each other's memory, so their predictions may differ.
  plan.stages.cut = run.group.broadcast_text(plan.stages.cut, 0, "stages");
  if (!plan.stages.cut.empty()) {
    tell(run, fmt::format("stages: {}, by {} (pipeline.cut_by)", plan.stages.cut, by));
  }
}

}  // namespace

bool is_cut_by_times(const TrainOptions& options, const layout::Plan& plan) {
  return is_pipeline(plan) &&
         (plan.schedule == layout::kAutomaticSchedule || is_cut_by_time(options, plan));
}

std::vector<StageTimes> measure_block_times(const RunStart& run, Task& task) {
  task.make_values();
  const auto placement = Placement::of(run.options, run.group);
  placement.place(task.module());
  const auto buffers = task.module().buffers();
  std::vector<at::Tensor> before;
  for (const auto& buffer : buffers) before.push_back(buffer.clone());
  const auto batch = placement.place(first_batch(run));
  BlockTimes times(task, placement, batch, run.group);
  times.run(Round::split);
  times.forget();
  for (int round = 0; round < kMeasurements; ++round) {
    times.run(Round::whole);
    times.run(Round::split);
  }
  {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(before[i]);
  }
  const auto blocks = static_cast<int64_t>(times.seconds().size());
  const auto seconds = at::empty({blocks, 3}, at::kDouble);
  for (int64_t i = 0; i < blocks; ++i) {
    const auto& of_block = times.seconds()[static_cast<size_t>(i)];
    const auto row = seconds[i];
    row[0] = std::ranges::min(of_block.forward);
    row[1] = std::ranges::min(of_block.backward_input);
    row[2] = std::ranges::min(of_block.backward_weight);
  }
  run.group.all_reduce(seconds, comm::ReduceOp::sum, {.label = "times of blocks"});
  std::vector<StageTimes> result;
  const auto* numbers = seconds.data_ptr<double>();
  const double ranks = run.group.size();
  for (int64_t i = 0; i < blocks; ++i) {
    result.push_back({.forward = numbers[3 * i] / ranks,
                      .backward_input = numbers[3 * i + 1] / ranks,
                      .backward_weight = numbers[3 * i + 2] / ranks});
  }
  return result;
}

layout::Plan tuned_pipeline(layout::Plan plan, const RunStart& run, Task& task) {
  if (!is_pipeline(plan) || !task.has_blocks()) return plan;
  choose_stages(plan, run, task);
  choose_recomputation(plan, run, task);
  return plan;
}

}  // namespace troika::train
