#include "troika/train/memory/memory_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <typeinfo>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/base/machine_memory.h"
#include "troika/base/text.h"
#include "troika/compat/error_text.h"
#include "troika/compat/tensor_memory.h"
#include "troika/compat/torch.h"
#include "troika/compat/warnings.h"
#include "troika/nn/state.h"
#include "troika/train/engine/placement.h"
#include "troika/train/memory/prediction.h"
#include "troika/train/memory/remedy.h"
#include "troika/train/options/limits.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/task/task.h"

namespace troika::train {

namespace {

// Throws or warns if the prediction does not fit. Each rank on this machine already holds `held` of
// the predicted bytes.
void require_fits(MemoryPredictor& predictor, const TrainOptions& options,
                  const MemoryPrediction& prediction, int local_ranks, double held) {
  const auto left = memory::available();
  if (!left) return;
  const double each = static_cast<double>(left->bytes) / local_ranks + held;
  if (prediction.process() <= each) return;
  const auto way_out = remedy(predictor, options, prediction.choice,
                              predict_choices(predictor, {prediction.choice.ranks}), each);
  const auto room = fmt::format("{}: what is left of {}, for {} rank{} here", human_bytes(each),
                                left->limit, local_ranks, local_ranks == 1 ? "" : "s");
  if (prediction.peak() <= each) {
    log::warn("each rank is predicted to take {}, of {} ({})", human_bytes(prediction.process()),
              room, way_out);
    return;
  }
  throw Error(
      "train", ErrorKind::usage,
      {.what = "the run does not fit into memory",
       .got = fmt::format("{} of tensors on each rank, predicted", human_bytes(prediction.peak())),
       .expected = "at most " + room,
       .hint = way_out + "; trainer.memory_check=off tries all the same"});
}

int ranks_on_this_machine(const comm::Group& group) {
  const auto& nodes = group.nodes();
  const auto own = nodes[static_cast<size_t>(group.rank())];
  return static_cast<int>(std::count(nodes.begin(), nodes.end(), own));
}

// Why a run of this task cannot be predicted; empty if nothing known prevents it.
std::string why_not_ahead(const TrainOptions& options, const data::Dataset& dataset,
                          const comm::Group& group, Task* task) {
  if (!Placement::of(options, group).device.is_cpu()) return "on GPUs";
  // fit() refuses a batch larger than the data anyway.
  const int replicas = resolve_plan(options, cluster_of(group)).mesh.sample_shares();
  if (global_batch(options, replicas) > dataset.size()) {
    return "for a batch larger than the data";
  }
  if (!task) return {};
  if (options.trainer.memory_check == "off") return "with trainer.memory_check=off";
  if (typeid(*task) != typeid(Task)) return "for a task of a class of its own";
  // Ranks that are threads of this process would count each other's tensors.
  if (group.size() > 1 && group.backend() == "local") return "for ranks that are threads";
  for (const auto& [name, tensor] : nn::named_state(task->module())) {
    if (!tensor.is_cpu()) return "for tensors that are not on the CPU";
  }
  return {};
}

std::string first_line(const std::exception& problem) {
  const auto text = compat::error_text(problem);
  return text.substr(0, text.find('\n'));
}

}  // namespace

MemoryOutlook check_memory_of(const TrainOptions& options, const data::Dataset& dataset,
                              const comm::Group& group, Task* task) {
  if (!task && group.rank() != 0) return {};
  if (auto reason = why_not_ahead(options, dataset, group, task); !reason.empty()) {
    return {.why_not = std::move(reason)};
  }
  compat::count_tensor_memory();
  // The run will repeat these warnings.
  const compat::WarningGuard no_warnings([](const std::string&, const std::string&) {});
  TrainOptions here = options;
  here.trainer.num_nodes = 1 + std::ranges::max(group.nodes());
  std::optional<MemoryPredictor> predictor;
  std::vector<MemoryPrediction> ranks;  // of the pipeline axis
  try {
    task ? predictor.emplace(here, dataset, *task) : predictor.emplace(here, dataset);
    const auto choice = predictor->configured(group.size());
    if (auto reason = predictor->why_not(choice); !reason.empty()) {
      return {.why_not = "for " + reason};
    }
    ranks = predictor->predict_ranks(choice);
  } catch (const std::exception& problem) {
    // Happens, for example, if a limit on address space (ulimit -v) leaves no addresses for tensors
    // without memory, or if a task's steps fail on zeros. Real errors in the options or the task
    // end the run later.
    const auto* ours = dynamic_cast<const Error*>(&problem);
    if (!task && !(ours && ours->kind() == ErrorKind::failure)) throw;
    if (!task) log::warn("memory is not predicted: {}", problem.what());
    return {.why_not = "as a trial with a small batch failed: " + first_line(problem)};
  }
  if (options.trainer.memory_check == "on" && group.rank() == 0) {
    double held = 0;
    if (task) {
      for (const auto& [name, tensor] : nn::named_state(task->module())) {
        held += static_cast<double>(tensor.nbytes());
      }
    }
    const auto& largest = *std::ranges::max_element(ranks, {}, &MemoryPrediction::process);
    require_fits(*predictor, options, largest, ranks_on_this_machine(group), held);
  }
  MemoryOutlook outlook;
  const auto mesh = predictor->plan(ranks.front().choice).mesh;
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto at = mesh.coordinates(rank);
    const auto& own =
        ranks.at(ranks.size() == 1 ? 0 : static_cast<size_t>(at[layout::Axis::pipeline]));
    outlook.tensor_bytes.push_back(
        static_cast<int64_t>(own.training_peak_of(at[layout::Axis::data])));
  }
  return outlook;
}

}  // namespace troika::train
