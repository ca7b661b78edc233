// What class Fit writes into a checkpoint, and takes from it.
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <map>
#include <string_view>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/base/random.h"
#include "troika/compat/torch.h"
#include "troika/train/fit.h"
#include "troika/train/resume.h"

namespace troika::train {

namespace {

constexpr const char* kRandom = "random.cpu";
constexpr const char* kSeed = "seed";

std::map<std::string, at::Tensor> by_name(const NamedTensors& list) {
  return {list.begin(), list.end()};
}

// Of a checkpoint of another number of ranks: every rank gets the mean of the gradients, so that
// their mean over ranks stays, and rank 0 all that was counted.
void share_anew(RankState& state, const std::filesystem::path& checkpoint, int saved_ranks,
                bool is_main) {
  for (int rank = 0; rank < saved_ranks; ++rank) {
    const auto other = by_name(load_rank_state(checkpoint, rank).rest);
    for (auto& [name, tensor] : state.rest) {
      const bool is_gradient = name.starts_with("gradient.");
      const bool is_sum = name.starts_with("sums.");
      if (!is_gradient && !is_sum) continue;
      if (rank == 0) tensor = at::zeros_like(tensor);
      if (is_sum && !is_main) continue;
      const auto& value = other.at(name);
      if (value.numel() == 0) continue;
      const auto share = is_gradient ? value / saved_ranks : value;
      tensor = tensor.numel() == 0 ? share : tensor + share;
    }
  }
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

void Fit::restore(const std::filesystem::path& checkpoint) {
  const int saved_ranks = checkpoint_ranks(checkpoint);
  RankState state = load_rank_state(checkpoint, group_.rank());
  if (saved_ranks != group_.size()) share_anew(state, checkpoint, saved_ranks, is_main());
  const auto rest = by_name(state.rest);
  at_.load_state(rest);
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
  training_step_->load(state.model, state.rest);
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

void Fit::save() {
  const TraceSpan span(trace(), "compute", "checkpoint");
  finish_saving();
  RankState state{.model = training_step_->model(), .rest = training_step_->state(at_.pass > 0)};
  for (auto& item : at_.state()) state.rest.push_back(std::move(item));
  state.rest.emplace_back(kRandom, at::detail::getDefaultCPUGenerator().get_state());
  state.rest.emplace_back(kSeed, at::scalar_tensor(options_.run.seed, at::kLong));
  former_ = linked_checkpoint(checkpoints(), "last");
  saved_samples_ = at_.samples;
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
  if (!is_main()) return;
  if (!former_.empty() && former_ != checkpoint_) remove_checkpoint(former_);
  outputs_->flush();
}

}  // namespace troika::train
