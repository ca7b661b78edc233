#include "troika/parallel/shard_states.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "troika/base/error.h"
#include "troika/compat/torch.h"

namespace troika::parallel {

namespace {

// The place in `shards` of the parameter that `<parameter>.<state>` is of.
size_t place_of(const std::vector<Shard>& shards, const std::string& state) {
  const auto name = state.substr(0, state.rfind('.'));
  const auto shard =
      std::find_if(shards.begin(), shards.end(), [&](const Shard& s) { return s.name == name; });
  if (shard == shards.end()) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "a state is of no parameter that is trained here", .got = state});
  }
  return static_cast<size_t>(shard - shards.begin());
}

}  // namespace

optim::NamedTensors gather_states(const comm::Group& group, const std::vector<Shard>& shards,
                                  const optim::NamedTensors& states) {
  const auto own = at::empty({static_cast<int64_t>(shards.size())}, at::kLong);
  for (size_t i = 0; i < shards.size(); ++i) own.data_ptr<int64_t>()[i] = shards[i].count;
  const auto counts = at::empty({group.size(), own.numel()}, at::kLong);
  group.all_gather(counts, own, {}, {.label = "sizes of shards"});
  optim::NamedTensors result;
  for (const auto& [name, tensor] : states) {
    const size_t place = place_of(shards, name);
    if (tensor.dim() == 0) {
      const auto largest = tensor.detach().clone();
      group.all_reduce(largest, comm::ReduceOp::max, {.label = name});
      result.emplace_back(name, largest);
      continue;
    }
    std::vector<int64_t> splits;
    for (int r = 0; r < group.size(); ++r) {
      splits.push_back(counts[r][static_cast<int64_t>(place)].item<int64_t>());
    }
    const auto whole = at::empty({c10::multiply_integers(shards[place].shape)}, tensor.options());
    group.all_gather(whole, tensor.detach().reshape({-1}), splits, {.label = name});
    result.emplace_back(name, whole.view(shards[place].shape));
  }
  return result;
}

optim::NamedTensors slice_states(const std::vector<Shard>& shards,
                                 const std::vector<optim::Parameter>& pieces,
                                 const optim::NamedTensors& states) {
  optim::NamedTensors result;
  for (const auto& [name, tensor] : states) {
    const size_t place = place_of(shards, name);
    const Shard& shard = shards[place];
    if (tensor.dim() == 0) {
      result.emplace_back(name, tensor);
      continue;
    }
    if (tensor.sizes() != at::IntArrayRef(shard.shape)) {
      throw Error("parallel", ErrorKind::usage,
                  {.what = "state " + name + " does not fit",
                   .got = fmt::format("[{}]", fmt::join(tensor.sizes(), ", ")),
                   .expected = fmt::format("[{}]", fmt::join(shard.shape, ", "))});
    }
    result.emplace_back(name, tensor.reshape({-1})
                                  .narrow(0, shard.offset, shard.count)
                                  .view(pieces[place].tensor.sizes()));
  }
  return result;
}

}  // namespace troika::parallel
