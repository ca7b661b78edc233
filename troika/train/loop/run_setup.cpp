#include "troika/train/loop/run_setup.h"

#include "troika/compat/torch.h"
#include "troika/train/run/quorum_run.h"

namespace troika::train {

int64_t trainable_count(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const auto& [name, tensor] : nn::trained_parameters(module)) count += tensor.numel();
  return count;
}

bool RunSetup::joins_others() const {
  return quorum && !quorum->founds();
}

bool RunSetup::writes_checkpoints() const {
  return !quorum || quorum->writes();
}

std::filesystem::path RunSetup::checkpoints() const {
  return quorum ? quorum->checkpoints() : folder / "checkpoints";
}

}  // namespace troika::train
