#include "troika/train/run/replica_run.h"

#include <string>

#include "troika/base/error.h"
#include "troika/checkpoint/resume.h"
#include "troika/train/options/resolve_plan.h"

namespace troika::train {

bool trains_replicas(const TrainOptions& options, const comm::Group& group) {
  try {
    const auto plan = resolve_plan(options, cluster_of(group));
    return plan.trains_replicas();
  } catch (const Error&) {
    return false;
  }
}

TrainOptions replica_options(const TrainOptions& options, const comm::Group& replicas,
                             const std::filesystem::path& folder) {
  auto own = options;
  own.trainer.devices = own.trainer.num_nodes = -1;
  if (own.data.global_batch_size > 0) own.data.global_batch_size /= replicas.size();
  const auto& handle = options.trainer.ckpt_path;
  std::string checkpoint;
  if (!handle.empty() && replicas.rank() == 0) {
    checkpoint = checkpoint::find_checkpoint(folder / "checkpoints", handle).string();
  }
  checkpoint = replicas.broadcast_text(checkpoint, 0, "checkpoint of the replicas");
  if (replicas.rank() == 0) return own;
  own.trainer.ckpt_path = checkpoint;
  own.trainer.enable_progress_bar = false;
  own.trainer.enable_model_summary = false;
  own.run.folder = (folder / "replicas").string();
  own.run.name = std::to_string(replicas.rank());
  std::filesystem::create_directories(folder / "replicas" / own.run.name);
  return own;
}

}  // namespace troika::train
