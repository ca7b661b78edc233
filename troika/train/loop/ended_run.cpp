#include "troika/train/loop/ended_run.h"

#include <fmt/format.h>

#include <utility>

#include "troika/base/error.h"
#include "troika/checkpoint/resume.h"
#include "troika/compat/torch.h"
#include "troika/train/options/checkpoint_options.h"

namespace troika::train {

EndedRun::EndedRun(const comm::Group& group, const TrainOptions& options,
                   checkpoint::RankState state, const checkpoint::CheckpointInfo& info)
    : group_(group), options_(options), state_(std::move(state)), info_(info) {
  for (auto& [name, tensor] : state_.model) {
    // Keeps the weights that a parameter has now, also if it gets other data later.
    tensor = tensor.detach();
    checksums_.push_back(checkpoint::chunk_checksums(tensor));
  }
}

std::string EndedRun::changed() const {
  for (size_t i = 0; i < checksums_.size(); ++i) {
    const auto& [name, tensor] = state_.model[i];
    if (checkpoint::chunk_checksums(tensor) != checksums_[i]) return name;
  }
  return {};
}

std::filesystem::path EndedRun::save(const std::filesystem::path& path, bool weights_only) const {
  const auto names = group_.all_gather_text(changed(), "checkpoint");
  for (size_t rank = 0; rank < names.size(); ++rank) {
    if (names[rank].empty()) continue;
    throw Error("train", ErrorKind::usage,
                {.what = "no run to save as " + path.string(),
                 .got = fmt::format("a module whose `{}` changed after fit() on rank {}",
                                    names[rank], rank),
                 .expected = "the weights that fit() left",
                 .hint = "save before other weights are loaded, as by test() of a checkpoint"});
  }
  checkpoint::RankState saved = state_;
  if (weights_only) checkpoint::keep_weights(saved);
  return checkpoint::write_checkpoint(group_, path, saved, checkpoint_metadata(options_), info_);
}

}  // namespace troika::train
