// Parameters as keys of a parameter server's table. Internal to the folder.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "troika/optim/flat_optimizer.h"
#include "troika/optim/optimizer.h"
#include "troika/server/worker.h"

namespace troika::parallel {

// Returns the servers' update rule for an optimizer's options. Throws Error(parallel, usage) for an
// optimizer that servers do not have.
server::UpdateSpec update_of(const optim::OptimizerOptions& options);
// The names of the rule's states, one number per value, in the order of server::Segment::state.
std::vector<std::string> state_names(const server::UpdateSpec& update);
// Whether the optimizer of this rule saves a step count for each parameter.
bool counts_steps(const server::UpdateSpec& update);

// The parameters that are stepped by one update rule. A key has the values of up to 256 consecutive
// elements of one parameter, in the order of its dimensions. The last key of a parameter is filled
// up with zeros. Not thread-safe.
class ServedTable {
 public:
  // A pushed gradient's rate is the optimizer's rate times `rate_factor`. All parameters must have
  // the type `type`, float32 or float64.
  ServedTable(std::string name, server::UpdateSpec update, double rate_factor, at::ScalarType type);

  bool is_for(const server::UpdateSpec& update, double rate_factor) const;
  // `index` is the parameter's place in the list of gradients of push().
  void add(const optim::Parameter& parameter, size_t index);
  server::TableSpec spec(server::Application application) const;
  const std::string& name() const { return name_; }
  int64_t bytes() const;  // of the values

  // Pushes gradients, multiplied by `factor`; parameters whose gradient is undefined are left out.
  // Returns nothing if all are. Copies the gradients.
  std::optional<server::Handle> push(server::Worker& worker,
                                     const std::vector<at::Tensor>& gradients, double rate,
                                     double factor);
  server::Handle pull(server::Worker& worker);
  server::Handle pull_state(server::Worker& worker) const;
  // Writes values, and with `state` also the optimizer's states, to the servers. `state` holds the
  // states as FlatOptimizer::state() names them.
  server::Handle assign(server::Worker& worker, const optim::NamedTensors& state) const;
  // Copy the values of a finished pull into the parameters, and those of a finished pull_state()
  // also into `state`.
  void take(const server::Handle& pulled) const;
  void take_state(const server::Handle& pulled, const optim::NamedTensors& state) const;

 private:
  struct Member {
    optim::Parameter parameter;
    size_t index = 0;
    int64_t first = 0;  // key
    int64_t keys = 0;
  };

  // Returns a member's elements among [keys, width] numbers of all keys, in the parameter's shape.
  at::Tensor elements_of(const at::Tensor& numbers, const Member& member) const;
  server::KeySpan all() const { return {0, static_cast<uint64_t>(keys_)}; }
  int64_t state_width() const;
  // Views the values of a finished call as [keys, width].
  at::Tensor numbers(const server::Handle& handle, int64_t width) const;
  // Returns memory for values of all keys, each of `width` numbers.
  std::shared_ptr<at::Tensor> new_numbers(int64_t width) const;
  server::ValueMemory memory_of(const std::shared_ptr<at::Tensor>& tensor) const;

  const std::string name_;
  const server::UpdateSpec update_;
  const double rate_factor_;
  const at::ScalarType type_;
  std::vector<Member> members_;
  int64_t keys_ = 0;
  // [keys, width]. Calls use them in place. They are used again, because new ones would take new
  // pages from the system in each step.
  std::shared_ptr<at::Tensor> gradients_;  // zeros where keys are filled up
  std::shared_ptr<at::Tensor> pulled_;
};

}  // namespace troika::parallel
