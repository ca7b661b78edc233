#include "troika/train/memory/batches.h"

#include "troika/compat/torch.h"

namespace troika::train {

layout::ProfiledBatches batches_of(const TrainOptions& options, const data::Batch& batch,
                                   const Placement& placement, int64_t samples) {
  const auto count = static_cast<double>(samples);
  layout::ProfiledBatches result;
  if (options.data.workers > 0) result.prefetched = static_cast<double>(options.data.prefetch);
  const auto placed = placement.place(batch).tensors();
  const auto before = batch.tensors();
  for (size_t i = 0; i < placed.size(); ++i) {
    const auto& [tensor, own] = std::pair(before[i].second, placed[i].second);
    const bool is_copy = own.data_ptr() != tensor.data_ptr();
    result.bytes += static_cast<double>(tensor.nbytes()) * count;
    result.placed_bytes += is_copy ? static_cast<double>(own.nbytes()) * count : 0;
  }
  return result;
}

}  // namespace troika::train
