#include "troika/train/engine/make_offload.h"

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/offload.h"

namespace troika::train {

std::shared_ptr<compat::SavedTensorHooks> make_offload(const std::string& to,
                                                       const at::Device& device) {
  const bool to_host = to == "host";
  if (to_host == device.is_cpu()) {
    throw Error("train", ErrorKind::usage,
                {.what = "offload.activations does not go with where the run computes",
                 .got = to + " for " + device.str(),
                 .expected = device.is_cpu() ? "a folder for files" : "host"});
  }
  if (to_host) return std::make_shared<nn::HostOffload>();
  return std::make_shared<nn::ActivationOffload>(to);
}

}  // namespace troika::train
