// Fit's start of a run, new or resumed from a checkpoint.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <set>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/log.h"
#include "troika/base/random.h"
#include "troika/checkpoint/foreign_weights.h"
#include "troika/checkpoint/resume.h"
#include "troika/checkpoint/text_tensor.h"
#include "troika/compat/accelerator.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/train/engine/engine_state.h"
#include "troika/train/engine/random_state.h"
#include "troika/train/loop/fit.h"
#include "troika/train/options/checkpoint_options.h"
#include "troika/train/options/limits.h"
#include "troika/train/options/resumed_options.h"
#include "troika/train/run/course_names.h"

namespace troika::train {

namespace {

Callbacks in_order(Callbacks callbacks) {
  std::stable_partition(callbacks.begin(), callbacks.end(),
                        [](const auto& callback) { return !callback->monitors(); });
  std::set<std::string> names;
  for (const auto& callback : callbacks) {
    if (names.insert(callback->name()).second) continue;
    throw Error("train", ErrorKind::usage,
                {.what = "two callbacks of one name",
                 .got = callback->name(),
                 .expected = "names that differ, as states are saved under them"});
  }
  return callbacks;
}

int64_t count_trainable(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const auto& [name, tensor] : nn::trained_parameters(module)) count += tensor.numel();
  return count;
}

// The rank that had, in the saved mesh, the coordinates of `rank`; empty if none had.
std::optional<int> counterpart(const checkpoint::CheckpointReader& saved, const layout::Plan& plan,
                               int rank) {
  return saved.mesh().find(plan.mesh.coordinates(rank));
}

// Whether each rank can resume with exactly its own saved state.
bool has_same_places(const checkpoint::CheckpointReader& saved, const layout::Plan& plan) {
  return saved.mesh().has_places_of(plan.mesh);
}

// The gradients of an unfinished step. If the mesh has changed, every rank gets the average over
// the data axis, so the average stays the same.
checkpoint::NamedTensors gradients_of(const checkpoint::CheckpointReader& saved,
                                      const layout::Plan& plan, int rank) {
  if (has_same_places(saved, plan)) return saved.read_all(kGradientPrefix);
  const auto mesh = saved.mesh();
  auto at = plan.mesh.coordinates(rank);
  at[layout::Axis::data] = 0;
  const auto replicas = mesh.group(mesh.find(at).value_or(0), {layout::Axis::data});
  std::map<std::string, at::Tensor> sums;
  for (const int replica : replicas) {
    for (const auto& [name, gradient] : saved.of(replica).read_all(kGradientPrefix)) {
      if (gradient.numel() == 0) continue;
      const auto share = gradient / static_cast<int64_t>(replicas.size());
      auto& sum = sums[name];
      sum = sum.defined() ? sum + share : share;
    }
  }
  return {sums.begin(), sums.end()};
}

void warn_of_changes(const checkpoint::CheckpointReader& saved, const TrainOptions& own,
                     const layout::Plan& plan) {
  TrainOptions before;
  try {
    before = read_checkpoint_options(saved.path());
  } catch (const Error& problem) {
    // Another version of Troika may have written options that no longer exist.
    log::warn("the options of the checkpoint cannot be compared: {}", problem.what());
    return;
  }
  for (const auto& change :
       changed_course(before, saved.mesh().replicas(0), own, plan.mesh.replicas(0))) {
    log::warn("{}", change);
  }
}

[[noreturn]] void refuse_weights_alone(const std::filesystem::path& from) {
  throw Error("train", ErrorKind::usage,
              {.what = "cannot resume from " + from.string(),
               .got = "weights alone",
               .expected = "a checkpoint of a run without checkpoint.weights_only",
               .hint = "model.weights starts a new run from them"});
}

}  // namespace

Fit::Fit(const TrainOptions& options, layout::Plan plan, comm::MeshGroups groups,
         const std::filesystem::path& folder, Task& task, const data::Dataset& training,
         const data::Dataset& validation, const StopQuestion& question, Callbacks callbacks)
    : options_(options),
      plan_(std::move(plan)),
      groups_(std::move(groups)),
      world_(groups_.world()),
      folder_(folder),
      task_(task),
      training_(training),
      validation_(validation),
      ranks_{groups_.data().rank(), groups_.data().size()},
      parameters_(nn::parameter_count(task.module())),
      trainable_(count_trainable(task.module())),
      batch_(global_batch(options, ranks_.count)),
      sampler_({.size = training.size(),
                .global_batch = batch_,
                .seed = static_cast<uint64_t>(options.run.seed),
                .ranks = ranks_}),
      limits_(
          make_limits(options, sampler_.steps_left({}), (validation.size() + batch_ - 1) / batch_)),
      stop_(world_, question,
            std::any_of(callbacks.begin(), callbacks.end(),
                        [](const auto& callback) { return callback->keeps_time(); })),
      log_(groups_.data(), observe::MetricLog::Phase::training),
      evaluation_log_(groups_.data(), observe::MetricLog::Phase::evaluation),
      callbacks_(in_order(std::move(callbacks))),
      context_{.options = options,
               .group = world_,
               .groups = groups_,
               .folder = folder,
               .task = task,
               .at = at_,
               .log = &log_,
               .plan = &plan_},
      profile_(options.trainer.profiler.empty() ? std::nullopt
                                                : std::optional<observe::Profile>(std::in_place)),
      hooks_(context_, callbacks_, profile()) {
  seed_everything(options, groups_.data());
  const auto checkpoint = checkpoint_to_load();
  std::optional<checkpoint::CheckpointReader> saved;
  if (!checkpoint.empty()) {
    saved.emplace(checkpoint, /*rank=*/0);
    require_resumable(*saved);
    saved.emplace(saved->of(counterpart(*saved, plan_, world_.rank()).value_or(0)));
  } else if (!options.weights.path.empty()) {
    checkpoint::take_weights(task_.module(), options.weights.path, options.weights.strict);
  }
  id_ = choose_id(saved);
  // Must come before any group is split off.
  find_links(saved);
  if (options.trainer.sync_batchnorm) spanning_batch_norm_.emplace(task_.module(), groups_.data());
  if (options.trainer.trace) timeline_.emplace(world_);
  times_ = observe::StepTimes(trace(), profile());
  engine_ =
      make_engine({.options = options,
                   .plan = plan_,
                   .task = task_,
                   .groups = groups_,
                   .steps = planned_steps(),
                   .global_batch = batch_,
                   .times = times_,
                   .trace = trace(),
                   .before_step = [this] {
                     context_.learning_rate = engine_->optimization().learning_rate();
                     hooks_.call("on_before_optimizer_step", &Hooks::on_before_optimizer_step);
                   }});
  context_.store = &engine_->store();
  context_.optimization = &engine_->optimization();
  context_.run_training_data = [this] { run_training_data(); };
  context_.save_checkpoint = [this](const auto& path, bool weights_only) {
    return ask_to_save_as(path, weights_only);
  };
  context_.validates_at_epoch_ends =
      limits_.validation_batches == 0 || (options.trainer.check_val_every_n_epoch == 1 &&
                                          limits_.validation_every >= limits_.micro_batches);
  context_.save_alone = [this](const auto& to) { return save_alone(to); };
  if (options.checkpoint.async) writer_.emplace(world_);
  if (saved) {
    std::function<void()> take_loaded;
    on_all_or_none([&] { take_loaded = restore(*saved); });
    or_leave_module_whole(take_loaded);
  }
  // The last operation that may fail, because it drops log rows later than the checkpoint.
  on_all_or_none([&] {
    // Rows of another run are dropped.
    const bool goes_on = is_main() && id_ == id_of_logged_run(folder_);
    outputs_.emplace(
        is_main(), folder_, options, id_,
        goes_on ? std::optional(observe::LogPosition{at_.step, at_.rows}) : std::nullopt);
  });
}

void Fit::on_all_or_none(const std::function<void()>& body) {
  std::exception_ptr own;
  std::string text;
  try {
    body();
  } catch (const std::exception& problem) {
    own = std::current_exception();
    text = fmt::format("`{}`", problem.what());
  }
  const auto texts = world_.all_gather_text(text, "start");
  const auto failed =
      std::find_if(texts.begin(), texts.end(), [](const auto& one) { return !one.empty(); });
  if (failed == texts.end()) return;
  engine_->try_to_make_whole();
  if (own) std::rethrow_exception(own);
  throw Error(
      "train", ErrorKind::peer,
      {.what = groups_.describe(static_cast<int>(failed - texts.begin())) + " cannot start the run",
       .got = *failed});
}

void Fit::or_leave_module_whole(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error&) {
    engine_->try_to_make_whole();
    throw;
  }
}

RunPlan Fit::plan() const {
  return {
      .name = options_.run.name,
      .model = options_.model.name.empty() ? task_.module().name() : options_.model.name,
      .parameters = parameters_,
      .trainable = trainable_,
      .training_samples = training_.size(),
      .validation_samples = validation_.size(),
      .steps_made = at_.step,
      .steps = planned_steps(),
      .steps_per_epoch = (limits_.micro_batches + plan_.micro_batches - 1) / plan_.micro_batches,
      .batch = batch_,
      .micro_batches = plan_.micro_batches,
      .ranks = world_.size(),
      .nodes = 1 + std::ranges::max(world_.nodes()),
      .backend = std::string(world_.backend()),
      .device = device().str(),
      .strategy = options_.trainer.plan.empty() ? options_.trainer.strategy : plan_.strategy,
      .precision = options_.trainer.precision,
      .folder = folder_.string()};
}

void Fit::call_on_fit_start() {
  or_leave_module_whole([this] { hooks_.call("on_fit_start", &Hooks::on_fit_start); });
}

std::filesystem::path Fit::checkpoint_to_load() const {
  std::string found;
  if (is_main()) {
    checkpoint::clean_up_unfinished(checkpoints());
    found = checkpoint::find_checkpoint(checkpoints(), options_.trainer.ckpt_path).string();
    if (!found.empty() && !std::filesystem::is_directory(found)) refuse_weights_alone(found);
    if (found.empty() && !options_.trainer.ckpt_path.empty()) {
      log::info("no checkpoint in {} yet: starts anew", checkpoints().string());
    }
    if (options_.trainer.ckpt_path != "last") checkpoint::begin_course(checkpoints());
  }
  return world_.broadcast_text(found, 0, "checkpoint");
}

void Fit::find_links(const std::optional<checkpoint::CheckpointReader>& saved) {
  if (world_.size() == 1) return;
  // Older checkpoints have seconds per byte under another name; links are then measured again.
  if (saved && has_same_places(*saved, plan_) && saved->has(kLinks)) {
    links_ = saved->read(kLinks);
    groups_.assume_links(links_);
  } else {
    links_ = groups_.links();
  }
}

void Fit::require_resumable(const checkpoint::CheckpointReader& saved) {
  if (saved.format() < checkpoint::kOldestToResume) {
    throw Error("train", ErrorKind::usage,
                {.what = "cannot resume from " + saved.path().string(),
                 .got = fmt::format("a checkpoint of format {}", saved.format()),
                 .expected = fmt::format("format {} or {}", checkpoint::kOldestToResume,
                                         checkpoint::kCheckpointFormat),
                 .hint = "model.weights starts a new run from its weights"});
  }
  if (saved.has(kSeed)) return;
  refuse_weights_alone(saved.path());
}

std::function<void()> Fit::restore(const checkpoint::CheckpointReader& saved) {
  const auto& checkpoint = saved.path();
  std::map<std::string, at::Tensor> loops;
  // All ranks take rank 0's values: each rank had its own clock, but ranks must decide alike.
  const auto first = saved.of(0);
  for (const auto& name : first.names(kLoopsPrefix)) loops.emplace(name, first.read(name));
  at_.load_state(loops);
  context_.seconds = at_.seconds;
  clock_.go_on_from(at_.seconds);
  const auto seed = saved.read(kSeed).item<int64_t>();
  if (seed != options_.run.seed) {
    throw Error("train", ErrorKind::usage,
                {.what = "cannot resume from " + checkpoint.string() + " with another run.seed",
                 .got = std::to_string(options_.run.seed),
                 .expected = std::to_string(seed)});
  }
  if (at_.position > training_.size()) {
    throw Error("train", ErrorKind::usage,
                {.what = "cannot resume from " + checkpoint.string() + " on fewer samples",
                 .got = std::to_string(training_.size()),
                 .expected = fmt::format("at least {}", at_.position)});
  }
  restore_log(saved);
  auto take_loaded = engine_->load(saved, gradients_of(saved, plan_, world_.rank()));
  for (const auto& callback : callbacks_) {
    const auto prefix = callback_prefix(*callback);
    if (!saved.names(prefix).empty()) callback->load_state(saved, prefix);
  }
  if (counterpart(saved, plan_, world_.rank())) {
    load_random_state(device(), saved.read_all(kRandomPrefix));
  } else {
    compat::manual_seed(mix(static_cast<uint64_t>(options_.run.seed),
                            static_cast<uint64_t>(groups_.data().rank()) + 1,
                            static_cast<uint64_t>(at_.samples)));
  }
  checkpoint_ = checkpoint;
  saved_samples_ = at_.samples;
  if (is_main()) {
    log::info("goes on from {}: epoch {}, step {}", checkpoint.string(), at_.epoch + 1, at_.step);
    warn_of_changes(saved, options_, plan_);
    if (context_.is_done() && (at_.ended_step == at_.step || is_beyond_limits())) {
      const auto limits = reached_limits(options_, at_.epoch, at_.step);
      log::info("the run is finished at step {}: {} {}", at_.step, fmt::join(limits, " and "),
                limits.size() == 1 ? "ends it; a greater one trains on"
                                   : "end it; greater ones train on");
    }
  }
  return take_loaded;
}

void Fit::restore_log(const checkpoint::CheckpointReader& saved) {
  if (has_same_places(saved, plan_)) {
    log_.add_state(saved.read(kLog));
    return;
  }
  // If the mesh has changed, rank 0 gets everything that was logged.
  if (!is_main()) return;
  for (int rank = 0; rank < saved.ranks(); ++rank) log_.add_state(saved.of(rank).read(kLog));
}

std::string Fit::choose_id(const std::optional<checkpoint::CheckpointReader>& saved) const {
  std::string id;
  if (is_main()) {
    const auto logged = id_of_logged_run(folder_);
    const bool goes_on =
        saved && saved->has(kRunId) && checkpoint::text_of(saved->read(kRunId)) == logged;
    id = goes_on ? logged : random_name();
  }
  return world_.broadcast_text(id, 0, "run id");
}

}  // namespace troika::train
