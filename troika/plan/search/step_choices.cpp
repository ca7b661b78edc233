#include "troika/plan/search/step_choices.h"

namespace troika::plan {

using layout::StageWeights;

namespace {

// The numbers of devices, descending: the most are usually fastest, and a low limit ends the other
// searches sooner.
std::vector<int> device_counts(const StepModel& model, const StepSettings& settings) {
  const int all = model.problem().cluster.ranks() / settings.axes.ranks();
  const bool is_one_stage = settings.family == StepFamily::one_stage;
  std::vector<int> counts;
  const bool needs_two = !is_one_stage || settings.sums;
  const int least = model.problem().uses_all_devices ? all : needs_two ? 2 : 1;
  if (needs_two && all < 2) return counts;
  for (int count = all; count >= least; --count) {
    if (model.problem().straight && is_one_stage && count > 1) continue;
    if (all > kMostExactDevices && all % count != 0) continue;
    counts.push_back(count * settings.axes.ranks());
  }
  return counts;
}

AxesKind kind_of(const BlockAxes& axes) {
  if (axes.context > 1) return AxesKind::context;
  return axes.tensor > 1 ? AxesKind::tensor : AxesKind::none;
}

}  // namespace

std::vector<StepSettings> all_settings(const StepModel& model, AxesKind kind) {
  const bool shares_blocks = kind != AxesKind::none;
  std::vector<StepSettings> all;
  for (const auto family : {StepFamily::one_stage, StepFamily::pipeline, StepFamily::pipeline_rows,
                            StepFamily::zero_bubble, StepFamily::gpipe, StepFamily::no_flushes}) {
    const bool flushes = family != StepFamily::no_flushes;
    const bool has_flushes_only = model.problem().weights == StageWeights::synchronous;
    if (!flushes && (shares_blocks || has_flushes_only)) continue;
    for (size_t profile = 0; profile < model.problem().profiles.size(); ++profile) {
      if (model.micro_batches(profile) == 0) continue;
      const bool splits = model.problem().profiles[profile].splits_backward;
      if (family == StepFamily::zero_bubble && !splits) continue;
      for (const bool recompute : {false, true}) {
        const bool is_whole = family == StepFamily::one_stage && !shares_blocks;
        const int most_zero = is_whole ? 3 : flushes ? 1 : 0;
        for (int zero = 0; zero <= most_zero; ++zero) {
          StepSettings settings{
              .profile = profile, .recompute = recompute, .zero_stage = zero, .family = family};
          const bool may_offload = is_whole && !model.problem().offload.empty();
          for (const bool activations : {false, true}) {
            for (const bool optimizer : {false, true}) {
              if ((activations || optimizer) && !may_offload) continue;
              settings.offloads_activations = activations;
              settings.offloads_optimizer = optimizer;
              all.push_back(settings);
            }
          }
          settings.offloads_activations = settings.offloads_optimizer = false;
          if (is_whole && zero == 0 && !model.problem().cluster.spares.empty()) {
            settings.sums = true;
            all.push_back(settings);
          }
          if (kind == AxesKind::tensor) {
            settings.tensor_overlap = true;
            all.push_back(settings);
          }
        }
      }
    }
  }
  return all;
}

std::vector<StepSettings> on_devices(const StepModel& model, StepSettings settings, AxesKind kind) {
  std::vector<StepSettings> all;
  const auto& allows = model.problem().allows;
  for (const auto& axes : model.block_axes()) {
    if (kind_of(axes) != kind) continue;
    settings.axes = axes;
    if (allows && !allows(settings, false)) continue;
    for (const int devices : device_counts(model, settings)) {
      settings.devices = devices;
      all.push_back(settings);
    }
  }
  return all;
}

bool adds_offload(const StepSettings& more, const StepSettings& less) {
  auto without = more;
  without.devices = less.devices;
  without.offloads_activations = less.offloads_activations;
  without.offloads_optimizer = less.offloads_optimizer;
  return without == less && more.offloads_activations >= less.offloads_activations &&
         more.offloads_optimizer >= less.offloads_optimizer;
}

}  // namespace troika::plan
