#include "troika/train/callbacks/model_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "troika/base/file.h"
#include "troika/base/text.h"
#include "troika/compat/torch.h"
#include "troika/train/checkpoint/reader.h"
#include "troika/train/checkpoint/resume.h"
#include "troika/train/fit_context.h"
#include "troika/train/limits.h"

namespace troika::train {

namespace {

constexpr const char* kValidation = "validation/loss";  // there is one after any validation

}  // namespace

ModelCheckpoint::ModelCheckpoint(const TrainOptions::Checkpoint& options)
    : options_(options),
      monitor_(options.monitor, options.monitor.empty() ? "max" : options.mode),
      interval_(seconds_of("checkpoint.train_time_interval", options.train_time_interval)) {}

// Checkpoints of another run are not this one's to remove, and some may be gone.
void ModelCheckpoint::on_fit_start(FitContext& context) {
  considered_at_ = context.seconds;
  if (best_.empty()) return;
  const auto folder = context.folder / "checkpoints";
  std::string present;
  std::error_code none;
  if (context.group.rank() == 0 && std::filesystem::equivalent(loaded_folder_, folder, none)) {
    for (const auto& kept : best_) {
      if (std::filesystem::exists(folder / kept.name)) present += kept.name + "\n";
    }
  }
  const auto names = split(context.group.broadcast_text(present, 0, "checkpoints"), '\n');
  std::erase_if(best_, [&](const Kept& kept) {
    return std::find(names.begin(), names.end(), kept.name) == names.end();
  });
}

void ModelCheckpoint::on_train_batch_end(FitContext& context, const data::Batch&, double) {
  const int64_t every = options_.every_n_train_steps;
  if (context.at.pass > 0) return;
  const bool is_time = context.seconds - considered_at_ >= interval_;
  if (is_time || (every > 0 && context.at.step % every == 0)) consider(context);
}

void ModelCheckpoint::on_train_epoch_end(FitContext& context) {
  const int64_t every = options_.every_n_epochs;
  if (every == 0) return;
  if (context.is_last_epoch() || (context.at.epoch + 1) % every == 0) consider(context);
}

const std::vector<ModelCheckpoint::Kept>& ModelCheckpoint::current() const {
  return being_written_ ? *being_written_ : best_;
}

void ModelCheckpoint::consider(FitContext& context) {
  considered_at_ = context.seconds;
  if (!options_.enabled) return;
  const double now = score(context);
  const auto& best = current();
  const bool is_full =
      options_.save_top_k >= 0 && static_cast<int64_t>(best.size()) >= options_.save_top_k;
  const bool is_best = !is_full || (!best.empty() && monitor_.is_better(now, best.back().score));
  if (is_best) pending_ = now;
  if (is_best || options_.save_last) context.ask_for_checkpoint();
}

double ModelCheckpoint::score(const FitContext& context) const {
  if (monitor_.name.empty()) return static_cast<double>(context.at.samples);
  const auto& metrics = context.at.metrics;
  const auto found = metrics.find(monitor_.name);
  if (found == metrics.end() && metrics.contains(kValidation)) {
    refuse_monitor("checkpoint", monitor_, metrics);
  }
  const double value = found == metrics.end() ? NAN : found->second;
  return std::isnan(value) ? monitor_.worst() : value;
}

std::vector<ModelCheckpoint::Kept> ModelCheckpoint::next() const {
  auto result = current();
  if (!pending_) return result;
  // After those that are as good.
  const auto place = std::find_if(result.begin(), result.end(), [&](const Kept& kept) {
    return monitor_.is_better(*pending_, kept.score);
  });
  result.insert(place, {"", *pending_});
  if (options_.save_top_k >= 0) {
    result.resize(std::min(result.size(), static_cast<size_t>(options_.save_top_k)));
  }
  return result;
}

void ModelCheckpoint::on_save_checkpoint(FitContext&) {
  being_written_ = next();
  pending_.reset();
}

void ModelCheckpoint::on_checkpoint(FitContext& context, const std::filesystem::path& checkpoint,
                                    const std::filesystem::path& former) {
  const auto before = std::exchange(best_, std::move(*being_written_));
  being_written_.reset();
  for (auto& kept : best_) {
    if (kept.name.empty()) kept.name = checkpoint.filename().string();
  }
  if (context.group.rank() != 0) return;
  const auto folder = checkpoint.parent_path();
  const auto stays = [&](const std::string& name) {
    return name == checkpoint.filename() ||
           std::any_of(best_.begin(), best_.end(), [&](const Kept& k) { return k.name == name; });
  };
  if (!best_.empty()) move_link(folder / "best", best_.front().name);
  for (const auto& kept : before) {
    if (!stays(kept.name)) remove_checkpoint(folder / kept.name);
  }
  if (!former.empty() && !stays(former.filename())) remove_checkpoint(former);
}

NamedTensors ModelCheckpoint::state() const {
  std::string names;
  std::vector<double> scores;
  for (const auto& kept : next()) {
    names += kept.name + "\n";
    scores.push_back(kept.score);
  }
  const auto bytes = at::empty({static_cast<int64_t>(names.size())}, at::kByte);
  std::copy(names.begin(), names.end(), bytes.data_ptr<uint8_t>());
  return {{"names", bytes}, {"scores", at::tensor(scores, at::kDouble)}};
}

void ModelCheckpoint::load_state(const CheckpointReader& saved, const std::string& prefix) {
  const auto text = saved.read(prefix + "names");
  const auto scores = saved.read(prefix + "scores");
  const auto* bytes = reinterpret_cast<const char*>(text.data_ptr<uint8_t>());
  const auto names = split({bytes, static_cast<size_t>(text.numel())}, '\n');  // the last is empty
  best_.clear();
  for (int64_t i = 0; i < scores.numel(); ++i) {
    const auto& name = names.at(static_cast<size_t>(i));
    best_.push_back(
        {name.empty() ? saved.path().filename().string() : name, scores[i].item<double>()});
  }
  loaded_folder_ = saved.path().parent_path();
}

}  // namespace troika::train
