#include "troika/optim/flat_optimizer.h"

#include <ATen/ATen.h>

#include <map>

#include "troika/base/error.h"
#include "troika/compat/compute_threads.h"

namespace troika::optim {

namespace {

std::string shape_of(const at::Tensor& tensor) {
  std::string text;
  for (const int64_t size : tensor.sizes()) {
    text += (text.empty() ? "" : ", ") + std::to_string(size);
  }
  return (at::isFloatingType(tensor.scalar_type()) ? "[" : "integers [") + text + "]";
}

// Returns the box of the state that belongs to this part of a parameter.
layout::Box box_of_state(const layout::Box& part, bool is_scalar, int64_t block) {
  if (is_scalar) return layout::Box::range({}, {}, {0, part.count() > 0});
  if (block == 1) return part;
  const auto blocks = [block](int64_t count) { return (count + block - 1) / block; };
  TROIKA_CHECK(part.flat, "states in blocks are of flat ranges");
  const int64_t begin = part.flat->begin / block;
  return layout::Box::range({}, {blocks(c10::multiply_integers(part.shape))},
                            {begin, begin + blocks(part.count())});
}

[[noreturn]] void fail(const std::string& what, const std::string& got = {},
                       const std::string& expected = {}) {
  throw Error("optim", ErrorKind::usage, {.what = what, .got = got, .expected = expected});
}

}  // namespace

FlatOptimizer::FlatOptimizer(FlatParameters parameters, double rate,
                             std::vector<std::string> flat_states, bool counts,
                             const std::filesystem::path& offload)
    : parameters_(std::move(parameters)),
      rate_(rate),
      counts_(counts),
      steps_(at::zeros({static_cast<int64_t>(parameters_.list().size())}, at::kLong)) {
  for (auto& name : flat_states) {
    flat_.emplace_back(std::move(name), make_flat(offload));
  }
}

at::Tensor FlatOptimizer::make_flat(const std::filesystem::path& offload) {
  if (offload.empty()) {
    return at::zeros({parameters_.size()},
                     at::TensorOptions().dtype(parameters_.type()).device(parameters_.device()));
  }
  if (!parameters_.device().is_cpu()) {
    fail("optimizer states in files need parameters in host memory", parameters_.device().str(),
         "cpu");
  }
  const auto bytes = static_cast<size_t>(parameters_.size()) * parameters_.element_bytes();
  auto file = files_.emplace_back(std::make_shared<MappedFile>(offload, bytes));
  return at::from_blob(
      file->data(), {parameters_.size()}, [file](void*) {}, parameters_.type());
}

void FlatOptimizer::step() {
  const at::NoGradGuard no_grad;
  const auto gradients = parameters_.gradients();
  auto* const steps = steps_.data_ptr<int64_t>();
  for (const FlatRange& range : gradients.ranges) ++steps[range.index];
  if (parameters_.device().is_cpu()) {
    update(gradients.ranges);
  } else {
    update_on_device(gradients.ranges, gradients.on_device);
  }
}

void FlatOptimizer::update_on_device(const std::vector<FlatRange>& /*ranges*/,
                                     const std::vector<at::Tensor>& /*gradients*/) {
  fail("this optimizer steps tensors in host memory", parameters_.device().str(), "cpu");
}

DeviceTensors FlatOptimizer::device_tensors(const std::vector<FlatRange>& ranges,
                                            const std::vector<at::Tensor>& gradients,
                                            const std::vector<size_t>& chosen) const {
  DeviceTensors result;
  for (const size_t i : chosen) {
    const size_t index = ranges[i].index;
    result.parameters.push_back(parameters_.list()[index].tensor.detach());
    result.gradients.push_back(gradients[i].detach());
    if (!flat_.empty()) result.first.push_back(parameters_.view(flat_[0].second, index));
    if (flat_.size() > 1) result.second.push_back(parameters_.view(flat_[1].second, index));
  }
  return result;
}

void FlatOptimizer::zero_grad() {
  const at::NoGradGuard no_grad;
  for (const auto& parameter : parameters_.list()) {
    const at::Tensor gradient = parameter.tensor.grad();
    // Through an alias: a gradient with a graph (create_graph) must not be modified in place.
    if (gradient.defined()) gradient.detach().zero_();
  }
}

NamedTensors FlatOptimizer::state_of(size_t index) const {
  NamedTensors result;
  for (const auto& [name, flat] : flat_) result.emplace_back(name, parameters_.view(flat, index));
  for (auto& item : more_state(index)) result.push_back(std::move(item));
  if (counts_) result.emplace_back("step", steps_.select(0, static_cast<int64_t>(index)));
  return result;
}

NamedTensors FlatOptimizer::state() const {
  NamedTensors result;
  for (size_t i = 0; i < parameters_.list().size(); ++i) {
    const auto& parameter = parameters_.list()[i];
    for (auto& [name, tensor] : state_of(i)) {
      std::optional<layout::Box> box;
      if (parameter.box) box = box_of_state(*parameter.box, tensor.dim() == 0, elements_each(name));
      result.emplace_back(parameter.name + "." + name, std::move(tensor), std::move(box));
    }
  }
  return result;
}

void FlatOptimizer::load_state(const NamedTensors& state) {
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> given;
  for (const auto& [name, tensor] : state) {
    if (!given.emplace(name, tensor).second) fail("a state is given twice", name);
  }
  const NamedTensors mine = this->state();
  for (const auto& [name, tensor] : mine) {
    const auto found = given.find(name);
    if (found == given.end()) fail("a state is missing", "none", name);
    const bool same_kind =
        at::isFloatingType(found->second.scalar_type()) == at::isFloatingType(tensor.scalar_type());
    if (found->second.sizes() != tensor.sizes() || !same_kind) {
      fail("state " + name + " does not fit", shape_of(found->second), shape_of(tensor));
    }
  }
  if (given.size() > mine.size()) {
    for (const auto& [name, tensor] : mine) given.erase(name);
    fail("an unknown state was given", given.begin()->first);
  }
  for (const auto& [name, tensor] : mine) tensor.copy_(given.at(name));
}

kernels::Type FlatOptimizer::kernel_type() const {
  return parameters_.type() == at::kDouble ? kernels::Type::f64 : kernels::Type::f32;
}

kernels::ParameterSpan FlatOptimizer::span(const FlatRange& range) const {
  const auto state = [&](size_t k) -> void* {
    if (k >= flat_.size()) return nullptr;
    return static_cast<char*>(flat_[k].second.data_ptr()) +
           static_cast<size_t>(range.offset) * parameters_.element_bytes();
  };
  return {.parameter = range.parameter,
          .gradient = range.gradient,
          .first = state(0),
          .second = state(1),
          .count = static_cast<size_t>(range.count)};
}

void FlatOptimizer::parallel_over(const std::vector<FlatRange>& ranges,
                                  const std::function<void(size_t)>& work) const {
  const auto in_files = [&](size_t i, void (MappedFile::*act)(const void*, size_t) const) {
    const size_t bytes = parameters_.element_bytes();
    for (const auto& file : files_) {
      (*file.*act)(file->data() + static_cast<size_t>(ranges[i].offset) * bytes,
                   static_cast<size_t>(ranges[i].count) * bytes);
    }
  };
  const auto count = static_cast<int64_t>(ranges.size());
  compat::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      if (i + 1 < static_cast<size_t>(end)) in_files(i + 1, &MappedFile::prefetch);
      work(i);
      in_files(i, &MappedFile::release);
    }
  });
}

}  // namespace troika::optim
