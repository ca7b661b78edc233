#include "troika/train/profile/kept_bytes.h"

#include <memory>
#include <set>
#include <vector>

#include "troika/compat/fake_tensors.h"
#include "troika/compat/saved_tensors.h"
#include "troika/compat/torch.h"
#include "troika/layout/recompute.h"
#include "troika/nn/keyed_draws.h"
#include "troika/nn/offload.h"
#include "troika/nn/state.h"
#include "troika/nn/zoo.h"
#include "troika/train/engine/placement.h"
#include "troika/train/profile/measure_profile.h"
#include "troika/train/task/task.h"

namespace troika::train {

namespace {

struct SavedSize {
  double bytes = 0;
  bool stays = false;  // however large it is
};

// Notes the sizes of the tensors that are saved, each memory once, without parameters and buffers.
class SavedSizes : public compat::SavedTensorHooks {
 public:
  explicit SavedSizes(const torch::nn::Module& module) {
    for (const auto& [name, tensor] : nn::named_state(module)) known_.insert(tensor.data_ptr());
  }

  std::function<at::Tensor()> pack(const at::Tensor& tensor) override {
    // A tensor with gaps keeps all of the memory that it is a view of.
    const bool stays = !nn::may_be_offloaded(tensor);
    const auto& storage = tensor.storage();
    if (known_.insert(stays ? storage.data() : tensor.data_ptr()).second) {
      sizes_.push_back({static_cast<double>(stays ? storage.nbytes() : tensor.nbytes()), stays});
    }
    // Without its graph: a node that saves its own output would never be freed.
    return [kept = tensor.detach()] { return kept; };
  }
  const std::vector<SavedSize>& sizes() const { return sizes_; }

 private:
  std::set<const void*> known_;
  std::vector<SavedSize> sizes_;
};

std::vector<SavedSize> saved_sizes(Task& task, const Placement& placement,
                                   const data::Batch& batch) {
  const auto hooks = std::make_shared<SavedSizes>(task.module());
  const auto noting = nn::offload(dynamic_cast<nn::Model&>(task.module()), hooks);
  const nn::Autocast autocast(placement.precision, at::kCPU);
  const nn::KeyedDraws draws(nn::some_samples(batch.size()));
  const at::Tensor loss = task.training_step(batch);
  return hooks->sizes();
}

}  // namespace

double kept_bytes(const TrainOptions& options, const data::Dataset& dataset, int64_t samples,
                  bool recomputes) {
  constexpr int64_t kSmaller = 2, kLarger = 4;  // as MemoryPredictor
  const auto small = profiled_samples(dataset, kSmaller),
             large = profiled_samples(dataset, kLarger);
  const compat::FakeTensorGuard no_memory;
  Task task(nn::make_model(options.model));
  const Placement placement{.precision = nn::parse_precision(options.trainer.precision)};
  placement.place(task.module());
  task.module().train();
  if (recomputes) {
    task.recompute(layout::recompute_plan("full", task.blocks().blocks().size()));
  }
  const auto of_small = saved_sizes(task, placement, placement.place(small));
  const auto of_large = saved_sizes(task, placement, placement.place(large));
  const double share =
      static_cast<double>(samples - kSmaller) / static_cast<double>(kLarger - kSmaller);
  double kept = 0;
  for (size_t i = 0; i < of_large.size(); ++i) {
    const double larger = of_large[i].bytes;
    const double smaller = i < of_small.size() ? of_small[i].bytes : larger;
    const double bytes = smaller + share * (larger - smaller);
    const bool is_small = bytes < static_cast<double>(nn::kLeastOffloadedBytes);
    if (is_small || of_large[i].stays) kept += bytes;
  }
  return kept;
}

}  // namespace troika::train
