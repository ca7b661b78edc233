#include "troika/train/loop/run_checkpoints.h"

#include <set>
#include <string>
#include <utility>

#include "troika/base/error.h"
#include "troika/checkpoint/resume.h"
#include "troika/checkpoint/text_tensor.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/train/engine/random_state.h"
#include "troika/train/loop/whole_state.h"
#include "troika/train/options/checkpoint_options.h"
#include "troika/train/run/course_names.h"

namespace troika::train {

bool writes_beside_training(const ModelCheckpointOptions& options, const layout::Plan& plan) {
  return options.async == "auto" ? plan.is_asynchronous() : options.async == "true";
}

RunCheckpoints::RunCheckpoints(const SavedParts& parts) : parts_(parts) {
  if (writes_beside_training(parts.setup.options.checkpoint, parts.setup.plan)) {
    writer_.emplace(parts.setup.world());
  }
}

void RunCheckpoints::begin_from(const std::filesystem::path& checkpoint) {
  if (checkpoint.empty()) return;
  if (!parts_.setup.joins_others()) latest_ = checkpoint;
  saved_samples_ = parts_.epochs.at().samples;
}

std::filesystem::path RunCheckpoints::ask_to_save_as(const std::filesystem::path& path,
                                                     bool weights_only) {
  if (has_failed_) {
    throw Error("train", ErrorKind::usage,
                {.what = "save_checkpoint() of a run that has failed",
                 .got = "a call in on_exception, where ranks cannot agree any more",
                 .expected = "checkpoint.on_exception, or FitContext::actions.save_alone"});
  }
  asked_.push_back({checkpoint::checkpoint_path(parts_.setup.world(), path), weights_only});
  return asked_.back().path;
}

void RunCheckpoints::save_asked() {
  if (parts_.context.requests.checkpoint) save(!parts_.setup.options.checkpoint.weights_only);
  save_asked_paths();
}

void RunCheckpoints::save_asked_paths() {
  if (asked_.empty()) return;
  parts_.log.read_losses();
  // A resumed run expects all rows before the checkpoints.
  parts_.log.flush();
  parts_.engine.fetch_states();
  for (const auto& [path, weights_only] : std::exchange(asked_, {})) {
    if (!parts_.setup.writes_checkpoints()) continue;
    checkpoint::write_checkpoint(parts_.setup.world(), path, state(weights_only),
                                 checkpoint_metadata(parts_.setup.options), info());
  }
}

void RunCheckpoints::save_weights(const std::filesystem::path& file) const {
  const auto& setup = parts_.setup;
  if (!parts_.engine.optimization().cuts().is_empty()) {
    throw Error("train", ErrorKind::usage,
                {.what = "weights are saved while a tensor axis cuts them",
                 .got = "mesh.axes " + setup.plan.mesh.text(),
                 .expected = "a checkpoint, which holds whole tensors"});
  }
  std::set<std::string> own;
  parts_.engine.fetch_states();
  for (const auto& entry : parts_.engine.state(/*in_step=*/false).model) own.insert(entry.first);
  const auto weights = whole_state(setup.task.module(), own, setup.world());
  if (!setup.is_main()) return;
  checkpoint::save_weights(file, weights, checkpoint_metadata(setup.options), info());
}

void RunCheckpoints::save(bool to_go_on) {
  const TraceSpan span(parts_.measured.trace(), "compute", "checkpoint");
  const observe::Profile::Span profiled(parts_.measured.profile(), "save_checkpoint");
  finish();
  parts_.log.read_losses();
  // A resumed run expects all rows before the checkpoint.
  parts_.log.flush();
  const auto& setup = parts_.setup;
  auto& at = parts_.epochs.at();
  at.seconds = parts_.measured.clock().run_seconds();
  // Members of a quorum are at the same step after a sum, and agree on the writer. Within a round
  // of outer steps a member that is lost may have been the writer of a step that others have
  // passed.
  parts_.engine.fetch_states();
  if (!setup.writes_checkpoints()) {
    left_out_ = {at.samples, to_go_on};
    if (to_go_on) saved_samples_ = at.samples;
    parts_.context.requests.checkpoint = false;
    return;
  }
  const checkpoint::RankState state = this->state(/*weights_only=*/!to_go_on);
  if (to_go_on) saved_samples_ = at.samples;
  parts_.context.requests.checkpoint = false;
  for (const auto& callback : setup.callbacks) callback->on_save_checkpoint(parts_.context);
  const auto metadata = checkpoint_metadata(setup.options);
  if (writer_) {
    writer_->start(setup.checkpoints(), state, metadata, info());
  } else {
    announce(
        checkpoint::save_checkpoint(setup.world(), setup.checkpoints(), state, metadata, info()));
  }
}

void RunCheckpoints::save_left_out() {
  if (!left_out_ || left_out_->first != parts_.epochs.at().samples) return;
  save(left_out_->second);
  finish();
}

void RunCheckpoints::finish() {
  if (writer_ && writer_->is_writing()) announce(writer_->finish());
}

void RunCheckpoints::announce(const std::filesystem::path& checkpoint) {
  latest_ = checkpoint;
  for (const auto& callback : parts_.setup.callbacks) {
    callback->on_checkpoint(parts_.context, latest_);
  }
}

std::filesystem::path RunCheckpoints::save_for_replica(const std::filesystem::path& folder) {
  parts_.log.read_losses();
  auto& at = parts_.epochs.at();
  const int64_t micro_batch = at.micro_batch;
  if (parts_.setup.swarm) at.micro_batch = 0;
  const auto saved =
      checkpoint::save_checkpoint(parts_.setup.world(), folder, state(/*weights_only=*/false),
                                  checkpoint_metadata(parts_.setup.options), info());
  at.micro_batch = micro_batch;
  return saved;
}

std::filesystem::path RunCheckpoints::save_alone(const std::filesystem::path& folder) {
  parts_.log.read_losses_after_failure();
  checkpoint::RankState state = engine_state(/*in_step=*/false);
  // Gradients of a failed micro-batch are useless: the step starts again.
  TrainProgress at = parts_.epochs.at();
  // In a swarm, only whole steps have advanced the position.
  if (!parts_.setup.swarm) {
    at.position -= at.micro_batch * parts_.epochs.global_batch();
    at.samples -= at.micro_batch * parts_.epochs.trained_samples();
  }
  at.micro_batch = 0;
  at.seconds = parts_.measured.clock().run_seconds();
  add_course(at, state);
  return checkpoint::save_checkpoint(comm::local::alone(), folder, state,
                                     checkpoint_metadata(parts_.setup.options),
                                     {.epoch = at.epoch, .step = at.step});
}

checkpoint::RankState RunCheckpoints::state(bool weights_only) const {
  parts_.engine.fetch_states();
  checkpoint::RankState state = engine_state(/*in_step=*/parts_.epochs.at().micro_batch > 0);
  if (weights_only) {
    checkpoint::keep_weights(state);
    return state;
  }
  TrainProgress at = parts_.epochs.at();
  at.seconds = parts_.measured.clock().run_seconds();
  add_course(at, state);
  const auto& links = parts_.origin.links();
  if (links.defined()) state.rest.emplace_back(kLinks, links);
  return state;
}

checkpoint::CheckpointInfo RunCheckpoints::info() const {
  const auto& at = parts_.epochs.at();
  return {.epoch = at.epoch, .step = at.step, .plan = parts_.setup.plan.text()};
}

checkpoint::RankState RunCheckpoints::engine_state(bool in_step) const {
  checkpoint::RankState state = parts_.engine.state(in_step);
  for (const auto& callback : parts_.setup.callbacks) callback->replace_model(state);
  return state;
}

void RunCheckpoints::add_course(const TrainProgress& at, checkpoint::RankState& state) const {
  auto& rest = state.rest;
  for (auto& item : at.state()) rest.push_back(std::move(item));
  rest.emplace_back(kLog, parts_.log.state());
  for (const auto& callback : parts_.setup.callbacks) {
    const auto prefix = callback_prefix(*callback);
    state::append(rest, prefix, callback->state());
  }
  for (auto& [name, numbers] : random_state(parts_.engine.placement().device)) {
    rest.emplace_back(kRandomPrefix + name, std::move(numbers));
  }
  rest.emplace_back(kSeed, at::scalar_tensor(parts_.setup.options.run.seed, at::kLong));
  rest.emplace_back(kRunId, checkpoint::text_tensor(parts_.origin.id()));
}

}  // namespace troika::train
