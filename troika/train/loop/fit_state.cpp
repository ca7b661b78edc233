// Fit's writing of checkpoints.
#include <utility>

#include "troika/base/error.h"
#include "troika/checkpoint/resume.h"
#include "troika/checkpoint/text_tensor.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/train/engine/random_state.h"
#include "troika/train/loop/fit.h"
#include "troika/train/options/checkpoint_options.h"
#include "troika/train/run/course_names.h"

namespace troika::train {

std::filesystem::path Fit::save_alone(const std::filesystem::path& folder) {
  for (const auto& loss : losses_.read()) log_loss(loss);
  checkpoint::RankState state = this->state(/*in_step=*/false);
  // Gradients of a failed micro-batch are useless: the step starts again.
  TrainProgress at = at_;
  at.position -= at.micro_batch * batch_;
  at.samples -= at.micro_batch * batch_;
  at.micro_batch = 0;
  at.seconds = clock_.run_seconds();
  add_course(at, state);
  return checkpoint::save_checkpoint(comm::local::alone(), folder, state,
                                     checkpoint_metadata(options_),
                                     {.epoch = at.epoch, .step = at.step});
}

checkpoint::RankState Fit::checkpoint_state(bool weights_only) const {
  checkpoint::RankState state = this->state(at_.micro_batch > 0);
  if (weights_only) {
    checkpoint::keep_weights(state);
    return state;
  }
  TrainProgress at = at_;
  at.seconds = clock_.run_seconds();
  add_course(at, state);
  if (links_.defined()) state.rest.emplace_back(kLinks, links_);
  return state;
}

std::filesystem::path Fit::ask_to_save_as(const std::filesystem::path& path, bool weights_only) {
  if (has_failed_) {
    throw Error("train", ErrorKind::usage,
                {.what = "save_checkpoint() of a run that has failed",
                 .got = "a call in on_exception, where ranks cannot agree any more",
                 .expected = "checkpoint.on_exception, or FitContext::save_alone"});
  }
  asked_.push_back({checkpoint::checkpoint_path(world_, path), weights_only});
  return asked_.back().path;
}

void Fit::save_asked() {
  if (context_.checkpoint_asked) save(!options_.checkpoint.weights_only);
  write_asked();
}

void Fit::write_asked() {
  if (asked_.empty()) return;
  take_losses();
  // A resumed run expects all rows before the checkpoints.
  outputs_->flush();
  for (const auto& [path, weights_only] : std::exchange(asked_, {})) {
    checkpoint::write_checkpoint(world_, path, checkpoint_state(weights_only),
                                 checkpoint_metadata(options_), checkpoint_info());
  }
}

void Fit::save(bool to_go_on) {
  const TraceSpan span(trace(), "compute", "checkpoint");
  const observe::Profile::Span profiled(profile(), "save_checkpoint");
  finish_saving();
  take_losses();
  // A resumed run expects all rows before the checkpoint.
  outputs_->flush();
  at_.seconds = clock_.run_seconds();
  const checkpoint::RankState state = checkpoint_state(/*weights_only=*/!to_go_on);
  if (to_go_on) saved_samples_ = at_.samples;
  context_.checkpoint_asked = false;
  for (const auto& callback : callbacks_) callback->on_save_checkpoint(context_);
  const auto info = checkpoint_info();
  if (writer_) {
    writer_->start(checkpoints(), state, checkpoint_metadata(options_), info);
  } else {
    saved(checkpoint::save_checkpoint(world_, checkpoints(), state, checkpoint_metadata(options_),
                                      info));
  }
}

checkpoint::RankState Fit::state(bool in_step) const {
  checkpoint::RankState state = engine_->state(in_step);
  for (const auto& callback : callbacks_) callback->replace_model(state);
  return state;
}

void Fit::add_course(const TrainProgress& at, checkpoint::RankState& state) const {
  auto& rest = state.rest;
  for (auto& item : at.state()) rest.push_back(std::move(item));
  rest.emplace_back(kLog, log_.state());
  for (const auto& callback : callbacks_) {
    const auto prefix = callback_prefix(*callback);
    state::append(rest, prefix, callback->state());
  }
  for (auto& [name, numbers] : random_state(device())) {
    rest.emplace_back(kRandomPrefix + name, std::move(numbers));
  }
  rest.emplace_back(kSeed, at::scalar_tensor(options_.run.seed, at::kLong));
  rest.emplace_back(kRunId, checkpoint::text_tensor(id_));
}

void Fit::finish_saving() {
  if (writer_ && writer_->is_writing()) saved(writer_->finish());
}

void Fit::saved(const std::filesystem::path& checkpoint) {
  checkpoint_ = checkpoint;
  for (const auto& callback : callbacks_) callback->on_checkpoint(context_, checkpoint_);
}

}  // namespace troika::train
