// The checks of a plan before a run.
#include <fmt/format.h>

#include <string>
#include <utility>

#include "troika/base/error.h"
#include "troika/train/options/pipeline_mesh.h"
#include "troika/train/options/resolve_plan.h"

namespace troika::train {

using layout::Axis;
using layout::Plan;

void require_runnable(const Plan& plan, int world, const layout::PlanPlaces& places) {
  plan.verify();
  const auto refuse = [&](std::string what, const std::string& got, const std::string& key,
                          std::string expected) {
    throw Error(
        "train", ErrorKind::usage,
        {.what = std::move(what), .got = got + places.of(key), .expected = std::move(expected)});
  };
  const bool is_cut = plan.schedule != layout::kOneStageSchedule;
  require_runnable_axes(plan, places);
  if (!is_cut && plan.mesh.size(Axis::pipeline) > 1) {
    refuse("a pipeline axis without a schedule of stages",
           fmt::format("mesh.axes {} and schedule.name {}", plan.mesh.text(), plan.schedule),
           "schedule.name", "a schedule by name, as gpipe, or pipeline=1");
  }
  // A cut into one stage only names the blocks of the plan's model.
  if (!is_cut && plan.stages.cut.find('|') != std::string::npos) {
    refuse("stages without a schedule of stages",
           fmt::format("stages.cut {} and schedule.name {}", plan.stages.cut, plan.schedule),
           "stages.cut", "a schedule by name, or no cut");
  }
  if (is_cut) require_runnable_pipeline(plan, places);
  if (plan.mesh.ranks() != world) {
    refuse("a plan for another world",
           fmt::format("{} ranks: mesh.axes {}", plan.mesh.ranks(), plan.mesh.text()), "mesh.axes",
           fmt::format("{}, the ranks of this run, or data=-1 for any number", world));
  }
}

}  // namespace troika::train
