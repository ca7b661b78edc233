#include "troika/train/loop/run_origin.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/log.h"
#include "troika/base/random.h"
#include "troika/checkpoint/foreign_weights.h"
#include "troika/checkpoint/resume.h"
#include "troika/checkpoint/text_tensor.h"
#include "troika/compat/accelerator.h"
#include "troika/compat/torch.h"
#include "troika/train/engine/engine_state.h"
#include "troika/train/engine/random_state.h"
#include "troika/train/loop/start_together.h"
#include "troika/train/options/checkpoint_options.h"
#include "troika/train/options/limits.h"
#include "troika/train/options/resumed_options.h"
#include "troika/train/options/weight_sizes.h"
#include "troika/train/run/course_names.h"
#include "troika/train/run/run_outputs.h"

namespace troika::train {

namespace {

// The rank that had, in the saved mesh, the coordinates of `rank`; empty if none had.
std::optional<int> counterpart(const checkpoint::CheckpointReader& saved, const RunSetup& setup) {
  return saved.mesh().find(setup.plan.mesh.coordinates(setup.world().rank()));
}

// Whether each rank can resume with exactly its own saved state.
bool has_same_places(const checkpoint::CheckpointReader& saved, const layout::Plan& plan) {
  return saved.mesh().has_places_of(plan.mesh);
}

// The gradients of an unfinished step. If the mesh has changed, every rank gets the average over
// the data axis, so the average stays the same. If the saved run or this one is a pipeline, every
// rank gets the gradients of all stages; those of a parameter that several stages use are summed.
checkpoint::NamedTensors gradients_of(const checkpoint::CheckpointReader& saved,
                                      const layout::Plan& plan, int rank) {
  using layout::Axis;
  const auto mesh = saved.mesh();
  const int ranks_before = mesh.size(Axis::pipeline);
  if (ranks_before == 1 && plan.mesh.size(Axis::pipeline) == 1 && has_same_places(saved, plan)) {
    return saved.read_all(kGradientPrefix);
  }
  auto at = plan.mesh.coordinates(rank);
  at[Axis::data] = 0;
  at[Axis::context] = 0;  // its ranks leave no gradients
  std::map<std::string, at::Tensor> sums;
  for (at[Axis::pipeline] = 0; at[Axis::pipeline] < ranks_before; ++at[Axis::pipeline]) {
    const auto replicas = mesh.group(mesh.find(at).value_or(0), {Axis::data});
    for (const int replica : replicas) {
      for (const auto& [name, gradient] : saved.of(replica).read_all(kGradientPrefix)) {
        if (gradient.numel() == 0) continue;
        const auto share = gradient / static_cast<int64_t>(replicas.size());
        auto& sum = sums[name];
        sum = sum.defined() ? sum + share : share;
      }
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
       changed_course(before, saved.mesh().sample_shares(), own, plan.mesh.sample_shares())) {
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

// Throws Error(usage) for a checkpoint of weights alone, and for an earlier format.
void require_resumable(const checkpoint::CheckpointReader& saved) {
  if (saved.format() < checkpoint::kOldestToResume) {
    throw Error("train", ErrorKind::usage,
                {.what = "cannot resume from " + saved.path().string(),
                 .got = fmt::format("a checkpoint of format {}", saved.format()),
                 .expected = fmt::format("format {} or {}", checkpoint::kOldestToResume,
                                         checkpoint::kCheckpointFormat),
                 .hint = "model.weights starts a new run from its weights"});
  }
  if (!saved.has(kSeed)) refuse_weights_alone(saved.path());
}

}  // namespace

RunOrigin::RunOrigin(const RunSetup& setup) : setup_(setup) {
  const auto& options = setup.options;
  seed_everything(options, setup.replicas ? setup.replicas->replicas : setup.groups.data());
  const auto checkpoint = find_checkpoint();
  if (!checkpoint.empty()) {
    open(checkpoint);
  } else if (!options.weights.path.empty()) {
    require_same_scaling(options.model, options.weights.path);
    checkpoint::take_weights(setup.task.module(), options.weights.path, options.weights.strict);
  }
  id_ = choose_id();
  choose_links();
}

std::filesystem::path RunOrigin::find_checkpoint() const {
  const auto& handle = setup_.options.trainer.ckpt_path;
  const auto checkpoints = setup_.checkpoints();
  std::string found;
  if (setup_.joins_others()) return handle;
  if (setup_.is_main()) {
    checkpoint::clean_up_unfinished(checkpoints);
    found = checkpoint::find_checkpoint(checkpoints, handle).string();
    if (!found.empty() && !std::filesystem::is_directory(found)) refuse_weights_alone(found);
    if (found.empty() && !handle.empty()) {
      log::info("no checkpoint in {} yet: starts anew", checkpoints.string());
    }
    if (handle != "last") checkpoint::begin_course(checkpoints);
  }
  return setup_.world().broadcast_text(found, 0, "checkpoint");
}

void RunOrigin::open(const std::filesystem::path& checkpoint) {
  const checkpoint::CheckpointReader first(checkpoint, /*rank=*/0);
  require_resumable(first);
  saved_.emplace(first.of(counterpart(first, setup_).value_or(0)));
}

std::string RunOrigin::choose_id() const {
  const auto& processes = setup_.processes();
  std::string id;
  if (setup_.joins_others()) return checkpoint::text_of(saved_->read(kRunId));
  if (processes.rank() == 0) {
    const auto logged = id_of_logged_run(setup_.folder);
    const bool goes_on =
        saved_ && saved_->has(kRunId) && checkpoint::text_of(saved_->read(kRunId)) == logged;
    id = goes_on ? logged : random_name();
  }
  return processes.broadcast_text(id, 0, "run id");
}

void RunOrigin::choose_links() {
  const auto& world = setup_.world();
  if (world.size() == 1) return;
  // Older checkpoints have seconds per byte under another name; links are then measured again.
  if (saved_ && has_same_places(*saved_, setup_.plan) && saved_->has(kLinks)) {
    links_ = saved_->read(kLinks);
    setup_.groups.assume_links(links_);
  } else {
    links_ = setup_.groups.links();
  }
}

std::filesystem::path RunOrigin::load(const ResumedParts& parts) {
  if (!saved_) return {};
  std::function<void()> take_loaded;
  start_together(setup_.groups, parts.engine, [&] {
    take_loaded = load_alone(parts);
    parts.context.seconds = parts.epochs.at().seconds;
    parts.clock.go_on_from(parts.context.seconds);
    if (setup_.is_main()) report(parts);
  });
  or_leave_module_whole(parts.engine, take_loaded);
  const auto checkpoint = saved_->path();
  saved_.reset();
  return checkpoint;
}

void RunOrigin::take(const std::filesystem::path& checkpoint, const ResumedParts& parts) {
  auto& at = parts.epochs.at();
  const double train_seconds = at.train_seconds;
  open(checkpoint);
  parts.log.clear();
  load_alone(parts)();
  at.seconds = parts.clock.run_seconds();
  at.train_seconds = train_seconds;
  saved_.reset();
}

std::function<void()> RunOrigin::load_alone(const ResumedParts& parts) const {
  auto& at = parts.epochs.at();
  std::map<std::string, at::Tensor> loops;
  // All ranks take rank 0's values: each rank had its own clock, but ranks must decide alike.
  const auto first = saved_->of(0);
  for (const auto& name : first.names(kLoopsPrefix)) loops.emplace(name, first.read(name));
  at.load_state(loops);
  require_same_course(at);
  require_same_scaling(setup_.options.model, saved_->path());
  parts.log.load_state(*saved_);
  auto take_loaded =
      parts.engine.load(*saved_, gradients_of(*saved_, setup_.plan, setup_.world().rank()));
  for (const auto& callback : setup_.callbacks) {
    const auto prefix = callback_prefix(*callback);
    if (!saved_->names(prefix).empty()) callback->load_state(*saved_, prefix);
  }
  load_random(at.samples, parts.engine.placement().device);
  return take_loaded;
}

void RunOrigin::require_same_course(const TrainProgress& at) const {
  const auto checkpoint = saved_->path().string();
  const auto seed = saved_->read(kSeed).item<int64_t>();
  if (seed != setup_.options.run.seed) {
    throw Error("train", ErrorKind::usage,
                {.what = "cannot resume from " + checkpoint + " with another run.seed",
                 .got = std::to_string(setup_.options.run.seed),
                 .expected = std::to_string(seed)});
  }
  if (at.position > setup_.training.size()) {
    throw Error("train", ErrorKind::usage,
                {.what = "cannot resume from " + checkpoint + " on fewer samples",
                 .got = std::to_string(setup_.training.size()),
                 .expected = fmt::format("at least {}", at.position)});
  }
}

std::optional<int> source_of_random(const layout::Mesh& saved, const layout::Mesh& now, int rank) {
  auto at = now.coordinates(rank);
  at[layout::Axis::context] = at[layout::Axis::tensor] = 0;
  return saved.find(at);
}

void RunOrigin::load_random(int64_t samples, at::Device device) const {
  const auto source = source_of_random(saved_->mesh(), setup_.plan.mesh, setup_.world().rank());
  if (source) {
    load_random_state(device, saved_->of(*source).read_all(kRandomPrefix));
  } else {
    compat::manual_seed(mix(static_cast<uint64_t>(setup_.options.run.seed),
                            static_cast<uint64_t>(setup_.groups.data().rank()) + 1,
                            static_cast<uint64_t>(samples)));
  }
}

void RunOrigin::report(const ResumedParts& parts) const {
  const auto& at = parts.epochs.at();
  log::info("resumes from {}: epoch {}, step {}", saved_->path().string(), at.epoch + 1, at.step);
  warn_of_changes(*saved_, setup_.options, setup_.plan);
  if (parts.context.is_done() && (at.ended_step == at.step || parts.epochs.is_beyond_limits())) {
    const auto limits = reached_limits(setup_.options, at.epoch, at.step);
    log::info(
        "the run is finished at step {}: {} {}", at.step, fmt::join(limits, " and "),
        limits.size() == 1 ? "ends it; a greater one trains on" : "end it; greater ones train on");
  }
}

}  // namespace troika::train
