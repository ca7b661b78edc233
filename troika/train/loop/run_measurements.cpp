#include "troika/train/loop/run_measurements.h"

#include "troika/base/log.h"
#include "troika/compat/torch.h"
#include "troika/train/options/run_mode.h"

namespace troika::train {

RunMeasurements::RunMeasurements(const RunSetup& setup) : setup_(setup) {
  if (!setup.options.trainer.profiler.empty()) profile_.emplace();
}

void RunMeasurements::begin_steps() {
  if (setup_.options.trainer.trace) timeline_.emplace(setup_.world());
  times_ = observe::StepTimes(trace(), profile());
}

void RunMeasurements::write(int64_t steps) {
  const auto& folder = setup_.folder;
  if (timeline_) {
    timeline_->write(folder / "trace.json", setup_.groups.describe(setup_.world().rank()));
    if (setup_.is_main()) {
      log::info("timeline of the first {} steps: {} (for ui.perfetto.dev, or troika report {})",
                std::min(steps, trace()->steps()), (folder / "trace.json").string(),
                folder.string());
    }
  }
  if (profile_ && setup_.is_main()) profile_->report(folder, run_mode_name(RunMode::fit));
}

}  // namespace troika::train
