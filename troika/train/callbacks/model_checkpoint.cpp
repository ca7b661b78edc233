#include "troika/train/callbacks/model_checkpoint.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/checkpoint/reader.h"
#include "troika/checkpoint/resume.h"
#include "troika/checkpoint/text_tensor.h"
#include "troika/compat/torch.h"
#include "troika/observe/summary.h"
#include "troika/train/options/limits.h"
#include "troika/train/run/fit_context.h"

namespace troika::train {

namespace {

// Splits text into lines; each line ends with a line break.
std::vector<std::string> lines_of(std::string_view text) {
  auto lines = split(text, '\n');
  lines.pop_back();
  return lines;
}

std::vector<std::string> lines_of(const at::Tensor& bytes) {
  return lines_of(checkpoint::text_of(bytes));
}

void require_one_of(const char* option, const std::string& value,
                    const std::vector<std::string>& names) {
  if (std::find(names.begin(), names.end(), value) != names.end()) return;
  throw Error("train", ErrorKind::usage,
              {.what = std::string(option) + " has no such value",
               .got = "`" + value + "`",
               .expected = names[0] + ", " + names[1] + " or " + names[2]});
}

Monitor monitor_of(const ModelCheckpointOptions& options) {
  return {options.monitor, options.mode};
}

}  // namespace

ModelCheckpoint::ModelCheckpoint(const ModelCheckpointOptions& options)
    : options_(options),
      monitor_(monitor_of(options)),
      interval_(seconds_of("checkpoint.train_time_interval", options.train_time_interval)),
      manager_(options.save_top_k, monitor_) {
  require_one_of("checkpoint.save_last", options.save_last, {"true", "false", "link"});
  require_one_of("checkpoint.save_on_train_epoch_end", options.save_on_train_epoch_end,
                 {"auto", "true", "false"});
}

void ModelCheckpoint::on_fit_start(FitContext& context) {
  considered_at_ = context.seconds;
  written_at_ = judged_at_ = -1;
  if (!loaded_) return;
  const auto [checkpoint, state] = *std::exchange(loaded_, std::nullopt);
  const auto folder = context.folder / "checkpoints";
  std::string text;
  std::error_code none;
  // Names from another run's folder refer to other checkpoints.
  if (context.group.rank() == 0 &&
      std::filesystem::equivalent(checkpoint.parent_path(), folder, none)) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (!entry.is_symlink()) text += entry.path().filename().string() + "\n";
    }
  }
  const auto names = lines_of(context.group.broadcast_text(text, 0, "checkpoints"));
  if (names.empty()) return;
  manager_.resume(checkpoint.filename().string(), state, {names.begin(), names.end()},
                  context.options.trainer.ckpt_path == "last");
  // The process may have been killed between writing a checkpoint and moving the link to it.
  if (context.group.rank() == 0 && !manager_.best().empty()) {
    checkpoint::move_link(folder / "best", manager_.best());
  }
}

void ModelCheckpoint::on_train_batch_end(FitContext& context, const data::Batch&,
                                         const at::Tensor&) {
  if (context.at.micro_batch > 0) return;
  const bool is_time = context.seconds - considered_at_ >= interval_;
  if (!is_time && !is_steps_turn(context)) return;
  considered_at_ = context.seconds;
  const bool has_metric = monitor_.name.empty() || context.at.metrics.contains(monitor_.name);
  if (has_metric && (monitor_.name.empty() || !context.validation.follows)) {
    consider(context);
    return;
  }
  is_due_ = true;
  if (!context.validation.follows) ask_for_latest(context);
}

void ModelCheckpoint::on_validation_end(FitContext& context) {
  const bool is_epochs_turn = is_epoch_due(context) && !saves_at_epoch_end(context);
  if (!is_due_ && !is_epochs_turn) return;
  // The metric may still be logged at the end of the epoch.
  is_due_ = !monitor_.name.empty() && !context.at.metrics.contains(monitor_.name);
  if (!is_due_) consider(context);
}

void ModelCheckpoint::on_train_epoch_end(FitContext& context) {
  const bool is_end = context.is_last_epoch();
  const bool is_epochs_turn = is_epoch_due(context) && saves_at_epoch_end(context);
  if (std::exchange(is_due_, false) || (is_end && options_.every_n_epochs > 0) || is_epochs_turn) {
    consider(context);
  } else if (is_end && !is_steps_turn(context)) {
    ask_for_latest(context);
  }
}

bool ModelCheckpoint::is_steps_turn(const FitContext& context) const {
  const int64_t every = options_.every_n_train_steps;
  return every > 0 && context.at.step % every == 0;
}

bool ModelCheckpoint::is_epoch_due(const FitContext& context) const {
  return options_.every_n_epochs > 0 && (context.at.epoch + 1) % options_.every_n_epochs == 0;
}

bool ModelCheckpoint::saves_at_epoch_end(const FitContext& context) const {
  if (options_.save_on_train_epoch_end != "auto") return options_.save_on_train_epoch_end == "true";
  return context.validation.only_at_epoch_ends;
}

void ModelCheckpoint::consider(FitContext& context) {
  if (!options_.enabled || judged_at_ == context.at.samples) return;
  const auto now = score(context);
  if (now && manager_.is_among_best(*now)) {
    manager_.propose(*now);
    context.ask_for_checkpoint();
  } else {
    ask_for_latest(context);
  }
}

void ModelCheckpoint::ask_for_latest(FitContext& context) const {
  if (!options_.enabled || written_at_ == context.at.samples) return;
  const bool stands_in = options_.save_last == "link" && options_.save_top_k == 0;
  if (options_.save_last == "true" || stands_in) context.ask_for_checkpoint();
}

std::optional<double> ModelCheckpoint::score(const FitContext& context) const {
  if (monitor_.name.empty()) return 0;
  const auto& metrics = context.at.metrics;
  const auto found = metrics.find(monitor_.name);
  if (found != metrics.end()) return found->second;
  if (metrics.contains(observe::kValidationLoss)) refuse_monitor(name(), monitor_.name, metrics);
  return {};
}

void ModelCheckpoint::on_save_checkpoint(FitContext& context) {
  written_at_ = context.at.samples;
  if (manager_.has_proposal()) judged_at_ = written_at_;
  manager_.begin_writing();
}

void ModelCheckpoint::on_checkpoint(FitContext& context, const std::filesystem::path& checkpoint) {
  const auto removed = manager_.finish_writing(checkpoint.filename().string());
  if (context.group.rank() != 0) return;
  const auto folder = checkpoint.parent_path();
  if (manager_.best().empty()) {
    // An old link would point to a checkpoint of an earlier run.
    std::filesystem::remove(folder / "best");
  } else {
    checkpoint::move_link(folder / "best", manager_.best());
  }
  for (const auto& name : removed) checkpoint::remove_checkpoint(folder / name);
}

checkpoint::NamedTensors ModelCheckpoint::state() const {
  std::string names, others, chosen;
  std::vector<double> scores;
  const auto state = manager_.state();
  for (const auto& kept : state.best) {
    names += kept.name + "\n";
    scores.push_back(kept.score);
  }
  for (const auto& name : state.others) others += name + "\n";
  for (const auto& name : state.chosen) chosen += name + "\n";
  return {{"names", checkpoint::text_tensor(names)},
          {"scores", at::tensor(scores, at::kDouble)},
          {"others", checkpoint::text_tensor(others)},
          {"chosen", checkpoint::text_tensor(chosen)},
          {"due", at::scalar_tensor(int64_t{is_due_}, at::kLong)}};
}

void ModelCheckpoint::load_state(const checkpoint::CheckpointReader& saved,
                                 const std::string& prefix) {
  const auto names = lines_of(saved.read(prefix + "names"));
  const auto scores = saved.read(prefix + "scores");
  loaded_.emplace();
  loaded_->checkpoint = saved.path();
  for (size_t i = 0; i < names.size(); ++i) {
    loaded_->state.best.push_back({names[i], scores[static_cast<int64_t>(i)].item<double>()});
  }
  loaded_->state.others = lines_of(saved.read(prefix + "others"));
  if (saved.has(prefix + "chosen")) {
    loaded_->state.chosen = lines_of(saved.read(prefix + "chosen"));
  }
  is_due_ = saved.read(prefix + "due").item<int64_t>() != 0;
}

}  // namespace troika::train
