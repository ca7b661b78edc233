#include "troika/parallel/replicas.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"

namespace troika::parallel {

namespace {

// One line per tensor.
std::string describe(const torch::nn::Module& module) {
  std::set<std::string> buffers;
  for (const auto& [name, tensor] : nn::named_buffers(module)) buffers.insert(name);
  std::string text;
  for (const auto& [name, tensor] : nn::named_state(module)) {
    const char* what = buffers.contains(name)   ? "buffer"
                       : tensor.requires_grad() ? "parameter"
                                                : "frozen parameter";
    text += fmt::format("{} {} {} [{}]", what, name, c10::toString(tensor.scalar_type()),
                        fmt::join(tensor.sizes(), ", "));
    // Buckets hold gradients with the strides of their parameters.
    if (!tensor.is_contiguous()) {
      text += fmt::format(" of strides [{}]", fmt::join(tensor.strides(), ", "));
    }
    text += "\n";
  }
  return text;
}

// FNV-1a over 8-byte words; the last one is padded with zeros.
uint64_t hash(const at::Tensor& tensor) {
  const auto host = tensor.detach().cpu().contiguous();
  const auto* bytes = static_cast<const char*>(host.data_ptr());
  const size_t count = host.nbytes();
  uint64_t value = 0xcbf29ce484222325;
  for (size_t i = 0; i < count; i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i, std::min(sizeof word, count - i));
    value = (value ^ word) * 0x100000001b3;
    value ^= value >> 29;
  }
  return value;
}

std::string describe_bits(const torch::nn::Module& module) {
  std::string text;
  for (const auto& [name, tensor] : nn::named_state(module)) {
    text += fmt::format("{} of hash {:016x}\n", name, hash(tensor));
  }
  return text;
}

std::string first_difference(const std::string& mine, const std::string& theirs) {
  const auto a = split(mine, '\n');
  const auto b = split(theirs, '\n');
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const std::string left = i < a.size() && !a[i].empty() ? a[i] : "nothing more";
    const std::string right = i < b.size() && !b[i].empty() ? b[i] : "nothing more";
    if (left != right) return fmt::format("{} where rank 0 has {}", left, right);
  }
  return {};
}

void check_same_text(const comm::Group& group, const std::string& mine, std::string_view label,
                     std::string_view hint) {
  const std::string reference = group.broadcast_text(mine, 0, label);
  // Every rank learns every difference, so that all of them stop here with the cause.
  const auto differences = group.all_gather_text(first_difference(mine, reference), label);
  for (size_t r = 0; r < differences.size(); ++r) {
    if (differences[r].empty()) continue;
    throw Error("parallel", ErrorKind::usage,
                {.what = fmt::format("rank {}'s module is not rank 0's", r),
                 .got = differences[r],
                 .hint = std::string(hint)});
  }
}

// Returns lists with one type and device each, in an order that is the same on all ranks.
std::vector<std::vector<at::Tensor>> alike(const std::vector<at::Tensor>& tensors) {
  using Kind = std::tuple<c10::ScalarType, c10::DeviceType, c10::DeviceIndex>;
  std::map<Kind, std::vector<at::Tensor>> lists;
  for (const auto& tensor : tensors) {
    const auto device = tensor.device();
    lists[{tensor.scalar_type(), device.type(), device.index()}].push_back(tensor.detach());
  }
  std::vector<std::vector<at::Tensor>> result;
  for (auto& [kind, members] : lists) result.push_back(std::move(members));
  return result;
}

at::Tensor pack(const std::vector<at::Tensor>& members) {
  std::vector<at::Tensor> flat;
  for (const auto& member : members) flat.push_back(member.reshape({-1}));
  return at::cat(flat);
}

void unpack(const at::Tensor& packed, const std::vector<at::Tensor>& members) {
  int64_t at = 0;
  for (const auto& member : members) {
    member.copy_(packed.narrow(0, at, member.numel()).view(member.sizes()));
    at += member.numel();
  }
}

// Broadcasts in memory order, which is the same on all ranks, in messages of bounded size.
void broadcast_as_it_lies(const comm::Group& group, const at::Tensor& tensor, int root,
                          std::string_view label) {
  constexpr int64_t kMessageBytes = 25 << 20;
  const auto flat = tensor.as_strided({tensor.numel()}, {1});
  const int64_t step = kMessageBytes / static_cast<int64_t>(tensor.element_size());
  for (int64_t at = 0; at < flat.numel(); at += step) {
    group.broadcast(flat.narrow(0, at, std::min(step, flat.numel() - at)), root, {.label = label});
  }
}

}  // namespace

void make_same(const comm::Group& group, torch::nn::Module& module, bool copy_state) {
  check_same_text(group, describe(module), "module description",
                  "every rank must build the same model");
  if (!copy_state) {
    check_same_text(group, describe_bits(module), "module hash",
                    "load the same weights on every rank, or leave copy_state on");
    return;
  }
  std::vector<at::Tensor> state;
  for (const auto& [name, tensor] : nn::named_state(module)) state.push_back(tensor);
  broadcast_packed(group, state, 0, "module state");
}

void make_same(const comm::Group& group, torch::nn::Module& module, bool copy_state,
               compat::DeferredInit& values) {
  check_same_text(group, describe(module), "module description",
                  "every rank must build the same model");
  if (!copy_state) {
    check_same_text(group, fmt::format("generator of hash {:016x}", hash(values.generator())),
                    "random generator",
                    "seed every rank alike before the model is made, or leave copy_state on");
  }
  const auto generator = values.generator().clone();
  std::vector<at::Tensor> state{generator};
  // Tensors that already have values, such as counters of batch norms.
  for (const auto& [name, tensor] : nn::named_state(module)) {
    if (!values.has(tensor)) state.push_back(tensor);
  }
  broadcast_packed(group, state, 0, "module state");
  values.set_generator(generator);
}

void broadcast_packed(const comm::Group& group, const std::vector<at::Tensor>& tensors, int root,
                      std::string_view label) {
  if (group.size() == 1) return;
  const at::NoGradGuard no_grad;
  for (const auto& members : alike(tensors)) {
    std::vector<at::Tensor> small;
    int64_t bytes = 0;
    const auto send_small = [&] {
      if (small.empty()) return;
      const auto packed = pack(small);
      group.broadcast(packed, root, {.label = label});
      if (group.rank() != root) unpack(packed, small);
      small.clear();
      bytes = 0;
    };
    for (const auto& member : members) {
      const auto more = static_cast<int64_t>(member.nbytes());
      if (more >= kPackBytes && member.is_non_overlapping_and_dense()) {
        broadcast_as_it_lies(group, member, root, label);
        continue;
      }
      if (bytes + more > kPackBytes) send_small();
      small.push_back(member);
      bytes += more;
    }
    send_small();
  }
}

void PackedTensors::unpack() const {
  const at::NoGradGuard no_grad;
  parallel::unpack(flat, members);
}

std::vector<PackedTensors> pack_alike(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<PackedTensors> result;
  for (auto& members : alike(tensors)) {
    const auto flat = pack(members);
    result.push_back({std::move(members), flat});
  }
  return result;
}

void average_packed(const comm::Group& group, const std::vector<at::Tensor>& tensors, double factor,
                    std::string_view label) {
  const at::NoGradGuard no_grad;
  const auto lists = pack_alike(tensors);
  for (const auto& list : lists) {
    if (factor == 0) {
      list.flat.zero_();
    } else if (factor != 1) {
      list.flat.mul_(factor);
    }
    group.all_reduce(list.flat, comm::ReduceOp::average, {.label = label});
  }
  for (const auto& list : lists) list.unpack();
}

void check_weight(double weight) {
  if (!(weight >= 0) || !std::isfinite(weight)) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "the weight of a rank's gradient",
                 .got = fmt::format("{}", weight),
                 .expected = "a number >= 0"});
  }
}

std::vector<double> gather_weights(const comm::Group& group, double weight) {
  check_weight(weight);
  const auto all = at::empty({group.size()}, at::kDouble);
  group.all_gather(all, at::full({1}, weight, at::kDouble), {}, {.label = "step weights"});
  const double* first = all.data_ptr<double>();
  return {first, first + group.size()};
}

}  // namespace troika::parallel
