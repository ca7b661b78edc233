#include "troika/checkpoint/writer.h"

#include <utility>

#include "troika/base/error.h"
#include "troika/compat/torch.h"

namespace troika::checkpoint {

namespace {

// Reuses the memory of the previous copy if it fits: page faults of new memory cost several times
// the copying.
void copy_into(NamedTensors& copy, const NamedTensors& tensors) {
  copy.resize(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i].second;
    at::Tensor& copied = copy[i].second;
    copy[i].first = tensors[i].first;
    copy[i].box = tensors[i].box;
    const bool fits = copied.defined() && copied.sizes() == tensor.sizes() &&
                      copied.scalar_type() == tensor.scalar_type();
    if (!fits) copied = at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()));
    copied.copy_(tensor);
  }
}

}  // namespace

CheckpointWriter::CheckpointWriter(const comm::Group& group) : group_(group.split(0).value()) {}

void CheckpointWriter::start(const std::filesystem::path& folder, const RankState& state,
                             const Metadata& description, const CheckpointInfo& info) {
  TROIKA_CHECK(!is_writing(), "a checkpoint is being written");
  const at::NoGradGuard no_grad;
  copy_into(copy_.model, state.model);
  copy_into(copy_.rest, state.rest);
  writing_ = std::async(std::launch::async, [this, folder, description, info] {
    return save_checkpoint(group_, folder, copy_, description, info);
  });
}

bool CheckpointWriter::is_done() const {
  return is_writing() && writing_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

}  // namespace troika::checkpoint
