#include "troika/train/options/resumed_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "troika/base/config.h"
#include "troika/train/options/limits.h"

namespace troika::train {

namespace {

// Batch sizes are not included: they are compared separately, as samples over all ranks.
bool changes_steps(const std::string& key) {
  const auto others = {"trainer.precision",
                       "trainer.accumulate_grad_batches",
                       "trainer.gradient_clip_val",
                       "trainer.gradient_clip_algorithm",
                       "trainer.label_smoothing",
                       "trainer.z_loss",
                       "lora.dropout"};
  return key.starts_with("optim.") || std::ranges::count(others, key) > 0;
}

}  // namespace

std::vector<std::string> changed_course(const TrainOptions& saved, int saved_ranks,
                                        const TrainOptions& own, int own_ranks) {
  std::vector<std::string> result;
  const int64_t before = global_batch(saved, saved_ranks), now = global_batch(own, own_ranks);
  if (before != now) {
    result.push_back(
        fmt::format("a batch is {} samples on {} rank{}, and was {} on {} in the checkpoint "
                    "(data.global_batch_size={} keeps it)",
                    now, own_ranks, own_ranks == 1 ? "" : "s", before, saved_ranks, before));
  }
  // A table's defaults are the values of its variables at the time when the table is made.
  TrainOptions options = saved;
  const auto table = make_table(options);
  options = own;
  for (const auto& [key, value, initial, help] : table.changed()) {
    if (!changes_steps(key)) continue;
    result.push_back(fmt::format("{} is {}, and was {} in the checkpoint ({}={} keeps it)", key,
                                 value, initial, key, initial));
  }
  return result;
}

}  // namespace troika::train
