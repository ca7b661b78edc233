#include "troika/data/batch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "troika/base/error.h"
#include "troika/compat/torch.h"

namespace troika::data {

namespace {

constexpr std::string_view kInputs = "inputs";
constexpr std::string_view kTargets = "targets";

int64_t rows_of(const at::Tensor& tensor) {
  return tensor.dim() > 0 ? tensor.size(0) : 0;
}

}  // namespace

int64_t Batch::size() const {
  if (targets.defined()) return rows_of(targets);
  if (inputs.defined()) return rows_of(inputs);
  for (const auto& [name, tensor] : named) {
    if (tensor.defined()) return rows_of(tensor);
  }
  return 0;
}

const at::Tensor& Batch::operator[](std::string_view name) const {
  const auto found = named.find(name);
  const at::Tensor* tensor = name == kInputs        ? &inputs
                             : name == kTargets     ? &targets
                             : found != named.end() ? &found->second
                                                    : nullptr;
  if (tensor && tensor->defined()) return *tensor;
  std::vector<std::string> names;
  for (const auto& one : tensors()) names.push_back(one.first);
  throw Error("data", ErrorKind::usage,
              {.what = fmt::format("the batch has no tensor `{}`", name),
               .got = names.empty() ? "no tensor" : fmt::format("{}", fmt::join(names, ", ")),
               .hint = "the data set's load() fills a batch"});
}

std::vector<std::pair<std::string, at::Tensor>> Batch::tensors() const {
  std::vector<std::pair<std::string, at::Tensor>> all;
  if (inputs.defined()) all.emplace_back(kInputs, inputs);
  if (targets.defined()) all.emplace_back(kTargets, targets);
  for (const auto& [name, tensor] : named) {
    if (tensor.defined()) all.emplace_back(name, tensor);
  }
  return all;
}

std::vector<Batch> split(const Batch& batch, int64_t parts) {
  for (const auto& [name, tensor] : batch.tensors()) {
    if (tensor.dim() > 0 && tensor.size(0) == batch.size()) continue;
    throw Error("data", ErrorKind::usage,
                {.what = fmt::format("the batch's tensor `{}` cannot be cut into shares", name),
                 .got = c10::str("shape ", tensor.sizes()),
                 .expected = fmt::format("{} rows, one for each sample", batch.size())});
  }
  std::vector<Batch> shares(static_cast<size_t>(parts));
  const auto cut = [&](const at::Tensor& tensor, const auto& place_in) {
    if (!tensor.defined()) return;
    const auto pieces = tensor.tensor_split(parts, 0);
    for (size_t i = 0; i < shares.size(); ++i) place_in(shares[i]) = pieces[i];
  };
  cut(batch.inputs, [](Batch& share) -> at::Tensor& { return share.inputs; });
  cut(batch.targets, [](Batch& share) -> at::Tensor& { return share.targets; });
  for (const auto& [name, tensor] : batch.named) {
    cut(tensor, [&](Batch& share) -> at::Tensor& { return share.named[name]; });
  }
  auto next = batch.samples.begin();
  for (auto& share : shares) {
    if (batch.samples.empty()) break;
    share.samples.assign(next, next + share.size());
    next += share.size();
  }
  return shares;
}

}  // namespace troika::data
