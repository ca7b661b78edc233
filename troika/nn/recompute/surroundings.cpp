#include "troika/nn/recompute/surroundings.h"

#include <mutex>
#include <optional>

#include "troika/compat/accelerator.h"
#include "troika/compat/torch.h"

namespace troika::nn {

namespace {

at::Tensor state_of(at::Generator& generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator& generator, const at::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

// Restores generators and buffers in its destructor.
class Keep {
 public:
  Keep(std::vector<at::Generator> generators, const std::vector<at::Tensor>& buffers)
      : generators_(std::move(generators)), buffers_(buffers) {
    for (auto& generator : generators_) states_.push_back(state_of(generator));
    for (const auto& buffer : buffers_) values_.push_back(buffer.detach().clone());
  }
  ~Keep() {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < generators_.size(); ++i) set_state(generators_[i], states_[i]);
    // Copies through an alias with a version of its own, so that graphs that saved the buffer do
    // not report a modification.
    for (size_t i = 0; i < buffers_.size(); ++i) buffers_[i].variable_data().copy_(values_[i]);
  }
  Keep(const Keep&) = delete;
  Keep& operator=(const Keep&) = delete;

 private:
  std::vector<at::Generator> generators_;
  const std::vector<at::Tensor>& buffers_;
  std::vector<at::Tensor> states_, values_;
};

}  // namespace

Surroundings::Surroundings(at::Device device) {
  std::vector<at::Device> devices{at::kCPU};
  if (!device.is_cpu()) devices.push_back(device);
  for (const auto& each : devices) {
    at::Generator generator = compat::default_generator(each);
    random_.emplace_back(generator, state_of(generator));
    autocast_.emplace_back(each.type(), compat::autocast_state(each.type()));
  }
}

void Surroundings::restored(const std::vector<at::Tensor>& buffers,
                            const std::function<void()>& work) const {
  std::vector<at::Generator> generators;
  for (const auto& entry : random_) generators.push_back(entry.first);
  const Keep keep(generators, buffers);
  for (size_t i = 0; i < random_.size(); ++i) set_state(generators[i], random_[i].second);

  std::vector<std::optional<compat::AutocastGuard>> guards(autocast_.size());
  for (size_t i = 0; i < guards.size(); ++i) {
    guards[i].emplace(autocast_[i].first, autocast_[i].second);
  }
  const DrawStateGuard draws(draws_);
  const at::AutoGradMode grad(true);
  work();
}

}  // namespace troika::nn
