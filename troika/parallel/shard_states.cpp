#include "troika/parallel/shard_states.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

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
  const auto own = at::empty({static_cast<int64_t>(states.size())}, at::kLong);
  for (size_t i = 0; i < states.size(); ++i) {
    own.data_ptr<int64_t>()[i] = states[i].second.numel();
  }
  const auto counts = at::empty({group.size(), own.numel()}, at::kLong);
  group.all_gather(counts, own, {}, {.label = "sizes of states"});
  optim::NamedTensors result;
  for (size_t i = 0; i < states.size(); ++i) {
    const auto& [name, tensor] = states[i];
    const auto& shape = shards[place_of(shards, name)].shape;
    if (tensor.dim() == 0) {
      const auto largest = tensor.detach().clone();
      group.all_reduce(largest, comm::ReduceOp::max, {.label = name});
      result.emplace_back(name, largest);
      continue;
    }
    std::vector<int64_t> splits;
    for (int r = 0; r < group.size(); ++r) {
      splits.push_back(counts[r][static_cast<int64_t>(i)].item<int64_t>());
    }
    const int64_t total = std::accumulate(splits.begin(), splits.end(), int64_t{0});
    const auto whole = at::empty({total}, tensor.options());
    group.all_gather(whole, tensor.detach().reshape({-1}), splits, {.label = name});
    const bool is_of_elements = total == c10::multiply_integers(shape);
    result.emplace_back(name, is_of_elements ? whole.view(shape) : whole);
  }
  return result;
}

optim::NamedTensors slice_states(const std::vector<Shard>& shards,
                                 const std::vector<optim::Parameter>& pieces,
                                 const optim::NamedTensors& states, int64_t block) {
  optim::NamedTensors result;
  const auto blocks = [block](int64_t count) { return (count + block - 1) / block; };
  for (const auto& [name, tensor] : states) {
    const size_t place = place_of(shards, name);
    const Shard& shard = shards[place];
    if (tensor.dim() == 0) {
      result.emplace_back(name, tensor);
      continue;
    }
    const bool is_of_blocks = block > 1 && tensor.dim() == 1 &&
                              tensor.numel() == blocks(c10::multiply_integers(shard.shape));
    if (is_of_blocks) {
      result.emplace_back(name, tensor.narrow(0, shard.offset / block, blocks(shard.count)));
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
