// DiLoCo: replicas train by themselves for many steps, and an outer optimizer steps by the mean of
// their changes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "troika/base/trace.h"
#include "troika/parallel/diloco/outer_fragments.h"
#include "troika/parallel/diloco/replica_mean.h"
#include "troika/parallel/exchange.h"

namespace troika::parallel {

struct DiLoCoSchedule {
  // Steps of a replica between two outer steps of the same parameter, a multiple of
  // OuterOptions::fragments. Outer steps of fragments are this number / fragments inner steps
  // apart: the interval.
  int64_t inner_steps = 500;
  // Inner steps from the sending of a fragment's changes to its outer step; below the interval.
  int64_t delay = 0;
};

// DiLoCo (Douillard et al. 2023, arXiv 2311.08105, algorithm 1) with one fragment, and streaming
// DiLoCo (Douillard et al. 2025, arXiv 2501.18512) with several, or with a delay. The outer step
// number s, from 0, comes after inner step (s + 1) * interval, and is that of fragment s modulo
// their number. Its changes are those up to `delay` inner steps before. States of the optimizer
// stay local. Between outer steps nothing is sent, and after an outer step all replicas have the
// same outer weights, bit for bit.
//
// The module holds the replica's own weights during the steps. synchronize_replicas(), make_whole()
// and fetch_states() give it the outer ones, for validations and checkpoints: what replicas have
// learned since the last outer steps is not in them. begin_training() must be called after any of
// these and before the next forward pass.
class DiLoCo : public Exchange {
 public:
  // The replicas hold the same module. `mean` may be used by nobody else. `trace`, if any, records
  // a span of communication for each time that an outer step waits. Throws Error(usage) for options
  // out of range.
  DiLoCo(torch::nn::Module& module, std::unique_ptr<ReplicaMean> mean,
         const DiLoCoSchedule& schedule, const OuterOptions& outer, Trace* trace = nullptr);

  // Throws Error(usage): replicas make equally many steps.
  bool begin_step(double weight) override;
  void finish_backward() override {}
  bool set_syncing(bool) override { return true; }
  std::vector<optim::Parameter> parameters() const override { return outer_.parameters(); }
  void begin_training() override { outer_.hide(); }
  // Blocks while changes are averaged that an outer step needs now.
  void step_by(const std::function<void()>& update) override;
  void synchronize_replicas() override { outer_.show(); }
  // Waits for changes that are being averaged, which the state has.
  void make_whole() override { fetch_states(); }
  void fetch_states() override;
  std::vector<std::pair<std::string, double>> take_statistics() override;
  // Returns "step" (inner steps made), "sent.*" (means of changes that wait for their outer step),
  // and OuterFragments::state().
  optim::NamedTensors state() const override;
  void load_state(const optim::NamedTensors& state) override;

 private:
  int64_t interval() const { return schedule_.inner_steps / outer_.count(); }
  // The fragment whose changes are sent, or which steps, after this number of inner steps.
  int64_t fragment_after(int64_t steps) const;
  bool is_sent() const { return !changes_.empty(); }
  void send();
  void finish();

  const DiLoCoSchedule schedule_;
  Trace* const trace_;
  OuterFragments outer_;
  std::vector<at::Tensor> changes_, buffers_;  // sent; empty: none are
  std::unique_ptr<ReplicaMean> mean_;          // ends first, because it writes to these
  int64_t steps_ = 0;                          // inner, made
};

}  // namespace troika::parallel
