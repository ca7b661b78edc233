// The part of class Fit that writes a checkpoint's state and restores it.
#include <fmt/format.h>

#include <map>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/base/random.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/train/checkpoint/reader.h"
#include "troika/train/checkpoint/resume.h"
#include "troika/train/fit.h"
#include "troika/train/random_state.h"

namespace troika::train {

namespace {

constexpr const char* kRandomPrefix = "random.";
constexpr const char* kSeed = "seed";
constexpr const char* kLinks = "links";
constexpr const char* kLoopsPrefix = "loops.";
constexpr const char* kLog = "log.training";

// Gradients of an unfinished step. From another number of ranks every rank gets the mean, so
// that their mean over ranks stays.
NamedTensors gradients_of(const CheckpointReader& saved, int ranks) {
  if (saved.ranks() == ranks) return saved.read_all(kGradientPrefix);
  std::map<std::string, at::Tensor> sums;
  for (int rank = 0; rank < saved.ranks(); ++rank) {
    for (const auto& [name, gradient] : saved.of(rank).read_all(kGradientPrefix)) {
      if (gradient.numel() == 0) continue;
      const auto share = gradient / saved.ranks();
      auto& sum = sums[name];
      sum = sum.defined() ? sum + share : share;
    }
  }
  return {sums.begin(), sums.end()};
}

std::string callback_prefix(const Callback& callback) {
  return "callback." + callback.name() + ".";
}

}  // namespace

std::filesystem::path Fit::checkpoint_to_load() const {
  std::string found;
  if (is_main()) {
    settle_unfinished(checkpoints());
    found = find_checkpoint(checkpoints(), options_.trainer.ckpt_path).string();
    if (found.empty() && !options_.trainer.ckpt_path.empty()) {
      log::info("no checkpoint in {} yet: starts anew", checkpoints().string());
    }
    if (options_.trainer.ckpt_path != "last") begin_course(checkpoints());
  }
  return group_.broadcast_text(found, 0, "checkpoint");
}

void Fit::settle_links(const std::optional<CheckpointReader>& saved) {
  if (group_.size() == 1) return;
  if (saved && saved->ranks() == group_.size()) {
    group_.assume_links(saved->read(kLinks));
  } else {
    group_.links();
  }
}

void Fit::require_resumable(const CheckpointReader& saved) {
  if (saved.has(kSeed)) return;
  throw Error("train", ErrorKind::usage,
              {.what = "cannot resume from " + saved.path().string(),
               .got = "weights alone",
               .expected = "a checkpoint of a run without checkpoint.weights_only",
               .hint = "model.weights starts a new run from them"});
}

void Fit::restore(const CheckpointReader& saved) {
  const auto& checkpoint = saved.path();
  std::map<std::string, at::Tensor> loops;
  // All ranks take rank 0's: each had its own clock, but they must decide by it alike.
  const auto first = saved.of(0);
  for (const auto& name : first.names(kLoopsPrefix)) loops.emplace(name, first.read(name));
  at_.load_state(loops);
  seconds_before_ = context_.seconds = at_.seconds;
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
  training_step_->load(saved, gradients_of(saved, group_.size()));
  for (const auto& callback : callbacks_) {
    const auto prefix = callback_prefix(*callback);
    if (!saved.names(prefix).empty()) callback->load_state(saved, prefix);
  }
  if (group_.rank() < saved.ranks()) {
    load_random_state(device(), saved.read_all(kRandomPrefix));
  } else {
    torch::manual_seed(mix(static_cast<uint64_t>(options_.run.seed),
                           static_cast<uint64_t>(group_.rank()) + 1,
                           static_cast<uint64_t>(at_.samples)));
  }
  checkpoint_ = checkpoint;
  saved_samples_ = at_.samples;
  if (is_main()) {
    log::info("goes on from {}: epoch {}, step {}", checkpoint.string(), at_.epoch + 1, at_.step);
    if (context_.is_done() && at_.ended_step == at_.step) {
      log::info("the run is finished: raise trainer.max_epochs or trainer.max_steps to train on");
    }
  }
}

void Fit::restore_log(const CheckpointReader& saved) {
  if (saved.ranks() == group_.size()) {
    log_.add_state(saved.read(kLog));
    return;
  }
  // Another number of ranks: rank 0 gets all that was logged.
  if (!is_main()) return;
  for (int rank = 0; rank < saved.ranks(); ++rank) log_.add_state(saved.of(rank).read(kLog));
}

std::optional<LogPosition> Fit::rows_to_keep(const std::filesystem::path& checkpoint) const {
  std::error_code none;
  for (auto path = checkpoint; path.has_relative_path(); path = path.parent_path()) {
    if (std::filesystem::equivalent(path, checkpoints(), none)) {
      return LogPosition{at_.step, at_.rows};
    }
  }
  return std::nullopt;
}

std::filesystem::path Fit::save_alone(const std::filesystem::path& folder) {
  RankState state = this->state(/*in_step=*/false);
  // Gradients of a pass that failed are of no use: its step begins again.
  Loops at = at_;
  at.position -= at.pass * batch_;
  at.samples -= at.pass * batch_;
  at.pass = 0;
  at.seconds = seconds();
  add_course(at, state);
  return save_checkpoint(comm::local::alone(), folder, state, options_,
                         {.epoch = at.epoch, .step = at.step});
}

RankState Fit::checkpoint_state(bool weights_only) const {
  RankState state = this->state(at_.pass > 0);
  if (weights_only) {
    keep_weights(state);
    return state;
  }
  Loops at = at_;
  at.seconds = seconds();
  add_course(at, state);
  if (group_.size() > 1) state.rest.emplace_back(kLinks, group_.links());
  return state;
}

std::filesystem::path Fit::save_as(const std::filesystem::path& path, bool weights_only) {
  if (in_pass_) {
    throw Error("train", ErrorKind::usage,
                {.what = "save_checkpoint() inside of a training step",
                 .got = fmt::format("a call in step {}", at_.step + 1),
                 .expected = "a call between passes",
                 .hint = "use on_train_batch_end, or ask_for_checkpoint()"});
  }
  return write_checkpoint(group_, path, checkpoint_state(weights_only), options_,
                          checkpoint_info());
}

void Fit::save(bool to_go_on) {
  const TraceSpan span(trace(), "compute", "checkpoint");
  const Profile::Span profiled(profile(), "save_checkpoint");
  finish_saving();
  // A checkpoint counts on the rows before it.
  outputs_->flush();
  at_.seconds = seconds();
  const RankState state = checkpoint_state(/*weights_only=*/!to_go_on);
  if (to_go_on) saved_samples_ = at_.samples;
  context_.checkpoint_asked = false;
  for (const auto& callback : callbacks_) callback->on_save_checkpoint(context_);
  const auto info = checkpoint_info();
  if (writer_) {
    writer_->start(checkpoints(), state, info);
  } else {
    saved(save_checkpoint(group_, checkpoints(), state, options_, info));
  }
}

RankState Fit::state(bool in_step) const {
  RankState state = training_step_->state(in_step);
  for (const auto& callback : callbacks_) callback->replace_model(state);
  return state;
}

void Fit::add_course(const Loops& at, RankState& state) const {
  auto& rest = state.rest;
  for (auto& item : at.state()) rest.push_back(std::move(item));
  rest.emplace_back(kLog, log_.state());
  for (const auto& callback : callbacks_) {
    const auto prefix = callback_prefix(*callback);
    for (auto& [name, tensor] : callback->state()) {
      rest.emplace_back(prefix + name, std::move(tensor));
    }
    for (auto& shard : callback->shards()) {
      shard.name = prefix + shard.name;
      state.shards.push_back(std::move(shard));
    }
  }
  for (auto& [name, numbers] : random_state(device())) {
    rest.emplace_back(kRandomPrefix + name, std::move(numbers));
  }
  rest.emplace_back(kSeed, at::scalar_tensor(options_.run.seed, at::kLong));
}

void Fit::finish_saving() {
  if (writer_ && writer_->is_writing()) saved(writer_->finish());
}

void Fit::saved(const std::filesystem::path& checkpoint) {
  checkpoint_ = checkpoint;
  for (const auto& callback : callbacks_) callback->on_checkpoint(context_, checkpoint_);
}

}  // namespace troika::train
