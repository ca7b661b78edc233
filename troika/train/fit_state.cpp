// What class Fit writes into a checkpoint, and takes from it.
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <map>
#include <string_view>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/base/random.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/train/fit.h"
#include "troika/train/resume.h"

namespace troika::train {

namespace {

constexpr const char* kRandom = "random.cpu";
constexpr const char* kSeed = "seed";
constexpr const char* kLinks = "links";
constexpr const char* kLog = "log.training";

std::map<std::string, at::Tensor> by_name(const NamedTensors& list) {
  return {list.begin(), list.end()};
}

// Of a checkpoint of another number of ranks: every rank gets the mean of the gradients, so that
// their mean over ranks stays.
void share_anew(RankState& state, const std::filesystem::path& checkpoint, int saved_ranks) {
  for (int rank = 0; rank < saved_ranks; ++rank) {
    const auto other = by_name(load_rank_state(checkpoint, rank).rest);
    for (auto& [name, tensor] : state.rest) {
      if (!name.starts_with("gradient.")) continue;
      if (rank == 0) tensor = at::zeros_like(tensor);
      const auto& value = other.at(name);
      if (value.numel() == 0) continue;
      const auto share = value / saved_ranks;
      tensor = tensor.numel() == 0 ? share : tensor + share;
    }
  }
}

std::string callback_prefix(const Callback& callback) {
  return "callback." + callback.name() + ".";
}

NamedTensors with_prefix(const NamedTensors& list, const std::string& prefix) {
  NamedTensors result;
  for (const auto& [name, tensor] : list) {
    if (name.starts_with(prefix)) result.emplace_back(name.substr(prefix.size()), tensor);
  }
  return result;
}

}  // namespace

std::filesystem::path Fit::checkpoint_to_load() const {
  std::string found;
  if (is_main()) {
    remove_unfinished(checkpoints());
    found = find_checkpoint(checkpoints(), options_.trainer.ckpt_path).string();
    if (found.empty() && !options_.trainer.ckpt_path.empty()) {
      log::info("no checkpoint in {} yet: starts anew", checkpoints().string());
    }
  }
  return group_.broadcast_text(found, 0, "checkpoint");
}

void Fit::settle_links(const std::filesystem::path& checkpoint,
                       const std::optional<RankState>& state) {
  if (group_.size() == 1) return;
  if (state && checkpoint_ranks(checkpoint) == group_.size()) {
    group_.assume_links(by_name(state->rest).at(kLinks));
  } else {
    group_.links();
  }
}

void Fit::restore(const std::filesystem::path& checkpoint, RankState state) {
  const int saved_ranks = checkpoint_ranks(checkpoint);
  if (saved_ranks != group_.size()) share_anew(state, checkpoint, saved_ranks);
  const auto rest = by_name(state.rest);
  at_.load_state(rest);
  seconds_before_ = context_.seconds = at_.seconds;
  const auto seed = rest.at(kSeed).item<int64_t>();
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
  restore_log(checkpoint, saved_ranks, rest);
  training_step_->load(state.model, state.rest);
  for (const auto& callback : callbacks_) {
    const auto own = with_prefix(state.rest, callback_prefix(*callback));
    if (!own.empty()) callback->load_state(own, checkpoint);
  }
  if (group_.rank() < saved_ranks) {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    generator.set_state(rest.at(kRandom));
  } else {
    torch::manual_seed(mix(static_cast<uint64_t>(options_.run.seed),
                           static_cast<uint64_t>(group_.rank()) + 1,
                           static_cast<uint64_t>(at_.samples)));
  }
  checkpoint_ = checkpoint;
  saved_samples_ = at_.samples;
  if (is_main()) {
    log::info("goes on from {}: epoch {}, step {}", checkpoint.string(), at_.epoch + 1, at_.step);
  }
}

void Fit::restore_log(const std::filesystem::path& checkpoint, int saved_ranks,
                      const std::map<std::string, at::Tensor>& rest) {
  if (saved_ranks == group_.size()) {
    log_.add_state(rest.at(kLog));
    return;
  }
  // Another number of ranks: rank 0 gets all that was logged.
  if (!is_main()) return;
  for (int rank = 0; rank < saved_ranks; ++rank) {
    log_.add_state(by_name(load_rank_state(checkpoint, rank).rest).at(kLog));
  }
}

RankState Fit::state_at(const Loops& at) {
  RankState state{.model = training_step_->model(), .rest = training_step_->state(at.pass > 0)};
  for (auto& item : at.state()) state.rest.push_back(std::move(item));
  state.rest.emplace_back(kLog, log_.state());
  for (const auto& callback : callbacks_) {
    for (auto& [name, tensor] : callback->state()) {
      state.rest.emplace_back(callback_prefix(*callback) + name, std::move(tensor));
    }
  }
  state.rest.emplace_back(kRandom, at::detail::getDefaultCPUGenerator().get_state());
  state.rest.emplace_back(kSeed, at::scalar_tensor(options_.run.seed, at::kLong));
  return state;
}

std::filesystem::path Fit::save_alone(const std::filesystem::path& folder) {
  // Gradients of a pass that failed are of no use: its step begins again.
  Loops at = at_;
  at.position -= at.pass * batch_;
  at.samples -= at.pass * batch_;
  at.pass = 0;
  at.seconds = seconds();
  return save_checkpoint(comm::local::alone(), folder, state_at(at), options_,
                         {.epoch = at.epoch, .step = at.step});
}

void Fit::save() {
  const TraceSpan span(trace(), "compute", "checkpoint");
  const Profile::Span profiled(profile(), "save_checkpoint");
  finish_saving();
  at_.seconds = seconds();
  RankState state = state_at(at_);
  if (group_.size() > 1) state.rest.emplace_back(kLinks, group_.links());
  former_ = linked_checkpoint(checkpoints(), "last");
  saved_samples_ = at_.samples;
  context_.checkpoint_asked = false;
  for (const auto& callback : callbacks_) callback->on_save_checkpoint(context_);
  const CheckpointInfo info{.epoch = at_.epoch, .step = at_.step};
  if (writer_) {
    writer_->start(checkpoints(), state, info);
  } else {
    saved(save_checkpoint(group_, checkpoints(), state, options_, info));
  }
}

void Fit::finish_saving() {
  if (writer_ && writer_->is_writing()) saved(writer_->finish());
}

void Fit::saved(const std::filesystem::path& checkpoint) {
  checkpoint_ = checkpoint;
  for (const auto& callback : callbacks_) callback->on_checkpoint(context_, checkpoint_, former_);
  if (!is_main()) return;
  outputs_->flush();
}

}  // namespace troika::train
