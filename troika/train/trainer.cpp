#include "troika/train/trainer.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "troika/base/config.h"
#include "troika/base/error.h"
#include "troika/base/exit_code.h"
#include "troika/base/file.h"
#include "troika/base/log.h"
#include "troika/base/random.h"
#include "troika/checkpoint/resume.h"
#include "troika/cluster/slurm/commands.h"
#include "troika/comm/local/local.h"
#include "troika/compat/accelerator.h"
#include "troika/compat/error_text.h"
#include "troika/compat/torch.h"
#include "troika/data/subset.h"
#include "troika/nn/attention.h"
#include "troika/train/callbacks/callbacks.h"
#include "troika/train/engine/pipeline_plan.h"
#include "troika/train/loop/ended_run.h"
#include "troika/train/loop/fit.h"
#include "troika/train/options/limits.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/options/server_strategies.h"
#include "troika/train/run/quorum_run.h"
#include "troika/train/run/replica_run.h"
#include "troika/train/run/run_group.h"
#include "troika/train/run/run_summary.h"
#include "troika/train/run/swarm_run.h"
#include "troika/train/task/cuttable.h"
#include "troika/train/task/step_error.h"
#include "troika/train/tuning/pipeline_tuning.h"
#include "troika/train/tuning/tuning.h"

namespace troika::train {

namespace {

// Logs its own errors and does not throw them: the error that ended the run matters more.
void try_to_write(const std::filesystem::path& file, const observe::RunSummary& summary) {
  try {
    observe::write_summary(file, summary);
  } catch (const std::exception& problem) {
    log::error("no summary of the failed run: {}", problem.what());
  }
}

std::string text_of_current_exception() {
  try {
    throw;
  } catch (const std::exception& problem) {
    return compat::error_text(problem);
  } catch (...) {
    return "something that is no std::exception";
  }
}

// Returns options with an empty name unless make_model() made the module.
nn::ModelOptions model_options(const torch::nn::Module& module) {
  const auto* model = dynamic_cast<const nn::Model*>(&module);
  return model && model->options() ? *model->options() : nn::ModelOptions{.name = ""};
}

void use_attention(torch::nn::Module& module, const nn::ModelOptions& options) {
  const auto attention = nn::parse_attention(options.attn_implementation);
  for (auto* below : nn::attention_modules(module)) below->use(attention);
}

TrainOptions checked(TrainOptions options) {
  TrainOptions defaults;
  make_table(options).check(make_table(defaults));
  return options;
}

layout::Plan runnable_plan(const TrainOptions& options, const comm::Group& group,
                           const Task& task) {
  auto plan = resolve_plan(options, cluster_of(group));
  require_cuttable(task, plan);
  require_runnable(plan, group.size(), places_of_plan(options));
  require_plan_fits(options, plan, task);
  require_servers_fit(options, plan);
  return plan;
}

}  // namespace

Trainer::Trainer(TrainOptions options, comm::Group group, std::optional<RunFolder> claimed)
    : options_(with_fast_dev_run(with_plan(checked(std::move(options))))),
      asked_name_(options_.run.name),
      claimed_(std::move(claimed)),
      group_(std::move(group)) {
  require_group_of(options_, group_);
}

RunFolder Trainer::begin_run() {
  if (claimed_) return *std::exchange(claimed_, std::nullopt);
  if (options_.trainer.ckpt_path.empty()) options_.run.name = asked_name_;
  if (quorum_ && quorum_->has_left()) {
    quorum_->require_again();
    quorum_.reset();
  }
  if (!quorum_) quorum_ = make_quorum_run(options_, cluster::discover());
  if (quorum_) return quorum_->claim(options_);
  if (!swarm_) swarm_ = make_swarm_member(options_, cluster::discover());
  if (swarm_) take_swarm_options(options_);
  return RunFolder::claim(options_, group_, /*goes_on_when_started_again=*/signals_ != nullptr);
}

std::filesystem::path Trainer::folder() const {
  return run_folder(options_);
}

std::filesystem::path Trainer::save_checkpoint(const std::filesystem::path& path,
                                               bool weights_only) const {
  if (save_) return save_(path, weights_only);
  throw Error("train", ErrorKind::usage,
              {.what = "no run to save as " + path.string(),
               .got = "no fit(), or one that failed",
               .expected = "a call from its hooks or after it"});
}

void Trainer::stop_on_signals(std::shared_ptr<const cluster::StopSignals> caught) {
  signals_ = std::move(caught);
  if (!signals_) {
    signals_ = std::make_shared<const cluster::StopSignals>(cluster::slurm::may_requeue());
  }
  ask_to_stop([signals = signals_] { return signals->asked(); });
}

int Trainer::exit_code() const {
  switch (stopped_by_) {
    case cluster::StopRequest::none:
      return static_cast<int>(ExitCode::done);
    case cluster::StopRequest::save_and_requeue:
      return static_cast<int>(ExitCode::requeued);
    case cluster::StopRequest::save_and_stop:
      return static_cast<int>(ExitCode::stopped);
  }
  TROIKA_CHECK(false, "a request that is none");
}

observe::RunSummary Trainer::fit(Task& task, const data::Dataset& training,
                                 const data::Dataset& validation) {
  const auto claimed = begin_run();
  return fit_claimed(task, training, validation);
}

observe::RunSummary Trainer::fit_replica(Task& task, const data::Dataset& training,
                                         const data::Dataset& validation) {
  const auto plan = runnable_plan(options_, group_, task);
  require_batch(options_, plan.mesh.sample_shares(), training.size());
  const auto run = std::make_shared<const ReplicaRun>(make_replica_run(options_, plan, group_));
  // Replicas share out the samples before the run, or in each step.
  std::optional<data::Subset> own;
  if (!plan.steps_on_all_samples()) own.emplace(training, run->number, run->replicas);
  const data::Dataset& samples = own ? *own : training;
  Trainer replica(replica_options(options_, *run, folder()), run->ranks);
  replica.replica_ = run;
  replica.callbacks_ = callbacks_;
  replica.question_ = question_;
  // One replica requeues the job.
  if (group_.rank() == 0) replica.signals_ = signals_;
  replica.memory_ = memory_ ? *std::exchange(memory_, std::nullopt)
                            : check_memory_of(options_, training, group_, &task);
  // Replicas do not write to the same path.
  const auto own_path = [number = run->number, folder = replica.folder()](const auto& path) {
    return number == 0 ? path : folder / std::filesystem::path(path).filename();
  };
  save_ = [&](const auto& path, bool weights_only) {
    return replica.save_checkpoint(own_path(path), weights_only);
  };
  try {
    const auto summary = replica.fit_claimed(task, samples, validation);
    stopped_by_ = replica.stopped_by_;
    save_ = [own_path, save = replica.save_](const auto& path, bool weights_only) {
      return save(own_path(path), weights_only);
    };
    return summary;
  } catch (...) {
    save_ = nullptr;
    throw;
  }
}

observe::RunSummary Trainer::fit_claimed(Task& task, const data::Dataset& training,
                                         const data::Dataset& validation) {
  const auto quorum = quorum_;
  const auto swarm = std::exchange(swarm_, nullptr);
  const bool is_main = group_.rank() == 0;
  const auto summary_file = folder() / "summary.json";
  std::optional<Fit> fit;
  bool has_ended = false;
  save_ = nullptr;
  const bool has_default_epochs = takes_default_epochs(options_);
  options_ = with_default_epochs(std::move(options_));
  if (is_main && has_default_epochs) {
    log::warn(
        "[train] trainer.max_epochs is not set: the run takes {} epochs, as Lightning's would; -1 "
        "means no limit",
        options_.trainer.max_epochs);
  }
  options_.model = model_options(task.module());
  options_.data.name = training.name();
  try {
    options_.model = tuned_model(options_, training, group_, folder());
    if (!options_.model.name.empty()) use_attention(task.module(), options_.model);
    options_.trainer.memory_format = tuned_memory_format(options_, training, group_, folder());
    options_.trainer.weight_layout = tuned_weight_layout(options_, training, group_, folder());
    std::optional<CpuBinding> binding;
    if (!replica_) binding.emplace(tuned_cpu_bind(options_, training, group_));
    if (is_main && !replica_) {
      write_file_atomically(folder() / "config.toml", make_table(options_).to_toml());
    }
    if (!replica_ && trains_replicas(options_, group_)) {
      has_ended = true;  // the replica's run has a summary of its own
      return fit_replica(task, training, validation);
    }
    auto plan = replica_ ? replica_->plan : runnable_plan(options_, group_, task);
    for (const auto* data : {&training, &validation}) require_tokens_fit(plan, task, *data);
    require_batch(options_, plan.mesh.sample_shares(), training.size());
    // The memory of stages that are cut by times is predicted when these are known.
    const bool is_cut_later = is_cut_by_times(options_, plan);
    plan = tuned_pipeline(plan, {options_, training, group_, folder()}, task);
    if (replica_) {
      // Replicas that time their passes by themselves may cut the model at different blocks.
      plan.stages.cut = replica_->place.all.broadcast_text(plan.stages.cut, 0, "stages");
    }
    auto planned = options_;
    if (is_cut_later) {
      planned.trainer.plan = plan.text();
      memory_.reset();
    }
    const auto memory = memory_ ? *std::exchange(memory_, std::nullopt)
                                : check_memory_of(planned, training, group_, &task);
    using Joined = QuorumRun::Joined;
    const auto stops = [this] {
      if (question_) stopped_by_ = question_();
      return stopped_by_ != cluster::StopRequest::none;
    };
    stopped_by_ = cluster::StopRequest::none;
    const auto joined = quorum ? quorum->join(options_, stops) : Joined::trains;
    if (joined != Joined::trains) {
      const bool is_stopped = joined == Joined::stopped;
      log::info("the run was {} before this replica could join",
                is_stopped ? "stopped" : "finished");
      return empty_summary(options_, group_, folder(), is_stopped ? "stopped" : "finished");
    }
    Callbacks callbacks = make_callbacks(options_);
    callbacks.insert(callbacks.end(), callbacks_.begin(), callbacks_.end());
    with_plain_errors("the start of the run", [&] {
      fit.emplace(RunSetup{.options = options_,
                           .plan = plan,
                           .groups = comm::MeshGroups(group_, plan.mesh),
                           .folder = folder(),
                           .task = task,
                           .training = training,
                           .validation = validation,
                           .callbacks = std::move(callbacks),
                           .replicas = replica_ ? std::optional(replica_->place) : std::nullopt,
                           .quorum = quorum.get(),
                           .swarm = swarm.get()},
                  question_);
    });
    save_ = [&](const auto& path, bool weights_only) {
      return fit->checkpoints().ask_to_save_as(path, weights_only);
    };
    if (is_main && options_.trainer.enable_model_summary) {
      auto plan = fit->plan();
      plan.predicted_bytes = memory.tensor_bytes;
      plan.why_not_predicted = memory.why_not;
      log::info("{}", describe(plan));
    }
    try {
      stopped_by_ = with_plain_errors("the run", [&] { return fit->run(); });
    } catch (const std::exception& problem) {
      if (quorum) quorum->abandon();
      fit->tell(problem);
      throw;
    }
    observe::RunSummary summary =
        fit->summary(stopped_by_ == cluster::StopRequest::none ? "finished" : "stopped");
    summary.phase_milliseconds = fit->measured().phase_times();
    summary.bubble = fit->measured().bubbles();
    const auto peaks = at::empty({group_.size(), 2}, at::kLong);
    group_.all_gather(
        peaks, at::tensor({observe::peak_resident_bytes(), fit->measured().peak_tensor_bytes()}),
        {}, {.label = "peak memory"});
    const bool counted = peaks.select(1, 1).all().item<bool>();
    for (int r = 0; r < group_.size(); ++r) {
      summary.peak_resident_bytes.push_back(peaks[r][0].item<int64_t>());
      if (counted) summary.peak_tensor_bytes.push_back(peaks[r][1].item<int64_t>());
    }
    summary.predicted_tensor_bytes = memory.tensor_bytes;
    if (is_main) observe::write_summary(summary_file, summary);
    save_ = [ended = EndedRun(group_, options_, fit->checkpoints().state(/*weights_only=*/false),
                              fit->checkpoints().info())](const auto& path, bool weights_only) {
      return ended.save(path, weights_only);
    };
    has_ended = true;
    // Ranks whose processes have servers do not end before rank 0 has read from them.
    group_.barrier({.label = "the end of the run"});
    if (is_main && options_.trainer.enable_model_summary) {
      log::info("{}", describe(summary, options_));
    }
    // Comes last, because Slurm begins to stop the job at once.
    if (is_main && signals_ && stopped_by_ == cluster::StopRequest::save_and_requeue) {
      log::info("job {} is in the queue again", cluster::slurm::requeue());
    }
    return summary;
  } catch (...) {
    if (has_ended) throw;  // the run is saved and summarized; only the requeue failed
    save_ = nullptr;
    if (quorum) quorum->abandon();
    if (is_main) {
      auto summary =
          fit ? fit->summary("failed") : empty_summary(options_, group_, folder(), "failed");
      summary.failure = text_of_current_exception();
      try_to_write(summary_file, summary);
    }
    throw;
  }
}

}  // namespace troika::train
