// Trainer's validation, testing and prediction.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/base/text.h"
#include "troika/checkpoint/index.h"
#include "troika/checkpoint/resume.h"
#include "troika/compat/torch.h"
#include "troika/parallel/pipeline/left_out.h"
#include "troika/parallel/replicas.h"
#include "troika/train/engine/random_state.h"
#include "troika/train/loop/evaluation_loop.h"
#include "troika/train/options/limits.h"
#include "troika/train/run/run_summary.h"
#include "troika/train/trainer.h"
#include "troika/train/tuning/tuning.h"

namespace troika::train {

namespace {

// The number of rows, the number of the scalar type, and the sizes of a row; empty without rows.
std::vector<int64_t> layout_of(const at::Tensor& share) {
  if (!share.defined()) return {};
  std::vector<int64_t> layout{share.size(0), static_cast<int64_t>(share.scalar_type())};
  for (const int64_t size : share.sizes().slice(1)) layout.push_back(size);
  return layout;
}

// The layouts of all ranks' predictions.
std::vector<std::vector<int64_t>> gather_layouts(const comm::Group& group,
                                                 const at::Tensor& share) {
  std::vector<std::vector<int64_t>> layouts;
  const auto own = fmt::format("{}", fmt::join(layout_of(share), " "));
  for (const auto& text : group.all_gather_text(own, "predictions")) {
    auto& layout = layouts.emplace_back();
    if (text.empty()) continue;
    for (const auto& number : split(text, ' ')) layout.push_back(parse_int(number).value());
  }
  return layouts;
}

std::string describe(const std::vector<int64_t>& layout) {
  return fmt::format("{} [{}]", c10::toString(static_cast<at::ScalarType>(layout[1])),
                     fmt::join(layout.begin() + 2, layout.end(), ", "));
}

// A pipeline that made its stages without the whole model leaves each rank with its own stages.
// Called by all ranks, which throw together: a rank may own all stages that have parameters.
void require_values(RunMode mode, const comm::Group& group, torch::nn::Module& module,
                    const std::string& ckpt) {
  const bool lacks = parallel::lacks_tensors(module);
  const auto all = group.all_gather_text(lacks ? "lacks" : "", "values of the model");
  if (std::ranges::all_of(all, [](const auto& text) { return text.empty(); })) return;
  if (ckpt.empty()) {
    throw Error("train", ErrorKind::usage,
                {.what = fmt::format("cannot {} the model that a pipeline has trained",
                                     run_mode_name(mode)),
                 .got = "a rank that has only its own stages",
                 .expected = "a checkpoint, as last",
                 .hint = "or a task that was made with its values, which fit() leaves whole"});
  }
  if (lacks) parallel::give_left_out_memory(module);
}

// Logs errors of teardown(): the error that came before matters more.
void try_to_tear_down(DataModule& data, RunMode mode) {
  try {
    data.teardown(mode);
  } catch (const std::exception& problem) {
    log::error("in teardown: {}", problem.what());
  }
}

}  // namespace

std::filesystem::path checkpoint_to_judge(RunMode mode, const std::filesystem::path& folder,
                                          const std::string& ckpt) {
  const auto checkpoints = folder / "checkpoints";
  auto found = checkpoint::find_checkpoint(checkpoints, ckpt);
  if (!found.empty()) return found;
  throw Error("train", ErrorKind::usage,
              {.what = fmt::format("cannot {} the {} checkpoint", run_mode_name(mode), ckpt),
               .got = fmt::format("none in {}", checkpoints.string()),
               .expected = "a run that was trained",
               .hint = "run.folder and run.name say which run"});
}

void Trainer::load_weights(RunMode mode, Task& task, const std::string& ckpt) const {
  if (!ckpt.empty() && group_.rank() == 0) {
    const auto from = checkpoint_to_judge(mode, folder(), ckpt);
    checkpoint::load_checkpoint(from, task.module());
    log::info("weights of {}", from.string());
  }
  parallel::make_same(group_, task.module(), /*copy_state=*/true);
}

template <typename Body>
void Trainer::evaluate(RunMode mode, Task& task, const data::Dataset& dataset,
                       const std::string& ckpt, const Body& body) {
  const int64_t batches =
      evaluated_batches(options_, mode, dataset.size(), global_batch(options_, group_.size()));
  if (signals_ && stopped_by_ != cluster::StopRequest::none) return;  // the program is about to end
  stopped_by_ = cluster::StopRequest::none;
  if (batches == 0) return;
  const CpuBinding binding(asked_cpu_bind(options_, group_));
  const Placement placement = Placement::of(options_, group_);
  seed_everything(options_, group_);
  task.make_values();
  require_values(mode, group_, task.module(), ckpt);
  placement.place(task.module());
  load_weights(mode, task, ckpt);
  // The mesh has a data axis only: the module is whole on every rank.
  const comm::MeshGroups groups(group_, layout::Mesh(layout::Axis::data, group_.size()));
  const TrainProgress beginning;
  observe::MetricLog log(group_, observe::MetricLog::Phase::evaluation);
  FitContext context{.mode = mode,
                     .options = options_,
                     .group = group_,
                     .groups = groups,
                     .folder = folder(),
                     .task = task,
                     .at = beginning,
                     .log = &log};
  std::optional<observe::Profile> profile;
  if (!options_.trainer.profiler.empty()) profile.emplace();
  const HookCalls hooks(context, callbacks_, profile ? &*profile : nullptr);
  try {
    Stop stop(group_, question_, /*keeps_time=*/false);
    WholeModelEvaluator evaluator(task, placement);
    EvaluationLoop loop(mode, context, evaluator, dataset, batches, stop);
    body(loop, hooks, log);
    stopped_by_ = stop.asked();
  } catch (const std::exception& problem) {
    task.log_to(nullptr, 1);
    hooks.tell(problem);
    throw;
  }
  task.log_to(nullptr, 1);
  if (profile && group_.rank() == 0) profile->report(folder(), run_mode_name(mode));
}

observe::MetricValues Trainer::metrics(RunMode mode, Task& task, const data::Dataset& dataset,
                                       const std::string& ckpt) {
  observe::MetricValues result;
  evaluate(mode, task, dataset, ckpt,
           [&](EvaluationLoop& loop, const HookCalls& hooks, observe::MetricLog& log) {
             loop.run(hooks, log, [&](const EvaluationLoop::Result& reduced) {
               result = reduced.metrics(mode);
               const auto& logged = reduced.row.values;
               result.insert(result.end(), logged.begin(), logged.end());
             });
           });
  if (group_.rank() == 0 && options_.trainer.enable_model_summary && !result.empty()) {
    log::info("{}", describe(mode, result));
  }
  return result;
}

observe::MetricValues Trainer::validate(Task& task, const data::Dataset& dataset,
                                        const std::string& ckpt) {
  return metrics(RunMode::validate, task, dataset, ckpt);
}

observe::MetricValues Trainer::test(Task& task, const data::Dataset& dataset,
                                    const std::string& ckpt) {
  return metrics(RunMode::test, task, dataset, ckpt);
}

at::Tensor Trainer::predict(Task& task, const data::Dataset& dataset, const std::string& ckpt) {
  at::Tensor result;
  evaluate(RunMode::predict, task, dataset, ckpt,
           [&](EvaluationLoop& loop, const HookCalls& hooks, observe::MetricLog&) {
             result = loop.predict(hooks);
           });
  return result;
}

template <typename Body>
auto Trainer::with(DataModule& data, RunMode mode, const Body& body) {
  const auto& nodes = group_.nodes();
  const auto own = nodes.begin() + group_.rank();
  const bool is_first_of_node = std::find(nodes.begin(), own, *own) == own;
  if (is_first_of_node) data.prepare_data();
  group_.barrier({.label = "prepare_data"});
  const auto result = [&] {
    try {
      data.setup(mode);
      return body();
    } catch (...) {
      try_to_tear_down(data, mode);
      throw;
    }
  }();
  data.teardown(mode);
  return result;
}

observe::RunSummary Trainer::fit(Task& task, DataModule& data) {
  const auto claimed = begin_run();
  return with(data, RunMode::fit,
              [&] { return fit_claimed(task, data.train_dataset(), data.val_dataset()); });
}

observe::MetricValues Trainer::validate(Task& task, DataModule& data, const std::string& ckpt) {
  return with(data, RunMode::validate, [&] { return validate(task, data.val_dataset(), ckpt); });
}

observe::MetricValues Trainer::test(Task& task, DataModule& data, const std::string& ckpt) {
  return with(data, RunMode::test, [&] { return test(task, data.test_dataset(), ckpt); });
}

at::Tensor Trainer::predict(Task& task, DataModule& data, const std::string& ckpt) {
  return with(data, RunMode::predict, [&] { return predict(task, data.predict_dataset(), ckpt); });
}

at::Tensor gather_predictions(const comm::Group& group, const at::Tensor& share) {
  const auto layouts = gather_layouts(group, share);
  std::vector<int64_t> whole;
  for (size_t rank = 0; rank < layouts.size(); ++rank) {
    const auto& other = layouts[rank];
    if (other.empty()) continue;
    if (whole.empty()) {
      whole = other;
      continue;
    }
    if (!std::equal(whole.begin() + 1, whole.end(), other.begin() + 1, other.end())) {
      throw Error("train", ErrorKind::usage,
                  {.what = "the predictions of all samples are to have one type and shape",
                   .got = fmt::format("{} on rank {}", describe(other), rank),
                   .expected = describe(whole) + ", as on the ranks before"});
    }
    whole[0] += other[0];
  }
  if (group.rank() > 0) {
    if (share.defined()) group.send(share, 0).wait();
    return {};
  }
  if (whole.empty()) return {};
  auto shape = whole;
  shape.erase(shape.begin() + 1);
  const auto all = at::empty(shape, static_cast<at::ScalarType>(whole[1]));
  int64_t begin = 0;
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto& layout = layouts[static_cast<size_t>(rank)];
    if (layout.empty()) continue;
    const auto rows = all.narrow(0, begin, layout[0]);
    rank == 0 ? void(rows.copy_(share)) : group.receive(rows, rank).wait();
    begin += layout[0];
  }
  return all;
}

}  // namespace troika::train
