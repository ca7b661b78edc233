#include "troika/state/state_dict.h"

#include "troika/base/error.h"
#include "troika/compat/torch.h"

namespace troika::state {

Entry::Entry(std::string name, at::Tensor tensor, std::optional<layout::Box> part)
    : Pair(std::move(name), std::move(tensor)), box(std::move(part)) {
  if (box) box->name = first;
}

void append(StateDict& to, const std::string& prefix, const StateDict& more) {
  for (const auto& entry : more) to.emplace_back(prefix + entry.first, entry.second, entry.box);
}

at::Tensor stored_shard(const Entry& entry) {
  at::Tensor part = entry.second;
  if (!entry.box) return part;
  const layout::Box& box = *entry.box;
  if (box.flat) return part.reshape({-1}).narrow(0, 0, box.count());
  TROIKA_CHECK(part.dim() == static_cast<int64_t>(box.size.size()), box.text());
  for (size_t d = 0; d < box.size.size(); ++d) {
    part = part.narrow(static_cast<int64_t>(d), 0, box.size[d]);
  }
  return part;
}

}  // namespace troika::state
